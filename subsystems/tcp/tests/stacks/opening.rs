//! Opening connections, and the events of hosts at their end (RFC 9293, 3.4.1, 3.5, 3.6, 3.9.1.1, 3.9.2.3).

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::peer::{ISN, MINUTE, OURS, PEER, Peer, SECOND, Sends};
use wave_core::clock::Nanos;
use wave_tcp::context::{Event, Reason, Request, Sharing};
use wave_tcp::control::{Secrets, State};
use wave_tcp::datapath::Tuple;
use wave_tcp::packet::Flags;

/// Time and initial sequence number of the next SYN from port 1000. The SYN is refused, so that the port is free again.
fn next_initial_number(peer: &mut Peer) -> (Nanos, u32) {
    let asked = peer.now;
    peer.connect(1000);
    let syn = peer.after(5).remove(0);
    assert_eq!(syn.segment.flags, Flags::SYN);
    peer.ours.set_port(1000);
    let ack = Some(syn.segment.seq.plus(1));
    peer.send(Sends { ack, flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(Reason::Refused));
    (asked, syn.segment.seq.0)
}

#[test]
fn initial_sequence_numbers_follow_a_clock_of_four_microseconds() {
    let mut peer = Peer::new();
    let (first_at, first) = next_initial_number(&mut peer);
    peer.now = peer.now + MINUTE;
    let (second_at, second) = next_initial_number(&mut peer);
    let ticks = second_at.since(first_at).0 / 4_000;
    assert_eq!(second.wrapping_sub(first), ticks as u32);
}

#[test]
fn initial_sequence_numbers_depend_on_a_secret_and_on_both_ends() {
    let secrets = |key: u64| {
        let key = (key, 7);
        Secrets { sequence: key, timestamp: key, port: key, table: key }
    };
    let tuple =
        |port| Tuple { local: OURS.into(), remote: SocketAddr::new((*PEER.ip()).into(), port) };
    let number = |key, port| secrets(key).initial_sequence(&tuple(port), SECOND).0;
    assert_eq!(number(1, 1), number(1, 1));
    // Without the secret, numbers of an attacker's own connections reveal nothing about those of others.
    let off = |key, port| number(key, port).wrapping_sub(number(key, port + 1));
    for port in 1..20 {
        assert_ne!(number(1, port), number(2, port));
        assert_ne!(number(1, port), number(1, port + 1));
        assert_ne!(off(1, port), off(2, port));
    }
}

#[test]
fn a_reset_returns_a_passive_handshake_to_listen_and_fails_an_active_one() {
    // Passive: the peer's SYN arrives at a listener.
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    peer.send(Sends { ack: None, flags: Flags::SYN, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.states(), [State::Listen, State::SynReceived]);
    let seq = peer.seq.plus(1);
    peer.send(Sends { seq, ack: None, flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.states(), [State::Listen]);
    assert!(!peer.machine.events.iter().any(|event| matches!(event, Event::Failed { .. })));
    peer.open(&[]);
    // Active: the peer's SYN crosses ours.
    let (mut peer, _) = Peer::connecting(0);
    peer.send(Sends { ack: None, flags: Flags::SYN, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.states(), [State::SynReceived]);
    let seq = peer.seq.plus(1);
    peer.send(Sends { seq, flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(Reason::Refused));
    assert!(peer.states().is_empty());
}

#[test]
fn a_host_learns_whether_its_peer_closed_or_reset() {
    let mut peer = Peer::accepted();
    peer.send(Sends { flags: Flags::FIN, ..peer.plain() });
    peer.after(5);
    let socket = &peer.machine.sockets[&peer.socket];
    assert!(socket.peer_is_finished && socket.failed.is_none());
    let mut peer = Peer::accepted();
    peer.send(Sends { flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    let socket = &peer.machine.sockets[&peer.socket];
    assert!(!peer.machine.sockets[&peer.socket].peer_is_finished);
    assert_eq!(socket.failed, Some(Reason::Reset));
}

#[test]
fn a_second_listener_does_not_affect_existing_connections() {
    let mut peer = Peer::accepted();
    let before = peer.established();
    let local = SocketAddr::from(([0, 0, 0, 0], 80));
    peer.machine.ask(
        peer.now,
        Request::Listen { listener: 9, local, backlog: 1, sharing: Sharing::default() },
    );
    peer.after(5);
    let refused = Event::NotListening { listener: 9, reason: Reason::AddressInUse };
    assert!(peer.machine.events.contains(&refused));
    assert_eq!(peer.established(), before);
    // A listener at another port is allowed.
    peer.machine.listen(peer.now, 81, 1);
    assert_eq!(peer.states(), [State::Listen, State::Listen, State::Established]);
    // The first listener still accepts.
    let source = SocketAddrV4::new(*PEER.ip(), 5001);
    peer.send(Sends { source, seq: ISN, ack: None, flags: Flags::SYN, ..peer.plain() });
    let seen = peer.after(5);
    assert_eq!(seen[0].segment.flags, Flags::SYN | Flags::ACK);
}

#[test]
fn a_port_can_be_listened_at_while_a_connection_from_it_opens() {
    let (mut peer, _) = Peer::connecting(1000);
    peer.machine.listen(peer.now, 1000, 1);
    assert_eq!(peer.states(), [State::Listen, State::SynSent]);
    // Also while the connection is in SYN-RECEIVED.
    let mut peer = Peer::connecting(1000).0;
    peer.send(Sends { ack: None, flags: Flags::SYN, ..peer.plain() });
    peer.after(5);
    peer.machine.listen(peer.now, 1000, 1);
    assert_eq!(peer.states(), [State::Listen, State::SynReceived]);
    // Another peer is accepted there.
    let source = SocketAddrV4::new(*PEER.ip(), 5001);
    peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.states(), [State::Listen, State::SynReceived, State::SynReceived]);
}

#[test]
fn a_listener_may_name_the_agents_address_and_no_other() {
    let mut peer = Peer::new();
    let foreign = SocketAddr::from(([10, 0, 0, 3], 80));
    for (listener, local) in [(1, OURS.into()), (2, foreign)] {
        peer.machine.ask(
            peer.now,
            Request::Listen { listener, local, backlog: 1, sharing: Sharing::default() },
        );
    }
    peer.after(5);
    let expected = [
        Event::Listening { listener: 1, local: OURS.into() },
        Event::NotListening { listener: 2, reason: Reason::AddressNotAvailable },
    ];
    assert_eq!(peer.machine.events, expected);
}

#[test]
fn a_connection_without_a_local_address_uses_the_agents() {
    let (peer, syn) = Peer::connecting(0);
    assert_eq!((syn.source(), syn.destination()), (*OURS.ip(), *PEER.ip()));
    assert_ne!(peer.ours.port(), 0);
}

#[test]
fn all_segments_of_a_connection_have_the_same_local_address() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 2_000]);
    let mut seen = peer.after(3_000);
    peer.sends(b"data");
    seen.extend(peer.after(100));
    let (now, socket) = (peer.now, peer.socket);
    peer.machine.close(now, socket);
    seen.extend(peer.after(100));
    assert!(seen.len() > 4);
    for one in seen {
        assert_eq!((one.source(), one.segment.source_port), (*OURS.ip(), OURS.port()));
    }
}

#[test]
fn connections_to_addresses_of_no_single_host_are_refused_at_once() {
    for ip in [
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 1, 2, 3),
        Ipv4Addr::new(10, 0, 0, 255),
        Ipv4Addr::new(10, 0, 0, 0),
        Ipv4Addr::LOCALHOST,
        *OURS.ip(),
    ] {
        let mut peer = Peer::new();
        let socket = peer.machine.connect(peer.now, SocketAddr::new(ip.into(), 80));
        assert!(peer.after(5).is_empty(), "{ip}");
        assert_eq!(peer.machine.sockets[&socket].failed, Some(Reason::Unreachable), "{ip}");
        assert_eq!(peer.asked, 0, "{ip}");
    }
}

fn syn_is_ignored(source: SocketAddrV4, destination: SocketAddrV4) {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    peer.send(Sends { source, destination, ack: None, flags: Flags::SYN, ..peer.plain() });
    assert!(peer.after(50).is_empty(), "{source} to {destination}");
    assert_eq!(peer.states(), [State::Listen]);
}

#[test]
fn a_syn_to_a_group_address_is_ignored() {
    for ip in [
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 0, 0, 255),
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(239, 1, 2, 3),
    ] {
        syn_is_ignored(PEER, SocketAddrV4::new(ip, 80));
    }
}

#[test]
fn a_syn_from_an_address_of_no_single_host_is_ignored() {
    for ip in [
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 0, 0, 255),
        Ipv4Addr::new(10, 0, 0, 0),
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::LOCALHOST,
        *OURS.ip(),
    ] {
        syn_is_ignored(SocketAddrV4::new(ip, 5000), OURS);
    }
}

