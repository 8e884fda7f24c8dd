//! Handshakes in trouble: reported by an ICMP error, or unanswered.

use wave_core::clock::Nanos;

use super::super::Stack;
use super::{Opener, R1_TRIES, Stage};
use crate::context::{Event, Reason};
use crate::datapath::{Datapath, FlowId};
use crate::seq::Seq;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Handles an ICMP error about our SYN with this sequence number. Only a refusal ends the handshake. Other errors may pass
    /// (RFC 9293, MUST-56); they become the reason if the handshake fails later.
    pub(in crate::control) fn handshake_error(&mut self, id: FlowId, seq: Seq, reason: Reason) {
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        // Anybody can send such a message: it must quote our sequence number.
        if handshake.stage != Stage::SynSent || seq != handshake.iss {
            return;
        }
        if reason == Reason::Refused {
            return self.fail(id, reason);
        }
        let is_first = handshake.error.replace(reason) != Some(reason);
        if let (true, Opener::Host { context, slot }) = (is_first, handshake.opener) {
            self.notify(context, Event::SoftError { socket: slot.socket, reason });
        }
    }

    /// Handles unanswered SYNs: warns the host once, and resolves the next hop again, which may have moved.
    pub(super) fn on_unanswered_syn(&mut self, now: Nanos, id: FlowId) {
        let Some(tuple) = self.handshakes.tuple(id) else { return };
        let found = self.next_hop_of(&tuple).and_then(|hop| self.neighbours.find(hop, now));
        let Some(handshake) = self.handshakes.get_mut(id) else { return };
        handshake.mac = found.unwrap_or(handshake.mac);
        if let (R1_TRIES, Opener::Host { context, slot }) = (handshake.tries, handshake.opener) {
            self.notify(
                context,
                Event::SoftError { socket: slot.socket, reason: Reason::TimedOut },
            );
        }
        self.query_next_hop(&tuple);
    }
}
