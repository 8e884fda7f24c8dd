//! All stages in the caller's thread, one entry at a time, so that entries stay in order.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::marker::PhantomData;

use wave_core::clock::Nanos;

use super::Executor;
use crate::datapath::{Established, FlowId, NoRoom, Output, Path, Settings, Statistics, Tuple};
use crate::flow::table::Flows;
use crate::pipeline::{self, Outcome, Stamped};
use crate::stages::recover::{Recovery, Sack};
use crate::trace::Trace;

/// The executor on one core. An entry runs when it is popped.
#[derive(Debug)]
pub struct Inline<F, R = Sack> {
    recovery: PhantomData<R>,
    settings: Settings,
    flows: Flows,
    entry: Option<Stamped<F>>,
    trace: Arc<Trace>,
}

impl<F, R: Recovery> Inline<F, R> {
    /// An executor without flows.
    pub fn new(settings: Settings) -> Inline<F, R> {
        Inline::traced(settings, Arc::new(Trace::new(0)))
    }

    /// An executor without flows, with trace points.
    pub fn traced(settings: Settings, trace: Arc<Trace>) -> Inline<F, R> {
        let flows = Flows::new(settings.flows, settings.key);
        Inline { recovery: PhantomData, settings, flows, entry: None, trace }
    }
}

impl<F: AsRef<[u8]>, R: Recovery> Executor<F> for Inline<F, R> {
    fn room(&self) -> usize {
        1 - usize::from(self.entry.is_some())
    }

    fn in_flight(&self) -> usize {
        usize::from(self.entry.is_some())
    }

    fn push(&mut self, entry: Stamped<F>) {
        assert!(self.entry.is_none(), "one entry at a time");
        self.entry = Some(entry);
    }

    fn pop(&mut self, _waits: bool, outputs: &mut VecDeque<Output<F>>) -> Option<Outcome> {
        let entry = self.entry.take()?;
        let Flows { pre, protocol, post } = &mut self.flows;
        let routed =
            match pipeline::pre(pre, &self.trace, entry, |output| outputs.push_back(output)) {
                Ok(routed) => routed,
                Err(outcome) => return Some(outcome),
            };
        let id = routed.flow;
        let Settings { mac, super_bytes, .. } = self.settings;
        let (flow, pool) = protocol.get_mut(id);
        let result = pipeline::protocol::<F, R>(super_bytes, &self.trace, pool, flow, routed);
        let post = post.get_mut(id).map(|post| {
            pipeline::count(post, &result);
            &*post
        });
        let entry = pre.entry(id).zip(post);
        let flow = entry.as_ref().map(|((tuple, pre), post)| (tuple, *pre, *post));
        Some(pipeline::post(mac, &self.trace, flow, result, |output| outputs.push_back(output)))
    }

    fn install(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        self.flows.install(now, name, established)
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.flows.reserve_generations(generation);
    }

    fn remove(&mut self, id: FlowId) -> Option<Established> {
        self.flows.remove(id)
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        self.flows.set_path(id, path);
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        self.flows.inspect(id)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.flows.find(tuple)
    }

    fn uses_sack(&self) -> bool {
        R::USES_SACK
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        self.flows.statistics::<R>(id)
    }
}
