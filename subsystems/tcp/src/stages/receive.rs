//! The protocol stage for a segment that came in: order, window, reassembly (RFC 9293, 3.10.7.4; thesis 4.3.1.3).
//!
//! What comes out of order lies in the host's ring already, in as many intervals as the recovery keeps. What would begin one more is
//! dropped, and acknowledged with what is expected.

use wave_core::clock::Nanos;

use super::acknowledge::{self, Acknowledged};
use super::recover::Recovery;
use crate::flow::intervals::Interval;
use crate::flow::state::Protocol;
use crate::planted::{Planted, is_planted};
use crate::seq::seq_of;
use crate::summary::Summary;

/// Longest time that an acknowledgement waits for data to go with it (RFC 9293, MUST-58 and 59).
pub const ACKNOWLEDGE_AFTER: Nanos = Nanos::from_millis(40);
/// Time between two answers to segments that carry nothing and are wrong: otherwise two sides that find each other wrong would answer
/// each other for ever (RFC 5961, 7; CVE-2016-5696).
pub const ANSWER_AFTER: Nanos = Nanos::from_millis(500);
/// A timestamp older than this says nothing (RFC 7323, 5.5).
const STALE: Nanos = Nanos::from_millis(24 * 24 * 3_600 * 1_000);

/// Part of a segment's payload that belongs in the host's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Position of its first byte.
    pub position: u64,
    /// Bytes of the payload before it that are not wanted.
    pub skip: u32,
    /// Number of bytes.
    pub bytes: u32,
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes to be copied to the ring.
    pub placed: Option<Placed>,
    /// What its acknowledgement did.
    pub acknowledged: Acknowledged,
    /// An acknowledgement goes out once the copy is done, at once or after a while.
    pub acknowledge: Option<When>,
    /// Bytes or the end came in order: the host is to be told, once the copy is done.
    pub has_news: bool,
    /// Reason for which the segment was dropped.
    pub dropped: Option<Dropped>,
}

/// When an acknowledgement goes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// With data, or after [`ACKNOWLEDGE_AFTER`].
    Later,
    /// At once.
    Now,
}

/// Why a segment was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its timestamp is older than one that came before (RFC 7323, 5).
    OldTimestamp,
    /// It has none, though both sides agreed on them (RFC 7323, 3.2).
    NoTimestamp,
    /// Every byte had come before.
    Duplicate,
    /// It lies outside the window.
    OutsideWindow,
    /// It acknowledges what was never sent (RFC 9293, 3.10.7.4; RFC 5961, 5).
    UnsentAcknowledged,
    /// Its acknowledgement is older than any window (RFC 5961, 5).
    AncientAcknowledgement,
    /// It would begin one more interval out of order than are kept.
    TooManyIntervals,
}

/// Whether a segment is, or tells of what is, out of order.
pub fn wants_disorder<R: Recovery>(flow: &Protocol, summary: &Summary) -> bool {
    let is_early_or_late = || {
        let expected = flow.received + u64::from(flow.has_fin());
        summary.seq != seq_of(flow.receive_base, expected)
    };
    let has_length = summary.bytes > 0 || summary.fin;
    has_length && is_early_or_late() || R::wants_disorder(flow, summary)
}

/// Takes a segment into the connection's state.
pub fn receive<R: Recovery>(flow: &mut Protocol, summary: &Summary, now: Nanos) -> Received {
    let mut outcome = examine::<R>(flow, summary, now);
    let is_empty = summary.bytes == 0 && !summary.fin;
    if outcome.dropped.is_some()
        && is_empty
        && outcome.acknowledge.is_some()
        && !may_answer(flow, now)
    {
        outcome.acknowledge = None;
    }
    outcome
}

/// Whether something wrong may be answered now.
fn may_answer(flow: &mut Protocol, now: Nanos) -> bool {
    let may = flow.answered_at.get().is_none_or(|at| now.since(at) >= ANSWER_AFTER);
    if may {
        flow.answered_at = now.into();
    }
    may
}

