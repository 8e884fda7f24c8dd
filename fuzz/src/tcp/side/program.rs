//! The program of a side: its requests to the stack, and the bytes that it writes and reads.

use std::net::{Ipv6Addr, SocketAddr};

use wave_core::clock::Nanos;
use wave_tcp_planted::context::Request;
use wave_tcp_testbed_planted::{byte, first_wrong};

use super::super::Oracle;
use super::{Ends, Side};

/// What a program intends with one of its sockets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Program {
    pub ends: Ends,
    /// The program gave up the connection while bytes were still unread or to come: it may send a reset.
    pub may_reset: bool,
    /// Time of the program's next action.
    pub acts_at: Option<Nanos>,
    /// The program reads nothing before this time.
    pub paused_until: Nanos,
    /// Time at which the program gives up the connection, if ever.
    pub gives_up_at: Option<Nanos>,
}

impl Program {
    /// Number of the pattern's byte at position 0 of a host's stream.
    fn origin(&self, host: u8) -> u64 {
        let port = u64::from(self.ends.0.max(self.ends.1));
        port * 977 + u64::from(host) * 131
    }
}

impl Side {
    pub fn listen(&mut self, now: Nanos, port: u16, slots: u32) {
        // Listens on both address families.
        self.machine.listen_at(now, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), slots);
        self.programs.resize(slots as usize, Program::default());
    }

    pub fn connect(&mut self, now: Nanos, local_port: u16, remote: SocketAddr) {
        self.machine.connect_from(now, local_port, remote);
        let ends = (local_port, remote.port());
        self.programs.push(Program { ends, ..Program::default() });
    }

    /// Writes `bytes` bytes; there must be room for them.
    pub fn write(&mut self, at: u32, bytes: u64) {
        let origin = self.programs[at as usize].origin(self.kind.setup.host);
        let from = origin + self.machine.sockets[&at].wrote.len() as u64;
        let bytes: Vec<u8> = (from..from + bytes).map(byte).collect();
        self.machine.write(at, &bytes);
    }

    /// Reads at most `most` bytes, and compares them with what the peer wrote.
    pub fn read(&mut self, at: u32, most: u64) {
        let origin = self.programs[at as usize].origin(3 - self.kind.setup.host);
        let from = origin + self.machine.sockets[&at].read.len() as u64;
        let bytes = self.machine.read(at, most as usize);
        if let Some((place, written)) = first_wrong(from, bytes) {
            let (read, position) = (bytes[(place - from) as usize], place - origin);
            let what = format!("read {read} at position {position}, but {written} was written");
            self.breaks(Oracle::Bytes, what);
        }
    }

    pub fn report_progress(&mut self, now: Nanos, at: u32) {
        self.lend(at);
        self.machine.report_progress(now, at);
    }

    /// Lends more memory as the stream grows.
    fn lend(&mut self, at: u32) {
        let ring_bytes = self.kind.setup.ring_bytes;
        let socket = self.machine.socket(at);
        if 2 * socket.received > socket.filled.receive.into() {
            socket.filled.receive = (2 * socket.filled.receive).min(ring_bytes);
        }
        let wrote = socket.wrote.len().min(ring_bytes as usize) as u32;
        socket.filled.send = socket.filled.send.max(wrote);
    }

    /// Closes a socket. Resets the connection if bytes are unread or still to come.
    pub fn close(&mut self, now: Nanos, at: u32) {
        self.lend(at);
        let socket = &self.machine.sockets[&at];
        let has_all = socket.peer_is_finished && socket.unread() == 0;
        self.programs[at as usize].may_reset |= !has_all;
        self.machine.close(now, at);
    }

    pub fn abort(&mut self, now: Nanos, at: u32) {
        let socket = self.machine.socket(at);
        socket.is_closed = true;
        self.programs[at as usize].may_reset = true;
        if let Some(flow) = socket.flow {
            self.machine.ask(now, Request::Abort { flow });
        }
    }
}
