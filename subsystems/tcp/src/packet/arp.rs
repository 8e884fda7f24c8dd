//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ethernet::{self, ETHERNET_BYTES, EtherType, MacAddress};
use super::{BROADCAST, Cause};

/// Length of a packet in bytes, without the Ethernet header.
pub const ARP_BYTES: usize = 28;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    hardware: U16,
    protocol: U16,
    hardware_bytes: u8,
    protocol_bytes: u8,
    operation: U16,
    sender_mac: MacAddress,
    sender: [u8; 4],
    target_mac: MacAddress,
    target: [u8; 4],
}

const _: () = assert!(size_of::<Wire>() == ARP_BYTES);

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArpOperation {
    /// Asks for the Ethernet address of `target`.
    Request,
    /// Tells the Ethernet address of `sender`.
    Reply,
}

/// An ARP request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArpPacket {
    /// Request or reply.
    pub operation: ArpOperation,
    /// The sender's Ethernet address, which is never a group's.
    pub sender_mac: MacAddress,
    /// The sender's IPv4 address; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// The target's Ethernet address; meaningless in a received request.
    pub target_mac: MacAddress,
    /// The target's IPv4 address.
    pub target: Ipv4Addr,
}

impl ArpPacket {
    /// The reply of the station `mac`, which has the address `target`, to this request.
    pub fn reply(&self, mac: MacAddress) -> ArpPacket {
        ArpPacket {
            operation: ArpOperation::Reply,
            sender_mac: mac,
            sender: self.target,
            target_mac: self.sender_mac,
            target: self.sender,
        }
    }
}

/// Parses a packet that follows an Ethernet header. Padding after it is ignored.
///
/// # Errors
/// [`Cause::Truncated`]; [`Cause::BadArp`] for other hardware, protocols and operations, and for a group as the sender.
pub fn parse(bytes: &[u8]) -> Result<ArpPacket, Cause> {
    let (wire, _) = Wire::ref_from_prefix(bytes).map_err(|_| Cause::Truncated)?;
    let kind = (wire.hardware.get(), wire.protocol.get(), wire.hardware_bytes, wire.protocol_bytes);
    if kind != (1, 0x0800, 6, 4) || wire.sender_mac[0] & 1 != 0 {
        return Err(Cause::BadArp);
    }
    let operation = match wire.operation.get() {
        1 => ArpOperation::Request,
        2 => ArpOperation::Reply,
        _ => return Err(Cause::BadArp),
    };
    Ok(ArpPacket {
        operation,
        sender_mac: wire.sender_mac,
        sender: wire.sender.into(),
        target_mac: wire.target_mac,
        target: wire.target.into(),
    })
}

/// Writes a frame to `target_mac`; a request with a zero `target_mac` is broadcast. Returns the frame's length, 42 bytes, which
/// Ethernet pads to 60.
///
/// # Panics
/// `out` is shorter than the frame.
pub fn build_arp(out: &mut [u8], packet: &ArpPacket) -> usize {
    let destination = if packet.target_mac == [0; 6] { BROADCAST } else { packet.target_mac };
    ethernet::build(out, packet.sender_mac, destination, EtherType::Arp);
    let wire = Wire {
        hardware: 1.into(),
        protocol: 0x0800.into(),
        hardware_bytes: 6,
        protocol_bytes: 4,
        operation: match packet.operation {
            ArpOperation::Request => 1.into(),
            ArpOperation::Reply => 2.into(),
        },
        sender_mac: packet.sender_mac,
        sender: packet.sender.octets(),
        target_mac: packet.target_mac,
        target: packet.target.octets(),
    };
    out[ETHERNET_BYTES..ETHERNET_BYTES + ARP_BYTES].copy_from_slice(wire.as_bytes());
    ETHERNET_BYTES + ARP_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Parsed;

    const REQUEST: ArpPacket = ArpPacket {
        operation: ArpOperation::Request,
        sender_mac: [2, 0, 0, 0, 0, 1],
        sender: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: [0; 6],
        target: Ipv4Addr::new(10, 0, 0, 2),
    };

    #[test]
    fn a_request_is_broadcast_and_its_reply_goes_to_the_sender() {
        let mac = [2, 0, 0, 0, 0, 2];
        for (packet, destination) in
            [(REQUEST, BROADCAST), (REQUEST.reply(mac), REQUEST.sender_mac)]
        {
            let mut frame = [0; 60];
            assert_eq!(build_arp(&mut frame, &packet), 42);
            let Ok(Parsed::Arp(ethernet, read)) = crate::packet::parse(&frame, false) else {
                panic!("not an ARP packet")
            };
            assert_eq!(read, packet);
            assert_eq!((ethernet.source, ethernet.destination), (packet.sender_mac, destination));
        }
    }

    #[test]
    fn other_hardware_protocols_and_operations_are_refused() {
        let mut frame = [0; 42];
        build_arp(&mut frame, &REQUEST);
        assert_eq!(parse(&frame[14..41]), Err(Cause::Truncated));
        // Hardware, protocol, both lengths, operation, and a sender that is a group.
        for at in [15, 17, 18, 19, 21, 22] {
            let mut wrong = frame;
            wrong[at] ^= 0x11;
            assert_eq!(parse(&wrong[14..]), Err(Cause::BadArp), "byte {at}");
        }
    }
}
