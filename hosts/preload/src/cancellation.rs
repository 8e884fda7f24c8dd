//! Cancellation of threads: pthread_cancel(3).
//!
//! A thread that sleeps in a call of ours must be woken, release what the call holds, and act on the cancellation where the call holds
//! nothing ([`point`]). The C library does not tell us which threads are cancelled, so pthread_cancel(3) is replaced: it notes the thread,
//! and wakes it if it sleeps here.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use libc::siginfo_t;

use crate::{signals, sys};

/// The C library's SIGCANCEL.
const SIGCANCEL: c_int = 32;
/// Threads that are cancelled, by number, until they act on it here, or have ended; 0 is none.
static CANCELLED: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];
/// Threads that sleep in a call of ours.
static ASLEEP: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];
/// Some thread was cancelled.
static IS_USED: AtomicBool = AtomicBool::new(false);
const UNWOKEN_SLEEP: Duration = Duration::from_millis(100);
/// Places that a thread tries in `ASLEEP`.
const TRIES: usize = 64;

/// Acts on a cancellation of this thread, if there is one. Its callers must hold nothing.
#[inline]
pub fn point() {
    if IS_USED.load(Ordering::Relaxed) {
        sys::test_cancellation();
    }
}

/// Notes that a thread is cancelled, and wakes it if it sleeps in a call of ours. Called after the C library's pthread_cancel(3).
pub fn cancelled(thread: c_int) {
    take_over();
    let is_over = |other: c_int| other == 0 || other == thread || !sys::is_thread(other);
    let place = CANCELLED.iter().find(|place| is_over(place.load(Ordering::Relaxed)));
    // With all places taken, a thread is lost that acts on its cancellation at its next call at the latest.
    place.unwrap_or(&CANCELLED[0]).store(thread, Ordering::SeqCst);
    IS_USED.store(true, Ordering::SeqCst);
    if ASLEEP.iter().any(|place| place.load(Ordering::SeqCst) == thread) {
        sys::queue(thread, SIGCANCEL);
    }
}

/// Replaces the C library's handler of its own signal, once it has installed it with its first cancellation.
#[cfg_attr(test, allow(dead_code))]
pub fn take_over() {
    signals::take_over(SIGCANCEL);
}

/// Whether a signal is that of [`cancelled`]. The C library's own handler would ignore it.
///
/// # Safety
/// `about` is a signal handler's second argument.
pub unsafe fn is_wake(signal: c_int, about: *const siginfo_t) -> bool {
    // SAFETY: by the contract.
    signal == SIGCANCEL && unsafe { (*about).si_code } == libc::SI_QUEUE
}

/// Called in a child of fork(2), which has none of its parent's other threads.
#[cfg_attr(test, allow(dead_code))]
pub fn forget_threads() {
    for place in CANCELLED.iter().chain(&ASLEEP) {
        place.store(0, Ordering::Relaxed);
    }
}

/// A thread that sleeps, until dropped.
pub struct Asleep {
    thread: c_int,
    place: Option<&'static AtomicI32>,
}

impl Asleep {
    pub fn begin(thread: c_int) -> Asleep {
        let first = thread as usize % ASLEEP.len();
        let places = ASLEEP[first..].iter().chain(&ASLEEP[..first]).take(TRIES);
        let is_taken = |place: &&AtomicI32| {
            // Before it looks whether it is cancelled, as the canceller stores before it looks here.
            place.compare_exchange(0, thread, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        Asleep { thread, place: places.into_iter().find(is_taken) }
    }

    /// Longest sleep, after which the caller looks again: short if nobody could wake the thread.
    pub fn longest(&self) -> Duration {
        if self.place.is_some() { sys::FOR_EVER } else { UNWOKEN_SLEEP }
    }

    /// Whether the thread is cancelled and allows it now.
    pub fn is_due(&self) -> bool {
        self.is_cancelled() && sys::allows_cancellation()
    }

    /// As [`Asleep::is_due`], for a sleep that has ended: then the call ends as well.
    pub fn is_over(&self) -> bool {
        if !self.is_due() {
            return false;
        }
        for place in &CANCELLED {
            let _ = place.compare_exchange(self.thread, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        true
    }

    fn is_cancelled(&self) -> bool {
        IS_USED.load(Ordering::SeqCst)
            && CANCELLED.iter().any(|place| place.load(Ordering::SeqCst) == self.thread)
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(0, Ordering::Release);
        }
    }
}
