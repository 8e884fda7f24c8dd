//! A testbed for TCP in virtual time: machines with a stack, a wire in memory, and a program.
//!
//! [`Machine`] joins a stack with a modelled wire and a program's sockets. Its caller keeps the clock:
//! [`Machine::step`] does all that is due, and says when to call again; [`run`] does so for two machines. The parts
//! also serve alone: [`PayloadBytes`] and [`Socket`] for a data path without a stack, and where outputs are performed
//! in another order; [`Runs`] makes FlexTOE's data path over each executor, with each loss recovery.
//!
//! The fuzzer needs the machine over `wave-tcp-planted`: `planted` builds the same source over that crate.
//!
//! Must not know: what a test checks.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "for tests, not a library for users")]

mod clock;
mod executors;
mod flow;
mod handover;
mod limited;
mod machine;
mod memory;
mod pattern;
mod socket;

pub use clock::{MINUTE, MS, SECOND, TICK, calm, join, machines, run};
pub use executors::{By, Data, Runs, Stages};
pub use flow::established;
pub use limited::Limited;
pub use machine::{BOUNDS, CONTEXT, Machine, Make, RING, Setup, host6};
pub use memory::PayloadBytes;
pub use pattern::{byte, first_wrong};
pub use socket::{Socket, connect, update};
