//! The agent of a modelled machine: the real agent loop, whose own work costs virtual time.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use wave_core::agent::{Agent, Front, Step};
use wave_core::brain::{Input, Recorder};
use wave_core::clock::Nanos;
use wave_core::layout::{Config, Layout, QueuePlace, write_header};
use wave_core::link::{Doorbell, Home, LINE_WORDS, Mapping, Port, Side, Span, Window};
use wave_core::log::{Header, LogWriter};
use wave_core::message::{Decision, KIND_NONE, Message};
use wave_core::outcome::Outcome;
use wave_core::policy::{BadBulk, Desk, Note, Policy, Preemption, Progress};
use wave_core::queue::LAP_WORD;
use wave_core::settings::{Policies, PolicyError};
use wave_core::snapshot::Snapshot;
use wave_core::subsystem::MakePolicy;
use wave_links::memory::Memory;
use wave_links::model::{ModelPort, Stage, extra_lines};

use crate::control::Guest;
use crate::enclave::{AgentSpy, Enclave, Incarnation, Setup};
use crate::world::{Cause, SimBell, TaskId, World};

/// The agent of an enclave.
#[derive(Clone, Debug)]
pub struct AgentSetup {
    /// Policy with its settings, as text.
    pub policy: PolicyText,
    /// Clock rate of the agent's CPU, in GHz.
    pub ghz: f64,
    /// Whether the agent sleeps when it is idle; otherwise it always polls (Wave 4.1).
    pub parks: bool,
}

/// A policy by its name and settings, and its maker: a subsystem, or a user's list.
#[derive(Clone, Debug)]
pub struct PolicyText {
    text: String,
    from: Maker,
}

#[derive(Clone, Debug)]
enum Maker {
    Subsystem(MakePolicy),
    Own(&'static Policies<dyn Policy + Send>),
    Elsewhere(Arc<dyn Elsewhere>),
}

/// Makes policies that decide in another process.
pub trait Elsewhere: fmt::Debug + Send + Sync {
    /// Starts the policy of this name and these settings, for an enclave of this configuration.
    ///
    /// # Errors
    /// Why there is none, in a sentence.
    fn start(&self, text: &str, config: &Config) -> Result<Decider, String>;
}

/// A policy that is ready to decide.
pub struct Decider {
    /// What the agent asks for decisions.
    pub policy: Box<dyn Policy + Send>,
    /// Takes each of the agent's inputs before the policy does, if it needs more than a policy is told.
    pub ear: Option<Ear>,
}

/// Takes an input of an agent, at the agent's time.
pub type Ear = Box<dyn FnMut(Nanos, &Input) + Send>;

impl From<Box<dyn Policy + Send>> for Decider {
    fn from(policy: Box<dyn Policy + Send>) -> Decider {
        Decider { policy, ear: None }
    }
}

impl fmt::Debug for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decider").field("policy", &self.policy.name()).finish_non_exhaustive()
    }
}

impl PolicyText {
    /// A shipped policy for threads, as `NAME:KEY=VALUE,...`.
    pub fn shipped(text: impl Into<String>) -> PolicyText {
        PolicyText::of(wave_sched::policies::by_name, text)
    }

    /// A policy of a subsystem, by its maker.
    pub fn of(make: MakePolicy, text: impl Into<String>) -> PolicyText {
        PolicyText { text: text.into(), from: Maker::Subsystem(make) }
    }

    /// A policy of this list, instead of a shipped one.
    pub fn own(list: &'static Policies<dyn Policy + Send>, text: impl Into<String>) -> PolicyText {
        PolicyText { text: text.into(), from: Maker::Own(list) }
    }

    /// A policy that decides in another process.
    pub fn elsewhere(place: Arc<dyn Elsewhere>, text: impl Into<String>) -> PolicyText {
        PolicyText { text: text.into(), from: Maker::Elsewhere(place) }
    }

    /// Its name and settings, as `NAME:KEY=VALUE,...`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its name, without settings.
    pub fn name(&self) -> &str {
        self.text.split(':').next().unwrap_or_default()
    }

