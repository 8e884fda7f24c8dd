//! What people are told about calls that the stack refuses, and connections that it resets: a program sees an errno, which does not
//! say which limit it has met.

use super::{Action, Stack};
use crate::context::{ContextId, Reason};
use crate::datapath::{Datapath, FlowId, Output};

/// What a program wanted when it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Listen at a port.
    Listen,
    /// Accept connections of a listener.
    Accept,
    /// Connect to a peer.
    Connect,
    /// Take over this connection of another process, after fork(2), exec(3) or SCM_RIGHTS.
    TakeOver(FlowId),
    /// Go on with a connection.
    Use,
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Reports a refusal, unless its reason is the peer's, the network's, or another program's, which its errno names.
    pub(super) fn refused(&mut self, from: ContextId, call: Call, reason: Reason) {
        let is_own = matches!(
            reason,
            Reason::NotPermitted | Reason::Invalid | Reason::TooMany | Reason::NoRoom
        );
        if is_own || matches!(call, Call::TakeOver(_)) {
            self.out.push_back(Output::Control(Action::Refused(from, call, reason)));
        }
    }
}
