//! Loss recovery in the protocol stage: go-back-N, as in the thesis, or selective acknowledgements.
//!
//! | | [`GoBackN`] (thesis 4.3.1.1) | [`Sack`] (RFC 6675) |
//! | --- | --- | --- |
//! | out-of-order intervals | 1 | 4, reported to the peer (RFC 2018, 2883) |
//! | sign of a loss | 3 duplicates | 3 duplicates, 3 ranges or more than 2 segments above, or a quarter of a round trip (RFC 8985) |
//! | sign of a tail loss | a timeout | a probe after two round trips (RFC 8985, section 7) |
//! | retransmitted | everything | bytes that the peer does not have, and once more if later data overtakes them |
//! | sent after a loss | the new window at once | in proportion to what arrives (RFC 9937) |
//! | in flight | bytes sent and not acknowledged | of those, the bytes that the peer does not have and that are not lost |
//! | after a timeout | everything is sent again | everything except what the peer reports from then on |
//!
//! If a peer does not agree to selective acknowledgements, [`Sack`] counts duplicates: NewReno (RFC 6582). Both have the same state, so
//! that a connection can move between engines.

mod loss_detection;
mod newreno;
mod tail_probe;

use core::fmt::Debug;

use wave_core::clock::Nanos;

use self::loss_detection::{
    detect_lost, detect_lost_retransmission, note_overtaken, reordering_window,
    track_retransmissions,
};
use self::newreno::count_duplicates;
use self::tail_probe::{detect_tail_loss, tail_probe};
use super::acknowledge::go_back_n;
use super::transmit::DataSegment;
use crate::datapath::INTERVALS_MAX;
use crate::flow::disorder::Loss;
use crate::flow::intervals::Interval;
use crate::flow::optional_time::OptionalTime;
use crate::flow::prr::Prr;
use crate::flow::state::{Protocol, RxtMark, TailProbe};
use crate::seq::seq_of;
use crate::summary::Summary;

/// Number of duplicate acknowledgements that indicate a loss.
const DUP_THRESH: u8 = 3;

/// Limit of the quarters of a round trip for which overtaken bytes count as late rather than lost.
const REORDERING_MAX: u8 = 4;

/// A valid acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    /// Summary of the segment.
    pub summary: &'a Summary,
    /// Number of newly acknowledged positions.
    pub newly_acked: u64,
    /// It is a duplicate acknowledgement: it says nothing new, like the answer to an out-of-order segment.
    pub is_duplicate: bool,
}

/// Part of the stream that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First position to send.
    pub from: u64,
    /// The position after the last.
    pub to: u64,
    /// Limit of bytes by congestion control.
    pub room: u64,
    /// Why it is sent.
    pub cause: Cause,
}

/// Why part of the stream is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is the next part of the stream, or the next part of a go-back-N retransmission.
    Next,
    /// It was lost, while later bytes arrived.
    Hole,
    /// It makes the peer acknowledge what it has (RFC 8985, section 7). Neither the congestion window nor a recovery limits it.
    TailProbe,
}

impl Span {
    /// The next part of the stream.
    pub fn next(from: u64, to: u64, room: u64) -> Span {
        Span { from, to, room, cause: Cause::Next }
    }
}

/// A method of loss recovery. Each function works on one connection, in bounded time.
pub trait Recovery: Copy + Debug + Send + 'static {
    /// Number of out-of-order intervals that a receiver keeps, at most [`INTERVALS_MAX`].
    const INTERVALS: usize;
    /// Whether handshakes offer selective acknowledgements.
    const USES_SACK: bool;

    /// Whether the sender may need a [`Disorder`](crate::flow::disorder::Disorder) from the pool to process a segment.
    fn needs_disorder(flow: &Protocol, summary: &Summary) -> bool;

    /// Processes a valid acknowledgement, after [`Protocol::acknowledged`] was updated. Returns whether a loss was detected, at
    /// most once for all data sent by then.
    fn on_acknowledgement(flow: &mut Protocol, ack: &Ack<'_>, now: Nanos) -> bool;

    /// Looks for losses after time has passed. Returns the same as [`Recovery::on_acknowledgement`].
    fn detect_loss(flow: &mut Protocol, now: Nanos) -> bool;

    /// The part to send next, if the windows allow it; `None` if there is none.
    fn next_segment(flow: &Protocol) -> Option<Span>;

    /// Notes a segment that was sent. `end` is the position after its last byte and its FIN.
    fn on_sent(flow: &mut Protocol, sent: &DataSegment, end: u64, cause: Cause, now: Nanos);

    /// Notes that congestion control has set the window.
    fn on_window(flow: &mut Protocol);

    /// When to call [`Recovery::detect_loss`], if at all.
    fn overdue_at(flow: &Protocol) -> Option<Nanos>;

    /// Whether a tail-loss probe is useful: without it, the loss of the last bytes sent would go undetected until a timeout.
    fn wants_tail_probe(flow: &Protocol) -> bool;
}

/// Go-back-N: one out-of-order interval; after a loss, all unacknowledged bytes are retransmitted.
#[derive(Clone, Copy, Debug)]
pub struct GoBackN;

/// Recovery by selective acknowledgements, or NewReno with peers that do not support them.
#[derive(Clone, Copy, Debug)]
pub struct Sack;

impl Recovery for GoBackN {
    const INTERVALS: usize = 1;
    const USES_SACK: bool = false;

