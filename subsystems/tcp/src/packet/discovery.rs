//! Neighbour discovery: solicitations and advertisements of Ethernet addresses (RFC 4861, 4.3 and 4.4). Routers' messages are
//! not read.

use core::net::Ipv6Addr;

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, MacAddress};
use super::icmp6;
use super::ipv6::{
    self, IPV6_BYTES, Ipv6Header, Ipv6View, PROTOCOL_ICMP6, group_mac, solicited_node,
};
use super::{Cause, Ecn};

/// Length in bytes of a frame with a message that has an Ethernet address, including the Ethernet header.
pub const DISCOVERY_BYTES: usize = ETHERNET_BYTES + IPV6_BYTES + size_of::<Wire>() + OPTION_BYTES;
/// Hop limit of all messages: no router has forwarded them, so the sender is a neighbour (RFC 4861, 3.1).
pub const HOP_LIMIT: u8 = 255;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
const OPTION_BYTES: usize = 8;
const SOLICITED: u32 = 1 << 30;
const OVERRIDE: u32 = 1 << 29;
/// Every host on the link.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    kind: u8,
    code: u8,
    checksum: U16,
    flags: U32,
    target: [u8; 16],
}

const _: () = assert!(size_of::<Wire>() == 24);

/// A neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Asks for the Ethernet address of `target`. From the unspecified address, it probes whether any host has `target` (RFC
    /// 4862).
    Solicitation {
        /// Address of the neighbour.
        target: Ipv6Addr,
        /// The sender's Ethernet address, if given.
        mac: Option<MacAddress>,
    },
    /// Tells the Ethernet address of `target`.
    Advertisement {
        /// Address of the neighbour.
        target: Ipv6Addr,
        /// Ethernet address of the neighbour, if given.
        mac: Option<MacAddress>,
        /// Whether it answers a solicitation.
        is_solicited: bool,
        /// Whether it replaces a known address.
        overrides: bool,
    },
}

/// Parses a message whose checksum was verified; `None` if it is of another type.
pub(super) fn parse(bytes: &[u8], ip: &Ipv6View) -> Result<Option<Discovery>, Cause> {
    let kind = bytes.first().copied();
    if !matches!(kind, Some(SOLICITATION | ADVERTISEMENT)) {
        return Ok(None);
    }
    if ip.ttl != HOP_LIMIT {
        return Err(Cause::BadHopLimit);
    }
    let (wire, options) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::BadDiscovery)?;
    let target = Ipv6Addr::from(wire.target);
    let flags = wire.flags.get();
    let source_is_group = ip.source.is_multicast() || ip.source.is_loopback();
    if wire.code != 0 || target.is_multicast() || target.is_unspecified() || source_is_group {
        return Err(Cause::BadDiscovery);
    }
    if wire.kind == SOLICITATION {
        let mac = mac_of(options, SOURCE_ADDRESS)?;
        // RFC 4861, 7.1.1.
        let is_probe = ip.source.is_unspecified();
        if is_probe && (mac.is_some() || ip.destination != solicited_node(target)) {
            return Err(Cause::BadDiscovery);
        }
        return Ok(Some(Discovery::Solicitation { target, mac }));
    }
    let mac = mac_of(options, TARGET_ADDRESS)?;
    let is_solicited = flags & SOLICITED != 0;
    // RFC 4861, 7.1.2.
    if ip.source.is_unspecified() || (is_solicited && ip.destination.is_multicast()) {
        return Err(Cause::BadDiscovery);
    }
    let overrides = flags & OVERRIDE != 0;
    Ok(Some(Discovery::Advertisement { target, mac, is_solicited, overrides }))
}

/// The Ethernet address among a message's options. All options are read: an illegal length makes the message invalid.
fn mac_of(mut options: &[u8], wanted: u8) -> Result<Option<MacAddress>, Cause> {
    let mut found = None;
    loop {
        let [kind, words, ..] = *options else {
            return if options.is_empty() { Ok(found) } else { Err(Cause::BadDiscovery) };
        };
        let bytes = OPTION_BYTES * usize::from(words);
        if bytes == 0 || bytes > options.len() {
            return Err(Cause::BadDiscovery);
        }
        let (option, rest) = options.split_at(bytes);
        if let ([_, _, mac @ ..], true) = (option, kind == wanted) {
            let mac = MacAddress::try_from(mac).map_err(|_| Cause::BadDiscovery)?;
            if mac[0] & 1 != 0 {
                return Err(Cause::BadDiscovery);
            }
            found = Some(mac);
        }
        options = rest;
    }
}

