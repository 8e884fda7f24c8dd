//! RPC placements: where gRPC is terminated, and where its calls are scheduled (Wave 7.3), beside a sidecar and tonic.
//!
//! All variants are up at once, and asleep except for the one under load. They are compared by paired rounds (docs/adr/0106): in
//! each round every variant runs each load once, in random order; at the same load all get the same arrivals.

mod result;
pub(crate) mod scenario;
mod seats;
mod serving;
pub mod sim;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use wave_process::cpus;
use wave_workloads::point::Limits;
use wave_workloads::rocksdb::Database;

use self::result::Row;
use self::result::table;
pub use self::scenario::{Rpc, RpcPlacement, Stack};
use self::seats::{Equal, Seats, twin};
pub use self::serving::{Measured, enclave_options, host_options};
use self::serving::{Serving, Setup};
use super::{Experiment, Host, Kind, Wanted, digest, keep_when_interrupted, without_live};
use crate::ground::neighbours::Neighbours;
use crate::ground::rounds::{At, Curves, Machine, Rounds, conclude, of_trials};
use crate::ground::{
    Failure, Finished, Journal, enough_cpus, enough_requests, links, planned, without_effect,
};
use wave_apps::machine;
use wave_apps::recording::Recording;
use wave_report::model::SATURATION_SERVED;
use wave_report::{Report, RunResult};
use wave_scenario::reference::fields_of;
use wave_terminal::{Progress, interrupt};

pub(super) static KIND: Kind = Kind {
    names: &["rpc"],
    about: "RocksDB behind gRPC, with RPC stack and scheduler in several places.",
    commands: "`wave run FILE`, also with `--host sim`",
    examples: &[include_str!("example.toml")],
    fields: fields_of::<Rpc>,
    takes_agent: false,
    read: |wished| Ok(Box::new(scenario::read(wished.source)?)),
};

impl Experiment for Rpc {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        digest(self, self.variants.iter().filter_map(|stack| stack.link.file()))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        without_live("rpc", &self.name, wanted)
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        keep_when_interrupted(journal)?;
        let ran = match wanted.host {
            Host::Sim => sim::run(self, wanted.quiet, wanted.record, journal),
            Host::User => run(self, wanted.quiet, wanted.record, journal),
        };
        Ok(Box::new(Compared(ran?)))
    }
}

/// A run of RPCs, with its own table before the table of all runs.
struct Compared(Finished);

impl Report for Compared {
    fn text(&self) -> String {
        format!("{}\n\n{}", table(&self.0.result), self.0.text())
    }

    fn json(&self) -> Result<String, Failure> {
        self.0.json()
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        self.0.write(out)
    }

    fn failed(&self) -> Vec<String> {
        self.0.failed()
    }

    fn is_measured(&self) -> bool {
        self.0.is_measured()
    }
}

/// Runs `scenario` from the calling thread, which becomes the generator. Schedulers write logs into the directory `record`, if
/// given. Trials that `journal` has are not run.
pub fn run(
    scenario: &Rpc,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    enough_cpus(scenario.host.cores, cpus.len(), &scenario.name, ("host.cores", true))?;
    let (started, trials) = (journal.started(), scenario.run.trials());
    let gets = 1.0 - scenario.workload.range_percent / 100.0;
    enough_requests(&scenario.name, scenario.run.loads_per_second[0], ("GET", gets), trials)?;
    let equal = Equal::of(scenario, cpus.len());
    let (twins, stacks): (Vec<&Stack>, Vec<&Stack>) =
        scenario.variants.iter().partition(|stack| twin(scenario, stack, equal).is_some());
    let progress = Progress::new(1 + stacks.len() as u64 + u64::from(trials.rounds), quiet);
    journal.follow(&progress);
    let of_round = (stacks.len() * scenario.run.loads_per_second.len()) as f64 * trials.seconds();
    progress.say(&planned(trials.rounds.into(), of_round));
    progress.begin(&format!("filling RocksDB with {} keys", scenario.workload.keys));
    let link_facts = links::facts_of_all(scenario.variants.iter().map(|stack| &stack.link))?;
    let database = Arc::new(fill(scenario)?);
    progress.end();
    let neighbours = Neighbours::on(&cpus);
    let all_seats: Vec<Seats> =
        stacks.iter().map(|stack| Seats::new(scenario, stack, equal, &cpus)).collect();
    let start = |folder| Recording::start(folder, &scenario.name, scenario.run.seed);
    let recording = record.map(start).transpose()?;
    let mut systems = Vec::new();
    for (stack, seats) in stacks.iter().zip(&all_seats) {
        progress.begin(&format!("starting {}", stack.name));
        let logs = recording.as_ref().filter(|_| stack.placement.has_scheduler());
        let logs = logs.map(|recording| recording.logs(&stack.name));
        let wanted = Setup { scenario, stack, seats, cpus: &cpus, database: &database, logs };
        let serving = Some(Serving::start(&wanted)?);
        let loads = scenario.run.loads_per_second.iter().map(|_| Vec::new()).collect();
        systems.push(System { wanted, serving, loads, journal });
        progress.end();
    }
    let began = Instant::now();
    for round in 0..u64::from(trials.rounds) {
        progress.begin(&format!("round {} of {}", round + 1, trials.rounds));
        for at in wave_compare::order(scenario.run.seed, round, scenario.run.loads_per_second.len())
        {
            let seed = scenario.run.seed ^ (at as u64 + 1);
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
    let refine = (scenario.run.refine > 0).then(|| "run.refine".to_owned());
    facts.extend(simulated_only.chain(refine).map(|what| without_effect(&what)));
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
        let loads = scenario.run.loads_per_second.iter().zip(loads);
        (stack.name.clone(), loads.map(|(load, trials)| seen(*load, trials)).collect())
    });
    let limits = limits(scenario);
    let curves = Curves::of(seen, &limits.class, scenario.run.seed)
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
        scenario: scenario.name.to_string(),
        host: "user".to_owned(),
        kind: "rpc".to_owned(),
        description: scenario.description.clone(),
        limit_us: scenario.run.get_p99_us,
        seed: scenario.run.seed,
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
    let p99_ns = u64::from(scenario.run.get_p99_us) * 1_000;
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
    wanted: Setup<'a>,
    serving: Option<Serving>,
    /// The trials at each load.
    loads: Vec<Vec<Trial>>,
    journal: &'a Journal,
}

impl System<'_> {
    /// Runs the load with this index once, unless an earlier run has.
    fn trial(&mut self, at: usize, round: u64, began: Instant) -> Result<(), Failure> {
        let System { wanted, serving, .. } = self;
        let load = wanted.scenario.run.loads_per_second[at];
        let key = format!("round {round}, {}: {load}", wanted.stack.name);
        let trial = self.journal.point(&key, || {
            let at_s = began.elapsed().as_secs_f64();
            if serving.is_none() {
                *serving = Some(Serving::start(wanted)?);
            }
            let running = serving.as_mut().expect("it was just started");
            let seed = wanted.scenario.run.seed.wrapping_add(round);
            let measured = running.load(load, seed, wanted.scenario.run.trials())?;
            if measured.broken.is_some() {
                *serving = None;
            }
            Ok(Trial { measured, at_s })
        })?;
        self.loads[at].push(trial);
        Ok(())
    }
}
