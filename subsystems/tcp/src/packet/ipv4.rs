//! IPv4 headers (RFC 791).

use core::net::Ipv4Addr;

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ip::IpView;
use super::{Cause, checksum};

/// Length of a header without options, in bytes.
pub const IPV4_BYTES: usize = 20;
/// The protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// The protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Default hop limit of packets that we send (RFC 1700).
pub const TTL_DEFAULT: u8 = 64;

const DONT_FRAGMENT: u16 = 0x4000;
/// Mask of "more fragments" and the offset: nonzero for a fragment.
const FRAGMENT: u16 = 0x3fff;
const FRAGMENT_OFFSET: u16 = 0x1fff;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    version_and_words: u8,
    service: u8,
    total_bytes: U16,
    identification: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

const _: () = assert!(size_of::<Wire>() == IPV4_BYTES);

/// The ECN field: two bits (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The transport does not support ECN (Not-ECT).
    #[default]
    NotCapable,
    /// The transport supports ECN; code point ECT(1).
    Capable1,
    /// The transport supports ECN; code point ECT(0), the usual one.
    Capable0,
    /// The packet met congestion (CE).
    Congestion,
}

impl Ecn {
    /// Decodes the low two bits of a service octet.
    pub(super) const fn from_bits(service: u8) -> Ecn {
        match service & 3 {
            0 => Ecn::NotCapable,
            1 => Ecn::Capable1,
            2 => Ecn::Capable0,
            _ => Ecn::Congestion,
        }
    }
}

/// A parsed IPv4 header.
pub type Ipv4View = IpView<Ipv4Addr>;

impl Ipv4View {
    /// # Errors
    /// [`Cause::WrongAddress`]: the source is not a single host on a wire (RFC 1122, 3.2.1.3), or the destination is a group;
    /// TCP ignores both (RFC 9293, MUST-57 and MUST-63).
    pub(super) fn check_unicast(&self) -> Result<(), Cause> {
        let is_group = |address: Ipv4Addr| {
            address.is_unspecified() || address.is_multicast() || address.is_broadcast()
        };
        if is_group(self.source) || self.source.is_loopback() || is_group(self.destination) {
            return Err(Cause::WrongAddress);
        }
        Ok(())
    }
}

/// Parses the header at offset `start` of a frame.
///
/// The total length must be the real one, up to 65,535 bytes, also for a super-packet that a wire has coalesced. The frame
/// may be longer. IP options are skipped.
///
/// # Errors
/// [`Cause::Truncated`], [`Cause::BadIpVersion`], [`Cause::BadIpHeaderLength`], [`Cause::BadIpTotalLength`],
/// [`Cause::BadIpChecksum`], [`Cause::Fragment`].
pub fn parse(frame: &[u8], start: usize) -> Result<Ipv4View, Cause> {
    let bytes = frame.get(start..).ok_or(Cause::Truncated)?;
    let (wire, _) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    if wire.version_and_words >> 4 != 4 {
        return Err(Cause::BadIpVersion);
    }
    let header_bytes = header_bytes(wire).ok_or(Cause::BadIpHeaderLength)?;
    let total_bytes = usize::from(wire.total_bytes.get());
    if total_bytes < header_bytes {
        return Err(Cause::BadIpTotalLength);
    }
    let datagram = bytes.get(..total_bytes).ok_or(Cause::Truncated)?;
    if checksum::sum(&datagram[..header_bytes]) != checksum::GOOD {
        return Err(Cause::BadIpChecksum);
    }
    if wire.fragment.get() & FRAGMENT != 0 {
        return Err(Cause::Fragment);
    }
    Ok(Ipv4View {
        source: wire.source.into(),
        destination: wire.destination.into(),
        protocol: wire.protocol,
        ecn: Ecn::from_bits(wire.service),
        ttl: wire.ttl,
        payload: start + header_bytes..start + total_bytes,
    })
}

fn header_bytes(wire: &Wire) -> Option<usize> {
    let bytes = usize::from(wire.version_and_words & 0x0f) * 4;
    (bytes >= IPV4_BYTES).then_some(bytes)
}

/// Source, destination, protocol and payload of a header that an ICMP error quotes. The datagram is truncated, and routers on
/// its path may have left its checksum wrong. `None` if it is malformed or a later fragment.
pub(super) fn parse_quoted(bytes: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr, u8, &[u8])> {
    let (wire, _) = Wire::ref_from_prefix(bytes).ok()?;
    if wire.version_and_words >> 4 != 4 || wire.fragment.get() & FRAGMENT_OFFSET != 0 {
        return None;
    }
    let rest = bytes.get(header_bytes(wire)?..)?;
    Some((wire.source.into(), wire.destination.into(), wire.protocol, rest))
}

/// Fields of a header to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Address of the sender.
    pub source: Ipv4Addr,
    /// Address of the receiver.
    pub destination: Ipv4Addr,
    /// The protocol that follows.
    pub protocol: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// Hop limit of the packet.
    pub ttl: u8,
}

