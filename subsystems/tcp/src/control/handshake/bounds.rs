//! Bounds of handshakes: answers to wrong segments, and those of a listener that are half open.

use wave_core::clock::Nanos;

use super::super::Stack;
use crate::datapath::{Datapath, FlowId};
use crate::stages::receive::ANSWER_AFTER;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Whether a wrong segment of this handshake may be answered: the budget is its own (see `on_established`).
    pub(super) fn may_answer_handshake(&mut self, now: Nanos, id: FlowId) -> bool {
        let Some(handshake) = self.handshakes.get_mut(id) else { return false };
        let may = handshake.answered_at.is_none_or(|at| now.since(at) >= ANSWER_AFTER);
        if may {
            handshake.answered_at = Some(now);
        }
        may
    }

    /// The oldest handshake of a listener leaves for a newer one.
    pub(super) fn drop_oldest(&mut self, at: usize) {
        while let Some(id) = self.listeners[at].half_open_order.pop_front() {
            if self.handshakes.get(id).is_some() {
                self.counters.half_open_replaced += 1;
                self.counters.attempts_failed += 1;
                return self.drop_handshake(id);
            }
        }
    }
}
