//! Deadlines of one core's sleeping threads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use wave_core::clock::Nanos;

use crate::table::Thread;

/// A heap of deadlines. Never holds more entries than there are threads.
pub(crate) struct Timers(BinaryHeap<Reverse<(Nanos, u32, u32)>>);

impl Timers {
    pub(crate) fn new(capacity: usize) -> Timers {
        Timers(BinaryHeap::with_capacity(capacity))
    }

    pub(crate) fn add(&mut self, deadline: Nanos, thread: Thread) {
        self.0.push(Reverse((deadline, thread.0.id, thread.0.generation)));
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.0.peek().map(|Reverse((deadline, ..))| *deadline)
    }

    /// Takes a thread whose deadline has passed.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<Thread> {
        let Reverse((deadline, ..)) = self.0.peek()?;
        if *deadline > now {
            return None;
        }
        let Reverse((_, id, generation)) = self.0.pop()?;
        Some(Thread(wave_core::message::Subject { id, generation }))
    }
}
