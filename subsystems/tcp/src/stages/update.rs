//! The protocol stage's processing of a host's requests (thesis 4.3.1.1, Figure 4.4: Win, Fin).

use crate::context::Update;
use crate::datapath::Ring;
use crate::flow::state::Protocol;
use crate::planted::{Planted, is_planted};

/// Result of a host's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateOutcome {
    /// There is more data, or the FIN, to send.
    pub has_more: bool,
    /// The window has grown enough to advertise it to the peer.
    pub opens_window: bool,
    /// The host wrote after its end or beyond its ring, or read bytes that never arrived.
    pub is_wrong: bool,
}

/// Processes a request. Positions before the known ones are ignored. The caller has verified the memory that it names.
pub fn apply_update(flow: &mut Protocol, update: &Update) -> UpdateOutcome {
    let mut outcome = UpdateOutcome::default();
    let is_behind_end = flow.is_finished && update.written > flow.written;
    flow.send_filled = flow.send_filled.max(update.filled.send);
    let limit = Ring::limit(flow.send_ring_bytes, flow.acknowledged_bytes(), flow.send_filled);
    let is_beyond_ring = update.written > limit;
    if is_behind_end || is_beyond_ring || update.read > flow.landed {
        outcome.is_wrong = true;
        return outcome;
    }
    if update.written > flow.written {
        flow.written = update.written;
        outcome.has_more = true;
    }
    // A late, older request does not undo the end.
    if update.is_finished && !flow.is_finished && update.written == flow.written {
        flow.is_finished = true;
        outcome.has_more = true;
    }
    outcome.has_more |= update.is_eager && !flow.is_eager;
    flow.is_eager = update.is_eager;
    if update.written == flow.written && flow.tail != update.tail {
        flow.tail = update.tail;
        outcome.has_more |= !flow.tail.waits();
    }
    if update.read > flow.read || update.filled.receive > flow.filled {
        flow.read = flow.read.max(update.read);
        flow.filled = flow.filled.max(update.filled.receive);
        // Nothing arrives after the peer's FIN.
        outcome.opens_window = !flow.has_fin() && window_grows(flow);
    }
    outcome
}

/// Whether the window has grown enough to advertise it: by two segments or half of the ring, whichever is less (RFC 9293,
/// 3.8.6.2.2).
fn window_grows(flow: &Protocol) -> bool {
    let growth = flow.receive_limit().saturating_sub(flow.advertised);
    let enough = (2 * u64::from(flow.mss)).min(usable_bytes(flow) / 2);
    growth >= enough && is_nearly_closed(flow)
}

/// Ring size in bytes for deciding whether a window has grown enough. For a ring without all of its memory, it is half of its
/// memory: as much as is new when the memory has doubled.
fn usable_bytes(flow: &Protocol) -> u64 {
    u64::from(if flow.filled < flow.ring_bytes { flow.filled / 2 } else { flow.ring_bytes })
}

/// Whether the peer could soon stall: its window is less than half of the ring.
fn is_nearly_closed(flow: &Protocol) -> bool {
    flow.advertised.saturating_sub(flow.received) < u64::from(flow.ring_bytes) / 2
}

/// `room` as the right edge of a window, if it is far enough beyond `edge` to be no silly one (RFC 9293, 3.8.6.2.2).
pub fn grown_edge(flow: &Protocol, edge: u64, room: u64) -> Option<u64> {
    let enough = u64::from(flow.mss).min(usable_bytes(flow) / 2);
    (room >= edge.saturating_add(enough)).then_some(room)
}

/// The window to advertise, as the field of a segment. Remembers its right edge.
pub fn advertise_window(flow: &mut Protocol) -> u16 {
    let unit = 1_u64 << flow.receive_scale;
    let landed = flow.landed;
    let limit = flow.receive_limit();
    // Less by one unit, so that rounding up stays within the ring.
    let room = limit.saturating_sub(unit - 1);
    let wanted = grown_edge(flow, flow.advertised, room).unwrap_or(flow.advertised);
    let mut open = wanted.saturating_sub(landed);
    if is_planted(Planted::WindowShrunk) {
        open = open.saturating_sub(flow.intervals().bytes());
    }
    let rounded_up = open.div_ceil(unit);
    // Never beyond the ring, even if that takes back less than a unit (RFC 7323, 2.4).
    let units = if landed + rounded_up * unit <= limit { rounded_up } else { open / unit };
    let field = units.min(u64::from(u16::MAX));
    flow.advertised = flow.advertised.max(landed + field * unit);
    field as u16
}

#[cfg(test)]
mod tests {
    use wave_core::clock::Nanos;

    use super::*;
    use crate::context::{Filled, Tail};
    use crate::datapath::FlowId;
    use crate::flow::state::split;
    use crate::flow::tests::established;

