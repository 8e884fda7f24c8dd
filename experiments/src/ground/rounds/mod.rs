//! All rows under the same loads, by paired rounds (docs/adr/0106).
//!
//! All systems are started before the first round; those without load are idle. In each round every row runs each load once, in
//! random order; rows at the same load get the same arrivals. Nothing is repeated or left out because of how a row fared.

mod conclusion;
mod curves;
#[cfg(test)]
mod known;

pub use conclusion::{Machine, of as conclude};
pub use curves::{At, Curves, Rounds, samples_of};

use std::time::Instant;

use serde::{Deserialize, Serialize};
use wave_compare::Estimate;
use wave_workloads::generator::Settings;

use super::neighbours::Neighbours;
use super::point::Outcome;
use super::preemptions::Preempted;
use super::session::Session;
use super::{Failure, Found, Ground, limits, variant_result};
use crate::ground::fields::Trials;
use crate::kinds::requests::compare;
use crate::kinds::requests::load::Row;
use wave_report::model::{Figure, VariantResult};

/// One trial of a row in a round, as kept in the journal.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Trial {
    pub outcome: Outcome,
    /// Time since the run's start, in seconds.
    at_s: f64,
    /// Preemptions up to and including this trial; `None` without an agent.
    preempted: Option<Preempted>,
    /// Why the row lost its agent in this trial, if it did.
    lost: Option<String>,
}

/// The trials of a row at one of its loads, a round each.
#[derive(Debug)]
pub(crate) struct AtLoad {
    per_second: f64,
    pub trials: Vec<Trial>,
}

/// A row, its running system, and its trials at each load.
pub(crate) struct Alive<'a, 'g> {
    row: &'a Row,
    session: Session<'g>,
    loads: Vec<AtLoad>,
}

/// Runs all rounds of `rows`.
pub(crate) fn run<'a>(ground: &'a Ground<'a>, rows: &[Row]) -> Result<Found, Failure> {
    let started = Instant::now();
    let neighbours = Neighbours::on(&ground.cpus);
    let (scenario, mut found) = (ground.scenario, Found::default());
    let (run, class) = (&scenario.run, limits(&scenario.workload).class);
    let mut of_rows = Vec::new();
    for alive in all(ground, rows, &run.loads(), started)? {
        of_rows.push(alive.end(&mut found));
    }
    let machine = Machine::since(neighbours, &ground.cpus);
    let names = rows.iter().map(|row| row.variant.name.clone());
    let seen = of_rows.iter().map(|loads| loads.iter().map(AtLoad::seen).collect());
    if let Some(curves) = Curves::of(names.zip(seen), &class, run.seed) {
        let reference = match &run.compare {
            Some(compare) => rows.iter().position(|row| row.variant.name == compare.with),
            None => None,
        };
        let reference = reference.unwrap_or_else(|| conclusion::reference(&found.variants));
        found.facts.extend(curves.late.clone());
        found.paired = Some(conclusion::of(&curves, reference, At::LowestAtTop, machine));
        compare::in_rounds(ground, rows, &of_rows, &curves, &mut found);
    }
    // Beside other processes an agent may have had no CPU in any trial.
    if machine.too_busy().is_none() {
        let serves = |row: &VariantResult| row.points.iter().any(|point| point.done > 0);
        let silent = found.variants.iter().filter(|row| !serves(row));
        let silent: Vec<_> =
            silent.map(|row| format!("\"{}\" served no request", row.name)).collect();
        found.failed.extend(silent);
    }
    found.facts.push(terms(ground));
    Ok(found)
}

/// Starts all rows, and runs their rounds.
pub(crate) fn all<'a>(
    ground: &'a Ground<'a>,
    rows: &'a [Row],
    loads: &[f64],
    started: Instant,
) -> Result<Vec<Alive<'a, 'a>>, Failure> {
    let start = |row| Alive::start(ground, row, loads);
    let mut alive: Vec<_> = rows.iter().map(start).collect::<Result<_, Failure>>()?;
    let (seed, rounds) = (ground.scenario.run.seed, ground.scenario.run.trials().rounds);
    for round in 0..u64::from(rounds) {
        ground.begin(&format!("round {} of {rounds}", round + 1));
        // Neighbours in time are what is compared: all rows at one load, then all at the next.
        for at in wave_compare::order(seed, round, loads.len()) {
            for row in wave_compare::order(seed ^ (at as u64 + 1), round, rows.len()) {
                alive[row].trial(ground, at, round, started)?;
            }
        }
        ground.end();
    }
    Ok(alive)
}

/// The median of a figure over rounds, with its interval if there are enough of them.
pub fn over_rounds(rounds: &[f64]) -> Figure {
    let value = wave_compare::median(rounds).unwrap_or(0.0);
    let interval = Estimate::of_rounds(rounds).map(|estimate| (estimate.low, estimate.high));
    Figure { value, interval }
}

/// A fact: what a round is.
pub(crate) fn terms(ground: &Ground<'_>) -> (String, String) {
    of_trials(ground.scenario.run.trials())
}

