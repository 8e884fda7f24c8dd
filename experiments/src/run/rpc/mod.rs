//! RPC placements: where gRPC is terminated, and where its calls are scheduled (Wave 7.3), beside a sidecar and tonic.
//!
//! All variants are up at once, and asleep except for the one under load. They are compared by paired rounds (docs/adr/0106): in
//! each round every variant runs each load once, in random order; at the same load all get the same arrivals.

mod result;
mod seats;
mod serving;
pub mod sim;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use wave_workloads::cpu;
use wave_workloads::point::Limits;
use wave_workloads::rocksdb::Database;

use self::result::Row;
pub use self::result::table;
use self::seats::{Equal, Seats, twin};
pub use self::serving::{Measured, enclave_options, host_options};
use self::serving::{Serving, Wanted};
use super::neighbours::Neighbours;
use super::rounds::{At, Curves, Machine, Rounds, conclude, of_trials};
use super::{Failure, Finished, Journal, links, machine};
use wave_apps::recording::Recording;
use wave_lab::interrupt;
use wave_lab::progress::Progress;
use wave_report::RunResult;
use wave_report::model::SATURATION_SERVED;
use wave_scenario::{Rpc, Stack};

/// Runs `scenario` from the calling thread, which becomes the generator. Schedulers write logs into the directory `record`, if
/// given. Trials that `journal` has are not run.
pub fn run(
    scenario: &Rpc,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
    super::enough_cpus(scenario.cores, cpus.len(), &scenario.name, ("host.cores", true))?;
    let (started, trials) = (journal.started(), scenario.trials());
    let gets = 1.0 - scenario.workload.range_percent / 100.0;
    super::enough_requests(&scenario.name, scenario.loads_per_second[0], ("GET", gets), trials)?;
    let equal = Equal::of(scenario, cpus.len());
    let (twins, stacks): (Vec<&Stack>, Vec<&Stack>) =
        scenario.variants.iter().partition(|stack| twin(scenario, stack, equal).is_some());
    let progress = Progress::new(1 + stacks.len() as u64 + u64::from(trials.rounds), quiet);
    journal.follow(&progress);
    let of_round = (stacks.len() * scenario.loads_per_second.len()) as f64 * trials.seconds();
    progress.say(&super::planned(trials.rounds.into(), of_round));
    progress.begin(&format!("filling RocksDB with {} keys", scenario.workload.keys));
    let link_facts = links::facts_of_all(scenario.variants.iter().map(|stack| &stack.link))?;
    let database = Arc::new(fill(scenario)?);
    progress.end();
    let neighbours = Neighbours::on(&cpus);
    let all_seats: Vec<Seats> =
        stacks.iter().map(|stack| Seats::new(scenario, stack, equal, &cpus)).collect();
    let start = |folder| Recording::start(folder, &scenario.name, scenario.seed);
    let recording = record.map(start).transpose()?;
    let mut systems = Vec::new();
    for (stack, seats) in stacks.iter().zip(&all_seats) {
        progress.begin(&format!("starting {}", stack.name));
        let logs = recording.as_ref().filter(|_| stack.placement.has_scheduler());
        let logs = logs.map(|recording| recording.logs(&stack.name));
        let wanted = Wanted { scenario, stack, seats, cpus: &cpus, database: &database, logs };
        let serving = Some(Serving::start(&wanted)?);
        let loads = scenario.loads_per_second.iter().map(|_| Vec::new()).collect();
        systems.push(System { wanted, serving, loads, journal });
        progress.end();
    }
    let began = Instant::now();
    for round in 0..u64::from(trials.rounds) {
        progress.begin(&format!("round {} of {}", round + 1, trials.rounds));
        for at in wave_compare::order(scenario.seed, round, scenario.loads_per_second.len()) {
            let seed = scenario.seed ^ (at as u64 + 1);
            for system in wave_compare::order(seed, round, systems.len()) {
                systems[system].trial(at, round, began)?;
            }
        }
        progress.end();
    }
    let mut facts = result::facts(scenario, &database, equal, &twins);
    facts.push(of_trials(trials));
    facts.extend(link_facts);
    let simulated_only = scenario.variants.iter().flat_map(Stack::simulated_only);
    let refine = (scenario.refine > 0).then(|| "run.refine".to_owned());
    facts.extend(simulated_only.chain(refine).map(|what| super::without_effect(&what)));
    facts.extend(journal.fact());
    facts.extend(recording.as_ref().map(|recording| recording.fact()));
    let mut of_rows: Vec<Vec<Vec<Trial>>> = Vec::new();
    for System { wanted, serving, loads, .. } in systems {
        facts.extend(broken(wanted.stack, &loads));
        serving.map_or(Ok(()), Serving::stop)?;
        of_rows.push(loads);
    }
    let if_disturbed = "this may widen intervals";
    let machine_then = Machine::since(neighbours, &cpus);
    facts.extend(Neighbours::fact(machine_then.others(), journal, if_disturbed));
    let seen = stacks.iter().zip(&of_rows).map(|(stack, loads)| {
        let loads = scenario.loads_per_second.iter().zip(loads);
        (stack.name.clone(), loads.map(|(load, trials)| seen(*load, trials)).collect())
    });
    let limits = limits(scenario);
    let curves = Curves::of(seen, &limits.class, scenario.seed)
        .ok_or_else(|| Failure::Check("no round has run".to_owned()))?;
    facts.extend(curves.late.clone());
    let rows: Vec<Row<'_>> = stacks
        .iter()
        .zip(&all_seats)
        .zip(&of_rows)
        .enumerate()
        .map(|(at, ((stack, seats), loads))| {
            let pooled = loads.iter().filter_map(|trials| Measured::pooled(trials));
            Row::in_rounds(stack, seats, pooled.collect(), (&curves, at), &limits)
        })
        .collect();
    let most_agents = all_seats.iter().max_by_key(|seats| seats.seating.agents.len());
    let seating = most_agents.map_or_else(String::new, |seats| {
        format!("{}. Equal in all placements: {}.", seats.seating, equal.name())
    });
    let at = At::Ns(limits.p99_ns as f64);
    let ratio = |of: &str, to: &str, limit_us: u64| {
        let place = |name: &str| stacks.iter().position(|stack| stack.name == name);
        let share = curves.share(place(of)?, place(to)?, At::Ns(limit_us as f64 * 1e3))?;
        (machine_then.too_busy().is_none() && !share.is_doubted).then_some(share)
    };
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
        variants: rows.iter().map(|row| row.variant(scenario, result::AGENT_WITH_LOOKS)).collect(),
        facts,
        paired: Some(conclude(&curves, 0, at, machine_then)),
        ladder: None,
        extra: result::extra(scenario, &rows, equal, &twins, &limits, &ratio),
    };
    // Beside other processes an agent may have had no CPU for so long that its host turned it out in every trial.
    let failed =
        rows.iter().filter(|row| row.answers_nobody() && machine_then.too_busy().is_none());
    let failed = failed.map(|row| format!("{} answered no call", row.stack.name)).collect();
    Ok(Finished { result, failed })
}