    fn flow() -> Protocol {
        split(&established(), Nanos(0)).1
    }

    fn at(written: u64, read: u64, is_finished: bool) -> Update {
        let flow = FlowId { index: 0, generation: 0 };
        Update {
            flow,
            written,
            read,
            is_finished,
            is_eager: false,
            tail: Tail::Whole,
            filled: Filled::default(),
        }
    }

    #[test]
    fn an_older_request_moves_no_position_back_and_does_not_undo_the_end() {
        let mut flow = flow();
        flow.landed = 500;
        apply_update(&mut flow, &at(100, 300, true));
        let old = apply_update(&mut flow, &at(50, 200, false));
        assert_eq!(old, UpdateOutcome::default());
        assert_eq!((flow.written, flow.read, flow.is_finished), (100, 300, true));
    }

    #[test]
    fn an_impossible_request_is_refused_and_changes_nothing() {
        let mut flow = flow();
        apply_update(&mut flow, &at(100, 0, true));
        for wrong in [at(101, 0, true), at(100 + (1 << 16), 0, false), at(100, 1, true)] {
            assert!(apply_update(&mut flow, &wrong).is_wrong, "{wrong:?}");
        }
        assert_eq!((flow.written, flow.read), (100, 0));
    }

    #[test]
    fn ring_bytes_without_memory_are_neither_advertised_nor_accepted() {
        let mut flow = flow();
        (flow.filled, flow.send_filled, flow.advertised) = (8_192, 4_096, 8_192);
        assert!(apply_update(&mut flow, &at(4_097, 0, false)).is_wrong);
        (flow.received, flow.landed) = (8_192, 8_192);
        let read = at(4_096, 8_192, false);
        let outcome = apply_update(&mut flow, &read);
        assert_eq!((outcome.is_wrong, outcome.opens_window), (false, false));
        assert_eq!(advertise_window(&mut flow), 0);
        let filled = Filled { receive: 16_384, send: 8_192 };
        let outcome = apply_update(&mut flow, &Update { written: 8_192, filled, ..read });
        assert_eq!((outcome.is_wrong, outcome.opens_window), (false, true));
        assert_eq!(advertise_window(&mut flow), 8_192);
        // A ring with all of its memory wraps around.
        let filled = Filled { receive: 1 << 16, send: 1 << 16 };
        apply_update(&mut flow, &Update { written: 8_192, filled, ..read });
        assert_eq!(u64::from(advertise_window(&mut flow)), u64::from(u16::MAX));
        assert_eq!(flow.receive_limit(), 8_192 + (1 << 16));
    }

    /// Seed 240 of `wave fuzz tcp`: a peer with large segments stalled at the end of the first memory.
    #[test]
    fn doubled_ring_memory_opens_the_window_for_every_segment_size() {
        for (mss, scale) in [(536, 0), (8_960, 0), (65_483, 0), (65_483, 5)] {
            let mut flow = flow();
            (flow.mss, flow.receive_scale, flow.ring_bytes) = (mss, scale, 1 << 20);
            let mut filled = 4_096;
            (flow.filled, flow.advertised) = (filled, filled.into());
            while filled < 1 << 20 {
                (flow.received, flow.landed) = (filled.into(), filled.into());
                filled *= 2;
                let all = Filled { receive: filled, send: 0 };
                let request = Update { filled: all, ..at(0, flow.landed, false) };
                assert!(
                    apply_update(&mut flow, &request).opens_window,
                    "{filled} bytes, MSS {mss}"
                );
                assert!(advertise_window(&mut flow) > 0, "{filled} bytes, MSS {mss}");
                flow.advertised = flow.receive_limit();
            }
        }
    }

    #[test]
    fn a_window_never_shrinks_and_grows_by_at_least_a_segment() {
        let mut flow = flow();
        flow.received = 1 << 16;
        flow.landed = 1 << 16;
        assert_eq!(advertise_window(&mut flow), 0);
        flow.read = u64::from(flow.mss) - 1;
        assert_eq!(advertise_window(&mut flow), 0, "no silly window is advertised");
        flow.read += 1;
        assert_eq!(advertise_window(&mut flow), flow.mss);
        assert_eq!(flow.advertised, (1 << 16) + u64::from(flow.mss));
    }

    #[test]
    fn rounding_shrinks_the_window_by_less_than_a_unit_and_never_exceeds_the_ring() {
        let mut flow = flow();
        flow.receive_scale = 7;
        for landed in 0..3_000 {
            (flow.received, flow.landed) = (landed, landed);
            let before = flow.advertised;
            let field = u64::from(advertise_window(&mut flow));
            let edge = landed + (field << 7);
            assert!(edge + 128 > before, "{edge} after {before}");
            assert!(edge <= flow.read + u64::from(flow.ring_bytes));
        }
    }
}
