//! Operations of a thread on itself: yield, park, sleep, safe points.

use std::cell::Cell;
use std::time::Duration;

use wave_core::clock::{Clock, Nanos};
use wave_sched::mechanism::table::Leave;

use crate::clock::MonotonicClock;
use crate::core_loop::Core;
use crate::klt::{Inside, Klt};
use crate::table::Thread;

thread_local! {
    static CORE: Cell<*const Core> = const { Cell::new(std::ptr::null()) };
}

/// Makes `core` the core of this pthread while `body` runs.
pub(crate) fn enter(core: &Core, body: impl FnOnce()) {
    CORE.set(core);
    body();
    CORE.set(std::ptr::null());
}

/// Gives `body` the core that the caller runs on, if it runs on one.
///
/// Not inlined: a user-level thread may continue on another pthread after a switch, and if the compiler kept the
/// address of the thread-local across the switch, the thread would find the old core.
#[inline(never)]
pub(crate) fn with_core<R>(body: impl FnOnce(Option<&Core>) -> R) -> R {
    // SAFETY: `enter` keeps the core alive while the pointer is set, and the pointer is only ever
    // used on the pthread that set it.
    if let Some(core) = unsafe { CORE.get().as_ref() } {
        return body(Some(core));
    }
    // The thread cannot leave this core before `body` returns.
    let _inside = Inside::enter();
    body(Klt::current().map(Klt::core))
}

/// Leaves the core for the given reason, and returns when the thread runs again.
/// Panics if the caller is no thread of an enclave.
pub(crate) fn suspend(reason: Leave) {
    if let Some(klt) = Klt::current() {
        let _inside = Inside::enter();
        return klt.leave(reason);
    }
    let yielder = with_core(|core| {
        let core = core.expect("only a thread of an enclave can do this");
        core.shared.table.own(core.current()).yielder()
    });
    // SAFETY: the yielder is on the stack of the fiber that the caller runs on. It was set when the fiber
    // took this thread.
    unsafe { &*yielder }.suspend(reason);
}

/// The calling thread, if it is one of an enclave's.
pub fn current() -> Option<Thread> {
    with_core(|core| core.map(|core| Thread(core.shared.table.subject(core.current()))))
}

/// The host core that the caller runs on, if it is a thread of an enclave. Out of date as soon as
/// the thread switches.
pub fn core_index() -> Option<u16> {
    with_core(|core| core.map(|core| core.index))
}

/// The class that the calling thread's spawner gave it. Panics outside an enclave.
pub fn class() -> u16 {
    with_core(|core| {
        let core = core.expect("only a thread of an enclave has a class");
        core.shared.table.class(core.current())
    })
}

/// Lets other threads run. Sends YIELD. Panics if the caller is no thread of an enclave.
///
/// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
pub fn yield_now() {
    suspend(Leave::Yield);
}

/// Lets other threads run until a front has told the agent of a request for this thread, by a
/// [note](wave_core::note::Request) that names its [subject](Thread::subject). Sends AWAITS. It may return without a
/// note, and where no agent decides it returns whenever it is this thread's turn: look for a request, and await again.
///
/// A front sends the note after it has left the request where the thread looks, and the thread awaits after it has
/// looked. A note that comes in between counts. Panics if the caller is no thread of an enclave.
///
/// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
pub fn await_note() {
    suspend(Leave::Await);
}

/// A safe point: if the agent has asked for the end of this run, lets other threads run, sends PREEMPT, and
/// returns true when the thread runs again, perhaps on another core. Otherwise returns false, after one
/// load of a word that is mostly in the cache. Call it regularly in threads that run for long, but not
/// while holding a lock of another library, nor inside foreign code that keeps the address of a
/// thread-local.
///
/// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
///
/// Calls of this crate that do not block are safe points as well: [`crate::spawn`],
/// [`Thread::unpark`], [`crate::Mutex::lock`] before it tries the lock, and [`park`] and
/// [`crate::JoinHandle::join`] if they need not wait. Does nothing outside an enclave, while the thread
/// panics, or on a kernel-level thread, which is preempted anywhere.
#[inline]
pub fn preempt_point() -> bool {
    let leaves = is_asked_to_leave();
    if leaves {
        suspend(Leave::Preempt);
    }
    leaves
}

/// Whether the caller is a user-level thread that has to leave its core. Not inlined, as [`with_core`].
#[inline(never)]
fn is_asked_to_leave() -> bool {
    // SAFETY: as in `with_core`.
    unsafe { CORE.get().as_ref() }.is_some_and(Core::must_leave)
}

/// Blocks until [`Thread::unpark`], which may have come already. Sends BLOCKED.
/// As with `std::thread::park`, check the awaited condition after it returns: an unpark that was meant
/// for a thread that has ended can reach the next user of its id.
/// Panics if the caller is no thread of an enclave.
///
/// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
pub fn park() {
    let came_already = with_core(|core| {
        let core = core.expect("only a thread of an enclave can park");
        core.shared.table.take_notified(core.current())
    });
    if came_already {
        preempt_point();
    } else {
        suspend(Leave::Park);
    }
}

/// Blocks for at least `time`. Timers fire when a core switches or idles, and at safe points: a thread on
/// the same core that passes no safe points delays them. Panics if the caller is no thread of an enclave.
///
/// Switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
pub fn sleep(time: Duration) {
    let deadline = MonotonicClock.now() + Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    with_core(|core| {
        let core = core.expect("only a thread of an enclave can sleep here");
        core.add_timer(deadline, Thread(core.shared.table.subject(core.current())));
    });
    suspend(Leave::Wait);
}
