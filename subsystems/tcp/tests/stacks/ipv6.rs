//! IPv6: connections next to those of IPv4, neighbour discovery, echoes, and routers with smaller MTUs.

use std::net::{Ipv6Addr, SocketAddr};

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use wave_core::clock::Nanos;
use wave_tcp::context::{Event, Reason, Request, Sharing};
use wave_tcp::packet::{
    DISCOVERY_BYTES, Discovery, Ecn, Flags, Icmp6, Options, Parsed, TcpHeader, build_advertisement,
    build_solicitation, build_tcp, parse, partial_checksum,
};
use wave_tcp::seq::Seq;
use wave_wires::{CsumPlace, Offload, RawPart, Wire};

use wave_tcp_testbed::{MINUTE, Setup, calm, machines, run};

use crate::peer::Peer;

pub const PEER: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 9);
pub const OURS: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

#[test]
fn a_dual_stack_listener_accepts_connections_of_both_families() {
    let mut both = machines(&calm(), Setup::new);
    let mut now = Nanos(0);
    both[1].listen_at(Nanos(0), "[::]:80".parse().unwrap(), 2);
    for remote in ["[fd77::2]:80", "10.0.0.2:80"] {
        let remote: SocketAddr = remote.parse().unwrap();
        let socket = both[0].connect(now, remote);
        run(&mut both, &mut now, MINUTE, |both, _| {
            !both[1].accepted.is_empty() && both[0].sockets[&socket].flow.is_some()
        });
        let peer = both[1].accepted.pop_front().unwrap();
        let accepted = both[1].events.iter().rev().find_map(|event| match event {
            Event::Accepted { remote, .. } => Some(remote.is_ipv6()),
            _ => None,
        });
        assert_eq!(accepted, Some(remote.is_ipv6()));
        let bytes: Vec<u8> = (0..10_000_u32).map(|at| (at * 7 / 5) as u8).collect();
        both[0].write(socket, &bytes);
        both[0].close(now, socket);
        run(&mut both, &mut now, MINUTE, |both, _| both[1].sockets[&peer].peer_is_finished);
        both[1].read(peer, bytes.len());
        assert!(both[1].sockets[&peer].read == bytes);
        let mut sizes = Vec::new();
        both[1].stack.visit_sockets(&mut |shown| {
            sizes.extend(shown.established.map(|(_, state)| state.sending.mss));
        });
        // 1500 bytes minus the headers and 12 bytes of timestamps.
        assert_eq!(sizes, [if remote.is_ipv6() { 1428 } else { 1448 }]);
        both[1].close(now, peer);
        run(&mut both, &mut now, Nanos(3 * MINUTE.0), |both, _| both[1].is_empty());
    }
}

#[test]
fn listeners_of_one_family_leave_the_port_free_for_the_other() {
    let [_, mut machine] = machines(&calm(), Setup::new);
    for text in ["0.0.0.0:80", "[fd77::2]:80", "[::]:80", "10.0.0.2:80"] {
        let local = text.parse().unwrap();
        let listener = machine.events.len() as u32;
        machine.ask(
            Nanos(0),
            Request::Listen { listener, local, backlog: 1, sharing: Sharing::default() },
        );
        machine.step(Nanos(0));
    }
    let told = machine.events.iter().map(|event| match event {
        Event::Listening { local, .. } => Ok(local.to_string()),
        Event::NotListening { reason, .. } => Err(*reason),
        other => panic!("{other:?}"),
    });
    let told: Vec<_> = told.collect();
    let taken = Err(Reason::AddressInUse);
    assert_eq!(told, [Ok("10.0.0.2:80".into()), Ok("[fd77::2]:80".into()), taken.clone(), taken]);
}

impl Peer {
    fn solicit(&mut self, change: impl FnOnce(&mut [u8])) -> Vec<Vec<u8>> {
        let mut frame = [0; DISCOVERY_BYTES];
        build_solicitation(&mut frame, self.wire.limits().mac, PEER, OURS);
        change(&mut frame);
        self.put(&frame);
        self.frames()
    }
}

