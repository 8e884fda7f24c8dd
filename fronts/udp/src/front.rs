//! The front: one socket, and a host that may be lost and replaced.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use wave_agent::{Attached, Attacher, OwnBell, ReadyLine, Seat, ThreadFront, attach_rpc};
use wave_core::agent::{Front, Step};
use wave_core::clock::Nanos;
use wave_core::layout::{CORES_MAX, Config};
use wave_core::link::{Doorbell, Waiter};
use wave_core::policy::{Note, Progress};
use wave_core::settings::PolicyError;
use wave_links::EventFd;
use wave_links::socket::SocketError;
use wave_process::heap::Spare;
use wave_process::say;
use wave_rpc::dispatch::{Event, HostGone};
use wave_rpc::steer;
use wave_udp_client::wire::Status;

use crate::clients::Clients;
use crate::counts::{Counts, Fate};
use crate::door::Door;
use crate::host::Host;
use crate::memcached::{Memcached, Prefix};
use crate::socket::{Socket, Took};

/// Interval between checks that the host is alive.
const LIFE_CHECK: Nanos = Nanos::from_millis(50);
/// Interval between reads of the socket after an empty or incomplete batch.
const POLL_EVERY: Nanos = Nanos::from_micros(2);
/// Time for open requests to finish after SIGTERM.
const DRAIN: Nanos = Nanos::from_millis(10_000);
/// Shortest interval between reports of dropped datagrams.
const REPORT_EVERY: Nanos = Nanos::from_millis(10_000);
/// Interval between attempts to send while replies wait for the kernel.
const ROOM_EVERY: Nanos = Nanos::from_millis(1);

/// Options of a front for datagrams.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Path of the host's socket.
    pub host: PathBuf,
    /// Address and port to bind.
    pub address: SocketAddr,
    /// Take datagrams from public addresses too.
    pub takes_public: bool,
    /// Speak memcached's protocol instead of the front's own, with these addresses only.
    pub memcached: Option<Vec<Prefix>>,
    /// The steering policy, as text ([`steer`]).
    pub steer: String,
    /// How the front's core waits for work.
    pub seat: Seat,
    /// Print only errors.
    pub quiet: bool,
}

/// Why a front cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum FrontError {
    /// The steering policy is invalid.
    #[error(transparent)]
    Steer(#[from] PolicyError),
    /// `--udp-memcached` lists public addresses, without `--udp-public`.
    #[error(
        "--udp-memcached {0} has public addresses, at which anyone can direct replies: --udp-public allows it"
    )]
    Public(Prefix),
    /// The host's socket cannot be used.
    #[error(transparent)]
    Host(#[from] SocketError),
    /// The address cannot be bound.
    #[error("cannot bind {address} for datagrams: {error}")]
    Bind { address: SocketAddr, error: io::Error },
    /// A descriptor or signal handler cannot be set up.
    #[error("cannot wait for work: {0}")]
    System(#[from] io::Error),
}

/// Ends a front from another thread.
#[derive(Clone, Debug)]
pub struct Ender {
    ends: Arc<AtomicBool>,
    bell: Arc<EventFd>,
}

impl Ender {
    /// Asks the front to end, as SIGTERM does: it refuses new requests and lets open ones finish.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.bell.ring();
    }
}

/// Front for requests in datagrams, on this agent's core.
pub struct UdpFront {
    clients: Clients,
    address: SocketAddr,
    host: Option<Host>,
    /// The line to print once requests are accepted.
    ready_line: Option<ReadyLine>,
    attacher: Attacher<Attached>,
    /// Rung when a host is found or the front should end.
    ready: Arc<EventFd>,
    ends: Arc<AtomicBool>,
    drains_until: Option<Nanos>,
    /// Bell of a scheduling agent on the same core.
    other: Option<OwnedFd>,
    events: Vec<Event>,
    polled_at: Nanos,
    due: Option<Nanos>,
    has_more: bool,
    /// Whether work was done since the memory was last looked at.
    has_worked: bool,
    spare: Spare,
    parks: bool,
    said: (Nanos, u64),
    /// Time of the last message about an error of the socket.
    failed: Option<Nanos>,
    options: UdpOptions,
    start: Instant,
    /// Why the steering policy does not fit the host.
    unfit: Option<PolicyError>,
}

