//! Laminar as a data path: the protocol stage's decisions by the pipeline (docs/adr/0113).
//!
//! The pipeline decides whether a segment is in order, out of order or without effect, what is acknowledged, when the peer has repeated
//! itself, and whether bytes may be sent: each by one pass. What the thesis gives to libTOE, to the switch's DMA and to its processor is
//! shared with FlexTOE's stages: rings and copies, the choice of bytes to send, delayed acknowledgements, congestion control's
//! window, FINs, timestamps and congestion marks. Registers have 32 bits; [`Protocol`] has the same numbers as positions.
//!
//! A pseudo segment passes when its segment's copy is done. The processor makes the passes of segments that the parser rejects: IPv6,
//! FINs, unusual options.

use alloc::vec::Vec;
use wave_core::clock::Nanos;
use wave_rmt::parser::parse;
use wave_rmt::{Gress, Phv, Specialised};

use super::fields::*;
use super::receive::class;
use super::transmit::sync;
use super::{CONNECTIONS, DIGEST_FAST_RETRANSMIT, LAMINAR, Laminar, kind};
use crate::context::Tail;
use crate::datapath::{Established, FlowId, INTERVALS_MAX, NoRoom, Settings};
use crate::executors::Inline;
use crate::flextoe::FlexToe;
use crate::flow::state::Protocol;
use crate::planted::{Planted, is_planted};
use crate::seq::{Seq, seq_of};
use crate::stages::acknowledge::{Acknowledged, echoed_round_trip, go_back_n};
use crate::stages::arbiter::{Answer, Arbiter};
use crate::stages::receive::{
    AckTiming, Dropped, Placed, Received, acks_at_once, bound_answers, old_timestamp,
    update_timestamp,
};
use crate::stages::recover::GoBackN;
use crate::stages::transmit::{DataSegment, transmit, window_probe};
use crate::stages::update;
use crate::summary::Summary;

/// Laminar's data path.
pub type LaminarDatapath<F> = FlexToe<F, Inline<F, Passes>>;

/// Name of the data path.
pub const NAME: &str = "laminar";

/// State of a connection outside the registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// Number in `context_psn`.
    pub(super) context: u32,
    /// Most bytes that a sequence number may lie behind: the receive ring.
    pub(super) behind_max: u32,
    /// Most bytes that an acknowledgement may lie behind: the peer's largest window (RFC 5961, 5).
    pub(super) ack_behind_max: u32,
    /// Copies under way.
    pub(super) copies: u32,
    /// The registers are behind the peer's FIN.
    pub(super) is_past_fin: bool,
    /// Acknowledgement and window of the last pass of bytes to send, for the header that is composed next.
    pub(super) carried: Option<Answer>,
}

/// Decisions by passes of the pipeline.
#[derive(Debug)]
pub struct Passes {
    pub(super) machine: Specialised<Laminar>,
    pub(super) flows: Vec<Beside>,
}

impl Passes {
    pub(super) fn beside(&mut self, id: FlowId) -> &mut Beside {
        &mut self.flows[id.index as usize]
    }

    pub(super) fn read(&self, register: usize, id: FlowId) -> [u32; 2] {
        self.machine.state.read(register, id.index).unwrap_or_default()
    }

    pub(super) fn write(&mut self, register: usize, id: FlowId, value: [u32; 2]) {
        let written = self.machine.state.write(register, id.index, value);
        debug_assert_eq!(written, Ok(()), "an installed connection has registers");
    }

    /// Fields of a packet of this kind for the egress.
    fn packet(&self, id: FlowId, kind: u32) -> Phv {
        Phv::default().with(KIND, kind).with(CONNECTION, id.index)
    }

