//! The calls over agents with the real engine, on a wire in memory.

mod agents;
mod blocking;
mod demoting;
mod differential;
mod low_water;
mod signals;
