//! Runs a plan: the world, its enclaves, their faults, and their observers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wave_core::brain::Input;
use wave_core::clock::Nanos;
use wave_sched::wire::DECISION_RUN;

use super::agent_inputs::{AgentInputs, Told, ToldPolicy};
use super::books::{Books, Broken};
use super::bounds::{Bounds, Excuses};
use super::churn::Churn;
use super::faults::{Fault, Kicks, Lying, scribble};
use super::invariant::{Check, Host, Invariant};
use super::plan::{EnclavePlan, Injection, Plan, RUN_MAX};
use crate::agent::{Skew, policy_of};
use crate::enclave::{Enclave, HostEvent};
use crate::world::{Cause, Delivery, TaskId, World};

/// How often the checkers look for idle cores.
const LOOK: Nanos = Nanos::from_micros(100);
/// How long it takes until most dead agents are replaced.
const RESTART: Nanos = Nanos::from_micros(700);
/// The time at which a history that has not sent its messages is given up: far more than any history needs.
const END_MAX: Nanos = Nanos::from_millis(4_000);
/// How long all threads may take to end after the faults, in addition to a recovery.
const DRAIN_MAX: Nanos = Nanos::from_millis(10);
/// How long every fourth history continues once nothing is excused any more.
const CALM: Nanos = Nanos::from_micros(500);
/// The time at which it ends even if something is still excused, because queues are full again and again.
const CALM_MAX: Nanos = Nanos::from_millis(30);

/// A rule that was broken, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Virtual time of the failure.
    pub at: Nanos,
    /// Index of the enclave that broke the rule.
    pub enclave: usize,
    /// Name of the rule in [`super::books::RULES`], or of a user's [`Invariant`].
    pub rule: &'static str,
    /// The checker's observation, in words.
    pub what: String,
}

/// The result of a history.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Messages that the hosts sent.
    pub messages: u64,
    /// Number of faults that took effect, by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// The first rule that was broken, if any.
    pub violation: Option<Violation>,
    /// Equal for equal histories.
    pub trace_hash: u64,
    /// Virtual time of the end.
    pub until: Nanos,
    /// The longest time that a core was seen idle while a thread waited, without an excuse, as a share of
    /// the bound.
    pub idle_share: f64,
}

