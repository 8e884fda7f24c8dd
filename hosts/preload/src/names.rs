//! bind(2), connect(2), and the addresses of sockets, which decide between the agent and the kernel.

use std::ffi::c_int;
use std::net::{Shutdown, SocketAddr};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, ipproto};
use wave_posix::HostFailure;
use wave_readiness::{EventFlags, Source};

use crate::address::{self, Encoded, Family};
use crate::description::{Description, State, Tcp};
use crate::options::{Kept, WaitBounds};
use crate::signals::waits;
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::sys::ASYNC;
use crate::wait::Stop;
use crate::world::World;

/// Ports for bind(2) to port 0, as in Linux's `ip_local_port_range`.
const PORTS: std::ops::Range<u16> = 32_768..60_999;
/// The family of a kernel TCP socket; `None` for other files.
pub fn family_of(fd: c_int) -> Option<Family> {
    let fd = sys::fd(fd);
    let is_tcp = sockopt::socket_type(fd) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(fd) == Ok(Some(ipproto::TCP));
    match sockopt::socket_domain(fd) {
        Ok(AddressFamily::INET) if is_tcp => Some(Family::V4),
        Ok(AddressFamily::INET6) if is_tcp => Some(Family::V6),
        _ => None,
    }
}

/// The kernel's local address of a socket; port 0 if it is not bound.
pub fn kernels_name(fd: c_int) -> Option<SocketAddr> {
    let name = SocketAddr::try_from(getsockname(sys::fd(fd)).ok()?).ok()?;
    Some(SocketAddr::new(name.ip().to_canonical(), name.port()))
}

impl Sockets {
    /// bind(2). An address of the agent makes the socket ours.
    pub fn bind(&self, fd: c_int, address: &[u8]) -> Verdict<()> {
        let mut world = match self.open() {
            Ok(world) => world,
            Err(error) => return Verdict::Ours(Err(error)),
        };
        if let Some(at) = world.find(fd) {
            let description = world.description(at);
            let is_free = description.state == State::Idle && description.bound.is_none();
            let family = description.family;
            let own = address::decode(address, family).filter(|own| world.config.is_own(own.ip()));
            return match own {
                Some(own) if is_free => Verdict::Ours(world.bind(at, fd, own)),
                _ => Verdict::Ours(Err(Errno::INVAL)),
            };
        }
        let Some(family) = family_of(fd) else { return Verdict::Kernels };
        let own = address::decode(address, family).filter(|own| world.config.is_own(own.ip()));
        let Some(own) = own else { return Verdict::Kernels };
        let is_bound = kernels_name(fd).is_none_or(|name| name.port() != 0);
        if is_bound {
            return Verdict::Kernels;
        }
        let Ok(at) = world.adopt(fd, family, false) else { return Verdict::Kernels };
        let bound = world.bind(at, fd, own);
        if bound.is_err() {
            world.return_to_kernel(fd);
        }
        Verdict::Ours(bound)
    }

    /// connect(2). A host on one of the agent's networks makes the socket ours, unless the socket is bound to another of the machine's
    /// addresses.
    pub fn connect(&self, fd: c_int, address: &[u8]) -> Verdict<()> {
        if address::is_unspecified(address) {
            return self.answer(fd, |world, at| world.disconnect(at, fd));
        }
        waits(|| self.connect_once(fd, address))
    }

    fn connect_once(&self, fd: c_int, address: &[u8]) -> Verdict<()> {
        match self.begin_connect(fd, address) {
            Verdict::Ours(Ok(())) => {}
            other => return other,
        }
        self.call(
            fd,
            false,
            Timeout::Send,
            |_, _| None,
            |world, at, stop| {
                let view = world.view(at);
                let description = world.description(at);
                if view.tcp == Tcp::SynSent {
                    return stop.map(|stop| match stop {
                        Stop::Interrupted { .. } => Err(stop.errno()),
                        Stop::Nonblocking | Stop::TimedOut => Err(Errno::INPROGRESS),
                    });
                }
                if let State::Open(_) = description.state {
                    description.owes_connect = false;
                    return Some(Ok(()));
                }
                // inet_stream_connect: the program may have read SO_ERROR since.
                let error = description.error.take().unwrap_or(Errno::CONNABORTED);
                world.forget_connection(at);
                Some(Err(error))
            },
        )
    }

