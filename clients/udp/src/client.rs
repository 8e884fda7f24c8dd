//! A client that sends a request until it is answered, one at a time.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::wire::{DATAGRAM_MAX, Header, IDEMPOTENT, MESSAGE_MAX, REFUSED, REPLY, Status};

/// From the first try of a request to the second; each further one takes twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// From one try to the next, at most.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// What is called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// The method: its place in the order in which the server registers them.
    pub method: u16,
    /// The class.
    pub class: u8,
    /// Executing it twice does no harm: then a retry may be executed.
    pub idempotent: bool,
    /// How long it is expected to work.
    pub work: Duration,
    /// The message.
    pub message: &'a [u8],
}

/// The result of a request that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// What the server's method said.
    pub status: Status,
    /// Its message; where the status is not OK, a text that may be empty.
    pub message: Vec<u8>,
    /// Requests that were open at the host.
    pub open: u32,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The request was not executed.
    #[error("refused, and not executed: {}{text}", .status.name())]
    Refused {
        /// Why.
        status: Status,
        /// In words, if the server has any: begins with a colon then.
        text: String,
    },
    /// The request may have been executed once, or not at all.
    #[error(
        "the agent or the host has ended meanwhile: the request was executed once, or not at all"
    )]
    OutcomeUnknown,
    /// There is no answer. A request that is not idempotent may have been executed once; later tries may still arrive.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    /// The message does not fit a datagram.
    #[error("a message of {0} bytes does not fit a datagram: at most {MESSAGE_MAX}")]
    TooLong(usize),
    /// The socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A client with a socket of its own, connected to one front.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
    id: u64,
    incarnation: u64,
    cookie: u64,
    patience: Duration,
    buffer: Vec<u8>,
}

impl Client {
    /// A client of the front at `address`. Requests are given up after `patience`.
    ///
    /// # Errors
    /// The socket's.
    pub fn connect(address: impl ToSocketAddrs, patience: Duration) -> io::Result<Client> {
        let mut last = io::ErrorKind::NotFound.into();
        for address in address.to_socket_addrs()? {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            match socket.connect(address) {
                Ok(()) => {
                    // A stranger who cannot see the replies cannot name the next request.
                    let id = RandomState::new().hash_one(0) >> 2;
                    let buffer = vec![0; DATAGRAM_MAX];
                    return Ok(Client { socket, id, incarnation: 0, cookie: 0, patience, buffer });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Calls, and waits for the result. Tries go out until there is one.
    ///
    /// # Errors
    /// There is none; the error says whether the request may have been executed.
    pub fn call(&mut self, call: Call<'_>) -> Result<Reply, CallError> {
        if call.message.len() > MESSAGE_MAX {
            return Err(CallError::TooLong(call.message.len()));
        }
        self.id += 1;
        let mut header = Header {
            flags: if call.idempotent { IDEMPOTENT } else { 0 },
            class: call.class,
            method: call.method,
            id: self.id,
            // Of all tries: a later agent then sees that an earlier one may have executed it.
            incarnation: self.incarnation,
            cookie: self.cookie,
            work: u32::try_from(call.work.as_nanos()).unwrap_or(u32::MAX),
            ..Header::default()
        };
        let end = Instant::now() + self.patience;
        let mut retry = FIRST_RETRY;
        loop {
            let datagram = [&header.encode()[..], call.message].concat();
            // Nobody listens there just now: somebody may before the patience is over.
            match self.socket.send(&datagram) {
                Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => {
                    return Err(error.into());
                }
                _ => {}
            }
            let Some(answer) = self.answer(&header, Instant::now() + retry, end)? else {
                if Instant::now() >= end {
                    return Err(CallError::NoAnswer(self.patience));
                }
                retry = (2 * retry).min(RETRY_MAX);
                continue;
            };
            let (reply, message) = answer;
            match Status(reply.status) {
                // One that comes late must not have the request executed again, as if it were new.
                Status::CHALLENGE if header.incarnation != 0 && !call.idempotent => {}
                Status::CHALLENGE => {
                    (self.incarnation, self.cookie) = (reply.incarnation, reply.cookie);
                    (header.incarnation, header.cookie) = (reply.incarnation, reply.cookie);
                }
                Status::OUTCOME_UNKNOWN => {
                    (self.incarnation, self.cookie) = (reply.incarnation, reply.cookie);
                    return Err(CallError::OutcomeUnknown);
                }
                status if reply.has(REFUSED) => {
                    let text = String::from_utf8_lossy(&message);
                    let colon = if text.is_empty() { "" } else { ": " };
                    return Err(CallError::Refused { status, text: format!("{colon}{text}") });
                }
                status => return Ok(Reply { status, message, open: reply.work }),
            }
        }
    }

    /// The answer to this request, if it comes by the earlier of these.
    fn answer(
        &mut self,
        header: &Header,
        retry_at: Instant,
        end: Instant,
    ) -> io::Result<Option<(Header, Vec<u8>)>> {
        loop {
            let left = retry_at.min(end).saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            let bytes = match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Ok(None),
                    // Said at once by a machine without a front: still, not before the next try is due.
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                },
            };
            let Ok((reply, message)) = Header::decode(&self.buffer[..bytes]) else { continue };
            if reply.has(REPLY) && reply.id == header.id {
                return Ok(Some((reply, message.to_vec())));
            }
        }
    }
}
