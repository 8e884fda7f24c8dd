//! Requests for a thread that awaits them, but that no scheduler gives a core.
//!
//! A thread that awaits a note waits for no decision, so the enclave's watchdog misses a scheduler that hangs meanwhile, or
//! that gets no notes. The server's control thread looks now and then whether such a thread has a request before it, as its front
//! left it there. If it has at two looks, the thread is unparked: it then waits for a decision as any other, its scheduler hears of
//! it without a note, and the watchdog sees whether it gets a core.

use std::sync::atomic::{AtomicU64, Ordering};

use wave_core::clock::Nanos;
use wave_core::endpoint::Receiver;
use wave_core::layout::Layout;
use wave_core::link::{Port, Side};

/// Between two looks: longer than the scheduling watchdog's patience, for a scheduler that is only late will have heard by then.
pub(super) const LOOK_EVERY: Nanos = Nanos::from_millis(25);

/// What one worker awaits. It writes this, and the control thread reads it.
#[derive(Debug, Default)]
pub(super) struct Awaits(AtomicU64);

impl Awaits {
    /// The worker has taken `taken` entries, and awaits the next.
    pub(super) fn begin(&self, taken: u64) {
        self.0.store(taken + 1, Ordering::Relaxed);
    }

    /// The worker awaits nothing: it runs.
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The number of the entry that it awaits.
    fn entry(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// What the control thread saw in the request queues of one window.
#[derive(Debug)]
pub(super) struct Overlooked {
    /// Of each worker its request queue, from which nothing is taken here, and the entry that was there at the look before.
    workers: Vec<(Receiver, Option<u64>)>,
    looked: Nanos,
}

impl Overlooked {
    pub(super) fn new(layout: &Layout) -> Overlooked {
        let receiver = |place| (Receiver::new(place, Side::Host), None);
        Overlooked { workers: layout.decisions.iter().map(receiver).collect(), looked: Nanos(0) }
    }

    /// Checks the queues, if it is time to. Returns workers whose request was already there at the previous check.
    pub(super) fn look<'a>(
        &mut self,
        now: Nanos,
        port: &impl Port,
        awaits: impl Iterator<Item = &'a Awaits>,
    ) -> Vec<usize> {
        if now.since(self.looked) < LOOK_EVERY {
            return Vec::new();
        }
        self.looked = now;
        let mut overlooked = Vec::new();
        for (worker, ((queue, seen), awaits)) in self.workers.iter_mut().zip(awaits).enumerate() {
            let lies_there = awaits.entry().filter(|entry| queue.has(port, *entry));
            let again = lies_there.is_some() && *seen == lies_there;
            // Once told of, it has as long again.
            *seen = lies_there.filter(|_| !again);
            if again {
                overlooked.push(worker);
            }
        }
        overlooked
    }
}
