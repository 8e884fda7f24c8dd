//! The program: its file descriptors, and calls served by the same context code as on a host.

mod options;
mod readiness;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};

use rustix::io::Errno;
use wave_tcp_testbed::{byte, first_wrong};

use self::options::Options;
use self::readiness::{Set, Watched};
use crate::errno;
use crate::machine::{Machine, PEER};
use crate::script::{Argument, Call};

/// Local port of `bind(3, ..., ...)`, and remote port of `connect(3, ..., ...)`, as in packetdrill.
pub const PORT: u16 = 8080;
/// The lowest descriptor that a program gets.
const FIRST_FILE: i64 = 3;

/// An open file description.
#[derive(Debug)]
struct File {
    socket: Socket,
    is_nonblocking: bool,
    options: Options,
    watched: Watched,
}

#[derive(Debug)]
enum Socket {
    /// Neither connected nor listening.
    Fresh {
        local: SocketAddr,
    },
    Listener(u32),
    Stream(u32),
    /// Made by epoll_create.
    Set(Set),
}

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Returned {
    pub value: i64,
    /// Name of its errno.
    pub errno: Option<&'static str>,
    /// Expected and actual value of an output argument, if they differ.
    pub differs: Option<(String, String)>,
}

pub enum Outcome {
    Returned(Returned),
    Waits,
}

#[derive(Debug, Default)]
pub struct Process {
    files: BTreeMap<i64, File>,
    /// Bytes that the blocked call has written so far.
    written: u64,
    /// Remote port of the last call, if that was a connect.
    pub connected_to: Option<u16>,
    /// The call's result according to the script.
    wanted: Option<i64>,
}

/// A call that this interpreter lacks; the text says what is supported.
pub struct Unsupported(pub String);

type Answer = Result<Outcome, Unsupported>;

fn done(value: i64) -> Answer {
    Ok(Outcome::Returned(Returned { value, errno: None, differs: None }))
}

fn failed(errno: Errno) -> Answer {
    let errno = Some(errno::name(errno.raw_os_error()));
    Ok(Outcome::Returned(Returned { value: -1, errno, differs: None }))
}

fn failed_by(error: &io::Error) -> Answer {
    let errno = Some(errno::name(error.raw_os_error().unwrap_or_default()));
    Ok(Outcome::Returned(Returned { value: -1, errno, differs: None }))
}

/// The result of a call that fills in an argument.
fn filled(value: i64, expected: &Argument, actual: i64) -> Answer {
    let differs = match expected {
        Argument::Any => None,
        Argument::List(list) if list.len() == 1 && number(&list[0]) == Some(actual) => None,
        Argument::List(list) => {
            let shown = list.iter().map(|one| number(one).map_or("...".into(), |n| n.to_string()));
            Some((format!("[{}]", shown.collect::<Vec<_>>().join(", ")), format!("[{actual}]")))
        }
        _ => Some(("a list".to_owned(), format!("[{actual}]"))),
    };
    Ok(Outcome::Returned(Returned { value, errno: None, differs }))
}

/// The value of an argument: a number, or the constant that it names.
fn number(argument: &Argument) -> Option<i64> {
    match argument {
        Argument::Number(number) => Some(*number),
        Argument::Names(names) => match names.as_slice() {
            [name] => errno::number(name).map(i64::from),
            _ => None,
        },
        _ => None,
    }
}

fn names(argument: Option<&Argument>) -> &[String] {
    match argument {
        Some(Argument::Names(names)) => names,
        _ => &[],
    }
}

impl Process {
    /// Makes a call, or retries a blocked one (`is_again`).
    ///
    /// # Errors
    /// This interpreter lacks the call, or a form of it.
    pub fn call(&mut self, machine: &mut Machine, call: &Call, is_again: bool) -> Answer {
        if !is_again {
            self.written = 0;
        }
        self.notify_sets(machine);
        self.wanted = call.result;
        let arguments = &call.arguments;
        let fd = arguments.first().and_then(number);
        match call.name.as_str() {
            "socket" => self.socket(arguments),
            "epoll_create" | "epoll_create1" => {
                let set = Socket::Set(Set::new()?);
                done(self.insert(set, Options::default()))
            }
            "bind" | "listen" | "accept" | "connect" | "read" | "recv" | "write" | "send"
            | "sendto" | "sendmsg" | "shutdown" | "close" | "setsockopt" | "getsockopt"
            | "fcntl" | "ioctl" | "epoll_ctl" | "epoll_wait" => {
                let Some(fd) = fd else {
                    return Err(Unsupported(format!(
                        "the first argument of {} is a descriptor",
                        call.name
                    )));
                };
                if !self.files.contains_key(&fd) {
                    return failed(Errno::BADF);
                }
                self.on_file(machine, call, fd, is_again)
            }
            "poll" => self.poll(machine, arguments),
            other => Err(Unsupported(format!(
                "no call `{other}`; there are socket, bind, listen, accept, connect, read, recv, write, send, sendto, sendmsg, \
                 shutdown, close, setsockopt, getsockopt, fcntl, ioctl, poll, epoll_create, epoll_create1, epoll_ctl, \
                 epoll_wait"
            ))),
        }
    }

