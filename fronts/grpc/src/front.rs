//! The front: sockets, connections, and the host that it finds, loses and finds again.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{AbortHandle, LocalSet, yield_now};
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::layout::{CORES_MAX, Config};
use wave_core::link::Waiter;
use wave_core::note;
use wave_core::settings::PolicyError;
use wave_links::say;
use wave_links::socket::SocketError;
use wave_rpc::dispatch::{Counts, Dispatch};
use wave_rpc::steer;

use super::admission::Admission;
use super::connect::{self, Door, Place};
use super::cores::{self, Common, CoreThread};
use super::engine::{Engine, HostGone};
use super::host::{Host, Own};
use super::in_turns::in_turns;
use super::lanes::ROOM_EVERY;
use super::limits::Limits;
use super::shared::{FrontCounts, Shared, Totals};
use super::slots::Ready;
use super::spare::Spare;
use super::tls::{self, TlsError};
use crate::attach::{Attached, HostLine, OwnBell, Wanted, attach_as};
use crate::attacher::Attacher;
use crate::run::Seat;

/// How often it is looked whether the host has gone.
const LIFE_CHECK: Nanos = Nanos::from_millis(50);
/// How often the sockets are looked at, which is a call of the system: while nothing else happens, and while it does.
const TURN_IDLE: Nanos = Nanos::from_micros(2);
const TURN_BUSY: Nanos = Nanos::from_micros(100);
/// So often calls and connections have their turns in one poll, at most.
const ROUNDS_PER_POLL: usize = 8;

/// What a front is made of.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// The socket of the host that serves RPCs.
    pub host: PathBuf,
    /// Where clients connect.
    pub listen: Vec<SocketAddr>,
    /// The steering policy, as text ([`steer`]).
    pub steer: String,
    /// Certificate and key: with them, clients speak TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Limits.
    pub limits: Limits,
    /// CPUs that do nothing but serve connections, a thread on each; without any, the front's own core does.
    pub connection_cpus: Vec<usize>,
    /// How its cores wait for work.
    pub seat: Seat,
    /// Say nothing but errors.
    pub quiet: bool,
}

/// Why there is no front.
#[derive(Debug, thiserror::Error)]
pub enum FrontError {
    /// The steering policy.
    #[error(transparent)]
    Steer(#[from] PolicyError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Where the host is to be.
    #[error(transparent)]
    Host(#[from] SocketError),
    /// The runtime.
    #[error("cannot make a runtime: {0}")]
    Runtime(#[source] io::Error),
    /// A connection core's CPU.
    #[error("{0}")]
    Cpu(String),
    /// An address.
    #[error("cannot listen on {address}: {error}{}", what_to_do(error))]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What is wrong with it.
        error: io::Error,
    },
}

fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; end what listens there, or name another address: a front that takes over from another one needs its own"
        }
        _ => "",
    }
}

/// Ends a front.
#[derive(Clone, Debug)]
pub struct Ender(Arc<Ready>);

impl Ender {
    /// Asks it to end.
    pub fn end(&self) {
        self.0.end();
    }
}

/// A host that is attached, but for its dispatcher.
struct Line {
    line: HostLine,
    bell: OwnBell,
    /// The bell's, where the runtime can wait for it.
    rung: Option<AsyncFd<OwnedFd>>,
    looked: Nanos,
}

/// gRPC on this agent's core; or one of the cores that serve connections for it.
pub struct RpcFront {
    // Before the runtime: tasks and descriptors end while it is there.
    tasks: LocalSet,
    line: Option<Line>,
    /// Another bell or socket that ends a sleep: of an agent that shares the core, or for one that wants notes.
    other: Option<AsyncFd<OwnedFd>>,
    runtime: Runtime,
    engine: Rc<RefCell<Engine>>,
    ready: Arc<Ready>,
    /// Looks for the host; none on a connection core.
    attacher: Option<Attacher<Attached>>,
    /// The connection cores. After the engine: they leave at once where that is no more.
    cores: Vec<CoreThread>,
    /// What accepts connections.
    listens: Vec<AbortHandle>,
    /// When the sockets were looked at last.
    turned: Nanos,
    polled: Nanos,
    progressed: bool,
    parks: bool,
    addresses: Vec<SocketAddr>,
    options: RpcOptions,
    start: Instant,
    drains_until: Option<Nanos>,
    spare: Option<Spare>,
    /// What is wrong with the steering policy's settings for the host that was found.
    unfit: Option<PolicyError>,
}

