//! Tail-loss probes (RFC 8985, section 7).

use super::{Ack, Cause, Span};
use crate::flow::intervals::Interval;
use crate::flow::state::{Protocol, TailProbe};

/// Whether a probe with old bytes repaired a loss that nothing else has revealed (RFC 8985, 7.4).
pub(super) fn detect_tail_loss(
    flow: &mut Protocol,
    ack: &Ack<'_>,
    duplicate: Option<Interval>,
) -> bool {
    let Some(TailProbe::Sent { is_retransmission }) = flow.probe else { return false };
    let end = flow.probe_end;
    if flow.acknowledged < end {
        return false;
    }
    let is_behind = flow.acknowledged > end;
    let is_duplicated = ack.is_duplicate || duplicate.is_some_and(|bytes| bytes.end == end);
    if is_retransmission && !is_behind && !is_duplicated {
        // The next acknowledgement decides.
        return false;
    }
    flow.probe = None;
    let is_repair = is_retransmission && is_behind && !is_duplicated && !flow.loss().is_recovering;
    if is_repair {
        flow.until_resumed = Some(1);
    }
    is_repair
}

/// The bytes of a probe: the next segment if the peer's window allows one, else the last one again. The congestion window does
/// not limit it.
pub(super) fn tail_probe(flow: &Protocol) -> Option<Span> {
    let mss = u64::from(flow.mss);
    let next = flow.end().min(flow.next + mss);
    let (from, to) = if flow.next < flow.end() && next <= flow.edge {
        (flow.next, next)
    } else {
        let last = flow.highest.min(flow.written).saturating_sub(mss);
        (flow.acknowledged.max(last), flow.highest)
    };
    (from < to).then_some(Span { from, to, room: mss + 1, cause: Cause::TailProbe })
}