    /// Requests the connection. On an error, connect(2) returns it; otherwise the caller waits for the connection.
    fn begin_connect(&self, fd: c_int, address: &[u8]) -> Verdict<()> {
        let mut world = match self.open() {
            Ok(world) => world,
            Err(error) => return Verdict::Ours(Err(error)),
        };
        if let Some(at) = world.find(fd) {
            world.process_events();
            let view = world.view(at);
            let description = world.description(at);
            let is_nonblocking = description.is_nonblocking;
            return match description.state {
                State::Listening { .. } => Verdict::Ours(Err(Errno::ISCONN)),
                State::Idle => match address::decode(address, description.family) {
                    Some(remote) => Verdict::Ours(world.begin(at, fd, remote)),
                    None => Verdict::Kernels,
                },
                _ if description.is_disconnecting => Verdict::Ours(Err(Errno::INVAL)),
                _ if !description.owes_connect => Verdict::Ours(Err(Errno::ISCONN)),
                _ if view.tcp == Tcp::SynSent && is_nonblocking => {
                    Verdict::Ours(Err(Errno::ALREADY))
                }
                _ => Verdict::Ours(Ok(())),
            };
        }
        let Some(family) = family_of(fd) else { return Verdict::Kernels };
        let Some(remote) = address::decode(address, family) else { return Verdict::Kernels };
        if !world.config.is_neighbour(remote.ip()) {
            return Verdict::Kernels;
        }
        let Some(name) = kernels_name(fd) else { return Verdict::Kernels };
        let is_used = sockopt::socket_acceptconn(sys::fd(fd)).unwrap_or(true)
            || getpeername(sys::fd(fd)).is_ok();
        if !name.ip().is_unspecified() || is_used {
            return Verdict::Kernels;
        }
        let Ok(at) = world.adopt(fd, family, false) else { return Verdict::Kernels };
        if name.port() != 0 {
            world.description(at).bound = Some(name);
        }
        let begun = world.begin(at, fd, remote);
        if begun.is_err() && begun != Err(Errno::INPROGRESS) {
            world.return_to_kernel(fd);
        }
        Verdict::Ours(begun)
    }

    /// getsockname(2).
    pub fn local_name(&self, fd: c_int) -> Verdict<Encoded> {
        self.answer(fd, |world, at| {
            let Description { state, incarnation, family, bound, .. } = *world.description(at);
            let local = match state {
                State::Listening { is_shared: true, .. } => return Verdict::Kernels,
                State::Open(name) | State::Over(name) | State::Connecting(name) => {
                    let context = world.context(incarnation);
                    if context.local_address(name).is_none() {
                        context.query_local_address(name);
                        world.await_answer(incarnation, |context| context.local_address(name));
                    }
                    let socket = world.context(incarnation).socket(name);
                    let (local, remote) = (socket.local, socket.remote.ip());
                    // Accepted by a listener at an unspecified address.
                    let own = world.config.own_like(remote).filter(|_| local.ip().is_unspecified());
                    let local = SocketAddr::new(own.unwrap_or(local.ip()), local.port());
                    if local.port() == 0 { bound } else { Some(local) }
                }
                State::Idle
                | State::Reset
                | State::NotOwned
                | State::Stream
                | State::Listening { .. } => bound,
            };
            match local {
                Some(local) => Verdict::Ours(Ok(address::encode(local, family))),
                None => Verdict::Kernels,
            }
        })
    }

