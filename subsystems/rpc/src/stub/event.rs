//! What a worker is told, and what can be wrong.

use wave_core::message::Subject;
use wave_core::queue::PushError;

#[cfg(doc)]
use super::Stub;
use crate::boxes::{BadFrame, FRAME_BYTES_MAX};
use crate::metadata::{BadMetadata, Metadata};
use crate::status::Code;
use crate::wire::{BEGIN, Begin, CANCEL, COMPRESSED, END, HALF_CLOSE, HAS_MESSAGE, Head, MESSAGE};

/// What came for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call begins. It has to be ended, by [`Stub::finish`] or by a last [`Stub::message`].
    Begin {
        /// The call that begins.
        call: Subject,
        /// Its method, its class, the time that it has left.
        begin: Begin,
        /// The client's metadata.
        metadata: Metadata<'a>,
        /// The first message, if it is here already.
        message: Option<&'a [u8]>,
        /// Whether the message arrived compressed.
        compressed: bool,
        /// The client sends nothing more.
        end: bool,
    },
    /// A message of the client's.
    Message {
        /// The call that the message belongs to.
        call: Subject,
        /// The whole message, reassembled.
        message: &'a [u8],
        /// Whether the message arrived compressed.
        compressed: bool,
        /// The client sends nothing more.
        end: bool,
    },
    /// The client sends nothing more.
    HalfClose {
        /// The call that the client half-closed.
        call: Subject,
    },
    /// The call was cancelled. The worker still has to end it.
    Cancel {
        /// The call that was cancelled.
        call: Subject,
        /// Why: CANCELLED or DEADLINE_EXCEEDED, or what the agent found.
        why: Code,
    },
}

/// The agent wrote what no agent of ours writes: it should lose its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// A frame is malformed: the agent is at fault.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Metadata is malformed: the agent is at fault.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// A credit makes no sense.
    #[error(transparent)]
    Credit(#[from] PushError),
    /// A frame that has no place there.
    #[error("peer's fault: a frame of kind {0} has no place there")]
    Kind(u16),
    /// A call of a number that there cannot be, or that is open already.
    #[error("peer's fault: call {}.{} cannot begin", .0.id, .0.generation)]
    Call(Subject),
    /// More messages than were taken.
    #[error("peer's fault: it passed the window of call {}.{}", .0.id, .0.generation)]
    Window(Subject),
}

/// Why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The client has not read enough of earlier replies: poll, and try again.
    #[error("the client has not read enough of earlier replies yet")]
    Blocked,
    /// The call is not open, or was ended.
    #[error("the call is not open")]
    NotOpen,
    /// Metadata precedes the replies, and comes once.
    #[error("metadata precedes a call's replies, and was sent before or comes after one")]
    TooLate,
    /// More bytes than cross the link at once. Nothing was sent, and the call is as it was.
    #[error("{0} bytes are more than can be sent at once, which is {FRAME_BYTES_MAX}")]
    TooLong(u64),
    /// The agent wrote nonsense.
    #[error(transparent)]
    Fault(#[from] PushError),
}

/// What a frame that is for the worker says.
pub(super) fn event<'a>(
    head: &Head,
    bytes: &'a [u8],
    first: usize,
) -> Result<Event<'a>, StubError> {
    let call = head.call;
    let (first, message) = bytes.split_at(first);
    let (end, compressed) = (head.flags & END != 0, head.flags & COMPRESSED != 0);
    Ok(match head.kind {
        BEGIN => Event::Begin {
            call,
            begin: Begin::from_word(head.argument),
            metadata: Metadata::new(first)?,
            message: (head.flags & HAS_MESSAGE != 0).then_some(message),
            compressed,
            end,
        },
        MESSAGE => Event::Message { call, message, compressed, end },
        HALF_CLOSE => Event::HalfClose { call },
        CANCEL => Event::Cancel { call, why: Code::from_number(head.argument as i32) },
        kind => return Err(StubError::Kind(kind)),
    })
}
