//! The egress of [`LAMINAR`](wave_tcp::laminar::LAMINAR), written by hand: a struct per connection, and a branch per kind of packet.

use wave_tcp::laminar::receive::class;
use wave_tcp::laminar::transmit::sync;
use wave_tcp::laminar::{
    CONNECTIONS, CONTEXTS, DIGEST_CHALLENGE, DIGEST_FAST_RETRANSMIT, PSEUDO_SESSION, kind,
};

/// What the ingress hands to the egress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// What the packet is, of [`kind`].
    pub kind: u8,
    /// 1 if there is payload.
    pub has_payload: u8,
    /// 1 if the acknowledgement echoes a congestion mark.
    pub is_marked: u8,
    /// Which register SYNC concerns, of [`sync`].
    pub target: u8,
    pub connection: u16,
    pub context: u16,
    pub seq: u32,
    /// Number of bytes; for SYNC, what it adds to a register.
    pub length: u32,
    /// Sequence number after them; for SYNC, what it adds to a register.
    pub end: u32,
    /// For a segment, `seq` plus the most bytes that it may lie behind; for a pseudo segment its end; for SYNC, what it adds to a register.
    pub bound: u32,
    /// The acknowledged number; for bytes to send that of the first.
    pub ack: u32,
    /// `ack` plus the most bytes that it may lie behind.
    pub newest: u32,
    pub window: u32,
}

/// What leaves the egress. A value that the packet has no use for is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The segment's class, of [`class`].
    pub class: u8,
    /// Whether the payload is placed into the host's memory.
    pub is_placed: bool,
    pub is_dropped: bool,
    /// The mirror session.
    pub mirror: u8,
    /// The digest for the control plane.
    pub digest: u8,
    /// Duplicate acknowledgements in a row; for SYNC, fast retransmissions.
    pub dupacks: u8,
    /// `rx_next` before the packet.
    pub old: u32,
    /// Offset from `old` of the first byte to copy, and their number.
    pub start: u32,
    pub copy: u32,
    /// `rx_next` after it.
    pub next: u32,
    /// The acknowledged sequence number, and the window.
    pub landed: u32,
    pub avail: u32,
    /// The interval out of order, as offsets from `next`.
    pub tail: u32,
    pub head: u32,
    /// Bytes that the pseudo segment merges, and their end.
    pub merged: u32,
    pub merge_end: u32,
    /// Number of this packet in its context's channel.
    pub psn: u32,
    /// Bytes that the packet acknowledges, or the end of those to send; for SYNC, what was acknowledged since congestion control looked.
    pub distance: u32,
    /// The peer's window after an acknowledgement.
    pub remote: u32,
    /// Number of bytes of payload; for SYNC, of bytes that were acknowledged with a mark.
    pub length: u32,
}

/// The registers of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    pub landed: u32,
    pub landed_edge: u32,
    pub next: u32,
    pub edge: u32,
    pub tail: u32,
    pub head: u32,
    pub una: u32,
    pub sent: u32,
    pub credits: u32,
    pub remote_avail: u32,
    pub acked_bytes: u32,
    pub marked_bytes: u32,
    pub dupacks: u8,
    pub fast_retransmits: u8,
}

/// All connections, and the numbers of the next packets to each context.
#[derive(Clone, Debug)]
pub struct Hand {
    pub connections: Vec<Connection>,
    pub psns: Vec<u32>,
}

impl Default for Hand {
    fn default() -> Hand {
        Hand {
            connections: vec![Connection::default(); CONNECTIONS as usize],
            psns: vec![0; CONTEXTS as usize],
        }
    }
}

/// Duplicate acknowledgements after which a segment counts as lost (RFC 5681, 3.2).
const DUP_THRESH: u8 = 3;

const RECEIVE: u8 = kind::RECEIVE as u8;
const PSEUDO: u8 = kind::PSEUDO as u8;
const TRANSMIT: u8 = kind::TRANSMIT as u8;
const SYNC: u8 = kind::SYNC as u8;
const ROOM: u8 = sync::ROOM as u8;
const CREDITS: u8 = sync::CREDITS as u8;
const STATISTICS: u8 = sync::STATISTICS as u8;
const IN_ORDER: u8 = class::IN_ORDER as u8;
const OUT_OF_ORDER: u8 = class::OUT_OF_ORDER as u8;
const DUPLICATE: u8 = class::DUPLICATE as u8;
const PURE: u8 = class::PURE as u8;

