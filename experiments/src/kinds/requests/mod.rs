//! Experiments on the scheduling of requests: load, ladder, crash, enclaves, chaos.
//!
//! Each kind has a file of its own. All of them start [systems](crate::ground::system) seated by one rule
//! ([`crate::ground::seating`]), and load them from the calling thread.

mod chaos;
pub(crate) mod compare;
mod crash;
mod enclaves;
pub(crate) mod ideal;
mod ladder;
pub(crate) mod load;
mod native;
pub mod probe;
pub mod scenario;
pub mod sim;

use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wave_sched::policies;
use wave_terminal::{Failure, interrupt};

use self::scenario::{Form, Machine, Scenario};
use super::{Experiment, Host, Kind, OwnAgent, Report, Wanted, digest};
use crate::ground::{Finished, Journal};
use crate::live::{Feed, Live};
use wave_scenario::reference::fields_of;
use wave_scenario::{ScenarioError, Source, kind_of};

pub(crate) static KIND: Kind = Kind {
    names: NAMES,
    about: "Threads of a RocksDB server, scheduled by Linux or by agents.",
    commands: "`wave run FILE`, also with `--host sim` (except `chaos`)",
    examples: &[
        include_str!("examples/load.toml"),
        include_str!("examples/ladder.toml"),
        include_str!("examples/crash.toml"),
        include_str!("examples/enclaves.toml"),
        include_str!("examples/chaos.toml"),
    ],
    fields: fields_of::<Form>,
    takes_agent: true,
    read: |wished| Ok(Box::new(scenario_of(wished.source, wished.agent)?)),
};

const NAMES: &[&str] = &["load", "ladder", "crash", "enclaves", "chaos"];

/// Whether the text is a scenario whose variants and loads are points of their own in a sweep.
pub(crate) fn has_points(path: &Path, text: &str) -> bool {
    matches!(kind_of(path, text, NAMES).ok().flatten().as_deref(), Some("load" | "ladder"))
}

/// Reads a scenario. With `own`, its policies are those of that program.
///
/// # Errors
/// The line at fault, and why.
pub(crate) fn scenario_of(
    source: &Source<'_>,
    own: Option<&OwnAgent>,
) -> Result<Scenario, ScenarioError> {
    let Some(own) = own else { return scenario::read(source, policies::NAMES) };
    let names: Vec<&str> = own.policies.iter().map(String::as_str).collect();
    let mut scenario = scenario::read(source, &names)?;
    if scenario.agents().next().is_none() {
        let why = "--agent: no variant of the scenario has an agent";
        return Err(ScenarioError::meaning(source.path, 1, why.to_owned()));
    }
    let mut chosen: Vec<&str> = scenario.agents().map(|agent| agent.policy.as_str()).collect();
    chosen.sort_unstable();
    chosen.dedup();
    for policy in chosen {
        own.check(policy).map_err(|why| {
            let written = [format!("\"{policy}\""), format!("'{policy}'")];
            let line =
                source.text.lines().position(|line| written.iter().any(|it| line.contains(it)));
            let why = format!("`variant.policy`: {why}");
            ScenarioError::meaning(source.path, line.map_or(1, |line| line + 1), why)
        })?;
    }
    scenario.agents_mut().for_each(|agent| agent.program = Some(own.program().to_owned()));
    Ok(scenario)
}

impl Experiment for Scenario {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> Result<String, Failure> {
        let machine = match &self.machine {
            Machine::File(file) => Some(file),
            Machine::Builtin(_) => None,
        };
        let agents = self.variants.iter().filter_map(|variant| variant.agent());
        // All agents run the same program.
        let program = self.agents().find_map(|agent| agent.program.as_ref());
        digest(self, agents.filter_map(|agent| agent.link.file()).chain(machine).chain(program))
    }

    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        let refuse = |why: &str| Err(Failure::Scenario(why.to_owned()));
        match wanted.host {
            Host::Sim if matches!(self.kind, scenario::Kind::Chaos(_)) => {
                Err(Failure::Scenario(format!(
                    "{}: kind = \"chaos\" preempts real code, so there is nothing to simulate: run it without --host sim",
                    self.name
                )))
            }
            Host::Sim if wanted.live => {
                refuse("--live watches native runs only, not simulated ones")
            }
            _ => Ok(()),
        }
    }

    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure> {
        let (say, is_live) = (Arc::clone(journal), wanted.live);
        interrupt::say(move || {
            // Restores the terminal before these lines are printed.
            if is_live {
                ratatui::restore();
            }
            say.last_words()
        })?;
        if wanted.host == Host::Sim {
            let finished = sim::run(self, wanted.quiet, wanted.record, journal)?;
            return Ok(Box::new(finished));
        }
        let feed = Feed::default();
        let live = is_live.then(|| Live::start(feed.clone())).transpose();
        let live = live.map_err(Failure::Scenario)?;
        let ran = native::run(self, wanted.quiet || is_live, feed, wanted.record, journal);
        // Restores the terminal before anything else is printed.
        drop(live);
        Ok(Box::new(ran?))
    }
}

impl Report for Finished {
    fn text(&self) -> String {
        let result = &self.result;
        let seating = format!("Seating: {}", result.seating);
        let facts = result.facts.iter().map(|(what, how)| format!("{what}: {how}"));
        wave_report::terminal::whole(result, iter::once(seating).chain(facts).collect())
    }

    fn json(&self) -> Result<String, Failure> {
        Ok(wave_report::object(&self.result).to_string())
    }

    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        wave_report::write(&self.result, out).map_err(Failure::cannot)
    }

    fn failed(&self) -> Vec<String> {
        self.failed.clone()
    }

    fn is_measured(&self) -> bool {
        self.result.is_measured() || self.result.is_judged_by_checks()
    }
}
