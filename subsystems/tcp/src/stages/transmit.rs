//! The protocol stage's choice of segments to send (thesis 4.3.1.2, Figure 4.5: Seq).

use wave_core::clock::Nanos;

use super::recover::{Cause, Recovery, Span};
use crate::context::Tail;
use crate::flow::state::Protocol;
use crate::seq::{Seq, seq_of};

/// The next segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Sequence number of the segment's first byte.
    pub seq: Seq,
    /// Position in the stream of the segment's first byte.
    pub position: u64,
    /// Bytes of payload; more than the MSS for a super-packet.
    pub bytes: u32,
    /// It carries the FIN.
    pub fin: bool,
    /// It carries PSH: it ends the written bytes, and the host has announced no more.
    pub push: bool,
    /// Whether the bytes were sent before.
    pub is_retransmission: bool,
    /// It is a window probe.
    pub is_probe: bool,
}

impl DataSegment {
    /// Whether it carries new data within the peer's window.
    pub fn is_new_data(&self) -> bool {
        self.bytes > 0 && !self.is_retransmission && !self.is_probe
    }
}

/// Chooses the next segment, of at most `bytes_max` bytes; `None` if nothing may be sent.
pub fn transmit<R: Recovery>(
    flow: &mut Protocol,
    bytes_max: u32,
    now: Nanos,
) -> Option<DataSegment> {
    if flow.is_frozen {
        return None;
    }
    let Span { from, to, room, cause } = R::next_segment(flow)?;
    let bytes_max = match (flow.until_resumed, cause) {
        (None, Cause::Next | Cause::Hole) => bytes_max,
        (Some(0), _) => return None,
        _ => flow.mss.into(),
    };
    let open = flow.edge.saturating_sub(from).min(room);
    let left = to.min(flow.written).saturating_sub(from);
    let mss = u64::from(flow.mss);
    let mut bytes = left.min(open).min(bytes_max.into());
    if bytes > mss && (bytes < left || !nagle_allows(flow)) {
        // Only whole segments, as long as more follows.
        bytes -= bytes % mss;
    }
    let reaches_end = from + bytes >= flow.written;
    // The FIN takes a sequence number of the peer's window (RFC 9293, 3.4), but no room in the congestion window: it has no
    // bytes.
    let fin = to > flow.written && reaches_end && flow.edge.saturating_sub(from) > bytes;
    if bytes == 0 && !fin {
        return None;
    }
    let is_probe = cause == Cause::TailProbe;
    if !fin && bytes < mss && !is_probe && !may_send_small(flow, from, bytes, reaches_end) {
        return None;
    }
    let end = from + bytes + u64::from(fin);
    let is_retransmission = from < flow.highest;
    if cause != Cause::Hole {
        flow.next = end;
    }
    flow.highest = flow.highest.max(end);
    flow.until_resumed = flow.until_resumed.map(|left| left - 1);
    if !bytes.is_multiple_of(mss) {
        flow.small_end = seq_of(flow.send_base, from + bytes);
    }
    let seq = seq_of(flow.send_base, from);
    let bytes = bytes as u32;
    let push = reaches_end && !matches!(flow.tail, Tail::More | Tail::Part);
    let sent =
        DataSegment { seq, position: from, bytes, fin, push, is_retransmission, is_probe: false };
    R::on_sent(flow, &sent, end, cause, now);
    Some(sent)
}

/// Whether the last written bytes may be sent although they do not fill a segment: by Nagle's algorithm, if no small segment is
/// in flight (RFC 9293, 3.7.4 and A.3: Minshall's), and if the host has not announced to write more.
fn nagle_allows(flow: &Protocol) -> bool {
    let acknowledged = seq_of(flow.send_base, flow.acknowledged);
    let has_small = flow.outstanding() > 0 && flow.small_end.since(acknowledged) > 0;
    let waits = flow.tail.waits() && !flow.is_finished;
    !waits && (flow.is_eager || !has_small)
}

/// Whether a small segment may be sent, also considering silly windows (RFC 9293, 3.8.6.2.1).
fn may_send_small(flow: &Protocol, from: u64, bytes: u64, reaches_end: bool) -> bool {
    let is_first = from == flow.acknowledged;
    let is_retransmission = from < flow.highest;
    let is_tiny_window = flow.window_bytes < u32::from(flow.mss);
    let is_half_of_window = 2 * bytes >= u64::from(flow.window_max.max(1));
    is_retransmission
        || match reaches_end {
            true => nagle_allows(flow) || is_half_of_window && !flow.tail.waits(),
            false => is_first && is_tiny_window || is_half_of_window,
        }
}

