//! RPCs in virtual time (Wave 7.3): an RPC stack in front of threads that a scheduler's agent schedules.
//!
//! ```text
//!  arrivals -> stack's cores -> Dispatch ══ requests ══> Stub  a worker's thread, on a host core
//!              (figures)        (real)   <══ replies ═══ (real)
//!                                 │ note                   │ AWAITS, PREEMPT, ...
//!                                 v                        v
//!                               Agent<policy> <══════════ HostCore
//!                               (real)        ══════════> (real)
//! ```
//!
//! Steering, frames, queues, the agent's loop, its policy and the host's protocol are the real ones, over modelled
//! links. The stack's processing is modelled by figures (`data/rpc.toml`).

pub mod costs;
mod stack;
mod workers;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{Config, ConfigError, Layout, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::Subject;
use wave_links::costs::Costs;
use wave_links::memory::Memory;
use wave_links::model::{VirtualTime, extra_lines};
use wave_rpc::boxes::Outbox;
use wave_rpc::extents::Extents;
use wave_rpc::service::{Method, Service};
use wave_rpc::wire::{Head, SERVICE};

use self::costs::StackCosts;
use self::stack::Stack;
use self::workers::Workers;
use crate::agent::{Logs, Notes};
use crate::enclave::{Enclave, Setup, SimPort};
use crate::experiment::{Ended, GRACE, Outcome};
use crate::requests::Load;
use crate::world::World;

/// Calls that may be open at once.
const CALLS: u32 = 8192;
/// Entries of a worker's queues.
const ENTRIES: u32 = 8;

/// The placement of the components, and their costs.
#[derive(Clone, Debug)]
pub struct RpcSetup {
    /// The host's cores and the scheduler.
    pub scheduler: Setup,
    /// The link between the stack and the host's cores.
    pub link: Costs,
    /// Costs of the RPC stack.
    pub stack: StackCosts,
    /// Costs of notes for the scheduler: reading one note with the policy's work on it, and each check for notes.
    pub note: (Nanos, Nanos),
    /// Threads that serve requests, one at a time each.
    pub workers: u16,
    /// The steering policy, as [`wave_rpc::steer::by_name`] knows it.
    pub steering: String,
    /// Whether a core fetches a thread's next request while it switches to it.
    pub prefetch: bool,
    /// Whether a thread looks for its next request before it awaits one: `steering` may have sent it ahead of time, as an agent
    /// prestages decisions (Wave 5.4).
    pub prestaged: bool,
    /// The SLO of the requests of each class; empty if they carry none.
    pub slo: Vec<Nanos>,
}

impl RpcSetup {
    /// Changes the clock rate of the agent's cores, which also run the stack, to `ghz`: the time of their work scales inversely, and the
    /// link's costs do not change.
    pub fn run_agent_at(&mut self, ghz: f64) {
        let pace = self.scheduler.agent.ghz / ghz;
        let StackCosts { cores: _, request, reply, steer, note } = &mut self.stack;
        [request, reply, steer, note].into_iter().for_each(|figure| figure.value *= pace);
        self.note.0 = Nanos((self.note.0.0 as f64 * pace).round() as u64);
        self.scheduler.agent.ghz = ghz;
    }
}

/// Result of a run at one load.
#[derive(Clone, Debug)]
pub struct RpcOutcome {
    /// The outcome, as for other requests.
    pub outcome: Outcome,
    /// The share of its time that a core of the stack was busy.
    pub stack_busy: f64,
    /// Total time that the stack's cores worked until the last request arrived; for the host's cores see [`Outcome::usage`].
    pub stack_time: Nanos,
    /// Runs in which a worker found no request.
    pub looks: u64,
}

/// The window between stack and workers.
pub(crate) struct RpcWindow {
    layout: Layout,
    memory: Arc<Memory>,
    index: u32,
    time: VirtualTime,
    costs: Costs,
    seed: u64,
}

impl RpcWindow {
    fn new(world: &World, setup: &RpcSetup) -> Result<RpcWindow, ConfigError> {
        let mut config = Config::pcie(setup.workers);
        (config.subjects, config.contexts, config.spin) = (CALLS, 1, Nanos(0));
        (config.messages.entries, config.decisions.entries) = (ENTRIES, ENTRIES);
        config.subsystem = wave_rpc::SUBSYSTEM.id;
        let layout = Layout::new(config)?;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let memory = Memory::create("wave-sim-rpc", nic, host, extra_lines(nic, host));
        let (memory, _) = memory.expect("memory for a modelled window");
        let (index, time) = world.add_window(nic, host);
        let (memory, costs) = (Arc::new(memory), setup.link.clone());
        Ok(RpcWindow { layout, memory, index, time, costs, seed: setup.scheduler.seed })
    }

