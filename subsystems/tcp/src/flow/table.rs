//! The flows of a data path, in the partitions that the stages own (thesis Table 4.1).

use alloc::vec::Vec;

use super::state::{Post, Pre, Protocol};
use crate::datapath::{FlowId, NoRoom, Path, Statistics, Tuple};
use crate::stages::post::statistics;
use crate::stages::recover::Recovery;
use crate::tuples::Tuples;

/// The parts of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Part of the pre stage.
    pub pre: Pre,
    /// Part of the protocol stage.
    pub protocol: Protocol,
    /// Part of the post stage.
    pub post: Post,
}

/// One stage's part of each flow, by its id.
#[derive(Clone, Debug)]
pub struct Partition<T>(Vec<Option<(u32, T)>>);

impl<T> Partition<T> {
    /// Of no flows. Room for so many.
    pub fn new(flows: u32) -> Partition<T> {
        Partition((0..flows).map(|_| None).collect())
    }

    /// The part of this flow, if it is there.
    pub fn get(&self, id: FlowId) -> Option<&T> {
        let (generation, part) = self.0.get(id.index as usize)?.as_ref()?;
        (*generation == id.generation).then_some(part)
    }

    /// The part of this flow, if it is there.
    pub fn get_mut(&mut self, id: FlowId) -> Option<&mut T> {
        let (generation, part) = self.0.get_mut(id.index as usize)?.as_mut()?;
        (*generation == id.generation).then_some(part)
    }

    /// Takes the part of a new flow. Its index is below what there is room for.
    pub fn insert(&mut self, id: FlowId, part: T) {
        self.0[id.index as usize] = Some((id.generation, part));
    }

    /// Removes and returns a part.
    pub fn remove(&mut self, id: FlowId) -> Option<T> {
        self.get(id)?;
        self.0[id.index as usize].take().map(|(_, part)| part)
    }
}

/// The flows of an executor that runs in one thread.
#[derive(Clone, Debug)]
pub struct Flows {
    /// Parts of the pre stage, by both ends.
    pub pre: Tuples<Pre>,
    /// Parts of the protocol stage.
    pub protocol: Partition<Protocol>,
    /// Parts of the post stage.
    pub post: Partition<Post>,
}

impl Flows {
    /// Room for so many flows. The key is the table's.
    pub fn new(flows: u32, key: (u64, u64)) -> Flows {
        Flows {
            pre: Tuples::new(flows, key),
            protocol: Partition::new(flows),
            post: Partition::new(flows),
        }
    }

    /// Takes a flow.
    ///
    /// # Errors
    /// There is no room, or one with these ends is there.
    pub fn install(&mut self, flow: Flow) -> Result<FlowId, NoRoom> {
        let id = self.pre.insert(flow.pre.tuple, flow.pre)?;
        self.protocol.insert(id, flow.protocol);
        self.post.insert(id, flow.post);
        Ok(id)
    }

    /// Removes and returns a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<Flow> {
        let pre = self.pre.remove(id)?;
        let (protocol, post) = (self.protocol.remove(id)?, self.post.remove(id)?);
        Some(Flow { pre, protocol, post })
    }

    /// A copy of a flow.
    pub fn get(&self, id: FlowId) -> Option<Flow> {
        let pre = *self.pre.get(id)?;
        Some(Flow { pre, protocol: *self.protocol.get(id)?, post: *self.post.get(id)? })
    }

    /// Changes what a flow's headers say.
    pub fn set_path(&mut self, id: FlowId, path: Path) {
        if let Some(pre) = self.pre.get_mut(id) {
            pre.set_path(path);
        }
    }

    /// Reads what was counted of a flow, and clears it.
    pub fn statistics<R: Recovery>(&mut self, id: FlowId) -> Option<Statistics> {
        Some(statistics::<R>(id, self.protocol.get(id)?, self.post.get_mut(id)?))
    }

    /// The flow of a connection.
    pub fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.pre.find(tuple)
    }
}
