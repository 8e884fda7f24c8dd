//! Established connections: timers and congestion (RFC 9293, 3.8; RFC 6298).

mod teardown;

use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::handshake::{R1_TRIES, TIMESTAMP_BYTES};
use super::options::KeptOptions;
use super::rtt::{MAX, RoundTrip};
use super::{Call, Stack};
use crate::congestion::{AckSummary, Congestion};
use crate::context::demotion::Shut;
use crate::context::{ContextId, Filled, Reason, SocketOptions};
use crate::datapath::{Command, Datapath, Established, Fin, FlowId, Limits, Statistics, Tuple};
use crate::flow::optional_time::OptionalTime;
use crate::packet::MacAddress;
use crate::trace::Point;
use crate::tuples::PackedTuple;

/// Consecutive timeouts after which a connection is dropped (Linux's tcp_retries2).
const TIMEOUTS_MAX: u8 = 15;
/// The same, for a connection that is closed by its host (Linux's tcp_orphan_retries).
const ORPHAN_TIMEOUTS_MAX: u8 = 8;
/// How long a connection whose process has gone may take to end, even if its peer still acknowledges something now and then.
const ORPHAN_LASTS: Nanos = Nanos::from_millis(600_000);
/// At most one in this many connections may belong to a process that has gone.
const ORPHANS_ONE_OF: u32 = 4;
/// How long a closed connection waits for the peer's FIN (Linux's tcp_fin_timeout).
const FIN_WAIT: Nanos = Nanos::from_millis(60_000);

/// Added to the two round trips after which the tail is probed: on a fast network these are shorter than the scheduling delays
/// of programs and agents.
const TAIL_PROBE_SLACK: Nanos = Nanos::from_millis(2);
/// How long a peer may delay the acknowledgement of a single segment (RFC 8985, 7.2: TLP.max_ack_delay).
const ACKNOWLEDGEMENT_DELAY: Nanos = Nanos::from_millis(200);

/// The purpose of a connection's only timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Timer {
    None,
    /// Data or a FIN is unacknowledged.
    Retransmit,
    /// A segment was overtaken by later ones, and may be lost.
    Overdue,
    /// The last segments sent may be lost.
    TailProbe,
    /// The peer's window is closed.
    Probe,
    /// Bytes wait for the host to write more.
    Held,
    /// The peer's FIN is awaited.
    FinWait,
    /// Nothing is sent: the congestion window becomes out of date.
    Idle,
    /// An idle peer is due for a keep-alive probe.
    KeepAlive,
}

/// How a connection is torn down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Teardown {
    /// Both streams have ended, and the host has closed.
    Closed { remembers: bool },
    /// It was reset or dropped; the host gets the reason.
    Failed(Reason),
}

/// The control plane's state of a connection.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Connection {
    pub flow: FlowId,
    ends: PackedTuple,
    pub context: ContextId,
    pub socket: u32,
    /// The listener of its process whose program has not accepted it yet.
    pub listener: Option<u32>,
    /// Its arrival number: listeners' programs accept in this order.
    pub arrived: NonZeroU64,
    pub round_trip: RoundTrip,
    pub congestion: Congestion,
    pub timer: Timer,
    pub options: KeptOptions,
    /// The next hop's Ethernet address.
    pub mac: MacAddress,
    /// Largest payload of a segment at present, in bytes.
    pub mss: u16,
    /// Upper bound of `mss`, agreed in the handshake.
    pub mss_max: u16,
    /// When larger segments are tried again after a router refused them.
    pub narrow_until: OptionalTime,
    has_timestamps: bool,
    /// A position in flight that was sent once, and its send time: measures round trips at a finer resolution than timestamps.
    pub timed: (u64, OptionalTime),
    /// Minimum of the latest round trips, for pacing rates.
    round_trip_low: OptionalTime,
    /// Since when the peer has acknowledged nothing in flight, and answered no window probe.
    waiting_since: Nanos,
    /// When the host was last warned of an error.
    pub warned_at: OptionalTime,
    /// When the last keep-alive probe was sent.
    pub asked_at: Nanos,
    /// Number of consecutive keep-alive probes without an answer.
    pub keep_alives: u8,
    acknowledged: u64,
    sent: u64,
    fin: Fin,
    /// Unacknowledged bytes at the last reading of statistics; a FIN counts as one.
    outstanding: u32,
    /// The peer ended its stream before we ended ours, so TIME_WAIT is on its side.
    is_passive: bool,
    fin_received: bool,
    /// When the last challenge ACK was sent.
    pub challenged_at: OptionalTime,
    /// When the last segment of the peer arrived.
    pub last_segment_at: Nanos,
    /// When the peer's closed window was last probed.
    probed_at: Nanos,
    /// Number of consecutive window probes without an answer.
    unanswered: u8,
    /// Positions up to which the host has reported to have read and written. The data path may not know them yet.
    pub read_reported: u64,
    /// See `read_reported`.
    pub written_reported: u64,
    /// Directions that the host has shut down, as it has reported.
    pub shut_reported: Shut,
    /// Once the host has closed: bytes that have arrived by then, plus 1.
    closed_at: Option<NonZeroU64>,
    /// Deadline for a connection whose process has gone.
    orphan_until: OptionalTime,
    /// It stays as it is when its process goes: another process may have a descriptor of it.
    pub is_held: bool,
    /// Memory of its rings that the host has named and the agent has verified.
    pub filled: Filled,
    teardown: Option<Teardown>,
}

