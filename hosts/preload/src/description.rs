//! A socket of the agent's as its descriptors share it: Linux's states, and what they answer.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use wave_readiness::{EventFlags, Source};

use crate::address::Family;
use crate::options::Kept;

/// What there is of a connection or a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing but perhaps an address.
    Idle,
    /// A listener of the agent's; `is_shared` if the placeholder listens as well.
    Listening { listener: u32, is_shared: bool },
    /// Asked for.
    Connecting(u32),
    /// There.
    Open(u32),
    /// It ended without us. What it received is still read.
    Over(u32),
    /// We have reset it. What it had received is in [`Description::left`].
    Reset,
}

/// An open file description (open(2)) that is the agent's.
#[derive(Debug)]
pub struct Description {
    /// The agent's life.
    pub life: u64,
    pub family: Family,
    pub is_nonblocking: bool,
    /// Descriptors, and calls that wait.
    pub handles: u32,
    pub state: State,
    /// Where bind(2) put it.
    pub bound: Option<SocketAddr>,
    /// SO_REUSEADDR, when it was bound.
    pub reuses_address: bool,
    /// SO_ERROR.
    pub error: Option<Errno>,
    /// shutdown(2) has ended this direction.
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// connect(2) is to say how it went.
    pub owes_connect: bool,
    /// It never will: it was shut down after it had failed (SS_DISCONNECTING).
    pub is_disconnecting: bool,
    /// Of a listener: options that its connections begin with.
    pub kept: Option<Box<Kept>>,
    /// A shared listener asks the kernel first, every other time.
    pub asks_kernel_first: bool,
    /// What sets and polls see of it, and how far it was when they were told last.
    pub source: Arc<Source>,
    pub told: Told,
    /// Unread bytes of a connection that we have reset.
    pub left: Vec<u8>,
}

/// How far a socket was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Bytes that had come, or connections that wait to be accepted.
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
            error: None,
            is_read_shut: false,
            is_write_shut: false,
            owes_connect: false,
            is_disconnecting: false,
            kept: None,
            asks_kernel_first: false,
            source: Arc::new(Source::new(EventFlags::empty())),
            told: Told::default(),
            left: Vec::new(),
        }
    }

    /// The name of its connection, if there is one or was.
    pub fn name(&self) -> Option<u32> {
        match self.state {
            State::Connecting(name) | State::Open(name) | State::Over(name) => Some(name),
            State::Idle | State::Listening { .. } | State::Reset => None,
        }
    }

    /// As after a disconnect: it may connect again.
    pub fn reset(&mut self) {
        self.state = State::Idle;
        self.error = None;
        self.is_read_shut = false;
        self.is_write_shut = false;
        self.owes_connect = false;
        self.is_disconnecting = false;
    }
}

/// Linux's states, as far as calls tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    Closed,
    Listen,
    SynSent,
    /// ESTABLISHED and the states after it until the connection is over.
    Open,
}

/// What a socket would answer now.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub tcp: Tcp,
    /// Bytes to be read.
    pub available: u64,
    /// Bytes that may be written, and of all the ring.
    pub room: u64,
    pub ring: u64,
    /// The peer's stream has ended (SOCK_DONE).
    pub is_done: bool,
    /// Nothing more will come (RCV_SHUTDOWN), nothing more may be sent (SEND_SHUTDOWN).
    pub is_read_shut: bool,
    pub is_write_shut: bool,
    /// SO_ERROR is set.
    pub has_error: bool,
    /// Bytes that have come so far, or connections that wait to be accepted.
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
            // Linux says so from a third of the buffer on.
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
