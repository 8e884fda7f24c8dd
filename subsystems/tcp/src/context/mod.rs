//! Requests and events between a host's context and the agent, and their encoding as queue entries.
//!
//! A context is a thread of a process, with a queue of requests and one of events. Both are bounded. If the queue of requests
//! is full, its producer waits. If the queue of events is full, the agent keeps pending events with the connection, and sends
//! them later. Nothing is lost, because a [`Progress`] carries the current state, not a change.
//!
//! A process lays out a window with the configuration of [`window`] and offers it to the agent: queue *n* of `Layout::messages`
//! and of `Layout::decisions` are the requests and events of context *n*. There is one doorbell per context, then the agent's;
//! the only other file is the payload memory.

pub mod demotion;
mod entries;
mod pause;
mod reads;

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_core::layout::Config;

use crate::datapath::{FlowId, Ring};

pub use entries::{Malformed, Words};
pub use pause::PauseWords;
pub use reads::{LastReads, ReadWords};

/// Largest number of contexts of one process.
pub const CONTEXTS_MAX: u16 = 64;
/// Number of entries in a context's queue of requests, and in its queue of events.
pub const QUEUE_ENTRIES: u32 = 1024;

/// The window configuration of a process with `contexts` contexts (1 to [`CONTEXTS_MAX`]): an agent accepts no other.
pub const fn window(contexts: u16) -> Config {
    let mut config = Config::coherent(contexts);
    config.subsystem = crate::SUBSYSTEM.id;
    config.contexts = 1;
    config.subjects = 1;
    config.prestage = 0;
    config.messages.entries = QUEUE_ENTRIES;
    config.decisions.entries = QUEUE_ENTRIES;
    config.pools[0] = reads::POOL;
    config
}

/// The context that an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContextId {
    /// The process: the number of its window at the agent.
    pub process: u16,
    /// The context within it.
    pub context: u16,
}

/// The host has written or read. Positions before earlier ones are ignored; impossible ones end the connection, because the
/// host is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The connection.
    pub flow: FlowId,
    /// Position: all bytes before it are in the ring and may be sent.
    pub written: u64,
    /// Position: all bytes before it were read.
    pub read: u64,
    /// The stream ends at `written`.
    pub is_finished: bool,
    /// Small segments are sent without waiting for acknowledgements (TCP_NODELAY).
    pub is_eager: bool,
    /// How to send the last bytes before `written`, which do not fill a segment.
    pub tail: Tail,
    /// How much of the rings has memory.
    pub filled: Filled,
}

/// How written bytes that do not fill a segment are sent. Bytes that are held back are sent after a retransmission timeout at
/// the latest, which is 200 ms or more, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Tail {
    /// They end a message: they are sent under Nagle's algorithm, and carry PSH.
    #[default]
    Whole,
    /// They wait for more bytes (TCP_CORK).
    Corked,
    /// They wait for more bytes, or for an acknowledgement (MSG_MORE).
    More,
    /// Like `Whole`, but without PSH: more follows.
    Part,
}

impl Tail {
    /// Whether the bytes wait for more.
    pub const fn waits(self) -> bool {
        matches!(self, Tail::Corked | Tail::More)
    }

    /// The same tail without the wait for more bytes.
    #[must_use]
    pub const fn released(self) -> Tail {
        match self {
            Tail::Whole | Tail::Corked => Tail::Whole,
            Tail::More | Tail::Part => Tail::Part,
        }
    }

    const ALL: [Tail; 4] = [Tail::Whole, Tail::Corked, Tail::More, Tail::Part];
}

/// How much of a connection's rings is backed by the host's memory, in bytes from the beginning of each ring. The agent uses no
/// more, and advertises no larger window; it wraps around only in a ring that is backed completely. The agent checks the pages:
/// a host that claims more than it has, or adds more than [`FILL_MAX`] at a time, loses the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Bytes of the receive ring.
    pub receive: u32,
    /// Bytes of the send ring.
    pub send: u32,
}

/// Refusal of an offer that is worth retrying: too many processes of the same program or user are offering a window at this
/// moment.
pub const OFFERS_EXCEEDED: &str =
    "too many connections of its program or user wait to offer a window";

/// Limit of bytes by which a host may extend a ring's memory at a time.
pub const FILL_MAX: u32 = 256 << 10;