impl Connection {
    pub(super) fn new(
        now: Nanos,
        flow: FlowId,
        established: &Established,
        listener: Option<u32>,
        congestion: Congestion,
    ) -> Connection {
        let mss = established.sending.mss;
        Connection {
            flow,
            ends: (&established.tuple).into(),
            context: established.context,
            socket: established.socket,
            listener,
            arrived: NonZeroU64::MIN,
            options: KeptOptions::from(&SocketOptions::default()),
            mac: established.peer_mac,
            mss,
            mss_max: mss,
            narrow_until: OptionalTime::NONE,
            has_timestamps: established.timestamps.is_some(),
            timed: (0, OptionalTime::NONE),
            round_trip_low: OptionalTime::NONE,
            waiting_since: now,
            warned_at: OptionalTime::NONE,
            asked_at: now,
            keep_alives: 0,
            round_trip: RoundTrip::new(),
            congestion,
            timer: Timer::None,
            acknowledged: 0,
            sent: 0,
            fin: Fin::No,
            outstanding: 0,
            is_passive: false,
            fin_received: false,
            challenged_at: OptionalTime::NONE,
            last_segment_at: now,
            probed_at: Nanos(0),
            unanswered: 0,
            read_reported: 0,
            written_reported: 0,
            shut_reported: Shut::default(),
            closed_at: None,
            orphan_until: OptionalTime::NONE,
            is_held: false,
            filled: Filled {
                receive: established.receiving.filled,
                send: established.sending.filled,
            },
            teardown: None,
        }
    }

    /// Addresses and ports of both ends.
    pub(super) fn tuple(&self) -> Tuple {
        (&self.ends).into()
    }

    /// The connection's state in RFC 9293's terms.
    pub(super) fn state(&self) -> super::State {
        use super::State::*;
        match (self.fin, self.fin_received) {
            (Fin::No | Fin::Wanted, false) => Established,
            (Fin::No | Fin::Wanted, true) => CloseWait,
            (Fin::Sent, false) => FinWait1,
            (Fin::Sent, true) if self.is_passive => LastAck,
            (Fin::Sent, true) => Closing,
            (Fin::Acknowledged, false) => FinWait2,
            (Fin::Acknowledged, true) if self.is_passive => Closed,
            (Fin::Acknowledged, true) => TimeWait,
        }
    }

    /// Bytes of options in each segment.
    pub(super) fn option_bytes(&self) -> u16 {
        if self.has_timestamps { TIMESTAMP_BYTES } else { 0 }
    }

    /// Whether the host still gets events of the connection: it is neither closed nor torn down.
    pub(super) fn has_host(&self) -> bool {
        !self.has_closed() && self.teardown.is_none()
    }

    /// Whether the connection is being torn down.
    pub(super) fn is_tearing_down(&self) -> bool {
        self.teardown.is_some()
    }

    /// The timer of an idle connection, and its deadline.
    pub(super) fn idle_timer(&self, now: Nanos) -> Option<(Timer, Nanos)> {
        if self.congestion.has_grown() {
            return Some((Timer::Idle, now + self.round_trip.timeout()));
        }
        self.options.keep_alive().map(|keep| (Timer::KeepAlive, self.last_segment_at + keep.idle))
    }

