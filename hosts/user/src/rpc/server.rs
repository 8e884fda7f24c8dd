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
use wave_rpc::extents::PayloadConfig;
use wave_rpc::service::BadService;

use super::control::Control;
use super::methods::Methods;
use super::overlooked::Awaits;
use super::serving::serve;
use super::worker::{Patience, Worker};
use crate::door::{Door, Incarnation};
use crate::shared::lock;
use crate::{Enclave, JoinHandle, SpawnError};

/// About the CPU time of a worker's sleep and wake-up.
const SPIN: Nanos = Nanos::from_micros(5);

/// How a server is made. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users besides our own and root whose agents may attach.
    pub allowed_uids: Vec<u32>,
    /// What host and agent agree on. Its cores are workers, its subjects calls; its messages are replies and its decisions
    /// requests, of as many entries of 56 bytes each.
    pub config: Config,
    /// The link between host and agent.
    pub link: LinkSpec,
    /// The CPU of each worker; an empty list pins none.
    pub cpus: Vec<usize>,
    /// After how many replies they are sent, where more requests wait already. More is cheaper for host and agent; but a reply
    /// then waits for the requests behind it.
    pub batch: u32,
    /// Whether a worker without work gives its CPU to others between looks: where it shares one.
    pub yields_cpu: bool,
    /// Whether each frame in the window ends with a checksum, in both directions. A damaged frame then ends the agent's
    /// incarnation, and no call gets a wrong value. `wave bench checksums` measures the cost.
    pub checksums: bool,
    /// How long a worker looks for the next call before it sleeps, if most calls before came within that time; otherwise it sleeps
    /// at once. The CPU time of a sleep and its wake-up is the best value. A thread of an enclave never looks.
    pub spin: Nanos,
}

impl Options {
    /// The extents of each worker, each way, for a link: room for two messages of 64 KiB, and used for messages longer than where
    /// `wave bench payload` finds them cheaper for host and agent.
    pub const fn payloads(link: &LinkSpec) -> PayloadConfig {
        let inline_max = if link.is_coherent() { 512 } else { 256 };
        PayloadConfig { extents: 8, lines: 256, inline_max }
    }

    /// One worker over shared memory, 1,024 calls at once, each reply sent at once.
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

    /// Over this link, with queues and extents that suit it: where it is not coherent, queues are on the NIC, mapped as Wave 5.3.1
    /// has them.
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
    /// The configuration makes no layout.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The methods make no service.
    #[error("these methods cannot be served: {0}")]
    Methods(BadService),
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel gave no memory, eventfd or thread.
    #[error("{doing}: {error}")]
    System { doing: &'static str, error: std::io::Error },
    /// The enclave has no room for the workers' threads.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// A list of CPUs of another length than there are workers.
    #[error("{workers} workers need one CPU each, or none is named; {cpus} were given")]
    Cpus { workers: u16, cpus: usize },
    /// A worker could not be pinned.
    #[error(
        "worker {worker} cannot be pinned to CPU {cpu}: {error}; `taskset -pc $$` shows which CPUs this process may use"
    )]
    Pin { worker: u16, cpu: usize, error: std::io::Error },
}

/// What became of agents, and of what they were to do, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of agents that attached.
    pub attached: u64,
    /// Of these, how many hung up or were turned out.
    pub lost: u64,
    /// Of these, how many wrote nonsense.
    pub faults: u64,
    /// How often a thread was unparked because a request had lain before it for 25 ms or more, and its scheduler had given it no
    /// core for that: it hangs, hears of no requests, or all cores have work.
    pub overlooked: u64,
}

/// What a worker that calls handlers has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Calls that it has served.
    pub calls: u64,
    /// Time spent serving them, in wall-clock time: from the look that found a first call until the one that found no other.
    /// Looks that found nothing do not count.
    pub busy: Nanos,
}

/// What one worker writes, and others read; in a cache line of its own.
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

/// Ends a wait of one thread.
pub(super) type Unpark = Box<dyn Fn() + Send>;

/// What workers and the control thread share.
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
    /// Ends the waits of workers that are threads.
    pub(super) unpark: Mutex<Vec<Unpark>>,
    pub(super) control_bell: EventFd,
    pub(super) stats: Mutex<Stats>,
    pub(super) tallies: Box<[Tally]>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("methods", &self.methods).finish_non_exhaustive()
    }
}

impl Shared {
    /// An agent wrote nonsense: the control thread turns it out.
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

    fn wake_all(&self) {
        self.bells.iter().for_each(|bell| bell.ring());
        lock(&self.unpark).iter().for_each(|unpark| unpark());
    }
}

/// A server of RPCs. Dropping it stops it: calls that are being served end first.
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
    /// What the options say cannot be; nothing is left behind.
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
                let _ = pinned.send(cpu.map_or(Ok(()), |cpu| wave_links::cpus::pin(&[cpu])));
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

    /// Starts a server whose workers the caller polls. It tells its agent of `methods`; their handlers are not called.
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
    /// As [`Server::start`]; or the enclave has no room for as many threads.
    pub fn start_threads(
        options: Options,
        methods: Methods,
        enclave: &Enclave,
    ) -> Result<Server, ServeError> {
        let (mut server, workers) = Server::make(options, methods, Patience::Thread)?;
        for worker in workers {
            let handle = enclave.spawn(0, move || serve(worker))?;
            lock(&server.shared.unpark).push(enclave.unparker(handle.thread()));
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

    /// What became of agents so far.
    pub fn stats(&self) -> Stats {
        *lock(&self.shared.stats)
    }

    /// What each worker has done so far; nothing where the caller polls.
    pub fn work(&self) -> Vec<Work> {
        self.shared.tallies.iter().map(Tally::work).collect()
    }

    /// Waits until the server is stopped from elsewhere: for ever, as a rule.
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
