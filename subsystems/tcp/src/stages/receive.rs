//! The protocol stage's processing of received segments: order, window, reassembly (RFC 9293, 3.10.7.4; thesis 4.3.1.3).
//!
//! Out-of-order bytes are placed in the host's ring at once, in as many intervals as the recovery keeps. A segment that would
//! start one more interval is dropped, and answered with a duplicate acknowledgement.

use wave_core::clock::Nanos;

use super::acknowledge::{self, Acknowledged, milliseconds};
use super::recover::Recovery;
use crate::flow::intervals::Interval;
use crate::flow::state::{Protocol, QUICK};
use crate::planted::{Planted, is_planted};
use crate::seq::seq_of;
use crate::summary::Summary;

/// Longest delay of an acknowledgement that waits to be sent with data (RFC 9293, MUST-58 and 59).
pub const ACKNOWLEDGE_AFTER: Nanos = Nanos::from_millis(40);
/// Time without data after which the peer's congestion window may be small again: Linux's shortest retransmission timeout.
const IDLE_AFTER: Nanos = Nanos::from_millis(200);
/// Shortest time between two answers to empty, unacceptable segments. Otherwise two sides that find each other's segments
/// unacceptable would answer each other forever (RFC 5961, 7; CVE-2016-5696).
pub const ANSWER_AFTER: Nanos = Nanos::from_millis(500);
/// Age after which the peer's last timestamp is no longer compared (RFC 7323, 5.5).
const STALE: Nanos = Nanos::from_millis(24 * 24 * 3_600 * 1_000);

/// Part of a segment's payload that belongs in the host's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Position in the stream of its first byte.
    pub position: u64,
    /// Bytes of the payload to skip before it.
    pub skip: u32,
    /// Number of bytes.
    pub bytes: u32,
}

/// The outcome of a received segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes to copy to the ring.
    pub placed: Option<Placed>,
    /// The effect of its acknowledgement.
    pub acknowledged: Acknowledged,
    /// When to acknowledge it, counted from the end of the copy; `None` is not at all.
    pub acknowledge: Option<AckTiming>,
    /// Bytes behind [`Protocol::received`] that arrived out of order, and join it once the copy is done.
    pub merged: u32,
    /// Bytes or the FIN arrived in order: the host must be notified once the copy is done.
    pub must_notify: bool,
    /// Why the segment was dropped; `None` if it was not.
    pub dropped: Option<Dropped>,
}

/// When an acknowledgement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AckTiming {
    /// With data, or after [`ACKNOWLEDGE_AFTER`], or when the data would have to wait for the peer.
    Delayed,
    /// At once.
    Now,
}

/// Why a segment was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its timestamp is older than the last accepted one (RFC 7323, 5).
    OldTimestamp,
    /// All of its bytes had arrived before.
    Duplicate,
    /// It is outside the window.
    OutsideWindow,
    /// It acknowledges bytes that were never sent (RFC 9293, 3.10.7.4; RFC 5961, 5).
    UnsentAcknowledged,
    /// Its acknowledgement is older than any window (RFC 5961, 5).
    AncientAcknowledgement,
    /// It would start an out-of-order interval for which there is no room.
    TooManyIntervals,
}

/// Whether a segment is out of order, or reports out-of-order bytes.
pub fn needs_disorder<R: Recovery>(flow: &Protocol, summary: &Summary) -> bool {
    let is_early_or_late = || {
        let expected = flow.received + u64::from(flow.has_fin());
        summary.seq != seq_of(flow.receive_base, expected)
    };
    let has_length = summary.bytes > 0 || summary.fin;
    has_length && is_early_or_late() || R::needs_disorder(flow, summary)
}

/// Processes a segment and updates the connection's state.
pub fn receive<R: Recovery>(flow: &mut Protocol, summary: &Summary, now: Nanos) -> Received {
    let mut outcome = examine::<R>(flow, summary, now);
    bound_answers(flow, summary, now, &mut outcome);
    outcome
}

/// Answers no more empty, unacceptable segments than [`ANSWER_AFTER`] allows.
pub fn bound_answers(flow: &mut Protocol, summary: &Summary, now: Nanos, outcome: &mut Received) {
    let is_empty = summary.bytes == 0 && !summary.fin;
    if outcome.dropped.is_some()
        && is_empty
        && outcome.acknowledge.is_some()
        && !may_answer(flow, now)
    {
        outcome.acknowledge = None;
    }
}