impl RpcFront {
    /// Listens, and begins to look for the host. `start` is where the agent's clock began.
    pub fn new(options: RpcOptions, start: Instant) -> Result<RpcFront, FrontError> {
        // Before anything else is touched: some host could have it.
        let largest = Config { subjects: 1, ..Config::coherent(CORES_MAX as u16) };
        steer::by_name(&options.steer, &largest)?;
        let tls = options.tls.as_ref();
        let tls = tls.map(|(certificate, key)| tls::acceptor(certificate, key)).transpose()?;
        let ready = Arc::new(Ready::default());
        let totals = Arc::new(Totals::new(options.limits.held_bytes));
        let connections = options.limits.connections_for(descriptors());
        let admission = Arc::new(Admission::new(connections, Arc::clone(&totals)));
        let common = Common { options: options.clone(), start, totals, admission, tls };
        let (listeners, addresses) = bind(&options.listen)?;
        let (mut accepts, mut cores, mut far) = (listeners, Vec::new(), Vec::new());
        if !options.connection_cpus.is_empty() {
            (cores, far) = cores::start(&common, std::mem::take(&mut accepts), &ready)?;
        }
        let Common { totals, admission, tls, .. } = common;
        let shared = Shared::new(options.limits, start, totals);
        let engine = Rc::new(RefCell::new(Engine::new(shared, far, Arc::clone(&ready))));
        let host = options.host.clone();
        let quiet = options.quiet;
        let mut front = RpcFront::of_core(options, start, Rc::clone(&engine), Arc::clone(&ready))?;
        (front.addresses, front.cores) = (addresses, cores);
        front.spare = Some(Spare::new(Arc::clone(&admission)));
        let places: Rc<[Place]> = Rc::new([Place::own()]);
        for listener in accepts {
            let (engine, ready) = (Rc::clone(&engine), Arc::clone(&ready));
            let admission = Arc::clone(&admission);
            let door = Door { engine, admission, ready, tls: tls.clone() };
            front.listen(listener, door, Rc::clone(&places))?;
        }
        for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
            let mut signals = front.inside(|| signal(kind)).map_err(FrontError::Runtime)?;
            let ready = Arc::clone(&ready);
            front.spawn(async move {
                while signals.recv().await.is_some() {
                    ready.end();
                }
            });
        }
        let attach = |socket: &Path, quiet: bool| attach_as(socket, Wanted::Rpc, quiet);
        front.attacher = Some(Attacher::new(host, attach, move || ready.ring(), quiet)?);
        Ok(front)
    }

    /// One core of a front, with no sockets yet.
    pub(super) fn of_core(
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
            ready,
            attacher: None,
            cores: Vec::new(),
            listens: Vec::new(),
            turned: Nanos(0),
            polled: Nanos(0),
            progressed: false,
            parks: false,
            addresses: Vec::new(),
            options,
            start,
            drains_until: None,
            spare: None,
            unfit: None,
        })
    }

    /// Makes something that belongs to this core's runtime.
    pub(super) fn inside<R>(&self, what: impl FnOnce() -> R) -> R {
        let _inside = self.runtime.enter();
        what()
    }

    /// Accepts connections until it is told to end.
    pub(super) fn listen(
        &mut self,
        listener: std::net::TcpListener,
        door: Door,
        places: Rc<[Place]>,
    ) -> Result<(), FrontError> {
        let listener = self.inside(|| TcpListener::from_std(listener));
        let listener = listener.map_err(FrontError::Runtime)?;
        let accepts = in_turns(connect::listen(listener, door, places));
        self.listens.push(self.tasks.spawn_local(accepts).abort_handle());
        Ok(())
    }

    /// Has this core do something beside its calls.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(in_turns(task));
    }

    /// Where clients connect.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// By which another thread ends it, as SIGTERM does: no new calls, and those that are open may end.
    pub fn ender(&self) -> Ender {
        Ender(Arc::clone(&self.ready))
    }

    /// How it waits for work.
    pub fn seat(&self) -> Seat {
        self.options.seat
    }

    /// Whether it was told to end, and has.
    pub fn has_ended(&mut self) -> bool {
        let cores_ended = self.cores.iter_mut().fold(true, |all, core| core.has_ended() & all);
        if !self.ready.is_to_end() {
            return false;
        }
        let mut engine = self.engine.borrow_mut();
        let now = engine.shared.now();
        let patience = Nanos(self.options.limits.drain.as_nanos() as u64);
        let until = *self.drains_until.get_or_insert_with(|| {
            engine.drain();
            // Another front may listen there at once.
            self.listens.iter().for_each(AbortHandle::abort);
            self.cores.iter().for_each(CoreThread::end);
            now + patience
        });
        let has_ended = engine.is_empty() && cores_ended || now >= until;
        if has_ended {
            self.cores.iter_mut().for_each(CoreThread::join);
        }
        has_ended
    }

    /// Why it ended by itself, if it did: the steering policy's settings are none for the host that it found.
    pub fn unfit(&self) -> Option<&PolicyError> {
        self.unfit.as_ref()
    }

    /// A bounded amount of work: the host's answers, connections, calls. It is idle when there is no more to do now.
    pub fn poll(&mut self) -> Step {
        let now = self.now();
        self.look_after_host(now);
        let RpcFront { engine, tasks, turned, progressed, parks, cores, .. } = self;
        // Inside of the runtime: waking a task is then no call of the system.
        let stepped = self.runtime.block_on(async {
            let mut any = false;
            let stepped = rounds(engine, tasks, &mut any).await?;
            *progressed |= any;
            // Parking looks at the sockets, too.
            let has_sockets = cores.is_empty();
            let turn_every = if any || !has_sockets { TURN_BUSY } else { TURN_IDLE };
            if *parks || now.since(*turned) < turn_every {
                return Ok(stepped);
            }
            *turned = now;
            yield_now().await;
            rounds(engine, tasks, progressed).await
        });
        self.polled = now;
        stepped.unwrap_or_else(|gone| {
            self.lose_host(gone);
            Step::Progress
        })
    }

    /// Whether polls have done something since the last time.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progressed)
    }

    /// Returns a flood's memory, which takes milliseconds: for a front that has its agent for itself.
    pub(super) fn look_after_memory(&mut self) {
        self.spare.iter_mut().for_each(|spare| spare.look(self.polled));
    }

    /// The time of the last poll.
    pub fn polled(&self) -> Nanos {
        self.polled
    }

    /// The requests that were handed to threads since the last time: for a scheduler.
    pub fn take_notes(&mut self, mut what: impl FnMut(note::Request)) {
        if let Some(own) = self.engine.borrow_mut().own() {
            own.dispatch.take_notes().for_each(&mut what);
        }
    }

    /// One for each thread that was handed calls and has not ended them: for a scheduler that may not have heard of them.
    pub fn open_notes(&self, what: impl FnMut(note::Request)) {
        if let Some(own) = self.engine.borrow_mut().own() {
            own.dispatch.open_notes().for_each(what);
        }
    }

    /// Where the agent's clock began.
    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// Ends sleeps by this bell or socket, too. Whoever it belongs to looks at it.
    pub(super) fn watch(&mut self, other: &impl AsFd) {
        self.other = self.make_watch(other);
    }

    /// `None` if the runtime cannot wait for it: then sleeps end by time.
    fn make_watch(&self, fd: &impl AsFd) -> Option<AsyncFd<OwnedFd>> {
        let _inside = self.runtime.enter();
        wait_for(fd.as_fd().try_clone_to_owned().ok()?).ok()
    }

    /// The time, by the agent's clock.
    pub fn now(&self) -> Nanos {
        self.engine.borrow().shared.now()
    }

    /// How long to look for work before parking.
    pub fn spin(&self) -> Nanos {
        let engine = self.engine.borrow();
        engine.shared.host.as_ref().map_or(Nanos(0), Host::spin)
    }

    /// Says that the agent is about to sleep. Poll once more after it, and if that finds nothing, [`RpcFront::park`]; then
    /// [`RpcFront::unpark`].
    pub fn prepare_park(&mut self) {
        if let Some(host) = &mut self.engine.borrow_mut().shared.host {
            host.prepare_park();
        }
        self.ready.prepare_park();
        self.parks = true;
    }

    /// Takes that back.
    pub fn unpark(&mut self) {
        if let Some(host) = &mut self.engine.borrow_mut().shared.host {
            host.unpark();
        }
        self.ready.unpark();
        self.parks = false;
    }

    /// Sleeps until something happens to a socket, the host rings, or it is `until`.
    pub fn park(&mut self, until: Option<Nanos>) {
        if self.engine.borrow().is_behind() {
            // Its sockets have to wait, too.
            return std::thread::sleep(Duration::from_nanos(ROOM_EVERY.0));
        }
        let now = self.now();
        let wait = until.map_or(LIFE_CHECK, |until| until.since(now)).min(LIFE_CHECK);
        let (ready, line, other) = (&self.ready, &self.line, &self.other);
        self.tasks.block_on(&self.runtime, async {
            let timer = tokio::time::sleep(Duration::from_nanos(wait.0));
            tokio::pin!(timer);
            poll_fn(|cx| {
                let mut is_over = ready.sleep(cx.waker());
                if let Some(Line { bell, rung: Some(rung), .. }) = line
                    && let Poll::Ready(guard) = rung.poll_read_ready(cx)
                {
                    bell.wait(Some(Duration::ZERO));
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                    is_over = true;
                }
                if let Some(other) = other
                    && let Poll::Ready(guard) = other.poll_read_ready(cx)
                {
                    if let Ok(mut guard) = guard {
                        guard.clear_ready();
                    }
                    is_over = true;
                }
                if is_over { Poll::Ready(()) } else { timer.as_mut().poll(cx) }
            })
            .await;
        });
        self.ready.awake();
        self.turned = self.now();
    }

    fn look_after_host(&mut self, now: Nanos) {
        if let Some(line) = &mut self.line {
            if now.since(line.looked) >= LIFE_CHECK {
                line.looked = now;
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
        let looked = engine.shared.now();
        engine.attach(Own::new(dispatch, config.subjects));
        self.line = Some(Line { line: connection, bell: own_bell, rung, looked });
        if !self.options.quiet {
            say!(
                "wave agent: `{}` steers to {} workers of {}, up to {} calls, link {link}",
                self.options.steer,
                config.cores,
                self.options.host.display(),
                config.subjects,
            );
        }
    }

    fn lose_host(&mut self, gone: HostGone) {
        // Otherwise the first core says so.
        let Some(attacher) = &self.attacher else { return };
        self.line = None;
        if matches!(gone, HostGone::Replaced) {
            if !self.options.quiet {
                say!("wave agent: {gone}; leaving");
            }
            // As SIGTERM does: clients are told to go.
            return self.ready.end();
        }
        if !self.options.quiet || matches!(gone, HostGone::Nonsense(_) | HostGone::Fault) {
            say!("wave agent: {gone}; calls are answered UNAVAILABLE until there is one again");
        }
        attacher.begin();
    }

    /// How many calls came to what in the front. Those of connection cores are known once these have ended.
    pub fn front_counts(&self) -> FrontCounts {
        let own = self.engine.borrow().shared.counts;
        self.cores.iter().fold(own, |sum, core| sum.plus(core.left().counts))
    }

    /// How many connections each connection core took, once these have ended.
    pub fn connections_by_core(&self) -> Vec<u64> {
        self.cores.iter().map(|core| core.left().counts.connections).collect()
    }

    /// How many came to what with the host that is attached, and how many of them are open there.
    pub fn host_counts(&self) -> Option<(Counts, u32)> {
        let mut engine = self.engine.borrow_mut();
        engine.own().map(|own| (*own.dispatch.counts(), own.dispatch.open()))
    }

    /// Calls that are open in the front, and bytes of messages that it holds. Connection cores' calls are known once these have
    /// ended.
    pub fn open(&self) -> (usize, usize) {
        let engine = self.engine.borrow();
        let far: usize = self.cores.iter().map(|core| core.left().calls).sum();
        (engine.open() + far, engine.shared.totals.held())
    }

    /// The host's socket.
    pub fn host(&self) -> &Path {
        &self.options.host
    }
}

/// How many descriptors this process may have.
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

/// Calls and connections in turns, as long as one finds something to do that the other left: a bounded number of times.
async fn rounds(
    engine: &RefCell<Engine>,
    tasks: &mut LocalSet,
    any: &mut bool,
) -> Result<Step, HostGone> {
    poll_fn(|cx| {
        for _ in 0..ROUNDS_PER_POLL {
            let stepped = {
                let mut engine = engine.borrow_mut();
                let now = engine.shared.now();
                engine.step(now)?
            };
            if engine.borrow().is_behind() {
                return Poll::Ready(Ok(stepped));
            }
            // It never ends: the tasks that listen do not.
            let _ = Pin::new(&mut *tasks).poll(cx);
            if stepped == Step::Progress {
                *any = true;
            } else if !engine.borrow().is_rung() {
                return Poll::Ready(Ok(stepped));
            }
        }
        Poll::Ready(Ok(Step::Progress))
    })
    .await
}

/// The descriptor as something that the runtime can wait for.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for what descriptors that we own cannot do"
)]
fn wait_for(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
