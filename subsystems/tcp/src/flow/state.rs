//! A connection's state, in the parts that the stages own (thesis Table 4.1).
//!
//! Positions of a stream are 64 bits wide. A FIN counts as one byte behind the last: `written` is its position.
//!
//! | stage | bytes in Table 4.1 | here, at most | what is more here |
//! | --- | --- | --- | --- |
//! | pre | 15 | [`PRE_BYTES`] | addresses of either family; Differentiated Services |
//! | protocol | 43 | [`PROTOCOL_BYTES`] | positions of 64 bits; a scoreboard; window scales; deadlines; the host's context |
//! | post | 51 | [`POST_BYTES`] | nothing: positions of rings are 64 bits wide in both |

use wave_core::clock::Nanos;

use super::intervals::{Interval, Intervals};
use super::reduction::Reduction;
use super::scoreboard::Scoreboard;
use crate::context::ContextId;
use crate::datapath::{
    EcnState, Established, Fin, Limits, Path, Receiving, Ring, Sending, Timestamps, Tuple,
};
use crate::packet::TTL_DEFAULT;
use crate::planted::{Planted, is_planted};
use crate::seq::{Seq, seq_of};

/// Most bytes of [`Pre`].
pub const PRE_BYTES: usize = 80;
/// Most bytes of [`Protocol`].
pub const PROTOCOL_BYTES: usize = 800;
/// Most bytes of [`Post`].
pub const POST_BYTES: usize = 64;

/// Bytes of each partition in Table 4.1, and its fields' bits added up: pre, protocol, post.
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
};

/// The pre-processing stage's: who the peer is.
#[derive(Clone, Copy, Debug)]
pub struct Pre {
    /// Both ends of the connection.
    pub tuple: Tuple,
    /// Ethernet address of the next hop.
    pub peer_mac: [u8; 6],
    /// Differentiated Services of our segments.
    pub diffserv: u8,
    /// Hop limit of packets that are sent.
    pub hop_limit: u8,
}

/// The protocol stage's: what must change atomically.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Sequence number of the first byte we send.
    pub send_base: Seq,
    /// All before it is acknowledged; one more than `written` once the FIN is.
    pub acknowledged: u64,
    /// What is sent next: behind `highest` never, before it where all that follows is sent again.
    pub next: u64,
    /// All before it was sent at least once.
    pub highest: u64,
    /// All before it is in the host's ring.
    pub written: u64,
    /// The host writes nothing more.
    pub is_finished: bool,
    /// Right edge of the peer's window.
    pub edge: u64,
    /// The largest window that the peer had.
    pub window_max: u32,
    /// Sequence and acknowledgement of the segment that set `edge` last.
    pub window_seq: Seq,
    /// See `window_seq`.
    pub window_ack: Seq,
    /// Shift of the peer's windows.
    pub send_scale: u8,
    /// Most bytes of payload in a segment.
    pub mss: u16,
    /// Acknowledgements in a row that said nothing new.
    pub duplicates: u8,
    /// A loss was noticed when so much was sent; until all of that is acknowledged, duplicates mean nothing.
    pub recover: u64,
    /// Both sides agreed on selective acknowledgements (RFC 2018).
    pub is_selective: bool,
    /// What they told of, and what follows from it.
    pub selective: Selective,
    /// A loss or a mark was noticed of which the control plane has not heard: until then so many more segments may go out, whatever
    /// the window says, since it is about to shrink.
    pub until_heard: Option<u8>,
    /// Small segments do not wait.
    pub is_eager: bool,
    /// What congestion control allows.
    pub window_bytes: u32,
    /// Bytes per second that it allows; `None` is as fast as the window allows.
    pub bytes_per_second: Option<u64>,
    /// If both sides agreed on explicit congestion notification.
    pub ecn: Option<EcnState>,
    /// The next new data says that the window was reduced.
    pub has_reduced: bool,

    /// Sequence number of the first byte we receive.
    pub receive_base: Seq,
    /// Position up to which every byte has come.
    pub received: u64,
    /// All before it is in the host's ring: this is acknowledged, and the host is told of it.
    pub landed: u64,
    /// All before it was read by the host.
    pub read: u64,
    /// Length of the ring in bytes.
    pub ring_bytes: u32,
    /// Bytes of it that have memory, from its beginning.
    pub filled: u32,
    /// Right edge of the window that the peer was told of.
    pub promised: u64,
    /// What came out of order.
    pub intervals: Intervals,
    /// What came twice, for the next acknowledgement to tell (RFC 2883).
    pub duplicate: Interval,
    /// Position of the peer's FIN.
    pub fin: Option<u64>,
    /// Scale of the windows that this end announces.
    pub receive_scale: u8,
    /// Whether segments carry timestamps.
    pub has_timestamps: bool,
    /// The peer's timestamp to be echoed.
    pub recent: u32,
    /// What is added to our milliseconds.
    pub timestamp_offset: u32,
    /// When `recent` was set.
    pub recent_at: Nanos,
    /// What we acknowledged last.
    pub told: Seq,
    /// Bytes received since then.
    pub untold_bytes: u32,
    /// When an acknowledgement must go out at the latest.
    pub acknowledge_at: Option<Nanos>,
    /// Whether an ACK must go out now.
    pub acknowledge_now: bool,
    /// So many more full segments are acknowledged at once.
    pub quick: u8,
    /// When something wrong was answered last (RFC 5961, 7).
    pub answered_at: Option<Nanos>,
    /// Whether nothing new is begun.
    pub is_frozen: bool,
    /// When the peer was heard of last.
    pub heard: Nanos,

    /// Who hears of the connection: the context that used it last.
    pub context: ContextId,
    /// The connection's name there.
    pub socket: u32,
    /// Length of the ring for what goes out.
    pub send_ring_bytes: u32,
    /// Bytes of it that have memory, from its beginning.
    pub send_filled: u32,
    /// What the host was told last.
    pub host_told: (u64, u64, bool),
    /// The host said what cannot be, and the peer hears a reset.
    pub is_at_fault: bool,
}

