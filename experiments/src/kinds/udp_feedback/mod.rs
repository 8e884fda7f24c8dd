//! Overload by senders that follow the queue at the host, compared with senders that do not. First a closed loop measures the
//! host's capacity. Then both kinds of sender offer the same multiples of it to the same agent, with the same arrivals: once in each
//! round, in random order (docs/adr/0106).

mod result;
pub(crate) mod scenario;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_process::cpus;
use wave_user::rpc::Server;
use wave_workloads::recorder::decode;
use wave_workloads::udp::{Asked, ClosedLoad, Generator, Outcome, Settings, Shape};

pub use self::result::{FeedbackResult, Row};
pub use self::scenario::UdpFeedback;
use super::rpc::host_options;
use super::{Experiment, Kind, Wanted, digest, keep_when_interrupted};
use crate::ground::neighbours::Neighbours;
use crate::ground::rounds::over_rounds;
use crate::ground::seating::{self, Seating};
use crate::ground::udp_report::Header;
use crate::ground::{
    Failure, Journal, enough_cpus, pin_housekeeping, planned, take_generators_seat,
};
use crate::store;
use wave_apps::agent::AgentProcess;
use wave_report::Report;
use wave_scenario::reference::fields_of;
use wave_terminal::Progress;

pub(super) static KIND: Kind = Kind {
    names: &["udp-feedback"],
    about: "Overload by senders of datagrams that follow the queue at the host, beside senders that do not.",
    commands: "`wave run FILE`",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<UdpFeedback>,
    takes_agent: false,
    read: |wished| Ok(Box::new(scenario::read(wished.source)?)),
};

impl Experiment for UdpFeedback {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, self.host.link.file())
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        keep_when_interrupted(journal)?;
        Ok(Box::new(run(self, wanted.quiet, journal)?))
    }
}

/// Requests in flight on each socket of the capacity measurement.
const UNDER_WAY: u32 = 4;
/// With more than one lost round in this many, the capacity is unknown.
const LOST_SHARE: usize = 4;
/// Time allowed for the last answers of a load.
const DRAIN: Duration = Duration::from_secs(10);
/// Interval between tries of a request without an answer.
const RETRY: Duration = Duration::from_millis(100);

/// Rule by which due requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Every request is sent.
    All,
    /// Windows follow the queue at the host.
    Windows,
}

impl Sending {
    const BOTH: [Sending; 2] = [Sending::All, Sending::Windows];

    /// Name of the senders in results.
    fn name(self) -> &'static str {
        match self {
            Sending::All => "without feedback",
            Sending::Windows => "with feedback",
        }
    }
}

/// One load by one kind of sender.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Measured {
    /// Replies with OK within the limit, counted from when their requests were due.
    within_limit_per_second: f64,
    /// Times from due to reply, over all requests that ended with OK.
    p50_ns: f64,
    p99_ns: f64,
    open_at_host: f64,
    /// Shares of the due requests: refused by the front, not sent, and unanswered.
    refused: f64,
    held_back: f64,
    lost: f64,
}

impl Measured {
    fn new(scenario: &UdpFeedback, outcome: &Outcome) -> Result<Self, Failure> {
        let Outcome { point, ends, open_at_host, .. } = outcome;
        if ends.wrong > 0 {
            return Err(Failure::Check(format!("{} replies were wrong", ends.wrong)));
        }
        let class = point.classes.first().ok_or_else(|| Failure::cannot("no class of requests"))?;
        let limit_ns = u64::from(scenario.run.limit_us) * 1_000;
        let latencies = decode(&class.histogram).map_err(Failure::cannot)?;
        let of_due = |count: u64| count as f64 / point.sent.max(1) as f64;
        Ok(Measured {
            within_limit_per_second: latencies.count_between(0, limit_ns) as f64 / point.duration_s,
            p50_ns: class.latency.p50_ns as f64,
            p99_ns: class.latency.p99_ns as f64,
            open_at_host: *open_at_host,
            refused: of_due(ends.refused.values().sum()),
            held_back: of_due(point.refused),
            lost: of_due(ends.lost),
        })
    }
}

/// A host, its agent and the senders.
struct System {
    // Fields are dropped in order: the agent before its host.
    closed: ClosedLoad,
    /// In the order of [`Sending::BOTH`].
    senders: Vec<Generator>,
    _agent: AgentProcess,
    _host: Server,
    seating: Seating,
}

