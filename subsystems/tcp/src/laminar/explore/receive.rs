//! Reassembly: every order of segments, copies to the host's memory, pseudo segments and grants. After each packet must hold:
//!
//! - what is acknowledged was copied, and so was what the host may read; with the thesis' pipeline, which does not wait for copies,
//!   it was received;
//! - the interval out of order has only received bytes, and ends not before it starts;
//! - no copy is under way of bytes that the host may read: it may have read them, and use their place for others;
//! - `rx_next` and the room behind it end at the granted edge;
//! - the payload is placed of a segment that is counted as received, and of no other.
//!
//! And from every state a peer that sends the bytes one by one, whose pseudo segments arrive, comes to the window's end and hears of it.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use wave_rmt::{Phv, Pipeline};

use super::super::fields::{
    ACK, BOUND, COPY, DIGEST, END, IS_PLACED, KIND, LANDED, LENGTH, MERGE_END, NEXT, OLD,
    RX_LANDED, SEQ, START, TARGET,
};
use super::super::trace::segment;
use super::super::transmit::sync;
use super::super::{DIGEST_BEYOND_WINDOW, Reassembly, is_thesis, kind, reassembly, set_reassembly};
use super::{Explored, MASK, Machine, Side, WORD, search};

/// Most bytes of the stream: received bytes are a set of bits, and offsets must stay below half of the sequence numbers.
pub const BYTES_MAX: u8 = 12;

/// What the search varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Sequence number of the first byte.
    pub first: u32,
    /// Bytes of the stream.
    pub bytes: u8,
    /// Bytes of the window at first; grants extend it one by one.
    pub window: u8,
    /// Most pseudo segments on their way.
    pub pseudo: usize,
    /// Most copies to the host's memory under way. They end in order, and further segments wait.
    pub copies: usize,
    /// Whether the peer sends beyond the window, too.
    pub is_hostile: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { first: 0, bytes: 8, window: 7, pseudo: 2, copies: 1, is_hostile: true }
    }
}

/// A pseudo segment on its way: sequence number, length and end.
type Pseudo = (u8, u8, u8);

/// Bytes that are being copied, by their bits, and the pseudo segment that waits for them.
type Copying = (u16, Option<Pseudo>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    registers: Reassembly,
    /// Sequence number in `rx_landed`.
    landed: u8,
    /// Bit for each byte of the stream that is in the host's memory.
    received: u16,
    /// Copies under way. A segment without a copy waits for those before it, too.
    copies: Vec<Copying>,
    /// Offset of the granted edge in the stream.
    edge: u8,
    /// Offset up to which bytes were acknowledged.
    acknowledged: u8,
    /// Offset up to which the host may read.
    readable: u8,
    pseudo: Vec<Pseudo>,
    /// What `rx_next` was before a segment beyond the window moved it, until the control plane sets it back.
    reset: Option<u8>,
}

/// Searches all states of a pipeline's reassembly, breadth first, until a violation.
///
/// # Panics
/// If the settings ask for more bytes than [`BYTES_MAX`].
pub fn explore(pipeline: &Pipeline<'_>, settings: Settings) -> Explored {
    assert!(settings.bytes <= BYTES_MAX && settings.window <= settings.bytes);
    let start = At {
        registers: [settings.first & MASK, settings.window.into(), 0, 0],
        landed: (settings.first & MASK) as u8,
        received: 0,
        copies: vec![],
        edge: settings.window,
        acknowledged: 0,
        readable: 0,
        pseudo: vec![],
        reset: None,
    };
    search(pipeline, &settings, start, |table| table.starts_with("rx_") || table == "order")
}

impl Settings {
    /// The sequence number of an offset in the stream.
    fn seq(&self, offset: u8) -> u32 {
        self.first.wrapping_add(offset.into()) & MASK
    }

    /// The offset in the stream of a sequence number.
    fn offset(&self, seq: u32) -> u8 {
        (seq.wrapping_sub(self.first) & MASK) as u8
    }

