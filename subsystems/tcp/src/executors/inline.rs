//! All stages in the caller's thread, one entry at a time, so that entries stay in order.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use wave_core::clock::Nanos;

use super::Executor;
use crate::datapath::{Established, FlowId, NoRoom, Output, Path, Settings, Statistics, Tuple};
use crate::flow::table::Flows;
use crate::pipeline::{self, Outcome, Stamped};
use crate::stages::arbiter::{Arbiter, ByStages};
use crate::stages::recover::Recovery;
use crate::trace::Trace;

/// The executor on one core. An entry runs when it is popped.
#[derive(Debug)]
pub struct Inline<F, A = ByStages> {
    arbiter: A,
    settings: Settings,
    flows: Flows,
    entry: Option<Stamped<F>>,
    trace: Arc<Trace>,
}

impl<F, A: Arbiter> Inline<F, A> {
    /// An executor without flows.
    pub fn new(settings: Settings) -> Inline<F, A> {
        Inline::traced(settings, Arc::new(Trace::new(0)))
    }

    /// An executor without flows, with trace points.
    pub fn traced(settings: Settings, trace: Arc<Trace>) -> Inline<F, A> {
        let flows = Flows::new(settings.flows, settings.key);
        Inline { arbiter: A::new(&settings), settings, flows, entry: None, trace }
    }
}

impl<F: AsRef<[u8]>, A: Arbiter> Executor<F> for Inline<F, A> {
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
        let (arbiter, trace) = (&mut self.arbiter, &self.trace);
        let result = pipeline::protocol(arbiter, super_bytes, trace, pool, flow, routed);
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
        let id = self.flows.install(now, name, &A::without_own(established))?;
        if let Err(no_room) = self.arbiter.install(id, established) {
            self.flows.remove(id);
            return Err(no_room);
        }
        Ok(id)
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.flows.reserve_generations(generation);
    }

    fn remove(&mut self, id: FlowId) -> Option<Established> {
        let established = self.inspect(id)?;
        self.flows.remove(id)?;
        self.arbiter.remove(id, &established);
        Some(established)
    }

    fn set_path(&mut self, id: FlowId, path: Path) {
        self.flows.set_path(id, path);
    }

    fn inspect(&self, id: FlowId) -> Option<Established> {
        self.flows.inspect(id).map(|established| self.arbiter.complete(id, established))
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.flows.find(tuple)
    }

    fn name(&self) -> &'static str {
        A::NAME
    }

    fn uses_sack(&self) -> bool {
        A::Recovery::USES_SACK
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        self.flows.statistics::<A::Recovery>(id)
    }
}
