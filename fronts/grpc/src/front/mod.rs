//! The front: its sockets, its connections, and its host, which may be lost and found again.

mod turns;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{AbortHandle, LocalSet};
use tokio_rustls::TlsAcceptor;
use wave_agent::{Attached, Attacher, HostLine, OwnBell, ReadyLine, Seat, attach_rpc};
use wave_core::clock::Nanos;
use wave_core::layout::{CORES_MAX, Config};
use wave_core::settings::PolicyError;
use wave_links::socket::SocketError;
use wave_process::heap::Spare;
use wave_process::say;
use wave_rpc::dispatch::{Counts, Dispatch, HostGone};
use wave_rpc::steer;

use crate::admission::Admission;
use crate::connect::{self, Door, Place};
use crate::cores::{self, Common, CoreThread};
use crate::engine::Engine;
use crate::host::Own;
use crate::limits::Limits;
use crate::notes::NotesTo;
use crate::round_robin::{Flow, RoundRobin};
use crate::shared::{FrontCounts, Shared, Totals};
use crate::slots::Ready;
use crate::tls::{self, TlsError};

/// Interval between checks whether the host has gone.
const LIFE_CHECK: Nanos = Nanos::from_millis(50);

/// Options of a front.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// Path of the socket of the host that serves RPCs.
    pub host: PathBuf,
    /// Addresses on which clients connect.
    pub listen: Vec<SocketAddr>,
    /// The steering policy, as text ([`steer`]).
    pub steer: String,
    /// Certificate and key: with them, clients speak TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Limits on connections, calls and messages.
    pub limits: Limits,
    /// CPUs of the connection cores, which only serve connections; if empty, the front's own core serves them.
    pub connection_cpus: Vec<usize>,
    /// Send a load report in the trailers of each call.
    pub load_reports: bool,
    /// How the front's cores wait for work.
    pub seat: Seat,
    /// Print only errors.
    pub quiet: bool,
}

/// Why a front cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum FrontError {
    /// The steering policy cannot be made.
    #[error(transparent)]
    Steer(#[from] PolicyError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Host(#[from] SocketError),
    #[error("cannot make the front's runtime: {0}")]
    Runtime(#[source] io::Error),
    /// A connection core's CPU cannot be used.
    #[error("{0}")]
    Cpu(String),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}{}", what_to_do(error))]
    Listen { address: SocketAddr, error: io::Error },
}

fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; end the process that listens there, or name another address: a front that replaces a running one needs another"
        }
        _ => "",
    }
}

/// A handle that ends a front.
#[derive(Clone, Debug)]
pub struct Ender(Arc<Ready>);

impl Ender {
    /// Asks the front to end: it sends GOAWAY and finishes open calls.
    pub fn end(&self) {
        self.0.end();
    }
}

/// An attached host, without its dispatcher.
struct Line {
    line: HostLine,
    bell: OwnBell,
    /// The bell's descriptor, if the runtime can wait for it.
    rung: Option<AsyncFd<OwnedFd>>,
    host_checked: Nanos,
    /// The line to print once calls are accepted.
    ready: Option<ReadyLine>,
}

/// The gRPC front on this agent's core, or one of its connection cores.
pub struct RpcFront {
    // Declared before the runtime, so that tasks and descriptors are dropped while it exists.
    tasks: LocalSet,
    line: Option<Line>,
    /// Another descriptor that ends a sleep: the bell of an agent on this core, or the socket for schedulers that take notes.
    other: Option<AsyncFd<OwnedFd>>,
    runtime: Runtime,
    engine: Rc<RefCell<Engine>>,
    ready: Arc<Ready>,
    /// Turns of the tasks on this core.
    pub(crate) round_robin: Rc<RoundRobin>,
    /// Looks for the host; none on a connection core.
    attacher: Option<Attacher<Attached>>,
    /// The connection cores. Declared after the engine: they end at once when its ends of their queues are dropped.
    cores: Vec<CoreThread>,
    /// Handles of the tasks that accept connections.
    listens: Vec<AbortHandle>,
    /// When the sockets were last polled.
    turned: Nanos,
    polled: Nanos,
    /// When the earliest work that the last poll left is due.
    due: Option<Nanos>,
    progressed: bool,
    /// Whether the last poll left something to do at once.
    has_more: bool,
    /// Whether work was done since the memory was last looked at.
    has_worked: bool,
    parks: bool,
    addresses: Vec<SocketAddr>,
    options: RpcOptions,
    start: Instant,
    drains_until: Option<Nanos>,
    spare: Option<Spare>,
    notes: Option<NotesTo>,
    /// Why the steering policy's settings do not fit the host that was found.
    unfit: Option<PolicyError>,
}

