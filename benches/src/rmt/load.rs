//! Packets for the rows of `wave bench rmt`: a load as peers and hosts make it, and random ones.

use rand::Rng;
use rand_pcg::Pcg64Mcg;
use wave_tcp::laminar::transmit::sync;
use wave_tcp::laminar::{CONTEXTS, kind};

use super::hand::{Connection, Hand, Outcome, Packet};

/// Bytes of a segment.
const MSS: u32 = 1448;
/// Bytes of room, credits and peers' windows that a grant renews.
const GRANT: u32 = 64 * MSS;

/// Connections in the midst of their streams, with room, credits and windows.
pub fn start(connections: u32, random: &mut Pcg64Mcg) -> Hand {
    let mut hand = Hand::default();
    for connection in &mut hand.connections[..connections as usize] {
        let next: u32 = random.random();
        let (edge, una) = (next.wrapping_add(GRANT), random.random());
        *connection = Connection {
            landed: next,
            landed_edge: edge,
            next,
            edge,
            una,
            sent: una,
            credits: GRANT,
            remote_avail: GRANT,
            ..Connection::default()
        };
    }
    hand
}

/// A load of `count` packets of `connections` connections in random order, from the state `hand` on: segments in order (half of them),
/// ahead of a gap, and repeated ones, acknowledgements without payload, segments to send, and what SYNC grants and reads.
pub fn packets(hand: &Hand, connections: u32, count: usize, random: &mut Pcg64Mcg) -> Vec<Packet> {
    let mut hand = hand.clone();
    let mut packets = Vec::with_capacity(count);
    for _ in 0..count {
        let index = random.random_range(0..connections as u16);
        let packet = Packet {
            connection: index,
            context: index % CONTEXTS as u16,
            ..next(&hand.connections[usize::from(index)], random)
        };
        packets.push(packet);
        let outcome = hand.egress(&packet);
        if let Some(pseudo) = pseudo(&packet, &outcome) {
            hand.egress(&pseudo);
        }
    }
    packets
}

/// The next packet of a connection.
fn next(of: &Connection, random: &mut Pcg64Mcg) -> Packet {
    let sync = |target, amount| Packet {
        kind: kind::SYNC as u8,
        target: target as u8,
        length: amount,
        end: amount,
        bound: amount,
        ..Packet::default()
    };
    if of.edge.wrapping_sub(of.next) < 8 * MSS {
        return sync(sync::ROOM, GRANT);
    }
    if of.credits < 2 * MSS {
        return sync(sync::CREDITS, GRANT);
    }
    let acked = if random.random() { MSS.min(of.sent.wrapping_sub(of.una)) } else { 0 };
    let received = |seq: u32, length: u32, acked: u32| Packet {
        kind: kind::RECEIVE as u8,
        has_payload: u8::from(length > 0),
        is_marked: u8::from(seq.is_multiple_of(16)),
        seq,
        length,
        end: seq.wrapping_add(length),
        bound: seq.wrapping_add(GRANT),
        ack: of.una.wrapping_add(acked),
        newest: of.una.wrapping_add(acked).wrapping_add(GRANT),
        window: GRANT,
        ..Packet::default()
    };
    match random.random_range(0..100) {
        0..50 => received(of.next, MSS, acked),
        50..58 => received(of.next.wrapping_add(random.random_range(1..4) * MSS), MSS, acked),
        58..63 => received(of.next.wrapping_sub(random.random_range(1..4) * MSS), MSS, acked),
        63..78 => received(of.next, 0, acked),
        78..98 => {
            let (seq, kind) = (of.sent, kind::TRANSMIT as u8);
            let end = seq.wrapping_add(MSS);
            Packet { kind, has_payload: 1, seq, length: MSS, end, ack: seq, ..Packet::default() }
        }
        _ => sync(sync::STATISTICS, 0),
    }
}

/// Registers of any connection: small numbers, and positions near both wraps, of the number and of its sign.
pub fn registers(random: &mut Pcg64Mcg) -> Connection {
    let at = |random: &mut Pcg64Mcg| -> u32 {
        let wrap = [0u32, 1 << 31, random.random()][random.random_range(0..3)];
        wrap.wrapping_sub(random.random_range(0..20))
    };
    let small = |random: &mut Pcg64Mcg| match random.random_range(0..10) {
        0 => u32::MAX - random.random_range(0..9),
        1 => 0,
        _ => random.random_range(0..20),
    };
    let (next, una) = (at(random), at(random));
    let edge = next.wrapping_add(small(random));
    let near = [0, 0, 0, 1, 2][random.random_range(0..5)];
    Connection {
        landed: next.wrapping_sub(near),
        landed_edge: edge.wrapping_sub(near),
        next,
        edge,
        tail: small(random),
        head: small(random),
        una,
        sent: una.wrapping_add(small(random)),
        credits: small(random),
        remote_avail: small(random),
        acked_bytes: small(random),
        marked_bytes: small(random),
        dupacks: random.random_range(0..4),
        fast_retransmits: random.random_range(250..=255),
    }
}

/// A packet of any bits, most of them near what the connection's registers hold.
pub fn random(hand: &Hand, connections: u32, random: &mut Pcg64Mcg) -> Packet {
    let index = random.random_range(0..connections as u16);
    let of = &hand.connections[usize::from(index)];
    let near = |at: u32, random: &mut Pcg64Mcg| match random.random_range(0..8) {
        0 => random.random(),
        1 => at.wrapping_add(1 << 31).wrapping_add(random.random_range(0..3)).wrapping_sub(1),
        2 => at,
        _ => at.wrapping_add(random.random_range(0..9)).wrapping_sub(4),
    };
    let offsets = [0, of.tail, of.head, of.edge.wrapping_sub(of.next)];
    let at = |random: &mut Pcg64Mcg| of.next.wrapping_add(offsets[random.random_range(0..4)]);
    let sent = [of.una, of.sent][random.random_range(0..2)];
    let kind =
        if random.random_range(0..50) == 0 { random.random() } else { random.random_range(1..5) };
    let is_sent = u32::from(kind) == kind::TRANSMIT;
    let seq = if is_sent { sent } else { at(random) };
    let end = if is_sent { sent } else { at(random) };
    let flag = |random: &mut Pcg64Mcg| match random.random_range(0..20) {
        0 => random.random(),
        number => number % 2,
    };
    let small = |random: &mut Pcg64Mcg| match random.random_range(0..20) {
        0 => random.random(),
        _ => random.random_range(0..9),
    };
    Packet {
        kind,
        has_payload: flag(random),
        is_marked: flag(random),
        target: if random.random_range(0..20) == 0 {
            random.random()
        } else {
            random.random_range(1..4)
        },
        connection: index,
        context: random.random_range(0..CONTEXTS as u16),
        seq: near(seq, random),
        length: small(random),
        end: near(end, random),
        bound: near(of.landed, random),
        ack: near(sent, random),
        newest: near(sent, random),
        window: small(random),
    }
}

/// The pseudo segment that enters the egress after a packet, if there is one.
#[inline(always)]
pub fn pseudo(packet: &Packet, outcome: &Outcome) -> Option<Packet> {
    (outcome.mirror != 0).then_some(Packet {
        kind: kind::PSEUDO as u8,
        connection: packet.connection,
        context: packet.context,
        seq: outcome.next,
        length: outcome.merged,
        end: outcome.merge_end,
        bound: outcome.merge_end,
        ..Packet::default()
    })
}