fn examine<R: Recovery>(flow: &mut Protocol, summary: &Summary, now: Nanos) -> Received {
    let mut outcome = Received::default();
    if let Some(dropped) = check_timestamp(flow, summary, now) {
        outcome.dropped = Some(dropped);
        if dropped == Dropped::OldTimestamp {
            outcome.acknowledge = Some(When::Now);
        }
        return outcome;
    }
    let expected = flow.received + u64::from(flow.has_fin());
    let at_expected = seq_of(flow.receive_base, expected);
    let length = u64::from(summary.bytes) + u64::from(summary.fin);
    // Relative to what is expected; RFC 9293's test, but that acknowledgements of segments that are not wanted are looked at, so
    // that two sides whose windows are both closed go on.
    let start = i64::from(summary.seq.since(at_expected));
    let end = start + length as i64;
    let window = flow.promised.saturating_sub(expected) as i64;
    let is_old = if length == 0 { start < 0 } else { end <= 0 };
    let is_beyond = start > window || (start == window && length > 0 && window > 0);
    if is_old || is_beyond {
        outcome.dropped = Some(if is_old { Dropped::Duplicate } else { Dropped::OutsideWindow });
        outcome.acknowledge = Some(When::Now);
        // Nobody who is honest is so late: what acknowledges nothing that was delivered need not know more than the ends.
        let is_ancient = start < -i64::from(flow.ring_bytes);
        if is_beyond || is_ancient {
            return outcome;
        }
    }
    match acknowledge::acknowledge::<R>(flow, summary, now) {
        Ok(acknowledged) => outcome.acknowledged = acknowledged,
        Err(dropped) => {
            outcome.dropped = Some(dropped);
            outcome.acknowledge = Some(When::Now);
            return outcome;
        }
    }
    flow.heard = now;
    if is_old {
        let seen = expected.checked_add_signed(start);
        if let Some(position) = seen.filter(|_| summary.bytes > 0) {
            let end = position + u64::from(summary.bytes);
            flow.arrived_twice(Interval { start: position, end });
        }
        return outcome;
    }
    // Only of what lies in the window and acknowledges what was sent: a forged value would have the peer's own segments dropped
    // (CVE-2005-0356).
    update_timestamp(flow, summary, now);
    if length > 0 {
        place::<R>(flow, summary, expected, start, &mut outcome);
    }
    outcome
}

/// PAWS (RFC 7323, section 5).
fn check_timestamp(flow: &Protocol, summary: &Summary, now: Nanos) -> Option<Dropped> {
    if !flow.has_timestamps {
        return None;
    }
    match summary.timestamps {
        None => Some(Dropped::NoTimestamp),
        Some((value, _)) => {
            let is_older = (value.wrapping_sub(flow.recent) as i32) < 0;
            (is_older && now.since(flow.recent_at) < STALE).then_some(Dropped::OldTimestamp)
        }
    }
}

/// RFC 7323, 4.3: the echo is that of the segment that moved the left edge.
fn update_timestamp(flow: &mut Protocol, summary: &Summary, now: Nanos) {
    let Some((value, _)) = summary.timestamps.filter(|_| flow.has_timestamps) else { return };
    // One that is stale gives way to any (RFC 7323, 5.5).
    let is_stale = now.since(flow.recent_at) >= STALE;
    let is_newer = value.wrapping_sub(flow.recent) as i32 >= 0;
    if summary.seq.since(flow.told) <= 0 && (is_newer || is_stale) {
        flow.recent = value;
        flow.recent_at = now;
    }
}

