//! SYN cookies (docs/adr/0083): handshakes beyond what a listener keeps.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::peer::{Heard, ISN, PEER, Peer, SECOND, Sends};
use wave_core::clock::Nanos;
use wave_tcp::control::State;
use wave_tcp::datapath::Established;
use wave_tcp::packet::Flags;
use wave_tcp::seq::Seq;

/// Handshakes that the machine's listener keeps.
const KEPT: usize = 8;

fn source(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*PEER.ip(), port)
}

/// A listener whose handshakes are all taken, by SYNs that nobody goes on with.
fn full() -> Peer {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 4);
    for port in 1..=KEPT as u16 {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), port);
        peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
        peer.after(1);
    }
    assert_eq!(waiting(&peer), KEPT);
    peer
}

fn waiting(peer: &Peer) -> usize {
    peer.states().iter().filter(|state| **state == State::SynReceived).count()
}

/// Sends a SYN with these options, and returns the answer.
fn asks(peer: &mut Peer, options: &[u8]) -> Heard {
    peer.send(Sends { ack: None, flags: Flags::SYN, options, ..peer.plain() });
    let [answer] = &peer.after(1)[..] else { panic!("one answer") };
    assert_eq!(answer.segment.flags, Flags::SYN | Flags::ACK);
    (peer.seq, peer.ack) = (ISN.plus(1), answer.segment.seq.plus(1));
    answer.clone()
}

/// Acknowledges the answer, which establishes the connection.
fn opens(peer: &mut Peer, options: &[u8]) -> Established {
    peer.send(Sends { options, ..peer.plain() });
    peer.after(1);
    peer.socket = peer.machine.accepted.pop_front().expect("the connection is accepted");
    peer.established().expect("the connection is established")
}

#[test]
fn a_burst_of_peers_beyond_the_backlog_is_accepted_without_a_reset() {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 4);
    let ports = 1000..1040;
    for port in ports.clone() {
        peer.send(Sends { source: source(port), ack: None, flags: Flags::SYN, ..peer.plain() });
    }
    let answers = peer.after(1);
    assert_eq!(answers.len(), ports.len());
    assert_eq!(waiting(&peer), KEPT);
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(answer.segment.flags, Flags::SYN | Flags::ACK);
        let source = source(answer.segment.destination_port);
        let (seq, ack) = (ISN.plus(1), Some(answer.segment.seq.plus(1)));
        peer.send(Sends { source, seq, ack, ..peer.plain() });
        assert_eq!(peer.after(1).len(), 0);
        assert_eq!(peer.machine.accepted.len(), at + 1);
        peer.machine.slot(peer.now, 80);
    }
    let counters = peer.machine.stack.counters();
    assert_eq!(counters.cookies_sent, (ports.len() - KEPT) as u64);
    assert_eq!((counters.cookies_received, counters.cookies_failed), (counters.cookies_sent, 0));
}

#[test]
fn options_survive_a_cookie_if_the_peer_has_timestamps() {
    // MSS of 1000, SACK, timestamp 9, window scale 7.
    let options = [2, 4, 3, 232, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7];
    let mut peer = full();
    let answer = asks(&mut peer, &options);
    let theirs = &answer.segment.options;
    assert!(theirs.sack_permitted && theirs.scale.is_some());
    let (stamp, echo) = theirs.timestamps.expect("timestamps");
    assert_eq!(echo, 9);
    let stamped = [&[1, 1, 8, 10, 0, 0, 0, 10][..], &stamp.to_be_bytes()].concat();
    let state = opens(&mut peer, &stamped);
    assert_eq!((state.sending.scale, state.receiving.scale), (7, theirs.scale.unwrap()));
    // An MSS that the cookie cannot hold counts as the next smaller one; timestamps take 12 bytes.
    assert_eq!(state.sending.mss, 536 - 12);
    assert_eq!(state.timestamps.map(|stamps| stamps.recent), Some(10));
    assert!(state.is_selective);
    // Later timestamps are not older than the answer's.
    peer.write(b"hello");
    let heard = peer.after(5);
    let (later, _) = heard[0].segment.options.timestamps.expect("timestamps");
    assert!(later.wrapping_sub(stamp) < 2_048, "{stamp} then {later}");
    assert_eq!(heard[0].payload(), b"hello");
}

#[test]
fn without_timestamps_a_cookie_offers_no_more_than_an_mss() {
    // MSS of 1400, SACK, window scale 7.
    let mut peer = full();
    let answer = asks(&mut peer, &[2, 4, 5, 120, 4, 2, 3, 3, 7, 1, 1, 1]);
    let theirs = &answer.segment.options;
    assert!(!theirs.sack_permitted && theirs.scale.is_none() && theirs.timestamps.is_none());
    let state = opens(&mut peer, &[]);
    assert_eq!((state.sending.mss, state.sending.scale, state.receiving.scale), (1400, 0, 0));
    assert!(!state.is_selective && state.timestamps.is_none() && state.ecn.is_none());
}

