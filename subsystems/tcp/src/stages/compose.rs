//! The protocol stage's contents of segments and events: a copy of the state that they report, taken in order (thesis 4.3.1.3).
//! The post-processing stage builds headers from it, in any order.

use wave_core::clock::Nanos;

use super::acknowledge::milliseconds;
use super::arbiter::Answer;
use crate::context::Progress;
use crate::flow::disorder::Disorder;
use crate::flow::optional_time::OptionalTime;
use crate::flow::state::Protocol;
use crate::packet::{Ecn, Flags, Options};
use crate::seq::{Seq, seq_of};

/// Contents of a segment's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Sequence number of the segment's first byte.
    pub seq: Seq,
    /// Acknowledgement number: the sequence number that we expect next.
    pub ack: Seq,
    /// Window field of the header.
    pub window: u16,
    /// Control bits of the header.
    pub flags: Flags,
    /// Number of payload bytes.
    pub bytes: u32,
    /// ECN field of the IP header: whether the network may mark the packet.
    pub ecn: Ecn,
    /// Timestamps and SACK blocks.
    pub options: Options,
}

/// Composes a segment's headers. The segment acknowledges all bytes received and advertises the window, so nothing else needs
/// to.
pub fn compose_header(
    flow: &mut Protocol,
    answer: Answer,
    seq: Seq,
    flags: Flags,
    bytes: u32,
    now: Nanos,
) -> SegmentHeader {
    let Answer { ack, window } = answer;
    let echoes = flow.ecn.is_some_and(|ecn| ecn.is_echoing) && !flags.contains(Flags::RST);
    let flags = if echoes { flags | Flags::ECE } else { flags };
    let mut options = Options::default();
    let may_sack = flow.sack_permitted && !flags.contains(Flags::RST);
    let has_blocks =
        |disorder: &Disorder| !(disorder.intervals.is_empty() && disorder.duplicate.is_empty());
    let has_sack_blocks = flow.disorder.as_deref().is_some_and(has_blocks);
    // A full segment has no room for blocks: they are sent with the next bare acknowledgement.
    if may_sack && bytes == 0 {
        add_sack_blocks(flow, &mut options);
    }
    flow.last_ack_sent = ack;
    flow.since_ack_bytes = 0;
    flow.acknowledge_at = OptionalTime::NONE;
    flow.acknowledge_now &= may_sack && has_sack_blocks && bytes > 0;
    options.timestamps = flow
        .has_timestamps
        .then(|| (milliseconds(now).wrapping_add(flow.timestamp_offset), flow.recent));
    SegmentHeader { seq, ack, window, flags, bytes, ecn: Ecn::NotCapable, options }
}

/// Adds SACK blocks: first bytes that arrived twice, then out-of-order intervals (RFC 2018, section 4; RFC 2883).
fn add_sack_blocks(flow: &mut Protocol, options: &mut Options) {
    let base = flow.receive_base;
    let seq = |position: u64| seq_of(base, position);
    let Some(disorder) = &mut flow.disorder else { return };
    let twice = core::mem::take(&mut disorder.duplicate);
    let blocks = Some(twice).filter(|one| !one.is_empty()).into_iter();
    for one in blocks.chain(disorder.intervals.iter()) {
        options.push_sack((seq(one.start), seq(one.end)));
    }
}

/// The progress to report to a connection's host, if it is worth an event: received bytes, the end of the stream, or free room
/// in the send ring (a quarter of the ring, or all written bytes acknowledged).
pub fn due_progress(flow: &mut Protocol) -> Option<Progress> {
    let received = flow.landed;
    let acknowledged = flow.acknowledged_bytes();
    let is_finished = flow.has_landed_fin();
    let (notified_received, notified_acknowledged) = flow.notified;
    let freed = acknowledged - notified_acknowledged;
    let is_due = received != notified_received
        || is_finished != flow.notified_end
        || freed >= u64::from(flow.send_ring_bytes / 4)
        || (freed > 0 && acknowledged == flow.written);
    if !is_due {
        return None;
    }
    flow.notified = (received, acknowledged);
    flow.notified_end = is_finished;
    Some(Progress { socket: flow.socket, received, acknowledged, is_finished })
}
