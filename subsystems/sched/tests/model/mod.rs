//! A small host around a policy's brain: threads that block, wake, yield, end and come again; cores that refuse decisions at
//! random and receive preemptions late or too late; messages that are slow or lost, and snapshots. No queues and no link:
//! `tests/protocol.rs` has those.
//!
//! Two invariants are checked from outside: nothing is decided again before it has been answered, and no run is asked to end
//! twice, both unless a snapshot made the policy forget.

#![allow(dead_code, reason = "each test uses a part")]

mod host;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{Display, Write};

use host::{Core, Host, Thread};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use wave_core::brain::{Brain, Input, Recorder};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Sequence, Subject, Upstream};
use wave_core::note::Request;
use wave_core::policy::{Decisions, Policy, Preemption, Progress};
use wave_core::snapshot::{Snapshot, State};
use wave_sched::policies;
use wave_sched::wire::{Event, Kind};

/// The parameters of a world.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub cores: u16,
    pub subjects: u32,
    pub prestage: u16,
    /// Longest time between two steps.
    pub step_us: u64,
    /// Lost messages in a thousand.
    pub lost: u32,
    /// Refused decisions in a hundred.
    pub refused: u32,
    /// Whether threads await requests, which a front announces.
    pub requests: bool,
    /// Whether agents take over from one another.
    pub takeovers: bool,
    /// Whether threads end while the host is busy.
    pub ends: bool,
}

impl Shape {
    pub fn random(rng: &mut Pcg32) -> Shape {
        Shape {
            cores: rng.random_range(1..=4),
            subjects: rng.random_range(1..=12),
            prestage: rng.random_range(0..=2),
            step_us: [1, 20, 500][rng.random_range(0..3)],
            lost: [0, 0, 5][rng.random_range(0..3)],
            refused: [0, 10, 40][rng.random_range(0..3)],
            requests: false,
            takeovers: false,
            ends: false,
        }
    }
}

/// Makes the policy of each agent.
pub type Make = Box<dyn Fn(&Config) -> Box<dyn Policy + Send>>;

/// An agent's inputs and decisions, for a replay.
#[derive(Default)]
pub struct Tape {
    inputs: Vec<(Nanos, Input)>,
    decided: Vec<(u16, Decision)>,
}

impl Recorder for Tape {
    fn record(&mut self, now: Nanos, input: &Input) {
        self.inputs.push((now, input.clone()));
    }
    fn decided(&mut self, _now: Nanos, core: u16, decision: &Decision) {
        self.decided.push((core, *decision));
    }
}

/// A host and the brain of an agent.
pub struct World {
    rng: Pcg32,
    shape: Shape,
    now: Nanos,
    host: Host,
    make: Make,
    config: Config,
    brain: Brain<Box<dyn Policy + Send>, Tape>,
    /// Snapshots that have not reached the agent, and whether every core used its window then.
    snapshots: VecDeque<(Snapshot, bool)>,
    /// A front's notes, not received yet.
    notes: VecDeque<Request>,
    wants_snapshot: bool,
    /// Decisions neither answered nor forgotten.
    unanswered: BTreeMap<(Subject, u32), u16>,
    ended: BTreeSet<(u16, u32)>,
    /// The agent's inputs and decisions, if they are to be shown.
    log: Option<String>,
    /// Threads that began to run, and runs that were asked to end.
    pub commits: u64,
    pub preemptions: u64,
    /// Runs that a core's own timer ended.
    pub slices: u64,
    /// Threads that awaited a request.
    pub awaited: u64,
    /// Agents that took over.
    pub takeovers: u64,
    /// The agent has a snapshot of which every core used its window.
    is_here: bool,
}

/// The longest wait allowed for a decision, in rounds. It is that of a class with an objective 200 times that of the others,
/// behind others of its own class.
const PATIENCE_ROUNDS: u64 = 20_000;
/// Calls of `decide` within which it must report that it is done.
const CALLS_MAX: u32 = 200;

