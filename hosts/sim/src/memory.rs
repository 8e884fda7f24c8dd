//! Memory tiering in virtual time: a modelled address space whose pages the real host side (`wave_memory::serve`)
//! reads and moves, over the modelled link, by the decisions of the real agent loop and policy.
//!
//! The host is one task, the agent another. The model covers touches of pages, the time that the kernel takes to read
//! and move pages ([`Work`]), and the link. The same setup always gives the same history.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use wave_core::agent::{Agent, Step as AgentStep};
use wave_core::brain::Recorder;
use wave_core::clock::Nanos;
use wave_core::control::{AgentState, Revoked};
use wave_core::layout::{Config, ConfigError, Layout, read_header, write_header};
use wave_core::link::{Doorbell, Home, LINE_WORDS, Mapping, Port, Side, Span, Transport, Window};
use wave_core::log::{Header, LogWriter};
use wave_core::message::{Decision, Message};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{BadBulk, Desk, Policy, Progress};
use wave_core::snapshot::Snapshot;
use wave_links::costs::Costs;
use wave_links::memory::Memory;
use wave_links::model::{ModelPort, VirtualTime, extra_lines};
use wave_memory::guard::{Guard, Held, Limits, Standing};
use wave_memory::policies::{PolicyError, by_name};
use wave_memory::serve::{self, Cost, Fault, Server, State, Step, Tiers, Totals};
use wave_memory::space::{Pattern, Space};
use wave_memory::table::Bits;
use wave_memory::wire::{Place, STRIP_BYTES};

use crate::agent::Sink;
use crate::world::{Cause, SimBell, TaskId, World};

/// Id of the only process.
const SPACE: u32 = 1;
/// How often the host reports the number of resident pages to its guard.
const FIGURES: Nanos = Nanos::from_millis(500);

/// Setup of a run: link, costs, policy and pattern.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration on which host and agent agree: strips, queues and extents.
    pub config: Config,
    /// Costs of the link between host and agent.
    pub costs: Costs,
    /// Times of the host's and the agent's own work.
    pub work: Work,
    /// The policy with its settings, as [`by_name`] knows it.
    pub policy: String,
    /// The pages that are touched, and how often.
    pub pattern: Pattern,
    /// The limits beyond which nothing is paged out.
    pub limits: Limits,
    /// Seed of the random accesses.
    pub seed: u64,
}

impl Setup {
    /// A setup of `strips` strips across the paper's PCIe link: messages are write-combined, decisions and
    /// readings copied by DMA while both sides continue (Wave 7.4.1).
    pub fn new(strips: u32, policy: &str, pattern: Pattern) -> Setup {
        let mut config = serve::config(strips);
        config.messages.host = Mapping::WriteCombining;
        let decisions = &mut config.decisions;
        (decisions.transport, decisions.home) = (Transport::DmaAsync, Home::Host);
        Setup {
            config,
            costs: Costs::builtin("mount-evans").expect("built in"),
            work: Work::default(),
            policy: policy.to_owned(),
            pattern,
            limits: Limits::default(),
            seed: 1,
        }
    }
}

/// Times of single operations, in nanoseconds. The host's are from Linux 6.18 on one machine, accurate to a third.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Reading the access bits of a strip: 0.7 ms per GiB.
    pub read_strip: u64,
    /// Clearing the access bits of a batch, with the TLB flush: 12 ms per GiB.
    pub clear_batch: u64,
    /// Paging a page out, to compressed memory: 1.1 GiB per second.
    pub page_out: u64,
    /// Bringing a page back: 1.6 GiB per second.
    pub bring_back: u64,
    /// Time that a program loses by touching a page in the slow tier: 3.7 to 4.4 us.
    pub refault: u64,
    /// One poll of its queues by either side.
    pub look: u64,
    /// The agent's time for a word of readings: the time of an iteration (`wave bench sol`), divided by its words.
    pub agent_word: u64,
}

