//! What is sent and acknowledged: every order of bytes that a host sends, of acknowledgements with windows, and of credits. After each
//! packet must hold:
//!
//! - nothing is sent that is acknowledged already, that lies beyond the peer's window, or without credits;
//! - the first number that is not acknowledged never moves back, and the end of what was sent is that of what the host has offered;
//! - what is sent is paid for, and acknowledged bytes are given back;
//! - an acknowledgement of bytes that were never offered changes nothing and is reported, and so is the third duplicate, once.
//!
//! The thesis' pipeline differs: such an acknowledgement moves `tx_next_ack`, the last credit pays for any number of bytes, and any
//! acknowledgement without payload that repeats the last is a duplicate.
//!
//! And from every state a host that sends again what is not acknowledged, with credits, comes to the end at a fair peer.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use wave_rmt::{Phv, Pipeline, Verdict};

use super::super::fields::{
    ACK, BOUND, END, HALF, HAS_PAYLOAD, KIND, LENGTH, NEWEST, SEQ, TARGET, WINDOW,
};
use super::super::transmit::{DUP_THRESH, sync};
use super::super::{
    DIGEST_CHALLENGE, DIGEST_FAST_RETRANSMIT, DIGEST_UNSENT, Transmission, is_thesis, kind,
    set_reassembly, set_transmission, transmission,
};
use super::{Explored, MASK, Machine, Side, WORD, search};

/// What the search varies.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Sequence number of the first byte.
    pub first: u32,
    /// Bytes of the stream.
    pub bytes: u8,
    /// The peer's window at first, in bytes. Acknowledgements open it to the stream's end and a byte beyond.
    pub window: u8,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { first: 0, bytes: 5, window: 2 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    registers: Transmission,
    /// Offset of the right edge of the peer's window, as far as it was told.
    edge: u8,
    /// Offset behind the last byte that the host has offered.
    offered: u8,
    /// What is violated.
    broken: Option<String>,
}

/// Most credits that a search grants at once, and that a connection may have.
const CREDITS: u32 = 3;

/// Searches all states of a pipeline's transmission, breadth first, until a violation.
///
/// # Panics
/// If the stream is longer than half of the sequence numbers.
pub fn explore(pipeline: &Pipeline<'_>, settings: Settings) -> Explored {
    assert!(u32::from(settings.bytes.max(settings.window)) <= MASK / 2);
    let start = At {
        registers: [settings.first & MASK, 0, 0, CREDITS, settings.window.into()],
        edge: settings.window,
        offered: 0,
        broken: None,
    };
    search(pipeline, &settings, start, |table| table.starts_with("tx_") || table == "progress")
}

/// Kinds of segments that carry an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    /// Without payload, at `rx_next`.
    Pure,
    /// A byte out of order, which says nothing of the window.
    OutOfOrder,
}

impl Settings {
    fn offset(&self, seq: u32) -> u8 {
        (seq.wrapping_sub(self.first) & MASK) as u8
    }

    fn seq(&self, offset: u8) -> u32 {
        self.first.wrapping_add(offset.into()) & MASK
    }

    /// A host offers bytes. Returns whether they are sent.
    fn send(&self, machine: &mut Machine<'_>, at: &mut At, from: u8, to: u8) -> bool {
        let una = self.offset(at.registers[0]);
        let credits = at.registers[3];
        let bytes = u32::from(to - from);
        let mut phv = Phv::default()
            .with(KIND, kind::TRANSMIT)
            .with(SEQ, self.seq(from))
            .with(ACK, self.seq(from))
            .with(LENGTH, bytes)
            .with(HAS_PAYLOAD, 1)
            .with(END, self.seq(to));
        let verdict = pass(machine, &mut at.registers, &mut phv);
        if from >= una {
            at.offered = at.offered.max(to);
        }
        let is_sent = !verdict.is_dropped;
        let is_thesis = is_thesis(machine.pipeline);
        let has_credits = if is_thesis { credits > 0 } else { credits >= bytes };
        let paid = credits.wrapping_sub(at.registers[3]);
        if is_sent && from < una {
            at.broken = Some(format!("byte {from} is sent, and {una} bytes are acknowledged"));
        } else if is_sent && to > at.edge {
            at.broken =
                Some(format!("byte {} is sent beyond the peer's edge, {}", to - 1, at.edge));
        } else if is_sent && !has_credits {
            at.broken = Some(format!("{bytes} bytes are sent with {credits} credits"));
        } else if !is_thesis && paid != if is_sent { bytes } else { 0 } {
            at.broken = Some(format!("{bytes} bytes pay {paid} credits; sent: {is_sent}"));
        }
        is_sent
    }