    /// getpeername(2).
    pub fn peer_name(&self, fd: c_int) -> Verdict<Encoded> {
        self.answer(fd, |world, at| {
            let view = world.view(at);
            let Description { incarnation, family, .. } = *world.description(at);
            match (view.tcp, world.description(at).name()) {
                (Tcp::Open, Some(name)) => {
                    let remote = world.context(incarnation).socket(name).remote;
                    Verdict::Ours(Ok(address::encode(remote, family)))
                }
                _ => Verdict::Ours(Err(Errno::NOTCONN)),
            }
        })
    }

    /// shutdown(2), like Linux's inet_shutdown.
    pub fn shutdown(&self, fd: c_int, how: c_int) -> Verdict<()> {
        self.answer(fd, |world, at| {
            let (reads, writes) = match how {
                libc::SHUT_RD => (true, false),
                libc::SHUT_WR => (false, true),
                libc::SHUT_RDWR => (true, true),
                _ => return Verdict::Ours(Err(Errno::INVAL)),
            };
            let view = world.view(at);
            world.note_change();
            let description = world.description(at);
            let incarnation = description.incarnation;
            match description.state {
                State::Listening { .. } if !reads => Verdict::Ours(Ok(())),
                State::Listening { .. } | State::Connecting(_) => world.disconnect(at, fd),
                State::Idle => {
                    description.is_read_shut |= reads;
                    description.is_write_shut |= writes;
                    Verdict::Ours(Err(Errno::NOTCONN))
                }
                State::Reset | State::NotOwned | State::Stream => {
                    Verdict::Ours(Err(Errno::NOTCONN))
                }
                State::Open(name) | State::Over(name) => {
                    description.is_read_shut |= reads;
                    description.is_write_shut |= writes;
                    if view.tcp == Tcp::Closed {
                        description.is_disconnecting |= description.owes_connect;
                        world.notify(at, Source::ANY);
                        return Verdict::Ours(Err(Errno::NOTCONN));
                    }
                    description.owes_connect = false;
                    let how = match (reads, writes) {
                        (true, true) => Shutdown::Both,
                        (true, false) => Shutdown::Read,
                        (false, _) => Shutdown::Write,
                    };
                    // The connection exists, so this cannot fail.
                    let _ = world.context(incarnation).shutdown(name, how);
                    world.notify(at, Source::ANY);
                    Verdict::Ours(Ok(()))
                }
            }
        })
    }
}

impl World {
    /// Makes a kernel socket ours. It is neither bound nor connected yet, or (`is_shared`) becomes a listener of the kernel as well.
    pub fn adopt(&mut self, fd: c_int, family: Family, is_shared: bool) -> Result<usize, Errno> {
        if !crate::descriptor_bitmap::DescriptorBitmap::fits(fd) {
            return Err(Errno::MFILE);
        }
        let flags = fcntl_getfl(sys::fd(fd))?;
        let incarnation = self.attach()?;
        let mut description = Description::new(incarnation, family, State::Idle);
        description.is_nonblocking = flags.contains(OFlags::NONBLOCK);
        description.wait_bounds = WaitBounds::of(sys::fd(fd));
        description.low_water = sys::low_water(sys::fd(fd));
        let at = self.insert(fd, description);
        self.set_signals(at, fd, flags.contains(ASYNC));
        self.notify(at, EventFlags::empty());
        self.take_over_interests(at, fd, is_shared);
        self.take_over_duplicates(at, fd, is_shared);
        Ok(at)
    }

    /// Gives a socket back to the kernel.
    pub fn return_to_kernel(&mut self, fd: c_int) {
        if let Some(at) = self.remove(fd) {
            self.release(at);
        }
    }

