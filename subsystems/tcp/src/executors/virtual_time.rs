//! A model of the stages' replicas in virtual time. Each piece of work takes a time drawn from a seed, so that entries overtake
//! each other as they could on a machine. The same seed gives the same run.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::marker::PhantomData;

use wave_core::clock::Nanos;

use super::{Completed, Executor};
use crate::datapath::{Established, FlowId, NoRoom, Output, Path, Settings, Statistics, Tuple};
use crate::flow::state::Protocol;
use crate::flow::table::Flows;
use crate::pipeline::{self, Outcome, ProtocolResult, Routed, Stamped};
use crate::reorder::Reorder;
use crate::stages::arbiter::ByStages;
use crate::stages::recover::{Recovery, Sack};
use crate::trace::Trace;

/// Limit of entries in flight.
const POOL: usize = 64;

/// Numbers of replicas of the stages, and the time that they take.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of replicas of the pre stage.
    pub pre: usize,
    /// Number of replicas of the protocol stage. No two of them work on the same flow at a time.
    pub protocol: usize,
    /// Number of replicas of the post stage.
    pub post: usize,
    /// Longest time that an entry takes in a stage, in ticks of the model.
    pub ticks_max: u64,
}

impl Default for Shape {
    /// The shape of a protocol island of FlexTOE (thesis Figure 4.8): four replicas of pre and post.
    fn default() -> Shape {
        Shape { pre: 4, protocol: 4, post: 4, ticks_max: 100 }
    }
}

/// A replica's current work, which is done at its end time.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is at most one per replica")]
enum Job<F> {
    Pre(Stamped<F>),
    /// The replica has loaded the flow's state, and stores it when it is done.
    Protocol(u64, ProtocolResult<F>, Option<Protocol>),
    Post(u64, ProtocolResult<F>),
}

/// Runs stages as replicas in virtual time.
#[derive(Debug)]
pub struct VirtualTime<F, R = Sack> {
    recovery: PhantomData<R>,
    settings: Settings,
    shape: Shape,
    flows: Flows,
    random: u64,
    ticks: u64,
    /// Work under way, ordered by its end time, then by when it began.
    jobs: BTreeMap<(u64, u64), Job<F>>,
    begun: u64,
    /// Numbers of busy replicas: of pre, protocol, post.
    working: [usize; 3],
    /// Flows that a protocol replica works on.
    busy: alloc::vec::Vec<FlowId>,
    entered: VecDeque<Stamped<F>>,
    before_protocol: Reorder<(u64, Routed<F>)>,
    admitted: VecDeque<(u64, Routed<F>)>,
    processed: VecDeque<(u64, ProtocolResult<F>)>,
    before_exit: Reorder<Completed<F>>,
    in_flight: usize,
    overtaken: u64,
    latest: u64,
    trace: Arc<Trace>,
}

impl<F: AsRef<[u8]>, R: Recovery> VirtualTime<F, R> {
    /// An executor without flows.
    pub fn new(settings: Settings, shape: Shape, seed: u64) -> VirtualTime<F, R> {
        VirtualTime::traced(settings, shape, seed, Arc::new(Trace::new(0)))
    }

    /// An executor without flows, with trace points.
    pub fn traced(
        settings: Settings,
        shape: Shape,
        seed: u64,
        trace: Arc<Trace>,
    ) -> VirtualTime<F, R> {
        VirtualTime {
            recovery: PhantomData,
            settings,
            shape,
            flows: Flows::new(settings.flows, settings.key),
            random: seed,
            ticks: 0,
            jobs: BTreeMap::new(),
            begun: 0,
            working: [0; 3],
            busy: alloc::vec::Vec::new(),
            entered: VecDeque::new(),
            before_protocol: Reorder::new(POOL),
            admitted: VecDeque::new(),
            processed: VecDeque::new(),
            before_exit: Reorder::new(POOL),
            in_flight: 0,
            overtaken: 0,
            latest: 0,
            trace,
        }
    }

    /// Number of entries that left the pre stage after one with a higher number.
    pub fn overtaken(&self) -> u64 {
        self.overtaken
    }

