//! A system under load: an enclave with its agent, or plain Linux threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, QueueConfig};
use wave_core::link as core_link;
use wave_links::LinkSpec;
use wave_process::places;
use wave_user::{Attributes, CoreStats, Enclave, Options, Spawner, StartError, ThreadKind};
use wave_workloads::cpu;
use wave_workloads::generator::{Refused, Request, Server};
use wave_workloads::linux_threads::{self, Pool};
use wave_workloads::service::Clock;

use super::Failure;
use super::seating::Seating;
use super::service::Work;
use crate::ground::fields::Link;
use crate::kinds::requests::scenario::{
    Agent, Home, Host, Mapping, Queue, Scheduler, Threads, Transport, Variant,
};
use wave_apps::agent::AgentProcess;
use wave_apps::recording::Logs;

/// An enclave and its agent.
#[derive(Debug)]
pub struct Hosted {
    pub enclave: Arc<Enclave>,
    /// The agent; None while it is dead.
    pub agent: Option<AgentProcess>,
    threads: Threads,
    program: Option<PathBuf>,
    policy: String,
    agent_cpu: usize,
    agent_shares: bool,
    logs: Option<Logs>,
    /// Agents lost, and of these turned out by the watchdog, as of the last replacement.
    lost: u64,
    barks: u64,
}

impl Hosted {
    /// Starts the enclave of `variant` on `cpus`, and its agent as number `index` of `seating`. Its agents write `logs`.
    pub fn start(
        host: Host,
        agent: &Agent,
        seating: &Seating,
        index: usize,
        cpus: &[usize],
        logs: Option<Logs>,
    ) -> Result<Hosted, Failure> {
        let link = link(&agent.link)?;
        let mut options = Options::new(socket()?);
        options.config = config(host, agent);
        options.link = link;
        options.cpus = cpus.to_vec();
        options.spawners = 1;
        options.stack_bytes = STACK_BYTES;
        options.prefetch = agent.prefetch;
        options.yields_cpu = seating.workers_yield;
        if host.threads == Threads::Kernel {
            options.kernel_threads = host.max_threads.min(KERNEL_THREADS_MAX);
        }
        let enclave =
            Arc::new(Enclave::start(options).map_err(|error| cannot_start(&error, host))?);
        let mut hosted = Hosted {
            enclave,
            agent: None,
            threads: host.threads,
            program: agent.program.clone(),
            policy: agent.policy.clone(),
            agent_cpu: seating.agents[index],
            agent_shares: seating.agents_yield,
            logs,
            lost: 0,
            barks: 0,
        };
        hosted.start_agent()?;
        Ok(hosted)
    }

    /// Starts another agent for the enclave, and waits until it is attached.
    pub fn start_agent(&mut self) -> Result<(), Failure> {
        let before = self.enclave.stats().agents;
        let socket = self.enclave.socket();
        let log = self.logs.as_ref().map(Logs::next);
        let (cpu, shares) = (self.agent_cpu, self.agent_shares);
        let mut agent =
            AgentProcess::start(self.program.as_deref(), socket, &self.policy, cpu, shares, log)?;
        agent.wait_until_attached(&self.enclave, before)?;
        self.agent = Some(agent);
        Ok(())
    }

    /// If the host has lost its agent since the last call, starts another and returns the reason.
    pub fn replace_lost_agent(&mut self) -> Result<Option<String>, Failure> {
        let stats = self.enclave.stats();
        let lost = stats.lost_agents - self.lost;
        if lost == 0 {
            return Ok(None);
        }
        let why = match stats.barks - self.barks {
            0 => "the agent was lost".to_owned(),
            _ => "the watchdog turned the agent out: it had no CPU for 20 ms, hung, or its policy left a thread waiting".to_owned(),
        };
        (self.lost, self.barks) = (stats.lost_agents, stats.barks);
        self.agent = None;
        self.start_agent()?;
        Ok(Some(why))
    }

    /// Returns a server that submits requests to the enclave.
    pub fn server(&self, work: &Arc<Work>) -> EnclaveServer {
        EnclaveServer {
            threads: self.threads,
            spawner: self.enclave.spawner(0),
            work: Arc::clone(work),
            first_core: 0,
            submitted: 0,
            refused: 0,
        }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        // First, so that the agent ends before its enclave does.
        self.agent = None;
    }
}

/// RocksDB's GET and a signal frame need far less; an untouched stack is only address space.
const STACK_BYTES: usize = 128 * 1024;

/// Kernel-level threads are pthreads, created at start. A system that serves its load never holds more than this.
const KERNEL_THREADS_MAX: u32 = 512;

/// Attributes with which a thread of this class is spawned.
pub(crate) fn attributes(threads: Threads, class: u16) -> Attributes {
    let kind = match threads {
        Threads::User => ThreadKind::User,
        Threads::Kernel => ThreadKind::Kernel,
    };
    Attributes { class, kind }
}

