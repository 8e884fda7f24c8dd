//! A flow group per core: each has a data path, a wire and a thread of its own. To the control plane they are one data path
//! (docs/adr/0082).
//!
//! ```text
//!             front's thread                            a group's thread
//!  processes ──> requests ──> control plane ──lane──> data path ──> wire
//!            <── events  <──  control plane <──lane── data path <── wire
//! ```
//!
//! Segments and copies of payload stay in their group. Requests, commands, notices, statistics and packets for the control plane
//! cross by lanes, in order, without a mutex. Install, freeze, export and inspect lock the group's mutex, which its thread holds
//! during a turn; the first three take effect after all orders that were sent before.

mod bell;
mod engine;
mod front_datapath;
mod thread;
mod wires;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use wave_agent::lanes::{In, Out, ROOM_EVERY, Sleeper, lane};
use wave_core::clock::Nanos;
use wave_tcp::capabilities::Capabilities;
use wave_tcp::context::{ContextId, Filled, Update};
use wave_tcp::datapath::{
    Batch, Command, Counter, Datapath, Established, FlowId, Limits, NoRoom, OUTPUTS_PER_STEP,
    Output, Packet, Path, Ring, Settings, Statistics, Ticket, Tuple,
};
use wave_tcp::steering::{Steering, tuple_of};
use wave_tcp::trace::{PointInfo, Trace};
use wave_wires::{Frame, Wire};

use crate::captures::Recorders;
use crate::front_datapath::STEPS_PER_POLL;
use crate::wire_port::WirePort;
pub use wires::{GroupWires, Sender, steering_over};

use bell::Bell;
use engine::{Engine, Order, Report, STATISTICS_PER_POLL};
use thread::Shared;

/// Most reports that were taken from the lanes and not passed on.
const PENDING_MAX: usize = 1024;
/// Most requests of a group that are not done. While there are as many, the next requests of all groups wait.
const REQUESTS_MAX: usize = 1024;
/// Interval between looks at a flow that is to be frozen.
const FREEZING_EVERY: Nanos = Nanos::from_micros(50);

/// The data paths of all flow groups, as one.
pub struct Groups<W: Wire, D> {
    steering: Steering,
    groups: Vec<Group<W, D>>,
    /// What the data paths say about themselves, which is the same for all.
    name: &'static str,
    capabilities: Capabilities,
    points: &'static [PointInfo],
    /// The group whose reports are taken first.
    first: usize,
    cpus: Vec<usize>,
    /// Rung by groups while the front sleeps.
    bell: Arc<Bell>,
    /// Reports that were taken from the lanes, each with its group.
    pending: VecDeque<(u16, Report)>,
    statistics: VecDeque<Statistics>,
    /// Flows whose losses and marks the control plane has processed.
    resumed: Vec<FlowId>,
    /// The memory of each flow, by its index.
    flows: Vec<Option<FlowMemory>>,
    /// All flows, by their ends.
    by_tuple: HashMap<Tuple, FlowId>,
    /// Flows to be frozen. `Some(sent)`: it is frozen, and its group had sent `sent` reports by then. All of these must be
    /// delivered before the flow is exported.
    freezing: HashMap<FlowId, Option<u64>>,
    /// Number of requests that were submitted.
    submitted: u64,
    /// Time 0 of the clock.
    start: Instant,
    now: Nanos,
    /// The groups have threads, which are not paused.
    runs: bool,
    /// Without threads: frames are taken from the wires.
    receives: bool,
    astray: u64,
}

/// A flow's rings, and how much of them has memory: receiving, sending.
#[derive(Clone, Copy)]
struct FlowMemory {
    generation: u32,
    process: u16,
    rings: [Ring; 2],
    filled: Filled,
}

struct Group<W, D> {
    shared: Arc<Shared<W, D>>,
    orders: Out<Order, Bell>,
    reports: In<Report>,
    /// Number of its reports that were passed on.
    delivered: u64,
    /// Its packets on their way to the control plane, shared with its engine.
    control_packets: Arc<AtomicU32>,
    /// Agent-wide numbers of this group's open requests, oldest first.
    requests: VecDeque<u64>,
    /// Number of this group's requests that are known to be done.
    done: u64,
    thread: Option<JoinHandle<()>>,
    /// The wire's descriptor, for waits and for a new agent.
    wire: Option<Arc<OwnedFd>>,
}