/// Writes the solicitation of the station `mac`, which has the address `own`, for the Ethernet address of `target`. It is sent
/// to the solicited-node group of that address. Returns the frame's length.
///
/// # Panics
/// `out` is shorter than [`DISCOVERY_BYTES`].
pub fn build_solicitation(
    out: &mut [u8],
    mac: MacAddress,
    own: Ipv6Addr,
    target: Ipv6Addr,
) -> usize {
    let group = solicited_node(target);
    let wire = Wire {
        kind: SOLICITATION,
        code: 0,
        checksum: 0.into(),
        flags: 0.into(),
        target: target.octets(),
    };
    build(out, (mac, group_mac(group)), (own, group), wire, SOURCE_ADDRESS)
}

/// Writes the advertisement of the station `mac`, which has the address `own`, in answer to `asker`. If `asker` has no address,
/// it has probed for ours, and the answer is sent to all nodes. Returns the frame's length.
///
/// # Panics
/// `out` is shorter than [`DISCOVERY_BYTES`].
pub fn build_advertisement(
    out: &mut [u8],
    mac: MacAddress,
    own: Ipv6Addr,
    asker: (MacAddress, Ipv6Addr),
) -> usize {
    let is_probe = asker.1.is_unspecified();
    let (to_mac, to) = if is_probe { (group_mac(ALL_NODES), ALL_NODES) } else { asker };
    let flags = if is_probe { OVERRIDE } else { OVERRIDE | SOLICITED };
    let wire = Wire {
        kind: ADVERTISEMENT,
        code: 0,
        checksum: 0.into(),
        flags: flags.into(),
        target: own.octets(),
    };
    build(out, (mac, to_mac), (own, to), wire, TARGET_ADDRESS)
}

