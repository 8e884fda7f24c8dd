//! Sending and acknowledging data (RFC 9293, 3.7.4, 3.8.1, 3.8.5, 3.8.6, 3.10.7.4).

use crate::peer::{MS, Peer, SECOND, Seen, Sends};
use wave_core::clock::Nanos;
use wave_tcp::packet::Flags;

const NONE: [usize; 0] = [];

fn sizes(seen: &[Seen]) -> Vec<usize> {
    seen.iter().map(|seen| seen.payload().len()).collect()
}

/// The smoothed round-trip time, if one was measured.
fn round_trip(peer: &Peer) -> Option<Nanos> {
    let mut found = None;
    peer.machine.stack.visit_sockets(&mut |shown| found = found.or(shown.round_trip));
    found.map(|(mean, _)| mean)
}

#[test]
fn a_host_turns_nagles_algorithm_off() {
    let mut peer = Peer::accepted();
    peer.write(b"first");
    assert_eq!(sizes(&peer.after(5)), [5]);
    peer.write(b"second");
    assert_eq!(sizes(&peer.after(5)), NONE, "it waits until the first segment is acknowledged");
    peer.set_eager();
    assert_eq!(sizes(&peer.after(5)), [6]);
    peer.write(b"third");
    peer.set_eager();
    assert_eq!(sizes(&peer.after(5)), [5]);
}

#[test]
fn small_segments_wait_for_an_acknowledgement() {
    let mut peer = Peer::accepted();
    peer.write(b"first");
    peer.after(5);
    for byte in [b"a", b"b", b"c"] {
        peer.write(byte);
        assert_eq!(sizes(&peer.after(5)), NONE);
    }
    peer.acknowledge(5);
    let seen = peer.after(5);
    assert_eq!(sizes(&seen), [3]);
    assert_eq!(seen[0].payload(), b"abc");
}

#[test]
fn a_slightly_open_window_gets_no_small_segment() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 536 * 4]);
    assert_eq!(sizes(&peer.after(5)), [536; 4]);
    peer.ack = peer.ack.plus(536 * 4);
    peer.send(Sends { window: 0, ..peer.plain() });
    peer.after(5);
    peer.write(&[7; 536 * 4]);
    // Less than a segment, and less than half of the largest window: nothing is sent until the timer expires.
    peer.send(Sends { window: 100, ..peer.plain() });
    assert_eq!(sizes(&peer.after(100)), NONE);
    peer.send(Sends { window: 600, ..peer.plain() });
    assert_eq!(sizes(&peer.after(50)), [536]);
}

#[test]
fn written_bytes_are_sent_without_a_push_and_their_last_segment_has_psh() {
    let mut peer = Peer::accepted();
    peer.write(&[7; 2_000]);
    let mut left = 2_000;
    let mut pushed = 0;
    for _ in 0..20 {
        for seen in peer.after(5) {
            let bytes = seen.payload().len() as u32;
            left -= bytes;
            assert_eq!(seen.has(Flags::PSH), left == 0, "{left} bytes left");
            pushed += u32::from(seen.has(Flags::PSH));
            peer.acknowledge(bytes);
        }
    }
    assert_eq!((left, pushed), (0, 1));
}

#[test]
fn a_delayed_acknowledgement_waits_less_than_half_a_second() {
    let mut peer = Peer::accepted();
    let sent_at = peer.now;
    peer.sends(b"data");
    let seen = peer.after(600);
    let [ack] = &seen[..] else { panic!("{seen:?}") };
    assert!(ack.at.since(sent_at) < Nanos::from_millis(500));
    assert_eq!(ack.segment.ack, Some(peer.seq));
    // Two full segments are acknowledged at once.
    peer.sends(&[7; 536]);
    peer.sends(&[7; 536]);
    assert_eq!(peer.after(2).len(), 1);
}

#[test]
fn segments_that_arrive_together_get_one_acknowledgement_of_all_of_them() {
    let mut peer = Peer::accepted();
    for _ in 0..8 {
        peer.sends(&[7; 536]);
    }
    let seen = peer.after(600);
    let [ack] = &seen[..] else { panic!("{} acknowledgements", seen.len()) };
    assert_eq!(ack.segment.ack, Some(peer.seq));
}

