//! The agent's end of a stream of the kernel's, and the connection whose bytes go through it.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::set_socket_linger;
use serde::{Deserialize, Serialize};
use wave_links::LentPayload;
use wave_tcp::context::{FILL_MAX, Filled, Progress, Tail, Update};
use wave_tcp::control::HeldFlow;
use wave_tcp::datapath::Ring;

/// Memory that each direction of a connection has at least, in bytes, as far as the ring has it. The agent provides what the
/// program has not.
const MEMORY_BYTES: u32 = 64 << 10;
/// Most bytes that are moved in one direction before another connection has its turn.
const TURN_BYTES: u64 = 256 << 10;

/// A connection that no process serves any more.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) held: HeldFlow,
    /// The agent's end, once a process has connected the other one.
    pub(crate) stream: Option<TcpStream>,
    /// A process has connected the other end, perhaps long ago.
    pub(crate) has_begun: bool,
    /// The end of the peer's stream was passed on.
    has_shut: bool,
    /// What was last reported to the stack: positions read and written, memory, and the stream's end.
    reported: (u64, u64, Filled, bool),
}

/// What became of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It goes on.
    Open,
    /// Both streams have ended.
    Ended,
    /// The program has reset it.
    Reset,
}

/// A relay, handed over with its stream.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptRelay {
    held: HeldFlow,
    pub(crate) has_stream: bool,
    has_begun: bool,
    has_shut: bool,
}

impl Relay {
    pub(crate) fn kept(&self) -> KeptRelay {
        let (held, has_stream) = (self.held, self.stream.is_some());
        KeptRelay { held, has_stream, has_begun: self.has_begun, has_shut: self.has_shut }
    }

    pub(crate) fn restored(kept: KeptRelay, stream: Option<OwnedFd>) -> Relay {
        let (has_begun, has_shut) = (kept.has_begun, kept.has_shut);
        Relay { stream: stream.map(TcpStream::from), has_begun, has_shut, ..Relay::new(kept.held) }
    }

    pub(crate) fn new(held: HeldFlow) -> Relay {
        let reported = (held.read, held.written, held.filled, held.has_ended);
        Relay { held, stream: None, has_begun: false, has_shut: false, reported }
    }

    /// Begins to use a stream. If the agent is killed, the program gets ECONNRESET: a clean end would truncate what it receives.
    pub(crate) fn begin(&mut self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        set_socket_linger(&stream, Some(std::time::Duration::ZERO))?;
        self.stream = Some(stream);
        self.has_begun = true;
        Ok(())
    }

    /// Adds the agent's own memory to what the program has lent, once half of that is used: a ring wraps around only when it has memory
    /// everywhere.
    pub(crate) fn fill(&mut self, payload: &mut LentPayload) {
        let held = &mut self.held;
        let fill = |payload: &mut LentPayload, ring: Ring, has: u32, used: u64| {
            let wants = if has < MEMORY_BYTES {
                MEMORY_BYTES
            } else {
                has.saturating_add(has.min(FILL_MAX))
            };
            let more = wants.min(ring.bytes).saturating_sub(has);
            let is_due = has < MEMORY_BYTES || 2 * used > u64::from(has);
            match is_due && more > 0 && payload.populate(ring.offset + u64::from(has), more).is_ok()
            {
                true => has + more,
                false => has,
            }
        };
        let [receive, send] = held.rings;
        held.filled = Filled {
            receive: fill(payload, receive, held.filled.receive, held.received),
            send: fill(payload, send, held.filled.send, held.written),
        };
    }

    /// The connection's streams have moved.
    pub(crate) fn progress(&mut self, progress: &Progress) {
        let held = &mut self.held;
        let limit = held.read + u64::from(held.rings[0].bytes);
        held.received = held.received.max(progress.received.min(limit));
        held.acknowledged = held.acknowledged.max(progress.acknowledged.min(held.written));
        held.has_peer_ended |= progress.is_finished && progress.received == held.received;
    }

    /// Moves bytes in both directions.
    pub(crate) fn turn(&mut self, payload: &LentPayload) -> Turn {
        if self.stream.is_none() {
            return Turn::Open;
        }
        if self.pass_in(payload).is_err() || self.pass_out(payload).is_err() {
            return Turn::Reset;
        }
        match self.has_shut && self.held.has_ended {
            true => Turn::Ended,
            false => Turn::Open,
        }
    }

    /// From the peer to the program.
    fn pass_in(&mut self, payload: &LentPayload) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let held = &mut self.held;
        let end = held.received.min(held.read + TURN_BYTES);
        let mut is_full = false;
        while held.read < end && !is_full {
            for (at, bytes) in held.rings[0].parts(held.read, (end - held.read) as u32) {
                if bytes == 0 {
                    break;
                }
                let part = payload.part(at, bytes as usize).map_err(io::Error::other)?;
                match part.drain_to(stream) {
                    Ok(count) => {
                        held.read += count as u64;
                        if count < bytes as usize {
                            is_full = true;
                            break;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        is_full = true;
                        break;
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => break,
                    Err(error) => return Err(error),
                }
            }
        }
        if held.has_peer_ended && held.read == held.received && !self.has_shut {
            self.has_shut = true;
            stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// From the program to the peer.
    fn pass_out(&mut self, payload: &LentPayload) -> io::Result<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let held = &mut self.held;
        let ring = held.rings[1];
        let mut left = TURN_BYTES;
        while !held.has_ended && left > 0 {
            let limit = Ring::limit(ring.bytes, held.acknowledged, held.filled.send);
            let room = limit.saturating_sub(held.written).min(left) as u32;
            if room == 0 {
                break;
            }
            let [(at, bytes), _] = ring.parts(held.written, room);
            let part = payload.part(at, bytes as usize).map_err(io::Error::other)?;
            match part.fill_from(stream) {
                Ok(0) => held.has_ended = true,
                Ok(count) => {
                    held.written += count as u64;
                    left -= count as u64;
                    if count < bytes as usize {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What has not been reported to the stack yet.
    pub(crate) fn update(&mut self) -> Option<Update> {
        let held = &self.held;
        let now = (held.read, held.written, held.filled, held.has_ended);
        if std::mem::replace(&mut self.reported, now) == now {
            return None;
        }
        Some(Update {
            flow: held.flow,
            written: held.written,
            read: held.read,
            is_finished: held.has_ended,
            // The stream has applied Nagle's algorithm, if the program wants it.
            is_eager: true,
            tail: Tail::Whole,
            filled: held.filled,
        })
    }

    /// The events for which it waits.
    pub(crate) fn interest(&self) -> EventFlags {
        let held = &self.held;
        let limit = Ring::limit(held.rings[1].bytes, held.acknowledged, held.filled.send);
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, !held.has_ended && limit > held.written);
        // Bytes or the end wait for room in the stream, for the next turn, or for room in the stack.
        let owes_end = held.has_peer_ended && !self.has_shut;
        flags.set(EventFlags::OUT, held.read < held.received || owes_end);
        flags
    }

    /// Ends the stream. `in_order`: the kernel delivers what it has.
    pub(crate) fn finish(&mut self, in_order: bool) {
        if let Some(stream) = self.stream.take()
            && in_order
        {
            let _ = set_socket_linger(&stream, None);
        }
    }
}