/// A front's listening sockets and its certificate: the part of its set-up that needs rights, but no thread.
pub struct Listening {
    options: RpcOptions,
    tls: Option<TlsAcceptor>,
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl Listening {
    /// Binds the sockets, and reads the certificate. Clients wait in the sockets' backlogs until the front runs.
    pub fn new(options: RpcOptions) -> Result<Listening, FrontError> {
        // Rejects a policy that fits no host before anything else is set up.
        let largest = Config { subjects: 1, ..Config::coherent(CORES_MAX as u16) };
        steer::by_name(&options.steer, &largest)?;
        let tls = options.tls.as_ref();
        let tls = tls.map(|(certificate, key)| tls::acceptor(certificate, key)).transpose()?;
        let (listeners, addresses) = bind(&options.listen)?;
        Ok(Listening { options, tls, listeners, addresses })
    }
}

impl RpcFront {
    /// Listens, and starts looking for the host. `start` is time 0 of the agent's clock.
    pub fn new(options: RpcOptions, start: Instant) -> Result<RpcFront, FrontError> {
        RpcFront::over(Listening::new(options)?, start)
    }

    /// Makes a front of listening sockets: starts its connection cores, and starts looking for the host.
    pub fn over(listening: Listening, start: Instant) -> Result<RpcFront, FrontError> {
        let Listening { options, tls, listeners, addresses } = listening;
        let ready = Arc::new(Ready::default());
        let totals = Arc::new(Totals::new(options.limits.held_bytes));
        let connections = options.limits.connections_for(descriptors());
        let admission = Arc::new(Admission::new(connections, Arc::clone(&totals)));
        let common = Common { options: options.clone(), start, totals, admission, tls };
        let (mut accepts, mut cores, mut far) = (listeners, Vec::new(), Vec::new());
        if !options.connection_cpus.is_empty() {
            (cores, far) = cores::start(&common, std::mem::take(&mut accepts), &ready)?;
        }
        let Common { totals, admission, tls, .. } = common;
        let mut shared = Shared::new(options.limits, start, totals);
        shared.reports_load = options.load_reports;
        let engine = Rc::new(RefCell::new(Engine::new(shared, far, Arc::clone(&ready))));
        let host = options.host.clone();
        let quiet = options.quiet;
        let mut front = RpcFront::of_core(options, start, Rc::clone(&engine), Arc::clone(&ready))?;
        (front.addresses, front.cores) = (addresses, cores);
        front.spare = Some(Spare::new());
        let places: Rc<[Place]> = Rc::new([Place::own()]);
        for listener in accepts {
            let (engine, ready) = (Rc::clone(&engine), Arc::clone(&ready));
            let admission = Arc::clone(&admission);
            let round_robin = Rc::clone(&front.round_robin);
            let door = Door { engine, admission, ready, round_robin, tls: tls.clone() };
            front.listen(listener, door, Rc::clone(&places))?;
        }
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let mut signals = front.inside(|| signal(kind)).map_err(FrontError::Runtime)?;
            let ready = Arc::clone(&ready);
            front.spawn(|_| async move {
                while signals.recv().await.is_some() {
                    ready.end();
                }
            });
        }
        front.attacher = Some(Attacher::new(host, attach_rpc, move || ready.ring(), quiet)?);
        Ok(front)
    }

