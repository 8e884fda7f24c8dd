//! The contract between a TCP data path and what is around it (docs/adr/0055).
//!
//! Positions are cumulative: byte 0 of a stream is the first after the SYN, and a FIN stands one behind the last byte. So
//! each request and each notice says what is, and may be repeated or lost.

use alloc::collections::VecDeque;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Range;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::context::{ContextId, Moved, Progress};
use crate::seq::Seq;

/// Most effects of one step of [`Datapath::poll`].
pub const EFFECTS_PER_STEP: usize = 4;
/// Intervals of bytes that came out of order, in [`Established`].
pub const INTERVALS_MAX: usize = 4;

/// A connection of one data path. The generation tells it from others that had its index before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FlowId {
    /// Its place in the table.
    pub index: u32,
    /// Which life of that place.
    pub generation: u32,
}

impl FlowId {
    /// As one word of an entry.
    pub const fn to_word(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// From a word. Any word is one, though of no flow that lives.
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
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its length: a power of two, [`Ring::BYTES_MIN`] to [`Ring::BYTES_MAX`].
    pub bytes: u32,
}

impl Ring {
    /// The shortest ring: a page.
    pub const BYTES_MIN: u32 = 1 << 12;
    /// The longest ring: what a scaled window can name is 1 GiB, and half of that keeps old and new bytes apart.
    pub const BYTES_MAX: u32 = 1 << 29;

    /// Whether it lies within a payload memory of so many bytes.
    pub fn is_within(self, memory_bytes: u64) -> bool {
        self.bytes.is_power_of_two()
            && (Ring::BYTES_MIN..=Ring::BYTES_MAX).contains(&self.bytes)
            && self.offset.checked_add(self.bytes.into()).is_some_and(|end| end <= memory_bytes)
    }

    /// The position behind the last byte that the ring has room for, if all before `free` is free and its first `filled` bytes have
    /// memory.
    pub const fn limit(bytes: u32, free: u64, filled: u32) -> u64 {
        let end = free + bytes as u64;
        // What has no memory is reached for the first time in the first lap.
        if filled < bytes && (filled as u64) < end { filled as u64 } else { end }
    }

    /// Where bytes of the stream lie: offset and length in payload memory of one part, and of a second one where the ring ends
    /// between them. `bytes` is at most the ring's length.
    pub fn parts(self, position: u64, bytes: u32) -> [(u64, u32); 2] {
        let at = position as u32 & (self.bytes - 1);
        let first = bytes.min(self.bytes - at);
        [(self.offset + u64::from(at), first), (self.offset, bytes - first)]
    }
}

/// Whether somebody vouches for a packet's TCP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum must be verified.
    #[default]
    Unknown,
    /// The wire has verified it, or the packet never left memory.
    Good,
}

/// A frame that came in, with its memory.
#[derive(Clone, Debug)]
pub struct Packet<F> {
    /// Its bytes, from the Ethernet header.
    pub frame: F,
    /// What the wire knows of its checksum.
    pub checksum: Checksum,
    /// Bytes of payload in each of the segments that the wire has put together; 0 for a single one.
    pub segment_bytes: u16,
}

/// What is offered to [`Datapath::submit`], which takes from the front.
#[derive(Debug)]
pub struct Batch<'a, F> {
    /// Frames that wait for the pre stage.
    pub packets: &'a mut VecDeque<Packet<F>>,
    /// What hosts did to their streams, and which context says so.
    pub requests: &'a mut VecDeque<(ContextId, Moved)>,
}

/// Headers of a segment, from Ethernet's on.
#[derive(Clone, Copy)]
pub struct Head {
    bytes: [u8; Head::BYTES_MAX],
    len: u8,
}

impl Head {
    /// Room for Ethernet with a VLAN tag, IPv6, and TCP with all its options.
    pub const BYTES_MAX: usize = 120;

    /// Of zeros. Panics if `len` is more than [`Head::BYTES_MAX`].
    pub fn zeroed(len: usize) -> Head {
        assert!(len <= Head::BYTES_MAX);
        Head { bytes: [0; Head::BYTES_MAX], len: len as u8 }
    }

    /// Cuts what lies behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }

    /// The headers' bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The headers, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} bytes)", self.len)
    }
}

/// A checksum that the wire completes: its field holds the pseudo header's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// Where the summed bytes begin in the frame.
    pub start: u16,
    /// Where the field is, from `start` on.
    pub offset: u16,
}

/// What follows a segment's headers.
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
        /// From which position of the stream on.
        position: u64,
        /// Number of bytes.
        bytes: u32,
    },
    /// Bytes of a frame that came in (an echo).
    Frame(F, Range<usize>),
}

/// A segment to be sent.
#[derive(Clone, Debug)]
pub struct Segment<F> {
    /// To be completed once the wire has the bytes; `None` if nobody waits for that.
    pub ticket: Option<Ticket>,
    /// Headers of the segment.
    pub head: Head,
    /// Payload behind the headers.
    pub payload: Payload<F>,
    /// What the wire completes.
    pub checksum: Option<PartialChecksum>,
    /// Bytes of payload in each segment, where the wire must cut this one; 0 where it goes out as it is.
    pub segment_bytes: u16,
}

