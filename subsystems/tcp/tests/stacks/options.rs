//! Checksums and options of segments, and of the datagrams that carry them (RFC 9293, 3.1, 3.2, 3.7.1, 3.9.2).

use crate::peer::{Peer, Seen, Sends};
use wave_core::clock::Nanos;
use wave_tcp::control::State;
use wave_tcp::packet::Flags;

const MSS_700: [u8; 4] = [2, 4, 2, 188];
const UNKNOWN: [u8; 4] = [253, 4, 1, 2];

/// Sizes of the segments in which the stack sends `bytes`.
fn sizes(options: &[u8], mtu: u16, bytes: usize) -> Vec<usize> {
    let mut peer = Peer::accepted_with(options, mtu);
    // The peer acknowledges nothing, because its segments would lack timestamps if they were agreed on: only the first flight
    // counts.
    peer.write(&vec![7; bytes]);
    peer.after(5).iter().map(|seen| seen.payload().len()).filter(|bytes| *bytes > 0).collect()
}

/// Kinds of the options in a segment. Checks that each except padding has a valid length.
fn kinds(seen: &Seen) -> Vec<u8> {
    let mut kinds = Vec::new();
    let mut left = seen.options();
    loop {
        match *left {
            [] => return kinds,
            [0, ref rest @ ..] => {
                assert!(rest.iter().all(|byte| *byte == 0), "padding: {rest:?}");
                return kinds;
            }
            [1, ref rest @ ..] => left = rest,
            [kind, length, ..] => {
                assert!((2..=left.len()).contains(&length.into()), "{left:?}");
                kinds.push(kind);
                left = &left[length.into()..];
            }
            [kind] => panic!("kind {kind} without a length"),
        }
    }
}