    /// The peer acknowledges, and advertises a window.
    fn acknowledge(
        &self,
        machine: &mut Machine<'_>,
        at: &At,
        carrier: Carrier,
        to: u8,
        window: u8,
    ) -> At {
        let mut next = at.clone();
        let [_, _, dupacks, credits, remote] = at.registers;
        let una = self.offset(at.registers[0]);
        let ack = self.seq(to);
        let phv = Phv::default()
            .with(KIND, kind::RECEIVE)
            .with(ACK, ack)
            .with(NEWEST, ack.wrapping_add(MASK / 4))
            .with(BOUND, MASK / 4)
            .with(WINDOW, window.into())
            .with(HALF, 1);
        // rx_next is 0.
        let mut phv = match carrier {
            Carrier::Pure => phv,
            Carrier::OutOfOrder => {
                phv.with(SEQ, 1).with(LENGTH, 1).with(END, 2).with(HAS_PAYLOAD, 1)
            }
        };
        let verdict = pass(machine, &mut next.registers, &mut phv);
        let now = self.offset(next.registers[0]);
        let is_thesis = is_thesis(machine.pipeline);
        let is_pure = carrier == Carrier::Pure;
        let is_unsent = to > at.offered;
        let is_taken = to >= una && (is_thesis || !is_unsent);
        if is_taken && is_pure {
            next.edge = next.edge.max(to + window);
        }
        let is_steady = remote == window.into() && window > 0 && at.offered > una;
        let is_duplicate = to == una && is_pure && (is_thesis || is_steady);
        let is_third = is_duplicate && dupacks + 1 == DUP_THRESH;
        let expected = match (is_unsent, is_third) {
            (true, _) if is_thesis => DIGEST_UNSENT,
            (true, _) => DIGEST_CHALLENGE,
            (_, true) => DIGEST_FAST_RETRANSMIT,
            _ => 0,
        };
        let expected_una = if is_taken { to } else { una };
        let acked = u32::from(expected_una - una);
        let expected_credits = if is_third { 0 } else { credits + acked };
        if verdict.digest != expected {
            next.broken = Some(format!("digest {} instead of {expected}", verdict.digest));
        } else if now != expected_una {
            next.broken =
                Some(format!("{now} bytes are acknowledged after an acknowledgement of {to}"));
        } else if !is_thesis && next.registers[3] != expected_credits {
            let left = next.registers[3];
            next.broken = Some(format!("{left} credits are left instead of {expected_credits}"));
        } else if !is_thesis && is_unsent && next != *at {
            next.broken =
                Some(String::from("an acknowledgement of bytes never sent has an effect"));
        }
        next
    }
}

/// Passes a packet of a connection with these registers, which it changes.
fn pass(machine: &mut Machine<'_>, registers: &mut Transmission, phv: &mut Phv<WORD>) -> Verdict {
    let pipeline = machine.pipeline;
    let state = &mut machine.machine.state;
    // Connection 0 exists. The host receives nothing here.
    let _ = set_reassembly(pipeline, state, 0, [0, 8, 0, 0]);
    let _ = set_transmission(pipeline, state, 0, *registers);
    let verdict = machine.pass(phv);
    *registers = transmission(pipeline, &machine.machine.state, 0);
    verdict
}

impl Side for Settings {
    type At = At;

    fn successors(&self, machine: &mut Machine<'_>, at: &At) -> Vec<(At, String)> {
        let mut successors = vec![];
        for from in 0..self.bytes {
            for to in from + 1..=self.bytes {
                let mut next = at.clone();
                let is_sent = self.send(machine, &mut next, from, to);
                let how = if is_sent { "sent" } else { "dropped" };
                successors.push((next, format!("bytes {from}..{to}, {how}")));
            }
        }
        for carrier in [Carrier::Pure, Carrier::OutOfOrder] {
            for to in 0..=self.bytes {
                for window in 0..=self.bytes {
                    // A peer does not take its edge back (RFC 9293, 3.8.6), and an edge behind the stream says no more.
                    let is_fair =
                        to + window >= at.edge.min(self.bytes) || to < self.offset(at.registers[0]);
                    if !is_fair || to + window > self.bytes + 1 {
                        continue;
                    }
                    let next = self.acknowledge(machine, at, carrier, to, window);
                    // With the thesis' pipeline, the control plane resets such a connection.
                    if to <= at.offered || next.broken.is_some() || !is_thesis(machine.pipeline) {
                        successors.push((
                            next,
                            format!("{carrier:?} acknowledges {to}, window {window}"),
                        ));
                    }
                }
            }
        }
        if at.registers[3] < CREDITS {
            let mut next = at.clone();
            let phv = Phv::default().with(KIND, kind::SYNC).with(TARGET, sync::CREDITS);
            pass(machine, &mut next.registers, &mut phv.with(LENGTH, CREDITS - at.registers[3]));
            successors.push((next, String::from("credits")));
        }
        successors
    }

    fn violation(&self, machine: &mut Machine<'_>, at: &At) -> Option<String> {
        if at.broken.is_some() {
            return at.broken.clone();
        }
        let una = self.offset(at.registers[0]);
        let avail = at.registers[1];
        if avail != u32::from(at.offered.saturating_sub(una)) {
            return Some(format!(
                "{avail} bytes are outstanding, and the host has offered {} of {una}",
                at.offered
            ));
        }
        self.finishes(machine, at)
    }
}

impl Settings {
    /// Whether a host that sends what is not acknowledged comes to the end at a peer with an open window.
    fn finishes(&self, machine: &mut Machine<'_>, at: &At) -> Option<String> {
        let mut at = at.clone();
        for _ in 0..2 * self.bytes {
            let una = self.offset(at.registers[0]);
            if una == self.bytes {
                return None;
            }
            let phv = Phv::default().with(KIND, kind::SYNC).with(TARGET, sync::CREDITS);
            pass(machine, &mut at.registers, &mut phv.with(LENGTH, 1));
            let open = self.acknowledge(machine, &at, Carrier::Pure, una, self.bytes - una);
            at = At { broken: None, ..open };
            if self.send(machine, &mut at, una, una + 1) {
                at = self.acknowledge(machine, &at, Carrier::Pure, una + 1, self.bytes - una - 1);
            }
        }
        Some(format!("the host comes to {} of {} bytes", self.offset(at.registers[0]), self.bytes))
    }
}
