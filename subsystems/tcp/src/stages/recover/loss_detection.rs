//! Losses revealed by the arrival of later data: of bytes (RFC 6675, RFC 8985), and of retransmissions.

use wave_core::clock::Nanos;

use super::DUP_THRESH;
use crate::flow::disorder::Loss;
use crate::flow::optional_time::OptionalTime;
use crate::flow::state::{Protocol, RxtMark};

/// Remembers when later data overtakes retransmissions.
pub(super) fn track_retransmissions(flow: &mut Protocol, now: Nanos) {
    let Protocol { disorder: Some(disorder), acknowledged, highest, .. } = flow else { return };
    let loss = &mut disorder.loss;
    let Some(mark) = &mut loss.mark else { return };
    if loss.board.missing_bytes(*acknowledged, mark.end) == 0 {
        // Later retransmissions are compared with data sent from here on.
        let end = loss.rxt_once;
        let has_more = loss.board.missing_bytes(*acknowledged, end) > 0;
        let mark = RxtMark { end, highest: *highest, passed_at: OptionalTime::NONE };
        loss.mark = has_more.then_some(mark);
    } else if loss.board.end() > mark.highest && mark.passed_at.is_none() {
        mark.passed_at = now.into();
    }
}

/// Finds lost retransmissions: data sent later has arrived. Returns whether there is one.
pub(super) fn detect_lost_retransmission(flow: &mut Protocol, now: Nanos) -> bool {
    let Loss { board, mark, .. } = flow.loss();
    let Some(RxtMark { end, highest, passed_at }) = *mark else { return false };
    let window = reordering_window(flow);
    let is_overdue = passed_at.get().zip(window).is_some_and(|(at, window)| now >= at + window);
    let later_bytes =
        (board.end().saturating_sub(highest)) - board.missing_bytes(highest, board.end());
    // If bytes were late without being lost before, only time reveals a loss.
    let is_enough =
        (flow.reordering == 0 || window.is_none()) && later_bytes > 2 * u64::from(flow.mss);
    if !is_overdue && !is_enough {
        return false;
    }
    if let Some(disorder) = &mut flow.disorder {
        let loss = &mut disorder.loss;
        (loss.mark, loss.lost_rxt, loss.high_rxt) = (None, end, flow.acknowledged);
    }
    flow.until_resumed = Some(1);
    true
}

/// Remembers when bytes were first overtaken.
pub(super) fn note_overtaken(flow: &mut Protocol, now: Nanos) {
    let Some(disorder) = &mut flow.disorder else { return };
    let loss = &mut disorder.loss;
    let Some(last) = loss.board.ranges().last() else { return };
    if loss.overtaken <= loss.lost && last.start > loss.lost {
        loss.overtaken = last.start;
        loss.overtaken_at = now;
    }
}

/// How long overtaken bytes may be late without counting as lost (RFC 8985, 6.2); `None` before a round trip was measured.
pub(super) fn reordering_window(flow: &Protocol) -> Option<Nanos> {
    let least = flow.round_trip_min.get()?;
    Some(Nanos(least.0 / 4 * u64::from(flow.reordering.max(1))))
}

/// Finds the position before which all bytes that the peer does not have are lost.
pub(super) fn detect_lost(flow: &Protocol, now: Nanos) -> Option<u64> {
    let Loss { board, overtaken, overtaken_at, .. } = flow.loss();
    let first = board.ranges().first()?.start;
    let window = reordering_window(flow);
    let is_overdue = window.is_some_and(|window| now >= *overtaken_at + window);
    let by_time = (*overtaken > flow.acknowledged && is_overdue).then_some(*overtaken);
    // If bytes were late without being lost before, only time reveals a loss.
    if flow.reordering > 0 && window.is_some() {
        return by_time;
    }
    let by_count = (flow.duplicates >= DUP_THRESH).then_some(first);
    [by_time, by_count, board.lost_below(flow.mss)].into_iter().flatten().max()
}
