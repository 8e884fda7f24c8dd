//! The contract between a TCP data path and its surroundings (docs/adr/0055).
//!
//! Positions are cumulative: byte 0 of a stream is the first after the SYN, and a FIN follows the last byte. Requests and
//! notices carry the current state, not changes, so they may be repeated or lost.

use alloc::collections::VecDeque;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::capabilities::Capabilities;
use crate::context::{ContextId, Event, Update};
use crate::seq::Seq;
use crate::trace::PointInfo;

/// Limit of outputs of one step of [`Datapath::poll`].
pub const OUTPUTS_PER_STEP: usize = 4;
/// Limit of out-of-order intervals in [`Established`].
pub const INTERVALS_MAX: usize = 4;

/// Settings of a data path and its wire.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Ethernet address of the agent.
    pub mac: [u8; 6],
    /// Largest payload of a super-packet that the wire splits, in bytes; 0 if it splits none.
    pub super_bytes: u32,
    /// Limit of connections.
    pub flows: u32,
    /// Hash key of the table of connections.
    pub key: (u64, u64),
}

/// A counter of a data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Linux's name if /proc/net/snmp or /proc/net/netstat counts the same. A dot separates the name of a group of counters from
    /// the name within it.
    pub name: &'static str,
    /// What is counted.
    pub about: &'static str,
}

/// A connection of one data path. The generation distinguishes it from earlier ones with the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowId {
    /// Index in the table of flows.
    pub index: u32,
    /// Generation of that index.
    pub generation: u32,
}

impl FlowId {
    /// Encodes the flow in one word of an entry.
    pub const fn to_word(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Decodes a flow from a word. Every word decodes, but the flow may not exist.
    pub const fn from_word(word: u64) -> FlowId {
        FlowId { index: word as u32, generation: (word >> 32) as u32 }
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// A copy or a transmission under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A ring of a process's payload memory that holds one direction of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Offset in payload memory, in bytes.
    pub offset: u64,
    /// Length in bytes: a power of two, [`Ring::BYTES_MIN`] to [`Ring::BYTES_MAX`].
    pub bytes: u32,
}

impl Ring {
    /// Shortest ring, in bytes: a page.
    pub const BYTES_MIN: u32 = 1 << 12;
    /// Longest ring, in bytes: half of 1 GiB, the largest scaled window, so that old and new bytes can be told apart.
    pub const BYTES_MAX: u32 = 1 << 29;

    /// Whether the length is valid and the ring is within a payload memory of `memory_bytes`.
    pub fn is_within(self, memory_bytes: u64) -> bool {
        self.bytes.is_power_of_two()
            && (Ring::BYTES_MIN..=Ring::BYTES_MAX).contains(&self.bytes)
            && self.offset.checked_add(self.bytes.into()).is_some_and(|end| end <= memory_bytes)
    }

    /// The position after the last byte for which a ring has room, if all bytes before position `free` are free and the ring's
    /// first `filled` bytes have memory.
    pub const fn limit(bytes: u32, free: u64, filled: u32) -> u64 {
        let end = free + bytes as u64;
        // Bytes without memory are first reached in the first lap.
        if filled < bytes && (filled as u64) < end { filled as u64 } else { end }
    }

    /// The place of stream bytes in payload memory: offset and length of one part, and of a second part if they wrap around the
    /// ring's end. `bytes` is at most the ring's length.
    pub fn parts(self, position: u64, bytes: u32) -> [(u64, u32); 2] {
        let at = position as u32 & (self.bytes - 1);
        let first = bytes.min(self.bytes - at);
        [(self.offset + u64::from(at), first), (self.offset, bytes - first)]
    }
}

/// A received frame.
#[derive(Clone, Debug)]
pub struct Packet<F> {
    /// The frame's bytes, from the Ethernet header.
    pub frame: F,
    /// Whether the TCP checksum need not be verified: the wire has verified it, or the packet never left memory.
    pub checksum_is_good: bool,
    /// Payload bytes of each segment that the wire has coalesced into this packet; 0 for a single segment.
    pub segment_bytes: u16,
}

/// Input for [`Datapath::submit`], which takes from the front of both queues.
#[derive(Debug)]
pub struct Batch<'a, F> {
    /// Frames that wait for the pre stage.
    pub packets: &'a mut VecDeque<Packet<F>>,
    /// Hosts' stream updates, with the context that sent each.
    pub requests: &'a mut VecDeque<(ContextId, Update)>,
}

/// Headers of a segment, starting with Ethernet's.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; Head::BYTES_MAX],
    len: u8,
}

