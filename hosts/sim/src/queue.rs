//! Events in the order of (time, number), on which the engine's determinism rests.

use std::collections::HashSet;

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

impl<E> Entry<E> {
    /// Whether this entry comes before `other`. One comparison of wide numbers, which needs no branch.
    #[inline(always)]
    fn before(&self, other: &Entry<E>) -> bool {
        let key = |entry: &Entry<E>| u128::from(entry.at) << 64 | u128::from(entry.number);
        key(self) < key(other)
    }
}

/// Children of an entry in the heap: four entries lie in two or three cache lines, and the heap is half
/// as deep as with two.
const CHILDREN: usize = 4;

/// Events of one kind, soonest first; events of one time in the order in which they were pushed.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// A heap: no entry comes before its parent, which for the entry at `n` is at `(n - 1) / 4`.
    heap: Vec<Entry<E>>,
    /// The first entry has been taken. Its place is kept for the next push, as most events push one: that
    /// takes one pass down the heap, where a pop and a push take a pass down and a pass up.
    taken: bool,
    /// Numbers of cancelled events whose times have not passed yet.
    cancelled: HashSet<u64>,
    number: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue::new()
    }
}

impl<E> EventQueue<E> {
    /// Creates a queue without events.
    pub fn new() -> EventQueue<E> {
        EventQueue { heap: Vec::new(), taken: false, cancelled: HashSet::new(), number: 0 }
    }

    /// Cancels an event that has not come yet. The event uses memory until its time has passed.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.insert(ticket.0);
    }

    /// The time of the next event. A cancelled event counts until it has been removed.
    #[inline]
    pub fn next_at(&self) -> Option<Nanos> {
        let first = if self.taken {
            self.heap.iter().skip(1).take(CHILDREN).map(|entry| entry.at).min()
        } else {
            self.heap.first().map(|entry| entry.at)
        };
        first.map(Nanos)
    }

    /// How many events were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.number
    }
}

impl<E: Copy> EventQueue<E> {
    /// Adds an event; the ticket cancels it.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: E) -> Ticket {
        let number = self.number;
        self.number += 1;
        let entry = Entry { at: at.0, number, event };
        if std::mem::take(&mut self.taken) {
            self.sink(entry);
        } else {
            self.rise(entry);
        }
        Ticket(number)
    }

    /// Removes and returns the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        loop {
            let Entry { at, number, event } = self.take()?;
            if self.cancelled.is_empty() || !self.cancelled.remove(&number) {
                return Some((Nanos(at), event));
            }
        }
    }

    #[inline]
    fn take(&mut self) -> Option<Entry<E>> {
        if std::mem::take(&mut self.taken) {
            let last = self.heap.pop()?;
            // Otherwise the last entry was the one that had been taken.
            if !self.heap.is_empty() {
                self.sink(last);
            }
        }
        let first = *self.heap.first()?;
        self.taken = true;
        Some(first)
    }

    /// Puts `entry` in the first place, or below it.
    #[inline]
    fn sink(&mut self, entry: Entry<E>) {
        let heap = &mut self.heap[..];
        let mut place = 0;
        loop {
            let children = CHILDREN * place + 1;
            let soonest = if let Some([a, b, c, d]) = heap.get(children..children + CHILDREN) {
                // Compare two pairs, then the winners: a shorter chain than four in sequence.
                let (first, left) = if b.before(a) { (b, 1) } else { (a, 0) };
                let (second, right) = if d.before(c) { (d, 3) } else { (c, 2) };
                children + if second.before(first) { right } else { left }
            } else {
                let mut soonest = children;
                for child in children + 1..heap.len() {
                    if heap[child].before(&heap[soonest]) {
                        soonest = child;
                    }
                }
                soonest
            };
            if soonest >= heap.len() || !heap[soonest].before(&entry) {
                break;
            }
            heap[place] = heap[soonest];
            place = soonest;
        }
        heap[place] = entry;
    }

    /// Puts `entry` in the last place, or above it.
    #[inline]
    fn rise(&mut self, entry: Entry<E>) {
        let mut place = self.heap.len();
        self.heap.push(entry);
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if !entry.before(&self.heap[parent]) {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = entry;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_in_order_of_time_then_of_their_pushes(
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

        #[test]
        fn pushes_between_pops_keep_the_order(
            steps in prop::collection::vec(prop::option::weighted(0.6, 0u64..50), 0..300),
        ) {
            let mut queue = EventQueue::new();
            let mut left = std::collections::BTreeSet::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(time) => {
                        queue.push(Nanos(time), number);
                        // The number of a push grows with the number of its step.
                        left.insert((time, number));
                    }
                    None => {
                        let popped = queue.pop().map(|(time, number)| (time.0, number));
                        prop_assert_eq!(popped, left.pop_first());
                    }
                }
                prop_assert_eq!(queue.next_at().map(|at| at.0), left.first().map(|first| first.0));
            }
        }
    }
}
