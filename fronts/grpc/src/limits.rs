//! What clients may have of the front. All of it is bounded.

use std::time::Duration;

use wave_core::clock::Nanos;

/// Bytes that a client may send on a stream before some are taken.
pub const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes that a client may send on a connection before some are taken: what a connection may have in the front unread.
pub const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of replies on their way into a connection's socket, for each stream.
pub const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// A last reply up to this size is given to HTTP/2 at once, whether the client has room for it or not.
pub const UNCHECKED_REPLY_BYTES: usize = 16 * 1024;
/// How long a connection may take until its handshakes are done.
pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a handshake may take before it is the first to be closed for another connection.
pub const HANDSHAKE_GRACE: Nanos = Nanos::from_millis(1000);
/// How long a connection without calls may stay open after its GOAWAY.
pub const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// What a call itself counts among the bytes that are held, beside its metadata and messages.
pub const CALL_BYTES: usize = 4 << 10;
/// How long a client may take to answer a ping; no longer than [`Limits::keepalive`].
pub const PING_PATIENCE: Duration = Duration::from_secs(20);
/// Calls that a connection may reset as soon as they have come, beyond twice the others.
pub const RESETS_MAX: u64 = 1000;
/// A reset within this time counts as early. A client that resets later has no more calls at once than any other.
pub const RESET_SOON: Nanos = Nanos::from_millis(10);
/// Streams that were reset before the front has seen them.
pub const UNSEEN_RESETS_MAX: usize = 64;
/// Errors of the client's that a connection survives.
pub const STREAM_ERRORS_MAX: usize = 1024;

/// Limits that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a message, before and after compression.
    pub message_bytes: u32,
    /// Bytes of a request's headers, counted as HTTP/2 does.
    pub header_bytes: u32,
    /// Connections at once. No address has more of them than are left for others.
    pub connections: u32,
    /// Calls at once on a connection.
    pub streams: u32,
    /// Bytes that the front may hold in all: calls and their metadata, messages that come in pieces, those that the host has not
    /// taken, replies that their clients have no room for. No address holds more than is left for others, no connection more than
    /// an eighth of what is left for others of its address.
    pub held_bytes: usize,
    /// After this long without a new call, a client is asked whether it is still there.
    pub keepalive: Duration,
    /// A connection that had no call for so long is told to go.
    pub idle: Duration,
    /// How long calls may still run after the front was told to end.
    pub drain: Duration,
}

impl Limits {
    /// Connections at once in a process with a limit of `descriptors`: a quarter of these is left for connections that were
    /// told to go, and one for the host and files.
    pub fn connections_for(&self, descriptors: u64) -> usize {
        let room = usize::try_from(descriptors / 2).unwrap_or(usize::MAX);
        room.clamp(1, self.connections.max(1) as usize)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes: 4 << 20,
            header_bytes: 16 << 10,
            connections: 1024,
            streams: 128,
            held_bytes: 256 << 20,
            keepalive: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            drain: Duration::from_secs(10),
        }
    }
}