    /// The fields of a segment. The processor fills them in for one that the parser or the ingress leaves to it, or whose payload
    /// must not count.
    fn fields(
        &mut self,
        id: FlowId,
        flow: &Protocol,
        frame: &[u8],
        summary: &Summary,
        bytes: u32,
    ) -> Phv {
        let mut phv = Phv::default();
        if bytes == summary.bytes
            && parse(LAMINAR.parser, frame, &mut phv).is_ok()
            && !self.machine.pass(Gress::Ingress, &mut phv).is_dropped
            && (phv.get(CONNECTION), phv.get(LENGTH)) == (id.index, bytes)
        {
            return phv;
        }
        let Beside { context, behind_max, ack_behind_max, .. } = *self.beside(id);
        self.packet(id, kind::RECEIVE)
            .with(CONTEXT, context)
            .with(SEQ, summary.seq.0)
            .with(BOUND, summary.seq.plus(behind_max).0)
            .with(LENGTH, bytes)
            .with(END, summary.seq.plus(bytes).0)
            .with(
                HAS_PAYLOAD,
                if bytes == 0 && summary.fin { BARE_FIN } else { u32::from(bytes > 0) },
            )
            .with(ACK, summary.ack.0)
            .with(NEWEST, summary.ack.plus(ack_behind_max).0)
            .with(WINDOW, u32::from(summary.window) << flow.send_scale)
            .with(FLAGS, if summary.echoes_mark { 0x40 } else { 0 })
    }

