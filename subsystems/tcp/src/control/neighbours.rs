//! Ethernet addresses of neighbours (RFC 826, RFC 4861), learnt from their own ARP and neighbour discovery packets.

use alloc::vec::Vec;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::packet::MacAddress;

/// Limit of remembered neighbours.
pub const NEIGHBOURS_MAX: usize = 256;
/// How long a learnt address is valid.
const FRESH: Nanos = Nanos::from_millis(60_000);
/// Time between two queries (RFC 1122, 2.3.2.1: at most one per second).
pub const QUERY_AFTER: Nanos = Nanos::from_millis(1_000);
/// Unanswered queries after which resolution fails.
pub const QUERIES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Neighbour {
    ip: IpAddr,
    mac: MacAddress,
    seen_at: Nanos,
}

/// Ethernet addresses of next hops.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Neighbours(Vec<Neighbour>);

impl Neighbours {
    /// An empty table with all its memory allocated.
    pub fn new() -> Neighbours {
        Neighbours(Vec::with_capacity(NEIGHBOURS_MAX))
    }

    /// A neighbour's Ethernet address, if known and still valid.
    pub fn find(&self, ip: IpAddr, now: Nanos) -> Option<MacAddress> {
        let found = self.0.iter().find(|one| one.ip == ip)?;
        (now.since(found.seen_at) < FRESH).then_some(found.mac)
    }

    /// Learns a neighbour's address. An unknown neighbour is added only if `is_wanted`; it then replaces the oldest if the
    /// table is full.
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddress, now: Nanos, is_wanted: bool) {
        let new = Neighbour { ip, mac, seen_at: now };
        if let Some(found) = self.0.iter_mut().find(|one| one.ip == ip) {
            *found = new;
        } else if !is_wanted {
        } else if self.0.len() < NEIGHBOURS_MAX {
            self.0.push(new);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|one| one.seen_at) {
            *oldest = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwanted_neighbours_are_not_added_and_the_oldest_is_replaced() {
        let mut table = Neighbours::new();
        let ip = |last: usize| IpAddr::from((0x0a00_0000 + last as u32).to_be_bytes());
        table.learn(ip(1), [1; 6], Nanos(0), false);
        assert_eq!(table.find(ip(1), Nanos(1)), None);
        for one in 0..=NEIGHBOURS_MAX {
            table.learn(ip(one), [one as u8; 6], Nanos(one as u64), true);
        }
        assert_eq!(table.find(ip(0), Nanos(300)), None);
        assert_eq!(table.find(ip(1), Nanos(300)), Some([1; 6]));
        assert_eq!(table.find(ip(1), Nanos(1) + FRESH), None, "an expired address is not used");
    }
}
