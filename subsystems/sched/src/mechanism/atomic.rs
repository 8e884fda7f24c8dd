//! The atomics of the thread table. Its loom model compiles the same file over loom's (`tests/loom.rs`).

pub(super) use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