/// Options of a connection. Each request carries all of them. Queue entries carry times as whole milliseconds, at most
/// `u32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_KEEPALIVE: probes an idle peer. `None` turns it off.
    pub keep_alive: Option<KeepAlive>,
    /// TCP_USER_TIMEOUT: how long data may stay unacknowledged before the connection is dropped (RFC 9293, 3.8.3: R2). `None`
    /// drops it after 15 retransmissions.
    pub user_timeout: Option<Nanos>,
    /// Differentiated Services codepoint of each segment: six bits, at most 63.
    pub diffserv: u8,
    /// IP_TTL: the hop limit of each segment, at least 1.
    pub hop_limit: u8,
}

impl Default for SocketOptions {
    /// The options of a new connection.
    fn default() -> SocketOptions {
        SocketOptions { keep_alive: None, user_timeout: None, diffserv: 0, hop_limit: 64 }
    }
}

impl SocketOptions {
    /// Whether an agent accepts these options: all values are in range.
    pub const fn are_valid(&self) -> bool {
        self.diffserv < 64 && self.hop_limit > 0
    }
}

/// Keep-alive probes to an idle peer (RFC 9293, 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// TCP_KEEPIDLE: idle time before the first probe.
    pub idle: Nanos,
    /// TCP_KEEPINTVL: time between probes. The agent raises both times to at least one second.
    pub interval: Nanos,
    /// TCP_KEEPCNT: unanswered probes, at least 2, after which the connection is dropped. One lost probe is not enough.
    pub probes: u8,
}

impl Default for KeepAlive {
    /// Linux's defaults: 2 hours, 75 seconds, 9 probes.
    fn default() -> KeepAlive {
        let (idle, interval) = (Nanos::from_millis(7_200_000), Nanos::from_millis(75_000));
        KeepAlive { idle, interval, probes: 9 }
    }
}

/// Which other listeners may have the same address and port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Listeners with the same secret: those of a process and of the children that it forked. 0 is no secret.
    pub secret: u128,
    /// SO_REUSEPORT: listeners of the same user that set it as well.
    pub reuses_port: bool,
}

/// A failure that a program has met, and that the agent cannot see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HostFailure {
    /// A connection of another process could not be taken over: it had ended, or had carried too many bytes.
    NotTakenOver = 1,
    /// The program's payload memory has no room for the rings of one more connection.
    NoRings = 2,
    /// The program's payload memory cannot hold what it wants to send: its limits, or the machine's, forbid more.
    NoMemory = 3,
}

impl HostFailure {
    const ALL: [HostFailure; 3] =
        [HostFailure::NotTakenOver, HostFailure::NoRings, HostFailure::NoMemory];
}

