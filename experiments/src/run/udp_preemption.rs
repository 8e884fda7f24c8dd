//! Short requests in datagrams beside long ones, with preemption and without: Mind the Gap's Figure 2 on this machine.
//!
//! Two systems differ only in their policy. Both are up at once, and asleep except for the one under load. First their
//! saturations are searched, as in scenarios of other kinds: loads rise, and each is offered to one system after the other.
//! Then both get one load, a share of the lower saturation, in turns, with the same arrivals.

mod result;
mod serving;

use std::time::Duration;

use wave_core::clock::Nanos;
use wave_sched::oracles::{FirstInFirstOut, Oracle, RoundRobin};
use wave_workloads::arrivals::Mix;
use wave_workloads::cpu;
use wave_workloads::generator::{self, Seat};
use wave_workloads::point::{self as measured, Limits, Verdict};

pub use self::result::{PreemptionResult, Row};
use self::serving::{Measured, Serving, Wanted};
use super::ideal;
use super::point::Terms;
use super::seating;
use super::verdict::{self, Rule, TRIES, Try};
use super::{Failure, Journal, machine};
use crate::scenario::UdpPreemption;
use wave_lab::progress::Progress;
use wave_report::model::SATURATION_SERVED;

/// Maximum time of each system for repeating disturbed points, as a share of the time of the search, and of the comparison.
const PATIENCE: f64 = 1.0;
/// A system that fails to serve this many loads in a row is offered no higher ones.
const SATURATED_LOADS: usize = 2;
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
                format!("shinjuku:slice_us={},timer=core", scenario.slice_us)
            }
            Scheduling::ToTheEnd => "fifo".to_owned(),
        }
    }

    /// The same scheduling without overhead.
    fn oracle(self, scenario: &UdpPreemption) -> Box<dyn Oracle> {
        match self {
            Scheduling::Preemptive => {
                let slice = Nanos::from_micros(scenario.slice_us.into());
                Box::new(RoundRobin::new(scenario.cores, slice))
            }
            Scheduling::ToTheEnd => Box::new(FirstInFirstOut::new(scenario.cores)),
        }
    }
}

/// Runs `scenario` from the calling thread, which becomes the generator. Measurements that `journal` has are not repeated.
pub fn run(
    scenario: &UdpPreemption,
    quiet: bool,
    journal: &Journal,
) -> Result<PreemptionResult, Failure> {
    let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
    super::enough_cpus(scenario.cores, cpus.len(), &scenario.name)?;
    let seating = seating::seat(&cpus, scenario.cores as usize, 1);
    let loads = scenario.loads_per_second.len() as u64 + u64::from(scenario.refine);
    let steps = 2 * (1 + loads + u64::from(scenario.rounds));
    let progress = Progress::new(steps, quiet);
    journal.follow(&progress);
    progress.say(&super::planned(steps - 2, scenario.seconds));
    let mix = scenario.mix().mix().map_err(Failure::cannot)?;
    let limits = Limits {
        served: SATURATION_SERVED,
        p99_ns: u64::from(scenario.short_p99_us) * 1_000,
        class: mix.names()[0].clone(),
    };
    let patience = |points: f64| Duration::from_secs_f64(PATIENCE * scenario.seconds * points);
    let mut systems = Vec::new();
    for scheduling in Scheduling::ALL {
        progress.begin(&format!("starting the system {}", scheduling.name()));
        let policy = scheduling.policy(scenario);
        let wanted = Wanted { scenario, policy, seating: &seating, cpus: &cpus };
        let serving = Some(Serving::start(&wanted)?);
        let rule = Rule::new(limits.clone(), patience(loads as f64));
        systems.push(System { scheduling, wanted, serving, rule, points: Vec::new(), journal });
        progress.end();
    }
    search(scenario, &mut systems, &progress)?;
    let saturations: Vec<_> = systems.iter().map(System::saturation).collect();
    let lower = saturations.iter().map(|found| found.clone().ok().flatten());
    let lower = lower.reduce(|one, other| Some(one?.min(other?))).flatten();
    let load = lower.map(|lower| lower * scenario.load);
    for system in &mut systems {
        system.rule.patience = patience(scenario.rounds.into());
    }
    let mut rounds: [Vec<Measured>; 2] = Default::default();
    for round in 0..load.map_or(0, |_| scenario.rounds) {
        for (system, measured) in systems.iter_mut().zip(&mut rounds) {
            let load = load.expect("all rounds have a load");
            progress.begin(&format!("{}: {:.1} k/s", system.scheduling.name(), load / 1e3));
            measured.push(system.tries(&format!("compared, {round}"), load, 1)?);
            progress.end();
        }
    }
    let rows = systems.into_iter().zip(saturations).zip(rounds).map(|((system, found), rounds)| {
        let System { scheduling, wanted, points, .. } = system;
        let ideal = load.map(|load| ideal_p99_ns(scenario, &mix, scheduling, load));
        Row::new(scheduling.name(), wanted.policy, found, points, &rounds, ideal)
    });
    let rows: Vec<Row> = rows.collect();
    let (machine, started) = (machine::machine(cpus.len()), journal.started());
    Ok(PreemptionResult::new(scenario, rows, load, machine, seating.to_string(), started))
}