impl Default for Work {
    fn default() -> Work {
        Work {
            read_strip: 11_000,
            clear_batch: 2_900,
            page_out: 3_500,
            bring_back: 2_400,
            refault: 4_000,
            look: 1_000,
            agent_word: 8,
        }
    }
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration cannot be laid out.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policy cannot be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The state at one moment. Pages are as they were when their batch was last read or moved: at most a scan
/// period earlier. Sampling changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Virtual time of the sample.
    pub at: Nanos,
    /// Pages in the fast tier.
    pub resident_pages: u64,
    /// Number of touches of pages in the slow tier so far.
    pub refaults: u64,
    /// Refaults in the last minute, as the guard counts them.
    pub refaults_per_minute: u64,
    /// Why nothing is paged out at present; `None` if page-outs are allowed.
    pub held: Option<Held>,
    /// Number of batches by the time between their last two scans: milliseconds, batches.
    pub intervals_ms: Vec<(u32, u64)>,
    /// The host's totals so far.
    pub totals: Totals,
    /// How long the host side has worked so far.
    pub host_busy: Nanos,
    /// How long the agent has worked so far.
    pub agent_busy: Nanos,
}

/// Result of a run, interval by interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The state at the beginning and after each interval.
    pub samples: Vec<Sample>,
    /// Number of outcomes, by code.
    pub outcomes: Vec<(Code, u64)>,
    /// Decisions that the agent made.
    pub decided: u64,
    /// How long the agent worked.
    pub agent_busy: Nanos,
    /// How long the host side worked.
    pub host_busy: Nanos,
    /// Why the agent was turned out; `None` if it was not.
    pub fault: Option<Fault>,
    /// The error with which the agent left, if it did.
    pub agent_error: Option<String>,
    /// Equal for equal histories.
    pub trace_hash: u64,
}

/// Runs a setup for a number of intervals.
///
/// # Errors
/// The setup is not valid; nothing was run.
///
/// # Panics
/// If the system has no memory for the modelled window.
pub fn run(setup: &Setup, interval: Nanos, intervals: u32) -> Result<Report, SetupError> {
    let times = (1..=intervals).map(|at| Nanos(interval.0 * u64::from(at)));
    run_at(setup, &times.collect::<Vec<_>>(), None)
}

/// Runs a setup until the last of `times`, which ascend, with a sample at the beginning and at each of them. With
/// `log`, a text about the run and a sink, the agent writes a log.
///
/// # Errors
/// As for [`run`].
///
/// # Panics
/// As for [`run`].
pub fn run_at(
    setup: &Setup,
    times: &[Nanos],
    log: Option<(String, Sink)>,
) -> Result<Report, SetupError> {
    let layout = Layout::new(Config { subsystem: wave_memory::SUBSYSTEM.id, ..setup.config })?;
    let policy = by_name(&setup.policy, &setup.config)?;
    let world = World::new();
    let shared = Rc::new(Shared::new(setup, &world, layout));
    let host = {
        let shared = Rc::clone(&shared);
        world.spawn(move || shared.host())
    };
    let agent = {
        let shared = Rc::clone(&shared);
        // The closure of a task must be small.
        let log = log.map(Box::new);
        world.spawn(move || match log {
            None => shared.agent(policy, ()),
            Some(log) => {
                let (about, sink) = *log;
                let (config, policy_text) = (shared.layout.config, shared.setup.policy.clone());
                let header = Header { config, policy: policy_text, about };
                shared.agent(policy, LogWriter::new(&header, sink));
            }
        })
    };
    shared.introduce(host, agent);
    let mut samples = vec![shared.sample()];
    for at in times {
        world.run_until(*at);
        samples.push(shared.sample());
    }
    let report = Report {
        samples,
        outcomes: shared.outcomes.take(),
        decided: shared.decided.get(),
        agent_busy: shared.agent_busy.get(),
        host_busy: shared.host_busy.get(),
        fault: shared.fault.get(),
        agent_error: shared.agent_error.take(),
        trace_hash: world.trace_hash(),
    };
    world.end();
    Ok(report)
}

