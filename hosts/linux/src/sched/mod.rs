//! Threads of unmodified programs, scheduled by an agent through sched_ext.
//!
//! ```text
//!   a program's threads (SCHED_EXT)          control thread               agent, another process
//!          |  callbacks                            |                               |
//!   bpf/sched.bpf.c  == window: messages, decisions (a BPF array that both map) == policy
//!          |                                       |
//!          +---- bells (ring buffer) ------------->+ rings the agent; kicks cores for it; watches it
//! ```
//!
//! The BPF program is the mechanism: it sends messages about threads, checks each decision and
//! commits it in `dispatch`. Without an agent it schedules first in, first out. Without
//! this process the kernel takes the threads back to its own default.

mod answers;
mod control;
mod members;
mod object;
mod places;
#[allow(dead_code, reason = "some of it is C's alone")]
mod shared;
mod table;

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, ConfigError, Layout};
use wave_core::link::Doorbell;
use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wave_links::EventFd;
use wave_links::memory::stay_resident;
use wave_links::socket::{Listener, SocketError};

pub use answers::ANSWERS;

pub use crate::device::DeviceOptions;
use crate::device::Nic;
use crate::lock;
pub use crate::target::{Group, TargetError};
use control::Control;
use members::Members;
pub use members::{JoinError, check};
use object::Mechanism;
pub use object::{LoadError, check_kernel};
use places::{Behind, Part};
use shared::ENCLAVES_MAX;
pub use wave_links::pci::Access;

/// The scheduling class that a thread joins to come under an agent.
pub const SCHED_EXT: i32 = 7;

/// Options of an enclave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users whose agents may attach, besides the process's own user and root.
    pub allowed_uids: Vec<u32>,
    /// The CPUs that are the enclave's cores.
    pub cpus: Vec<usize>,
    /// The configuration that host and agent share; cores and contexts are filled in.
    pub config: Config,
    /// A device behind which agents may be as well.
    pub device: Option<DeviceOptions>,
    /// Whether the enclave has every thread of the machine, rather than only those that join. Excepted are kernel threads,
    /// threads of this process and of those it starts, and threads of agents. There can be no other enclave then.
    pub everything: bool,
}

impl Options {
    /// Defaults for an enclave of these CPUs: 4096 threads, patience of 20 ms.
    pub fn new(socket: impl Into<PathBuf>, cpus: Vec<usize>) -> Options {
        let mut config = Config::coherent(u16::try_from(cpus.len()).unwrap_or(u16::MAX));
        // A prestaged thread waits until the core's current run ends, and nothing is known of the length of
        // a program's runs.
        config.prestage = 0;
        let socket = socket.into();
        Options { socket, allowed_uids: Vec::new(), cpus, config, device: None, everything: false }
    }
}

/// Why an enclave could not be started. Nothing on the machine was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum StartError {
    /// No layout is possible for this configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The BPF program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] wave_links::pci::DeviceError),
    /// A CPU does not exist, is not online, or is named twice.
    #[error("CPU {cpu} {what}; the online CPUs are {online:?}")]
    Cpu { cpu: usize, what: &'static str, online: Vec<usize> },
    /// The number of enclaves is not between 1 and the maximum.
    #[error("a host has 1 to {ENCLAVES_MAX} enclaves, not {0}")]
    Count(usize),
    /// There are other enclaves beside one that has every thread.
    #[error("an enclave that has every thread of the machine must be the only one")]
    NotAlone,
    /// The kernel gave no descriptor or thread.
    #[error("{doing} failed: {error}")]
    System { doing: &'static str, error: io::Error },
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { doing, error }
}

/// One core's counters since the start.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Number of decisions carried out.
    pub switches: u64,
    /// Number of switches for which the host chose the thread, without an agent.
    pub fallback_switches: u64,
    /// Number of outcomes, by code.
    pub outcomes: Vec<(Code, u64)>,
    /// Number of looks at a decision that came before its thread was in its queue.
    pub early: u64,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Counts of each core, by index.
    pub cores: Vec<CoreStats>,
    /// Whether an agent decides now.
    pub agent_decides: bool,
    /// Process id of the agent that attached last; 0 before the first.
    pub agent_pid: i32,
    /// Number of threads in the enclave now.
    pub threads: usize,
    /// Number of agents attached so far, one after another.
    pub agents: u64,
    /// Number of agents that were lost.
    pub lost_agents: u64,
    /// Number of lost agents that the watchdog turned out.
    pub barks: u64,
    /// Number of lost agents that violated the protocol.
    pub faults: u64,
    /// How often the BPF program turned an agent out because the control thread did not watch it.
    pub unwatched: u64,
    /// Number of snapshots sent.
    pub snapshots: u64,
    /// How often a thread had waited so long that the host gave it a run.
    pub starved: u64,
    /// Number of threads that found no slot and stay with the host.
    pub without_slot: u64,
    /// Why the kernel turned the scheduler out, if it did.
    pub turned_out: Option<String>,
}