impl World {
    pub fn new(policy: &str, seed: u64, shape: Shape) -> World {
        let policy = policy.to_owned();
        let make = move |config: &Config| policies::by_name(&policy, config).unwrap();
        World::with(Box::new(make), seed, shape)
    }

    /// With a policy of the test's own.
    pub fn with(make: Make, seed: u64, shape: Shape) -> World {
        let Shape { cores, subjects, prestage, .. } = shape;
        let config = Config { subjects, prestage, ..Config::coherent(cores) };
        World {
            rng: Pcg32::seed_from_u64(seed),
            shape,
            now: Nanos(0),
            host: Host::new(cores, subjects),
            brain: Brain::new(&config, make(&config), Tape::default()),
            make,
            config,
            snapshots: VecDeque::new(),
            notes: VecDeque::new(),
            wants_snapshot: true,
            unanswered: BTreeMap::new(),
            ended: BTreeSet::new(),
            log: None,
            commits: 0,
            preemptions: 0,
            slices: 0,
            awaited: 0,
            takeovers: 0,
            is_here: false,
        }
    }

    /// All sides take turns, in random order and number, while threads come and go.
    pub fn busy(&mut self, steps: u32) {
        for _ in 0..steps {
            self.front(3);
            if self.shape.takeovers && self.rng.random_range(0..200) == 0 {
                self.take_over();
            }
            if self.shape.ends && self.rng.random_range(0..50) == 0 {
                self.remove_waiting();
            }
            match self.rng.random_range(0..8) {
                0 => self.wake_or_spawn(true),
                1 => self.control(5),
                2 | 3 => self.agent(true),
                _ => {
                    let core = self.rng.random_range(0..self.host.cores.len());
                    self.core(core, !self.shape.ends);
                }
            }
            self.let_time_pass();
        }
    }

    /// No thread ends. Each waiting thread must be chosen before long.
    pub fn fair(&mut self, rounds: u64) {
        // Deadlines of milliseconds pass, however small the steps were so far.
        self.shape.step_us = 500;
        let mut since = vec![0; self.host.threads.len()];
        for round in 0..rounds {
            self.round(true);
            for (thread, since) in self.host.threads.iter().zip(&mut since) {
                let needs_a_run = !thread.awaits || thread.requested;
                if thread.state != State::Runnable || !needs_a_run {
                    *since = round;
                }
                assert!(round - *since < PATIENCE_ROUNDS, "{thread:?} waits for ever");
            }
        }
    }

    /// No new thread starts, until all have ended.
    pub fn finish(&mut self) {
        for _ in 0..PATIENCE_ROUNDS {
            self.round(false);
            if self.host.threads.iter().all(|thread| thread.state == State::Free) {
                return;
            }
        }
        panic!("forgotten: {:#?}\n{:#?}", self.host, self.brain.cores());
    }

    /// Another agent attaches. Its decisions are read, and its messages sent, by each core from its next switch on.
    fn take_over(&mut self) {
        self.check_replay();
        self.brain = Brain::new(&self.config, (self.make)(&self.config), Tape::default());
        self.takeovers += 1;
        self.host.take_over();
        self.snapshots.clear();
        self.unanswered.clear();
        self.ended.clear();
        (self.wants_snapshot, self.is_here) = (true, false);
    }

    /// The agent's inputs give the same decisions again.
    pub fn check_replay(&self) {
        let mut again = Brain::new(&self.config, (self.make)(&self.config), ());
        let mut out = Decisions::default();
        let Tape { inputs, decided } = self.brain.recorder();
        for (now, input) in inputs {
            again.replay(*now, input, &mut out);
        }
        assert_eq!(&out.staged, decided);
    }

    /// No thread stops or comes, and nothing is lost or refused, until everything has been heard and nothing is decided.
    pub fn settle(&mut self) {
        (self.shape.lost, self.shape.refused) = (0, 0);
        for _ in 0..CALLS_MAX {
            for core in 0..self.host.cores.len() {
                self.adopt(core);
                if self.host.cores[core].running.is_none() {
                    self.core(core, true);
                }
            }
            self.control(0);
            let before = self.brain.recorder().decided.len();
            self.agent(false);
            let is_silent = self.host.up.iter().all(VecDeque::is_empty);
            let is_heard = self.snapshots.is_empty() && !self.wants_snapshot;
            if is_silent && is_heard && self.brain.recorder().decided.len() == before {
                return;
            }
            // A gap among messages counts as a loss after a while.
            self.now = self.now + Nanos(1_000_000);
        }
        panic!("the world never settles: {:#?}", self.host);
    }

