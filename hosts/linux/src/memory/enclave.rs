//! The memory of running programs under an agent: one thread surveys mappings, lets agents attach, and serves them
//! ([`wave_memory::serve`]) with the kernel as [`Tiers`](wave_memory::serve::Tiers).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use wave_core::layout::{Config, ConfigError, Layout};
use wave_core::link::Doorbell;
use wave_core::outcome::Code;
use wave_links::pci::DeviceError;
use wave_links::socket::{Listener, SocketError};
use wave_links::{EventFd, LinkSpec};
use wave_memory::guard::{Guard, Held, Limits};
use wave_memory::serve::{self, State, Totals};
use wave_memory::table::Account;

use super::bits::{AccessBits, Backend, BitsError};
use super::host::Host;
use super::kernel::{Kernel, Program};
use super::{Group, TargetError, processes_of, swap_state};
use crate::device::{DeviceOptions, Nic};
use crate::lock;

/// Options of an enclave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users whose agents may attach, besides the process's own user and root.
    pub allowed_uids: Vec<u32>,
    /// Processes and control groups whose memory is managed.
    pub groups: Vec<Group>,
    /// The configuration that host and agent share.
    pub config: Config,
    /// The link to agents on this machine.
    pub link: LinkSpec,
    /// A device behind which agents may be as well.
    pub device: Option<DeviceOptions>,
    /// Limits beyond which nothing is paged out.
    pub limits: Limits,
    /// Whether to page out nothing, and only report what would be paged out.
    pub dry_run: bool,
    /// How to read access bits; `None` takes the best backend that works on this machine.
    pub backend: Option<Backend>,
}

impl Options {
    /// Options for at most `strips` strips of 16 MiB, with the default limits.
    pub fn new(socket: impl Into<PathBuf>, groups: Vec<Group>, strips: u32) -> Options {
        Options {
            socket: socket.into(),
            allowed_uids: Vec::new(),
            groups,
            config: serve::config(strips),
            link: LinkSpec::Shm,
            device: None,
            limits: Limits::default(),
            dry_run: false,
            backend: None,
        }
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
    /// A program cannot be managed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The access bits cannot be read.
    #[error(transparent)]
    Bits(#[from] BitsError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The process has no memory that can be managed.
    #[error(
        "process {pid} has no memory that can be paged out, as none is private, anonymous and not locked: {shared} bytes \
         are shared, {file} of files, {locked} locked"
    )]
    Nothing {
        pid: i32,
        /// Bytes of each kind that is not managed.
        shared: u64,
        file: u64,
        locked: u64,
    },
    /// The machine has no swap.
    #[error(
        "this machine has no swap, so nothing can be paged out: let `wave` add compressed memory as swap \
         (--zram SIZE), add a swap file (swapon), or page out nothing (--dry-run)"
    )]
    NoSwap,
    /// The kernel gave no descriptor or thread.
    #[error("{doing} failed: {error}")]
    System { doing: &'static str, error: io::Error },
}

/// Counters and figures since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Counts of actions carried out.
    pub totals: Totals,
    /// Outcomes of all agents, by code.
    pub outcomes: Vec<(Code, u64)>,
    /// Counts of each managed program.
    pub programs: Vec<Program>,
    /// Bytes in the fast tier, of all programs.
    pub resident_bytes: u64,
    /// Bytes in swap, of all programs.
    pub swapped_bytes: u64,
    /// Bytes in swap that are in memory, too: the kernel's swap cache.
    pub cached_bytes: u64,
    /// How often a thread of the programs has waited for a page since they are managed, by the kernel's count. Programs that have
    /// ended count up to their end, or up to half a second before if their parent waited for them at once.
    pub major_faults: u64,
    /// Memory that this host has paged out and not seen since, with an estimate of its size in compressed swap.
    pub account: Account,
    /// Size of all swap in bytes.
    pub swap_bytes: u64,
    /// Unused bytes of swap, on all devices.
    pub swap_free_bytes: u64,
    /// Refaults in the last minute, in pages.
    pub refaults_per_minute: u64,
    /// Share of the last minute that the programs lost to refaults.
    pub slowdown: f64,
    /// Mean time of a refault on this machine; `None` if not measured. Pages that came back from the kernel's swap cache count with
    /// the time of a minor fault.
    pub refault: Option<Duration>,
    /// Why nothing is paged out now; `None` if pages may be paged out.
    pub held: Option<Held>,
    /// Whether swap is nearly full, so that nothing is paged out.
    pub swap_full: bool,
    /// Numbers of batches by the length of their last scan interval in milliseconds; 0 stands for no full interval yet.
    pub intervals_ms: Vec<(u32, u64)>,
    /// Number of managed batches.
    pub batches: u64,
    /// Number of strips that found no room in the table.
    pub left_out: u64,
    /// CPU time of this host's thread.
    pub cpu: Duration,
    /// The part of it that surveys of address spaces took.
    pub survey: Duration,
    /// Process id of the attached agent, or of the last one.
    pub agent_pid: i32,
    /// Whether an agent decides now.
    pub agent_decides: bool,
    /// Number of agents that attached.
    pub agents: u64,
    /// Number of agents that were lost.
    pub lost_agents: u64,
    /// Number of lost agents that were turned out for deciding nothing.
    pub late: u64,
    /// Number of lost agents that were turned out for violating the protocol.
    pub faults: u64,
}

