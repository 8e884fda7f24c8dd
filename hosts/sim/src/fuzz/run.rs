//! Runs a plan: the world, its enclaves, their faults, and those who watch.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wave_core::brain::Input;
use wave_core::clock::Nanos;
use wave_core::link::LINE_WORDS;
use wave_core::message::{Decision, Message};
use wave_core::outcome::Outcome;
use wave_core::policy::{Desk, Note, Policy, Progress};
use wave_core::snapshot::Snapshot;
use wave_sched::policies;

use super::books::{Books, Broken, Hearing, Told};
use super::churn::Churn;
use super::faults::{Fault, Kicks, Lying, scribble};
use super::plan::{EnclavePlan, Injection, Plan};
use crate::agent::Skew;
use crate::enclave::{Enclave, Setup};
use crate::world::{Delivery, TaskId, World};

/// How often the checkers look for idle cores.
const LOOK: Nanos = Nanos::from_micros(100);
/// What a resync, a restart or a catching up may take beside the watchdog's patience.
const RECOVERY: Nanos = Nanos::from_millis(14);
/// How long a dead agent stays away.
const RESTART: Nanos = Nanos::from_micros(700);
/// When a history that has not sent its messages is given up: far beyond what any needs.
const END_MAX: Nanos = Nanos::from_millis(4_000);
/// How long all threads may take to end when the faults are over, beside what faults explain.
const DRAIN_MAX: Nanos = Nanos::from_millis(20);

/// A rule that was broken, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in virtual time.
    pub at: Nanos,
    /// In which enclave.
    pub enclave: usize,
    /// Which rule: see [`super::books`].
    pub rule: &'static str,
    /// What was seen.
    pub what: String,
}

/// What a history came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Messages that the hosts sent.
    pub messages: u64,
    /// Faults that took place, by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// The first rule that was broken, if any.
    pub violation: Option<Violation>,
    /// Equal for equal histories.
    pub trace_hash: u64,
    /// When it ended.
    pub until: Nanos,
}

/// What all who watch share.
struct Watch {
    books: RefCell<Books>,
    broken: RefCell<Option<(Nanos, Broken)>>,
    faults: RefCell<BTreeMap<Fault, u64>>,
    world: World,
}

impl Watch {
    fn check(&self, result: Result<(), Broken>) {
        if let Err(broken) = result {
            let now = self.world.now();
            self.broken.borrow_mut().get_or_insert((now, broken));
        }
    }

    fn count(&self, fault: Fault, times: u64) {
        *self.faults.borrow_mut().entry(fault).or_default() += times;
    }
}

/// Sees what the policy is told. It belongs to the agent, which could live on another thread.
struct ToldPolicy {
    policy: Box<dyn Policy + Send>,
    told: Told,
    broken: Arc<Mutex<Option<Broken>>>,
    tainted: Arc<AtomicBool>,
}

impl Policy for ToldPolicy {
    fn name(&self) -> &'static str {
        self.policy.name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        if let Err(broken) = self.told.on_message(message)
            && !self.tainted.load(Ordering::Relaxed)
        {
            self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(broken);
        }
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
        let records = snapshot.records.iter();
        self.told.on_snapshot(records.map(|record| (record.subject.id, record.sequence)));
        self.policy.resync(now, snapshot);
    }
    fn on_note(&mut self, now: Nanos, note: &Note) {
        self.policy.on_note(now, note);
    }
}

/// Each agent by its number, and whether somebody wrote nonsense into its window.
type Agents = Rc<RefCell<Vec<(Option<TaskId>, Arc<AtomicBool>)>>>;

/// The longest look at a queue of decisions: every entry of it, word by word across the link.
fn look_max(setup: &Setup) -> Nanos {
    let words = u64::from(setup.config.decisions.entries) * LINE_WORDS as u64;
    Nanos(words * setup.costs.host_read.nanos().0)
}

/// One enclave of a running history.
struct Running {
    enclave: Rc<Enclave>,
    churn: Rc<Churn>,
    watch: Rc<Watch>,
    kicks: Rc<Kicks>,
    told: Arc<Mutex<Option<Broken>>>,
    plan: EnclavePlan,
    hearing: Rc<RefCell<BTreeMap<u64, Hearing>>>,
    agents: Agents,
    /// Who watches any enclave: a link that stalls does so for all.
    everyone: Rc<RefCell<Vec<Rc<Watch>>>>,
    /// Faults that are still to come or to end.
    open: Cell<usize>,
    overflows: Cell<u64>,
    /// Agents that may leave because of what they read.
    errors: Cell<usize>,
    losses: Cell<u64>,
}