impl<W: Wire, D: Datapath<Frame>> Groups<W, D> {
    /// A data path for each of these wires, made by `make`, and the sending end for the front.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub(crate) fn new(
        wires: GroupWires<W>,
        settings: Settings,
        recorders: &Recorders,
        (trace, start): (&Arc<Trace>, Instant),
        mut make: impl FnMut(Settings, Arc<Trace>) -> D,
    ) -> io::Result<(Sender<W>, Groups<W, D>)> {
        let GroupWires { wires, senders, steering, cpus } = wires;
        let count = usize::from(steering.groups());
        assert_eq!([wires.len(), senders.len()], [count; 2], "two wires for each group");
        let bell = Arc::new(Bell::new()?);
        let mut groups = Vec::with_capacity(wires.len());
        let mut about = None;
        for (at, wire) in (0..).zip(wires) {
            let flows = settings.flows / u32::from(steering.groups());
            let trace = Arc::new(trace.of_group(steering, at));
            let data = make(Settings { flows, ..settings }, trace);
            about = Some((data.name(), data.capabilities(), data.points()));
            let own = wire.as_fd().map(|fd| fd.try_clone_to_owned()).transpose()?.map(Arc::new);
            let outputs = STEPS_PER_POLL * OUTPUTS_PER_STEP;
            let wire_port = WirePort::new(wire, recorders.clone(), outputs);
            let own_bell = Arc::new(Bell::new()?);
            let (orders, taken) = lane(Arc::clone(&own_bell));
            let (reports, got) = lane(Arc::clone(&bell));
            let control_packets = Arc::new(AtomicU32::new(0));
            let lanes = (taken, reports);
            let engine =
                Mutex::new(Engine::new(data, wire_port, lanes, Arc::clone(&control_packets)));
            let shared = Arc::new(Shared {
                engine,
                bell: own_bell,
                is_wanted: AtomicBool::new(false),
                is_paused: AtomicBool::new(false),
                is_to_end: AtomicBool::new(false),
                has_ended: AtomicBool::new(false),
                has_failed: AtomicBool::new(false),
                done: AtomicU64::new(0),
            });
            groups.push(Group {
                shared,
                orders,
                reports: got,
                delivered: 0,
                control_packets,
                requests: VecDeque::new(),
                done: 0,
                thread: None,
                wire: own,
            });
        }
        let (name, capabilities, points) = about.expect("there is a group");
        let groups = Groups {
            steering,
            groups,
            name,
            capabilities,
            points,
            first: 0,
            cpus,
            bell: Arc::clone(&bell),
            pending: VecDeque::new(),
            statistics: VecDeque::new(),
            resumed: Vec::new(),
            flows: vec![None; settings.flows as usize],
            by_tuple: HashMap::new(),
            freezing: HashMap::new(),
            submitted: 0,
            start,
            now: Nanos(0),
            runs: false,
            receives: true,
            astray: 0,
        };
        Ok((Sender { wires: senders, steering, bell }, groups))
    }

    /// A flow's group, and its id there.
    fn place(&self, flow: FlowId) -> (usize, FlowId) {
        self.steering.inner(flow)
    }

    fn order(&mut self, flow: FlowId, order: impl FnOnce(FlowId) -> Order) {
        let (group, inner) = self.place(flow);
        self.groups[group].orders.send(order(inner));
    }

    /// Moves a group's reports to those that are pending. If there are too many, the others wait in its lane, and the group waits
    /// once that is full.
    fn collect(&mut self, at: usize) {
        let (pending, group) = (&mut self.pending, &mut self.groups[at]);
        while pending.len() < PENDING_MAX
            && let Some(report) = group.reports.take()
        {
            pending.push_back((at as u16, report));
        }
    }

    /// Passes a packet on to a group. A group that does not keep up loses it, as any cable may.
    fn pass(&mut self, group: usize, packet: Packet<Frame>) {
        let orders = &mut self.groups[group].orders;
        if !orders.is_behind() {
            orders.send(Order::Packet(packet));
        }
    }

    /// Works for all groups, while they have no threads that do.
    fn drive(&mut self, now: Nanos) {
        for group in &mut self.groups {
            group.orders.flush();
            let mut engine = group.shared.lock_engine();
            engine.turn(now, self.receives, &group.shared.is_wanted);
            group.shared.publish(&engine);
        }
    }

    /// Finds out which flows have become frozen. Their reports precede what the control plane does with them.
    fn check_freezing(&mut self) {
        let steering = self.steering;
        let group_of = |flow: &FlowId| steering.inner(*flow).0;
        let mut asked: Vec<FlowId> =
            self.freezing.iter().filter(|(_, at)| at.is_none()).map(|(flow, _)| *flow).collect();
        asked.sort_unstable_by_key(group_of);
        for flows in asked.chunk_by(|one, other| group_of(one) == group_of(other)) {
            let engine = self.groups[group_of(&flows[0])].shared.lock_engine();
            for flow in flows.iter().filter(|flow| engine.data.frozen(steering.inner(**flow).1)) {
                self.freezing.insert(*flow, Some(engine.sent));
            }
        }
    }

    /// Passes a report on.
    fn deliver(&mut self, group: u16, report: Report, outputs: &mut VecDeque<Output<Frame>>) {
        let of = &mut self.groups[usize::from(group)];
        of.delivered += 1;
        if let Report::Control(..) = report {
            of.control_packets.fetch_sub(1, Ordering::Relaxed);
        }
        match report {
            Report::Notify(context, event) => outputs.push_back(Output::Notify(context, event)),
            Report::Statistics(statistics) => {
                let flow = self.steering.id(group, statistics.flow);
                if statistics.is_at_fault && self.memory_of(flow).is_some() {
                    // The data path has frozen it, without being told to.
                    self.freezing.entry(flow).or_insert(None);
                }
                self.statistics.push_back(Statistics { flow, ..statistics });
            }
            Report::Control(packet, Some(flow)) => {
                outputs.push_back(Output::Control((packet, Some(self.steering.id(group, flow)))));
            }
            Report::Control(packet, None) => {
                let flow = tuple_of(&packet).and_then(|tuple| self.by_tuple.get(&tuple));
                let own = flow.map(|flow| self.steering.inner(*flow).0);
                match own.filter(|own| *own != usize::from(group)) {
                    Some(own) => {
                        self.astray += 1;
                        self.pass(own, packet);
                    }
                    None => outputs.push_back(Output::Control((packet, None))),
                }
            }
        }
    }

    /// Tells a flow's group of pages that have memory by now.
    fn order_filled(&mut self, context: ContextId, update: &Update) {
        let memory = self.memory_of(update.flow);
        let Some(memory) = memory.filter(|memory| memory.process == context.process) else {
            return;
        };
        let (process, rings) = (memory.process, memory.rings);
        let before = std::mem::replace(&mut memory.filled, update.filled);
        let grown = [
            (before.receive, update.filled.receive, rings[0]),
            (before.send, update.filled.send, rings[1]),
        ];
        for (before, now, ring) in grown {
            if now > before {
                self.order(update.flow, |_| Order::Filled(process, ring, now));
            }
        }
    }

    /// The memory of a flow that has not left.
    fn memory_of(&mut self, flow: FlowId) -> Option<&mut FlowMemory> {
        let memory = self.flows.get_mut(flow.index as usize)?.as_mut();
        memory.filter(|memory| memory.generation == flow.generation)
    }

    /// When to poll again, if no bell rings before.
    fn next(&self, now: Nanos) -> Option<Nanos> {
        let is_waiting =
            !(self.pending.is_empty() && self.statistics.is_empty() && self.resumed.is_empty())
                || self.groups.iter().any(|group| !group.reports.is_empty());
        let is_behind = self.groups.iter().any(|group| group.orders.is_behind());
        let is_freezing = self.freezing.values().any(Option::is_none);
        // Orders that were sent since a group's last turn are work as well.
        let of_group = |group: &Group<W, D>| {
            let engine = group.shared.lock_engine();
            if engine.orders.is_empty() { engine.next } else { Some(now) }
        };
        let of_groups = (!self.runs).then(|| self.groups.iter().filter_map(of_group).min());
        let soon = [
            is_waiting.then_some(now),
            is_freezing.then(|| now + FREEZING_EVERY),
            is_behind.then(|| now + ROOM_EVERY),
        ];
        soon.into_iter().chain(of_groups).flatten().min()
    }

    /// Remembers the memory of a flow, for its group and for later requests.
    fn record_flow(&mut self, flow: FlowId, established: &Established) {
        let Established { context, receiving, sending, .. } = established;
        self.flows[flow.index as usize] = Some(FlowMemory {
            generation: flow.generation,
            process: context.process,
            rings: [receiving.ring, sending.ring],
            filled: Filled { receive: receiving.filled, send: sending.filled },
        });
    }

    /// A group, once it has carried out all orders.
    fn settled(group: &mut Group<W, D>, now: Nanos) -> MutexGuard<'_, Engine<W, D>> {
        group.orders.flush();
        let mut engine = group.shared.lock_engine();
        engine.take_orders(now, usize::MAX);
        while group.orders.is_behind() {
            group.orders.flush();
            engine.take_orders(now, usize::MAX);
        }
        engine
    }

    /// Adds a flow, under its earlier name if there is one.
    fn put(
        &mut self,
        now: Nanos,
        name: Option<FlowId>,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        let own = self.steering.group_of(&established.tuple);
        let (at, inner) = match name {
            Some(name) => self.steering.inner(name),
            None => (usize::from(own), FlowId { index: 0, generation: 0 }),
        };
        let group = &mut self.groups[at];
        let mut engine = Groups::settled(group, now);
        let Established { context, receiving, sending, .. } = established;
        engine.memory.filled(context.process, receiving.ring, receiving.filled);
        engine.memory.filled(context.process, sending.ring, sending.filled);
        let flow = match name {
            Some(name) => engine.data.restore(now, inner, established).map(|()| name)?,
            None => self.steering.id(own, engine.data.install(now, established)?),
        };
        drop(engine);
        // It may have something to send.
        group.shared.bell.ring_if_parked();
        self.by_tuple.insert(established.tuple, flow);
        self.record_flow(flow, established);
        Ok(flow)
    }

    /// Notes the requests that are done.
    fn count_done(&mut self) {
        for group in &mut self.groups {
            let done = group.shared.done.load(Ordering::Acquire).max(group.done);
            let more = done.saturating_sub(group.done) as usize;
            group.requests.drain(..more.min(group.requests.len()));
            group.done = done;
        }
    }
}

