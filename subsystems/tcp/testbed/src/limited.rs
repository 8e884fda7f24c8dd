//! A data path that can do less than another one.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_tcp::capabilities::Capabilities;
use wave_tcp::datapath::{
    Batch, Command, Counter, Datapath, Established, FlowId, Limits, NoRoom, Output, Path, Segment,
    Statistics, Ticket, Tuple,
};
use wave_tcp::packet::{Ecn, Flags, Parsed, parse};
use wave_tcp::trace::PointInfo;

use crate::executors::Data;

/// A data path with only a part of its capabilities. It panics if a connection has agreed on more, or a segment uses more.
pub struct Limited<F> {
    pub data: Data<F>,
    pub capabilities: Capabilities,
}

impl<F: AsRef<[u8]>> Limited<F> {
    fn check(&self, established: &Established) {
        assert_eq!(self.capabilities.missing(&Capabilities::needed_by(established)), None);
        assert!(self.capabilities.sack || !established.sack_permitted);
    }

    fn check_segment(&self, segment: &Segment<F>) {
        // Without its payload, a segment of data is truncated; its headers are not.
        let mut frame = segment.head.bytes().to_vec();
        frame.resize(frame.len() + (1 << 16), 0);
        let Ok(Parsed::Tcp { ip, segment, .. }) = parse(&frame, true) else { return };
        let Capabilities { timestamps, sack, echoes, .. } = self.capabilities;
        assert!(timestamps || segment.options.timestamps.is_none());
        assert!(sack || segment.options.sack_blocks().is_empty());
        let has_ecn =
            ip.ecn != Ecn::NotCapable || segment.flags.intersects(Flags::ECE | Flags::CWR);
        assert!(!echoes.is_empty() || !has_ecn);
    }
}

impl<F: AsRef<[u8]>> Datapath<F> for Limited<F> {
    fn submit(&mut self, now: Nanos, batch: &mut Batch<'_, F>) {
        self.data.submit(now, batch);
    }

    fn requests_in_flight(&self) -> usize {
        self.data.requests_in_flight()
    }

    fn complete(&mut self, now: Nanos, ticket: Ticket) {
        self.data.complete(now, ticket);
    }

    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        outputs: &mut VecDeque<Output<F>>,
    ) -> Option<Nanos> {
        let before = outputs.len();
        let next = self.data.poll(now, budget, outputs);
        for output in outputs.range(before..) {
            if let Output::Send(segment) = output {
                self.check_segment(segment);
            }
        }
        next
    }

    fn command(&mut self, now: Nanos, flow: FlowId, command: Command) {
        self.data.command(now, flow, command);
    }

    fn pace(&mut self, flow: FlowId, limits: Limits) {
        self.data.pace(flow, limits);
    }

    fn set_path(&mut self, flow: FlowId, path: Path) {
        self.data.set_path(flow, path);
    }

    fn next_statistics(&mut self) -> Option<Statistics> {
        self.data.next_statistics()
    }

    fn resume(&mut self, flow: FlowId) {
        self.data.resume(flow);
    }

    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
        self.check(established);
        self.data.install(now, established)
    }

    fn restore(&mut self, now: Nanos, id: FlowId, established: &Established) -> Result<(), NoRoom> {
        self.check(established);
        self.data.restore(now, id, established)
    }

    fn reserve_generations(&mut self, generation: u32) {
        self.data.reserve_generations(generation);
    }

    fn freeze(&mut self, flow: FlowId) {
        self.data.freeze(flow);
    }

    fn frozen(&self, flow: FlowId) -> bool {
        self.data.frozen(flow)
    }

    fn export(&mut self, flow: FlowId) -> Option<Established> {
        self.data.export(flow)
    }

    fn inspect(&self, flow: FlowId) -> Option<Established> {
        self.data.inspect(flow)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.data.find(tuple)
    }

    fn name(&self) -> &'static str {
        self.data.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn visit_counters(&self, visit: &mut dyn FnMut(Counter, u64)) {
        self.data.visit_counters(visit);
    }

    fn points(&self) -> &'static [PointInfo] {
        self.data.points()
    }
}
