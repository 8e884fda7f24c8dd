//! What a host's context and the agent say to each other, and how it lies in a queue's entries.
//!
//! A context is a thread of a process: it has a queue of requests and one of events. Both are bounded. A full queue of requests
//! makes its producer wait; for a full queue of events the agent keeps what it has to say with the connection, and says it
//! later. That loses nothing, since a [`Progress`] says what is.
//!
//! A process lays out a window of [`window`]'s configuration and offers it to the agent: queue *n* of `Layout::messages` and of
//! `Layout::decisions` are the requests and events of context *n*. Doorbells are one per context, then the agent's; the only
//! further file is the payload memory.

mod entries;

use core::net::SocketAddr;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_core::layout::Config;

use crate::datapath::{FlowId, Ring};

pub use entries::{Malformed, Words};

/// Most contexts of one process.
pub const CONTEXTS_MAX: u16 = 64;
/// Entries of a context's queue of requests, and of its queue of events.
pub const QUEUE_ENTRIES: u32 = 1024;

/// The configuration of the window of a process with so many contexts (1 to [`CONTEXTS_MAX`]): the only one that an agent takes.
pub const fn window(contexts: u16) -> Config {
    let mut config = Config::coherent(contexts);
    config.subsystem = crate::SUBSYSTEM.id;
    config.contexts = 1;
    config.subjects = 1;
    config.prestage = 0;
    config.messages.entries = QUEUE_ENTRIES;
    config.decisions.entries = QUEUE_ENTRIES;
    config
}

/// Whom an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContextId {
    /// The process, by its window's number at the agent.
    pub process: u16,
    /// The context within it.
    pub context: u16,
}

/// A host's streams moved. Positions that lie before what was said earlier are ignored; those beyond what can be end the
/// connection (the host is at fault).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which connection.
    pub flow: FlowId,
    /// All before it is in the ring and may be sent.
    pub written: u64,
    /// All before it was read.
    pub read: u64,
    /// Nothing will be written behind `written`.
    pub is_finished: bool,
    /// Small segments do not wait for acknowledgements (TCP_NODELAY).
    pub is_eager: bool,
    /// The last bytes before `written`, which do not fill a segment.
    pub tail: Tail,
    /// Memory of the rings.
    pub filled: Filled,
}

/// What becomes of written bytes that do not fill a segment. Those that wait go after a retransmission timeout at the latest, which is 200 ms
/// or more, as in Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Tail {
    /// They are the end of a message: they go as Nagle's algorithm has it, and carry PSH.
    #[default]
    Whole,
    /// They wait for more (TCP_CORK).
    Corked,
    /// They wait for more, or for an acknowledgement (MSG_MORE).
    More,
    /// As `Whole`, but more follows, so that they carry no PSH.
    Part,
}

impl Tail {
    /// Whether it waits for more.
    pub const fn waits(self) -> bool {
        matches!(self, Tail::Corked | Tail::More)
    }

    /// As it is once it need not wait.
    #[must_use]
    pub const fn released(self) -> Tail {
        match self {
            Tail::Whole | Tail::Corked => Tail::Whole,
            Tail::More | Tail::Part => Tail::Part,
        }
    }

    const ALL: [Tail; 4] = [Tail::Whole, Tail::Corked, Tail::More, Tail::Part];
}

/// How much of a connection's rings has memory, of the host's own: so many bytes from the beginning of each. The agent uses no more,
/// and names the peer a window no larger; a ring that has all of its memory is used in laps. It looks at the pages: a host that names
/// more than it has, or more than [`FILL_MAX`] at a time, loses the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Of the ring for what comes in.
    pub receive: u32,
    /// Of the ring for what goes out.
    pub send: u32,
}

/// The refusal of a process that only has to knock again: others of its program or user are at the agent's door.
pub const CROWD: &str = "too many connections of its program or user wait to offer a window";

/// Most bytes of a ring that a host may fill at a time.
pub const FILL_MAX: u32 = 256 << 10;

/// Options of a connection. Each request names all of them. Times are whole milliseconds on their way through a queue, at most
/// `u32::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_KEEPALIVE: asks an idle peer whether it is still there.
    pub keep_alive: Option<KeepAlive>,
    /// TCP_USER_TIMEOUT: the time for which data may stay unacknowledged before the connection is given up (RFC 9293, 3.8.3: R2).
    /// `None` is 15 retransmissions.
    pub give_up_after: Option<Nanos>,
    /// The six bits of Differentiated Services in each segment, at most 63.
    pub diffserv: u8,
    /// IP_TTL: the hop limit of each segment, at least 1.
    pub hop_limit: u8,
}

