//! Events in the order of (time, number): the whole of the engine's determinism.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet};

use wave_core::clock::Nanos;

/// Names an event that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Entry<E>) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Entry<E>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The soonest is the greatest, for a heap that gives the greatest.
    #[inline]
    fn cmp(&self, other: &Entry<E>) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Events of one kind, soonest first; events of one time in the order in which they were pushed.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    /// Numbers of events that were taken back and have not been passed yet.
    cancelled: HashSet<u64>,
    number: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue::new()
    }
}

impl<E> EventQueue<E> {
    /// An empty queue.
    pub fn new() -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), cancelled: HashSet::new(), number: 0 }
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: E) -> Ticket {
        let number = self.number;
        self.number += 1;
        self.heap.push(Entry { at: at.0, number, event });
        Ticket(number)
    }

    /// Takes back an event that has not come yet. Costs memory until its time has passed.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.insert(ticket.0);
    }

    /// When the next event comes. One that was cancelled counts until it has been passed.
    #[inline]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| Nanos(entry.at))
    }

    /// The next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        loop {
            let Entry { at, number, event } = self.heap.pop()?;
            if self.cancelled.is_empty() || !self.cancelled.remove(&number) {
                return Some((Nanos(at), event));
            }
        }
    }

    /// How many events were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_by_time_and_then_by_age(
            times in prop::collection::vec(0u64..8, 0..200),
            cancelled in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
        ) {
            let mut queue = EventQueue::new();
            let tickets: Vec<_> = (0..).zip(&times).map(|(at, &time)| queue.push(Nanos(time), at)).collect();
            let mut left: Vec<_> = times.iter().copied().zip(0..).collect();
            for index in cancelled.iter().filter(|_| !times.is_empty()) {
                let chosen = index.index(times.len());
                queue.cancel(tickets[chosen]);
                left.retain(|(_, at)| *at != chosen);
            }
            left.sort_unstable();
            let popped = std::iter::from_fn(|| queue.pop()).map(|(time, at)| (time.0, at));
            prop_assert_eq!(popped.collect::<Vec<_>>(), left);
        }
    }
}
