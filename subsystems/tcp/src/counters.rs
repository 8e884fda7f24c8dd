//! Counters of a data path. `wave tcp ss` uses Linux's names for counters that /proc/net/snmp or /proc/net/netstat have as
//! well.

use crate::packet::Cause;
use crate::stages::receive::Dropped;

/// Number of kinds of [`Dropped`].
const DROPPED: usize = 6;

/// Increments of the [`Counters`] by one entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// See [`Counters::in_segments`].
    pub in_segments: u8,
    /// See [`Counters::out_segments`].
    pub out_segments: u8,
    /// See [`Counters::retransmitted`].
    pub retransmitted: u8,
    /// See [`Counters::out_resets`].
    pub out_resets: u8,
    /// See [`Counters::timeouts`].
    pub timeouts: u8,
    /// See [`Counters::fast_retransmits`].
    pub fast_retransmits: u8,
    /// See [`Counters::sack_recoveries`].
    pub sack_recoveries: u8,
    /// See [`Counters::tail_probes`].
    pub tail_probes: u8,
    /// See [`Counters::lost_retransmits`].
    pub lost_retransmits: u8,
    /// See [`Counters::probes`].
    pub probes: u8,
    /// See [`Counters::delayed_acknowledgements`].
    pub delayed_acknowledgements: u8,
    /// See [`Counters::in_frozen`].
    pub in_frozen: u8,
    /// See [`Counters::old_requests`].
    pub old_requests: u8,
    /// See [`Counters::foreign_requests`].
    pub foreign_requests: u8,
    /// See [`Counters::wrong_requests`].
    pub wrong_requests: u8,
    /// Why the frame is malformed; `None` if it is not.
    pub malformed: Option<Cause>,
    /// Why the segment was dropped; `None` if it was not.
    pub dropped: Option<Dropped>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Frames processed (InSegs, plus frames that are not segments).
    pub in_segments: u64,
    /// Segments sent (OutSegs).
    pub out_segments: u64,
    /// Data segments retransmitted (RetransSegs).
    pub retransmitted: u64,
    /// Resets sent (OutRsts).
    pub out_resets: u64,
    /// Retransmission timeouts, from the control plane (TCPTimeouts).
    pub timeouts: u64,
    /// Losses detected without a timeout (TCPFastRetrans).
    pub fast_retransmits: u64,
    /// Those of them detected by selective acknowledgements (TCPSackRecovery).
    pub sack_recoveries: u64,
    /// Lost retransmissions; each also counts as a fast retransmit (TCPLostRetransmit).
    pub lost_retransmits: u64,
    /// Tail-loss probes sent (TCPLossProbes).
    pub tail_probes: u64,
    /// Probes of closed windows (TCPWinProbe).
    pub probes: u64,
    /// Delayed acknowledgements sent (DelayedACKs).
    pub delayed_acknowledgements: u64,
    /// Segments of frozen connections, which are ignored.
    pub in_frozen: u64,
    /// Requests that name a connection that no longer exists.
    pub old_requests: u64,
    /// Requests that name another process's connection.
    pub foreign_requests: u64,
    /// Requests with impossible positions.
    pub wrong_requests: u64,
    /// Frames that are malformed, by cause.
    pub malformed: [u64; Cause::ALL.len()],
    /// Segments that were dropped by the protocol stage, by cause.
    pub dropped: [u64; DROPPED],
}

impl Counters {
    /// Adds one entry's increments.
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

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, more: Counters) {
        // Without `..`, so that no counter is forgotten.
        let Counters {
            in_segments,
            out_segments,
            retransmitted,
            out_resets,
            timeouts,
            fast_retransmits,
            sack_recoveries,
            lost_retransmits,
            tail_probes,
            probes,
            delayed_acknowledgements,
            in_frozen,
            old_requests,
            foreign_requests,
            wrong_requests,
            malformed,
            dropped,
        } = more;
        self.in_segments += in_segments;
        self.out_segments += out_segments;
        self.retransmitted += retransmitted;
        self.out_resets += out_resets;
        self.timeouts += timeouts;
        self.fast_retransmits += fast_retransmits;
        self.sack_recoveries += sack_recoveries;
        self.lost_retransmits += lost_retransmits;
        self.tail_probes += tail_probes;
        self.probes += probes;
        self.delayed_acknowledgements += delayed_acknowledgements;
        self.in_frozen += in_frozen;
        self.old_requests += old_requests;
        self.foreign_requests += foreign_requests;
        self.wrong_requests += wrong_requests;
        self.malformed.iter_mut().zip(malformed).for_each(|(sum, more)| *sum += more);
        self.dropped.iter_mut().zip(dropped).for_each(|(sum, more)| *sum += more);
    }
}