    /// A segment of the bytes from one offset up to another.
    fn receive(&self, machine: &mut Machine<'_>, at: &At, from: u8, to: u8) -> At {
        let mut next = at.clone();
        let mut phv = segment::<WORD>(self.seq(from), u32::from(to - from));
        let copy = pass(machine, &mut next, &mut phv);
        let mut bytes = 0;
        if phv.get(IS_PLACED) == 1 {
            let placed = if is_thesis(machine.pipeline) {
                from..to
            } else {
                let start = self.offset(phv.get(OLD).wrapping_add(phv.get(START)));
                start..start + phv.get(COPY) as u8
            };
            placed.for_each(|byte| bytes |= 1 << byte);
        }
        if phv.get(DIGEST) == DIGEST_BEYOND_WINDOW && at.reset.is_none() {
            next.reset = Some(self.offset(at.registers[0]));
        }
        let pseudo = copy.map(|copy| {
            let [seq, length, end] = [SEQ, LENGTH, END].map(|field| copy.get(field) as u8);
            (seq, length, end)
        });
        if is_thesis(machine.pipeline) {
            next.received |= bytes;
            if bytes != 0 {
                // The host may read up to here.
                next.readable = next.readable.max(self.offset(phv.get(MERGE_END)));
            }
            self.send_pseudo(&mut next, pseudo);
        } else if bytes != 0 || !next.copies.is_empty() {
            next.copies.push((bytes, pseudo));
        } else {
            self.send_pseudo(&mut next, pseudo);
        }
        next
    }

    /// A pseudo segment is on its way, or lost because too many are.
    fn send_pseudo(&self, at: &mut At, pseudo: Option<Pseudo>) {
        if let Some(pseudo) = pseudo.filter(|_| at.pseudo.len() < self.pseudo) {
            at.pseudo.push(pseudo);
            at.pseudo.sort_unstable();
        }
    }

    /// The first copy is done.
    fn copied(&self, at: &mut At) {
        let (bytes, pseudo) = at.copies.remove(0);
        at.received |= bytes;
        self.send_pseudo(at, pseudo);
    }

    /// A packet leaves as an acknowledgement.
    fn acknowledge(&self, machine: &Machine<'_>, at: &mut At, phv: &Phv<WORD>) {
        let number = if is_thesis(machine.pipeline) { NEXT } else { LANDED };
        at.acknowledged = at.acknowledged.max(self.offset(phv.get(number)).min(self.bytes));
    }

    /// Whether a fair peer comes to the window's end, and hears of it.
    fn recovers(&self, machine: &mut Machine<'_>, at: &At) -> Option<String> {
        let mut now = At { acknowledged: 0, pseudo: vec![], ..at.clone() };
        while !now.copies.is_empty() {
            self.copied(&mut now);
        }
        for _ in 0..2 {
            for byte in 0..at.edge {
                // The copy ends at once.
                let mut phv = segment::<WORD>(self.seq(byte), 1);
                if let Some(mut copy) = pass(machine, &mut now, &mut phv) {
                    pass(machine, &mut now, &mut copy);
                    self.acknowledge(machine, &mut now, &copy);
                }
            }
        }
        let end = self.offset(now.registers[0]);
        (end.min(now.acknowledged) < at.edge).then(|| {
            format!(
                "a fair peer delivers {end} of {} bytes, and hears of {}",
                at.edge, now.acknowledged
            )
        })
    }
}

/// Passes a packet of the connection, whose registers it changes. Returns the pseudo segment.
fn pass(machine: &mut Machine<'_>, at: &mut At, phv: &mut Phv<WORD>) -> Option<Phv<WORD>> {
    let pipeline = machine.pipeline;
    // Connection 0 exists.
    let state = &mut machine.machine.state;
    let _ = set_reassembly(pipeline, state, 0, at.registers);
    let edge = state.read(RX_LANDED, 0).unwrap_or_default()[1];
    let _ = state.write(RX_LANDED, 0, [at.landed.into(), edge]);
    let verdict = machine.pass(phv);
    let state = &machine.machine.state;
    at.registers = reassembly(pipeline, state, 0);
    at.landed = state.read(RX_LANDED, 0).unwrap_or_default()[0] as u8;
    pipeline.mirrored(verdict.mirror, phv)
}

impl Side for Settings {
    type At = At;

