//! Tail-loss probes (RFC 8985, section 7).

use super::{Cause, Heard, Span};
use crate::flow::intervals::Interval;
use crate::flow::state::{Protocol, TailProbe};

/// Whether a probe with old bytes repaired a loss that nothing else has revealed (RFC 8985, 7.4).
pub(super) fn judge_probe(
    flow: &mut Protocol,
    heard: &Heard<'_>,
    repeated: Option<Interval>,
) -> bool {
    let Some(TailProbe::Sent { is_again }) = flow.probe else { return false };
    let end = flow.probe_end;
    if flow.acknowledged < end {
        return false;
    }
    let is_behind = flow.acknowledged > end;
    let came_twice = heard.is_repeated || repeated.is_some_and(|bytes| bytes.end == end);
    if is_again && !is_behind && !came_twice {
        // The next acknowledgement decides.
        return false;
    }
    flow.probe = None;
    let is_repair = is_again && is_behind && !came_twice && !flow.loss().is_recovering;
    if is_repair {
        flow.until_heard = Some(1);
    }
    is_repair
}

/// The bytes of a probe: the next segment if the peer's window allows one, else the last one again. The congestion window does
/// not limit it.
pub(super) fn probe(flow: &Protocol) -> Option<Span> {
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
