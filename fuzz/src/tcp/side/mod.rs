//! One side of a history: a machine of the testbed, and a watch of each of its connections. Copies to the program's
//! memory complete late and in any order.

mod program;

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_tcp_planted::congestion::Algorithm;
use wave_tcp_planted::context::{Event, Progress, Reason};
use wave_tcp_planted::control::State;
use wave_tcp_planted::datapath::{
    Datapath, FlowId, Output, Packet, Payload, Segment, Ticket, Write,
};
use wave_tcp_planted::packet::{Ecn, Flags, Parsed, TcpSegment, parse};
use wave_tcp_testbed_planted::{Machine, Make, Setup};
use wave_wires::{Frame, Memory, Wire};

use self::program::Program;
use super::trace::Trace;
use super::watch::{Broken, Watch};
use super::{Counts, Oracle};

/// Maximum number of frames taken in one step. The step's poll must handle them all.
const FRAMES_PER_STEP: usize = 16;
/// Sources of work in a data path, at most: frames, requests, copies, timers and turns of flows. They take turns.
const SOURCES_MAX: usize = 6;
/// Steps of the data path in one poll.
const BUDGET: usize = SOURCES_MAX * FRAMES_PER_STEP;

/// Limit of the polls until a stack is frozen.
const CHANGE_STEPS_MAX: usize = 1_000;

/// A connection: our port, and the peer's.
pub type Ends = (u16, u16);

/// A side's machine and its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub setup: Setup,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Probability that the network drops this machine's SYNs if they ask for ECN.
    pub drops_asking_syns: f64,
    /// Longest time that a copy takes.
    pub copy_max: Nanos,
}

pub struct Side {
    pub machine: Machine,
    /// Whether the network drops everything that this machine sends.
    pub is_cut: bool,
    kind: Kind,
    /// The program's intentions, by socket.
    pub programs: Vec<Program>,
    watches: BTreeMap<Ends, Watch>,
    /// Ends of closed connections, and the times of closing.
    pub closed: BTreeMap<Ends, Nanos>,
    /// SYNs sent, without SYN-ACKs.
    pub syns: Vec<(Segment<Frame>, Ends)>,
    copies: Vec<(Nanos, Write<Frame>)>,
    delivered: Vec<(Ends, TcpSegment)>,
    scratch: Vec<u8>,
    /// Whether a copy or a transmission has completed since the last poll.
    has_completed: bool,
    fast_retransmits: u64,
    lost_retransmits: u64,
    /// Tail loss probes already matched with the loss that they repaired.
    probes_spent: u64,
    /// Whether a poll finishes all the work given to the data path before it returns.
    pub is_prompt: bool,
    pub broken: Option<Broken>,
    pub trace: Trace,
    pub counts: Counts,
    /// Client ports whose connections may fail.
    pub abrupt: Vec<u16>,
}

impl Side {
    pub fn new(kind: Kind, wire: Memory, make: Make<'_>) -> Side {
        let mut machine = Machine::over(kind.setup, wire, make);
        machine.stack.set_congestion(kind.algorithm);
        Side {
            machine,
            is_cut: false,
            kind,
            programs: Vec::new(),
            watches: BTreeMap::new(),
            closed: BTreeMap::new(),
            syns: Vec::new(),
            copies: Vec::new(),
            delivered: Vec::new(),
            scratch: Vec::new(),
            has_completed: false,
            fast_retransmits: 0,
            lost_retransmits: 0,
            probes_spent: 0,
            is_prompt: true,
            broken: None,
            trace: Trace(0xcbf2_9ce4_8422_2325),
            counts: Counts::default(),
            abrupt: Vec::new(),
        }
    }

    /// Replaces the stack by a successor with another data path, which continues the connections.
    pub fn change(&mut self, now: Nanos, rng: &mut Pcg32, make: Make<'_>) {
        let mut is_asked = false;
        for _ in 0..CHANGE_STEPS_MAX {
            self.copies.iter_mut().for_each(|(due, _)| *due = now);
            self.copy_due(now);
            self.poll(now, rng);
            let is_at_rest = self.copies.is_empty() && self.machine.stack.is_at_rest(now);
            if !is_asked && is_at_rest {
                self.machine.stack.freeze();
                is_asked = true;
            } else if is_at_rest && self.machine.stack.is_frozen() {
                self.count();
                self.counts.changes += u64::from(!self.entries().is_empty());
                (self.fast_retransmits, self.lost_retransmits, self.probes_spent) = (0, 0, 0);
                let passed_on = self.machine.pass_on(now, make);
                return passed_on.expect("the successor has room for the state");
            }
        }
        self.breaks(Oracle::Ends, "the stack never becomes frozen".to_owned());
    }

