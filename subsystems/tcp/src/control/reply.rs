//! Frames of the control plane's own: handshakes, resets, answers about addresses.

use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::datapath::{Head, PartialChecksum, Payload, Segment, Tuple};
use crate::packet::icmp::ICMP_BYTES;
use crate::packet::ipv4::PROTOCOL_ICMP;
use crate::packet::tcp::HEADERS_BYTES_MAX;
use crate::packet::{
    ArpOperation, ArpPacket, ETHERNET_BYTES, Echo, Ecn, EtherType, EthernetView, Flags, IPV4_BYTES,
    Ipv4Header, Ipv4View, MacAddress, Options, PARTIAL_CHECKSUM, TTL_DEFAULT, TcpHeader,
    TcpSegment, build_arp, build_tcp, checksum, ethernet, ipv4,
};
use crate::seq::Seq;

/// Ethernet frames are no shorter.
const FRAME_BYTES_MIN: usize = 60;

/// What differs between the control plane's segments.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// Its first number.
    pub seq: Seq,
    /// What is expected.
    pub ack: Option<Seq>,
    /// Control bits.
    pub flags: Flags,
    /// The window field.
    pub window: u16,
    /// Options.
    pub options: Options,
}

/// A segment without payload.
pub fn segment<F>(macs: (MacAddress, MacAddress), tuple: &Tuple, bare: &Bare) -> Segment<F> {
    let header = TcpHeader {
        source_mac: macs.0,
        destination_mac: macs.1,
        source: v4(tuple.local),
        destination: v4(tuple.remote),
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
    frame(head, Some(PARTIAL_CHECKSUM))
}

/// The reset that answers a segment of no connection (RFC 9293, 3.10.7.1).
pub fn reset(segment: &TcpSegment) -> Bare {
    let (seq, ack) = match segment.ack {
        Some(ack) => (ack, None),
        None => (Seq(0), Some(segment.seq.plus(segment.sequence_len()))),
    };
    let flags = if ack.is_some() { Flags::RST | Flags::ACK } else { Flags::RST };
    Bare { seq, ack, flags, window: 0, options: Options::default() }
}

/// A question for a neighbour's Ethernet address.
pub fn ask<F>(mac: MacAddress, own: Ipv4Addr, target: Ipv4Addr) -> Segment<F> {
    let operation = ArpOperation::Request;
    arp(&ArpPacket { operation, sender_mac: mac, sender: own, target_mac: [0; 6], target })
}

/// A packet of ARP.
pub fn arp<F>(packet: &ArpPacket) -> Segment<F> {
    let mut head = Head::zeroed(FRAME_BYTES_MIN);
    build_arp(head.bytes_mut(), packet);
    frame(head, None)
}

/// The headers of the answer to an echo request; the same data follows (RFC 792).
pub fn echo(ethernet: &EthernetView, ip: &Ipv4View, echo: &Echo<'_>) -> Head {
    let mut head = Head::zeroed(ETHERNET_BYTES + IPV4_BYTES + ICMP_BYTES);
    let (front, message) = head.bytes_mut().split_at_mut(ETHERNET_BYTES + IPV4_BYTES);
    ethernet::build(front, ethernet.destination, ethernet.source, EtherType::Ipv4);
    let header = Ipv4Header {
        source: ip.destination,
        destination: ip.source,
        protocol: PROTOCOL_ICMP,
        ecn: Ecn::NotCapable,
        ttl: TTL_DEFAULT,
    };
    ipv4::build(&mut front[ETHERNET_BYTES..], &header, (ICMP_BYTES + echo.data.len()) as u32);
    // Type and code of a reply are zero.
    message[4..6].copy_from_slice(&echo.identifier.to_be_bytes());
    message[6..8].copy_from_slice(&echo.sequence.to_be_bytes());
    let sum = checksum::combine(checksum::sum(message), ICMP_BYTES, checksum::sum(echo.data));
    message[2..4].copy_from_slice(&(!sum).to_be_bytes());
    head
}

/// A frame of headers only.
pub fn frame<F>(head: Head, checksum: Option<PartialChecksum>) -> Segment<F> {
    Segment { ticket: None, head, payload: Payload::None, checksum, segment_bytes: 0 }
}

/// An end that is known to be of IPv4.
pub fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(address) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()),
    }
}
