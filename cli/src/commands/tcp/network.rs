//! An address with its prefix length: `10.77.0.2/24` or `fd77::2/64`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An IPv4 address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub ip: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
}

impl Network {
    fn mask(self) -> u32 {
        u32::MAX << (32 - self.prefix)
    }

    /// The network's first host address other than this one: by default Linux's.
    pub fn neighbour(self) -> Ipv4Addr {
        let first = (self.ip.to_bits() & self.mask()) + 1;
        Ipv4Addr::from_bits(if self.ip.to_bits() == first { first + 1 } else { first })
    }

    /// The interfaces with a direct route to this address whose prefix is as long as this network's or longer. `routes` is the
    /// text of /proc/net/route.
    pub fn direct_routes(self, routes: &str) -> impl Iterator<Item = &str> {
        /// Flag of a route to a next hop.
        const GATEWAY: u32 = 2;
        routes.lines().skip(1).filter_map(move |line| {
            let mut fields = line.split_ascii_whitespace();
            // Routes that refuse packets have no interface.
            let interface = fields.next().filter(|interface| *interface != "*")?;
            let number = |field: Option<&str>| u32::from_str_radix(field?, 16).ok();
            let (to, _, flags) = (number(fields.next())?, fields.next(), number(fields.next())?);
            // The kernel prints each big-endian word as a native integer.
            let (to, mask) = (to.to_be(), number(fields.nth(3))?.to_be());
            let is_direct = flags & GATEWAY == 0 && mask >= self.mask();
            (is_direct && self.ip.to_bits() & mask == to).then_some(interface)
        })
    }

    /// Whether `ip` is a host address in this network.
    pub fn has_host(self, ip: Ipv4Addr) -> bool {
        let host = ip.to_bits() & !self.mask();
        (ip.to_bits() ^ self.ip.to_bits()) & self.mask() == 0 && host != 0 && host != !self.mask()
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let (ip, prefix) =
            text.split_once('/').ok_or("the prefix length is missing: write 10.77.0.2/24")?;
        let ip: Ipv4Addr = ip.parse().map_err(|_| format!("{ip} is not an IPv4 address"))?;
        let prefix = prefix.parse().ok().filter(|bits| (8..=30).contains(bits));
        let prefix: u8 = prefix.ok_or("the prefix length must be 8 to 30, as in 10.77.0.2/24")?;
        let network = Network { ip, prefix };
        let kind = match () {
            () if ip.is_loopback() => Some("a loopback"),
            () if ip.is_multicast() => Some("a multicast"),
            () => None,
        };
        check_host(ip.into(), prefix, kind, network.has_host(ip))?;
        Ok(network)
    }
}

/// Refuses an address of a kind that no host on a network has, and one that is not a host's in its network.
fn check_host(ip: IpAddr, prefix: u8, kind: Option<&str>, is_host: bool) -> Result<(), String> {
    let why = match kind {
        Some(kind) => format!("{ip} is {kind} address"),
        None if !is_host => format!("{ip} is not a host address in a /{prefix} network"),
        None => return Ok(()),
    };
    let such = if ip.is_ipv4() { "10.77.0.2/24" } else { "fd77::2/64" };
    Err(format!("{why}: write the address of a host, such as {such}"))
}

/// An IPv6 address with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network6 {
    pub ip: Ipv6Addr,
    /// Prefix length, 8 to 126.
    pub prefix: u8,
}

impl Network6 {
    fn mask(self) -> u128 {
        u128::MAX << (128 - u32::from(self.prefix))
    }

    /// The network's first host address other than this one: Linux's. Host 0 is the anycast address of routers (RFC 4291, 2.6.1).
    pub fn neighbour(self) -> Ipv6Addr {
        let first = (self.ip.to_bits() & self.mask()) + 1;
        Ipv6Addr::from_bits(if self.ip.to_bits() == first { first + 1 } else { first })
    }

    /// As [`Network::direct_routes`]; `routes` is the text of /proc/net/ipv6_route.
    pub fn direct_routes(self, routes: &str) -> impl Iterator<Item = &str> {
        /// Flags of routes to a next hop, to nowhere, and to this machine's own addresses.
        const OTHERS: u32 = 2 | 0x200 | 0x8000_0000;
        routes.lines().filter_map(move |line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let [to, prefix, .., flags, interface] = fields[..] else { return None };
            let to = u128::from_str_radix(to, 16).ok()?;
            let prefix = u8::from_str_radix(prefix, 16).ok()?;
            let flags = u32::from_str_radix(flags, 16).ok()?;
            let is_direct = flags & OTHERS == 0 && (self.prefix..=128).contains(&prefix);
            let mask = || u128::MAX << (128 - u32::from(prefix));
            let is_inside = || (self.ip.to_bits() ^ to) & mask() == 0;
            (is_direct && is_inside()).then_some(interface)
        })
    }

    /// Whether `ip` is a host address in this network.
    pub fn has_host(self, ip: Ipv6Addr) -> bool {
        let is_near = (ip.to_bits() ^ self.ip.to_bits()) & self.mask() == 0;
        is_near && ip.to_bits() & !self.mask() != 0
    }
}

impl FromStr for Network6 {
    type Err = String;

