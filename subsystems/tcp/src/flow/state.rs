//! A connection's state, in the parts that the stages own (thesis Table 4.1).
//!
//! Positions of a stream are 64 bits wide. A FIN counts as one byte after the last: `written` is its position.
//!
//! | stage | bytes in Table 4.1 | here, at most | additions here |
//! | --- | --- | --- | --- |
//! | pre | 15 | [`PRE_BYTES`], and the table's 37 for both ends | addresses of either family; Differentiated Services |
//! | protocol | 43 | [`PROTOCOL_BYTES`], and [`DISORDER_BYTES`] while out of order | positions of 64 bits; losses; window scales; deadlines; the host's context |
//! | post | 51 | [`POST_BYTES`] | nothing: positions of rings are 64 bits wide in both |

use alloc::boxed::Box;
use core::num::NonZeroU64;

use wave_core::clock::Nanos;

use super::disorder::{Disorder, Loss};
use super::intervals::{Interval, Intervals};
use super::optional_time::OptionalTime;
use crate::context::{ContextId, Tail};
use crate::datapath::{
    EcnState, Established, Fin, INTERVALS_MAX, Limits, Path, Receiving, Ring, Sending, Timestamps,
    Tuple,
};
use crate::packet::TTL_DEFAULT;
use crate::planted::{Planted, is_planted};
use crate::seq::{Seq, seq_of};
use crate::stages::acknowledge::milliseconds;

/// Largest size of [`Pre`] in bytes.
pub const PRE_BYTES: usize = 8;
/// Largest size of [`Protocol`] in bytes.
pub const PROTOCOL_BYTES: usize = 288;
/// Largest size of [`Post`] in bytes.
pub const POST_BYTES: usize = 56;
/// Largest size of [`Disorder`] in bytes.
pub const DISORDER_BYTES: usize = 456;

/// Size of each partition in bytes as stated in Table 4.1, and the sum of its fields' bits: pre, protocol, post.
const TABLE_4_1: [(usize, usize); 3] = [
    (15, 48 + 32 + 32 + 2),
    (43, 64 + 32 + 32 + 16 + 32 + 32 + 32 + 64 + 4 + 32),
    (51, 64 + 16 + 128 + 64 + 64 + 8 + 32 + 32),
];

const _: () = {
    let mut at = 0;
    while at < TABLE_4_1.len() {
        let (bytes, bits) = TABLE_4_1[at];
        assert!(bits.div_ceil(8) == bytes);
        at += 1;
    }
    assert!(size_of::<Pre>() <= PRE_BYTES);
    assert!(size_of::<Protocol>() <= PROTOCOL_BYTES);
    assert!(size_of::<Post>() <= POST_BYTES);
    assert!(size_of::<Disorder>() <= DISORDER_BYTES);
};

/// State of the pre-processing stage, except both ends of the connection, which the table keeps.
#[derive(Clone, Copy, Debug)]
pub struct Pre {
    /// Ethernet address of the next hop.
    pub peer_mac: [u8; 6],
    /// Differentiated Services codepoint of our segments.
    pub diffserv: u8,
    /// Hop limit of our segments.
    pub hop_limit: u8,
}