/// The same for these trials.
pub(crate) fn of_trials(trials: Trials) -> (String, String) {
    let Trials { rounds, warmup_seconds, measured_seconds } = trials;
    (
        format!("{rounds} rounds: every row runs each load once, in random order"),
        format!(
            "{:.0} ms measured after {:.0} ms of warm-up, the same arrivals at the same load; all trials count",
            measured_seconds * 1e3,
            warmup_seconds * 1e3
        ),
    )
}

/// A fact about the agents that a row has lost, if it has.
fn lost_agents(row: &Row, loads: &[AtLoad]) -> Option<(String, String)> {
    let trials = || loads.iter().flat_map(|load| &load.trials);
    let why = trials().find_map(|trial| trial.lost.as_deref())?;
    let lost = trials().filter(|trial| trial.lost.is_some()).count();
    let all = trials().count();
    Some((
        format!("{}: agents lost in {lost} of {all} trials", row.variant.name),
        format!("{why}; these trials count, and another agent was started after each"),
    ))
}

impl AtLoad {
    pub fn outcomes(&self) -> Vec<&Outcome> {
        self.trials.iter().map(|trial| &trial.outcome).collect()
    }

    fn seen(&self) -> Rounds<'_> {
        let trials = self.trials.iter().map(|trial| (&trial.outcome.point.measured, trial.at_s));
        Rounds { per_second: self.per_second, trials: trials.collect() }
    }
}

impl<'a, 'g> Alive<'a, 'g> {
    fn start(ground: &'g Ground<'g>, row: &'a Row, loads: &[f64]) -> Result<Self, Failure> {
        let loads = loads.iter().map(|load| load * row.factor);
        Ok(Alive {
            row,
            session: Session::start(ground, &row.variant)?,
            loads: loads.map(|per_second| AtLoad { per_second, trials: Vec::new() }).collect(),
        })
    }

    /// Runs the load with this index once, unless an earlier run has.
    fn trial(
        &mut self,
        ground: &Ground<'_>,
        at: usize,
        round: u64,
        started: Instant,
    ) -> Result<(), Failure> {
        let key =
            format!("round {round}, {}: {}", self.row.variant.name, self.loads[at].per_second);
        let settings = self.session.terms().settings;
        self.trial_for(ground, at, &key, round, &settings, started)
    }

    fn trial_for(
        &mut self,
        ground: &Ground<'_>,
        at: usize,
        key: &str,
        round: u64,
        settings: &Settings,
        started: Instant,
    ) -> Result<(), Failure> {
        let per_second = self.loads[at].per_second;
        let mut ran = false;
        let trial = ground.journal.point(key, || {
            ran = true;
            let at_s = started.elapsed().as_secs_f64();
            let seed = ground.scenario.run.seed.wrapping_add(round);
            let (outcome, lost) = self.session.trial(per_second, seed, settings)?;
            Ok(Trial { outcome, at_s, preempted: self.session.all_preemptions(), lost })
        })?;
        if !ran {
            self.session.resume(trial.preempted.clone());
        }
        self.loads[at].trials.push(trial);
        Ok(())
    }

    /// Runs another load once, for as long as `settings` says.
    pub(crate) fn once(
        &mut self,
        ground: &Ground<'_>,
        per_second: f64,
        settings: &Settings,
        started: Instant,
    ) -> Result<(), Failure> {
        let (at, round) = (self.loads.len(), ground.scenario.run.trials().rounds.into());
        let key = format!("once, {}: {per_second}", self.row.variant.name);
        self.loads.push(AtLoad { per_second, trials: Vec::new() });
        self.trial_for(ground, at, &key, round, settings, started)
    }

    /// The trials at each load.
    pub(crate) fn loads(&self) -> &[AtLoad] {
        &self.loads
    }

    /// The settings of its trials.
    pub(crate) fn settings(&self) -> Settings {
        self.session.terms().settings
    }

    /// Stops the system. Adds the variant's result, without a saturation, and facts about it.
    pub(crate) fn end(self, found: &mut Found) -> Vec<AtLoad> {
        let Alive { row, session, loads } = self;
        let preempted = session.preemptions();
        if let Some(preempted) = &preempted {
            let policy = row.variant.agent().map_or("", |agent| &agent.policy);
            found.facts.extend(preempted.facts(&row.variant.name, policy));
        }
        drop(session);
        found.facts.extend(lost_agents(row, &loads));
        let mut pooled: Vec<Outcome> =
            loads.iter().filter_map(|load| Outcome::pooled(&load.outcomes())).collect();
        let load = |outcome: &Outcome| outcome.point.offered_per_second;
        pooled.sort_by(|a, b| load(a).total_cmp(&load(b)));
        // Of the same load for every row.
        let account = pooled.last().filter(|outcome| !outcome.account.is_empty());
        found.variants.push(VariantResult {
            preemptions: preempted.map(|preempted| preempted.report()),
            account_per_second: account.map(load),
            account: account.map(|outcome| outcome.account.clone()).unwrap_or_default(),
            points: pooled.into_iter().map(|outcome| outcome.point).collect(),
            ..variant_result(&row.variant)
        });
        loads
    }
}
