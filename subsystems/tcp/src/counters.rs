//! Counters of FlexTOE's data path.

use crate::datapath::Counter;
use crate::packet::Cause;
use crate::stages::receive::Dropped;

/// Counters of segments that the protocol stage drops, in the order of [`Dropped`].
const DROPPED: [Counter; 6] = [
    counter("PAWSEstab", "Segments with a timestamp older than the last accepted one."),
    counter("dropped.duplicate", "Segments all of whose bytes had arrived before."),
    counter("dropped.outside_window", "Segments outside the window."),
    counter("dropped.unsent_acknowledged", "Segments that acknowledge bytes never sent."),
    counter(
        "dropped.ancient_acknowledgement",
        "Segments with an acknowledgement older than any window.",
    ),
    counter(
        "dropped.too_many_intervals",
        "Segments for whose out-of-order interval there is no room.",
    ),
];

/// Counters of malformed frames, in the order of [`Cause::index`].
const MALFORMED: [Counter; Cause::ALL.len()] = [
    counter(
        "malformed.truncated",
        "The frame ends within a header or before the IP datagram does.",
    ),
    counter("malformed.bad_IP_version", "The version in the IP header contradicts the EtherType."),
    counter("malformed.bad_IP_header_length", "An IPv4 header of less than 20 bytes."),
    counter(
        "malformed.bad_IP_total_length",
        "An IPv4 total length that does not cover the header.",
    ),
    counter("malformed.bad_IP_checksum", "The IPv4 header's checksum is wrong."),
    counter("malformed.fragment", "A fragment of a datagram."),
    counter(
        "malformed.wrong_address",
        "The source is not a single host, or the destination is a group of hosts.",
    ),
    counter(
        "malformed.bad_ARP_packet",
        "An ARP packet that is neither a request nor a reply for IPv4 over Ethernet.",
    ),
    counter("malformed.routing_header", "An IPv6 datagram with a routing header."),
    counter(
        "malformed.bad_extension_header",
        "An extension header of IPv6 that is malformed, out of place, or has an option that must not be skipped; or too many of them.",
    ),
    counter(
        "malformed.bad_hop_limit",
        "A neighbour discovery message that a router has forwarded.",
    ),
    counter("malformed.bad_neighbour_discovery", "A malformed neighbour discovery message."),
    counter("malformed.bad_ICMP_checksum", "The checksum of an ICMP or ICMPv6 message is wrong."),
    counter(
        "malformed.bad_TCP_data_offset",
        "A TCP header of less than 20 bytes, or one that extends beyond the datagram.",
    ),
    counter("malformed.bad_TCP_checksum", "The TCP checksum is wrong."),
    counter("malformed.malformed_TCP_options", "A TCP option with an illegal length."),
];

const fn counter(name: &'static str, about: &'static str) -> Counter {
    Counter { name, about }
}

macro_rules! counters {
    ($($(#[doc = $about:literal])* $name:ident = $shown:literal;)*) => {
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
            pub dropped: [u64; DROPPED.len()],
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

            /// Visits all counters.
            pub fn visit(&self, visit: &mut dyn FnMut(Counter, u64)) {
                $(visit(counter($shown, concat!($($about),*).trim_ascii()), self.$name);)*
                let groups = DROPPED.iter().zip(&self.dropped).chain(MALFORMED.iter().zip(&self.malformed));
                groups.for_each(|(counter, count)| visit(*counter, *count));
            }
        }
    };
}

counters! {
    /// Frames processed (Linux's InSegs, plus frames that are not segments).
    in_segments = "InSegs";
    /// Segments sent.
    out_segments = "OutSegs";
    /// Data segments retransmitted.
    retransmitted = "RetransSegs";
    /// Resets sent.
    out_resets = "OutRsts";
    /// Retransmission timeouts, from the control plane.
    timeouts = "TCPTimeouts";
    /// Losses detected without a timeout.
    fast_retransmits = "TCPFastRetrans";
    /// Those of them detected by selective acknowledgements.
    sack_recoveries = "TCPSackRecovery";
    /// Lost retransmissions; each also counts as a fast retransmit.
    lost_retransmits = "TCPLostRetransmit";
    /// Tail-loss probes sent.
    tail_probes = "TCPLossProbes";
    /// Probes of closed windows.
    probes = "TCPWinProbe";
    /// Delayed acknowledgements sent.
    delayed_acknowledgements = "DelayedACKs";
    /// Segments of frozen connections, which are ignored.
    in_frozen = "dropped.leaving";
    /// Requests that name a connection that no longer exists.
    old_requests = "requests.of_old_connections";
    /// Requests that name another process's connection.
    foreign_requests = "requests.of_other_processes";
    /// Requests with impossible positions.
    wrong_requests = "requests.wrong";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::string::ToString;

    use super::*;

    #[test]
    fn counters_have_unique_names_and_those_of_malformed_frames_name_the_cause() {
        let mut names = BTreeSet::new();
        Counters::default().visit(&mut |counter, _| assert!(names.insert(counter.name)));
        for (cause, counter) in Cause::ALL.iter().zip(MALFORMED) {
            let name = cause.to_string().replace(' ', "_");
            assert_eq!(counter.name.strip_prefix("malformed."), Some(&*name));
        }
    }
}