fn place<R: Recovery>(
    flow: &mut Protocol,
    summary: &Summary,
    expected: u64,
    start: i64,
    outcome: &mut Received,
) {
    if flow.has_fin() {
        outcome.dropped = Some(Dropped::Duplicate);
        outcome.acknowledge = Some(When::Now);
        return;
    }
    // What the host's ring has room for, and nothing behind the stream's end. The window may name a few bytes more than the ring
    // has, because of its scale.
    let limit = flow.promised.min(flow.receive_limit());
    let limit = flow.fin.map_or(limit, |fin| limit.min(fin));
    let skip = start.min(0).unsigned_abs() as u32;
    let from = expected.saturating_add_signed(start.max(0));
    let behind = expected.saturating_add_signed(start + i64::from(summary.bytes));
    let to = behind.min(limit).max(from);
    let bytes = (to - from) as u32;
    // The end is believed only where all that precedes it in this segment was taken.
    let ends_at =
        (summary.fin && behind <= limit && behind >= flow.intervals().end()).then_some(behind);
    if start <= 0 {
        if bytes > 0 {
            outcome.placed = Some(Placed { position: from, skip, bytes });
        }
        flow.fin = flow.fin.or(ends_at);
        let had_gap = !flow.intervals().is_empty();
        let received = to.max(flow.received);
        flow.received = match &mut flow.disorder {
            Some(disorder) => disorder.intervals.take_in_order(received),
            None => received,
        };
        outcome.has_news = bytes > 0 || flow.has_fin();
        flow.untold_bytes = flow.untold_bytes.saturating_add(bytes);
        let is_cut = to < behind;
        let is_quick = flow.quick > 0 && bytes > 0;
        flow.quick -= u8::from(is_quick);
        let is_second = flow.untold_bytes >= 2 * u32::from(flow.mss);
        let at_once = had_gap || is_cut || flow.has_fin() || is_second || is_quick;
        outcome.acknowledge = Some(if at_once { When::Now } else { When::Later });
        return;
    }
    // RFC 5681, 4.2: what is out of order is acknowledged at once.
    outcome.acknowledge = Some(When::Now);
    let new = Interval { start: from, end: to };
    if flow.intervals().holding(new).is_some() && bytes > 0 {
        flow.arrived_twice(new);
    }
    let fits = match &mut flow.disorder {
        Some(disorder) => disorder.intervals.insert(new, R::INTERVALS),
        None => new.is_empty(),
    };
    if bytes > 0 && fits {
        outcome.placed = Some(Placed { position: from, skip: 0, bytes });
    } else if bytes > 0 {
        outcome.dropped = Some(Dropped::TooManyIntervals);
    }
    if fits && !is_planted(Planted::EarlyFinDropped) {
        flow.fin = flow.fin.or(ends_at);
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use super::*;
    use crate::flow::intervals::Intervals;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::stages::recover::{GoBackN, Sack};

    const NOW: Nanos = Nanos::from_millis(1_000);

    /// A connection that has just begun, with windows of 64 KiB.
    fn flow() -> Protocol {
        Protocol { disorder: Some(Box::default()), ..split(&established(), NOW).1 }
    }

    fn segment(flow: &Protocol, position: u64, bytes: u32, fin: bool) -> Summary {
        Summary {
            seq: seq_of(flow.receive_base, position),
            ack: seq_of(flow.send_base, flow.acknowledged),
            window: u16::MAX,
            bytes,
            fin,
            ..Summary::default()
        }
    }

    #[test]
    fn an_end_that_comes_before_what_precedes_it_is_remembered() {
        let mut flow = flow();
        let last = segment(&flow, 100, 50, true);
        let early = receive::<GoBackN>(&mut flow, &last, NOW);
        assert_eq!(early.placed, Some(Placed { position: 100, skip: 0, bytes: 50 }));
        assert!(!flow.has_fin() && !early.has_news);
        let first = segment(&flow, 0, 100, false);
        let rest = receive::<GoBackN>(&mut flow, &first, NOW);
        assert!(flow.has_fin() && rest.has_news);
        assert_eq!((flow.received, *flow.intervals()), (150, Intervals::default()));
        assert_eq!(rest.acknowledge, Some(When::Now));
    }

    #[test]
    fn an_end_alone_out_of_order_is_remembered_too() {
        let mut flow = flow();
        let end = segment(&flow, 100, 0, true);
        receive::<GoBackN>(&mut flow, &end, NOW);
        let first = segment(&flow, 0, 100, false);
        receive::<GoBackN>(&mut flow, &first, NOW);
        assert!(flow.has_fin());
    }

    #[test]
    fn bytes_behind_the_end_or_the_window_are_cut() {
        let mut flow = flow();
        let end = segment(&flow, 100, 0, true);
        receive::<GoBackN>(&mut flow, &end, NOW);
        let long = segment(&flow, 0, 200, false);
        let taken = receive::<GoBackN>(&mut flow, &long, NOW);
        assert_eq!(taken.placed, Some(Placed { position: 0, skip: 0, bytes: 100 }));
        let mut flow = self::flow();
        let huge = segment(&flow, 65_000, 2_000, true);
        let taken = receive::<GoBackN>(&mut flow, &huge, NOW);
        assert_eq!(taken.placed.map(|placed| placed.bytes), Some((1 << 16) - 65_000));
        assert_eq!(flow.fin, None, "an end is believed only with all that precedes it");
    }

    #[test]
    fn one_interval_is_kept_and_grows_and_a_second_one_is_dropped() {
        let mut flow = flow();
        for (position, bytes, is_taken) in
            [(1_000, 100, true), (3_000, 100, false), (1_100, 50, true), (900, 100, true)]
        {
            let segment = segment(&flow, position, bytes, false);
            let taken = receive::<GoBackN>(&mut flow, &segment, NOW);
            assert_eq!(taken.placed.is_some(), is_taken, "{position}");
            assert_eq!(taken.acknowledge, Some(When::Now));
        }
        assert_eq!(flow.intervals().to_pairs()[..2], [(900, 1_150), (0, 0)]);
        assert_eq!(flow.received, 0);
    }

    /// The pool was empty.
    #[test]
    fn without_room_for_intervals_early_bytes_are_dropped_and_an_early_end_is_not() {
        let mut flow = Protocol { disorder: None, ..flow() };
        let early = segment(&flow, 1_000, 100, false);
        let early = receive::<Sack>(&mut flow, &early, NOW);
        assert_eq!((early.placed, early.acknowledge), (None, Some(When::Now)));
        assert_eq!(early.dropped, Some(Dropped::TooManyIntervals));
        let end = segment(&flow, 100, 0, true);
        receive::<Sack>(&mut flow, &end, NOW);
        let first = segment(&flow, 0, 100, false);
        let rest = receive::<Sack>(&mut flow, &first, NOW);
        assert!(rest.has_news && flow.has_fin());
        // Bytes that came twice are acknowledged as ever.
        let twice = receive::<Sack>(&mut flow, &first, NOW);
        assert_eq!(twice.acknowledge, Some(When::Now));
    }

    /// TAS and FlexTOE keep one interval.
    #[test]
    fn gap_of_tas_and_flextoe_four_intervals_are_kept_with_selective_acknowledgements() {
        let mut flow = flow();
        for at in 1..=5 {
            let segment = segment(&flow, 2_000 * at, 1_000, false);
            let taken = receive::<Sack>(&mut flow, &segment, NOW);
            assert_eq!(taken.dropped, (at == 5).then_some(Dropped::TooManyIntervals));
        }
        let most = segment(&flow, 0, 7_000, false);
        receive::<Sack>(&mut flow, &most, NOW);
        assert_eq!(flow.received, 7_000);
        assert_eq!(flow.intervals().to_pairs()[..2], [(8_000, 9_000), (0, 0)]);
    }

    #[test]
    fn what_comes_twice_is_told() {
        let mut flow = flow();
        for (position, duplicate) in
            [(0, (0, 0)), (0, (0, 1_000)), (3_000, (0, 1_000)), (3_000, (3_000, 4_000))]
        {
            let segment = segment(&flow, position, 1_000, false);
            receive::<Sack>(&mut flow, &segment, NOW);
            let told = flow.disorder.as_ref().unwrap().duplicate;
            assert_eq!((told.start, told.end), duplicate);
        }
    }

    #[test]
    fn what_came_before_is_skipped_and_acknowledged_at_once() {
        let mut flow = flow();
        flow.quick = 0;
        let first = segment(&flow, 0, 100, false);
        assert_eq!(receive::<GoBackN>(&mut flow, &first, NOW).acknowledge, Some(When::Later));
        let again = receive::<GoBackN>(&mut flow, &first, NOW);
        assert_eq!((again.dropped, again.acknowledge), (Some(Dropped::Duplicate), Some(When::Now)));
        let overlap = segment(&flow, 50, 100, false);
        let taken = receive::<GoBackN>(&mut flow, &overlap, NOW);
        assert_eq!(taken.placed, Some(Placed { position: 100, skip: 50, bytes: 50 }));
    }

    #[test]
    fn an_older_timestamp_is_answered_and_nothing_of_it_taken() {
        let mut flow = flow();
        flow.has_timestamps = true;
        flow.recent = 1_000;
        let stamped = |flow: &Protocol, value| Summary {
            timestamps: Some((value, 0)),
            ..segment(flow, 0, 100, false)
        };
        let old = stamped(&flow, 999);
        let outcome = receive::<GoBackN>(&mut flow, &old, NOW);
        assert_eq!(outcome.dropped, Some(Dropped::OldTimestamp));
        assert_eq!((outcome.placed, outcome.acknowledge), (None, Some(When::Now)));
        // After 24 days the peer's clock may have wrapped.
        let later = NOW + STALE;
        assert!(receive::<GoBackN>(&mut flow, &old, later).placed.is_some());
    }

    /// CVE-2005-0356: otherwise the peer's own segments would be older than the forged one's.
    #[test]
    fn a_timestamp_of_an_old_or_unacceptable_segment_is_not_remembered() {
        let mut flow = flow();
        flow.has_timestamps = true;
        flow.recent = 1_000;
        flow.received = 100;
        flow.landed = 100;
        flow.told = flow.expected();
        let value = Some((1 << 30, 0));
        let old = Summary { timestamps: value, ..segment(&flow, 50, 0, false) };
        let base = segment(&flow, 100, 0, false);
        let unsent = Summary { timestamps: value, ack: base.ack.plus(9), ..base };
        for forged in [old, unsent] {
            receive::<GoBackN>(&mut flow, &forged, NOW);
            assert_eq!(flow.recent, 1_000);
        }
    }

    #[test]
    fn nothing_comes_behind_an_end() {
        let mut flow = flow();
        let last = segment(&flow, 0, 100, true);
        receive::<GoBackN>(&mut flow, &last, NOW);
        let behind = segment(&flow, 101, 50, true);
        let outcome = receive::<GoBackN>(&mut flow, &behind, NOW);
        assert_eq!(outcome.placed, None);
        assert_eq!((flow.received, flow.has_fin()), (100, true));
    }

    #[test]
    fn an_end_before_bytes_that_came_is_not_believed() {
        let mut flow = flow();
        let later = segment(&flow, 100, 100, false);
        receive::<GoBackN>(&mut flow, &later, NOW);
        let end = segment(&flow, 120, 0, true);
        receive::<GoBackN>(&mut flow, &end, NOW);
        assert_eq!(flow.fin, None);
    }

    #[test]
    fn acknowledgements_of_what_was_never_sent_or_is_ancient_are_challenged() {
        let mut flow = flow();
        let bare = segment(&flow, 0, 100, false);
        let unsent = Summary { ack: bare.ack.plus(1), ..bare };
        let outcome = receive::<GoBackN>(&mut flow, &unsent, NOW);
        assert_eq!(outcome.dropped, Some(Dropped::UnsentAcknowledged));
        assert_eq!(outcome.placed, None);
        let ancient = Summary { ack: bare.ack.minus(1 << 20), ..bare };
        let outcome = receive::<GoBackN>(&mut flow, &ancient, NOW);
        assert_eq!(outcome.dropped, Some(Dropped::AncientAcknowledgement));
    }
}
