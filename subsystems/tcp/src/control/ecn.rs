//! Negotiation of explicit congestion notification (RFC 3168, 6.1.1).

use serde::{Deserialize, Serialize};

use crate::datapath::{Echo, EcnState};
use crate::packet::Flags;

/// The ECN bits of both sides of a handshake.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct EcnNegotiation {
    /// The peer's SYN, and each retransmission of it, asks for ECN or agrees to it.
    peer_has_ecn: bool,
    /// One of our SYNs has asked.
    has_asked: bool,
    /// One of our SYNs has not asked, so that our data may not be ECT.
    has_not_asked: bool,
}

impl EcnNegotiation {
    /// Starts a negotiation with the peer's SYN.
    pub(super) fn with(flags: Flags) -> EcnNegotiation {
        EcnNegotiation { peer_has_ecn: has_ecn(flags), ..EcnNegotiation::default() }
    }

    /// The peer's SYN arrived.
    pub(super) fn on_syn(&mut self, flags: Flags) {
        self.peer_has_ecn = has_ecn(flags);
    }

    /// The peer's SYN arrived again.
    pub(super) fn on_retransmitted_syn(&mut self, flags: Flags) {
        self.peer_has_ecn &= has_ecn(flags);
    }

    /// ECN flags of our SYN. A lost SYN may have been dropped because it asked, so the next one does not ask (RFC 3168,
    /// 6.1.1.1).
    pub(super) fn syn_flags(&mut self, asks: bool) -> Flags {
        self.has_asked |= asks;
        self.has_not_asked |= !asks;
        if asks { Flags::ECE | Flags::CWR } else { Flags::NONE }
    }

    /// ECN flags of our answer to the peer's SYN.
    pub(super) fn syn_ack_flags(&self) -> Flags {
        if self.peer_has_ecn && !self.has_not_asked { Flags::ECE } else { Flags::NONE }
    }

    /// Whether ECN may be agreed on, as far as the handshake has come.
    pub(super) fn is_possible(&self) -> bool {
        self.has_asked || self.peer_has_ecn
    }

    /// The outcome, once the handshake is over; `None` if ECN is not used.
    pub(super) fn outcome(&self, echo: Echo) -> Option<EcnState> {
        let is_agreed = self.peer_has_ecn && (self.has_asked || !self.has_not_asked);
        let is_capable = !self.has_not_asked;
        is_agreed.then_some(EcnState { echo, is_echoing: false, is_capable })
    }
}

/// Whether a SYN asks for ECN or, if it acknowledges ours, agrees to it. A peer that only reflects the flags of our SYN does
/// not support ECN.
fn has_ecn(flags: Flags) -> bool {
    let is_reduced = flags.contains(Flags::CWR);
    flags.contains(Flags::ECE) && is_reduced != flags.contains(Flags::ACK)
}