impl<W: Wire, D: Datapath<Frame>> Datapath<Frame> for Groups<W, D> {
    fn submit(&mut self, _now: Nanos, batch: &mut Batch<'_, Frame>) {
        while let Some(packet) = batch.packets.pop_front() {
            let group = tuple_of(&packet).map_or(0, |tuple| self.steering.group_of(&tuple));
            self.pass(group.into(), packet);
        }
        while let Some((context, update)) = batch.requests.front().copied() {
            let (at, flow) = self.place(update.flow);
            let group = &self.groups[at];
            if group.orders.is_behind() || group.requests.len() >= REQUESTS_MAX {
                break;
            }
            batch.requests.pop_front();
            self.order_filled(context, &update);
            let group = &mut self.groups[at];
            group.orders.send(Order::Request(context, Update { flow, ..update }));
            group.requests.push_back(self.submitted);
            self.submitted += 1;
        }
        self.groups.iter_mut().for_each(|group| group.orders.flush());
    }

    fn requests_in_flight(&self) -> usize {
        // From the oldest open request of any group on: later ones may be done already.
        let oldest = self.groups.iter().filter_map(|group| group.requests.front()).min();
        oldest.map_or(0, |oldest| (self.submitted - oldest) as usize)
    }

    /// The control plane's own segments have no tickets, and the groups complete theirs.
    fn complete(&mut self, _now: Nanos, _ticket: Ticket) {}