impl Running {
    fn new(
        world: &World,
        plan: &EnclavePlan,
        everyone: &Rc<RefCell<Vec<Rc<Watch>>>>,
    ) -> Rc<Running> {
        let setup = plan.setup.clone();
        let churn = Churn::new(plan.threads, setup.seed);
        let watch = Rc::new(Watch {
            books: RefCell::new(Books::new(setup.config.cores, look_max(&setup))),
            broken: RefCell::default(),
            faults: RefCell::default(),
            world: world.clone(),
        });
        everyone.borrow_mut().push(Rc::clone(&watch));
        let kicks = Kicks::new(setup.seed);
        let enclave = Enclave::new(world, setup, Rc::clone(&churn) as _);
        let enclave = enclave.expect("plans draw valid configurations");
        let seen = Rc::clone(&watch);
        enclave.watch(Box::new(move |now, event| {
            let result = seen.books.borrow_mut().on_event(now, event);
            seen.check(result);
        }));
        let (fate, clock) = (Rc::clone(&kicks), world.clone());
        enclave.set_kick_fate(Rc::new(move || fate.next(clock.now())));
        let hearing: Rc<RefCell<BTreeMap<u64, Hearing>>> = Rc::default();
        let agents: Agents = Rc::default();
        let (heard, seen, known) = (Rc::clone(&hearing), Rc::clone(&watch), Rc::clone(&agents));
        enclave.spy_on_agents(Rc::new(move |agent, input| {
            if let Input::Entry { context, entry } = input {
                let result = heard.borrow_mut().entry(agent).or_default().on_entry(*context, entry);
                let tainted = &known.borrow()[agent as usize - 1].1;
                if !tainted.load(Ordering::Relaxed) {
                    seen.check(result);
                }
            }
        }));
        Rc::new(Running {
            everyone: Rc::clone(everyone),
            open: Cell::new(plan.injections.len()),
            plan: plan.clone(),
            enclave,
            churn,
            watch,
            kicks,
            told: Arc::default(),
            hearing,
            agents,
            overflows: Cell::new(0),
            errors: Cell::new(0),
            losses: Cell::new(0),
        })
    }

    fn start_agent(&self, skew: Skew, lies: Option<u64>) -> TaskId {
        let setup = &self.plan.setup;
        let policy = policies::by_name(&setup.agent.policy, &setup.config);
        let mut policy = policy.expect("plans draw shipped policies");
        if let Some(seed) = lies {
            policy = Box::new(Lying::new(policy, seed));
        }
        let (told, tainted) = (Told::default(), Arc::<AtomicBool>::default());
        let broken = Arc::clone(&self.told);
        let policy = ToldPolicy { policy, told, broken, tainted: Arc::clone(&tainted) };
        // Before it starts, as its number is its place here.
        self.agents.borrow_mut().push((None, tainted));
        let place = self.agents.borrow().len() - 1;
        let task = self.enclave.start_agent_with(Box::new(policy), skew);
        self.agents.borrow_mut()[place].0 = Some(task);
        task
    }

    /// What the attached agent reads from now on may be anything.
    fn taint(&self) {
        self.watch.books.borrow_mut().taint();
        let attached = self.enclave.agent_task();
        for (task, tainted) in self.agents.borrow().iter() {
            if task.is_some() && *task == attached && !tainted.swap(true, Ordering::Relaxed) {
                // It may find that out, and leave.
                self.errors.set(self.errors.get() + 1);
            }
        }
    }

    /// The longest that anything may take while a fault shows.
    fn bound_max(&self) -> Nanos {
        let longest = self.plan.injections.iter().map(|injection| injection.lasts.0).max();
        Nanos(longest.unwrap_or(0) + 3 * self.plan.setup.config.patience.0) + RECOVERY
    }

    /// Injects faults at their times. Runs as a task.
    fn chaos(&self, world: &World, task: TaskId) {
        let pause = |until: Nanos| {
            let nobody = crate::world::Cause::NUDGE;
            while world.now() < until {
                world.wait(task, nobody, Some(until));
            }
        };
        for injection in &self.plan.injections {
            pause(injection.at);
            let now = world.now();
            let until = now + injection.lasts;
            self.watch.books.borrow_mut().disturb(until + self.bound_max());
            self.inject(world, injection, until, &pause);
            self.open.set(self.open.get() - 1);
        }
    }

    fn inject(&self, world: &World, injection: &Injection, until: Nanos, pause: &dyn Fn(Nanos)) {
        let Injection { fault, seed, .. } = *injection;
        let enclave = &self.enclave;
        match fault {
            Fault::LostKick => self.kicks.disturb(until, Delivery::Lost),
            Fault::LateKick => {
                let late = Nanos(self.plan.setup.config.patience.0 / 4);
                self.kicks.disturb(until, Delivery::Late(late));
            }
            Fault::AgentCrash => {
                if let Some(agent) = enclave.agent_task() {
                    self.watch.count(fault, 1);
                    world.kill(agent);
                    pause(world.now() + RESTART);
                }
                self.start_agent(Skew::default(), None);
            }
            Fault::AgentStop => {
                if let Some(agent) = enclave.agent_task() {
                    self.watch.count(fault, 1);
                    world.stop(agent, until);
                    pause(until + RESTART);
                }
                if enclave.mode() == crate::enclave::Mode::Fallback {
                    self.start_agent(Skew::default(), None);
                }
            }
            Fault::Replacement => {
                self.watch.count(fault, 1);
                self.start_agent(Skew::default(), None);
            }
            Fault::LinkStall => {
                self.watch.count(fault, 1);
                for watch in self.everyone.borrow().iter() {
                    watch.books.borrow_mut().disturb(until + self.bound_max());
                }
                world.time().stall_link(until);
            }
            Fault::Hostile => {
                self.watch.count(fault, 1);
                if seed % 2 == 0 {
                    self.start_agent(Skew::default(), Some(seed));
                } else {
                    self.taint();
                    if !scribble(enclave, injection) {
                        return;
                    }
                }
                pause(until);
                // Whatever is left of it, its successor must find the host as it should be.
                self.start_agent(Skew::default(), None);
            }
            Fault::CoreOffline => {
                let core = (seed % u64::from(self.plan.setup.config.cores)) as u16;
                self.watch.count(fault, 1);
                self.watch.books.borrow_mut().set_online(world.now(), core, false);
                enclave.set_online(core, false);
                pause(until);
                self.watch.books.borrow_mut().set_online(world.now(), core, true);
                enclave.set_online(core, true);
            }
            // Properties of the whole history; counted where they show.
            Fault::FullQueue | Fault::Reordered => {}
            Fault::ClockSkew => self.watch.count(fault, 1),
        }
    }

