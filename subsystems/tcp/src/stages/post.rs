//! The post-processing stage: headers of segments to send, and counts, which commute (thesis 4.3.1.3: Ack, Stamp, Stats).

use super::acknowledge::Acknowledged;
use super::compose::SegmentHeader;
use super::recover::Recovery;
use super::transmit::{is_blocked, is_corked};
use crate::datapath::{FlowId, Head, Statistics, Tuple};
use crate::flow::state::{Post, Pre, Protocol};
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{Flags, MacAddress, TcpHeader, build_tcp, set_diffserv};

const _: () = assert!(HEADERS_BYTES_MAX <= Head::BYTES_MAX);

/// Counts the effects of an acknowledgement.
pub fn count(post: &mut Post, acknowledged: &Acknowledged) {
    post.acknowledged_bytes = post.acknowledged_bytes.saturating_add(acknowledged.bytes);
    if acknowledged.echoes_mark {
        post.marked_bytes = post.marked_bytes.saturating_add(acknowledged.bytes);
    }
    if acknowledged.is_fast_retransmit {
        post.fast_retransmits += 1;
    }
    if let Some(took) = acknowledged.round_trip {
        post.round_trip = took.into();
    }
}

/// Builds the headers of a segment that the protocol stage has chosen.
pub fn head(mac: MacAddress, tuple: &Tuple, pre: &Pre, header: &SegmentHeader) -> Head {
    let tcp = TcpHeader {
        source_mac: mac,
        destination_mac: pre.peer_mac,
        source: tuple.local,
        destination: tuple.remote,
        ecn: header.ecn,
        ttl: pre.hop_limit,
        seq: header.seq,
        ack: header.flags.contains(Flags::ACK).then_some(header.ack),
        flags: header.flags,
        window: header.window,
        options: header.options,
    };
    let mut head = Head::zeroed(HEADERS_BYTES_MAX);
    let len = build_tcp(head.bytes_mut(), &tcp, header.bytes);
    head.truncate(len);
    if pre.diffserv != 0 {
        set_diffserv(head.bytes_mut(), pre.diffserv);
    }
    head
}

/// Reads and clears a flow's statistics.
pub fn statistics<R: Recovery>(flow: FlowId, protocol: &Protocol, post: &mut Post) -> Statistics {
    let read = Statistics {
        flow,
        acknowledged: protocol.acknowledged_bytes(),
        sent: protocol.highest.min(protocol.written),
        written: protocol.written,
        received: protocol.received,
        is_blocked: is_blocked(protocol),
        is_corked: is_corked(protocol),
        fin_sent: protocol.sent_fin(),
        fin_received: protocol.has_landed_fin(),
        acknowledged_bytes: post.acknowledged_bytes,
        marked_bytes: post.marked_bytes,
        fast_retransmits: post.fast_retransmits,
        is_recovering: protocol.loss().is_recovering,
        overdue_at: R::overdue_at(protocol),
        wants_tail_probe: R::wants_tail_probe(protocol),
        round_trip: core::mem::take(&mut post.round_trip).get(),
        last_segment_at: protocol.last_segment_at,
        is_at_fault: protocol.is_at_fault,
    };
    post.acknowledged_bytes = 0;
    post.marked_bytes = 0;
    post.fast_retransmits = 0;
    read
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;

    use wave_core::clock::Nanos;

    use super::*;
    use crate::datapath::{Established, Timestamps};
    use crate::flow::intervals::Interval;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::packet::{Parsed, parse};
    use crate::seq::Seq;
    use crate::stages::arbiter::Answer;
    use crate::stages::compose::compose_header;

    /// The SACK blocks of a segment with `bytes` of payload, as positions.
    fn sent_blocks(flow: &mut Protocol, pre: &Pre, bytes: u32) -> Vec<(u64, u64)> {
        let answer = Answer { ack: flow.expected(), window: 0 };
        let header = compose_header(flow, answer, Seq(0), Flags::ACK, bytes, Nanos(0));
        let head = head([2; 6], &established().tuple, pre, &header);
        let mut frame = head.bytes().to_vec();
        frame.resize(frame.len() + bytes as usize, 0);
        let Ok(Parsed::Tcp { segment, .. }) = parse(&frame, true) else { panic!("{frame:?}") };
        let at = |seq: Seq| seq.position(0, flow.receive_base).unwrap();
        segment.options.sack_blocks().iter().map(|(start, end)| (at(*start), at(*end))).collect()
    }

    fn flow(sack_permitted: bool, has_timestamps: bool) -> (Pre, Protocol) {
        let stamps = Timestamps { recent: 0, offset: 0 };
        let timestamps = has_timestamps.then_some(stamps);
        let (pre, mut flow, _) =
            split(&Established { sack_permitted, timestamps, ..established() }, Nanos(0));
        let disorder = flow.disorder.insert(Box::default());
        for start in [10, 30, 50, 70] {
            disorder.intervals.insert(Interval { start, end: start + 9 }, 4);
        }
        (pre, flow)
    }

    #[test]
    fn sack_blocks_are_sent_newest_first_as_far_as_there_is_room() {
        let (pre, mut bare) = flow(true, false);
        assert_eq!(sent_blocks(&mut bare, &pre, 0), [(70, 79), (50, 59), (30, 39), (10, 19)]);
        let (pre, mut stamped) = flow(true, true);
        assert_eq!(sent_blocks(&mut stamped, &pre, 0), [(70, 79), (50, 59), (30, 39)]);
        stamped.note_duplicate(Interval { start: 0, end: 5 });
        assert_eq!(sent_blocks(&mut stamped, &pre, 0), [(0, 5), (70, 79), (50, 59)]);
        assert_eq!(sent_blocks(&mut stamped, &pre, 0), [(70, 79), (50, 59), (30, 39)], "once");
        let (pre, mut without) = flow(false, false);
        assert_eq!(sent_blocks(&mut without, &pre, 0), []);
    }

    /// With blocks, a full segment would exceed the MTU.
    #[test]
    fn a_segment_with_payload_leaves_sack_blocks_to_a_bare_acknowledgement() {
        let (pre, mut flow) = flow(true, true);
        flow.acknowledge_now = true;
        assert_eq!(sent_blocks(&mut flow, &pre, 1_000), []);
        assert!(flow.acknowledge_now);
        assert_eq!(sent_blocks(&mut flow, &pre, 0).len(), 3);
        assert!(!flow.acknowledge_now);
    }
}