/// Whether Nagle's algorithm holds back the last written bytes until the peer acknowledges a small segment. An acknowledgement
/// that waits for them may not wait: the peer's own next segment, and so its acknowledgement, may be held back for it.
pub fn is_held_by_nagle(flow: &Protocol) -> bool {
    let left = flow.written.saturating_sub(flow.next);
    left > 0 && left < u64::from(flow.mss) && !flow.tail.waits() && !nagle_allows(flow)
}

/// Whether bytes wait for the host to write more, with nothing in flight whose acknowledgement they would wait for first.
pub fn is_corked(flow: &Protocol) -> bool {
    flow.tail.waits() && flow.outstanding() == 0 && flow.next < flow.written
}

/// Whether the peer's window holds back everything that is left, so that it must be probed: it is closed, or too small for the
/// rest with nothing in flight whose acknowledgement could open it.
pub fn is_blocked(flow: &Protocol) -> bool {
    let is_closed = flow.edge <= flow.acknowledged;
    let open = flow.edge.saturating_sub(flow.next);
    let is_small = open < (flow.end().saturating_sub(flow.next)).min(flow.mss.into());
    flow.acknowledged < flow.end() && (is_closed || (flow.outstanding() == 0 && is_small))
}

/// Chooses a window probe: one byte or the FIN, whatever the window (RFC 9293, 3.8.6.1).
pub fn window_probe(flow: &mut Protocol) -> Option<DataSegment> {
    if flow.is_frozen || flow.acknowledged >= flow.end() {
        return None;
    }
    let position = flow.acknowledged;
    let fin = position >= flow.written;
    let is_retransmission = position < flow.highest;
    flow.highest = flow.highest.max(position + 1);
    flow.next = flow.next.max(position + 1);
    let seq = seq_of(flow.send_base, position);
    let bytes = u32::from(!fin);
    Some(DataSegment { seq, position, bytes, fin, push: true, is_retransmission, is_probe: true })
}

/// Limit of data that a flow sends at once, in bytes: a super-packet; for a paced flow, at most a millisecond of its rate, but
/// at least two segments (Linux's `tcp_tso_autosize`).
pub fn burst_bytes_max(flow: &Protocol, super_bytes: u32) -> u32 {
    let mss = u32::from(flow.mss);
    let most = flow.bytes_per_second.map_or(super_bytes, |rate| {
        let millisecond = (rate.get() / 1_000).min(u64::from(u32::MAX)) as u32;
        super_bytes.min(millisecond.max(2 * mss))
    });
    (most / mss).max(1) * mss
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::stages::recover::GoBackN;

    /// Found by `wave fuzz tcp`, by seed 50921 of its first version.
    #[test]
    fn a_fin_is_not_sent_beyond_the_peers_window() {
        let mut flow = split(&established(), Nanos(0)).1;
        (flow.written, flow.is_finished, flow.edge) = (1_000, true, 1_000);
        let sent = transmit::<GoBackN>(&mut flow, 4_000, Nanos(0)).unwrap();
        assert_eq!((sent.bytes, sent.fin), (1_000, false));
        assert_eq!(transmit::<GoBackN>(&mut flow, 4_000, Nanos(0)), None);
        flow.acknowledged = 1_000;
        assert!(is_blocked(&flow), "if the window stays closed, the FIN is sent as a probe");
        flow.edge += 1;
        let sent = transmit::<GoBackN>(&mut flow, 4_000, Nanos(0)).unwrap();
        assert_eq!((sent.bytes, sent.fin), (0, true));
    }

    #[test]
    fn a_burst_is_a_millisecond_of_the_rate_in_whole_segments_but_at_least_two() {
        let mut flow = split(&established(), Nanos(0)).1;
        assert_eq!(burst_bytes_max(&flow, 65_000), 65_000);
        assert_eq!(burst_bytes_max(&flow, 0), 1_000, "a wire that splits nothing");
        for (rate, bytes) in [(1, 2_000), (10_500_000, 10_000), (u64::MAX, 65_000)] {
            flow.bytes_per_second = core::num::NonZeroU64::new(rate);
            assert_eq!(burst_bytes_max(&flow, 65_000), bytes);
        }
    }
}
