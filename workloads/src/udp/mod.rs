//! A load in datagrams, for an agent's front (`wave agent --udp`) before a server of the services in `proto/`.
//!
//! An open loop, like [`crate::grpc::load`]: each request is sent when it is due, independent of earlier ones, and latency counts
//! from the due time, including all tries. An unanswered request is sent again under the same id. A request that is
//! refused for lack of a host is sent again under a new id. A request without an answer at the end is lost. With a target for the
//! queue at the host, a request that finds every socket's [`Window`] full is not sent at all.
//! PUTs are not idempotent: each sets its own key, so the store's log of writes shows double execution.

mod closed;
mod mix;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use wave_udp_client::Window;
use wave_udp_client::wire::{DATAGRAM_MAX, Header, IDEMPOTENT, REFUSED, REPLY, Status, TIMED};

pub use self::closed::{Asked, ClosedLoad, Shape};
pub use self::mix::{Kind, ParseError, UdpMix};
use crate::arrivals::{self, Load};
use crate::cpu::monotonic_ns;
use crate::generator::{self, Refused, Request, Seat, Server};
use crate::point::{ClassLatency, Point};
use crate::recorder::{Recorder, histogram};

/// Limits of the generator's lag: at the p99, and of the last request.
const LAG_P99_LIMIT_NS: u64 = 1_000_000;
const LAST_LAG_LIMIT_NS: u64 = 20_000_000;
/// Time for a front to answer with its incarnation.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Span of unanswered ids per socket; it fits the front's window.
const UNDER_WAY_MAX: usize = 1000;
/// Maximum number of datagrams received from a socket at a time.
const TAKEN_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target is not an address.
    #[error("`{target}` is not an address such as 127.0.0.1:50052: {error}")]
    Target { target: String, error: io::Error },
    #[error(transparent)]
    Load(#[from] arrivals::Error),
    /// The front does not answer.
    #[error("no answer from {0}: does `wave agent --rpc SOCKET --udp {0}` run there?")]
    Silent(String),
    #[error("a socket to {target}: {error}")]
    Socket { target: String, error: io::Error },
}

#[derive(Clone, Debug)]
pub struct Settings {
    /// Host and port of the server.
    pub target: String,
    /// Number of sockets; each is a sender to the front.
    pub sockets: usize,
    pub mix: UdpMix,
    /// Number of keys that GETs draw from.
    pub keys: u64,
    /// Size of echoes and of PUT values, in bytes.
    pub value_bytes: usize,
    /// Interval between tries of a request; `None` sends it once.
    pub retry: Option<Duration>,
    /// Seed of times, kinds, keys and ids.
    pub seed: u64,
    /// Number of the run, below 2^22: PUTs of different runs have different keys.
    pub run: u64,
    /// One in this many requests asks for its time at the front ([`TIMED`]); with 0 none does.
    pub timed: u64,
    /// Number of open requests at the host that each socket's window aims at; `None` sends every due request. Needs `retry`, as a
    /// lost reply would otherwise close a part of the window forever.
    pub queue_target: Option<u32>,
    /// Ends the load when it becomes true; what was measured so far is the outcome.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Outcomes of the requests that were due after the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Executed requests by name of their status.
    pub executed: BTreeMap<String, u64>,
    /// Refused requests by name of their status.
    pub refused: BTreeMap<String, u64>,
    /// Requests answered with OUTCOME_UNKNOWN.
    pub outcome_unknown: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// Replies with status OK and a wrong message.
    pub wrong: u64,
    pub retries: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Rates, latencies by kind, and lag. `done` counts status OK.
    pub point: Point,
    /// Outcomes of the requests.
    pub ends: Ends,
    /// Mean number of open requests at the host, from replies without a time; 0 if there were none.
    pub open_at_host: f64,
    /// Times at the front by kind, of the timed requests whose latencies are in `point`; empty unless requests were timed. Replies
    /// to a later try have no time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_front: Vec<ClassLatency>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    /// The front refused the last try, as it has no host.
    was_refused: bool,
    incarnation: u64,
    cookie: u64,
}

/// A socket; the front sees it as one sender.
struct Sender {
    socket: UdpSocket,
    incarnation: u64,
    cookie: u64,
    next: u64,
    /// Window of requests in flight. With `None` only the front's window of ids bounds them.
    window: Option<Window>,
    pending: BTreeMap<u64, Pending>,
    /// Due time and id of each retry, the earliest first.
    retries: VecDeque<(u64, u64)>,
}