/// Searches for the saturations of all systems.
fn search(
    scenario: &UdpPreemption,
    systems: &mut [System<'_>],
    progress: &Progress,
) -> Result<(), Failure> {
    for &load in &scenario.loads_per_second {
        for system in &mut *systems {
            progress.begin(&format!("{}: {:.1} k/s", system.scheduling.name(), load / 1e3));
            if !system.is_saturated() {
                let most = system.rule.most(system.points.iter().map(Try::point), load);
                system.search(load, most)?;
            }
            progress.end();
        }
    }
    for _ in 0..scenario.refine {
        for system in &mut *systems {
            progress.begin(&format!("{}: saturation between these", system.scheduling.name()));
            if let Some(load) = measured::next_probe(&system.measured(), &system.rule.limits) {
                system.search(load, TRIES)?;
            }
            progress.end();
        }
    }
    Ok(())
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
    let terms = Terms { mix: mix.clone(), keys: KEYS, seed: scenario.seed, settings };
    let classes_ns = [scenario.short_us, scenario.long_us].map(|us| (us * 1e3).round() as u64);
    [0, 1].map(|class| {
        let mut oracle = scheduling.oracle(scenario);
        ideal::p99_ns(oracle.as_mut(), &terms, per_second, &classes_ns, class)
    })
}

/// A running system, and its results.
struct System<'a> {
    scheduling: Scheduling,
    wanted: Wanted<'a>,
    serving: Option<Serving>,
    /// The rule for repeating tries, the same for every row.
    rule: Rule,
    points: Vec<Measured>,
    journal: &'a Journal,
}

impl System<'_> {
    /// Runs a point of the search, up to `most` times.
    fn search(&mut self, load: f64, most: usize) -> Result<(), Failure> {
        let measured = self.tries(&self.points.len().to_string(), load, most)?;
        self.points.push(measured);
        Ok(())
    }

    /// Runs a point by the rule, up to `most` times, and again while it is disturbed, unless an earlier run has finished it.
    fn tries(&mut self, which: &str, load: f64, most: usize) -> Result<Measured, Failure> {
        let key = format!("{}, {which}: {load}", self.scheduling.name());
        let journal = self.journal;
        let (measured, patience) = journal.point(&key, || {
            let mut rule = self.rule.clone();
            let measured = rule.load(most, || self.point(load))?;
            Ok((measured, rule.patience))
        })?;
        self.rule.patience = patience;
        Ok(measured)
    }

    fn point(&mut self, load: f64) -> Result<Measured, Failure> {
        let serving = match &mut self.serving {
            Some(serving) => serving,
            none => none.insert(Serving::start(&self.wanted)?),
        };
        let mut measured = serving.load(load)?;
        if let Some(why) = measured.broken.clone() {
            measured.invalidate(&why);
            self.serving = None;
        }
        Ok(measured)
    }

    fn measured(&self) -> Vec<measured::Point> {
        self.points.iter().map(|point| point.point().clone()).collect()
    }

    fn saturation(&self) -> Result<Option<f64>, String> {
        verdict::saturation(&self.measured(), &self.rule.limits)
    }

    fn is_saturated(&self) -> bool {
        let measured = self.points.iter().map(Try::point).filter(|point| point.generator.valid);
        let last = measured.rev().take(SATURATED_LOADS);
        last.filter(|point| point.verdict(&self.rule.limits) == Verdict::Saturated).count()
            == SATURATED_LOADS
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::parse_udp_preemption;

    fn scenario() -> UdpPreemption {
        let text = include_str!("../../../scenarios/mtg-fig2.toml");
        parse_udp_preemption(Path::new("mtg-fig2.toml"), text).unwrap()
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
        let scenario = UdpPreemption { seconds: 1.0, warmup_seconds: 0.1, ..scenario() };
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