impl Head {
    /// Room for Ethernet with a VLAN tag, IPv6, and TCP with all its options.
    pub const BYTES_MAX: usize = 120;

    /// `len` zero bytes. Panics if `len` is more than [`Head::BYTES_MAX`].
    pub fn zeroed(len: usize) -> Head {
        assert!(len <= Head::BYTES_MAX);
        Head { bytes: [0; Head::BYTES_MAX], len: len as u8 }
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }

    /// The headers' bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The headers' bytes, mutably.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} bytes)", self.len)
    }
}

/// A checksum that the wire completes; its field holds the sum of the pseudo header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Offset in the frame of the first summed byte.
    pub start: u16,
    /// Offset of the checksum field from `start`.
    pub offset: u16,
}

/// The bytes after a segment's headers.
#[derive(Clone, Debug)]
pub enum Payload<F> {
    /// No payload.
    None,
    /// Bytes of a stream, in a host's payload memory.
    Ring {
        /// Index of the process whose memory it is.
        process: u16,
        /// Ring in the process's memory.
        ring: Ring,
        /// Position in the stream of the first byte.
        position: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Bytes of a received frame (for an echo reply).
    Frame(F, Range<usize>),
}

/// A segment to send.
#[derive(Clone, Debug)]
pub struct Segment<F> {
    /// Ticket to complete once the wire has taken the bytes; `None` if completion does not matter.
    pub ticket: Option<Ticket>,
    /// Headers of the segment.
    pub head: Head,
    /// Payload after the headers.
    pub payload: Payload<F>,
    /// Checksum that the wire must complete; `None` if the checksum is complete.
    pub checksum: Option<PartialChecksum>,
    /// Payload bytes of each segment into which the wire must split this super-packet; 0 if it is sent as it is.
    pub segment_bytes: u16,
}

/// Payload to copy to a host's ring.
#[derive(Clone, Debug)]
pub struct Write<F> {
    /// Ticket to complete when the bytes are visible to the host.
    pub ticket: Ticket,
    /// Index of the process whose memory it is.
    pub process: u16,
    /// Ring in the process's memory.
    pub ring: Ring,
    /// Position in the stream of the first byte.
    pub position: u64,
    /// Frame that has the bytes.
    pub frame: F,
    /// Range of the frame's bytes.
    pub bytes: Range<usize>,
}

/// Work that a data path, or a [stack](crate::control::Stack) around one, leaves to its caller. `C` is what only one of them leaves.
#[derive(Clone, Debug)]
pub enum Output<F, C = ToControl<F>> {
    /// Send this segment.
    Send(Segment<F>),
    /// Copy received bytes to a ring, then complete the ticket.
    Write(Write<F>),
    /// Send this context an event. That of a data path is [`Event::Progress`].
    Notify(ContextId, Event),
    /// For the control plane, or by it.
    Control(C),
}

/// A packet for the control plane: it belongs to no established connection, or is more than data and acknowledgements. The flow is
/// given if the packet belongs to one.
pub type ToControl<F> = (Packet<F>, Option<FlowId>);

/// Commands for a flow that only the control plane may give. The first five send a segment in the flow's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send a window probe: one byte beyond the peer's closed window.
    Probe,
    /// Send a keep-alive probe: an empty segment, one sequence number before the next.
    KeepAlive,
    /// Send RFC 5961's challenge ACK: an acknowledgement, even if it says nothing new.
    Challenge,
    /// Send a reset. The flow stays until it is exported.
    Abort,
    /// Like `Abort`, but in answer to a segment of the peer. The reset carries the sequence number that the segment
    /// acknowledges: the peer expects exactly that number, so it accepts the reset at once (RFC 5961, 3.2; RFC 9293, 3.10.7.1).
    Refuse,
    /// Retransmit from the oldest unacknowledged byte, which was lost.
    Retransmit,
    /// Look for losses again: the time of [`Statistics::overdue_at`] has come.
    DetectLoss,
    /// Send a tail-loss probe: a segment to which the peer replies with what it has received (RFC 8985, section 7).
    ProbeTail,
    /// Send bytes that have waited long enough for the host to write more.
    Uncork,
}