    fn examine(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        frame: &[u8],
        summary: &Summary,
        now: Nanos,
    ) -> Received {
        if let Some(refused) = old_timestamp(flow, summary, now) {
            return refused;
        }
        let received = flow.received;
        let start = i64::from(summary.seq.since(seq_of(flow.receive_base, received)));
        let behind = received.checked_add_signed(start + i64::from(summary.bytes));
        let is_past_fin =
            summary.bytes > 0 && behind.zip(flow.fin).is_some_and(|(behind, fin)| behind > fin);
        let mut bytes = if is_past_fin { 0 } else { summary.bytes };
        let had_gap = self.read(RX_OOO_TAIL, id)[0] > 0;
        let mut phv = self.fields(id, flow, frame, summary, bytes);
        let mut verdict = self.machine.pass(Gress::Egress, &mut phv);
        let mut outcome = Received::default();
        if phv.get(PLAUSIBLE) != 1 {
            outcome.dropped =
                Some(if start > 0 { Dropped::OutsideWindow } else { Dropped::Duplicate });
            outcome.acknowledge = Some(AckTiming::Now);
            return outcome;
        }
        if phv.get(AGE) as i32 > -1 {
            let is_loss = verdict.digest == DIGEST_FAST_RETRANSMIT;
            if !is_planted(Planted::DataCountedAsDuplicate) {
                flow.duplicates = self.read(TX_DUPACKS, id)[0] as u8;
            }
            outcome.acknowledged = Passes::hear(flow, &phv, summary, is_loss, now);
            self.recount(id, flow);
            if flow.window_max > self.beside(id).ack_behind_max {
                self.beside(id).ack_behind_max = flow.window_max;
                self.write_peer(id, flow.send_scale);
            }
        } else {
            outcome.dropped = Some(match result_of(&phv, NEWS) {
                UNSENT => Dropped::UnsentAcknowledged,
                _ => Dropped::AncientAcknowledgement,
            });
            outcome.acknowledge = Some(AckTiming::Now);
            return outcome;
        }
        let room = self.edge(id, flow) as i64 - received as i64 - start;
        if room > 0 && room < i64::from(bytes) && result_of(&phv, ORDER) & BEYOND_EDGE != 0 {
            // The processor cuts off what is beyond the window, and the rest passes again.
            bytes = room as u32;
            phv = self.fields(id, flow, frame, summary, bytes);
            verdict = self.machine.pass(Gress::Egress, &mut phv);
            Passes::renew(flow, &phv);
        } else if flow.edge <= flow.acknowledged
            && summary.window > 0
            && matches!(phv.get(NEWS), NEW | SAME)
        {
            // A probe of our closed window, or a segment out of order, may be all that tells of the peer's open one (RFC 9293, 3.10.7.4).
            let window = u32::from(summary.window) << flow.send_scale;
            self.write(TX_REMOTE_AVAIL, id, [window, 0]);
            flow.edge = flow.acknowledged + u64::from(window);
            flow.window_max = flow.window_max.max(window);
            flow.next = flow.acknowledged;
            outcome.acknowledged.opens_window = true;
            self.recount(id, flow);
        }
        outcome.merged = phv.get(MERGED);
        let (first, copy) = (phv.get(START), phv.get(COPY));
        let skip = phv.get(OLD).wrapping_add(first).wrapping_sub(phv.get(SEQ));
        let placed = Placed { position: received + u64::from(first), skip, bytes: copy };
        outcome.placed = (phv.get(IS_PLACED) == 1).then_some(placed);
        match phv.get(CLASS) {
            class::IN_ORDER => {
                let ahead = phv.get(AHEAD);
                flow.received += u64::from(ahead);
                flow.since_ack_bytes = flow.since_ack_bytes.saturating_add(ahead);
                outcome.must_notify = true;
                let is_cut = bytes < summary.bytes;
                let at_once = acks_at_once(flow, summary, now) || had_gap || is_cut;
                outcome.acknowledge =
                    Some(if at_once { AckTiming::Now } else { AckTiming::Delayed });
            }
            class::OUT_OF_ORDER => {
                outcome.dropped = match (outcome.placed, copy) {
                    (Some(_), _) => None,
                    (None, 0) => Some(Dropped::Duplicate),
                    (None, _) => Some(Dropped::TooManyIntervals),
                };
                outcome.acknowledge = Some(AckTiming::Now);
            }
            class::PURE => {}
            // Ahead of rx_next, without payload.
            _ if result_of(&phv, ORDER) == AHEAD_OF_NEXT && bytes == 0 => {}
            _ => {
                let is_beyond = result_of(&phv, ORDER) & BEYOND_EDGE != 0;
                outcome.dropped =
                    Some(if is_beyond { Dropped::OutsideWindow } else { Dropped::Duplicate });
                outcome.acknowledge = Some(AckTiming::Now);
            }
        }
        let is_acceptable = outcome.dropped.is_none_or(|dropped| {
            dropped == Dropped::TooManyIntervals || dropped == Dropped::Duplicate && start >= 0
        });
        if is_acceptable {
            update_timestamp(flow, summary, now);
        }
        if is_past_fin {
            outcome.dropped = Some(Dropped::Duplicate);
            outcome.acknowledge = Some(AckTiming::Now);
        } else if summary.fin {
            self.hear_fin(id, flow, behind, &phv, &mut outcome);
        }
        if outcome.placed.is_some() {
            self.beside(id).copies += 1;
            if is_planted(Planted::EarlyAcknowledgement) {
                let landed = flow.received + u64::from(outcome.merged);
                self.pass_pseudo(id, flow, landed, outcome.merged);
            }
        } else if verdict.mirror != 0 && self.beside(id).copies == 0 {
            // No copy to wait for: the pseudo segment passes at once.
            self.pass_pseudo(id, flow, flow.received + u64::from(outcome.merged), outcome.merged);
        }
        outcome
    }

    /// Takes the peer's window of a segment that has passed once more.
    fn renew(flow: &mut Protocol, phv: &Phv) {
        if phv.get(STEADY) != 0 {
            flow.edge = flow.acknowledged + u64::from(phv.get(REMOTE));
            flow.window_max = flow.window_max.max(phv.get(REMOTE));
        }
    }