    fn poll(
        &mut self,
        now: Nanos,
        budget: usize,
        outputs: &mut VecDeque<Output<Frame>>,
    ) -> Option<Nanos> {
        self.now = now;
        if budget > 0 {
            // After the limits that the control plane has set since it read the statistics.
            for flow in std::mem::take(&mut self.resumed) {
                self.order(flow, Order::Resume);
            }
            if !self.runs {
                self.drive(now);
            }
            // Each poll begins with another group.
            let count = self.groups.len();
            self.first = (self.first + 1) % count;
            for at in (self.first..count).chain(0..self.first) {
                self.collect(at);
            }
            self.check_freezing();
            self.count_done();
            for _ in 0..budget * OUTPUTS_PER_STEP {
                // Those that were not read would become stale.
                if self.statistics.len() >= STATISTICS_PER_POLL {
                    break;
                }
                let Some((group, report)) = self.pending.pop_front() else { break };
                self.deliver(group, report, outputs);
            }
        }
        self.groups.iter_mut().for_each(|group| group.orders.flush());
        self.next(now)
    }

    fn command(&mut self, _now: Nanos, flow: FlowId, command: Command) {
        self.order(flow, |flow| Order::Command(flow, command));
    }

    fn pace(&mut self, flow: FlowId, limits: Limits) {
        self.order(flow, |flow| Order::Pace(flow, limits));
    }

