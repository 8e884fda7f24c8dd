//! What can be wrong with a call, and with a host.

use wave_core::control::BadIncarnation;
use wave_core::message::Subject;
use wave_core::queue::PushError;

use crate::boxes::BadFrame;
use crate::metadata::BadMetadata;
use crate::service::BadService;

/// Why a call cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many calls are open as there may be.
    #[error("as many calls are open as the host takes")]
    Full,
    /// The host has not said yet what it serves, or not all of its workers are there.
    #[error("the host is not ready")]
    NoHost,
}

/// The host wrote what no host of ours writes. The agent turns its back on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DispatchError {
    /// Its word on this incarnation.
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
    /// A frame of an unknown kind, or one that has no place there.
    #[error("peer's fault: worker {worker} wrote a frame of kind {kind}, which has no place there")]
    Kind { worker: u16, kind: u16 },
    /// More replies than it was granted, or more taken than there was.
    #[error("peer's fault: worker {worker} passed the window of call {}.{}", call.id, call.generation)]
    Window { worker: u16, call: Subject },
    /// A call that this worker does not have.
    #[error("peer's fault: worker {worker} wrote of call {}.{}, which it does not have", call.id, call.generation)]
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
        "the host has turned this agent out: it read nonsense in this agent's part of the window; the host's \
         output says what"
    )]
    Fault,
    /// Coming back would only turn the other one out.
    #[error("the host has turned to another agent")]
    Replaced,
    /// The host closed its socket.
    #[error("the host has gone")]
    HungUp,
    /// The host writes nonsense.
    #[error("turning away from the host, because its window makes no sense: {0}")]
    Nonsense(#[from] DispatchError),
}