/// Whether an unacceptable segment may be answered now.
fn may_answer(flow: &mut Protocol, now: Nanos) -> bool {
    let may = flow.answered_at.get().is_none_or(|at| now.since(at) >= ANSWER_AFTER);
    if may {
        flow.answered_at = now.into();
    }
    may
}

fn examine<R: Recovery>(flow: &mut Protocol, summary: &Summary, now: Nanos) -> Received {
    if let Some(refused) = old_timestamp(flow, summary, now) {
        return refused;
    }
    let mut outcome = Received::default();
    let expected = flow.received + u64::from(flow.has_fin());
    let at_expected = seq_of(flow.receive_base, expected);
    let length = u64::from(summary.bytes) + u64::from(summary.fin);
    // Relative to the expected sequence number. This is RFC 9293's test, except that acknowledgements of unacceptable segments
    // are processed, so that two sides whose windows are both closed make progress.
    let start = i64::from(summary.seq.since(at_expected));
    let end = start + length as i64;
    let window = flow.advertised.saturating_sub(expected) as i64;
    let is_old = if length == 0 { start < 0 } else { end <= 0 };
    let is_beyond = start > window || (start == window && length > 0 && window > 0);
    if is_old || is_beyond {
        outcome.dropped = Some(if is_old { Dropped::Duplicate } else { Dropped::OutsideWindow });
        outcome.acknowledge = Some(AckTiming::Now);
        // No honest segment is this late, and a forger needs to know only the ends to send one.
        let is_ancient = start < -i64::from(flow.ring_bytes);
        if is_beyond || is_ancient {
            return outcome;
        }
    }
    match acknowledge::acknowledge::<R>(flow, summary, now) {
        Ok(acknowledged) => outcome.acknowledged = acknowledged,
        Err(dropped) => {
            outcome.dropped = Some(dropped);
            outcome.acknowledge = Some(AckTiming::Now);
            return outcome;
        }
    }
    flow.last_segment_at = now;
    if is_old {
        let seen = expected.checked_add_signed(start);
        if let Some(position) = seen.filter(|_| summary.bytes > 0) {
            let end = position + u64::from(summary.bytes);
            flow.note_duplicate(Interval { start: position, end });
        }
        return outcome;
    }
    // Only from segments within the window that acknowledge bytes sent: a forged value would make us drop the peer's own
    // segments (CVE-2005-0356).
    update_timestamp(flow, summary, now);
    if length > 0 {
        reassemble::<R>(flow, summary, expected, start, now, &mut outcome);
    }
    outcome
}

/// The outcome of a segment whose timestamp is too old: PAWS (RFC 7323, section 5). As in Linux, a segment without a timestamp is not
/// checked, although section 3.2 says that it should be dropped: middleboxes and old kernels leave timestamps out.
pub fn old_timestamp(flow: &Protocol, summary: &Summary, now: Nanos) -> Option<Received> {
    let (value, _) = summary.timestamps.filter(|_| flow.has_timestamps)?;
    let is_older = (value.wrapping_sub(flow.recent) as i32) < 0;
    (is_older && now.since(flow.recent_at) < STALE).then(|| Received {
        dropped: Some(Dropped::OldTimestamp),
        acknowledge: Some(AckTiming::Now),
        ..Received::default()
    })
}

/// Updates the timestamp to echo: that of the segment that moved the left edge (RFC 7323, 4.3).
pub fn update_timestamp(flow: &mut Protocol, summary: &Summary, now: Nanos) {
    let Some((value, _)) = summary.timestamps.filter(|_| flow.has_timestamps) else { return };
    // Any timestamp replaces a stale one (RFC 7323, 5.5).
    let is_stale = now.since(flow.recent_at) >= STALE;
    let is_newer = value.wrapping_sub(flow.recent) as i32 >= 0;
    if summary.seq.since(flow.last_ack_sent) <= 0 && (is_newer || is_stale) {
        flow.recent = value;
        flow.recent_at = now;
    }
}

