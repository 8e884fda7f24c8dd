//! The post-processing stage: headers of what goes out, what the host is told, and counts, which commute
//! (thesis 4.3.1.3: Ack, Stamp, Stats).

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use wave_core::clock::Nanos;

use super::acknowledge::{Acknowledged, milliseconds};
use super::host;
use super::recover::Recovery;
use super::transmit::is_blocked;
use crate::context::Progress;
use crate::datapath::{FlowId, Head, Statistics};
use crate::flow::state::{Post, Pre, Protocol};
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{Ecn, Flags, MacAddress, Options, TTL_DEFAULT, TcpHeader, build_tcp};
use crate::seq::{Seq, seq_of};
use crate::summary::Summary;

const _: () = assert!(HEADERS_BYTES_MAX <= Head::BYTES_MAX);

/// Counts what a segment acknowledged.
pub fn count(post: &mut Post, acknowledged: &Acknowledged, summary: &Summary) {
    post.acknowledged_bytes = post.acknowledged_bytes.saturating_add(acknowledged.bytes);
    if summary.echoes_mark {
        post.marked_bytes = post.marked_bytes.saturating_add(acknowledged.bytes);
    }
    if acknowledged.is_fast_retransmit {
        post.fast_retransmits += 1;
    }
    post.round_trip = acknowledged.round_trip.or(post.round_trip);
}

/// The headers of a segment of an established connection. With it, everything that is expected and open is told to the peer.
pub fn head(
    mac: MacAddress,
    pre: &Pre,
    flow: &mut Protocol,
    seq: Seq,
    flags: Flags,
    bytes: u32,
    now: Nanos,
) -> Head {
    let expected = flow.expected();
    let mut options = Options::default();
    let tells = flow.is_selective && !flags.contains(Flags::RST);
    let must_tell = !(flow.intervals.is_empty() && flow.duplicate.is_empty());
    // Blocks take room that a full segment does not have: they go with the next bare one.
    if tells && bytes == 0 {
        tell_blocks(flow, &mut options);
    }
    let window = host::window(flow);
    flow.told = expected;
    flow.untold_bytes = 0;
    flow.acknowledge_at = None;
    flow.acknowledge_now &= tells && must_tell && bytes > 0;
    options.timestamps = flow
        .has_timestamps
        .then(|| (milliseconds(now).wrapping_add(flow.timestamp_offset), flow.recent));
    let header = TcpHeader {
        source_mac: mac,
        destination_mac: pre.peer_mac,
        source: v4(pre.tuple.local),
        destination: v4(pre.tuple.remote),
        ecn: Ecn::default(),
        ttl: TTL_DEFAULT,
        seq,
        ack: Some(expected),
        flags,
        window,
        options,
    };
    let mut head = Head::zeroed(HEADERS_BYTES_MAX);
    let len = build_tcp(head.bytes_mut(), &header, bytes);
    head.truncate(len);
    head
}

/// What came out of order, and before that what came twice (RFC 2018, section 4; RFC 2883).
fn tell_blocks(flow: &mut Protocol, options: &mut Options) {
    let seq = |position: u64| seq_of(flow.receive_base, position);
    let twice = core::mem::take(&mut flow.duplicate);
    for one in Some(twice).filter(|one| !one.is_empty()).into_iter().chain(flow.intervals.iter()) {
        options.push_sack((seq(one.start), seq(one.end)));
    }
}

/// What the host does not know yet, if that is worth an event: bytes, the end, or a quarter of its ring, or all of it, that is free
/// again.
pub fn news(protocol: &Protocol, post: &mut Post) -> Option<Progress> {
    let received = protocol.landed;
    let acknowledged = protocol.acknowledged_bytes();
    let is_finished = protocol.has_landed_fin();
    let (told_received, told_acknowledged, told_finished) = post.told;
    let freed = acknowledged - told_acknowledged;
    let is_news = received != told_received
        || is_finished != told_finished
        || freed >= u64::from(post.send.bytes / 4)
        || (freed > 0 && acknowledged == protocol.written);
    if !is_news {
        return None;
    }
    post.told = (received, acknowledged, is_finished);
    Some(Progress { socket: post.socket, received, acknowledged, is_finished })
}

