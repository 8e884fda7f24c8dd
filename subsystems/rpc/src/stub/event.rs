//! Events for a worker, and errors.

use wave_core::message::Subject;
use wave_core::queue::PushError;

#[cfg(doc)]
use super::Stub;
use crate::boxes::{BadFrame, FRAME_BYTES_MAX};
use crate::metadata::{BadMetadata, Metadata};
use crate::status::Code;
use crate::wire::{BEGIN, Begin, CANCEL, COMPRESSED, END, HALF_CLOSE, HAS_MESSAGE, Head, MESSAGE};

/// An event for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call begins. The worker must end it, by [`Stub::finish`] or by a last [`Stub::message`].
    Begin {
        /// The call that begins.
        call: Subject,
        /// The call's method, class, and time left.
        begin: Begin,
        /// The client's metadata.
        metadata: Metadata<'a>,
        /// The first message, if it came with the BEGIN.
        message: Option<&'a [u8]>,
        /// Whether the message arrived compressed.
        compressed: bool,
        /// The client sends nothing more.
        end: bool,
    },
    /// A message from the client.
    Message {
        /// The call that the message belongs to.
        call: Subject,
        /// The complete message.
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
    /// The call was cancelled. The worker must still end it.
    Cancel {
        /// The call that was cancelled.
        call: Subject,
        /// The reason: CANCELLED, DEADLINE_EXCEEDED, or another code from the agent.
        why: Code,
    },
}

/// The agent broke the protocol: it should lose its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// A frame is malformed: the agent is at fault.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Metadata is malformed: the agent is at fault.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// A credit is invalid.
    #[error(transparent)]
    Credit(#[from] PushError),
    /// A frame of a kind that is not allowed at this point.
    #[error("peer's fault: a frame of kind {0} is not allowed there")]
    Kind(u16),
    /// A BEGIN whose call's id is out of range, or already open.
    #[error("peer's fault: call {}.{} cannot begin: its id is out of range or in use", .0.id, .0.generation)]
    Call(Subject),
    /// The agent sent more messages than the window allows.
    #[error("peer's fault: it exceeded the window of call {}.{}", .0.id, .0.generation)]
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
    /// Metadata must come before the replies, and only once.
    #[error("too late for metadata: it comes once, before the call's first reply")]
    TooLate,
    /// The frame is longer than [`FRAME_BYTES_MAX`]. Nothing was sent, and the call is unchanged.
    #[error("{0} bytes are too many to send at once; the limit is {FRAME_BYTES_MAX}")]
    TooLong(u64),
    /// The agent's credit is invalid.
    #[error(transparent)]
    Fault(#[from] PushError),
}

/// The event of a frame that is for the worker.
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
