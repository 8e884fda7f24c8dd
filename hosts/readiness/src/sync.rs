//! The atomics and locks of sources and ready lists. The loom models compile [`crate::list`] and [`crate::source`] over a module with
//! the same names (`tests/loom.rs`).

pub use std::sync::atomic::{AtomicU32, Ordering};
pub use std::sync::{Arc, Mutex, MutexGuard};