impl Command {
    /// The command's bit in a set of commands.
    pub const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Limits of a flow by congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Congestion window, in bytes.
    pub window_bytes: u32,
    /// Pacing rate of data segments in bytes per second; `None` is as fast as the window allows.
    pub bytes_per_second: Option<u64>,
    /// The window was reduced: if both sides agreed on ECN, the next new data carries CWR (RFC 3168, 6.1.2).
    pub has_reduced: bool,
}

/// When acknowledgements echo a congestion mark (ECE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Echo {
    /// After a mark, until the peer signals that it has reduced its window (RFC 3168, 6.1.3).
    UntilReduced,
    /// Exactly if the acknowledged data was marked (DCTCP; RFC 8257, 3.2).
    Exact,
}

/// ECN state of a connection whose handshake agreed on ECN (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EcnState {
    /// How we echo marks.
    pub echo: Echo,
    /// Whether we are echoing a mark. For [`Echo::Exact`]: RFC 8257's DCTCP.CE.
    pub is_echoing: bool,
    /// Whether new data is sent as ECT(0). False if one of our SYNs did not ask for ECN (RFC 3168, 6.1.1).
    pub is_capable: bool,
}

/// Path of a flow's segments. [`Established`] lacks the last two fields, so a caller that installs a flow must also set the
/// path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The next hop's Ethernet address.
    pub mac: [u8; 6],
    /// Largest payload of a segment in bytes, without options.
    pub mss: u16,
    /// Differentiated Services codepoint, six bits.
    pub diffserv: u8,
    /// Hop limit (TTL) of segments.
    pub hop_limit: u8,
}

/// A flow's statistics for the control plane. Each reading resets the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The flow.
    pub flow: FlowId,
    /// Position up to which the peer has acknowledged.
    pub acknowledged: u64,
    /// Position up to which bytes were sent; the FIN, if sent, follows it.
    pub sent: u64,
    /// Position up to which the host has written.
    pub written: u64,
    /// Position up to which bytes were received in order.
    pub received: u64,
    /// The peer's window holds back what is left to send, so it must be probed: it is closed, or too small with nothing in
    /// flight.
    pub is_blocked: bool,
    /// Bytes wait for the host to write more; [`Command::Uncork`] sends them.
    pub is_corked: bool,
    /// State of our FIN.
    pub fin_sent: Fin,
    /// The peer's FIN and all bytes before it have arrived.
    pub fin_received: bool,
    /// Bytes acknowledged since the last reading.
    pub acknowledged_bytes: u32,
    /// Those of them whose acknowledgements echo a congestion mark.
    pub marked_bytes: u32,
    /// Losses detected without a timeout since the last reading.
    pub fast_retransmits: u32,
    /// Recovery from a loss is in progress.
    pub is_recovering: bool,
    /// When overtaken bytes count as lost, unless an acknowledgement changes that before.
    pub overdue_at: Option<Nanos>,
    /// If nothing arrives for two round trips, the control plane should give [`Command::ProbeTail`] to find out about losses.
    pub wants_tail_probe: bool,
    /// The last sample of the round-trip time, if there was one.
    pub round_trip: Option<Nanos>,
    /// When the peer's last segment arrived; 0 if none has since the flow was installed.
    pub last_segment_at: Nanos,
    /// The host sent an impossible request. The data path has sent a reset, and the connection must be removed.
    pub is_at_fault: bool,
}

