//! Views and builders of headers: Ethernet, ARP, IPv4 with ICMP, IPv6 with ICMPv6 and neighbour discovery, and TCP.
//!
//! [`parse`] parses a frame, starting with its Ethernet header, into values that need no further checks: lengths are within the
//! frame, checksums are correct, addresses are of single hosts. A frame that fails has one [`Cause`], which is the index of a
//! counter. Builders write into a caller's buffer. Nothing here allocates, keeps state, or decides on an answer.

pub mod arp;
pub mod checksum;
pub mod discovery;
pub mod ethernet;
pub mod icmp;
pub mod icmp6;
pub mod icmp_reply;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod options;
pub mod tcp;
pub mod udp;

use core::net::IpAddr;

pub use arp::{ArpOperation, ArpPacket, build_arp};
pub use discovery::{DISCOVERY_BYTES, Discovery, build_advertisement, build_solicitation};
pub use ethernet::{BROADCAST, ETHERNET_BYTES, EtherType, EthernetView, MacAddress};
pub use icmp::{Echo, Icmp, Problem, Quoted, Unreachable};
pub use icmp_reply::{
    ICMP_REPLY_HEADERS_BYTES, build_echo_reply, build_port_unreachable, unreachable_quote,
};
pub use icmp6::Icmp6;
pub use ip::IpView;
pub use ipv4::{Ecn, IPV4_BYTES, Ipv4Header, Ipv4View, TTL_DEFAULT};
pub use ipv6::{IPV6_BYTES, Ipv6Header, Ipv6View};
pub use options::{OPTIONS_BYTES_MAX, Options, SACK_BLOCKS_MAX, SCALE_MAX};
pub use tcp::{Flags, TCP_BYTES, TcpHeader, TcpSegment, build_tcp, partial_checksum, set_diffserv};

/// Why a frame is dropped. The sender or the wire is at fault for each cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Cause {
    /// The frame ends within a header or before the IP datagram does.
    #[error("truncated")]
    Truncated,
    /// The version in the IP header contradicts the EtherType.
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
    /// A fragment of a datagram. Fragments are not reassembled.
    #[error("fragment")]
    Fragment,
    /// The source is not a single host, or the destination is a group of hosts. A caller also uses it for a
    /// destination that is not its own.
    #[error("wrong address")]
    WrongAddress,
    /// An ARP packet that is neither a request nor a reply for IPv4 over Ethernet.
    #[error("bad ARP packet")]
    BadArp,
    /// An IPv6 datagram with a routing header.
    #[error("routing header")]
    RoutingHeader,
    /// An extension header of IPv6 that is malformed, out of place, or has an option that must not be skipped; or too many of them.
    #[error("bad extension header")]
    BadExtension,
    /// A neighbour discovery message that a router has forwarded.
    #[error("bad hop limit")]
    BadHopLimit,
    /// A malformed neighbour discovery message.
    #[error("bad neighbour discovery")]
    BadDiscovery,
    /// The checksum of an ICMP or ICMPv6 message is wrong.
    #[error("bad ICMP checksum")]
    BadIcmpChecksum,
    /// A TCP header of less than 20 bytes, or one that extends beyond the datagram.
    #[error("bad TCP data offset")]
    BadTcpOffset,
    /// The TCP checksum is wrong.
    #[error("bad TCP checksum")]
    BadTcpChecksum,
    /// A TCP option with an illegal length. [`parse`] never returns it, but sets [`Options::is_malformed`] for a caller
    /// that drops or counts such segments.
    #[error("malformed TCP options")]
    BadTcpOptions,
}

impl Cause {
    /// Every cause, in the order of [`Cause::index`].
    pub const ALL: [Cause; 16] = [
        Cause::Truncated,
        Cause::BadIpVersion,
        Cause::BadIpHeaderLength,
        Cause::BadIpTotalLength,
        Cause::BadIpChecksum,
        Cause::Fragment,
        Cause::WrongAddress,
        Cause::BadArp,
        Cause::RoutingHeader,
        Cause::BadExtension,
        Cause::BadHopLimit,
        Cause::BadDiscovery,
        Cause::BadIcmpChecksum,
        Cause::BadTcpOffset,
        Cause::BadTcpChecksum,
        Cause::BadTcpOptions,
    ];