/// The state that both tasks and their driver share. The two sides communicate only through the window.
struct Shared {
    setup: Setup,
    world: World,
    layout: Layout,
    memory: Arc<Memory>,
    window: u32,
    time: VirtualTime,
    tasks: Cell<[Option<TaskId>; 2]>,
    /// The bells of the core and of the control context.
    host_bells: [SimBell; 2],
    agent_bell: SimBell,
    space: RefCell<Space>,
    state: RefCell<State>,
    outcomes: RefCell<Vec<(Code, u64)>>,
    decided: Cell<u64>,
    agent_busy: Cell<Nanos>,
    host_busy: Cell<Nanos>,
    fault: Cell<Option<Fault>>,
    agent_error: RefCell<Option<String>>,
}

impl Shared {
    fn new(setup: &Setup, world: &World, layout: Layout) -> Shared {
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let memory = Memory::create("wave-sim-memory", nic, host, extra_lines(nic, host));
        let (memory, _) = memory.expect("memory for a modelled window");
        let (window, time) = world.add_window(nic, host);
        let costs = &setup.costs;
        let bell =
            || SimBell::new(world, Cause::KICK, costs.kick_send.nanos(), costs.kick_flight.nanos());
        let strips = setup.config.subjects;
        let mut state = State::new(strips, Guard::new(setup.limits), false);
        let mapped: BTreeMap<u64, u64> =
            (0..u64::from(strips)).map(|strip| (strip * STRIP_BYTES, u64::MAX)).collect();
        state.table.update(SPACE, &mapped);
        Shared {
            host_bells: [bell(), bell()],
            agent_bell: bell(),
            space: RefCell::new(Space::new(strips, setup.pattern.clone(), setup.seed)),
            state: RefCell::new(state),
            setup: setup.clone(),
            world: world.clone(),
            memory: Arc::new(memory),
            layout,
            window,
            time,
            tasks: Cell::default(),
            outcomes: RefCell::default(),
            decided: Cell::default(),
            agent_busy: Cell::default(),
            host_busy: Cell::default(),
            fault: Cell::default(),
            agent_error: RefCell::default(),
        }
    }

    fn introduce(&self, host: TaskId, agent: TaskId) {
        self.tasks.set([Some(host), Some(agent)]);
        self.host_bells.iter().for_each(|bell| bell.set_target(host));
        self.agent_bell.set_target(agent);
        for place in &self.layout.messages {
            let span = Span { home: place.home, line: place.ring.first, lines: place.ring.entries };
            self.world.watch(self.window, span, LINE_WORDS - 1, agent, Cause::STORE);
        }
    }

    fn sample(&self) -> Sample {
        // Wait until the host is not in the middle of a step.
        while self.state.try_borrow().is_err() {
            self.world.run_until(self.world.now() + Nanos::from_micros(10));
        }
        let at = self.world.now();
        let (space, state) = (self.space.borrow(), self.state.borrow());
        // Queries advance the guard's buckets, so query a copy.
        let mut guard = state.guard.clone();
        Sample {
            at,
            resident_pages: space.present_pages(),
            refaults: space.counts().refaults,
            refaults_per_minute: guard.refaults(at),
            held: guard.held(at),
            intervals_ms: state.table.intervals_ms(),
            totals: state.totals,
            host_busy: self.host_busy.get(),
            agent_busy: self.agent_busy.get(),
        }
    }

    fn port(&self, side: Side) -> ModelPort<VirtualTime> {
        let seed = self.setup.seed ^ (side as u64) << 32;
        let (memory, mappings) = (Arc::clone(&self.memory), self.layout.mappings(side));
        ModelPort::new(memory, side, &self.setup.costs, &mappings, self.time.clone(), seed)
            .expect("a layout's mappings suit any link")
    }

