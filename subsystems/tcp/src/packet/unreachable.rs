//! "Port unreachable", of ICMP (RFC 792) and of ICMPv6 (RFC 4443, 3.1).

use core::net::IpAddr;
use core::ops::Range;

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, EthernetView};
use super::icmp::ICMP_BYTES;
use super::ip::IpView;
use super::ipv4::{self, IPV4_BYTES, Ipv4Header, PROTOCOL_ICMP};
use super::ipv6::{self, IPV6_BYTES, IPV6_MTU_MIN, Ipv6Header, PROTOCOL_ICMP6};
use super::{Ecn, TTL_DEFAULT, checksum, icmp6};

/// Room for the headers of an answer, in bytes.
pub const UNREACHABLE_HEADERS_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + ICMP_BYTES;

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
    unused: U32,
}

const _: () = assert!(size_of::<Wire>() == ICMP_BYTES && icmp6::ICMP6_BYTES == ICMP_BYTES);

const IPV4: Wire = Wire { kind: 3, code: 3, checksum: U16::ZERO, unused: U32::ZERO };
const IPV6: Wire = Wire { kind: 1, code: 4, checksum: U16::ZERO, unused: U32::ZERO };

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
/// `out` is shorter than [`UNREACHABLE_HEADERS_BYTES`], or both addresses are not of one family.
pub fn build_port_unreachable(
    out: &mut [u8],
    ethernet: &EthernetView,
    ip: &IpView<IpAddr>,
    quote: &[u8],
) -> usize {
    let bytes = (ICMP_BYTES + quote.len()) as u32;
    let (ecn, ttl) = (Ecn::NotCapable, TTL_DEFAULT);
    let (kind, wire, ip_bytes) = match (ip.destination, ip.source) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header { source, destination, protocol: PROTOCOL_ICMP, ecn, ttl };
            ipv4::build(&mut out[ETHERNET_BYTES..], &header, bytes);
            let sum = !checksum::add(checksum::sum(IPV4.as_bytes()), checksum::sum(quote));
            (EtherType::Ipv4, Wire { checksum: sum.into(), ..IPV4 }, IPV4_BYTES)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let protocol = PROTOCOL_ICMP6;
            let header = Ipv6Header { source, destination, protocol, ecn, hop_limit: ttl };
            ipv6::build(&mut out[ETHERNET_BYTES..], &header, bytes);
            let sum = icmp6::checksum(&header, IPV6.as_bytes(), quote);
            (EtherType::Ipv6, Wire { checksum: sum.into(), ..IPV6 }, IPV6_BYTES)
        }
        _ => unreachable!("a datagram's addresses are of one family"),
    };
    ethernet::build(out, ethernet.destination, ethernet.source, kind);
    let end = ETHERNET_BYTES + ip_bytes + ICMP_BYTES;
    out[end - ICMP_BYTES..end].copy_from_slice(wire.as_bytes());
    end
}
