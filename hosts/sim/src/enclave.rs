//! One enclave of the modelled host: the state that its cores, its outside contexts and its control
//! context share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use wave_core::brain::Input;
use wave_core::clock::Nanos;
use wave_core::host::Signals;
use wave_core::layout::{Config, ConfigError, Layout, QueuePlace};
use wave_core::link::{Home, LINE_WORDS, Side, Span};
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId};
use wave_core::outcome::{Code, Counts};
use wave_core::settings::PolicyError;
use wave_core::snapshot::{CoreRecord, Record};
use wave_core::subsystem::SubsystemId;
use wave_links::costs::Costs;
use wave_links::memory::Memory;
use wave_links::model::{ModelPort, VirtualTime};
use wave_sched::mechanism::core_loop::Run;
use wave_sched::mechanism::fallback::Fallback;
pub use wave_sched::mechanism::fallback::Mode;
use wave_sched::mechanism::table::Leave;
use wave_sched::wire::Event;

use crate::agent::{AgentSetup, Logs, Notes};
use crate::app::Application;
use crate::control::Guest;
use crate::core::Work;
use crate::cpu::Cpu;
use crate::machine::Machine;
use crate::modelled::Modelled;
use crate::table::{Own, Table};
use crate::usage::{CoreUsage, Usage};
use crate::world::{Cause, Delivery, SimBell, TaskId, World};

/// One context's access to the modelled link.
pub type SimPort = ModelPort<VirtualTime>;

/// The parameters of an enclave.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Cores, queues, prestaging: what host and agent agree on.
    pub config: Config,
    /// Costs of the link between host and agent.
    pub costs: Costs,
    /// Costs of the machine's own work.
    pub machine: Machine,
    /// Setup of the agents that are started.
    pub agent: AgentSetup,
    /// Whether a core prefetches its next decision at the start of a switch.
    pub prefetch: bool,
    /// Decides everything random.
    pub seed: u64,
}

/// A setup that cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// The enclave cannot be laid out.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policy refuses this enclave, or there is no such policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Setup {
    /// Lays the enclave out and makes its policy, as a run does, and drops both.
    ///
    /// # Errors
    /// The layout or the policy is refused. A run of such a setup fails or panics.
    pub fn check(&self) -> Result<(), SetupError> {
        let subsystem = match self.config.subsystem {
            SubsystemId::NONE => wave_sched::SUBSYSTEM.id,
            given => given,
        };
        let config = Config { subsystem, ..self.config };
        Layout::new(config)?;
        self.agent.policy.make(&config)?;
        Ok(())
    }
}

/// Events on the host, as observers see them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A thread's state changed, as its message states.
    Changed(Event),
    /// Something happened to a subject of a modelled host.
    Told {
        /// The message that was sent.
        message: Message,
        /// The core whose run the message ends, if it ends one.
        core: Option<u16>,
        /// The subject's new state; `None` if its host has no such id, which breaks its contract.
        record: Option<Record>,
    },
    /// A thread or a subject got onto a core, by this decision or by the fallback.
    Started {
        /// The core that runs it.
        core: u16,
        /// Thread or subject that runs.
        thread: Subject,
        /// Sequence that the decision named.
        sequence: Sequence,
        /// Decision that started it; `None`: the fallback.
        decision: Option<Decision>,
    },
    /// A decision was refused.
    Refused {
        /// The core that refused it.
        core: u16,
        /// The decision that was refused.
        decision: Decision,
        /// The code of the refusal.
        code: Code,
        /// Whether it changed something nevertheless, which breaks the contract of a modelled host.
        has_changed: bool,
    },
    /// A core has nothing to run.
    Idle {
        /// The core without work.
        core: u16,
    },
    /// A core has adopted the current agent's window, or none.
    Adopted {
        /// The core that adopted it.
        core: u16,
    },
    /// An agent has taken over.
    Attached,
    /// The agent asked for a snapshot: it missed something.
    ResyncAsked,
    /// The agent was turned out.
    Lost {
        /// Whether the watchdog found that work had waited too long.
        barked: bool,
        /// Whether the agent wrote invalid entries.
        fault: bool,
    },
}

/// A function that sees each agent's inputs: the agent's number, and the input.
pub type AgentSpy = Rc<dyn Fn(u64, &Input)>;

/// Sees everything that happens on a host.
pub type Watcher = dyn FnMut(Nanos, &HostEvent);

/// One life of an agent, as the host sees it.
pub(crate) struct Incarnation {
    pub(crate) layout: Layout,
    pub(crate) memory: Arc<Memory>,
    pub(crate) time: VirtualTime,
    pub(crate) window: u32,
    pub(crate) core_bells: Vec<SimBell>,
    pub(crate) control_bell: SimBell,
    pub(crate) agent_bell: SimBell,
    pub(crate) agent_task: Cell<Option<TaskId>>,
    pub(crate) lost: Cell<bool>,
    pub(crate) fault: Cell<bool>,
}

