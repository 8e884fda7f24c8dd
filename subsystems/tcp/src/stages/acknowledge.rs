//! The protocol stage's processing of acknowledgements (RFC 9293, 3.10.7.4; RFC 5681, 3.2; RFC 5961, 5).

use wave_core::clock::Nanos;

use super::receive::Dropped;
use super::recover::{Ack, Recovery, reset_recovery};
use crate::context::Tail;
use crate::flow::state::Protocol;
use crate::planted::{Planted, is_planted};
use crate::seq::seq_of;
use crate::summary::Summary;

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    /// Newly acknowledged bytes, which are free in the host's ring.
    pub bytes: u32,
    /// It acknowledges something new: bytes, or the FIN.
    pub is_new: bool,
    /// The right edge of the peer's window has moved up.
    pub opens_window: bool,
    /// It starts a fast retransmit.
    pub is_fast_retransmit: bool,
    /// Round-trip time by the echoed timestamp, if there is one.
    pub round_trip: Option<Nanos>,
    /// It echoes a congestion mark, and both sides agreed on ECN.
    pub echoes_mark: bool,
}

/// Our clock for timestamps, in milliseconds.
pub fn milliseconds(now: Nanos) -> u32 {
    (now.0 / 1_000_000) as u32
}

/// Processes the acknowledgement and the window of a segment that is within our window, or older.
///
/// # Errors
/// It acknowledges bytes that were never sent, or is too old to be honest.
pub fn acknowledge<R: Recovery>(
    flow: &mut Protocol,
    summary: &Summary,
    now: Nanos,
) -> Result<Acknowledged, Dropped> {
    let mut outcome = Acknowledged::default();
    let ahead = summary.ack.since(seq_of(flow.send_base, flow.acknowledged));
    if i64::from(ahead) > flow.outstanding() as i64 {
        return Err(Dropped::UnsentAcknowledged);
    }
    if i64::from(ahead) < -i64::from(flow.window_max.max(u32::from(flow.mss))) {
        return Err(Dropped::AncientAcknowledgement);
    }
    if ahead < 0 {
        return Ok(outcome);
    }
    let window = u32::from(summary.window) << flow.send_scale;
    let edge = flow.acknowledged + ahead as u64 + u64::from(window);
    let is_duplicate = ahead == 0
        && flow.outstanding() > 0
        && (summary.bytes == 0 || is_planted(Planted::DataCountedAsDuplicate))
        && !summary.fin
        && edge == flow.edge
        // An answer to a window probe does not indicate a loss.
        && edge > flow.acknowledged;
    let was_closed = flow.edge <= flow.acknowledged;
    let is_newer = summary.seq.since(flow.window_seq) > 0
        || (summary.seq == flow.window_seq && summary.ack.since(flow.window_ack) >= 0);
    if is_newer {
        outcome.opens_window = edge > flow.edge;
        flow.edge = edge;
        flow.window_max = flow.window_max.max(window);
        flow.window_seq = summary.seq;
        flow.window_ack = summary.ack;
    }
    // Without ECN, these bits are meaningless.
    outcome.echoes_mark = summary.echoes_mark && flow.ecn.is_some_and(|ecn| ecn.is_capable);
    if ahead > 0 {
        let before = flow.acknowledged_bytes();
        flow.acknowledged += ahead as u64;
        flow.next = flow.next.max(flow.acknowledged);
        outcome.bytes = (flow.acknowledged_bytes() - before) as u32;
        outcome.is_new = true;
        if flow.tail == Tail::More {
            flow.tail = Tail::Part;
        }
        outcome.round_trip = echoed_round_trip(flow, summary, now);
    }
    if outcome.echoes_mark && outcome.bytes > 0 {
        // Send nothing until congestion control has reacted: the window is about to shrink, and the next new data must carry
        // CWR.
        flow.until_resumed = flow.until_resumed.or(Some(0));
    }
    let ack = Ack { summary, newly_acked: ahead as u64, is_duplicate };
    outcome.is_fast_retransmit = R::on_acknowledgement(flow, &ack, now);
    if was_closed && flow.edge > flow.acknowledged {
        // Most likely, the peer did not accept the byte of the window probe.
        flow.next = flow.acknowledged;
    }
    Ok(outcome)
}