    /// Measures the round trip of bytes that were sent once (Karn's rule; RFC 6298, 3).
    fn measure_round_trip(&mut self, now: Nanos, statistics: &Statistics) {
        if statistics.fast_retransmits > 0 {
            self.timed.1 = OptionalTime::NONE;
        }
        let (position, at) = self.timed;
        match at.get() {
            Some(at) if statistics.acknowledged >= position => {
                let took = now.since(at);
                if !self.has_timestamps {
                    self.round_trip.sample(took);
                }
                // Delayed acknowledgements lengthen round trips: the minimum rises slowly, and falls at once.
                let low = self.round_trip_low.get().unwrap_or(took);
                self.round_trip_low = took.min(Nanos(low.0 + low.0 / 8 + 1)).into();
                self.timed.1 = OptionalTime::NONE;
            }
            Some(_) => {}
            // Bytes after the previous `sent` were sent now, for the first time.
            None if statistics.sent > self.sent && statistics.fast_retransmits == 0 => {
                self.timed = (statistics.sent, now.into());
            }
            None => {}
        }
    }

    /// How long to wait for an acknowledgement before the tail is probed: at most the retransmission timeout, which the probe
    /// then replaces (RFC 8985, 7.2).
    fn tail_probe_after(&self, statistics: &Statistics) -> Option<Nanos> {
        let smoothed = self.round_trip.smoothed().filter(|_| statistics.wants_tail_probe)?;
        let is_alone = self.outstanding <= u32::from(self.mss);
        let delayed = if is_alone { ACKNOWLEDGEMENT_DELAY } else { Nanos(0) };
        let wait = Nanos(2 * smoothed.0) + TAIL_PROBE_SLACK + delayed;
        Some(wait.min(self.round_trip.timeout()))
    }

    fn timeouts_max(&self) -> u8 {
        if self.has_closed() { ORPHAN_TIMEOUTS_MAX } else { TIMEOUTS_MAX }
    }

    /// `at`, but no later than the connection's own limits: the host's user timeout, and the deadline after its process has
    /// gone.
    fn limit_deadline(&self, timer: Timer, at: Nanos) -> Nanos {
        let at = self.orphan_until.get().map_or(at, |until| at.min(until));
        match (timer, self.options.user_timeout()) {
            (Timer::Retransmit | Timer::Probe, Some(after)) => at.min(self.waiting_since + after),
            _ => at,
        }
    }

    /// Records that the host has closed, after so many bytes have arrived.
    fn record_close(&mut self, received: u64) {
        self.closed_at = NonZeroU64::new(received + 1);
    }

    /// Whether the host has closed, or its process has gone.
    fn has_closed(&self) -> bool {
        !self.orphan_until.is_none() || self.closed_at.is_some()
    }