/// Requests from the host to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The host has written or read.
    Update(Update),
    /// Listen at an address. Port 0 asks for any free port; an unspecified address stands for the agent's own.
    Listen {
        /// The host's name for the listener.
        listener: u32,
        /// Address and port to listen at.
        local: SocketAddr,
        /// Limit of incomplete connections.
        backlog: u16,
        /// Which other listeners may have the same address and port.
        sharing: Sharing,
    },
    /// Other processes may have this listener, too. Unused slots come back ([`Event::Unused`]), behind the last of its
    /// connections. Connections that were not accepted ([`Request::Accept`]) go to the next slot of a listener that shares the
    /// port, and [`Event::Closed`] says that they have gone. From now on, the host offers a slot only while its program waits.
    /// The request may be repeated, when the program waits no more.
    Share {
        /// The listener.
        listener: u32,
    },
    /// TCP_MAXSEG of a listener: largest segment of its future connections, in bytes, in either direction, options included. A
    /// new listener has `u16::MAX`: what the path allows.
    LimitSegments {
        /// The listener.
        listener: u32,
        /// Largest segment, in bytes.
        mss_max: u16,
    },
    /// Stop listening. Accepted connections stay open ([`Request::Accept`]).
    Unlisten {
        /// The listener.
        listener: u32,
    },
    /// Offer room for one more connection of a listener.
    Slot {
        /// The listener.
        listener: u32,
        /// The host's name for the connection.
        socket: u32,
        /// Receive ring.
        receive: Ring,
        /// Send ring.
        send: Ring,
        /// See [`Filled::receive`]: the first advertised window. The send ring has no memory yet.
        filled: u32,
    },
    /// Connect to a peer.
    Connect {
        /// The host's name for the connection.
        socket: u32,
        /// The peer's address and port.
        remote: SocketAddr,
        /// Local port; 0 is any.
        local_port: u16,
        /// TCP_MAXSEG: largest segment in either direction, in bytes, options included; `u16::MAX` is what the path allows.
        mss_max: u16,
        /// Receive ring.
        receive: Ring,
        /// Send ring.
        send: Ring,
        /// The same as in [`Request::Slot`].
        filled: u32,
    },
    /// Join the family with this secret: a process, its parent and its children by fork(2). 0 is no family.
    Join {
        /// The secret.
        secret: u128,
    },
    /// Let any process that joins the family with this secret take a connection, which belongs to this process or its family.
    /// [`Event::Lent`] confirms the request.
    Lend {
        /// The connection.
        flow: FlowId,
        /// The family's secret; 0 is none.
        secret: u128,
    },
    /// Take over a connection of another process of the family, or one that was lent. The previous owner gets
    /// [`Event::Taken`]; the new one gets [`Event::Connected`] with a new name of the flow, and then its progress.
    /// [`FILL_MAX`] bytes of both rings have memory, and no byte beyond has been used.
    Take {
        /// The connection.
        flow: FlowId,
        /// The host's name for the connection.
        socket: u32,
        /// Receive ring.
        receive: Ring,
        /// Send ring.
        send: Ring,
        /// Position: all bytes before it were read.
        read: u64,
        /// Position at which the written bytes end: the request waits until the previous owner has reported it.
        written: u64,
    },
    /// Other processes may get descriptors of this process's connections: a message with more about them is on the way over the
    /// socket by which the process has attached. [`Event::Door`] answers.
    Placeholders,
    /// Ask for the state of a connection of the process: [`Event::TcpInfo`] answers.
    QueryTcpInfo {
        /// The connection.
        flow: FlowId,
    },
    /// Ask for the local address of a connection that is not established yet: [`Event::LocalAddress`] answers, unless the connection
    /// was established or has failed meanwhile.
    QueryLocalAddress {
        /// The host's name for the connection.
        socket: u32,
    },
    /// The program has accepted a connection. Until then, the connection goes to another listener that shares the port if its
    /// listener closes or is shared, or if the process ends. It is reset if there is no other.
    Accept {
        /// The connection.
        flow: FlowId,
    },
    /// Give up a connection that is not established yet.
    Cancel {
        /// The host's name for the connection.
        socket: u32,
    },
    /// Close a connection: nothing more will be read. If it has unread bytes, or receives more, it is reset (RFC 2525, 2.17).
    /// [`Event::Closed`] follows when the rings are free.
    Close {
        /// The connection.
        flow: FlowId,
    },
    /// The program reads no more of a connection (SHUT_RD). The agent keeps it in mind for other processes that use the connection later.
    ShutdownRead {
        /// The connection.
        flow: FlowId,
    },
    /// Reset a connection.
    Abort {
        /// The connection.
        flow: FlowId,
    },
    /// Set a connection's options. Invalid options are ignored as a whole.
    Configure {
        /// The connection.
        flow: FlowId,
        /// All of its options.
        options: SocketOptions,
    },
    /// Tell people what has happened to the program: its own standard error may be closed.
    Report {
        /// What has happened.
        failure: HostFailure,
    },
}

/// Current positions of a connection's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The host's name for the connection.
    pub socket: u32,
    /// Position: all bytes before it have arrived and are in the ring.
    pub received: u64,
    /// Position: all bytes before it are acknowledged, and their part of the ring is free.
    pub acknowledged: u64,
    /// The peer's stream ends at `received`.
    pub is_finished: bool,
}

/// The agent's state of a connection, as in tcp(7)'s TCP_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpInfo {
    /// The host's name for the connection.
    pub socket: u32,
    /// Smoothed round-trip time in microseconds; 0 before the first measurement.
    pub round_trip_us: u32,
    /// Variation of the round-trip time in microseconds; 0 before the first measurement.
    pub variation_us: u32,
    /// The retransmission timeout, in microseconds.
    pub timeout_us: u32,
    /// Largest segment, in bytes.
    pub mss: u32,
    /// Bytes that the peer has not acknowledged.
    pub unacknowledged: u32,
    /// Congestion window, in bytes.
    pub window: u32,
    /// Slow-start threshold, in bytes.
    pub threshold: u32,
}

