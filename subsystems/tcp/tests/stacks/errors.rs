//! Errors from the network: ICMP errors and path MTUs (RFC 9293, 3.9.1.8, 3.9.2; RFC 1191). Also: IP header fields chosen by
//! hosts.

use crate::peer::{MINUTE, Peer, SECOND, Seen};
use wave_core::clock::Nanos;
use wave_tcp::context::{Reason, SocketOptions};
use wave_tcp::control::State;

const UNREACHABLE: u8 = 3;
const QUENCH: u8 = 4;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER: u8 = 12;
const TOO_BIG: u8 = 4;
const MSS_1460: [u8; 4] = [2, 4, 5, 180];

/// Soft errors (type, code), and the reason that the host sees.
const SOFT: [(u8, u8, Reason); 8] = [
    (UNREACHABLE, 0, Reason::Unreachable),
    (UNREACHABLE, 1, Reason::NoNeighbour),
    (UNREACHABLE, 5, Reason::NoNeighbour),
    (TIME_EXCEEDED, 0, Reason::NoNeighbour),
    (TIME_EXCEEDED, 1, Reason::NoNeighbour),
    (PARAMETER, 0, Reason::NoNeighbour),
    (PARAMETER, 1, Reason::NoNeighbour),
    (PARAMETER, 2, Reason::NoNeighbour),
];

/// A connection with segments in flight, and the first of them.
fn sending() -> (Peer, Seen) {
    let mut peer = Peer::accepted_with(&MSS_1460, 1500);
    peer.write(&[7; 2_920]);
    let seen = peer.after(5).remove(0);
    (peer, seen)
}

const NONE: [usize; 0] = [];

fn sizes(seen: &[Seen]) -> Vec<usize> {
    seen.iter().map(|seen| seen.payload().len()).collect()
}

#[test]
fn a_host_is_warned_of_soft_errors() {
    for (kind, code, reason) in SOFT {
        let (mut peer, segment) = sending();
        peer.icmp(kind, code, 0, segment.quoted());
        peer.after(5);
        assert_eq!(peer.warnings(), [reason], "{kind}, {code}");
        // The host is not warned once per packet.
        for _ in 0..100 {
            peer.icmp(kind, code, 0, segment.quoted());
        }
        peer.after(5);
        assert_eq!(peer.warnings().len(), 1);
    }
}

#[test]
fn an_icmp_error_affects_only_the_connection_that_it_quotes() {
    // A refusal ends the handshake that it quotes.
    let (mut peer, syn) = Peer::connecting(0);
    let mut other = syn.quoted().to_vec();
    other[21] ^= 1;
    let mut forged = syn.quoted().to_vec();
    forged[27] ^= 1;
    for quoted in [&other[..], &forged] {
        peer.icmp(UNREACHABLE, 3, 0, quoted);
        peer.after(5);
        assert_eq!(peer.states(), [State::SynSent]);
    }
    peer.icmp(UNREACHABLE, 3, 0, syn.quoted());
    peer.after(5);
    assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(Reason::Refused));
    // For an established connection, the quoted sequence number must be in flight (RFC 5927).
    let (mut peer, segment) = sending();
    let mut old = segment.quoted().to_vec();
    old[24..28].copy_from_slice(&segment.segment.seq.minus(1).0.to_be_bytes());
    let mut beyond = segment.quoted().to_vec();
    beyond[24..28].copy_from_slice(&segment.segment.seq.plus(2_920).0.to_be_bytes());
    for quoted in [&old, &beyond] {
        peer.icmp(UNREACHABLE, 1, 0, quoted);
    }
    peer.after(5);
    assert_eq!(peer.warnings(), []);
}

#[test]
fn a_source_quench_is_dropped_silently() {
    let (mut peer, segment) = sending();
    let before = (peer.congestion(), peer.established());
    peer.icmp(QUENCH, 0, 0, segment.quoted());
    assert!(peer.after(50).is_empty());
    assert_eq!((peer.congestion(), peer.established()), before);
    assert_eq!(peer.warnings(), []);
}

