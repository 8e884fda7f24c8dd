//! The flows of a data path, in the partitions that the stages own (thesis Table 4.1).

use alloc::vec::Vec;

use wave_core::clock::Nanos;

use super::disorder::Pool;
use super::state::{Post, Pre, Protocol, join, split};
use crate::datapath::{Established, FlowId, NoRoom, Path, Statistics, Tuple};
use crate::stages::post::statistics;
use crate::stages::recover::Recovery;
use crate::tuples::Tuples;

/// One stage's part of each flow, by its id.
#[derive(Clone, Debug)]
pub struct Partition<T>(Vec<Option<(u32, T)>>);

impl<T> Partition<T> {
    /// An empty partition with room for `flows` flows.
    pub fn new(flows: u32) -> Partition<T> {
        Partition((0..flows).map(|_| None).collect())
    }

    /// The part of this flow; `None` if the flow does not exist.
    pub fn get(&self, id: FlowId) -> Option<&T> {
        let (generation, part) = self.0.get(id.index as usize)?.as_ref()?;
        (*generation == id.generation).then_some(part)
    }

    /// The part of this flow, mutably; `None` if the flow does not exist.
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        let (generation, part) = self.0.get_mut(id.index as usize)?.as_mut()?;
        (*generation == id.generation).then_some(part)
    }

    /// Adds the part of a new flow. Its index must be below the number of flows.
    pub fn insert(&mut self, id: FlowId, part: T) {
        self.0[id.index as usize] = Some((id.generation, part));
    }

    /// Removes and returns a part.
    pub fn remove(&mut self, id: FlowId) -> Option<T> {
        self.get(id)?;
        self.0[id.index as usize].take().map(|(_, part)| part)
    }
}

/// The protocol stage's part of each flow, and the pool for flows that are out of order.
#[derive(Clone, Debug)]
pub struct Protocols {
    flows: Partition<Protocol>,
    pool: Pool,
}

impl Protocols {
    /// Room for `flows` flows. `key` is the pool's.
    pub fn new(flows: u32, key: (u64, u64)) -> Protocols {
        Protocols { flows: Partition::new(flows), pool: Pool::new(flows, key) }
    }

    /// The part of this flow; `None` if the flow does not exist.
    pub fn get(&self, id: FlowId) -> Option<&Protocol> {
        self.flows.get(id)
    }

    /// The part of this flow, mutably, if the flow exists, and the pool.
    pub fn get_mut(&mut self, id: FlowId) -> (Option<&mut Protocol>, &mut Pool) {
        (self.flows.get_mut(id), &mut self.pool)
    }

    /// Adds the part of a new flow. If the pool lends it nothing, its out-of-order bytes are forgotten, and its peer
    /// retransmits them (RFC 2018, section 8).
    pub fn insert(&mut self, id: FlowId, tuple: &Tuple, mut part: Protocol) {
        part.group = self.pool.group(tuple.remote.ip());
        if let Some(had) = part.disorder.take() {
            self.pool.lend(&mut part);
            if let Some(disorder) = &mut part.disorder {
                **disorder = *had;
            }
        }
        self.flows.insert(id, part);
    }

    /// Removes a part. `show` sees it before its [`Disorder`](super::disorder::Disorder) is taken back.
    pub fn remove<T>(&mut self, id: FlowId, show: impl FnOnce(&Protocol) -> T) -> Option<T> {
        let mut part = self.flows.remove(id)?;
        let shown = show(&part);
        self.pool.take_back(&mut part);
        Some(shown)
    }
}

/// The flows of an executor that runs in one thread.
#[derive(Clone, Debug)]
pub struct Flows {
    /// Parts of the pre stage, by both ends.
    pub pre: Tuples<Pre>,
    /// Parts of the protocol stage.
    pub protocol: Protocols,
    /// Parts of the post stage.
    pub post: Partition<Post>,
}

impl Flows {
    /// Room for `flows` flows. `key` is the table's.
    pub fn new(flows: u32, key: (u64, u64)) -> Flows {
        Flows {
            pre: Tuples::new(flows, key),
            protocol: Protocols::new(flows, key),
            post: Partition::new(flows),
        }
    }

    /// Gives later generations than this to new flows.
    pub fn reserve_generations(&mut self, generation: u32) {
        self.pre.reserve_generations(generation);
    }

    /// Installs a flow, under its earlier name if there is one.
    ///
    /// # Errors
    /// There is no room, or a flow between these ends exists.
    pub fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        let (pre, protocol, post) = split(established, now);
        let id = self.pre.insert_as(name, established.tuple, pre)?;
        self.protocol.insert(id, &established.tuple, protocol);
        self.post.insert(id, post);
        Ok(id)
    }

    /// Removes and returns a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<Established> {
        let tuple = self.pre.tuple(id)?;
        let pre = self.pre.remove(id)?;
        let post = self.post.remove(id)?;
        self.protocol.remove(id, |protocol| join(tuple, &pre, protocol, &post))
    }

    /// A flow's current state.
    pub fn inspect(&self, id: FlowId) -> Option<Established> {
        let (tuple, pre) = self.pre.entry(id)?;
        Some(join(tuple, pre, self.protocol.get(id)?, self.post.get(id)?))
    }

    /// Changes the path in a flow's headers.
    pub fn set_path(&mut self, id: FlowId, path: Path) {
        if let Some(pre) = self.pre.get_mut(id) {
            pre.set_path(path);
        }
    }

    /// Reads and clears a flow's statistics.
    pub fn statistics<R: Recovery>(&mut self, id: FlowId) -> Option<Statistics> {
        Some(statistics::<R>(id, self.protocol.get(id)?, self.post.get_mut(id)?))
    }

    /// The flow between these ends.
    pub fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.pre.find(tuple)
    }
}