/// Why a connection or listener failed. The numbers are Linux's errno values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u16)]
pub enum Reason {
    /// EACCES: the host's user may not use that port.
    NotPermitted = 13,
    /// EINVAL: the request names invalid rings or addresses.
    Invalid = 22,
    /// EMFILE: the host or its user has used up its share.
    TooMany = 24,
    /// EADDRINUSE.
    AddressInUse = 98,
    /// EADDRNOTAVAIL: not the agent's address, or no port is left.
    AddressNotAvailable = 99,
    /// ENETUNREACH: no route.
    Unreachable = 101,
    /// ECONNRESET.
    Reset = 104,
    /// ENOBUFS: a table is full.
    NoRoom = 105,
    /// ETIMEDOUT.
    TimedOut = 110,
    /// ECONNREFUSED.
    Refused = 111,
    /// EHOSTUNREACH: the next hop does not answer.
    NoNeighbour = 113,
}

impl Reason {
    const ALL: [Reason; 11] = [
        Reason::NotPermitted,
        Reason::Invalid,
        Reason::TooMany,
        Reason::AddressInUse,
        Reason::AddressNotAvailable,
        Reason::Unreachable,
        Reason::Reset,
        Reason::NoRoom,
        Reason::TimedOut,
        Reason::Refused,
        Reason::NoNeighbour,
    ];

    /// The errno value on Linux.
    pub const fn errno(self) -> i32 {
        self as i32
    }
}

/// Events from the agent to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A connection's streams have moved.
    Progress(Progress),
    /// The answer to a [`Request::QueryTcpInfo`].
    TcpInfo(TcpInfo),
    /// The answer to a [`Request::QueryLocalAddress`].
    LocalAddress {
        /// The host's name for the connection.
        socket: u32,
        /// The local address and port.
        local: SocketAddr,
    },
    /// The answer to a [`Request::Lend`], whether or not the connection exists.
    Lent {
        /// The connection.
        flow: FlowId,
    },
    /// A listener is ready.
    Listening {
        /// The listener.
        listener: u32,
        /// Its address; the agent's own if the request left it unspecified.
        local: SocketAddr,
    },
    /// A listener could not be opened, or is closed.
    NotListening {
        /// The listener.
        listener: u32,
        /// The reason.
        reason: Reason,
    },
    /// A peer has connected; its connection has taken a slot.
    Accepted {
        /// The listener.
        listener: u32,
        /// The slot's name.
        socket: u32,
        /// The connection.
        flow: FlowId,
        /// The peer's address and port.
        remote: SocketAddr,
        /// Largest payload of our segments, in bytes.
        mss: u16,
    },
    /// A requested connection is established.
    Connected {
        /// The host's name for the connection.
        socket: u32,
        /// The connection.
        flow: FlowId,
        /// The local address and port.
        local: SocketAddr,
        /// Largest payload of our segments, in bytes.
        mss: u16,
    },
    /// A connection could not be opened, or has failed. Its rings are the host's again.
    Failed {
        /// The host's name for the connection.
        socket: u32,
        /// The reason.
        reason: Reason,
    },
    /// Both streams have ended, and the host has closed. Its rings are the host's again.
    Closed {
        /// The host's name for the connection.
        socket: u32,
    },
    /// The answer to a [`Request::Placeholders`]: processes reach the agent at this port of 127.0.0.1 to make a connection a stream of the
    /// kernel's; 0 if they cannot.
    Door {
        /// The port.
        port: u16,
    },
    /// Another process has taken the connection over. Its rings are the host's again.
    Taken {
        /// The host's name for the connection.
        socket: u32,
    },
    /// The connection becomes a stream of the kernel's, which the agent feeds. The agent still uses its rings, until
    /// [`Event::Closed`] or [`Event::Failed`] says that the connection is over.
    Demoted {
        /// The host's name for the connection.
        socket: u32,
    },
    /// An unused slot is returned: its listener is closed, or leaves connections to others. Its rings are the host's again.
    Unused {
        /// The slot's name.
        socket: u32,
    },
    /// A soft error of a connection, which stays open (RFC 9293, 3.9.1.8): the network says that the peer is unreachable, or
    /// retransmissions stay unanswered. Such events may be lost when many come at once.
    SoftError {
        /// The host's name for the connection.
        socket: u32,
        /// The reason for which the connection would fail if this lasted.
        reason: Reason,
    },
}