    fn on_file(&mut self, machine: &mut Machine, call: &Call, fd: i64, is_again: bool) -> Answer {
        let arguments = &call.arguments;
        match call.name.as_str() {
            "bind" => self.bind(fd, arguments),
            "listen" => self.listen(machine, fd, arguments),
            "accept" => self.accept(machine, fd),
            "connect" => self.connect(machine, fd, arguments, is_again),
            "read" | "recv" => {
                no_flags(arguments.get(3))?;
                self.read(machine, fd, bytes(arguments)?)
            }
            "write" | "send" | "sendto" => {
                let has_more = has_more(arguments.get(3))?;
                self.write(machine, fd, bytes(arguments)?, has_more)
            }
            "sendmsg" => {
                let has_more = has_more(arguments.get(2))?;
                self.write(machine, fd, message_bytes(arguments)?, has_more)
            }
            "shutdown" => self.shutdown(machine, fd, arguments),
            "close" => self.close(machine, fd),
            "setsockopt" => self.set_option(machine, fd, arguments),
            "getsockopt" => self.get_option(machine, fd, arguments),
            "fcntl" => self.control(fd, arguments),
            "epoll_ctl" => self.watch(fd, arguments),
            "epoll_wait" => self.wait(fd, arguments),
            _ => self.ioctl(machine, fd, arguments),
        }
    }

    fn file(&mut self, fd: i64) -> &mut File {
        self.files.get_mut(&fd).expect("the descriptor was looked up")
    }

    /// A new descriptor: the number that the script expects, as in packetdrill, or the lowest free one.
    fn insert(&mut self, socket: Socket, options: Options) -> i64 {
        let is_free = |fd: &i64| *fd >= FIRST_FILE && !self.files.contains_key(fd);
        let free = self.wanted.filter(is_free).or_else(|| (FIRST_FILE..).find(is_free));
        let fd = free.expect("there are more numbers than open files");
        let watched = Watched::default();
        self.files.insert(fd, File { socket, is_nonblocking: false, options, watched });
        fd
    }

    fn socket(&mut self, arguments: &[Argument]) -> Answer {
        let kinds = names(arguments.get(1));
        let is_known = |kind: &String| kind == "SOCK_STREAM" || kind == "SOCK_NONBLOCK";
        if !kinds.iter().all(is_known) || !kinds.iter().any(|kind| kind == "SOCK_STREAM") {
            return Err(Unsupported(
                "a socket is SOCK_STREAM, with or without SOCK_NONBLOCK".into(),
            ));
        }
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let fd = self.insert(Socket::Fresh { local }, Options::default());
        self.file(fd).is_nonblocking = kinds.iter().any(|kind| kind == "SOCK_NONBLOCK");
        done(fd)
    }

    fn bind(&mut self, fd: i64, arguments: &[Argument]) -> Answer {
        let port = port_of(arguments.get(1))?.unwrap_or(PORT);
        match &mut self.file(fd).socket {
            Socket::Fresh { local } if local.port() == 0 => {
                local.set_port(port);
                done(0)
            }
            _ => failed(Errno::INVAL),
        }
    }

    fn listen(&mut self, machine: &mut Machine, fd: i64, arguments: &[Argument]) -> Answer {
        let Some(backlog) = arguments.get(1).and_then(number) else {
            return Err(Unsupported("listen's second argument is a number".into()));
        };
        let Socket::Fresh { local } = self.file(fd).socket else {
            return failed(Errno::INVAL);
        };
        let name = machine.context.listen(local, backlog.clamp(1, u16::MAX.into()) as u16);
        machine.settle();
        // The agent answers at once.
        match machine.context.listening(name) {
            Some(Ok(_)) => {
                self.file(fd).socket = Socket::Listener(name);
                done(0)
            }
            Some(Err(error)) => {
                machine.context.unlisten(name);
                failed_by(&error)
            }
            None => failed(Errno::TIMEDOUT),
        }
    }

