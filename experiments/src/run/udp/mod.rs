//! Throughput by the number of outstanding requests per worker: for each number, an agent with a front for datagrams, and its
//! host. All are up at once; in each round every one is loaded once, in random order, while the others are asleep (docs/adr/0106).

mod result;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wave_user::rpc::Server;
use wave_workloads::cpu;
use wave_workloads::udp::{Asked, ClosedLoad, Shape};

pub use self::result::{Row, UdpResult};
use super::neighbours::Neighbours;
use super::rpc::host_options;
use super::seating::{self, Seating};
use super::udp_report::Header;
use super::{Failure, Journal, pin_housekeeping, take_generators_seat};
use crate::store;
use wave_apps::agent::AgentProcess;
use wave_lab::progress::Progress;
use wave_scenario::Udp;

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
    let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
    super::enough_cpus(scenario.workers, cpus.len(), &scenario.name, ("host.workers", false))?;
    let seating = seating::seat(&cpus, scenario.workers as usize, 1);
    let (values, rounds) = (scenario.outstanding.len() as u64, u64::from(scenario.rounds));
    let progress = Progress::new(values * (1 + rounds), quiet);
    journal.follow(&progress);
    progress.say(&super::planned(values * rounds, scenario.seconds));
    let neighbours = Neighbours::on(&cpus);
    let mut systems = Vec::new();
    for &outstanding in &scenario.outstanding {
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
            let outstanding = scenario.outstanding[at];
            progress.begin(&format!("round {} of {rounds}: {outstanding} outstanding", round + 1));
            let key = format!("{outstanding} outstanding, {round}");
            measured[at].push(journal.point(&key, || systems[at].measure(scenario))?);
            progress.end();
        }
    }
    drop(systems);
    let rows = result::rows(&scenario.outstanding, &measured);
    let named = (scenario.name.as_str(), scenario.description.as_str());
    let (seating, ran) = (seating.to_string(), (journal, neighbours));
    let header = Header::new("udp", named, &scenario.link, seating, &cpus, ran)?;
    Ok(UdpResult::new(scenario, rows, header))
}

impl System {
    fn start(scenario: &Udp, outstanding: u32, seating: &Seating) -> Result<System, Failure> {
        let mut options = host_options(&scenario.link, scenario.workers as u16)?;
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
        let asked = Asked::spin(Duration::from_secs_f64(scenario.work_us / 1e6));
        let (sockets, yields) = (scenario.sockets as usize, seating.generator_yields);
        let load = ClosedLoad::connect(&address, sockets, asked, yields);
        let load = load.map_err(|error| Failure::Cannot(format!("{address}: {error}")))?;
        Ok(System { load, _agent: agent, _host: host })
    }

    fn measure(&mut self, scenario: &Udp) -> Result<Measured, Failure> {
        let shape = Shape::Closed { under_way: scenario.under_way };
        let start = Instant::now();
        let answered = self.load.run(shape, Duration::from_secs_f64(scenario.seconds));
        let took = start.elapsed().as_secs_f64();
        Ok(match answered {
            Ok(answered) => Measured { per_second: answered as f64 / took, lost: None },
            Err(error) => Measured { per_second: 0.0, lost: Some(error.to_string()) },
        })
    }
}
