//! Handshakes: connections that are not established yet (RFC 9293, 3.5 and 3.10.7.3 to 4).

mod accept_queue;
pub(super) mod cookies;
pub(super) mod early;
mod establish;
mod icmp_errors;
mod offer;

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::ecn::EcnNegotiation;
use super::neighbours::{QUERIES_MAX, QUERY_AFTER};
use super::reply::{self, BareSegment};
use super::shares::Kind;
use super::{SHAPE_UNKNOWN, Slot, Stack};
use crate::context::{ContextId, Event, Reason};
use crate::datapath::{Command, Datapath, FlowId, Output, Packet, Tuple};
use crate::flow::optional_time::OptionalTime;
use crate::packet::{Flags, MacAddress, Options, TcpSegment};
use crate::seq::Seq;
use crate::stages::acknowledge::milliseconds;
use crate::trace::Point;
use offer::both;

/// Transmissions of a SYN: the last one after 191 s. The handshake fails after 255 s (RFC 9293, MUST-23: at least 3 minutes).
const SYNS_MAX: u8 = 9;
/// Transmissions of a SYN-ACK, whose outcome no program waits for: 63 s in all.
const SYN_ACKS_MAX: u8 = 6;
/// Time before the first retransmission; it doubles each time (RFC 6298).
const RTO_INITIAL: Nanos = Nanos::from_millis(1_000);
/// Longest time between two transmissions.
const RTO_MAX: Nanos = Nanos::from_millis(64_000);
/// Unanswered transmissions after which the next hop is resolved again (RFC 9293, 3.8.3: R1).
pub(super) const R1_TRIES: u8 = 3;
/// The peer's MSS if it names none (RFC 9293, MUST-15).
const MSS_DEFAULT: u16 = 536;
/// Smallest MSS that we accept from a peer: a smaller one would make us send mostly headers (CVE-2019-11479).
const MSS_MIN: u16 = 48;
/// Distance from the last sequence number of a connection in TIME_WAIT to the first of the next one between the same ends.
const REOPENED_AFTER: u32 = 65_537;
/// Length of the timestamp option in bytes, with padding.
pub(super) const TIMESTAMP_BYTES: u16 = 12;

/// The party that a handshake is for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Opener {
    /// A listener of this process, by its name.
    Listener { process: u16, name: u32 },
    /// A host that connects.
    Host { context: ContextId, slot: Slot },
}

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    /// The next hop's Ethernet address is being resolved.
    Resolving,
    /// Our SYN was sent (SYN-SENT).
    SynSent,
    /// The peer's SYN arrived, and ours was sent (SYN-RECEIVED).
    SynReceived,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Handshake {
    opener: Opener,
    stage: Stage,
    mac: MacAddress,
    /// Our initial send sequence number (RFC 9293, ISS).
    iss: Seq,
    /// The peer's: our initial receive sequence number (IRS).
    irs: Seq,
    /// Options on which both sides may agree: those that our SYN offers, then those of the peer's SYN that we accept.
    options: Options,
    /// Window field of the peer's SYN, which is not scaled.
    window: u16,
    scale: u8,
    /// Our first receive window in bytes: the memory of the receive ring.
    window_bytes: u32,
    /// The host's limit (TCP_MAXSEG) of a segment in bytes, options included.
    mss_max: u16,
    tries: u8,
    /// When our SYN was last sent.
    sent_at: Nanos,
    /// Round-trip time of our SYN, once it is [acknowledged](Handshake::is_acknowledged).
    syn_rtt: Nanos,
    /// The last error that the network reported about our SYN.
    error: Option<Reason>,
    /// When an unacceptable segment was last answered.
    answered_at: OptionalTime,
    /// Negotiation of ECN.
    ecn: EcnNegotiation,
    /// The acknowledgement of our SYN measures no round trip: the SYN was sent again without a timeout (Karn's rule), or was a
    /// cookie.
    is_rtt_ambiguous: bool,
    /// Once the peer has acknowledged our SYN, and a listener's slot is missing: the connection's arrival number.
    /// `window` and the timestamps are those of its last segment.
    arrived: Option<NonZeroU64>,
}