impl Default for SocketOptions {
    /// Those of a new connection.
    fn default() -> SocketOptions {
        SocketOptions { keep_alive: None, give_up_after: None, diffserv: 0, hop_limit: 64 }
    }
}

impl SocketOptions {
    /// Whether an agent can keep them.
    pub const fn are_valid(&self) -> bool {
        self.diffserv < 64 && self.hop_limit > 0
    }
}

/// Questions to an idle peer (RFC 9293, 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// TCP_KEEPIDLE: silence before the first question.
    pub idle: Nanos,
    /// TCP_KEEPINTVL: time between two questions. Both times are at least a second where the agent keeps them.
    pub interval: Nanos,
    /// TCP_KEEPCNT: unanswered questions, at least 2, after which the peer is given up. One loss is no death.
    pub probes: u8,
}

impl Default for KeepAlive {
    /// Linux's: 2 hours, 75 seconds, 9 questions.
    fn default() -> KeepAlive {
        let (idle, interval) = (Nanos::from_millis(7_200_000), Nanos::from_millis(75_000));
        KeepAlive { idle, interval, probes: 9 }
    }
}

/// Which other listeners may have the same address and port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharing {
    /// Those with the same secret: of a process, and of the children that it forked. 0 is no secret.
    pub secret: u128,
    /// SO_REUSEPORT: those of the same user that have it as well.
    pub reuses_port: bool,
}

/// Whether a program waits for a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Interest {
    /// It leaves them to listeners that share the port.
    No,
    /// It may begin to wait.
    Unknown,
    /// It waits.
    Yes,
}

/// Host to agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// See [`Moved`].
    Moved(Moved),
    /// Listen at an address. Port 0 asks for any; an unspecified address is the agent's own.
    Listen {
        /// The host's name for it.
        listener: u32,
        /// Where.
        local: SocketAddr,
        /// Connections that may wait to be complete.
        backlog: u16,
        /// Who may listen there as well.
        sharing: Sharing,
    },
    /// Of listeners that share a port, those whose programs wait get its connections, in turn; without any, those of which that is unknown. A
    /// listener that leaves them to others gets its slots back ([`Event::Unused`]), behind the last of its connections.
    Await {
        /// Which.
        listener: u32,
        /// Whether its program waits. Of a new listener that is unknown.
        interest: Interest,
    },
    /// TCP_MAXSEG of a listener: most bytes of a segment of its connections to come, in either direction, options included. Of a new one
    /// it is `u16::MAX`: what the path allows.
    LimitSegments {
        /// Which.
        listener: u32,
        /// Most bytes.
        mss_max: u16,
    },
    /// Listen no more. Connections that were accepted go on.
    Unlisten {
        /// Which.
        listener: u32,
    },
    /// Room for one more connection of a listener.
    Slot {
        /// Whose.
        listener: u32,
        /// The host's name for the connection.
        socket: u32,
        /// For what comes in.
        receive: Ring,
        /// For what goes out.
        send: Ring,
        /// See [`Filled::receive`]: the window that the peer is told of at first. The other ring has nothing yet.
        filled: u32,
    },
    /// Connect.
    Connect {
        /// The host's name for the connection.
        socket: u32,
        /// Where to.
        remote: SocketAddr,
        /// From which port; 0 is any.
        local_port: u16,
        /// TCP_MAXSEG: most bytes of a segment in either direction, options included; `u16::MAX` is what the path allows.
        mss_max: u16,
        /// For what comes in.
        receive: Ring,
        /// For what goes out.
        send: Ring,
        /// As in [`Request::Slot`].
        filled: u32,
    },
    /// The process belongs to the family with this secret, as do its parent and its children by fork(2). 0 is no family.
    Join {
        /// The secret.
        secret: u128,
    },
    /// Let whoever joins the family with this secret take a connection, which is the process's own or its family's. [`Event::Lent`] says
    /// that this is known.
    Lend {
        /// Which connection.
        flow: FlowId,
        /// The secret; 0 is none.
        secret: u128,
    },
    /// Take a connection of another process of the family, or one that was lent. Its first owner hears [`Event::Closed`]; this one [`Event::Connected`]
    /// under a new name of the flow, and its progress. [`FILL_MAX`] bytes of both rings have memory, and no byte beyond has been used.
    Take {
        /// Which connection.
        flow: FlowId,
        /// The host's name for it.
        socket: u32,
        /// For what comes in.
        receive: Ring,
        /// For what goes out.
        send: Ring,
        /// All before it was read.
        read: u64,
        /// All before it was written, and nothing behind it: the request waits until its owner has said so.
        written: u64,
    },
    /// Say what is known of a connection of the process: [`Event::Known`].
    Inquire {
        /// Which connection.
        flow: FlowId,
    },
    /// Give a connection that nobody has accepted to another listener that shares the port and whose program waits, as soon as there is
    /// one. It is reset if nobody listens there any more. [`Event::Closed`] says that it has gone.
    Offer {
        /// Which connection.
        flow: FlowId,
    },
    /// Give up a connection that is not there yet.
    Cancel {
        /// Its name.
        socket: u32,
    },
    /// Nobody will read any more: a connection that has unread bytes, or gets more, is reset (RFC 2525, 2.17). Its
    /// [`Event::Closed`] comes when the rings are free.
    Close {
        /// Which connection.
        flow: FlowId,
    },
    /// Reset a connection.
    Abort {
        /// Which.
        flow: FlowId,
    },
    /// Set a connection's options. Those that are not valid change nothing.
    Configure {
        /// Which connection.
        flow: FlowId,
        /// All of its options.
        options: SocketOptions,
    },
}

