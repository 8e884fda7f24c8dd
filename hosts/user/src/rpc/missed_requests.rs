//! Finds threads that await requests and have one, but get no core from their scheduler.
//!
//! A thread that awaits a note waits for no decision, so the enclave's watchdog misses a scheduler that hangs meanwhile, or
//! that gets no notes. The server's control thread periodically checks whether such a thread has a request in its queue. If two
//! checks in a row find the same one, it unparks the thread: the thread then waits for a decision like any other, its scheduler
//! hears of it without a note, and the watchdog sees whether it gets a core.

use std::sync::atomic::{AtomicU64, Ordering};

use wave_core::clock::Nanos;
use wave_core::endpoint::Receiver;
use wave_core::layout::Layout;
use wave_core::link::{Port, Side};

/// Time between two checks: longer than the scheduling watchdog's patience, so that a scheduler that is only late has acted by
/// then.
pub(super) const POLL_EVERY: Nanos = Nanos::from_millis(25);

/// The request that one worker awaits. The worker writes this, and the control thread reads it.
#[derive(Debug, Default)]
pub(super) struct Awaits(AtomicU64);

impl Awaits {
    /// The worker has taken `taken` entries, and awaits the next.
    pub(super) fn begin(&self, taken: u64) {
        self.0.store(taken + 1, Ordering::Relaxed);
    }

    /// The worker runs, and awaits nothing.
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The number of the entry that the worker awaits, if it awaits one.
    fn entry(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The control thread's view of the request queues of one window.
#[derive(Debug)]
pub(super) struct MissedRequests {
    /// For each worker: its request queue, which is only read here, and the awaited entry that the previous check found there.
    workers: Vec<(Receiver, Option<u64>)>,
    checked: Nanos,
}

impl MissedRequests {
    pub(super) fn new(layout: &Layout) -> MissedRequests {
        let receiver = |place| (Receiver::new(place, Side::Host), None);
        MissedRequests {
            workers: layout.decisions.iter().map(receiver).collect(),
            checked: Nanos(0),
        }
    }

    /// Checks the queues if a check is due. Returns the workers whose awaited request was already there at the previous check.
    pub(super) fn check<'a>(
        &mut self,
        now: Nanos,
        port: &impl Port,
        awaits: impl Iterator<Item = &'a Awaits>,
    ) -> Vec<usize> {
        if now.since(self.checked) < POLL_EVERY {
            return Vec::new();
        }
        self.checked = now;
        let mut missed = Vec::new();
        for (worker, ((queue, seen), awaits)) in self.workers.iter_mut().zip(awaits).enumerate() {
            let lies_there = awaits.entry().filter(|entry| queue.has(port, *entry));
            let again = lies_there.is_some() && *seen == lies_there;
            // Once reported, an entry is reported again only after two more checks.
            *seen = lies_there.filter(|_| !again);
            if again {
                missed.push(worker);
            }
        }
        missed
    }
}
