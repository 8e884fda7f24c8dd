//! Reassembly: every order of segments, pseudo segments and grants. After each packet must hold:
//!
//! - what is acknowledged was received, and so was what the host may read;
//! - the interval out of order has only received bytes, and ends not before it starts;
//! - `rx_next` and the room behind it end at the granted edge;
//! - the payload is placed of a segment that is counted as received, and of no other.
//!
//! And from every state a peer that sends the bytes one by one, whose pseudo segments arrive, comes to the window's end and hears of it.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use wave_rmt::{Phv, Pipeline};

use super::super::fields::{DIGEST, END, IS_PLACED, KIND, LENGTH, MERGE_END, NEXT, SEQ, TARGET};
use super::super::trace::segment;
use super::super::transmit::sync;
use super::super::{DIGEST_BEYOND_WINDOW, Reassembly, kind, reassembly, set_reassembly};
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
    /// Whether the peer sends beyond the window, too.
    pub is_hostile: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { first: 0, bytes: 8, window: 7, pseudo: 2, is_hostile: true }
    }
}

/// A pseudo segment on its way: sequence number, length and end.
type Pseudo = (u8, u8, u8);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    registers: Reassembly,
    /// Bit for each received byte of the stream.
    received: u16,
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
        received: 0,
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
        let (registers, copy) = pass(machine, at.registers, &mut phv);
        next.registers = registers;
        if phv.get(IS_PLACED) == 1 {
            (from..to).for_each(|byte| next.received |= 1 << byte);
            // The host may read up to here.
            next.readable = next.readable.max(self.offset(phv.get(MERGE_END)));
        }
        if phv.get(DIGEST) == DIGEST_BEYOND_WINDOW && at.reset.is_none() {
            next.reset = Some(self.offset(at.registers[0]));
        }
        if let Some(copy) = copy.filter(|_| next.pseudo.len() < self.pseudo) {
            let [seq, length, end] = [SEQ, LENGTH, END].map(|field| copy.get(field) as u8);
            next.pseudo.push((seq, length, end));
            next.pseudo.sort_unstable();
        }
        next
    }

    /// A pseudo segment leaves as an acknowledgement.
    fn acknowledge(&self, at: &mut At, phv: &Phv<WORD>) {
        at.acknowledged = at.acknowledged.max(self.offset(phv.get(NEXT)).min(self.bytes));
    }

    /// Whether a fair peer comes to the window's end, and hears of it.
    fn recovers(&self, machine: &mut Machine<'_>, at: &At) -> Option<String> {
        let mut registers = at.registers;
        let mut acknowledged = 0;
        for _ in 0..2 {
            for byte in 0..at.edge {
                let mut phv = segment::<WORD>(self.seq(byte), 1);
                let copy;
                (registers, copy) = pass(machine, registers, &mut phv);
                if let Some(mut copy) = copy {
                    (registers, _) = pass(machine, registers, &mut copy);
                    acknowledged = acknowledged.max(self.offset(copy.get(NEXT)));
                }
            }
        }
        let end = self.offset(registers[0]);
        (end.min(acknowledged) < at.edge).then(|| {
            format!("a fair peer delivers {end} of {} bytes, and hears of {acknowledged}", at.edge)
        })
    }
}

/// Passes a packet of a connection with these registers. Returns them as the packet leaves them, and the pseudo segment.
fn pass(
    machine: &mut Machine<'_>,
    registers: Reassembly,
    phv: &mut Phv<WORD>,
) -> (Reassembly, Option<Phv<WORD>>) {
    let pipeline = machine.pipeline;
    // Connection 0 exists.
    let _ = set_reassembly(pipeline, &mut machine.machine.state, 0, registers);
    let verdict = machine.pass(phv);
    let copy = pipeline.mirrored(verdict.mirror, phv);
    (reassembly(pipeline, &machine.machine.state, 0), copy)
}

impl Side for Settings {
    type At = At;

    fn successors(&self, machine: &mut Machine<'_>, at: &At) -> Vec<(At, String)> {
        let mut successors = vec![];
        let most = if self.is_hostile { self.bytes } else { at.edge };
        for from in 0..most {
            for to in from + 1..=most {
                let next = self.receive(machine, at, from, to);
                successors.push((next, format!("segment {from}..{to}")));
            }
        }
        for kind in [kind::RECEIVE, kind::TRANSMIT] {
            // Without payload: nothing may change.
            let mut next = at.clone();
            let mut phv = segment::<WORD>(at.registers[0], 0).with(KIND, kind);
            (next.registers, _) = pass(machine, at.registers, &mut phv);
            successors.push((next, format!("a packet of kind {kind} without payload")));
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
                .with(END, end.into());
            (next.registers, _) = pass(machine, at.registers, &mut phv);
            self.acknowledge(&mut next, &phv);
            successors.push((next, name));
        }
        if at.edge < self.bytes {
            let mut next = at.clone();
            let mut phv = Phv::default()
                .with(KIND, kind::SYNC)
                .with(TARGET, sync::ROOM)
                .with(LENGTH, 1)
                .with(END, 1);
            (next.registers, _) = pass(machine, at.registers, &mut phv);
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
        let missing = |range: core::ops::Range<u8>| {
            range.into_iter().find(|byte| *byte < 16 && at.received >> byte & 1 == 0)
        };
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
        if at.reset.is_some() {
            // Until the control plane has set them back, the other registers promise nothing.
            return None;
        }
        let offset = self.offset(next);
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