    /// Makes the policy for an enclave of this configuration.
    ///
    /// # Errors
    /// No policy has that name, or it refuses its settings or the configuration.
    pub fn make(&self, config: &Config) -> Result<Decider, PolicyError> {
        match &self.from {
            Maker::Subsystem(make) => make(&self.text, config).map(Decider::from),
            Maker::Own(list) => list.make(&self.text, config).map(Decider::from),
            Maker::Elsewhere(place) => {
                place.start(&self.text, config).map_err(|why| PolicyError::Elsewhere { why })
            }
        }
    }
}

/// A sink that takes an agent's log, piece by piece.
pub type Sink = Box<dyn FnMut(&[u8])>;
/// A function that makes the sink for the log of each agent of an enclave, numbered from 1.
pub type Logs = dyn FnMut(u64) -> Sink;

/// The costs of an agent's own work.
#[derive(Clone, Copy, Debug)]
struct Work {
    message: Nanos,
    decision: Nanos,
    poll: Nanos,
    /// Reading one note, and checking for notes.
    note: Nanos,
    note_look: Nanos,
}

/// Notes on their way to the agent from a front that is not its own task, and their costs for the agent.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    pub(crate) queue: Arc<Mutex<VecDeque<(Nanos, Note)>>>,
    /// Cost of reading one note, with the policy's work on it.
    pub(crate) read: Nanos,
    /// Cost of checking for notes, in each round of the loop.
    pub(crate) look: Nanos,
}

/// The most notes that a front passes on in one round.
const NOTES_PER_TURN: usize = 16;

impl Front for Notes {
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress {
        let mut queue = self.queue.lock().expect("no task panics while holding it");
        for _ in 0..NOTES_PER_TURN {
            match queue.front() {
                Some((at, note)) if *at <= now => notes.push(*note),
                _ => return Progress::Done,
            }
            queue.pop_front();
        }
        Progress::More
    }
}

impl Work {
    fn of(setup: &Setup, notes: Option<&Notes>) -> Work {
        let (machine, costs) = (&setup.machine, &setup.costs);
        let pace = machine.agent_ghz.value / setup.agent.ghz;
        let at_pace = |ns: f64| Nanos((ns * pace).round() as u64);
        // Words in memory that this side maps uncached cost an access each.
        let uncached = setup.config.messages.agent == Mapping::Uncached && !costs.coherent;
        let words = if uncached { machine.message_words_more.value } else { 0.0 };
        let words_ns = words * costs.agent_access_uncached.ns;
        let uncached = setup.config.decisions.agent == Mapping::Uncached && !costs.coherent;
        let words = if uncached { machine.decision_words_written_more.value } else { 0.0 };
        let decision_words_ns = words * costs.agent_access_uncached.ns;
        Work {
            message: at_pace(machine.agent_message.value) + Nanos(words_ns.round() as u64),
            decision: at_pace(machine.agent_decision.value)
                + Nanos(decision_words_ns.round() as u64),
            poll: at_pace(machine.agent_poll.value),
            note: notes.map_or(Nanos(0), |notes| notes.read),
            note_look: notes.map_or(Nanos(0), |notes| notes.look),
        }
    }
}

/// A policy whose decisions cost time.
struct Working<P> {
    policy: P,
    world: World,
    work: Work,
    /// When the policy last began a `decide` in which it decided something.
    began: Rc<Cell<Nanos>>,
}

/// A bell that records how much of the time since the policy began to decide was spent on ringing.
struct TimedBell {
    bell: SimBell,
    /// The core that the bell belongs to; `None` for the control context's bell.
    core: Option<u16>,
    enclave: Rc<Enclave>,
    began: Rc<Cell<Nanos>>,
}

impl TimedBell {
    /// Cost of a ring that need not wake or interrupt the core.
    fn awake(&self) -> Option<Nanos> {
        let points = self.enclave.setup.machine.safe_points.as_ref()?;
        let sleeps = self.enclave.cores[usize::from(self.core?)].sleeps.get();
        (!sleeps).then(|| points.ring_core.nanos())
    }
}