/// State of the protocol stage, which must change atomically.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// Sequence number of the first byte we send.
    pub send_base: Seq,
    /// Position: all bytes before it are acknowledged. It is `written` + 1 once the FIN is acknowledged.
    pub acknowledged: u64,
    /// Position to send next: at most `highest`, and less if everything from there on is retransmitted.
    pub next: u64,
    /// Position: all bytes before it were sent at least once.
    pub highest: u64,
    /// Position: all bytes before it are in the host's ring.
    pub written: u64,
    /// The host has ended its stream.
    pub is_finished: bool,
    /// Right edge of the peer's window.
    pub edge: u64,
    /// The largest window of the peer so far, in bytes.
    pub window_max: u32,
    /// Sequence number of the segment that last set `edge`.
    pub window_seq: Seq,
    /// Acknowledgement number of the segment that last set `edge`.
    pub window_ack: Seq,
    /// Window scale of the peer.
    pub send_scale: u8,
    /// Largest payload of a segment, in bytes.
    pub mss: u16,
    /// Number of consecutive duplicate acknowledgements.
    pub duplicates: u8,
    /// Highest position sent when a loss was detected. Until it is acknowledged, duplicate acknowledgements are ignored.
    pub recover: u64,
    /// Both sides agreed on selective acknowledgements (RFC 2018).
    pub sack_permitted: bool,
    /// Present while data is lost or out of order, if the pool had one.
    pub disorder: Option<Box<Disorder>>,
    /// The peer's group in the pool.
    pub group: u8,
    /// End of bytes that were sent only once, at `timed_at`.
    pub timed_end: Seq,
    /// When the bytes before `timed_end` were sent.
    pub timed_at: OptionalTime,
    /// The shortest time from sending to acknowledgement.
    pub round_trip_min: OptionalTime,
    /// Quarters of a round trip for which overtaken bytes count as late rather than lost. 0: bytes were never late so far.
    pub reordering: u8,
    /// The tail-loss probe, if there is one.
    pub probe: Option<TailProbe>,
    /// Highest position sent when the probe was sent.
    pub probe_end: u64,
    /// Set while the control plane has not processed a loss or a mark yet. Until then, only this many more segments may be
    /// sent, whatever the window, which is about to shrink.
    pub until_resumed: Option<u8>,
    /// Small segments are sent without waiting for acknowledgements (TCP_NODELAY).
    pub is_eager: bool,
    /// How bytes that do not fill a segment are sent, by the host's last request.
    pub tail: Tail,
    /// Sequence number after the last segment that was sent and was not full.
    pub small_end: Seq,
    /// The congestion window, in bytes.
    pub window_bytes: u32,
    /// The pacing rate; `None` is as fast as the window allows.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Present if both sides agreed on explicit congestion notification.
    pub ecn: Option<EcnState>,
    /// The next new data must carry CWR: the window was reduced.
    pub has_reduced: bool,

    /// Sequence number of the first byte we receive.
    pub receive_base: Seq,
    /// Position up to which every byte has arrived.
    pub received: u64,
    /// All bytes before it are in the host's ring: they are acknowledged, and the host is notified of them.
    pub landed: u64,
    /// The host has read all bytes before it.
    pub read: u64,
    /// Length of the ring in bytes.
    pub ring_bytes: u32,
    /// Bytes of the ring that have memory, from its beginning.
    pub filled: u32,
    /// Right edge of the advertised window.
    pub advertised: u64,
    /// Position of the peer's FIN, if known.
    pub fin: Option<u64>,
    /// Window scale of the windows that this end advertises.
    pub receive_scale: u8,
    /// Whether segments carry timestamps.
    pub has_timestamps: bool,
    /// The peer's latest timestamp, which we echo.
    pub recent: u32,
    /// Offset of our timestamps from our clock, in milliseconds.
    pub timestamp_offset: u32,
    /// When `recent` was set.
    pub recent_at: Nanos,
    /// Our last acknowledgement number.
    pub last_ack_sent: Seq,
    /// Bytes received since our last acknowledgement.
    pub since_ack_bytes: u32,
    /// Latest time for the next delayed acknowledgement.
    pub acknowledge_at: OptionalTime,
    /// Whether an acknowledgement must be sent now.
    pub acknowledge_now: bool,
    /// Number of further segments that are acknowledged at once unless the exchange is interactive (quick acknowledgements).
    pub quick: u8,
    /// Acknowledgements wait for data: the host has lately answered what it received.
    pub is_interactive: bool,
    /// When data last arrived in order, in milliseconds, which wrap around; when the flow was installed, if none has.
    pub data_at_ms: u32,
    /// When an unacceptable segment was last answered (RFC 5961, 7).
    pub answered_at: OptionalTime,
    /// Whether the flow is frozen: it starts no new work.
    pub is_frozen: bool,
    /// When the peer's last segment arrived; 0 if none has since the flow was installed.
    pub last_segment_at: Nanos,

    /// The context that is notified of the connection: the one that used it last.
    pub context: ContextId,
    /// The connection's name in that context.
    pub socket: u32,
    /// Length of the send ring in bytes.
    pub send_ring_bytes: u32,
    /// Bytes of the send ring that have memory, from its beginning.
    pub send_filled: u32,
    /// Positions in the host's last notification: up to which bytes had arrived, and were acknowledged.
    pub notified: (u64, u64),
    /// The host was notified of the end of the peer's stream.
    pub notified_end: bool,
    /// The host sent an impossible request, and the connection is reset.
    pub is_at_fault: bool,
}

/// Retransmissions, and the data sent before them: a peer that has later data should also have the retransmissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxtMark {
    /// Position: all lost bytes before it had been retransmitted.
    pub end: u64,
    /// Position: all bytes before it had been sent.
    pub highest: u64,
    /// When the peer first reported bytes from `highest` on.
    pub passed_at: OptionalTime,
}

/// State of a tail-loss probe: a segment that makes a peer acknowledge what it has (RFC 8985, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailProbe {
    /// The probe must be sent.
    Wanted,
    /// The probe was sent.
    Sent {
        /// The probe carried bytes that had been sent before.
        is_retransmission: bool,
    },
}

