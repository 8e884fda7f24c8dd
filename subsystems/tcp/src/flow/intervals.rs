//! Bytes that a receiver has out of order: at most [`INTERVALS_MAX`] disjoint intervals. The one that grew last comes first, as
//! in the order of SACK blocks (RFC 2018, section 4).

use crate::datapath::INTERVALS_MAX;

/// One interval of a stream; empty if it ends where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// First position of the interval.
    pub start: u64,
    /// The position after the last.
    pub end: u64,
}

impl Interval {
    /// The empty interval.
    pub const NONE: Interval = Interval { start: 0, end: 0 };

    /// Whether the interval is empty.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether `other` is within this interval.
    pub fn contains(self, other: Interval) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether both overlap or are adjacent, and so form one interval.
    pub fn touches(self, other: Interval) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The smallest interval that contains both.
    pub fn joined(self, other: Interval) -> Interval {
        Interval { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// Intervals that neither overlap nor touch. Empty ones come last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals([Interval; INTERVALS_MAX]);

impl Intervals {
    /// No intervals.
    pub const NONE: Intervals = Intervals([Interval::NONE; INTERVALS_MAX]);

    /// Converts pairs of positions, as in [`Established`](crate::datapath::Established). Pairs that touch are merged.
    pub fn from_pairs(pairs: [(u64, u64); INTERVALS_MAX]) -> Intervals {
        let mut intervals = Intervals::default();
        for (start, end) in pairs.into_iter().rev() {
            intervals.insert(Interval { start, end }, INTERVALS_MAX);
        }
        intervals
    }

    /// The intervals as pairs of positions, for [`Established`](crate::datapath::Established).
    pub fn to_pairs(&self) -> [(u64, u64); INTERVALS_MAX] {
        self.0.map(|one| (one.start, one.end))
    }

    /// The intervals, the one that grew last first.
    pub fn iter(&self) -> impl Iterator<Item = Interval> + '_ {
        self.0.iter().copied().take_while(|one| !one.is_empty())
    }

    /// Whether there is no interval: everything has arrived in order.
    pub fn is_empty(&self) -> bool {
        self.0[0].is_empty()
    }

    /// The position after the last byte of all intervals; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.iter().map(|one| one.end).max().unwrap_or(0)
    }

    /// Number of bytes in all intervals.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|one| one.end - one.start).sum()
    }

    /// The interval that contains all of `one`, if any.
    pub fn holding(&self, one: Interval) -> Option<Interval> {
        self.iter().find(|kept| kept.contains(one))
    }

    /// Adds an interval. Returns false, and adds nothing, if it touches none and there are `most` already: intervals that were
    /// reported to the peer are never discarded.
    pub fn insert(&mut self, new: Interval, most: usize) -> bool {
        if new.is_empty() {
            return true;
        }
        let mut next =
            Intervals([new, Interval::default(), Interval::default(), Interval::default()]);
        let (mut kept, mut is_joined) = (1, false);
        for one in self.iter() {
            if one.touches(new) {
                next.0[0] = next.0[0].joined(one);
                is_joined = true;
            } else if kept < INTERVALS_MAX {
                next.0[kept] = one;
                kept += 1;
            } else {
                return false;
            }
        }
        if kept > most && !is_joined {
            return false;
        }
        *self = next;
        true
    }

    /// Removes the intervals that follow position `received` without a gap, and returns the position up to which the stream is
    /// complete.
    pub fn take_in_order(&mut self, received: u64) -> u64 {
        let mut there = received;
        while let Some(next) = self.iter().find(|one| one.start <= there && one.end > there) {
            there = next.end;
        }
        let mut left = Intervals::default();
        for (place, one) in left.0.iter_mut().zip(self.iter().filter(|one| one.end > there)) {
            *place = one;
        }
        *self = left;
        there
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn of(start: u64, end: u64) -> Interval {
        Interval { start, end }
    }

    #[test]
    fn the_interval_that_grew_last_comes_first() {
        let mut intervals = Intervals::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60), (12, 15), (60, 61)] {
            assert!(intervals.insert(of(start, end), 4));
        }
        let all: Vec<_> = intervals.iter().collect();
        assert_eq!(all, [of(50, 61), of(10, 20), of(30, 40)]);
        assert_eq!(Intervals::from_pairs(intervals.to_pairs()), intervals);
    }

    #[test]
    fn a_full_set_accepts_only_intervals_that_touch_it() {
        let mut intervals = Intervals::default();
        assert!([10, 30, 50, 70].into_iter().all(|at| intervals.insert(of(at, at + 5), 4)));
        assert!(!intervals.insert(of(90, 95), 4));
        assert!(intervals.insert(of(15, 30), 4));
        assert!(intervals.insert(of(90, 95), 4));
        // An engine with a limit of one keeps the intervals of another engine.
        assert!(!intervals.insert(of(100, 105), 1));
        assert!(intervals.insert(of(95, 100), 1));
        assert_eq!(intervals.iter().count(), 4);
    }

    proptest! {
        /// Compares with a set of bytes as the model.
        #[test]
        fn intervals_hold_exactly_the_bytes_that_they_accepted(
            steps in prop::collection::vec((0..60_u64, 1..12_u64, any::<bool>()), 0..60),
            most in 1..=INTERVALS_MAX,
        ) {
            let (mut intervals, mut model, mut received) = (Intervals::default(), BTreeSet::new(), 0);
            for (start, bytes, in_order) in steps {
                if in_order {
                    received += bytes / 3;
                    let there = intervals.take_in_order(received);
                    while received < there || model.contains(&received) {
                        prop_assert!(received >= there || model.contains(&received));
                        received += 1;
                    }
                    prop_assert_eq!(received, there);
                    model.retain(|byte| *byte >= received);
                } else {
                    let new = of(received + 1 + start, received + 1 + start + bytes);
                    let touches = intervals.iter().any(|one| one.touches(new));
                    let count = intervals.iter().count();
                    prop_assert_eq!(intervals.insert(new, most), touches || count < most);
                    if touches || count < most {
                        model.extend(new.start..new.end);
                        prop_assert!(intervals.iter().next().unwrap().contains(new));
                    }
                }
                let bytes: BTreeSet<u64> = intervals.iter().flat_map(|one| one.start..one.end).collect();
                prop_assert_eq!(&bytes, &model);
                prop_assert_eq!(intervals.bytes(), model.len() as u64);
                prop_assert_eq!(intervals.end(), model.last().map_or(0, |last| last + 1));
                prop_assert!(intervals.iter().count() <= most);
            }
        }
    }
}
