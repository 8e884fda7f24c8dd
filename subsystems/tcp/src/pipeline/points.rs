//! Trace points of FlexTOE's stages: the kind of an entry, and the decisions about it.

use super::{Entry, Outcome, ProtocolResult, Work};
use crate::datapath::{Command, FlowId};
use crate::packet::Flags;
use crate::stages::compose::SegmentHeader;
use crate::trace::{self, Trace, points};

points! {
    /// A point of FlexTOE's stages.
    pub enum Point from trace::Point::ALL_INFO.len();
    /// A frame enters.
    Packet = "packet", "sequencer", ["bytes", "segment_bytes"];
    /// A host has written or read.
    Request = "request", "sequencer", ["written", "read"];
    /// A copy to a host's ring is done.
    Copied = "copied", "sequencer", ["landed", ""];
    /// The scheduler allows a flow to send.
    TransmitTurn = "transmit_turn", "sequencer", ["", ""];
    /// The scheduler allows a flow to acknowledge and to notify its host.
    AnnounceTurn = "announce_turn", "sequencer", ["asked", ""];
    /// A delayed acknowledgement may be due.
    Timer = "timer", "sequencer", ["", ""];
    /// The control plane reports a retransmission timeout.
    Retransmit = "retransmit", "sequencer", ["", ""];
    /// The control plane asks to look for losses, because time has passed.
    DetectLoss = "detect_loss", "sequencer", ["", ""];
    /// The control plane asks for a tail-loss probe.
    ProbeTail = "probe_tail", "sequencer", ["", ""];
    /// The control plane releases bytes that waited for more.
    Uncork = "release", "sequencer", ["", ""];
    /// Congestion control has processed a loss or a mark.
    Resume = "resume", "sequencer", ["", ""];
    /// The MSS changes.
    SetMss = "set_mss", "sequencer", ["mss", ""];
    /// Congestion control sets the window and the rate.
    Pace = "pace", "sequencer", ["window_bytes", "bytes_per_second"];
    /// A flow is frozen: it starts no new work.
    Freeze = "freeze", "sequencer", ["", ""];
    /// Entries and packets that wait when an entry enters.
    Occupancy = "occupancy", "sequencer", ["entries", "packets"];
    /// A frame is malformed. `cause` is a number.
    Malformed = "malformed", "pre", ["cause", ""];
    /// A packet goes to the control plane.
    Control = "control", "pre", ["bytes", ""];
    /// A segment goes on to the protocol stage.
    Segment = "segment", "pre", ["seq", "bytes"];
    /// Data is acknowledged.
    Acknowledged = "acknowledged", "protocol", ["bytes", "round_trip_ns"];
    /// The peer's acknowledgement echoes a congestion mark (ECE).
    MarkEchoed = "mark_echoed", "protocol", ["bytes", ""];
    /// The peer's window opens.
    WindowOpens = "window_opens", "protocol", ["", ""];
    /// A loss was detected without a timeout.
    FastRetransmit = "fast_retransmit", "protocol", ["", ""];
    /// A timeout retransmits data.
    Timeout = "timeout", "protocol", ["", ""];
    /// Bytes arrived in order.
    InOrder = "in_order", "protocol", ["position", "bytes"];
    /// Bytes arrived out of order.
    OutOfOrder = "out_of_order", "protocol", ["position", "bytes"];
    /// A segment was dropped. `cause` is a number.
    Dropped = "dropped", "protocol", ["cause", ""];
    /// A segment of a frozen flow was dropped.
    InFrozen = "in_frozen", "protocol", ["", ""];
    /// New data is sent.
    DataSent = "data_sent", "protocol", ["seq", "bytes"];
    /// Data is retransmitted.
    DataSentAgain = "data_sent_again", "protocol", ["seq", "bytes"];
    /// A turn to send ended without any data that could be sent.
    HeldBack = "held_back", "protocol", ["", ""];
    /// A closed window is probed.
    Probe = "probe", "protocol", ["seq", ""];
    /// An acknowledgement is sent without data.
    AckSent = "ack_sent", "protocol", ["ack", "window"];
    /// A congestion mark is echoed to the peer (ECE).
    EceSent = "ece_sent", "protocol", ["ack", ""];
    /// A reset is sent.
    RstSent = "rst_sent", "protocol", ["seq", ""];
    /// An acknowledgement is delayed, to be sent with data.
    Delayed = "delayed", "protocol", ["until_ns", ""];
    /// A delayed acknowledgement is sent.
    DelayedDue = "delayed_due", "protocol", ["", ""];
    /// A request names a connection that has ended.
    OldRequest = "old_request", "protocol", ["", ""];
    /// A request names another process's connection.
    ForeignRequest = "foreign_request", "protocol", ["", ""];
    /// A request has impossible values.
    WrongRequest = "wrong_request", "protocol", ["", ""];
    /// The headers of a segment are built.
    Sent = "sent", "post", ["payload_bytes", "segment_bytes"];
    /// A copy to a host's ring begins.
    CopyBegins = "copy_begins", "dma", ["position", "bytes"];
    /// A context is notified.
    Notified = "notified", "context", ["received", "acknowledged"];
}

