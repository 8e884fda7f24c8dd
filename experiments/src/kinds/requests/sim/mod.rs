//! The scheduling scenarios on a simulated host.
//!
//! Each point is a world of its own, determined by the scenario and its seed alone. Points run on as many threads as there are
//! CPUs. Searches, verdicts and reports are those of native runs.

mod crash;
mod enclaves;
mod load;
mod own_policy;
pub(crate) mod parallel;
pub(crate) mod point;
mod setup;

use std::path::Path;
use std::sync::Arc;

pub use point::point;
pub use setup::Simulated;

use crate::ground::{Failure, Finished, Journal};

use crate::kinds::requests::scenario::{Kind, Scenario, Threads, Variant};
use wave_apps::recording::Recording;
use wave_report::RunResult;
use wave_report::model::SATURATION_LIMIT_US;
use wave_terminal::Progress;

/// Shared context of every kind of scenario.
struct Ground<'a> {
    /// Without variants that have no agent.
    scenario: &'a Scenario,
    progress: Progress,
    recording: Option<Arc<Recording>>,
    /// Keeps simulated points.
    journal: &'a Journal,
}

/// Runs `scenario` in the simulator. Agents write logs into the directory `record`, if given: a file per point. Points that
/// `journal` has are not run.
pub fn run(
    scenario: &Scenario,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let started = journal.started();
    let mut scenario = scenario.clone();
    let (modelled, others): (Vec<Variant>, Vec<Variant>) =
        scenario.variants.into_iter().partition(|variant| not_modelled(variant).is_none());
    scenario.variants = modelled;
    if scenario.variants.is_empty() {
        let why = "no variant is left: the simulator has no model of the kernel's scheduler, nor of \
                   kernel-level threads; expected placement = \"onhost\" or \"offload\", and threads = \"user\"";
        return Err(Failure::Scenario(format!("{}: {why}", scenario.name)));
    }
    // Scenarios that cannot be simulated are refused before anything runs.
    let all = scenario.variants.iter().map(|variant| Simulated::new(&scenario, variant));
    let all: Vec<Simulated> = all.collect::<Result<_, Failure>>()?;
    let steps = match scenario.kind {
        Kind::Load => load::steps(&scenario),
        Kind::Ladder => scenario.variants.len() as u64,
        Kind::Crash(_) => scenario.variants.len() as u64,
        Kind::Enclaves(_) => enclaves::steps(&scenario),
        Kind::Chaos(_) => 0,
    };
    let progress = Progress::new(steps, quiet);
    journal.follow(&progress);
    let skipped: Vec<(String, String)> = others.iter().map(skipped).collect();
    for (what, why) in &skipped {
        progress.say(&format!("{what}: {why}"));
    }
    let recording = record
        .map(|directory| Recording::start(directory, &scenario.name, scenario.run.seed))
        .transpose()?;
    let ground = Ground { scenario: &scenario, progress, recording, journal };
    let mut found = match scenario.kind {
        Kind::Load => load::run(&ground),
        Kind::Ladder => load::ladder(&ground),
        Kind::Crash(times) => crash::run(&ground, times),
        Kind::Enclaves(enclaves) => enclaves::run(&ground, enclaves),
        Kind::Chaos(_) => unreachable!("Experiment::check refuses it"),
    }?;
    let mut facts = skipped;
    facts.extend(setup::facts(&all));
    facts.append(&mut found.facts);
    facts.extend(ground.recording.as_ref().map(|recording| {
        let (what, _) = recording.fact();
        (what, "which takes no virtual time".to_owned())
    }));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut machine = wave_apps::machine::machine(cpus);
    machine.model = format!("simulated {}, on {}", scenario.machine, machine.model);
    let result = RunResult {
        scenario: scenario.name.clone(),
        host: "sim".to_owned(),
        kind: scenario.kind.name().to_owned(),
        description: scenario.description.clone(),
        limit_us: SATURATION_LIMIT_US,
        seed: scenario.run.seed,
        version: wave_apps::machine::version().to_owned(),
        machine,
        seating: "Simulated: every host core, agent and generator has a CPU for itself.".to_owned(),
        started,
        variants: found.variants,
        paired: None,
        ladder: found.ladder,
        facts,
        extra: found.extra,
    };
    Ok(Finished { result, failed: found.failed })
}

/// The part of a variant that the simulator does not model, if any.
fn not_modelled(variant: &Variant) -> Option<&'static str> {
    match (variant.agent(), variant.host.threads) {
        (None, _) => Some("the kernel's scheduler"),
        (_, Threads::Kernel) => Some("kernel-level threads"),
        (Some(_), Threads::User) => None,
    }
}

fn skipped(variant: &Variant) -> (String, String) {
    let what = not_modelled(variant).unwrap_or_default();
    (variant.name.clone(), format!("skipped: the simulator has no model of {what}"))
}

#[cfg(test)]
mod tests;
