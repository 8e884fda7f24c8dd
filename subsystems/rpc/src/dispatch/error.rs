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
pub enum DispatchError {
    /// Its word on this incarnation.
    #[error(transparent)]
    Incarnation(#[from] BadIncarnation),
    /// No frame.
    #[error("worker {worker}: {error}")]
    Frame {
        /// Whose queue; the number of workers stands for the control context.
        worker: u16,
        /// What is wrong.
        error: BadFrame,
    },
    /// A credit.
    #[error("worker {worker}: {error}")]
    Credit {
        /// Whose queue.
        worker: u16,
        /// What is wrong.
        error: PushError,
    },
    /// Metadata or trailers.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// What it serves.
    #[error(transparent)]
    Service(#[from] BadService),
    /// A frame of an unknown kind, or one that has no place there.
    #[error("peer's fault: worker {worker} wrote a frame of kind {kind}, which has no place there")]
    Kind {
        /// Whose queue.
        worker: u16,
        /// Its kind.
        kind: u16,
    },
    /// More replies than it was granted, or more taken than there was.
    #[error("peer's fault: worker {worker} passed the window of call {}.{}", call.id, call.generation)]
    Window {
        /// Whose queue.
        worker: u16,
        /// Which call.
        call: Subject,
    },
    /// A call that this worker does not have.
    #[error("peer's fault: worker {worker} wrote of call {}.{}, which it does not have", call.id, call.generation)]
    NotItsCall {
        /// Whose queue.
        worker: u16,
        /// Which call.
        call: Subject,
    },
}

/// Why a front has lost its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostGone {
    /// It ended.
    #[error("the host has ended")]
    Ended,
    /// It was asked to.
    #[error("the host has turned this agent out")]
    TurnedOut,
    /// It read nonsense.
    #[error(
        "the host has turned this agent out: it read nonsense in this agent's part of the window; the host's \
         output says what"
    )]
    Fault,
    /// Coming back would only turn the other one out.
    #[error("the host has turned to another agent")]
    Replaced,
    /// It hung up.
    #[error("the host has gone")]
    HungUp,
    /// It writes nonsense.
    #[error("turning away from the host, because its window makes no sense: {0}")]
    Nonsense(#[from] DispatchError),
}