/// A load generator. It runs on the calling thread.
pub struct Generator {
    settings: Settings,
    client: Client,
    recorder: Recorder,
}

struct Client {
    senders: Vec<Sender>,
    mix: UdpMix,
    settings: Settings,
    turn: usize,
    ends: Ends,
    open_sum: u64,
    replies: u64,
    /// Times at the front by class; empty unless requests are timed.
    at_front: Vec<Histogram<u64>>,
    buffer: Vec<u8>,
    /// Buffer in which each datagram is built.
    datagram: Vec<u8>,
}

impl Generator {
    /// Opens the sockets, and gets an incarnation and a cookie for each.
    ///
    /// # Errors
    /// The target or load is invalid, a socket fails, or the front does not answer.
    pub fn connect(settings: &Settings) -> Result<Generator, Error> {
        let target = &settings.target;
        let bad = |error| Error::Target { target: target.clone(), error };
        let address = target.to_socket_addrs().map_err(bad)?.next();
        let address = address.ok_or_else(|| bad(io::ErrorKind::NotFound.into()))?;
        let recorder = Recorder::new(&settings.mix.mix()?, 1);
        let failed = |error| Error::Socket { target: target.clone(), error };
        let first = settings.seed << 32 | 1;
        let window = settings.queue_target.map(Window::new);
        let senders = (0..settings.sockets)
            .map(|_| Sender::new(address, first, window.clone()).map_err(failed));
        let mut senders = senders.collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + CONNECT_PATIENCE;
        for sender in &mut senders {
            sender.greet(until).map_err(failed)?;
            if sender.cookie == 0 {
                return Err(Error::Silent(target.clone()));
            }
        }
        let client = Client {
            senders,
            mix: settings.mix.clone(),
            settings: settings.clone(),
            turn: 0,
            ends: Ends::default(),
            open_sum: 0,
            replies: 0,
            at_front: settings
                .mix
                .0
                .iter()
                .filter(|_| settings.timed > 0)
                .map(|_| histogram())
                .collect(),
            buffer: vec![0; DATAGRAM_MAX],
            datagram: Vec::new(),
        };
        Ok(Generator { settings: settings.clone(), client, recorder })
    }

    /// Sets the seed of the next loads: of their times, kinds and keys.
    pub fn set_seed(&mut self, seed: u64) {
        self.settings.seed = seed;
    }

    /// Sends `rate` requests per second during the warm-up and the measurement, and waits up to `drain` for the last answers.
    ///
    /// Spins on its CPU, and yields to other threads.
    ///
    /// # Errors
    /// The load is invalid.
    pub fn open(
        &mut self,
        rate: f64,
        warm_up: Duration,
        duration: Duration,
        drain: Duration,
    ) -> Result<Outcome, Error> {
        let Settings { mix, keys, seed, .. } = &self.settings;
        let mix = mix.mix()?;
        let load = Load::new(rate, mix.clone(), *keys, *seed)?;
        let settings = generator::Settings {
            lag_p99_limit_ns: LAG_P99_LIMIT_NS,
            last_lag_limit_ns: LAST_LAG_LIMIT_NS,
            ..generator::Settings::new(duration, warm_up, Seat::Shared)
        };
        self.client.begin();
        let mut run = Run { client: &mut self.client, recorder: &self.recorder };
        let report = generator::run(load, &settings, &self.recorder, &mut run);
        let deadline = Instant::now() + drain;
        while run.client.under_way() > 0 && Instant::now() < deadline {
            run.between();
            std::thread::yield_now();
        }
        let client = &mut self.client;
        client.give_up(|request| self.recorder.counts(request.intended_ns));
        let open_at_host = client.open_sum as f64 / client.replies.max(1) as f64;
        let ends = std::mem::take(&mut client.ends);
        let point = Point::new(&report, &self.recorder.collect());
        let at_front = mix.names().iter().zip(&client.at_front);
        let at_front = at_front.map(|(name, histogram)| ClassLatency::of(name, histogram));
        Ok(Outcome { point, ends, open_at_host, at_front: at_front.collect() })
    }
}

struct Run<'a> {
    client: &'a mut Client,
    recorder: &'a Recorder,
}