fn reassemble<R: Recovery>(
    flow: &mut Protocol,
    summary: &Summary,
    expected: u64,
    start: i64,
    now: Nanos,
    outcome: &mut Received,
) {
    if flow.has_fin() {
        outcome.dropped = Some(Dropped::Duplicate);
        outcome.acknowledge = Some(AckTiming::Now);
        return;
    }
    // Limited by the room in the host's ring, and by the stream's end. Because of its scale, the window may be a few bytes
    // larger than the ring.
    let limit = flow.advertised.min(flow.receive_limit());
    let limit = flow.fin.map_or(limit, |fin| limit.min(fin));
    let skip = start.min(0).unsigned_abs() as u32;
    let from = expected.saturating_add_signed(start.max(0));
    let behind = expected.saturating_add_signed(start + i64::from(summary.bytes));
    let to = behind.min(limit).max(from);
    let bytes = (to - from) as u32;
    // The FIN counts only if all bytes before it in this segment were accepted.
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
        outcome.must_notify = bytes > 0 || flow.has_fin();
        flow.since_ack_bytes = flow.since_ack_bytes.saturating_add(bytes);
        let is_cut = to < behind;
        let at_once = acks_at_once(flow, summary, now) || had_gap || is_cut || flow.has_fin();
        outcome.acknowledge = Some(if at_once { AckTiming::Now } else { AckTiming::Delayed });
        return;
    }
    // RFC 5681, 4.2: out-of-order segments are acknowledged at once.
    outcome.acknowledge = Some(AckTiming::Now);
    let new = Interval { start: from, end: to };
    if flow.intervals().holding(new).is_some() && bytes > 0 {
        flow.note_duplicate(new);
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

/// Time since data last arrived in order.
pub fn since_data(flow: &Protocol, now: Nanos) -> Nanos {
    Nanos::from_millis(milliseconds(now).wrapping_sub(flow.data_at_ms).into())
}

/// Whether data in order is acknowledged at once, much as in Linux: more than a full segment always, and other data unless the
/// host answers what it receives. The end of what the peer has to send is such data, because a peer with Nagle's algorithm holds
/// its next short segment back until this one is acknowledged.
pub fn acks_at_once(flow: &mut Protocol, summary: &Summary, now: Nanos) -> bool {
    if since_data(flow, now) >= IDLE_AFTER {
        flow.quick = QUICK;
    }
    flow.data_at_ms = milliseconds(now);
    let mss = u32::from(flow.mss);
    let is_more_than_a_segment = flow.since_ack_bytes > mss;
    let is_end = summary.push || summary.bytes < mss;
    let is_early = flow.quick > 0;
    flow.quick = flow.quick.saturating_sub(1);
    is_more_than_a_segment || (!flow.is_interactive && (is_end || is_early))
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

    /// A new connection with windows of 64 KiB.
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
    fn a_fin_with_data_that_arrives_out_of_order_is_remembered() {
        let mut flow = flow();
        let last = segment(&flow, 100, 50, true);
        let early = receive::<GoBackN>(&mut flow, &last, NOW);
        assert_eq!(early.placed, Some(Placed { position: 100, skip: 0, bytes: 50 }));
        assert!(!flow.has_fin() && !early.must_notify);
        let first = segment(&flow, 0, 100, false);
        let rest = receive::<GoBackN>(&mut flow, &first, NOW);
        assert!(flow.has_fin() && rest.must_notify);
        assert_eq!((flow.received, *flow.intervals()), (150, Intervals::default()));
        assert_eq!(rest.acknowledge, Some(AckTiming::Now));
    }

    #[test]
    fn a_bare_fin_that_arrives_out_of_order_is_remembered() {
        let mut flow = flow();
        let end = segment(&flow, 100, 0, true);
        receive::<GoBackN>(&mut flow, &end, NOW);
        let first = segment(&flow, 0, 100, false);
        receive::<GoBackN>(&mut flow, &first, NOW);
        assert!(flow.has_fin());
    }

    #[test]
    fn bytes_beyond_the_fin_or_the_window_are_cut_off() {
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
        assert_eq!(flow.fin, None, "a FIN counts only with all bytes before it");
    }

    #[test]
    fn go_back_n_keeps_and_grows_one_interval_and_drops_a_second_one() {
        let mut flow = flow();
        for (position, bytes, is_accepted) in
            [(1_000, 100, true), (3_000, 100, false), (1_100, 50, true), (900, 100, true)]
        {
            let segment = segment(&flow, position, bytes, false);
            let taken = receive::<GoBackN>(&mut flow, &segment, NOW);
            assert_eq!(taken.placed.is_some(), is_accepted, "{position}");
            assert_eq!(taken.acknowledge, Some(AckTiming::Now));
        }
        assert_eq!(flow.intervals().to_pairs()[..2], [(900, 1_150), (0, 0)]);
        assert_eq!(flow.received, 0);
    }

    /// The pool had no `Disorder` to lend.
    #[test]
    fn without_a_loan_out_of_order_bytes_are_dropped_but_a_bare_fin_is_remembered() {
        let mut flow = Protocol { disorder: None, ..flow() };
        let early = segment(&flow, 1_000, 100, false);
        let early = receive::<Sack>(&mut flow, &early, NOW);
        assert_eq!((early.placed, early.acknowledge), (None, Some(AckTiming::Now)));
        assert_eq!(early.dropped, Some(Dropped::TooManyIntervals));
        let end = segment(&flow, 100, 0, true);
        receive::<Sack>(&mut flow, &end, NOW);
        let first = segment(&flow, 0, 100, false);
        let rest = receive::<Sack>(&mut flow, &first, NOW);
        assert!(rest.must_notify && flow.has_fin());
        // Bytes that arrive twice are acknowledged as usual.
        let twice = receive::<Sack>(&mut flow, &first, NOW);
        assert_eq!(twice.acknowledge, Some(AckTiming::Now));
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
    fn bytes_that_arrive_twice_are_reported_as_duplicates() {
        let mut flow = flow();
        for (position, duplicate) in
            [(0, (0, 0)), (0, (0, 1_000)), (3_000, (0, 1_000)), (3_000, (3_000, 4_000))]
        {
            let segment = segment(&flow, position, 1_000, false);
            receive::<Sack>(&mut flow, &segment, NOW);
            let reported = flow.disorder.as_ref().unwrap().duplicate;
            assert_eq!((reported.start, reported.end), duplicate);
        }
    }

    #[test]
    fn bytes_that_arrived_before_are_skipped_and_acknowledged_at_once() {
        let mut flow = Protocol { is_interactive: true, ..flow() };
        let first = segment(&flow, 0, 100, false);
        assert_eq!(
            receive::<GoBackN>(&mut flow, &first, NOW).acknowledge,
            Some(AckTiming::Delayed)
        );
        let again = receive::<GoBackN>(&mut flow, &first, NOW);
        assert_eq!(
            (again.dropped, again.acknowledge),
            (Some(Dropped::Duplicate), Some(AckTiming::Now))
        );
        let overlap = segment(&flow, 50, 100, false);
        let taken = receive::<GoBackN>(&mut flow, &overlap, NOW);
        assert_eq!(taken.placed, Some(Placed { position: 100, skip: 50, bytes: 50 }));
    }

    #[test]
    fn a_segment_with_an_older_timestamp_is_answered_and_dropped() {
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
        assert_eq!((outcome.placed, outcome.acknowledge), (None, Some(AckTiming::Now)));
        // After 24 days the peer's clock may have wrapped.
        let later = NOW + STALE;
        assert!(receive::<GoBackN>(&mut flow, &old, later).placed.is_some());
    }

    /// CVE-2005-0356: otherwise the peer's own segments would be older than the forged one's.
    #[test]
    fn a_timestamp_of_an_old_or_unacceptable_segment_is_not_stored() {
        let mut flow = flow();
        flow.has_timestamps = true;
        flow.recent = 1_000;
        flow.received = 100;
        flow.landed = 100;
        flow.last_ack_sent = flow.expected();
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
    fn bytes_after_the_fin_are_ignored() {
        let mut flow = flow();
        let last = segment(&flow, 0, 100, true);
        receive::<GoBackN>(&mut flow, &last, NOW);
        let behind = segment(&flow, 101, 50, true);
        let outcome = receive::<GoBackN>(&mut flow, &behind, NOW);
        assert_eq!(outcome.placed, None);
        assert_eq!((flow.received, flow.has_fin()), (100, true));
    }

    #[test]
    fn a_fin_before_bytes_that_have_arrived_is_ignored() {
        let mut flow = flow();
        let later = segment(&flow, 100, 100, false);
        receive::<GoBackN>(&mut flow, &later, NOW);
        let end = segment(&flow, 120, 0, true);
        receive::<GoBackN>(&mut flow, &end, NOW);
        assert_eq!(flow.fin, None);
    }

    #[test]
    fn segments_with_an_unsent_or_ancient_acknowledgement_are_dropped() {
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
