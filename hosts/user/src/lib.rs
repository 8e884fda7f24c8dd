//! A thread runtime for ordinary, unprivileged processes. An agent elsewhere makes every scheduling
//! decision.
//!
//! *Host cores* are pinned pthreads. *Threads* are stackful user-level threads or have a pthread each. They use
//! [`spawn`], [`yield_now`], [`await_note`], [`park`] and [`Thread::unpark`], [`sleep`], [`JoinHandle::join`],
//! [`Mutex`] and [`Condvar`]. Each event sends its message to the enclave's agent; each switch takes a decision,
//! checks it against the thread table, and reports the outcome. Without an agent, a first-in
//! first-out queue inside the host decides; a new agent takes over from a snapshot of the table.
//! A thread that keeps running is preempted at its next *safe point*: a call of the runtime, or
//! [`preempt_point`]. A kernel-level thread ([`ThreadKind::Kernel`]) has its own pthread and is
//! preempted anywhere, by a signal.
//!
//! Must not know: any policy, and what the threads do.
//!
//! ```no_run
//! let enclave = wave_user::Enclave::start(wave_user::Options::new("/tmp/my.sock"))?;
//! let answer = enclave.spawn(0, || 6 * 7)?.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod clock;
mod control;
mod core_loop;
mod current;
mod door;
mod enclave;
mod fiber;
mod futex;
mod inline_fn;
mod join;
mod klt;
mod region;
pub mod rpc;
mod safe_points;
mod shared;
mod stalls;
mod stats;
mod sync;
mod table;
mod timers;

pub use clock::MonotonicClock;
pub use current::{await_note, class, core_index, current, park, preempt_point, sleep, yield_now};
pub use enclave::{
    Attributes, Enclave, Options, SpawnError, Spawner, StartError, ThreadKind, spawn,
};
pub use join::{JoinError, JoinHandle};
pub use region::{Anywhere, preempt_anywhere};
pub use stalls::{Stall, StallCause, WorstDeferral};
pub use stats::{CoreStats, EnclaveStats, Mode, PUBLISH_EVERY, Times};
pub use sync::{Condvar, Mutex, MutexGuard};
pub use table::Thread;
