//! A hash table of values keyed by both ends of a connection, in memory that is allocated once.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use serde::{Deserialize, Serialize};

use crate::datapath::{FlowId, NoRoom, Tuple};

const NONE: u32 = u32::MAX;

/// Both ends of a connection, packed into 37 bytes for storing and comparing: a [`Tuple`] has 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PackedTuple {
    is_v6: bool,
    /// Ports in native byte order: local, remote.
    ports: [[u8; 2]; 2],
    /// Addresses: local, remote. IPv4 uses the first four bytes.
    addresses: [[u8; 16]; 2],
}

impl From<&Tuple> for PackedTuple {
    fn from(tuple: &Tuple) -> PackedTuple {
        let bytes = |end: &SocketAddr| {
            let mut bytes = [0; 16];
            match end.ip() {
                IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes = ip.octets(),
            }
            bytes
        };
        PackedTuple {
            is_v6: tuple.local.is_ipv6(),
            ports: [tuple.local, tuple.remote].map(|end| end.port().to_ne_bytes()),
            addresses: [bytes(&tuple.local), bytes(&tuple.remote)],
        }
    }
}

impl From<&PackedTuple> for Tuple {
    fn from(ends: &PackedTuple) -> Tuple {
        let end = |at: usize| {
            let bytes = ends.addresses[at];
            let ip: IpAddr = match ends.is_v6 {
                true => bytes.into(),
                false => [bytes[0], bytes[1], bytes[2], bytes[3]].into(),
            };
            SocketAddr::new(ip, u16::from_ne_bytes(ends.ports[at]))
        };
        Tuple { local: end(0), remote: end(1) }
    }
}

impl PackedTuple {
    fn hash_with(&self, key: (u64, u64)) -> u64 {
        // In one piece, which is faster than field by field.
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(self.ports.as_flattened());
        let len = if self.is_v6 { 36 } else { 12 };
        match self.is_v6 {
            true => bytes[4..36].copy_from_slice(self.addresses.as_flattened()),
            false => {
                bytes[4..8].copy_from_slice(&self.addresses[0][..4]);
                bytes[8..12].copy_from_slice(&self.addresses[1][..4]);
            }
        }
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        hasher.write(&bytes[..len]);
        hasher.finish()
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<(PackedTuple, T)>,
}

/// A table of bounded size. Each entry is named by an index and a generation, as a [`FlowId`].
#[derive(Clone, Debug)]
pub struct Tuples<T> {
    slots: Vec<Slot<T>>,
    /// Free indices. The one that was free longest is used first, so that an old name stays invalid for long.
    free: VecDeque<u32>,
    /// Indices by a keyed hash of both ends: open addressing with linear probing, at least twice as many places as slots.
    places: Vec<u32>,
    key: (u64, u64),
    /// New names have later generations than this.
    oldest: u32,
}

impl<T: Copy> Tuples<T> {
    /// An empty table for up to `entries` entries. The key keeps peers from choosing ends that collide.
    pub fn new(entries: u32, key: (u64, u64)) -> Tuples<T> {
        let places = (2 * entries.max(1)).next_power_of_two() as usize;
        Tuples {
            slots: alloc::vec![Slot { generation: 0, entry: None }; entries as usize],
            free: (0..entries).collect(),
            places: alloc::vec![NONE; places],
            key,
            oldest: 0,
        }
    }

    fn home(&self, ends: &PackedTuple) -> usize {
        ends.hash_with(self.key) as usize & (self.places.len() - 1)
    }

    fn place(&self, ends: &PackedTuple) -> Option<usize> {
        let mut at = self.home(ends);
        loop {
            match self.places[at] {
                NONE => return None,
                index if self.packed_tuple(index) == Some(ends) => return Some(at),
                _ => at = (at + 1) & (self.places.len() - 1),
            }
        }
    }

    fn packed_tuple(&self, index: u32) -> Option<&PackedTuple> {
        self.slots[index as usize].entry.as_ref().map(|(ends, _)| ends)
    }

