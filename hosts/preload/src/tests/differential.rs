//! Random programs of socket calls, over agents and over the kernel's loopback, must get equal results, errno and bytes.
//!
//! Every socket is nonblocking. After each call the test waits until poll(2) and FIONREAD report the same for each socket on both
//! stacks, or fails. So readiness is compared as well, and no result depends on timing.

use std::ffi::c_int;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::IntoRawFd;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use super::agents::{ADDRESSES, Network};
use crate::address::{Family, encode};
use crate::signals;
use crate::sockets::{Sockets, Verdict};
use crate::sys;

/// Timeout of the test, long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most open sockets of a program.
const SOCKETS_MAX: usize = 8;
const CALLS: usize = 40;
/// Most bytes sent and not yet received, because the buffers of the two stacks differ in size.
const BYTES_MAX: usize = 3_000;
const PROGRAMS: u64 = 200;
/// Seeds of programs that have found bugs: an empty vector must not reach the socket; connect(2) after a shutdown of a failed socket;
/// a close with unread bytes sent a FIN before its reset.
const FOUND: [u64; 3] = [394, 1514, 5345];

/// States of `tcpi_state`.
const ESTABLISHED: u8 = 1;
const FIN_WAIT1: u8 = 4;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// One call. Sockets are named by their indices in the program's list.
#[derive(Clone, Debug)]
enum Call {
    Socket { side: usize },
    Bind { socket: usize, at_port: bool },
    Listen { socket: usize, backlog: c_int },
    Connect { socket: usize, is_open: bool },
    Disconnect { socket: usize },
    Accept { socket: usize },
    Send { socket: usize, bytes: usize, flags: c_int },
    Write { socket: usize, parts: [usize; 3] },
    Receive { socket: usize, bytes: usize, flags: c_int },
    Discard { socket: usize, bytes: usize, flags: c_int },
    Read { socket: usize, parts: [usize; 2] },
    SendFile { socket: usize, bytes: usize },
    Shutdown { socket: usize, how: c_int },
    Close { socket: usize },
    Duplicate { socket: usize },
    Error { socket: usize },
    Names { socket: usize },
    Linger { socket: usize, is_on: bool },
    NoDelay { socket: usize, is_on: bool },
    KeepAlive { socket: usize, is_on: bool },
    LowWater { socket: usize, bytes: usize },
    Listens { socket: usize },
}

/// The result of a call: a number and bytes, or errno.
#[derive(Clone, PartialEq, Eq)]
struct Answer(Result<(usize, Vec<u8>), Errno>);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok((number, bytes)) => {
                write!(f, "{number} {:02x?}", &bytes[..bytes.len().min(8)])
            }
            Err(error) => write!(f, "{error:?}"),
        }
    }
}

/// A socket of one stack: its descriptor, and the end to which it belongs.
#[derive(Clone, Copy, Debug)]
struct Socket {
    fd: c_int,
    side: usize,
    /// Only options have been set so far.
    is_fresh: bool,
    /// It was shut down while it was not connected.
    is_shut: bool,
    /// The same number for all duplicates by dup(2).
    file: usize,
}

/// The state of a socket that is compared between calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    events: i16,
    available: Result<u64, Errno>,
    has_peer: bool,
    /// The peer's stream has ended. On a socket whose read direction was shut down, nothing else shows it.
    has_end: bool,
}

