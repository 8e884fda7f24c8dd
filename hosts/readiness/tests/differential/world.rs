//! Stream sockets of the kernel, and for each a [`Source`] that gets the same wake-ups as the kernel's wait queue (net/unix/af_unix.c).

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use wave_readiness::{Epoll, EventFlags, Source, Timespec};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const NONE: EventFlags = EventFlags::empty();

/// The kernel's poll events of a descriptor.
pub fn bits(fd: BorrowedFd<'_>) -> EventFlags {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::from_bits_retain(0xffff))];
    poll(&mut fds, Some(&AT_ONCE)).unwrap();
    EventFlags::from_bits_retain(fds[0].revents().bits().into())
}

/// Moves a descriptor to the lowest free number from `lowest`, so that tests that run in parallel do not share numbers.
pub fn place(fd: impl AsFd, lowest: RawFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, lowest).unwrap()
}

struct Socket {
    source: Option<Source>,
    /// Unread bytes of each of the peer's writes.
    incoming: VecDeque<usize>,
}

/// An open descriptor of a socket.
pub struct Descriptor {
    pub fd: OwnedFd,
    socket: usize,
}

/// Pairs of sockets: 0 and 1, 2 and 3.
pub struct World {
    sockets: Vec<Socket>,
    pub descriptors: Vec<Descriptor>,
    lowest: RawFd,
}

impl World {
    pub fn new(pairs: usize, lowest: RawFd) -> World {
        let mut world = World { sockets: Vec::new(), descriptors: Vec::new(), lowest };
        for _ in 0..pairs {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (one, other) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            for end in [one, other] {
                // The smallest buffer that the kernel allows: a few small writes fill it.
                set_socket_send_buffer_size(&end, 0).unwrap();
                let source = Some(Source::new(bits(end.as_fd())));
                let socket = world.sockets.len();
                world.sockets.push(Socket { source, incoming: VecDeque::new() });
                world.descriptors.push(Descriptor { fd: place(end, lowest), socket });
            }
        }
        world
    }

    pub fn source(&self, descriptor: usize) -> &Source {
        let socket = self.descriptors[descriptor].socket;
        self.sockets[socket].source.as_ref().expect("a socket with a descriptor has a source")
    }

    pub fn write(&mut self, descriptor: usize, bytes: usize) -> Result<usize, Errno> {
        let Descriptor { fd, socket } = &self.descriptors[descriptor];
        let (socket, peer) = (*socket, socket ^ 1);
        let sent = send(fd, &vec![0; bytes], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        self.tell(socket, NONE);
        if let Ok(sent) = sent {
            self.sockets[peer].incoming.push_back(sent);
            self.tell(peer, Source::DATA);
        }
        sent
    }

    pub fn read(&mut self, descriptor: usize, bytes: usize) -> Result<usize, Errno> {
        let Descriptor { fd, socket } = &self.descriptors[descriptor];
        let (socket, peer) = (*socket, socket ^ 1);
        let got = recv(fd, &mut vec![0; bytes][..], RecvFlags::DONTWAIT).map(|(got, _)| got);
        self.tell(socket, NONE);
        let mut left = got.unwrap_or(0);
        let mut is_freed = false;
        while left > 0 {
            let first = self.sockets[socket].incoming.front_mut().expect("the bytes were written");
            let taken = left.min(*first);
            (left, *first) = (left - taken, *first - taken);
            if *first == 0 {
                self.sockets[socket].incoming.pop_front();
                is_freed = true;
            }
        }
        // The kernel wakes a writer once a whole write was read and there is room.
        let has_room = self.bits_of(peer).is_some_and(|bits| bits.contains(EventFlags::OUT));
        self.tell(peer, if is_freed && has_room { Source::ROOM } else { NONE });
        got
    }

    pub fn shutdown(&mut self, descriptor: usize, how: Shutdown) {
        let Descriptor { fd, socket } = &self.descriptors[descriptor];
        let socket = *socket;
        shutdown(fd, how).unwrap();
        self.tell(socket, Source::ANY);
        self.tell(socket ^ 1, Source::ANY);
    }

    pub fn duplicate(&mut self, descriptor: usize) {
        let Descriptor { fd, socket } = &self.descriptors[descriptor];
        let (fd, socket) = (place(fd, self.lowest), *socket);
        self.descriptors.push(Descriptor { fd, socket });
    }

    pub fn close(&mut self, descriptor: usize) {
        let Descriptor { fd, socket } = self.descriptors.swap_remove(descriptor);
        let is_last = !self.descriptors.iter().any(|descriptor| descriptor.socket == socket);
        if is_last {
            self.sockets[socket].source = None;
        }
        drop(fd);
        if is_last {
            self.tell(socket ^ 1, Source::ANY);
        }
    }

    fn bits_of(&self, socket: usize) -> Option<EventFlags> {
        let mut descriptors = self.descriptors.iter();
        let descriptor = descriptors.find(|descriptor| descriptor.socket == socket)?;
        Some(bits(descriptor.fd.as_fd()))
    }

    fn tell(&self, socket: usize, edge: EventFlags) {
        if let (Some(source), Some(bits)) = (&self.sockets[socket].source, self.bits_of(socket)) {
            source.changed(bits, edge);
        }
    }
}

/// A kernel set, and our equivalent.
pub struct Sets {
    pub theirs: OwnedFd,
    pub ours: Epoll,
    /// The set contains only sources and is not polled, so that the whole order is defined.
    pub is_ordered: bool,
}

impl Sets {
    pub fn new(lowest: RawFd) -> Sets {
        let create = || {
            let flags = rustix::event::epoll::CreateFlags::CLOEXEC;
            place(rustix::event::epoll::create(flags).unwrap(), lowest)
        };
        Sets { theirs: create(), ours: Epoll::new(create()), is_ordered: true }
    }
}

pub fn number(descriptor: &Descriptor) -> RawFd {
    descriptor.fd.as_raw_fd()
}
