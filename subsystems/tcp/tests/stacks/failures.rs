//! Peers that do not answer: thresholds of retransmission, SYNs, keep-alives (RFC 9293, 3.8.3 and 3.8.4).

use crate::peer::{MINUTE, MS, Peer, SECOND, Seen, Sends};
use wave_core::clock::Nanos;
use wave_tcp::context::{KeepAlive, Reason, SocketOptions};
use wave_tcp::control::State;
use wave_tcp::packet::{ArpOperation, ArpPacket, Flags, build_arp};

const HOUR: Nanos = Nanos(60 * MINUTE.0);

fn failed(peer: &Peer) -> Option<Reason> {
    peer.machine.sockets[&peer.socket].failed
}

fn seconds(count: u64) -> Nanos {
    Nanos(count * SECOND.0)
}

#[test]
fn a_peer_that_stops_answering_causes_a_warning_and_then_a_timeout() {
    let mut peer = Peer::connected();
    let asked = peer.asked;
    peer.write(b"hello?");
    let from = peer.now;
    // R1: three retransmissions. The host is warned, and the next hop is resolved again.
    let mut again = 0;
    while again < 3 {
        peer.after(10);
        again = peer.machine.counter("TCPTimeouts");
        if again < 3 {
            assert_eq!((peer.warnings(), peer.asked), (vec![], asked), "after {again}");
        }
        assert!(peer.now.since(from) < MINUTE);
    }
    peer.after(10_000);
    assert_eq!(peer.warnings()[0], Reason::TimedOut);
    assert!(peer.asked > asked);
    assert_eq!(failed(&peer), None);
    // R2: at least 100 seconds.
    while failed(&peer).is_none() {
        peer.until(SECOND, Nanos(100 * MS.0));
        assert!(peer.now.since(from) < HOUR);
    }
    assert_eq!(failed(&peer), Some(Reason::TimedOut));
    assert!(peer.now.since(from) > seconds(100));
    assert!(peer.states().is_empty());
}

#[test]
fn a_host_sets_how_long_its_data_may_stay_unacknowledged() {
    for after in [5, 40] {
        let mut peer = Peer::connected();
        let user_timeout = Some(seconds(after));
        peer.configure(SocketOptions { user_timeout, ..SocketOptions::default() });
        peer.write(b"hello?");
        let from = peer.now;
        while failed(&peer).is_none() {
            peer.after(10);
            assert!(peer.now.since(from) < MINUTE);
        }
        let took = peer.now.since(from);
        assert!((seconds(after)..seconds(after + 1)).contains(&took), "{took:?} of {after} s");
        assert_eq!(failed(&peer), Some(Reason::TimedOut));
    }
    // The host's limit may be longer than the default, too.
    let mut peer = Peer::connected();
    let user_timeout = Some(Nanos(3 * HOUR.0));
    peer.configure(SocketOptions { user_timeout, ..SocketOptions::default() });
    peer.write(b"hello?");
    peer.until(Nanos(2 * HOUR.0), SECOND);
    assert_eq!(failed(&peer), None);
    peer.until(Nanos(HOUR.0 + MINUTE.0), SECOND);
    assert_eq!(failed(&peer), Some(Reason::TimedOut));
}

#[test]
fn an_unanswered_syn_causes_a_warning_and_then_a_timeout() {
    let (mut peer, _) = Peer::connecting(0);
    let asked = peer.asked;
    let seen = peer.until(Nanos(10 * SECOND.0), Nanos(10 * MS.0));
    assert_eq!(seen.len(), 3, "after 1, 3 and 7 seconds");
    assert_eq!(peer.warnings(), [Reason::TimedOut]);
    assert!(peer.asked > asked, "the next hop is resolved again");
    peer.until(HOUR, SECOND);
    assert_eq!(failed(&peer), Some(Reason::TimedOut));
    assert!(peer.states().is_empty());
}

#[test]
fn a_syn_is_retransmitted_for_at_least_three_minutes() {
    let (mut peer, first) = Peer::connecting(0);
    let seen = peer.until(HOUR, Nanos(100 * MS.0));
    assert!(seen.iter().all(|seen| seen.segment.seq == first.segment.seq));
    let last = seen.last().unwrap();
    assert!(last.at.since(first.at) >= seconds(180), "{:?}", last.at.since(first.at));
    assert!(last.at.since(first.at) < seconds(300));
    assert_eq!(failed(&peer), Some(Reason::TimedOut));
}

#[test]
fn segments_follow_a_next_hop_that_has_moved() {
    let mut peer = Peer::connected();
    peer.write(b"hello?");
    let moved = [6, 6, 6, 6, 6, 6];
    assert_eq!(peer.after(100)[0].bytes[..6], peer.mac);
    peer.mac = moved;
    let seen = peer.until(MINUTE, Nanos(10 * MS.0));
    assert_eq!(seen.last().unwrap().bytes[..6], moved);
    // A forged ARP reply has no immediate effect while the peer answers.
    peer.acknowledge(6);
    peer.after(5);
    let claim = ArpPacket {
        operation: ArpOperation::Reply,
        sender_mac: [8; 6],
        sender: [10, 0, 0, 1].into(),
        target_mac: [0; 6],
        target: [10, 0, 0, 2].into(),
    };
    let mut frame = [0; 60];
    build_arp(&mut frame, &claim);
    peer.put(&frame);
    peer.write(b"more");
    assert_eq!(peer.after(100)[0].bytes[..6], moved);
}

