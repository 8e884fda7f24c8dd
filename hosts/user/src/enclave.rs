//! Starting an enclave, and threads in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle as Pthread;

use wave_core::clock::Nanos;
use wave_core::layout::{Config, ConfigError, Layout, QueueConfig};
use wave_core::link::Doorbell;
use wave_links::socket::{Listener, SocketError};
use wave_links::{EventFd, LinkSpec};
use wave_sched::wire::{Event, NO_CORE};

use crate::barrier;
use crate::control::Control;
use crate::core_loop::Core;
use crate::current::{self, with_core};
use crate::inline_fn::InlineFn;
use crate::join::{JoinHandle, discard};
use crate::klt::{self, Inside, Klts};
use crate::shared::Shared;
use crate::stalls::{Detector, Stall, WorstDeferral};
use crate::stats::{EnclaveStats, Mode};
use crate::table::Thread;

/// Options of an enclave. Start from [`Options::new`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the socket where agents attach.
    pub socket: PathBuf,
    /// Users whose agents may attach, besides the process's own user and root.
    pub allowed_uids: Vec<u32>,
    /// The configuration that host and agent share.
    pub config: Config,
    /// The link between host and agent.
    pub link: LinkSpec,
    /// The CPU of each host core; an empty list pins none.
    pub cpus: Vec<usize>,
    /// Number of outside threads that get their own queues ([`Enclave::spawner`]).
    pub spawners: usize,
    /// Stack size of each thread, in bytes; at least 64 KiB. A signal frame alone takes 12 KB on machines
    /// with wide vector registers.
    pub stack_bytes: usize,
    /// Whether a core prefetches its decision at the start of a switch (Wave 5.4).
    pub prefetch: bool,
    /// Whether an idle core yields its CPU between looks. Set it where cores share a CPU.
    pub yields_cpu: bool,
    /// Most kernel-level threads alive at a time. Their pthreads are created at the start. A joined thread counts
    /// until its core has released it.
    pub kernel_threads: u32,
    /// The signal that interrupts threads: kernel-level threads to preempt them, and any thread that does not
    /// leave its core to find out where it is. The process must not use it for anything else, nor block it. System
    /// calls that it interrupts are restarted, except those that never are (signal(7)), such as sleeps and
    /// polls with a timeout, which then fail with EINTR.
    pub signal: libc::c_int,
    /// How long a thread may continue after it was asked to leave its core before it is reported as a stall
    /// ([`Enclave::stalls`]).
    pub stall_after: Nanos,
}

impl Options {
    /// Defaults: one host core, not pinned, over shared memory; 4,096 threads with 256 KiB of stack each.
    pub fn new(socket: impl Into<PathBuf>) -> Options {
        Options {
            socket: socket.into(),
            allowed_uids: Vec::new(),
            config: Config::coherent(1),
            link: LinkSpec::Shm,
            cpus: Vec::new(),
            spawners: 0,
            stack_bytes: 256 * 1024,
            prefetch: true,
            yields_cpu: false,
            kernel_threads: 0,
            signal: libc::SIGURG,
            stall_after: Nanos::from_millis(10),
        }
    }

    /// Sets the number of host cores.
    pub fn cores(mut self, cores: u16) -> Options {
        self.config.cores = cores;
        self
    }

    /// Sets the homes, transports and sizes of the queues.
    pub fn queues(mut self, messages: QueueConfig, decisions: QueueConfig) -> Options {
        self.config.messages = messages;
        self.config.decisions = decisions;
        self
    }

    /// Sets how long idle cores and an idle agent look for work before they park.
    pub fn spin(mut self, spin: Nanos) -> Options {
        self.config.spin = spin;
        self
    }
}