/// State that all observers of an enclave share.
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

    /// Checks users' rules while the policy answers for the host.
    fn check_own(&self, now: Nanos, own: &mut [(&'static str, Check)]) {
        let books = self.books.borrow();
        if now <= books.calm_from() {
            return;
        }
        for (rule, check) in own {
            let result = check(&Host { now, books: &books });
            self.check(result.map_err(|what| Broken { rule, what }));
        }
    }

    fn count(&self, fault: Fault, times: u64) {
        *self.faults.borrow_mut().entry(fault).or_default() += times;
    }
}

/// The task of each agent, by number, and whether a fault wrote invalid entries into its window.
type Agents = Rc<RefCell<Vec<(Option<TaskId>, Arc<AtomicBool>)>>>;

/// One enclave of a running history.
struct Running {
    enclave: Rc<Enclave>,
    /// The threads; `None` if the host is modelled.
    churn: Option<Rc<Churn>>,
    watch: Rc<Watch>,
    kicks: Rc<Kicks>,
    told: Arc<Mutex<Option<Broken>>>,
    plan: EnclavePlan,
    inputs: Rc<RefCell<BTreeMap<u64, AgentInputs>>>,
    agents: Agents,
    /// Observers of all enclaves, because a stalled link affects all.
    everyone: Rc<RefCell<Vec<Rc<Watch>>>>,
    /// Number of faults that have not begun or not ended.
    open: Cell<usize>,
    bounds: Bounds,
    overflows: Cell<u64>,
    /// Number of agents that may leave because of invalid entries.
    errors: Cell<usize>,
    losses: Cell<u64>,
    keeper: Cell<Option<TaskId>>,
    /// Time before which an agent that died is not replaced.
    absent_until: Cell<Nanos>,
}

impl Running {
    fn new(
        world: &World,
        plan: &EnclavePlan,
        invariants: &[Invariant],
        stall: Nanos,
        everyone: &Rc<RefCell<Vec<Rc<Watch>>>>,
    ) -> Rc<Running> {
        let setup = plan.setup.clone();
        let host = plan.host();
        let run_max = host.as_ref().map_or(RUN_MAX, |host| host.run_max());
        let bounds = Bounds::of(&setup, stall, run_max, plan.on_purpose);
        let watch = Rc::new(Watch {
            books: RefCell::new(Books::new(setup.config.cores, bounds, host.is_some())),
            broken: RefCell::default(),
            faults: RefCell::default(),
            world: world.clone(),
        });
        everyone.borrow_mut().push(Rc::clone(&watch));
        let kicks = Kicks::new(setup.seed);
        let churn = host.is_none().then(|| Churn::new(plan.threads, setup.seed));
        let enclave = match (host, &churn) {
            (Some(host), _) => Enclave::with_model(world, setup, host),
            (None, Some(churn)) => Enclave::new(world, setup, Rc::clone(churn) as _),
            (None, None) => unreachable!("threads where no host is modelled"),
        };
        let enclave = enclave.expect("plans draw valid configurations");
        enclave.check_refusals();
        let seen = Rc::clone(&watch);
        let config = plan.setup.config;
        let mut own: Vec<_> =
            invariants.iter().map(|own| (own.name, (own.make)(&config))).collect();
        enclave.watch(Box::new(move |now, event| {
            let result = seen.books.borrow_mut().on_event(now, event);
            seen.check(result);
            if matches!(event, HostEvent::Changed(_) | HostEvent::Started { .. }) {
                seen.check_own(now, &mut own);
            }
        }));
        let (fate, clock) = (Rc::clone(&kicks), world.clone());
        enclave.set_kick_fate(Rc::new(move || fate.next(clock.now())));
        let inputs: Rc<RefCell<BTreeMap<u64, AgentInputs>>> = Rc::default();
        let agents: Agents = Rc::default();
        let (heard, seen, known) = (Rc::clone(&inputs), Rc::clone(&watch), Rc::clone(&agents));
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
            inputs,
            agents,
            bounds,
            overflows: Cell::new(0),
            errors: Cell::new(0),
            losses: Cell::new(0),
            keeper: Cell::new(None),
            absent_until: Cell::new(Nanos(0)),
        })
    }

    fn start_agent(&self, skew: Skew, lies: Option<u64>) -> TaskId {
        let mut policy = policy_of(&self.plan.setup).policy;
        if let Some(seed) = lies {
            // All its decisions are of one kind, which the subsystem may not know.
            let kind = match self.plan.subsystem {
                Some(_) => (seed >> 8) as u16 % 4,
                None => DECISION_RUN,
            };
            policy = Box::new(Lying::new(policy, kind, seed));
        }
        let (told, tainted) = (Told::default(), Arc::<AtomicBool>::default());
        let broken = Arc::clone(&self.told);
        let policy = ToldPolicy { policy, told, broken, tainted: Arc::clone(&tainted) };
        // Added before the agent starts, because its number is its index here.
        self.agents.borrow_mut().push((None, tainted));
        let place = self.agents.borrow().len() - 1;
        let task = self.enclave.start_agent_with(Box::new(policy), skew);
        self.agents.borrow_mut()[place].0 = Some(task);
        task
    }

    /// Marks the attached agent's window: from now on it may contain invalid entries.
    fn taint(&self) {
        self.watch.books.borrow_mut().taint();
        let attached = self.enclave.agent_task();
        for (task, tainted) in self.agents.borrow().iter() {
            if task.is_some() && *task == attached && !tainted.swap(true, Ordering::Relaxed) {
                // The agent may detect that, and leave.
                self.errors.set(self.errors.get() + 1);
            }
        }
    }

    fn idle_share(&self) -> f64 {
        let allowed = self.bounds.idle_max + self.bounds.on_purpose;
        self.watch.books.borrow().idle_longest().0 as f64 / allowed.0 as f64
    }

    fn excuse(&self, excuses: Excuses) {
        self.watch.books.borrow_mut().excuse(excuses);
    }

    /// Replaces agents that were turned out; otherwise the fallback would decide for ever. Runs as a
    /// task, because starting an agent takes time.
    fn keep(&self, world: &World, task: TaskId) {
        let mut replaced = 0;
        loop {
            while replaced < self.losses.get() {
                replaced += 1;
                while world.now() < self.absent_until.get() {
                    world.wait(task, Cause::NUDGE, Some(self.absent_until.get()));
                }
                self.start_agent(Skew::default(), None);
            }
            world.wait(task, Cause::NUDGE, None);
        }
    }

    /// Injects faults at their times. Runs as a task.
    fn chaos(&self, world: &World, task: TaskId) {
        let pause = |until: Nanos| {
            while world.now() < until {
                world.wait(task, Cause::NUDGE, Some(until));
            }
        };
        for injection in &self.plan.injections {
            pause(injection.at);
            let now = world.now();
            let until = now + injection.lasts;
            self.excuse(self.bounds.excuses(now, injection));
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
            Fault::AgentCrash | Fault::AgentRestart => {
                if let Some(agent) = enclave.agent_task() {
                    self.watch.count(fault, 1);
                    world.kill(agent);
                    if fault == Fault::AgentCrash {
                        self.absent_until.set(world.now() + self.absence(seed));
                        pause(self.absent_until.get());
                    }
                }
                self.start_agent(Skew::default(), None);
            }
            Fault::AgentStop | Fault::AgentContinue => {
                // The observer replaces an agent that is turned out.
                if let Some(agent) = enclave.agent_task() {
                    self.watch.count(fault, 1);
                    world.stop(agent, until);
                    pause(until + RESTART);
                }
            }
            Fault::Replacement => {
                self.watch.count(fault, 1);
                self.start_agent(Skew::default(), None);
            }
            Fault::LinkStall => {
                self.watch.count(fault, 1);
                for watch in self.everyone.borrow().iter() {
                    let excuses = self.bounds.excuses(world.now(), injection);
                    watch.books.borrow_mut().excuse(excuses);
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
                // Whatever the agent has done, its successor must find the host in a valid state.
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
            // Properties of the whole history, counted where they take effect.
            Fault::FullQueue | Fault::Reordered => {}
            Fault::ClockSkew => self.watch.count(fault, 1),
        }
    }

    /// How long a dead agent is not replaced: for every fourth one, until the fallback must have served every waiting thread.
    fn absence(&self, seed: u64) -> Nanos {
        match seed % 4 {
            0 => RESTART + self.bounds.recovery_max + self.bounds.recovery_max,
            _ => RESTART,
        }
    }

    /// Runs the checkers once.
    fn run_checkers(&self, now: Nanos) {
        let counters = self.enclave.counters();
        if counters.overflows > self.overflows.replace(counters.overflows) {
            // Queues have room for the messages of all threads, unless no agent reads. An overflow is
            // therefore excused only while a slow agent is.
            if self.plan.injections.iter().any(|each| each.fault == Fault::FullQueue) {
                self.excuse(self.bounds.overflow(now));
            } else if now > self.watch.books.borrow().slow_until() {
                let what = "messages found no room".to_owned();
                self.watch.check(Err(Broken { rule: "calm", what }));
            }
        }
        if counters.agent_errors.len() > self.errors.get() {
            let what = counters.agent_errors.last().cloned().unwrap_or_default();
            self.watch.check(Err(Broken { rule: "agent", what }));
        }
        if let Some(broken) = self.told.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.watch.check(Err(broken));
        }
        if counters.lost_agents > self.losses.replace(counters.lost_agents)
            && let Some(keeper) = self.keeper.get()
        {
            self.enclave.world().wake(keeper, now, Cause::NUDGE);
        }
        let result = self.watch.books.borrow_mut().check_idle_cores(now);
        self.watch.check(result);
        let result = self.enclave.check_model();
        self.watch.check(result.map_err(|what| Broken { rule: "model", what }));
    }

    /// Creates no new threads or events from now on.
    fn stop(&self) {
        match &self.churn {
            Some(churn) => churn.stop(),
            None => self.enclave.stop_model(),
        }
    }

    /// Number of threads that have not ended, or of a modelled host's subjects that wait or run.
    fn alive(&self) -> usize {
        let of_model = || self.watch.books.borrow().living();
        self.churn.as_ref().map_or_else(of_model, |churn| churn.alive() as usize)
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
        add(Fault::Reordered, self.inputs.borrow().values().map(|inputs| inputs.reordered).sum());
        faults
    }
}

