//! Windows: a peer's large, shrinking and closed windows, window probes, and the windows that we advertise (RFC 9293, 3.4,
//! 3.8.6).

use crate::peer::{MINUTE, MS, Peer, SECOND, Seen, Sends};
use wave_core::clock::Nanos;
use wave_tcp::context::Reason;
use wave_tcp::control::State;
use wave_tcp::packet::Flags;
use wave_tcp_testbed::RING;

fn sent(seen: &[Seen]) -> usize {
    seen.iter().map(|seen| seen.payload().len()).sum()
}

/// A connection whose receive ring is full: our window is closed.
fn full() -> Peer {
    let mut peer = Peer::accepted();
    let mut left = RING;
    while left > 0 {
        let bytes = left.min(512);
        peer.sends(&vec![7; bytes as usize]);
        left -= bytes;
        peer.after(2);
    }
    peer.after(100);
    assert_eq!(peer.received(), u64::from(RING));
    peer
}

#[test]
fn a_window_of_more_than_32767_bytes_is_unsigned() {
    for window in [0x7fff, 0x8000, 0xffff] {
        let mut peer = Peer::accepted();
        peer.send(Sends { window, ..peer.plain() });
        peer.write(&[7; 1_072]);
        assert_eq!(sent(&peer.after(5)), 1_072, "window {window}");
    }
}

#[test]
fn a_window_that_shrinks_below_bytes_in_flight_loses_nothing() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 3_216]);
    assert_eq!(sent(&peer.after(5)), 3_216);
    // The right edge moves back to before bytes in flight.
    peer.ack = peer.ack.plus(536);
    peer.send(Sends { window: 536, ..peer.plain() });
    let mut got = 536;
    let mut expected = peer.ack;
    let mut window = 536_u16;
    for _ in 0..400 {
        for seen in peer.after(100) {
            let end = seen.segment.seq.plus(seen.payload().len() as u32);
            // The peer accepts only segments within its window.
            if seen.segment.seq == expected && end.since(expected.plus(window.into())) <= 0 {
                got += seen.payload().len();
                expected = end;
            }
        }
        peer.ack = expected;
        // And later it opens again.
        window = if got > 1_500 { 10_000 } else { 536 };
        peer.send(Sends { window, ..peer.plain() });
    }
    assert_eq!(got, 3_216);
    assert_eq!(peer.states(), [State::Listen, State::Established]);
}

#[test]
fn a_window_that_shrinks_to_zero_is_probed() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 1_608]);
    assert_eq!(sent(&peer.after(5)), 1_608);
    peer.send(Sends { window: 0, ..peer.plain() });
    let seen = peer.until(Nanos(10 * SECOND.0), MS);
    assert!(peer.machine.counter("TCPWinProbe") >= 3);
    assert!(seen.iter().any(|seen| seen.payload().len() == 1));
    // The peer accepts all bytes later.
    peer.ack = peer.ack.plus(1_608);
    peer.send(peer.plain());
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].acknowledged, 1_608);
}

#[test]
fn a_connection_survives_a_closed_window_while_probes_are_answered() {
    let mut peer = Peer::accepted();
    peer.send(Sends { window: 0, ..peer.plain() });
    peer.after(5);
    peer.write(&[7; 100]);
    let mut probes = 0;
    for _ in 0..3 * 60 * 60 {
        let seen = peer.until(SECOND, Nanos(100 * MS.0));
        probes += seen.len();
        if !seen.is_empty() {
            peer.send(Sends { window: 0, ..peer.plain() });
        }
    }
    assert!(probes > 50, "{probes} probes in three hours");
    assert_eq!(peer.states(), [State::Listen, State::Established]);
    // A peer that no longer answers is dropped.
    peer.until(Nanos(60 * MINUTE.0), SECOND);
    assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(Reason::TimedOut));
}

#[test]
fn a_window_opens_by_at_least_a_segment() {
    let mut peer = full();
    let read = |peer: &mut Peer, bytes| {
        let socket = peer.socket;
        peer.machine.receive(peer.now, socket, bytes);
    };
    read(&mut peer, 100);
    assert!(peer.after(600).is_empty(), "no silly window is advertised");
    // The answer to a window probe says that the window is closed, although a few bytes are free.
    peer.send(Sends { data: b"?", ..peer.plain() });
    let seen = peer.after(600);
    assert_eq!(seen[0].segment.window, 0);
    read(&mut peer, 2_000);
    let seen = peer.after(600);
    assert_eq!(seen.len(), 1);
    assert!(seen[0].segment.window >= 536, "{:?}", seen[0].segment);
}

#[test]
fn resets_and_urgent_segments_are_processed_while_the_window_is_closed() {
    let mut peer = full();
    peer.send(Sends { flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(Reason::Reset));
    // An urgent segment is processed, but no more bytes are accepted than there is room for.
    let mut peer = full();
    let flags = Flags::ACK | Flags::URG;
    peer.send(Sends { flags, urgent: 9, data: b"urgent", ..peer.plain() });
    let seen = peer.after(600);
    assert_eq!(seen[0].segment.ack, Some(peer.seq));
    assert_eq!(peer.states(), [State::Listen, State::Established]);
    assert_eq!(peer.received(), u64::from(RING));
}
