//! A queue in a side's own memory for entries that wait, which gives memory back as it drains.

use alloc::collections::VecDeque;
use core::ops::Deref;

/// Entries for which an empty queue keeps memory.
const KEPT: usize = 8;

/// A first-in, first-out queue whose memory follows its length. A [`VecDeque`] keeps room for its greatest length: after a flood
/// of small messages, that is far more than messages ever take again.
#[derive(Clone, Debug)]
pub struct Backlog<T>(VecDeque<T>);

impl<T> Default for Backlog<T> {
    fn default() -> Self {
        Backlog::new()
    }
}

impl<T> Deref for Backlog<T> {
    type Target = VecDeque<T>;

    fn deref(&self) -> &VecDeque<T> {
        &self.0
    }
}

impl<T> Backlog<T> {
    /// An empty queue without memory.
    pub const fn new() -> Backlog<T> {
        Backlog(VecDeque::new())
    }

    /// Adds an entry behind all others.
    #[inline]
    pub fn push_back(&mut self, entry: T) {
        self.0.push_back(entry);
    }

    /// Puts an entry before all others, such as one that was taken too early.
    #[inline]
    pub fn push_front(&mut self, entry: T) {
        self.0.push_front(entry);
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        let entry = self.0.pop_front();
        self.give_back();
        entry
    }

    /// Takes the entry at `at`, counted from the oldest.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        let entry = self.0.remove(at);
        self.give_back();
        entry
    }

    /// Drops the entries for which `keep` is false.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
        self.give_back();
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        self.0.clear();
        self.give_back();
    }

    /// The entries, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }

    /// Gives memory back once less than an eighth of it is in use, so that its cost is a constant for each entry.
    #[inline]
    fn give_back(&mut self) {
        let (length, capacity) = (self.0.len(), self.0.capacity());
        if capacity > KEPT && length < capacity / 8 {
            self.0.shrink_to((4 * length).max(KEPT));
        }
    }
}

impl<T> IntoIterator for Backlog<T> {
    type Item = T;
    type IntoIter = alloc::collections::vec_deque::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(entries: u32) -> Backlog<u32> {
        let mut backlog = Backlog::new();
        (0..entries).for_each(|entry| backlog.push_back(entry));
        backlog
    }

    #[test]
    fn drained_queue_keeps_little_memory() {
        let mut backlog = filled(10_000);
        for entry in 0..10_000 {
            assert_eq!(backlog.pop_front(), Some(entry));
            assert!(
                backlog.capacity() <= (8 * (backlog.len() + 1)).max(2 * KEPT),
                "{}",
                backlog.len()
            );
        }
        assert!(backlog.capacity() <= 2 * KEPT);
        let mut backlog = filled(10_000);
        backlog.clear();
        assert!(backlog.capacity() <= 2 * KEPT);
        let mut backlog = filled(10_000);
        backlog.retain(|entry| *entry < 2);
        assert!(backlog.capacity() <= 2 * KEPT && *backlog == [0, 1]);
    }

    #[test]
    fn queue_of_steady_length_keeps_its_memory() {
        let mut backlog = filled(100);
        let capacity = backlog.capacity();
        for entry in 0..1_000 {
            backlog.push_back(entry);
            backlog.pop_front();
        }
        assert_eq!((backlog.capacity(), backlog.len()), (capacity, 100));
    }
}