    fn host(&self) {
        let [Some(task), _] = self.tasks.get() else { return };
        let (world, work) = (&self.world, &self.setup.work);
        let port = self.port(Side::Host);
        write_header(&self.layout, port.window(Home::Nic));
        // Reading the header back proves that it has arrived.
        port.window(Home::Nic).load(self.layout.header, 0);
        let mut server = Server::new(&self.layout, 0, world.now());
        while server.control().agent_state(&port) != AgentState::Ready {
            world.spend(Nanos::from_micros(10));
        }
        let mut tiers = Modelled { shared: self };
        let (mut slept, mut figures_at) = (Nanos(0), Nanos(0));
        loop {
            let step = {
                let mut state = self.state.borrow_mut();
                if world.now() >= figures_at {
                    figures_at = world.now() + FIGURES;
                    // No memory pressure is modelled.
                    state.guard.update(Standing {
                        resident_pages: self.space.borrow().present_pages(),
                        pressure_percent: 0.0,
                        refault: Some(Nanos(work.refault)),
                    });
                }
                server.step(&port, &mut state, &mut tiers)
            };
            if server.take_ring() {
                self.agent_bell.ring();
            }
            *self.outcomes.borrow_mut() = server.counts().iter().collect();
            self.host_busy.set(world.now().since(slept));
            match step {
                Ok(Step::Progress) => world.spend(Nanos(work.look)),
                Ok(Step::Idle) => {
                    let now = world.now();
                    let patience = self.setup.config.patience;
                    world.wait(task, Cause::KICK, Some(now + Nanos(patience.0 / 4)));
                    slept = slept + world.now().since(now);
                    let kicked = self.host_bells.iter().filter(|bell| bell.take()).count();
                    world.spend(Nanos(self.setup.costs.kick_receive.nanos().0 * kicked as u64));
                }
                Err(fault) => {
                    self.fault.set(Some(fault));
                    server.control().revoke(&port, Revoked::TurnedOut);
                    self.agent_bell.ring();
                    return;
                }
            }
        }
    }

    /// Runs the agent until its end.
    fn agent<R: Recorder>(&self, policy: impl Policy, recorder: R) {
        let [_, Some(task)] = self.tasks.get() else { return };
        let (world, work) = (&self.world, &self.setup.work);
        let port = self.port(Side::Agent);
        let (nic, host) = (self.layout.nic_lines, self.layout.host_lines);
        let layout = loop {
            match read_header(port.window(Home::Nic), nic, host) {
                Ok(layout) => break layout,
                // The host has not written the header yet.
                Err(_) => world.spend(Nanos::from_micros(10)),
            }
        };
        let policy = Working { policy, world: world.clone(), word: Nanos(work.agent_word) };
        let mut agent = Agent::new(layout, port, self.host_bells.to_vec(), policy, recorder);
        agent.announce();
        let born = world.now();
        let mut slept = Nanos(0);
        loop {
            let step = agent.step(world.now());
            self.decided.set(agent.counts().0);
            self.agent_busy.set(world.now().since(born + slept));
            let until = match step {
                Ok(AgentStep::Progress) => {
                    world.spend(Nanos(work.look));
                    continue;
                }
                Ok(AgentStep::Idle(until)) => until,
                Ok(AgentStep::Revoked) => return,
                Err(error) => {
                    *self.agent_error.borrow_mut() = Some(error.to_string());
                    return;
                }
            };
            world.spend(Nanos(work.look));
            let now = world.now();
            if agent.prepare_park() {
                if matches!(agent.step(world.now()), Ok(AgentStep::Idle(_))) {
                    world.wait(task, Cause::KICK, until);
                    self.agent_bell.take();
                }
                agent.unpark();
            } else {
                let again = now + agent.spin();
                let until = until.map_or(again, |until| until.min(again));
                let until = until.max(now + Nanos(work.look));
                world.wait(task, Cause::STORE.or(Cause::KICK), Some(until));
            }
            slept = slept + world.now().since(now);
        }
    }
}

/// The tiers of the modelled address space. The host is busy while it reads and moves pages.
struct Modelled<'a> {
    shared: &'a Shared,
}

impl Modelled<'_> {
    fn strip(place: Place) -> Option<u32> {
        (place.space == SPACE).then_some((place.address / STRIP_BYTES) as u32)
    }

    fn spend(&self, each: u64, count: u64) {
        self.shared.world.spend(Nanos(each * count));
    }
}

