//! Limit of answers to unacceptable segments of handshakes; handshakes that change listeners.

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

    /// Gives a handshake whose listener has gone to another listener that shares the port.
    pub(in crate::control) fn give_handshake(&mut self, id: FlowId, at: usize) {
        let Listener { context: ContextId { process, .. }, name, .. } = self.listeners[at];
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        let before = handshake.process();
        handshake.whom = For::Listener { process, name };
        self.give_share(before, Kind::Handshake);
        self.take_share(process, Kind::Handshake);
        self.listeners[at].half_open += 1;
    }
}
