//! Short requests in datagrams beside long ones, with preemption and without: Mind the Gap's Figure 2 on this machine.
//!
//! Two systems differ only in their policy. Both are up at once, and asleep except for the one under load. In each round both get
//! each load once, in random order, with the same arrivals (docs/adr/0106).

mod result;
pub(crate) mod scenario;
mod serving;

use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_process::cpus;
use wave_sched::oracles::{FirstInFirstOut, Oracle, RoundRobin};
use wave_workloads::arrivals::Mix;
use wave_workloads::generator::{self, Seat};

pub use self::result::PreemptionResult;
pub use self::scenario::UdpPreemption;
use self::serving::{Measured, Serving, Setup};
use super::requests::ideal;
use super::{Experiment, Kind, Wanted, digest, keep_when_interrupted};
use crate::ground::neighbours::Neighbours;
use crate::ground::point::Terms;
use crate::ground::udp_report::Header;
use crate::ground::{Failure, Journal, enough_cpus, planned, seating};
use wave_report::Report;
use wave_scenario::reference::fields_of;
use wave_terminal::Progress;

pub(super) static KIND: Kind = Kind {
    names: &["udp-preemption"],
    about: "Short requests in datagrams beside long ones, with preemption and without.",
    commands: "`wave run FILE`",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<UdpPreemption>,
    takes_agent: false,
    read: |wished| Ok(Box::new(scenario::read(wished.source)?)),
};

impl Experiment for UdpPreemption {
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

/// Number of keys of the load's generator. Spinning needs none.
const KEYS: u64 = 1;

/// Scheduling of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduling {
    /// A request that outlasts a slice goes to the end of the queue (Mind the Gap 3.4).
    Preemptive,
    /// Each request runs to its end.
    ToTheEnd,
}

impl Scheduling {
    const ALL: [Scheduling; 2] = [Scheduling::Preemptive, Scheduling::ToTheEnd];

    /// Name of the system in results.
    fn name(self) -> &'static str {
        match self {
            Scheduling::Preemptive => "with preemption",
            Scheduling::ToTheEnd => "without preemption",
        }
    }

    /// The agent's policy. The core's own timer ends slices, as the worker's does in the paper (3.4.4).
    fn policy(self, scenario: &UdpPreemption) -> String {
        match self {
            Scheduling::Preemptive => {
                format!("shinjuku:slice_us={},timer=core", scenario.host.slice_us)
            }
            Scheduling::ToTheEnd => "fifo".to_owned(),
        }
    }

    /// The same scheduling without overhead.
    fn oracle(self, scenario: &UdpPreemption) -> Box<dyn Oracle> {
        match self {
            Scheduling::Preemptive => {
                let slice = Nanos::from_micros(scenario.host.slice_us.into());
                Box::new(RoundRobin::new(scenario.host.cores, slice))
            }
            Scheduling::ToTheEnd => Box::new(FirstInFirstOut::new(scenario.host.cores)),
        }
    }
}

/// Runs `scenario` from the calling thread, which becomes the generator. Measurements that `journal` has are not repeated.
pub fn run(
    scenario: &UdpPreemption,
    quiet: bool,
    journal: &Journal,
) -> Result<PreemptionResult, Failure> {
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    enough_cpus(scenario.host.cores, cpus.len(), &scenario.name, ("host.cores", false))?;
    let seating = seating::seat(&cpus, scenario.host.cores as usize, 1);
    let loads = &scenario.run.loads_per_second;
    let rounds = u64::from(scenario.run.rounds);
    let trials = 2 * rounds * loads.len() as u64;
    let progress = Progress::new(2 + trials, quiet);
    journal.follow(&progress);
    progress.say(&planned(trials, scenario.run.seconds));
    let mix = scenario.mix().mix().map_err(Failure::cannot)?;
    let neighbours = Neighbours::on(&cpus);
    let mut systems = Vec::new();
    for scheduling in Scheduling::ALL {
        progress.begin(&format!("starting the system {}", scheduling.name()));
        let policy = scheduling.policy(scenario);
        let wanted = Setup { scenario, policy, seating: &seating, cpus: &cpus };
        let serving = Some(Serving::start(&wanted)?);
        let measured = vec![Vec::new(); loads.len()];
        systems.push(System { scheduling, wanted, serving, measured });
        progress.end();
    }
    for round in 0..rounds {
        for at in wave_compare::order(scenario.run.seed, round, loads.len()) {
            for system in wave_compare::order(scenario.run.seed ^ (at as u64 + 1), round, 2) {
                let (system, load) = (&mut systems[system], loads[at]);
                let name = system.scheduling.name();
                progress.begin(&format!("round {} of {rounds}: {name}", round + 1));
                let key = format!("{name}, {round}: {load}");
                let seed = scenario.run.seed + round;
                let measured = journal.point(&key, || system.trial(load, seed))?;
                system.measured[at].push(measured);
                progress.end();
            }
        }
    }
    let ran = systems.into_iter().map(|system| {
        let System { scheduling, wanted, measured, .. } = system;
        (scheduling.name(), wanted.policy, measured)
    });
    let ran: Vec<_> = ran.collect();
    let named = (&*scenario.name, scenario.description.as_str());
    let (seats, kept) = (seating.to_string(), (journal, neighbours));
    let header = Header::new("udp-preemption", named, &scenario.host.link, seats, &cpus, kept)?;
    let ideals = Scheduling::ALL.map(|scheduling| {
        let of_round = |load, round| {
            let mut scenario = scenario.clone();
            scenario.run.seed += round;
            ideal_p99_ns(&scenario, &mix, scheduling, load)
        };
        let at_load = |load: &f64| (0..rounds).map(|round| of_round(*load, round)).collect();
        loads.iter().map(at_load).collect::<Vec<Vec<_>>>()
    });
    let rows = result::rows(loads, ran, &ideals);
    Ok(PreemptionResult::new(scenario, rows, header))
}

