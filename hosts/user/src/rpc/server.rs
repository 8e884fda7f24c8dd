//! Starting and stopping a server.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle as Pthread;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, ConfigError, Layout, QueueConfig};
use wave_core::link::Doorbell;
use wave_links::socket::{Listener, SocketError};
use wave_links::{EventFd, LinkSpec};
use wave_process::heap::Spare;
use wave_rpc::extents::PayloadConfig;
use wave_rpc::service::BadService;

use super::control::Control;
use super::methods::Methods;
use super::missed_requests::Awaits;
use super::serving::serve;
use super::worker::{Patience, Worker};
use crate::door::{Door, Incarnation};
use crate::shared::lock;
use crate::{Enclave, JoinHandle, SpawnError};

/// About the CPU time of a worker's sleep and wake-up.
const SPIN: Nanos = Nanos::from_micros(5);

/// Options of a server. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users whose agents may attach, besides the process's own user and root.
    pub allowed_uids: Vec<u32>,
    /// The configuration that host and agent share. Here cores are workers and subjects are calls; the queues of messages and
    /// decisions carry replies and requests, in entries of 56 bytes.
    pub config: Config,
    /// The link between host and agent.
    pub link: LinkSpec,
    /// The CPU of each worker; an empty list pins none.
    pub cpus: Vec<usize>,
    /// Number of replies that are sent together while more requests wait. Larger batches are cheaper for host and agent, but a
    /// reply then waits for the requests behind it. Replies in a stream are sent at once.
    pub batch: u32,
    /// Whether a worker without work yields its CPU between looks. Set it where workers share a CPU.
    pub yields_cpu: bool,
    /// Whether each frame in the window ends with a checksum, in both directions. A damaged frame then ends the agent's
    /// incarnation, and no call gets a wrong value. `wave bench checksums` measures the cost.
    pub checksums: bool,
    /// How long a worker looks for the next call before it sleeps, if most earlier calls came within that time; otherwise it
    /// sleeps at once. The best value is the CPU time of a sleep and its wake-up. A worker that is a thread of an enclave never
    /// looks.
    pub spin: Nanos,
}

impl Options {
    /// The extents of each worker in each direction that suit a link: room for two messages of 64 KiB. Messages use them from
    /// the length at which `wave bench payload` finds them cheaper for host and agent.
    pub const fn payloads(link: &LinkSpec) -> PayloadConfig {
        let inline_max = if link.is_coherent() { 512 } else { 256 };
        PayloadConfig { extents: 8, lines: 256, inline_max }
    }

    /// Defaults: one worker over shared memory, at most 1,024 calls at a time, each reply sent at once.
    pub fn new(socket: impl Into<PathBuf>) -> Options {
        let mut config = Config::coherent(1);
        config.subjects = 1024;
        config.decisions.entries = 1024;
        config.contexts = 1;
        config.pools = Options::payloads(&LinkSpec::Shm).pools();
        Options {
            socket: socket.into(),
            allowed_uids: Vec::new(),
            config,
            link: LinkSpec::Shm,
            cpus: Vec::new(),
            batch: 1,
            yields_cpu: false,
            checksums: false,
            spin: SPIN,
        }
    }

    /// Sets the link, with queues and extents that suit it. For a link that is not coherent, the queues' home is the NIC,
    /// mapped as in Wave 5.3.1.
    pub fn over(mut self, link: LinkSpec) -> Options {
        let suits = if link.is_coherent() { Config::coherent(1) } else { Config::pcie(1) };
        let Config { messages, decisions, .. } = self.config;
        self.config.messages = QueueConfig { entries: messages.entries, ..suits.messages };
        self.config.decisions = QueueConfig { entries: decisions.entries, ..suits.decisions };
        self.config.pools = Options::payloads(&link).pools();
        self.link = link;
        self
    }

    /// Sets the number of workers.
    pub fn workers(mut self, workers: u16) -> Options {
        self.config.cores = workers;
        self
    }
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ServeError {
    /// No layout is possible for this configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The methods do not form a valid service.
    #[error("these methods cannot be served: {0}")]
    Methods(BadService),
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel gave no memory, eventfd or thread.
    #[error("{doing} failed: {error}")]
    System { doing: &'static str, error: std::io::Error },
    /// The enclave has no room for the workers' threads.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The list of CPUs is not as long as the number of workers.
    #[error(
        "the list of CPUs must be empty or name one for each of the {workers} workers; it names {cpus}"
    )]
    Cpus { workers: u16, cpus: usize },
    /// A worker could not be pinned.
    #[error("worker {worker} cannot be pinned to CPU {cpu}: {error}")]
    Pin { worker: u16, cpu: usize, error: std::io::Error },
}

