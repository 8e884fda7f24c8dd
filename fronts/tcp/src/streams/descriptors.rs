//! Whether any process still has a descriptor of a socket.
//!
//! A program's kernel socket takes the place of each of its connections. The program sends the agent a descriptor of it; the agent puts
//! the socket into an epoll and closes its descriptor. The socket leaves the epoll when the last process closes it. Until then epoll
//! reports it, because an unconnected socket is always ready (POLLHUP).

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::sockopt::{self, socket_linger};
use rustix::net::{SocketType, getpeername, ipproto};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Sockets that are looked at together.
const EVENTS_AT_ONCE: usize = 1024;

#[derive(Debug)]
pub(super) struct DescriptorWatch {
    set: OwnedFd,
}

impl DescriptorWatch {
    pub(super) fn new() -> io::Result<DescriptorWatch> {
        Ok(DescriptorWatch { set: epoll::create(CreateFlags::CLOEXEC)? })
    }

    /// Goes on with another agent's.
    pub(super) fn over(set: OwnedFd) -> DescriptorWatch {
        DescriptorWatch { set }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Watches a socket by this number. False if it is not an unconnected TCP socket.
    pub(super) fn watch(&self, id: u64, socket: OwnedFd) -> bool {
        let fd = socket.as_fd();
        // Only such a socket's poll and close return at once, whatever the program does.
        let is_placeholder = sockopt::socket_type(fd) == Ok(SocketType::STREAM)
            && sockopt::socket_protocol(fd) == Ok(Some(ipproto::TCP))
            && sockopt::socket_acceptconn(fd) == Ok(false)
            && socket_linger(fd) == Ok(None)
            && getpeername(fd).is_err();
        is_placeholder
            && epoll::add(&self.set, fd, EventData::new_u64(id), EventFlags::empty()).is_ok()
    }

    /// The numbers of all sockets of which a process has a descriptor, of which none is connected.
    pub(super) fn still_open(&self, count: usize) -> HashSet<u64> {
        let mut left = HashSet::with_capacity(count);
        let mut events =
            vec![Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_AT_ONCE];
        loop {
            let found = epoll::wait(&self.set, &mut events[..], Some(&AT_ONCE)).unwrap_or(0);
            let before = left.len();
            left.extend(events[..found].iter().map(|event| event.data.u64()));
            // Ready sockets are reported in turn.
            if found < EVENTS_AT_ONCE || left.len() == before {
                return left;
            }
        }
    }
}