    fn needs_disorder(_flow: &Protocol, _summary: &Summary) -> bool {
        false
    }

    fn on_acknowledgement(flow: &mut Protocol, ack: &Ack<'_>, _now: Nanos) -> bool {
        if ack.newly_acked > 0 {
            flow.duplicates = 0;
        } else if ack.is_duplicate {
            flow.duplicates = flow.duplicates.saturating_add(1);
            if flow.duplicates == DUP_THRESH && flow.acknowledged >= flow.recover {
                go_back_n(flow);
                flow.until_resumed = Some(1);
                return true;
            }
        }
        false
    }

    fn detect_loss(_flow: &mut Protocol, _now: Nanos) -> bool {
        false
    }

    fn next_segment(flow: &Protocol) -> Option<Span> {
        let room = (flow.acknowledged + u64::from(flow.window_bytes)).saturating_sub(flow.next);
        let span = Span::next(flow.next, flow.end(), room);
        (span.from < span.to).then_some(span)
    }

    fn on_sent(_flow: &mut Protocol, _sent: &DataSegment, _end: u64, _cause: Cause, _now: Nanos) {}

    fn on_window(_flow: &mut Protocol) {}

    fn overdue_at(_flow: &Protocol) -> Option<Nanos> {
        None
    }

    fn wants_tail_probe(_flow: &Protocol) -> bool {
        false
    }
}

impl Recovery for Sack {
    const INTERVALS: usize = INTERVALS_MAX;
    const USES_SACK: bool = true;

    fn needs_disorder(flow: &Protocol, summary: &Summary) -> bool {
        let [(first, behind), ..] = summary.sack;
        let may_be_third = flow.duplicates >= DUP_THRESH - 1 && !flow.sack_permitted;
        first != behind || may_be_third
    }

    fn on_acknowledgement(flow: &mut Protocol, ack: &Ack<'_>, now: Nanos) -> bool {
        // The bytes that the peer had before this acknowledgement: if it starts a recovery, the bytes that it newly delivers
        // count in that recovery, too (RFC 9937, 6.1).
        let prior = delivered(flow) - ack.newly_acked;
        if !flow.sack_permitted {
            return count_duplicates(flow, ack, prior, now);
        }
        if ack.newly_acked > 0 {
            flow.duplicates = 0;
            on_cumulative_ack(flow, now);
        }
        let SackBlocks { is_new, duplicate } = process_sack_blocks(flow, ack.summary);
        // RFC 6675, 2: a duplicate reports newly arrived bytes.
        if is_new && ack.newly_acked == 0 {
            flow.duplicates = flow.duplicates.saturating_add(1);
        }
        if (ack.newly_acked > 0 || is_new) && flow.probe == Some(TailProbe::Wanted) {
            flow.probe = None;
        }
        let has_probe_repaired = detect_tail_loss(flow, ack, duplicate);
        if flow.disorder.is_none() {
            return detect_loss_without_disorder(flow, prior) || has_probe_repaired;
        }
        note_overtaken(flow, now);
        track_retransmissions(flow, now);
        let lost = flow.loss().lost;
        let has_lost = detect_loss(flow, prior, now);
        let is_safe = ack.newly_acked > 0 && !has_lost && flow.loss().lost == lost;
        update_prr(flow, is_safe);
        has_lost || has_probe_repaired
    }

    fn detect_loss(flow: &mut Protocol, now: Nanos) -> bool {
        detect_loss(flow, delivered(flow), now)
    }

    fn next_segment(flow: &Protocol) -> Option<Span> {
        if flow.probe == Some(TailProbe::Wanted) {
            return tail_probe(flow);
        }
        let pipe = pipe(flow);
        let Loss { board, is_recovering, lost, high_rxt, lost_rxt, rxt_once, prr, .. } =
            flow.loss();
        let mut room = u64::from(flow.window_bytes).saturating_sub(pipe);
        if *is_recovering {
            room = prr.limit().saturating_sub(pipe);
            // RFC 6675, section 5 (C): at least one segment at a time.
            if pipe > 0 && room < u64::from(flow.mss) {
                room = 0;
            }
            for (from, end) in [(*high_rxt, *lost_rxt), (*rxt_once.max(high_rxt), *lost)] {
                let from = board.skip(from);
                if from < end {
                    let to = board.next(from).map_or(end, |has| has.min(end));
                    return Some(Span { from, to, room, cause: Cause::Hole });
                }
            }
        }
        let from = board.skip(flow.next);
        let to = board.next(from).unwrap_or(flow.end()).min(flow.end());
        (from < to).then_some(Span::next(from, to, room))
    }

    fn on_sent(flow: &mut Protocol, sent: &DataSegment, end: u64, cause: Cause, now: Nanos) {
        if cause == Cause::TailProbe {
            flow.probe = Some(TailProbe::Sent { is_retransmission: sent.is_retransmission });
            flow.probe_end = flow.highest;
        }
        if let Some(disorder) = &mut flow.disorder {
            let loss = &mut disorder.loss;
            loss.prr.on_sent(sent.bytes);
            if cause == Cause::Hole {
                loss.high_rxt = end;
                if end >= loss.lost_rxt {
                    loss.rxt_once = loss.rxt_once.max(end);
                    loss.high_rxt = loss.rxt_once;
                }
                let mark = RxtMark {
                    end: loss.rxt_once,
                    highest: flow.highest,
                    passed_at: OptionalTime::NONE,
                };
                loss.mark.get_or_insert(mark);
            }
        }
        // Karn's rule: bytes sent twice measure nothing.
        if sent.is_retransmission {
            flow.timed_at = OptionalTime::NONE;
        } else if flow.timed_at.is_none() {
            flow.timed_end = seq_of(flow.send_base, sent.position + u64::from(sent.bytes));
            flow.timed_at = now.into();
        }
    }