/// The state of a core that other tasks see.
pub(crate) struct CoreShared {
    pub(crate) task: Cell<Option<TaskId>>,
    pub(crate) record: Cell<CoreRecord>,
    pub(crate) epoch: Cell<u64>,
    pub(crate) sleeps: Cell<bool>,
    pub(crate) online: Cell<bool>,
    pub(crate) running: Cell<Option<u32>>,
    pub(crate) usage: CoreUsage,
}

/// The counters of an enclave.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Runs that an agent decided.
    pub switches: u64,
    /// Runs that the fallback decided.
    pub fallback_switches: u64,
    /// Runs that began without an idle time of the core before them.
    pub at_once: u64,
    /// Interrupts that cores took.
    pub kicks: u64,
    /// Runs that an agent's preemption ended.
    pub preempted: u64,
    /// Runs that the core's own timer ended.
    pub slices: u64,
    /// Messages sent, by cores and from outside.
    pub messages: u64,
    /// Nanoseconds from the end of a run to the start of the core's next.
    pub switch_ns: Vec<u32>,
    /// Nanoseconds that an agent took from beginning to decide until a kick was sent.
    pub open_ns: Vec<u32>,
    /// Outcomes so far, by code.
    pub outcomes: Counts,
    /// Agents that have attached.
    pub attached: u64,
    /// Agents that were turned out.
    pub lost_agents: u64,
    /// Agents that the watchdog turned out.
    pub barks: u64,
    /// Agents that were turned out for invalid entries.
    pub faults: u64,
    /// Number of snapshots sent.
    pub snapshots: u64,
    /// Messages that found no room.
    pub overflows: u64,
    /// Decisions that agents made.
    pub decided: u64,
    /// Number of kicks that agents sent.
    pub kicked: u64,
    /// Nanoseconds that agents were busy.
    pub agent_busy: Nanos,
    /// Errors with which agents left: the host wrote invalid entries, which is a bug of Wave.
    pub agent_errors: Vec<String>,
}

/// A modelled enclave: table, cores, control task and agent.
pub struct Enclave {
    pub(crate) world: World,
    pub(crate) setup: Setup,
    pub(crate) layout: Layout,
    /// The threads; empty if the host is modelled.
    pub(crate) table: Table,
    /// The subsystem's own host, instead of threads.
    pub(crate) modelled: Option<Modelled>,
    /// Ids that no thread has.
    pub(crate) free: RefCell<Vec<u32>>,
    pub(crate) cores: Vec<CoreShared>,
    pub(crate) epoch: Cell<u64>,
    pub(crate) incarnation: RefCell<Option<Rc<Incarnation>>>,
    pub(crate) fallback: Fallback,
    pub(crate) candidates: RefCell<Vec<Guest>>,
    pub(crate) control_task: Cell<Option<TaskId>>,
    pub(crate) kick_fate: RefCell<Option<Rc<dyn Fn() -> Delivery>>>,
    pub(crate) spy: RefCell<Option<AgentSpy>>,
    /// The CPU that the agent and the generators share, if the machine has it so.
    pub(crate) cpu: Option<Rc<Cpu>>,
    pub(crate) app: Rc<dyn Application>,
    pub(crate) watchers: RefCell<Vec<Box<Watcher>>>,
    pub(crate) counters: RefCell<Counters>,
    pub(crate) agents_started: Cell<u64>,
    pub(crate) keeps_times: Cell<bool>,
    pub(crate) logs: RefCell<Option<(String, Box<Logs>)>>,
    /// The notes by which an RPC stack tells agents of requests; for agents that start from now on.
    pub(crate) notes: RefCell<Option<Notes>>,
}

impl std::fmt::Debug for Enclave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enclave").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}

impl Enclave {
    /// Creates an enclave. Its cores and application start with the world, under the fallback until an
    /// agent is started ([`Enclave::start_agent`]).
    pub fn new(
        world: &World,
        mut setup: Setup,
        app: Rc<dyn Application>,
    ) -> Result<Rc<Enclave>, ConfigError> {
        setup.config.subsystem = wave_sched::SUBSYSTEM.id;
        Enclave::make(world, setup, None, app)
    }