    /// Index in an array of counters with `Cause::ALL.len()` elements.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// A parsed frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A TCP segment.
    Tcp {
        /// Fields of the Ethernet header.
        ethernet: EthernetView,
        /// Fields of the IP header.
        ip: IpView<IpAddr>,
        /// Fields of the TCP header.
        segment: TcpSegment,
    },
    /// An ARP request or reply.
    Arp(EthernetView, ArpPacket),
    /// An ICMP message.
    Icmp(EthernetView, Ipv4View, Icmp<'a>),
    /// An ICMPv6 message.
    Icmp6(EthernetView, Ipv6View, Icmp6<'a>),
    /// A UDP datagram, whole and intact, from one host to one host.
    Udp(EthernetView, IpView<IpAddr>),
    /// A frame of another protocol, or a datagram to a group.
    Other,
}

/// The port at which a frame asks for a connection (SYN without ACK). True of every such segment that [`parse`] accepts, and of some that
/// it drops: the TCP checksum and options are not looked at.
pub fn syn_port(frame: &[u8]) -> Option<u16> {
    // Most frames, of IPv4 without options: by one byte, since this is done for every frame.
    const FLAGS: usize = ETHERNET_BYTES + IPV4_BYTES + 13;
    if frame.get(12..15) == Some(&[0x08, 0x00, 0x45])
        && !Flags(*frame.get(FLAGS)?).contains(Flags::SYN)
    {
        return None;
    }
    let ethernet = ethernet::parse(frame).ok()?;
    let (protocol, payload) = match ethernet.kind {
        EtherType::Ipv4 => {
            ipv4::parse(frame, ethernet.payload).map(|ip| (ip.protocol, ip.payload)).ok()?
        }
        EtherType::Ipv6 => {
            ipv6::parse(frame, ethernet.payload).map(|ip| (ip.protocol, ip.payload)).ok()?
        }
        _ => return None,
    };
    (protocol == ipv4::PROTOCOL_TCP).then(|| tcp::syn_port(frame.get(payload)?)).flatten()
}

/// Parses a frame, starting with its Ethernet header. Padding after the IP datagram is ignored.
///
/// With `checksum_is_good` the TCP checksum is not verified: the wire has done so, or the packet never left memory and its
/// checksum is partial. The checksums of IPv4, ICMP and ICMPv6 are always verified.
///
/// # Errors
/// The cause for which the frame must be dropped.
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
                    ip.check_unicast()?;
                    let ip = ip.widen();
                    let segment = tcp::parse(frame, &ip, checksum_is_good)?;
                    Ok(Parsed::Tcp { ethernet, ip, segment })
                }
                ipv4::PROTOCOL_ICMP => {
                    ethernet.check_unicast()?;
                    let message = icmp::parse(frame, &ip)?;
                    Ok(Parsed::Icmp(ethernet, ip, message))
                }
                udp::PROTOCOL_UDP if ip.check_unicast().is_ok() => {
                    Ok(datagram(frame, ethernet, ip.widen(), checksum_is_good))
                }
                _ => Ok(Parsed::Other),
            }
        }
        EtherType::Ipv6 => {
            let ip = ipv6::parse(frame, ethernet.payload)?;
            match ip.protocol {
                ipv4::PROTOCOL_TCP => {
                    ethernet.check_unicast()?;
                    ip.check_unicast()?;
                    let ip = ip.widen();
                    let segment = tcp::parse(frame, &ip, checksum_is_good)?;
                    Ok(Parsed::Tcp { ethernet, ip, segment })
                }
                ipv6::PROTOCOL_ICMP6 => {
                    ethernet.check_source()?;
                    let message = icmp6::parse(frame, &ip)?;
                    // Neighbour discovery uses group addresses, and so do messages that are not read.
                    if !matches!(message, Icmp6::Discovery(_) | Icmp6::Other { .. }) {
                        ethernet.check_unicast()?;
                    }
                    Ok(Parsed::Icmp6(ethernet, ip, message))
                }
                udp::PROTOCOL_UDP if ip.check_unicast().is_ok() => {
                    Ok(datagram(frame, ethernet, ip.widen(), checksum_is_good))
                }
                _ => Ok(Parsed::Other),
            }
        }
        EtherType::Other(_) => Ok(Parsed::Other),
    }
}

fn datagram(
    frame: &[u8],
    ethernet: EthernetView,
    ip: IpView<IpAddr>,
    checksum_is_good: bool,
) -> Parsed<'_> {
    let is_for_one = ethernet.check_unicast().is_ok();
    if is_for_one && udp::is_intact(frame, &ip, checksum_is_good) {
        Parsed::Udp(ethernet, ip)
    } else {
        Parsed::Other
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