/// Why an enclave could not be started.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum StartError {
    /// No layout is possible for this configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kernel gave no memory, eventfd or thread.
    #[error("{doing} failed: {error}")]
    System { doing: &'static str, error: std::io::Error },
    /// A host core could not be pinned.
    #[error("host core {core} cannot be pinned to CPU {cpu}: {error}")]
    Pin { core: usize, cpu: usize, error: std::io::Error },
    /// The list of CPUs is not as long as the number of cores.
    #[error(
        "the list of CPUs must be empty or name one for each of the {cores} host cores; it names {cpus}"
    )]
    Cpus { cores: u16, cpus: usize },
    /// The stack is too small for a signal frame.
    #[error("stacks of {0} bytes are too small: use at least 65536 (Options::stack_bytes)")]
    Stack(usize),
    /// The signal cannot be used to interrupt threads.
    #[error("signal {signal} cannot interrupt threads: {error}; choose another (Options::signal)")]
    Signal { signal: libc::c_int, error: std::io::Error },
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ThreadKind {
    /// Has its own stack and runs on the pthread of its current core: switches take nanoseconds, and it is
    /// preempted at safe points. It must hold nothing of a pthread across a switch: see
    /// [the rule](crate#threads-move-between-pthreads).
    #[default]
    User,
    /// Has its own pthread: switches take microseconds, and it is preempted anywhere, in any code. While it
    /// blocks in the kernel, its core waits with it until the policy preempts it. Its thread-locals are those of
    /// the pthread, which earlier threads have used.
    ///
    /// A user-level thread that waits for a lock of another library (malloc's included) blocks its core while a
    /// kernel-level thread holds the lock: forever, if there is no other core.
    Kernel,
}

/// Attributes of a new thread. A plain number converts to a user-level thread of that class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// The class, sent to the policy with each of the thread's messages.
    pub class: u16,
    /// Whether it is a user-level or a kernel-level thread.
    pub kind: ThreadKind,
}

impl From<u16> for Attributes {
    fn from(class: u16) -> Attributes {
        Attributes { class, kind: ThreadKind::User }
    }
}

/// Why a thread could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SpawnError {
    /// As many threads as configured are alive.
    #[error("enclave `{enclave}` already has {max} threads alive, its configured maximum")]
    Full {
        enclave: String,
        /// The enclave's configured number of threads.
        max: u32,
    },
    /// As many kernel-level threads as configured are alive.
    #[error(
        "enclave `{enclave}` already has {max} kernel-level threads, its configured maximum: raise \
         Options::kernel_threads (default 0)"
    )]
    FullOfKernel {
        enclave: String,
        /// The enclave's configured number of kernel-level threads.
        max: usize,
    },
    /// The caller is no thread of an enclave.
    #[error("only a thread of an enclave can spawn without naming one: use Enclave::spawn")]
    NoEnclave,
}

/// A set of host cores and the threads on them, decided on by one agent at a time.
///
/// Dropping it stops each core once its current thread leaves it, at the thread's next safe point at the
/// latest. Threads that have not ended by then never run again, and their stacks and pthreads are leaked.
pub struct Enclave {
    shared: Arc<Shared>,
    pthreads: Vec<Pthread<()>>,
    klts: Vec<Pthread<()>>,
    detector: Option<(Arc<EventFd>, Pthread<()>)>,
    socket: PathBuf,
}