impl UdpFront {
    /// Binds the socket and starts looking for the host. `start` is the origin of the agent's clock.
    ///
    /// # Errors
    /// See [`FrontError`].
    pub fn new(options: UdpOptions, start: Instant) -> Result<UdpFront, FrontError> {
        // Reject a policy that fits no host before anything else is set up.
        let largest = Config { subjects: 1, ..Config::coherent(CORES_MAX as u16) };
        steer::by_name(&options.steer, &largest)?;
        let listed = options.memcached.iter().flatten();
        let public = listed.copied().find(|prefix| !options.takes_public && !prefix.is_private());
        if let Some(prefix) = public {
            return Err(FrontError::Public(prefix));
        }
        let bad = |error| FrontError::Bind { address: options.address, error };
        let socket = Socket::bind(options.address).map_err(bad)?;
        let address = socket.address().map_err(bad)?;
        let ready = Arc::new(EventFd::new()?);
        let ends = Arc::<AtomicBool>::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&ends))?;
        }
        let bell = Arc::clone(&ready);
        let host = options.host.clone();
        let attacher = Attacher::new(host, attach_rpc, move || bell.ring(), options.quiet)?;
        Ok(UdpFront {
            clients: Clients {
                socket,
                door: Door::new(options.takes_public),
                memcached: options.memcached.clone().map(Memcached::new),
            },
            address,
            host: None,
            ready_line: None,
            attacher,
            ready,
            ends,
            drains_until: None,
            other: None,
            events: Vec::new(),
            polled_at: Nanos(0),
            due: None,
            has_more: false,
            has_worked: false,
            spare: Spare::new(),
            parks: false,
            said: (Nanos(0), 0),
            failed: None,
            options,
            start,
            unfit: None,
        })
    }

    /// Address and port that the socket is bound to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the front takes, for messages.
    pub fn language(&self) -> &'static str {
        match &self.clients.memcached {
            None => "datagrams",
            Some(_) => "memcached's commands in datagrams",
        }
    }

    /// A handle with which another thread ends this front.
    pub fn ender(&self) -> Ender {
        Ender { ends: Arc::clone(&self.ends), bell: Arc::clone(&self.ready) }
    }

    /// Counts of datagrams by fate.
    pub fn counts(&self) -> Counts {
        let mut counts = self.clients.door.counts;
        let [overflow, unsent] = self.clients.socket.lost();
        counts.set(Fate::Overflow, overflow);
        counts.set(Fate::Unsent, unsent);
        counts
    }

    fn check_host(&mut self, now: Nanos) {
        match &mut self.host {
            None => {
                if let Some(attached) = self.attacher.take() {
                    self.attach(now, attached);
                }
            }
            Some(host) if now.since(host.polled_at) >= LIFE_CHECK => {
                host.polled_at = now;
                if host.line.hung_up() {
                    let why = host.dispatch.why_gone();
                    self.lose_host(now, why);
                }
            }
            Some(_) => {}
        }
    }

    fn attach(&mut self, now: Nanos, attached: Attached) {
        let config = attached.layout.config;
        let steering = match steer::by_name(&self.options.steer, &config) {
            Ok(steering) => steering,
            Err(error) => {
                self.unfit = Some(error);
                return self.ends.store(true, Ordering::Relaxed);
            }
        };
        if !self.options.quiet {
            let (steer, host) = (&self.options.steer, self.options.host.clone());
            let line = ReadyLine::new(now, steer, host, &config, "request", &attached.link);
            self.ready_line = Some(line);
        }
        self.host = Some(Host::new(now, attached, steering));
    }

    /// Announces the host once requests are accepted.
    fn announce(&mut self, now: Nanos) {
        if let (Some(line), Some(host)) = (&mut self.ready_line, &self.host)
            && line.print_due(now, host.dispatch.is_ready())
        {
            self.ready_line = None;
        }
    }

    /// Ends the host's open requests.
    fn lose_host(&mut self, now: Nanos, gone: HostGone) {
        let Some(host) = self.host.take() else { return };
        for open in host.open.into_iter().flatten() {
            self.clients.lose(open);
        }
        if matches!(gone, HostGone::Replaced) {
            if !self.options.quiet {
                say!("wave agent: {gone}; leaving");
            }
            self.ends.store(true, Ordering::Relaxed);
            self.drains_until = Some(now);
            return;
        }
        if !self.options.quiet || matches!(gone, HostGone::Nonsense(_) | HostGone::Fault) {
            say!("wave agent: {gone}; requests are refused with UNAVAILABLE until a host is back");
        }
        self.attacher.begin();
    }

    /// Receives and judges a batch of datagrams.
    fn receive(&mut self, now: Nanos) -> Took {
        let ends = self.ends.load(Ordering::Relaxed);
        let received = self.clients.receive(self.host.as_mut(), now, ends);
        received.unwrap_or_else(|error| {
            // The same error may occur in every turn.
            if self.failed.is_none_or(|at| now.since(at) >= REPORT_EVERY) {
                self.failed = Some(now);
                say!("wave agent: cannot receive datagrams: {error}");
            }
            Took::Nothing
        })
    }

    /// One round with the host: takes replies and hands requests over.
    fn step_host(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Step {
        let Some(host) = &mut self.host else { return Step::Idle(None) };
        let stepped = host.dispatch.step(now, &mut self.events);
        notes.extend(host.dispatch.take_notes().map(|request| request.to_note()));
        for event in self.events.drain(..) {
            match event {
                Event::Service(service) => host.learn(service),
                Event::Message { call, message, end, .. } => {
                    if end {
                        self.clients.finish(host, call, Status::OK, Some(message));
                    } else if let Some(Some(open)) = host.open.get_mut(call.id as usize) {
                        host.dispatch.grant(call, message.len() as u32);
                        open.message = Some(message);
                    }
                }
                Event::Status { call, status, .. } | Event::Stopped { call, status } => {
                    let code = Status(status.code as u8);
                    let text = (code != Status::OK).then(|| Bytes::from(status.message));
                    self.clients.finish(host, call, code, text);
                }
                Event::Headers { .. } | Event::Taken { .. } => {}
            }
        }
        match stepped {
            Ok(Step::Revoked) => {
                let why = host.dispatch.why_gone();
                self.lose_host(now, why);
                Step::Progress
            }
            Ok(step) => step,
            Err(error) => {
                self.lose_host(now, HostGone::Nonsense(error));
                Step::Progress
            }
        }
    }

    /// Reports dropped datagrams, at most every [`REPORT_EVERY`].
    fn report_dropped(&mut self, now: Nanos) {
        let (at, before) = self.said;
        if self.options.quiet || now.since(at) < REPORT_EVERY {
            return;
        }
        let counts = self.counts();
        self.said = (now, counts.dropped());
        if counts.dropped() > before {
            say!("wave agent: datagrams so far: {counts}");
        }
    }
}