/// Runs `scenario` from the calling thread, which sends the load. Measurements that `journal` has are not repeated.
pub fn run(
    scenario: &UdpFeedback,
    quiet: bool,
    journal: &Journal,
) -> Result<FeedbackResult, Failure> {
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    enough_cpus(scenario.host.workers, cpus.len(), &scenario.name, ("host.workers", false))?;
    let seating = seating::seat(&cpus, scenario.host.workers as usize, 1);
    let rounds = u64::from(scenario.run.rounds);
    let steps = rounds * (1 + 2 * scenario.run.loads.len() as u64);
    let progress = Progress::new(1 + steps, quiet);
    journal.follow(&progress);
    progress.say(&planned(steps, scenario.run.seconds));
    let neighbours = Neighbours::on(&cpus);
    progress.begin("starting an agent and its host");
    pin_housekeeping(&seating, &cpus)?;
    let mut system = System::start(scenario, seating)?;
    // Warm-up.
    system.capacity(scenario)?;
    progress.end();
    let mut capacities: Vec<f64> = Vec::new();
    for round in 0..rounds {
        progress.begin("the capacity");
        let key = format!("capacity, {round}");
        capacities.push(journal.point(&key, || system.capacity(scenario))?);
        progress.end();
    }
    let capacity = over_rounds(&capacities);
    let lost = capacities.iter().filter(|capacity| **capacity <= 0.0).count();
    if lost * LOST_SHARE > capacities.len() {
        let text = format!(
            "the closed loop that measures the capacity lost datagrams in {lost} of {rounds} rounds; fewer sockets may help"
        );
        return Err(Failure::Cannot(text));
    }
    let kinds: Vec<(f64, usize)> =
        scenario.run.loads.iter().flat_map(|load| [(*load, 0), (*load, 1)]).collect();
    let mut measured = vec![Vec::new(); kinds.len()];
    for round in 0..rounds {
        for at in wave_compare::order(scenario.run.seed, round, kinds.len()) {
            let (load, sender) = kinds[at];
            let name = Sending::BOTH[sender].name();
            progress.begin(&format!(
                "round {} of {rounds}: {load} times the capacity, {name}",
                round + 1
            ));
            let rate = load * capacity.value;
            let key = format!("{name}, {load}, {round}");
            let seed = scenario.run.seed + round;
            let measure = || system.measure(scenario, sender, rate, seed);
            measured[at].push(journal.point(&key, measure)?);
            progress.end();
        }
    }
    let rows = kinds.iter().zip(&measured);
    let rows = rows.map(|(&(load, sender), all)| Row::new(load, Sending::BOTH[sender], all));
    let rows: Vec<Row> = rows.collect();
    let seating = system.seating.to_string();
    drop(system);
    let named = (&*scenario.name, scenario.description.as_str());
    let ran = (journal, neighbours);
    let header = Header::new("udp-feedback", named, &scenario.host.link, seating, &cpus, ran)?;
    Ok(FeedbackResult::new(scenario, capacity, rows, header))
}

impl System {
    fn start(scenario: &UdpFeedback, seating: Seating) -> Result<System, Failure> {
        let mut options = host_options(&scenario.host.link, scenario.host.workers as u16)?;
        options.cpus.clone_from(&seating.workers);
        options.yields_cpu = seating.workers_yield;
        let host = Server::start(options, store::echo_methods()).map_err(Failure::cannot)?;
        let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = address.map_err(Failure::cannot)?.to_string();
        let steer = format!("jbsq:k={}", scenario.host.outstanding);
        let words = ["--udp", &address, "--steer", &steer, "--rpc"].map(Into::into);
        let words: Vec<_> = words.into_iter().chain([host.socket().into()]).collect();
        let agent =
            AgentProcess::start_with(&words, Some(seating.agents[0]), seating.agents_yield)?;
        take_generators_seat(&seating)?;
        let (sockets, yields) = (scenario.workload.sockets as usize, seating.generator_yields);
        let closed = ClosedLoad::connect(&address, sockets, Asked::spin(scenario.work()), yields);
        let closed = closed.map_err(|error| Failure::Cannot(format!("{address}: {error}")))?;
        let senders = Sending::BOTH.map(|sending| {
            let settings = Settings {
                target: address.clone(),
                sockets,
                mix: scenario.mix(),
                keys: 1,
                value_bytes: 0,
                retry: Some(RETRY),
                seed: scenario.run.seed,
                run: 0,
                timed: 0,
                queue_target: (sending == Sending::Windows).then_some(scenario.run.queue_target),
                stop: None,
            };
            Generator::connect(&settings).map_err(Failure::cannot)
        });
        let senders = senders.into_iter().collect::<Result<_, _>>()?;
        Ok(System { closed, senders, _agent: agent, _host: host, seating })
    }

    /// Throughput of the closed loop; 0 if a datagram was lost: it does not go on after that.
    fn capacity(&mut self, scenario: &UdpFeedback) -> Result<f64, Failure> {
        let (shape, start) = (Shape::Closed { under_way: UNDER_WAY }, Instant::now());
        let answered = self.closed.run(shape, Duration::from_secs_f64(scenario.run.seconds));
        Ok(answered.map_or(0.0, |answered| answered as f64 / start.elapsed().as_secs_f64()))
    }

    fn measure(
        &mut self,
        scenario: &UdpFeedback,
        sender: usize,
        rate: f64,
        seed: u64,
    ) -> Result<Measured, Failure> {
        self.senders[sender].set_seed(seed);
        let [warm_up, counted] = scenario.times();
        let outcome = self.senders[sender].open(rate, warm_up, counted, DRAIN);
        Measured::new(scenario, &outcome.map_err(Failure::cannot)?)
    }
}