    /// Both ends of the entry with this name.
    pub fn tuple(&self, id: FlowId) -> Option<Tuple> {
        self.entry(id).map(|(tuple, _)| tuple)
    }

    /// The entry with this name, and both ends.
    pub fn entry(&self, id: FlowId) -> Option<(Tuple, &T)> {
        let slot = self.slots.get(id.index as usize)?;
        let (ends, value) = slot.entry.as_ref().filter(|_| slot.generation == id.generation)?;
        Some((ends.into(), value))
    }

    /// The entry at an index, whatever its generation.
    pub fn of(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.entry.as_ref().map(|(_, value)| value)
    }

    /// The entry at an index, whatever its generation, mutably.
    pub fn of_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.entry.as_mut().map(|(_, value)| value)
    }

    /// The entry with this name.
    pub fn get(&self, id: FlowId) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == id.generation).map(|(_, value)| value)
    }

    /// The entry with this name, mutably.
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == id.generation).map(|(_, value)| value)
    }

    /// The name of the entry that is, or last was, at an index.
    pub fn id(&self, index: u32) -> FlowId {
        FlowId { index, generation: self.slots[index as usize].generation }
    }

    /// The name of the entry between these ends.
    pub fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.place(&tuple.into()).map(|at| self.id(self.places[at]))
    }

    /// All entries, with their names and ends.
    pub fn iter(&self) -> impl Iterator<Item = (FlowId, Tuple, &T)> {
        self.slots.iter().zip(0..).filter_map(|(slot, index)| {
            let (ends, value) = slot.entry.as_ref()?;
            Some((FlowId { index, generation: slot.generation }, ends.into(), value))
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Largest number of entries.
    pub fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Adds an entry and returns its name.
    ///
    /// # Errors
    /// There is no room, or an entry between these ends exists.
    pub fn insert(&mut self, tuple: Tuple, value: T) -> Result<FlowId, NoRoom> {
        let ends = PackedTuple::from(&tuple);
        if self.place(&ends).is_some() {
            return Err(NoRoom);
        }
        let index = self.free.pop_front().ok_or(NoRoom)?;
        let generation = self.slots[index as usize].generation.max(self.oldest).wrapping_add(1);
        let name = FlowId { index, generation };
        self.put(ends, name, value);
        Ok(name)
    }

    /// The latest generation of a name so far.
    pub fn newest_generation(&self) -> u32 {
        self.slots.iter().map(|slot| slot.generation).fold(self.oldest, u32::max)
    }

    /// Gives later generations than this to new names: another table had such names, and somebody may still know them.
    pub fn reserve_generations(&mut self, generation: u32) {
        self.oldest = self.oldest.max(generation);
    }

    /// Adds an entry under its earlier name, from this table or another one. For names of another table, see [`Tuples::reserve_generations`].
    ///
    /// # Errors
    /// The name's index is taken or beyond the table, or an entry between these ends exists.
    pub fn restore(&mut self, tuple: Tuple, name: FlowId, value: T) -> Result<(), NoRoom> {
        let ends = PackedTuple::from(&tuple);
        let free = self.free.iter().position(|index| *index == name.index).ok_or(NoRoom)?;
        if self.place(&ends).is_some() {
            return Err(NoRoom);
        }
        self.free.remove(free);
        self.put(ends, name, value);
        Ok(())
    }

    /// [`Tuples::restore`] if there is a name, else [`Tuples::insert`].
    ///
    /// # Errors
    /// The same as of these.
    pub fn insert_as(
        &mut self,
        name: Option<FlowId>,
        tuple: Tuple,
        value: T,
    ) -> Result<FlowId, NoRoom> {
        match name {
            Some(name) => self.restore(tuple, name, value).map(|()| name),
            None => self.insert(tuple, value),
        }
    }

    fn put(&mut self, ends: PackedTuple, name: FlowId, value: T) {
        let mut at = self.home(&ends);
        while self.places[at] != NONE {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = name.index;
        let slot = &mut self.slots[name.index as usize];
        slot.generation = name.generation;
        slot.entry = Some((ends, value));
    }

    /// Removes and returns an entry.
    pub fn remove(&mut self, id: FlowId) -> Option<T> {
        self.get(id)?;
        let ends = *self.packed_tuple(id.index)?;
        let mask = self.places.len() - 1;
        let mut gap = self.place(&ends)?;
        let mut at = gap;
        // Entries that this one had displaced move back, so that a search never stops early.
        loop {
            at = (at + 1) & mask;
            let index = self.places[at];
            if index == NONE {
                break;
            }
            let home = self.packed_tuple(index).map_or(at, |ends| self.home(ends));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.places[gap] = index;
                gap = at;
            }
        }
        self.places[gap] = NONE;
        self.free.push_back(id.index);
        self.slots[id.index as usize].entry.take().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::SocketAddr;
    use std::vec::Vec;

    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg32;

    use super::*;

    fn tuple(port: u16) -> Tuple {
        let end = |last, port| SocketAddr::from(([10, 0, 0, last], port));
        Tuple { local: end(2, 80), remote: end(1, port) }
    }

    #[test]
    fn names_after_those_of_another_table_are_new() {
        let mut table = Tuples::new(2, (1, 2));
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..10 {
            let mut next = Tuples::new(2, (1, 2));
            next.reserve_generations(table.newest_generation());
            for port in 0..2 {
                let name = next.insert(tuple(port), 0).unwrap();
                assert!(seen.insert(name.to_word()), "{name} again in round {round}");
                next.remove(name).unwrap();
            }
            table = next;
        }
    }

    #[test]
    fn packed_ends_of_both_families_unpack_unchanged_and_differ() {
        let v6 = |ip: [u8; 16]| SocketAddr::from((ip, 80));
        let mapped = core::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets();
        let mut padded = [0; 16];
        padded[..4].copy_from_slice(&[10, 0, 0, 2]);
        let other = SocketAddr::from(([10, 0, 0, 1], 7));
        let mut seen = Vec::new();
        for local in [SocketAddr::from(([10, 0, 0, 2], 80)), v6(mapped), v6(padded)] {
            let remote = if local.is_ipv6() { v6([9; 16]) } else { other };
            let tuple = Tuple { local, remote };
            let ends = PackedTuple::from(&tuple);
            assert_eq!(Tuple::from(&ends), tuple);
            assert!(!seen.contains(&ends.addresses[0]) || local.is_ipv6());
            seen.push(ends.addresses[0]);
        }
        let both = [false, true].map(|is_v6| PackedTuple {
            is_v6,
            ports: [[0; 2]; 2],
            addresses: [padded; 2],
        });
        assert_ne!(both[0], both[1]);
    }

    #[test]
    fn the_table_behaves_like_a_map() {
        let mut rng = Pcg32::seed_from_u64(3);
        let mut table = Tuples::new(64, (1, 2));
        let mut map: HashMap<Tuple, (FlowId, u32)> = HashMap::new();
        let mut gone: Vec<FlowId> = Vec::new();
        for round in 0..20_000 {
            let ends = tuple(rng.random_range(0..100));
            if rng.random_bool(0.5) {
                let fits = !map.contains_key(&ends) && map.len() < 64;
                let inserted = table.insert(ends, round);
                assert_eq!(inserted.is_ok(), fits);
                if let Ok(id) = inserted {
                    map.insert(ends, (id, round));
                }
            } else if let Some((id, value)) = map.remove(&ends) {
                assert_eq!(table.remove(id), Some(value));
                gone.push(id);
            }
            let probe = tuple(rng.random_range(0..100));
            let found = table.find(&probe);
            assert_eq!(found, map.get(&probe).map(|(id, _)| *id));
            assert_eq!(found.and_then(|id| table.get(id)), map.get(&probe).map(|(_, value)| value));
            assert_eq!(table.len(), map.len());
        }
        assert!(gone.iter().all(|id| table.get(*id).is_none()), "an old name finds nothing");
    }
}