/// State of the post-processing stage: the host's rings, and counts. Replicas of the stage change it in any order.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Ring of received bytes.
    pub receive: Ring,
    /// Ring of bytes to be sent.
    pub send: Ring,
    /// Bytes acknowledged since the last reading.
    pub acknowledged_bytes: u32,
    /// Those of them whose acknowledgements echo a congestion mark.
    pub marked_bytes: u32,
    /// Fast retransmits since the last reading.
    pub fast_retransmits: u32,
    /// A sample of the round-trip time since the last reading.
    pub round_trip: OptionalTime,
}

/// Number of segments at the start of a connection, and after it was idle, that are acknowledged at once, as in Linux: the peer's
/// congestion window is small then, and grows by acknowledgements.
pub const QUICK: u8 = 16;

impl Pre {
    /// Sets the path to the peer.
    pub fn set_path(&mut self, path: Path) {
        let Path { mac, diffserv, hop_limit, .. } = path;
        (self.peer_mac, self.diffserv, self.hop_limit) = (mac, diffserv, hop_limit);
    }
}

impl Protocol {
    /// Position of the stream's end, including the FIN.
    pub fn end(&self) -> u64 {
        self.written + u64::from(self.is_finished)
    }

    /// The position after the last byte for which the receive ring has room.
    pub fn receive_limit(&self) -> u64 {
        Ring::limit(self.ring_bytes, self.read, self.filled)
    }

    /// Bytes that are sent and not acknowledged, including a FIN.
    pub fn outstanding(&self) -> u64 {
        self.highest - self.acknowledged
    }

    /// Whether there is data to send, if the windows allow it.
    pub fn has_more(&self) -> bool {
        self.next < self.end() || self.probe == Some(TailProbe::Wanted) || {
            let Loss { is_recovering, high_rxt, rxt_once, lost_rxt, lost, .. } = *self.loss();
            is_recovering && (rxt_once < lost || high_rxt < lost_rxt)
        }
    }

    /// The sender's losses.
    pub fn loss(&self) -> &Loss {
        self.disorder.as_ref().map_or(&Loss::NONE, |disorder| &disorder.loss)
    }

    /// Bytes that arrived out of order.
    pub fn intervals(&self) -> &Intervals {
        self.disorder.as_ref().map_or(&Intervals::NONE, |disorder| &disorder.intervals)
    }

    /// Notes bytes that arrived twice. The next acknowledgement reports them, if the flow has a [`Disorder`] to remember them.
    pub fn note_duplicate(&mut self, bytes: Interval) {
        if let Some(disorder) = &mut self.disorder {
            disorder.duplicate = bytes;
        }
    }

    /// Number of acknowledged bytes of the stream, without the FIN.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged.min(self.written)
    }

    /// State of our FIN.
    pub fn sent_fin(&self) -> Fin {
        if !self.is_finished {
            Fin::No
        } else if self.acknowledged > self.written {
            Fin::Acknowledged
        } else if self.highest > self.written {
            Fin::Sent
        } else {
            Fin::Wanted
        }
    }

    /// Whether the peer's stream has ended, and all of it has arrived.
    pub fn has_fin(&self) -> bool {
        self.fin == Some(self.received)
    }

    /// Like [`Protocol::has_fin`], and all of it is in the host's ring.
    pub fn has_landed_fin(&self) -> bool {
        self.fin == Some(self.landed)
    }

    /// The sequence number that we expect, after the bytes in the host's ring.
    pub fn expected(&self) -> Seq {
        if is_planted(Planted::EarlyAcknowledgement) {
            return seq_of(self.receive_base, self.received + u64::from(self.has_fin()));
        }
        seq_of(self.receive_base, self.landed + u64::from(self.has_landed_fin()))
    }
}

/// The state of a connection that another engine has exported with bytes out of order.
fn disorder(pairs: [(u64, u64); INTERVALS_MAX], acknowledged: u64) -> Option<Box<Disorder>> {
    let intervals = Intervals::from_pairs(pairs);
    let loss = Loss::new(acknowledged);
    (!intervals.is_empty()).then(|| Box::new(Disorder { loss, intervals, ..Disorder::default() }))
}

