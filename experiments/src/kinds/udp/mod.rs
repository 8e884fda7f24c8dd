//! Throughput by the number of outstanding requests per worker: for each number, an agent with a front for datagrams, and its
//! host. All are up at once; in each round every one is loaded once, in random order, while the others are asleep (docs/adr/0106).

mod result;
pub(crate) mod scenario;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_process::cpus;
use wave_user::rpc::Server;
use wave_workloads::udp::{Asked, ClosedLoad, Shape};

pub use self::result::{Row, UdpResult};
pub use self::scenario::Udp;
use super::rpc::host_options;
use super::{Experiment, Kind, Wanted, digest, keep_when_interrupted};
use crate::ground::neighbours::Neighbours;
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
    names: &["udp"],
    about: "Throughput of requests in datagrams by the number of outstanding requests per worker.",
    commands: "`wave run FILE`",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<Udp>,
    takes_agent: false,
    read: |wished| Ok(Box::new(scenario::read(wished.source)?)),
};

impl Experiment for Udp {
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

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    /// 0 if a datagram was lost: a closed loop does not go on after that.
    per_second: f64,
    /// The error that ended the measurement early.
    lost: Option<String>,
}

/// A host and its agent, for one number of outstanding requests.
struct System {
    // Fields are dropped in order: the agent before its host.
    load: ClosedLoad,
    _agent: AgentProcess,
    _host: Server,
}

/// Runs `scenario` from the calling thread, which sends the load. Measurements that `journal` has are not repeated.
pub fn run(scenario: &Udp, quiet: bool, journal: &Journal) -> Result<UdpResult, Failure> {
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    enough_cpus(scenario.host.workers, cpus.len(), &scenario.name, ("host.workers", false))?;
    let seating = seating::seat(&cpus, scenario.host.workers as usize, 1);
    let (values, rounds) = (scenario.run.outstanding.len() as u64, u64::from(scenario.run.rounds));
    let progress = Progress::new(values * (1 + rounds), quiet);
    journal.follow(&progress);
    progress.say(&planned(values * rounds, scenario.run.seconds));
    let neighbours = Neighbours::on(&cpus);
    let mut systems = Vec::new();
    for &outstanding in &scenario.run.outstanding {
        progress.begin(&format!("starting an agent with {outstanding} outstanding"));
        pin_housekeeping(&seating, &cpus)?;
        let mut system = System::start(scenario, outstanding, &seating)?;
        // Warm-up.
        system.measure(scenario)?;
        systems.push(system);
        progress.end();
    }
    let mut measured: Vec<Vec<Measured>> = vec![Vec::new(); systems.len()];
    for round in 0..rounds {
        for at in wave_compare::order(0, round, systems.len()) {
            let outstanding = scenario.run.outstanding[at];
            progress.begin(&format!("round {} of {rounds}: {outstanding} outstanding", round + 1));
            let key = format!("{outstanding} outstanding, {round}");
            measured[at].push(journal.point(&key, || systems[at].measure(scenario))?);
            progress.end();
        }
    }
    drop(systems);
    let rows = result::rows(&scenario.run.outstanding, &measured);
    let named = (&*scenario.name, scenario.description.as_str());
    let (seating, ran) = (seating.to_string(), (journal, neighbours));
    let header = Header::new("udp", named, &scenario.host.link, seating, &cpus, ran)?;
    Ok(UdpResult::new(scenario, rows, header))
}

impl System {
    fn start(scenario: &Udp, outstanding: u32, seating: &Seating) -> Result<System, Failure> {
        let mut options = host_options(&scenario.host.link, scenario.host.workers as u16)?;
        options.cpus.clone_from(&seating.workers);
        options.yields_cpu = seating.workers_yield;
        let host = Server::start(options, store::echo_methods()).map_err(Failure::cannot)?;
        let address = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let address = address.map_err(Failure::cannot)?.to_string();
        let steer = format!("jbsq:k={outstanding}");
        let words = ["--udp", &address, "--steer", &steer, "--rpc"].map(Into::into);
        let words: Vec<_> = words.into_iter().chain([host.socket().into()]).collect();
        let agent =
            AgentProcess::start_with(&words, Some(seating.agents[0]), seating.agents_yield)?;
        take_generators_seat(seating)?;
        let asked = Asked::spin(Duration::from_secs_f64(scenario.workload.work_us / 1e6));
        let (sockets, yields) = (scenario.workload.sockets as usize, seating.generator_yields);
        let load = ClosedLoad::connect(&address, sockets, asked, yields);
        let load = load.map_err(|error| Failure::Cannot(format!("{address}: {error}")))?;
        Ok(System { load, _agent: agent, _host: host })
    }

    fn measure(&mut self, scenario: &Udp) -> Result<Measured, Failure> {
        let shape = Shape::Closed { under_way: scenario.workload.under_way };
        let start = Instant::now();
        let answered = self.load.run(shape, Duration::from_secs_f64(scenario.run.seconds));
        let took = start.elapsed().as_secs_f64();
        Ok(match answered {
            Ok(answered) => Measured { per_second: answered as f64 / took, lost: None },
            Err(error) => Measured { per_second: 0.0, lost: Some(error.to_string()) },
        })
    }
}