    fn set_path(&mut self, flow: FlowId, path: Path) {
        self.order(flow, |flow| Order::SetPath(flow, path));
    }

    fn next_statistics(&mut self) -> Option<Statistics> {
        self.statistics.pop_front()
    }

    fn resume(&mut self, flow: FlowId) {
        self.resumed.push(flow);
    }

    fn install(&mut self, now: Nanos, established: &Established) -> Result<FlowId, NoRoom> {
        self.put(now, None, established)
    }

    fn restore(&mut self, now: Nanos, id: FlowId, established: &Established) -> Result<(), NoRoom> {
        self.put(now, Some(id), established).map(drop)
    }

    fn reserve_generations(&mut self, generation: u32) {
        for group in &mut self.groups {
            Groups::settled(group, self.now).data.reserve_generations(generation);
        }
    }

    fn freeze(&mut self, flow: FlowId) {
        let (at, inner) = self.place(flow);
        let group = &mut self.groups[at];
        let mut engine = Groups::settled(group, self.now);
        engine.data.freeze(inner);
        if engine.data.inspect(inner).is_some() {
            self.freezing.entry(flow).or_insert(None);
        }
        drop(engine);
        // A reset may have to be sent before.
        group.shared.bell.ring_if_parked();
    }

    fn frozen(&self, flow: FlowId) -> bool {
        let delivered = self.groups[self.place(flow).0].delivered;
        self.freezing.get(&flow).is_some_and(|sent| sent.is_some_and(|sent| sent <= delivered))
    }

    fn export(&mut self, flow: FlowId) -> Option<Established> {
        if !self.frozen(flow) {
            return None;
        }
        let (at, inner) = self.place(flow);
        let exported = Groups::settled(&mut self.groups[at], self.now).data.export(inner);
        let Some(established) = exported else {
            // An order that was on its way has given it work.
            self.freezing.insert(flow, None);
            return None;
        };
        self.freezing.remove(&flow);
        self.by_tuple.remove(&established.tuple);
        self.flows[flow.index as usize] = None;
        Some(established)
    }

    fn inspect(&self, flow: FlowId) -> Option<Established> {
        let (at, inner) = self.place(flow);
        self.groups[at].shared.lock_engine().data.inspect(inner)
    }

    fn find(&self, tuple: &Tuple) -> Option<FlowId> {
        self.by_tuple.get(tuple).copied()
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Sums over all groups.
    fn visit_counters(&self, visit: &mut dyn FnMut(Counter, u64)) {
        let mut sums: Vec<(Counter, u64)> = Vec::new();
        for (at, group) in self.groups.iter().enumerate() {
            let mut place = 0;
            group.shared.lock_engine().data.visit_counters(&mut |counter, count| {
                match at {
                    0 => sums.push((counter, count)),
                    _ => sums[place].1 += count,
                }
                place += 1;
            });
        }
        sums.into_iter().for_each(|(counter, sum)| visit(counter, sum));
    }

    fn points(&self) -> &'static [PointInfo] {
        self.points
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use wave_tcp::steering::GROUPS_MAX;
    use wave_wires::Spread;

    use super::*;

    #[test]
    fn spread_and_steering_choose_the_same_group() {
        let mut random = rand::rng();
        for _ in 0..10_000 {
            let steering = steering_over(random.random_range(1..=GROUPS_MAX));
            let (address, ports) = (random.random::<u32>(), random.random::<u32>());
            let tuple = Tuple {
                local: ([10, 0, 0, 1], ports as u16).into(),
                remote: (address.to_be_bytes(), (ports >> 16) as u16).into(),
            };
            let spread = Spread { multipliers: steering.multipliers() };
            let number = spread.number(address, ports, steering.groups().into());
            assert_eq!(u32::from(steering.group_of(&tuple)), number);
        }
    }
}