    /// Takes a segment's acknowledgement and window, which the pipeline has accepted.
    fn hear(
        flow: &mut Protocol,
        phv: &Phv,
        summary: &Summary,
        is_loss: bool,
        now: Nanos,
    ) -> Acknowledged {
        let mut outcome = Acknowledged::default();
        let news = phv.get(NEWS);
        if news == 0 || result_of(phv, NEWS) == OLD_NEWS {
            // Far from the window, or older than what was heard.
            if news != 0 {
                flow.last_segment_at = now;
            }
            return outcome;
        }
        flow.last_segment_at = now;
        let acked = u64::from(phv.get(ACKED));
        let was_closed = flow.edge <= flow.acknowledged;
        let before = flow.acknowledged_bytes();
        flow.acknowledged += acked;
        flow.next = flow.next.max(flow.acknowledged);
        let is_renewed = phv.get(STEADY) != 0;
        if is_renewed || acked > 0 {
            let edge = flow.acknowledged + u64::from(phv.get(REMOTE));
            outcome.opens_window = edge > flow.edge;
            flow.edge = edge;
        }
        if is_renewed {
            flow.window_max = flow.window_max.max(phv.get(REMOTE));
        }
        outcome.echoes_mark = summary.echoes_mark && flow.ecn.is_some_and(|ecn| ecn.is_capable);
        if acked > 0 {
            outcome.bytes = (flow.acknowledged_bytes() - before) as u32;
            outcome.is_new = true;
            if flow.tail == Tail::More {
                flow.tail = Tail::Part;
            }
            outcome.round_trip = echoed_round_trip(flow, summary, now);
        }
        if outcome.echoes_mark && outcome.bytes > 0 {
            flow.until_resumed = flow.until_resumed.or(Some(0));
        }
        let mut is_loss = is_loss;
        if is_planted(Planted::DataCountedAsDuplicate) {
            let counts = acked == 0 && summary.bytes > 0 && phv.get(FLIGHT) > 0;
            flow.duplicates = if acked > 0 { 0 } else { flow.duplicates + u8::from(counts) };
            is_loss |= counts && flow.duplicates == 3;
        }
        // Until everything sent before the last loss is acknowledged, duplicates may answer retransmissions (RFC 6582).
        if is_loss && flow.acknowledged >= flow.recover {
            go_back_n(flow);
            flow.until_resumed = Some(1);
            outcome.is_fast_retransmit = true;
        }
        if was_closed && flow.edge > flow.acknowledged {
            // Most likely, the peer did not accept the byte of the window probe.
            flow.next = flow.acknowledged;
        }
        outcome
    }

    /// Takes a FIN behind the position `behind`, if all bytes before it in its segment were accepted.
    fn hear_fin(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        behind: Option<u64>,
        phv: &Phv,
        outcome: &mut Received,
    ) {
        let Some(behind) = behind.filter(|behind| *behind >= flow.received) else { return };
        let is_accepted = match outcome.dropped {
            None => true,
            // All bytes had come before, but not the FIN.
            Some(Dropped::Duplicate) => behind == flow.received,
            Some(_) => false,
        };
        let interval_end = flow.received + u64::from(phv.get(TAIL));
        if is_planted(Planted::EarlyFinDropped) && behind > flow.received {
            return;
        }
        if !is_accepted || behind > self.edge(id, flow) || behind < interval_end {
            return;
        }
        outcome.dropped = None;
        outcome.acknowledge = Some(AckTiming::Now);
        flow.fin = flow.fin.or(Some(behind));
        outcome.must_notify |= flow.has_fin();
        self.pass_fin(id, flow);
    }

    /// The position of the right edge up to which bytes are accepted.
    fn edge(&self, id: FlowId, flow: &Protocol) -> u64 {
        let [landed, edge] = self.read(RX_LANDED, id);
        flow.landed + u64::from(edge.wrapping_sub(landed))
    }