/// The round-trip time by the echoed timestamp, if there is one.
pub fn echoed_round_trip(flow: &Protocol, summary: &Summary, now: Nanos) -> Option<Nanos> {
    let (_, echo) = summary.timestamps.filter(|_| flow.has_timestamps)?;
    let sent_at = echo.wrapping_sub(flow.timestamp_offset);
    let took = milliseconds(now).wrapping_sub(sent_at);
    // A round trip of more than an hour is not plausible.
    (took < 3_600_000).then(|| Nanos::from_millis(took.into()))
}

/// Goes back to the first unacknowledged byte (thesis 4.3.1.1, Reset). Until everything sent so far is acknowledged, duplicate
/// acknowledgements may answer retransmissions, and are ignored (RFC 6582).
pub fn go_back_n(flow: &mut Protocol) {
    flow.next = flow.acknowledged;
    flow.recover = flow.highest;
    flow.duplicates = 0;
    flow.until_resumed = None;
    reset_recovery(flow);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::stages::recover::GoBackN;

    const NOW: Nanos = Nanos::from_millis(1_000);

    /// A connection that has sent `sent` bytes.
    fn flow(sent: u64) -> Protocol {
        let mut flow = split(&established(), NOW).1;
        (flow.written, flow.next, flow.highest) = (sent, sent, sent);
        flow
    }

    fn ack(flow: &Protocol, position: u64) -> Summary {
        Summary {
            seq: seq_of(flow.receive_base, flow.received),
            ack: seq_of(flow.send_base, position),
            window: u16::MAX,
            ..Summary::default()
        }
    }

    #[test]
    fn three_duplicate_acks_are_one_loss_until_all_bytes_sent_are_acknowledged() {
        let mut flow = flow(10_000);
        let mut losses = 0;
        let mut hear = |flow: &mut Protocol, position, times| {
            for _ in 0..times {
                let bare = ack(flow, position);
                losses +=
                    u32::from(acknowledge::<GoBackN>(flow, &bare, NOW).unwrap().is_fast_retransmit);
            }
            losses
        };
        // The first acknowledgement moves the right edge, so it is not a duplicate.
        assert_eq!(hear(&mut flow, 1_000, 3), 0);
        assert_eq!(hear(&mut flow, 1_000, 1), 1);
        assert_eq!((flow.next, flow.recover), (1_000, 10_000));
        // Duplicates caused by retransmissions, and after a partial acknowledgement.
        assert_eq!(hear(&mut flow, 1_000, 9), 1);
        assert_eq!(hear(&mut flow, 5_000, 9), 1);
        flow.next = flow.highest;
        assert_eq!(hear(&mut flow, 10_000, 1), 1);
        (flow.written, flow.next, flow.highest) = (20_000, 20_000, 20_000);
        assert_eq!(hear(&mut flow, 10_000, 9), 2);
    }

    #[test]
    fn segments_with_data_or_a_changed_window_are_not_duplicate_acks() {
        let mut flow = flow(10_000);
        for bytes in [1, 1, 1, 1] {
            let data = Summary { bytes, ..ack(&flow, 0) };
            assert!(!acknowledge::<GoBackN>(&mut flow, &data, NOW).unwrap().is_fast_retransmit);
        }
        for window in [10, 20, 30, 40] {
            let other = Summary { window, ..ack(&flow, 0) };
            assert!(!acknowledge::<GoBackN>(&mut flow, &other, NOW).unwrap().is_fast_retransmit);
        }
    }

    #[test]
    fn an_older_segment_does_not_update_the_window() {
        let mut flow = flow(1_000);
        flow.received = 500;
        let new = Summary { window: 5_000, ..ack(&flow, 1_000) };
        acknowledge::<GoBackN>(&mut flow, &new, NOW).unwrap();
        assert_eq!(flow.edge, 6_000);
        let older = Summary { seq: new.seq.minus(100), window: 50_000, ..new };
        acknowledge::<GoBackN>(&mut flow, &older, NOW).unwrap();
        assert_eq!(flow.edge, 6_000);
    }

    #[test]
    fn a_round_trip_is_measured_by_the_echoed_timestamp() {
        let mut flow = flow(1_000);
        (flow.has_timestamps, flow.timestamp_offset) = (true, u32::MAX);
        let echo = milliseconds(NOW).wrapping_add(u32::MAX);
        let bare = Summary { timestamps: Some((1, echo)), ..ack(&flow, 1_000) };
        let later = NOW + Nanos::from_millis(30);
        let outcome = acknowledge::<GoBackN>(&mut flow, &bare, later).unwrap();
        assert_eq!(outcome.round_trip, Some(Nanos::from_millis(30)));
    }
}