    fn accept(&mut self, machine: &mut Machine, fd: i64) -> Answer {
        let is_nonblocking = self.file(fd).is_nonblocking;
        let Socket::Listener(name) = self.file(fd).socket else { return failed(Errno::INVAL) };
        match machine.context.accept(name) {
            Some(Ok((name, _))) => {
                // A connection inherits its listener's options.
                let options = self.file(fd).options;
                options.apply(machine, name);
                done(self.insert(Socket::Stream(name), options))
            }
            Some(Err(error)) => failed_by(&error),
            None if is_nonblocking => failed(Errno::AGAIN),
            None => Ok(Outcome::Waits),
        }
    }

    fn connect(
        &mut self,
        machine: &mut Machine,
        fd: i64,
        arguments: &[Argument],
        is_again: bool,
    ) -> Answer {
        let port = port_of(arguments.get(1))?.unwrap_or(PORT);
        let is_nonblocking = self.file(fd).is_nonblocking;
        let name = match &self.file(fd).socket {
            Socket::Fresh { local } if local.port() == 0 => {
                let mss_max = self.file(fd).options.mss_max();
                let peer = (PEER, port).into();
                let Some(name) = machine.context.connect_from(0, peer, mss_max) else {
                    return failed(Errno::NOBUFS);
                };
                self.file(fd).options.apply(machine, name);
                self.file(fd).socket = Socket::Stream(name);
                self.connected_to = Some(port);
                name
            }
            Socket::Fresh { .. } => {
                return Err(Unsupported(
                    "connect on a bound socket is not supported: the agent chooses the local port"
                        .into(),
                ));
            }
            Socket::Stream(name) if is_again => *name,
            // As on Linux; wave-posix has no second connect on a stream.
            Socket::Stream(_) | Socket::Listener(_) => return failed(Errno::ISCONN),
            Socket::Set(_) => return failed(Errno::NOTSOCK),
        };
        match machine.context.connected(name) {
            Some(Ok(())) => done(0),
            Some(Err(error)) => failed_by(&error),
            None if is_nonblocking => failed(Errno::INPROGRESS),
            None => Ok(Outcome::Waits),
        }
    }

    /// The stream of a descriptor; `None` for anything else.
    fn stream(&mut self, fd: i64) -> Option<u32> {
        match self.file(fd).socket {
            Socket::Stream(name) => Some(name),
            _ => None,
        }
    }

    fn read(&mut self, machine: &mut Machine, fd: i64, most: u64) -> Answer {
        let Some(name) = self.stream(fd) else { return failed(Errno::NOTCONN) };
        let bytes = match machine.context.readable(name) {
            Some(Ok(bytes)) => bytes.min(most),
            Some(Err(error)) => return failed_by(&error),
            None if self.file(fd).is_nonblocking => return failed(Errno::AGAIN),
            None => return Ok(Outcome::Waits),
        };
        let receiving = &machine.context.socket(name).receiving;
        let (ring, position) = (receiving.ring, receiving.read);
        let read = machine.memory.parts(ring, position, bytes as u32).concat();
        machine.context.commit_read(name, bytes);
        machine.settle();
        let differs = first_wrong(position, &read).map(|(at, expected)| {
            let actual = read[(at - position) as usize];
            (format!("byte {at} of the stream is {expected}"), format!("it is {actual}"))
        });
        Ok(Outcome::Returned(Returned { value: bytes as i64, errno: None, differs }))
    }

    fn write(&mut self, machine: &mut Machine, fd: i64, bytes: u64, has_more: bool) -> Answer {
        let Some(name) = self.stream(fd) else { return failed(Errno::PIPE) };
        let tail = self.file(fd).options.tail(has_more);
        loop {
            let left = bytes - self.written;
            if left == 0 {
                return done(bytes as i64);
            }
            let room = match machine.context.writable(name) {
                Some(Ok(room)) => room.min(left),
                Some(Err(_)) | None if self.written > 0 && self.file(fd).is_nonblocking => {
                    return done(self.written as i64);
                }
                Some(Err(error)) => return failed_by(&error),
                None if self.file(fd).is_nonblocking => return failed(Errno::AGAIN),
                None => return Ok(Outcome::Waits),
            };
            let room = match machine.context.fill_for(name, room) {
                Ok(room) => room,
                Err(error) => return failed_by(&error),
            };
            let sending = &machine.context.socket(name).sending;
            let (ring, position) = (sending.ring, sending.written);
            let written: Vec<u8> = (position..position + room).map(byte).collect();
            machine.memory.put(ring, position, &written);
            self.written += room;
            if tail.waits() {
                machine.context.commit_write_with(name, room, tail);
                machine.context.mark_dirty(name);
            } else {
                machine.context.commit_write(name, room);
            }
            machine.settle();
        }
    }

