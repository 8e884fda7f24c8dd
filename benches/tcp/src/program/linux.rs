//! Linux's sockets with epoll, level-triggered.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

use super::{Role, Sockets};

/// Numbers from here on are listeners.
const LISTENERS: u64 = 1 << 32;

pub struct Linux {
    epoll: OwnedFd,
    listeners: Vec<(Role, TcpListener)>,
    open: Vec<Option<(Role, TcpStream)>>,
    free: Vec<usize>,
    events: Vec<epoll::Event>,
}

impl Linux {
    pub fn listen(address: Ipv4Addr, backlog: u16) -> io::Result<Linux> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut listeners = Vec::new();
        for role in Role::ALL {
            let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
            sockopt::set_socket_reuseaddr(&fd, true)?;
            bind(&fd, &std::net::SocketAddr::from((address, role.port())))?;
            listen(&fd, backlog.into())?;
            let listener = TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            let data = EventData::new_u64(LISTENERS + listeners.len() as u64);
            epoll::add(&epoll, &listener, data, EventFlags::IN)?;
            listeners.push((role, listener));
        }
        let events = Vec::with_capacity(256);
        Ok(Linux { epoll, listeners, open: Vec::new(), free: Vec::new(), events })
    }

    fn accept(&mut self, listener: usize) -> io::Result<()> {
        let (role, listener) = &self.listeners[listener];
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let flags = if *role == Role::Source { EventFlags::OUT } else { EventFlags::IN };
            let at = self.free.pop().unwrap_or(self.open.len());
            epoll::add(&self.epoll, stream.as_fd(), EventData::new_u64(at as u64), flags)?;
            self.open.resize_with(self.open.len().max(at + 1), || None);
            self.open[at] = Some((*role, stream));
        }
    }

    fn stream(&self, at: usize) -> io::Result<&TcpStream> {
        let open = self.open[at].as_ref().ok_or(ErrorKind::NotConnected)?;
        Ok(&open.1)
    }
}

impl Sockets for Linux {
    fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for at in 0..self.events.len() {
            match self.events[at].data.u64() {
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

    fn await_room(&mut self, at: usize, awaits: bool) -> io::Result<()> {
        let flags = if awaits { EventFlags::OUT } else { EventFlags::IN };
        let data = EventData::new_u64(at as u64);
        Ok(epoll::modify(&self.epoll, self.stream(at)?, data, flags)?)
    }

    /// Nothing to do: epoll reports it again, level-triggered.
    fn come_back(&mut self, _at: usize) {}

    fn close(&mut self, at: usize) {
        if self.open[at].take().is_some() {
            self.free.push(at);
        }
    }
}