    pub(crate) fn make(
        world: &World,
        mut setup: Setup,
        modelled: Option<Modelled>,
        app: Rc<dyn Application>,
    ) -> Result<Rc<Enclave>, ConfigError> {
        setup.costs.prefetch_residue.ns += setup.machine.prefetch_residue.value;
        if let Some(pipeline) = &setup.machine.pipeline {
            // The sending CPU does this, not the deciding one; the time of the whole path stays the same.
            let submit = std::mem::take(&mut setup.costs.dma_submit.ns);
            let flight = &mut setup.costs.dma_flight.ns;
            *flight = (*flight + submit - pipeline.send.value).max(0.0);
        }
        let threads = if modelled.is_some() { 0 } else { setup.config.subjects };
        let layout = Layout::new(setup.config)?;
        let core = |_| CoreShared {
            task: Cell::new(None),
            record: Cell::new(CoreRecord { run: 0, txn: TxnId::new(0), asks: true }),
            epoch: Cell::new(0),
            sleeps: Cell::new(false),
            online: Cell::new(true),
            running: Cell::new(None),
            usage: CoreUsage::default(),
        };
        let enclave = Rc::new(Enclave {
            world: world.clone(),
            layout,
            table: Table::new(threads, Own::default),
            modelled,
            free: RefCell::new((0..threads).rev().collect()),
            cores: (0..setup.config.cores).map(core).collect(),
            epoch: Cell::new(0),
            incarnation: RefCell::new(None),
            fallback: Fallback::new(threads),
            candidates: RefCell::default(),
            control_task: Cell::new(None),
            kick_fate: RefCell::new(None),
            spy: RefCell::new(None),
            cpu: setup.machine.shared_cpu.as_ref().map(|costs| Rc::new(Cpu::new(world, costs))),
            app,
            watchers: RefCell::default(),
            counters: RefCell::default(),
            agents_started: Cell::new(0),
            keeps_times: Cell::new(false),
            logs: RefCell::default(),
            notes: RefCell::default(),
            setup,
        });
        crate::control::start(&enclave);
        for index in 0..enclave.setup.config.cores {
            crate::core::start(&enclave, index);
        }
        Rc::clone(&enclave.app).start(&enclave);
        Ok(enclave)
    }

    /// Lets `watcher` see all events from now on.
    pub fn watch(&self, watcher: Box<Watcher>) {
        self.watchers.borrow_mut().push(watcher);
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        self.counters.borrow().clone()
    }

    /// How the cores have spent their time so far.
    pub fn usage(&self) -> Usage {
        let counters = self.counters.borrow();
        let mut usage = Usage {
            agent: counters.agent_busy,
            switches: counters.switches + counters.fallback_switches,
            ..Usage::default()
        };
        for core in &self.cores {
            core.usage.add_to(&mut usage, self.world.now());
        }
        usage
    }

    /// Lets every agent that is started from now on write a log, with `about` in its header.
    pub fn record_agents(&self, about: String, logs: Box<Logs>) {
        *self.logs.borrow_mut() = Some((about, logs));
    }

    /// Records individual times from now on: [`Counters::switch_ns`], [`Counters::open_ns`].
    pub fn keep_times(&self) {
        self.keeps_times.set(true);
    }

    /// Who decides at present: the agent or the fallback.
    pub fn mode(&self) -> Mode {
        self.fallback.mode()
    }

    /// The world that it lives in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The setup of the enclave.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The table of threads, for checks.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The task of the attached agent, if there is one.
    pub fn agent_task(&self) -> Option<TaskId> {
        self.incarnation.borrow().as_ref()?.agent_task.get()
    }

    /// The task of a core, once it has one.
    pub fn core_task(&self, core: u16) -> Option<TaskId> {
        self.cores.get(usize::from(core))?.task.get()
    }

    /// Kills the attached agent, if there is one. The host notices at once, as from a socket.
    pub fn kill_agent(&self) {
        if let Some(agent) = self.agent_task() {
            self.world.kill(agent);
            // The later of two events at one time: the agent is dead when the host looks.
            self.nudge_control();
        }
    }

    /// Lets `fate` decide the delivery of each kick of agents that start from now on.
    pub fn set_kick_fate(&self, fate: Rc<dyn Fn() -> Delivery>) {
        *self.kick_fate.borrow_mut() = Some(fate);
    }

    /// Lets `spy` see the inputs of each agent that starts from now on, as they arrive.
    pub fn spy_on_agents(&self, spy: AgentSpy) {
        *self.spy.borrow_mut() = Some(spy);
    }

    /// The attached agent's access to its window, for a caller other than that agent.
    pub fn agents_port(&self) -> Option<(SimPort, Layout)> {
        let incarnation = self.incarnation.borrow().clone()?;
        let port = ModelPort::new(
            Arc::clone(&incarnation.memory),
            Side::Agent,
            &self.setup.costs,
            &incarnation.layout.mappings(Side::Agent),
            incarnation.time.clone(),
            self.setup.seed,
        );
        let port = port.expect("the setup was checked when the enclave was made");
        Some((port, incarnation.layout.clone()))
    }