impl Server for Run<'_> {
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        self.client.submit(request)
    }

    fn between(&mut self) {
        self.client.poll(self.recorder);
    }

    fn ends_early(&self) -> bool {
        self.client.settings.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}

impl Sender {
    fn new(to: SocketAddr, first: u64, window: Option<Window>) -> io::Result<Sender> {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(to)?;
        Ok(Sender {
            socket,
            incarnation: 0,
            cookie: 0,
            next: first,
            window,
            pending: BTreeMap::new(),
            retries: VecDeque::new(),
        })
    }

    /// Whether one more request may be in flight.
    fn has_room(&mut self) -> bool {
        let Sender { pending, next, window, .. } = self;
        let first = pending.first_key_value();
        first.is_none_or(|(first, _)| *next - first < UNDER_WAY_MAX as u64)
            && window.as_mut().is_none_or(|window| window.has_room(pending.len()))
    }

    /// Counts a request that was refused or not answered in time.
    fn not_served(&mut self) {
        if let Some(window) = &mut self.window {
            window.not_served(self.pending.len());
        }
    }

    /// Schedules a pending request for `due_ns` under a new id.
    fn renew(&mut self, id: u64, due_ns: u64) {
        let Some(Pending { request, .. }) = self.pending.remove(&id) else { return };
        let Sender { incarnation, cookie, next, .. } = *self;
        let pending = Pending { request, was_refused: true, incarnation, cookie };
        self.pending.insert(next, pending);
        self.retries.push_back((due_ns, next));
        self.next += 1;
    }

    /// Asks for an incarnation and a cookie until they arrive or `until` passes.
    fn greet(&mut self, until: Instant) -> io::Result<()> {
        let mut buffer = [0; 64];
        self.socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        while self.cookie == 0 && Instant::now() < until {
            let hello = Header { flags: IDEMPOTENT, ..Header::default() };
            // An error means that no front listens yet.
            let _ = self.socket.send(&hello.encode());
            let Ok(bytes) = self.socket.recv(&mut buffer) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if let Ok((header, _)) = Header::decode(&buffer[..bytes])
                && header.has(REPLY)
            {
                (self.incarnation, self.cookie) = (header.incarnation, header.cookie);
            }
        }
        self.socket.set_nonblocking(true)
    }
}

impl Client {
    /// Resets the counts of the previous load.
    fn begin(&mut self) {
        (self.open_sum, self.replies) = (0, 0);
        self.at_front.iter_mut().for_each(Histogram::reset);
    }

    fn under_way(&self) -> usize {
        self.senders.iter().map(|sender| sender.pending.len()).sum()
    }