/// Payload to be copied to a host's ring.
#[derive(Clone, Debug)]
pub struct Write<F> {
    /// To be completed once a host that hears of the bytes would read them.
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

/// What a data path wants done.
#[derive(Clone, Debug)]
pub enum Effect<F> {
    /// Send this segment.
    Send(Segment<F>),
    /// Copy received bytes to a ring.
    Write(Write<F>),
    /// Tell this context of progress.
    Notify(ContextId, Progress),
    /// Not of an established connection, or more than data and acknowledgements: the control plane's. The flow is named
    /// where the packet belongs to one.
    Control(Packet<F>, Option<FlowId>),
}

/// What only the control plane may ask of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// The oldest unacknowledged bytes were lost: send again from there.
    Retransmit,
    /// The time of [`Statistics::overdue_at`] has come: look again whether something was lost.
    LookForLoss,
    /// The tail of what was sent may be lost: send a segment that makes the peer say what it has (RFC 8985, section 7).
    ProbeTail,
    /// The peer's window is closed: send one byte beyond it.
    Probe,
    /// Bytes have waited for long enough for the host to write more: send them.
    Release,
    /// Ask whether the peer is there: a segment of nothing, one before the next.
    KeepAlive,
    /// Say once more what is expected (RFC 5961's challenge).
    Challenge,
    /// Send a reset. The flow stays until it is exported.
    Abort,
    /// As `Abort`, in answer to a segment of the peer's: the reset has the number that the segment acknowledges, which is the one that the
    /// peer expects and so believes at once (RFC 5961, 3.2; RFC 9293, 3.10.7.1).
    Refuse,
}

/// What congestion control allows a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Most bytes that are sent and not acknowledged.
    pub window_bytes: u32,
    /// Bytes per second, which bound segments of data; `None` is as fast as the window allows.
    pub bytes_per_second: Option<u64>,
    /// The window was reduced: the next new data says so, if both sides agreed on ECN (CWR; RFC 3168, 6.1.2).
    pub has_reduced: bool,
}

/// When an acknowledgement echoes a mark of the network's (ECE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Echo {
    /// From a mark on, until the peer says that it has reduced its window (RFC 3168, 6.1.3).
    UntilReduced,
    /// As the data that it acknowledges was marked (DCTCP; RFC 8257, 3.2).
    Exact,
}

/// Explicit congestion notification of a connection whose handshake agreed on it (RFC 3168).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EcnState {
    /// How we echo marks.
    pub echo: Echo,
    /// We echo one now. For [`Echo::Exact`]: RFC 8257's DCTCP.CE.
    pub is_echoing: bool,
    /// New data may be marked (ECT(0)). Not so where we have sent a SYN that did not ask for ECN, too (RFC 3168, 6.1.1).
    pub is_capable: bool,
}

/// How a flow's segments reach the peer. [`Established`] does not hold the last two: whoever installs a flow sets them, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The next hop's Ethernet address.
    pub mac: [u8; 6],
    /// Most bytes of payload in a segment, options not counted.
    pub mss: u16,
    /// Differentiated Services, six bits.
    pub diffserv: u8,
    /// Hops that a segment may take.
    pub hop_limit: u8,
}

/// What the control plane reads of a flow. Counts begin anew with each reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// The flow.
    pub flow: FlowId,
    /// Bytes that the peer has acknowledged, as a position.
    pub acknowledged: u64,
    /// Bytes sent, as a position; behind it is the FIN, where that was sent.
    pub sent: u64,
    /// Bytes that the host wants sent, as a position.
    pub written: u64,
    /// Bytes received in order, as a position.
    pub received: u64,
    /// The peer admits nothing beyond what is sent, and there is more.
    pub is_blocked: bool,
    /// Bytes wait for the host to write more; [`Command::Release`] lets them go.
    pub is_held: bool,
    /// State of our FIN.
    pub fin_sent: Fin,
    /// The peer's FIN came, and all before it.
    pub fin_received: bool,
    /// Bytes acknowledged since the last reading.
    pub acknowledged_bytes: u32,
    /// Those among them whose packets had met congestion.
    pub marked_bytes: u32,
    /// Losses noticed without a timeout.
    pub fast_retransmits: u32,
    /// One of them is being recovered from.
    pub is_recovering: bool,
    /// When bytes that others have overtaken count as lost, if no acknowledgement says more until then.
    pub overdue_at: Option<Nanos>,
    /// If nothing comes for two round trips, [`Command::ProbeTail`] tells whether something was lost.
    pub wants_tail_probe: bool,
    /// The last sample of the round-trip time, if there was one.
    pub round_trip: Option<Nanos>,
    /// When the peer was last heard from; 0 if it was not since the flow was installed.
    pub heard: Nanos,
    /// The host said what cannot be. The data path has sent a reset, and the connection is to leave.
    pub is_at_fault: bool,
}

/// State of our FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fin {
    /// The host has more to say.
    #[default]
    No,
    /// The host has asked for it.
    Wanted,
    /// It was sent, and not acknowledged.
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

