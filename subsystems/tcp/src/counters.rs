//! Counters of a data path. `wave tcp ss` uses Linux's names for counters that /proc/net/snmp or /proc/net/netstat have as
//! well.

use crate::packet::Cause;
use crate::stages::receive::Dropped;

/// Number of kinds of [`Dropped`].
const DROPPED: usize = 6;

macro_rules! counters {
    ($($(#[doc = $about:literal])* $name:ident;)*) => {
        /// Increments of the [`Counters`] by one entry.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[doc = $about])* pub $name: u8,)*
            /// Why the frame is malformed; `None` if it is not.
            pub malformed: Option<Cause>,
            /// Why the segment was dropped; `None` if it was not.
            pub dropped: Option<Dropped>,
        }

        /// Counts since the start.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Counters {
            $($(#[doc = $about])* pub $name: u64,)*
            /// Frames that are malformed, by cause.
            pub malformed: [u64; Cause::ALL.len()],
            /// Segments that were dropped by the protocol stage, by cause.
            pub dropped: [u64; DROPPED],
        }

        impl Counters {
            /// Adds one entry's increments.
            pub fn add(&mut self, tally: &Tally) {
                $(self.$name += u64::from(tally.$name);)*
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
                $(self.$name += more.$name;)*
                self.malformed.iter_mut().zip(more.malformed).for_each(|(sum, more)| *sum += more);
                self.dropped.iter_mut().zip(more.dropped).for_each(|(sum, more)| *sum += more);
            }
        }
    };
}

counters! {
    /// Frames processed (InSegs, plus frames that are not segments).
    in_segments;
    /// Segments sent (OutSegs).
    out_segments;
    /// Data segments retransmitted (RetransSegs).
    retransmitted;
    /// Resets sent (OutRsts).
    out_resets;
    /// Retransmission timeouts, from the control plane (TCPTimeouts).
    timeouts;
    /// Losses detected without a timeout (TCPFastRetrans).
    fast_retransmits;
    /// Those of them detected by selective acknowledgements (TCPSackRecovery).
    sack_recoveries;
    /// Lost retransmissions; each also counts as a fast retransmit (TCPLostRetransmit).
    lost_retransmits;
    /// Tail-loss probes sent (TCPLossProbes).
    tail_probes;
    /// Probes of closed windows (TCPWinProbe).
    probes;
    /// Delayed acknowledgements sent (DelayedACKs).
    delayed_acknowledgements;
    /// Segments of frozen connections, which are ignored.
    in_frozen;
    /// Requests that name a connection that no longer exists.
    old_requests;
    /// Requests that name another process's connection.
    foreign_requests;
    /// Requests with impossible positions.
    wrong_requests;
}