    /// Takes a core offline, or back online.
    pub fn set_online(&self, core: u16, online: bool) {
        let shared = &self.cores[usize::from(core)];
        shared.online.set(online);
        self.nudge_core(core);
    }

    /// Whether the core is online.
    pub fn is_online(&self, core: u16) -> bool {
        self.cores[usize::from(core)].online.get()
    }

    pub(crate) fn emit(&self, event: &HostEvent) {
        let now = self.world.now();
        for watcher in self.watchers.borrow_mut().iter_mut() {
            watcher(now, event);
        }
    }

    pub(crate) fn nudge_core(&self, core: u16) {
        if let Some(task) = self.cores[usize::from(core)].task.get() {
            self.world.wake(task, self.world.now(), Cause::NUDGE);
        }
    }

    pub(crate) fn nudge_control(&self) {
        if let Some(task) = self.control_task.get() {
            self.world.wake(task, self.world.now(), Cause::NUDGE);
        }
    }

    pub(crate) fn port(&self, incarnation: &Incarnation, context: u64) -> SimPort {
        let mappings = incarnation.layout.mappings(Side::Host);
        let seed = self.setup.seed ^ (context << 32);
        ModelPort::new(
            Arc::clone(&incarnation.memory),
            Side::Host,
            &self.setup.costs,
            &mappings,
            incarnation.time.clone(),
            seed,
        )
        .expect("the setup was checked when the enclave was made")
    }

    /// Does what a context's signals ask for.
    pub(crate) fn obey(&self, signals: Signals, incarnation: &Incarnation) {
        use wave_core::link::Doorbell;
        if signals.ring_agent() {
            incarnation.agent_bell.ring();
        }
        if signals.lost() {
            self.counters.borrow_mut().overflows += 1;
            if !incarnation.lost.replace(true) {
                self.nudge_control();
            }
        }
        if signals.fault() && !incarnation.fault.replace(true) {
            self.nudge_control();
        }
    }

    /// Must be called after a thread has become runnable.
    pub(crate) fn became_runnable(&self, event: &Event) {
        if self.fallback.became_runnable(event) {
            self.wake_sleeper();
        }
    }

    /// Wakes a core that sleeps, if one does.
    pub(crate) fn wake_sleeper(&self) {
        let sleeper = self.cores.iter().position(|core| core.sleeps.get() && core.online.get());
        if let Some(core) = sleeper {
            self.nudge_core(core as u16);
        }
    }

    /// Commits the fallback's choice for a core, if there is one.
    pub(crate) fn pop_fallback(&self, core: u16) -> Option<Work> {
        let (thread, sequence, work) = match &self.modelled {
            Some(modelled) => {
                let (subject, sequence, time) = modelled.fall_back(self.world.now(), core)?;
                (subject, sequence, Work::Time(time))
            }
            None => {
                let (thread, sequence) = self.fallback.pop(&self.table, core)?;
                (thread, sequence, Work::Thread(Run::of_fallback(thread.id)))
            }
        };
        self.emit(&HostEvent::Started { core, thread, sequence, decision: None });
        Some(work)
    }

    pub(crate) fn enter_fallback(&self) {
        // Tasks take turns: each sees all stores of the one before it.
        self.fallback.enter(&self.table, || ());
        (0..self.setup.config.cores).for_each(|core| self.nudge_core(core));
    }

    /// Records that a thread left its core, on its own or by force, and tells observers its new state.
    pub(crate) fn change(&self, id: u32, why: Leave, core: u16, ran: Nanos) -> Event {
        let event = self.leave(id, why, core, ran);
        self.emit(&HostEvent::Changed(event));
        event
    }

    pub(crate) fn watch_window(&self, incarnation: &Incarnation, agent: TaskId) {
        let Incarnation { layout, window, .. } = incarnation;
        let watch = |place: &QueuePlace, task| {
            let span = Span { home: place.home, line: place.ring.first, lines: place.ring.entries };
            self.world.watch(*window, span, LINE_WORDS - 1, task, Cause::STORE);
        };
        layout.messages.iter().for_each(|place| watch(place, agent));
        let revoked = Span { home: Home::Nic, line: layout.incarnation, lines: 1 };
        self.world.watch(*window, revoked, 0, agent, Cause::STORE);
        for ((core, place), preempt) in
            self.cores.iter().zip(&layout.decisions).zip(layout.preempt..)
        {
            let Some(task) = core.task.get() else { continue };
            watch(place, task);
            if self.setup.machine.safe_points.is_some() {
                let word = Span { home: Home::Host, line: preempt, lines: 1 };
                self.world.watch(*window, word, 0, task, Cause::WORD);
            }
        }
    }
}
