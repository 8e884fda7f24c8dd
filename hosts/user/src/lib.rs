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
//!
//! # Threads move between pthreads
//!
//! A call that *switches* lets other threads run, and a user-level thread may return from it on another pthread. Each such call
//! says so in its documentation. Across it, a user-level thread holds nothing that stays with the pthread:
//!
//! - no reference to the value of a `thread_local!`;
//! - no [`Rc`](std::rc::Rc), or other value that is not [`Send`], if a `thread_local!` or another thread has a part of what it
//!   shares. It may hold one that shares only with values on its own stack: they move together;
//! - no guard of a lock that remembers its pthread, such as [`std::io::StdoutLock`].
//!
//! Breaking this rule is undefined behaviour, at least a data race, although it takes no `unsafe`. Neither the
//! compiler nor this crate detects it, not even in debug builds: Rust checks the state of an `async` function for
//! `Send`, but not a stack, and addresses on a stack do not tell whether they are still in use (docs/adr/0098). This
//! compiles, and is wrong:
//!
//! ```no_run
//! # use std::cell::Cell;
//! thread_local!(static COUNT: Cell<u64> = const { Cell::new(0) });
//! // Right: the reference ends before the switch.
//! COUNT.with(|count| count.set(count.get() + 1));
//! wave_user::yield_now();
//! // Wrong: the thread returns with a reference to the thread-local of the pthread that it was on.
//! COUNT.with(|count| {
//!     wave_user::yield_now();
//!     count.set(count.get() + 1);
//! });
//! ```
//!
//! Even a thread that keeps the rule may find another value in a thread-local after a switch: another pthread's. A
//! kernel-level thread keeps its pthread, so this section does not concern it.

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