/// Where a connection's streams are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The host's name for it.
    pub socket: u32,
    /// All before it came, and lies in the ring.
    pub received: u64,
    /// All before it was acknowledged: that part of the ring is free.
    pub acknowledged: u64,
    /// The peer's stream ends at `received`.
    pub is_finished: bool,
}

/// What an agent knows of a connection's path: tcp(7)'s TCP_INFO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The host's name for it.
    pub socket: u32,
    /// Mean and deviation of the round trip's time in microseconds, 0 before one was measured.
    pub round_trip_us: u32,
    /// See `round_trip_us`.
    pub variation_us: u32,
    /// The retransmission timeout, in microseconds.
    pub timeout_us: u32,
    /// Most bytes in a segment.
    pub mss: u32,
    /// Bytes that the peer has not acknowledged.
    pub unacknowledged: u32,
    /// Congestion window and slow-start threshold, in bytes.
    pub window: u32,
    /// See `window`.
    pub threshold: u32,
}

/// Why there is no connection, or none any more. Numbers are Linux's, as errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u16)]
pub enum Reason {
    /// EACCES: the host's user may not have that port.
    NotPermitted = 13,
    /// EINVAL: the request names rings or addresses that cannot be.
    Invalid = 22,
    /// EMFILE: the host, or its user, has so many that others would find no room.
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

    /// The errno of Linux.
    pub const fn errno(self) -> i32 {
        self as i32
    }
}

/// Agent to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// See [`Progress`].
    Progress(Progress),
    /// See [`Known`].
    Known(Known),
    /// The answer to a [`Request::Lend`], whether or not there is such a connection.
    Lent {
        /// Which connection.
        flow: FlowId,
    },
    /// Connections to this address will come.
    Listening {
        /// Which listener.
        listener: u32,
        /// Its address: the agent's own where the request left it open.
        local: SocketAddr,
    },
    /// There is none, or no more.
    NotListening {
        /// Which listener.
        listener: u32,
        /// Why.
        reason: Reason,
    },
    /// A peer has connected, and has taken a slot.
    Accepted {
        /// Which listener.
        listener: u32,
        /// The slot's name.
        socket: u32,
        /// The connection.
        flow: FlowId,
        /// The peer.
        remote: SocketAddr,
        /// Most bytes of payload in our segments.
        mss: u16,
    },
    /// A connection that was asked for is there.
    Connected {
        /// Its name.
        socket: u32,
        /// The connection.
        flow: FlowId,
        /// Our end.
        local: SocketAddr,
        /// Most bytes of payload in our segments.
        mss: u16,
    },
    /// There is no such connection, or no more. Its rings are the host's again.
    Failed {
        /// Its name.
        socket: u32,
        /// Why.
        reason: Reason,
    },
    /// Both streams have ended, and the host has closed. Its rings are the host's again.
    Closed {
        /// Its name.
        socket: u32,
    },
    /// A slot that no connection has taken, of a listener that is no more or is left to others. Its rings are the host's again.
    Unused {
        /// Its name.
        socket: u32,
    },
    /// Something is wrong with a connection that goes on (RFC 9293, 3.9.1.8): the network says that the peer is out of reach, or
    /// retransmissions stay unanswered. Events of this kind are lost where many come at once.
    Warned {
        /// Its name.
        socket: u32,
        /// How the connection would fail if this lasted.
        reason: Reason,
    },
}