/// At least one segment of each kind that a stack sends: SYN, SYN-ACK, data, acknowledgement, FIN, reset.
fn all_segments() -> Vec<Seen> {
    let (mut peer, syn) = Peer::connecting(0);
    let mut all = vec![syn];
    // Window scale and timestamps.
    let options = [3, 3, 2, 1, 1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    peer.machine.listen(Nanos(0), 80, 1);
    peer.ours.set_port(80);
    all.extend(peer.open(&options));
    peer.write(b"odd");
    all.extend(peer.after(5));
    let stamped = [1, 1, 8, 10, 0, 0, 0, 10, 0, 0, 0, 0];
    peer.send(Sends { options: &stamped, data: b"abc", ..peer.plain() });
    all.extend(peer.after(100));
    let (now, socket) = (peer.now, peer.socket);
    peer.machine.read(socket, 3);
    peer.machine.close(now, socket);
    all.extend(peer.after(5));
    peer.send(Sends { destination: "10.0.0.2:9".parse().unwrap(), ..peer.plain() });
    all.extend(peer.after(5));
    for flags in [Flags::SYN, Flags::SYN | Flags::ACK, Flags::FIN, Flags::RST, Flags::PSH] {
        assert!(all.iter().any(|seen| seen.has(flags)), "no {flags:?}");
    }
    all
}

#[test]
fn every_segment_has_a_checksum_that_the_peer_verifies() {
    // The peer of these tests verifies the checksum of each segment, by etherparse.
    assert!(all_segments().len() >= 6);
}

#[test]
fn a_segment_with_a_wrong_checksum_is_dropped_silently() {
    let mut peer = Peer::accepted();
    peer.send(Sends { data: b"data", breaks_checksum: true, ..peer.plain() });
    assert!(peer.after(600).is_empty());
    assert_eq!(peer.received(), 0);
    assert_eq!(peer.machine.counter("malformed.bad_TCP_checksum"), 1);
    peer.sends(b"data");
    peer.after(5);
    assert_eq!(peer.received(), 4);
}

#[test]
fn end_nop_and_mss_options_are_supported() {
    let sizes = sizes(&[&[1, 1], &MSS_700[..], &[0, 9]].concat(), 1500, 2_100);
    assert_eq!(sizes, [700; 3]);
}

#[test]
fn options_may_be_in_any_segment_and_unknown_ones_are_ignored() {
    let mut peer = Peer::accepted_with(&UNKNOWN, 1500);
    peer.send(Sends { options: &UNKNOWN, data: b"data", ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.received(), 4);
    peer.seq = peer.seq.plus(4);
    peer.write(b"reply");
    peer.after(5);
    peer.ack = peer.ack.plus(5);
    peer.send(Sends { options: &UNKNOWN, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].acknowledged, 5);
    peer.send(Sends { options: &UNKNOWN, flags: Flags::FIN, ..peer.plain() });
    peer.after(5);
    assert!(peer.machine.sockets[&peer.socket].peer_is_finished);
    peer.seq = peer.seq.plus(1);
    peer.send(Sends { options: &UNKNOWN, flags: Flags::RST, ..peer.plain() });
    peer.after(5);
    assert_eq!(peer.states(), [State::Listen]);
}

#[test]
fn an_illegal_option_length_does_no_harm() {
    for illegal in [[254, 0, 0, 0], [254, 1, 0, 0], [254, 40, 0, 0], [1, 1, 1, 254]] {
        let mut peer = Peer::accepted();
        peer.send(Sends { options: &illegal, data: b"data", ..peer.plain() });
        assert!(peer.after(600).is_empty());
        assert_eq!(peer.received(), 0, "{illegal:?}");
        assert_eq!(peer.machine.counter("malformed.malformed_TCP_options"), 1);
        peer.sends(b"data");
        peer.after(5);
        assert_eq!(peer.received(), 4);
    }
}

#[test]
fn options_are_parsed_at_any_offset() {
    for padding in 0..4 {
        let options = [&[1].repeat(padding)[..], &MSS_700, &[1].repeat((4 - padding) % 4)].concat();
        assert_eq!(sizes(&options, 1500, 1_400), [700; 2], "after {padding} bytes");
    }
}

#[test]
fn options_have_lengths_and_their_padding_is_zero() {
    let all: Vec<u8> = all_segments().iter().flat_map(kinds).collect();
    // MSS, scale and timestamps are sent.
    for kind in [2, 3, 8] {
        assert!(all.contains(&kind), "{all:?}");
    }
}

#[test]
fn the_mss_option_is_in_every_syn_and_in_no_other_segment() {
    for seen in all_segments() {
        assert_eq!(kinds(&seen).contains(&2), seen.has(Flags::SYN), "{:?}", seen.segment);
    }
}

#[test]
fn the_advertised_mss_is_the_mtu_minus_headers() {
    for mtu in [576, 1500, 9000] {
        let mut peer = Peer::over(mtu);
        peer.machine.listen(Nanos(0), 80, 1);
        let seen = peer.open(&[]);
        assert_eq!(seen[0].segment.options.mss, Some(mtu - 40));
    }
}

#[test]
fn without_an_mss_option_segments_carry_536_bytes() {
    assert_eq!(sizes(&[], 1500, 1_608), [536; 3]);
}

#[test]
fn segment_sizes_respect_the_peers_mss_and_the_mtu() {
    let names = |mss: u16| [&[2, 4][..], &mss.to_be_bytes()].concat();
    assert_eq!(sizes(&names(9_000), 1500, 2_920), [1_460; 2]);
    assert_eq!(sizes(&names(1_000), 1500, 2_000), [1_000; 2]);
    assert_eq!(sizes(&names(1_460), 576, 1_072), [536; 2]);
    // Options reduce the payload (RFC 6691).
    let stamps = [1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    let mut peer = Peer::new();
    peer.machine.listen(Nanos(0), 80, 1);
    peer.send(Sends {
        ack: None,
        flags: Flags::SYN,
        options: &[&names(1_000)[..], &stamps].concat(),
        ..peer.plain()
    });
    let syn = peer.after(5).remove(0);
    (peer.seq, peer.ack) = (peer.seq.plus(1), syn.segment.seq.plus(1));
    peer.send(Sends { options: &stamps, ..peer.plain() });
    peer.after(5);
    peer.socket = peer.machine.accepted.pop_front().unwrap();
    peer.write(&[7; 1_976]);
    let sizes: Vec<usize> = peer.after(5).iter().map(|seen| seen.payload().len()).collect();
    assert_eq!(sizes, [988; 2]);
}

#[test]
fn ip_options_are_ignored() {
    let mut peer = Peer::accepted();
    // An unknown option, a record route, a stream identifier, a completed strict source route.
    for options in [
        [30, 4, 1, 2, 0, 0, 0, 0],
        [7, 7, 4, 0, 0, 0, 0, 0],
        [136, 4, 0, 1, 1, 1, 1, 0],
        [137, 7, 8, 10, 0, 0, 9, 0],
    ] {
        let before = peer.received();
        peer.send(Sends { ip_options: &options, data: b"data", ..peer.plain() });
        peer.seq = peer.seq.plus(4);
        let answers = peer.after(100);
        assert_eq!(peer.received(), before + 4, "{options:?}");
        assert!(!answers.is_empty());
        assert!(answers.iter().all(|seen| seen.bytes[14] == 0x45), "no IP options are sent");
    }
}