    /// Whether the process has gone, and the deadline has passed.
    fn is_past_deadline(&self, now: Nanos) -> bool {
        self.orphan_until.get().is_some_and(|until| now >= until)
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    pub(super) fn peek(&self, flow: FlowId) -> Option<&Connection> {
        self.connections.get(flow.index as usize)?.as_ref().filter(|one| one.flow == flow)
    }

    pub(super) fn connection(&mut self, flow: FlowId) -> Option<&mut Connection> {
        self.connections.get_mut(flow.index as usize)?.as_mut().filter(|one| one.flow == flow)
    }

    pub(super) fn on_statistics(&mut self, now: Nanos, statistics: &Statistics) {
        let flow = statistics.flow;
        let Some(connection) = self.connection(flow) else { return };
        if connection.teardown.is_some() {
            return;
        }
        if statistics.is_at_fault {
            let context = connection.context;
            self.refused(context, Call::Use, Reason::Invalid);
            return self.drop_connection(flow, Reason::Invalid);
        }
        let Some(connection) = self.connection(flow) else { return };
        connection.last_segment_at = connection.last_segment_at.max(statistics.last_segment_at);
        if let Some(took) = statistics.round_trip {
            connection.round_trip.sample(took);
        }
        let has_sent = statistics.sent > connection.sent || statistics.fin_sent != connection.fin;
        connection.measure_round_trip(now, statistics);
        connection.sent = statistics.sent;
        let has_moved = statistics.acknowledged > connection.acknowledged
            || (statistics.fin_sent == Fin::Acknowledged && connection.fin != Fin::Acknowledged);
        let bytes = (statistics.acknowledged - connection.acknowledged) as u32;
        let before = u64::from(connection.outstanding);
        connection.acknowledged = statistics.acknowledged;
        let is_ours_sent = matches!(statistics.fin_sent, Fin::Sent | Fin::Acknowledged);
        if statistics.fin_received && !connection.fin_received {
            connection.fin_received = true;
            connection.is_passive = !is_ours_sent;
        }
        connection.fin = statistics.fin_sent;
        let outstanding =
            statistics.sent - statistics.acknowledged + u64::from(statistics.fin_sent == Fin::Sent);
        // Fits: a ring is shorter than 2^32 bytes.
        connection.outstanding = outstanding as u32;

        let before_window = connection.congestion.window();
        let acks = AckSummary {
            bytes,
            marked_bytes: statistics.marked_bytes,
            acknowledged: statistics.acknowledged,
            sent: statistics.sent,
            // The unacknowledged bytes reached the window, or nearly.
            was_full: before + u64::from(bytes) / 2 >= u64::from(before_window) / 2,
            is_recovering: statistics.is_recovering || statistics.fast_retransmits > 0,
        };
        let mut has_reduced = connection.congestion.on_acknowledged(&acks);
        if statistics.fast_retransmits > 0 {
            connection.congestion.on_loss(before as u32, statistics.sent);
            has_reduced = true;
        }
        if has_moved {
            connection.round_trip.reset_back_off();
        }
        let Connection { congestion, closed_at, orphan_until, .. } = *connection;
        if connection.is_past_deadline(now) {
            self.counters.orphans_reset += 1;
            return self.reset(now, flow, Reason::TimedOut);
        }
        if congestion.window() != before_window || has_reduced {
            if has_reduced {
                let values = [congestion.window().into(), statistics.marked_bytes.into()];
                self.trace.put(now, Point::Reduced, Some(flow), values);
            }
            self.trace.put(now, Point::Window, Some(flow), congestion.values());
            self.pace(flow, has_reduced);
        }
        if closed_at.is_some_and(|at| statistics.received >= at.get()) {
            // RFC 2525, 2.17: data arrived after the host closed.
            return self.refuse(now, flow);
        }
        if statistics.fin_received && statistics.fin_sent == Fin::Acknowledged {
            if closed_at.is_some() || !orphan_until.is_none() {
                self.end(now, flow);
            }
            return self.start_timer(flow, Timer::None, None);
        }
        self.raise_mss(now, flow);
        self.choose_timer(now, statistics, has_moved, has_sent);
    }

    /// Chooses and sets the timer.
    fn choose_timer(
        &mut self,
        now: Nanos,
        statistics: &Statistics,
        has_moved: bool,
        has_sent: bool,
    ) {
        let flow = statistics.flow;
        let Some(connection) = self.connection(flow) else { return };
        if connection.timer == Timer::Probe && !statistics.is_blocked {
            // Window probes were answered: their back-off says nothing about losses.
            connection.round_trip.reset_back_off();
            connection.unanswered = 0;
            connection.waiting_since = now;
        }
        let is_waiting =
            matches!(connection.timer, Timer::Retransmit | Timer::TailProbe | Timer::Probe);
        if has_moved || !is_waiting {
            connection.waiting_since = now;
        }
        let timeout = connection.round_trip.timeout();
        let (timer, at) = if statistics.is_blocked {
            (Timer::Probe, now + timeout)
        } else if let Some(at) = statistics.overdue_at.filter(|at| *at < now + timeout) {
            (Timer::Overdue, at.max(now))
        } else if let Some(wait) = connection
            .tail_probe_after(statistics)
            // A running retransmission timeout is not postponed: a data path that has just installed the flow knows no earlier
            // probe or loss.
            .filter(|_| has_moved || connection.timer != Timer::Retransmit)
        {
            (Timer::TailProbe, now + wait)
        } else if connection.outstanding > 0 {
            (Timer::Retransmit, now + timeout)
        } else if statistics.is_corked {
            (Timer::Held, now + timeout)
        } else if statistics.fin_sent == Fin::Acknowledged && connection.closed_at.is_some() {
            (Timer::FinWait, now + FIN_WAIT)
        } else if let Some(idle) = connection.idle_timer(now) {
            idle
        } else {
            return self.start_timer(flow, Timer::None, None);
        };
        let at = connection.limit_deadline(timer, at);
        // A running timer keeps its deadline, unless there was progress. Each segment sent restarts the tail probe (RFC 8985,
        // 7.2).
        let is_longer = timer == Timer::TailProbe && has_sent;
        if connection.timer != timer || has_moved || is_longer {
            self.trace.put(now, Point::TimerSet, Some(flow), [timer as u64, at.0]);
            self.start_timer(flow, timer, Some(at));
        }
    }

    pub(super) fn start_timer(&mut self, flow: FlowId, timer: Timer, at: Option<Nanos>) {
        if let Some(connection) = self.connection(flow) {
            connection.timer = timer;
            self.set_timer(flow.index, at);
        }
    }

    /// Passes congestion control's current limits to the data path.
    fn pace(&mut self, flow: FlowId, has_reduced: bool) {
        let Some(Connection { congestion, round_trip_low, .. }) = self.connection(flow) else {
            return;
        };
        let limits = Limits {
            window_bytes: congestion.window(),
            bytes_per_second: congestion.rate(round_trip_low.get()),
            has_reduced,
        };
        self.data.pace(flow, limits);
    }

    pub(super) fn on_timer(&mut self, now: Nanos, index: u32) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        let flow = connection.flow;
        let timer = core::mem::replace(&mut connection.timer, Timer::None);
        if connection.is_past_deadline(now) && connection.teardown.is_none() {
            self.counters.orphans_reset += 1;
            return self.reset(now, flow, Reason::TimedOut);
        }
        let back_off = connection.round_trip.timeouts().into();
        self.trace.put(now, Point::TimerFired, Some(flow), [timer as u64, back_off]);
        let Some(connection) = self.connection(flow) else { return };
        let command = match timer {
            Timer::None => return,
            Timer::FinWait => return self.end(now, flow),
            Timer::Overdue => return self.data.command(now, flow, Command::DetectLoss),
            Timer::TailProbe => {
                connection.timed.1 = OptionalTime::NONE;
                let timeout = connection.round_trip.timeout();
                let at = connection.limit_deadline(Timer::Retransmit, now + timeout);
                self.data.command(now, flow, Command::ProbeTail);
                return self.start_timer(flow, Timer::Retransmit, Some(at));
            }
            Timer::Held => return self.data.command(now, flow, Command::Uncork),
            Timer::KeepAlive => return self.on_keep_alive(now, flow),
            Timer::Idle => {
                connection.congestion.restart();
                self.pace(flow, true);
                return self.wait_idle(now, flow);
            }
            Timer::Probe => {
                // A peer may keep its window closed for as long as it answers (RFC 9293, 3.8.6.1).
                let is_answered = connection.last_segment_at > connection.probed_at;
                connection.unanswered = if is_answered { 0 } else { connection.unanswered + 1 };
                if is_answered {
                    connection.waiting_since = now;
                }
                connection.probed_at = now;
                Command::Probe
            }
            Timer::Retransmit => {
                let again = connection.round_trip.timeouts() > 0;
                connection.congestion.on_timeout(connection.outstanding, again);
                connection.timed.1 = OptionalTime::NONE;
                Command::Retransmit
            }
        };
        connection.round_trip.back_off();
        let timeouts = match timer {
            // A closed connection does not wait for a peer that keeps its window closed.
            Timer::Probe if !connection.has_closed() => connection.unanswered,
            _ => connection.round_trip.timeouts(),
        };
        let limit = connection.options.user_timeout();
        let is_late = limit.is_some_and(|limit| now.since(connection.waiting_since) >= limit);
        // The host's own limit (RFC 9293, MUST-21) replaces ours, while the host is there.
        let is_vain = match limit {
            Some(_) if !connection.has_closed() => is_late,
            _ => is_late || timeouts > connection.timeouts_max(),
        };
        let wait = connection.round_trip.timeout().0.min(MAX.0);
        if is_vain {
            self.counters.timed_out += 1;
            return self.reset(now, flow, Reason::TimedOut);
        }
        if command == Command::Retransmit {
            self.pace(flow, true);
        }
        if timeouts >= R1_TRIES {
            self.update_next_hop(now, flow);
        }
        if timeouts == R1_TRIES {
            self.on_unanswered(now, flow);
        }
        self.data.command(now, flow, command);
        let Some(connection) = self.connection(flow) else { return };
        let at = connection.limit_deadline(timer, now + Nanos(wait));
        self.start_timer(flow, timer, Some(at));
    }
}
