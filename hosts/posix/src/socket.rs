//! The program's state of a connection: the positions of both streams, and the positions last told to the agent. No I/O.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use wave_tcp::context::{FILL_MAX, Filled, Progress, SocketOptions, Tail, TcpInfo, Update};
use wave_tcp::datapath::{FlowId, Ring};

use crate::agent_window::Fault;

/// Bytes of a new ring that are populated: enough for a peer's initial window (RFC 6928).
pub const FIRST_FILL: u32 = 16 << 10;

/// MSS before one is agreed with the peer (RFC 9293, MUST-15).
const MSS_DEFAULT: u16 = 536;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// A slot for a connection of this listener.
    Slot(u32),
    /// Requested.
    Connecting,
    /// Established.
    Open(FlowId),
    /// Ended: the agent no longer uses the rings.
    Ended,
    /// Another process has taken it over. The agent no longer uses the rings.
    Taken,
    /// It has become a stream of the kernel's. The agent still uses the rings.
    Demoted,
}

impl Phase {
    /// The phase after the agent has ended its part. What arrived before a connection was taken away is another process's to read.
    pub(crate) fn after_end(self) -> Phase {
        match self {
            Phase::Taken | Phase::Demoted => Phase::Taken,
            Phase::Slot(_) | Phase::Connecting | Phase::Open(_) | Phase::Ended => Phase::Ended,
        }
    }
}

/// A connection, or a slot for one.
#[derive(Debug)]
pub struct Socket {
    /// The phase of the connection.
    pub phase: Phase,
    /// The reason for its end, as errno. Bytes received before it are still read.
    pub error: Option<i32>,
    /// A soft error, after which the connection continues, as errno.
    pub soft_error: Option<i32>,
    /// The socket options.
    pub options: SocketOptions,
    /// The agent's last answer about the connection's state.
    pub tcp_info: Option<TcpInfo>,
    /// The program no longer has a handle.
    pub is_closed: bool,
    /// An update is still to be reported to the agent.
    pub is_dirty: bool,
    /// News is still to be reported to the program.
    pub is_changed: bool,
    /// The program has, or had, a handle.
    pub is_accepted: bool,
    /// Another process may have a descriptor of it.
    pub is_shared: bool,
    /// Local address.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Most payload bytes of a segment, as agreed with the peer; RFC 9293's 536 before that.
    pub mss: u16,
    /// The peer's stream.
    pub receiving: Receiving,
    /// The program's stream.
    pub sending: Sending,
}

/// The state of a connection with which another process can take it over.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint {
    pub(crate) flow: FlowId,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    received: u64,
    read: u64,
    written: u64,
    acknowledged: u64,
    is_eager: bool,
}

/// Number of words of a [`Checkpoint`].
pub const CHECKPOINT_WORDS: usize = 12;

impl Checkpoint {
    /// Encodes it as words, for another process.
    pub fn to_words(&self) -> [u64; CHECKPOINT_WORDS] {
        let Checkpoint { flow, local, remote, received, read, written, acknowledged, is_eager } =
            *self;
        let [a, b, c] = address_words(local);
        let [d, e, f] = address_words(remote);
        let flow = flow.to_word();
        [flow, a, b, c, d, e, f, received, read, written, acknowledged, is_eager.into()]
    }

    /// Decodes words that another process has written. `None` if no connection that can be taken over has such positions.
    pub fn from_words(words: &[u64; CHECKPOINT_WORDS]) -> Option<Checkpoint> {
        let [flow, a, b, c, d, e, f, received, read, written, acknowledged, is_eager] = *words;
        let most = u64::from(FILL_MAX);
        let can_be = read <= received && acknowledged <= written && received.max(written) <= most;
        can_be.then_some(Checkpoint {
            flow: FlowId::from_word(flow),
            local: address([a, b, c]),
            remote: address([d, e, f]),
            received,
            read,
            written,
            acknowledged,
            is_eager: is_eager != 0,
        })
    }
}

/// Encodes an address in two words, and the port in a third.
pub fn address_words(address: SocketAddr) -> [u64; 3] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64, address.port().into()]
}

/// Decodes the words of [`address_words`].
pub fn address([high, low, port]: [u64; 3]) -> SocketAddr {
    let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
    SocketAddr::new(ip.to_canonical(), port as u16)
}