    /// Threads that run, and threads that will run before the agent can say otherwise.
    pub fn running(&self) -> BTreeSet<u32> {
        let running = self.host.cores.iter().filter_map(|core| core.running);
        let staged = self.host.cores.iter().flat_map(|core| &core.down);
        let staged = staged.filter(|decision| self.host.may_run(decision));
        running.chain(staged.map(|decision| decision.subject.id)).collect()
    }

    /// Threads that wait for a decision.
    pub fn runnable(&self) -> BTreeSet<u32> {
        self.host.in_state(State::Runnable).into_iter().collect()
    }

    /// Threads that await a request, so that they need no run before a note.
    pub fn awaiting(&self) -> BTreeSet<u32> {
        let awaiting = self.host.threads.iter().filter(|thread| thread.awaits);
        awaiting.map(|thread| thread.subject.id).collect()
    }

    /// Threads that have begun and not ended.
    pub fn alive(&self) -> BTreeSet<u32> {
        let alive = self.host.threads.iter().filter(|thread| thread.state != State::Free);
        alive.map(|thread| thread.subject.id).collect()
    }

    /// The classes of threads that are on a core.
    pub fn classes_on_cores(&self) -> Vec<u16> {
        let running = self.host.cores.iter().filter_map(|core| core.running);
        running.map(|id| self.host.threads[id as usize].class).collect()
    }

    /// Whether no core has decided by itself since the agent's snapshot.
    pub fn is_here(&self) -> bool {
        self.is_here
    }

    /// The core uses the agent's window from now on, and the agent gets a snapshot of that.
    fn adopt(&mut self, at: usize) {
        if std::mem::take(&mut self.host.cores[at].is_away) {
            self.wants_snapshot = true;
        }
    }

    fn round(&mut self, stay: bool) {
        self.control(0);
        self.front(if stay { 10 } else { 1 });
        self.wake_or_spawn(false);
        self.agent(false);
        for core in 0..self.host.cores.len() {
            self.core(core, stay);
            self.let_time_pass();
        }
    }

    fn let_time_pass(&mut self) {
        self.now = self.now + Nanos(self.rng.random_range(0..=self.shape.step_us * 1000));
    }

    fn send(&mut self, context: usize, entry: Upstream) {
        if self.rng.random_range(0..1000) < self.shape.lost {
            self.wants_snapshot = true;
            if let Some(core) = self.host.cores.get_mut(context) {
                core.unsure = true;
            }
        } else {
            self.host.up[context].push_back(entry);
        }
    }

    fn wake_or_spawn(&mut self, spawn: bool) {
        let wanted = if spawn && self.rng.random() { State::Free } else { State::Blocked };
        let some = self.host.in_state(wanted);
        if some.is_empty() {
            return;
        }
        let id = some[self.rng.random_range(0..some.len())];
        let kind = if wanted == State::Free { Kind::New } else { Kind::Wakeup };
        if kind == Kind::New {
            self.host.threads[id as usize].class = self.rng.random_range(0..3);
        }
        let event = self.host.change(id, kind, wave_sched::wire::NO_CORE);
        let context = self.host.cores.len();
        self.send(
            context,
            Upstream { message: Some(event.to_message()), outcome: None, asks: false },
        );
    }

    /// A thread leaves the enclave before it runs.
    fn remove_waiting(&mut self) {
        let some = self.host.in_state(State::Runnable);
        if some.is_empty() {
            return;
        }
        let id = some[self.rng.random_range(0..some.len())];
        let event = self.host.change(id, Kind::Departed, wave_sched::wire::NO_CORE);
        let message = Some(event.to_message());
        self.send(self.host.cores.len(), Upstream { message, outcome: None, asks: false });
    }