impl Front for UdpFront {
    fn poll(&mut self, now: Nanos, notes: &mut Vec<Note>) -> Progress {
        self.check_host(now);
        let mut took = Took::Nothing;
        if self.parks || now.since(self.polled_at) >= POLL_EVERY {
            took = self.receive(now);
            if took != Took::Some {
                self.polled_at = now;
            }
        }
        let step = self.step_host(now, notes);
        self.announce(now);
        let sent = self.clients.socket.flush();
        self.report_dropped(now);
        self.has_more = took == Took::Some || step == Step::Progress;
        let worked = self.has_more || took == Took::All || sent > 0;
        self.has_worked |= worked;
        let retry = self.clients.socket.waits().then(|| now + ROOM_EVERY);
        self.due = match step {
            Step::Idle(until) => until.into_iter().chain(retry).min(),
            _ => retry,
        };
        if worked { Progress::More } else { Progress::Done }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.due
    }

    fn prepare_park(&mut self) {
        if let Some(host) = &mut self.host {
            host.dispatch.prepare_park();
        }
        self.parks = true;
    }

    fn unpark(&mut self) {
        if let Some(host) = &mut self.host {
            host.dispatch.unpark();
        }
        self.parks = false;
    }
}

impl ThreadFront for UdpFront {
    fn start(&self) -> Instant {
        self.start
    }

    fn has_ended(&mut self) -> bool {
        if !self.ends.load(Ordering::Relaxed) {
            return false;
        }
        let now = Nanos(self.start.elapsed().as_nanos() as u64);
        let until = *self.drains_until.get_or_insert(now + DRAIN);
        let is_empty = self.host.as_ref().is_none_or(|host| host.dispatch.open() == 0);
        let has_ended = is_empty && !self.clients.socket.waits() || now >= until;
        if has_ended && !self.options.quiet && self.counts() != Counts::default() {
            say!("wave agent: datagrams: {}", self.counts());
        }
        has_ended
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn failure(&self) -> Option<String> {
        self.unfit.as_ref().map(ToString::to_string)
    }

    fn seat(&self) -> Seat {
        self.options.seat
    }

    fn spin(&self) -> Nanos {
        self.host.as_ref().map_or(Nanos(0), |host| host.dispatch.spin())
    }

    /// Returns memory to the system after a flood of requests.
    fn maintain(&mut self) {
        let now = Nanos(self.start.elapsed().as_nanos() as u64);
        self.spare.trim(now, std::mem::take(&mut self.has_worked));
    }

    fn join(&mut self, bell: &OwnBell) {
        self.other = bell.as_fd().try_clone_to_owned().ok();
    }

    fn wait(&mut self, agents: Option<&OwnBell>, timeout: Duration) {
        let bell = self.host.as_ref().map(|host| &host.bell);
        let fds = [Some(self.clients.socket.as_fd()), Some(self.ready.as_fd())];
        let more = [self.other.as_ref().map(AsFd::as_fd), bell.map(AsFd::as_fd)];
        let all = fds.into_iter().chain(more).flatten();
        let mut fds: Vec<PollFd<'_>> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout =
            Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // A signal ends the wait early; the next turn sees its cause.
        let _ = poll(&mut fds, Some(&timeout));
        let rung = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let hosts = 2 + usize::from(self.other.is_some());
        let [is_ready, agent_is_rung, host_rang] = [rung(1), hosts > 2 && rung(2), rung(hosts)];
        if is_ready {
            self.ready.drain();
        }
        if let Some(bell) = agents.filter(|_| agent_is_rung) {
            bell.wait(Some(Duration::ZERO));
        }
        if let Some(bell) = bell.filter(|_| host_rang) {
            bell.wait(Some(Duration::ZERO));
        }
    }
}
