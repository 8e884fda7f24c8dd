//! Replies of ICMP (RFC 792) and of ICMPv6 (RFC 4443): to echo requests, and "port unreachable".

use core::net::IpAddr;
use core::ops::Range;

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, EthernetView};
use super::icmp::{Echo, ICMP_BYTES};
use super::ip::IpView;
use super::ipv4::{self, IPV4_BYTES, Ipv4Header, PROTOCOL_ICMP};
use super::ipv6::{self, IPV6_BYTES, IPV6_MTU_MIN, Ipv6Header, PROTOCOL_ICMP6};
use super::{Ecn, TTL_DEFAULT, checksum, icmp, icmp6};

/// Room for the headers of a reply, in bytes.
pub const ICMP_REPLY_HEADERS_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + ICMP_BYTES;

/// Longest IPv4 datagram that is an answer (RFC 1812, 4.3.2.3).
const IPV4_ANSWER_MAX: usize = 576;
/// The same over IPv6 (RFC 4443, 3.1).
const IPV6_ANSWER_MAX: usize = IPV6_MTU_MIN as usize;

#[derive(IntoBytes, zerocopy::Immutable, zerocopy::Unaligned)]
#[repr(C)]
struct Wire {
    kind: u8,
    code: u8,
    checksum: U16,
    /// An echo's identifier and sequence number.
    rest: U32,
}

const _: () = assert!(size_of::<Wire>() == ICMP_BYTES);

/// The part of a frame that the answer to its datagram quotes: as much of the datagram as fits.
pub fn unreachable_quote(ethernet: &EthernetView, ip: &IpView<IpAddr>) -> Range<usize> {
    let bytes_max = match ip.source {
        IpAddr::V4(_) => IPV4_ANSWER_MAX - IPV4_BYTES - ICMP_BYTES,
        IpAddr::V6(_) => IPV6_ANSWER_MAX - IPV6_BYTES - ICMP_BYTES,
    };
    ethernet.payload..ip.payload.end.min(ethernet.payload + bytes_max)
}

/// Writes the headers of the answer to a datagram, and returns their length. The caller appends the quote.
///
/// # Panics
/// `out` is shorter than [`ICMP_REPLY_HEADERS_BYTES`], or both addresses are not of one family.
pub fn build_port_unreachable(
    out: &mut [u8],
    ethernet: &EthernetView,
    ip: &IpView<IpAddr>,
    quote: &[u8],
) -> usize {
    build(out, ethernet, ip, [(icmp::UNREACHABLE, 3), (icmp6::UNREACHABLE, 4)], 0, quote)
}

/// Writes the headers of the reply to an echo request with these headers, and returns their length. The caller appends the same
/// data.
///
/// # Panics
/// See [`build_port_unreachable`].
pub fn build_echo_reply<A: Copy + Into<IpAddr>>(
    out: &mut [u8],
    ethernet: &EthernetView,
    ip: &IpView<A>,
    echo: &Echo<'_>,
) -> usize {
    let rest = u32::from(echo.identifier) << 16 | u32::from(echo.sequence);
    build(out, ethernet, ip, [(icmp::ECHO_REPLY, 0), (icmp6::ECHO_REPLY, 0)], rest, echo.data)
}

/// Writes the headers of a message to the sender of `ip`. `kinds` has its type and code in ICMP and in ICMPv6.
fn build<A: Copy + Into<IpAddr>>(
    out: &mut [u8],
    ethernet: &EthernetView,
    ip: &IpView<A>,
    kinds: [(u8, u8); 2],
    rest: u32,
    data: &[u8],
) -> usize {
    let bytes = (ICMP_BYTES + data.len()) as u32;
    let (ecn, ttl) = (Ecn::NotCapable, TTL_DEFAULT);
    let wire = |(kind, code)| Wire { kind, code, checksum: U16::ZERO, rest: rest.into() };
    let (ether_type, mut wire, sum, ip_bytes) = match (ip.destination.into(), ip.source.into()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header { source, destination, protocol: PROTOCOL_ICMP, ecn, ttl };
            ipv4::build(&mut out[ETHERNET_BYTES..], &header, bytes);
            let wire = wire(kinds[0]);
            let sum = !checksum::add(checksum::sum(wire.as_bytes()), checksum::sum(data));
            (EtherType::Ipv4, wire, sum, IPV4_BYTES)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let protocol = PROTOCOL_ICMP6;
            let header = Ipv6Header { source, destination, protocol, ecn, hop_limit: ttl };
            ipv6::build(&mut out[ETHERNET_BYTES..], &header, bytes);
            let wire = wire(kinds[1]);
            let sum = icmp6::checksum(&header, wire.as_bytes(), data);
            (EtherType::Ipv6, wire, sum, IPV6_BYTES)
        }
        _ => unreachable!("a datagram's addresses are of one family"),
    };
    wire.checksum = sum.into();
    ethernet::build(out, ethernet.destination, ethernet.source, ether_type);
    let end = ETHERNET_BYTES + ip_bytes + ICMP_BYTES;
    out[end - ICMP_BYTES..end].copy_from_slice(wire.as_bytes());
    end
}
