//! Ethernet II headers, with at most one VLAN tag (IEEE 802.1Q).

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Cause;

/// An Ethernet address, in wire order.
pub type MacAddress = [u8; 6];

/// The broadcast address.
pub const BROADCAST: MacAddress = [0xff; 6];
/// Length of a header without a tag, in bytes.
pub const ETHERNET_BYTES: usize = 14;

const TAG_BYTES: usize = 4;
/// Lowest bit of an address's first byte: set for a group of stations.
const GROUP: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    destination: MacAddress,
    source: MacAddress,
    kind: U16,
}

#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Tag {
    control: U16,
    kind: U16,
}

const _: () = assert!(size_of::<Wire>() == ETHERNET_BYTES && size_of::<Tag>() == TAG_BYTES);

/// The protocol that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// IPv4.
    Ipv4,
    /// ARP.
    Arp,
    /// IPv6.
    Ipv6,
    /// Any other protocol, including a second VLAN tag.
    Other(u16),
}

impl EtherType {
    const fn from_number(number: u16) -> EtherType {
        match number {
            0x0800 => EtherType::Ipv4,
            0x0806 => EtherType::Arp,
            0x86dd => EtherType::Ipv6,
            other => EtherType::Other(other),
        }
    }

    const fn number(self) -> u16 {
        match self {
            EtherType::Ipv4 => 0x0800,
            EtherType::Arp => 0x0806,
            EtherType::Ipv6 => 0x86dd,
            EtherType::Other(number) => number,
        }
    }
}

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetView {
    /// Address of the sender.
    pub source: MacAddress,
    /// Address of the receiver.
    pub destination: MacAddress,
    /// The VLAN's number (0 to 4095), if the frame is tagged; 0 is a priority without a VLAN. Builders write no tag, so a
    /// caller may answer only frames for which an untagged answer is right.
    pub vlan: Option<u16>,
    /// The protocol that follows.
    pub kind: EtherType,
    /// Offset of the payload in the frame.
    pub payload: usize,
}

impl EthernetView {
    /// # Errors
    /// [`Cause::WrongAddress`]: the source is a group, to which nothing may be sent back.
    pub(super) fn check_source(&self) -> Result<(), Cause> {
        if self.source[0] & GROUP != 0 { Err(Cause::WrongAddress) } else { Ok(()) }
    }

    /// # Errors
    /// [`Cause::WrongAddress`]: an address is a group's. A host drops unicast datagrams in broadcast frames (RFC 1122, 3.3.6).
    pub(super) fn check_unicast(&self) -> Result<(), Cause> {
        self.check_source()?;
        if self.destination[0] & GROUP != 0 { Err(Cause::WrongAddress) } else { Ok(()) }
    }
}

/// Parses a frame's header, and its VLAN tag if it has one (0x8100, or a provider's 0x88a8).
///
/// # Errors
/// [`Cause::Truncated`].
pub fn parse(frame: &[u8]) -> Result<EthernetView, Cause> {
    let (wire, rest) = Wire::ref_from_prefix(frame).map_err(|_| Cause::Truncated)?;
    let mut view = EthernetView {
        source: wire.source,
        destination: wire.destination,
        vlan: None,
        kind: EtherType::from_number(wire.kind.get()),
        payload: ETHERNET_BYTES,
    };
    if let EtherType::Other(0x8100 | 0x88a8) = view.kind {
        let (tag, _) = Tag::ref_from_prefix(rest).map_err(|_| Cause::Truncated)?;
        view.vlan = Some(tag.control.get() & 0x0fff);
        view.kind = EtherType::from_number(tag.kind.get());
        view.payload += TAG_BYTES;
    }
    Ok(view)
}

/// Writes a header of [`ETHERNET_BYTES`], without a tag.
///
/// # Panics
/// `out` is shorter than the header.
pub fn build(out: &mut [u8], source: MacAddress, destination: MacAddress, kind: EtherType) {
    let wire = Wire { destination, source, kind: kind.number().into() };
    out[..ETHERNET_BYTES].copy_from_slice(wire.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: MacAddress = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_built_header_is_parsed_back() {
        for kind in [EtherType::Ipv4, EtherType::Arp, EtherType::Ipv6, EtherType::Other(0x88cc)] {
            let mut frame = [0; ETHERNET_BYTES];
            build(&mut frame, SOURCE, BROADCAST, kind);
            let view = parse(&frame).unwrap();
            let expected = EthernetView {
                source: SOURCE,
                destination: BROADCAST,
                vlan: None,
                kind,
                payload: ETHERNET_BYTES,
            };
            assert_eq!(view, expected);
            assert_eq!(parse(&frame[..ETHERNET_BYTES - 1]), Err(Cause::Truncated));
        }
    }

    #[test]
    fn a_tag_is_skipped_and_reported() {
        let mut frame = [0; ETHERNET_BYTES + TAG_BYTES];
        build(&mut frame, SOURCE, BROADCAST, EtherType::Other(0x8100));
        frame[14..].copy_from_slice(&[0xe1, 0x23, 0x08, 0x00]);
        let view = parse(&frame).unwrap();
        assert_eq!((view.vlan, view.kind, view.payload), (Some(0x123), EtherType::Ipv4, 18));
        assert_eq!(parse(&frame[..17]), Err(Cause::Truncated));
    }
}