/// Whether all segments are keep-alive probes: empty, with the sequence number before the next.
fn are_questions(peer: &Peer, seen: &[Seen]) -> bool {
    seen.iter().all(|seen| {
        seen.segment.seq == peer.ack.minus(1)
            && seen.payload().is_empty()
            && seen.segment.flags == Flags::ACK
    })
}

pub fn keep_alive(idle: u64, interval: u64, probes: u8) -> SocketOptions {
    let keep = KeepAlive { idle: seconds(idle), interval: seconds(interval), probes };
    SocketOptions { keep_alive: Some(keep), ..SocketOptions::default() }
}

#[test]
fn keep_alives_are_off_by_default() {
    let mut peer = Peer::accepted();
    assert!(peer.until(Nanos(30 * HOUR.0), SECOND).is_empty());
    assert_eq!(peer.states(), [State::Listen, State::Established]);
}

#[test]
fn a_host_turns_keep_alives_on_and_off_for_one_connection() {
    let mut peer = Peer::accepted();
    peer.configure(keep_alive(60, 10, 3));
    let seen = peer.until(seconds(65), Nanos(100 * MS.0));
    assert_eq!(seen.len(), 1);
    assert!(are_questions(&peer, &seen));
    peer.send(peer.plain());
    peer.configure(SocketOptions::default());
    assert!(peer.until(HOUR, SECOND).is_empty());
    assert_eq!(peer.states(), [State::Listen, State::Established]);
}

#[test]
fn keep_alives_are_sent_only_if_nothing_was_received_and_nothing_is_in_flight() {
    let mut peer = Peer::accepted();
    peer.configure(keep_alive(60, 10, 3));
    // Data and acknowledgements of the peer, each after 50 seconds.
    for at in 0..6 {
        assert!(peer.until(seconds(50), Nanos(100 * MS.0)).is_empty(), "round {at}");
        match at % 3 {
            0 => peer.sends(b"data"),
            1 => peer.send(peer.plain()),
            // A keep-alive probe by the peer.
            _ => peer.send(Sends { seq: peer.seq.minus(1), ..peer.plain() }),
        }
        peer.after(100);
    }
    // Data in flight is retransmitted instead of a probe.
    peer.until(seconds(30), Nanos(100 * MS.0));
    peer.write(b"lost");
    let seen = peer.until(Nanos(5 * MINUTE.0), Nanos(100 * MS.0));
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|seen| seen.payload() == b"lost"), "no keep-alive probe");
}

#[test]
fn a_host_sets_the_idle_time_before_keep_alives() {
    for idle in [10, 100, 20_000] {
        let mut peer = Peer::accepted();
        let from = peer.now;
        peer.configure(keep_alive(idle, 10, 9));
        let seen = peer.until(seconds(idle + 5), Nanos(100 * MS.0));
        assert_eq!(seen.len(), 1, "{idle} s");
        assert!(seen[0].at.since(from) + SECOND >= seconds(idle));
    }
}

#[test]
fn the_default_idle_time_before_keep_alives_is_two_hours() {
    let mut peer = Peer::accepted();
    let keep_alive = Some(KeepAlive::default());
    peer.configure(SocketOptions { keep_alive, ..SocketOptions::default() });
    assert!(peer.until(seconds(7_198), SECOND).is_empty());
    assert_eq!(peer.until(seconds(10), SECOND).len(), 1);
}

#[test]
fn one_unanswered_keep_alive_does_not_end_a_connection() {
    let mut peer = Peer::accepted();
    // A host cannot choose fewer than two probes, either.
    peer.configure(keep_alive(60, 10, 0));
    for _ in 0..10 {
        // The first probe, or its answer, is lost.
        let seen = peer.until(seconds(75), Nanos(100 * MS.0));
        assert_eq!(seen.len(), 2);
        assert!(are_questions(&peer, &seen));
        peer.send(peer.plain());
        peer.after(5);
    }
    assert_eq!(peer.states(), [State::Listen, State::Established]);
    // A peer that never answers is dropped.
    peer.until(seconds(100), Nanos(100 * MS.0));
    assert_eq!(failed(&peer), Some(Reason::TimedOut));
}

#[test]
fn the_congestion_window_restarts_after_an_idle_period() {
    let mut peer = Peer::accepted();
    let initial = peer.congestion().0;
    for _ in 0..3 {
        peer.write(&[7; 8_000]);
        let mut left = 8_000;
        // For less than a timeout, after which the window would restart.
        for _ in 0..30 {
            for seen in peer.after(5) {
                left -= seen.payload().len() as u32;
                peer.acknowledge(seen.payload().len() as u32);
            }
        }
        assert_eq!(left, 0);
    }
    let grown = peer.congestion().0;
    assert!(grown > initial, "{grown}");
    peer.after(3_000);
    assert_eq!(peer.congestion().0, initial, "RFC 5681, 4.1");
}
