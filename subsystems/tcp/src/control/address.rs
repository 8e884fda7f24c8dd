//! An agent's addresses, and next hops.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::packet::{IPV4_BYTES, IPV6_BYTES, MacAddress, TCP_BYTES};

/// An agent's addresses, networks and gateways.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Address {
    /// IPv4 address of the agent.
    pub ip: Ipv4Addr,
    /// Prefix length of the IPv4 network, in bits.
    pub prefix: u8,
    /// Next hop of packets that leave the IPv4 network; `None` if it has no gateway.
    pub gateway: Option<Ipv4Addr>,
    /// The agent's IPv6 address and network; `None` without IPv6.
    pub v6: Option<Ipv6Config>,
    /// Ethernet address of the agent.
    pub mac: MacAddress,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
}

/// An IPv6 address and its network. It must be configured: router advertisements are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ipv6Config {
    /// IPv6 address of the agent.
    pub ip: Ipv6Addr,
    /// Prefix length of the IPv6 network, in bits.
    pub prefix: u8,
    /// Next hop of packets that leave the IPv6 network; `None` if it has no gateway.
    pub gateway: Option<Ipv6Addr>,
}

/// Length in bytes of the IP and TCP headers of a packet to this host, without options.
pub(super) fn headers_bytes(host: IpAddr) -> u16 {
    let ip = if host.is_ipv6() { IPV6_BYTES } else { IPV4_BYTES };
    (ip + TCP_BYTES) as u16
}

impl Address {
    /// The agent's address of the same family as `remote`.
    pub(super) fn local_for(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => Some(self.ip.into()),
            IpAddr::V6(_) => self.v6.map(|config| config.ip.into()),
        }
    }

    /// Whether an address is the agent's.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        self.local_for(ip) == Some(ip)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        [Some(self.ip.into()), self.v6.map(|config| config.ip.into())].into_iter().flatten()
    }

    /// Next hop of packets to `remote`; `None` if there is no route.
    pub(super) fn next_hop(&self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(ip) if self.is_on_link_v4(ip) => Some(remote),
            IpAddr::V4(_) => self.gateway.map(IpAddr::V4),
            IpAddr::V6(ip) => {
                let config = self.v6?;
                let mask = u128::MAX.checked_shl(128 - u32::from(config.prefix)).unwrap_or(0);
                let is_on_link = (ip.to_bits() ^ config.ip.to_bits()) & mask == 0;
                if is_on_link || ip.is_unicast_link_local() {
                    return Some(remote);
                }
                config.gateway.map(IpAddr::V6)
            }
        }
    }

    fn mask_v4(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    fn is_on_link_v4(&self, ip: Ipv4Addr) -> bool {
        (ip.to_bits() ^ self.ip.to_bits()) & self.mask_v4() == 0
    }

    /// Largest payload of a segment to this host, in bytes, without options.
    pub(super) fn mss(&self, remote: IpAddr) -> u16 {
        self.mtu.saturating_sub(headers_bytes(remote))
    }

    /// Whether an address belongs to a single host other than this one.
    pub(super) fn may_be_peer(&self, ip: IpAddr) -> bool {
        let is_host = match ip {
            IpAddr::V4(ip) => {
                // The network's own address and its broadcast address (RFC 1122, 3.2.1.3).
                let mask = self.mask_v4();
                let is_all = ip.to_bits() & !mask == 0 || ip.to_bits() | mask == u32::MAX;
                !(ip.is_broadcast() || (is_all && self.is_on_link_v4(ip)))
            }
            IpAddr::V6(_) => self.v6.is_some(),
        };
        is_host
            && !self.is_local(ip)
            && !ip.is_unspecified()
            && !ip.is_multicast()
            && !ip.is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_family_has_its_own_next_hop_and_mss() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let config = Ipv6Config {
            ip: "fd77::2".parse().unwrap(),
            prefix: 64,
            gateway: Some("fd77::9".parse().unwrap()),
        };
        let mut address = Address {
            ip: Ipv4Addr::new(10, 0, 0, 2),
            prefix: 24,
            gateway: None,
            v6: Some(config),
            mac: [2; 6],
            mtu: 1500,
        };
        assert_eq!(address.next_hop(ip("10.0.0.9")), Some(ip("10.0.0.9")));
        assert_eq!(address.next_hop(ip("10.0.1.9")), None);
        assert_eq!(address.next_hop(ip("fd77::8:1")), Some(ip("fd77::8:1")));
        assert_eq!(address.next_hop(ip("fe80::1")), Some(ip("fe80::1")));
        assert_eq!(address.next_hop(ip("fd78::1")), Some(ip("fd77::9")));
        // RFC 9293, 3.7.1: the effective MTU less the fixed headers of IP and TCP.
        assert_eq!((address.mss(ip("10.0.0.9")), address.mss(ip("fd77::1"))), (1460, 1440));
        for peer in ["fd77::2", "::", "::1", "ff02::1", "10.0.0.2", "10.0.0.0", "10.0.0.255"] {
            assert!(!address.may_be_peer(ip(peer)), "{peer}");
        }
        assert!(address.may_be_peer(ip("fd77::1")));
        address.v6 = None;
        assert_eq!(address.next_hop(ip("fd77::1")), None);
        assert!(!address.may_be_peer(ip("fd77::1")));
    }
}
