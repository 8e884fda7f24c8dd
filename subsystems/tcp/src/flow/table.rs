//! Connections by their index, and by both ends.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use super::state::{Post, Pre, Protocol};
use crate::datapath::{FlowId, NoRoom, Tuple};

const NONE: u32 = u32::MAX;

/// One connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub pre: Pre,
    pub protocol: Protocol,
    pub post: Post,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    flow: Option<Flow>,
}

/// All connections of a data path. Allocates when it is made, and never again.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    /// Free indices; the one that was free longest is taken, so that an old name stays wrong for long.
    free: alloc::collections::VecDeque<u32>,
    /// Indices by a keyed hash of both ends, open addressing with linear steps. Twice as many as slots.
    places: Vec<u32>,
    key: (u64, u64),
}

impl Table {
    /// For so many connections. The key keeps peers from choosing ends that collide.
    pub(crate) fn new(flows: u32, key: (u64, u64)) -> Table {
        let places = (2 * flows.max(1)).next_power_of_two() as usize;
        Table {
            slots: alloc::vec![Slot { generation: 0, flow: None }; flows as usize],
            free: (0..flows).collect(),
            places: alloc::vec![NONE; places],
            key,
        }
    }

    fn home(&self, tuple: &Tuple) -> usize {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        tuple.hash(&mut hasher);
        hasher.finish() as usize & (self.places.len() - 1)
    }

    fn place(&self, tuple: &Tuple) -> Option<usize> {
        let mut at = self.home(tuple);
        loop {
            match self.places[at] {
                NONE => return None,
                index if self.of(index).is_some_and(|flow| flow.pre.tuple == *tuple) => {
                    return Some(at);
                }
                _ => at = (at + 1) & (self.places.len() - 1),
            }
        }
    }

    /// The flow at an index.
    pub(crate) fn of(&self, index: u32) -> Option<&Flow> {
        self.slots[index as usize].flow.as_ref()
    }

    /// The flow at an index.
    pub(crate) fn of_mut(&mut self, index: u32) -> Option<&mut Flow> {
        self.slots[index as usize].flow.as_mut()
    }

    /// The flow of this name.
    pub(crate) fn get(&self, id: FlowId) -> Option<&Flow> {
        let slot = self.slots.get(id.index as usize)?;
        slot.flow.as_ref().filter(|_| slot.generation == id.generation)
    }

    /// The flow of this name.
    pub(crate) fn get_mut(&mut self, id: FlowId) -> Option<&mut Flow> {
        let slot = self.slots.get_mut(id.index as usize)?;
        slot.flow.as_mut().filter(|_| slot.generation == id.generation)
    }

    /// The name of the flow at an index.
    pub(crate) fn name(&self, index: u32) -> FlowId {
        FlowId { index, generation: self.slots[index as usize].generation }
    }

    /// The flow with these ends.
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.place(tuple).map(|at| self.name(self.places[at]))
    }

    /// Takes a flow.
    pub(crate) fn insert(&mut self, flow: Flow) -> Result<FlowId, NoRoom> {
        if self.place(&flow.pre.tuple).is_some() {
            return Err(NoRoom);
        }
        let index = self.free.pop_front().ok_or(NoRoom)?;
        let mut at = self.home(&flow.pre.tuple);
        while self.places[at] != NONE {
            at = (at + 1) & (self.places.len() - 1);
        }
        self.places[at] = index;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.flow = Some(flow);
        Ok(self.name(index))
    }

    /// Takes a flow out.
    pub(crate) fn remove(&mut self, id: FlowId) -> Option<Flow> {
        let tuple = self.get(id)?.pre.tuple;
        let mask = self.places.len() - 1;
        let mut gap = self.place(&tuple).expect("a flow has its place");
        let mut at = gap;
        // What was pushed on by this one moves back, so that a search never stops early.
        loop {
            at = (at + 1) & mask;
            let index = self.places[at];
            if index == NONE {
                break;
            }
            let home = self.home(&self.of(index).expect("its place is cleared with it").pre.tuple);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.places[gap] = index;
                gap = at;
            }
        }
        self.places[gap] = NONE;
        self.free.push_back(id.index);
        self.slots[id.index as usize].flow.take()
    }

    /// How many there may be.
    pub(crate) fn capacity(&self) -> u32 {
        self.slots.len() as u32
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
    use crate::flow::state::split;
    use crate::flow::tests::established;

    fn flow(remote: u16) -> Flow {
        let mut one = established();
        one.tuple.remote = SocketAddr::from(([10, 0, 0, 1], remote));
        let (pre, protocol, post) = split(&one, wave_core::clock::Nanos(0));
        Flow { pre, protocol, post }
    }

    #[test]
    fn it_does_as_a_map_does() {
        let mut rng = Pcg32::seed_from_u64(3);
        let mut table = Table::new(64, (1, 2));
        let mut map: HashMap<Tuple, FlowId> = HashMap::new();
        let mut gone: Vec<FlowId> = Vec::new();
        for _ in 0..20_000 {
            let new = flow(rng.random_range(0..100));
            let tuple = new.pre.tuple;
            if rng.random_bool(0.5) {
                let expected = !map.contains_key(&tuple) && map.len() < 64;
                let inserted = table.insert(new);
                assert_eq!(inserted.is_ok(), expected);
                if let Ok(id) = inserted {
                    map.insert(tuple, id);
                }
            } else if let Some(id) = map.remove(&tuple) {
                assert_eq!(table.remove(id).map(|flow| flow.pre.tuple), Some(tuple));
                gone.push(id);
            }
            let probe = flow(rng.random_range(0..100)).pre.tuple;
            assert_eq!(table.find(&probe), map.get(&probe).copied());
        }
        assert!(
            gone.iter().all(|id| map.values().any(|live| live == id) || table.get(*id).is_none())
        );
    }
}
