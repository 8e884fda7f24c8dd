//! The machine's process: its requests to the stack, and the bytes that it writes and reads.

use std::net::{Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_tcp_planted::context::{Filled, Request, Sharing, Tail, Update};
use wave_tcp_planted::datapath::Ring;

use super::super::Oracle;
use super::{CONTEXT, Machine, Socket, byte};

impl Machine {
    /// The receive ring and the send ring of a socket.
    pub(super) fn rings(&self, socket: u32) -> (Ring, Ring) {
        let bytes = self.kind.ring_bytes;
        let ring = |at: u32| Ring { offset: u64::from(at) * u64::from(bytes), bytes };
        (ring(2 * socket), ring(2 * socket + 1))
    }

    pub(super) fn ask(&mut self, now: Nanos, request: Request) {
        self.stack.request(now, CONTEXT, request, self.memory.len() as u64);
    }

    /// A socket whose receive ring starts with a part of its memory filled.
    pub(super) fn fresh(&self) -> Socket {
        let receive = (self.kind.ring_bytes / 4).max(Ring::BYTES_MIN);
        Socket { filled: Filled { receive, send: 0 }, ..Socket::default() }
    }

    pub(super) fn new_socket(&mut self, socket: Socket) -> u32 {
        self.sockets.push(socket);
        self.sockets.len() as u32 - 1
    }

    pub fn listen(&mut self, now: Nanos, port: u16, slots: u32) {
        // Listens on both address families.
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        self.ask(
            now,
            Request::Listen { listener: 1, local, backlog: 8, sharing: Sharing::default() },
        );
        for _ in 0..slots {
            let socket = self.new_socket(self.fresh());
            let filled = self.sockets[socket as usize].filled.receive;
            let (receive, send) = self.rings(socket);
            self.ask(now, Request::Slot { listener: 1, socket, receive, send, filled });
        }
    }

    pub fn connect(&mut self, now: Nanos, local_port: u16, remote: SocketAddr) {
        let ends = (local_port, remote.port());
        let socket = self.new_socket(Socket { ends, ..self.fresh() });
        let filled = self.sockets[socket as usize].filled.receive;
        let (receive, send) = self.rings(socket);
        self.ask(
            now,
            Request::Connect {
                socket,
                remote,
                local_port,
                mss_max: u16::MAX,
                receive,
                send,
                filled,
            },
        );
    }

    /// Free room in the send ring.
    pub fn room(&self, at: usize) -> u64 {
        let socket = &self.sockets[at];
        u64::from(self.kind.ring_bytes) - (socket.wrote - socket.acknowledged)
    }

    /// Writes `bytes` bytes; there must be room for them.
    pub fn write(&mut self, at: usize, bytes: u64) {
        let (_, ring) = self.rings(at as u32);
        let socket = &mut self.sockets[at];
        let mut position = socket.wrote;
        for (offset, len) in ring.parts(position, bytes as u32) {
            for place in &mut self.memory[offset as usize..][..len as usize] {
                *place = byte(self.kind.side, socket.ends, position);
                position += 1;
            }
        }
        socket.wrote = position;
    }

    /// Reads at most `most` bytes, and compares them with what the peer wrote.
    pub fn read(&mut self, at: usize, most: u64) {
        let (ring, _) = self.rings(at as u32);
        let socket = &mut self.sockets[at];
        let bytes = (socket.received - socket.read).min(most);
        let mut position = socket.read;
        let peer = 3 - self.kind.side;
        for (offset, len) in ring.parts(position, bytes as u32) {
            for read in &self.memory[offset as usize..][..len as usize] {
                let written = byte(peer, socket.ends, position);
                if *read != written && self.broken.is_none() {
                    let what =
                        format!("read {read} at position {position}, but {written} was written");
                    self.broken = Some((Oracle::Bytes, what));
                }
                position += 1;
            }
        }
        socket.read = position;
    }

    pub fn report_progress(&mut self, now: Nanos, at: usize) {
        let ring_bytes = self.kind.ring_bytes;
        let Socket { flow, wrote, received, filled, .. } = &mut self.sockets[at];
        let Some(flow) = *flow else { return };
        // Lends more memory as the stream grows.
        if 2 * *received > filled.receive.into() {
            filled.receive = (2 * filled.receive).min(ring_bytes);
        }
        filled.send = filled.send.max((*wrote).min(ring_bytes.into()) as u32);
        let Socket { wrote: written, read, is_finished, is_eager, filled, .. } = self.sockets[at];
        let update =
            Update { flow, written, read, is_finished, is_eager, tail: Tail::Whole, filled };
        self.ask(now, Request::Update(update));
    }

    /// Closes a socket. Resets the connection if bytes are unread or still to come.
    pub fn close(&mut self, now: Nanos, at: usize) {
        self.sockets[at].is_finished = true;
        self.report_progress(now, at);
        let socket = &mut self.sockets[at];
        socket.is_closed = true;
        socket.may_reset |= !(socket.peer_is_finished && socket.read == socket.received);
        if let Some(flow) = socket.flow {
            self.ask(now, Request::Close { flow });
        }
    }

    pub fn abort(&mut self, now: Nanos, at: usize) {
        let socket = &mut self.sockets[at];
        socket.is_closed = true;
        socket.may_reset = true;
        if let Some(flow) = socket.flow {
            self.ask(now, Request::Abort { flow });
        }
    }
}