/// Before the peer's SYN, and again before its acknowledgement, come 100 SYNs for each handshake that the listener may keep.
#[test]
fn an_honest_peer_connects_through_a_flood_of_syns() {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 4);
    let flood = |peer: &mut Peer, ports: std::ops::Range<u16>| {
        for port in ports {
            let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), port);
            peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
            peer.after(1);
        }
    };
    flood(&mut peer, 1..800);
    peer.send(Sends { ack: None, flags: Flags::SYN, ..peer.plain() });
    let seen = peer.after(2);
    let syn = seen.iter().find(|seen| seen.segment.destination_port == PEER.port());
    let syn = syn.expect("the SYN is answered at once");
    (peer.seq, peer.ack) = (peer.seq.plus(1), syn.segment.seq.plus(1));
    flood(&mut peer, 800..1_600);
    peer.send(peer.plain());
    peer.after(5);
    assert_eq!(peer.machine.accepted.len(), 1);
    let waiting = peer.states().iter().filter(|state| **state == State::SynReceived).count();
    assert!(waiting <= 8, "{waiting}");
}

/// Connects from these ports as far as the SYNs are answered. Returns the number of answers.
fn connects_from(peer: &mut Peer, ports: std::ops::Range<u16>) -> usize {
    let source = |port| SocketAddrV4::new(*PEER.ip(), port);
    for port in ports {
        peer.send(Sends { source: source(port), ack: None, flags: Flags::SYN, ..peer.plain() });
    }
    let answers = peer.after(1);
    for answer in &answers {
        assert_eq!(answer.segment.flags, Flags::SYN | Flags::ACK);
        let source = source(answer.segment.destination_port);
        let ack = Some(answer.segment.seq.plus(1));
        peer.send(Sends { source, seq: ISN.plus(1), ack, ..peer.plain() });
    }
    assert_eq!(peer.after(1).len(), 0);
    answers.len()
}

