//! The stages of a data path as steps on one entry, for any executor (thesis 4.3, Figures 4.3 to 4.6).
//!
//! ```text
//!  sequencer ──> pre, replicated ──> reorder ──> protocol ──> post, replicated ──> reorder ──> wire, copies, contexts
//! ```
//!
//! Everything that changes a flow is an [`Entry`] with a number. The stages pass on a summary of it, with the results of the
//! earlier stages. The protocol stage takes entries in the order of their numbers; the others take them in any order.

mod outputs;
mod points;

pub use outputs::{count, post};
pub use points::Point;

use core::num::NonZeroU64;
use core::ops::Range;

use wave_core::clock::Nanos;

use crate::context::{ContextId, Progress, Tail, Update};
use crate::copies::Copied;
use crate::counters::Tally;
use crate::datapath::{Command, FlowId, Limits, Output, Packet};
use crate::flow::disorder::Pool;
use crate::flow::state::{Pre, Protocol, TailProbe};
use crate::packet::{Ecn, Flags};
use crate::seq::seq_of;
use crate::stages::acknowledge::{Acknowledged, go_back_n};
use crate::stages::arbiter::Arbiter;
use crate::stages::compose::{SegmentHeader, compose_header, due_progress};
use crate::stages::marks::{Marks, process_marks};
use crate::stages::receive::{ACKNOWLEDGE_AFTER, AckTiming, needs_disorder, since_data};
use crate::stages::recover::Recovery;
use crate::stages::transmit::{DataSegment, burst_bytes_max, is_blocked, is_held_by_nagle};
use crate::stages::{pre, update};
use crate::summary::Summary;
use crate::trace::Trace;
use crate::tuples::Tuples;

/// The bit that distinguishes tickets of transmissions from those of copies.
pub(crate) const SEND: u64 = 1 << 63;
/// Limit of segments sent by one entry.
const SEGMENTS_MAX: usize = 3;

/// An input of a data path.
#[derive(Clone, Debug)]
pub enum Entry<F> {
    /// RX: a received frame.
    Packet(Packet<F>),
    /// Work of a flow.
    Flow(FlowId, Work),
}

/// Work of a flow, except received segments.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// HC: a host has written or read.
    Request(ContextId, Update),
    /// A copy to a host's ring is done, and so are all earlier ones.
    Copied(Copied),
    /// TX: the scheduler allows the flow to send one segment.
    Transmit,
    /// The scheduler allows the flow to acknowledge, to notify its host, and to carry out these commands ([`Command::bit`]).
    Announce(u16),
    /// A delayed acknowledgement may be due.
    Timer,
    /// HC: a command of the control plane.
    Command(Command),
    /// Congestion control has processed a loss or a mark.
    Resume,
    /// Sets the largest payload of a segment, in bytes.
    SetMss(u16),
    /// Sets the limits by congestion control.
    Pace(Limits),
    /// Freezes the flow: it starts no new work.
    Freeze,
}

impl<F> Entry<F> {
    /// A copy of the entry, whose frame, if any, is copied by `copy`.
    pub fn copy_with<G>(&self, copy: impl FnOnce(&F) -> G) -> Entry<G> {
        match self {
            Entry::Packet(Packet { frame, checksum_is_good, segment_bytes }) => {
                Entry::Packet(Packet {
                    frame: copy(frame),
                    checksum_is_good: *checksum_is_good,
                    segment_bytes: *segment_bytes,
                })
            }
            Entry::Flow(flow, work) => Entry::Flow(*flow, *work),
        }
    }
}

/// An entry stamped by the sequencer.
#[derive(Clone, Debug)]
pub struct Stamped<F> {
    /// Number given by the sequencer.
    pub number: u64,
    /// When it entered; all stages use this time.
    pub now: Nanos,
    /// The entry.
    pub entry: Entry<F>,
}

/// The outcome of an entry, for the scheduler and the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Flow of the entry, if it has one.
    pub flow: Option<FlowId>,
    /// Effects of the copy that the entry asks for, if it does.
    pub copying: Option<Copied>,
    /// The flow may have data to send.
    pub may_send: bool,
    /// The flow has something other than data to send or to report.
    pub must_announce: bool,
    /// The connection must be reset.
    pub must_reset: bool,
    /// The flow's statistics have changed.
    pub has_changed: bool,
    /// The flow is frozen.
    pub is_frozen: bool,
    /// A turn, a request or a copy of the flow that was under way is over.
    pub ends_turn: bool,
    /// Number of started transmissions whose tickets will be completed.
    pub awaited: u8,
    /// Bytes of data sent in a turn to send, which is over; `None` if the entry was no such turn.
    pub transmitted: Option<u32>,
    /// When to check the flow's delayed acknowledgement.
    pub check_at: Option<Nanos>,
    /// Increments of the counters.
    pub tally: Tally,
}

