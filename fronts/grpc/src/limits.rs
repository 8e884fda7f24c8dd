//! Limits on the front's resources that clients may use.

use std::time::Duration;

use wave_core::clock::Nanos;

/// Bytes that a client may send on a stream before some are taken.
pub const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes that a client may send on a connection before some are taken: the most unread bytes of a connection in the front.
pub const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of replies that wait for a connection's socket, per stream.
pub const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Longest last reply that is given to h2 at once, and not counted as held, if the client has room for all of it.
pub const UNCHECKED_REPLY_BYTES: usize = 16 * 1024;
/// Time that a connection may use between two polls of the sockets, if it has more to do.
pub const CONNECTION_QUANTUM: Nanos = Nanos::from_micros(250);
/// Time that the connections of an address may use between two polls of the sockets: once for those that wait for
/// their turn, and once for those that do not.
pub const ADDRESS_QUANTUM: Nanos = Nanos::from_millis(1);
/// Most bytes that are read from a connection at once, and the least that this falls to if polls take more than two
/// quanta.
pub const READ_BYTES_MAX: usize = 32 * 1024;
pub const READ_BYTES_MIN: usize = 512;
/// How long a connection may take until its handshakes are done.
pub const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// How long a handshake may take before it is the first to be closed for another connection.
pub const HANDSHAKE_GRACE: Nanos = Nanos::from_millis(1000);
/// Interval of checks after a GOAWAY. A check closes a connection that has had no call since the one before.
pub const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that a call itself counts as held, beside its metadata and messages.
pub const CALL_BYTES: usize = 4 << 10;
/// How long a client may take to answer a ping; no longer than [`Limits::keepalive`].
pub const PING_PATIENCE: Duration = Duration::from_secs(20);
/// Early resets that a connection may make beyond twice the number of its other calls.
pub const RESETS_MAX: u64 = 1000;
/// A reset within this time of the request counts as early. A client that resets later has no more calls at once than any
/// other.
pub const RESET_SOON: Nanos = Nanos::from_millis(10);
/// Most streams of a connection that were reset before the front has seen them.
pub const UNSEEN_RESETS_MAX: usize = 64;
/// Most stream errors of a client that its connection survives.
pub const STREAM_ERRORS_MAX: usize = 1024;

/// Configurable limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a message, before and after compression.
    pub message_bytes: u32,
    /// Most bytes of a request's headers, counted as HTTP/2 does.
    pub header_bytes: u32,
    /// Most connections at once. No address has more of them than are left for others.
    pub connections: u32,
    /// Most calls at once on a connection.
    pub streams: u32,
    /// Most bytes that the front holds in total: calls and their metadata, incomplete messages, messages that the host has not
    /// taken, replies for which clients have no room. No address holds more than is left for others, no connection more than an
    /// eighth of what is left for others of its address.
    pub held_bytes: usize,
    /// After this long without a new call, a client is pinged.
    pub keepalive: Duration,
    /// After this long without a call, a connection gets a GOAWAY.
    pub idle: Duration,
    /// How long open calls may continue after the front was told to end.
    pub drain: Duration,
}

impl Limits {
    /// Most connections at once in a process with a limit of `descriptors`: a quarter of these is reserved for connections with
    /// a GOAWAY, and a quarter for the host and files.
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