/// A thread of the enclave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The kernel's id of the thread.
    pub tid: i32,
    /// The thread's state. `Free`: it has just joined, and no agent has heard of it yet.
    pub state: State,
    /// The core on which the thread runs, if it runs.
    pub core: Option<u16>,
}

struct Shared {
    stop: AtomicBool,
    kill: AtomicBool,
    bell: EventFd,
    agents: Mutex<AgentCounters>,
}

/// Counters that the control thread writes.
#[derive(Clone, Copy, Default)]
struct AgentCounters {
    pid: i32,
    attached: u64,
    lost: u64,
    barks: u64,
    faults: u64,
    snapshots: u64,
    starved: u64,
}

/// CPUs under sched_ext, whose threads are scheduled by one agent at a time. Dropping it gives all
/// threads back to the kernel's own scheduler.
pub struct Enclave {
    shared: Arc<Shared>,
    control: Option<JoinHandle<Result<(), LoadError>>>,
    members: Arc<Mutex<Members>>,
    mechanism: Arc<Mechanism>,
    socket: PathBuf,
}

impl std::fmt::Debug for Enclave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enclave").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Enclave {
    /// Loads the mechanism. No threads are in the enclave yet: see [`Enclave::spawn`] and [`Enclave::adopt`].
    pub fn start(options: Options) -> Result<Enclave, StartError> {
        let mut enclaves = Enclave::start_all(vec![options])?;
        Ok(enclaves.remove(0))
    }

    /// Starts several enclaves at once, with disjoint CPUs: the kernel loads one scheduler at a time, so none can be added
    /// later. A thread that enters the class on its own joins the first enclave.
    pub fn start_all(all: Vec<Options>) -> Result<Vec<Enclave>, StartError> {
        object::check_kernel()?;
        if !(1..=ENCLAVES_MAX).contains(&all.len()) {
            return Err(StartError::Count(all.len()));
        }
        let everything = all.iter().any(|options| options.everything);
        if everything && all.len() > 1 {
            return Err(StartError::NotAlone);
        }
        let taken: Vec<usize> = all.iter().flat_map(|options| options.cpus.clone()).collect();
        let (online, possible) = check_cpus(&taken)?;
        let seats: Vec<usize> = online.into_iter().filter(|cpu| !taken.contains(cpu)).collect();
        // All enclaves share one range of ids, so each agent needs room for all of them.
        let subjects = all.iter().map(|options| options.config.subjects).max().unwrap_or(0);
        let mut layouts = Vec::new();
        for options in &all {
            let cores = options.cpus.len();
            layouts.push(Layout::new(Config {
                subsystem: wave_sched::SUBSYSTEM.id,
                cores: u16::try_from(cores).unwrap_or(u16::MAX),
                // A context for each CPU outside the enclave, and the control context.
                contexts: u16::try_from(possible - cores + 1).unwrap_or(u16::MAX),
                subjects,
                ..options.config
            })?);
        }
        // The control threads must not wait for a page either, as fetching it may wait for a decision.
        stay_resident().map_err(system("locking this process's memory"))?;
        let listen = |options: &Options| Listener::bind(&options.socket, &options.allowed_uids);
        let listeners = all.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        let members = Arc::new(Mutex::new(Members::new(all.len())));
        let of_all = || layouts.iter().zip(&all);
        let nic = |(layout, options): (&Layout, &Options)| {
            options.device.as_ref().map(|device| Nic::open(device, layout)).transpose()
        };
        let nics = of_all().map(nic).collect::<Result<Vec<_>, _>>()?;
        let mut parts = Vec::new();
        for ((layout, options), nic) in of_all().zip(&nics) {
            let behind = nic
                .as_ref()
                .map_or(Behind::Nothing, |nic| Behind::Device { decisions: nic.has_decisions() });
            parts.push(Part { layout, cpus: &options.cpus, behind });
        }
        let mechanisms = Mechanism::load(&parts, subjects, possible, everything)?;
        let each = mechanisms.into_iter().zip(listeners).zip(&layouts).zip(nics);
        each.map(|(((mechanism, listener), layout), nic)| {
            Enclave::begin(Arc::new(mechanism), listener, layout, nic, &seats, &members)
        })
        .collect()
    }

    fn begin(
        mechanism: Arc<Mechanism>,
        listener: Listener,
        layout: &Layout,
        nic: Option<Nic>,
        seats: &[usize],
        members: &Arc<Mutex<Members>>,
    ) -> Result<Enclave, StartError> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            kill: AtomicBool::new(false),
            bell: EventFd::new().map_err(system("making a doorbell"))?,
            agents: Mutex::new(AgentCounters::default()),
        });
        let socket = listener.path().to_owned();
        let (shared_too, mechanism_too) = (Arc::clone(&shared), Arc::clone(&mechanism));
        let control = Control::new(shared_too, mechanism_too, listener, layout.clone(), nic);
        let seats = seats.to_vec();
        let thread = std::thread::Builder::new().name("wave-control".into());
        let started = thread.spawn(move || control.run(&seats));
        let control = Some(started.map_err(system("starting the control thread"))?);
        let members = Arc::clone(members);
        Ok(Enclave { shared, control, members, mechanism, socket })
    }

    /// Path of the socket where agents attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads the counters of the BPF program and of the control thread.
    pub fn stats(&self) -> Stats {
        let AgentCounters { pid, attached, lost, barks, faults, snapshots, starved } =
            *lock(&self.shared.agents);
        let mechanism = &self.mechanism;
        Stats {
            cores: mechanism.core_stats(),
            agent_decides: mechanism.agent_decides(),
            agent_pid: pid,
            threads: mechanism.threads(),
            agents: attached,
            lost_agents: lost,
            barks,
            faults,
            unwatched: mechanism.unwatched(),
            snapshots,
            starved,
            without_slot: mechanism.without_slot(),
            turned_out: mechanism.exit_reason(),
        }
    }

    /// Process id of the agent that attached last, 0 before the first, and whether it decides now.
    pub fn deciding(&self) -> (i32, bool) {
        (lock(&self.shared.agents).pid, self.mechanism.agent_decides())
    }

    /// Starts a command whose threads the enclave's agent schedules from its first instruction on.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        // Children inherit this thread's enclave.
        // SAFETY: takes nothing and touches no memory.
        let here = unsafe { libc::gettid() };
        self.mechanism.assign(here)?;
        let spawned = spawn(command);
        self.mechanism.unassign(here)?;
        spawned
    }

    /// The threads in the enclave now, without those that stay with the host because of their affinity.
    pub fn threads(&self) -> Vec<Thread> {
        self.mechanism.all_threads().collect()
    }

    /// Puts running threads, and all threads that they will start, under the agent; of a cgroup, only those that are new
    /// since the last call. Returns how many joined. They return to their former classes when the enclave ends.
    /// Excepted are this process, the agent's, and those in `agents`: an agent cannot wait for its own decision.
    pub fn adopt(&self, group: &Group, agents: &[i32]) -> Result<usize, JoinError> {
        let mut spared = agents.to_vec();
        spared.extend([std::process::id() as i32, lock(&self.shared.agents).pid]);
        lock(&self.members).add(group, &spared, &|tid| self.mechanism.assign(tid))
    }

    /// Turns the agent out, if there is one (Wave Table 1, `KILL_WAVE_AGENT`).
    pub fn kill_agent(&self) {
        self.shared.kill.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
    }
}