impl Tiers for Modelled<'_> {
    fn now(&self) -> Nanos {
        self.shared.world.now()
    }

    fn read(&mut self, place: Place) -> Option<Bits> {
        self.spend(self.shared.setup.work.read_strip, 1);
        self.shared.space.borrow_mut().read(self.now(), Self::strip(place)?)
    }

    fn clear(&mut self, place: Place, batches: u64) -> u64 {
        self.spend(self.shared.setup.work.clear_batch, u64::from(batches.count_ones()));
        let Some(strip) = Self::strip(place) else { return batches };
        self.shared.space.borrow_mut().clear(self.now(), strip, batches);
        0
    }

    fn page_out(&mut self, place: Place, batches: u64, seen: &Bits) -> Result<Cost, Code> {
        let strip = Self::strip(place).ok_or(Code::TargetNotFound)?;
        let now = self.now();
        let moved = self.shared.space.borrow_mut().page_out(now, strip, batches, &seen.young);
        self.spend(self.shared.setup.work.page_out, moved);
        Ok(Cost::NONE)
    }

    fn bring_back(&mut self, place: Place, batches: u64) -> Result<(), Code> {
        let strip = Self::strip(place).ok_or(Code::TargetNotFound)?;
        let moved = self.shared.space.borrow_mut().bring_back(self.now(), strip, batches);
        self.spend(self.shared.setup.work.bring_back, moved);
        Ok(())
    }
}

/// A policy whose decisions cost time.
struct Working<P> {
    policy: P,
    world: World,
    word: Nanos,
}

impl<P: Policy> Policy for Working<P> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        self.policy.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.policy.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        self.policy.next_deadline()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.policy.resync(now, snapshot);
    }
    fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        self.world.spend(Nanos(self.word.0 * words.len() as u64));
        self.policy.on_bulk(now, words)
    }
}

#[cfg(test)]
mod tests {
    use wave_core::log::LogReader;
    use wave_core::replay::Replay;

    use super::*;

    const STRIPS: u32 = 8;
    const PAGES: u64 = STRIPS as u64 * 64 * 64;
    const HOT_PAGES: u64 = PAGES / 4;
    const EPOCH: Nanos = Nanos::from_millis(38_400);

    fn setup(policy: &str) -> Setup {
        let pattern = Pattern::HotSet { first: 0, pages: HOT_PAGES, per_second: 0.5 };
        Setup::new(STRIPS, policy, pattern)
    }

    fn last(report: &Report) -> Sample {
        report.samples.last().cloned().expect("there is one for the beginning")
    }

    #[test]
    fn only_cold_memory_is_paged_out_over_the_link() {
        for policy in ["sol:shortest_ms=600", "threshold"] {
            let report = run(&setup(policy), EPOCH, 5).unwrap();
            assert_eq!((report.fault, report.agent_error.as_deref()), (None, None), "{policy}");
            assert_eq!(last(&report).resident_pages, HOT_PAGES, "{policy}");
            assert_eq!(last(&report).refaults, 0, "{policy}");
            let complete = report.outcomes.iter().find(|(code, _)| *code == Code::Complete);
            assert!(complete.is_some_and(|(_, count)| *count == report.decided), "{policy}");
        }
    }

    #[test]
    fn the_same_setup_gives_the_same_history() {
        let [one, other] = [0; 2].map(|_| run(&setup("sol"), EPOCH, 2).unwrap());
        assert_eq!(one, other);
        let seed = Setup { seed: 2, ..setup("sol") };
        assert!(run(&seed, EPOCH, 2).unwrap().trace_hash != one.trace_hash);
    }

    #[test]
    fn the_sampling_rate_changes_nothing() {
        let seldom = run(&setup("sol"), EPOCH, 2).unwrap();
        let often: Vec<Nanos> = (1..=96).map(|at| Nanos::from_millis(800 * at)).collect();
        let often = run_at(&setup("sol"), &often, None).unwrap();
        assert_eq!(last(&seldom), last(&often));
        assert_eq!(seldom.trace_hash, often.trace_hash);
    }