    fn on_window(flow: &mut Protocol) {
        update_prr(flow, false);
    }

    fn overdue_at(flow: &Protocol) -> Option<Nanos> {
        let disorder = flow.disorder.as_ref()?;
        if !flow.sack_permitted || is_after_timeout(flow) {
            return None;
        }
        let Loss { overtaken, lost, overtaken_at, mark, board, .. } = &disorder.loss;
        // A peer that reneges can empty the board. Then nothing is overtaken any more.
        let is_overtaken = overtaken > lost && !board.ranges().is_empty();
        let since =
            [is_overtaken.then_some(*overtaken_at), mark.and_then(|mark| mark.passed_at.get())];
        let since = since.into_iter().flatten().min()?;
        reordering_window(flow).map(|window| since + window)
    }

    fn wants_tail_probe(flow: &Protocol) -> bool {
        let Loss { is_recovering, board, .. } = flow.loss();
        flow.sack_permitted
            && flow.outstanding() > 0
            && flow.next == flow.highest
            && flow.acknowledged >= flow.recover
            && flow.probe.is_none()
            && !is_recovering
            && board.ranges().is_empty()
    }
}

/// Looks for losses. `prior` is the number of bytes that the peer had before the event that made us look. Returns the same as
/// [`Recovery::on_acknowledgement`].
fn detect_loss(flow: &mut Protocol, prior: u64, now: Nanos) -> bool {
    if !flow.sack_permitted || flow.disorder.is_none() || is_after_timeout(flow) {
        return false;
    }
    let is_lost_again = detect_lost_retransmission(flow, now);
    let Loss { is_recovering, lost, .. } = *flow.loss();
    let Some(found) = detect_lost(flow, now).filter(|found| *found > lost) else {
        return is_lost_again;
    };
    if let Some(disorder) = &mut flow.disorder {
        disorder.loss.lost = found;
    }
    note_overtaken(flow, now);
    if is_recovering {
        return is_lost_again;
    }
    enter_recovery(flow, prior);
    true
}

/// Whether bytes that were outstanding at a timeout are not acknowledged yet. They are retransmitted in order.
fn is_after_timeout(flow: &Protocol) -> bool {
    flow.acknowledged < flow.recover && !flow.loss().is_recovering
}

/// Clears the state after a timeout: the peer may have discarded bytes that it had SACKed (RFC 2018, section 8).
pub fn reset_recovery(flow: &mut Protocol) {
    (flow.timed_at, flow.probe) = (OptionalTime::NONE, None);
    if let Some(disorder) = &mut flow.disorder {
        disorder.loss = Loss::new(flow.acknowledged);
    }
}

/// Detects a loss without a scoreboard, because the pool had none: three duplicates are a loss, as for [`GoBackN`].
fn detect_loss_without_disorder(flow: &mut Protocol, prior: u64) -> bool {
    let is_loss = flow.duplicates >= DUP_THRESH && flow.acknowledged >= flow.recover;
    if is_loss {
        enter_recovery(flow, prior);
    }
    is_loss
}

/// Begins recovery after a loss; the peer had `prior` bytes before. Without a [`Disorder`](crate::flow::disorder::Disorder),
/// everything is retransmitted.
fn enter_recovery(flow: &mut Protocol, prior: u64) {
    let Some(disorder) = &mut flow.disorder else {
        go_back_n(flow);
        flow.until_resumed = Some(1);
        return;
    };
    disorder.loss.begin(flow.acknowledged);
    flow.recover = flow.highest;
    flow.next = flow.highest;
    flow.until_resumed = Some(1);
    let pipe = pipe(flow);
    if let Some(disorder) = &mut flow.disorder {
        disorder.loss.prr = Prr::new(prior, flow.highest, pipe, flow.mss);
    }
}

/// Updates the rate reduction with the bytes that have arrived.
fn update_prr(flow: &mut Protocol, is_safe: bool) {
    if !flow.loss().is_recovering {
        return;
    }
    let (has, pipe) = (delivered(flow), pipe(flow));
    let (window, mss) = (flow.window_bytes, flow.mss);
    if let Some(disorder) = &mut flow.disorder {
        disorder.loss.prr.on_acknowledgement(has, pipe, window, mss, is_safe);
    }
}