/// The p99 of short and of long requests with the same arrivals and scheduling without overhead.
fn ideal_p99_ns(
    scenario: &UdpPreemption,
    mix: &Mix,
    scheduling: Scheduling,
    per_second: f64,
) -> [u64; 2] {
    let [warm_up, counted] = scenario.times();
    let settings = generator::Settings::new(counted, warm_up, Seat::Shared);
    let terms = Terms { mix: mix.clone(), keys: KEYS, seed: scenario.run.seed, settings };
    let classes_ns =
        [scenario.workload.short_us, scenario.workload.long_us].map(|us| (us * 1e3).round() as u64);
    [0, 1].map(|class| {
        let mut oracle = scheduling.oracle(scenario);
        ideal::p99_ns(oracle.as_mut(), &terms, per_second, &classes_ns, class)
    })
}

/// A running system, and its results.
struct System<'a> {
    scheduling: Scheduling,
    wanted: Setup<'a>,
    serving: Option<Serving>,
    /// For each load, a measurement of each round.
    measured: Vec<Vec<Measured>>,
}

impl System<'_> {
    /// Runs a load once, with arrivals by `seed`. A system that it breaks is started again for the next trial.
    fn trial(&mut self, load: f64, seed: u64) -> Result<Measured, Failure> {
        let serving = match &mut self.serving {
            Some(serving) => serving,
            none => none.insert(Serving::start(&self.wanted)?),
        };
        let measured = serving.load(load, seed)?;
        if measured.broken.is_some() {
            self.serving = None;
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use wave_scenario::Source;

    fn scenario() -> UdpPreemption {
        let text = include_str!("../../../../scenarios/mtg-fig2.toml");
        super::scenario::read(&Source::new(Path::new("mtg-fig2.toml"), text)).unwrap()
    }

    #[test]
    fn policies_are_known_to_the_scheduler() {
        let config =
            wave_core::layout::Config { subjects: 1, ..wave_core::layout::Config::coherent(1) };
        for scheduling in Scheduling::ALL {
            let policy = scheduling.policy(&scenario());
            assert!(wave_sched::policies::by_name(&policy, &config).is_ok(), "{policy}");
        }
    }

    /// A lone request takes its service time. If one core is nearly full, a short request waits for a whole long one without
    /// preemption, and for slices with it.
    #[test]
    fn ideal_preemption_shortens_the_tail_of_short_requests_only() {
        let mut scenario = scenario();
        (scenario.run.seconds, scenario.run.warmup_seconds) = (1.0, Some(0.1));
        let mix = scenario.mix().mix().unwrap();
        let p99_ns = |scheduling, load| ideal_p99_ns(&scenario, &mix, scheduling, load);
        for scheduling in Scheduling::ALL {
            let [short, long] = p99_ns(scheduling, 500.0);
            assert!((4_990..5_100).contains(&short) && (99_000..106_000).contains(&long));
        }
        let [with, without] = Scheduling::ALL.map(|scheduling| p99_ns(scheduling, 100_000.0));
        assert!(2 * with[0] < without[0], "{with:?} {without:?}");
        assert!(with[1] > without[1], "{with:?} {without:?}");
    }
}
