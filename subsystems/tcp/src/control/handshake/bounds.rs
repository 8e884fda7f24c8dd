//! Limits of handshakes: answers to unacceptable segments, and half-open connections per listener. Also: handshakes that change
//! listeners.

use wave_core::clock::Nanos;

use super::super::shares::Kind;
use super::super::{Listener, Stack};
use super::For;
use crate::context::ContextId;
use crate::datapath::{Datapath, FlowId};
use crate::stages::receive::ANSWER_AFTER;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Whether an unacceptable segment of this handshake may be answered now. The limit is per handshake (see
    /// `on_established`).
    pub(super) fn may_answer_handshake(&mut self, now: Nanos, id: FlowId) -> bool {
        let Some(handshake) = self.handshakes.get_mut(id) else { return false };
        let may = handshake.answered_at.is_none_or(|at| now.since(at) >= ANSWER_AFTER);
        if may {
            handshake.answered_at = Some(now);
        }
        may
    }

    /// Drops the oldest handshake of a listener in favour of a newer one.
    pub(super) fn drop_oldest(&mut self, at: usize) {
        while let Some(id) = self.listeners[at].half_open_order.pop_front() {
            if self.handshakes.get(id).is_some() {
                self.counters.half_open_replaced += 1;
                self.counters.attempts_failed += 1;
                return self.drop_handshake(id);
            }
        }
    }

    /// Gives a handshake whose listener has gone to another listener that shares the port.
    pub(in crate::control) fn give_handshake(&mut self, id: FlowId, at: usize) {
        let Listener { context: ContextId { process, .. }, name, .. } = self.listeners[at];
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        let before = handshake.process();
        handshake.whom = For::Listener { process, name };
        self.give_share(before, Kind::Handshake);
        self.take_share(process, Kind::Handshake);
        self.note_half_open(at, id);
    }

    pub(super) fn note_half_open(&mut self, at: usize, id: FlowId) {
        let most = self.half_open_max(self.listeners[at].backlog);
        let listener = &mut self.listeners[at];
        listener.half_open += 1;
        listener.half_open_order.push_back(id);
        if listener.half_open_order.len() > 2 * most as usize {
            let handshakes = &self.handshakes;
            listener.half_open_order.retain(|id| handshakes.get(*id).is_some());
        }
    }
}