impl std::fmt::Debug for Enclave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enclave").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Enclave {
    /// Starts the host cores, under the host's own scheduling until an agent attaches
    /// (Wave Table 1: `CREATE_QUEUE`, `SET_QUEUE_TYPE` and `ASSOC_QUEUE_WITH` are in
    /// [`Options::config`], carried out for each agent that attaches).
    pub fn start(options: Options) -> Result<Enclave, StartError> {
        let Options { mut config, ref link, ref cpus, .. } = options;
        let link = link.clone();
        if !cpus.is_empty() && cpus.len() != usize::from(config.cores) {
            return Err(StartError::Cpus { cores: config.cores, cpus: cpus.len() });
        }
        if options.stack_bytes < 64 * 1024 {
            return Err(StartError::Stack(options.stack_bytes));
        }
        // The shared outside context, one per spawner, and the control context.
        let outside = options.spawners + 1;
        config.contexts = u16::try_from(outside + 1).unwrap_or(u16::MAX);
        let layout = Layout::new(Config { subsystem: wave_sched::SUBSYSTEM.id, ..config })?;
        let listener = Listener::bind(&options.socket, &options.allowed_uids)?;
        let name = options
            .socket
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let system = |doing| move |error| StartError::System { doing, error };
        barrier::register().map_err(system("registering for membarrier(2)"))?;
        let signal = options.signal;
        klt::handle(signal).map_err(|error| StartError::Signal { signal, error })?;
        let shared = Shared::new(name, config, outside, &options);
        let shared = Arc::new(shared.map_err(system("making stacks and doorbells"))?);
        let mut enclave = Enclave {
            shared: Arc::clone(&shared),
            pthreads: Vec::new(),
            klts: Klts::start(&shared).map_err(system("starting kernel-level threads"))?,
            detector: None,
            socket: options.socket.clone(),
        };
        for index in 0..config.cores {
            let shared = Arc::clone(&shared);
            let (pinned, is_pinned) = std::sync::mpsc::channel();
            let cpu = cpus.get(usize::from(index)).copied();
            let body = move || {
                let _ = pinned.send(cpu.map_or(Ok(()), |cpu| wave_process::cpus::pin(&[cpu])));
                let core = Core::new(shared, index, cpu);
                current::enter(&core, || core.run());
            };
            let pthread = std::thread::Builder::new().name(format!("wave-core-{index}"));
            enclave.pthreads.push(pthread.spawn(body).map_err(system("starting a host core"))?);
            if let Ok(Err(error)) = is_pinned.recv() {
                let (core, cpu) = (index.into(), cpu.unwrap_or(0));
                return Err(StartError::Pin { core, cpu, error });
            }
        }
        let bell = Arc::new(EventFd::new().map_err(system("making a doorbell"))?);
        let detector = Detector::new(Arc::clone(&shared), Arc::clone(&bell), options.stall_after);
        let pthread = std::thread::Builder::new().name("wave-stalls".into());
        let started = pthread.spawn(move || detector.run());
        let started = started.map_err(system("starting the thread that looks for stalls"))?;
        enclave.detector = Some((bell, started));
        let control = Control::new(shared, listener, link, layout);
        let pthread = std::thread::Builder::new().name("wave-control".into());
        let started = pthread.spawn(move || control.run());
        enclave.pthreads.push(started.map_err(system("starting the control thread"))?);
        Ok(enclave)
    }

    /// Path of the socket where agents attach.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts a thread and returns a handle to wait for it.
    pub fn spawn<T: Send + 'static>(
        &self,
        attributes: impl Into<Attributes>,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, SpawnError> {
        let (mut handle, body) = JoinHandle::wrap(body);
        handle.thread = Some(spawn_from_outside(&self.shared, 0, attributes.into(), body)?);
        Ok(handle)
    }

    /// Starts a detached thread. Does not allocate if `body` is at most 112 bytes.
    /// A panic in it ends the thread, after the panic hook has run.
    pub fn spawn_detached(
        &self,
        attributes: impl Into<Attributes>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Thread, SpawnError> {
        spawn_from_outside(&self.shared, 0, attributes.into(), guarded(body))
    }

    /// A spawner with its own queue, for use by a single outside thread. Panics unless `at` is below
    /// [`Options::spawners`].
    pub fn spawner(&self, at: usize) -> Spawner {
        assert!(at + 1 < self.shared.outside.len(), "spawner {at} was not configured");
        Spawner { shared: Arc::clone(&self.shared), at: at + 1 }
    }

    /// Ends the current park or await of one of this enclave's threads, or else the thread's next one. Does
    /// nothing for a thread that has ended.
    pub fn unpark(&self, thread: Thread) {
        Waker { shared: Arc::clone(&self.shared), thread }.unpark();
    }

    /// A function that does [`Enclave::unpark`] of this thread at each call.
    pub(crate) fn unparker(&self, thread: Thread) -> Box<dyn Fn() + Send> {
        let shared = Arc::clone(&self.shared);
        Box::new(move || Waker { shared: Arc::clone(&shared), thread }.unpark())
    }

    /// Reads the counters of all cores and of the control thread, at slightly different times.
    pub fn stats(&self) -> EnclaveStats {
        self.shared.stats()
    }

    /// Stalls, in which a thread did not leave its core when asked to: their number, and details of the first
    /// ones.
    pub fn stalls(&self) -> (u64, Vec<Stall>) {
        self.shared.stalls.read()
    }

    /// The longest deferral of a preemption, with its place in the code, of each core that deferred one by more
    /// than 50 us.
    pub fn worst_deferrals(&self) -> Vec<(u16, WorstDeferral)> {
        let cores = self.shared.cores.iter().enumerate();
        cores.filter_map(|(core, shared)| Some((core as u16, shared.worst.read()?))).collect()
    }

    /// Whether the agent or the fallback decides at the moment.
    pub fn mode(&self) -> Mode {
        self.shared.mode()
    }

    /// Number of threads that have not ended.
    pub fn alive(&self) -> usize {
        self.shared.config.subjects as usize - self.shared.free.len()
    }

    /// Turns the agent out, if there is one; the host decides until another attaches
    /// (Wave Table 1, `KILL_WAVE_AGENT`). Does not end the agent's process.
    pub fn kill_agent(&self) {
        self.shared.kill.store(true, Ordering::SeqCst);
        self.shared.control_bell.ring();
    }
}

