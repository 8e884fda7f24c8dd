//! IPv6 headers, and the extension headers that may follow them (RFC 8200).

use core::net::Ipv6Addr;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ip::IpView;
use super::{Cause, Ecn, MacAddress};

/// Length of a header without extension headers, in bytes.
pub const IPV6_BYTES: usize = 40;
/// The protocol number of ICMPv6.
pub const PROTOCOL_ICMP6: u8 = 58;
/// MTU in bytes that every link supports at least (RFC 8200, 5).
pub const IPV6_MTU_MIN: u16 = 1280;
/// Limit of bytes of extension headers that are skipped.
pub const EXTENSION_BYTES_MAX: usize = 256;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
/// Offset of an option type's two high bits, which say what to do with an unknown option: 0 is to skip it (RFC 8200, 4.2).
const ACTION_SHIFT: u8 = 6;
const PAD_ONE: u8 = 0;
/// Mask of "more fragments" and the offset: nonzero for a fragment that is not a whole datagram.
const FRAGMENT_MASK: u16 = 0xfff9;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    /// Version, traffic class and flow label: 4, 8 and 20 bits.
    first: U32,
    payload_bytes: U16,
    next: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

const _: () = assert!(size_of::<Wire>() == IPV6_BYTES);

/// A parsed IPv6 header.
pub type Ipv6View = IpView<Ipv6Addr>;

impl Ipv6View {
    /// # Errors
    /// [`Cause::WrongAddress`]: the source or the destination is not a single host on a wire (RFC 4291, 2.5.2, 2.5.3, 2.7), or
    /// is an IPv4-mapped address, which no wire carries (RFC 4942, 2.2).
    pub(super) fn check_unicast(&self) -> Result<(), Cause> {
        let is_host = |address: Ipv6Addr| {
            !address.is_unspecified()
                && !address.is_loopback()
                && !address.is_multicast()
                && address.to_ipv4_mapped().is_none()
        };
        if is_host(self.source) && is_host(self.destination) {
            Ok(())
        } else {
            Err(Cause::WrongAddress)
        }
    }
}

/// Parses the header at offset `start` of a frame, and skips extension headers. The frame may be longer.
///
/// Hop-by-hop and destination options are skipped, at most [`EXTENSION_BYTES_MAX`] in all, and so is the header of a fragment
/// that is the whole datagram (RFC 6946).
///
/// # Errors
/// [`Cause::Truncated`], [`Cause::BadIpVersion`], [`Cause::Fragment`], [`Cause::RoutingHeader`], [`Cause::BadExtension`].
pub fn parse(frame: &[u8], start: usize) -> Result<Ipv6View, Cause> {
    let bytes = frame.get(start..).ok_or(Cause::Truncated)?;
    let (wire, rest) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    let first = wire.first.get();
    if first >> 28 != 6 {
        return Err(Cause::BadIpVersion);
    }
    let payload_bytes = usize::from(wire.payload_bytes.get());
    let payload = rest.get(..payload_bytes).ok_or(Cause::Truncated)?;
    let (protocol, skipped) = skip_extension_headers(wire.next, payload)?;
    let payload_start = start + IPV6_BYTES;
    Ok(Ipv6View {
        source: wire.source.into(),
        destination: wire.destination.into(),
        protocol,
        ecn: Ecn::from_bits((first >> 20) as u8),
        ttl: wire.hop_limit,
        payload: payload_start + skipped..payload_start + payload_bytes,
    })
}

/// The protocol after the extension headers, and their length.
fn skip_extension_headers(mut next: u8, bytes: &[u8]) -> Result<(u8, usize), Cause> {
    let mut at = 0;
    loop {
        match next {
            ROUTING => return Err(Cause::RoutingHeader),
            AUTHENTICATION => return Err(Cause::BadExtension),
            HOP_BY_HOP if at > 0 => return Err(Cause::BadExtension),
            HOP_BY_HOP | DESTINATION_OPTIONS | FRAGMENT => {}
            protocol => return Ok((protocol, at)),
        }
        let header = bytes.get(at..).ok_or(Cause::BadExtension)?;
        let [following, words, high, low, ..] = *header else { return Err(Cause::BadExtension) };
        let len = if next == FRAGMENT { 8 } else { 8 * (usize::from(words) + 1) };
        let header = header.get(..len).ok_or(Cause::BadExtension)?;
        if next == FRAGMENT {
            if u16::from_be_bytes([high, low]) & FRAGMENT_MASK != 0 {
                return Err(Cause::Fragment);
            }
        } else if !are_ignorable(&header[2..]) {
            return Err(Cause::BadExtension);
        }
        at += len;
        if at > EXTENSION_BYTES_MAX {
            return Err(Cause::BadExtension);
        }
        next = following;
    }
}