    /// With probability 1 in `seldom`, a request comes for a thread, then its note.
    fn front(&mut self, seldom: u32) {
        if !self.shape.requests || self.rng.random_range(0..seldom) > 0 {
            return;
        }
        // A later request's note makes up for a missed one.
        let free = |thread: &Thread| thread.state != State::Free && !thread.requested;
        let some = self.host.threads.iter_mut().filter(|thread| free(thread));
        let mut some: Vec<_> = some.collect();
        if some.is_empty() {
            return;
        }
        let at = self.rng.random_range(0..some.len());
        let thread = &mut *some[at];
        thread.requested = true;
        let slo = self.rng.random_range(0..4) * 10_000;
        let slo = (slo > 0).then_some(Nanos(slo));
        let class = self.rng.random_range(0..3);
        self.notes.push_back(Request { thread: thread.subject, class, slo });
    }

    /// `percent`: how often an unneeded snapshot is taken.
    fn control(&mut self, percent: u32) {
        let wants = std::mem::take(&mut self.wants_snapshot);
        if wants || self.rng.random_range(0..100) < percent {
            let is_whole = self.host.cores.iter().all(|core| !core.is_away);
            self.snapshots.push_back((self.host.snapshot(), is_whole));
        }
    }

    fn core(&mut self, at: usize, stay: bool) {
        if self.host.cores[at].is_away {
            if self.rng.random_range(0..4) > 0 {
                return self.commits += u64::from(self.host.decide_alone(at));
            }
            self.adopt(at);
        }
        let core = &self.host.cores[at];
        let mut held = None;
        if let Some(id) = core.running {
            let looks = self.shape.requests && self.rng.random_range(0..2) == 0;
            if looks && std::mem::take(&mut self.host.threads[id as usize].requested) {
                return;
            }
            let kind = match self.rng.random_range(0..12) {
                0 | 1 => Kind::Blocked,
                2 => Kind::Yield,
                3 if !stay => Kind::Dead,
                _ if looks => Kind::Awaits,
                3 if self.shape.cores.is_multiple_of(2) => Kind::Departed,
                4..9 if core.is_preempted() => Kind::Preempt,
                _ => return,
            };
            self.awaited += u64::from(kind == Kind::Awaits);
            self.slices += u64::from(kind == Kind::Preempt && core.has_slice);
            let kind = if stay && kind == Kind::Departed { Kind::Yield } else { kind };
            held = Some(self.host.change(id, kind, at as u16).to_message());
            self.host.cores[at].running = None;
        }
        while let Some(decision) = self.host.cores[at].down.pop_front() {
            let refused = self.rng.random_range(0..100) < self.shape.refused;
            let outcome = self.host.answer(at, &decision, refused);
            let ran = self.host.cores[at].running.is_some();
            self.commits += u64::from(ran);
            self.send(at, Upstream { message: held.take(), outcome: Some(outcome), asks: !ran });
            if ran {
                return;
            }
        }
        if held.is_some() {
            self.send(at, Upstream { message: held, outcome: None, asks: true });
            self.host.cores[at].asks = true;
        } else if std::mem::take(&mut self.host.cores[at].unsure) {
            // As `HostCore` does before it parks: a snapshot may have hidden its request.
            self.send(at, Upstream { message: None, outcome: None, asks: true });
        }
    }

