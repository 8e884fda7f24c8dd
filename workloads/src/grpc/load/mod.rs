//! A load for servers of the services in `proto/`, by raw HTTP/2.
//!
//! *Open loop* ([`Generator::open`]): calls are due at the times of a Poisson process and are sent on time,
//! independent of earlier calls. Latency counts from the due time, so that a server that stops delays every
//! call due meanwhile. *Closed loop* ([`Generator::closed`]): every stream calls again as soon as it has its
//! reply; for costs per call, not for latency.
//!
//! No call is sent twice. The server's replies are checked and bounded.

mod calls;
mod client;
mod reply;

use std::io;
use std::net::ToSocketAddrs;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::calls::Calls;
pub use self::calls::{ByKind, CallSettings, Kind, ParseError};
use self::client::{Client, Counts};
pub use self::reply::Failure;
use crate::arrivals::{self, Load, Mix};
use crate::cpu::monotonic_ns;
use crate::generator::{self, Seat};
use crate::point::{ClassLatency, Point};
use crate::recorder::{Recorder, Window};

/// Time limit for a server to accept the connections.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Limits of the generator's lag: of its p99, and of the last call.
const LAG_P99_LIMIT_NS: u64 = 1_000_000;
const LAST_LAG_LIMIT_NS: u64 = 20_000_000;
/// The names of gRPC's statuses, by number.
const STATUS_NAMES: [&str; reply::STATUSES] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target is invalid.
    #[error("`{target}` is no address to call, as in 127.0.0.1:50051: {error}")]
    Target { target: String, error: Box<dyn std::error::Error + Send + Sync> },
    /// The load is invalid.
    #[error(transparent)]
    Load(#[from] arrivals::Error),
    #[error("{target} cannot be reached: {error}; is a server listening there?")]
    Connect { target: String, error: io::Error },
    /// No runtime could be created on this thread.
    #[error("making an event loop: {0}")]
    Runtime(io::Error),
}

/// The server, and the connections to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Host and port of the server.
    pub address: String,
    pub connections: usize,
    /// Maximum number of calls in flight on a connection; the server may allow fewer.
    pub streams: usize,
}

/// Outcomes of the calls due after the warm-up. Together with refused and unanswered calls they add up to the number of
/// sent calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// gRPC statuses that occurred.
    pub statuses: Vec<(String, u64)>,
    /// Failures without a gRPC status that occurred.
    pub failures: Vec<(String, u64)>,
    /// Calls without an answer when the load was given up, warm-up included.
    pub unanswered: u64,
    /// Calls with status OK, but a wrong reply.
    pub wrong: u64,
}

impl Answers {
    fn new(counts: &Counts, unanswered: u64) -> Answers {
        let named = |names: Vec<&str>, counts: &[u64]| {
            let all = names.into_iter().zip(counts).filter(|(_, count)| **count > 0);
            all.map(|(name, count)| (name.to_owned(), *count)).collect()
        };
        Answers {
            statuses: named(STATUS_NAMES.to_vec(), &counts.statuses),
            failures: named(Failure::ALL.map(Failure::name).to_vec(), &counts.failures),
            unanswered,
            wrong: counts.wrong,
        }
    }

    /// Number of calls that ended with this gRPC status.
    pub fn status(&self, name: &str) -> u64 {
        self.statuses.iter().find(|(each, _)| each == name).map_or(0, |(_, count)| *count)
    }
}

/// Results of an open loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Rates, latencies by class, and the generator's lag. Calls that ended with status OK count as done.
    pub point: Point,
    pub answers: Answers,
}

/// Results of a closed loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Closed {
    /// Calls that were sent.
    pub sent: u64,
    /// Those that ended with status OK.
    pub done: u64,
    /// Time from the first call to the last reply.
    pub duration_s: f64,
    /// `done` divided by `duration_s`.
    pub achieved_per_second: f64,
    /// Latencies, each counted from when its call was sent: while a server stops no call is sent.
    pub classes: Vec<ClassLatency>,
    pub answers: Answers,
}

/// A connected load generator. All work happens on the calling thread.
pub struct Generator {
    client: Client,
    calls: CallSettings,
    mix: Mix,
    seed: u64,
}

impl Generator {
    /// Connects. The same seed gives the same loads.
    pub fn connect(target: &Target, calls: &CallSettings, seed: u64) -> Result<Generator, Error> {
        let bad = |error: Box<dyn std::error::Error + Send + Sync>| Error::Target {
            target: target.address.clone(),
            error,
        };
        let mix = calls.mix()?;
        let addresses = target.address.to_socket_addrs().map_err(|error| bad(error.into()))?;
        let writer = Calls::new(&target.address, calls).map_err(|error| bad(error.into()))?;
        let recorder = Recorder::new(&mix, 1);
        let client =
            Client::new(addresses.collect(), target.connections, target.streams, writer, recorder);
        let client = client.map_err(Error::Runtime)?;
        client
            .wait_connected(CONNECT_PATIENCE)
            .map_err(|error| Error::Connect { target: target.address.clone(), error })?;
        Ok(Generator { client, calls: calls.clone(), mix, seed })
    }

    /// Gives later loads another seed.
    pub fn set_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// Calls at `rate` per second, for the warm-up and then the measured time. Waits for answers until `drain` after the last
    /// call.
    ///
    /// Spins on its CPU, and yields to processes that share it.
    pub fn open(
        &mut self,
        rate: f64,
        warm_up: Duration,
        duration: Duration,
        drain: Duration,
    ) -> Result<Open, Error> {
        let load = Load::new(rate, self.mix.clone(), self.calls.keys, self.seed)?;
        let settings = generator::Settings {
            lag_p99_limit_ns: LAG_P99_LIMIT_NS,
            last_lag_limit_ns: LAST_LAG_LIMIT_NS,
            ..generator::Settings::new(duration, warm_up, Seat::Shared)
        };
        self.client.begin();
        let shared = self.client.shared();
        let report = generator::run(load, &settings, shared.recorder(), &mut self.client);
        let unanswered = self.client.drain(drain);
        let answers = Answers::new(&self.client.counts(), unanswered);
        Ok(Open { point: Point::new(&report, &shared.recorder().collect()), answers })
    }

    /// Keeps all streams busy for `duration`, and waits for the last replies.
    pub fn closed(&mut self, duration: Duration, drain: Duration) -> Result<Closed, Error> {
        // The rate is unused here, as no arrival time is read.
        let load = Load::new(1.0, self.mix.clone(), self.calls.keys, self.seed)?;
        let start_ns = monotonic_ns();
        let window = Window { start_ns, from_ns: start_ns, to_ns: u64::MAX };
        self.client.recorder().open(window);
        self.client.begin();
        self.client.keep_busy(load, duration);
        let unanswered = self.client.drain(drain);
        let duration_s = (monotonic_ns() - start_ns) as f64 / 1e9;
        let recorded = self.client.recorder().collect();
        Ok(Closed {
            sent: recorded.sent,
            done: recorded.done,
            duration_s,
            achieved_per_second: recorded.done as f64 / duration_s,
            classes: ClassLatency::all(&recorded),
            answers: Answers::new(&self.client.counts(), unanswered),
        })
    }
}
