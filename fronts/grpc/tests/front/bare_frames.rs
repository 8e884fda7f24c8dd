//! A client of bare HTTP/2 frames, for input that no HTTP/2 library sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const WITH_PRIORITY: u8 = 0x20;

/// A client that gets nothing for longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// The code of a GOAWAY or RST_STREAM.
    fn code(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..][..4].try_into().unwrap())
    }
}

/// The server's reaction to an error of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// A GOAWAY with this code.
    Connection(u32),
    /// A reset of the stream with this code.
    Stream(u32),
}

pub struct BareClient {
    socket: TcpStream,
}

/// A field that is in no table, with plain strings shorter than 127 bytes (RFC 7541, 6.2.2).
pub fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// The fields of a gRPC request, without `:authority`.
pub fn request(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.map(|(name, value)| field(name, value)).concat()
}

impl BareClient {
    pub fn connect(address: SocketAddr) -> BareClient {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        let mut client = BareClient { socket };
        client.send(SETTINGS, 0, 0, &[]);
        client.send(SETTINGS, ACK, 0, &[]);
        client
    }

    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = (payload.len() as u32).to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        // A server that has closed the connection has answered already.
        let _ = self.socket.write_all(&[&head, payload].concat());
    }

    pub fn next(&mut self) -> Frame {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).expect("a frame");
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.socket.read_exact(&mut payload).expect("a frame");
        Frame { kind, flags, stream: u32::from_be_bytes(stream), payload }
    }

    /// Waits for an answer to the request on this stream. `Err` if it is reset, or the connection ends.
    pub fn answer(&mut self, stream: u32) -> Result<(), Reaction> {
        loop {
            let frame = self.next();
            match frame.kind {
                HEADERS if frame.stream == stream => return Ok(()),
                RST_STREAM if frame.stream == stream => {
                    return Err(Reaction::Stream(frame.code()));
                }
                GOAWAY => return Err(Reaction::Connection(frame.code())),
                _ => {}
            }
        }
    }

    /// Waits for the first GOAWAY or RST_STREAM. A PING shows that there is none.
    pub fn reaction(&mut self) -> Option<Reaction> {
        self.send(PING, 0, 0, &[7; 8]);
        loop {
            let frame = self.next();
            match frame.kind {
                RST_STREAM => return Some(Reaction::Stream(frame.code())),
                GOAWAY => return Some(Reaction::Connection(frame.code())),
                PING if frame.flags & ACK != 0 => return None,
                _ => {}
            }
        }
    }
}
