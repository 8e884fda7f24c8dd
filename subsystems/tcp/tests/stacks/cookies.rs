//! SYN cookies (docs/adr/0083): handshakes beyond what a listener keeps.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::peer::{ISN, PEER, Peer, SECOND, Seen, Sends};
use wave_core::clock::Nanos;
use wave_tcp::context::{Request, Sharing};
use wave_tcp::control::State;
use wave_tcp::datapath::Established;
use wave_tcp::packet::Flags;
use wave_tcp::seq::Seq;

/// Backlog of the machine's listener.
const KEPT: usize = 8;

fn source(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*PEER.ip(), port)
}

/// A listener whose handshakes are all taken, by SYNs whose handshakes are never completed.
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

/// The options of a segment that echoes the timestamp of `answer`, with timestamp 10.
fn echoes(answer: &Seen) -> Vec<u8> {
    let (stamp, _) = answer.segment.options.timestamps.expect("timestamps");
    [&[1, 1, 8, 10, 0, 0, 0, 10][..], &stamp.to_be_bytes()].concat()
}

/// Sends a SYN with these options, and returns the answer.
fn asks(peer: &mut Peer, options: &[u8]) -> Seen {
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
    let state = opens(&mut peer, &echoes(&answer));
    assert_eq!((state.sending.scale, state.receiving.scale), (7, theirs.scale.unwrap()));
    // An MSS that the cookie cannot hold counts as the next smaller one; timestamps take 12 bytes.
    assert_eq!(state.sending.mss, 768 - 12);
    assert_eq!(state.timestamps.map(|stamps| stamps.recent), Some(10));
    assert!(state.sack_permitted && state.ecn.is_none());
    assert_eq!(state.receiving.edge, u64::from(answer.segment.window));
    // Later timestamps are not older than the answer's.
    peer.write(b"hello");
    let seen = peer.after(5);
    let (later, _) = seen[0].segment.options.timestamps.expect("timestamps");
    assert!(later.wrapping_sub(stamp) < 2_048, "{stamp} then {later}");
    assert_eq!(seen[0].payload(), b"hello");
}

#[test]
fn without_timestamps_a_cookie_carries_only_the_mss() {
    // MSS of 1400, SACK, window scale 7.
    let mut peer = full();
    let answer = asks(&mut peer, &[2, 4, 5, 120, 4, 2, 3, 3, 7, 1, 1, 1]);
    let theirs = &answer.segment.options;
    assert!(!theirs.sack_permitted && theirs.scale.is_none() && theirs.timestamps.is_none());
    let state = opens(&mut peer, &[]);
    assert_eq!((state.sending.mss, state.sending.scale, state.receiving.scale), (1400, 0, 0));
    assert!(!state.sack_permitted && state.timestamps.is_none() && state.ecn.is_none());
}

#[test]
fn ecn_survives_a_cookie_and_a_scale_that_the_peer_does_not_offer_is_not_used() {
    let mut peer = full();
    // Timestamp 9.
    let options = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    let flags = Flags::SYN | Flags::ECE | Flags::CWR;
    peer.send(Sends { ack: None, flags, options: &options, ..peer.plain() });
    let [answer] = &peer.after(1)[..] else { panic!("one answer") };
    assert_eq!(answer.segment.flags, Flags::SYN | Flags::ACK | Flags::ECE);
    assert_eq!(answer.segment.options.scale, None);
    (peer.seq, peer.ack) = (ISN.plus(1), answer.segment.seq.plus(1));
    let state = opens(&mut peer, &echoes(answer));
    assert!(state.ecn.is_some());
    assert_eq!((state.sending.scale, state.receiving.scale), (0, 0));
}

#[test]
fn data_may_follow_or_replace_the_bare_acknowledgement_of_a_cookie() {
    // The bare acknowledgement is lost.
    let mut peer = full();
    asks(&mut peer, &[]);
    peer.send(Sends { data: b"request", flags: Flags::ACK | Flags::FIN, ..peer.plain() });
    peer.after(1);
    peer.socket = peer.machine.accepted.pop_front().expect("the connection is accepted");
    assert_eq!(peer.received(), 7);
    assert!(peer.machine.sockets[&peer.socket].peer_is_finished);
    // All in one batch.
    let mut peer = full();
    asks(&mut peer, &[]);
    peer.send(peer.plain());
    peer.sends(b"first");
    peer.sends(b"second");
    peer.after(1);
    peer.socket = peer.machine.accepted.pop_front().expect("the connection is accepted");
    assert_eq!(peer.received(), 11);
}

/// Sends a segment that no connection may take, and expects a reset.
fn is_refused(peer: &mut Peer, sends: Sends<'_>) {
    let (port, ack, accepted) = (sends.source.port(), sends.ack, peer.machine.accepted.len());
    peer.send(sends);
    let mut seen = peer.after(1);
    seen.retain(|seen| seen.segment.destination_port == port);
    let [reset] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((reset.segment.flags, Some(reset.segment.seq)), (Flags::RST, ack));
    assert_eq!(peer.machine.accepted.len(), accepted);
}