/// Sockets at two addresses: of two agents, or of the kernel's loopback.
struct Stack<'a> {
    sides: [(Option<&'a Sockets>, Ipv4Addr); 2],
    list: Vec<Option<Socket>>,
    port: u16,
    file: std::fs::File,
}

/// Our answer, or the kernel's for the same descriptor.
fn either<T>(
    verdict: Option<Verdict<T>>,
    kernel: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match verdict {
        Some(Verdict::Ours(answer)) => answer,
        Some(Verdict::Kernels) | None => kernel(),
    }
}

impl<'a> Stack<'a> {
    fn ours(&self, socket: Socket) -> Option<&'a Sockets> {
        self.sides[socket.side].0
    }

    fn address(&self, side: usize, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.sides[side].1), port)
    }

    fn call(&mut self, call: &Call) -> Answer {
        let answer = Answer(self.answer(call));
        if let Call::Bind { socket, .. }
        | Call::Connect { socket, .. }
        | Call::Listen { socket, .. }
        | Call::Duplicate { socket } = call
            && let Some(socket) = &mut self.list[*socket]
        {
            socket.is_fresh = false;
        }
        if let Call::Shutdown { socket, .. } = call
            && answer.0 == Err(Errno::NOTCONN)
            && let Some(Socket { file, .. }) = self.list[*socket]
        {
            let shared = self.list.iter_mut().flatten().filter(|socket| socket.file == file);
            shared.for_each(|socket| socket.is_shut = true);
        }
        answer
    }

    fn answer(&mut self, call: &Call) -> Result<(usize, Vec<u8>), Errno> {
        let done = |answer: Result<(), Errno>| answer.map(|()| (0, Vec::new()));
        let number = |answer: Result<usize, Errno>| answer.map(|number| (number, Vec::new()));
        let find = |place: usize| self.list[place].expect("programs name open sockets");
        match *call {
            Call::Socket { side } => {
                let kind = SocketType::STREAM;
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let fd = net::socket_with(AddressFamily::INET, kind, flags, None)?;
                self.list.push(Some(Socket {
                    fd: fd.into_raw_fd(),
                    side,
                    is_fresh: true,
                    is_shut: false,
                    file: self.list.len(),
                }));
                Ok((0, Vec::new()))
            }
            Call::Bind { socket, at_port } => {
                let socket = find(socket);
                let address = self.address(socket.side, if at_port { self.port } else { 0 });
                let encoded = encode(address, Family::V4);
                let ours = self.ours(socket).map(|ours| ours.bind(socket.fd, encoded.bytes()));
                done(either(ours, || net::bind(sys::fd(socket.fd), &address)))
            }
            Call::Listen { socket, backlog } => {
                let socket = find(socket);
                let ours = self.ours(socket).map(|ours| ours.listen(socket.fd, backlog));
                done(either(ours, || net::listen(sys::fd(socket.fd), backlog)))
            }
            Call::Connect { socket, is_open } => {
                let socket = find(socket);
                // No socket listens on port 1.
                let address = self.address(1 - socket.side, if is_open { self.port } else { 1 });
                let encoded = encode(address, Family::V4);
                let ours = self.ours(socket).map(|ours| ours.connect(socket.fd, encoded.bytes()));
                done(either(ours, || net::connect(sys::fd(socket.fd), &address)))
            }
            Call::Disconnect { socket } => {
                let socket = find(socket);
                let unspecified = [0; 16];
                let ours = self.ours(socket).map(|ours| ours.connect(socket.fd, &unspecified));
                done(either(ours, || sys::disconnect(socket.fd)))
            }
            Call::Accept { socket } => {
                let listener = find(socket);
                let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
                let ours = self.ours(listener).map(|ours| match ours.accept(listener.fd, flags) {
                    Verdict::Ours(accepted) => Verdict::Ours(accepted.map(|accepted| accepted.fd)),
                    Verdict::Kernels => Verdict::Kernels,
                });
                let fd = either(ours, || {
                    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                    net::accept_with(sys::fd(listener.fd), flags).map(IntoRawFd::into_raw_fd)
                })?;
                self.list.push(Some(Socket {
                    fd,
                    is_fresh: false,
                    file: self.list.len(),
                    ..listener
                }));
                Ok((0, Vec::new()))
            }
            Call::Send { socket, bytes, flags } => {
                let socket = find(socket);
                let bytes = pattern(bytes);
                let parts = [IoSlice::new(&bytes)];
                let ours = self.ours(socket).map(|ours| ours.send(socket.fd, &parts, flags));
                number(either(ours, || {
                    let flags = SendFlags::from_bits_retain(flags as u32);
                    net::send(sys::fd(socket.fd), &bytes, flags)
                }))
            }
            Call::Write { socket, parts } => {
                let socket = find(socket);
                let bytes = parts.map(pattern);
                let parts = [0, 1, 2].map(|at: usize| IoSlice::new(&bytes[at]));
                let is_empty = bytes.iter().all(Vec::is_empty);
                let ours = self.ours(socket).map(|ours| match is_empty {
                    // `interpose` answers a write of 0 bytes.
                    true => Verdict::Ours(Ok(0)),
                    false => ours.send(socket.fd, &parts, 0),
                });
                number(either(ours, || rustix::io::writev(sys::fd(socket.fd), &parts)))
            }
            Call::Receive { socket, bytes, flags } => {
                let socket = find(socket);
                let mut into = vec![0; bytes];
                let ours = self
                    .ours(socket)
                    .map(|ours| ours.receive(socket.fd, &mut [IoSliceMut::new(&mut into)], flags));
                let count = match ours {
                    Some(Verdict::Ours(answer)) => answer?,
                    _ => {
                        let flags = RecvFlags::from_bits_retain(flags as u32);
                        net::recv(sys::fd(socket.fd), &mut *into, flags)?.1
                    }
                };
                Ok((count, into))
            }
            Call::Discard { socket, bytes, flags } => {
                let socket = find(socket);
                let ours = self.ours(socket).map(|ours| ours.discard(socket.fd, bytes, flags));
                number(either(ours, || sys::discard(socket.fd, bytes, flags)))
            }
            Call::Read { socket, parts } => {
                let socket = find(socket);
                let mut first = vec![0; parts[0]];
                let mut second = vec![0; parts[1]];
                let mut slices = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
                let ours = match self.ours(socket) {
                    // `interpose` answers a read of 0 bytes.
                    Some(_) if parts == [0, 0] => Verdict::Ours(Ok(0)),
                    Some(ours) => ours.receive(socket.fd, &mut slices, 0),
                    None => Verdict::Kernels,
                };
                let count = match ours {
                    Verdict::Ours(answer) => answer?,
                    Verdict::Kernels => rustix::io::readv(sys::fd(socket.fd), &mut slices)?,
                };
                Ok((count, [first, second].concat()))
            }
            Call::SendFile { socket, bytes } => {
                use std::os::fd::AsRawFd;
                let socket = find(socket);
                let file = self.file.as_raw_fd();
                let mut offset = 7;
                let ours = self
                    .ours(socket)
                    .map(|ours| ours.send_file(socket.fd, file, Some(&mut offset), bytes));
                let sent = match ours {
                    Some(Verdict::Ours(answer)) => answer,
                    _ => {
                        let to = sys::fd(socket.fd);
                        rustix::fs::sendfile(to, &self.file, Some(&mut offset), bytes)
                    }
                };
                Ok((sent?, offset.to_ne_bytes().to_vec()))
            }
            Call::Shutdown { socket, how } => {
                let socket = find(socket);
                let ours = self.ours(socket).map(|ours| ours.shutdown(socket.fd, how));
                done(either(ours, || {
                    let how = match how {
                        libc::SHUT_RD => net::Shutdown::Read,
                        libc::SHUT_WR => net::Shutdown::Write,
                        _ => net::Shutdown::Both,
                    };
                    net::shutdown(sys::fd(socket.fd), how)
                }))
            }
            Call::Close { socket } => {
                let place = socket;
                let socket = find(place);
                self.list[place] = None;
                if let Some(ours) = self.ours(socket) {
                    ours.close(socket.fd).unwrap();
                }
                sys::close(socket.fd);
                Ok((0, Vec::new()))
            }
            Call::Duplicate { socket } => {
                let socket = find(socket);
                let fd = rustix::io::dup(sys::fd(socket.fd))?.into_raw_fd();
                if let Some(ours) = self.ours(socket) {
                    ours.duplicated(socket.fd, fd);
                }
                self.list.push(Some(Socket { fd, is_fresh: false, ..socket }));
                Ok((0, Vec::new()))
            }
            Call::Error { socket } => {
                let socket = find(socket);
                let option = self
                    .ours(socket)
                    .map(|ours| ours.option(socket.fd, libc::SOL_SOCKET, libc::SO_ERROR));
                let error = match option {
                    Some(Verdict::Ours(bytes)) => bytes?,
                    _ => {
                        let error = sockopt::socket_error(sys::fd(socket.fd))?;
                        error.err().map_or(0, Errno::raw_os_error).to_ne_bytes().to_vec()
                    }
                };
                Ok((0, error))
            }
            Call::Names { socket } => {
                // The addresses differ between the stacks, but not whether there is one.
                let socket = find(socket);
                let ours = self.ours(socket).map(|ours| ours.peer_name(socket.fd));
                let peer = match ours {
                    Some(Verdict::Ours(peer)) => peer.map(|_| ()),
                    _ => net::getpeername(sys::fd(socket.fd)).map(|_| ()),
                };
                let ours = self.ours(socket).map(|ours| ours.local_name(socket.fd));
                let local = match ours {
                    Some(Verdict::Ours(local)) => local.map(|_| ()),
                    _ => net::getsockname(sys::fd(socket.fd)).map(|_| ()),
                };
                local?;
                done(peer)
            }
            Call::Linger { socket, is_on } => {
                let socket = find(socket);
                let linger = is_on.then_some(Duration::ZERO);
                done(self.set(socket, |fd| sockopt::set_socket_linger(fd, linger)))
            }
            Call::NoDelay { socket, is_on } => {
                let socket = find(socket);
                self.set(socket, |fd| sockopt::set_tcp_nodelay(fd, is_on))?;
                Ok((sockopt::tcp_nodelay(sys::fd(socket.fd))?.into(), Vec::new()))
            }
            Call::KeepAlive { socket, is_on } => {
                let socket = find(socket);
                self.set(socket, |fd| sockopt::set_socket_keepalive(fd, is_on))?;
                Ok((sockopt::socket_keepalive(sys::fd(socket.fd))?.into(), Vec::new()))
            }
            Call::LowWater { socket, bytes } => {
                let socket = find(socket);
                sys::set_low_water(sys::fd(socket.fd), bytes);
                if let Some(ours) = self.ours(socket) {
                    ours.low_water_was_set(socket.fd);
                }
                Ok((sys::low_water(sys::fd(socket.fd)), Vec::new()))
            }
            Call::Listens { socket } => {
                let socket = find(socket);
                let option = self
                    .ours(socket)
                    .map(|ours| ours.option(socket.fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN));
                match option {
                    Some(Verdict::Ours(bytes)) => Ok((bytes?[0].into(), Vec::new())),
                    _ => Ok((sockopt::socket_acceptconn(sys::fd(socket.fd))?.into(), Vec::new())),
                }
            }
        }
    }

    fn set(
        &self,
        socket: Socket,
        set: impl FnOnce(std::os::fd::BorrowedFd<'static>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        set(sys::fd(socket.fd))?;
        if let Some(ours) = self.ours(socket) {
            ours.option_was_set(socket.fd);
        }
        Ok(())
    }

    /// The state of each socket, from poll(2) and FIONREAD.
    fn rest(&self) -> Vec<Option<Rest>> {
        let rest = |socket: &Socket| {
            let events = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
            let mut polled = [libc::pollfd { fd: socket.fd, events, revents: 0 }];
            match self.ours(*socket) {
                Some(ours) => ours.poll(&mut polled, Some(Duration::ZERO), None),
                None => signals::sleep(&mut polled, Some(Duration::ZERO), None),
            }
            .unwrap();
            let ours = self.ours(*socket).map(|ours| ours.ioctl(socket.fd, libc::FIONREAD));
            let available = match ours {
                Some(Verdict::Ours(answer)) => answer.map(|count| count as u64),
                _ => rustix::io::ioctl_fionread(sys::fd(socket.fd)),
            };
            let ours = self.ours(*socket).map(|ours| ours.peer_name(socket.fd));
            let has_peer = match ours {
                Some(Verdict::Ours(peer)) => peer.is_ok(),
                _ => net::getpeername(sys::fd(socket.fd)).is_ok(),
            };
            let ours = self
                .ours(*socket)
                .map(|ours| ours.option(socket.fd, libc::IPPROTO_TCP, libc::TCP_INFO));
            let state = match ours {
                Some(Verdict::Ours(info)) => info.unwrap()[0],
                _ => sys::tcp_state(socket.fd),
            };
            let has_end = [CLOSE_WAIT, LAST_ACK, CLOSING].contains(&state);
            Rest { events: polled[0].revents, available, has_peer, has_end }
        };
        self.list.iter().map(|socket| socket.as_ref().map(rest)).collect()
    }

    /// Whether bytes of the kernel's connections may be under way: held back by Nagle's algorithm, or on the loopback device.
    fn is_under_way(&self) -> bool {
        let connections = || {
            let states = [ESTABLISHED, CLOSE_WAIT, FIN_WAIT1, LAST_ACK];
            let fds = self.list.iter().flatten().map(|socket| socket.fd);
            fds.filter(move |fd| states.contains(&sys::tcp_state(*fd)))
        };
        for fd in connections() {
            // Sends an acknowledgement that is being delayed.
            let _ = sockopt::set_tcp_quickack(sys::fd(fd), true);
        }
        connections().any(|fd| sys::unacknowledged_bytes(fd) > 0)
    }

    fn close_all(&mut self) {
        for place in 0..self.list.len() {
            if self.list[place].is_some() {
                self.call(&Call::Close { socket: place });
            }
        }
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// Draws the next call of a program with these sockets.
fn draw(random: &mut Pcg32, list: &[Option<Socket>]) -> Call {
    let open: Vec<usize> = (0..list.len()).filter(|place| list[*place].is_some()).collect();
    if open.is_empty() || (random.random_ratio(1, 20) && open.len() < SOCKETS_MAX) {
        return Call::Socket { side: random.random_range(0..2) };
    }
    let socket = open[random.random_range(0..open.len())];
    let is_on = random.random();
    let small = random.random_range(0..200);
    let mut flag = |flags: &[c_int]| {
        flags.iter().filter(|_| random.random_ratio(1, 5)).fold(0, |all, flag| all | flag)
    };
    // MSG_MORE is left out: the kernel holds bytes back for 200 ms at most, and we hold them until the first call after that.
    let sends = flag(&[libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL]);
    let receives = flag(&[libc::MSG_DONTWAIT, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC]);
    match random.random_range(0..60) {
        0..14 => Call::Send { socket, bytes: small, flags: sends },
        14..18 => Call::Write { socket, parts: [small, small / 2, small / 3] },
        18..30 => Call::Receive { socket, bytes: small, flags: receives },
        30..35 => Call::Read { socket, parts: [small / 2, small] },
        35..37 => Call::SendFile { socket, bytes: small },
        37..40 => Call::Shutdown { socket, how: random.random_range(0..3) },
        40..43 => Call::Close { socket },
        43 if open.len() < SOCKETS_MAX => Call::Duplicate { socket },
        44..46 => Call::Error { socket },
        46..48 => Call::Names { socket },
        48 => Call::Linger { socket, is_on },
        49 => Call::NoDelay { socket, is_on },
        50 => Call::KeepAlive { socket, is_on },
        51 => Call::Listens { socket },
        52 if open.len() < SOCKETS_MAX => Call::Accept { socket },
        // The kernel remembers a shutdown of a socket before connect(2), and we do not.
        53 if list[socket].is_some_and(|socket| !socket.is_shut) => {
            Call::Connect { socket, is_open: is_on }
        }
        // After a shutdown of a listener with connections, the kernel's port is still in use, and ours is not.
        54 if list[socket].is_some_and(|socket| socket.is_fresh && !socket.is_shut) => {
            Call::Listen { socket, backlog: 8 }
        }
        // The kernel allows another bind(2) of a socket whose connection has ended, and we do not.
        55 if list[socket].is_some_and(|socket| socket.is_fresh && !socket.is_shut) => {
            Call::Bind { socket, at_port: false }
        }
        56 => Call::LowWater { socket, bytes: small },
        57 => Call::Discard { socket, bytes: small, flags: receives },
        58 if random.random_ratio(1, 4) => Call::Disconnect { socket },
        _ => Call::Receive { socket, bytes: small, flags: 0 },
    }
}

/// The start of most programs: a listener, and a connection to it.
fn opening() -> Vec<Call> {
    vec![
        Call::Socket { side: 1 },
        Call::Bind { socket: 0, at_port: true },
        Call::Listen { socket: 0, backlog: 8 },
        Call::Socket { side: 0 },
        Call::Connect { socket: 1, is_open: true },
        Call::Accept { socket: 0 },
    ]
}

/// A port that is free on the kernel's loopback. Both stacks use it.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn is_named(call: &Call) -> Option<usize> {
    match *call {
        Call::Socket { .. } => None,
        Call::Bind { socket, .. }
        | Call::Listen { socket, .. }
        | Call::Connect { socket, .. }
        | Call::Disconnect { socket }
        | Call::Accept { socket }
        | Call::Send { socket, .. }
        | Call::Write { socket, .. }
        | Call::Receive { socket, .. }
        | Call::Discard { socket, .. }
        | Call::Read { socket, .. }
        | Call::SendFile { socket, .. }
        | Call::Shutdown { socket, .. }
        | Call::Close { socket }
        | Call::Duplicate { socket }
        | Call::Error { socket }
        | Call::Names { socket }
        | Call::Linger { socket, .. }
        | Call::NoDelay { socket, .. }
        | Call::KeepAlive { socket, .. }
        | Call::LowWater { socket, .. }
        | Call::Listens { socket } => Some(socket),
    }
}

/// Runs a seed's program over both stacks. Returns the number of calls, or a report of the first difference.
fn run(seed: u64, sides: [&Sockets; 2]) -> Result<usize, String> {
    let mut random = Pcg32::seed_from_u64(seed);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &pattern(150)).unwrap();
    let port = free_port();
    let loopback = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];
    let stack = |sides, file| Stack { sides, list: Vec::new(), port, file };
    let mut ours = stack(
        [(Some(sides[0]), ADDRESSES[0]), (Some(sides[1]), ADDRESSES[1])],
        file.try_clone().unwrap(),
    );
    let mut kernels = stack([(None, loopback[0]), (None, loopback[1])], file);
    let mut begin = opening();
    if random.random_ratio(1, 10) {
        begin.truncate(random.random_range(1..begin.len()));
    }
    let mut calls: Vec<String> = Vec::new();
    let mut unread = 0;
    let mut failed = None;
    for at in 0..CALLS {
        let call = match begin.get(at) {
            // If a socket of the opening was never created, the rest of the program is random.
            Some(call) if is_named(call).is_none_or(|place| kernels.list.len() > place) => {
                call.clone()
            }
            _ => draw(&mut random, &kernels.list),
        };
        if matches!(call, Call::Send { .. } | Call::Write { .. } | Call::SendFile { .. }) {
            unread += 400;
            if unread > BYTES_MAX {
                continue;
            }
        }
        let expected = kernels.call(&call);
        let answer = ours.call(&call);
        calls.push(format!("{call:?} = {expected:?}"));
        if answer != expected {
            failed = Some(format!("the agent answers {answer:?}"));
            break;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (theirs, own) = (kernels.rest(), ours.rest());
            // Otherwise they would arrive at different times in the two stacks.
            if theirs == own && !kernels.is_under_way() {
                break;
            }
            if Instant::now() > deadline {
                failed = Some(format!(
                    "the agent's sockets stay at {own:?}, the kernel's at {theirs:?}"
                ));
                break;
            }
            std::thread::yield_now();
        }
        if failed.is_some() {
            break;
        }
    }
    ours.close_all();
    kernels.close_all();
    match failed {
        None => Ok(calls.len()),
        Some(failed) => Err(format!("seed {seed}: {failed}; after\n  {}", calls.join("\n  "))),
    }
}

#[test]
fn random_programs_get_the_same_answers_as_from_the_kernel() {
    compare(&Network::new());
}

#[test]
fn random_programs_get_the_same_answers_from_an_agent_with_flow_groups() {
    compare(&Network::with_groups([3, 1]));
}

/// `WAVE_SEEDS` sets the number of programs; `WAVE_SEED` selects a single one.
fn compare(network: &Network) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (one, other) = (network.sockets(0), network.sockets(1));
    let seeds: Vec<u64> = match number("WAVE_SEED") {
        Some(seed) => vec![seed],
        None => FOUND.into_iter().chain(0..number("WAVE_SEEDS").unwrap_or(PROGRAMS)).collect(),
    };
    let mut calls = 0;
    for seed in seeds {
        match run(seed, [&one, &other]) {
            Ok(count) => calls += count,
            Err(why) => panic!("{why}\nto repeat: WAVE_SEED={seed} cargo test -p wave-preload"),
        }
    }
    println!("{calls} calls with equal answers");
}
