//! Data paths that stand for others.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use wave_core::clock::Nanos;

use crate::capabilities::Capabilities;
use crate::datapath::{
    Batch, Command, Counter, Datapath, Established, FlowId, Limits, NoRoom, Output, Path,
    Statistics, Ticket, Tuple,
};
use crate::trace::PointInfo;

/// Forwards every call of a data path to the expression `$data`.
macro_rules! forward_datapath {
    ($frame:ty, $self:ident => $data:expr) => {
        fn submit(&mut $self, now: Nanos, batch: &mut Batch<'_, $frame>) {
            $data.submit(now, batch);
        }

        fn requests_in_flight(&$self) -> usize {
            $data.requests_in_flight()
        }

        fn complete(&mut $self, now: Nanos, ticket: Ticket) {
            $data.complete(now, ticket);
        }

        fn poll(
            &mut $self,
            now: Nanos,
            budget: usize,
            outputs: &mut VecDeque<Output<$frame>>,
        ) -> Option<Nanos> {
            $data.poll(now, budget, outputs)
        }

        fn command(&mut $self, now: Nanos, flow: FlowId, command: Command) {
            $data.command(now, flow, command);
        }

        fn pace(&mut $self, flow: FlowId, limits: Limits) {
            $data.pace(flow, limits);
        }

        fn set_path(&mut $self, flow: FlowId, path: Path) {
            $data.set_path(flow, path);
        }

        fn next_statistics(&mut $self) -> Option<Statistics> {
            $data.next_statistics()
        }

        fn resume(&mut $self, flow: FlowId) {
            $data.resume(flow);
        }

        fn install(&mut $self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
            $data.install(now, established)
        }

        fn restore(
            &mut $self,
            now: Nanos,
            id: FlowId,
            established: &Established,
        ) -> Result<(), NoRoom> {
            $data.restore(now, id, established)
        }

        fn reserve_generations(&mut $self, generation: u32) {
            $data.reserve_generations(generation);
        }

        fn freeze(&mut $self, flow: FlowId) {
            $data.freeze(flow);
        }

        fn frozen(&$self, flow: FlowId) -> bool {
            $data.frozen(flow)
        }

        fn export(&mut $self, flow: FlowId) -> Option<Established> {
            $data.export(flow)
        }

        fn inspect(&$self, flow: FlowId) -> Option<Established> {
            $data.inspect(flow)
        }

        fn find(&$self, tuple: &Tuple) -> Option<FlowId> {
            $data.find(tuple)
        }

        fn name(&$self) -> &'static str {
            $data.name()
        }

        fn capabilities(&$self) -> Capabilities {
            $data.capabilities()
        }

        fn visit_counters(&$self, visit: &mut dyn FnMut(Counter, u64)) {
            $data.visit_counters(visit);
        }

        fn points(&$self) -> &'static [PointInfo] {
            $data.points()
        }
    };
}

impl<F, D: Datapath<F> + ?Sized> Datapath<F> for Box<D> {
    forward_datapath!(F, self => (**self));
}
