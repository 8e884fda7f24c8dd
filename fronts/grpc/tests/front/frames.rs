//! Clients that speak HTTP/2 by hand-written frames on sockets that never block.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use crate::dial::connector;

pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
const ACK: u8 = 1;

/// A frame (RFC 9113, 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A client's preface and settings, and its answer to the server's (RFC 9113, 3.4).
pub fn greeting() -> Vec<u8> {
    let settings = [0, ACK].map(|flags| frame(SETTINGS, flags, 0, &[])).concat();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat()
}

/// A PING with this number.
pub fn ping(number: u64) -> Vec<u8> {
    frame(PING, 0, 0, &number.to_be_bytes())
}

/// A request's headers, none of them indexed or compressed (RFC 7541, 6.2.2).
pub fn headers(stream: u32, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    const END_HEADERS: u8 = 4;
    frame(1, END_HEADERS, stream, &block)
}

trait Io: Read + Write + Send {}

impl<T: Read + Write + Send> Io for T {}

pub struct Line {
    io: Box<dyn Io>,
    input: Vec<u8>,
    /// Numbers of acknowledged pings.
    pub pongs: Vec<u64>,
    /// The server's settings have come.
    pub is_greeted: bool,
    /// The server has closed the connection.
    pub is_closed: bool,
}

impl Line {
    /// Connects. Under TLS, the handshake is done by reads and writes.
    pub fn new(address: SocketAddr, is_tls: bool) -> Line {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let io: Box<dyn Io> = match is_tls {
            false => Box::new(socket),
            true => {
                let name = ServerName::try_from("test").unwrap();
                let config = Arc::clone(connector().config());
                Box::new(StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket))
            }
        };
        let (input, pongs) = Default::default();
        Line { io, input, pongs, is_greeted: false, is_closed: false }
    }

    /// Writes as much as there is room for. Returns the number of bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        match self.io.write(bytes) {
            Ok(written) => written,
            Err(error) => self.stopped(&error),
        }
    }

    /// Reads all frames that have come.
    pub fn read(&mut self) {
        let mut buffer = [0; 1 << 14];
        // Under TLS, this sends what waits as well.
        if let Err(error) = self.io.flush() {
            self.stopped(&error);
        }
        loop {
            match self.io.read(&mut buffer) {
                Ok(0) => break self.is_closed = true,
                Ok(bytes) => self.input.extend(&buffer[..bytes]),
                Err(error) => {
                    self.stopped(&error);
                    break;
                }
            }
        }
        let mut frames = &self.input[..];
        while let Some((head, rest)) = frames.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some((payload, rest)) = rest.split_at_checked(length) else { break };
            match head[3] {
                SETTINGS => self.is_greeted = true,
                PING if head[4] == ACK => {
                    self.pongs.push(u64::from_be_bytes(payload.try_into().unwrap()));
                }
                _ => {}
            }
            frames = rest;
        }
        self.input = frames.to_vec();
    }

    fn stopped(&mut self, error: &io::Error) -> usize {
        self.is_closed |= error.kind() != ErrorKind::WouldBlock;
        0
    }
}
