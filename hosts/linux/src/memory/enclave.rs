//! The memory of running programs under an agent: one thread that surveys what is mapped, lets agents attach,
//! and serves them ([`wave_memory::serve`]) with the kernel as [`Tiers`](wave_memory::serve::Tiers).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wave_core::clock::Nanos;
use wave_core::control::AgentState;
use wave_core::layout::{Config, ConfigError, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::outcome::Code;
use wave_links::memory::Memory;
use wave_links::pci::DeviceError;
use wave_links::socket::{Connection, Listener, Offer, SocketError};
use wave_links::{AnyPort, EventFd, LinkSpec, SocketBell};
use wave_memory::guard::{Guard, Held, Limits};
use wave_memory::serve::{self, Fault, Server, State, Step, Totals};

use crate::device::{DeviceOptions, Nic};
use crate::line::Line;

use super::bits::{AccessBits, Backend, BitsError};
use super::kernel::{Kernel, Program};
use super::{Group, TargetError, processes_of, swap_state};

/// Candidates at once; more are refused.
const CANDIDATES_MAX: usize = 4;
/// How long a candidate may take to announce itself.
const CANDIDATE_PATIENCE: Nanos = Nanos::from_millis(10_000);
/// Steps between two looks at who wants to attach.
const STEPS_PER_LOOK: usize = 64;
/// How often the figures are read.
const FIGURES: Nanos = Nanos::from_millis(500);
/// How often it is looked what is mapped.
const SURVEY: Nanos = Nanos::from_millis(1_000);
/// How long memory stays left out whose bits could not be cleared.
const PARDON: Nanos = Nanos::from_millis(600_000);
/// A survey may take this share of a core at most.
const SURVEY_SHARE: u64 = 200;

/// How an enclave is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where agents attach.
    pub socket: PathBuf,
    /// Users besides our own and root whose agents may attach.
    pub allowed_uids: Vec<u32>,
    /// Whose memory.
    pub groups: Vec<Group>,
    /// What host and agent agree on.
    pub config: Config,
    /// The link, to agents of this machine.
    pub link: LinkSpec,
    /// A device that agents may be behind, too.
    pub device: Option<DeviceOptions>,
    /// When nothing is paged out.
    pub limits: Limits,
    /// Nothing is paged out at all: it is only said what would be.
    pub dry_run: bool,
    /// How to read access bits; the best that works here if it is not said.
    pub backend: Option<Backend>,
}

impl Options {
    /// For at most so many strips of 16 MiB, with the default limits.
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

/// Why an enclave could not be started. Nothing of the machine was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no layout.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The programs.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The access bits.
    #[error(transparent)]
    Bits(#[from] BitsError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Nothing that could be managed.
    #[error(
        "process {pid} has no memory that could be paged out: {shared} bytes are shared, {file} of files, \
         {locked} locked, and none private, anonymous and not locked"
    )]
    Nothing {
        /// Which process.
        pid: i32,
        /// Bytes of each kind.
        shared: u64,
        /// The same.
        file: u64,
        /// The same.
        locked: u64,
    },
    /// Nowhere to page out to.
    #[error(
        "there is no swap, so nothing can be paged out: let `wave` add compressed memory as swap (--zram \
         SIZE), add a swap file (swapon), or only look (--dry-run)"
    )]
    NoSwap,
    /// The kernel gave no descriptor or thread.
    #[error("{doing}: {error}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Counters and figures since the start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// What was carried out.
    pub totals: Totals,
    /// Outcomes of the agent that is attached, by code.
    pub outcomes: Vec<(Code, u64)>,
    /// The programs.
    pub programs: Vec<Program>,
    /// Bytes in the fast tier, of all programs.
    pub resident_bytes: u64,
    /// Bytes in swap, of all programs.
    pub swapped_bytes: u64,
    /// Memory that compressed swap uses itself, for all that is in it.
    pub zram_bytes: u64,
    /// Bytes that lie in compressed swap, before compression.
    pub zram_held_bytes: u64,
    /// Bytes of swap that are free.
    pub swap_free_bytes: u64,
    /// Refaults in the last minute, in pages.
    pub refaults_per_minute: u64,
    /// Why nothing is paged out now, if so.
    pub held: Option<Held>,
    /// Whether swap is full.
    pub swap_full: bool,
    /// How many batches were last scanned over how long, in milliseconds; those without a full interval under 0.
    pub intervals_ms: Vec<(u32, u64)>,
    /// Batches that are managed.
    pub batches: u64,
    /// Strips that found no room in the table.
    pub left_out: u64,
    /// What this host's thread has spent.
    pub cpu: Duration,
    /// Of that, in surveys.
    pub survey: Duration,
    /// The process of the agent that is attached, or was last.
    pub agent_pid: i32,
    /// Whether an agent decides.
    pub agent_decides: bool,
    /// Agents that were attached.
    pub agents: u64,
    /// Agents that were lost.
    pub lost_agents: u64,
    /// Of these, turned out for deciding nothing.
    pub late: u64,
    /// Of these, turned out for nonsense.
    pub faults: u64,
}