/// State shared by the enclave and its thread.
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    pub(super) bell: EventFd,
    pub(super) stats: Mutex<Stats>,
}

/// Programs whose memory one agent at a time manages. Dropping it leaves their memory as it is: paged-out pages come
/// back when they are touched.
pub struct Enclave {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
    backend: Backend,
}

impl std::fmt::Debug for Enclave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enclave").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Enclave {
    /// Surveys the programs, and waits for an agent. Nothing in the programs changes before an agent decides.
    pub fn start(options: Options) -> Result<Enclave, StartError> {
        let system = |doing| move |error| StartError::System { doing, error };
        let layout =
            Layout::new(Config { subsystem: wave_memory::SUBSYSTEM.id, ..options.config })?;
        for group in &options.groups {
            processes_of(group)?;
        }
        if !options.dry_run && swap_state().map_err(system("reading /proc/swaps"))?.total_bytes == 0
        {
            return Err(StartError::NoSwap);
        }
        let bits = match options.backend {
            Some(backend) => AccessBits::with(backend)?,
            None => AccessBits::open()?,
        };
        let backend = bits.backend();
        let mut kernel = Kernel::new(bits);
        let strips = options.config.subjects;
        let mut state = State::new(strips, Guard::new(options.limits), options.dry_run);
        kernel.survey(&options.groups, &mut state.table)?;
        for program in kernel.programs() {
            if program.movable == 0 && options.groups == [Group::Process(program.pid)] {
                let Program { pid, shared, file, locked, .. } = program;
                return Err(StartError::Nothing { pid, shared, file, locked });
            }
        }
        let listener = Listener::bind(&options.socket, &options.allowed_uids)?;
        let socket = listener.path().to_owned();
        let device = options.device.as_ref();
        let nic = device.map(|device| Nic::open(device, &layout)).transpose()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            bell: EventFd::new().map_err(system("making a doorbell"))?,
            stats: Mutex::new(Stats::default()),
        });
        let mut host =
            Host::new(Arc::clone(&shared), options, listener, nic, layout, state, kernel);
        host.read_figures(super::now());
        // The CPU time counted so far is that of the caller's thread.
        lock(&shared.stats).cpu = Duration::ZERO;
        let thread = std::thread::Builder::new().name("wave-memory".into());
        let thread = thread.spawn(move || host.run()).map_err(system("starting a thread"))?;
        Ok(Enclave { shared, thread: Some(thread), socket, backend })
    }

    /// Path of the socket where agents attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How access bits are read.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Copies the counters and figures, as of the last reading.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.stats).clone()
    }

    /// Process id of the agent that attached last, 0 before the first, and whether it decides now.
    pub fn deciding(&self) -> (i32, bool) {
        let stats = lock(&self.shared.stats);
        (stats.agent_pid, stats.agent_decides)
    }

    /// Ends the enclave. Returns its counters and figures, as of a last reading.
    pub fn finish(mut self) -> Stats {
        self.end();
        self.stats()
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Whether every program has ended.
    pub fn is_over(&self) -> bool {
        lock(&self.shared.stats).programs.is_empty()
    }
}

impl Drop for Enclave {
    fn drop(&mut self) {
        self.end();
    }
}
