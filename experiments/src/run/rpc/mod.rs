//! RPC placements: where gRPC is terminated, and where its calls are scheduled (Wave 7.3), beside a sidecar and tonic.
//!
//! All variants are up at once, and asleep except for the one under load. Loads rise, and each is offered to every variant in
//! turn before the next: disturbances of the machine hit all of them alike. Arrivals are the same for all. Then each variant
//! gets more points near its saturation.

mod found;
mod seats;
mod serving;
pub mod sim;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wave_workloads::cpu;
use wave_workloads::point::{self as measured, Limits, Verdict};
use wave_workloads::rocksdb::Database;

use self::found::Row;
pub use self::found::table;
use self::seats::{Equal, Seats, twin};
pub use self::serving::{Measured, enclave_options, host_options};
use self::serving::{Serving, Wanted};
use super::neighbours::Neighbours;
use super::recording::Recording;
use super::verdict::{Rule, TRIES, Try};
use super::{Failure, Finished, Journal, links, machine};
use crate::scenario::{Rpc, Stack};
use wave_lab::interrupt;
use wave_lab::progress::Progress;
use wave_report::RunResult;
use wave_report::model::SATURATION_SERVED;

/// Maximum time for repeating disturbed points, as a share of the run's own time.
const PATIENCE: f64 = 0.25;
/// After this many unserved loads in a row, a variant is offered no higher ones.
const SATURATED_LOADS: usize = 2;

/// Runs `scenario` from the calling thread, which becomes the generator. Schedulers write logs into the directory `record`, if
/// given. Points that `journal` has are not run.
pub fn run(
    scenario: &Rpc,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
    super::enough_cpus(scenario.cores, cpus.len(), &scenario.name, ("host.cores", true))?;
    let started = journal.started();
    let equal = Equal::of(scenario, cpus.len());
    let (twins, stacks): (Vec<&Stack>, Vec<&Stack>) =
        scenario.variants.iter().partition(|stack| twin(scenario, stack, equal).is_some());
    let loads = scenario.loads_per_second.len() as u64 + u64::from(scenario.refine);
    let progress = Progress::new(1 + stacks.len() as u64 * (loads + 1), quiet);
    journal.follow(&progress);
    progress.say(&super::planned(stacks.len() as u64 * loads, scenario.seconds));
    progress.begin(&format!("filling RocksDB with {} keys", scenario.workload.keys));
    let link_facts = links::facts_of_all(scenario.variants.iter().map(|stack| &stack.link))?;
    let database = Arc::new(fill(scenario)?);
    progress.end();
    let before = Neighbours::now();
    let all_seats: Vec<Seats> =
        stacks.iter().map(|stack| Seats::new(scenario, stack, equal, &cpus)).collect();
    let start = |folder| Recording::start(folder, &scenario.name, scenario.seed);
    let recording = record.map(start).transpose()?;
    let patience = Duration::from_secs_f64(PATIENCE * scenario.seconds * loads as f64);
    let mut systems = Vec::new();
    for (stack, seats) in stacks.iter().zip(&all_seats) {
        progress.begin(&format!("starting {}", stack.name));
        let logs = recording.as_ref().filter(|_| stack.placement.has_scheduler());
        let logs = logs.map(|recording| recording.logs(&stack.name));
        let wanted = Wanted { scenario, stack, seats, cpus: &cpus, database: &database, logs };
        let serving = Some(Serving::start(&wanted)?);
        systems.push(System {
            row: Row::new(stack, seats),
            wanted,
            serving,
            restarts: 0,
            rule: Rule::new(limits(scenario), patience),
            journal,
        });
        progress.end();
    }
    let limits = limits(scenario);
    for &load in &scenario.loads_per_second {
        for system in &mut systems {
            progress.begin(&format!("{}: {:.1} k/s", system.row.stack.name, load / 1e3));
            if load == scenario.compare_at || !system.is_saturated() {
                let points = system.row.points.iter().map(Try::point);
                let most = system.rule.most(points, load);
                system.tries(load, most)?;
            }
            progress.end();
        }
    }
    for _ in 0..scenario.refine {
        for system in &mut systems {
            progress.begin(&format!("{}: saturation between these", system.row.stack.name));
            if let Some(load) = measured::next_probe(&system.row.measured(), &limits) {
                system.tries(load, TRIES)?;
            }
            progress.end();
        }
    }
    let mut facts = found::facts(scenario, &database, equal, &twins);
    facts.extend(link_facts);
    let simulated_only = scenario.variants.iter().flat_map(Stack::simulated_only);
    facts.extend(simulated_only.map(|what| super::without_effect(&what)));
    facts.extend(journal.fact());
    facts.extend(recording.as_ref().map(|recording| recording.fact()));
    let mut rows = Vec::new();
    for System { row, serving, restarts, .. } in systems {
        if restarts > 0 {
            let what = format!("{} was started again {restarts} times", row.stack.name);
            facts.push((what, "its points from then are invalid".to_owned()));
        }
        serving.map_or(Ok(()), Serving::stop)?;
        rows.push(row);
    }
    facts.extend(found::floor(&rows, &limits));
    let if_disturbed = "points that they disturbed were repeated, or are not measurements";
    facts.extend(Neighbours::fact(before, journal, if_disturbed));
    let most_agents = all_seats.iter().max_by_key(|seats| seats.seating.agents.len());
    let seating = most_agents.map_or_else(String::new, |seats| {
        format!("{}. Equal in all placements: {}.", seats.seating, equal.name())
    });
    let result = RunResult {
        scenario: scenario.name.clone(),
        host: "user".to_owned(),
        kind: "rpc".to_owned(),
        description: scenario.description.clone(),
        limit_us: scenario.get_p99_us,
        seed: scenario.seed,
        version: machine::version().to_owned(),
        machine: machine::machine(cpus.len()),
        seating,
        started,
        variants: rows
            .iter()
            .map(|row| row.variant(scenario, &limits, found::AGENT_WITH_LOOKS))
            .collect(),
        facts,
        paired: None,
        ladder: None,
        extra: found::extra(scenario, &rows, equal, &twins, &limits),
    };
    let failed = rows.iter().filter(|row| row.answers_nobody());
    let failed = failed.map(|row| format!("{} answered no call", row.stack.name)).collect();
    Ok(Finished { result, failed })
}

