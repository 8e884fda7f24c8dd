//! Datagrams to the agent's addresses, where no program receives any (RFC 1122, 3.2.2 and 4.1.3.1; RFC 4443, 2.4 and 3.1).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ipv6::{OURS as OURS6, PEER as PEER6};
use crate::peer::Peer;
use etherparse::{
    Icmpv4Type, Icmpv6Type, PacketBuilder, SlicedPacket, TransportSlice, icmpv4, icmpv6,
};
use wave_core::clock::Nanos;
use wave_wires::Wire;

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
/// Traceroute's first port.
const PORT: u16 = 33_434;

impl Peer {
    /// A frame with a datagram from this host.
    fn datagram(&self, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
        let builder =
            PacketBuilder::ethernet2(self.wire.limits().mac, self.machine.wire.limits().mac);
        let mut frame = Vec::new();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let ip = builder.ipv4(source.octets(), destination.octets(), 1);
                ip.udp(40_000, PORT).write(&mut frame, payload).unwrap();
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let ip = builder.ipv6(source.octets(), destination.octets(), 1);
                ip.udp(40_000, PORT).write(&mut frame, payload).unwrap();
            }
            _ => panic!("addresses of two families"),
        }
        frame
    }

    fn asks(&mut self, frame: &[u8]) -> Vec<Vec<u8>> {
        self.put(frame);
        self.frames()
    }
}

/// The datagram that an answer to `source` quotes. Panics if it is anything but "port unreachable".
fn quoted(answer: &[u8], source: IpAddr) -> Vec<u8> {
    let packet = SlicedPacket::from_ethernet(answer).unwrap();
    match packet.transport.unwrap() {
        TransportSlice::Icmpv4(message) => {
            let unreachable = icmpv4::DestUnreachableHeader::Port;
            assert_eq!(message.icmp_type(), Icmpv4Type::DestinationUnreachable(unreachable));
            assert_eq!(
                message.header().icmp_type.calc_checksum(message.payload()),
                message.checksum()
            );
            assert_eq!(answer[30..34], PEER.octets());
            assert!(source.is_ipv4() && answer.len() <= 14 + 576);
            message.payload().to_vec()
        }
        TransportSlice::Icmpv6(message) => {
            let unreachable = icmpv6::DestUnreachableCode::Port;
            assert_eq!(message.icmp_type(), Icmpv6Type::DestinationUnreachable(unreachable));
            assert!(message.is_checksum_valid(OURS6.octets(), PEER6.octets()));
            assert!(source.is_ipv6() && answer.len() <= 14 + 1280);
            message.payload().to_vec()
        }
        other => panic!("the stack sent {other:?}"),
    }
}

#[test]
fn a_datagram_to_a_closed_port_is_answered_with_port_unreachable() {
    for (source, destination) in [(PEER.into(), OURS.into()), (PEER6.into(), OURS6.into())] {
        for bytes in [0, 1, 32, 1_400] {
            let mut neighbour = Peer::new();
            let frame = neighbour.datagram(source, destination, &vec![7; bytes]);
            let [answer] = &neighbour.asks(&frame)[..] else { panic!("{bytes} bytes: no answer") };
            let quote = quoted(answer, source);
            let most = if source.is_ipv4() { 576 - 28 } else { 1280 - 48 };
            assert_eq!(quote, frame[14..frame.len().min(14 + most)], "{bytes} bytes");
            assert_eq!(neighbour.machine.stack.counters().ports_unreachable, 1);
        }
    }
}

#[test]
fn datagrams_to_groups_from_groups_and_damaged_ones_are_not_answered() {
    let mut neighbour = Peer::new();
    let wire = neighbour.datagram(PEER.into(), OURS.into(), b"probe");
    let wire6 = neighbour.datagram(PEER6.into(), OURS6.into(), b"probe");
    let with = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut changed = frame.to_vec();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let between = |source: [u8; 4], destination: [u8; 4]| {
        neighbour.datagram(IpAddr::from(source), IpAddr::from(destination), b"probe")
    };
    let group6: Ipv6Addr = "ff02::1".parse().unwrap();
    let silent = [
        ("a frame to all", with(&wire, 0, &[0xff; 6])),
        ("a frame to a group", with(&wire6, 0, &[0x33, 0x33, 0, 0, 0, 1])),
        ("a frame from a group", with(&wire, 6, &[1, 0, 0x5e])),
        ("to all", between([10, 0, 0, 9], [255; 4])),
        ("to all of the network", between([10, 0, 0, 9], [10, 0, 0, 255])),
        ("to a group", between([10, 0, 0, 9], [224, 0, 0, 251])),
        ("to another host", between([10, 0, 0, 9], [10, 0, 0, 3])),
        ("from all of the network", between([10, 0, 0, 255], [10, 0, 0, 2])),
        ("from nobody", between([0; 4], [10, 0, 0, 2])),
        ("from this host", between([127, 0, 0, 1], [10, 0, 0, 2])),
        ("from the agent", between([10, 0, 0, 2], [10, 0, 0, 2])),
        ("a wrong checksum", with(&wire, 45, b"x")),
        ("a wrong checksum", with(&wire6, 65, b"x")),
        ("no checksum over IPv6", with(&wire6, 60, &[0, 0])),
        ("to a group of IPv6", neighbour.datagram(PEER6.into(), group6.into(), b"probe")),
    ];
    for (what, frame) in silent {
        assert!(neighbour.asks(&frame).is_empty(), "{what}");
    }
    // Fragments, the first among them, and later ones.
    for fragment in [[0x20, 0], [0, 9]] {
        let mut part = with(&wire, 20, &fragment);
        part[24..26].fill(0);
        let sum: u32 =
            part[14..34].chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
        part[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        assert!(neighbour.asks(&part).is_empty(), "a fragment");
    }
    assert_eq!(neighbour.asks(&wire).len(), 1, "the datagram itself is answered");
}

#[test]
fn a_flood_of_datagrams_from_forged_addresses_gets_a_bounded_number_of_answers() {
    let mut neighbour = Peer::new();
    neighbour.now = Nanos::from_millis(10_000);
    let mut answers = 0;
    for one in 0..20_000_u32 {
        let source = Ipv4Addr::from_bits(0x0a00_0000 + 3 + one % 250);
        let frame = neighbour.datagram(source.into(), OURS.into(), b"flood");
        neighbour.put(&frame);
        if one % 100 == 99 {
            answers += neighbour.frames().len();
        }
    }
    // 200 turns of 5 ms: a second, at a thousand a second and a burst of fifty; by a secret, up to twice as many.
    assert!((100..=2_100).contains(&answers), "{answers} answers");
    let counters = neighbour.machine.stack.counters();
    assert_eq!(counters.ports_unreachable, answers as u64);
    assert_eq!(counters.held_back, 20_000 - answers as u64);
    // One sender gets six, and one a second.
    let mut neighbour = Peer::new();
    let frame = neighbour.datagram(PEER6.into(), OURS6.into(), b"flood");
    for _ in 0..100 {
        neighbour.put(&frame);
    }
    assert_eq!(neighbour.frames().len(), 6);
}
