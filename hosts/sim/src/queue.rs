//! Events in the order of (time, number): the whole of the engine's determinism.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use wave_core::clock::Nanos;

/// Names an event that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    slot: u32,
    number: u64,
}

/// Events of one kind, soonest first; events of one time in the order in which they were pushed.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// (time << 64 | number, slot)
    heap: BinaryHeap<Reverse<(u128, u32)>>,
    slots: Vec<(u64, Option<E>)>,
    free: Vec<u32>,
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
        EventQueue { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), number: 0 }
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: E) -> Ticket {
        let number = self.number;
        self.number += 1;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = (number, Some(event));
                slot
            }
            None => {
                self.slots.push((number, Some(event)));
                (self.slots.len() - 1) as u32
            }
        };
        self.heap.push(Reverse((u128::from(at.0) << 64 | u128::from(number), slot)));
        Ticket { slot, number }
    }

    /// Takes an event back. `None` if it has come already.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<E> {
        let (number, event) = self.slots.get_mut(ticket.slot as usize)?;
        if *number == ticket.number { event.take() } else { None }
    }

    /// When the next event comes. One that was cancelled counts until it has been passed.
    #[inline]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((key, _))| Nanos((key >> 64) as u64))
    }

    /// The next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        loop {
            let Reverse((key, slot)) = self.heap.pop()?;
            self.free.push(slot);
            if let Some(event) = self.slots[slot as usize].1.take() {
                return Some((Nanos((key >> 64) as u64), event));
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

    #[test]
    fn a_ticket_that_has_come_cancels_nothing() {
        let mut queue = EventQueue::new();
        let first = queue.push(Nanos(1), 'a');
        assert_eq!(queue.pop(), Some((Nanos(1), 'a')));
        let second = queue.push(Nanos(2), 'b'); // in the slot of the first
        assert_eq!(queue.cancel(first), None);
        assert_eq!(queue.cancel(second), Some('b'));
        assert_eq!(queue.pop(), None);
    }

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
                let there = left.iter().position(|(_, at)| *at == chosen);
                prop_assert_eq!(queue.cancel(tickets[chosen]).is_some(), there.is_some());
                there.map(|there| left.remove(there));
            }
            left.sort_unstable();
            let popped = std::iter::from_fn(|| queue.pop()).map(|(time, at)| (time.0, at));
            prop_assert_eq!(popped.collect::<Vec<_>>(), left);
        }
    }
}
