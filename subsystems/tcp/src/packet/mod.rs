//! Views and builders of headers: Ethernet, ARP, IPv4, ICMP and TCP.
//!
//! [`parse`] reads a frame, from its Ethernet header on, into values that are valid on their own: lengths lie within the frame,
//! checksums hold, addresses are of single hosts. A frame that fails has one [`Cause`], which is the index of a counter.
//! Builders write into a caller's buffer. Nothing here allocates, keeps state, or decides on an answer.

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmp;
pub mod ipv4;
pub mod options;
pub mod tcp;

pub use arp::{ArpOperation, ArpPacket, build_arp};
pub use ethernet::{BROADCAST, ETHERNET_BYTES, EtherType, EthernetView, MacAddress};
pub use icmp::{Echo, Icmp, Problem, Quoted, Unreachable, build_echo_reply};
pub use ipv4::{Ecn, IPV4_BYTES, Ipv4Header, Ipv4View, TTL_DEFAULT};
pub use options::{OPTIONS_BYTES_MAX, Options, SACK_BLOCKS_MAX, SCALE_MAX};
pub use tcp::{Flags, PARTIAL_CHECKSUM, TCP_BYTES, TcpHeader, TcpSegment, build_tcp, set_diffserv};

/// The reason for dropping a frame. The sender or the wire is to blame for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Cause {
    /// The frame ends within a header or before the IPv4 datagram does.
    #[error("truncated")]
    Truncated,
    /// EtherType IPv4, but another version in the header.
    #[error("bad IP version")]
    BadIpVersion,
    /// An IPv4 header of less than 20 bytes.
    #[error("bad IP header length")]
    BadIpHeaderLength,
    /// An IPv4 total length that does not cover the header.
    #[error("bad IP total length")]
    BadIpTotalLength,
    /// The IPv4 header's checksum is wrong.
    #[error("bad IP checksum")]
    BadIpChecksum,
    /// A part of a datagram. Fragments are not put together.
    #[error("fragment")]
    Fragment,
    /// A source that is no single host, or a destination that is a group of hosts. A caller also uses it for a
    /// destination that is not its own.
    #[error("wrong address")]
    WrongAddress,
    /// An ARP packet that is neither a request nor a reply for IPv4 over Ethernet.
    #[error("bad ARP packet")]
    BadArp,
    /// The ICMP message's checksum is wrong.
    #[error("bad ICMP checksum")]
    BadIcmpChecksum,
    /// A TCP header of less than 20 bytes, or one that ends behind the datagram.
    #[error("bad TCP data offset")]
    BadTcpOffset,
    /// The TCP checksum is wrong.
    #[error("bad TCP checksum")]
    BadTcpChecksum,
    /// A TCP option with an illegal length. [`parse`] never returns it: it reports [`Options::is_malformed`], for a caller
    /// that drops or counts such segments.
    #[error("malformed TCP options")]
    BadTcpOptions,
}

impl Cause {
    /// Every cause, in the order of [`Cause::index`].
    pub const ALL: [Cause; 12] = [
        Cause::Truncated,
        Cause::BadIpVersion,
        Cause::BadIpHeaderLength,
        Cause::BadIpTotalLength,
        Cause::BadIpChecksum,
        Cause::Fragment,
        Cause::WrongAddress,
        Cause::BadArp,
        Cause::BadIcmpChecksum,
        Cause::BadTcpOffset,
        Cause::BadTcpChecksum,
        Cause::BadTcpOptions,
    ];

    /// Its place in an array of counters with `Cause::ALL.len()` elements.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A frame's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A TCP segment.
    Tcp {
        /// The Ethernet header.
        ethernet: EthernetView,
        /// The IPv4 header.
        ip: Ipv4View,
        /// The segment.
        segment: TcpSegment,
    },
    /// An ARP request or reply.
    Arp(EthernetView, ArpPacket),
    /// An ICMP message.
    Icmp(EthernetView, Ipv4View, Icmp<'a>),
    /// Another protocol.
    Other,
}

/// Reads a frame from its Ethernet header on. Padding behind the IPv4 datagram is ignored.
///
/// With `checksum_is_good` the TCP checksum is not verified: the wire has done so, or the packet never left memory and its
/// checksum is partial. IPv4's and ICMP's checksums are always verified.
///
/// # Errors
/// The frame is to be dropped, for this cause.
pub fn parse(frame: &[u8], checksum_is_good: bool) -> Result<Parsed<'_>, Cause> {
    let ethernet = ethernet::parse(frame)?;
    match ethernet.kind {
        EtherType::Arp => {
            ethernet.check_source()?;
            Ok(Parsed::Arp(ethernet, arp::parse(&frame[ethernet.payload..])?))
        }
        EtherType::Ipv4 => {
            let ip = ipv4::parse(frame, ethernet.payload)?;
            match ip.protocol {
                ipv4::PROTOCOL_TCP => {
                    ethernet.check_unicast()?;
                    let segment = tcp::parse(frame, &ip, checksum_is_good)?;
                    Ok(Parsed::Tcp { ethernet, ip, segment })
                }
                ipv4::PROTOCOL_ICMP => {
                    ethernet.check_unicast()?;
                    let message = icmp::parse(frame, &ip)?;
                    Ok(Parsed::Icmp(ethernet, ip, message))
                }
                _ => Ok(Parsed::Other),
            }
        }
        EtherType::Ipv6 | EtherType::Other(_) => Ok(Parsed::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_indices_of_counters() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index);
        }
    }
}
