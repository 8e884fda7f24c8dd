//! The protocol stage for what a segment and an event say: a copy of the state that they tell, taken in order (thesis 4.3.1.3).
//! The post-processing stage makes headers of it, in any order.

use wave_core::clock::Nanos;

use super::acknowledge::milliseconds;
use super::host;
use crate::context::Progress;
use crate::flow::disorder::Disorder;
use crate::flow::moment::Moment;
use crate::flow::state::Protocol;
use crate::packet::{Ecn, Flags, Options};
use crate::seq::{Seq, seq_of};

/// What a segment's headers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Sequence number of its first byte.
    pub seq: Seq,
    /// What is expected of the peer.
    pub ack: Seq,
    /// Window field of the header.
    pub window: u16,
    /// Control bits of the header.
    pub flags: Flags,
    /// Number of payload bytes.
    pub bytes: u32,
    /// Whether the network may mark its packet.
    pub ecn: Ecn,
    /// Our time and the echo of the peer's, and what came out of order.
    pub options: Options,
}

/// What a segment says. With it, everything that is expected and open is told to the peer.
pub fn say(flow: &mut Protocol, seq: Seq, flags: Flags, bytes: u32, now: Nanos) -> Said {
    let ack = flow.expected();
    let echoes = flow.ecn.is_some_and(|ecn| ecn.is_echoing) && !flags.contains(Flags::RST);
    let flags = if echoes { flags | Flags::ECE } else { flags };
    let mut options = Options::default();
    let tells = flow.is_selective && !flags.contains(Flags::RST);
    let has_blocks =
        |disorder: &Disorder| !(disorder.intervals.is_empty() && disorder.duplicate.is_empty());
    let must_tell = flow.disorder.as_deref().is_some_and(has_blocks);
    // Blocks take room that a full segment does not have: they go with the next bare one.
    if tells && bytes == 0 {
        tell_blocks(flow, &mut options);
    }
    let window = host::window(flow);
    flow.told = ack;
    flow.untold_bytes = 0;
    flow.acknowledge_at = Moment::NEVER;
    flow.acknowledge_now &= tells && must_tell && bytes > 0;
    options.timestamps = flow
        .has_timestamps
        .then(|| (milliseconds(now).wrapping_add(flow.timestamp_offset), flow.recent));
    Said { seq, ack, window, flags, bytes, ecn: Ecn::NotCapable, options }
}

/// What came out of order, and before that what came twice (RFC 2018, section 4; RFC 2883).
fn tell_blocks(flow: &mut Protocol, options: &mut Options) {
    let base = flow.receive_base;
    let seq = |position: u64| seq_of(base, position);
    let Some(disorder) = &mut flow.disorder else { return };
    let twice = core::mem::take(&mut disorder.duplicate);
    let blocks = Some(twice).filter(|one| !one.is_empty()).into_iter();
    for one in blocks.chain(disorder.intervals.iter()) {
        options.push_sack((seq(one.start), seq(one.end)));
    }
}

/// What the host of a connection does not know yet, if that is worth an event: bytes, the end, or a quarter of its ring, or all of it,
/// that is free again.
pub fn news(flow: &mut Protocol) -> Option<Progress> {
    let received = flow.landed;
    let acknowledged = flow.acknowledged_bytes();
    let is_finished = flow.has_landed_fin();
    let (told_received, told_acknowledged) = flow.host_told;
    let freed = acknowledged - told_acknowledged;
    let is_news = received != told_received
        || is_finished != flow.host_told_end
        || freed >= u64::from(flow.send_ring_bytes / 4)
        || (freed > 0 && acknowledged == flow.written);
    if !is_news {
        return None;
    }
    flow.host_told = (received, acknowledged);
    flow.host_told_end = is_finished;
    Some(Progress { socket: flow.socket, received, acknowledged, is_finished })
}
