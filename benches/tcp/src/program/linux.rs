//! Linux's sockets with level-triggered epoll, through the C library, so that the program also runs under `wave tcp run`.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt::ReuseAddr,
};
use nix::unistd::dup2_stdin;

use super::{DEMOTED_PORTS, PIECE_BYTES, Role, Sockets};

/// Event data from this number on names listeners.
const LISTENERS: u64 = 1 << 32;
const EVENTS: usize = 256;

pub struct Linux {
    epoll: Epoll,
    listeners: Vec<(u16, TcpListener)>,
    open: Vec<Option<(Role, TcpStream)>>,
    free: Vec<usize>,
    events: [EpollEvent; EVENTS],
    piece: Vec<u8>,
}

impl Linux {
    pub fn listen(address: Ipv4Addr, backlog: u16, demotes: bool) -> io::Result<Linux> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut listeners = Vec::new();
        let more = if demotes { &[0, DEMOTED_PORTS][..] } else { &[0] };
        let ports = more.iter().flat_map(|more| Role::ALL.map(|role| role.port() + more));
        for port in ports {
            let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&fd, ReuseAddr, &true)?;
            let place = SockaddrIn::from(SocketAddrV4::new(address, port));
            bind(fd.as_raw_fd(), &place)?;
            listen(&fd, Backlog::new(backlog)?)?;
            let listener = TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            let number = LISTENERS + listeners.len() as u64;
            epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
            listeners.push((port, listener));
        }
        let events = [EpollEvent::empty(); EVENTS];
        let piece = vec![0x5a; PIECE_BYTES];
        Ok(Linux { epoll, listeners, open: Vec::new(), free: Vec::new(), events, piece })
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        let (port, listener) = &self.listeners[listener];
        let (role, is_demoted) = Role::of_port(*port).ok_or(ErrorKind::InvalidInput)?;
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            if is_demoted {
                // A connection that becomes a standard stream is demoted.
                dup2_stdin(&stream)?;
                dup2_stdin(File::open("/dev/null")?)?;
            }
            let at = self.free.pop().unwrap_or(self.open.len());
            self.epoll.add(&stream, event(at, matches!(role, Role::Source(_))))?;
            self.open.resize_with(self.open.len().max(at + 1), || None);
            self.open[at] = Some((role, stream));
        }
    }

    fn stream(&self, at: usize) -> io::Result<&TcpStream> {
        let open = self.open[at].as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(&open.1)
    }
}

/// The interest in a connection's room to write, or bytes to read.
fn event(at: usize, writes: bool) -> EpollEvent {
    let flags = if writes { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
    EpollEvent::new(flags, at as u64)
}

impl Sockets for Linux {
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        let count = match self.epoll.wait(&mut self.events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for at in 0..count {
            match self.events[at].data() {
                listener @ LISTENERS.. => self.accept((listener - LISTENERS) as usize)?,
                at => ready.push(at as usize),
            }
        }
        Ok(())
    }

    fn role(&self, at: usize) -> Role {
        self.open[at].as_ref().map_or(Role::Echo, |(role, _)| *role)
    }

    fn read(&mut self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        self.stream(at)?.read(into)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> io::Result<usize> {
        self.stream(at)?.write(from)
    }

    fn read_in_place(&mut self, at: usize, most: usize) -> io::Result<usize> {
        let open = self.open[at].as_ref().ok_or(ErrorKind::NotConnected)?;
        (&open.1).read(&mut self.piece[..most])
    }

    fn write_in_place(&mut self, at: usize, most: usize) -> io::Result<usize> {
        self.stream(at)?.write(&self.piece[..most])
    }

    fn await_room(&mut self, at: usize, awaits: bool) -> io::Result<()> {
        let open = self.open[at].as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(self.epoll.modify(&open.1, &mut event(at, awaits))?)
    }

    /// Has no effect: level-triggered epoll reports the connection again.
    fn come_back(&mut self, _at: usize) {}

    fn close(&mut self, at: usize) {
        if self.open[at].take().is_some() {
            self.free.push(at);
        }
    }
}
