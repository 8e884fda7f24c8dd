//! Memory of real processes: what is mapped, which pages were accessed, moves to swap and back. It takes root;
//! elsewhere each test says why it did nothing.
//!
//! Times mean nothing here, so nothing is asserted of them.

mod advise;
mod areas;
mod bits;
mod swap;
mod target;
