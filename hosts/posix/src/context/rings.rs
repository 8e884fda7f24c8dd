//! The rings of a context's sockets, and their memory.

use std::io;
use std::net::SocketAddr;

use wave_tcp::context::Request;
use wave_tcp::datapath::Ring;

use super::{Context, PLACE_BITS, Place};
use crate::agent_window::Queues;
use crate::socket::{Phase, Socket};

impl<Q: Queues> Context<Q> {
    /// From now on, new receive rings are populated completely, so that peers see receive windows of the full ring size.
    pub fn fill_at_once(&mut self) {
        self.first_fill = u32::MAX;
    }

    /// Frees a socket that has ended and has no handle.
    pub(super) fn release(&mut self, name: u32) {
        let at = name & ((1 << PLACE_BITS) - 1);
        let place = &mut self.places[at as usize];
        let Some(socket) = place.socket.take() else { return };
        place.life = place.life.wrapping_add(1) & ((1 << (32 - PLACE_BITS)) - 1);
        self.free.push(at);
        for ring in [socket.receiving.ring, socket.sending.ring] {
            self.buddy.free(ring.offset, ring.bytes);
        }
        self.wants_slots |= !self.listeners.is_empty();
    }

    /// Adds a socket with rings; `None` if there is no memory for them.
    pub(super) fn insert(
        &mut self,
        phase: Phase,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<u32> {
        let [receive, send] = self.ring_bytes;
        let at = match self.free.last() {
            Some(at) => *at,
            None if self.places.len() < 1 << PLACE_BITS => self.places.len() as u32,
            None => return None,
        };
        let offset = self.buddy.allocate(receive)?;
        let receive = Ring { offset, bytes: receive };
        let Some(offset) = self.buddy.allocate(send) else {
            self.buddy.free(receive.offset, receive.bytes);
            return None;
        };
        let send = Ring { offset, bytes: send };
        let filled = self.first_fill.min(receive.bytes);
        if self.queues.populate(receive.offset, filled).is_err() {
            self.buddy.free(receive.offset, receive.bytes);
            self.buddy.free(send.offset, send.bytes);
            return None;
        }
        if self.free.pop().is_none() {
            self.places.push(Place::default());
        }
        let place = &mut self.places[at as usize];
        let socket = Socket::new(phase, local, remote, [receive, send]);
        place.socket.insert(socket).record_request(filled);
        Some(place.life << PLACE_BITS | at)
    }

    /// Populates a receive ring ahead of the incoming bytes. If that fails and the populated part is full, the connection could only
    /// stall, and is reset. A connection that is not yet accepted keeps the memory of its slot, so that it fits a slot of another process.
    pub(super) fn fill_ahead(&mut self, name: u32) {
        let socket = self.socket(name);
        let grows = socket.is_accepted && !socket.is_closed;
        let Some((at, more)) = socket.receiving.wanted().filter(|_| grows) else {
            return;
        };
        match self.queues.populate(at, more) {
            Ok(()) => {
                self.socket(name).receiving.filled += more;
                self.mark_dirty(name);
                self.has_urgent = true;
            }
            Err(_) => {
                let socket = self.socket(name);
                let is_stuck = socket.receiving.received >= socket.receiving.filled.into();
                if let Some(flow) = socket.flow().filter(|_| is_stuck) {
                    self.outbox.push_back(Request::Abort { flow });
                    self.has_urgent = true;
                }
            }
        }
    }

    /// Populates a send ring for the next `bytes` bytes to be written, for which it has room. Returns for how many it has memory.
    ///
    /// # Errors
    /// There is memory for none of them.
    pub fn fill_for(&mut self, name: u32, bytes: u64) -> io::Result<u64> {
        let sending = &self.socket(name).sending;
        let Some((at, more)) = sending.wanted(bytes) else { return Ok(bytes) };
        let left = u64::from(sending.filled) - sending.written;
        match self.queues.populate(at, more) {
            Ok(()) => self.socket(name).sending.filled += more,
            Err(error) if left == 0 => return Err(error),
            Err(_) => return Ok(left),
        }
        Ok(bytes)
    }
}
