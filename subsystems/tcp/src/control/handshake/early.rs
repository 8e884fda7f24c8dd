//! The first segments of connections that wait for a slot. A peer that sends its request at once would otherwise wait for its
//! retransmission timeout after the program has accepted.

use alloc::collections::VecDeque;

use super::{Handshake, carries_data};
use crate::datapath::{FlowId, Packet};
use crate::packet::TcpSegment;

/// Limit of kept segments: half of a wire's frames, so that the wire always has some.
const EARLY_MAX: usize = 128;

/// The segment of a handshake that is kept, and the process whose listener it is for.
#[derive(Debug)]
pub(in crate::control) struct EarlySegment<F> {
    id: FlowId,
    process: u16,
    pub(super) packet: Packet<F>,
}

/// The kept segments, at most one of each handshake.
#[derive(Debug)]
pub(in crate::control) struct EarlySegments<F> {
    kept: VecDeque<EarlySegment<F>>,
}

impl<F> EarlySegments<F> {
    pub(in crate::control) fn new() -> EarlySegments<F> {
        EarlySegments { kept: VecDeque::new() }
    }

    /// Keeps the first segment of a handshake's stream. A process may keep as many as it leaves free for others. Other segments
    /// are lost, and come again. Returns false if an earlier one is kept.
    pub(super) fn keep(
        &mut self,
        id: FlowId,
        handshake: &Handshake,
        segment: &TcpSegment,
        packet: Packet<F>,
    ) -> bool {
        if self.kept.iter().any(|kept| kept.id == id) {
            return false;
        }
        let process = handshake.process();
        let is_first = segment.seq == handshake.irs.plus(1) && carries_data(segment);
        let own = self.kept.iter().filter(|kept| kept.process == process).count();
        let has_room = own < EARLY_MAX - self.kept.len();
        if is_first && has_room {
            self.kept.push_back(EarlySegment { id, process, packet });
        }
        true
    }

    /// Takes a handshake's segment, if one is kept.
    pub(super) fn take(&mut self, id: FlowId) -> Option<EarlySegment<F>> {
        let at = self.kept.iter().position(|kept| kept.id == id)?;
        self.kept.remove(at)
    }

    /// Keeps a segment again that was taken just now.
    pub(super) fn put_back(&mut self, kept: EarlySegment<F>) {
        self.kept.push_back(kept);
    }
}