impl Statistics {
    /// Whether the flow holds new data back until the control plane has processed these statistics, because bytes were lost or
    /// marked (docs/adr/0065).
    pub fn holds_back(&self) -> bool {
        self.fast_retransmits > 0 || self.marked_bytes > 0
    }
}

/// State of our FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fin {
    /// The host may still write.
    #[default]
    No,
    /// The host has ended its stream; the FIN was not sent yet.
    Wanted,
    /// It was sent, but not acknowledged.
    Sent,
    /// The peer has acknowledged it.
    Acknowledged,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tuple {
    /// Address and port of this end.
    pub local: SocketAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

/// The sending direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Ring from which the host's bytes are sent.
    pub ring: Ring,
    /// Sequence number of position 0.
    pub base: Seq,
    /// Position: all bytes before it are acknowledged.
    pub acknowledged: u64,
    /// Position: all bytes before it were sent at least once.
    pub sent: u64,
    /// Position: all bytes before it are in the ring.
    pub written: u64,
    /// Right edge of the peer's window.
    pub edge: u64,
    /// State of our FIN; its position is `written`.
    pub fin: Fin,
    /// Window scale of the peer.
    pub scale: u8,
    /// Largest payload of a segment in bytes, without options.
    pub mss: u16,
    /// Bytes of the ring that have memory, from its beginning.
    pub filled: u32,
}

/// The receiving direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiving {
    /// Ring into which bytes are received.
    pub ring: Ring,
    /// Sequence number of position 0.
    pub base: Seq,
    /// Position: all bytes before it have arrived.
    pub received: u64,
    /// Position: the host has read all bytes before it.
    pub read: u64,
    /// Right edge of the last advertised window. It never moves back.
    pub edge: u64,
    /// Intervals received out of order: first position, and the position after the last. The one that grew last comes first;
    /// empty intervals are unused.
    pub intervals: [(u64, u64); INTERVALS_MAX],
    /// Position of the peer's FIN, if known.
    pub fin: Option<u64>,
    /// Window scale of the windows that we advertise.
    pub scale: u8,
    /// Bytes of the ring that have memory, from its beginning.
    pub filled: u32,
}

/// Timestamps of a connection (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamps {
    /// The peer's latest timestamp, which we echo.
    pub recent: u32,
    /// Offset of our timestamps from our clock, in milliseconds.
    pub offset: u32,
}

/// The state of an established connection with nothing in flight inside its data path. The format is common to all data paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Established {
    /// Both ends of the connection.
    pub tuple: Tuple,
    /// The next hop's Ethernet address.
    pub peer_mac: [u8; 6],
    /// Context that gets its progress.
    pub context: ContextId,
    /// Number of the socket at that context.
    pub socket: u32,
    /// State of what this end sends.
    pub sending: Sending,
    /// State of what this end receives.
    pub receiving: Receiving,
    /// Timestamps, if both sides agreed on them.
    pub timestamps: Option<Timestamps>,
    /// Whether both sides agreed on selective acknowledgements (RFC 2018).
    pub sack_permitted: bool,
    /// ECN state, if both sides agreed on explicit congestion notification.
    pub ecn: Option<EcnState>,
    /// Small segments are sent without waiting for acknowledgements (TCP_NODELAY).
    pub is_eager: bool,
    /// First limits by congestion control.
    pub limits: Limits,
}

/// The table of flows is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data path has no room for another connection")]
pub struct NoRoom;

