//! What a front is told of its calls.

use bytes::Bytes;
use wave_core::message::Subject;

use crate::service::Service;
use crate::status::Status;

/// An event for the front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What the host serves: calls may begin now.
    Service(Service),
    /// The metadata that precedes the replies.
    Headers {
        /// The call that the message belongs to.
        call: Subject,
        /// Metadata, encoded and checked.
        metadata: Bytes,
    },
    /// A reply message came.
    Message {
        /// The call that the reply belongs to.
        call: Subject,
        /// The whole message, reassembled.
        message: Bytes,
        /// It is the last, and the call has ended with OK and without trailers.
        end: bool,
        /// It is to be compressed, if the client takes that.
        compress: bool,
    },
    /// The call has ended with this status.
    Status {
        /// The call that has ended.
        call: Subject,
        /// Status with which the call ended.
        status: Status,
        /// Trailers, encoded and checked.
        trailers: Bytes,
    },
    /// The agent ended the call itself, by its deadline or a limit. Replies that its client has not read are of no use.
    Stopped {
        /// The call that the event is about.
        call: Subject,
        /// Status with which the call ended.
        status: Status,
    },
    /// The host took messages.
    Taken {
        /// The call that may send more.
        call: Subject,
        /// Number of bytes in the messages.
        bytes: u32,
        /// Number of messages granted.
        messages: u32,
    },
}
