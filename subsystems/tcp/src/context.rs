//! What a host's context and the agent say to each other, and how it lies in a queue's entries.
//!
//! A context is a thread of a process: it has a queue of requests and one of events. Both are bounded. A full queue of requests
//! makes its producer wait; for a full queue of events the agent keeps what it has to say with the connection, and says it
//! later. That loses nothing, since a [`Progress`] says what is.
//!
//! A process lays out a window of [`window`]'s configuration and offers it to the agent: queue *n* of `Layout::messages` and of
//! `Layout::decisions` are the requests and events of context *n*. Doorbells are one per context, then the agent's; the only
//! further file is the payload memory.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::queue::{Entry, Tag};

use crate::datapath::{FlowId, Ring};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
    /// Memory of the rings.
    pub filled: Filled,
}

/// How much of a connection's rings has memory, of the host's own: so many bytes from the beginning of each. The agent uses no more,
/// and names the peer a window no larger; a ring that has all of its memory is used in laps. It looks at the pages: a host that names
/// more than it has, or more than [`FILL_MAX`] at a time, loses the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Of the ring for what comes in.
    pub receive: u32,
    /// Of the ring for what goes out.
    pub send: u32,
}

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
        /// For what comes in.
        receive: Ring,
        /// For what goes out.
        send: Ring,
        /// As in [`Request::Slot`].
        filled: u32,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Why there is no connection, or none any more. Numbers are Linux's, as errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// See [`Progress`].
    Progress(Progress),
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
    },
    /// A connection that was asked for is there.
    Connected {
        /// Its name.
        socket: u32,
        /// The connection.
        flow: FlowId,
        /// Our end.
        local: SocketAddr,
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
    /// A slot that no connection has taken, of a listener that is no more. Its rings are the host's again.
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

/// A request or an event as an entry of a queue.
pub type Words = (Tag, [u64; 6]);

/// An entry that no peer of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: an entry of kind {kind} means nothing")]
pub struct Malformed {
    /// Its kind.
    pub kind: u16,
}

const MOVED: u16 = 1;
const LISTEN: u16 = 2;
const UNLISTEN: u16 = 3;
const SLOT: u16 = 4;
const CONNECT: u16 = 5;
const CANCEL: u16 = 6;
const CLOSE: u16 = 7;
const ABORT: u16 = 8;
const CONFIGURE: u16 = 9;

const PROGRESS: u16 = 1;
const LISTENING: u16 = 2;
const NOT_LISTENING: u16 = 3;
const ACCEPTED: u16 = 4;
const CONNECTED: u16 = 5;
const FAILED: u16 = 6;
const CLOSED: u16 = 7;
const UNUSED: u16 = 8;
const WARNED: u16 = 9;

const FINISHED: u8 = 1;
const EAGER: u8 = 2;
const KEEP_ALIVE: u8 = 1;
const GIVE_UP: u8 = 2;

impl Request {
    /// As an entry.
    pub fn to_words(&self) -> Words {
        match *self {
            Request::Moved(Moved { flow, written, read, is_finished, is_eager, filled }) => {
                let flags =
                    if is_finished { FINISHED } else { 0 } | if is_eager { EAGER } else { 0 };
                let filled = pair(filled.receive, filled.send);
                (Tag { kind: MOVED, flags }, [flow.to_word(), written, read, filled, 0, 0])
            }
            Request::Listen { listener, local, backlog } => {
                let [high, low] = address_words(local.ip());
                let more = u64::from(local.port()) << 16 | u64::from(backlog);
                (tag(LISTEN), [pair(listener, 0), high, low, more, 0, 0])
            }
            Request::Unlisten { listener } => (tag(UNLISTEN), [pair(listener, 0), 0, 0, 0, 0, 0]),
            Request::Slot { listener, socket, receive, send, filled } => {
                let [a, b, c] = ring_words(receive, send, filled);
                (tag(SLOT), [pair(listener, socket), a, b, c, 0, 0])
            }
            Request::Connect { socket, remote, local_port, receive, send, filled } => {
                let [high, low] = address_words(remote.ip());
                let ports = u32::from(local_port) << 16 | u32::from(remote.port());
                let [a, b, c] = ring_words(receive, send, filled);
                (tag(CONNECT), [pair(socket, ports), high, low, a, b, c])
            }
            Request::Cancel { socket } => (tag(CANCEL), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Request::Close { flow } => (tag(CLOSE), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::Abort { flow } => (tag(ABORT), [flow.to_word(), 0, 0, 0, 0, 0]),
            Request::Configure { flow, options } => {
                let SocketOptions { keep_alive, give_up_after, diffserv, hop_limit } = options;
                let flags = if keep_alive.is_some() { KEEP_ALIVE } else { 0 }
                    | if give_up_after.is_some() { GIVE_UP } else { 0 };
                let (times, probes) = keep_alive.map_or((0, 0), |keep| {
                    (pair(milliseconds(keep.idle), milliseconds(keep.interval)), keep.probes)
                });
                let give_up = give_up_after.map_or(0, |after| milliseconds(after).into());
                let bytes = u64::from_le_bytes([probes, diffserv, hop_limit, 0, 0, 0, 0, 0]);
                (Tag { kind: CONFIGURE, flags }, [flow.to_word(), times, bytes, give_up, 0, 0])
            }
        }
    }

    /// From an entry. Rings are still to be checked against the payload memory.
    ///
    /// # Errors
    /// It is none.
    pub fn from_entry(entry: &Entry) -> Result<Request, Malformed> {
        let Tag { kind, flags } = entry.tag;
        let malformed = Malformed { kind };
        let words: &[u64; 6] = entry.words().try_into().map_err(|_| malformed)?;
        let [first, a, b, c, d, e] = *words;
        let flow = FlowId::from_word(first);
        let (left, right) = (first as u32, (first >> 32) as u32);
        Ok(match kind {
            MOVED => Request::Moved(Moved {
                flow,
                written: a,
                read: b,
                is_finished: flags & FINISHED != 0,
                is_eager: flags & EAGER != 0,
                filled: Filled { receive: c as u32, send: (c >> 32) as u32 },
            }),
            LISTEN => Request::Listen {
                listener: left,
                local: SocketAddr::new(address(a, b), (c >> 16) as u16),
                backlog: c as u16,
            },
            UNLISTEN => Request::Unlisten { listener: left },
            SLOT => {
                let (receive, send, filled) = rings(a, b, c);
                Request::Slot { listener: left, socket: right, receive, send, filled }
            }
            CONNECT => {
                let (receive, send, filled) = rings(c, d, e);
                let remote = SocketAddr::new(address(a, b), right as u16);
                let local_port = (right >> 16) as u16;
                Request::Connect { socket: left, remote, local_port, receive, send, filled }
            }
            CANCEL => Request::Cancel { socket: left },
            CLOSE => Request::Close { flow },
            ABORT => Request::Abort { flow },
            CONFIGURE => {
                let [probes, diffserv, hop_limit, ..] = b.to_le_bytes();
                let time = |milliseconds: u64| Nanos::from_millis(milliseconds & 0xffff_ffff);
                let keep = KeepAlive { idle: time(a), interval: time(a >> 32), probes };
                let options = SocketOptions {
                    keep_alive: (flags & KEEP_ALIVE != 0).then_some(keep),
                    give_up_after: (flags & GIVE_UP != 0).then_some(time(c)),
                    diffserv,
                    hop_limit,
                };
                Request::Configure { flow, options }
            }
            _ => return Err(malformed),
        })
    }
}

impl Event {
    /// As an entry.
    pub fn to_words(&self) -> Words {
        match *self {
            Event::Progress(Progress { socket, received, acknowledged, is_finished }) => {
                let flags = if is_finished { FINISHED } else { 0 };
                (Tag { kind: PROGRESS, flags }, [pair(socket, 0), received, acknowledged, 0, 0, 0])
            }
            Event::Listening { listener, local } => {
                let [high, low] = address_words(local.ip());
                (tag(LISTENING), [pair(listener, local.port().into()), high, low, 0, 0, 0])
            }
            Event::NotListening { listener, reason } => {
                (tag(NOT_LISTENING), [pair(listener, reason as u32), 0, 0, 0, 0, 0])
            }
            Event::Accepted { listener, socket, flow, remote } => {
                let [high, low] = address_words(remote.ip());
                let port = remote.port().into();
                (tag(ACCEPTED), [pair(listener, socket), flow.to_word(), high, low, port, 0])
            }
            Event::Connected { socket, flow, local } => {
                let [high, low] = address_words(local.ip());
                let port = local.port().into();
                (tag(CONNECTED), [pair(socket, 0), flow.to_word(), high, low, port, 0])
            }
            Event::Failed { socket, reason } => {
                (tag(FAILED), [pair(socket, reason as u32), 0, 0, 0, 0, 0])
            }
            Event::Closed { socket } => (tag(CLOSED), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::Unused { socket } => (tag(UNUSED), [pair(socket, 0), 0, 0, 0, 0, 0]),
            Event::Warned { socket, reason } => {
                (tag(WARNED), [pair(socket, reason as u32), 0, 0, 0, 0, 0])
            }
        }
    }

    /// From an entry.
    ///
    /// # Errors
    /// It is none.
    pub fn from_entry(entry: &Entry) -> Result<Event, Malformed> {
        let Tag { kind, flags } = entry.tag;
        let malformed = Malformed { kind };
        let words: &[u64; 6] = entry.words().try_into().map_err(|_| malformed)?;
        let [first, a, b, c, d, _] = *words;
        let (left, right) = (first as u32, (first >> 32) as u32);
        let reason = || {
            let found = Reason::ALL.into_iter().find(|reason| *reason as u32 == right);
            found.ok_or(malformed)
        };
        Ok(match kind {
            PROGRESS => Event::Progress(Progress {
                socket: left,
                received: a,
                acknowledged: b,
                is_finished: flags & FINISHED != 0,
            }),
            LISTENING => Event::Listening {
                listener: left,
                local: SocketAddr::new(address(a, b), right as u16),
            },
            NOT_LISTENING => Event::NotListening { listener: left, reason: reason()? },
            ACCEPTED => Event::Accepted {
                listener: left,
                socket: right,
                flow: FlowId::from_word(a),
                remote: SocketAddr::new(address(b, c), d as u16),
            },
            CONNECTED => Event::Connected {
                socket: left,
                flow: FlowId::from_word(a),
                local: SocketAddr::new(address(b, c), d as u16),
            },
            FAILED => Event::Failed { socket: left, reason: reason()? },
            CLOSED => Event::Closed { socket: left },
            UNUSED => Event::Unused { socket: left },
            WARNED => Event::Warned { socket: left, reason: reason()? },
            _ => return Err(malformed),
        })
    }
}

const fn tag(kind: u16) -> Tag {
    Tag { kind, flags: 0 }
}

const fn pair(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

fn milliseconds(time: Nanos) -> u32 {
    u32::try_from(time.0 / 1_000_000).unwrap_or(u32::MAX)
}

/// IPv4 addresses as mapped ones (RFC 4291, 2.5.5.2).
fn address_words(ip: IpAddr) -> [u64; 2] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

fn address(high: u64, low: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))).to_canonical()
}

/// A ring's length is a power of two: its exponent is enough.
fn ring_words(receive: Ring, send: Ring, filled: u32) -> [u64; 3] {
    let exponents = receive.bytes.trailing_zeros() | send.bytes.trailing_zeros() << 8;
    [receive.offset, send.offset, pair(exponents, filled)]
}

fn rings(receive: u64, send: u64, sizes: u64) -> (Ring, Ring, u32) {
    let ring = |offset, exponent: u64| Ring { offset, bytes: 1 << (exponent & 31) };
    (ring(receive, sizes), ring(send, sizes >> 8), (sizes >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wave_core::layout::Layout;

    use super::*;

    fn entry((tag, words): Words) -> Entry {
        Entry::new(tag, &words)
    }

    proptest! {
        #[test]
        fn whatever_an_entry_says_is_read_as_it_was_written(kind in 0_u16..11, flags: u8, words: [u64; 6]) {
            let random = Entry::new(Tag { kind, flags }, &words);
            if let Ok(request) = Request::from_entry(&random) {
                prop_assert_eq!(Request::from_entry(&entry(request.to_words())), Ok(request));
            }
            if let Ok(event) = Event::from_entry(&random) {
                prop_assert_eq!(Event::from_entry(&entry(event.to_words())), Ok(event));
            }
        }
    }

    #[test]
    fn every_number_of_contexts_has_a_window() {
        for contexts in [1, 2, CONTEXTS_MAX] {
            let layout = Layout::new(window(contexts)).unwrap();
            assert_eq!(layout.decisions.len(), usize::from(contexts));
            assert!(layout.decisions.iter().all(|queue| queue.ring.entries == QUEUE_ENTRIES));
        }
    }

    #[test]
    fn entries_of_other_kinds_or_lengths_are_the_peers_fault() {
        let short = Entry::new(tag(MOVED), &[1, 2, 3]);
        assert_eq!(Request::from_entry(&short), Err(Malformed { kind: MOVED }));
        let unknown = Entry::new(tag(99), &[0; 6]);
        assert_eq!(Event::from_entry(&unknown), Err(Malformed { kind: 99 }));
    }
}
