//! A client that makes one request at a time, and retries it until it is answered.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::wire::{DATAGRAM_MAX, Header, IDEMPOTENT, MESSAGE_MAX, REFUSED, REPLY, Status};

/// Wait between the first and second try of a request; doubles with each further try.
const FIRST_RETRY: Duration = Duration::from_millis(10);
/// Longest wait between two tries.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A request to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// Method number: its position in the server's registration order.
    pub method: u16,
    /// Class, for steering and scheduling; 0 is the method's own.
    pub class: u8,
    /// Executing the request twice is harmless, so a retry may execute it again.
    pub idempotent: bool,
    /// Expected execution time; 0 if unknown.
    pub work: Duration,
    /// Message of the request, at most [`MESSAGE_MAX`] bytes.
    pub message: &'a [u8],
}

/// The result of a request that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status that the method returned.
    pub status: Status,
    /// Reply message; if the status is not OK, an error text, which may be empty.
    pub message: Vec<u8>,
    /// Number of open requests at the host.
    pub open: u32,
}

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CallError {
    /// The request was not executed.
    #[error("refused, and not executed: {}{text}", .status.name())]
    Refused {
        status: Status,
        /// Error text with a leading colon; may be empty.
        text: String,
    },
    /// The request may have been executed once, or not at all.
    #[error("the agent or the host ended meanwhile: the request was executed once or not at all")]
    OutcomeUnknown,
    /// No answer arrived. A non-idempotent request may have been executed once; a late try may still arrive.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    /// The message does not fit a datagram.
    #[error("a message of {0} bytes does not fit a datagram: at most {MESSAGE_MAX}")]
    TooLong(usize),
    /// A system call on the socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A client of one front, with its own socket.
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
    /// Creates a client of the front at `address`. A call fails after `patience` without an answer.
    ///
    /// # Errors
    /// The address does not resolve, or the socket fails.
    pub fn connect(address: impl ToSocketAddrs, patience: Duration) -> io::Result<Client> {
        let mut last = io::ErrorKind::NotFound.into();
        for address in address.to_socket_addrs()? {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any)?;
            match socket.connect(address) {
                Ok(()) => {
                    // Random, so that a stranger who cannot see the traffic cannot guess the next id.
                    let id = RandomState::new().hash_one(0) >> 2;
                    let buffer = vec![0; DATAGRAM_MAX];
                    return Ok(Client { socket, id, incarnation: 0, cookie: 0, patience, buffer });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request, with retries, and waits for the result.
    ///
    /// # Errors
    /// There is no result; the error says whether the request may have been executed.
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
            // The same in all tries: a later agent then knows that an earlier one may have executed the request.
            incarnation: self.incarnation,
            cookie: self.cookie,
            work: u32::try_from(call.work.as_nanos()).unwrap_or(u32::MAX),
            ..Header::default()
        };
        let end = Instant::now() + self.patience;
        let mut retry = FIRST_RETRY;
        loop {
            let datagram = [&header.encode()[..], call.message].concat();
            match self.socket.send(&datagram) {
                Err(error) if !may_pass(&error) => return Err(error.into()),
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
                // A late challenge: adopting the new incarnation could execute the request again.
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

    /// The answer to this request, if it arrives before `retry_at` and `end`.
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
                    io::ErrorKind::Interrupted => continue,
                    // Without a front, the machine refuses at once, but the next try is not due before `retry_at`.
                    _ if may_pass(&error) => continue,
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

/// Whether a retry may succeed: no front listens yet, the datagram exceeded the path's MTU (the kernel knows it now, and fragments the
/// retry), there is no route yet, or a queue is full.
fn may_pass(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNREFUSED
                | libc::EMSGSIZE
                | libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::ENOBUFS
        )
    )
}