#[test]
fn a_soft_error_ends_no_connection() {
    let refusals = [(UNREACHABLE, 2), (UNREACHABLE, 3)];
    let soft = SOFT.map(|(kind, code, _)| (kind, code));
    for (kind, code) in soft.into_iter().chain(refusals) {
        let (mut peer, segment) = sending();
        peer.icmp(kind, code, 0, segment.quoted());
        peer.after(5);
        assert_eq!(peer.states(), [State::Listen, State::Established], "{kind}, {code}");
        peer.acknowledge(2_920);
        peer.after(5);
        assert_eq!(peer.machine.sockets[&peer.socket].acknowledged, 2_920);
    }
    // Nor does it end a handshake, but it becomes the reason if that fails.
    for (kind, code, reason) in SOFT {
        let (mut peer, syn) = Peer::connecting(0);
        peer.icmp(kind, code, 0, syn.quoted());
        peer.after(5);
        assert_eq!(peer.states(), [State::SynSent], "{kind}, {code}");
        assert_eq!(peer.warnings(), [reason]);
        peer.until(Nanos(5 * MINUTE.0), SECOND);
        assert_eq!(peer.machine.sockets[&peer.socket].failed, Some(reason));
    }
}

#[test]
fn segments_shrink_to_a_routers_mtu_and_grow_again_later() {
    let (mut peer, segment) = sending();
    assert_eq!(segment.payload().len(), 1_460);
    peer.icmp(UNREACHABLE, TOO_BIG, 1_000, segment.quoted());
    // All bytes in flight are retransmitted at once.
    assert_eq!(sizes(&peer.after(5)), [960, 960, 960, 40]);
    assert_eq!(peer.congestion().0, 14_600, "not a sign of congestion");
    peer.acknowledge(2_920);
    peer.after(5);
    // A larger MTU later changes nothing.
    peer.write(&[7; 2_000]);
    let seen = peer.after(5);
    assert_eq!(sizes(&seen), [960, 960, 80]);
    peer.icmp(UNREACHABLE, TOO_BIG, 1_400, seen[0].quoted());
    assert_eq!(sizes(&peer.after(5)), NONE);
    peer.acknowledge(1_920);
    peer.after(5);
    peer.acknowledge(80);
    // RFC 1191, 6.3: after ten minutes.
    peer.until(Nanos(11 * MINUTE.0), SECOND);
    peer.write(&[7; 10]);
    peer.after(5);
    peer.acknowledge(10);
    peer.after(5);
    peer.write(&[7; 2_920]);
    assert_eq!(sizes(&peer.after(5))[..2], [1_460, 1_460]);
}

#[test]
fn an_error_without_an_mtu_reduces_segments_to_the_next_plateau() {
    let (mut peer, segment) = sending();
    let mut quoted = segment.quoted().to_vec();
    let mut expected = vec![1_492, 1_006, 508, 296];
    expected.reverse();
    while let Some(mtu) = expected.pop() {
        peer.icmp(UNREACHABLE, TOO_BIG, 0, &quoted);
        let seen = peer.after(5);
        assert_eq!(seen[0].payload().len(), mtu - 40);
        quoted = seen[0].quoted().to_vec();
    }
}

#[test]
fn forged_errors_cannot_shrink_segments_below_the_lowest_plateau() {
    let (mut peer, segment) = sending();
    // A sequence number that is not in flight.
    let mut forged = segment.quoted().to_vec();
    forged[24..28].copy_from_slice(&segment.segment.seq.plus(1 << 20).0.to_be_bytes());
    peer.icmp(UNREACHABLE, TOO_BIG, 576, &forged);
    assert_eq!(sizes(&peer.after(5)), NONE);
    // Routers cannot go below the lowest plateau.
    peer.icmp(UNREACHABLE, TOO_BIG, 68, segment.quoted());
    assert_eq!(peer.after(5)[0].payload().len(), 256);
}

#[test]
fn a_host_sets_differentiated_services() {
    let (mut peer, first) = sending();
    assert_eq!(first.service().0, 0);
    peer.acknowledge(2_920);
    peer.after(5);
    peer.configure(SocketOptions { diffserv: 46, ..SocketOptions::default() });
    peer.write(b"data");
    peer.sends(b"data");
    let seen = peer.after(100);
    assert!(!seen.is_empty());
    // The peer has verified the headers' checksums.
    assert!(seen.iter().all(|seen| seen.service() == (46, 64)), "both data and acknowledgements");
    peer.configure(SocketOptions { diffserv: 64, ..SocketOptions::default() });
    peer.sends(b"data");
    assert_eq!(peer.after(100)[0].service().0, 46, "invalid options change nothing");
}

#[test]
fn a_host_sets_the_hop_limit() {
    let (mut peer, first) = sending();
    assert_eq!(first.service().1, 64);
    peer.acknowledge(2_920);
    peer.after(5);
    peer.configure(SocketOptions { hop_limit: 3, ..SocketOptions::default() });
    peer.write(b"data");
    let seen = peer.after(1_000);
    assert!(seen.len() > 1);
    assert!(seen.iter().all(|seen| seen.service() == (0, 3)));
}
