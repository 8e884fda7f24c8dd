//! Prefixes of addresses, which limit the clients of memcached's protocol.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::door::is_private;

/// An address, or all addresses that share their first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Lowest of the addresses.
    first: IpAddr,
    bits: u32,
}

impl Prefix {
    fn new(address: IpAddr, bits: u32) -> Prefix {
        let first = match address {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & mask4(bits)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & mask6(bits)).into(),
        };
        Prefix { first, bits }
    }

    /// Whether the prefix has an address. An IPv4 address mapped to IPv6 counts as IPv4.
    pub fn has(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_ipv4() == self.first.is_ipv4() && Prefix::new(ip, self.bits).first == self.first
    }

    /// Whether all of the addresses are private, loopback or link-local.
    pub fn is_private(&self) -> bool {
        let last = match self.first {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() | !mask4(self.bits)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() | !mask6(self.bits)).into(),
        };
        // Private blocks are prefixes themselves: a prefix whose first and last addresses are private lies within one block.
        is_private(self.first) && is_private(last)
    }
}

fn mask4(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

fn mask6(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let bad =
            || format!("`{text}` is not an address or a prefix such as 10.1.0.0/16 or fd00::/8");
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let address = address.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| bad()))?;
        match bits <= most {
            true => Ok(Prefix::new(address, bits)),
            false => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_match_addresses_with_the_same_bits() {
        for (text, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.1.2.3/16", "10.1.255.255", "10.2.0.0"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::ffff:11.0.0.1"),
        ] {
            let prefix = prefix(text);
            assert!(prefix.has(inside.parse().unwrap()), "{prefix} {inside}");
            assert!(!prefix.has(outside.parse().unwrap()), "{prefix} {outside}");
        }
    }

    #[test]
    fn prefixes_beyond_a_private_block_are_public() {
        for text in [
            "127.0.0.1",
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.7.0/24",
            "::1",
            "fc00::/7",
            "fe80::/10",
        ] {
            assert!(prefix(text).is_private(), "{text}");
        }
        for text in [
            "8.8.8.8",
            "10.0.0.0/7",
            "172.16.0.0/11",
            "0.0.0.0/0",
            "127.0.0.0/1",
            "fc00::/6",
            "::/0",
        ] {
            assert!(!prefix(text).is_private(), "{text}");
        }
    }

    #[test]
    fn malformed_prefixes_are_refused() {
        for text in
            ["", "10.0.0.0/33", "10.0.0/8", "localhost", "::/129", "10.0.0.0/-1", "10.0.0.0/"]
        {
            let refused = text.parse::<Prefix>().unwrap_err();
            assert!(refused.contains("10.1.0.0/16"), "{refused}");
        }
    }
}