/// The receiving direction. Positions count bytes of the stream from 0.
#[derive(Debug)]
pub struct Receiving {
    /// The receive ring.
    pub ring: Ring,
    /// Position up to which bytes have arrived.
    pub received: u64,
    /// Position up to which the program has read.
    pub read: u64,
    /// Value of `read` last told to the agent. At most `read`.
    reported: u64,
    /// Bytes of the ring that are populated, from its start.
    pub filled: u32,
    /// Value of `filled` last told to the agent.
    reported_filled: u32,
    /// The stream ends at `received`.
    is_finished: bool,
    /// The program reads no more (SHUT_RD).
    pub is_shut: bool,
}

/// The sending direction.
#[derive(Debug)]
pub struct Sending {
    /// The send ring.
    pub ring: Ring,
    /// Position up to which the program has written.
    pub written: u64,
    /// Value of `written` last told to the agent. At most `written`.
    reported: u64,
    /// Bytes of the ring that are populated, from its start.
    pub filled: u32,
    /// Value of `filled` last told to the agent.
    reported_filled: u32,
    /// Position up to which the peer has acknowledged: that part of the ring is free. At most `reported`.
    acknowledged: u64,
    /// The stream ends at `written`.
    pub is_finished: bool,
    /// TCP_NODELAY.
    pub is_eager: bool,
    /// The treatment of the last bytes before `written` if they do not fill a segment.
    pub tail: Tail,
}

impl Socket {
    /// A connection that is not established yet, with unpopulated rings.
    pub fn new(phase: Phase, local: SocketAddr, remote: SocketAddr, rings: [Ring; 2]) -> Socket {
        let [receive, send] = rings;
        Socket {
            phase,
            error: None,
            soft_error: None,
            options: SocketOptions::default(),
            tcp_info: None,
            is_closed: false,
            is_dirty: false,
            is_changed: false,
            is_accepted: false,
            is_shared: false,
            local,
            remote,
            mss: MSS_DEFAULT,
            receiving: Receiving {
                ring: receive,
                received: 0,
                read: 0,
                reported: 0,
                filled: 0,
                reported_filled: 0,
                is_finished: false,
                is_shut: false,
            },
            sending: Sending {
                ring: send,
                written: 0,
                reported: 0,
                filled: 0,
                reported_filled: 0,
                acknowledged: 0,
                is_finished: false,
                is_eager: false,
                tail: Tail::Whole,
            },
        }
    }

    /// See [`Context::checkpoint`](crate::Context::checkpoint).
    pub(crate) fn checkpoint(&self) -> Option<Checkpoint> {
        let (receiving, sending) = (&self.receiving, &self.sending);
        let fits = receiving.filled <= FILL_MAX && sending.filled <= FILL_MAX;
        let is_shut = receiving.is_shut || sending.is_finished;
        let flow = self.flow().filter(|_| fits && !is_shut)?;
        Some(Checkpoint {
            flow,
            local: self.local,
            remote: self.remote,
            received: receiving.received,
            read: receiving.read,
            written: sending.written,
            acknowledged: sending.acknowledged,
            is_eager: sending.is_eager,
        })
    }

    /// Continues from another process's state. Both rings have `filled` bytes of memory, of which the agent knows.
    pub(crate) fn resume(&mut self, from: &Checkpoint, filled: u32) {
        let (receiving, sending) = (&mut self.receiving, &mut self.sending);
        (receiving.filled, receiving.reported_filled) = (filled, filled);
        (receiving.received, receiving.read, receiving.reported) =
            (from.received, from.read, from.read);
        (sending.filled, sending.reported_filled) = (filled, filled);
        (sending.written, sending.reported) = (from.written, from.written);
        sending.acknowledged = from.acknowledged;
        sending.is_eager = from.is_eager;
    }

    /// The flow, while the connection is open.
    pub fn flow(&self) -> Option<FlowId> {
        match self.phase {
            Phase::Open(flow) => Some(flow),
            _ => None,
        }
    }

    /// The next update to report to the agent. `None` if there is no flow. Memory is reported in steps: see [`Socket::record_update`].
    pub fn update(&self) -> Option<Update> {
        let (receiving, sending) = (&self.receiving, &self.sending);
        let filled = Filled {
            receive: receiving.filled.min(receiving.reported_filled + FILL_MAX),
            send: sending.filled.min(sending.reported_filled + FILL_MAX),
        };
        let written = match filled.send < sending.filled {
            true => sending.written.min(filled.send.into()),
            false => sending.written,
        };
        Some(Update {
            flow: self.flow()?,
            written,
            read: receiving.read,
            is_finished: sending.is_finished && written == sending.written,
            is_eager: sending.is_eager,
            tail: sending.tail,
            filled,
        })
    }