/// Updates the state after [`Protocol::acknowledged`] has moved up.
fn on_cumulative_ack(flow: &mut Protocol, now: Nanos) {
    if let Some(disorder) = &mut flow.disorder {
        let loss = &mut disorder.loss;
        let is_after_timeout = loss.lost < flow.recover && !loss.is_recovering;
        let overtaken = loss.board.ranges().last().map_or(0, |range| range.start);
        let (from, to) = (loss.high_rxt.max(loss.lost), flow.acknowledged.min(overtaken));
        // Overtaken bytes arrived without a retransmission: they were late, not lost.
        if !is_after_timeout && loss.board.missing_bytes(from, to) > 0 {
            flow.reordering = flow.reordering.max(1);
        }
        loss.board.acknowledge(flow.acknowledged);
        for position in [&mut loss.lost, &mut loss.high_rxt, &mut loss.rxt_once] {
            *position = (*position).max(flow.acknowledged);
        }
        if flow.acknowledged >= flow.recover && loss.is_recovering {
            loss.end(flow.acknowledged);
        }
    }
    let is_acknowledged = flow.timed_end.since(seq_of(flow.send_base, flow.acknowledged)) <= 0;
    if let Some(at) = flow.timed_at.get().filter(|_| is_acknowledged) {
        let took = now.since(at);
        flow.round_trip_min =
            flow.round_trip_min.get().map_or(took, |least| least.min(took)).into();
        flow.timed_at = OptionalTime::NONE;
    }
}

/// Result of the SACK blocks of an acknowledgement.
struct SackBlocks {
    /// The blocks report bytes that the peer was not known to have.
    is_new: bool,
    /// Bytes that arrived twice (RFC 2883); the last interval if there are several.
    duplicate: Option<Interval>,
}

/// Processes SACK blocks that an honest peer can have sent: within the bytes sent, and after the byte that it expects.
fn process_sack_blocks(flow: &mut Protocol, summary: &Summary) -> SackBlocks {
    let near = (flow.acknowledged, summary.ack);
    let mut blocks = SackBlocks { is_new: false, duplicate: None };
    for (first, behind) in summary.sack {
        let start = first.position(near.0, near.1);
        let end = behind.position(near.0, near.1);
        let Some((start, end)) = start.zip(end).filter(|(start, end)| start < end) else {
            continue;
        };
        if end <= flow.acknowledged {
            blocks.duplicate = Some(Interval { start, end });
            // The bytes arrived twice, so the first copy was late, not lost (RFC 8985, 6.2), unless they were our probe.
            let has_probed = matches!(flow.probe, Some(TailProbe::Sent { .. }));
            if !(has_probed && flow.probe_end == end) {
                flow.reordering = (flow.reordering + 1).min(REORDERING_MAX);
            }
        } else if start > flow.acknowledged && end <= flow.highest {
            // Without a scoreboard, every block counts as new.
            blocks.is_new |= flow
                .disorder
                .as_mut()
                .is_none_or(|disorder| disorder.loss.board.insert(Interval { start, end }));
        }
    }
    blocks
}

/// Bytes that the peer is known to have.
fn delivered(flow: &Protocol) -> u64 {
    flow.acknowledged + flow.loss().board.bytes() + duplicate_ack_bytes(flow)
}

/// Bytes that a peer without selective acknowledgements has reported by duplicates (RFC 6582 inflates the window by them).
fn duplicate_ack_bytes(flow: &Protocol) -> u64 {
    // After a timeout, duplicates answer bytes that arrived twice.
    if flow.sack_permitted || is_after_timeout(flow) {
        0
    } else {
        u64::from(flow.duplicates) * u64::from(flow.mss)
    }
}