impl Doorbell for TimedBell {
    fn ring(&self) {
        match self.awake() {
            Some(send) => self.bell.ring_for(send),
            None => self.bell.ring(),
        }
        if self.enclave.keeps_times.get() {
            let took = self.enclave.world.now().since(self.began.get());
            self.enclave.counters.borrow_mut().open_ns.push(took.0 as u32);
        }
    }
}

impl<P: Policy> Policy for Working<P> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.world.spend(self.work.message);
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        self.policy.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.world.spend(self.work.note_look);
        let (before, began) = (desk.made(), self.world.now());
        let progress = self.policy.decide(now, desk);
        let made = (desk.made() - before) as u64;
        if made > 0 {
            self.began.set(began);
        }
        self.world.spend(Nanos(self.work.decision.0 * made));
        progress
    }
    fn next_deadline(&self) -> Option<Nanos> {
        self.policy.next_deadline()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.policy.resync(now, snapshot);
    }
    fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        self.policy.on_bulk(now, words)
    }
    fn on_note(&mut self, now: Nanos, note: &Note) {
        self.world.spend(self.work.note);
        self.policy.on_note(now, note);
    }
}

/// The recorders of an agent's inputs: its policy's ear, its log, and a spy with the agent's number.
struct Recorders {
    ear: Option<Ear>,
    log: Option<LogWriter<Sink>>,
    spy: Option<(u64, AgentSpy)>,
}

impl Recorder for Recorders {
    fn record(&mut self, now: Nanos, input: &Input) {
        if let Some(ear) = &mut self.ear {
            ear(now, input);
        }
        if let Some(log) = &mut self.log {
            log.record(now, input);
        } else if let Some((number, spy)) = &self.spy {
            spy(*number, input);
        }
    }
    fn decided(&mut self, now: Nanos, core: u16, decision: &Decision) {
        self.log.iter_mut().for_each(|log| log.decided(now, core, decision));
    }
    fn preempted(&mut self, now: Nanos, preemption: &Preemption) {
        self.log.iter_mut().for_each(|log| log.preempted(now, preemption));
    }
    fn noted(&mut self, now: Nanos, note: &Note) {
        self.log.iter_mut().for_each(|log| log.noted(now, note));
    }
    fn kicked(&mut self, core: u16) {
        self.log.iter_mut().for_each(|log| log.kicked(core));
    }
    fn flush(&mut self) {
        self.log.iter_mut().for_each(Recorder::flush);
    }
}

/// Counts that an agent's task leaves to tasks that outlive it.
#[derive(Debug, Default)]
struct Told {
    decided: Cell<u64>,
    kicked: Cell<u64>,
}

/// The difference between the agent's clock and the host's. The two are never compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Skew {
    /// Nanoseconds by which the agent is ahead.
    pub ahead: u64,
    /// Parts per million by which the agent's clock is faster.
    pub ppm: u64,
}

impl Skew {
    fn apply(self, now: Nanos) -> Nanos {
        Nanos(now.0 + self.ahead + now.0 / 1_000_000 * self.ppm)
    }
}

/// The enclave's own policy.
///
/// # Panics
///
/// If the policy refuses the setup, or does not exist: [`Setup::check`] finds that out beforehand.
pub(crate) fn policy_of(setup: &Setup) -> Decider {
    setup
        .agent
        .policy
        .make(&setup.config)
        .unwrap_or_else(|error| panic!("the setup's policy cannot be made: {error}"))
}

impl Enclave {
    /// Starts an agent with the setup's policy. It replaces an agent that is attached.
    pub fn start_agent(self: &Rc<Enclave>) -> TaskId {
        self.start(policy_of(&self.setup), Skew::default())
    }

    /// Starts an agent with the caller's policy, on a clock of its own.
    pub fn start_agent_with(
        self: &Rc<Enclave>,
        policy: Box<dyn Policy + Send>,
        skew: Skew,
    ) -> TaskId {
        self.start(policy.into(), skew)
    }