    /// Records that an update was reported to the agent. Returns whether it included all memory.
    pub fn record_update(&mut self, update: &Update) -> bool {
        let (receiving, sending) = (&mut self.receiving, &mut self.sending);
        receiving.reported = update.read;
        sending.reported = update.written;
        (receiving.reported_filled, sending.reported_filled) =
            (update.filled.receive, update.filled.send);
        (receiving.reported_filled, sending.reported_filled) == (receiving.filled, sending.filled)
    }

    /// Records that the connection was requested, with `filled` populated bytes in the receive ring.
    pub fn record_request(&mut self, filled: u32) {
        self.receiving.filled = filled;
        self.receiving.reported_filled = filled;
    }

    /// Processes a progress event from the agent. Positions that are already known are ignored.
    ///
    /// # Errors
    /// The event is impossible: more bytes than the ring holds, bytes after the end of the stream, or an acknowledgement of bytes never
    /// sent.
    pub fn progress(&mut self, progress: &Progress) -> Result<(), Fault> {
        let Progress { received, acknowledged, is_finished, .. } = *progress;
        let (receiving, sending) = (&mut self.receiving, &mut self.sending);
        let is_beyond = received > receiving.received && receiving.is_finished;
        let limit = Ring::limit(receiving.ring.bytes, receiving.read, receiving.reported_filled);
        if received > limit || is_beyond || acknowledged > sending.reported {
            return Err(Fault);
        }
        receiving.received = receiving.received.max(received);
        receiving.is_finished |= is_finished && received == receiving.received;
        sending.acknowledged = sending.acknowledged.max(acknowledged);
        Ok(())
    }
}

impl Receiving {
    /// The next part of the ring to populate (offset and bytes), if any: as much again as it has, once half of that is used. So the
    /// receive window grows with the stream.
    pub fn wanted(&self) -> Option<(u64, u32)> {
        let wants = self.filled < self.ring.bytes && 2 * self.received > self.filled.into();
        let more = self.filled.clamp(1, FILL_MAX).min(self.ring.bytes - self.filled);
        wants.then_some((self.ring.offset + u64::from(self.filled), more))
    }

    /// Bytes that can be read.
    pub fn available(&self) -> u64 {
        self.received - self.read
    }

    /// Bytes that the peer may still send, as far as the agent knows.
    pub fn window(&self) -> u64 {
        (self.reported + u64::from(self.ring.bytes)).saturating_sub(self.received)
    }

    /// Whether the peer's stream ends at `received`.
    pub fn has_end(&self) -> bool {
        self.is_finished
    }

    /// Whether the program has read up to the end of the stream.
    pub fn is_at_end(&self) -> bool {
        self.is_finished && self.available() == 0
    }

    /// Whether the program has read bytes of which the agent does not know.
    pub fn has_unreported(&self) -> bool {
        self.reported < self.read
    }

    /// Called after bytes were read. Returns whether the agent should be told now: a quarter of the ring has become free without its
    /// knowledge, or a sixteenth if the agent knows of less than a quarter of free space.
    pub fn advance(&mut self, bytes: u64) -> bool {
        self.read += bytes;
        let quarter = u64::from(self.ring.bytes / 4);
        let enough = if self.window() < quarter { quarter / 4 } else { quarter };
        !self.is_finished && self.read - self.reported >= enough
    }
}

impl Sending {
    /// The part of the ring to populate (offset and bytes) before the next `bytes` are written, if any: at least as much again as it has.
    pub fn wanted(&self, bytes: u64) -> Option<(u64, u32)> {
        let end = (self.written + bytes).min(self.ring.bytes.into()) as u32;
        let least = self.filled.saturating_mul(2).max(FIRST_FILL);
        let more = end.max(least).min(self.ring.bytes) - self.filled;
        (end > self.filled).then_some((self.ring.offset + u64::from(self.filled), more))
    }

    /// Bytes that can be written.
    pub fn room(&self) -> u64 {
        u64::from(self.ring.bytes) - (self.written - self.acknowledged)
    }