struct Shared {
    stop: AtomicBool,
    kill: AtomicBool,
    bell: EventFd,
    stats: Mutex<Stats>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Programs whose memory one agent at a time decides on. Dropping it changes nothing of theirs: what is paged
/// out comes back when it is touched.
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
    /// Looks at the programs, and waits for an agent. Nothing of theirs is changed before one decides.
    pub fn start(options: Options) -> Result<Enclave, StartError> {
        let system = |doing| move |error| StartError::System { doing, error };
        let layout = Layout::new(options.config)?;
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
        let device = options.device.as_ref();
        let nic = device.map(|device| Nic::open(device, &layout)).transpose()?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            kill: AtomicBool::new(false),
            bell: EventFd::new().map_err(system("making a doorbell"))?,
            stats: Mutex::new(Stats::default()),
        });
        let now = super::now();
        let mut host = Host {
            shared: Arc::clone(&shared),
            listener,
            link: options.link,
            groups: options.groups,
            layout,
            state,
            kernel,
            candidates: Vec::new(),
            attached: None,
            nic,
            run: 0,
            figures_at: now,
            survey_at: now,
            survey_ns: 0,
            pardon_at: now + PARDON,
        };
        host.look_at_figures(now);
        // Of what the caller's thread has spent nothing was for this.
        lock(&shared.stats).cpu = Duration::ZERO;
        let socket = host.listener.path().to_owned();
        let thread = std::thread::Builder::new().name("wave-memory".into());
        let thread = thread.spawn(move || host.run()).map_err(system("starting a thread"))?;
        Ok(Enclave { shared, thread: Some(thread), socket, backend })
    }

    /// Where agents attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How access bits are read.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.stats).clone()
    }

    /// Whether every program has ended.
    pub fn is_over(&self) -> bool {
        lock(&self.shared.stats).programs.is_empty()
    }

    /// Turns the agent out, if there is one (Wave Table 1, `KILL_WAVE_AGENT`).
    pub fn kill_agent(&self) {
        self.shared.kill.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
    }
}

impl Drop for Enclave {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Agent {
    port: AnyPort,
    server: Server,
    line: Line,
    /// The core's, then the control context's.
    bells: Vec<EventFd>,
    since: Nanos,
}

struct Host {
    shared: Arc<Shared>,
    listener: Listener,
    link: LinkSpec,
    groups: Vec<Group>,
    layout: Layout,
    state: State,
    kernel: Kernel,
    // Agents before the device that they are behind.
    candidates: Vec<Agent>,
    attached: Option<Agent>,
    nic: Option<Nic>,
    run: u32,
    figures_at: Nanos,
    survey_at: Nanos,
    survey_ns: u64,
    pardon_at: Nanos,
}

impl Host {
    fn run(mut self) {
        // Advice holds the program's mappings: a thread that waits for a CPU meanwhile keeps the program waiting.
        // SAFETY: takes numbers and touches no memory; 0 is the calling thread. Without the right it stays as it is.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
        if let Some(nic) = &self.nic {
            nic.greet();
        }
        while !self.shared.stop.load(Ordering::SeqCst) {
            let now = super::now();
            if let Some(nic) = &mut self.nic {
                nic.look();
            }
            self.accept(now);
            self.answer(now);
            self.promote(now);
            let busy = self.serve();
            let now = super::now();
            if now >= self.survey_at {
                self.survey(now);
            }
            if now >= self.figures_at {
                self.look_at_figures(now);
            }
            if !busy {
                self.wait();
            }
        }
        if let Some(agent) = self.attached.take() {
            agent.server.control().revoke(&agent.port);
        }
    }