/// An entry between the pre stage and the protocol stage. It has a summary in place of the packet's headers.
#[derive(Clone, Debug)]
pub struct Routed<F> {
    /// The flow.
    pub flow: FlowId,
    now: Nanos,
    input: Input<F>,
}

#[derive(Clone, Debug)]
enum Input<F> {
    Segment { frame: F, summary: Summary, payload: Range<usize> },
    Work(Work),
}

/// An entry between the protocol stage and the post stage.
#[derive(Debug)]
pub struct ProtocolResult<F> {
    /// The flow.
    pub flow: FlowId,
    now: Nanos,
    segments: [Option<(SegmentHeader, Data)>; SEGMENTS_MAX],
    write: Option<(F, u64, Range<usize>)>,
    notify: Option<(ContextId, Progress)>,
    acknowledged: Option<Acknowledged>,
    process: u16,
    outcome: Outcome,
}

/// Payload of a segment.
#[derive(Clone, Copy, Debug)]
struct Data {
    position: u64,
    segment_bytes: u16,
    /// The segment has a ticket: its transmission reads the host's ring, and is waited for.
    is_awaited: bool,
}

/// A segment without payload.
const BARE: Data = Data { position: 0, segment_bytes: 0, is_awaited: false };

/// The pre stage (Val, Id, Sum, Steer). Entries that the protocol stage need not see end here: the caller must skip their
/// number there, and their output, if any, is passed to `out`.
///
/// # Errors
/// The entry ends here; the error is its outcome.
pub fn pre<F: AsRef<[u8]>>(
    table: &Tuples<Pre>,
    trace: &Trace,
    stamped: Stamped<F>,
    mut out: impl FnMut(Output<F>),
) -> Result<Routed<F>, Outcome> {
    let Stamped { now, entry, .. } = stamped;
    match entry {
        Entry::Packet(packet) => examine(table, trace, now, packet, &mut out),
        Entry::Flow(flow, work) => Ok(Routed { flow, now, input: Input::Work(work) }),
    }
}

fn examine<F: AsRef<[u8]>>(
    table: &Tuples<Pre>,
    trace: &Trace,
    now: Nanos,
    packet: Packet<F>,
    out: &mut impl FnMut(Output<F>),
) -> Result<Routed<F>, Outcome> {
    let tally = Tally { in_segments: 1, ..Tally::default() };
    let ended = Outcome { tally, ..Outcome::default() };
    let (tuple, data) = match pre::examine(packet.frame.as_ref(), packet.checksum_is_good) {
        Err(cause) => {
            trace.put(now, Point::Malformed, None, [cause.index() as u64, 0]);
            let tally = Tally { malformed: Some(cause), ..tally };
            return Err(Outcome { tally, ..ended });
        }
        Ok(pre::Examined::Control(tuple)) => (tuple, None),
        Ok(pre::Examined::Data { tuple, summary, payload }) => {
            (Some(tuple), Some((summary, payload)))
        }
    };
    let flow = tuple.and_then(|tuple| table.find(&tuple));
    match (flow, data) {
        (Some(flow), Some((summary, payload))) => {
            let values = [u64::from(summary.seq.0), u64::from(summary.bytes)];
            trace.put(now, Point::Segment, Some(flow), values);
            let input = Input::Segment { frame: packet.frame, summary, payload };
            Ok(Routed { flow, now, input })
        }
        _ => {
            let bytes = packet.frame.as_ref().len() as u64;
            trace.put(now, Point::Control, flow, [bytes, 0]);
            out(Output::Control((packet, flow)));
            Err(Outcome { flow, ..ended })
        }
    }
}

