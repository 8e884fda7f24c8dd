//! Agreeing on explicit congestion notification (RFC 3168, 6.1.1).

use crate::datapath::{Echo, EcnState};
use crate::packet::Flags;

/// What both sides of a handshake have said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Agreement {
    /// The peer's SYN, and each of its others, asks for ECN or agrees to it.
    peer_has_ecn: bool,
    /// A SYN of ours has asked.
    has_asked: bool,
    /// One has not, so that our data may not be marked.
    has_not_asked: bool,
}

impl Agreement {
    /// The peer's SYN came first.
    pub(super) fn with(flags: Flags) -> Agreement {
        Agreement { peer_has_ecn: has_ecn(flags), ..Agreement::default() }
    }

    /// The peer's SYN came.
    pub(super) fn on_syn(&mut self, flags: Flags) {
        self.peer_has_ecn = has_ecn(flags);
    }

    /// It came again.
    pub(super) fn on_another_syn(&mut self, flags: Flags) {
        self.peer_has_ecn &= has_ecn(flags);
    }

    /// Bits of our SYN, which asks or does not: one that asked and was lost may have been dropped for it, and the next does not ask
    /// (RFC 3168, 6.1.1.1).
    pub(super) fn ask(&mut self, asks: bool) -> Flags {
        self.has_asked |= asks;
        self.has_not_asked |= !asks;
        if asks { Flags::ECE | Flags::CWR } else { Flags::NONE }
    }

    /// Bits of our answer to the peer's SYN.
    pub(super) fn answer(&self) -> Flags {
        if self.peer_has_ecn && !self.has_not_asked { Flags::ECE } else { Flags::NONE }
    }

    /// What is agreed on once the handshake is over.
    pub(super) fn state(&self, echo: Echo) -> Option<EcnState> {
        let is_agreed = self.peer_has_ecn && (self.has_asked || !self.has_not_asked);
        let is_capable = !self.has_not_asked;
        is_agreed.then_some(EcnState { echo, is_echoing: false, is_capable })
    }
}

/// Whether a SYN asks for ECN, or, where it acknowledges ours, agrees to it. A peer that sends back the bits of our SYN does not know
/// them.
fn has_ecn(flags: Flags) -> bool {
    let is_reduced = flags.contains(Flags::CWR);
    flags.contains(Flags::ECE) && is_reduced != flags.contains(Flags::ACK)
}