#[test]
fn data_arrives_with_or_instead_of_the_acknowledgement_of_a_cookie() {
    let mut peer = full();
    asks(&mut peer, &[]);
    // The bare acknowledgement is lost.
    peer.send(Sends { data: b"request", ..peer.plain() });
    peer.after(1);
    peer.socket = peer.machine.accepted.pop_front().expect("the connection is accepted");
    assert_eq!(peer.received(), 7);
}

#[test]
fn an_acknowledgement_without_a_valid_cookie_gets_a_reset() {
    let refused = |peer: &mut Peer, sends: Sends<'_>| {
        let ack = sends.ack;
        peer.send(sends);
        let heard = peer.after(1);
        let [reset] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!((reset.segment.flags, Some(reset.segment.seq)), (Flags::RST, ack));
        assert!(peer.machine.accepted.is_empty());
    };
    let mut peer = full();
    asks(&mut peer, &[]);
    let (ack, plain) = (peer.ack, peer.plain());
    for bit in 0..32 {
        refused(
            &mut peer,
            Sends { ack: Some(Seq(ack.minus(1).0 ^ 1 << bit).plus(1)), ..plain.clone() },
        );
    }
    refused(&mut peer, Sends { source: source(5001), ..plain.clone() });
    refused(&mut peer, Sends { seq: plain.seq.plus(1), ..plain.clone() });
    assert_eq!(peer.machine.stack.counters().cookies_failed, 34);
    // The cookie itself is good for about two minutes, and no longer.
    let step = Nanos::from_millis(100);
    let mut old = full();
    asks(&mut old, &[]);
    old.until(Nanos(60 * SECOND.0), step);
    opens(&mut old, &[]);
    let mut older = full();
    asks(&mut older, &[]);
    older.until(Nanos(129 * SECOND.0), step);
    let plain = older.plain();
    refused(&mut older, plain);
}

#[test]
fn no_cookie_is_accepted_where_none_was_sent() {
    // A cookie of one listener is not valid at another, nor once that listener has gone.
    let mut peer = full();
    asks(&mut peer, &[]);
    peer.machine.listen(peer.now, 81, 1);
    let destination = SocketAddrV4::new(*peer.ours.ip(), 81);
    peer.send(Sends { destination, ..peer.plain() });
    assert!(peer.after(1)[0].has(Flags::RST));
    assert_eq!(peer.machine.stack.counters().cookies_failed, 0);
    peer.machine.ask(peer.now, wave_tcp::context::Request::Unlisten { listener: 80 });
    peer.after(1);
    peer.send(peer.plain());
    assert!(peer.after(1)[0].has(Flags::RST));
}

#[test]
fn without_a_slot_a_valid_cookie_waits_for_the_peers_next_segment() {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    let ports = 1..=KEPT as u16;
    let mut first = None;
    for port in ports {
        peer.send(Sends { source: source(port), ack: None, flags: Flags::SYN, ..peer.plain() });
        first = first.or(peer.after(1).pop());
    }
    asks(&mut peer, &[]);
    // Another peer takes the only slot.
    let first = first.expect("an answer");
    let sends = Sends { source: source(1), seq: ISN.plus(1), ..peer.plain() };
    peer.send(Sends { ack: Some(first.segment.seq.plus(1)), ..sends });
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 1);
    peer.send(peer.plain());
    assert_eq!(peer.after(5).len(), 0, "neither accepted nor reset");
    peer.machine.slot(peer.now, 80);
    peer.send(Sends { data: b"again", ..peer.plain() });
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 2);
}

#[test]
fn a_successor_accepts_the_cookies_of_the_agent_before() {
    let mut peer = full();
    asks(&mut peer, &[]);
    peer.machine.replace(peer.now);
    opens(&mut peer, &[]);
}

#[test]
fn no_cookie_is_sent_between_the_ends_of_a_connection_in_time_wait() {
    let mut peer = Peer::accepted();
    let (now, socket) = (peer.now, peer.socket);
    peer.machine.close(now, socket);
    peer.after(5);
    peer.ack = peer.ack.plus(1);
    peer.send(Sends { flags: Flags::FIN | Flags::ACK, ..peer.plain() });
    peer.seq = peer.seq.plus(1);
    peer.after(5);
    assert!(peer.states().contains(&State::TimeWait));
    for port in 1..=KEPT as u16 {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), port);
        peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
        peer.after(1);
    }
    let seq = peer.seq.plus(100_000);
    peer.send(Sends { seq, ack: None, flags: Flags::SYN, ..peer.plain() });
    assert_eq!(peer.after(1).len(), 0);
    assert_eq!(peer.machine.stack.counters().full, 1);
}