/// Whether a host that knows none of these options may skip them all.
fn are_ignorable(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [] => return true,
            [PAD_ONE, ref rest @ ..] => options = rest,
            [kind, bytes, ref rest @ ..] if kind >> ACTION_SHIFT == 0 => {
                let Some(rest) = rest.get(usize::from(bytes)..) else { return false };
                options = rest;
            }
            _ => return false,
        }
    }
}

/// Source, destination, protocol and payload of a header that an ICMPv6 error quotes. The datagram is truncated. `None` if it
/// is malformed or a fragment.
pub(super) fn parse_quoted(bytes: &[u8]) -> Option<(Ipv6Addr, Ipv6Addr, u8, &[u8])> {
    let (wire, rest) = Wire::ref_from_prefix(bytes).ok()?;
    if wire.first.get() >> 28 != 6 {
        return None;
    }
    let (protocol, skipped) = skip_extension_headers(wire.next, rest).ok()?;
    Some((wire.source.into(), wire.destination.into(), protocol, &rest[skipped..]))
}

/// Fields of a header to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Address of the sender.
    pub source: Ipv6Addr,
    /// Address of the receiver.
    pub destination: Ipv6Addr,
    /// The protocol that follows.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// Hop limit of the packet.
    pub hop_limit: u8,
}

/// Writes a header of [`IPV6_BYTES`], with flow label 0.
///
/// # Panics
/// `out` is shorter than the header, or the payload is more than 65,535 bytes.
pub fn build(out: &mut [u8], header: &Ipv6Header, payload_bytes: u32) {
    let payload_bytes = u16::try_from(payload_bytes)
        .expect("the payload of an IPv6 datagram is at most 65,535 bytes");
    let wire = Wire {
        first: (6 << 28 | (header.ecn as u32) << 20).into(),
        payload_bytes: payload_bytes.into(),
        next: header.protocol,
        hop_limit: header.hop_limit,
        source: header.source.octets(),
        destination: header.destination.octets(),
    };
    out[..IPV6_BYTES].copy_from_slice(wire.as_bytes());
}

/// Sets the Differentiated Services codepoint of a header that [`build`] has written. The ECN field stays.
///
/// # Panics
/// `header` is shorter than [`IPV6_BYTES`].
pub fn set_diffserv(header: &mut [u8], diffserv: u8) {
    let (wire, _) = Wire::mut_from_prefix(header).expect("a whole header");
    let first = wire.first.get();
    wire.first = (first & !(0x3f << 22) | u32::from(diffserv) << 22).into();
}