    /// The agent receives some or all entries, then decides.
    fn agent(&mut self, lazy: bool) {
        // Notes and messages overtake each other.
        let notes_first = !self.notes.is_empty() && self.rng.random();
        if notes_first {
            self.hear_notes(lazy);
        }
        for context in 0..self.host.up.len() {
            let ready = self.host.up[context].len();
            let count = if lazy { self.rng.random_range(0..=ready) } else { ready };
            for _ in 0..count {
                let Some(entry) = self.host.up[context].pop_front() else { break };
                self.hear(context as u16, &entry);
            }
        }
        if !notes_first && !self.notes.is_empty() {
            self.hear_notes(lazy);
        }
        if (!lazy || self.rng.random())
            && let Some((snapshot, is_whole)) = self.snapshots.pop_front()
        {
            self.is_here |= is_whole;
            self.note("snapshot");
            self.brain.on_snapshot(self.now, &snapshot);
            // The policy has forgotten the state and its decisions.
            self.unanswered.clear();
            self.ended.clear();
        }
        self.wants_snapshot |= self.brain.check_order(self.now).is_err();
        for _ in 0..CALLS_MAX {
            let budget = self.rng.random_range(1..8);
            let mut out = Decisions::with_capacity(budget);
            let progress = self.brain.decide(self.now, budget, &mut out);
            assert!(out.staged.len() <= budget && out.preemptions.len() <= budget);
            self.carry_out(&out);
            if progress == Progress::Done {
                let deadline = self.brain.next_deadline();
                assert!(
                    deadline.is_none_or(|at| at > self.now),
                    "the deadline {deadline:?} is not in the future"
                );
                return;
            }
        }
        panic!("`decide` never reports that it is done");
    }

    fn hear_notes(&mut self, lazy: bool) {
        let ready = self.notes.len();
        let count = if lazy { self.rng.random_range(0..=ready) } else { ready };
        for request in self.notes.drain(..count) {
            self.brain.on_note(self.now, &request.to_note());
        }
    }

    fn hear(&mut self, context: u16, entry: &Upstream) {
        if self.log.is_some() {
            self.note(told(context, entry));
        }
        if let (Some(outcome), Some(core)) =
            (entry.outcome, self.host.cores.get_mut(usize::from(context)))
        {
            while let Some(decision) = core.sent.pop_front() {
                self.unanswered.remove(&(decision.subject, decision.sequence.0));
                if decision.txn == outcome.txn {
                    break;
                }
            }
        }
        self.wants_snapshot |= self.brain.on_entry(self.now, context, entry).resync;
    }

    fn note(&mut self, what: impl Display) {
        if let Some(log) = &mut self.log {
            writeln!(log, "{} us: {what}", self.now.0 / 1000).unwrap();
        }
    }

    fn carry_out(&mut self, out: &Decisions) {
        for &(core, decision) in &out.staged {
            let Sequence(sequence) = decision.sequence;
            let earlier = self.unanswered.insert((decision.subject, sequence), core);
            assert_eq!(earlier, None, "{decision:?} was already made for core {core}");
            self.note(format_args!("    core {core} <- thread {}", decision.subject.id));
            let Core { down, sent, .. } = &mut self.host.cores[usize::from(core)];
            down.push_back(decision);
            sent.push_back(decision);
        }
        for &Preemption { core, run } in &out.preemptions {
            assert!(self.ended.insert((core, run)), "run {run} of core {core} is ended twice");
            self.note(format_args!("    core {core} is to end run {run}"));
            self.host.cores[usize::from(core)].word = Some(run);
            self.preemptions += 1;
        }
    }
}

fn told(context: u16, entry: &Upstream) -> String {
    let event = entry.message.and_then(|message| Event::from_message(&message));
    let event =
        event.map(|event| format!("{:?} {} (class {})", event.kind, event.thread.id, event.class));
    let outcome = entry.outcome.map(|outcome| {
        format!("core {context} answers {}: {}", outcome.txn.number(), outcome.code.name())
    });
    let asks = entry.asks.then(|| format!("core {context} asks"));
    [event, outcome, asks].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A seeded history of this policy, as text.
pub fn history(policy: &str) -> String {
    let shape = Shape {
        cores: 3,
        subjects: 8,
        prestage: 1,
        step_us: 0,
        lost: 0,
        refused: 10,
        requests: false,
        takeovers: false,
        ends: false,
    };
    let step_us = if policy == "vm" { 2000 } else { 20 };
    let mut world = World::new(policy, 7, Shape { step_us, ..shape });
    world.log = Some(String::from("# a host of three cores, seeded\n"));
    world.busy(250);
    world.log.unwrap_or_default()
}