/// How far sequence number `a` is behind `b`; negative if it is before.
#[inline(always)]
fn behind(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Hand {
    /// Passes a packet through the egress. The packet of an unknown connection or context leaves unchanged.
    #[inline(always)]
    pub fn egress(&mut self, packet: &Packet) -> Outcome {
        let mut outcome = Outcome { length: packet.length, ..Outcome::default() };
        let connection = self.connections.get_mut(usize::from(packet.connection));
        let psn = self.psns.get_mut(usize::from(packet.context));
        let (Some(connection), Some(psn)) = (connection, psn) else { return outcome };
        match packet.kind {
            RECEIVE => {
                connection.receive(packet, &mut outcome);
                if outcome.is_placed {
                    outcome.psn = *psn;
                    *psn = psn.wrapping_add(1);
                }
            }
            PSEUDO => {
                if behind(packet.bound, connection.landed) > 0 {
                    connection.landed = packet.bound;
                }
                connection.advertise(&mut outcome);
                connection.reassemble(packet, &mut outcome);
            }
            TRANSMIT => connection.transmit(packet, &mut outcome),
            SYNC => connection.sync(packet, &mut outcome),
            _ => connection.look(0, &mut outcome),
        }
        outcome.merge_end = outcome.next;
        if outcome.head == 0 {
            outcome.merged = outcome.tail;
            outcome.merge_end = outcome.next.wrapping_add(outcome.tail);
        }
        outcome
    }
}

/// What a segment's acknowledgement says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum News {
    New,
    /// It repeats the last one.
    Same,
    Old,
    /// Nothing that could be true.
    None,
}

/// Where a segment without payload lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Empty {
    /// Ahead of `rx_next`, within the window.
    Ahead,
    Elsewhere,
}

impl Connection {
    /// What a packet without new bytes sees.
    #[inline(always)]
    fn look(&self, next: u32, outcome: &mut Outcome) {
        outcome.class = DUPLICATE;
        outcome.next = next;
        (outcome.tail, outcome.head) = (self.tail, self.head);
    }

    /// What a packet that leaves acknowledges and advertises.
    #[inline(always)]
    fn advertise(&self, outcome: &mut Outcome) {
        outcome.landed = self.landed;
        outcome.avail = self.landed_edge.wrapping_sub(self.landed);
    }

    /// Takes a segment.
    #[inline(always)]
    fn receive(&mut self, packet: &Packet, outcome: &mut Outcome) {
        let is_plausible =
            behind(packet.seq, self.landed_edge) <= 0 && behind(packet.bound, self.landed) >= 0;
        let (mut una, mut flight) = (0, 0);
        let (mut news, mut is_unsent) = (News::None, false);
        if is_plausible {
            (una, flight) = (self.una, self.sent.wrapping_sub(self.una));
            let is_beyond = behind(packet.ack, self.sent) > 0;
            news = match behind(packet.ack, self.una) {
                _ if is_beyond => News::None,
                1.. => News::New,
                0 => News::Same,
                _ => News::Old,
            };
            is_unsent = is_beyond && behind(packet.ack, self.una) > 0;
            if news == News::New {
                self.una = packet.ack;
                outcome.distance = packet.ack.wrapping_sub(una);
            }
        }
        if !is_plausible {
            self.look(0, outcome);
            (outcome.is_dropped, outcome.digest) = (true, DIGEST_CHALLENGE as u8);
            return;
        }
        let is_ancient = news != News::New && behind(packet.newest, una) < 0;
        if is_unsent || is_ancient {
            self.look(0, outcome);
            (outcome.is_dropped, outcome.digest) = (true, DIGEST_CHALLENGE as u8);
        } else {
            self.place(packet, outcome);
        }
        self.acknowledge(packet, news, flight, outcome);
    }

    /// Takes a segment's bytes, or says why not.
    #[inline(always)]
    fn place(&mut self, packet: &Packet, outcome: &mut Outcome) {
        let (joins, empty) = self.reassemble(packet, outcome);
        let joins = joins && !(packet.has_payload == 1 && outcome.copy == 0);
        outcome.is_placed = joins;
        outcome.is_dropped = !joins;
        if joins || outcome.class == OUT_OF_ORDER || packet.has_payload == 1 {
            outcome.mirror = PSEUDO_SESSION as u8;
        } else if outcome.class != PURE && empty == Empty::Elsewhere {
            outcome.digest = DIGEST_CHALLENGE as u8;
        }
    }