/// The ports of peers in the order in which they were accepted.
fn accepted_ports(peer: &Peer) -> Vec<u16> {
    let port = |event: &Event| match event {
        Event::Accepted { remote, .. } => Some(remote.port()),
        _ => None,
    };
    peer.machine.events.iter().filter_map(port).collect()
}

/// The machine's listener has a backlog of 8.
#[test]
fn connections_wait_up_to_the_backlog_and_are_accepted_in_order_as_the_program_makes_room() {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 2);
    assert_eq!(connects_from(&mut peer, 1..3), 2);
    assert_eq!(peer.machine.accepted.len(), 2);
    // Six wait, and two more SYNs are dropped.
    assert_eq!(connects_from(&mut peer, 3..9), 6);
    assert_eq!(connects_from(&mut peer, 9..11), 0);
    assert_eq!(peer.machine.accepted.len(), 2);
    let counters = *peer.machine.stack.counters();
    assert_eq!((counters.overflows, counters.cookies_sent), (2 + 6, 0));
    // A request may be there before its connection is accepted, and comes again.
    let request = Sends { seq: ISN.plus(1), data: b"request", ..peer.plain() };
    let first = SocketAddrV4::new(*PEER.ip(), 3);
    peer.send(Sends { source: first, ..request.clone() });
    for count in 3..=8 {
        peer.machine.slot(peer.now, 80);
        peer.after(1);
        assert_eq!(peer.machine.accepted.len(), count);
    }
    assert_eq!(accepted_ports(&peer), (1..9).collect::<Vec<_>>());
    assert!(!peer.states().contains(&State::SynReceived));
}

/// Random programs found this: seeds 614 and 1514.
#[test]
fn connection_that_is_established_with_a_new_slot_leaves_it_to_an_older_one_that_waits() {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    assert_eq!(connects_from(&mut peer, 1..3), 2);
    let source = SocketAddrV4::new(*PEER.ip(), 3);
    peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
    let ack = Some(peer.after(1)[0].segment.seq.plus(1));
    for _ in 0..2 {
        peer.machine.slot(peer.now, 80);
        peer.send(Sends { source, seq: ISN.plus(1), ack, ..peer.plain() });
        peer.after(1);
    }
    assert_eq!(accepted_ports(&peer), [1, 2, 3]);
}

#[test]
fn a_connection_that_waits_moves_to_a_listener_that_shares_the_port() {
    let mut peer = Peer::new();
    let sharing = Sharing { reuses_port: true, ..Sharing::default() };
    for listener in [1, 2] {
        let local = SocketAddr::from(([0, 0, 0, 0], 80));
        peer.machine.ask(peer.now, Request::Listen { listener, local, backlog: 8, sharing });
    }
    peer.machine.slot(peer.now, 1);
    assert_eq!(connects_from(&mut peer, 1..4), 3);
    assert_eq!(peer.machine.accepted.len(), 1);
    // One goes to the other listener's slot, and the last one outlives its listener.
    peer.machine.slot(peer.now, 2);
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 2);
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    peer.machine.slot(peer.now, 2);
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 3);
}
