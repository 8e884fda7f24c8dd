//! An address and its network, as `10.77.0.2/24`.

use std::net::Ipv4Addr;
use std::str::FromStr;

/// An address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The address.
    pub ip: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
}

impl Network {
    fn mask(self) -> u32 {
        u32::MAX << (32 - self.prefix)
    }

    /// The network's first host that is not this one: Linux's address by default.
    pub fn neighbour(self) -> Ipv4Addr {
        let first = (self.ip.to_bits() & self.mask()) + 1;
        Ipv4Addr::from_bits(if self.ip.to_bits() == first { first + 1 } else { first })
    }

    /// Whether an address is of one host of this network.
    pub fn has_host(self, ip: Ipv4Addr) -> bool {
        let host = ip.to_bits() & !self.mask();
        (ip.to_bits() ^ self.ip.to_bits()) & self.mask() == 0 && host != 0 && host != !self.mask()
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let (ip, prefix) =
            text.split_once('/').ok_or("write it with its network's bits, as 10.77.0.2/24")?;
        let ip: Ipv4Addr = ip.parse().map_err(|_| format!("{ip} is no IPv4 address"))?;
        let prefix = prefix.parse().ok().filter(|bits| (8..=30).contains(bits));
        let prefix: u8 = prefix.ok_or("a network has 8 to 30 bits: 10.77.0.2/24 has 24")?;
        let network = Network { ip, prefix };
        if ip.is_loopback() || ip.is_multicast() || !network.has_host(ip) {
            return Err(format!("{ip} is not the address of one host in that network"));
        }
        Ok(network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_is_the_first_other_host() {
        let of = |text: &str| text.parse::<Network>().unwrap().neighbour().to_string();
        assert_eq!(of("10.77.0.2/24"), "10.77.0.1");
        assert_eq!(of("10.77.0.1/24"), "10.77.0.2");
        assert_eq!(of("10.77.3.7/16"), "10.77.0.1");
    }

    #[test]
    fn what_is_no_hosts_address_is_refused() {
        for text in
            ["10.77.0.2", "10.77.0.2/31", "10.77.0.0/24", "10.77.0.255/24", "127.0.0.1/8", "x/24"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