#[test]
fn an_acknowledgement_is_sent_with_data() {
    let mut peer = Peer::accepted();
    // The program answers once, which ends quick acknowledgements.
    peer.sends(b"first");
    peer.write(b"answer");
    peer.after(2);
    peer.acknowledge(6);
    peer.after(2);
    peer.sends(b"request");
    assert!(peer.after(2).is_empty(), "it waits for data");
    peer.write(b"reply");
    let seen = peer.after(600);
    let first = &seen[0];
    assert_eq!((first.payload(), first.segment.ack), (&b"reply"[..], Some(peer.seq)));
    assert!(seen.iter().all(|seen| !seen.payload().is_empty()), "no bare acknowledgement");
}

#[test]
fn retransmission_intervals_double_each_time() {
    let mut peer = Peer::accepted();
    peer.write(b"lost");
    let seen = peer.until(Nanos(100 * SECOND.0), MS);
    let gaps: Vec<u64> =
        seen.windows(2).map(|pair| pair[1].at.since(pair[0].at).0 / 1_000_000).collect();
    assert!(gaps.len() >= 6, "{gaps:?}");
    for pair in gaps.windows(2) {
        assert!(pair[1].abs_diff(2 * pair[0]) <= 4, "{gaps:?}");
    }
}

#[test]
fn a_loss_halves_the_window_and_a_timeout_leaves_one_segment() {
    let mut peer = Peer::accepted();
    let initial = peer.congestion().0;
    assert_eq!(initial, 5_360);
    // Slow start.
    peer.write(&[7; 8_000]);
    let first = peer.after(5);
    assert_eq!(sizes(&first).iter().sum::<usize>(), 5_360);
    peer.acknowledge(5_360);
    peer.after(5);
    assert_eq!(peer.congestion().0, 2 * initial);
    peer.after(1_000);
    let (window, threshold) = peer.congestion();
    assert_eq!((window, threshold), (536, 2_640 / 2));
    // Congestion avoidance: above the threshold, one segment per round trip.
    peer.acknowledge(2_640);
    peer.after(5);
    assert!(peer.congestion().0 <= threshold);
}

#[test]
fn a_retransmitted_syn_measures_no_round_trip() {
    for (wait, is_measured) in [(50, true), (1_500, false)] {
        let (mut peer, _) = Peer::connecting(0);
        peer.after(wait);
        peer.send(Sends { flags: Flags::SYN, ..peer.plain() });
        peer.after(5);
        assert_eq!(round_trip(&peer).is_some(), is_measured, "answered after {wait} ms");
        // RFC 6298, 5.7: after a retransmitted SYN, the first timeout of data is three seconds.
        peer.seq = peer.seq.plus(1);
        let from = peer.now;
        peer.write(b"data");
        let seen = peer.after(5_000);
        let again = seen[1].at.since(from);
        assert_eq!(again >= Nanos::from_millis(3_000), !is_measured, "again after {again:?}");
    }
}

#[test]
fn round_trips_are_measured_without_timestamps_but_not_of_retransmissions() {
    let mut peer = Peer::accepted();
    let of_the_handshake = round_trip(&peer).expect("a round trip was measured");
    peer.write(b"once");
    peer.after(80);
    peer.acknowledge(4);
    peer.after(5);
    let measured = round_trip(&peer).expect("a round trip was measured");
    // The new sample, about 80 ms, counts one eighth (RFC 6298, 2.3).
    let expected = (7 * of_the_handshake.0 + 80_000_000) / 8;
    assert!(measured.0.abs_diff(expected) < 1_000_000, "{measured:?}");
    // Karn's rule.
    peer.write(b"again");
    let seen = peer.after(2_000);
    assert!(seen.len() >= 2, "the data was retransmitted");
    peer.acknowledge(5);
    peer.after(5);
    assert_eq!(round_trip(&peer), Some(measured));
}

#[test]
fn urgent_data_of_any_length_is_delivered_in_line() {
    let mut peer = Peer::accepted();
    let mut all = Vec::new();
    for (at, bytes) in [1, 536, 536, 300].into_iter().enumerate() {
        let data = vec![at as u8; bytes];
        // The urgent pointer is within the data, at its end, and far beyond.
        for urgent in [1, bytes as u16, u16::MAX] {
            let flags = Flags::ACK | Flags::URG;
            peer.send(Sends { flags, urgent, data: &data, ..peer.plain() });
            peer.seq = peer.seq.plus(bytes as u32);
            all.extend_from_slice(&data);
            peer.after(5);
        }
    }
    peer.machine.read(peer.socket, all.len());
    assert_eq!(peer.machine.sockets[&peer.socket].read, all);
}
