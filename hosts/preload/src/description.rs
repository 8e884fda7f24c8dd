//! One of the agent's sockets, as its descriptors share it: Linux's states, and their answers to calls.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use wave_posix::Heirloom;
use wave_readiness::{EventFlags, Source};

use crate::address::Family;
use crate::listeners::Listens;

/// State of a socket, with the name of its connection or listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Neither connected nor listening; perhaps bound.
    Idle,
    /// A listener of the agent's, which has no name while there is no agent; `is_shared` if the placeholder listens as well.
    Listening { listener: Option<u32>, is_shared: bool },
    /// A connection that was requested.
    Connecting(u32),
    /// An established connection.
    Open(u32),
    /// The connection ended without us. Received bytes can still be read.
    Over(u32),
    /// We have reset the connection. Unread bytes are in [`Description::left`].
    Reset,
    /// A connection of the process that forked this one, which has not been used here.
    Parents,
}

/// An open file description (open(2)) that is the agent's.
#[derive(Debug)]
pub struct Description {
    /// The agent's life; 0 is none.
    pub life: u64,
    pub family: Family,
    pub is_nonblocking: bool,
    /// Number of descriptors and waiting calls.
    pub handles: u32,
    pub state: State,
    /// Address from bind(2).
    pub bound: Option<SocketAddr>,
    /// SO_REUSEADDR and SO_REUSEPORT, when it was bound.
    pub reuses_address: bool,
    pub reuses_port: bool,
    /// SO_ERROR.
    pub error: Option<Errno>,
    /// shutdown(2) has ended this direction.
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// connect(2) has yet to report the result.
    pub owes_connect: bool,
    /// connect(2) never will: the socket was shut down after it had failed (SS_DISCONNECTING).
    pub is_disconnecting: bool,
    /// TCP_CORK: bytes wait until it is off.
    pub is_corked: bool,
    /// Of a listener.
    pub listens: Option<Box<Listens>>,
    /// Of a connection of the parent's: what it takes to have it. `is_lost` if it could not be had.
    pub heirloom: Option<Box<Heirloom>>,
    pub is_lost: bool,
    /// The secret for which the connection was lent, if this process is not of the owner's family.
    pub secret: Option<u128>,
    /// Another program may have a descriptor of it.
    pub is_passed: bool,
    /// Forks of this process before it had the socket: children of later ones may have it.
    pub forks: u64,
    /// A shared listener asks the kernel first, every other time.
    pub asks_kernel_first: bool,
    /// The source that sets and polls see. `told` is the state at the last notification.
    pub source: Arc<Source>,
    pub told: Told,
    /// Unread bytes of a connection that we have reset.
    pub left: Vec<u8>,
}

/// State of a socket at the last notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Bytes that had arrived, or connections that wait to be accepted.
    pub arrived: u64,
    pub state: Option<(Tcp, bool, bool)>,
}

impl Description {
    pub fn new(life: u64, family: Family, state: State) -> Description {
        Description {
            life,
            family,
            is_nonblocking: false,
            handles: 1,
            state,
            bound: None,
            reuses_address: false,
            reuses_port: false,
            error: None,
            is_read_shut: false,
            is_write_shut: false,
            owes_connect: false,
            is_disconnecting: false,
            is_corked: false,
            listens: None,
            heirloom: None,
            is_lost: false,
            secret: None,
            is_passed: false,
            forks: 0,
            asks_kernel_first: false,
            source: Arc::new(Source::new(EventFlags::empty())),
            told: Told::default(),
            left: Vec::new(),
        }
    }

    /// The name of the connection, if there is or was one.
    pub fn name(&self) -> Option<u32> {
        match self.state {
            State::Connecting(name) | State::Open(name) | State::Over(name) => Some(name),
            State::Idle | State::Listening { .. } | State::Reset | State::Parents => None,
        }
    }

    /// Sets the state after a disconnect: the socket may connect again.
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
    /// Bytes to be read.
    pub available: u64,
    /// Bytes that may be written, and bytes of the whole ring.
    pub room: u64,
    pub ring: u64,
    /// The peer's stream has ended (SOCK_DONE).
    pub is_done: bool,
    /// Nothing more will come (RCV_SHUTDOWN), nothing more may be sent (SEND_SHUTDOWN).
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// SO_ERROR is set.
    pub has_error: bool,
    /// Bytes that have arrived so far, or connections that wait to be accepted.
    pub arrived: u64,
}

impl View {
    /// Whether nothing may be sent any more.
    pub fn is_over(&self) -> bool {
        self.tcp != Tcp::Open || self.is_write_shut || self.has_error
    }

    /// Events of poll(2) and epoll(7), as tcp_poll of Linux has them.
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
            if self.available > 0 {
                events |= READABLE;
            }
            // Linux reports room from a third of the buffer on.
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