impl<F> Entry<F> {
    /// The entry's trace point, flow and values.
    pub(crate) fn point(&self) -> (Point, Option<FlowId>, [u64; 2])
    where
        F: AsRef<[u8]>,
    {
        let (flow, work) = match self {
            Entry::Packet(packet) => {
                let bytes = packet.frame.as_ref().len() as u64;
                return (Point::Packet, None, [bytes, packet.segment_bytes.into()]);
            }
            Entry::Flow(flow, work) => (*flow, work),
        };
        let (point, values) = match work {
            Work::Request(_, update) => (Point::Request, [update.written, update.read]),
            Work::Copied(copied) => (Point::Copied, [copied.landed, 0]),
            Work::Transmit => (Point::TransmitTurn, [0; 2]),
            Work::Announce(commands) => (Point::AnnounceTurn, [(*commands).into(), 0]),
            Work::Timer => (Point::Timer, [0; 2]),
            Work::Command(Command::Retransmit) => (Point::Retransmit, [0; 2]),
            Work::Command(Command::DetectLoss) => (Point::DetectLoss, [0; 2]),
            Work::Command(Command::ProbeTail) => (Point::ProbeTail, [0; 2]),
            Work::Command(Command::Uncork) => (Point::Uncork, [0; 2]),
            Work::Command(command) => (Point::AnnounceTurn, [command.bit().into(), 0]),
            Work::Resume => (Point::Resume, [0; 2]),
            Work::SetMss(mss) => (Point::SetMss, [(*mss).into(), 0]),
            Work::Pace(limits) => {
                let rate = limits.bytes_per_second.unwrap_or(0);
                (Point::Pace, [limits.window_bytes.into(), rate])
            }
            Work::Freeze => (Point::Freeze, [0; 2]),
        };
        (point, Some(flow), values)
    }
}

impl<F> ProtocolResult<F> {
    /// Traces the decisions of the protocol stage, if enabled.
    #[cold]
    pub(super) fn trace(&self, trace: &Trace) {
        let put = |point, values| trace.put(self.now, point, Some(self.flow), values);
        let Outcome { tally, copying, check_at, transmitted, .. } = &self.outcome;
        let counted = [
            (tally.timeouts, Point::Timeout),
            (tally.in_frozen, Point::InFrozen),
            (tally.delayed_acknowledgements, Point::DelayedDue),
            (tally.old_requests, Point::OldRequest),
            (tally.foreign_requests, Point::ForeignRequest),
            (tally.wrong_requests, Point::WrongRequest),
        ];
        for (_, point) in counted.into_iter().filter(|(count, _)| *count > 0) {
            put(point, [0; 2]);
        }
        if let Some(acknowledged) = &self.acknowledged {
            let bytes = u64::from(acknowledged.bytes);
            let round_trip = acknowledged.round_trip.map_or(0, |took| took.0);
            if acknowledged.is_new {
                put(Point::Acknowledged, [bytes, round_trip]);
            }
            if acknowledged.echoes_mark {
                put(Point::MarkEchoed, [bytes, 0]);
            }
            if acknowledged.opens_window {
                put(Point::WindowOpens, [0; 2]);
            }
            if acknowledged.is_fast_retransmit {
                put(Point::FastRetransmit, [0; 2]);
            }
        }
        if let Some(dropped) = tally.dropped {
            put(Point::Dropped, [dropped as u64, 0]);
        }
        if let Some(((_, position, bytes), copied)) = self.write.as_ref().zip(*copying) {
            let is_in_order = *position < copied.landed;
            let point = if is_in_order { Point::InOrder } else { Point::OutOfOrder };
            put(point, [*position, bytes.len() as u64]);
        }
        if *transmitted == Some(0) && self.segments.iter().all(Option::is_none) {
            put(Point::HeldBack, [0; 2]);
        }
        for (header, _) in self.segments.iter().flatten() {
            self.trace_segment(header, &put);
        }
        if let Some(at) = check_at {
            put(Point::Delayed, [at.0, 0]);
        }
    }

    /// Traces the outputs of the post stage, if enabled.
    #[cold]
    pub(super) fn trace_outputs(&self, trace: &Trace) {
        let put = |point, values| trace.put(self.now, point, Some(self.flow), values);
        for (header, data) in self.segments.iter().flatten() {
            put(Point::Sent, [header.bytes.into(), data.segment_bytes.into()]);
        }
        if let Some((_, position, bytes)) = &self.write {
            put(Point::CopyBegins, [*position, bytes.len() as u64]);
        }
        if let Some((_, progress)) = &self.notify {
            put(Point::Notified, [progress.received, progress.acknowledged]);
        }
    }

    fn trace_segment(&self, header: &SegmentHeader, put: &dyn Fn(Point, [u64; 2])) {
        let (seq, ack) = (u64::from(header.seq.0), u64::from(header.ack.0));
        let tally = &self.outcome.tally;
        if header.flags.contains(Flags::RST) {
            return put(Point::RstSent, [seq, 0]);
        }
        let bytes = u64::from(header.bytes);
        match header.bytes {
            _ if tally.probes > 0 && header.bytes <= 1 => put(Point::Probe, [seq, 0]),
            0 => put(Point::AckSent, [ack, header.window.into()]),
            _ if tally.retransmitted > 0 => put(Point::DataSentAgain, [seq, bytes]),
            _ => put(Point::DataSent, [seq, bytes]),
        }
        if header.flags.contains(Flags::ECE) {
            put(Point::EceSent, [ack, 0]);
        }
    }
}