/// Counters about a server's agents since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of agents that attached.
    pub attached: u64,
    /// Number of these that hung up or were turned out.
    pub lost: u64,
    /// Number of lost agents that violated the protocol.
    pub faults: u64,
    /// How often a thread was unparked because a request had been in its queue for 25 ms or more without its scheduler giving
    /// it a core: the scheduler hangs or hears of no requests, or all cores are busy.
    pub overlooked: u64,
}

/// Counters of a worker that calls handlers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of calls served.
    pub calls: u64,
    /// Wall-clock time spent serving calls: from the look that found a first call to the look that found no other. Looks that
    /// found nothing do not count.
    pub busy: Nanos,
}

/// Words that one worker writes and other threads read, in a cache line of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    calls: AtomicU64,
    busy_ns: AtomicU64,
    pub(super) awaits: Awaits,
}

impl Tally {
    pub(super) fn add(&self, calls: u64, busy: Nanos) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
        self.busy_ns.fetch_add(busy.0, Ordering::Relaxed);
    }

    fn work(&self) -> Work {
        let busy = Nanos(self.busy_ns.load(Ordering::Relaxed));
        Work { calls: self.calls.load(Ordering::Relaxed), busy }
    }
}

/// A function that ends one thread's wait.
pub(super) type Unpark = Box<dyn Fn() + Send>;

/// State shared by workers and the control thread.
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    pub(super) methods: Methods,
    pub(super) batch: u32,
    pub(super) yields_cpu: bool,
    pub(super) checksums: bool,
    pub(super) spin: Nanos,
    /// Counts the changes of `incarnation`.
    pub(super) epoch: AtomicU64,
    pub(super) incarnation: Mutex<Option<Arc<Incarnation>>>,
    pub(super) bells: Vec<Arc<EventFd>>,
    /// Functions that end the waits of workers that are threads of an enclave, in the order of workers.
    pub(super) unpark: Mutex<Vec<Unpark>>,
    pub(super) control_bell: EventFd,
    pub(super) stats: Mutex<Stats>,
    pub(super) tallies: Box<[Tally]>,
    spare: Mutex<Spare>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("methods", &self.methods).finish_non_exhaustive()
    }
}

impl Shared {
    /// Reports an agent that violated the protocol: the control thread turns it out.
    pub(super) fn fault(&self, incarnation: &Incarnation, worker: u16, seen: impl Display) {
        incarnation.fault.note(format_args!("worker {worker}: {seen}"));
        self.control_bell.ring();
    }

    /// Points every worker to another window, or to none.
    pub(super) fn switch(&self, to: Option<Arc<Incarnation>>) {
        {
            let mut incarnation = lock(&self.incarnation);
            *incarnation = to;
            self.epoch.fetch_add(1, Ordering::Release);
        }
        self.wake_all();
    }

    /// Gives free memory of the heap back after a flood. Returns whether `has_worked` was noted.
    pub(super) fn trim_heap(&self, now: Nanos, has_worked: bool) -> bool {
        // No thread waits for another one that is looking.
        let spare = self.spare.try_lock();
        spare.map(|mut spare| spare.trim(now, has_worked)).is_ok()
    }

    fn wake_all(&self) {
        self.bells.iter().for_each(|bell| bell.ring());
        lock(&self.unpark).iter().for_each(|unpark| unpark());
    }
}

/// A server of RPCs. Dropping it stops it after the calls in progress have ended. After a flood of messages, its idle workers
/// return the heap's free pages to the kernel.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    pthreads: Vec<Pthread<()>>,
    threads: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

