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
//! The program in the kernel is the mechanism: it tells what happens, checks each decision and
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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, ConfigError, Layout};
use wave_core::link::Doorbell;
use wave_core::outcome::Code;
use wave_core::snapshot::State;
use wave_links::EventFd;
pub use wave_links::cpus;
use wave_links::memory::stay_resident;
use wave_links::socket::{Listener, SocketError};

pub use answers::ANSWERS;

pub use crate::device::DeviceOptions;
use crate::device::Nic;
pub use crate::target::{Group, TargetError};
use control::Control;
use members::Members;
pub use members::{JoinError, check};
use object::Mechanism;
pub use object::{LoadError, check_kernel};
use places::{Behind, Part};
use shared::ENCLAVES_MAX;
pub use wave_links::pci::Access;

/// The scheduling class that a thread joins to be decided on.
pub const SCHED_EXT: i32 = 7;

/// How an enclave is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users besides our own and root whose agents may attach.
    pub allowed_uids: Vec<u32>,
    /// The CPUs that are the enclave's cores.
    pub cpus: Vec<usize>,
    /// What host and agent agree on; cores and contexts are filled in.
    pub config: Config,
    /// A device that agents may be behind, too.
    pub device: Option<DeviceOptions>,
    /// Whether every thread of the machine is the enclave's, and not only those that join, except kernel threads, those
    /// of this process and what they start, and those of agents. There is no other enclave then.
    pub everything: bool,
}

impl Options {
    /// These CPUs, 4096 threads, patience of 20 ms.
    pub fn new(socket: impl Into<PathBuf>, cpus: Vec<usize>) -> Options {
        let mut config = Config::coherent(u16::try_from(cpus.len()).unwrap_or(u16::MAX));
        // A thread that was left for a core waits for as long as that core's run lasts, and nothing is
        // known of a program's runs.
        config.prestage = 0;
        let socket = socket.into();
        Options { socket, allowed_uids: Vec::new(), cpus, config, device: None, everything: false }
    }
}

/// Why an enclave could not be started. Nothing of the machine was changed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum StartError {
    /// The configuration makes no layout.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The BPF program cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] wave_links::pci::DeviceError),
    /// A CPU that is not there or not online, or named twice.
    #[error("CPU {cpu} {what}; online are {online:?}")]
    Cpu { cpu: usize, what: &'static str, online: Vec<usize> },
    /// No CPU, or more than an enclave has cores.
    #[error("a host has 1 to {ENCLAVES_MAX} enclaves, not {0}")]
    Count(usize),
    /// Others beside one that has everything.
    #[error("an enclave that has every thread of the machine is the only one")]
    NotAlone,
    /// The kernel gave no descriptor or thread.
    #[error("{doing}: {error}")]
    System { doing: &'static str, error: io::Error },
}

fn system(doing: &'static str) -> impl Fn(io::Error) -> StartError {
    move |error| StartError::System { doing, error }
}

/// One core's counters since the start.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Times that a decision was carried out.
    pub switches: u64,
    /// Switches for which the host chose the thread, without an agent.
    pub fallback_switches: u64,
    /// Number of outcomes, by code.
    pub outcomes: Vec<(Code, u64)>,
    /// Looks at a decision that came before its thread was in its queue.
    pub early: u64,
}

/// Counters since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Counts of each core, by index.
    pub cores: Vec<CoreStats>,
    /// Whether an agent decides now.
    pub agent_decides: bool,
    /// The process of the agent that attached last; 0 before the first.
    pub agent_pid: i32,
    /// Threads in the enclave now.
    pub threads: usize,
    /// Agents that have been attached, one after the other.
    pub agents: u64,
    /// Number of agents that were lost.
    pub lost_agents: u64,
    /// Of these, turned out by the watchdog.
    pub barks: u64,
    /// Of these, those that wrote nonsense.
    pub faults: u64,
    /// Times that the BPF program turned an agent out, because the control thread did not watch it.
    pub unwatched: u64,
    /// Number of snapshots sent.
    pub snapshots: u64,
    /// Times that a thread had waited for so long that the host gave it a run.
    pub starved: u64,
    /// Threads that found no slot and stay with the host.
    pub without_slot: u64,
    /// Why the kernel turned the scheduler out, if it did.
    pub turned_out: Option<String>,
}

/// A thread of the enclave's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its id, as the kernel has it.
    pub tid: i32,
    /// What it does. `Free`: it came just now, and no agent was told of it yet.
    pub state: State,
    /// The core that it runs on.
    pub core: Option<u16>,
}

struct Shared {
    stop: AtomicBool,
    kill: AtomicBool,
    bell: EventFd,
    agents: Mutex<AgentCounters>,
}

/// What the control thread counts.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Loads the mechanism. No thread is under it yet: see [`Enclave::spawn`] and [`Enclave::adopt`].
    pub fn start(options: Options) -> Result<Enclave, StartError> {
        let mut enclaves = Enclave::start_all(vec![options])?;
        Ok(enclaves.remove(0))
    }

    /// Several enclaves at once, with disjoint CPUs: the kernel loads one scheduler at a time, so none can be added
    /// later. A thread that enters the class on its own joins the first.
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
        // Ids are of all enclaves: each agent has room for them.
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
        // The control threads may not wait for a page that waits for a decision either.
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

    /// The threads in the enclave now; those that stay with the host for their affinity are not among them.
    pub fn threads(&self) -> Vec<Thread> {
        self.mechanism.all_threads().collect()
    }

    /// Puts threads that run already under the agent, and with them all that they will start; of a cgroup, those
    /// that came since the last time. Returns how many came. They become what they were when the enclave ends.
    /// Left out are this process, the agent's, and those of `agents`: an agent cannot wait for its own decision.
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
        // While somebody decides on them.
        lock(&self.members).leave();
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

/// Puts a thread under the agent of the first enclave: 0 is the calling one. Its children inherit that.
pub fn join(tid: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter is valid for the duration of the call; nothing else is touched.
    match unsafe { libc::sched_setscheduler(tid, SCHED_EXT, &parameter) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The monotonic clock, as the program in the kernel reads it.
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

/// The CPUs that are online, and how many there can be, if these are distinct and online.
fn check_cpus(cpus: &[usize]) -> Result<(Vec<usize>, usize), StartError> {
    let system = system("reading which CPUs there are");
    let online = cpus::online().map_err(&system)?;
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
    Ok((online, cpus::possible().map_err(&system)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_named() {
        let error = check_cpus(&[0, 4095]).unwrap_err().to_string();
        assert!(error.starts_with("CPU 4095 is not online; online are [0"), "{error}");
        assert!(check_cpus(&[0, 0]).unwrap_err().to_string().starts_with("CPU 0 is named twice"));
    }
}
