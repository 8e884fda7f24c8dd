//! The atomics and locks of the mechanism. The loom models compile [`super::table`] and [`super::fallback`] against a module
//! with the same names (`tests/loom.rs`).

pub(super) use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering, compiler_fence,
};
pub(super) use std::sync::{Mutex, MutexGuard};