    fn from_str(text: &str) -> Result<Network6, String> {
        let (ip, prefix) =
            text.split_once('/').ok_or("the prefix length is missing: write fd77::2/64")?;
        let ip: Ipv6Addr = ip.parse().map_err(|_| format!("{ip} is not an IPv6 address"))?;
        let prefix = prefix.parse().ok().filter(|bits| (8..=126).contains(bits));
        let prefix: u8 =
            prefix.ok_or("an IPv6 prefix length must be 8 to 126, as in fd77::2/64")?;
        let network = Network6 { ip, prefix };
        let kind = match () {
            () if ip.is_loopback() => Some("a loopback"),
            () if ip.is_multicast() => Some("a multicast"),
            () if ip.is_unicast_link_local() => Some("a link-local"),
            () if ip.to_ipv4_mapped().is_some() => Some("an IPv4-mapped"),
            () => None,
        };
        check_host(ip.into(), prefix, kind, network.has_host(ip))?;
        Ok(network)
    }
}

/// An address of either family, with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    V4(Network),
    V6(Network6),
}

impl FromStr for Home {
    type Err = String;

    fn from_str(text: &str) -> Result<Home, String> {
        if text.contains(':') { text.parse().map(Home::V6) } else { text.parse().map(Home::V4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_routes_are_found() {
        let routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                      eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                      eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                      toe0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                      br0\t00004D0A\t00000000\t0001\t0\t0\t1\t00FFFFFF\t0\t0\t0\n\
                      eth0\t00004E0A\t00000000\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                      *\t00004F0A\t00000000\t0201\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let of =
            |text: &str| text.parse::<Network>().unwrap().direct_routes(routes).collect::<Vec<_>>();
        assert_eq!(of("192.168.1.9/24"), ["eth0"]);
        assert_eq!(of("192.168.1.9/16"), ["eth0"]);
        assert!(of("192.168.1.9/25").is_empty(), "a longer prefix wins");
        assert_eq!(of("10.77.0.3/24"), ["toe0", "br0"]);
        assert!(
            of("10.78.0.2/8").is_empty(),
            "neither a default route nor one to a next hop counts"
        );
        assert!(of("10.79.0.2/24").is_empty(), "a route that refuses packets does not count");
    }

    #[test]
    fn direct_routes_are_found_for_ipv6() {
        let none = "0".repeat(32);
        let line = |to: &str, prefix: &str, next: &str, flags: &str, interface: &str| {
            let to = format!("{to:0<32}");
            format!(
                "{to} {prefix} {none} 00 {next} 00000100 00000001 00000000 {flags} {interface}\n"
            )
        };
        let hop = "fd770000000000000000000000000005";
        let routes = [
            line("fd77", "40", &none, "00000001", "toe0"),
            line("fd78", "40", hop, "00000003", "toe0"),
            line("fd79", "40", &none, "00200200", "lo"),
            line("fd77", "30", &none, "00000001", "br0"),
            line("fd770000000000000000000000000001", "80", &none, "80200001", "toe0"),
            line("", "00", hop, "00000003", "eth0"),
            line("", "00", &none, "00000001", "eth1"),
        ]
        .concat();
        let of = |text: &str| {
            text.parse::<Network6>().unwrap().direct_routes(&routes).collect::<Vec<_>>()
        };
        assert_eq!(of("fd77::2/64"), ["toe0"]);
        assert_eq!(of("fd77::1/64"), ["toe0"]);
        assert_eq!(of("fd77::2/48"), ["toe0", "br0"]);
        assert!(of("fd77::2/96").is_empty(), "a longer prefix wins");
        assert!(of("fd78::2/64").is_empty(), "a route to a next hop does not count");
        assert!(of("fd79::2/64").is_empty(), "a route that refuses packets does not count");
    }

    #[test]
    fn linux_gets_the_first_other_host_address() {
        let of = |text: &str| text.parse::<Network>().unwrap().neighbour().to_string();
        assert_eq!(of("10.77.0.2/24"), "10.77.0.1");
        assert_eq!(of("10.77.0.1/24"), "10.77.0.2");
        assert_eq!(of("10.77.3.7/16"), "10.77.0.1");
    }

    #[test]
    fn a_colon_distinguishes_ipv6_from_ipv4() {
        let Ok(Home::V6(network)) = "fd77::2/64".parse() else { panic!("no IPv6") };
        assert_eq!(network.neighbour(), "fd77::1".parse::<Ipv6Addr>().unwrap());
        assert!(matches!("10.77.0.2/24".parse(), Ok(Home::V4(_))));
        for text in ["fd77::2", "fd77::/64", "fd77::2/127", "fe80::2/64", "ff02::1/16", "::1/64"] {
            assert!(text.parse::<Home>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_names_the_kind_of_address() {
        for (text, why) in [
            ("127.0.0.1/8", "127.0.0.1 is a loopback address"),
            ("224.0.0.1/24", "224.0.0.1 is a multicast address"),
            ("10.77.0.255/24", "10.77.0.255 is not a host address in a /24 network"),
            ("::1/64", "::1 is a loopback address"),
            ("ff02::1/16", "ff02::1 is a multicast address"),
            ("fe80::2/64", "fe80::2 is a link-local address"),
            ("::ffff:10.77.0.2/96", "::ffff:10.77.0.2 is an IPv4-mapped address"),
            ("fd77::/64", "fd77:: is not a host address in a /64 network"),
        ] {
            let refusal = text.parse::<Home>().unwrap_err();
            assert!(refusal.starts_with(why), "{text}: {refusal}");
        }
    }

    #[test]
    fn invalid_host_addresses_are_refused() {
        for text in
            ["10.77.0.2", "10.77.0.2/31", "10.77.0.0/24", "10.77.0.255/24", "127.0.0.1/8", "x/24"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
