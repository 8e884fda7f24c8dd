//! Runs of this machine: starting systems, loading them, and measuring.

use std::path::Path;
use std::sync::Arc;

use wave_apps::machine;
use wave_apps::recording::Recording;
use wave_process::cpus;
use wave_report::RunResult;
use wave_report::model::SATURATION_LIMIT_US;
use wave_terminal::{Failure, Progress};

use super::scenario::{Kind, Machine, Scenario};
use super::{chaos, crash, enclaves, ladder, load};
use crate::ground::neighbours::Neighbours;
use crate::ground::service::Service;
use crate::ground::{
    Finished, Found, Ground, Journal, describe, enough_cpus, links, planned, seating,
    without_effect,
};
use crate::live::Feed;

type Run = Box<dyn Fn(&Ground<'_>) -> Result<Found, Failure>>;

/// What a kind needs of a run.
struct How {
    /// Steps for the progress.
    steps: u64,
    /// Minimum length of a step.
    step_seconds: f64,
    /// Enclaves of a variant that run at once.
    enclaves: u32,
    run: Run,
}

impl How {
    fn of(scenario: &Scenario, cpus: usize) -> How {
        let of_variants = |enclaves, run: Run| {
            let steps = scenario.variants.len() as u64;
            How { steps, step_seconds: scenario.run.seconds, enclaves, run }
        };
        match scenario.kind {
            Kind::Load => How {
                steps: load::steps(&scenario.run),
                step_seconds: load::step_seconds(scenario, cpus),
                ..of_variants(1, Box::new(load::run))
            },
            Kind::Ladder => How {
                steps: ladder::steps(scenario),
                step_seconds: ladder::step_seconds(scenario),
                ..of_variants(1, Box::new(ladder::run))
            },
            Kind::Crash(times) => {
                of_variants(1, Box::new(move |ground: &Ground<'_>| crash::run(ground, times)))
            }
            Kind::Enclaves(count) => How {
                steps: enclaves::steps(scenario),
                ..of_variants(
                    count,
                    Box::new(move |ground: &Ground<'_>| enclaves::run(ground, count)),
                )
            },
            Kind::Chaos(threads) => {
                of_variants(1, Box::new(move |ground: &Ground<'_>| chaos::run(ground, threads)))
            }
        }
    }
}

/// Runs `scenario` from the calling thread, which becomes the generator: it is pinned, and may not run anything else meanwhile.
/// `feed` is told what runs. Agents write logs into the directory `record`, if given. Points that `journal` has are not run.
pub fn run(
    scenario: &Scenario,
    quiet: bool,
    feed: Feed,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let cpus = cpus::allowed().map_err(Failure::cannot)?;
    let started = journal.started();
    let link_facts = links::facts_of_all(scenario.agents().map(|agent| &agent.link))?;
    let how = How::of(scenario, cpus.len());
    enough_cpus(most_cores(scenario, &how), cpus.len(), &scenario.name, ("host.cores", true))?;
    let progress = Progress::new(how.steps + 2, quiet);
    journal.follow(&progress);
    progress.say(&planned(how.steps, how.step_seconds));
    let simulated_only = simulated_only(scenario);
    if let Some((what, how)) = &simulated_only {
        progress.say(&format!("{}: {what}: {how}", scenario.name));
    }
    let workers = scenario.variants[0].host.cores * how.enclaves;
    // Variants differ in the number of workers at most.
    let seating = seating::seat(&cpus, workers as usize, how.enclaves as usize);
    progress.say(&format!("{}: {seating}", scenario.name));
    feed.title(&scenario.name);
    feed.step("filling RocksDB");
    let service = Service::open(&scenario.workload, seating.workers[0], &progress)?;
    let before = Neighbours::now();
    let ground = Ground {
        scenario,
        cpus,
        service: Arc::new(service),
        progress,
        feed,
        recording: record
            .map(|directory| Recording::start(directory, &scenario.name, scenario.run.seed))
            .transpose()?,
        journal,
    };
    let found = (how.run)(&ground)?;
    // The first ones are shown below the table.
    let by_rounds = found.paired.is_some() || found.ladder.is_some();
    let if_disturbed = match by_rounds {
        true => "this may widen intervals",
        false => "this may lengthen latencies",
    };
    let mut facts: Vec<_> = Neighbours::fact(Neighbours::since(before), journal, if_disturbed)
        .into_iter()
        .chain(found.facts)
        .collect();
    facts.extend(simulated_only);
    facts.extend(journal.fact());
    facts.extend(ground.recording.as_ref().map(|recording| recording.fact()));
    facts.extend(ground.service.facts());
    facts.extend(link_facts);
    let result = RunResult {
        scenario: scenario.name.clone(),
        host: "user".to_owned(),
        kind: scenario.kind.name().to_owned(),
        description: scenario.description.clone(),
        limit_us: SATURATION_LIMIT_US,
        seed: scenario.run.seed,
        version: machine::version().to_owned(),
        machine: machine::machine(ground.cpus.len()),
        seating: describe(&seating),
        started,
        variants: found.variants,
        paired: found.paired,
        ladder: found.ladder,
        facts,
        extra: found.extra,
    };
    Ok(Finished { result, failed: found.failed })
}

/// Maximum number of host cores that run at once.
fn most_cores(scenario: &Scenario, how: &How) -> u32 {
    let cores = scenario.variants.iter().map(|variant| variant.host.cores).max().unwrap_or(0);
    cores * how.enclaves
}

/// This fact, for the first such field.
fn simulated_only(scenario: &Scenario) -> Option<(String, String)> {
    let default = Machine::Builtin("user".to_owned());
    let machine =
        (scenario.machine != default).then(|| format!("host.machine = \"{}\"", scenario.machine));
    let ghz = || scenario.agents().find_map(|agent| agent.ghz);
    let what = machine.or_else(|| Some(format!("variant.agent_ghz = {}", ghz()?)))?;
    Some(without_effect(&what))
}

#[cfg(test)]
mod tests {
    use wave_scenario::Source;

    use super::*;
    use crate::kinds::requests::scenario::read;

    fn scenario(kind: &str, host: &str) -> Scenario {
        let text = format!(
            "name = \"x\"\nkind = \"{kind}\"\n[run]\nloads_per_second = [1]\n[host]\n{host}\n[[variant]]\n\
             name = \"a\"\nplacement = \"offload\"\npolicy = \"fifo\"\n"
        );
        read(&Source::new(Path::new("x.toml"), &text), wave_sched::policies::NAMES).unwrap()
    }

    #[test]
    fn more_host_cores_than_cpus_are_refused_natively() {
        let refused = |kind: &str, cores: u32, cpus| {
            let scenario = scenario(kind, &format!("cores = {cores}"));
            let how = How::of(&scenario, cpus);
            enough_cpus(most_cores(&scenario, &how), cpus, &scenario.name, ("host.cores", true))
                .err()
                .map(|why| why.to_string())
        };
        assert_eq!(refused("load", 2, 2), None);
        assert!(refused("load", 64, 2).unwrap().contains("64 host cores at once (`host.cores`)"));
        // Two enclaves with that many cores each.
        assert_eq!(refused("enclaves", 1, 2), None);
        assert!(refused("enclaves", 2, 2).unwrap().contains("4 host cores at once"));
    }

    #[test]
    fn machine_of_a_native_run_is_reported_as_without_effect() {
        assert_eq!(simulated_only(&scenario("load", "machine = \"user\"")), None);
        let (what, _) = simulated_only(&scenario("load", "machine = \"ghost\"")).unwrap();
        assert_eq!(what, "host.machine = \"ghost\" has no effect here");
        let mut slow = scenario("load", "");
        slow.agents_mut().for_each(|agent| agent.ghz = Some(2.5));
        let (what, _) = simulated_only(&slow).unwrap();
        assert_eq!(what, "variant.agent_ghz = 2.5 has no effect here");
    }
}
