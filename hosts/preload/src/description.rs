//! The open file description of one of the agent's sockets: its state, as in Linux, and what calls see of it.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use wave_posix::Checkpoint;
use wave_readiness::{EventFlags, Source};

use crate::address::Family;
use crate::listeners::Listens;
use crate::options::WaitBounds;
use crate::shared::Claim;

/// State of a socket, with the name of its connection or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither connected nor listening; perhaps bound.
    Idle,
    /// A listener at the agent; `listener` is `None` while there is no agent. `is_shared` if the placeholder listens as well.
    Listening { listener: Option<u32>, is_shared: bool },
    /// A connection that was requested and is not yet established.
    Connecting(u32),
    /// An established connection.
    Open(u32),
    /// The connection has ended, by the peer, the network or the agent. Received bytes can still be read.
    Over(u32),
    /// We have reset the connection. Unread bytes are in [`Description::left`].
    Reset,
    /// A connection that still belongs to another process, the parent or the sender of its descriptor: not used here yet.
    NotOwned,
    /// The connection has become a stream of the kernel's, and its descriptors are ordinary sockets. Only calls that were waiting still
    /// refer to the description.
    Stream,
}

/// An open file description (open(2)) of a socket at an agent.
#[derive(Debug)]
pub struct Description {
    /// The incarnation of the agent that has the socket; 0 is none.
    pub incarnation: u64,
    pub family: Family,
    pub is_nonblocking: bool,
    /// Number of descriptors and waiting calls.
    pub handles: u32,
    pub state: State,
    /// Address from bind(2).
    pub bound: Option<SocketAddr>,
    /// The port of `bound` was chosen here, since the program gave port 0.
    pub is_port_chosen: bool,
    /// SO_REUSEADDR and SO_REUSEPORT, when it was bound.
    pub reuses_address: bool,
    pub reuses_port: bool,
    /// SO_ERROR.
    pub error: Option<Errno>,
    /// shutdown(2) has closed the direction.
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// connect(2) has yet to report the result.
    pub owes_connect: bool,
    /// connect(2) never reports the result: the socket was shut down after the connect had failed (SS_DISCONNECTING).
    pub is_disconnecting: bool,
    /// TCP_CORK: bytes are held back until it is cleared.
    pub is_corked: bool,
    pub wait_bounds: WaitBounds,
    /// SO_RCVLOWAT: bytes for which a receiver waits.
    pub low_water: usize,
    /// O_ASYNC: the descriptor through which it was set.
    pub signals: Option<c_int>,
    /// Number of threads that wait in recv(2) and similar calls.
    pub receivers: u32,
    /// The state of a listener; `None` for other sockets.
    pub listens: Option<Box<Listens>>,
    /// For [`State::NotOwned`]: what the agent needs to hand the connection over.
    pub checkpoint: Option<Box<Checkpoint>>,
    /// What other processes, and this one if the connection is not its own, need to use it. `None` while no other process can have a
    /// descriptor.
    pub claim: Option<Box<Claim>>,
    /// Number of calls that wait for the socket.
    pub callers: u32,
    /// The secret under which the connection was lent, if this process does not belong to the owner's family.
    pub secret: Option<u128>,
    /// Another program may have a descriptor of the socket.
    pub is_passed: bool,
    /// Number of forks of this process before it got the socket: children of later forks may have a copy.
    pub forks: u64,
    /// Alternates with each accept(2) of a shared listener: whether the kernel's queue comes first.
    pub asks_kernel_first: bool,
    /// The source that sets and polls see. `notified` is the state at the last notification.
    pub source: Arc<Source>,
    pub notified: Notified,
    /// Unread bytes of a connection that we have reset.
    pub left: Vec<u8>,
}

/// State of a socket at the last notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notified {
    /// Bytes received so far, or connections in the accept queue.
    pub arrived: u64,
    pub state: Option<(Tcp, bool, bool)>,
}

impl Description {
    pub fn new(incarnation: u64, family: Family, state: State) -> Description {
        Description {
            incarnation,
            family,
            is_nonblocking: false,
            handles: 1,
            state,
            bound: None,
            is_port_chosen: false,
            reuses_address: false,
            reuses_port: false,
            error: None,
            is_read_shut: false,
            is_write_shut: false,
            owes_connect: false,
            is_disconnecting: false,
            is_corked: false,
            wait_bounds: WaitBounds::default(),
            low_water: 1,
            signals: None,
            receivers: 0,
            listens: None,
            checkpoint: None,
            claim: None,
            callers: 0,
            secret: None,
            is_passed: false,
            forks: 0,
            asks_kernel_first: false,
            source: Arc::new(Source::new(EventFlags::empty())),
            notified: Notified::default(),
            left: Vec::new(),
        }
    }

    /// The name of the connection, if there is or was one.
    pub fn name(&self) -> Option<u32> {
        match self.state {
            State::Connecting(name) | State::Open(name) | State::Over(name) => Some(name),
            State::Idle
            | State::Listening { .. }
            | State::Reset
            | State::NotOwned
            | State::Stream => None,
        }
    }

    /// Returns to the state after a disconnect: the socket may connect again.
    pub fn reset(&mut self) {
        self.state = State::Idle;
        self.error = None;
        self.is_read_shut = false;
        self.is_write_shut = false;
        self.owes_connect = false;
        self.is_disconnecting = false;
    }
}

/// Linux's states, as far as calls distinguish them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    Closed,
    Listen,
    SynSent,
    /// ESTABLISHED and the states after it until the connection is over.
    Open,
}

/// A socket's state, as calls would see it now.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub tcp: Tcp,
    /// Bytes that can be read, and whether they are enough for a receiver to be woken (tcp_epollin_ready).
    pub available: u64,
    pub is_readable: bool,
    /// Bytes that can be written, and the size of the send ring in bytes.
    pub room: u64,
    pub ring: u64,
    /// The peer's stream has ended (SOCK_DONE).
    pub is_done: bool,
    /// Nothing more can be received (RCV_SHUTDOWN); nothing more can be sent (SEND_SHUTDOWN).
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// SO_ERROR is set.
    pub has_error: bool,
    /// Bytes received so far, or connections in the accept queue.
    pub arrived: u64,
}

impl View {
    /// Whether nothing more can be sent.
    pub fn is_over(&self) -> bool {
        self.tcp != Tcp::Open || self.is_write_shut || self.has_error
    }

    /// Events for poll(2) and epoll(7), as Linux's tcp_poll reports them.
    pub fn events(&self) -> EventFlags {
        const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDNORM);
        const WRITABLE: EventFlags = EventFlags::OUT.union(EventFlags::WRNORM);
        if self.tcp == Tcp::Listen {
            return if self.arrived > 0 { READABLE } else { EventFlags::empty() };
        }
        let mut events = EventFlags::empty();
        if self.tcp == Tcp::Closed || (self.is_read_shut && self.is_write_shut) {
            events |= EventFlags::HUP;
        }
        if self.is_read_shut {
            events |= READABLE | EventFlags::RDHUP;
        }
        if self.tcp != Tcp::SynSent {
            if self.is_readable {
                events |= READABLE;
            }
            // Linux reports a socket as writable once a third of its buffer is free.
            if self.is_write_shut || self.tcp == Tcp::Closed || self.room * 3 >= self.ring {
                events |= WRITABLE;
            }
        }
        if self.has_error {
            events |= EventFlags::ERR;
        }
        events
    }
}