    fn port(&self, side: Side, context: u64) -> SimPort {
        SimPort::new(
            Arc::clone(&self.memory),
            side,
            &self.costs,
            &self.layout.mappings(side),
            self.time.clone(),
            self.seed ^ context << 40,
        )
        .expect("every valid layout can be mapped")
    }

    /// Announces the service, as a server's control thread does.
    fn serve(&self) {
        let port = self.port(Side::Host, 1);
        write_header(&self.layout, port.window(Home::Nic));
        let method = Method { path: "/rocksdb.Store/Get".into(), ..Method::default() };
        let service = Service { methods: vec![method], descriptors: Vec::new() }.encode();
        let place = &self.layout.messages[self.layout.control_context()];
        let mut outbox = Outbox::new(Sender::new(place, Side::Host), Extents::none());
        let lengths = [service.len() as u32, 0];
        let head = Head { lengths, ..Head::new(SERVICE, Subject::default()) };
        outbox.send(&port, &head, &service, &[]).expect("nobody has written a credit yet");
        outbox.publish(&port);
    }
}

/// Serves an open loop of RPCs.
///
/// # Errors
/// The setup cannot be laid out.
///
/// # Panics
/// There is no such steering policy.
pub fn serve(setup: &RpcSetup, load: &Load) -> Result<RpcOutcome, ConfigError> {
    serve_logged(setup, load, None)
}

/// As [`serve`]. With `logs`, a text about the run and a place for each log, the scheduler's agent writes a log.
///
/// # Errors
/// As for [`serve`].
///
/// # Panics
/// As for [`serve`].
pub fn serve_logged(
    setup: &RpcSetup,
    load: &Load,
    logs: Option<(String, Box<Logs>)>,
) -> Result<RpcOutcome, ConfigError> {
    let world = World::new();
    let _ended = Ended(world.clone());
    let window = RpcWindow::new(&world, setup)?;
    window.serve();
    let workers = Workers::new(&window, setup);
    let enclave = Enclave::new(&world, setup.scheduler.clone(), Rc::clone(&workers) as _)?;
    let queue = Arc::new(Mutex::new(VecDeque::new()));
    let (read, look) = setup.note;
    enclave.notes.replace(Some(Notes { queue: Arc::clone(&queue), read, look }));
    if let Some((about, logs)) = logs {
        enclave.record_agents(about, logs);
    }
    enclave.start_agent();
    let stack = Stack::start(&world, &window, setup, load, &enclave, queue);
    world.run_until(load.end());
    let usage = enclave.usage();
    let stack_time = stack.worked(load.end());
    world.run_until(load.end() + GRACE);
    let cores = setup.stack.cores.value * world.now().0 as f64;
    Ok(RpcOutcome {
        stack_busy: stack.busy().0 as f64 / cores,
        stack_time,
        looks: workers.empty_runs(),
        outcome: Outcome {
            usage,
            served: stack.served(),
            counters: enclave.counters(),
            until: world.now(),
            carried: world.time().bytes_carried(),
            resumed: world.resumed(),
            trace_hash: world.trace_hash(),
        },
    })
}
