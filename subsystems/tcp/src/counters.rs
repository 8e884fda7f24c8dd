//! What a data path counts. Where Linux counts the same in /proc/net/snmp or /proc/net/netstat, `wave tcp ss` gives it that name.

use crate::packet::Cause;
use crate::stages::receive::Dropped;

/// Kinds of [`Dropped`].
const DROPPED: usize = 7;

/// What one entry adds to the [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// See [`Counters::in_segments`], and so on.
    pub in_segments: u8,
    /// See [`Counters`].
    pub out_segments: u8,
    /// See [`Counters`].
    pub retransmitted: u8,
    /// See [`Counters`].
    pub out_resets: u8,
    /// See [`Counters`].
    pub timeouts: u8,
    /// See [`Counters`].
    pub fast_retransmits: u8,
    /// See [`Counters`].
    pub sack_recoveries: u8,
    /// See [`Counters`].
    pub tail_probes: u8,
    /// See [`Counters`].
    pub lost_retransmits: u8,
    /// See [`Counters`].
    pub probes: u8,
    /// See [`Counters`].
    pub delayed_acknowledgements: u8,
    /// See [`Counters`].
    pub in_frozen: u8,
    /// See [`Counters`].
    pub old_requests: u8,
    /// See [`Counters`].
    pub foreign_requests: u8,
    /// See [`Counters`].
    pub wrong_requests: u8,
    /// The frame is malformed.
    pub malformed: Option<Cause>,
    /// The segment was dropped.
    pub dropped: Option<Dropped>,
}

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
    /// Losses of retransmissions, each of them counted as a fast retransmit, too (TCPLostRetransmit).
    pub lost_retransmits: u64,
    /// Probes of a tail that may be lost (TCPLossProbes).
    pub tail_probes: u64,
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
    /// Adds what one entry did.
    pub fn add(&mut self, tally: &Tally) {
        self.in_segments += u64::from(tally.in_segments);
        self.out_segments += u64::from(tally.out_segments);
        self.retransmitted += u64::from(tally.retransmitted);
        self.out_resets += u64::from(tally.out_resets);
        self.timeouts += u64::from(tally.timeouts);
        self.fast_retransmits += u64::from(tally.fast_retransmits);
        self.sack_recoveries += u64::from(tally.sack_recoveries);
        self.lost_retransmits += u64::from(tally.lost_retransmits);
        self.tail_probes += u64::from(tally.tail_probes);
        self.probes += u64::from(tally.probes);
        self.delayed_acknowledgements += u64::from(tally.delayed_acknowledgements);
        self.in_frozen += u64::from(tally.in_frozen);
        self.old_requests += u64::from(tally.old_requests);
        self.foreign_requests += u64::from(tally.foreign_requests);
        self.wrong_requests += u64::from(tally.wrong_requests);
        if let Some(cause) = tally.malformed {
            self.malformed[cause.index()] += 1;
        }
        if let Some(dropped) = tally.dropped {
            self.dropped[dropped as usize] += 1;
        }
    }
}
