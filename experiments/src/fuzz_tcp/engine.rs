//! A data path of either recovery, as a history's seed has it.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_tcp_planted::counters::Counters;
use wave_tcp_planted::datapath::{
    Batch, Command, Datapath, Effect, Established, FlowId, Limits, NoRoom, Statistics, Ticket,
    Tuple,
};
use wave_tcp_planted::executors::Inline;
use wave_tcp_planted::flextoe::{FlexToe, Settings};
use wave_tcp_planted::stages::recover::{GoBackN, Sack};
use wave_wires::Frame;

/// How a machine recovers from losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// One interval, and all over again.
    GoBackN,
    /// Selective acknowledgements, where the peer has them, too.
    Sack,
}

/// FlexTOE's data path.
#[derive(Debug)]
pub enum Engine {
    GoBackN(FlexToe<Frame, Inline<Frame, GoBackN>>),
    Sack(FlexToe<Frame, Inline<Frame, Sack>>),
}

/// The same call of either.
macro_rules! either {
    ($engine:expr, $data:ident => $call:expr) => {
        match $engine {
            Engine::GoBackN($data) => $call,
            Engine::Sack($data) => $call,
        }
    };
}

impl Engine {
    pub fn new(by: By, settings: Settings) -> Engine {
        match by {
            By::GoBackN => Engine::GoBackN(FlexToe::new(settings)),
            By::Sack => Engine::Sack(FlexToe::new(settings)),
        }
    }

    pub fn counters(&self) -> &Counters {
        either!(self, data => data.counters())
    }
}

impl Datapath<Frame> for Engine {
    fn submit(&mut self, now: Nanos, batch: &mut Batch<'_, Frame>) {
        either!(self, data => data.submit(now, batch))
    }

    fn complete(&mut self, now: Nanos, ticket: Ticket) {
        either!(self, data => data.complete(now, ticket))
    }

    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        effects: &mut VecDeque<Effect<Frame>>,
    ) -> Option<Nanos> {
        either!(self, data => data.poll(now, budget, effects))
    }

    fn command(&mut self, now: Nanos, flow: FlowId, command: Command) {
        either!(self, data => data.command(now, flow, command))
    }

    fn pace(&mut self, flow: FlowId, limits: Limits) {
        either!(self, data => data.pace(flow, limits))
    }

    fn drain_statistics(&mut self, budget: usize, read: &mut dyn FnMut(Statistics)) {
        either!(self, data => data.drain_statistics(budget, read))
    }

    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
        either!(self, data => data.install(now, established))
    }

    fn freeze(&mut self, flow: FlowId) {
        either!(self, data => data.freeze(flow))
    }

    fn frozen(&self, flow: FlowId) -> bool {
        either!(self, data => Datapath::<Frame>::frozen(data, flow))
    }

    fn export(&mut self, flow: FlowId) -> Option<Established> {
        either!(self, data => data.export(flow))
    }

    fn is_selective(&self) -> bool {
        either!(self, data => Datapath::<Frame>::is_selective(data))
    }

    fn inspect(&self, flow: FlowId) -> Option<Established> {
        either!(self, data => Datapath::<Frame>::inspect(data, flow))
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        either!(self, data => Datapath::<Frame>::find(data, tuple))
    }
}