    /// Draws a time from 0 to `ticks_max`, by SplitMix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % (self.shape.ticks_max + 1)
    }

    fn begin(&mut self, job: Job<F>) {
        let end = self.ticks + self.draw();
        self.jobs.insert((end, self.begun), job);
        self.begun += 1;
    }

    /// Gives work to idle replicas.
    fn begin_all(&mut self) {
        while self.working[0] < self.shape.pre
            && let Some(stamped) = self.entered.pop_front()
        {
            self.working[0] += 1;
            self.begin(Job::Pre(stamped));
        }
        // The front entry waits while its flow is busy, and the others wait behind it.
        while self.working[1] < self.shape.protocol
            && self.admitted.front().is_some_and(|(_, routed)| !self.busy.contains(&routed.flow))
            && let Some((number, routed)) = self.admitted.pop_front()
        {
            let id = routed.flow;
            let mut state = self.flows.protocol.get(id).cloned();
            let super_bytes = self.settings.super_bytes;
            let (_, pool) = self.flows.protocol.get_mut(id);
            let (trace, state_mut) = (&self.trace, state.as_mut());
            let arbiter = &mut ByStages::<R>::default();
            let result = pipeline::protocol(arbiter, super_bytes, trace, pool, state_mut, routed);
            self.working[1] += 1;
            self.busy.push(id);
            self.begin(Job::Protocol(number, result, state));
        }
        while self.working[2] < self.shape.post
            && let Some((number, result)) = self.processed.pop_front()
        {
            self.working[2] += 1;
            self.begin(Job::Post(number, result));
        }
    }

    /// Advances to the next time at which work ends.
    fn advance(&mut self) {
        let ((end, _), job) = self
            .jobs
            .pop_first()
            .expect("an entry in flight is being processed, or waits for one that is");
        self.ticks = end;
        match job {
            Job::Pre(stamped) => self.end_pre(stamped),
            Job::Protocol(number, result, state) => {
                self.working[1] -= 1;
                let id = result.flow;
                self.busy.retain(|busy| *busy != id);
                if let (Some(flow), Some(state)) = (self.flows.protocol.get_mut(id).0, state) {
                    *flow = state;
                }
                self.processed.push_back((number, result));
            }
            Job::Post(number, result) => self.end_post(number, result),
        }
        self.begin_all();
    }

    fn end_pre(&mut self, stamped: Stamped<F>) {
        self.working[0] -= 1;
        let number = stamped.number;
        self.overtaken += u64::from(number < self.latest);
        self.latest = self.latest.max(number);
        let mut completed = Completed::default();
        let done = pipeline::pre(&self.flows.pre, &self.trace, stamped, |output| {
            completed.outputs.push(output)
        });
        match done {
            Ok(routed) => self.before_protocol.insert(number, (number, routed)),
            Err(outcome) => {
                completed.outcome = outcome;
                let placed = self.before_exit.insert(number, completed);
                placed.and_then(|()| self.before_protocol.skip(number))
            }
        }
        .expect("a number is within the pool and is used once");
        while let Some(admitted) = self.before_protocol.pop() {
            self.admitted.push_back(admitted);
        }
    }

    fn end_post(&mut self, number: u64, result: ProtocolResult<F>) {
        self.working[2] -= 1;
        let id = result.flow;
        let post = self.flows.post.get_mut(id).map(|post| {
            pipeline::count(post, &result);
            &*post
        });
        let entry = self.flows.pre.entry(id).zip(post);
        let flow = entry.as_ref().map(|((tuple, pre), post)| (tuple, *pre, *post));
        let mut completed = Completed::default();
        let mac = self.settings.mac;
        let outputs = &mut completed.outputs;
        completed.outcome =
            pipeline::post(mac, &self.trace, flow, result, |output| outputs.push(output));
        self.before_exit
            .insert(number, completed)
            .expect("a number is within the pool and is used once");
    }
}

impl<F: AsRef<[u8]>, R: Recovery> Executor<F> for VirtualTime<F, R> {
    fn room(&self) -> usize {
        POOL - self.in_flight
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn push(&mut self, entry: Stamped<F>) {
        assert!(self.in_flight < POOL, "there is room");
        self.in_flight += 1;
        self.entered.push_back(entry);
        self.begin_all();
    }

    fn pop(&mut self, waits: bool, outputs: &mut VecDeque<Output<F>>) -> Option<Outcome> {
        loop {
            if let Some(completed) = self.before_exit.pop() {
                self.in_flight -= 1;
                return Some(completed.deliver(outputs));
            }
            if self.in_flight == 0 || !waits {
                return None;
            }
            self.advance();
        }
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