    fn shutdown(&mut self, machine: &mut Machine, fd: i64, arguments: &[Argument]) -> Answer {
        let how = match names(arguments.get(1)) {
            [how] if how == "SHUT_RD" => Shutdown::Read,
            [how] if how == "SHUT_WR" => Shutdown::Write,
            [how] if how == "SHUT_RDWR" => Shutdown::Both,
            _ => return Err(Unsupported("shutdown takes SHUT_RD, SHUT_WR, SHUT_RDWR".into())),
        };
        let Some(name) = self.stream(fd) else { return failed(Errno::NOTCONN) };
        let shut = machine.context.shutdown(name, how);
        machine.settle();
        match shut {
            Ok(()) => done(0),
            Err(error) => failed_by(&error),
        }
    }

    fn close(&mut self, machine: &mut Machine, fd: i64) -> Answer {
        let file = self.files.remove(&fd).expect("the descriptor was looked up");
        match file.socket {
            Socket::Fresh { .. } | Socket::Set(_) => {}
            Socket::Listener(name) => machine.context.unlisten(name),
            Socket::Stream(name) if file.options.resets => machine.context.abort(name),
            Socket::Stream(name) => machine.context.close(name),
        }
        machine.settle();
        done(0)
    }
}

fn bytes(arguments: &[Argument]) -> Result<u64, Unsupported> {
    match arguments.get(2).and_then(number) {
        Some(bytes) if (0..=1 << 30).contains(&bytes) => Ok(bytes as u64),
        _ => Err(Unsupported("the third argument is a number of bytes, 1 GiB at most".into())),
    }
}

/// Bytes of a message of sendmsg(2), `{msg_iov(2)=[{..., 40}, {..., 60}], ...}`.
fn message_bytes(arguments: &[Argument]) -> Result<u64, Unsupported> {
    let wrong = || {
        Unsupported("a message is {msg_name(...)=..., msg_iov(1)=[{..., 40}], msg_flags=0}".into())
    };
    let Some(Argument::Struct(fields)) = arguments.get(1) else { return Err(wrong()) };
    let parts = fields.iter().find(|(name, _)| name == "msg_iov").map(|(_, parts)| parts);
    let Some(Argument::List(parts)) = parts else { return Err(wrong()) };
    let lengths = parts.iter().map(|part| match part {
        Argument::List(part) => part.get(1).and_then(number).filter(|bytes| *bytes >= 0),
        _ => None,
    });
    let all: Option<i64> = lengths.sum();
    all.map(|bytes| bytes as u64).ok_or_else(wrong)
}

/// Whether the flags of a sending call have MSG_MORE.
fn has_more(flags: Option<&Argument>) -> Result<bool, Unsupported> {
    let names = names(flags);
    let is_more = names.iter().any(|name| name == "MSG_MORE");
    let is_known = |name: &String| name == "MSG_MORE" || name == "MSG_NOSIGNAL";
    match flags {
        Some(Argument::Names(names)) if names.iter().all(is_known) => Ok(is_more),
        _ => no_flags(flags).map(|()| false),
    }
}

fn no_flags(flags: Option<&Argument>) -> Result<(), Unsupported> {
    match flags {
        None | Some(Argument::Any | Argument::Number(0)) => Ok(()),
        Some(Argument::Names(names)) if names == &["MSG_NOSIGNAL"] => Ok(()),
        _ => Err(Unsupported("flags are 0, MSG_NOSIGNAL and, for sending calls, MSG_MORE".into())),
    }
}

/// The port of an address; `None` if that is `...`.
fn port_of(address: Option<&Argument>) -> Result<Option<u16>, Unsupported> {
    match address {
        Some(Argument::Any) => Ok(None),
        Some(Argument::Struct(fields)) => {
            let port = fields.iter().find(|(name, _)| name == "sin_port");
            match port.and_then(|(_, port)| number(port)) {
                Some(port) if (0..=65_535).contains(&port) => Ok(Some(port as u16)),
                _ => Err(Unsupported(
                    "an address is ... or {sa_family=AF_INET, sin_port=htons(80), ...}".into(),
                )),
            }
        }
        _ => Err(Unsupported(
            "an address is ... or {sa_family=AF_INET, sin_port=htons(80), ...}".into(),
        )),
    }
}