/// Writes a header of [`IPV4_BYTES`] with its checksum. Fragmentation is forbidden, so the identification is 0 (RFC 6864, 4.1).
///
/// # Panics
/// `out` is shorter than the header, or header and payload are more than 65,535 bytes.
pub fn build(out: &mut [u8], header: &Ipv4Header, payload_bytes: u32) {
    let total_bytes = u16::try_from(u64::from(payload_bytes) + IPV4_BYTES as u64)
        .expect("an IPv4 datagram is at most 65,535 bytes");
    let mut wire = Wire {
        version_and_words: 0x45,
        service: header.ecn as u8,
        total_bytes: total_bytes.into(),
        identification: 0.into(),
        fragment: DONT_FRAGMENT.into(),
        ttl: header.ttl,
        protocol: header.protocol,
        checksum: 0.into(),
        source: header.source.octets(),
        destination: header.destination.octets(),
    };
    wire.checksum = (!checksum::sum(wire.as_bytes())).into();
    out[..IPV4_BYTES].copy_from_slice(wire.as_bytes());
}

/// Sets the Differentiated Services codepoint of a header that [`build`] has written. The ECN field stays.
///
/// # Panics
/// `header` is shorter than [`IPV4_BYTES`].
pub fn set_diffserv(header: &mut [u8], diffserv: u8) {
    let (wire, _) = Wire::mut_from_prefix(header).expect("a whole header");
    wire.service = diffserv << 2 | wire.service & 3;
    wire.checksum = 0.into();
    wire.checksum = (!checksum::sum(wire.as_bytes())).into();
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Ipv4Header = Ipv4Header {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 0, 0, 2),
        protocol: PROTOCOL_TCP,
        ecn: Ecn::Capable0,
        ttl: TTL_DEFAULT,
    };

    /// A frame with a header at offset 2, 10 bytes of payload, and 6 of padding.
    fn frame() -> [u8; 38] {
        let mut frame = [0; 38];
        build(&mut frame[2..], &HEADER, 10);
        frame
    }

    fn with(at: usize, byte: u8) -> [u8; 38] {
        let mut frame = frame();
        frame[2 + at] = byte;
        frame[12..14].fill(0);
        let sum = checksum::sum(&frame[2..22]);
        frame[12..14].copy_from_slice(&(!sum).to_be_bytes());
        frame
    }

    #[test]
    fn a_built_header_is_parsed_back_without_padding() {
        let expected = Ipv4View {
            source: HEADER.source,
            destination: HEADER.destination,
            protocol: PROTOCOL_TCP,
            ecn: Ecn::Capable0,
            ttl: TTL_DEFAULT,
            payload: 22..32,
        };
        assert_eq!(parse(&frame(), 2), Ok(expected));
    }

    #[test]
    fn each_fault_has_its_cause() {
        assert_eq!(parse(&frame()[..31], 2), Err(Cause::Truncated));
        assert_eq!(parse(&frame()[..21], 2), Err(Cause::Truncated));
        assert_eq!(parse(&frame(), 39), Err(Cause::Truncated));
        assert_eq!(parse(&with(0, 0x65), 2), Err(Cause::BadIpVersion));
        assert_eq!(parse(&with(0, 0x44), 2), Err(Cause::BadIpHeaderLength));
        assert_eq!(parse(&with(3, 19), 2), Err(Cause::BadIpTotalLength));
        assert_eq!(parse(&with(3, 37), 2), Err(Cause::Truncated));
        assert_eq!(parse(&with(6, 0x20), 2), Err(Cause::Fragment));
        assert_eq!(parse(&with(7, 1), 2), Err(Cause::Fragment));
        let mut flipped = frame();
        flipped[10] ^= 1;
        assert_eq!(parse(&flipped, 2), Err(Cause::BadIpChecksum));
    }

    #[test]
    fn ecn_marks_are_parsed() {
        let marks = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::Congestion];
        for (bits, ecn) in marks.into_iter().enumerate() {
            assert_eq!(parse(&with(1, 0xb8 | bits as u8), 2).unwrap().ecn, ecn);
        }
    }

    #[test]
    fn group_and_loopback_addresses_are_not_peers() {
        let one = Ipv4Addr::new(10, 0, 0, 1);
        let view =
            |source, destination| Ipv4View { source, destination, ..parse(&frame(), 2).unwrap() };
        assert_eq!(view(one, one).check_unicast(), Ok(()));
        for group in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
            assert_eq!(view(group, one).check_unicast(), Err(Cause::WrongAddress));
            assert_eq!(view(one, group).check_unicast(), Err(Cause::WrongAddress));
        }
        assert_eq!(view(Ipv4Addr::LOCALHOST, one).check_unicast(), Err(Cause::WrongAddress));
    }

    #[test]
    #[should_panic(expected = "at most 65,535 bytes")]
    fn an_overlong_datagram_is_not_built() {
        build(&mut [0; 20], &HEADER, 65_516);
    }
}