    /// Advances the stream. Returns whether the segment's bytes are new and can be kept, and where it lies if it has none.
    #[inline(always)]
    fn reassemble(&mut self, packet: &Packet, outcome: &mut Outcome) -> (bool, Empty) {
        let old = self.next;
        let starts = behind(packet.seq, old);
        let is_new = behind(packet.end, old) > 0;
        let is_within = behind(packet.end, self.edge) <= 0;
        let ahead = packet.end.wrapping_sub(old);
        outcome.old = old;
        if is_within && is_new && starts <= 0 {
            if self.head == 0 {
                outcome.start = self.tail;
            }
            outcome.copy = ahead.saturating_sub(outcome.start);
            self.next = packet.end;
            self.tail = self.tail.saturating_sub(ahead);
            self.head = self.head.saturating_sub(ahead);
            self.look(packet.end, outcome);
            outcome.class = IN_ORDER;
            return (true, Empty::Elsewhere);
        }
        if !(is_within && is_new && packet.has_payload == 1) {
            self.look(old, outcome);
            if is_within && !is_new && starts == 0 {
                outcome.class = PURE;
            }
            let is_ahead = is_within && is_new;
            return (false, if is_ahead { Empty::Ahead } else { Empty::Elsewhere });
        }
        let start = packet.seq.wrapping_sub(old);
        outcome.start = if self.head == 0 { start.max(self.tail) } else { start };
        let joins = if self.tail == 0 {
            outcome.start = start;
            (self.tail, self.head) = (ahead, start);
            true
        } else {
            let joins = start <= self.tail && ahead >= self.head;
            if start <= self.tail && ahead > self.tail {
                self.tail = ahead;
            }
            if ahead >= self.head && start < self.head {
                self.head = start;
            }
            joins
        };
        self.look(old, outcome);
        outcome.class = OUT_OF_ORDER;
        outcome.copy = ahead.saturating_sub(outcome.start);
        (joins, Empty::Elsewhere)
    }

    /// Takes a segment's window, and counts.
    #[inline(always)]
    fn acknowledge(&mut self, packet: &Packet, news: News, flight: u32, outcome: &mut Outcome) {
        let acked = outcome.distance;
        let mut is_steady = false;
        if news == News::Old {
            return;
        }
        if outcome.class == IN_ORDER || outcome.class == PURE {
            is_steady = self.remote_avail == packet.window && packet.window != 0;
            self.remote_avail = packet.window;
            outcome.remote = self.remote_avail;
        } else if news == News::New {
            self.remote_avail = self.remote_avail.saturating_sub(acked);
            outcome.remote = self.remote_avail;
        }
        if news == News::New {
            self.dupacks = 0;
            self.credits = self.credits.wrapping_add(acked);
            self.acked_bytes = self.acked_bytes.saturating_add(acked);
            if packet.is_marked == 1 {
                self.marked_bytes = self.marked_bytes.saturating_add(acked);
            }
        } else if news == News::Same && flight != 0 && packet.has_payload & 1 == 0 && is_steady {
            self.dupacks = self.dupacks.saturating_add(1);
            outcome.dupacks = self.dupacks;
            if self.dupacks == DUP_THRESH {
                self.credits = 0;
                self.fast_retransmits = self.fast_retransmits.saturating_add(1);
                outcome.digest = DIGEST_FAST_RETRANSMIT as u8;
            }
        }
    }

    /// Takes bytes that a host sends.
    #[inline(always)]
    fn transmit(&mut self, packet: &Packet, outcome: &mut Outcome) {
        self.advertise(outcome);
        self.look(0, outcome);
        let una = self.una;
        if behind(packet.ack, una) >= 0 && behind(packet.end, self.sent) > 0 {
            self.sent = packet.end;
        }
        outcome.distance = packet.end.wrapping_sub(una);
        if packet.has_payload != 1 {
            return;
        }
        let has_room = outcome.distance <= self.remote_avail;
        let has_credits = i64::from(packet.length as i32) <= i64::from(self.credits as i32);
        let is_sent = behind(packet.seq, una) >= 0 && has_room && has_credits;
        outcome.is_dropped = !is_sent;
        if is_sent {
            self.credits = self.credits.wrapping_sub(packet.length);
        }
    }

    /// Takes what SYNC writes, and reads what it asks for.
    #[inline(always)]
    fn sync(&mut self, packet: &Packet, outcome: &mut Outcome) {
        self.look(0, outcome);
        match packet.target {
            ROOM => {
                self.landed_edge = self.landed_edge.wrapping_add(packet.bound);
                self.edge = self.edge.wrapping_add(packet.end);
                self.advertise(outcome);
            }
            CREDITS => self.credits = self.credits.wrapping_add(packet.length),
            STATISTICS => {
                outcome.distance = std::mem::take(&mut self.acked_bytes);
                outcome.length = std::mem::take(&mut self.marked_bytes);
                outcome.dupacks = std::mem::take(&mut self.fast_retransmits);
            }
            _ => (),
        }
    }
}