/// Reads what was counted, and clears it.
pub fn statistics<R: Recovery>(
    flow: FlowId,
    protocol: &mut Protocol,
    post: &mut Post,
) -> Statistics {
    protocol.until_heard = None;
    let read = Statistics {
        flow,
        acknowledged: protocol.acknowledged_bytes(),
        sent: protocol.highest.min(protocol.written),
        written: protocol.written,
        received: protocol.received,
        is_blocked: is_blocked(protocol),
        fin_sent: protocol.sent_fin(),
        fin_received: protocol.has_landed_fin(),
        acknowledged_bytes: post.acknowledged_bytes,
        marked_bytes: post.marked_bytes,
        fast_retransmits: post.fast_retransmits,
        is_recovering: protocol.selective.is_recovering,
        overdue_at: R::overdue_at(protocol),
        round_trip: post.round_trip.take(),
        heard: protocol.heard,
        is_at_fault: post.is_at_fault,
    };
    post.acknowledged_bytes = 0;
    post.marked_bytes = 0;
    post.fast_retransmits = 0;
    read
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        // None is installed: the control plane speaks IPv4.
        SocketAddr::V6(address) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{Established, Timestamps};
    use crate::flow::intervals::Interval;
    use crate::flow::state::split;
    use crate::flow::tests::established;
    use crate::packet::{Parsed, parse};

    /// The blocks of a segment with so much payload, as positions.
    fn told(flow: &mut Protocol, pre: &Pre, bytes: u32) -> Vec<(u64, u64)> {
        let head = head([2; 6], pre, flow, Seq(0), Flags::ACK, bytes, Nanos(0));
        let mut frame = head.bytes().to_vec();
        frame.resize(frame.len() + bytes as usize, 0);
        let Ok(Parsed::Tcp { segment, .. }) = parse(&frame, true) else { panic!("{frame:?}") };
        let at = |seq: Seq| seq.position(0, flow.receive_base).unwrap();
        segment.options.sack_blocks().iter().map(|(start, end)| (at(*start), at(*end))).collect()
    }

    fn flow(is_selective: bool, has_timestamps: bool) -> (Pre, Protocol) {
        let stamps = Timestamps { recent: 0, offset: 0 };
        let timestamps = has_timestamps.then_some(stamps);
        let (pre, mut flow, _) =
            split(&Established { is_selective, timestamps, ..established() }, Nanos(0));
        for start in [10, 30, 50, 70] {
            flow.intervals.insert(Interval { start, end: start + 9 }, 4);
        }
        (pre, flow)
    }

    #[test]
    fn blocks_are_told_newest_first_as_far_as_there_is_room() {
        let (pre, mut bare) = flow(true, false);
        assert_eq!(told(&mut bare, &pre, 0), [(70, 79), (50, 59), (30, 39), (10, 19)]);
        let (pre, mut stamped) = flow(true, true);
        assert_eq!(told(&mut stamped, &pre, 0), [(70, 79), (50, 59), (30, 39)]);
        stamped.duplicate = Interval { start: 0, end: 5 };
        assert_eq!(told(&mut stamped, &pre, 0), [(0, 5), (70, 79), (50, 59)]);
        assert_eq!(told(&mut stamped, &pre, 0), [(70, 79), (50, 59), (30, 39)], "once");
        let (pre, mut without) = flow(false, false);
        assert_eq!(told(&mut without, &pre, 0), []);
    }

    /// With them a full segment would be longer than the network takes.
    #[test]
    fn a_segment_with_payload_has_no_blocks_and_leaves_them_to_a_bare_one() {
        let (pre, mut flow) = flow(true, true);
        flow.acknowledge_now = true;
        assert_eq!(told(&mut flow, &pre, 1_000), []);
        assert!(flow.acknowledge_now);
        assert_eq!(told(&mut flow, &pre, 0).len(), 3);
        assert!(!flow.acknowledge_now);
    }
}
