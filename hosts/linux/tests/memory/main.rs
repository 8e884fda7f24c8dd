//! Memory of real processes: mappings, accessed pages, moves to swap and back. The tests need root; without it, each
//! test reports why it was skipped.
//!
//! Times mean nothing here, so no test asserts them.

mod advise;
mod areas;
mod bits;
mod swap;
mod target;