    /// Forgets pending requests: those that count are lost, or refused if the last try was.
    fn give_up(&mut self, counts: impl Fn(&Request) -> bool) {
        let Client { senders, ends, .. } = self;
        for sender in senders {
            for pending in sender.pending.values().filter(|pending| counts(&pending.request)) {
                match pending.was_refused {
                    true => {
                        let name = Status::UNAVAILABLE.name().to_owned();
                        *ends.refused.entry(name).or_default() += 1;
                    }
                    false => ends.lost += 1,
                }
            }
            sender.pending.clear();
            sender.retries.clear();
        }
    }

    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let count = self.senders.len();
        let free = (0..count)
            .map(|step| (self.turn + step) % count)
            .find(|&at| self.senders[at].has_room());
        let at = free.ok_or(Refused)?;
        self.turn = (at + 1) % count;
        let sender = &mut self.senders[at];
        let id = sender.next;
        sender.next += 1;
        let (incarnation, cookie) = (sender.incarnation, sender.cookie);
        let pending = Pending { request, was_refused: false, incarnation, cookie };
        sender.pending.insert(id, pending);
        self.send(at, id, request.intended_ns.max(monotonic_ns()));
        Ok(())
    }

    /// Sends a pending request and schedules its retry.
    fn send(&mut self, at: usize, id: u64, now_ns: u64) {
        let sender = &mut self.senders[at];
        let Some(pending) = sender.pending.get_mut(&id) else { return };
        pending.was_refused = false;
        let Pending { request, incarnation, cookie, .. } = *pending;
        let kind = self.mix.0[usize::from(request.class.0)].0;
        let is_timed = self.settings.timed > 0 && id.is_multiple_of(self.settings.timed);
        let timed = if is_timed { TIMED } else { 0 };
        let header = Header {
            flags: if kind.is_idempotent() { IDEMPOTENT | timed } else { timed },
            class: self.mix.class(request.class),
            method: kind.method(),
            id,
            incarnation,
            cookie,
            work: kind.work_ns(),
            ..Header::default()
        };
        self.datagram.clear();
        self.datagram.extend_from_slice(&header.encode());
        kind.write(&request, &self.settings, &mut self.datagram);
        // A datagram that the kernel refuses is retried like a lost one.
        let _ = sender.socket.send(&self.datagram);
        if let Some(retry) = self.settings.retry {
            sender.retries.push_back((now_ns + retry.as_nanos() as u64, id));
        }
    }

    /// Receives replies, and sends due retries.
    fn poll(&mut self, recorder: &Recorder) {
        for at in 0..self.senders.len() {
            for _ in 0..TAKEN_MAX {
                let Ok(bytes) = self.senders[at].socket.recv(&mut self.buffer) else { break };
                self.take(at, bytes, recorder);
            }
            if self.settings.retry.is_none() {
                continue;
            }
            let now_ns = monotonic_ns();
            while let Some(&(due_ns, id)) = self.senders[at].retries.front()
                && due_ns <= now_ns
            {
                self.senders[at].retries.pop_front();
                if let Some(&Pending { was_refused, .. }) = self.senders[at].pending.get(&id) {
                    self.ends.retries += 1;
                    if !was_refused {
                        self.senders[at].not_served();
                    }
                    self.send(at, id, now_ns);
                }
            }
        }
    }

    fn take(&mut self, at: usize, bytes: usize, recorder: &Recorder) {
        let end_ns = monotonic_ns();
        let Ok((header, message)) = Header::decode(&self.buffer[..bytes]) else { return };
        let sender = &mut self.senders[at];
        let Some(pending) = sender.pending.get_mut(&header.id).filter(|_| header.has(REPLY)) else {
            return;
        };
        let request = pending.request;
        let kind = self.mix.0[usize::from(request.class.0)].0;
        let status = Status(header.status);
        if status == Status::CHALLENGE || status == Status::OUTCOME_UNKNOWN {
            (sender.incarnation, sender.cookie) = (header.incarnation, header.cookie);
        }
        if status == Status::CHALLENGE {
            // Not executed. A late challenge must not cause a PUT to execute again under the new incarnation.
            if kind.is_idempotent() {
                (pending.incarnation, pending.cookie) = (header.incarnation, header.cookie);
                self.send(at, header.id, end_ns);
            }
            return;
        }
        if header.has(REFUSED) || status == Status::UNAVAILABLE {
            sender.not_served();
        }
        let may_go_on = kind.is_idempotent() || header.has(REFUSED);
        if let Some(retry) = self.settings.retry
            && status == Status::UNAVAILABLE
            && may_go_on
        {
            // The next try may find a host. It has a new id: a refusal may be final, and the front's window moves on.
            sender.renew(header.id, end_ns + retry.as_nanos() as u64);
            return;
        }
        sender.pending.remove(&header.id);
        let is_reply = !header.has(REFUSED) && status != Status::OUTCOME_UNKNOWN;
        if let Some(window) = sender.window.as_mut().filter(|_| is_reply && !header.has(TIMED)) {
            window.replied(header.work, sender.pending.len());
        }
        let name = || status.name().to_owned();
        if recorder.counts(request.intended_ns) {
            if !header.has(TIMED) {
                self.open_sum += u64::from(header.work);
                self.replies += 1;
            }
            match status {
                Status::OUTCOME_UNKNOWN => self.ends.outcome_unknown += 1,
                _ if header.has(REFUSED) => *self.ends.refused.entry(name()).or_default() += 1,
                _ => *self.ends.executed.entry(name()).or_default() += 1,
            }
            if status == Status::OK && !kind.is_right(&request, &self.settings, message) {
                self.ends.wrong += 1;
            }
        }
        if status == Status::OK
            && recorder.done_at(0, &request, end_ns)
            && header.has(TIMED)
            && let Some(times) = self.at_front.get_mut(usize::from(request.class.0))
        {
            times.saturating_record(header.work.into());
        }
    }
}
