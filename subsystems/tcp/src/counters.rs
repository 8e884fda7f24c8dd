//! What a data path counts. Where Linux counts the same in /proc/net/snmp or /proc/net/netstat, `wave tcp ss` gives it that name.

use crate::flow::state::Protocol;
use crate::packet::Cause;
use crate::stages::receive::Dropped;

/// Kinds of [`Dropped`].
const DROPPED: usize = 7;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Frames looked at (InSegs, and what is no segment).
    pub in_segments: u64,
    /// Segments sent (OutSegs).
    pub out_segments: u64,
    /// Segments of data sent again (RetransSegs).
    pub retransmitted: u64,
    /// Resets sent (OutRsts).
    pub out_resets: u64,
    /// Times that the control plane's timer ran out (TCPTimeouts).
    pub timeouts: u64,
    /// Losses noticed without a timeout (TCPFastRetrans).
    pub fast_retransmits: u64,
    /// Those of them that selective acknowledgements told of (TCPSackRecovery).
    pub sack_recoveries: u64,
    /// Probes of closed windows (TCPWinProbe).
    pub probes: u64,
    /// Acknowledgements that went out late (DelayedACKs).
    pub delayed_acknowledgements: u64,
    /// Segments of connections that are about to leave.
    pub in_frozen: u64,
    /// Requests that name a connection that is no more.
    pub old_requests: u64,
    /// Requests that name another process's connection.
    pub foreign_requests: u64,
    /// Requests that cannot be.
    pub wrong_requests: u64,
    /// Frames that are malformed, by cause.
    pub malformed: [u64; Cause::ALL.len()],
    /// Segments that were dropped by the protocol stage, by cause.
    pub dropped: [u64; DROPPED],
}

impl Counters {
    /// A frame is malformed.
    pub fn count(&mut self, cause: Cause) {
        self.malformed[cause.index()] += 1;
    }

    /// A flow has noticed a loss.
    pub fn noticed_loss(&mut self, flow: &Protocol) {
        self.fast_retransmits += 1;
        self.sack_recoveries += u64::from(flow.selective.is_recovering);
    }

    /// A segment was dropped.
    pub fn dropped(&mut self, dropped: Dropped) {
        self.dropped[dropped as usize] += 1;
    }
}