    /// Until something happens, or something is due.
    fn wait(&self) {
        let mut fds = vec![poll_in(self.listener.as_fd()), poll_in(self.shared.bell.as_fd())];
        for agent in self.candidates.iter().chain(&self.attached) {
            if let Line::Socket(connection, _) = &agent.line {
                fds.push(poll_in(connection.as_fd()));
            }
            fds.extend(agent.bells.iter().map(|bell| poll_in(bell.as_fd())));
        }
        if let Some(nic) = &self.nic {
            fds.push(poll_in(nic.control_bell().as_fd()));
        }
        let due = self.figures_at.min(self.survey_at).since(super::now());
        let timeout_ms = match &self.nic {
            Some(nic) if nic.is_polled() => 1,
            _ => (due.0 / 1_000_000 + 1) as i32,
        };
        // SAFETY: `fds` is an array of as many valid entries as are said, alive during the call.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        self.shared.bell.drain();
        if let Some(nic) = &self.nic {
            nic.control_bell().drain();
        }
        for agent in self.candidates.iter().chain(&self.attached) {
            for bell in &agent.bells {
                bell.drain();
            }
        }
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..CANDIDATES_MAX {
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(_) => continue,
            };
            if self.candidates.len() == CANDIDATES_MAX {
                let _ = connection.refuse("too many agents are attaching at once; try again");
                continue;
            }
            match self.offer(&connection) {
                Ok((port, bell, bells)) => {
                    let server = Server::new(&self.layout, self.run, now);
                    let line = Line::Socket(connection, bell);
                    self.candidates.push(Agent { port, server, line, bells, since: now });
                }
                Err(error) => {
                    let _ = connection.refuse(&format!("the host cannot make a window: {error}"));
                }
            }
        }
    }

    /// Makes a window and hands it over (Wave Table 1, `CREATE_QUEUE`, `ASSOC_QUEUE_WITH`).
    fn offer(
        &self,
        connection: &Connection,
    ) -> Result<(AnyPort, SocketBell, Vec<EventFd>), Box<dyn std::error::Error>> {
        let layout = &self.layout;
        let (nic, host) = (layout.nic_lines, layout.host_lines);
        let extra = self.link.extra_lines(nic, host);
        let (memory, memory_fd) = Memory::create("wave-memory", nic, host, extra)?;
        let memory = Arc::new(memory);
        let [agent_bell, agents_end] = SocketBell::pair()?;
        let bells = vec![EventFd::new()?, EventFd::new()?];
        let port = self.link.port(&memory, Side::Host, &layout.mappings(Side::Host))?;
        write_header(layout, port.window(Home::Nic));
        let fds = [bells[0].as_fd(), bells[1].as_fd(), agents_end.as_fd()];
        connection.send_offer(&Offer {
            version: PROTOCOL_VERSION,
            lines: [nic, host, extra],
            memory: memory_fd.as_fd(),
            doorbells: &fds,
            link: &self.link.to_text(),
        })?;
        Ok((port, agent_bell, bells))
    }

    /// Makes a window for an agent behind the device that asks for one.
    fn answer(&mut self, now: Nanos) {
        let Some(nic) = &mut self.nic else { return };
        let Some((request, number)) = nic.asked() else { return };
        if self.candidates.len() == CANDIDATES_MAX {
            nic.refuse(request, number, "too many agents are attaching at once; try again");
            return;
        }
        let layout = &self.layout;
        let mut made = || -> Result<_, Box<dyn std::error::Error>> {
            let lease = nic.lease(layout, request, number)?;
            let memory = &lease.window().memory;
            let port = LinkSpec::Shm.port(memory, Side::Host, &layout.mappings(Side::Host))?;
            write_header(layout, port.window(Home::Nic));
            let bells = nic.bells()?;
            nic.offer(layout, &lease);
            Ok((port, bells, Line::Device(lease)))
        };
        match made() {
            Ok((port, bells, line)) => {
                let server = Server::new(layout, self.run, now);
                self.candidates.push(Agent { port, server, line, bells, since: now });
            }
            Err(error) => {
                nic.refuse(request, number, &format!("the host cannot make a window: {error}"));
            }
        }
    }

    /// Lets a candidate that has announced itself take over; drops those that never will.
    fn promote(&mut self, now: Nanos) {
        let mut at = 0;
        while at < self.candidates.len() {
            let candidate = &self.candidates[at];
            match candidate.server.control().agent_state(&candidate.port) {
                AgentState::Ready => {
                    let agent = self.candidates.swap_remove(at);
                    self.attach(agent, now);
                    continue;
                }
                AgentState::OtherVersion(version) => {
                    let text = format!(
                        "the host speaks protocol version {PROTOCOL_VERSION}, the agent {version}"
                    );
                    candidate.line.refuse(self.nic.as_mut(), &text);
                    self.candidates.swap_remove(at);
                    continue;
                }
                AgentState::Absent => {}
            }
            let late = now.since(candidate.since) > CANDIDATE_PATIENCE;
            if late || candidate.line.hung_up(self.nic.as_ref()) {
                self.candidates.swap_remove(at);
                continue;
            }
            at += 1;
        }
    }

