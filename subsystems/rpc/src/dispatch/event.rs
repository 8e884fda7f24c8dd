//! What a front is told of its calls.

use bytes::Bytes;
use wave_core::message::Subject;

use crate::service::Service;
use crate::status::Status;

/// What a front is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What the host serves: calls may begin now.
    Service(Service),
    /// The metadata that precedes the replies.
    Headers {
        /// Which call.
        call: Subject,
        /// Encoded and checked.
        metadata: Bytes,
    },
    /// A reply.
    Message {
        /// Which call.
        call: Subject,
        /// Whole.
        message: Bytes,
        /// It is the last, and the call has ended with OK and without trailers.
        end: bool,
        /// It is to be compressed, if the client takes that.
        compress: bool,
    },
    /// The call has ended.
    Status {
        /// Which call.
        call: Subject,
        /// How.
        status: Status,
        /// Encoded and checked.
        trailers: Bytes,
    },
    /// The agent ended the call itself, by its deadline or a limit. Replies that its client has not read are of no use.
    Stopped {
        /// Which call.
        call: Subject,
        /// Why.
        status: Status,
    },
    /// The host took messages.
    Taken {
        /// Of which call.
        call: Subject,
        /// How many bytes.
        bytes: u32,
        /// In how many messages.
        messages: u32,
    },
}
