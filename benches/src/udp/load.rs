//! The load: requests in bursts at a rate, or a fixed number of them under way. The same datagrams for a front and for the bare echo,
//! which sends them back as they are.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use wave_udp_client::wire::{HEADER_BYTES, Header, IDEMPOTENT};
use wave_workloads::grpc::proto::echo::Payload;

use crate::rpc::PAYLOAD_BYTES;

/// How long servers may take until they answer.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long the answers of a chunk may take after its last request.
const DRAIN: Duration = Duration::from_secs(5);

/// How requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// So many at once, at so many a second.
    Bursts { burst: u32, per_second: f64 },
    /// So many under way on each socket.
    Closed { under_way: u32 },
}

/// Sockets to one server.
pub struct Load {
    senders: Vec<Sender>,
    payload: Vec<u8>,
    buffer: Vec<u8>,
}

struct Sender {
    socket: UdpSocket,
    header: Header,
}

impl Load {
    /// Waits until the server answers on each socket. A front says its incarnation and cookie meanwhile.
    pub fn connect(address: &str, sockets: usize) -> Result<Load, String> {
        let body = Bytes::from(vec![7; PAYLOAD_BYTES]);
        let mut load = Load {
            senders: Vec::new(),
            payload: Payload { body }.encode_to_vec(),
            buffer: vec![0; 1 << 16],
        };
        let failed = |error: std::io::Error| format!("a socket to {address}: {error}");
        for _ in 0..sockets {
            let socket = UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
            socket.connect(address).map_err(failed)?;
            let header = Header { flags: IDEMPOTENT, ..Header::default() };
            let mut sender = Sender { socket, header };
            sender.greet(&load.payload)?;
            sender.socket.set_nonblocking(true).map_err(failed)?;
            load.senders.push(sender);
        }
        Ok(load)
    }

    /// Sends for so long, and waits for all answers. How many there were.
    pub fn run(&mut self, shape: Shape, time: Duration) -> Result<u64, String> {
        let start = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        match shape {
            Shape::Bursts { burst, per_second } => {
                let gap = Duration::from_secs_f64(f64::from(burst) / per_second);
                let mut due = start;
                let mut turn = 0;
                while due < start + time {
                    for _ in 0..burst {
                        self.senders[turn].send(&self.payload)?;
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
                        sender.send(&self.payload)?;
                        sent += 1;
                    }
                }
                while start.elapsed() < time {
                    for at in 0..self.senders.len() {
                        while self.senders[at].take(&mut self.buffer)? {
                            answered += 1;
                            self.senders[at].send(&self.payload)?;
                            sent += 1;
                        }
                    }
                }
            }
        }
        let end = Instant::now();
        while answered < sent && end.elapsed() < DRAIN {
            answered += self.take()?;
        }
        match answered == sent && sent > 0 {
            true => Ok(sent),
            false => Err(format!(
                "{answered} of {sent} datagrams of a chunk were answered: others were lost"
            )),
        }
    }

    fn take(&mut self) -> Result<u64, String> {
        let mut taken = 0;
        for sender in &mut self.senders {
            while sender.take(&mut self.buffer)? {
                taken += 1;
            }
        }
        Ok(taken)
    }
}

impl Sender {
    /// Asks until the server executes a request.
    fn greet(&mut self, payload: &[u8]) -> Result<(), String> {
        let mut buffer = [0; 512];
        let timeout = Some(Duration::from_millis(20));
        self.socket.set_read_timeout(timeout).map_err(|error| error.to_string())?;
        let start = Instant::now();
        while start.elapsed() < START_PATIENCE {
            let _ = self.send(payload);
            let Ok(bytes) = self.socket.recv(&mut buffer) else { continue };
            let Ok((told, message)) = Header::decode(&buffer[..bytes]) else { continue };
            if message == payload {
                return Ok(());
            }
            (self.header.incarnation, self.header.cookie) = (told.incarnation, told.cookie);
        }
        Err("a server of the bench does not answer".to_owned())
    }

    fn send(&mut self, payload: &[u8]) -> Result<(), String> {
        self.header.id += 1;
        let mut datagram = [0; HEADER_BYTES + 2 * PAYLOAD_BYTES];
        let end = HEADER_BYTES + payload.len();
        datagram[..HEADER_BYTES].copy_from_slice(&self.header.encode());
        datagram[HEADER_BYTES..end].copy_from_slice(payload);
        self.socket.send(&datagram[..end]).map(drop).map_err(|error| error.to_string())
    }

    /// Whether there was an answer.
    fn take(&mut self, buffer: &mut [u8]) -> Result<bool, String> {
        match self.socket.recv(buffer) {
            // Less is a refusal, which costs something else.
            Ok(bytes) if bytes > HEADER_BYTES => Ok(true),
            Ok(_) => Err("a request of the bench was refused".to_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}