/// The solicited-node group of an address, in which its host receives solicitations (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet address of a group (RFC 2464, 7).
pub fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::TTL_DEFAULT;
    use crate::packet::ipv4::PROTOCOL_TCP;

    const HEADER: Ipv6Header = Ipv6Header {
        source: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
        destination: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2),
        protocol: PROTOCOL_TCP,
        ecn: Ecn::Capable0,
        hop_limit: TTL_DEFAULT,
    };

    /// A frame with a header at offset 2, these extension headers, the first of kind `next`, 10 bytes of payload, and 6 of
    /// padding.
    fn frame(next: u8, extensions: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 42];
        let header = Ipv6Header { protocol: next, ..HEADER };
        build(&mut frame[2..], &header, extensions.len() as u32 + 10);
        frame.extend_from_slice(extensions);
        frame.extend_from_slice(&[0; 16]);
        frame
    }

    fn read(next: u8, extensions: &[u8]) -> Result<Ipv6View, Cause> {
        parse(&frame(next, extensions), 2)
    }

    fn expected(skipped: usize) -> Ipv6View {
        Ipv6View {
            source: HEADER.source,
            destination: HEADER.destination,
            protocol: PROTOCOL_TCP,
            ecn: Ecn::Capable0,
            ttl: TTL_DEFAULT,
            payload: 42 + skipped..52 + skipped,
        }
    }

    #[test]
    fn a_built_header_is_parsed_back_without_padding() {
        assert_eq!(read(PROTOCOL_TCP, &[]), Ok(expected(0)));
    }

    #[test]
    fn each_fault_has_its_cause() {
        let good = frame(PROTOCOL_TCP, &[]);
        assert_eq!(parse(&good[..51], 2), Err(Cause::Truncated));
        assert_eq!(parse(&good[..41], 2), Err(Cause::Truncated));
        assert_eq!(parse(&good, 59), Err(Cause::Truncated));
        let mut other = good;
        other[2] = 0x45;
        assert_eq!(parse(&other, 2), Err(Cause::BadIpVersion));
    }

    #[test]
    fn unknown_options_are_skipped_if_their_type_allows_it() {
        // A router alert and padding; then an unknown option and one byte of padding.
        let each_hop = [60, 0, 5, 2, 0, 0, 1, 0];
        let destination = [6, 1, 0x1e, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0];
        let both = [&each_hop[..], &destination].concat();
        assert_eq!(read(HOP_BY_HOP, &both), Ok(expected(24)));
        // The same options, but the two high bits ask to drop the packet.
        for bits in [0x40, 0x80, 0xc0] {
            let mut asks = both.clone();
            asks[10] |= bits;
            assert_eq!(read(HOP_BY_HOP, &asks), Err(Cause::BadExtension));
        }
        // An option that extends beyond its header, and a header that extends beyond the datagram.
        assert_eq!(read(DESTINATION_OPTIONS, &[6, 0, 1, 5, 0, 0, 0, 0]), Err(Cause::BadExtension));
        assert_eq!(read(DESTINATION_OPTIONS, &[6, 9, 1, 4, 0, 0, 0, 0]), Err(Cause::BadExtension));
        // Hop-by-hop options must come first.
        assert_eq!(
            read(DESTINATION_OPTIONS, &[HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0]),
            Err(Cause::BadExtension)
        );
    }

    #[test]
    fn the_chain_of_extension_headers_is_bounded() {
        let chain = |count: usize| {
            let mut chain = [DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0].repeat(count);
            chain[8 * (count - 1)] = PROTOCOL_TCP;
            chain
        };
        let most = EXTENSION_BYTES_MAX / 8;
        assert_eq!(read(DESTINATION_OPTIONS, &chain(most)), Ok(expected(EXTENSION_BYTES_MAX)));
        assert_eq!(read(DESTINATION_OPTIONS, &chain(most + 1)), Err(Cause::BadExtension));
    }

    #[test]
    fn fragments_and_routing_headers_are_dropped() {
        assert_eq!(read(FRAGMENT, &[6, 0, 0, 1, 0, 0, 0, 9]), Err(Cause::Fragment));
        assert_eq!(read(FRAGMENT, &[6, 0, 0, 8, 0, 0, 0, 9]), Err(Cause::Fragment));
        assert_eq!(read(FRAGMENT, &[6, 0, 0, 0, 0, 0, 0, 9]), Ok(expected(8)), "RFC 6946");
        assert_eq!(read(ROUTING, &[6, 0, 0, 0, 0, 0, 0, 0]), Err(Cause::RoutingHeader));
        assert_eq!(read(AUTHENTICATION, &[6, 1, 0, 0, 0, 0, 0, 0]), Err(Cause::BadExtension));
    }

    #[test]
    fn ecn_marks_are_parsed() {
        let marks = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Congestion];
        for (bits, ecn) in marks.into_iter().enumerate() {
            let mut marked = frame(PROTOCOL_TCP, &[]);
            (marked[2], marked[3]) = (0x6b, (bits as u8) << 4 | 0x0f);
            assert_eq!(parse(&marked, 2).unwrap().ecn, ecn);
        }
    }

    #[test]
    fn setting_differentiated_services_keeps_ecn_marks() {
        let mut frame = frame(PROTOCOL_TCP, &[]);
        set_diffserv(&mut frame[2..], 0x2e);
        assert_eq!(frame[2..6], [0x6b, 0xa0, 0, 0]);
    }

    #[test]
    fn group_loopback_and_mapped_addresses_are_not_peers() {
        let one = HEADER.source;
        let view = |source, destination| Ipv6View { source, destination, ..expected(0) };
        assert_eq!(view(one, one).check_unicast(), Ok(()));
        for text in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            let wrong = text.parse().unwrap();
            assert_eq!(view(wrong, one).check_unicast(), Err(Cause::WrongAddress), "{text}");
            assert_eq!(view(one, wrong).check_unicast(), Err(Cause::WrongAddress), "{text}");
        }
    }

    #[test]
    fn the_example_of_rfc_4291_holds() {
        let address = "4037::1:800:200e:8c6c".parse().unwrap();
        let group = solicited_node(address);
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]);
    }

    #[test]
    #[should_panic(expected = "at most 65,535 bytes")]
    fn an_overlong_datagram_is_not_built() {
        build(&mut [0; 40], &HEADER, 65_536);
    }
}