    fn successors(&self, machine: &mut Machine<'_>, at: &At) -> Vec<(At, String)> {
        let mut successors = vec![];
        let most = if self.is_hostile { self.bytes } else { at.edge };
        let has_room = at.copies.len() < self.copies;
        for from in 0..if has_room { most } else { 0 } {
            for to in from + 1..=most {
                let next = self.receive(machine, at, from, to);
                successors.push((next, format!("segment {from}..{to}")));
            }
        }
        for (ahead, ack, what) in [
            (0, 0, "a segment without payload"),
            (1, 0, "a segment without payload, behind rx_next"),
            (MASK, 0, "a segment without payload, before rx_next"),
            (0, 1, "a segment that acknowledges what was never sent"),
        ] {
            // Nothing may change.
            let mut next = at.clone();
            let seq = at.registers[0].wrapping_add(ahead) & MASK;
            let mut phv = segment::<WORD>(seq, u32::from(ack > 0)).with(ACK, ack);
            if is_thesis(machine.pipeline) && (ack > 0 || ahead > 0) {
                continue;
            }
            pass(machine, &mut next, &mut phv);
            successors.push((next, String::from(what)));
        }
        let mut next = at.clone();
        let mut phv = Phv::default().with(KIND, kind::TRANSMIT);
        pass(machine, &mut next, &mut phv);
        self.acknowledge(machine, &mut next, &phv);
        successors.push((next, String::from("a packet to send")));
        if !at.copies.is_empty() {
            let mut next = at.clone();
            self.copied(&mut next);
            successors.push((next, String::from("a copy is done")));
        }
        for index in 0..at.pseudo.len() {
            let mut next = at.clone();
            let (seq, length, end) = next.pseudo.remove(index);
            let name = format!("pseudo segment at {}, {length} bytes", self.offset(seq.into()));
            successors.push((next.clone(), format!("{name}, is lost")));
            let mut phv = Phv::default()
                .with(KIND, kind::PSEUDO)
                .with(SEQ, seq.into())
                .with(LENGTH, length.into())
                .with(END, end.into())
                .with(BOUND, end.into());
            pass(machine, &mut next, &mut phv);
            self.acknowledge(machine, &mut next, &phv);
            successors.push((next, name));
        }
        if at.edge < self.bytes {
            let mut next = at.clone();
            let mut phv = Phv::default()
                .with(KIND, kind::SYNC)
                .with(TARGET, sync::ROOM)
                .with(LENGTH, 1)
                .with(END, 1)
                .with(BOUND, 1);
            pass(machine, &mut next, &mut phv);
            next.edge += 1;
            successors.push((next, String::from("grant 1")));
        }
        if let Some(offset) = at.reset {
            let mut next = at.clone();
            next.registers = [self.seq(offset), u32::from(at.edge - offset), 0, 0];
            next.reset = None;
            successors.push((next, format!("control plane: rx_next is {offset} again")));
        }
        successors
    }

    fn violation(&self, machine: &mut Machine<'_>, at: &At) -> Option<String> {
        let [next, avail, tail, head] = at.registers;
        let missing_of = |bytes: u16, range: core::ops::Range<u8>| {
            range.into_iter().find(|byte| *byte < 16 && bytes >> byte & 1 == 0)
        };
        let missing = |range| missing_of(at.received, range);
        if let Some(byte) = missing(0..at.acknowledged) {
            return Some(format!(
                "{} bytes are acknowledged, and byte {byte} never came",
                at.acknowledged
            ));
        }
        if let Some(byte) = missing(0..at.readable) {
            return Some(format!(
                "the host may read {} bytes, and byte {byte} never came",
                at.readable
            ));
        }
        let landed = self.offset(at.landed.into());
        let again = at
            .copies
            .iter()
            .find_map(|(bytes, _)| (0..landed).find(|byte| *byte < 16 && bytes >> byte & 1 == 1));
        if let Some(byte) = again {
            return Some(format!(
                "the host may read {landed} bytes, and byte {byte} is copied again"
            ));
        }
        if at.reset.is_some() {
            // Until the control plane has set them back, the other registers promise nothing.
            return None;
        }
        let offset = self.offset(next);
        // Bytes that came, whether their copies are done or not.
        let came = at.copies.iter().fold(at.received, |came, (bytes, _)| came | bytes);
        let missing = |range| missing_of(came, range);
        if let Some(byte) = missing(0..offset) {
            return Some(format!("rx_next is {offset}, and byte {byte} never came"));
        }
        if head > tail {
            return Some(format!("the interval starts at {head} and ends at {tail}"));
        }
        if let Some(byte) = missing(offset + head as u8..offset + tail as u8) {
            return Some(format!("the interval has byte {byte}, which never came"));
        }
        if u32::from(offset) + avail != at.edge.into() {
            return Some(format!("{offset} + {avail} is not the granted edge, {}", at.edge));
        }
        self.recovers(machine, at)
    }
}