/// The protocol stage (Win, Fin, Reset, Seq): the only one that must process a flow's entries one at a time, in the order of
/// their numbers. `flow` is `None` if it was removed. Super-packets have at most `super_bytes` of payload.
pub fn protocol<F: AsRef<[u8]>, A: Arbiter>(
    arbiter: &mut A,
    super_bytes: u32,
    trace: &Trace,
    pool: &mut Pool,
    flow: Option<&mut Protocol>,
    routed: Routed<F>,
) -> ProtocolResult<F> {
    let Routed { flow: id, now, input } = routed;
    let mut result = ProtocolResult {
        flow: id,
        now,
        segments: [None; SEGMENTS_MAX],
        write: None,
        notify: None,
        acknowledged: None,
        process: 0,
        outcome: Outcome { flow: Some(id), ..Outcome::default() },
    };
    match flow {
        Some(flow) => {
            if let Input::Segment { summary, .. } = &input
                && flow.disorder.is_none()
                && needs_disorder::<A::Recovery>(flow, summary)
            {
                pool.lend(flow);
            }
            process_input(arbiter, super_bytes, flow, now, input, &mut result);
            pool.reclaim(flow);
        }
        None => {
            count_input(&input, &mut result.outcome);
            let is_request = matches!(input, Input::Work(Work::Request(..)));
            result.outcome.tally.old_requests = u8::from(is_request);
        }
    }
    if trace.is_on() {
        result.trace(trace);
    }
    result
}

fn count_input<F>(input: &Input<F>, outcome: &mut Outcome) {
    use Work::{Announce, Copied, Request, Timer, Transmit};
    outcome.tally.in_segments = u8::from(matches!(input, Input::Segment { .. }));
    outcome.ends_turn =
        matches!(input, Input::Work(Request(..) | Copied(_) | Transmit | Announce(_) | Timer));
}

fn process_input<F: AsRef<[u8]>, A: Arbiter>(
    arbiter: &mut A,
    super_bytes: u32,
    flow: &mut Protocol,
    now: Nanos,
    input: Input<F>,
    result: &mut ProtocolResult<F>,
) {
    let id = result.flow;
    let outcome = &mut result.outcome;
    count_input(&input, outcome);
    result.process = flow.context.process;
    let work = match input {
        Input::Segment { .. } if flow.is_frozen => {
            outcome.tally.in_frozen = 1;
            return;
        }
        Input::Segment { frame, summary, payload } => {
            return process_segment(arbiter, flow, now, frame, summary, payload, result);
        }
        Input::Work(work) => work,
    };
    match work {
        Work::Request(context, update) => {
            process_request(flow, context, &update, outcome);
            arbiter.changed(id, flow);
        }
        Work::Copied(copied) => {
            // Before these bytes are acknowledged, because the earlier ones had a different mark.
            let answer = |flow: &mut Protocol| arbiter.answer(id, flow);
            if let Some(header) = process_marks(flow, copied.marks, now, answer) {
                result.segments[0] = Some((header, BARE));
                outcome.tally.out_segments += 1;
            }
            arbiter.land(id, flow, copied.landed, copied.merged);
            schedule_acknowledgement(flow, now, copied.acknowledge, outcome);
        }
        Work::Transmit => {
            let most = burst_bytes_max(flow, super_bytes);
            outcome.transmitted = Some(0);
            if let Some(sent) = arbiter.transmit(id, flow, most, now) {
                outcome.transmitted = Some(sent.bytes);
                result.segments[0] = Some(compose_segment(arbiter, id, flow, now, sent, outcome));
                outcome.may_send = true;
            } else {
                outcome.has_changed = is_blocked(flow);
                outcome.must_announce = expedite_acknowledgement(flow);
            }
        }
        Work::Announce(commands) => announce(arbiter, flow, now, commands, result),
        Work::Timer => match flow.acknowledge_at.get() {
            Some(due) if due <= now => {
                flow.acknowledge_now = true;
                // The host does not answer, so the next acknowledgements need not wait for it.
                flow.is_interactive = false;
                outcome.tally.delayed_acknowledgements = 1;
                outcome.must_announce = true;
            }
            // The acknowledgement of this timer was sent with data; another one may wait since.
            later => outcome.check_at = later,
        },
        Work::Command(command) => execute(arbiter, flow, now, command, result),
        Work::Resume => {
            flow.until_resumed = None;
            outcome.may_send = true;
        }
        Work::SetMss(mss) => {
            let is_smaller = mss < flow.mss;
            flow.mss = mss;
            // Segments in flight were too long for the path (RFC 1191, section 6.5).
            if is_smaller && flow.outstanding() > 0 {
                go_back_n(flow);
                outcome.may_send = true;
            }
            arbiter.changed(id, flow);
        }
        Work::Pace(limits) => {
            let grows = limits.window_bytes > flow.window_bytes;
            flow.window_bytes = limits.window_bytes;
            flow.bytes_per_second = limits.bytes_per_second.and_then(NonZeroU64::new);
            flow.has_reduced |= limits.has_reduced && flow.ecn.is_some();
            A::Recovery::on_window(flow);
            arbiter.changed(id, flow);
            outcome.may_send = grows && flow.has_more();
        }
        Work::Freeze => {
            flow.is_frozen = true;
            outcome.is_frozen = true;
            // A delayed acknowledgement is sent now, because another engine would not know of it.
            flow.acknowledge_now |= !flow.acknowledge_at.is_none();
            outcome.must_announce = true;
        }
    }
}