impl Drop for Enclave {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.control_bell.ring();
        self.shared.cores.iter().for_each(|core| core.ring());
        for pthread in self.pthreads.drain(..) {
            let _ = pthread.join();
        }
        // Stopped only now, as it can report what kept a core from stopping.
        if let Some((bell, pthread)) = self.detector.take() {
            bell.ring();
            let _ = pthread.join();
        }
        self.shared.klts.stop(std::mem::take(&mut self.klts));
    }
}

/// Spawns threads for one outside thread; see [`Enclave::spawner`].
#[derive(Clone)]
pub struct Spawner {
    shared: Arc<Shared>,
    at: usize,
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawner").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Spawner {
    /// As [`Enclave::spawn_detached`].
    pub fn spawn_detached(
        &self,
        attributes: impl Into<Attributes>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Thread, SpawnError> {
        spawn_from_outside(&self.shared, self.at, attributes.into(), guarded(body))
    }
}

/// Starts a thread in the caller's own enclave.
///
/// A safe point, so it may switch: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
pub fn spawn<T: Send + 'static>(
    attributes: impl Into<Attributes>,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, SpawnError> {
    current::preempt_point();
    let (mut handle, body) = JoinHandle::wrap(body);
    let attributes = attributes.into();
    with_core(|core| {
        let core = core.ok_or(SpawnError::NoEnclave)?;
        let event = create(&core.shared, attributes, core.index, InlineFn::new(body))?;
        core.send(&event);
        core.shared.became_runnable(&event);
        handle.thread = Some(Thread(event.thread));
        Ok(handle)
    })
}

/// Keeps a panic from unwinding out of a fiber.
fn guarded(body: impl FnOnce() + Send + 'static) -> impl FnOnce() + Send + 'static {
    move || {
        if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
            discard(panic);
        }
    }
}

fn spawn_from_outside(
    shared: &Shared,
    at: usize,
    attributes: Attributes,
    body: impl FnOnce() + Send + 'static,
) -> Result<Thread, SpawnError> {
    // The caller may be a thread of this or of another enclave.
    let _inside = Inside::enter();
    let event = create(shared, attributes, NO_CORE, InlineFn::new(body))?;
    shared.send_from_outside(at, &event);
    shared.became_runnable(&event);
    Ok(Thread(event.thread))
}

fn create(
    shared: &Shared,
    Attributes { class, kind }: Attributes,
    core: u16,
    entry: InlineFn,
) -> Result<Event, SpawnError> {
    let enclave = || shared.name.clone();
    let klt = match kind {
        ThreadKind::User => None,
        ThreadKind::Kernel => Some(shared.klts.take().ok_or_else(|| SpawnError::FullOfKernel {
            enclave: enclave(),
            max: shared.klts.len(),
        })?),
    };
    let Some(id) = shared.free.pop() else {
        klt.into_iter().for_each(|klt| shared.klts.give_back(klt));
        return Err(SpawnError::Full { enclave: enclave(), max: shared.config.subjects });
    };
    Ok(shared.table.create(id, class, core, |slot| slot.begin(klt, entry)))
}

impl Thread {
    /// Ends the current park of this thread, or else its next one. The caller must be a thread of the same
    /// enclave; from elsewhere, use [`Enclave::unpark`]. Panics if the caller is no thread of an enclave.
    ///
    /// A safe point, so it may switch: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
    pub fn unpark(self) {
        current::preempt_point();
        let shared = with_core(|core| Arc::clone(&core.expect("see Enclave::unpark").shared));
        Waker { shared, thread: self }.unpark();
    }
}

/// Wakes one thread, from anywhere.
pub(crate) struct Waker {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Waker {
    /// A waker of the calling thread, if it is a thread of an enclave.
    pub(crate) fn of_current() -> Option<Waker> {
        with_core(|core| {
            core.map(|core| Waker {
                shared: Arc::clone(&core.shared),
                thread: Thread(core.shared.table.subject(core.current())),
            })
        })
    }

    pub(crate) fn wake(self) {
        let _inside = Inside::enter();
        if let Some(event) = self.shared.table.wake(self.thread.0) {
            self.emit(event);
        }
    }

    fn unpark(self) {
        let _inside = Inside::enter();
        if let Some(event) = self.shared.table.unpark(self.thread.0) {
            self.emit(event);
        }
    }

    fn emit(&self, event: Event) {
        with_core(|core| match core {
            Some(core) if Arc::ptr_eq(&core.shared, &self.shared) => core.woken(event),
            _ => self.shared.woken_from_outside(&event),
        });
    }
}
