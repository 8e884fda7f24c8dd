//! Addresses of clients, by which requests and calls are counted and limited.

use core::net::IpAddr;

/// The address of a client: an IPv4 address, or the /64 network of an IPv6 address, because one client may have all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// An IPv4 address, also if it was mapped to IPv6.
    V4(u32),
    /// The first 64 bits of an IPv6 address.
    V6(u64),
}

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address.to_canonical() {
            IpAddr::V4(address) => Address::V4(address.to_bits()),
            IpAddr::V6(address) => Address::V6((address.to_bits() >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_clients_count_by_64_bit_network() {
        let address = |text: &str| Address::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(address("2001:db8::1"), address("2001:db8::2:3"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
        assert_ne!(address("10.0.0.1"), address("10.0.0.2"));
    }
}