/// RFC 6675's pipe: bytes sent that the peer does not have and that are not lost, plus retransmitted bytes.
fn pipe(flow: &Protocol) -> u64 {
    let sent = flow.disorder.as_ref().map_or(flow.next - flow.acknowledged, |disorder| {
        let Loss { board, lost, high_rxt, lost_rxt, rxt_once, .. } = &disorder.loss;
        board.missing_bytes(flow.acknowledged, *high_rxt)
            + board.missing_bytes((*lost_rxt).max(*high_rxt), *rxt_once)
            + board.missing_bytes((*lost).max(*rxt_once), flow.next)
    });
    sent.saturating_sub(duplicate_ack_bytes(flow))
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use proptest::prelude::*;

    use super::*;
    use crate::datapath::Established;
    use crate::flow::disorder::Disorder;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::seq::Seq;
    use crate::stages::acknowledge::{Acknowledged, acknowledge};
    use crate::stages::transmit::transmit;

    const MSS: u64 = 1_000;

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// A connection with selective acknowledgements that has `written` bytes to send.
    fn flow(written: u64) -> Protocol {
        let mut flow = split(&Established { sack_permitted: true, ..established() }, ms(0)).1;
        flow.written = written;
        flow.is_eager = true;
        flow.disorder = Some(Box::new(Disorder::default()));
        flow
    }

    /// Sends all segments that may be sent, and returns their ranges.
    fn send(flow: &mut Protocol, now: Nanos) -> Vec<(u64, u64)> {
        let next = || transmit::<Sack>(flow, 1_000, now);
        core::iter::from_fn(next)
            .map(|it| (it.position, it.position + u64::from(it.bytes)))
            .collect()
    }

    fn receive_ack(
        flow: &mut Protocol,
        ack: u64,
        blocks: &[(u64, u64)],
        now: Nanos,
    ) -> Acknowledged {
        let at = |position| seq_of(flow.send_base, position);
        let mut sack = [(Seq(0), Seq(0)); 4];
        for (place, (start, end)) in sack.iter_mut().zip(blocks) {
            *place = (at(*start), at(*end));
        }
        let window = (flow.edge.saturating_sub(ack)).min(u16::MAX.into()) as u16;
        let seq = seq_of(flow.receive_base, flow.received);
        let summary = Summary { seq, ack: at(ack), window, sack, ..Summary::default() };
        acknowledge::<Sack>(flow, &summary, now).unwrap_or_default()
    }

    /// TAS and FlexTOE go back to the first lost byte, and retransmit everything from there on.
    #[test]
    fn gap_of_tas_and_flextoe_bytes_that_the_peer_has_are_not_retransmitted() {
        let mut flow = flow(20_000);
        flow.window_bytes = 10_000;
        assert_eq!(send(&mut flow, ms(0)).len(), 10);
        // The third and the sixth segment are lost. Arrivals allow new bytes to be sent (RFC 3042).
        assert!(!receive_ack(&mut flow, 2_000, &[], ms(10)).is_fast_retransmit);
        assert_eq!(send(&mut flow, ms(10)), [(10_000, 11_000), (11_000, 12_000)]);
        assert!(!receive_ack(&mut flow, 2_000, &[(3_000, 4_000)], ms(10)).is_fast_retransmit);
        assert!(!receive_ack(&mut flow, 2_000, &[(3_000, 5_000)], ms(10)).is_fast_retransmit);
        assert!(
            receive_ack(&mut flow, 2_000, &[(6_000, 7_000), (3_000, 5_000)], ms(10))
                .is_fast_retransmit
        );
        // Until congestion control has processed the loss, only one segment is sent.
        assert_eq!(send(&mut flow, ms(10)), [(2_000, 3_000)]);
        flow.until_resumed = None;
        flow.window_bytes = 5_000;
        assert_eq!(send(&mut flow, ms(10)), []);
        assert!(
            !receive_ack(&mut flow, 2_000, &[(6_000, 10_000), (3_000, 5_000)], ms(11))
                .is_fast_retransmit
        );
        // 10,000 to 12,000 and 2,000 to 3,000 are in flight.
        assert_eq!(send(&mut flow, ms(11)), [(5_000, 6_000), (12_000, 13_000)]);
        receive_ack(&mut flow, 13_000, &[], ms(20));
        assert!(!flow.loss().is_recovering);
    }

    /// TAS and FlexTOE treat any three acknowledgements that advance nothing as a loss.
    #[test]
    fn gap_of_tas_and_flextoe_acknowledgements_without_new_sack_blocks_are_no_loss() {
        let mut flow = flow(20_000);
        send(&mut flow, ms(0));
        for _ in 0..9 {
            assert!(!receive_ack(&mut flow, 0, &[], ms(10)).is_fast_retransmit);
            assert!(!receive_ack(&mut flow, 0, &[(0, 1_000)], ms(10)).is_fast_retransmit);
        }
        assert_eq!(flow.next, 20_000);
    }

    #[test]
    fn a_loss_is_detected_once_for_all_data_sent_by_then() {
        let mut flow = flow(20_000);
        send(&mut flow, ms(0));
        let mut losses = 0;
        for to in (1..=9).map(|segments| 1_000 + segments * MSS) {
            losses +=
                u32::from(receive_ack(&mut flow, 0, &[(1_000, to)], ms(10)).is_fast_retransmit);
        }
        losses += u32::from(
            receive_ack(&mut flow, 10_000, &[(12_000, 19_000)], ms(11)).is_fast_retransmit,
        );
        assert_eq!((losses, flow.loss().lost), (1, 12_000));
        flow.written = 40_000;
        flow.until_resumed = None;
        send(&mut flow, ms(12));
        receive_ack(&mut flow, 20_000, &[], ms(20));
        assert!(receive_ack(&mut flow, 20_000, &[(21_000, 25_000)], ms(21)).is_fast_retransmit);
    }

    #[test]
    fn a_tail_without_three_duplicates_is_recovered_by_time() {
        let mut flow = flow(1_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 1_000, &[], ms(40));
        flow.written = 4_000;
        send(&mut flow, ms(100));
        assert!(!receive_ack(&mut flow, 1_000, &[(2_000, 3_000)], ms(140)).is_fast_retransmit);
        assert_eq!(Sack::overdue_at(&flow), Some(ms(150)));
        assert!(!Sack::detect_loss(&mut flow, ms(149)));
        assert!(Sack::detect_loss(&mut flow, ms(150)));
        assert_eq!(send(&mut flow, ms(150)), [(1_000, 2_000)]);
        assert_eq!(Sack::overdue_at(&flow), None);
    }

    #[test]
    fn after_reordering_losses_are_detected_only_by_time() {
        let mut flow = flow(1_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 1_000, &[], ms(40));
        flow.written = 30_000;
        send(&mut flow, ms(100));
        receive_ack(&mut flow, 1_000, &[(2_000, 3_000)], ms(140));
        receive_ack(&mut flow, 3_000, &[], ms(141));
        assert_eq!(flow.reordering, 1);
        assert!(!receive_ack(&mut flow, 3_000, &[(4_000, 20_000)], ms(142)).is_fast_retransmit);
        // The bytes arrived twice: they were late once more (RFC 2883).
        receive_ack(&mut flow, 3_000, &[(1_000, 2_000), (4_000, 20_000)], ms(143));
        assert_eq!(Sack::overdue_at(&flow), Some(ms(162)));
        assert!(Sack::detect_loss(&mut flow, ms(162)));
    }

    /// The peer reports bytes, and then expects one of them. Otherwise the look for losses would be due for ever.
    #[test]
    fn overtaken_bytes_are_not_waited_for_after_the_peer_has_reneged() {
        let mut flow = flow(1_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 1_000, &[], ms(40));
        flow.written = 10_000;
        send(&mut flow, ms(100));
        receive_ack(&mut flow, 1_000, &[(5_000, 6_000)], ms(140));
        receive_ack(&mut flow, 1_000, &[(4_000, 6_000)], ms(141));
        assert_eq!(Sack::overdue_at(&flow), Some(ms(150)));
        receive_ack(&mut flow, 4_500, &[], ms(142));
        assert_eq!(flow.loss().board.ranges(), []);
        assert!(!Sack::detect_loss(&mut flow, ms(150)));
        assert_eq!(Sack::overdue_at(&flow), None);
    }

    fn ask_for_probe(flow: &mut Protocol) {
        assert!(Sack::wants_tail_probe(flow));
        flow.probe = Some(TailProbe::Wanted);
    }

    /// RFC 8985, section 7: all three segments are lost, and no acknowledgement reveals it.
    #[test]
    fn a_tail_loss_probe_reveals_a_lost_tail() {
        let mut flow = flow(1_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 1_000, &[], ms(40));
        flow.written = 4_000;
        send(&mut flow, ms(100));
        ask_for_probe(&mut flow);
        assert_eq!(send(&mut flow, ms(180)), [(3_000, 4_000)]);
        assert!(!Sack::wants_tail_probe(&flow), "one probe at a time");
        assert!(!receive_ack(&mut flow, 1_000, &[(3_000, 4_000)], ms(220)).is_fast_retransmit);
        assert_eq!(Sack::overdue_at(&flow), Some(ms(230)));
        assert!(Sack::detect_loss(&mut flow, ms(230)));
        flow.until_resumed = None;
        assert_eq!(send(&mut flow, ms(230)), [(1_000, 2_000)]);
        receive_ack(&mut flow, 2_000, &[(3_000, 4_000)], ms(270));
        assert_eq!(send(&mut flow, ms(270)), [(2_000, 3_000)]);
    }

    #[test]
    fn a_tail_loss_probe_is_the_next_segment_if_the_peers_window_allows_one() {
        let mut flow = flow(10_000);
        (flow.window_bytes, flow.edge) = (3_000, 4_000);
        send(&mut flow, ms(0));
        ask_for_probe(&mut flow);
        assert_eq!(send(&mut flow, ms(20)), [(3_000, 4_000)]);
        receive_ack(&mut flow, 4_000, &[], ms(30));
        assert_eq!(flow.probe, None);
        // Here the peer's window is full, and the stream ends.
        (flow.written, flow.is_finished, flow.edge) = (5_500, true, 5_501);
        send(&mut flow, ms(40));
        ask_for_probe(&mut flow);
        assert_eq!(send(&mut flow, ms(60)), [(4_500, 5_500)]);
        assert_eq!(flow.next, 5_501, "the FIN is sent with it");
    }

    /// RFC 8985, 7.4.2.
    #[test]
    fn a_probe_that_repaired_a_loss_counts_as_a_loss_but_a_needless_probe_does_not() {
        for (blocks, is_loss) in [(&[][..], true), (&[(2_000, 3_000)][..], false)] {
            let mut flow = flow(3_000);
            send(&mut flow, ms(0));
            receive_ack(&mut flow, 2_000, &[], ms(10));
            ask_for_probe(&mut flow);
            assert_eq!(send(&mut flow, ms(30)), [(2_000, 3_000)]);
            assert!(!receive_ack(&mut flow, 3_000, &[], ms(40)).is_fast_retransmit);
            assert!(!receive_ack(&mut flow, 3_000, blocks, ms(41)).is_fast_retransmit);
            flow.written = 4_000;
            send(&mut flow, ms(50));
            assert_eq!(receive_ack(&mut flow, 4_000, &[], ms(60)).is_fast_retransmit, is_loss);
            assert_eq!((flow.probe, flow.reordering), (None, 0));
        }
    }

    /// The control plane asks for a probe while an acknowledgement arrives.
    #[test]
    fn a_probe_that_is_no_longer_needed_is_dropped() {
        let mut flow = flow(1_000);
        send(&mut flow, ms(0));
        ask_for_probe(&mut flow);
        receive_ack(&mut flow, 1_000, &[], ms(10));
        assert_eq!(flow.probe, None);
        flow.written = 2_000;
        assert_eq!(send(&mut flow, ms(20)), [(1_000, 2_000)]);
    }

    /// Of 20 segments, the first and the sixth are lost, and so is the retransmission of the first.
    #[test]
    fn a_lost_retransmission_is_sent_again_without_a_timeout() {
        let mut flow = flow(40_000);
        flow.window_bytes = 20_000;
        send(&mut flow, ms(0));
        assert!(receive_ack(&mut flow, 0, &[(1_000, 5_000)], ms(10)).is_fast_retransmit);
        flow.until_resumed = None;
        assert_eq!(send(&mut flow, ms(10))[0], (0, 1_000));
        receive_ack(&mut flow, 0, &[(6_000, 20_000), (1_000, 5_000)], ms(12));
        let sent = send(&mut flow, ms(12));
        assert_eq!((sent[0], flow.highest), ((5_000, 6_000), 36_000), "{sent:?}");
        // The second retransmission arrives, and new bytes: at first too few to detect the loss.
        assert!(
            !receive_ack(&mut flow, 0, &[(20_000, 22_000), (1_000, 20_000)], ms(20))
                .is_fast_retransmit
        );
        let sent = send(&mut flow, ms(20));
        assert!(!sent.is_empty() && sent.iter().all(|(from, _)| *from >= 36_000), "{sent:?}");
        let later = receive_ack(&mut flow, 0, &[(1_000, 30_000)], ms(21));
        assert!(later.is_fast_retransmit, "the lost retransmission is a second loss");
        assert_eq!(send(&mut flow, ms(21)), [(0, 1_000)]);
        let all = flow.highest;
        receive_ack(&mut flow, all, &[], ms(30));
        assert!(!flow.loss().is_recovering);
    }

    /// The holes before the first mark are filled, and a later one is lost twice.
    #[test]
    fn a_later_hole_is_watched_once_the_earlier_ones_are_filled() {
        let mut flow = flow(60_000);
        flow.window_bytes = 20_000;
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 0, &[(1_000, 5_000)], ms(10));
        flow.until_resumed = None;
        send(&mut flow, ms(10));
        receive_ack(&mut flow, 0, &[(6_000, 20_000), (1_000, 5_000)], ms(12));
        assert_eq!(send(&mut flow, ms(12))[0], (5_000, 6_000));
        // The first hole is filled, the second is not.
        assert!(!receive_ack(&mut flow, 5_000, &[(6_000, 20_000)], ms(20)).is_fast_retransmit);
        let sent = flow.highest;
        send(&mut flow, ms(20));
        assert!(!receive_ack(&mut flow, 5_000, &[(6_000, sent)], ms(22)).is_fast_retransmit);
        send(&mut flow, ms(22));
        let later = flow.highest;
        assert!(receive_ack(&mut flow, 5_000, &[(6_000, later)], ms(32)).is_fast_retransmit);
        assert_eq!(send(&mut flow, ms(32)), [(5_000, 6_000)]);
    }

    /// RFC 6582: after a timeout, duplicates that answer bytes received twice allow nothing to be sent.
    #[test]
    fn duplicate_acks_after_a_timeout_do_not_inflate_the_window() {
        let mut flow = flow(20_000);
        flow.sack_permitted = false;
        flow.window_bytes = 4_000;
        send(&mut flow, ms(0));
        go_back_n(&mut flow);
        flow.window_bytes = 1_000;
        assert_eq!(send(&mut flow, ms(300)), [(0, 1_000)]);
        for _ in 0..9 {
            assert!(!receive_ack(&mut flow, 0, &[], ms(310)).is_fast_retransmit);
            assert_eq!(send(&mut flow, ms(310)), []);
        }
    }

    /// RFC 2018, section 8.
    #[test]
    fn a_timeout_discards_earlier_sack_blocks() {
        let mut flow = flow(10_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 0, &[(1_000, 9_000)], ms(10));
        go_back_n(&mut flow);
        assert!(!receive_ack(&mut flow, 0, &[(8_000, 9_000)], ms(300)).is_fast_retransmit);
        let again: Vec<_> =
            (0..10).filter(|at| *at != 8).map(|at| (at * MSS, (at + 1) * MSS)).collect();
        assert_eq!(send(&mut flow, ms(300)), again);
    }

    /// The pool had no `Disorder` to lend.
    #[test]
    fn without_a_loan_three_duplicate_acks_with_sack_retransmit_everything() {
        let mut flow = Protocol { disorder: None, ..flow(10_000) };
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 2_000, &[], ms(10));
        for to in [4_000, 5_000] {
            assert!(!receive_ack(&mut flow, 2_000, &[(3_000, to)], ms(11)).is_fast_retransmit);
        }
        assert!(receive_ack(&mut flow, 2_000, &[(3_000, 6_000)], ms(12)).is_fast_retransmit);
        // Until congestion control has processed the loss, only one segment is sent.
        assert_eq!(send(&mut flow, ms(12)), [(2_000, 3_000)]);
        flow.until_resumed = None;
        assert_eq!(send(&mut flow, ms(12)).len(), 7);
        // One loss for all data sent by then.
        for to in [7_000, 8_000, 9_000, 10_000] {
            assert!(!receive_ack(&mut flow, 2_000, &[(3_000, to)], ms(13)).is_fast_retransmit);
        }
        assert_eq!(Sack::overdue_at(&flow), None);
        receive_ack(&mut flow, 10_000, &[], ms(20));
        flow.written = 20_000;
        assert_eq!(send(&mut flow, ms(20)).len(), 10);
        // The pool has room again.
        flow.disorder = Some(Box::new(Disorder { loss: Loss::new(10_000), ..Disorder::default() }));
        assert!(receive_ack(&mut flow, 10_000, &[(11_000, 15_000)], ms(30)).is_fast_retransmit);
        flow.until_resumed = None;
        assert_eq!(send(&mut flow, ms(30)), [(10_000, 11_000)]);
    }

    /// RFC 3042 (limited transmit), before anything is borrowed.
    #[test]
    fn two_duplicate_acks_allow_two_new_segments() {
        let mut flow = Protocol { disorder: None, sack_permitted: false, ..flow(10_000) };
        (flow.window_bytes, flow.edge) = (4_000, 40_000);
        send(&mut flow, ms(0));
        for sent in [4_000, 5_000] {
            assert!(!receive_ack(&mut flow, 0, &[], ms(10)).is_fast_retransmit);
            assert_eq!(send(&mut flow, ms(10)), [(sent, sent + 1_000)]);
        }
    }

    /// The same with NewReno.
    #[test]
    fn without_a_loan_three_duplicate_acks_without_sack_retransmit_everything() {
        let mut flow = Protocol { disorder: None, sack_permitted: false, ..flow(10_000) };
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 2_000, &[], ms(10));
        let losses: Vec<_> =
            (0..9).map(|_| receive_ack(&mut flow, 2_000, &[], ms(11)).is_fast_retransmit).collect();
        assert_eq!(losses.iter().filter(|is_loss| **is_loss).count(), 1);
        flow.until_resumed = None;
        assert_eq!(send(&mut flow, ms(12)).len(), 8);
    }

    /// CVE-2019-11478: SACK blocks that no honest peer sends.
    #[test]
    fn sack_blocks_outside_the_outstanding_bytes_are_ignored() {
        let mut flow = flow(10_000);
        send(&mut flow, ms(0));
        receive_ack(&mut flow, 2_000, &[], ms(10));
        for block in [
            (500, 1_500),
            (1_000, 3_000),
            (2_000, 3_000),
            (9_000, 10_001),
            (20_000, 30_000),
            (5_000, 4_000),
        ] {
            receive_ack(&mut flow, 2_000, &[block; 4], ms(10));
            assert_eq!(flow.loss().board.ranges(), [], "{block:?}");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64),
        Send(u32),
        Hear { ack: u64, blocks: Vec<(i64, u64)>, opens: u64 },
        Pace(u32),
        Look,
        TimeOut,
        HeardOf,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..20_000_u64).prop_map(Step::Write),
            (1..9_u32).prop_map(|segments| Step::Send(segments * 1_000)),
            (
                0..6_000_u64,
                prop::collection::vec((-3_000..30_000_i64, 0..9_000_u64), 0..=4),
                0..9_000_u64
            )
                .prop_map(|(ack, blocks, opens)| Step::Hear { ack, blocks, opens }),
            (500..40_000_u32).prop_map(Step::Pace),
            Just(Step::Look),
            Just(Step::TimeOut),
            Just(Step::HeardOf),
        ]
    }

    proptest! {
        /// A hostile peer, and events in any order.
        #[test]
        fn bytes_sent_are_missing_at_the_peer_and_within_both_windows(steps in prop::collection::vec(step(), 1..120)) {
            let mut flow = flow(10_000);
            flow.edge = 20_000;
            let mut now = ms(1);
            for step in steps {
                now = now + Nanos::from_micros(700);
                match step {
                    Step::Write(bytes) => flow.written += bytes,
                    Step::Send(bytes_max) => {
                        let before = flow.highest;
                        while let Some(sent) = transmit::<Sack>(&mut flow, bytes_max, now) {
                            let end = sent.position + u64::from(sent.bytes);
                            prop_assert!(sent.position >= flow.acknowledged && end <= flow.edge && end <= flow.written);
                            prop_assert_eq!(flow.loss().board.missing_bytes(sent.position, end), u64::from(sent.bytes));
                            let Loss { is_recovering, prr, .. } = *flow.loss();
                            let most = if is_recovering { prr.limit() } else { flow.window_bytes.into() };
                            prop_assert!(pipe(&flow) <= most);
                            prop_assert_eq!(sent.is_retransmission, sent.position < before || end <= before);
                        }
                    }
                    Step::Hear { ack, blocks, opens } => {
                        let ack = (flow.acknowledged + ack).min(flow.highest);
                        flow.edge += opens;
                        let blocks: Vec<_> = blocks
                            .into_iter()
                            .map(|(from, bytes)| (ack.saturating_add_signed(from), bytes))
                            .map(|(from, bytes)| (from, from + bytes))
                            .collect();
                        let was_recovering = flow.loss().is_recovering;
                        let recover = flow.recover;
                        // Retransmissions may be lost again within the same recovery.
                        let has_mark = was_recovering && flow.loss().mark.is_some();
                        let outcome = receive_ack(&mut flow, ack, &blocks, now);
                        if outcome.is_fast_retransmit && !has_mark {
                            prop_assert!(!was_recovering || ack >= recover);
                            prop_assert!(flow.acknowledged >= recover);
                        }
                    }
                    Step::Pace(window) => flow.window_bytes = window,
                    Step::Look => {
                        Sack::detect_loss(&mut flow, now);
                        prop_assert!(Sack::overdue_at(&flow).is_none_or(|at| at > now));
                    }
                    Step::TimeOut => go_back_n(&mut flow),
                    Step::HeardOf => flow.until_resumed = None,
                }
                let Loss { board, lost, high_rxt, rxt_once, .. } = flow.loss();
                prop_assert!(flow.acknowledged <= flow.next && flow.next <= flow.highest);
                prop_assert!(flow.acknowledged <= *high_rxt && high_rxt <= rxt_once && *rxt_once <= flow.highest);
                prop_assert!(flow.acknowledged <= *lost && *lost <= flow.highest);
                prop_assert!(board.ranges().iter().all(|one| one.start > flow.acknowledged && one.end <= flow.highest));
            }
            // From here on the peer is honest: after a timeout, everything arrives.
            go_back_n(&mut flow);
            (flow.window_bytes, flow.edge) = (1 << 20, flow.written);
            send(&mut flow, now);
            prop_assert_eq!(flow.next, flow.written);
        }
    }
}
