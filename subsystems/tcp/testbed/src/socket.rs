//! A program's view of one connection.

use std::net::SocketAddr;

use wave_tcp::context::{Filled, Progress, Reason, Request, Tail, Update};
use wave_tcp::datapath::{FlowId, Ring};

use crate::memory::PayloadBytes;

#[derive(Clone, Debug)]
pub struct Socket {
    /// Rings of received bytes, and of bytes to send.
    pub receive: Ring,
    pub send: Ring,
    /// Parts of the rings that have memory.
    pub filled: Filled,
    pub flow: Option<FlowId>,
    /// All bytes that the program has written, and those that it has read.
    pub wrote: Vec<u8>,
    pub read: Vec<u8>,
    /// Positions as the program was last notified.
    pub received: u64,
    pub acknowledged: u64,
    pub peer_is_finished: bool,
    pub is_finished: bool,
    pub is_eager: bool,
    pub is_closed: bool,
    pub failed: Option<Reason>,
    pub is_over: bool,
}

impl Socket {
    pub fn new([receive, send]: [Ring; 2], filled: Filled) -> Socket {
        Socket {
            receive,
            send,
            filled,
            flow: None,
            wrote: Vec::new(),
            read: Vec::new(),
            received: 0,
            acknowledged: 0,
            peer_is_finished: false,
            is_finished: false,
            is_eager: false,
            is_closed: false,
            failed: None,
            is_over: false,
        }
    }

    /// Bytes that the program may write.
    pub fn room(&self) -> u64 {
        u64::from(self.send.bytes) - (self.wrote.len() as u64 - self.acknowledged)
    }

    /// Bytes that the program may read.
    pub fn unread(&self) -> u64 {
        self.received - self.read.len() as u64
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write(&mut self, memory: &mut PayloadBytes, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(self.room() as usize)];
        memory.put(self.send, self.wrote.len() as u64, bytes);
        self.wrote.extend_from_slice(bytes);
        bytes.len()
    }

    /// Reads at most `most` bytes, and returns them.
    pub fn read(&mut self, memory: &PayloadBytes, most: usize) -> &[u8] {
        let from = self.read.len();
        let bytes = most.min(self.unread() as usize);
        for part in memory.parts(self.receive, from as u64, bytes as u32) {
            self.read.extend_from_slice(part);
        }
        &self.read[from..]
    }

    /// The program's report of its progress.
    pub fn update(&self) -> Option<Update> {
        Some(Update {
            written: self.wrote.len() as u64,
            read: self.read.len() as u64,
            is_finished: self.is_finished,
            is_eager: self.is_eager,
            filled: self.filled,
            ..update(self.flow?)
        })
    }

    /// Whether a notice goes back behind an earlier one, or follows the last.
    pub fn goes_back(&self, progress: &Progress) -> bool {
        progress.received < self.received
            || progress.acknowledged < self.acknowledged
            || self.is_over
    }

    pub fn on_progress(&mut self, progress: &Progress) {
        self.received = progress.received;
        self.acknowledged = progress.acknowledged;
        self.peer_is_finished |= progress.is_finished;
    }
}

/// The report of a program that has neither written nor read.
pub fn update(flow: FlowId) -> Update {
    Update {
        flow,
        written: 0,
        read: 0,
        is_finished: false,
        is_eager: false,
        tail: Tail::Whole,
        filled: Filled::default(),
    }
}

/// The request for a connection whose receive ring has memory for its first `filled` bytes.
pub fn connect(
    socket: u32,
    [receive, send]: [Ring; 2],
    filled: u32,
    local_port: u16,
    remote: SocketAddr,
) -> Request {
    let mss_max = u16::MAX;
    Request::Connect { socket, remote, local_port, mss_max, receive, send, filled }
}