    /// Assigns a local address. Port 0 selects a port that no other socket of the process uses.
    fn bind(&mut self, at: usize, fd: c_int, mut own: SocketAddr) -> Result<(), Errno> {
        let reuses = sockopt::socket_reuseaddr(sys::fd(fd))?;
        let reuses_port = sockopt::socket_reuseport(sys::fd(fd))?;
        let is_taken = |world: &World, own: SocketAddr| {
            world.all().any(|other| {
                let listens = matches!(other.state, State::Listening { .. });
                let both = (reuses && other.reuses_address && !listens)
                    || (reuses_port && other.reuses_port);
                other.bound.is_some_and(|bound| {
                    let is_same = bound.ip() == own.ip() || bound.ip().is_unspecified();
                    is_same && bound.port() == own.port() && !both
                })
            })
        };
        let is_port_chosen = own.port() == 0;
        if is_port_chosen {
            // Random, as other processes choose ports as well.
            let start = sys::random()? as u16;
            let count = PORTS.end - PORTS.start;
            let mut tried = (0..count).map(|step| PORTS.start + start.wrapping_add(step) % count);
            let free = tried.find(|port| !is_taken(self, SocketAddr::new(own.ip(), *port)));
            own.set_port(free.ok_or(Errno::ADDRINUSE)?);
        } else if is_taken(self, own) {
            return Err(Errno::ADDRINUSE);
        }
        let description = self.description(at);
        description.bound = Some(own);
        description.is_port_chosen = is_port_chosen;
        description.reuses_address = reuses;
        description.reuses_port = reuses_port;
        Ok(())
    }

    /// Requests a connection from the agent.
    fn begin(&mut self, at: usize, fd: c_int, remote: SocketAddr) -> Result<(), Errno> {
        let incarnation = self.attach()?;
        let description = self.description(at);
        description.incarnation = incarnation;
        // The agent knows which ports are free towards this peer.
        let bound = description.bound.filter(|_| !description.is_port_chosen);
        let port = bound.map_or(0, |bound| bound.port());
        let kept = Kept::of(sys::fd(fd), description.family)?;
        let agent = self.agent(incarnation);
        let Some(name) = agent.context.connect_from(port, remote, kept.mss_max) else {
            return Err(self.lacks_memory(HostFailure::NoRings));
        };
        agent.owners.insert(name, at);
        agent.context.flush();
        let description = self.description(at);
        description.state = State::Connecting(name);
        // That of an earlier connection (tcp_connect_init).
        description.error = None;
        description.owes_connect = true;
        let is_nonblocking = description.is_nonblocking;
        self.configure(at, &kept);
        self.notify(at, EventFlags::empty());
        // EINPROGRESS even if the answer has already arrived, as in the kernel.
        if is_nonblocking { Err(Errno::INPROGRESS) } else { Ok(()) }
    }

    /// Ends the connection or the listener, like Linux's tcp_disconnect: connect(2) with AF_UNSPEC, and shutdown(2) of a listener or of a
    /// socket that is connecting. The socket may connect or listen again; its SO_ERROR says that a connection was given up.
    fn disconnect(&mut self, at: usize, fd: c_int) -> Verdict<()> {
        let view = self.view(at);
        let description = self.description(at);
        let (incarnation, state) = (description.incarnation, description.state);
        let mut error = description.error;
        match state {
            State::Listening { listener, .. } => {
                description.listens = None;
                if let Some(listener) = listener {
                    let context = self.context(incarnation);
                    context.unlisten(listener);
                    context.flush();
                }
                self.listeners.retain(|listener| *listener != at);
            }
            State::Open(name) => {
                error = (view.tcp == Tcp::Open).then_some(Errno::CONNRESET).or(error);
                self.abort(at, name);
            }
            State::Connecting(_) => {
                error = Some(Errno::CONNRESET);
                self.forget_connection(at);
            }
            _ => self.forget_connection(at),
        }
        let description = self.description(at);
        description.reset();
        description.error = error;
        self.note_change();
        self.notify(at, Source::ANY);
        match state {
            State::Listening { is_shared: true, .. } => {
                self.unshare(at, fd);
                Verdict::Kernels
            }
            _ => Verdict::Ours(Ok(())),
        }
    }
}
