//! Attackers: clients that hold a server's resources, with hand-written HTTP/2 frames.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use prost::Message;
use socket2::{Domain, Socket, Type};
use wave_workloads::grpc::proto::kv::RangeRequest;

use super::flood::Flood;

/// Connections of an attacker with many connections.
const CONNECTIONS: usize = 1000;
/// Streams of an attacker with many streams on one connection: as many as servers allow.
const STREAMS: u32 = 100;
/// Addresses of an attacker with several addresses.
const ADDRESSES: u8 = 8;

#[derive(Clone, Copy, Debug)]
pub enum Attack {
    /// Opens connections, and makes no calls.
    Idle,
    /// Opens sockets, and sends nothing.
    Handshakes,
    /// Requests more than its windows hold, and reads nothing.
    Unread,
    /// The same from several addresses at once.
    UnreadOfSeveral,
    /// Begins bidirectional streams, and sends one message and no end in each.
    Unfinished,
    /// Sends only a part of each message.
    Slow,
    /// Sends frames as fast as it can.
    Flood(Flood),
}

impl Attack {
    pub const ALL: [Attack; 10] = [
        Attack::Idle,
        Attack::Handshakes,
        Attack::Unread,
        Attack::UnreadOfSeveral,
        Attack::Unfinished,
        Attack::Slow,
        Attack::Flood(Flood::Unknown),
        Attack::Flood(Flood::WindowUpdate),
        Attack::Flood(Flood::Priority),
        Attack::Flood(Flood::InitialWindow),
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Attack::Idle => "idle_connections",
            Attack::Handshakes => "unfinished_handshakes",
            Attack::Unread => "unread_streams",
            Attack::UnreadOfSeveral => "unread_streams_of_several_addresses",
            Attack::Unfinished => "unfinished_streams",
            Attack::Slow => "slow_messages",
            Attack::Flood(Flood::Unknown) => "unknown_frames",
            Attack::Flood(Flood::WindowUpdate) => "window_updates",
            Attack::Flood(Flood::Priority) => "priorities",
            Attack::Flood(Flood::InitialWindow) => "initial_windows",
        }
    }

    /// Whether the attack is a flood.
    pub const fn is_flood(self) -> bool {
        matches!(self, Attack::Flood(_))
    }

    /// Begins the attack. It ends when the returned sockets are shut down.
    pub fn begin(self, address: SocketAddr) -> io::Result<Vec<TcpStream>> {
        let (addresses, connections) = match self {
            Attack::Idle | Attack::Handshakes => (1, CONNECTIONS),
            Attack::UnreadOfSeveral => (ADDRESSES, 1),
            _ => (1, 1),
        };
        let authority = &address.to_string();
        let first = match self {
            Attack::Flood(flood) => return flood.begin(address),
            Attack::Handshakes => Vec::new(),
            Attack::Idle => greeting(),
            Attack::Unread | Attack::UnreadOfSeveral => {
                calls("/wave.kv.v1.Store/Range", authority, |stream| {
                    let all =
                        RangeRequest { limit: 1_000_000, start: vec![0; 8].into(), slo_us: 0 };
                    let message = all.encode_to_vec();
                    data(stream, &[&prefix(message.len())[..], &message].concat(), true)
                })
            }
            Attack::Unfinished => calls("/wave.echo.v1.Echo/Stream", authority, |stream| {
                data(stream, &prefix(0), false)
            }),
            Attack::Slow => calls("/wave.echo.v1.Echo/Unary", authority, |stream| {
                data(stream, &[&prefix(1 << 20)[..], &[1; 500]].concat(), false)
            }),
        };
        let connect = |from| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::from((from, 0)).into())?;
            socket.connect(&address.into())?;
            let mut socket = TcpStream::from(socket);
            // A server without room for the connection closes it.
            let _ = socket.write_all(&first);
            Ok(socket)
        };
        // The address of the good client comes first.
        let from = (1..=addresses).map(|last| Ipv4Addr::new(127, 0, 0, last));
        from.flat_map(|from| std::iter::repeat_n(from, connections)).map(connect).collect()
    }
}

/// A client's connection preface and settings.
pub fn greeting() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat()
}

fn calls(path: &str, authority: &str, body: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let mut bytes = greeting();
    for stream in (0..STREAMS).map(|at| 2 * at + 1) {
        bytes.extend(headers(stream, path, authority));
        bytes.extend(body(stream));
    }
    bytes
}

/// A frame with a request's headers, none of them indexed or compressed (RFC 7541, 6.2.2).
fn headers(stream: u32, path: &str, authority: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            // Below 127, a length is one byte.
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    const END_HEADERS: u8 = 4;
    frame(1, END_HEADERS, stream, &block)
}

fn data(stream: u32, bytes: &[u8], is_end: bool) -> Vec<u8> {
    frame(0, u8::from(is_end), stream, bytes)
}

/// gRPC's prefix of a message of `bytes` bytes.
fn prefix(bytes: usize) -> [u8; 5] {
    let [a, b, c, d] = (bytes as u32).to_be_bytes();
    [0, a, b, c, d]
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
