//! Queues and a heap of waiting ids, from which an id can be removed at any place. An id is in at
//! most one queue, so memory is bounded by the number of ids, and lengths are exact.

use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    before: u32,
    after: u32,
    queue: u32,
}

const ALONE: Node = Node { before: NONE, after: NONE, queue: NONE };

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// FIFO queues that share their ids. Every operation takes constant time.
#[derive(Clone, Debug)]
pub struct Queues {
    nodes: Vec<Node>,
    ends: Vec<Ends>,
    len: usize,
}

impl Queues {
    /// `queues` queues for ids below `ids`.
    pub fn new(queues: usize, ids: u32) -> Queues {
        Queues { nodes: alloc::vec![ALONE; ids as usize], ends: alloc::vec![EMPTY; queues], len: 0 }
    }

    /// How many ids wait in all queues together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this id waits in any queue.
    pub fn contains(&self, id: u32) -> bool {
        self.nodes[id as usize].queue != NONE
    }

    /// The id that has waited longest in this queue.
    pub fn first(&self, queue: usize) -> Option<u32> {
        Some(self.ends[queue].first).filter(|id| *id != NONE)
    }

    /// Takes out the id that has waited longest in this queue.
    pub fn pop(&mut self, queue: usize) -> Option<u32> {
        let first = self.first(queue)?;
        self.remove(first);
        Some(first)
    }

    /// Puts an id that waits in none at the end of this queue.
    pub fn push(&mut self, queue: usize, id: u32) {
        debug_assert_eq!(self.nodes[id as usize].queue, NONE, "{id} waits already");
        let last = core::mem::replace(&mut self.ends[queue].last, id);
        match last {
            NONE => self.ends[queue].first = id,
            last => self.nodes[last as usize].after = id,
        }
        self.nodes[id as usize] = Node { before: last, after: NONE, queue: queue as u32 };
        self.len += 1;
    }

    /// Takes an id out of whichever queue it waits in, if any.
    pub fn remove(&mut self, id: u32) {
        let Node { before, after, queue } = core::mem::replace(&mut self.nodes[id as usize], ALONE);
        let Some(ends) = self.ends.get_mut(queue as usize) else { return };
        match before {
            NONE => ends.first = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => ends.last = before,
            after => self.nodes[after as usize].before = before,
        }
        self.len -= 1;
    }

    /// Removes every id, in time linear in the numbers of ids and queues.
    pub fn clear(&mut self) {
        self.nodes.fill(ALONE);
        self.ends.fill(EMPTY);
        self.len = 0;
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    /// Counts entries, so that of equal keys the earlier one comes first.
    ticket: u64,
    id: u32,
}

impl Entry {
    fn comes_before(&self, other: &Entry) -> bool {
        (self.key, self.ticket) < (other.key, other.ticket)
    }
}

/// Ids by a key, smallest first, equal keys in order of arrival. Changes take
/// logarithmic time.
#[derive(Clone, Debug)]
pub struct Heap {
    entries: Vec<Entry>,
    /// The index of each id in `entries`.
    at: Vec<u32>,
    tickets: u64,
}

impl Heap {
    /// An empty heap for ids below `ids`.
    pub fn new(ids: u32) -> Heap {
        Heap {
            entries: Vec::with_capacity(ids as usize),
            at: alloc::vec![NONE; ids as usize],
            tickets: 0,
        }
    }

    /// Number of ids in the heap.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the heap is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The smallest key and its id.
    pub fn first(&self) -> Option<(u64, u32)> {
        self.entries.first().map(|entry| (entry.key, entry.id))
    }

    /// The key of an id, if it waits.
    pub fn key(&self, id: u32) -> Option<u64> {
        self.entries.get(self.at[id as usize] as usize).map(|entry| entry.key)
    }

    /// Every id in the heap, in no particular order.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.id)
    }

    /// Inserts an id that is not in the heap.
    pub fn push(&mut self, id: u32, key: u64) {
        debug_assert_eq!(self.at[id as usize], NONE, "{id} is there already");
        self.entries.push(Entry { key, ticket: self.tickets, id });
        self.tickets += 1;
        self.rise(self.entries.len() - 1);
    }

    /// Removes an id, if it waits.
    pub fn remove(&mut self, id: u32) {
        let at = core::mem::replace(&mut self.at[id as usize], NONE) as usize;
        if at >= self.entries.len() {
            return;
        }
        self.entries.swap_remove(at);
        if at < self.entries.len() {
            let at = self.rise(at);
            self.sink(at);
        }
    }

    /// Removes every id, in time linear in the number of ids that may wait.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.at.fill(NONE);
    }

    /// Moves an entry up to where it belongs, and returns its index there.
    fn rise(&mut self, mut at: usize) -> usize {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !self.entries[at].comes_before(&self.entries[parent]) {
                break;
            }
            self.swap(at, parent);
            at = parent;
        }
        self.note(at);
        at
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let children = left..self.entries.len().min(left + 2);
            let least = children
                .reduce(|a, b| if self.entries[b].comes_before(&self.entries[a]) { b } else { a });
            match least {
                Some(child) if self.entries[child].comes_before(&self.entries[at]) => {
                    self.swap(at, child);
                    at = child;
                }
                _ => return self.note(at),
            }
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn note(&mut self, at: usize) {
        self.at[self.entries[at].id as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use rand::Rng;
    use rand::SeedableRng;
    use rand_pcg::Pcg32;

    use super::*;

    #[test]
    fn queues_match_a_model_of_lists() {
        let mut rng = Pcg32::seed_from_u64(1);
        let mut queues = Queues::new(3, 20);
        let mut lists: [Vec<u32>; 3] = Default::default();
        for _ in 0..5000 {
            let id = rng.random_range(0..20);
            if lists.iter().any(|list| list.contains(&id)) || rng.random_range(0..4) == 0 {
                queues.remove(id);
                lists.iter_mut().for_each(|list| list.retain(|other| *other != id));
            } else if rng.random_range(0..4) == 0 {
                let queue = rng.random_range(0..3);
                let first = lists[queue].first().copied();
                lists[queue].retain(|other| Some(*other) != first);
                assert_eq!(queues.pop(queue), first);
            } else {
                let queue = rng.random_range(0..3);
                queues.push(queue, id);
                lists[queue].push(id);
            }
            assert_eq!(queues.len(), lists.iter().map(Vec::len).sum::<usize>());
            for id in 0..20 {
                assert_eq!(queues.contains(id), lists.iter().any(|list| list.contains(&id)));
            }
            for (queue, list) in lists.iter().enumerate() {
                assert_eq!(queues.first(queue), list.first().copied());
            }
        }
    }

    #[test]
    fn the_heap_matches_a_sorted_list() {
        let mut rng = Pcg32::seed_from_u64(1);
        let mut heap = Heap::new(20);
        let mut list: Vec<(u64, u64, u32)> = Vec::new();
        for ticket in 0..5000 {
            let id = rng.random_range(0..20);
            if list.iter().any(|entry| entry.2 == id) || rng.random_range(0..4) == 0 {
                heap.remove(id);
                list.retain(|entry| entry.2 != id);
            } else {
                let key = rng.random_range(0..10);
                heap.push(id, key);
                list.push((key, ticket, id));
                list.sort_unstable();
            }
            assert_eq!(heap.len(), list.len());
            assert_eq!(heap.first(), list.first().map(|(key, _, id)| (*key, *id)));
        }
    }
}