fn limits(scenario: &Rpc) -> Limits {
    let p99_ns = u64::from(scenario.get_p99_us) * 1_000;
    Limits { served: SATURATION_SERVED, p99_ns, ..Limits::default() }
}

fn fill(scenario: &Rpc) -> Result<Database, Failure> {
    let workload = &scenario.workload;
    let mut database = Database::open_in_order(None).map_err(Failure::cannot)?;
    interrupt::remove_at_end(database.directory());
    let filled = database.fill(workload.keys, workload.value_bytes as usize, |_, _| {});
    filled.map_err(Failure::cannot)?;
    Ok(database)
}

/// A running variant, and its results.
struct System<'a> {
    row: Row<'a>,
    wanted: Wanted<'a>,
    serving: Option<Serving>,
    restarts: u32,
    /// The rule for repeating tries, the same for every row.
    rule: Rule,
    journal: &'a Journal,
}

impl System<'_> {
    /// Runs a point by the common rule, up to `most` times, unless an earlier run has finished it.
    fn tries(&mut self, load: f64, most: usize) -> Result<(), Failure> {
        let key = format!("{}, {}: {load}", self.row.stack.name, self.row.points.len());
        let (measured, patience) = self.journal.point(&key, || {
            let mut rule = self.rule.clone();
            let measured = rule.load(most, || self.point(load))?;
            self.rule = rule;
            Ok((measured, self.rule.patience))
        })?;
        self.rule.patience = patience;
        self.row.points.push(measured);
        Ok(())
    }

    fn point(&mut self, load: f64) -> Result<Measured, Failure> {
        let serving = match &mut self.serving {
            Some(serving) => serving,
            none => none.insert(Serving::start(&self.wanted)?),
        };
        let mut measured = serving.load(load, self.wanted.scenario.times())?;
        if let Some(why) = &measured.broken {
            let why = why.clone();
            measured.invalidate(&why);
            self.serving = None;
            self.restarts += 1;
        }
        Ok(measured)
    }

    fn is_saturated(&self) -> bool {
        let measured = self.row.points.iter().map(Try::point).filter(|point| point.generator.valid);
        let last = measured.rev().take(SATURATED_LOADS);
        last.filter(|point| point.verdict(&self.rule.limits) == Verdict::Saturated).count()
            == SATURATED_LOADS
    }
}
