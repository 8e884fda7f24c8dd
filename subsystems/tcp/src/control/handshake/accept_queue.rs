//! Limit of answers to unacceptable segments of handshakes; handshakes that change listeners, or wait for a slot.

use core::num::NonZeroU64;

use wave_core::clock::Nanos;

use super::super::reply::{self, BareSegment};
use super::super::shares::Kind;
use super::super::{Listener, Stack};
use super::{Opener, SYN_ACKS_MAX};
use crate::context::ContextId;
use crate::datapath::{Datapath, FlowId, Output, Packet};
use crate::packet::{Flags, Options, TcpSegment};
use crate::stages::receive::ANSWER_AFTER;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Whether an unacceptable segment of this handshake may be answered now. The limit is per handshake (see
    /// `on_established`).
    pub(super) fn may_answer_handshake(&mut self, now: Nanos, id: FlowId) -> bool {
        let Some(handshake) = self.handshakes.get_mut(id) else { return false };
        let may = handshake.answered_at.get().is_none_or(|at| now.since(at) >= ANSWER_AFTER);
        if may {
            handshake.answered_at = now.into();
        }
        may
    }

    /// Gives a handshake whose listener has gone to another listener that shares the port.
    pub(in crate::control) fn move_handshake(&mut self, id: FlowId, at: usize) {
        let Listener { context: ContextId { process, .. }, name, .. } = self.listeners[at];
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        let before = handshake.process();
        handshake.opener = Opener::Listener { process, name };
        let is_acknowledged = handshake.is_acknowledged();
        self.release_share(before, Kind::Handshake);
        self.acquire_share(process, Kind::Handshake);
        self.listeners[at].half_open += 1;
        if is_acknowledged {
            self.listeners[at].acknowledged += 1;
            self.listeners[at].waiting.push_back(id);
        }
    }

    /// Forgets the handshakes that are over in a listener's queue, and puts the others in the order of their arrival.
    pub(in crate::control) fn sort_waiting(&mut self, at: usize) {
        let handshakes = &self.handshakes;
        let arrived = |id: &FlowId| handshakes.get(*id).and_then(|one| one.arrived);
        let waiting = &mut self.listeners[at].waiting;
        waiting.retain(|id| arrived(id).is_some());
        waiting.make_contiguous().sort_by_key(arrived);
    }

    /// Arrival number of the first handshake in a listener's queue. Drops those before it that are over.
    pub(in crate::control) fn first_waiting(&mut self, at: usize) -> Option<NonZeroU64> {
        loop {
            let id = *self.listeners[at].waiting.front()?;
            if self.is_waiting(id, at) {
                return self.handshakes.get(id)?.arrived;
            }
            self.listeners[at].waiting.pop_front();
        }
    }

    /// Has an acknowledged handshake of a listener wait for a slot. `segment` is the peer's last one.
    pub(super) fn wait_for_slot(
        &mut self,
        now: Nanos,
        id: FlowId,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) {
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        if !handshake.is_acknowledged() {
            handshake.is_rtt_ambiguous |= handshake.tries > 1;
            handshake.syn_rtt = now.since(handshake.sent_at);
        }
        // A peer that answers is there, and may wait as long as the program lets it.
        handshake.tries = handshake.tries.min(SYN_ACKS_MAX - 1);
        handshake.window = segment.window;
        // A kept segment must not be older than the timestamp from which the connection begins (PAWS).
        let is_last = self.early.keep(id, handshake, segment, packet);
        let has_both =
            segment.options.timestamps.is_some() && handshake.options.timestamps.is_some();
        if is_last && has_both {
            handshake.options.timestamps = segment.options.timestamps;
        }
        if handshake.is_acknowledged() {
            return;
        }
        self.arrivals = self.arrivals.saturating_add(1);
        handshake.arrived = Some(self.arrivals);
        let process = handshake.process();
        let Opener::Listener { name, .. } = handshake.opener else { return };
        let Some(at) = self.listener_named(process, name) else { return };
        let listener = &mut self.listeners[at];
        listener.acknowledged += 1;
        listener.waiting.push_back(id);
        if listener.waiting.len() > 2 * listener.acknowledged as usize + 64 {
            let handshakes = &self.handshakes;
            listener.waiting.retain(|id| handshakes.get(*id).is_some());
        }
    }

    /// Resets the connection of an acknowledged handshake whose last listener has gone, as Linux does: the peer considers itself
    /// connected.
    pub(in crate::control) fn reset_waiting(&mut self, id: FlowId) {
        let Some(handshake) = self.handshakes.get(id).filter(|one| one.is_acknowledged()) else {
            return;
        };
        let Some(tuple) = self.handshakes.tuple(id) else { return };
        let bare = BareSegment {
            seq: handshake.iss.plus(1),
            ack: Some(handshake.irs.plus(1)),
            flags: Flags::RST,
            window: 0,
            options: Options::default(),
        };
        let macs = (self.address.mac, handshake.mac);
        self.out.push_back(Output::Send(reply::segment(macs, &tuple, &bare)));
    }

    /// Whether a handshake waits for a slot of this listener.
    pub(in crate::control) fn is_waiting(&self, id: FlowId, at: usize) -> bool {
        let Listener { context: ContextId { process, .. }, name, .. } = self.listeners[at];
        let handshake = self.handshakes.get(id);
        handshake.is_some_and(|one| one.is_acknowledged() && one.is_of(process, name))
    }

    /// Establishes the connection of an acknowledged handshake. Returns false if there is no slot or room.
    pub(in crate::control) fn open_acknowledged(&mut self, now: Nanos, id: FlowId) -> bool {
        let Some(handshake) = self.handshakes.get(id).copied() else { return false };
        let Some(tuple) = self.handshakes.tuple(id) else { return false };
        let window = u32::from(handshake.window) << handshake.options.scale.unwrap_or(0);
        let early = self.early.take(id);
        let Some(flow) = self.establish(now, Some(id), &handshake, &tuple, window, None) else {
            early.into_iter().for_each(|early| self.early.put_back(early));
            return false;
        };
        self.measure_handshake(now, flow, &handshake);
        if let Some(early) = early {
            self.packets.push_front(early.packet);
        }
        self.report_established(flow);
        true
    }
}
