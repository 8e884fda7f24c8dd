//! Errors of calls and of hosts.

use wave_core::control::BadIncarnation;
use wave_core::message::Subject;
use wave_core::queue::PushError;

use crate::boxes::BadFrame;
use crate::metadata::BadMetadata;
use crate::service::BadService;

/// Why a call cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No slot is free, or the client's address has used its share.
    #[error("too many calls are open, in total or from this client's address")]
    Full,
    /// The host has not described its service yet, or not all of its workers have announced themselves.
    #[error("the host is not ready")]
    NoHost,
}

/// The host broke the protocol. The agent disconnects from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DispatchError {
    /// The host's word about this incarnation is invalid.
    #[error(transparent)]
    Incarnation(#[from] BadIncarnation),
    #[error("worker {worker}: {error}")]
    Frame {
        /// Index of the worker's queue; the number of workers stands for the control context.
        worker: u16,
        error: BadFrame,
    },
    #[error("worker {worker}: {error}")]
    Credit { worker: u16, error: PushError },
    /// Metadata or trailers are malformed.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// The description of the service is malformed.
    #[error(transparent)]
    Service(#[from] BadService),
    /// A frame of an unknown kind, or of one that is not allowed at this point.
    #[error(
        "peer's fault: worker {worker} wrote a frame of kind {kind}, which is not allowed there"
    )]
    Kind { worker: u16, kind: u16 },
    /// A worker sent more replies than it was granted, or took more messages than were sent.
    #[error("peer's fault: worker {worker} exceeded the window of call {}.{}", call.id, call.generation)]
    Window { worker: u16, call: Subject },
    /// A worker named a call that was not handed to it.
    #[error("peer's fault: worker {worker} named call {}.{}, which it does not have", call.id, call.generation)]
    NotItsCall { worker: u16, call: Subject },
}

/// Why a front has lost its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostGone {
    /// The host shut down.
    #[error("the host has ended")]
    Ended,
    /// The host turned this agent out.
    #[error("the host has turned this agent out")]
    TurnedOut,
    /// The host read nonsense in this agent's window.
    #[error(
        "the host has turned this agent out: it read nonsense in this agent's part of the window; see the host's \
         output"
    )]
    Fault,
    /// Another agent replaced this one. To attach again would only turn that one out.
    #[error("another agent has taken this one's place at the host")]
    Replaced,
    /// The host closed its socket.
    #[error("the host has gone")]
    HungUp,
    /// The host broke the protocol.
    #[error("disconnecting from the host, because its part of the window is invalid: {0}")]
    Nonsense(#[from] DispatchError),
}
