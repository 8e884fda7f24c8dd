//! The post-processing stage: headers of what goes out, and counts, which commute (thesis 4.3.1.3: Ack, Stamp, Stats).

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::acknowledge::Acknowledged;
use super::recover::Recovery;
use super::say::Said;
use super::transmit::is_blocked;
use crate::datapath::{FlowId, Head, Statistics};
use crate::flow::state::{Post, Pre, Protocol};
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{Ecn, MacAddress, TcpHeader, build_tcp, set_diffserv};
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

/// The headers of what the protocol stage said.
pub fn head(mac: MacAddress, pre: &Pre, said: &Said) -> Head {
    let header = TcpHeader {
        source_mac: mac,
        destination_mac: pre.peer_mac,
        source: v4(pre.tuple.local),
        destination: v4(pre.tuple.remote),
        ecn: Ecn::default(),
        ttl: pre.hop_limit,
        seq: said.seq,
        ack: Some(said.ack),
        flags: said.flags,
        window: said.window,
        options: said.options,
    };
    let mut head = Head::zeroed(HEADERS_BYTES_MAX);
    let len = build_tcp(head.bytes_mut(), &header, said.bytes);
    head.truncate(len);
    if pre.diffserv != 0 {
        set_diffserv(head.bytes_mut(), pre.diffserv);
    }
    head
}

/// Reads what was counted, and clears it.
pub fn statistics<R: Recovery>(flow: FlowId, protocol: &Protocol, post: &mut Post) -> Statistics {
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
        is_at_fault: protocol.is_at_fault,
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
