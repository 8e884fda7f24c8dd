//! The memory of running programs under an agent: the mappings of a process ([`Areas`]), the accessed bits of its pages
//! ([`AccessBits`]), moves of its pages to swap and back ([`advise()`]), and swap for machines that have none
//! ([`Swap`]). [`Enclave`] is the mechanism around them, and decides nothing.
//!
//! Nothing here changes what a process computes: bits are read and cleared, and pages are moved by
//! advice that the kernel is free to ignore. Each process is held by a pidfd, so that reuse of its id is noticed,
//! and its address space has an identifier, so that executing another program is noticed.

mod advise;
mod areas;
mod bits;
mod enclave;
mod figures;
mod host;
mod kernel;
mod own_swap;
mod pages;
mod pattern;
mod process;
mod ranges;
mod refault;
mod sample;
#[allow(dead_code, reason = "some of it is C's alone")]
mod shared;
mod swap;
mod swap_cache;

pub use crate::device::DeviceOptions;
pub use crate::target::{Group, TargetError};
pub use advise::{Advice, AdviseError, Advised, advise};
pub use areas::{Area, Areas, Kind, Map};
pub use bits::{AccessBits, Backend, BitsError, STRIP_BYTES, Strip};
pub use enclave::{Enclave, Options, StartError, Stats};
pub use figures::{Figures, Pressure, Stall};
pub use kernel::Program;
pub use own_swap::{Swap, SwapError, SwapUse};
pub use process::{Process, processes_of};
pub use swap::{SwapDevice, SwapKind, SwapState, Zram, swap_state};
pub use wave_memory::guard::{Held, Limits};
pub use wave_memory::table::Account;

/// CPU time of the calling thread.
fn thread_cpu() -> std::time::Duration {
    time_on(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Time on the host's monotonic clock.
fn now() -> wave_core::clock::Nanos {
    wave_core::clock::Nanos(time_on(libc::CLOCK_MONOTONIC).as_nanos() as u64)
}

fn time_on(clock: libc::clockid_t) -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
