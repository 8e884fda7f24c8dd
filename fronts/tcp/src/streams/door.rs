//! The door for processes that want to use a connection of another process: by its secret, they ask the agent to make the
//! connection a stream of the kernel's. The dialogue is that of [`wave_tcp::context::demotion`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, recv};
use wave_core::clock::Nanos;
use wave_tcp::context::demotion::{Answer, Greeting};

/// Event data of the door's sockets.
pub(super) const DOOR: u64 = 0;
/// Time for a process to say what it wants, and to connect a placeholder.
const PATIENCE: Nanos = Nanos::from_millis(2_000);
/// Most sockets at the door; further ones wait in its backlog.
const WAITING_MAX: usize = 256;
/// Most processes among them that ask for a connection; further ones must ask again. The placeholders that they connect need room.
const CALLERS_MAX: usize = WAITING_MAX / 2;
/// Most sockets that are accepted in a turn.
const ACCEPTS_PER_TURN: usize = 16;

/// Time without further accept(2) after the system had no descriptor for a socket.
const PAUSE: Nanos = Nanos::from_millis(100);

/// The listening socket, and those that it has accepted.
#[derive(Debug)]
pub(super) struct StreamDoor {
    /// `None` if the machine has no 127.0.0.1: its loopback is down.
    listener: Option<TcpListener>,
    /// The listener's events are waited for.
    is_armed: bool,
    /// No socket is accepted until then.
    paused_until: Option<Nanos>,
    /// Accepted, and not known yet.
    arrived: Vec<Arrival>,
    pub(super) callers: Vec<Caller>,
}

#[derive(Debug)]
struct Arrival {
    stream: TcpStream,
    port: u16,
    since: Nanos,
}

/// A process that wants to use a connection.
#[derive(Debug)]
pub(super) struct Caller {
    stream: TcpStream,
    pub(super) wants: Greeting,
    pub(super) since: Nanos,
    pub(super) stage: Stage,
    received: Vec<u8>,
}

/// How far a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It waits.
    Waits,
    /// It was told GO.
    Leads,
    /// It has connected the placeholder from this port.
    Connected(u16),
}

impl StreamDoor {
    pub(super) fn new() -> io::Result<StreamDoor> {
        let listener = match TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
            Ok(listener) => {
                listener.set_nonblocking(true)?;
                Some(listener)
            }
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => None,
            Err(error) => return Err(error),
        };
        Ok(StreamDoor::over(listener))
    }

    /// A door with this listening socket, perhaps another agent's, for whose events the agent waits.
    pub(super) fn over(listener: Option<TcpListener>) -> StreamDoor {
        let (arrived, callers) = (Vec::new(), Vec::new());
        StreamDoor { listener, is_armed: true, paused_until: None, arrived, callers }
    }

    /// The port; 0 is none.
    pub(super) fn port(&self) -> u16 {
        let address = self.listener.as_ref().and_then(|listener| listener.local_addr().ok());
        address.map_or(0, |address| address.port())
    }

    pub(super) fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.arrived.is_empty() && self.callers.is_empty() && self.paused_until.is_none()
    }

    /// Accepts sockets, adds them to `set`, and hears what they say, if one of the door's sockets `is_ready`. Drops those that say nothing.
    pub(super) fn poll(&mut self, now: Nanos, set: &OwnedFd, is_ready: bool) {
        let accepts_again = self.paused_until.is_some_and(|until| now >= until);
        if accepts_again {
            self.paused_until = None;
        }
        if is_ready || accepts_again {
            self.accept(now, set);
            self.read_greetings(now);
        }
        self.arrived.retain(|arrival| now.since(arrival.since) < PATIENCE);
    }

    /// Waits for the listener's events in `set` while one more socket can be accepted: the others stay, and would keep the agent awake.
    pub(super) fn arm(&mut self, set: &OwnedFd) {
        let Some(listener) = &self.listener else { return };
        let has_room = self.arrived.len() + self.callers.len() < WAITING_MAX;
        let has_room = has_room && self.paused_until.is_none();
        let events = if has_room { EventFlags::IN } else { EventFlags::empty() };
        if has_room != self.is_armed
            && epoll::modify(set, listener, EventData::new_u64(DOOR), events).is_ok()
        {
            self.is_armed = has_room;
        }
    }

    fn accept(&mut self, now: Nanos, set: &OwnedFd) {
        for _ in 0..ACCEPTS_PER_TURN {
            if self.paused_until.is_some() {
                break;
            }
            if self.arrived.len() + self.callers.len() >= WAITING_MAX {
                break;
            }
            let Some(accepted) = self.listener.as_ref().map(TcpListener::accept) else { break };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    let passes = [
                        ErrorKind::WouldBlock,
                        ErrorKind::Interrupted,
                        ErrorKind::ConnectionAborted,
                    ];
                    let is_ours = !passes.contains(&error.kind());
                    self.paused_until = is_ours.then(|| now + PAUSE);
                    break;
                }
            };
            let of_door = EventData::new_u64(DOOR);
            let is_ready = peer.ip().is_loopback()
                && stream.set_nonblocking(true).is_ok()
                && epoll::add(set, &stream, of_door, EventFlags::IN | EventFlags::ET).is_ok();
            if is_ready {
                self.arrived.push(Arrival { stream, port: peer.port(), since: now });
            }
        }
    }

    fn read_greetings(&mut self, now: Nanos) {
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.retain_mut(|arrival| match read_greeting(&arrival.stream) {
            Ok(Some(wants)) => {
                if self.callers.len() < CALLERS_MAX
                    && let Ok(stream) = arrival.stream.try_clone()
                {
                    let (stage, received) = (Stage::Waits, Vec::new());
                    self.callers.push(Caller { stream, wants, since: now, stage, received });
                }
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        self.arrived = arrived;
        self.callers.retain_mut(|caller| caller.read().is_ok());
    }

    /// The accepted socket whose other end has this port.
    pub(super) fn take(&mut self, port: u16) -> Option<TcpStream> {
        let at = self.arrived.iter().position(|arrival| arrival.port == port)?;
        Some(self.arrived.swap_remove(at).stream)
    }
}

impl Caller {
    /// Whether it still has time to connect the placeholder.
    pub(super) fn is_patient(&self, now: Nanos) -> bool {
        now.since(self.since) < PATIENCE
    }

    /// Answers.
    pub(super) fn answer(&self, answer: Answer) {
        // A caller that is gone is noticed at the next look.
        let _ = (&self.stream).write(&[answer.to_byte()]);
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 2];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.received.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        match (self.stage, self.received.as_slice()) {
            (Stage::Leads, [low, high]) => {
                self.stage = Stage::Connected(u16::from_le_bytes([*low, *high]));
                Ok(())
            }
            (Stage::Leads, [_]) => Ok(()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// A whole greeting. A stream that begins otherwise is a placeholder's, whose bytes stay.
fn read_greeting(stream: &TcpStream) -> io::Result<Option<Greeting>> {
    let mut bytes = [0; Greeting::BYTES];
    let (_, count) = match recv(stream, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok(received) => received,
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let greeting = Greeting::from_bytes(&bytes[..count]);
    if greeting.is_some() {
        recv(stream, &mut bytes, RecvFlags::DONTWAIT)?;
    }
    Ok(greeting)
}