    /// Adds the stack's counters to the counts.
    pub fn count(&mut self) {
        self.counts.rtos += self.machine.counter("TCPTimeouts");
        self.counts.fast_retransmits += self.machine.counter("TCPFastRetrans");
        self.counts.sack_recoveries += self.machine.counter("TCPSackRecovery");
    }

    /// Takes arrived frames, polls the stack, and carries out its outputs. Returns the time of the next step, if any.
    pub fn step(&mut self, now: Nanos, rng: &mut Pcg32) -> Option<Nanos> {
        self.copy_due(now);
        self.delivered.clear();
        for _ in 0..FRAMES_PER_STEP {
            let Some(frame) = self.machine.wire.receive().expect("the wire is in memory") else {
                break;
            };
            self.on_frame(&frame);
            self.machine.stack.receive(Packet { frame, checksum_is_good: false, segment_bytes: 0 });
        }
        self.poll(now, rng)
    }

    fn poll(&mut self, now: Nanos, rng: &mut Pcg32) -> Option<Nanos> {
        let mut out = VecDeque::new();
        self.has_completed = false;
        let next = self.machine.stack.poll(now, BUDGET, &mut out);
        let mut reported_losses = 0;
        for output in out {
            match output {
                Output::Send(segment) => self.send(now, segment, rng),
                Output::Write(write) => {
                    self.write_begins(&write);
                    let takes = if rng.random_bool(0.5) {
                        0
                    } else {
                        rng.random_range(0..=self.kind.copy_max.0)
                    };
                    self.copies.push((now + Nanos(takes), write));
                }
                Output::Notify(_, event) => reported_losses += self.on_event(now, event, rng),
                // No process forks in these histories.
                Output::Control(_) => {}
            }
        }
        self.check_losses(reported_losses);
        if self.is_prompt && next.is_none_or(|at| at > now) {
            // Copies take effect in the order in which they began, across all connections.
            let first = self.copies.iter().map(|(_, write)| write.ticket.0).min();
            let first = Ticket(first.unwrap_or(u64::MAX));
            self.watches.values_mut().for_each(|watch| watch.settle_marks(first));
        }
        let copied = self.copies.iter().map(|(due, _)| *due).min();
        let again = self.has_completed.then_some(now);
        [next, copied, again].into_iter().flatten().min()
    }

    /// The engine starts a copy.
    fn write_begins(&mut self, write: &Write<Frame>) {
        let Ok(Parsed::Tcp { ip, segment, .. }) = parse(&write.frame, true) else { return };
        let ends = (segment.destination_port, segment.source_port);
        if let Some(watch) = self.watches.get_mut(&ends) {
            let is_marked = ip.ecn == Ecn::Congestion;
            watch.write_begins(write.ticket, is_marked, segment.flags.contains(Flags::CWR));
        }
    }

    /// Checks that a cause is known for every loss that the engine detected, other than by a timeout: reported by the
    /// peer, or repaired by a tail loss probe.
    fn check_losses(&mut self, mut reported_losses: u64) {
        let (mut noticed, mut again, mut probes) = (0, 0, 0);
        self.machine.stack.data.visit_counters(&mut |counter, count| match counter.name {
            "TCPFastRetrans" => noticed = count,
            "TCPLostRetransmit" => again = count,
            "TCPLossProbes" => probes = count,
            _ => {}
        });
        let (new, lost_again) = (noticed - self.fast_retransmits, again - self.lost_retransmits);
        (self.fast_retransmits, self.lost_retransmits) = (noticed, again);
        reported_losses +=
            self.watches.values().filter(|watch| watch.has_reported_loss()).count() as u64;
        if reported_losses > 0 {
            // The blocks that report a loss also report that retransmitted bytes were lost.
            reported_losses += lost_again;
        }
        let unspent = probes - self.probes_spent;
        let repaired = new.saturating_sub(reported_losses).min(unspent);
        self.probes_spent += repaired;
        reported_losses += repaired;
        if new > reported_losses && self.is_prompt {
            let what = format!(
                "{new} losses were detected, but only {reported_losses} were reported by the peer or repaired by probes"
            );
            self.breaks(Oracle::FastRetransmit, what);
        }
        for (socket, program) in self.machine.sockets.values().zip(&self.programs) {
            let state = socket.flow.and_then(|flow| self.machine.stack.data.inspect(flow));
            if let (Some(state), Some(watch)) = (state, self.watches.get_mut(&program.ends)) {
                watch.has_processed(state.sending.acknowledged);
            }
        }
    }