impl Handshake {
    pub(super) fn is_for(&self, process: u16) -> bool {
        matches!(self.opener, Opener::Host { context, .. } if context.process == process)
    }

    /// Whether it is for this listener.
    pub(super) fn is_of(&self, of: u16, listener: u32) -> bool {
        matches!(self.opener, Opener::Listener { process, name } if (process, name) == (of, listener))
    }

    /// Whether the peer has acknowledged our SYN, and a listener's slot is missing.
    fn is_acknowledged(&self) -> bool {
        self.arrived.is_some()
    }

    fn is_passive(&self) -> bool {
        matches!(self.opener, Opener::Listener { .. })
    }

    /// Process and slot of a host that connects; `None` for a listener's handshake.
    pub(super) fn slot(&self) -> Option<(u16, Slot)> {
        match self.opener {
            Opener::Host { context, slot } => Some((context.process, slot)),
            Opener::Listener { .. } => None,
        }
    }

    /// The process that it is for.
    pub(super) fn process(&self) -> u16 {
        match self.opener {
            Opener::Listener { process, .. } => process,
            Opener::Host { context, .. } => context.process,
        }
    }

    pub(super) fn state(&self) -> super::State {
        match self.stage {
            Stage::SynReceived => super::State::SynReceived,
            Stage::Resolving | Stage::SynSent => super::State::SynSent,
        }
    }

    /// Window field of our segments before the connection is established.
    fn own_window(&self, is_syn: bool) -> u16 {
        let shift = if is_syn { 0 } else { self.scale };
        (self.window_bytes >> shift).min(u16::MAX.into()) as u16
    }
}