/// Carries out a command.
fn execute<F, A: Arbiter>(
    arbiter: &mut A,
    flow: &mut Protocol,
    now: Nanos,
    command: Command,
    result: &mut ProtocolResult<F>,
) {
    let id = result.flow;
    let outcome = &mut result.outcome;
    match command {
        Command::Retransmit => {
            go_back_n(flow);
            arbiter.changed(id, flow);
            outcome.tally.timeouts = 1;
            outcome.may_send = true;
        }
        Command::DetectLoss => {
            if A::Recovery::detect_loss(flow, now) {
                count_loss(flow, outcome);
                let detected = Acknowledged { is_fast_retransmit: true, ..Acknowledged::default() };
                result.acknowledged = Some(detected);
            }
            outcome.may_send = true;
            outcome.has_changed = true;
        }
        Command::ProbeTail => {
            if A::Recovery::wants_tail_probe(flow) {
                flow.probe = Some(TailProbe::Wanted);
                outcome.tally.tail_probes = 1;
                outcome.may_send = true;
            }
        }
        Command::Uncork => {
            flow.tail = Tail::Whole;
            outcome.may_send = true;
        }
        Command::Probe
        | Command::KeepAlive
        | Command::Challenge
        | Command::Abort
        | Command::Refuse => announce(arbiter, flow, now, command.bit(), result),
    }
}

fn process_segment<F: AsRef<[u8]>, A: Arbiter>(
    arbiter: &mut A,
    flow: &mut Protocol,
    now: Nanos,
    frame: F,
    summary: Summary,
    payload: Range<usize>,
    result: &mut ProtocolResult<F>,
) {
    let outcome = &mut result.outcome;
    let received = arbiter.receive(result.flow, flow, frame.as_ref(), &summary, now);
    outcome.tally.dropped = received.dropped;
    if received.acknowledged.is_fast_retransmit {
        count_loss(flow, outcome);
    }
    result.acknowledged = Some(received.acknowledged);
    if let Some(placed) = received.placed {
        let start = payload.start + placed.skip as usize;
        result.write = Some((frame, placed.position, start..start + placed.bytes as usize));
        let marks = Marks { is_marked: summary.is_marked, has_reduced: summary.has_reduced };
        let acknowledge = received.acknowledge;
        let (landed, merged) = (flow.received + u64::from(received.merged), received.merged);
        outcome.copying = Some(Copied { landed, merged, acknowledge, marks });
    } else {
        schedule_acknowledgement(flow, now, received.acknowledge, outcome);
    }
    outcome.may_send |= flow.has_more();
    outcome.has_changed = true;
}

fn count_loss(flow: &Protocol, outcome: &mut Outcome) {
    outcome.tally.fast_retransmits = 1;
    outcome.tally.sack_recoveries = u8::from(flow.loss().is_recovering);
    outcome.tally.lost_retransmits = u8::from(flow.loss().lost_rxt > flow.loss().high_rxt);
}

/// Schedules an acknowledgement and the host's notification.
fn schedule_acknowledgement(
    flow: &mut Protocol,
    now: Nanos,
    acknowledge: Option<AckTiming>,
    outcome: &mut Outcome,
) {
    match acknowledge {
        Some(AckTiming::Now) => flow.acknowledge_now = true,
        // Another engine would not know of the delay.
        Some(AckTiming::Delayed) if flow.is_frozen => flow.acknowledge_now = true,
        Some(AckTiming::Delayed) if flow.acknowledge_at.is_none() => {
            let at = now + ACKNOWLEDGE_AFTER;
            flow.acknowledge_at = at.into();
            outcome.check_at = Some(at);
            expedite_acknowledgement(flow);
        }
        _ => {}
    }
    outcome.must_announce = true;
    outcome.has_changed = true;
}

/// Lets a delayed acknowledgement wait no longer if the data that it waits for has to wait for the peer.
fn expedite_acknowledgement(flow: &mut Protocol) -> bool {
    let has_to = !flow.acknowledge_at.is_none() && is_held_by_nagle(flow);
    flow.acknowledge_now |= has_to;
    has_to
}

