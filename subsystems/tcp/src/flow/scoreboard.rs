//! Scoreboard of the bytes that a peer has selectively acknowledged (RFC 6675, section 3). It counts bytes, because a
//! super-packet is many segments.
//!
//! It has room for [`RANGES_MAX`] ranges, whatever a peer sends, and each call visits each range once (CVE-2019-11477 and
//! 11478). When there is no room, the highest range is forgotten: its bytes count as in flight, and may be retransmitted
//! needlessly.

use super::intervals::Interval;

/// Limit of remembered ranges.
pub const RANGES_MAX: usize = 16;
/// A byte counts as lost with this many ranges above it, or with more bytes above it than in two segments (RFC 6675:
/// DupThresh).
const DUP_THRESH: usize = 3;

/// Ranges in ascending order that neither overlap nor touch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scoreboard {
    ranges: [Interval; RANGES_MAX],
    count: u8,
}

impl Scoreboard {
    /// No ranges.
    pub const EMPTY: Scoreboard = Scoreboard { ranges: [Interval::NONE; RANGES_MAX], count: 0 };

    /// Ranges that the peer has acknowledged selectively, in order.
    pub fn ranges(&self) -> &[Interval] {
        &self.ranges[..usize::from(self.count)]
    }

    /// Number of bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges().iter().map(|range| range.end - range.start).sum()
    }

    /// The position after the highest range; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.ranges().last().map_or(0, |range| range.end)
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Adds a range that the peer has. Returns whether any of its bytes are new and were stored.
    pub fn insert(&mut self, new: Interval) -> bool {
        if new.is_empty() || self.ranges().iter().any(|one| one.contains(new)) {
            return false;
        }
        let mut joined = new;
        let mut kept = Scoreboard::default();
        let mut is_placed = false;
        for one in self.ranges() {
            if one.touches(new) {
                joined = joined.joined(*one);
                continue;
            }
            if one.start > new.end && !is_placed {
                is_placed = true;
                kept.push(joined);
            }
            kept.push(*one);
        }
        let has_room = is_placed || usize::from(kept.count) < RANGES_MAX;
        if !is_placed {
            kept.push(joined);
        }
        *self = kept;
        has_room
    }

    fn push(&mut self, range: Interval) {
        if let Some(place) = self.ranges.get_mut(usize::from(self.count)) {
            *place = range;
            self.count += 1;
        }
    }

    /// Acknowledges all bytes before `position`. The byte at `position` itself is not acknowledged, so a range that includes it
    /// is discarded: the peer has reneged, and expects bytes that it reported before (RFC 2018, section 8).
    pub fn acknowledge(&mut self, position: u64) {
        let before = *self;
        self.clear();
        for range in before.ranges().iter().filter(|range| range.start > position) {
            self.push(*range);
        }
    }

    /// The first byte from `at` on that the peer does not have.
    pub fn skip(&self, at: u64) -> u64 {
        let has = |range: &&Interval| range.start <= at && at < range.end;
        self.ranges().iter().find(has).map_or(at, |range| range.end)
    }

    /// The first byte from `at` on that the peer has.
    pub fn next(&self, at: u64) -> Option<u64> {
        self.ranges().iter().find(|range| range.end > at).map(|range| range.start.max(at))
    }

    /// Bytes of `from..to` that the peer does not have.
    pub fn missing_bytes(&self, from: u64, to: u64) -> u64 {
        let has = |range: &Interval| range.end.min(to).saturating_sub(range.start.max(from));
        to.saturating_sub(from) - self.ranges().iter().map(has).sum::<u64>()
    }

    /// Position below which all bytes that the peer does not have are lost, because it has enough above them: three ranges, or
    /// more bytes than two segments (RFC 6675: IsLost).
    pub fn lost_below(&self, mss: u16) -> Option<u64> {
        let mut bytes = 0;
        for (above, range) in self.ranges().iter().rev().enumerate() {
            bytes += range.end - range.start;
            if above + 1 >= DUP_THRESH || bytes > (DUP_THRESH as u64 - 1) * u64::from(mss) {
                return Some(range.start);
            }
        }
        None
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

    fn board(ranges: &[(u64, u64)]) -> Scoreboard {
        let mut board = Scoreboard::default();
        for (start, end) in ranges {
            board.insert(of(*start, *end));
        }
        board
    }

    #[test]
    fn a_byte_is_lost_with_three_ranges_or_more_than_two_segments_above_it() {
        assert_eq!(board(&[(10, 11), (20, 21)]).lost_below(1000), None);
        assert_eq!(board(&[(10, 11), (20, 21), (30, 31)]).lost_below(1000), Some(10));
        assert_eq!(board(&[(10, 11), (20, 21), (30, 31), (40, 41)]).lost_below(1000), Some(20));
        // A super-packet of three segments, of which two arrived.
        assert_eq!(board(&[(1_000, 3_000)]).lost_below(1000), None);
        assert_eq!(board(&[(1_000, 3_001)]).lost_below(1000), Some(1_000));
    }

    #[test]
    fn a_range_with_the_expected_byte_is_discarded_as_reneged() {
        let mut reneging = board(&[(10, 20), (30, 40)]);
        reneging.acknowledge(10);
        assert_eq!(reneging.ranges(), [of(30, 40)]);
        reneging.acknowledge(35);
        assert_eq!(reneging.ranges(), []);
    }

    #[test]
    fn cve_2019_11477_a_hostile_peer_cannot_grow_the_scoreboard_beyond_its_bound() {
        let mut board = Scoreboard::default();
        for at in (0..10_000).rev() {
            board.insert(of(3 * at + 1, 3 * at + 2));
            assert!(board.ranges().len() <= RANGES_MAX);
        }
        // The lowest ranges are kept: they are recovered first.
        assert_eq!(board.ranges()[0], of(1, 2));
        assert_eq!(board.ranges()[RANGES_MAX - 1], of(46, 47));
        assert!(!board.insert(of(1_000, 1_001)), "a range that is forgotten is not new");
    }

    proptest! {
        /// Compares with a set of bytes as the model.
        #[test]
        fn a_scoreboard_holds_exactly_the_bytes_that_it_accepted(
            steps in prop::collection::vec((0..200_u64, 0..20_u64, 0..10_u8), 0..80),
        ) {
            let (mut board, mut model, mut acknowledged) = (Scoreboard::default(), BTreeSet::new(), 0);
            for (start, bytes, kind) in steps {
                let before = board;
                if kind == 0 {
                    acknowledged += bytes;
                    board.acknowledge(acknowledged);
                    let has = before.ranges().iter().find(|one| one.start <= acknowledged && acknowledged < one.end);
                    let from = has.map_or(acknowledged, |one| one.end);
                    model.retain(|byte| *byte >= from);
                } else {
                    let new = of(acknowledged + 1 + start, acknowledged + 1 + start + bytes);
                    let is_news = board.insert(new);
                    let size = model.len();
                    model.extend(new.start..new.end);
                    // The highest ranges may have found no room.
                    let there: BTreeSet<u64> = board.ranges().iter().flat_map(|one| one.start..one.end).collect();
                    if there != model {
                        prop_assert_eq!(board.ranges().len(), RANGES_MAX);
                        let end = board.ranges()[RANGES_MAX - 1].end;
                        model.retain(|byte| *byte < end);
                    } else {
                        prop_assert_eq!(is_news, model.len() > size);
                    }
                }
                let there: BTreeSet<u64> = board.ranges().iter().flat_map(|one| one.start..one.end).collect();
                prop_assert_eq!(&there, &model);
                prop_assert!(board.ranges().windows(2).all(|two| two[0].end < two[1].start));
                for at in acknowledged..acknowledged + 40 {
                    let skipped = (at..).find(|byte| !model.contains(byte)).unwrap();
                    prop_assert_eq!(board.skip(at), skipped);
                    prop_assert_eq!(board.next(at), model.range(at..).next().copied());
                    let missing = (at..at + 30).filter(|byte| !model.contains(byte)).count();
                    prop_assert_eq!(board.missing_bytes(at, at + 30), missing as u64);
                }
            }
        }
    }
}
