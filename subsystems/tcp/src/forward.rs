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

/// Forwards every call of a data path to `$data`, which each of the patterns binds.
macro_rules! forward_datapath {
    ($frame:ty, $self:ident: $($pattern:pat_param)|+ => $data:expr) => {
        fn submit(&mut $self, now: Nanos, batch: &mut Batch<'_, $frame>) {
            match $self { $($pattern => $data.submit(now, batch),)+ }
        }

        fn requests_in_flight(&$self) -> usize {
            match $self { $($pattern => $data.requests_in_flight(),)+ }
        }

        fn complete(&mut $self, now: Nanos, ticket: Ticket) {
            match $self { $($pattern => $data.complete(now, ticket),)+ }
        }

        fn poll(
            &mut $self,
            now: Nanos,
            budget: usize,
            outputs: &mut VecDeque<Output<$frame>>,
        ) -> Option<Nanos> {
            match $self { $($pattern => $data.poll(now, budget, outputs),)+ }
        }

        fn command(&mut $self, now: Nanos, flow: FlowId, command: Command) {
            match $self { $($pattern => $data.command(now, flow, command),)+ }
        }

        fn pace(&mut $self, flow: FlowId, limits: Limits) {
            match $self { $($pattern => $data.pace(flow, limits),)+ }
        }

        fn set_path(&mut $self, flow: FlowId, path: Path) {
            match $self { $($pattern => $data.set_path(flow, path),)+ }
        }

        fn next_statistics(&mut $self) -> Option<Statistics> {
            match $self { $($pattern => $data.next_statistics(),)+ }
        }

        fn resume(&mut $self, flow: FlowId) {
            match $self { $($pattern => $data.resume(flow),)+ }
        }

        fn install(&mut $self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
            match $self { $($pattern => $data.install(now, established),)+ }
        }

        fn restore(
            &mut $self,
            now: Nanos,
            id: FlowId,
            established: &Established,
        ) -> Result<(), NoRoom> {
            match $self { $($pattern => $data.restore(now, id, established),)+ }
        }

        fn reserve_generations(&mut $self, generation: u32) {
            match $self { $($pattern => $data.reserve_generations(generation),)+ }
        }

        fn freeze(&mut $self, flow: FlowId) {
            match $self { $($pattern => $data.freeze(flow),)+ }
        }

        fn frozen(&$self, flow: FlowId) -> bool {
            match $self { $($pattern => $data.frozen(flow),)+ }
        }

        fn export(&mut $self, flow: FlowId) -> Option<Established> {
            match $self { $($pattern => $data.export(flow),)+ }
        }

        fn inspect(&$self, flow: FlowId) -> Option<Established> {
            match $self { $($pattern => $data.inspect(flow),)+ }
        }

        fn find(&$self, tuple: &Tuple) -> Option<FlowId> {
            match $self { $($pattern => $data.find(tuple),)+ }
        }

        fn name(&$self) -> &'static str {
            match $self { $($pattern => $data.name(),)+ }
        }

        fn capabilities(&$self) -> Capabilities {
            match $self { $($pattern => $data.capabilities(),)+ }
        }

        fn visit_counters(&$self, visit: &mut dyn FnMut(Counter, u64)) {
            match $self { $($pattern => $data.visit_counters(visit),)+ }
        }

        fn points(&$self) -> &'static [PointInfo] {
            match $self { $($pattern => $data.points(),)+ }
        }
    };
}

impl<F, D: Datapath<F> + ?Sized> Datapath<F> for Box<D> {
    forward_datapath!(F, self: data => (**data));
}