impl Server {
    /// Starts workers that have a pthread each and call handlers.
    ///
    /// # Errors
    /// The options cannot be satisfied. Nothing is left behind.
    pub fn start(options: Options, methods: Methods) -> Result<Server, ServeError> {
        let cpus = options.cpus.clone();
        let workers = options.config.cores;
        if !cpus.is_empty() && cpus.len() != usize::from(workers) {
            return Err(ServeError::Cpus { workers, cpus: cpus.len() });
        }
        let (mut server, workers) = Server::make(options, methods, Patience::Pthread)?;
        for worker in workers {
            let index = worker.index();
            let cpu = cpus.get(usize::from(index)).copied();
            let (pinned, is_pinned) = std::sync::mpsc::channel();
            let body = move || {
                let _ = pinned.send(cpu.map_or(Ok(()), |cpu| wave_process::cpus::pin(&[cpu])));
                serve(worker);
            };
            let pthread = std::thread::Builder::new().name(format!("wave-worker-{index}"));
            let started = pthread.spawn(body);
            server.pthreads.push(started.map_err(system("starting a worker"))?);
            if let Ok(Err(error)) = is_pinned.recv() {
                return Err(ServeError::Pin { worker: index, cpu: cpu.unwrap_or(0), error });
            }
        }
        Ok(server)
    }

    /// Starts a server whose workers the caller polls. The agent gets the list of `methods`, but their handlers are not called.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_polled(
        options: Options,
        methods: Methods,
    ) -> Result<(Server, Vec<Worker>), ServeError> {
        Server::make(options, methods, Patience::Pthread)
    }

    /// Starts workers that are threads of an enclave: its agent schedules them, and preempts them.
    ///
    /// # Errors
    /// As [`Server::start`]; or the enclave has too few free threads.
    pub fn start_threads(
        options: Options,
        methods: Methods,
        enclave: &Enclave,
    ) -> Result<Server, ServeError> {
        let (mut server, workers) = Server::make(options, methods, Patience::Thread)?;
        for worker in workers {
            let handle = enclave.spawn(0, move || serve(worker))?;
            let mut unpark = lock(&server.shared.unpark);
            unpark.push(enclave.unparker(handle.thread()));
            // An agent that attached before the push found nothing to wake the worker by.
            unpark[unpark.len() - 1]();
            drop(unpark);
            server.threads.push(handle);
        }
        Ok(server)
    }

    fn make(
        options: Options,
        methods: Methods,
        patience: Patience,
    ) -> Result<(Server, Vec<Worker>), ServeError> {
        let Options { socket, allowed_uids, config, link, batch, yields_cpu, spin, .. } = options;
        let checksums = options.checksums;
        methods.check().map_err(ServeError::Methods)?;
        let layout = Layout::new(Config { subsystem: wave_rpc::SUBSYSTEM.id, ..config })?;
        let listener = Listener::bind(&socket, &allowed_uids)?;
        let name =
            socket.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let bell = || EventFd::new().map_err(system("making a doorbell"));
        let bells = (0..config.cores).map(|_| Ok(Arc::new(bell()?)));
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            methods,
            batch: batch.max(1),
            yields_cpu,
            checksums,
            spin,
            epoch: AtomicU64::new(0),
            incarnation: Mutex::new(None),
            bells: bells.collect::<Result<_, ServeError>>()?,
            unpark: Mutex::new(Vec::new()),
            control_bell: bell()?,
            stats: Mutex::new(Stats::default()),
            tallies: (0..config.cores).map(|_| Tally::default()).collect(),
            spare: Mutex::new(Spare::new()),
        });
        let worker = |index: u16| {
            let bell = Arc::clone(&shared.bells[usize::from(index)]);
            Worker::new(Arc::clone(&shared), index, bell, patience)
        };
        let workers = (0..config.cores).map(worker).collect();
        let ends = || {
            let bell = EventFd::new()?;
            Ok([bell.try_clone()?, bell])
        };
        let door = Door::new(name, listener, link, layout, ends);
        let control = Control::new(Arc::clone(&shared), door);
        let pthread = std::thread::Builder::new().name("wave-control".into());
        let started = pthread.spawn(move || control.run());
        let pthreads = vec![started.map_err(system("starting the control thread"))?];
        Ok((Server { shared, pthreads, threads: Vec::new(), socket }, workers))
    }

    /// Path of the socket where agents attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether an agent is attached.
    pub fn has_agent(&self) -> bool {
        lock(&self.shared.incarnation).is_some()
    }

    /// Counters about the server's agents so far.
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// Counters of each worker so far; empty if the caller polls.
    pub fn work(&self) -> Vec<Work> {
        self.shared.tallies.iter().map(Tally::work).collect()
    }

    /// Waits until the server is stopped from elsewhere; usually forever.
    pub fn wait(mut self) {
        for pthread in self.pthreads.drain(..) {
            let _ = pthread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.control_bell.ring();
        self.shared.wake_all();
        for pthread in self.pthreads.drain(..) {
            let _ = pthread.join();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> ServeError {
    move |error| ServeError::System { doing, error }
}