/// Clock for the service time of such threads.
fn clock(threads: Threads) -> Clock {
    match threads {
        Threads::User => Clock::Wall,
        Threads::Kernel => Clock::Cpu,
    }
}

/// Each stack is two mappings, and a process may have 65,530 by default.
fn cannot_start(error: &StartError, host: Host) -> Failure {
    let mut text = error.to_string();
    if let StartError::System { error, .. } = error
        && error.kind() == std::io::ErrorKind::OutOfMemory
    {
        let needed = 2 * u64::from(host.max_threads) + 65_530;
        text.push_str(&format!(
            "; for `max_threads` = {}, type: sudo sysctl vm.max_map_count={needed}",
            host.max_threads
        ));
    }
    Failure::Cannot(text)
}

/// A fresh path for a socket.
pub(crate) fn socket() -> Result<PathBuf, Failure> {
    places::socket("run").map_err(Failure::cannot)
}

/// The link's specification, with its cost file read.
pub(crate) fn link(link: &Link) -> Result<LinkSpec, Failure> {
    let builtin = |name| LinkSpec::builtin(name).expect("these are built in");
    match link {
        Link::Shm => Ok(builtin("shm")),
        Link::Builtin(name) => Ok(builtin(name)),
        Link::File(path) => {
            let bad = |error: &dyn std::fmt::Display| {
                Failure::Scenario(format!("{}: {error}", path.display()))
            };
            let text = std::fs::read_to_string(path).map_err(|error| bad(&error))?;
            LinkSpec::parse(&text).map_err(|error| bad(&error))
        }
    }
}

/// The configuration that host and agent share.
pub(crate) fn config(host: Host, agent: &Agent) -> Config {
    let mut config = Config::coherent(host.cores as u16);
    config.subjects = host.max_threads;
    config.prestage = agent.prestage as u16;
    config.spin = Nanos::from_micros(host.spin_us);
    config.messages = queue(&agent.messages, config.messages);
    config.decisions = queue(&agent.decisions, config.decisions);
    // A ring holds twice the decisions that are prestaged in it.
    let entries = (2 * agent.prestage).next_power_of_two();
    config.decisions.entries = config.decisions.entries.max(entries);
    config
}

/// Applies a scenario's settings to a queue.
pub(crate) fn queue(queue: &Queue, size: QueueConfig) -> QueueConfig {
    let mapping = |mapping| match mapping {
        Mapping::Uncached => core_link::Mapping::Uncached,
        Mapping::WriteCombining => core_link::Mapping::WriteCombining,
        Mapping::WriteThrough => core_link::Mapping::WriteThrough,
        Mapping::WriteBack => core_link::Mapping::WriteBack,
    };
    QueueConfig {
        transport: match queue.transport {
            Transport::Mmio => core_link::Transport::Mmio,
            Transport::DmaSync => core_link::Transport::DmaSync,
            Transport::DmaAsync => core_link::Transport::DmaAsync,
        },
        home: match queue.home {
            Home::Nic => core_link::Home::Nic,
            Home::Host => core_link::Home::Host,
        },
        host: mapping(queue.host),
        agent: mapping(queue.agent),
        entries: size.entries,
    }
}

/// Spawns a thread for each request, as the paper does.
#[derive(Debug)]
pub struct EnclaveServer {
    threads: Threads,
    spawner: Spawner,
    work: Arc<Work>,
    /// The recorder's slot of the enclave's first core.
    pub first_core: usize,
    /// Requests submitted, including refused ones.
    pub submitted: u64,
    pub refused: u64,
}

impl Server for EnclaveServer {
    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let (work, first) = (Arc::clone(&self.work), self.first_core);
        let clock = clock(self.threads);
        let body = move || {
            // Evaluated at the request's end: it may have been preempted, and continued on another core.
            let slot = || first + usize::from(wave_user::core_index().unwrap_or(0));
            work.serve(&request, clock, slot);
        };
        // The most that a thread's body may capture without an allocation.
        const { assert!(size_of::<(Arc<Work>, Request, usize, Clock)>() <= 112) };
        let attributes = attributes(self.threads, u16::from(request.class.0));
        self.submitted += 1;
        self.spawner.spawn_detached(attributes, body).map(drop).map_err(|_| {
            self.refused += 1;
            Refused
        })
    }
}

/// The system of a variant.
pub enum System {
    Linux(Pool),
    Enclave(Box<Hosted>, EnclaveServer),
}

/// Counters of a system at one moment.
#[derive(Debug)]
pub struct Sample {
    at_ns: u64,
    /// Counters of every host core.
    cores: Vec<CoreStats>,
    /// CPU time of all agents; None if one could not be read.
    agents: Option<Duration>,
    /// CPU time of this process's other threads.
    others_cpu_ns: u64,
}

