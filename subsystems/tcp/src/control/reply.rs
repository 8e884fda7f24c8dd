//! Builds the control plane's own frames: handshakes, resets, ARP and neighbour discovery.

use core::net::{IpAddr, Ipv6Addr};

use super::address::Address;
use crate::datapath::{Head, PartialChecksum, Payload, Segment, Tuple};
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{
    ArpOperation, ArpPacket, DISCOVERY_BYTES, Ecn, Flags, MacAddress, Options, TTL_DEFAULT,
    TcpHeader, TcpSegment, build_advertisement, build_arp, build_solicitation, build_tcp,
    partial_checksum,
};
use crate::seq::Seq;

/// Shortest Ethernet frame, in bytes.
const FRAME_BYTES_MIN: usize = 60;

/// Header fields in which the control plane's segments differ.
#[derive(Clone, Copy, Debug)]
pub struct BareSegment {
    /// Sequence number of the segment.
    pub seq: Seq,
    /// Acknowledgement number, if ACK is set.
    pub ack: Option<Seq>,
    /// Control bits of the segment.
    pub flags: Flags,
    /// Window field of the header.
    pub window: u16,
    pub options: Options,
}

/// A segment without payload.
pub fn segment<F>(macs: (MacAddress, MacAddress), tuple: &Tuple, bare: &BareSegment) -> Segment<F> {
    let header = TcpHeader {
        source_mac: macs.0,
        destination_mac: macs.1,
        source: tuple.local,
        destination: tuple.remote,
        ecn: Ecn::default(),
        ttl: TTL_DEFAULT,
        seq: bare.seq,
        ack: bare.ack,
        flags: bare.flags,
        window: bare.window,
        options: bare.options,
    };
    let mut head = Head::zeroed(HEADERS_BYTES_MAX);
    let len = build_tcp(head.bytes_mut(), &header, 0);
    head.truncate(len);
    frame(head, Some(partial_checksum(&tuple.local)))
}

/// The reset that answers a segment of no connection (RFC 9293, 3.10.7.1).
pub fn reset(segment: &TcpSegment) -> BareSegment {
    let (seq, ack) = match segment.ack {
        Some(ack) => (ack, None),
        None => (Seq(0), Some(segment.seq.plus(segment.sequence_len()))),
    };
    let flags = if ack.is_some() { Flags::RST | Flags::ACK } else { Flags::RST };
    BareSegment { seq, ack, flags, window: 0, options: Options::default() }
}

/// A query for a neighbour's Ethernet address; `None` without an own address of that family.
pub fn neighbour_query<F>(own: &Address, target: IpAddr) -> Option<Segment<F>> {
    let mac = own.mac;
    match target {
        IpAddr::V4(target) => {
            let operation = ArpOperation::Request;
            let (sender, target_mac) = (own.ip, [0; 6]);
            Some(arp(&ArpPacket { operation, sender_mac: mac, sender, target_mac, target }))
        }
        IpAddr::V6(target) => {
            let mut head = Head::zeroed(DISCOVERY_BYTES);
            build_solicitation(head.bytes_mut(), mac, own.v6?.ip, target);
            Some(frame(head, None))
        }
    }
}

/// The answer to a neighbour's query for our Ethernet address.
pub fn advertise<F>(mac: MacAddress, own: Ipv6Addr, asker: (MacAddress, Ipv6Addr)) -> Segment<F> {
    let mut head = Head::zeroed(DISCOVERY_BYTES);
    build_advertisement(head.bytes_mut(), mac, own, asker);
    frame(head, None)
}

pub fn arp<F>(packet: &ArpPacket) -> Segment<F> {
    let mut head = Head::zeroed(FRAME_BYTES_MIN);
    build_arp(head.bytes_mut(), packet);
    frame(head, None)
}

/// A frame of headers only.
pub fn frame<F>(head: Head, checksum: Option<PartialChecksum>) -> Segment<F> {
    Segment { ticket: None, head, payload: Payload::None, checksum, segment_bytes: 0 }
}
