//! All stages in the caller's thread, one entry at a time: what is in order stays so.

use alloc::collections::VecDeque;

use super::Executor;
use crate::datapath::{Effect, FlowId, NoRoom, Statistics, Tuple};
use crate::flextoe::Settings;
use crate::flow::table::{Flow, Flows};
use crate::pipeline::{self, Outcome, Stamped};
use crate::stages::post::statistics;

/// The executor on one core. An entry runs when it comes out.
#[derive(Debug)]
pub struct Inline<F> {
    settings: Settings,
    flows: Flows,
    entry: Option<Stamped<F>>,
}

impl<F> Inline<F> {
    /// Without flows.
    pub fn new(settings: Settings) -> Inline<F> {
        let flows = Flows::new(settings.flows, settings.key);
        Inline { settings, flows, entry: None }
    }
}

impl<F: AsRef<[u8]>> Executor<F> for Inline<F> {
    fn room(&self) -> usize {
        1 - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        usize::from(self.entry.is_some())
    }

    fn push(&mut self, entry: Stamped<F>) {
        assert!(self.entry.is_none(), "one entry at a time");
        self.entry = Some(entry);
    }

    fn pop(&mut self, _waits: bool, effects: &mut VecDeque<Effect<F>>) -> Option<Outcome> {
        let entry = self.entry.take()?;
        let Flows { pre, protocol, post } = &mut self.flows;
        let routed = match pipeline::pre(pre, entry, |effect| effects.push_back(effect)) {
            Ok(routed) => routed,
            Err(outcome) => return Some(outcome),
        };
        let id = routed.flow;
        let Settings { mac, super_bytes, .. } = self.settings;
        let decided = pipeline::protocol(super_bytes, protocol.get_mut(id), routed);
        let post = post.get_mut(id).map(|post| {
            pipeline::count(post, &decided);
            &*post
        });
        let flow = pre.get(id).zip(post);
        Some(pipeline::post(mac, flow, decided, |effect| effects.push_back(effect)))
    }

    fn install(&mut self, flow: Flow) -> Result<FlowId, NoRoom> {
        self.flows.install(flow)
    }

    fn remove(&mut self, id: FlowId) -> Option<Flow> {
        self.flows.remove(id)
    }

    fn get(&self, id: FlowId) -> Option<Flow> {
        self.flows.get(id)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.flows.find(tuple)
    }

    fn statistics(&mut self, id: FlowId) -> Option<Statistics> {
        let Flows { protocol, post, .. } = &mut self.flows;
        Some(statistics(id, protocol.get(id)?, post.get_mut(id)?))
    }
}