    /// Called after bytes were written. Returns whether the agent should be told now: it does not know of a quarter of the ring.
    pub fn advance(&mut self, bytes: u64) -> bool {
        self.written += bytes;
        self.written - self.reported >= u64::from(self.ring.bytes / 4)
    }

    /// Written bytes of which the agent does not know.
    pub fn unreported(&self) -> u64 {
        self.written - self.reported
    }

    /// Written bytes that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.written - self.acknowledged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: Ring = Ring { offset: 0, bytes: 4096 };

    fn open() -> Socket {
        let nowhere = "0.0.0.0:0".parse().unwrap();
        let flow = FlowId { index: 1, generation: 1 };
        let mut socket = Socket::new(Phase::Open(flow), nowhere, nowhere, [RING; 2]);
        socket.record_request(RING.bytes);
        socket
    }

    fn progress(received: u64, acknowledged: u64, is_finished: bool) -> Progress {
        Progress { socket: 0, received, acknowledged, is_finished }
    }

    #[test]
    fn stale_progress_is_ignored_and_impossible_progress_is_a_fault() {
        let mut socket = open();
        assert!(!socket.sending.advance(100));
        assert_eq!(socket.progress(&progress(0, 1, false)), Err(Fault));
        let update = socket.update().unwrap();
        assert_eq!(update.written, 100);
        socket.record_update(&update);
        socket.progress(&progress(4096, 100, false)).unwrap();
        socket.progress(&progress(10, 10, false)).unwrap();
        assert_eq!((socket.receiving.available(), socket.sending.room()), (4096, 4096));
        assert_eq!(socket.progress(&progress(4097, 100, false)), Err(Fault));
        socket.receiving.advance(4096);
        socket.progress(&progress(4097, 100, true)).unwrap();
        assert!(!socket.receiving.is_at_end());
        socket.receiving.advance(1);
        assert!(socket.receiving.is_at_end());
        assert_eq!(socket.progress(&progress(4098, 100, false)), Err(Fault));
    }

    #[test]
    fn rings_are_populated_on_demand_and_reported_to_the_agent_in_steps() {
        let mut socket = open();
        socket.receiving.ring.bytes = 1 << 20;
        socket.sending.ring = Ring { offset: 1 << 20, bytes: 1 << 20 };
        socket.record_request(FIRST_FILL);
        let mut steps = Vec::new();
        for received in (0..=1 << 20).step_by(4096) {
            socket.receiving.received = received;
            while let Some((at, more)) = socket.receiving.wanted() {
                assert_eq!(at, u64::from(socket.receiving.filled));
                socket.receiving.filled += more;
                steps.push(socket.receiving.filled >> 10);
            }
        }
        assert_eq!(steps, [32, 64, 128, 256, 512, 768, 1024]);

        assert_eq!(socket.sending.wanted(1), Some((1 << 20, FIRST_FILL)));
        socket.sending.filled = FIRST_FILL;
        assert_eq!(socket.sending.wanted(u64::from(FIRST_FILL)), None);
        assert_eq!(socket.sending.wanted(1 << 20), Some(((1 << 20) + (16 << 10), 1008 << 10)));
        socket.sending.filled = 1 << 20;
        socket.sending.written = 1 << 20;
        socket.sending.is_finished = true;
        assert_eq!(socket.sending.wanted(1), None);
        let mut reported = Vec::new();
        loop {
            let update = socket.update().unwrap();
            reported.push((update.written >> 10, update.filled.receive >> 10, update.is_finished));
            assert!(update.written <= u64::from(update.filled.send));
            if socket.record_update(&update) {
                break;
            }
        }
        assert_eq!(
            reported,
            [(256, 272, false), (512, 528, false), (768, 784, false), (1024, 1024, true)]
        );
    }

    #[test]
    fn reads_are_reported_per_quarter_ring_and_sooner_when_the_window_is_nearly_closed() {
        let mut socket = open();
        socket.progress(&progress(2000, 0, false)).unwrap();
        assert!(!socket.receiving.advance(1023));
        assert!(socket.receiving.advance(1));
        let update = socket.update().unwrap();
        socket.record_update(&update);
        assert!(!socket.receiving.advance(400));
        socket.progress(&progress(5000, 0, false)).unwrap();
        assert!(socket.receiving.advance(1));
        let update = socket.update().unwrap();
        socket.record_update(&update);
        assert!(!socket.receiving.advance(255));
        assert!(socket.receiving.advance(1));
    }
}