    pub fn breaks(&mut self, oracle: Oracle, what: String) {
        if self.broken.is_none() {
            self.broken = Some((oracle, what));
        }
    }

    fn on_frame(&mut self, frame: &Frame) {
        let Ok(Parsed::Tcp { segment, .. }) = parse(frame, false) else { return };
        let ends = (segment.destination_port, segment.source_port);
        if let Some(watch) = self.watches.get_mut(&ends) {
            watch.on_frame(&segment);
        }
        self.delivered.push((ends, segment));
    }

    fn copy_due(&mut self, now: Nanos) {
        while let Some(at) = self.copies.iter().position(|(due, _)| *due <= now) {
            let (_, write) = self.copies.swap_remove(at);
            self.machine.memory.land(&write);
            if let Ok(Parsed::Tcp { segment, .. }) = parse(&write.frame, true)
                && let Some(watch) =
                    self.watches.get_mut(&(segment.destination_port, segment.source_port))
            {
                let fin =
                    segment.flags.contains(Flags::FIN) && write.bytes.end == segment.payload.end;
                watch.copy(write.position, write.bytes.len() as u64, fin);
                self.counts.marks += u64::from(watch.write_is_done(write.ticket));
            }
            self.trace.add(now.0 ^ write.position);
            self.complete(now, write.ticket);
        }
    }

    fn complete(&mut self, now: Nanos, ticket: Ticket) {
        self.machine.stack.complete(now, ticket);
        self.has_completed = true;
    }

    fn send(&mut self, now: Nanos, segment: Segment<Frame>, rng: &mut Pcg32) {
        let head = segment.head.bytes();
        self.trace.add(now.0);
        self.trace.add_bytes(head);
        let bytes = match segment.payload {
            Payload::Ring { bytes, .. } => bytes,
            _ => 0,
        };
        // Only the length matters. The wire completes the checksum.
        self.scratch.clear();
        self.scratch.extend_from_slice(head);
        self.scratch.resize(head.len() + bytes as usize, 0);
        let mut is_dropped = false;
        if let Ok(Parsed::Tcp { ip, segment: parsed, .. }) = parse(&self.scratch, true) {
            let ends = (parsed.source_port, parsed.destination_port);
            self.check(now, ends, &parsed, ip.ecn, bytes.into());
            let asks = parsed.flags.contains(Flags::SYN | Flags::ECE | Flags::CWR);
            is_dropped = asks && rng.random_bool(self.kind.drops_asking_syns);
            self.counts.asking_syns_dropped += u64::from(is_dropped);
            if parsed.flags.contains(Flags::SYN) && parsed.ack.is_none() {
                let (head, checksum) = (segment.head, segment.checksum);
                let payload = Payload::None;
                let syn = Segment { ticket: None, head, payload, checksum, segment_bytes: 0 };
                self.syns.push((syn, ends));
            }
        }
        if !is_dropped {
            self.put(&segment);
        }
        if let Some(ticket) = segment.ticket {
            self.complete(now, ticket);
        }
    }

    /// Sends an earlier SYN again.
    pub fn replay(&mut self, at: usize) {
        let syn = self.syns.swap_remove(at);
        self.put(&syn.0);
        self.syns.push(syn);
    }

    /// Gives a segment to the wire.
    fn put(&mut self, segment: &Segment<Frame>) {
        if self.is_cut {
            return;
        }
        self.machine.transmit(segment);
    }

    fn check(&mut self, now: Nanos, ends: Ends, segment: &TcpSegment, ecn: Ecn, bytes: u64) {
        if segment.flags.contains(Flags::SYN) && ecn != Ecn::NotCapable {
            self.breaks(Oracle::EcnAgreed, format!("the SYN of port {} is ECN-capable", ends.0));
        }
        let is_exact = self.is_prompt;
        let Some(watch) = self.watches.get_mut(&ends) else { return };
        if let Err((oracle, what)) = watch.send(now, segment, ecn, bytes, is_exact) {
            self.breaks(oracle, format!("port {} to {}: {what}", ends.0, ends.1));
        }
        if segment.flags.contains(Flags::RST) {
            let program = self.programs.iter().find(|program| program.ends == ends);
            if !program.is_some_and(|program| program.may_reset) {
                let what =
                    format!("port {} reset its connection with {} without cause", ends.0, ends.1);
                self.breaks(Oracle::ResetHasCause, what);
            }
        }
    }

