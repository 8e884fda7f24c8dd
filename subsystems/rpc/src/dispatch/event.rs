//! Events about calls, for their front.

use bytes::Bytes;
use wave_core::message::Subject;

use crate::service::Service;
use crate::status::Status;

/// An event for the front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The host described its service: calls may begin once all workers are there.
    Service(Service),
    /// The metadata before the replies has arrived.
    Headers {
        /// The call that the metadata belongs to.
        call: Subject,
        /// Metadata, encoded and checked.
        metadata: Bytes,
    },
    /// A reply message has arrived.
    Message {
        /// The call that the reply belongs to.
        call: Subject,
        /// The complete message.
        message: Bytes,
        /// This is the last message; the call has ended with OK and without trailers.
        end: bool,
        /// The message is to be compressed if the client accepts compression.
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
    /// The agent ended the call itself, by its deadline or a limit. Replies that the client has not read are to be dropped.
    Stopped {
        /// The call that the event is about.
        call: Subject,
        /// Status with which the call ended.
        status: Status,
    },
    /// The host took messages, so the client may send more.
    Taken {
        /// The call whose messages were taken.
        call: Subject,
        /// Number of bytes in the messages.
        bytes: u32,
        /// Number of messages taken.
        messages: u32,
    },
}