    /// A new incarnation begins. Pages stay where they are.
    fn attach(&mut self, mut agent: Agent, now: Nanos) {
        self.detach();
        agent.server = Server::new(&self.layout, self.run, now);
        let mut stats = lock(&self.shared.stats);
        stats.agents += 1;
        stats.agent_pid = agent.line.pid();
        stats.agent_decides = true;
        drop(stats);
        self.shared.kill.store(false, Ordering::SeqCst);
        self.attached = Some(agent);
    }

    fn detach(&mut self) {
        let Some(agent) = self.attached.take() else { return };
        self.run = agent.server.record().run;
        agent.server.control().revoke(&agent.port);
        lock(&self.shared.stats).agent_decides = false;
    }

    /// Returns whether there is more to do at once.
    fn serve(&mut self) -> bool {
        let Some(agent) = &mut self.attached else { return false };
        let mut busy = true;
        for _ in 0..STEPS_PER_LOOK {
            let step = agent.server.step(&agent.port, &mut self.state, &mut self.kernel);
            if agent.server.take_ring() {
                agent.line.ring();
            }
            match step {
                Ok(Step::Progress) => {}
                Ok(Step::Idle) => {
                    busy = false;
                    break;
                }
                Err(fault) => {
                    let mut stats = lock(&self.shared.stats);
                    stats.lost_agents += 1;
                    stats.faults += u64::from(fault == Fault::Nonsense);
                    stats.late += u64::from(fault == Fault::Late);
                    drop(stats);
                    self.detach();
                    return true;
                }
            }
        }
        if agent.line.hung_up(self.nic.as_ref()) || self.shared.kill.swap(false, Ordering::SeqCst) {
            lock(&self.shared.stats).lost_agents += 1;
            self.detach();
        }
        busy
    }

    fn survey(&mut self, now: Nanos) {
        if now >= self.pardon_at {
            self.pardon_at = now + PARDON;
            self.state.table.pardon();
        }
        // A group whose last process has ended just has none.
        let _ = self.kernel.survey(&self.groups, &mut self.state.table);
        let took = super::now().since(now).0;
        self.survey_ns += took;
        self.survey_at = now + SURVEY.max(Nanos(took * SURVEY_SHARE));
    }

    fn look_at_figures(&mut self, now: Nanos) {
        self.figures_at = now + FIGURES;
        let figures = self.kernel.look(&self.groups, &mut self.state.guard);
        let held = self.state.guard.held(now);
        let refaults_per_minute = self.state.guard.refaults(now);
        let mut intervals_ms: Vec<(u32, u64)> = Vec::new();
        let mut batches = 0;
        self.state.table.intervals(|interval_us| {
            batches += 1;
            // By powers of two: intervals of one period differ a little.
            let ms = interval_us / 1_000;
            let class = if ms == 0 { 0 } else { (ms + ms / 2).next_power_of_two() / 2 };
            match intervals_ms.binary_search_by_key(&class, |(class, _)| *class) {
                Ok(at) => intervals_ms[at].1 += 1,
                Err(at) => intervals_ms.insert(at, (class, 1)),
            }
        });
        let mut stats = lock(&self.shared.stats);
        stats.totals = self.state.totals;
        if let Some(agent) = &self.attached {
            stats.outcomes = agent.server.counts().iter().collect();
        }
        stats.programs = self.kernel.programs();
        stats.resident_bytes = figures.resident_bytes;
        stats.swapped_bytes = figures.swapped_bytes;
        stats.zram_bytes = figures.zram_bytes;
        stats.zram_held_bytes = figures.zram_held_bytes;
        stats.swap_free_bytes = figures.swap_free_bytes;
        stats.swap_full = self.kernel.is_swap_full();
        (stats.held, stats.refaults_per_minute) = (held, refaults_per_minute);
        (stats.intervals_ms, stats.batches) = (intervals_ms, batches);
        stats.left_out = self.state.table.left_out();
        (stats.cpu, stats.survey) = (thread_cpu(), Duration::from_nanos(self.survey_ns));
    }
}

/// What the calling thread has spent.
fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes for the duration of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn poll_in(fd: BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}