    /// Returns the number of connections that ended while the peer had reported a loss: 0 or 1.
    fn on_event(&mut self, now: Nanos, event: Event, rng: &mut Pcg32) -> u64 {
        let soon = now + Nanos::from_micros(rng.random_range(0..1_000));
        let begins = |side: &mut Side, socket: u32, flow: FlowId, ends: Ends| {
            side.machine.socket(socket).flow = Some(flow);
            let program = &mut side.programs[socket as usize];
            (program.ends, program.acts_at) = (ends, Some(soon));
            let Some(established) = side.machine.stack.data.inspect(flow) else { return };
            let mut watch = Watch::new(&established);
            for (_, segment) in side.delivered.iter().filter(|(of, _)| *of == ends) {
                watch.on_frame(segment);
            }
            side.watches.insert(ends, watch);
        };
        let socket = match event {
            Event::Progress(progress) => {
                self.on_progress(progress, soon);
                return 0;
            }
            Event::Accepted { socket, flow, remote, .. } => {
                begins(self, socket, flow, (80, remote.port()));
                return 0;
            }
            Event::Connected { socket, flow, local, .. } => {
                begins(self, socket, flow, (local.port(), 80));
                return 0;
            }
            Event::Failed { socket, reason } => {
                let (own, peer) = self.programs[socket as usize].ends;
                let flow = self.machine.sockets[&socket].flow;
                // Repeated loss of the few requests to a neighbour is likely: no failure of the stack.
                let has_begun = flow.is_some() || reason != Reason::NoNeighbour;
                if has_begun && !self.abrupt.contains(&own) && !self.abrupt.contains(&peer) {
                    let stage = if flow.is_some() { "connection" } else { "handshake" };
                    let what = format!("the {stage} of port {own} with {peer} failed: {reason:?}");
                    self.breaks(Oracle::NoFailure, what);
                }
                socket
            }
            Event::Closed { socket } | Event::Unused { socket } | Event::Taken { socket } => socket,
            Event::Door { .. }
            | Event::Demoted { .. }
            | Event::Listening { .. }
            | Event::NotListening { .. }
            | Event::TcpInfo(_)
            | Event::LocalAddress { .. }
            | Event::Lent { .. }
            | Event::SoftError { .. } => {
                return 0;
            }
        };
        let program = &mut self.programs[socket as usize];
        program.acts_at = None;
        let ends = program.ends;
        let was_over = std::mem::replace(&mut self.machine.socket(socket).is_over, true);
        self.trace.add(u64::from(socket) << 32 | u64::from(ends.0));
        self.closed.insert(ends, now);
        if was_over {
            self.breaks(Oracle::Ends, format!("port {} to {} ended twice", ends.0, ends.1));
        }
        let Some(watch) = self.watches.remove(&ends) else { return 0 };
        self.counts.zero_windows += watch.zero_windows;
        self.counts.sequence_wraps += watch.wraps;
        self.counts.ecn_connections += u64::from(watch.has_ecn());
        self.counts.echoes += watch.echoes;
        self.counts.reductions += watch.reductions;
        u64::from(watch.has_reported_loss())
    }

    fn on_progress(&mut self, progress: Progress, soon: Nanos) {
        let program = &mut self.programs[progress.socket as usize];
        let socket = self.machine.socket(progress.socket);
        let copied = self.watches.get(&program.ends).map_or(0, Watch::copied);
        let goes_back = socket.goes_back(&progress);
        let is_early =
            progress.received > copied || progress.acknowledged > socket.wrote.len() as u64;
        if !goes_back && !is_early {
            socket.on_progress(&progress);
            program.acts_at = Some(program.acts_at.map_or(soon, |at| at.min(soon)));
        }
        let port = program.ends;
        self.trace.add(progress.received << 20 ^ progress.acknowledged);
        if goes_back {
            self.breaks(
                Oracle::Told,
                format!("{port:?}: a position reported to the host went back"),
            );
        }
        if is_early {
            let what = format!(
                "{port:?}: the host was notified of {progress:?}, but {copied} bytes are copied"
            );
            self.breaks(Oracle::Told, what);
        }
    }

    /// Ends of connections in a state.
    pub fn in_state(&self, state: State) -> Vec<Ends> {
        let entries = self.machine.entries().into_iter();
        entries.filter(|(of, _)| *of == state).map(|(_, ends)| ends).collect()
    }

    /// Entries of its tables, without listeners.
    pub fn entries(&self) -> Vec<(State, Ends)> {
        let mut entries = self.machine.entries();
        entries.retain(|(state, _)| *state != State::Listen);
        entries
    }
}