#[test]
fn a_neighbours_solicitation_is_answered_but_a_forwarded_one_is_not() {
    let mut neighbour = Peer::new();
    let mac = neighbour.machine.wire.limits().mac;
    let [answer] = &neighbour.solicit(|_| {})[..] else { panic!("no answer") };
    let Ok(Parsed::Icmp6(_, ip, Icmp6::Discovery(told))) = parse(answer, false) else {
        panic!("no advertisement")
    };
    assert_eq!((ip.source, ip.destination, ip.ttl), (OURS, PEER, 255));
    let is = |told: Discovery| matches!(told, Discovery::Advertisement { target: OURS, mac: Some(at), is_solicited: true, .. } if at == mac);
    assert!(is(told), "{told:?}");
    assert!(neighbour.solicit(|frame| frame[21] = 254).is_empty());
    assert!(neighbour.solicit(|frame| frame[77] ^= 1).is_empty(), "a wrong checksum");
    let mut malformed = 0;
    neighbour.machine.stack.data.visit_counters(&mut |counter, count| {
        malformed += if counter.name.starts_with("malformed.") { count } else { 0 };
    });
    assert_eq!(malformed, 2);
    // Its address is known from its solicitation: a connection to it needs none of ours.
    neighbour.machine.connect(neighbour.now, SocketAddr::from((PEER, 80)));
    let [syn] = &neighbour.frames()[..] else { panic!("no SYN") };
    let Ok(Parsed::Tcp { segment, .. }) = parse(syn, false) else { panic!("no SYN") };
    assert_eq!(segment.options.mss, Some(1440));
}

#[test]
fn an_unknown_neighbour_is_solicited_at_its_group() {
    let mut neighbour = Peer::new();
    neighbour.machine.connect(neighbour.now, SocketAddr::from((PEER, 80)));
    let [question] = &neighbour.frames()[..] else { panic!("no answer") };
    let Ok(Parsed::Icmp6(ethernet, ip, Icmp6::Discovery(asked))) = parse(question, false) else {
        panic!("no solicitation")
    };
    assert_eq!(ethernet.destination, [0x33, 0x33, 0xff, 0, 0, 9]);
    assert_eq!(ip.destination, "ff02::1:ff00:9".parse::<Ipv6Addr>().unwrap());
    assert!(matches!(asked, Discovery::Solicitation { target: PEER, .. }));
}

/// As with IPv4, an address that is asked for in doubt is learnt.
#[test]
fn a_neighbour_that_has_moved_is_found_again_though_its_address_was_never_asked_for() {
    let mut neighbour = Peer::new();
    neighbour.machine.listen_at(Nanos(0), "[::]:80".parse().unwrap(), 2);
    let (mac, ours) = (neighbour.wire.limits().mac, neighbour.machine.wire.limits().mac);
    let header = TcpHeader {
        source_mac: mac,
        destination_mac: ours,
        source: SocketAddr::from((PEER, 5000)),
        destination: SocketAddr::from((OURS, 80)),
        ecn: Ecn::default(),
        ttl: 64,
        seq: Seq(7),
        ack: None,
        flags: Flags::SYN,
        window: 60_000,
        options: Options::default(),
    };
    let mut head = [0; 160];
    let len = build_tcp(&mut head, &header, 0);
    let place = partial_checksum(&header.source);
    let place = CsumPlace { start: place.start, offset: place.offset };
    let offload = Offload { segment_bytes: 0, checksum: Some(place) };
    let _ = neighbour.wire.send(&head[..len], [RawPart::EMPTY; 2], offload).unwrap();
    let moved = [2, 9, 9, 9, 9, 9];
    let mut answers_to = Vec::new();
    while neighbour.now < Nanos::from_millis(17_000) {
        for frame in neighbour.frames() {
            match parse(&frame, false).unwrap() {
                Parsed::Tcp { ethernet, .. } => answers_to.push(ethernet.destination),
                Parsed::Icmp6(_, _, Icmp6::Discovery(Discovery::Solicitation { .. })) => {
                    let mut frame = [0; DISCOVERY_BYTES];
                    build_advertisement(&mut frame, moved, PEER, (ours, OURS));
                    neighbour.put(&frame);
                }
                other => panic!("the stack sent {other:?}"),
            }
        }
    }
    assert_eq!(answers_to, [mac, mac, mac, mac, moved]);
}

#[test]
fn an_echo_request_is_answered_unless_its_checksum_is_wrong() {
    let mut neighbour = Peer::new();
    let macs = (neighbour.wire.limits().mac, neighbour.machine.wire.limits().mac);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(macs.0, macs.1)
        .ipv6(PEER.octets(), OURS.octets(), 64)
        .icmpv6_echo_request(5, 6)
        .write(&mut frame, b"ping")
        .unwrap();
    neighbour.put(&frame);
    let [answer] = &neighbour.frames()[..] else { panic!("no answer") };
    let Ok(Parsed::Icmp6(_, ip, Icmp6::EchoReply(echo))) = parse(answer, false) else {
        panic!("no reply")
    };
    assert_eq!((ip.source, ip.destination, echo.data), (OURS, PEER, &b"ping"[..]));
    let Some(TransportSlice::Icmpv6(reply)) =
        SlicedPacket::from_ethernet(answer).unwrap().transport
    else {
        panic!("no ICMPv6")
    };
    assert!(reply.is_checksum_valid(OURS.octets(), PEER.octets()));
    frame[57] ^= 1;
    neighbour.put(&frame);
    assert!(neighbour.frames().is_empty());
}