fn process_request(
    flow: &mut Protocol,
    context: ContextId,
    update: &Update,
    outcome: &mut Outcome,
) {
    // A process may not move another process's streams.
    if flow.context.process != context.process {
        outcome.tally.foreign_requests = 1;
        return;
    }
    // Events go to the context that used the connection last.
    flow.context = context;
    let done = update::apply_update(flow, update);
    flow.acknowledge_now |= done.opens_window;
    if done.is_wrong {
        flow.is_at_fault = true;
        outcome.tally.wrong_requests = 1;
        outcome.must_reset = true;
    }
    outcome.may_send = done.has_more;
    outcome.must_announce = done.opens_window;
    outcome.has_changed = true;
}

fn compose_segment<A: Arbiter>(
    arbiter: &mut A,
    id: FlowId,
    flow: &mut Protocol,
    now: Nanos,
    sent: DataSegment,
    outcome: &mut Outcome,
) -> (SegmentHeader, Data) {
    // The end of a super-packet carries PSH, too, so that a receiver that coalesces its segments passes them on at once.
    let is_super = sent.bytes > u32::from(flow.mss);
    let flag = |is_set: bool, flag| if is_set { flag } else { Flags::NONE };
    // Only new data is ECT and carries CWR (RFC 3168, 6.1.2, 6.1.5 and 6.1.6).
    let is_capable = sent.is_new_data() && flow.ecn.is_some_and(|ecn| ecn.is_capable);
    let flags = Flags::ACK
        | flag(sent.fin, Flags::FIN)
        | flag(sent.push && sent.bytes > 0 || is_super, Flags::PSH)
        | flag(is_capable && core::mem::take(&mut flow.has_reduced), Flags::CWR);
    let answer = arbiter.answer(id, flow);
    let mut header = compose_header(flow, answer, sent.seq, flags, sent.bytes, now);
    if is_capable {
        header.ecn = Ecn::Capable0;
    }
    outcome.awaited += 1;
    outcome.tally.out_segments += 1;
    outcome.tally.retransmitted += u8::from(sent.is_retransmission);
    outcome.has_changed = true;
    let segment_bytes = if is_super { flow.mss } else { 0 };
    // An answer, as in Linux: from now on acknowledgements wait for data.
    let is_recent = flow.received > 0 && since_data(flow, now) < ACKNOWLEDGE_AFTER;
    flow.is_interactive |= sent.is_new_data() && is_recent;
    (header, Data { position: sent.position, segment_bytes, is_awaited: true })
}

/// Sends acknowledgements, the host's notification, and the segments that the control plane asked for.
fn announce<F, A: Arbiter>(
    arbiter: &mut A,
    flow: &mut Protocol,
    now: Nanos,
    commands: u16,
    result: &mut ProtocolResult<F>,
) {
    let id = result.flow;
    let outcome = &mut result.outcome;
    let compose = |arbiter: &mut A, flow: &mut Protocol, seq, flags| {
        let answer = arbiter.answer(id, flow);
        (compose_header(flow, answer, seq, flags, 0, now), BARE)
    };
    let has = |command: Command| commands & command.bit() != 0;
    // The sequence number that the peer expects, so that it accepts the reset (RFC 5961, 3.2).
    let latest = |flow: &Protocol| seq_of(flow.send_base, flow.highest);
    if has(Command::Abort) || has(Command::Refuse) {
        let (seq, flags) = match has(Command::Refuse) {
            false => (latest(flow), Flags::RST | Flags::ACK),
            true => (seq_of(flow.send_base, flow.acknowledged), Flags::RST),
        };
        result.segments[0] = Some(compose(arbiter, flow, seq, flags));
        flow.is_frozen = true;
        outcome.tally.out_resets = 1;
        outcome.is_frozen = true;
        outcome.has_changed = true;
        // The last chance to tell: the host's next event says that the connection has ended.
        result.notify = due_progress(flow).map(|progress| (flow.context, progress));
        return;
    }
    if has(Command::Probe)
        && let Some(sent) = arbiter.probe(id, flow)
    {
        outcome.tally.probes = 1;
        result.segments[0] = Some(compose_segment(arbiter, id, flow, now, sent, outcome));
    }
    if has(Command::KeepAlive) {
        let seq = latest(flow).minus(1);
        result.segments[1] = Some(compose(arbiter, flow, seq, Flags::ACK));
    }
    if flow.acknowledge_now || has(Command::Challenge) {
        let seq = latest(flow);
        result.segments[2] = Some(compose(arbiter, flow, seq, Flags::ACK));
        outcome.tally.out_segments += 1;
    }
    result.notify = due_progress(flow).map(|progress| (flow.context, progress));
}
