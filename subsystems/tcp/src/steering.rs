//! Flow groups: which of an agent's data paths has a connection (thesis 4.3). Each group has all stages for its flows, and shares
//! nothing with the others.

use core::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::datapath::{FlowId, Packet, Tuple};
use crate::packet::{Parsed, parse};

/// Most flow groups of an agent.
pub const GROUPS_MAX: u16 = 64;

/// The assignment of connections to flow groups, by a hash of the peer's address and both ports.
///
/// A wire that spreads frames over the groups computes the same hash where it can (`wave_wires::Spread`), so the hash is made of
/// operations that classic BPF has. Its secret multipliers keep peers from choosing a group by their ports. A peer with many IPv6
/// addresses can still put all its connections into one group (addresses are folded before they are multiplied); they then share
/// one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steering {
    groups: u16,
    multipliers: [u32; 3],
}

impl Steering {
    /// Assigns connections to this many groups, 1 to [`GROUPS_MAX`]. Panics for another number.
    pub fn new(groups: u16, secret: (u64, u64)) -> Steering {
        assert!((1..=GROUPS_MAX).contains(&groups), "{groups} flow groups");
        let word = |from: u64| from as u32 | 1;
        Steering { groups, multipliers: [word(secret.0), word(secret.0 >> 32), word(secret.1)] }
    }

    /// Number of groups.
    pub fn groups(&self) -> u16 {
        self.groups
    }

    /// The hash's multipliers, for a wire.
    pub fn multipliers(&self) -> [u32; 3] {
        self.multipliers
    }

    /// The group of the connection between these ends.
    pub fn group_of(&self, tuple: &Tuple) -> u16 {
        let address = match tuple.remote.ip() {
            IpAddr::V4(ip) => ip.to_bits(),
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                [0, 32, 64, 96].iter().fold(0, |folded, at| folded ^ (bits >> at) as u32)
            }
        };
        let ports = u32::from(tuple.remote.port()) << 16 | u32::from(tuple.local.port());
        let [one, two, three] = self.multipliers;
        let sum = address.wrapping_mul(one) ^ ports.wrapping_mul(two);
        let hash = (sum ^ sum >> 15).wrapping_mul(three);
        ((hash >> 16) % u32::from(self.groups)) as u16
    }

    /// The agent-wide id of a flow with this id in its group's data path.
    pub fn id(&self, group: u16, inner: FlowId) -> FlowId {
        FlowId { index: inner.index * u32::from(self.groups) + u32::from(group), ..inner }
    }

    /// The group of a flow, and its id there.
    pub fn inner(&self, flow: FlowId) -> (usize, FlowId) {
        let groups = u32::from(self.groups);
        ((flow.index % groups) as usize, FlowId { index: flow.index / groups, ..flow })
    }
}

/// Both ends of a received packet's connection; `None` if it is no valid TCP segment.
pub fn tuple_of<F: AsRef<[u8]>>(packet: &Packet<F>) -> Option<Tuple> {
    let Ok(Parsed::Tcp { ip, segment, .. }) = parse(packet.frame.as_ref(), packet.checksum_is_good)
    else {
        return None;
    };
    Some(Tuple {
        local: (ip.destination, segment.destination_port).into(),
        remote: (ip.source, segment.source_port).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(remote: &str, local_port: u16) -> Tuple {
        Tuple { local: ([10, 0, 0, 1], local_port).into(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn connections_of_one_peer_spread_over_all_groups() {
        for groups in [1, 2, 3, 8] {
            let steering = Steering::new(groups, (0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9));
            let mut counts = std::vec![0_usize; usize::from(groups)];
            for port in 40_000..44_000 {
                let tuple = between(&std::format!("10.0.0.2:{port}"), 80);
                counts[usize::from(steering.group_of(&tuple))] += 1;
            }
            let share = 4_000 / usize::from(groups);
            assert!(counts.iter().all(|count| count.abs_diff(share) < share / 4), "{counts:?}");
        }
    }

    #[test]
    fn flow_ids_are_unique_across_groups_and_round_trip() {
        let steering = Steering::new(3, (1, 2));
        let mut seen = std::collections::BTreeSet::new();
        for group in 0..3 {
            for index in 0..100 {
                let inner = FlowId { index, generation: index + 7 };
                let id = steering.id(group, inner);
                assert!(id.index < 300 && seen.insert(id));
                assert_eq!(steering.inner(id), (usize::from(group), inner));
            }
        }
    }
}
