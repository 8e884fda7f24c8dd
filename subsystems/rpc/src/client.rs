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