/// One direction: what we send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Ring from which the host's bytes are sent.
    pub ring: Ring,
    /// Sequence number of position 0.
    pub base: Seq,
    /// All before it is acknowledged.
    pub acknowledged: u64,
    /// All before it was sent at least once.
    pub sent: u64,
    /// All before it is in the ring.
    pub written: u64,
    /// Right edge of the peer's window.
    pub edge: u64,
    /// Where our FIN is; its position is `written`.
    pub fin: Fin,
    /// Shift of the windows that the peer names.
    pub scale: u8,
    /// Most bytes of payload in a segment, options not counted.
    pub mss: u16,
    /// Bytes of the ring that have memory, from its beginning.
    pub filled: u32,
}

/// The other direction: what we receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receiving {
    /// Ring into which bytes are received.
    pub ring: Ring,
    /// Sequence number of position 0.
    pub base: Seq,
    /// Position up to which every byte has come.
    pub received: u64,
    /// All before it was read by the host.
    pub read: u64,
    /// Right edge of the window that the peer was last told of. It never moves back.
    pub edge: u64,
    /// What came out of order, first position and the one behind the last, the one that grew last first; empty ones are none.
    pub intervals: [(u64, u64); INTERVALS_MAX],
    /// Position of the peer's FIN, where it is known.
    pub fin: Option<u64>,
    /// Shift of the windows that we name.
    pub scale: u8,
    /// Bytes of the ring that have memory, from its beginning.
    pub filled: u32,
}

/// Timestamps of a connection (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timestamps {
    /// The peer's value to be echoed.
    pub recent: u32,
    /// What is added to our clock's milliseconds.
    pub offset: u32,
}

/// An established connection with nothing on its way, in no data path's own terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Established {
    /// Both ends of the connection.
    pub tuple: Tuple,
    /// The next hop's Ethernet address.
    pub peer_mac: [u8; 6],
    /// Context that hears of its progress.
    pub context: ContextId,
    /// Number of the socket at that context.
    pub socket: u32,
    /// State of what this end sends.
    pub sending: Sending,
    /// State of what this end receives.
    pub receiving: Receiving,
    /// If both sides use them.
    pub timestamps: Option<Timestamps>,
    /// If both sides take selective acknowledgements (RFC 2018).
    pub is_selective: bool,
    /// If both sides agreed on explicit congestion notification.
    pub ecn: Option<EcnState>,
    /// Small segments do not wait for acknowledgements (TCP_NODELAY).
    pub is_eager: bool,
    /// What congestion control allows at first.
    pub limits: Limits,
}

/// The table of flows is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data path has no room for another connection")]
pub struct NoRoom;

/// A TCP data path. See the module.
pub trait Datapath<F> {
    /// Takes packets and requests from the front of `batch`; what it leaves there it did not take.
    fn submit(&mut self, now: Nanos, batch: &mut Batch<'_, F>);

    /// A copy or a transmission is done. A ticket that is not under way is ignored.
    fn complete(&mut self, now: Nanos, ticket: Ticket);

    /// Works, at most `budget` steps of at most [`EFFECTS_PER_STEP`] effects each. Returns when it has something to do again
    /// though nothing comes; `now` if it has more to do at once.
    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        effects: &mut VecDeque<Effect<F>>,
    ) -> Option<Nanos>;

    /// Does what the control plane asks. A flow that is not there is ignored.
    fn command(&mut self, now: Nanos, flow: FlowId, command: Command);

    /// Sets what congestion control allows.
    fn pace(&mut self, flow: FlowId, limits: Limits);

    /// Changes how segments reach the peer. If they become smaller, what is on its way did not fit and is sent again.
    fn set_path(&mut self, flow: FlowId, path: Path);

    /// Reads statistics of at most `budget` flows for which something has changed, and clears them.
    fn drain_statistics(&mut self, budget: usize, read: &mut dyn FnMut(Statistics));

    /// Takes a connection.
    ///
    /// # Errors
    /// There is no room.
    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom>;

    /// Takes a connection under the name that it had before, in this data path or another one: hosts know it by that.
    ///
    /// # Errors
    /// There is no room, or its place is taken.
    fn restore(&mut self, now: Nanos, id: FlowId, established: &Established) -> Result<(), NoRoom>;

    /// Begins nothing more for a flow. What is on its way goes on.
    fn freeze(&mut self, flow: FlowId);

    /// Whether it is frozen and nothing of it is on its way.
    fn frozen(&self, flow: FlowId) -> bool;

    /// Takes a flow that is [`Datapath::frozen`] out; `None` if it is not, or there is none.
    fn export(&mut self, flow: FlowId) -> Option<Established>;

    /// Whether handshakes are to offer selective acknowledgements.
    fn is_selective(&self) -> bool;

    /// A flow's state now, for people and for the control plane's checks.
    fn inspect(&self, flow: FlowId) -> Option<Established>;

    /// The flow of a connection.
    fn find(&self, tuple: &Tuple) -> Option<FlowId>;
}
