//! The path of the agent's socket and the agent's addresses, which `wave tcp run` passes in the environment.

use std::net::IpAddr;
use std::path::PathBuf;

/// Path of the agent's socket.
pub const SOCKET: &str = "WAVE_TOE_SOCKET";
/// The agent's addresses with their prefix lengths, separated by commas.
pub const ADDRESSES: &str = "WAVE_TOE_ADDRESSES";

/// The path of the agent's socket and the agent's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub socket: PathBuf,
    addresses: Vec<(IpAddr, u8)>,
}

impl Config {
    /// Reads the environment. `None` if it names no agent: then every socket stays the kernel's.
    pub fn from_environment() -> Option<Config> {
        let socket = std::env::var_os(SOCKET)?;
        Config::new(socket.into(), &std::env::var(ADDRESSES).ok()?)
    }

    /// `None` if there is no address in `addresses`.
    pub fn new(socket: PathBuf, addresses: &str) -> Option<Config> {
        let parse = |text: &str| {
            let (ip, bits) = text.trim().split_once('/')?;
            Some((ip.parse().ok()?, bits.parse().ok()?))
        };
        let addresses: Vec<_> = addresses.split(',').filter_map(parse).collect();
        (!addresses.is_empty()).then_some(Config { socket, addresses })
    }

    /// Whether this is one of the agent's addresses.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }

    /// The agent's address of the same family.
    pub fn own_like(&self, ip: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().map(|(own, _)| *own).find(|own| own.is_ipv6() == ip.is_ipv6())
    }

    /// Whether this is the address of another host on one of the agent's networks.
    pub fn is_neighbour(&self, ip: IpAddr) -> bool {
        let is_near = |(own, bits): &(IpAddr, u8)| match (own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from((*bits).min(32))).unwrap_or(0);
                (own.to_bits() ^ ip.to_bits()) & mask == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from((*bits).min(128))).unwrap_or(0);
                (own.to_bits() ^ ip.to_bits()) & mask == 0
            }
            _ => false,
        };
        !self.is_own(ip) && self.addresses.iter().any(is_near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_neighbours_are_told_apart() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let config = Config::new("/run/x".into(), "10.77.0.2/24, fd77::2/64").unwrap();
        assert!(config.is_own(ip("10.77.0.2")) && config.is_own(ip("fd77::2")));
        assert_eq!(config.own_like(ip("::1")), Some(ip("fd77::2")));
        assert_eq!(config.own_like(ip("10.77.0.9")), Some(ip("10.77.0.2")));
        for (text, is_near) in [
            ("10.77.0.1", true),
            ("10.77.0.2", false),
            ("10.77.1.1", false),
            ("127.0.0.1", false),
            ("fd77::1", true),
            ("fd77:0:0:1::1", false),
            ("::1", false),
        ] {
            assert_eq!(config.is_neighbour(ip(text)), is_near, "{text}");
        }
        assert_eq!(Config::new("/run/x".into(), "10.77.0.2, x/24"), None);
    }
}
