//! The Linux host: the real kernel, by BPF programs.
//!
//! [`sched`]: schedules the threads of unmodified programs under an agent, by sched_ext and one BPF program that
//! is the mechanism and nothing else (`bpf/sched.bpf.c`, GPL-2.0). [`record`]: records what threads do under
//! Linux's own scheduler, as a workload that the simulator schedules under any policy.
//!
//! [`memory`]: reads and clears the accessed bits of other processes' pages, and moves pages to swap and back.
//!
//! This crate knows the wire types of the subsystems, but no policy.

mod bpf;
mod device;
mod line;
pub mod memory;
mod process;
pub mod record;
pub mod sched;
mod target;
mod window;

/// Locks, ignoring poison: a panic while the lock was held leaves nothing half done in this crate's structures.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