/// What a sender knows from selective acknowledgements. Positions are in order: acknowledged, `resend`, `swept`, `lost`, highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selective {
    /// What the peer has beyond its acknowledgement.
    pub board: Scoreboard,
    /// A loss is being recovered from: until [`Protocol::recover`] is acknowledged.
    pub is_recovering: bool,
    /// All before it that the peer does not have is lost.
    pub lost: u64,
    /// All before it that was lost is sent again (RFC 6675: HighRxt), as often as it was lost.
    pub resend: u64,
    /// All before it that was lost is sent again at least once.
    pub swept: u64,
    /// From `resend` up to here, what was sent again was lost again.
    pub again: u64,
    /// What later data must not overtake.
    pub mark: Option<Mark>,
    /// How the window shrinks after the loss.
    pub reduction: Reduction,
    /// All before it that the peer does not have is overdue since `suspected_at`.
    pub suspect: u64,
    /// See `suspect`.
    pub suspected_at: Nanos,
    /// Quarters of a round trip for which what is overtaken may only be late. 0: it never was.
    pub reordering: u8,
    /// Bytes that were sent once, up to here, and when.
    pub timed: Option<(u64, Nanos)>,
    /// The shortest time from sending to acknowledgement.
    pub round_trip_min: Option<Nanos>,
    /// A probe of the tail.
    pub probe: Option<TailProbe>,
}

/// What was sent again, and what was sent by then: if the peer has more than that, it should have the former.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// All before it that was lost had been sent again.
    pub end: u64,
    /// All before it had been sent.
    pub highest: u64,
    /// When the peer first told of something behind `highest`.
    pub passed_at: Option<Nanos>,
}

/// A segment that makes a peer say what it has (RFC 8985, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailProbe {
    /// It is to be sent.
    Wanted,
    /// It was sent.
    Sent {
        /// All that was sent then lies before it.
        end: u64,
        /// It carried what had been sent before.
        is_again: bool,
    },
}

impl Selective {
    /// Nothing is known, and all before this is acknowledged.
    pub fn new(acknowledged: u64) -> Selective {
        let mut selective = Selective::default();
        selective.end(acknowledged);
        selective
    }

    /// A loss is noticed.
    pub fn begin(&mut self, acknowledged: u64) {
        self.is_recovering = true;
        (self.resend, self.swept, self.again, self.mark) = (acknowledged, acknowledged, 0, None);
    }

    /// All is recovered.
    pub fn end(&mut self, acknowledged: u64) {
        self.begin(acknowledged);
        self.is_recovering = false;
        self.lost = acknowledged;
    }
}

/// The post-processing stage's: where the host is, and what is counted. Replicas of the stage change it in any order.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Ring of received bytes.
    pub receive: Ring,
    /// Ring of bytes to be sent.
    pub send: Ring,
    /// Bytes acknowledged since the last reading.
    pub acknowledged_bytes: u32,
    /// Those whose packets had met congestion.
    pub marked_bytes: u32,
    /// Fast retransmits since the last reading.
    pub fast_retransmits: u32,
    /// A sample of the round trip's time since the last reading.
    pub round_trip: Option<Nanos>,
}

/// Full segments at the start of a connection that are acknowledged at once, as long as the host answers none: the peer's window is
/// small, and grows by acknowledgements. Linux acknowledges short ones so, too; here a request and its reply stay two packets.
const QUICK: u8 = 16;