/// Whether a segment carries bytes or the end of the stream.
pub(super) fn carries_data(segment: &TcpSegment) -> bool {
    !segment.payload.is_empty() || segment.flags.contains(Flags::FIN)
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    fn handshake_timer(&mut self, id: FlowId, at: Option<Nanos>) {
        self.set_timer(self.bounds.flows + id.index, at);
    }

    pub(super) fn connect(
        &mut self,
        now: Nanos,
        from: ContextId,
        slot: Slot,
        remote: SocketAddr,
        local_port: u16,
        mss_max: u16,
    ) -> Result<(), Reason> {
        let ip = remote.ip();
        let has_version = ip.is_ipv4() || self.capabilities().ipv6;
        if !self.address.may_be_peer(ip) || remote.port() == 0 || !has_version {
            return Err(Reason::Unreachable);
        }
        let hop = self.address.next_hop(ip).ok_or(Reason::Unreachable)?;
        self.check_port(from.process, local_port)?;
        let has_room = [Kind::Connection, Kind::Handshake]
            .into_iter()
            .all(|kind| self.has_room(from.process, kind));
        if !has_room {
            self.counters.beyond_share += 1;
            return Err(Reason::TooMany);
        }
        let tuple = self.free_tuple(remote, local_port)?;
        let theirs = self.listener_at(tuple.local).filter(|_| local_port != 0);
        if theirs.is_some_and(|at| self.listeners[at].context.process != from.process) {
            return Err(Reason::AddressInUse);
        }
        let mac = self.neighbours.find(hop, now);
        let scale = self.own_scale(slot.receive.bytes);
        let handshake = Handshake {
            opener: Opener::Host { context: from, slot },
            stage: if mac.is_some() { Stage::SynSent } else { Stage::Resolving },
            mac: mac.unwrap_or_default(),
            iss: self.secrets.initial_sequence(&tuple, now),
            irs: Seq(0),
            options: self.offered(scale),
            window: 0,
            scale,
            window_bytes: slot.window_bytes(),
            mss_max,
            tries: 0,
            sent_at: now,
            syn_rtt: Nanos(0),
            error: None,
            answered_at: OptionalTime::NONE,
            ecn: EcnNegotiation::default(),
            is_rtt_ambiguous: false,
            arrived: None,
        };
        let id = self.handshakes.insert(tuple, handshake).map_err(|_| Reason::NoRoom)?;
        self.acquire_share(from.process, Kind::Handshake);
        self.counters.active_opens += 1;
        self.retry_handshake(now, id);
        Ok(())
    }

    pub(super) fn cancel(&mut self, from: ContextId, name: u32) {
        if let Some((id, _)) = self.find_requested(from, name) {
            self.drop_handshake(id);
            self.notify(from, Event::Closed { socket: name });
        }
    }

    /// Tells a process the local address of a connection that it has requested.
    pub(super) fn report_local_address(&mut self, from: ContextId, name: u32) {
        if let Some((_, tuple)) = self.find_requested(from, name) {
            self.notify(from, Event::LocalAddress { socket: name, local: tuple.local });
        }
    }

    /// The handshake of a connection that a process has requested under this name.
    fn find_requested(&self, from: ContextId, name: u32) -> Option<(FlowId, Tuple)> {
        let found = self.handshakes.iter().find(|(_, _, handshake)| {
            matches!(handshake.opener, Opener::Host { context, slot }
                if context.process == from.process && slot.socket == name)
        });
        found.map(|(id, tuple, _)| (id, tuple))
    }

    pub(super) fn drop_handshake(&mut self, id: FlowId) {
        self.handshake_timer(id, None);
        let Some(handshake) = self.handshakes.remove(id) else { return };
        self.early.take(id);
        self.release_share(handshake.process(), Kind::Handshake);
        if let Opener::Listener { process, name } = handshake.opener
            && let Some(at) = self.listener_named(process, name)
        {
            self.listeners[at].half_open -= 1;
            self.listeners[at].acknowledged -= u32::from(handshake.is_acknowledged());
        }
    }

    fn fail(&mut self, id: FlowId, reason: Reason) {
        let opener = self.handshakes.get(id).map(|handshake| handshake.opener);
        self.counters.attempts_failed += 1;
        self.drop_handshake(id);
        if let Some(Opener::Host { context, slot }) = opener {
            self.notify(context, Event::Failed { socket: slot.socket, reason });
        }
    }

    pub(super) fn on_handshake_timer(&mut self, now: Nanos, index: u32) {
        let id = self.handshakes.id(index);
        self.retry_handshake(now, id);
    }

    /// Sends the handshake's next segment or neighbour query, or retransmits it, and sets the timer; fails the handshake after
    /// the last try.
    fn retry_handshake(&mut self, now: Nanos, id: FlowId) {
        let Some(handshake) = self.handshakes.get(id).copied() else { return };
        let resolving = handshake.stage == Stage::Resolving;
        let tries_max = match (handshake.stage, handshake.is_passive()) {
            (Stage::Resolving, _) => QUERIES_MAX,
            (_, true) => SYN_ACKS_MAX,
            (_, false) => SYNS_MAX,
        };
        if handshake.tries >= tries_max {
            let reason = if resolving { Reason::NoNeighbour } else { Reason::TimedOut };
            return self.fail(id, handshake.error.unwrap_or(reason));
        }
        let doubled = Nanos(RTO_INITIAL.0 << handshake.tries).min(RTO_MAX);
        let wait = if resolving { QUERY_AFTER } else { doubled };
        if !resolving && handshake.tries >= R1_TRIES {
            self.on_unanswered_syn(now, id);
        }
        if let Some(handshake) = self.handshakes.get_mut(id) {
            handshake.tries += 1;
            handshake.sent_at = now;
        }
        self.handshake_timer(id, Some(now + wait));
        self.send_handshake(now, id);
    }

    fn send_handshake(&mut self, now: Nanos, id: FlowId) {
        let Some(handshake) = self.handshakes.get(id).copied() else { return };
        let Some(tuple) = self.handshakes.tuple(id) else { return };
        if handshake.stage == Stage::Resolving {
            return self.query_next_hop(&tuple);
        }
        let is_answer = handshake.stage == Stage::SynReceived;
        let stamp = milliseconds(now).wrapping_add(self.secrets.timestamp_offset(&tuple));
        let asks = self.algorithm.asks_for_ecn() && self.has_ecn() && handshake.tries <= 1;
        let flags_of = |it: &mut Handshake| {
            if is_answer { it.ecn.syn_ack_flags() } else { it.ecn.syn_flags(asks) }
        };
        let ecn = self.handshakes.get_mut(id).map_or(Flags::NONE, flags_of);
        let bare = BareSegment {
            seq: handshake.iss,
            ack: is_answer.then(|| handshake.irs.plus(1)),
            flags: Flags::SYN | ecn,
            window: handshake.own_window(true),
            options: Options {
                mss: Some(self.own_mss(&tuple, &handshake)),
                scale: handshake.options.scale.is_some().then_some(handshake.scale),
                timestamps: handshake.options.timestamps.map(|(value, _)| (stamp, value)),
                sack_permitted: handshake.options.sack_permitted,
                ..Options::default()
            },
        };
        let values = [tuple.remote.port().into(), handshake.tries.into()];
        self.trace.put(now, Point::SynSent, None, values);
        let macs = (self.address.mac, handshake.mac);
        self.out.push_back(Output::Send(reply::segment(macs, &tuple, &bare)));
    }

    /// Continues the handshakes that waited for this neighbour's address.
    pub(super) fn on_resolved(&mut self, now: Nanos, hop: IpAddr, mac: MacAddress) {
        while let Some(id) = self.resolving(hop) {
            let Some(handshake) = self.handshakes.get_mut(id) else { return };
            handshake.stage = Stage::SynSent;
            handshake.mac = mac;
            handshake.tries = 0;
            self.retry_handshake(now, id);
        }
    }

    /// A handshake that waits for this neighbour's address.
    pub(super) fn resolving(&self, hop: IpAddr) -> Option<FlowId> {
        let waits = |tuple: &Tuple, handshake: &Handshake| {
            handshake.stage == Stage::Resolving
                && self.address.next_hop(tuple.remote.ip()) == Some(hop)
        };
        let mut all = self.handshakes.iter();
        all.find(|(_, tuple, handshake)| waits(tuple, handshake)).map(|(id, _, _)| id)
    }

    /// The listener at one of our addresses and ports.
    pub(super) fn listener_at(&self, local: SocketAddr) -> Option<usize> {
        let has_version = local.is_ipv4() || self.capabilities().ipv6;
        let mut listeners = self.listeners.iter();
        listeners.position(|one| has_version && super::accepts_at(one.local, local))
    }

    /// Handles a SYN for a listener, by its place among the listeners.
    pub(super) fn on_listener_syn(
        &mut self,
        now: Nanos,
        at: usize,
        tuple: Tuple,
        mac: MacAddress,
        segment: &TcpSegment,
    ) {
        self.trace.put(now, Point::SynReceived, None, [tuple.remote.port().into(), 0]);
        let listener = &self.listeners[at];
        let (process, name) = (listener.context.process, listener.name);
        let (mss_max, half_open) = (listener.mss_max, listener.half_open);
        // Beyond the slots that the program offers at a time, connections of its backlog wait for the next ones. A listener that
        // processes share has all of its backlog here: one more than listen(2) says, as in Linux.
        let (backlog, waiting_max) = match listener.is_shared {
            true => (listener.backlog.saturating_add(1), u32::from(listener.backlog) + 1),
            false => {
                let backlog = listener.backlog;
                (backlog, u32::from(backlog).saturating_sub(listener.slots_max))
            }
        };
        let offered = listener.slots.front().map(Slot::shape);
        // The first slot may be on its way: the program listens as soon as the listener exists.
        let shape = listener.shape.unwrap_or(SHAPE_UNKNOWN);
        let acknowledged = self.queued(at);
        let Some((ring_bytes, window_bytes)) =
            offered.or((acknowledged < waiting_max).then_some(shape))
        else {
            self.counters.overflows += 1;
            return;
        };
        let scale = self.own_scale(ring_bytes);
        let most = self.half_open_max(backlog);
        let most = if offered.is_some() { most } else { most.min(waiting_max) };
        // A cookie cannot reopen a connection in TIME_WAIT, so such a SYN may exceed the backlog.
        let may_keep = half_open < most || self.time_wait.contains(&tuple);
        if !self.has_room(process, Kind::Connection) {
            self.counters.beyond_share += 1;
            return;
        }
        let may_keep = may_keep && self.has_room(process, Kind::Handshake);
        let clocked = self.secrets.initial_sequence(&tuple, now);
        // Segments of an old connection between the same ends must not fit into this one (RFC 9293, MAY-2). As in Linux, more
        // than the largest window of a SYN lies between them, so that not even old acknowledgements do (RFC 5961, 5.2).
        let iss = match self.time_wait.find(&tuple) {
            Some(over) if clocked.since(over.seq) <= 0 => over.seq.plus(REOPENED_AFTER),
            _ => clocked,
        };
        let handshake = Handshake {
            opener: Opener::Listener { process, name },
            stage: Stage::SynReceived,
            mac,
            iss,
            irs: segment.seq,
            options: both(&self.offered(scale), &segment.options),
            window: segment.window,
            scale,
            window_bytes,
            mss_max,
            tries: 0,
            sent_at: now,
            syn_rtt: Nanos(0),
            error: None,
            answered_at: OptionalTime::NONE,
            ecn: EcnNegotiation::with(self.agreed_flags(segment)),
            is_rtt_ambiguous: false,
            arrived: None,
        };
        let kept = may_keep.then(|| self.handshakes.insert(tuple, handshake));
        let Some(Ok(id)) = kept else {
            // As many connections as the program wants to wait for it do so already.
            if acknowledged >= most {
                self.counters.overflows += 1;
                return;
            }
            return self.answer_with_cookie(now, at, &tuple, handshake);
        };
        self.time_wait.remove(&tuple);
        self.acquire_share(process, Kind::Handshake);
        self.listeners[at].half_open += 1;
        self.retry_handshake(now, id);
    }

    /// Handles a segment for a handshake. If it establishes the connection, the packet goes on to the data path.
    pub(super) fn on_handshake(
        &mut self,
        now: Nanos,
        id: FlowId,
        tuple: &Tuple,
        mac: MacAddress,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) {
        let Some(handshake) = self.handshakes.get(id).copied() else { return };
        let flags = segment.flags;
        let acknowledges = segment.ack == Some(handshake.iss.plus(1));
        if handshake.stage != Stage::SynReceived {
            return self.on_syn_sent(now, id, tuple, mac, segment, acknowledges);
        }
        if flags.contains(Flags::RST) {
            // RFC 5961, 3.2: only a reset with exactly the next sequence number counts.
            if segment.seq == handshake.irs.plus(1) {
                self.fail(id, Reason::Refused);
            }
            return;
        }
        if flags.contains(Flags::SYN) {
            let is_same = segment.seq == handshake.irs;
            if let Some(handshake) = self.handshakes.get_mut(id).filter(|_| is_same) {
                handshake.ecn.on_retransmitted_syn(flags);
            }
            if is_same && acknowledges {
                // Simultaneous open: this is the peer's SYN-ACK (RFC 9293, Figure 8). A SYN's window is not scaled.
                let window = u32::from(segment.window);
                let stamps = segment.options.timestamps;
                let established = self.establish(now, Some(id), &handshake, tuple, window, stamps);
                if let Some(flow) = established {
                    self.data.command(now, flow, Command::Challenge);
                    self.report_established(flow);
                }
            } else if self.may_answer_handshake(now, id) {
                if let Some(handshake) = self.handshakes.get_mut(id) {
                    handshake.is_rtt_ambiguous = true;
                }
                self.counters.challenges += u64::from(!is_same);
                self.send_handshake(now, id);
            }
            return;
        }
        if segment.ack.is_none() {
            return;
        }
        if !acknowledges {
            // The peer may have got a cookie before there was room for this handshake.
            if handshake.is_passive()
                && let Some(returned) = self.parse_cookie(now, tuple, mac, segment)
            {
                self.drop_handshake(id);
                return self.open_by_cookie(now, returned, tuple, segment, packet);
            }
            // RFC 9293, 3.10.7.4, fifth: a segment that does not acknowledge our SYN gets a reset.
            if self.may_answer_handshake(now, id) {
                let bare = reply::reset(segment);
                let macs = (self.address.mac, mac);
                self.out.push_back(Output::Send(reply::segment(macs, tuple, &bare)));
            }
            return;
        }
        if let Err(packet) = self.finish_open(now, Some(id), &handshake, tuple, segment, packet) {
            self.wait_for_slot(now, id, segment, packet);
        }
    }

    /// Establishes the connection of a listener's handshake with the segment that acknowledges our SYN. `id` is the handshake's
    /// place in the table; `None` if a cookie carried it. Returns the packet if there is no slot or room.
    pub(super) fn finish_open(
        &mut self,
        now: Nanos,
        id: Option<FlowId>,
        handshake: &Handshake,
        tuple: &Tuple,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) -> Result<(), Packet<F>> {
        let window = u32::from(segment.window) << handshake.options.scale.unwrap_or(0);
        let early = id.and_then(|id| self.early.take(id));
        let flow = self.establish(now, id, handshake, tuple, window, segment.options.timestamps);
        let Some(flow) = flow else {
            early.into_iter().for_each(|early| self.early.put_back(early));
            return Err(packet);
        };
        self.measure_handshake(now, flow, handshake);
        if carries_data(segment) {
            self.packets.push_front(packet);
        }
        if let Some(early) = early {
            self.packets.push_front(early.packet);
        }
        self.report_established(flow);
        Ok(())
    }

    fn on_syn_sent(
        &mut self,
        now: Nanos,
        id: FlowId,
        tuple: &Tuple,
        mac: MacAddress,
        segment: &TcpSegment,
        acknowledges: bool,
    ) {
        let flags = segment.flags;
        if segment.ack.is_some() && !acknowledges {
            if !flags.contains(Flags::RST) && self.may_answer_handshake(now, id) {
                let bare = reply::reset(segment);
                let macs = (self.address.mac, mac);
                self.out.push_back(Output::Send(reply::segment(macs, tuple, &bare)));
            }
            return;
        }
        if flags.contains(Flags::RST) {
            if acknowledges {
                self.fail(id, Reason::Refused);
            }
            return;
        }
        if !flags.contains(Flags::SYN) {
            return;
        }
        let asked = self.agreed_flags(segment);
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        handshake.irs = segment.seq;
        handshake.options = both(&handshake.options, &segment.options);
        handshake.window = segment.window;
        handshake.mac = mac;
        handshake.ecn.on_syn(asked);
        if !acknowledges {
            // Simultaneous open (RFC 9293, Figure 8).
            handshake.stage = Stage::SynReceived;
            handshake.is_rtt_ambiguous = true;
            handshake.tries = 0;
            return self.retry_handshake(now, id);
        }
        let handshake = *handshake;
        let window = u32::from(segment.window);
        let stamps = segment.options.timestamps;
        if let Some(flow) = self.establish(now, Some(id), &handshake, tuple, window, stamps) {
            self.measure_handshake(now, flow, &handshake);
            self.data.command(now, flow, Command::Challenge);
            self.report_established(flow);
        }
    }
}