    /// One core of a front, without sockets yet.
    pub(crate) fn of_core(
        options: RpcOptions,
        start: Instant,
        engine: Rc<RefCell<Engine>>,
        ready: Arc<Ready>,
    ) -> Result<RpcFront, FrontError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(RpcFront {
            tasks: LocalSet::new(),
            line: None,
            other: None,
            runtime: runtime.map_err(FrontError::Runtime)?,
            engine,
            round_robin: Rc::new(RoundRobin::new(Arc::clone(&ready))),
            ready,
            attacher: None,
            cores: Vec::new(),
            listens: Vec::new(),
            turned: Nanos(0),
            polled: Nanos(0),
            due: None,
            progressed: false,
            has_more: false,
            has_worked: false,
            parks: false,
            addresses: Vec::new(),
            options,
            start,
            drains_until: None,
            spare: None,
            notes: None,
            unfit: None,
        })
    }

    /// Runs `what` inside this core's runtime, for values that belong to the runtime.
    pub(crate) fn inside<R>(&self, what: impl FnOnce() -> R) -> R {
        let _inside = self.runtime.enter();
        what()
    }

    /// Accepts connections until the front is told to end.
    pub(crate) fn listen(
        &mut self,
        listener: std::net::TcpListener,
        door: Door,
        places: Rc<[Place]>,
    ) -> Result<(), FrontError> {
        let listener = self.inside(|| TcpListener::from_std(listener));
        let listener = listener.map_err(FrontError::Runtime)?;
        let accepts = self.spawn(|flow| connect::listen(listener, door, places, flow));
        self.listens.push(accepts);
        Ok(())
    }

    /// Runs a task on this core, beside its calls.
    pub(crate) fn spawn<T>(&self, task: impl FnOnce(Rc<Flow>) -> T) -> AbortHandle
    where
        T: Future<Output = ()> + 'static,
    {
        let flow = self.round_robin.flow(None);
        let task = task(Rc::clone(&flow));
        self.tasks.spawn_local(flow.run(task)).abort_handle()
    }

    /// Addresses on which the front listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A handle with which another thread ends this front, as SIGTERM does: no new calls are accepted, and open ones may
    /// finish.
    pub fn ender(&self) -> Ender {
        Ender(Arc::clone(&self.ready))
    }

    /// Sends a scheduler in another agent a note of each request that is handed to a thread. Not for a front beside a
    /// scheduler.
    pub fn offer_notes(&mut self, notes: NotesTo) {
        self.other = self.make_watch(notes.listener());
        self.notes = Some(notes);
    }

    /// Lets the runtime wait for a descriptor. `None` if it cannot: then sleeps end only by time.
    fn make_watch(&self, fd: &impl AsFd) -> Option<AsyncFd<OwnedFd>> {
        let _inside = self.runtime.enter();
        wait_for(fd.as_fd().try_clone_to_owned().ok()?).ok()
    }

    /// The time, by the agent's clock.
    pub fn now(&self) -> Nanos {
        self.engine.borrow().shared.now()
    }

    fn check_host(&mut self, now: Nanos) {
        if let Some(line) = &mut self.line {
            if now.since(line.host_checked) >= LIFE_CHECK {
                line.host_checked = now;
                if line.line.hung_up() {
                    let gone = self.engine.borrow().why();
                    self.engine.borrow_mut().detach();
                    self.lose_host(gone);
                }
            }
        } else if let Some(attached) = self.attacher.as_ref().and_then(Attacher::take) {
            self.attach(attached);
        }
    }

    fn attach(&mut self, attached: Attached) {
        let Attached { layout, port, host_bells, own_bell, link, connection } = attached;
        let config = layout.config;
        let steering = match steer::by_name(&self.options.steer, &config) {
            Ok(steering) => steering,
            Err(error) => {
                self.unfit = Some(error);
                return self.ready.end();
            }
        };
        let mut dispatch = Dispatch::new(layout, port, host_bells, steering);
        dispatch.announce();
        let rung = self.make_watch(&own_bell);
        let mut engine = self.engine.borrow_mut();
        let host_checked = engine.shared.now();
        engine.attach(Own::new(dispatch, config.subjects));
        let host = self.options.host.clone();
        let ready = ReadyLine::new(host_checked, &self.options.steer, host, &config, "call", &link);
        let ready = (!self.options.quiet).then_some(ready);
        self.line = Some(Line { line: connection, bell: own_bell, rung, host_checked, ready });
    }

    /// Announces the host once calls are accepted.
    fn announce(&mut self, now: Nanos) {
        if let Some(Line { ready, .. }) = &mut self.line
            && let Some(line) = ready
            && line.print_due(now, self.engine.borrow().takes_calls())
        {
            *ready = None;
        }
    }

    fn lose_host(&mut self, gone: HostGone) {
        // On a connection core there is nothing to do: the first core reports it.
        let Some(attacher) = &self.attacher else { return };
        self.line = None;
        if matches!(gone, HostGone::Replaced) {
            if !self.options.quiet {
                say!("wave agent: {gone}; leaving");
            }
            // Ends as after SIGTERM: clients get a GOAWAY.
            return self.ready.end();
        }
        if !self.options.quiet || matches!(gone, HostGone::Nonsense(_) | HostGone::Fault) {
            say!("wave agent: {gone}; calls are answered with UNAVAILABLE until a host is back");
        }
        attacher.begin();
    }

    /// Counters of connections and calls in the front. Those of connection cores are included once the cores have ended.
    pub fn front_counts(&self) -> FrontCounts {
        let read_max = self.round_robin.read_max();
        let own = FrontCounts { read_max, ..self.engine.borrow().shared.counts };
        self.cores.iter().fold(own, |sum, core| sum.plus(core.left().counts))
    }

    /// Number of connections that each connection core took; known once the cores have ended.
    pub fn connections_by_core(&self) -> Vec<u64> {
        self.cores.iter().map(|core| core.left().counts.connections).collect()
    }

    /// Counters of calls at the attached host, and the number of calls that are open there.
    pub fn host_counts(&self) -> Option<(Counts, u32)> {
        let mut engine = self.engine.borrow_mut();
        engine.own().map(|own| (*own.dispatch.counts(), own.dispatch.open()))
    }

    /// Number of calls that are open in the front, and bytes of messages that it holds. Calls of connection cores are included
    /// once the cores have ended.
    pub fn open(&self) -> (usize, usize) {
        let engine = self.engine.borrow();
        let far: usize = self.cores.iter().map(|core| core.left().calls).sum();
        (engine.open() + far, engine.shared.totals.held())
    }

    /// Path of the host's socket.
    pub fn host(&self) -> &Path {
        &self.options.host
    }
}

/// This process's limit of descriptors.
fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Listens at all addresses.
fn bind(
    addresses: &[SocketAddr],
) -> Result<(Vec<std::net::TcpListener>, Vec<SocketAddr>), FrontError> {
    let bound = addresses.iter().map(|&address| {
        let failed = |error| FrontError::Listen { address, error };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok((listener, address))
    });
    bound.collect::<Result<_, _>>()
}

/// Registers the descriptor with the runtime, which can then wait for it.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for what descriptors that we own cannot do"
)]
fn wait_for(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
