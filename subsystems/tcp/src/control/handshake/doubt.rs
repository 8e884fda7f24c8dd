//! Handshakes that the network says do not arrive, or that stay unanswered.

use wave_core::clock::Nanos;

use super::super::Stack;
use super::{DOUBT_AFTER, For, Stage};
use crate::context::{Event, Reason};
use crate::datapath::{Datapath, FlowId};
use crate::seq::Seq;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// A router or the peer's host says that our SYN, which has this number, does not arrive. Only a refusal ends it: the rest may pass
    /// (RFC 9293, MUST-56), and is why it failed if it does.
    pub(in crate::control) fn handshake_error(&mut self, id: FlowId, seq: Seq, reason: Reason) {
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        // Anybody can send such a message: it must know what we sent.
        if handshake.stage != Stage::Sent || seq != handshake.own {
            return;
        }
        if reason == Reason::Refused {
            return self.fail(id, reason);
        }
        let is_news = handshake.error.replace(reason) != Some(reason);
        if let (true, For::Host { context, slot }) = (is_news, handshake.whom) {
            self.tell(context, Event::Warned { socket: slot.socket, reason });
        }
    }

    /// Our SYNs stay unanswered: the host is told once, and the next hop may be elsewhere by now.
    pub(super) fn doubt_hop(&mut self, now: Nanos, id: FlowId) {
        let Some(tuple) = self.handshakes.tuple(id) else { return };
        let found = self.hop_of(&tuple).and_then(|hop| self.neighbours.find(hop, now));
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        handshake.mac = found.unwrap_or(handshake.mac);
        if let (DOUBT_AFTER, For::Host { context, slot }) = (handshake.tries, handshake.whom) {
            self.tell(context, Event::Warned { socket: slot.socket, reason: Reason::TimedOut });
        }
        self.ask_for_hop(&tuple);
    }
}