    #[test]
    fn a_log_replays_to_the_same_decisions() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&log);
        let sink: Sink = Box::new(move |bytes| sink.borrow_mut().extend_from_slice(bytes));
        let about = "a test".to_owned();
        let logged = run_at(&setup("sol"), &[EPOCH], Some((about, sink))).unwrap();
        assert_eq!(logged, run(&setup("sol"), EPOCH, 1).unwrap(), "a log takes no virtual time");
        let log = log.borrow();
        let mut reader = LogReader::new(&log).unwrap();
        let header = reader.header().clone();
        assert_eq!(header.config.subsystem, wave_memory::SUBSYSTEM.id);
        let policy = by_name(&header.policy, &header.config).unwrap();
        let mut replay = Replay::new(&header.config, policy);
        reader.by_ref().for_each(|record| replay.feed(&record.unwrap()));
        let tally = replay.finish();
        assert!(tally.is_identical(), "{tally:?}");
        assert_eq!(tally.decisions, logged.decided, "every decision is logged");
    }

    #[test]
    fn waiting_for_copies_changes_no_decision() {
        let mut waits = setup("sol");
        waits.config.pools[serve::READINGS].transport = Transport::DmaSync;
        let [waits, goes_on] = [waits, setup("sol")].map(|setup| run(&setup, EPOCH, 4).unwrap());
        assert_eq!(last(&waits).resident_pages, last(&goes_on).resident_pages);
        assert!(waits.trace_hash != goes_on.trace_hash);
    }

    #[test]
    fn the_limit_on_refaults_holds_page_outs_back() {
        let mut moves = setup("sol");
        let hot = |first| Pattern::HotSet { first, pages: HOT_PAGES, per_second: 0.5 };
        let patterns = [hot(0), hot(PAGES - HOT_PAGES)].map(Box::new);
        moves.pattern = Pattern::Change { at: Nanos(4 * EPOCH.0), patterns };
        moves.limits.refaults_per_minute = 0.002;
        let report = run(&moves, EPOCH, 10).unwrap();
        let end = last(&report);
        assert!(end.totals.held_for_refaults > 0, "{end:?}");
        assert_eq!(end.refaults, HOT_PAGES, "each page of the new hot set is refaulted once");
        assert_eq!(end.resident_pages, HOT_PAGES, "in the end only the hot set is resident");
    }

    /// The refaults of the sweep alone would exceed the limit for a minute.
    #[test]
    fn a_sweep_does_not_hold_page_outs_back_for_the_rest_of_the_run() {
        let mut swept = setup("sol");
        let hot = swept.pattern.clone();
        let per_second = PAGES as f64 / 2.0;
        let sweep = Pattern::Sweep { pages: PAGES * 50, per_second };
        swept.pattern = Pattern::Sum([hot, sweep].into());
        let cold = PAGES - HOT_PAGES;
        let sweep_costs = (cold * swept.work.refault) as f64 / 60e9;
        swept.limits.slowdown = sweep_costs / 2.0;
        let times = [203, 213, 230].map(|at| Nanos::from_millis(at * 1_000));
        let report = run_at(&swept, &times, None).unwrap();
        let [_, _, soon, later] = &report.samples[..] else { panic!("{report:?}") };
        assert_eq!(
            soon.held,
            Some(Held::Slowdown),
            "until the scans show that the swept pages are not touched again"
        );
        assert_eq!(later.held, None);
        assert!(later.refaults_per_minute > cold / 2, "{later:?}");
        assert!(later.resident_pages < HOT_PAGES + cold / 4, "{later:?}");
        assert!(later.totals.swept > cold / 2, "{later:?}");
    }

    #[test]
    fn an_invalid_setup_is_refused() {
        assert!(matches!(run(&setup("lru"), EPOCH, 1), Err(SetupError::Policy(_))));
        let mut none = setup("sol");
        none.config.cores = 0;
        assert!(matches!(run(&none, EPOCH, 1), Err(SetupError::Config(_))));
    }
}