/// Ends the world's tasks, also on a panic.
struct Ended(World);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Starts a task of a cell, and passes its own id to it.
fn spawn(world: &World, cell: &Rc<Running>, body: fn(&Running, &World, TaskId)) -> TaskId {
    let (cell, inside) = (Rc::clone(cell), world.clone());
    let name: Rc<Cell<Option<TaskId>>> = Rc::default();
    let own = Rc::clone(&name);
    let task = world.spawn(move || body(&cell, &inside, own.get().expect("set before it runs")));
    name.set(Some(task));
    task
}

/// Runs a plan until its messages are sent and every thread has ended, or a rule is broken.
pub fn run(plan: &Plan) -> Report {
    let (mut report, marks) = guarded(plan);
    if report.violation.is_none() {
        report.violation = apart(plan, &marks);
    }
    report
}

/// Checks that the last enclave's history is the same without the faults of the first. Skipped if a
/// link stalls, because that affects both.
fn apart(plan: &Plan, marks: &[u64]) -> Option<Violation> {
    let (first, others) = plan.enclaves.split_first()?;
    if others.is_empty() || first.injections.iter().any(|each| each.fault == Fault::LinkStall) {
        return None;
    }
    let mut quiet = plan.clone();
    quiet.enclaves[0].injections.clear();
    let (_, undisturbed) = guarded(&quiet);
    let at = marks.iter().zip(&undisturbed).position(|(one, other)| one != other)?;
    Some(Violation {
        at: Nanos((at as u64 + 1) * LOOK.0),
        enclave: others.len(),
        rule: "apart",
        what: "its history differs without the other enclave's faults".to_owned(),
    })
}