impl System {
    /// Starts the system of `variant` with these seats. Its agents write `logs`.
    pub fn start(
        variant: &Variant,
        seating: &Seating,
        work: &Arc<Work>,
        logs: Option<Logs>,
    ) -> Result<System, Failure> {
        match &variant.scheduler {
            Scheduler::Linux => {
                let settings = linux_threads::Settings {
                    // Bounded like an enclave: the same number of requests in the system.
                    queue_bound: variant.host.max_threads as usize,
                    ..linux_threads::Settings::new(seating.workers.clone())
                };
                let work = Arc::clone(work);
                let pool = Pool::start(&settings, move |request, thread| {
                    work.serve(request, Clock::Wall, || thread % work.recorder_slots());
                });
                Ok(System::Linux(pool.map_err(Failure::cannot)?))
            }
            Scheduler::Agent(agent) => {
                let workers = &seating.workers;
                let hosted = Hosted::start(variant.host, agent, seating, 0, workers, logs)?;
                let server = hosted.server(work);
                Ok(System::Enclave(Box::new(hosted), server))
            }
        }
    }

    /// Reads the present counters.
    pub fn sample(&self) -> Sample {
        match self {
            System::Linux(_) => Sample::of(&[] as &[&Hosted]),
            System::Enclave(hosted, _) => Sample::of(std::slice::from_ref(hosted)),
        }
    }
}

impl Sample {
    /// The current counters of `hosted`; without any, those of this process without the calling thread, which should be the
    /// generator's.
    pub fn of(hosted: &[impl std::ops::Deref<Target = Hosted>]) -> Sample {
        let cores = |hosted: &Hosted| hosted.enclave.stats().cores;
        let agents = hosted.iter().map(|hosted| hosted.agent.as_ref()?.cpu_time());
        Sample {
            cores: hosted.iter().flat_map(|hosted| cores(hosted)).collect(),
            agents: agents.sum(),
            others_cpu_ns: cpu::process_cpu_time_ns().saturating_sub(cpu::thread_cpu_time_ns()),
            at_ns: cpu::monotonic_ns(),
        }
    }
}

impl Server for System {
    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        match self {
            System::Linux(pool) => pool.submit(request),
            System::Enclave(_, server) => server.submit(request),
        }
    }
}

/// Counters between two samples.
#[derive(Clone, Debug, Default)]
pub struct Delta {
    /// Time of all host cores, in nanoseconds.
    pub cores_ns: f64,
    /// Length of the interval, in nanoseconds.
    pub wall_ns: f64,
    /// Time in threads, switching included, in nanoseconds.
    pub busy_ns: f64,
    /// Time that cores slept, in nanoseconds.
    pub parked_ns: f64,
    /// Time polling for decisions, without what the link charged meanwhile, in nanoseconds.
    pub polling_ns: f64,
    /// Runs that were preempted.
    pub preempted: u64,
    pub outcomes: Vec<(String, u64)>,
    /// What a modelled link charged the cores, by kind.
    pub charges: Vec<(&'static str, f64)>,
    pub agent_ns: f64,
    /// Whether there was an agent.
    pub has_agent: bool,
}

impl Delta {
    /// The difference of two samples, over `cores` cores.
    pub fn between(before: &Sample, after: &Sample, cores: usize) -> Delta {
        let wall_ns = (after.at_ns - before.at_ns) as f64;
        let mut delta = Delta { wall_ns, cores_ns: wall_ns * cores as f64, ..Delta::default() };
        if let (Some(before), Some(after)) = (before.agents, after.agents) {
            delta.agent_ns = after.saturating_sub(before).as_nanos() as f64;
        }
        if after.cores.is_empty() {
            // For plain threads, the kernel's work on their behalf counts as theirs.
            delta.busy_ns = (after.others_cpu_ns - before.others_cpu_ns) as f64;
            delta.parked_ns = delta.cores_ns - delta.busy_ns;
            return delta;
        }
        delta.has_agent = true;
        for (old, new) in before.cores.iter().zip(&after.cores) {
            let since = |new: Nanos, old: Nanos| new.0.saturating_sub(old.0) as f64;
            delta.busy_ns += since(new.busy, old.busy);
            delta.preempted += new.preempted - old.preempted;
            delta.parked_ns += since(new.parked, old.parked);
            delta.polling_ns +=
                since(new.polling, old.polling) - since(new.polling_charged, old.polling_charged);
            for &(code, count) in &new.outcomes {
                let before = old.outcomes.iter().find(|(other, _)| *other == code);
                let count = count - before.map_or(0, |(_, count)| *count);
                match delta.outcomes.iter_mut().find(|(name, _)| name == code.name()) {
                    Some((_, sum)) => *sum += count,
                    None if count > 0 => delta.outcomes.push((code.name().to_owned(), count)),
                    None => {}
                }
            }
            let Some(charges) = new.charges else { continue };
            let before = old.charges.unwrap_or_default();
            for ((name, new), (_, old)) in charges.parts().into_iter().zip(before.parts()) {
                let ns = new.ns.saturating_sub(old.ns) as f64;
                match delta.charges.iter_mut().find(|(other, _)| *other == name) {
                    Some((_, sum)) => *sum += ns,
                    None => delta.charges.push((name, ns)),
                }
            }
        }
        delta
    }
}