    /// A pseudo segment: all bytes before `landed` are in the host's ring, and the last `merged` of them join those in order.
    fn pass_pseudo(&mut self, id: FlowId, flow: &mut Protocol, landed: u64, merged: u32) {
        let end = seq_of(flow.receive_base, landed);
        let mut phv = self
            .packet(id, kind::PSEUDO)
            .with(SEQ, end.minus(merged).0)
            .with(LENGTH, merged)
            .with(END, end.0)
            .with(BOUND, end.0);
        self.machine.pass(Gress::Egress, &mut phv);
        if phv.get(CLASS) == class::IN_ORDER {
            flow.received += u64::from(phv.get(AHEAD));
        }
        flow.landed = flow.landed.max(landed);
        self.pass_fin(id, flow);
    }

    /// Moves the registers behind the peer's FIN, once all bytes before it are in the host's ring: the processor writes them. The window
    /// keeps its length.
    fn pass_fin(&mut self, id: FlowId, flow: &Protocol) {
        if !flow.has_landed_fin() || self.beside(id).is_past_fin {
            return;
        }
        self.beside(id).is_past_fin = true;
        for register in [RX_WINDOW, RX_LANDED] {
            let behind = self.read(register, id).map(|number| number.wrapping_add(1));
            self.write(register, id, behind);
        }
    }

    /// What a packet that leaves acknowledges and advertises.
    fn answer_of(flow: &mut Protocol, phv: &Phv) -> Answer {
        let mut open = phv.get(AVAIL);
        if is_planted(Planted::WindowShrunk) {
            open /= 2;
        }
        let units = open >> flow.receive_scale;
        let window = u16::try_from(units).unwrap_or(u16::MAX);
        let edge = flow.landed + (u64::from(window) << flow.receive_scale);
        flow.advertised = flow.advertised.max(edge);
        Answer { ack: Seq(phv.get(LANDED)), window }
    }

    /// Writes the send credits and the count of duplicates from `Protocol`: the pipeline sees neither a new congestion window nor that
    /// the sender goes back.
    fn recount(&mut self, id: FlowId, flow: &Protocol) {
        let sent = flow.next.saturating_sub(flow.acknowledged) as u32;
        let credits = flow.window_bytes.wrapping_sub(sent);
        if self.read(TX_CREDITS, id) != [credits, 0] {
            self.write(TX_CREDITS, id, [credits, 0]);
        }
        if self.read(TX_DUPACKS, id) != [flow.duplicates.into(), 0] {
            self.write(TX_DUPACKS, id, [flow.duplicates.into(), 0]);
        }
    }

    /// Writes up to where bytes were sent.
    fn write_sent(&mut self, id: FlowId, flow: &Protocol) {
        let [una, _] = self.read(TX_WINDOW, id);
        self.write(TX_WINDOW, id, [una, seq_of(flow.send_base, flow.highest).0]);
        self.recount(id, flow);
    }
}

/// In the field `has_payload`: a FIN without payload, which is no duplicate acknowledgement.
const BARE_FIN: u32 = 3;
/// In the field `news`: something new is acknowledged.
const NEW: u32 = 1 << 1;
/// In the field `news`: the same is acknowledged as before.
const SAME: u32 = 1 << 2;
/// Result of the comparators at `tx_window`: bytes that were never sent are acknowledged.
const UNSENT: u32 = 5;
/// Result of the comparators at `tx_window`: less is acknowledged than before.
const OLD_NEWS: u32 = 0;
/// Result of the comparators at `rx_window`: the segment starts behind `rx_next`, and ends within the window.
const AHEAD_OF_NEXT: u32 = 2;
/// Bit of the comparators' result at `rx_window`: the segment ends beyond the window.
const BEYOND_EDGE: u32 = 8;

/// The comparators' result in a field that has one bit for each.
fn result_of(phv: &Phv, field: wave_rmt::Field) -> u32 {
    phv.get(field).checked_ilog2().unwrap_or_default()
}

impl Arbiter for Passes {
    type Recovery = GoBackN;
    const NAME: &'static str = NAME;

