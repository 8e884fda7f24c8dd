//! The post-processing stage: headers of what goes out, what the host is told, and counts, which commute
//! (thesis 4.3.1.3: Ack, Stamp, Stats).

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use wave_core::clock::Nanos;

use super::acknowledge::{Acknowledged, milliseconds};
use super::host;
use super::transmit::is_blocked;
use crate::context::Progress;
use crate::datapath::{FlowId, Head, Statistics};
use crate::flow::state::{Post, Pre, Protocol};
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{Ecn, Flags, MacAddress, Options, TcpHeader, build_tcp, set_diffserv};
use crate::seq::Seq;
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
    let window = host::window(flow);
    flow.told = expected;
    flow.untold_bytes = 0;
    flow.acknowledge_at = None;
    flow.acknowledge_now = false;
    let timestamps = flow
        .has_timestamps
        .then(|| (milliseconds(now).wrapping_add(flow.timestamp_offset), flow.recent));
    let header = TcpHeader {
        source_mac: mac,
        destination_mac: pre.peer_mac,
        source: v4(pre.tuple.local),
        destination: v4(pre.tuple.remote),
        ecn: Ecn::default(),
        ttl: pre.hop_limit,
        seq,
        ack: Some(expected),
        flags,
        window,
        options: Options { timestamps, ..Options::default() },
    };
    let mut head = Head::zeroed(HEADERS_BYTES_MAX);
    let len = build_tcp(head.bytes_mut(), &header, bytes);
    head.truncate(len);
    if pre.diffserv != 0 {
        set_diffserv(head.bytes_mut(), pre.diffserv);
    }
    head
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
pub fn statistics(flow: FlowId, protocol: &Protocol, post: &mut Post) -> Statistics {
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