fn build(
    out: &mut [u8],
    macs: (MacAddress, MacAddress),
    ends: (Ipv6Addr, Ipv6Addr),
    mut wire: Wire,
    option: u8,
) -> usize {
    ethernet::build(out, macs.0, macs.1, EtherType::Ipv6);
    let header = Ipv6Header {
        source: ends.0,
        destination: ends.1,
        protocol: PROTOCOL_ICMP6,
        ecn: Ecn::NotCapable,
        hop_limit: HOP_LIMIT,
    };
    let [a, b, c, d, e, f] = macs.0;
    let option = [option, 1, a, b, c, d, e, f];
    ipv6::build(&mut out[ETHERNET_BYTES..], &header, (size_of::<Wire>() + OPTION_BYTES) as u32);
    wire.checksum = icmp6::checksum(&header, wire.as_bytes(), &option).into();
    let message = &mut out[ETHERNET_BYTES + IPV6_BYTES..DISCOVERY_BYTES];
    let (front, back) = message.split_at_mut(size_of::<Wire>());
    front.copy_from_slice(wire.as_bytes());
    back.copy_from_slice(&option);
    DISCOVERY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Icmp6, Parsed, parse};

    const MACS: [MacAddress; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    const HOSTS: [Ipv6Addr; 2] = [
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 1, 2, 0x304),
    ];

    fn solicitation() -> [u8; DISCOVERY_BYTES] {
        let mut frame = [0; DISCOVERY_BYTES];
        assert_eq!(build_solicitation(&mut frame, MACS[0], HOSTS[0], HOSTS[1]), DISCOVERY_BYTES);
        frame
    }

    fn advertisement(asker: Ipv6Addr) -> [u8; DISCOVERY_BYTES] {
        let mut frame = [0; DISCOVERY_BYTES];
        build_advertisement(&mut frame, MACS[1], HOSTS[1], (MACS[0], asker));
        frame
    }

    fn read(frame: &[u8]) -> Result<(MacAddress, Ipv6View, Discovery), Cause> {
        match parse(frame, false)? {
            Parsed::Icmp6(ethernet, ip, Icmp6::Discovery(discovery)) => {
                Ok((ethernet.destination, ip, discovery))
            }
            other => panic!("{other:?}"),
        }
    }

    /// The cause for which a changed message with a correct checksum is dropped.
    fn cause(mut frame: [u8; DISCOVERY_BYTES], change: impl FnOnce(&mut [u8])) -> Option<Cause> {
        change(&mut frame);
        frame[56..58].fill(0);
        let host = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
        let header = Ipv6Header {
            source: host(22),
            destination: host(38),
            protocol: PROTOCOL_ICMP6,
            ecn: Ecn::NotCapable,
            hop_limit: HOP_LIMIT,
        };
        let sum = icmp6::checksum(&header, &frame[54..], &[]);
        frame[56..58].copy_from_slice(&sum.to_be_bytes());
        read(&frame).err()
    }

    #[test]
    fn a_solicitation_goes_to_the_group_of_its_target_and_the_answer_to_the_sender() {
        let (mac, ip, asked) = read(&solicitation()).unwrap();
        assert_eq!(mac, [0x33, 0x33, 0xff, 2, 3, 4]);
        let group: Ipv6Addr = "ff02::1:ff02:304".parse().unwrap();
        assert_eq!((ip.source, ip.destination, ip.ttl), (HOSTS[0], group, 255));
        assert_eq!(asked, Discovery::Solicitation { target: HOSTS[1], mac: Some(MACS[0]) });
        let (mac, ip, told) = read(&advertisement(HOSTS[0])).unwrap();
        assert_eq!((mac, ip.source, ip.destination), (MACS[0], HOSTS[1], HOSTS[0]));
        let expected = Discovery::Advertisement {
            target: HOSTS[1],
            mac: Some(MACS[1]),
            is_solicited: true,
            overrides: true,
        };
        assert_eq!(told, expected);
    }

    #[test]
    fn a_probe_for_our_address_is_answered_to_all_nodes() {
        let (mac, ip, told) = read(&advertisement(Ipv6Addr::UNSPECIFIED)).unwrap();
        assert_eq!((mac, ip.destination), ([0x33, 0x33, 0, 0, 0, 1], ALL_NODES));
        assert!(matches!(told, Discovery::Advertisement { is_solicited: false, .. }));
    }

    #[test]
    fn messages_that_a_router_has_forwarded_are_dropped() {
        for hop_limit in [254, 64, 1, 0] {
            let forwarded = |frame: &mut [u8]| frame[21] = hop_limit;
            assert_eq!(cause(solicitation(), forwarded), Some(Cause::BadHopLimit));
            assert_eq!(cause(advertisement(HOSTS[0]), forwarded), Some(Cause::BadHopLimit));
        }
    }

    #[test]
    fn malformed_messages_are_dropped() {
        let both = [solicitation(), advertisement(HOSTS[0])];
        for frame in both {
            assert_eq!(cause(frame, |_| {}), None);
            // A nonzero code; a group as the target; a group as the source; options of length 0 and 2; an option with a group's
            // address.
            for (at, byte) in [(55, 1), (62, 0xff), (22, 0xff), (79, 0), (79, 2), (80, 1)] {
                let changed = cause(frame, |frame| frame[at] = byte);
                assert_eq!(changed, Some(Cause::BadDiscovery), "byte {at}");
            }
            // Another option is skipped.
            assert_eq!(cause(frame, |frame| frame[78] = 14), None);
        }
        // A probe with an Ethernet address, and one that is not sent to the group.
        let probe = |frame: &mut [u8]| frame[22..38].fill(0);
        assert_eq!(cause(solicitation(), probe), Some(Cause::BadDiscovery));
        let bare = |frame: &mut [u8]| {
            probe(frame);
            frame[78] = 14;
        };
        assert_eq!(cause(solicitation(), bare), None);
        let elsewhere = |frame: &mut [u8]| {
            bare(frame);
            frame[53] ^= 1;
        };
        assert_eq!(cause(solicitation(), elsewhere), Some(Cause::BadDiscovery));
        // An answer to a solicitation is sent to the asker.
        let to_all = |frame: &mut [u8]| frame[58] |= 0x40;
        assert_eq!(cause(advertisement(Ipv6Addr::UNSPECIFIED), to_all), Some(Cause::BadDiscovery));
    }
}