/// Runs a history, and reports a panic as a violation: nothing that an agent, a link or a machine does
/// may end the host, and a failed assertion is a broken rule.
fn guarded(plan: &Plan) -> (Report, Vec<u64>) {
    let world = World::new();
    let _ended = Ended(world.clone());
    let run = AssertUnwindSafe(|| history(plan, &world));
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = text.unwrap_or("no text").to_owned();
        let violation = Violation { at: world.now(), enclave: 0, rule: "panic", what };
        let trace_hash = world.trace_hash();
        let report = Report { violation: Some(violation), trace_hash, ..Report::default() };
        (report, Vec::new())
    })
}

/// Runs a history. Also returns a hash over the last enclave's history at each check before the drain.
fn history(plan: &Plan, world: &World) -> (Report, Vec<u64>) {
    let everyone = Rc::default();
    let injections = plan.enclaves.iter().flat_map(|each| &each.injections);
    let stalls = injections.filter(|injection| injection.fault == Fault::LinkStall);
    let stall = stalls.map(|injection| injection.lasts).max().unwrap_or(Nanos(0));
    let cells: Vec<_> = plan
        .enclaves
        .iter()
        .map(|each| Running::new(world, each, &plan.invariants, stall, &everyone))
        .collect();
    for cell in &cells {
        cell.start_agent(cell.plan.skew, None);
        spawn(world, cell, Running::chaos);
        cell.keeper.set(Some(spawn(world, cell, Running::keep)));
    }
    let messages = || cells.iter().map(|cell| cell.enclave.counters().messages).sum::<u64>();
    let broken = || cells.iter().any(|cell| cell.watch.broken.borrow().is_some());
    let marks = RefCell::new(Vec::new());
    let mut until = Nanos(0);
    let mut step = |goes_on: &dyn Fn() -> bool| {
        while !broken() && goes_on() {
            until = until + LOOK;
            world.run_until(until);
            cells.iter().for_each(|cell| cell.run_checkers(until));
            if let Some(last) = cells.last() {
                marks.borrow_mut().push(last.watch.books.borrow().hash());
            }
        }
        until
    };
    let first = step(&|| {
        let open = cells.iter().any(|cell| cell.open.get() > 0);
        let calm = |cell: &Rc<Running>| cell.watch.books.borrow().calm_from() + CALM;
        let calm = plan.seed.is_multiple_of(4)
            && world.now() < CALM_MAX
            && cells.iter().any(|cell| world.now() < calm(cell));
        world.now() < END_MAX && (open || calm || messages() < plan.messages)
    });
    let busy = marks.borrow().len();
    cells.iter().for_each(|cell| cell.stop());
    let drain = cells.iter().map(|cell| cell.bounds.recovery_max.0).max().unwrap_or(0);
    let end = first + Nanos(drain) + DRAIN_MAX;
    step(&|| world.now() < end && cells.iter().any(|cell| cell.alive() > 0));
    marks.borrow_mut().truncate(busy);
    let whole = !broken();
    for cell in &cells {
        let living = cell.watch.books.borrow().living();
        if whole && living > 0 {
            let what =
                format!("{living} threads or subjects have not ended at {} ns", world.now().0);
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
    let report = Report {
        messages: messages(),
        faults,
        violation: violations.min_by_key(|violation| violation.at),
        trace_hash: world.trace_hash(),
        until: world.now(),
        idle_share: cells.iter().map(|cell| cell.idle_share()).fold(0.0, f64::max),
    };
    (report, marks.into_inner())
}