    fn start(self: &Rc<Enclave>, decider: Decider, skew: Skew) -> TaskId {
        let number = self.agents_started.get() + 1;
        self.agents_started.set(number);
        let incarnation = Rc::new(self.new_incarnation());
        let control_port = self.port(&incarnation, 1 << 20);
        write_header(&incarnation.layout, control_port.window(Home::Nic));
        // Reading the header back proves that it has arrived.
        control_port.window(Home::Nic).load(incarnation.layout.header, 0);
        let (enclave, window) = (Rc::downgrade(self), Rc::clone(&incarnation));
        let task = self.world.spawn(move || {
            if let Some(enclave) = enclave.upgrade() {
                run(&enclave, &window, decider, skew, number);
            }
        });
        incarnation.agent_task.set(Some(task));
        incarnation.agent_bell.set_target(task);
        self.watch_window(&incarnation, task);
        self.candidates.borrow_mut().push(Guest::new(incarnation, control_port));
        self.nudge_control();
        task
    }

    fn new_incarnation(&self) -> Incarnation {
        let layout = self.layout.clone();
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let memory = Memory::create("wave-sim", nic, host, extra_lines(nic, host));
        let (memory, _) = memory.expect("memory for a modelled window");
        let (window, time) = self.world.add_staged_window(nic, host, self.stages(&layout));
        let costs = &self.setup.costs;
        let (send, flight) = (costs.kick_send.nanos(), costs.kick_flight.nanos());
        let bell = || SimBell::new(&self.world, Cause::KICK, send, flight);
        // An agent on a CPU that it shares is woken by the kernel, not across the link.
        let agent_bell = match &self.setup.machine.shared_cpu {
            Some(cpu) => SimBell::new(&self.world, Cause::KICK, cpu.ring_agent.nanos(), Nanos(0)),
            None => bell(),
        };
        let core_bells: Vec<_> = self.cores.iter().map(|_| bell()).collect();
        if let Some(fate) = &*self.kick_fate.borrow() {
            for bell in &core_bells {
                let fate = Rc::clone(fate);
                bell.set_fate(Box::new(move || fate()));
            }
        }
        for (bell, core) in core_bells.iter().zip(&self.cores) {
            core.task.get().into_iter().for_each(|task| bell.set_target(task));
        }
        let control_bell = bell();
        self.control_task.get().into_iter().for_each(|task| control_bell.set_target(task));
        Incarnation {
            layout,
            memory: Arc::new(memory),
            time,
            window,
            core_bells,
            control_bell,
            agent_bell,
            agent_task: Cell::new(None),
            lost: Cell::new(false),
            fault: Cell::new(false),
        }
    }
}

impl Enclave {
    /// The CPUs of a pipeline that take the cores' messages and the decisions.
    fn stages(&self, layout: &Layout) -> Vec<Stage> {
        let Some(pipeline) = &self.setup.machine.pipeline else { return Vec::new() };
        let lines = |places: &[QueuePlace]| {
            let (first, last) = (places[0], places[places.len() - 1]);
            let end = last.ring.first + last.ring.entries;
            Span { home: first.home, line: first.ring.first, lines: end - first.ring.first }
        };
        let cores = usize::from(layout.config.cores);
        vec![
            Stage::new(lines(&layout.messages[..cores]), pipeline.receive.nanos(), has_message),
            Stage::new(lines(&layout.decisions), pipeline.send.nanos(), |_| true),
        ]
    }
}

/// Whether an entry has more than the outcome of a decision. A core that had asked sends an outcome alone; in the paper of
/// the pipeline, a worker sends nothing when it takes a request.
fn has_message(entry: &[u64; LINE_WORDS]) -> bool {
    (entry[LAP_WORD] >> 16) as u16 != KIND_NONE
}

/// Runs an agent, from attaching to its end.
fn run(
    enclave: &Rc<Enclave>,
    incarnation: &Incarnation,
    Decider { policy, ear }: Decider,
    skew: Skew,
    number: u64,
) {
    let log = enclave.logs.borrow_mut().as_mut().map(|(about, logs)| {
        let setup = &enclave.setup;
        let (policy, about) =
            (setup.agent.policy.text().to_owned(), format!("{about}, agent {number}"));
        LogWriter::new(&Header { config: setup.config, policy, about }, logs(number))
    });
    let spy = enclave.spy.borrow().clone().map(|spy| (number, spy));
    let recorders = Recorders { ear, log, spy };
    match recorders {
        // Copies nothing if nothing is recorded.
        Recorders { ear: None, log: None, spy: None } => {
            live(enclave, incarnation, policy, skew, number, ());
        }
        _ => live(enclave, incarnation, policy, skew, number, recorders),
    }
}