    fn new(settings: &Settings) -> Passes {
        let flows = settings.flows.min(CONNECTIONS) as usize;
        Passes { machine: Specialised::default(), flows: alloc::vec![Beside::default(); flows] }
    }

    /// The registers hold one interval.
    fn without_own(established: &Established) -> Established {
        let mut without = *established;
        without.receiving.intervals = [(0, 0); INTERVALS_MAX];
        without
    }

    fn install(&mut self, id: FlowId, established: &Established) -> Result<(), NoRoom> {
        self.add(id, established)
    }

    fn remove(&mut self, id: FlowId, established: &Established) {
        self.clear(id, established);
    }

    fn complete(&self, id: FlowId, established: Established) -> Established {
        self.with_interval(id, established)
    }

    fn receive(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        frame: &[u8],
        summary: &Summary,
        now: Nanos,
    ) -> Received {
        let mut outcome = self.examine(id, flow, frame, summary, now);
        bound_answers(flow, summary, now, &mut outcome);
        outcome
    }

    fn land(&mut self, id: FlowId, flow: &mut Protocol, landed: u64, merged: u32) {
        let copies = &mut self.beside(id).copies;
        *copies = copies.saturating_sub(1);
        self.pass_pseudo(id, flow, landed, merged);
    }

    fn transmit(
        &mut self,
        id: FlowId,
        flow: &mut Protocol,
        bytes_max: u32,
        now: Nanos,
    ) -> Option<DataSegment> {
        let Protocol { next, highest, until_resumed, small_end, .. } = *flow;
        let sent = transmit::<GoBackN>(flow, bytes_max, now)?;
        let mut phv = self
            .packet(id, kind::TRANSMIT)
            .with(SEQ, sent.seq.0)
            .with(ACK, sent.seq.0)
            .with(LENGTH, sent.bytes)
            .with(HAS_PAYLOAD, u32::from(sent.bytes > 0))
            .with(END, sent.seq.plus(sent.bytes + u32::from(sent.fin)).0);
        let verdict = self.machine.pass(Gress::Egress, &mut phv);
        if verdict.is_dropped {
            // The registers allow less than `Protocol`: undo the choice.
            (flow.next, flow.highest) = (next, highest);
            (flow.until_resumed, flow.small_end) = (until_resumed, small_end);
            self.write_sent(id, flow);
            return None;
        }
        let answer = Passes::answer_of(flow, &phv);
        self.beside(id).carried = Some(answer);
        self.recount(id, flow);
        Some(sent)
    }

    fn probe(&mut self, id: FlowId, flow: &mut Protocol) -> Option<DataSegment> {
        let probe = window_probe(flow)?;
        self.write_sent(id, flow);
        Some(probe)
    }

    fn answer(&mut self, id: FlowId, flow: &mut Protocol) -> Answer {
        if let Some(answer) = self.beside(id).carried.take() {
            return answer;
        }
        let latest = seq_of(flow.send_base, flow.highest).0;
        let mut phv =
            self.packet(id, kind::TRANSMIT).with(SEQ, latest).with(ACK, latest).with(END, latest);
        self.machine.pass(Gress::Egress, &mut phv);
        Passes::answer_of(flow, &phv)
    }

    fn changed(&mut self, id: FlowId, flow: &Protocol) {
        self.recount(id, flow);
        let edge = self.edge(id, flow);
        // The window is rounded down.
        let grown =
            update::grown_edge(flow, edge, flow.receive_limit()).filter(|_| !flow.has_fin());
        if let Some(grown) = grown {
            let bytes = (grown - edge) as u32;
            let mut phv = self
                .packet(id, kind::SYNC)
                .with(TARGET, sync::ROOM)
                .with(LENGTH, bytes)
                .with(END, bytes)
                .with(BOUND, bytes);
            self.machine.pass(Gress::Egress, &mut phv);
        }
    }
}