impl Pre {
    /// What the control plane has found out about the way to the peer.
    pub fn set_path(&mut self, path: Path) {
        let Path { mac, diffserv, hop_limit, .. } = path;
        (self.peer_mac, self.diffserv, self.hop_limit) = (mac, diffserv, hop_limit);
    }
}

impl Protocol {
    /// How far the stream goes, the FIN included.
    pub fn end(&self) -> u64 {
        self.written + u64::from(self.is_finished)
    }

    /// The position behind the last byte that the ring for what comes in has room for.
    pub fn receive_limit(&self) -> u64 {
        Ring::limit(self.ring_bytes, self.read, self.filled)
    }

    /// Bytes that are sent and not acknowledged, a FIN included.
    pub fn outstanding(&self) -> u64 {
        self.highest - self.acknowledged
    }

    /// Whether something is to be sent, if the windows admit it.
    pub fn has_more(&self) -> bool {
        let Selective { is_recovering, resend, swept, again, lost, probe, .. } = self.selective;
        self.next < self.end()
            || (is_recovering && (swept < lost || resend < again))
            || probe == Some(TailProbe::Wanted)
    }

    /// Bytes of the stream that are acknowledged.
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

    /// The peer's stream has ended, and all of it came.
    pub fn has_fin(&self) -> bool {
        self.fin == Some(self.received)
    }

    /// As [`Protocol::has_fin`], and all of it is in the host's ring.
    pub fn has_landed_fin(&self) -> bool {
        self.fin == Some(self.landed)
    }

    /// What we expect, of what is in the host's ring.
    pub fn expected(&self) -> Seq {
        if is_planted(Planted::EarlyAcknowledgement) {
            return seq_of(self.receive_base, self.received + u64::from(self.has_fin()));
        }
        seq_of(self.receive_base, self.landed + u64::from(self.has_landed_fin()))
    }
}

/// Splits a connection's state among the stages.
pub fn split(established: &Established, now: Nanos) -> (Pre, Protocol, Post) {
    let Established {
        tuple,
        peer_mac,
        context,
        socket,
        sending,
        receiving,
        timestamps,
        is_selective,
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
        // What was sent and not acknowledged may have been lost with the engine before: it is sent again when its time is over.
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
        is_selective,
        selective: Selective::new(acknowledged),
        until_heard: None,
        is_eager,
        window_bytes: limits.window_bytes,
        bytes_per_second: limits.bytes_per_second,
        ecn,
        has_reduced: limits.has_reduced && ecn.is_some(),
        receive_base: receiving.base,
        received: receiving.received,
        landed: receiving.received,
        read: receiving.read,
        ring_bytes: receiving.ring.bytes,
        filled: receiving.filled,
        promised: receiving.edge,
        intervals: Intervals::from_pairs(receiving.intervals),
        duplicate: Interval::default(),
        fin: receiving.fin,
        receive_scale: receiving.scale,
        has_timestamps: timestamps.is_some(),
        recent: timestamps.map_or(0, |stamps| stamps.recent),
        timestamp_offset: timestamps.map_or(0, |stamps| stamps.offset),
        recent_at: now,
        told: expected,
        untold_bytes: 0,
        acknowledge_at: None,
        acknowledge_now: false,
        // A connection from another engine is in the middle.
        quick: if receiving.received == 0 { QUICK } else { 0 },
        answered_at: None,
        is_frozen: false,
        heard: now,
        context,
        socket,
        send_ring_bytes: sending.ring.bytes,
        send_filled: sending.filled,
        host_told: (receiving.received, sending.acknowledged, false),
        is_at_fault: false,
    };
    let post = Post {
        receive: receiving.ring,
        send: sending.ring,
        acknowledged_bytes: 0,
        marked_bytes: 0,
        fast_retransmits: 0,
        round_trip: None,
    };
    (Pre { tuple, peer_mac, diffserv: 0, hop_limit: TTL_DEFAULT }, protocol, post)
}

/// Joins the stages' parts to a connection's state.
pub fn join(pre: &Pre, protocol: &Protocol, post: &Post) -> Established {
    let fin = protocol.sent_fin();
    Established {
        tuple: pre.tuple,
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
            edge: protocol.promised,
            intervals: protocol.intervals.to_pairs(),
            fin: protocol.fin,
            scale: protocol.receive_scale,
            filled: protocol.filled,
        },
        timestamps: protocol
            .has_timestamps
            .then_some(Timestamps { recent: protocol.recent, offset: protocol.timestamp_offset }),
        is_selective: protocol.is_selective,
        ecn: protocol.ecn,
        is_eager: protocol.is_eager,
        limits: Limits {
            window_bytes: protocol.window_bytes,
            bytes_per_second: protocol.bytes_per_second,
            has_reduced: protocol.has_reduced,
        },
    }
}
