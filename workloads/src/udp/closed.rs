//! A load for throughput and costs: requests in bursts, or a fixed number in flight. No request is sent twice, so a lost datagram
//! ends the measurement.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use wave_udp_client::wire::{Header, IDEMPOTENT, REFUSED, REPLY, Status};

use super::Kind;
use crate::grpc::proto::echo::{Payload, Work};

/// Time limit for a server to answer the first request.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit from the last request to the last reply.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Bursts of this many requests, at this rate of requests.
    Bursts { burst: u32, per_second: f64 },
    /// This many requests in flight on each socket.
    Closed { under_way: u32 },
}

/// Content of each request.
#[derive(Clone, Debug)]
pub struct Asked {
    kind: Kind,
    message: Vec<u8>,
}

impl Asked {
    pub fn echo(bytes: usize) -> Asked {
        let body = Bytes::from(vec![7; bytes]);
        Asked { kind: Kind::Echo, message: Payload { body }.encode_to_vec() }
    }

    /// A request of this much work.
    pub fn spin(time: Duration) -> Asked {
        let message = Work { ns: time.as_nanos() as u64 }.encode_to_vec();
        Asked { kind: Kind::Spin(time), message }
    }
}

/// Sockets to one server: a front, or a process that echoes datagrams.
pub struct ClosedLoad {
    senders: Vec<Sender>,
    asked: Asked,
    buffer: Vec<u8>,
    /// Whether other threads share the CPU.
    yields: bool,
}

struct Sender {
    socket: UdpSocket,
    header: Header,
    /// Id of the first request of this run: replies to earlier requests are late.
    first: u64,
    datagram: Vec<u8>,
}

impl ClosedLoad {
    /// Waits until the server executes a request on each socket.
    ///
    /// # Errors
    /// A socket fails, or there is no reply within ten seconds.
    pub fn connect(
        address: &str,
        sockets: usize,
        asked: Asked,
        yields: bool,
    ) -> io::Result<ClosedLoad> {
        let mut load = ClosedLoad { senders: Vec::new(), asked, buffer: vec![0; 1 << 16], yields };
        for _ in 0..sockets {
            let socket = UdpSocket::bind("127.0.0.1:0")?;
            socket.connect(address)?;
            let kind = load.asked.kind;
            let header = Header {
                flags: IDEMPOTENT,
                method: kind.method(),
                work: kind.work_ns(),
                ..Header::default()
            };
            let mut sender = Sender { socket, header, first: 0, datagram: Vec::new() };
            sender.greet(&load.asked.message)?;
            sender.socket.set_nonblocking(true)?;
            load.senders.push(sender);
        }
        Ok(load)
    }

    /// Sends for `time`, then waits for the remaining replies. Returns the number of requests.
    ///
    /// # Errors
    /// A socket fails, a request is refused, or a datagram is lost.
    pub fn run(&mut self, shape: Shape, time: Duration) -> io::Result<u64> {
        for sender in &mut self.senders {
            sender.first = sender.header.id + 1;
        }
        let start = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        match shape {
            Shape::Bursts { burst, per_second } => {
                let gap = Duration::from_secs_f64(f64::from(burst) / per_second);
                let mut due = start;
                let mut turn = 0;
                while due < start + time {
                    for _ in 0..burst {
                        self.senders[turn].send(&self.asked.message)?;
                    }
                    (sent, turn) = (sent + u64::from(burst), (turn + 1) % self.senders.len());
                    due += gap;
                    while Instant::now() < due {
                        answered += self.take()?;
                    }
                }
            }
            Shape::Closed { under_way } => {
                for _ in 0..under_way {
                    for sender in &mut self.senders {
                        sender.send(&self.asked.message)?;
                        sent += 1;
                    }
                }
                while start.elapsed() < time {
                    let before = answered;
                    for sender in &mut self.senders {
                        while sender.take(&mut self.buffer)? {
                            answered += 1;
                            sender.send(&self.asked.message)?;
                            sent += 1;
                        }
                    }
                    self.give_way(answered > before);
                }
            }
        }
        let end = Instant::now();
        while answered < sent && end.elapsed() < DRAIN {
            answered += self.take()?;
        }
        match answered == sent && sent > 0 {
            true => Ok(sent),
            false => Err(io::Error::other(format!("{answered} of {sent} requests were answered"))),
        }
    }

    fn take(&mut self) -> io::Result<u64> {
        let mut taken = 0;
        for sender in &mut self.senders {
            while sender.take(&mut self.buffer)? {
                taken += 1;
            }
        }
        self.give_way(taken > 0);
        Ok(taken)
    }

    fn give_way(&self, found: bool) {
        if self.yields && !found {
            std::thread::yield_now();
        }
    }
}

impl Sender {
    /// Sends requests until the server executes one. Meanwhile a front tells its incarnation and cookie.
    fn greet(&mut self, message: &[u8]) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        self.socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let start = Instant::now();
        while start.elapsed() < START_PATIENCE {
            // The server may not listen yet.
            let _ = self.send(message);
            let Ok(bytes) = self.socket.recv(&mut buffer) else { continue };
            let Ok((told, _)) = Header::decode(&buffer[..bytes]) else { continue };
            if is_result(&told) {
                return Ok(());
            }
            if Status(told.status) == Status::CHALLENGE {
                (self.header.incarnation, self.header.cookie) = (told.incarnation, told.cookie);
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Err(io::Error::new(ErrorKind::TimedOut, "the server executes no request"))
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.header.id += 1;
        self.datagram.clear();
        self.datagram.extend_from_slice(&self.header.encode());
        self.datagram.extend_from_slice(message);
        self.socket.send(&self.datagram).map(drop)
    }

    /// Receives a datagram. Returns whether it was a reply.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        loop {
            let bytes = match self.socket.recv(buffer) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            let (told, _) = Header::decode(&buffer[..bytes]).map_err(io::Error::other)?;
            if told.id < self.first {
                continue;
            }
            if is_result(&told) {
                return Ok(true);
            }
            let status = Status(told.status).name();
            return Err(io::Error::other(format!("a request was not executed: {status}")));
        }
    }
}

/// Whether the datagram reports an executed request, or is an echoed request.
fn is_result(told: &Header) -> bool {
    !told.has(REPLY) || Status(told.status) == Status::OK && !told.has(REFUSED)
}