#[test]
fn an_acknowledgement_without_a_valid_cookie_gets_a_reset() {
    let mut peer = full();
    asks(&mut peer, &[]);
    let plain = peer.plain();
    for bit in 0..32 {
        let wrong = Seq(peer.ack.minus(1).0 ^ 1 << bit).plus(1);
        is_refused(&mut peer, Sends { ack: Some(wrong), ..plain.clone() });
    }
    is_refused(&mut peer, Sends { source: source(5001), ..plain.clone() });
    is_refused(&mut peer, Sends { seq: plain.seq.plus(1), ..plain });
    assert_eq!(peer.machine.stack.counters().cookies_failed, 34);
    opens(&mut peer, &[]);
}

#[test]
fn a_cookie_is_valid_in_its_period_and_the_next_one() {
    let step = Nanos::from_millis(100);
    // Periods begin at 64 and 128 s.
    for (age_s, is_valid) in [(2, true), (60, true), (100, true), (127, false), (255, false)] {
        let mut peer = full();
        peer.until(Nanos(2 * SECOND.0), step);
        asks(&mut peer, &[]);
        let mut sent_at = peer.now;
        let end = Nanos(sent_at.0 + age_s * SECOND.0);
        while peer.now < end {
            let left = end.since(peer.now).min(Nanos(20 * SECOND.0));
            peer.until(left, step);
            // Other SYNs keep getting cookies, so acknowledgements are checked throughout.
            if peer.now.since(sent_at) >= Nanos(20 * SECOND.0) {
                for port in 1..=KEPT as u16 + 1 {
                    let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 78), port);
                    peer.send(Sends {
                        source,
                        seq: ISN,
                        ack: None,
                        flags: Flags::SYN,
                        ..peer.plain()
                    });
                }
                peer.after(1);
                sent_at = peer.now;
            }
        }
        let before = peer.machine.stack.counters().cookies_failed;
        match is_valid {
            true => drop(opens(&mut peer, &[])),
            false => {
                let plain = peer.plain();
                is_refused(&mut peer, plain);
                assert_eq!(peer.machine.stack.counters().cookies_failed, before + 1, "{age_s} s");
            }
        }
    }
}

#[test]
fn a_port_that_sent_no_cookie_checks_none() {
    let mut peer = full();
    asks(&mut peer, &[]);
    peer.machine.listen(peer.now, 81, 1);
    let destination = SocketAddrV4::new(*peer.ours.ip(), 81);
    let plain = peer.plain();
    is_refused(&mut peer, Sends { destination, ..plain });
    assert_eq!(peer.machine.stack.counters().cookies_failed, 0);
}

#[test]
fn a_cookie_opens_one_connection_however_often_its_segments_arrive() {
    let mut peer = full();
    asks(&mut peer, &[]);
    let request = Sends { data: b"request", ..peer.plain() };
    peer.send(request.clone());
    peer.after(1);
    peer.socket = peer.machine.accepted.pop_front().expect("the connection is accepted");
    peer.seq = peer.seq.plus(7);
    peer.send(Sends { flags: Flags::RST, ..peer.plain() });
    peer.after(1);
    assert_eq!(peer.established(), None);
    is_refused(&mut peer, request.clone());
    peer.machine.replace(peer.now);
    is_refused(&mut peer, request);
}

#[test]
fn a_listener_that_shares_the_port_accepts_the_cookies_of_one_that_has_gone() {
    let mut peer = Peer::new();
    let sharing = Sharing { reuses_port: true, ..Sharing::default() };
    for listener in [1, 2] {
        let local = SocketAddr::from(([0, 0, 0, 0], 80));
        peer.machine.ask(peer.now, Request::Listen { listener, local, backlog: 1, sharing });
    }
    [1, 2, 1, 2].into_iter().for_each(|listener| peer.machine.slot(peer.now, listener));
    for port in 1..=2 {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), port);
        peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
        peer.after(1);
    }
    asks(&mut peer, &[]);
    assert_eq!(peer.machine.stack.counters().cookies_sent, 1);
    // They take turns, so listener 1 sent the cookie.
    peer.machine.ask(peer.now, Request::Unlisten { listener: 1 });
    opens(&mut peer, &[]);
}

/// A listener with one slot, all of whose handshakes are taken; the answer to the first of them.
fn full_with_one_slot() -> (Peer, Seen) {
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    for port in 1..=KEPT as u16 {
        peer.send(Sends { source: source(port), ack: None, flags: Flags::SYN, ..peer.plain() });
    }
    let first = peer.after(1).swap_remove(0);
    (peer, first)
}

/// The peer of the first handshake takes the only slot.
fn takes_the_slot(peer: &mut Peer, first: &Seen) {
    let source = source(first.segment.destination_port);
    let ack = Some(first.segment.seq.plus(1));
    peer.send(Sends { source, seq: ISN.plus(1), ack, ..peer.plain() });
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 1);
}