impl Drop for Enclave {
    fn drop(&mut self) {
        // While an agent or the host still decides on the threads.
        lock(&self.members).leave();
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

/// Puts a thread under the agent of the first enclave; 0 is the calling thread. Its children inherit the class.
pub fn join(tid: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is valid for the duration of the call; nothing else is touched.
    match unsafe { libc::sched_setscheduler(tid, SCHED_EXT, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The monotonic clock, as the BPF program reads it.
fn now() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Starts a command whose threads the first enclave's agent schedules from its first instruction on.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    // SAFETY: between fork and exec it makes one system call, and neither allocates nor locks.
    unsafe { command.pre_exec(|| join(0)) };
    command.spawn()
}

/// Checks that these CPUs are distinct and online. Returns the online CPUs and the number of possible ones.
fn check_cpus(cpus: &[usize]) -> Result<(Vec<usize>, usize), StartError> {
    let system = system("reading the list of CPUs");
    let online = wave_process::cpus::online().map_err(&system)?;
    for (at, &cpu) in cpus.iter().enumerate() {
        let what = if cpus[..at].contains(&cpu) {
            "is named twice"
        } else if !online.contains(&cpu) {
            "is not online"
        } else {
            continue;
        };
        return Err(StartError::Cpu { cpu, what, online });
    }
    Ok((online, wave_process::cpus::possible().map_err(&system)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_cpu_is_named_in_the_error() {
        let error = check_cpus(&[0, 4095]).unwrap_err().to_string();
        assert!(error.starts_with("CPU 4095 is not online; the online CPUs are [0"), "{error}");
        assert!(check_cpus(&[0, 0]).unwrap_err().to_string().starts_with("CPU 0 is named twice"));
    }
}