fn seen(per_second: f64, trials: &[Trial]) -> Rounds<'_> {
    let trials = trials.iter().map(|trial| (&trial.measured.open.point, trial.at_s));
    Rounds { per_second, trials: trials.collect() }
}

/// A fact about the trials after which a variant was started again, if there are any.
fn broken(stack: &Stack, loads: &[Vec<Trial>]) -> Option<(String, String)> {
    let all = loads.iter().flatten();
    let broken: Vec<&String> = all.filter_map(|trial| trial.measured.broken.as_ref()).collect();
    Some((
        format!("restarts of {}: {}", stack.name, broken.len()),
        format!("first reason: {}; the trials that ended in a restart count", broken.first()?),
    ))
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

/// One trial of a variant in a round, as kept in the journal.
#[derive(Deserialize, Serialize)]
struct Trial {
    measured: Measured,
    /// Time since the first round's start, in seconds.
    at_s: f64,
}

/// A running variant, and its trials.
struct System<'a> {
    wanted: Wanted<'a>,
    serving: Option<Serving>,
    /// The trials at each load.
    loads: Vec<Vec<Trial>>,
    journal: &'a Journal,
}

impl System<'_> {
    /// Runs the load with this index once, unless an earlier run has.
    fn trial(&mut self, at: usize, round: u64, began: Instant) -> Result<(), Failure> {
        let System { wanted, serving, .. } = self;
        let load = wanted.scenario.loads_per_second[at];
        let key = format!("round {round}, {}: {load}", wanted.stack.name);
        let trial = self.journal.point(&key, || {
            let at_s = began.elapsed().as_secs_f64();
            if serving.is_none() {
                *serving = Some(Serving::start(wanted)?);
            }
            let running = serving.as_mut().expect("it was just started");
            let seed = wanted.scenario.seed.wrapping_add(round);
            let measured = running.load(load, seed, wanted.scenario.trials())?;
            if measured.broken.is_some() {
                *serving = None;
            }
            Ok(Trial { measured, at_s })
        })?;
        self.loads[at].push(trial);
        Ok(())
    }
}