#[test]
fn a_peer_with_a_valid_cookie_waits_for_a_slot() {
    let (mut peer, first) = full_with_one_slot();
    asks(&mut peer, &[]);
    takes_the_slot(&mut peer, &first);
    // An acknowledgement and two segments are neither accepted nor refused.
    peer.send(peer.plain());
    peer.sends(&[1; 1000]);
    peer.sends(&[2; 1000]);
    assert_eq!(peer.after(5).len(), 0);
    assert_eq!(peer.machine.accepted.len(), 1);
    peer.machine.slot(peer.now, 80);
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 2);
    peer.sends(&[3; 10]);
    peer.socket = peer.machine.accepted.pop_back().expect("the second connection");
    // The peer retransmits what was lost.
    peer.seq = ISN.plus(1);
    for data in [&[1; 1000][..], &[2; 1000]] {
        peer.sends(data);
        peer.after(1);
    }
    assert_eq!(peer.received(), 2010);
}

/// A reader of the documents found that SYNs were dropped here: a flood kept everybody else out for 63 s.
#[test]
fn unacknowledged_handshakes_that_may_wait_for_a_slot_leave_others_a_cookie() {
    let (mut peer, first) = full_with_one_slot();
    takes_the_slot(&mut peer, &first);
    // Seven of the eight remain, as many as may wait.
    assert_eq!(waiting(&peer), KEPT - 1);
    asks(&mut peer, &[]);
    assert_eq!(peer.machine.stack.counters().cookies_sent, 1);
    peer.send(peer.plain());
    assert_eq!(peer.after(1).len(), 0);
    peer.machine.slot(peer.now, 80);
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 2);
}

#[test]
fn a_silent_peer_that_waits_for_a_slot_is_accepted_when_there_is_one() {
    // Its server speaks first.
    let (mut peer, first) = full_with_one_slot();
    let answer = asks(&mut peer, &[]);
    takes_the_slot(&mut peer, &first);
    peer.send(peer.plain());
    let seen = peer.after(1_100);
    let mine = |seen: &&Seen| seen.segment.destination_port == PEER.port();
    let again = seen.iter().find(mine).expect("the SYN-ACK comes again");
    assert_eq!(again.segment.seq, answer.segment.seq);
    assert_eq!(again.segment.flags, Flags::SYN | Flags::ACK);
    peer.machine.slot(peer.now, 80);
    peer.after(1);
    assert_eq!(peer.machine.accepted.len(), 2);
}

#[test]
fn a_cookie_is_accepted_after_a_retransmitted_syn_found_room() {
    let mut peer = full();
    let syn = Sends { ack: None, flags: Flags::SYN, ..peer.plain() };
    asks(&mut peer, &[]);
    // One of the handshakes ends, and the SYN arrives once more.
    let reset = Sends { ack: None, flags: Flags::RST, seq: ISN.plus(1), ..peer.plain() };
    peer.send(Sends { source: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), 1), ..reset });
    peer.send(syn);
    let seen = peer.after(1);
    assert_eq!(seen.len(), 1);
    assert_ne!(seen[0].segment.seq.plus(1), peer.ack);
    opens(&mut peer, &[]);
    assert_eq!(waiting(&peer), KEPT - 1);
}

#[test]
fn a_repeated_syn_gets_the_same_cookie() {
    let mut peer = full();
    let syn = Sends { ack: None, flags: Flags::SYN, ..peer.plain() };
    let answer = asks(&mut peer, &[]);
    peer.send(syn);
    assert_eq!(peer.after(1)[0].segment.seq, answer.segment.seq);
}

#[test]
fn a_successor_accepts_its_predecessors_cookies() {
    let mut peer = full();
    // Timestamp 9, window scale 7.
    let answer = asks(&mut peer, &[1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7]);
    peer.machine.replace(peer.now);
    let state = opens(&mut peer, &echoes(&answer));
    assert_eq!(state.sending.scale, 7);
}

#[test]
fn a_connection_in_time_wait_is_reopened_beyond_the_backlog() {
    let mut peer = Peer::accepted();
    let (now, socket) = (peer.now, peer.socket);
    peer.machine.close(now, socket);
    peer.after(5);
    peer.ack = peer.ack.plus(1);
    peer.send(Sends { flags: Flags::FIN | Flags::ACK, ..peer.plain() });
    peer.seq = peer.seq.plus(1);
    peer.after(5);
    assert!(peer.states().contains(&State::TimeWait));
    let before = peer.ack;
    for port in 1..=KEPT as u16 {
        let source = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 77), port);
        peer.send(Sends { source, ack: None, flags: Flags::SYN, ..peer.plain() });
        peer.after(1);
    }
    // The answer is an ordinary SYN-ACK, whose ISN is beyond the old connection's.
    let seq = peer.seq.plus(100_000);
    peer.send(Sends { seq, ack: None, flags: Flags::SYN, ..peer.plain() });
    let [answer] = &peer.after(1)[..] else { panic!("one answer") };
    assert!(answer.segment.seq.since(before) > 0);
    assert_eq!(waiting(&peer), KEPT + 1);
    assert_eq!(peer.machine.stack.counters().cookies_sent, 0);
}