/// A TCP data path. The [module](self) describes its contract.
pub trait Datapath<F> {
    /// Takes packets and requests from the front of `batch`, and leaves those for which it has no room.
    fn submit(&mut self, now: Nanos, batch: &mut Batch<'_, F>);

    /// Upper bound of the number of requests that were taken and are not done. Requests are done in the order in which they were
    /// taken.
    fn requests_in_flight(&self) -> usize;

    /// Reports that a copy or a transmission is done, which the caller does once. A copy's ticket that is not under way is ignored.
    fn complete(&mut self, now: Nanos, ticket: Ticket);

    /// Works, at most `budget` steps of at most [`OUTPUTS_PER_STEP`] outputs each. Returns when to poll next if no input
    /// arrives before; `now` if there is more to do at once.
    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        outputs: &mut VecDeque<Output<F>>,
    ) -> Option<Nanos>;

    /// Carries out a command of the control plane. It is ignored if the flow does not exist.
    fn command(&mut self, now: Nanos, flow: FlowId, command: Command);

    /// Sets the limits by congestion control.
    fn pace(&mut self, flow: FlowId, limits: Limits);

    /// Changes the path of a flow's segments. If segments become smaller, those in flight did not fit and are retransmitted.
    fn set_path(&mut self, flow: FlowId, path: Path);

    /// Reads and clears the statistics of the next flow with changes. If they [hold back](Statistics::holds_back) new data,
    /// [`Datapath::resume`] must follow.
    fn next_statistics(&mut self) -> Option<Statistics>;

    /// The control plane has processed a flow's losses and marks, or does so before the next poll.
    fn resume(&mut self, flow: FlowId);

    /// Reads and clears the statistics of at most `budget` flows with changes, and resumes those that hold back new data.
    fn drain_statistics(&mut self, budget: usize, read: &mut dyn FnMut(Statistics)) {
        for _ in 0..budget {
            let Some(statistics) = self.next_statistics() else { return };
            read(statistics);
            if statistics.holds_back() {
                self.resume(statistics.flow);
            }
        }
    }

    /// Installs a connection, which uses only what the [capabilities](Datapath::capabilities) include.
    ///
    /// # Errors
    /// There is no room.
    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom>;

    /// Installs a connection under its earlier name, from this data path or another one, because hosts know that name.
    ///
    /// # Errors
    /// There is no room, or the name's index is taken.
    fn restore(&mut self, now: Nanos, id: FlowId, established: &Established) -> Result<(), NoRoom>;

    /// Gives later generations than this to new flows: another data path had such names, and hosts may still know them.
    fn reserve_generations(&mut self, generation: u32);

    /// Freezes a flow: it starts no new work. Work in flight is completed, and requests and commands may still give it some.
    fn freeze(&mut self, flow: FlowId);

    /// Whether a flow is frozen and has nothing in flight.
    fn frozen(&self, flow: FlowId) -> bool;

    /// Removes a flow that is [`Datapath::frozen`], and returns its state; `None` if it is not frozen, or does not exist.
    fn export(&mut self, flow: FlowId) -> Option<Established>;

    /// A flow's current state, for people and for the control plane's checks.
    fn inspect(&self, flow: FlowId) -> Option<Established>;

    /// The flow between these ends.
    fn find(&self, tuple: &Tuple) -> Option<FlowId>;

    /// Name of the data path, by which a command chooses it.
    fn name(&self) -> &'static str;

    /// What handshakes may agree on. It never changes.
    fn capabilities(&self) -> Capabilities;

    /// Visits all counters. They are always the same ones in the same order, and have unique names.
    fn visit_counters(&self, visit: &mut dyn FnMut(Counter, u64));

    /// The counter with this name; 0 if there is none.
    fn counter(&self, name: &str) -> u64 {
        let mut found = 0;
        self.visit_counters(&mut |counter, count| {
            if counter.name == name {
                found = count;
            }
        });
        found
    }

    /// Trace points of the data path, in the order of their [numbers](crate::trace::TracePoint).
    fn points(&self) -> &'static [PointInfo];
}
