//! Ethernet addresses of neighbours (RFC 826, RFC 4861), learnt from what they say about themselves.

use alloc::vec::Vec;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use crate::packet::MacAddress;

/// Neighbours that are remembered.
pub const NEIGHBOURS_MAX: usize = 256;
/// So long an address is believed.
const FRESH: Nanos = Nanos::from_millis(60_000);
/// Time between two questions (RFC 1122, 2.3.2.1: at most one a second).
pub const ASK_AFTER: Nanos = Nanos::from_millis(1_000);
/// Questions before it is given up.
pub const ASKS_MAX: u8 = 3;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Neighbour {
    ip: IpAddr,
    mac: MacAddress,
    heard: Nanos,
}

/// Ethernet addresses of next hops.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Neighbours(Vec<Neighbour>);

impl Neighbours {
    /// An empty one, with all its memory.
    pub fn new() -> Neighbours {
        Neighbours(Vec::with_capacity(NEIGHBOURS_MAX))
    }

    /// Where a neighbour is, if that is known and fresh.
    pub fn find(&self, ip: IpAddr, now: Nanos) -> Option<MacAddress> {
        let found = self.0.iter().find(|one| one.ip == ip)?;
        (now.since(found.heard) < FRESH).then_some(found.mac)
    }

    /// A neighbour said where it is. One that nobody asked for takes a place only if `is_wanted`.
    pub fn learn(&mut self, ip: IpAddr, mac: MacAddress, now: Nanos, is_wanted: bool) {
        let new = Neighbour { ip, mac, heard: now };
        if let Some(found) = self.0.iter_mut().find(|one| one.ip == ip) {
            *found = new;
        } else if !is_wanted {
        } else if self.0.len() < NEIGHBOURS_MAX {
            self.0.push(new);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|one| one.heard) {
            *oldest = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_no_place_and_the_oldest_leaves() {
        let mut table = Neighbours::new();
        let ip = |last: usize| IpAddr::from((0x0a00_0000 + last as u32).to_be_bytes());
        table.learn(ip(1), [1; 6], Nanos(0), false);
        assert_eq!(table.find(ip(1), Nanos(1)), None);
        for one in 0..=NEIGHBOURS_MAX {
            table.learn(ip(one), [one as u8; 6], Nanos(one as u64), true);
        }
        assert_eq!(table.find(ip(0), Nanos(300)), None);
        assert_eq!(table.find(ip(1), Nanos(300)), Some([1; 6]));
        assert_eq!(table.find(ip(1), Nanos(1) + FRESH), None, "an old address is asked for anew");
    }
}