fn live<R: Recorder>(
    enclave: &Rc<Enclave>,
    incarnation: &Incarnation,
    policy: Box<dyn Policy + Send>,
    skew: Skew,
    number: u64,
    recorder: R,
) {
    let (world, setup) = (&enclave.world, &enclave.setup);
    let task = incarnation.agent_task.get().expect("set before it runs");
    let layout: &Layout = &incarnation.layout;
    let port = ModelPort::new(
        Arc::clone(&incarnation.memory),
        Side::Agent,
        &setup.costs,
        &layout.mappings(Side::Agent),
        incarnation.time.clone(),
        setup.seed ^ number << 48,
    )
    .expect("the setup was checked when the enclave was made");
    let (nic, host) = (layout.nic_lines, layout.host_lines);
    let layout = wave_core::layout::read_header(port.window(Home::Nic), nic, host)
        .expect("the host has just written it");
    let began = Rc::new(Cell::new(Nanos(0)));
    let timed = |bell: &SimBell, core| TimedBell {
        bell: bell.clone(),
        core,
        enclave: Rc::clone(enclave),
        began: Rc::clone(&began),
    };
    let cores = incarnation.core_bells.iter().zip(0..).map(|(bell, core)| timed(bell, Some(core)));
    let bells = cores.chain([timed(&incarnation.control_bell, None)]).collect();
    let notes = enclave.notes.borrow().clone();
    let work = Work::of(setup, notes.as_ref());
    let policy = Working { policy, world: world.clone(), work, began: Rc::clone(&began) };
    let mut agent = Agent::with_front(layout, port, bells, policy, recorder, notes);
    agent.announce();
    let told = Told::default();
    let mut idle_since = None;
    let mut slept = Nanos(0);
    let born = world.now();
    let cpu = enclave.cpu.as_deref();
    if let Some(cpu) = cpu {
        cpu.enter(task);
    }
    loop {
        let step = agent.step(skew.apply(world.now()));
        let (decided, kicked) = agent.counts();
        {
            let mut counters = enclave.counters.borrow_mut();
            counters.decided += decided - told.decided.replace(decided);
            counters.kicked += kicked - told.kicked.replace(kicked);
            counters.agent_busy = world.now().since(born + slept);
        }
        let until = match step {
            Ok(Step::Revoked) => break,
            Err(error) => {
                enclave.counters.borrow_mut().agent_errors.push(error.to_string());
                break;
            }
            Ok(Step::Progress) => {
                idle_since = None;
                world.spend(work.poll);
                if let Some(cpu) = cpu {
                    cpu.give_way(task);
                }
                continue;
            }
            Ok(Step::Idle(until)) => until,
        };
        world.spend(work.poll);
        let now = world.now();
        // The policy's time is the agent's own.
        let until = until.map(|at| now + at.since(skew.apply(now)));
        let since = *idle_since.get_or_insert(now);
        let rested = now.since(since) >= agent.spin();
        if setup.agent.parks && rested && agent.prepare_park() {
            if matches!(agent.step(skew.apply(world.now())), Ok(Step::Idle(_))) {
                if let Some(cpu) = cpu {
                    cpu.leave();
                }
                world.wait(task, Cause::KICK.or(Cause::NUDGE), until);
                if let Some(cpu) = cpu {
                    cpu.enter(task);
                    world.spend(cpu.costs().wake_agent.nanos());
                }
            }
            agent.unpark();
            idle_since = None;
        } else if let Some(cpu) = cpu {
            cpu.give_way(task);
        } else {
            let spun = (setup.agent.parks && !rested).then_some(since + agent.spin());
            let held = (setup.agent.parks && rested).then_some(now + agent.spin());
            let until = [until, spun, held].into_iter().flatten().min();
            world.wait(task, Cause::STORE.or(Cause::KICK), until.map(|at| at.max(now + work.poll)));
        }
        slept = slept + world.now().since(now);
    }
    enclave.nudge_control();
}
