//! Socket addresses in the layout of the C library (`struct sockaddr_in` and `sockaddr_in6`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of `struct sockaddr_in`.
const V4_BYTES: usize = 16;
/// Bytes of `struct sockaddr_in6`, and the fewest that Linux accepts: the scope may be left out (RFC 2133).
const V6_BYTES: usize = 28;
const V6_BYTES_MIN: usize = 24;

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// The bytes of an encoded address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    bytes: [u8; V6_BYTES],
    length: usize,
}

impl Encoded {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

fn family_of(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Whether the family is AF_UNSPEC, with which connect(2) ends an association.
pub fn is_unspecified(bytes: &[u8]) -> bool {
    family_of(bytes) == Some(libc::AF_UNSPEC as u16)
}

/// Decodes a program's address for a socket of this family. IPv4-mapped addresses become IPv4 addresses. `None` if the bytes are
/// not such an address: the kernel then returns the error.
pub fn decode(bytes: &[u8], family: Family) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match (family, i32::from(family_of(bytes)?)) {
        (Family::V4, libc::AF_INET) if bytes.len() >= V4_BYTES => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
        }
        (Family::V6, libc::AF_INET6) if bytes.len() >= V6_BYTES_MIN => {
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            Some(SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port))
        }
        _ => None,
    }
}

/// Encodes an address for a socket of this family.
pub fn encode(address: SocketAddr, family: Family) -> Encoded {
    let mut bytes = [0; V6_BYTES];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let ip = match (family, address.ip()) {
        (Family::V4, IpAddr::V4(ip)) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&ip.octets());
            return Encoded { bytes, length: V4_BYTES };
        }
        (_, IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
        (_, IpAddr::V6(ip)) => ip,
    };
    bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
    bytes[8..24].copy_from_slice(&ip.octets());
    Encoded { bytes, length: V6_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_addresses_decode_to_themselves() {
        for (text, family, length) in [
            ("10.77.0.2:80", Family::V4, 16),
            ("10.77.0.2:80", Family::V6, 28),
            ("[fd77::2]:80", Family::V6, 28),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let encoded = encode(address, family);
            assert_eq!(encoded.bytes().len(), length);
            assert_eq!(decode(encoded.bytes(), family), Some(address));
            for short in 0..16 {
                assert_eq!(decode(&encoded.bytes()[..short], family), None);
            }
        }
        let v4 = encode("10.77.0.2:80".parse().unwrap(), Family::V4);
        assert_eq!(decode(v4.bytes(), Family::V6), None);
        assert!(is_unspecified(&[0; 16]) && !is_unspecified(v4.bytes()));
    }
}