/// Splits a connection's state among the stages.
pub fn split(established: &Established, now: Nanos) -> (Pre, Protocol, Post) {
    let Established {
        tuple: _,
        peer_mac,
        context,
        socket,
        sending,
        receiving,
        timestamps,
        sack_permitted,
        ecn,
        is_eager,
        limits,
    } = *established;
    let fin = u64::from(sending.fin == Fin::Acknowledged);
    let is_sent = matches!(sending.fin, Fin::Sent | Fin::Acknowledged);
    let acknowledged = sending.acknowledged + fin;
    let expected = seq_of(
        receiving.base,
        receiving.received + u64::from(receiving.fin == Some(receiving.received)),
    );
    let protocol = Protocol {
        send_base: sending.base,
        acknowledged,
        // Unacknowledged bytes may have been lost with the previous engine: they are retransmitted after the timeout.
        next: sending.sent + u64::from(is_sent),
        highest: sending.sent + u64::from(is_sent),
        written: sending.written,
        is_finished: sending.fin != Fin::No,
        edge: sending.edge,
        window_max: sending.edge.saturating_sub(sending.acknowledged) as u32,
        window_seq: expected,
        window_ack: seq_of(sending.base, acknowledged),
        send_scale: sending.scale,
        mss: sending.mss,
        duplicates: 0,
        recover: acknowledged,
        sack_permitted,
        disorder: disorder(receiving.intervals, acknowledged),
        group: 0,
        timed_end: Seq(0),
        timed_at: OptionalTime::NONE,
        round_trip_min: OptionalTime::NONE,
        reordering: 0,
        probe: None,
        probe_end: 0,
        until_resumed: None,
        is_eager,
        // The host's next request sets it again.
        tail: Tail::Whole,
        small_end: seq_of(sending.base, acknowledged),
        window_bytes: limits.window_bytes,
        bytes_per_second: limits.bytes_per_second.and_then(NonZeroU64::new),
        ecn,
        has_reduced: limits.has_reduced && ecn.is_some(),
        receive_base: receiving.base,
        received: receiving.received,
        landed: receiving.received,
        read: receiving.read,
        ring_bytes: receiving.ring.bytes,
        filled: receiving.filled,
        advertised: receiving.edge,
        fin: receiving.fin,
        receive_scale: receiving.scale,
        has_timestamps: timestamps.is_some(),
        recent: timestamps.map_or(0, |stamps| stamps.recent),
        timestamp_offset: timestamps.map_or(0, |stamps| stamps.offset),
        recent_at: now,
        last_ack_sent: expected,
        since_ack_bytes: 0,
        acknowledge_at: OptionalTime::NONE,
        acknowledge_now: false,
        // A connection from another engine is past its start.
        quick: if receiving.received == 0 { QUICK } else { 0 },
        is_interactive: receiving.received > 0 && sending.written > 0,
        data_at_ms: milliseconds(now),
        answered_at: OptionalTime::NONE,
        is_frozen: false,
        last_segment_at: Nanos(0),
        context,
        socket,
        send_ring_bytes: sending.ring.bytes,
        send_filled: sending.filled,
        notified: (receiving.received, sending.acknowledged),
        notified_end: false,
        is_at_fault: false,
    };
    let post = Post {
        receive: receiving.ring,
        send: sending.ring,
        acknowledged_bytes: 0,
        marked_bytes: 0,
        fast_retransmits: 0,
        round_trip: OptionalTime::NONE,
    };
    (Pre { peer_mac, diffserv: 0, hop_limit: TTL_DEFAULT }, protocol, post)
}

/// Joins the stages' parts into a connection's state.
pub fn join(tuple: Tuple, pre: &Pre, protocol: &Protocol, post: &Post) -> Established {
    let fin = protocol.sent_fin();
    Established {
        tuple,
        peer_mac: pre.peer_mac,
        context: protocol.context,
        socket: protocol.socket,
        sending: Sending {
            ring: post.send,
            base: protocol.send_base,
            acknowledged: protocol.acknowledged_bytes(),
            sent: protocol.highest.min(protocol.written),
            written: protocol.written,
            edge: protocol.edge,
            fin,
            scale: protocol.send_scale,
            mss: protocol.mss,
            filled: protocol.send_filled,
        },
        receiving: Receiving {
            ring: post.receive,
            base: protocol.receive_base,
            received: protocol.received,
            read: protocol.read,
            edge: protocol.advertised,
            intervals: protocol.intervals().to_pairs(),
            fin: protocol.fin,
            scale: protocol.receive_scale,
            filled: protocol.filled,
        },
        timestamps: protocol
            .has_timestamps
            .then_some(Timestamps { recent: protocol.recent, offset: protocol.timestamp_offset }),
        sack_permitted: protocol.sack_permitted,
        ecn: protocol.ecn,
        is_eager: protocol.is_eager,
        limits: Limits {
            window_bytes: protocol.window_bytes,
            bytes_per_second: protocol.bytes_per_second.map(NonZeroU64::get),
            has_reduced: protocol.has_reduced,
        },
    }
}