    /// One look of the checkers.
    fn look(&self, now: Nanos) {
        let counters = self.enclave.counters();
        if counters.overflows > self.overflows.replace(counters.overflows) {
            self.watch.books.borrow_mut().disturb(now + self.bound_max());
        }
        if counters.agent_errors.len() > self.errors.get() {
            let what = counters.agent_errors.last().cloned().unwrap_or_default();
            self.watch.check(Err(Broken { rule: "agent", what }));
        }
        if let Some(broken) = self.told.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.watch.check(Err(broken));
        }
        // A turned-out agent that nobody replaces would leave the fallback for ever.
        if counters.lost_agents > self.losses.replace(counters.lost_agents) {
            self.start_agent(Skew::default(), None);
        }
        self.watch.check(self.watch.books.borrow().look(now, self.bound_max()));
    }

    fn faults(&self) -> BTreeMap<Fault, u64> {
        let mut faults = self.watch.faults.borrow().clone();
        let mut add = |fault, times: u64| {
            if times > 0 {
                *faults.entry(fault).or_default() += times;
            }
        };
        add(Fault::LostKick, self.kicks.lost.get());
        add(Fault::LateKick, self.kicks.late.get());
        add(Fault::FullQueue, self.overflows.get());
        add(
            Fault::Reordered,
            self.hearing.borrow().values().map(|hearing| hearing.reordered).sum(),
        );
        faults
    }
}

/// Ends the world's tasks also when something panics.
struct Ended(World);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Runs a plan until its messages are sent and every thread has ended, or a rule is broken.
pub fn run(plan: &Plan) -> Report {
    let world = World::new();
    let _ended = Ended(world.clone());
    let everyone = Rc::default();
    let cells: Vec<_> =
        plan.enclaves.iter().map(|each| Running::new(&world, each, &everyone)).collect();
    for cell in &cells {
        cell.start_agent(cell.plan.skew, None);
        let (cell, inside) = (Rc::clone(cell), world.clone());
        let me: Rc<Cell<Option<TaskId>>> = Rc::default();
        let own = Rc::clone(&me);
        me.set(Some(world.spawn(move || {
            cell.chaos(&inside, own.get().expect("set before it runs"));
        })));
    }
    let messages = || cells.iter().map(|cell| cell.enclave.counters().messages).sum::<u64>();
    let broken = || cells.iter().any(|cell| cell.watch.broken.borrow().is_some());
    let mut until = Nanos(0);
    let mut step = |goes_on: &dyn Fn() -> bool| {
        while !broken() && goes_on() {
            until = until + LOOK;
            world.run_until(until);
            cells.iter().for_each(|cell| cell.look(until));
        }
        until
    };
    let first = step(&|| {
        let open = cells.iter().any(|cell| cell.open.get() > 0);
        world.now() < END_MAX && (open || messages() < plan.messages)
    });
    cells.iter().for_each(|cell| cell.churn.stop());
    let drain = cells.iter().map(|cell| cell.bound_max().0).max().unwrap_or(0);
    let end = first + Nanos(drain) + DRAIN_MAX;
    step(&|| world.now() < end && cells.iter().any(|cell| cell.churn.alive() > 0));
    let whole = !broken();
    for cell in &cells {
        let living = cell.watch.books.borrow().living();
        if whole && living > 0 {
            let what = format!("{living} threads have not ended at {} ns", world.now().0);
            cell.watch.check(Err(Broken { rule: "end", what }));
        }
    }
    let mut faults = BTreeMap::new();
    for (fault, times) in cells.iter().flat_map(|cell| cell.faults()) {
        *faults.entry(fault).or_default() += times;
    }
    let violations = cells.iter().enumerate().filter_map(|(enclave, cell)| {
        let (at, Broken { rule, what }) = cell.watch.broken.borrow().clone()?;
        Some(Violation { at, enclave, rule, what })
    });
    Report {
        messages: messages(),
        faults,
        violation: violations.min_by_key(|violation| violation.at),
        trace_hash: world.trace_hash(),
        until: world.now(),
    }
}
