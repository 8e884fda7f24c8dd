//! UDP (RFC 768), as far as the answer to a datagram that nobody receives needs it.

use core::net::IpAddr;

use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum;
use super::ip::IpView;

/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// Length of a header in bytes.
pub const UDP_BYTES: usize = 8;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Wire {
    source_port: U16,
    destination_port: U16,
    bytes: U16,
    checksum: U16,
}

const _: () = assert!(size_of::<Wire>() == UDP_BYTES);

/// Whether the payload of `ip`, which was parsed from `frame`, is a whole datagram with a correct checksum. Over IPv4 a datagram
/// may have none (RFC 768), over IPv6 it may not (RFC 8200, 8.1). With `checksum_is_good` the checksum is not verified.
pub fn is_intact(frame: &[u8], ip: &IpView<IpAddr>, checksum_is_good: bool) -> bool {
    let Some(bytes) = frame.get(ip.payload.clone()) else { return false };
    let Ok((wire, _)) = Wire::ref_from_prefix(bytes) else { return false };
    let length = usize::from(wire.bytes.get());
    let Some(datagram) = bytes.get(..length).filter(|_| length >= UDP_BYTES) else { return false };
    if wire.checksum == U16::ZERO {
        return ip.source.is_ipv4();
    }
    checksum_is_good || {
        let pseudo =
            checksum::pseudo_sum(ip.source, ip.destination, PROTOCOL_UDP, datagram.len() as u32);
        checksum::add(pseudo, checksum::sum(datagram)) == checksum::GOOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ecn;

    /// A datagram of four bytes between two hosts, with its checksum.
    fn datagram(source: &str, destination: &str) -> (Vec<u8>, IpView<IpAddr>) {
        let (source, destination) = (source.parse().unwrap(), destination.parse().unwrap());
        let mut bytes = vec![0x82, 0x9a, 0x82, 0x9b, 0, 12, 0, 0, 1, 2, 3, 4];
        let pseudo = checksum::pseudo_sum(source, destination, PROTOCOL_UDP, 12);
        let sum = !checksum::add(pseudo, checksum::sum(&bytes));
        bytes[6..8].copy_from_slice(&sum.to_be_bytes());
        let ecn = Ecn::NotCapable;
        let ip = IpView { source, destination, protocol: 17, ecn, ttl: 64, payload: 0..12 };
        (bytes, ip)
    }

    #[test]
    fn a_damaged_or_truncated_datagram_is_not_intact() {
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd77::1", "fd77::2")] {
            let (good, ip) = datagram(source, destination);
            assert!(is_intact(&good, &ip, false));
            for (at, byte) in [(9, 9), (5, 13), (5, 7)] {
                let mut bad = good.clone();
                bad[at] = byte;
                assert!(!is_intact(&bad, &ip, false), "byte {at}");
            }
            for end in [7, 11] {
                assert!(
                    !is_intact(&good, &IpView { payload: 0..end, ..ip.clone() }, true),
                    "{end}"
                );
            }
            let mut partial = good.clone();
            partial[7] ^= 1;
            assert!(is_intact(&partial, &ip, true), "the wire vouches for the checksum");
        }
    }

    #[test]
    fn only_ipv4_datagrams_may_lack_a_checksum() {
        for (source, destination, may) in
            [("10.0.0.1", "10.0.0.2", true), ("fd77::1", "fd77::2", false)]
        {
            let (mut bytes, ip) = datagram(source, destination);
            bytes[6..8].fill(0);
            assert_eq!(is_intact(&bytes, &ip, false), may, "{source}");
        }
    }
}
