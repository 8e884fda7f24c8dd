//! Loads, saturations and ladders.

use super::super::compare::Runs;
use super::super::load::{Row, rows, steps_of_row};
use super::super::point::Outcome;
use super::super::session::variant_found;
use super::super::{compare, ladder, limits};
use super::point::{refine, search};
use super::{Failure, Found, Ground, Simulated, parallel};
use crate::scenario::{Load, Scenario, Variant};

impl Ground<'_> {
    /// Runs one point of this variant, unless an earlier run has finished it.
    fn point(&self, simulated: &Simulated, variant: &str, load: f64) -> Result<Outcome, Failure> {
        let logs = self
            .recording
            .as_ref()
            .map(|recording| recording.logs(&format!("{variant} {load:.0}")));
        let key = format!("{variant}: {load}");
        self.journal.point(&key, || simulated.run(load, logs.as_ref()))
    }
}

/// Number of steps that [`run`] reports.
pub fn steps(scenario: &Scenario) -> u64 {
    let compared = scenario.run.compare.as_ref().map_or(0, |_| scenario.variants.len());
    (rows(scenario, usize::MAX).0.len() * steps_of_row(&scenario.run) + compared) as u64
}

/// Runs every load of every row, or searches every row's saturation.
pub fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let scenario = ground.scenario;
    let (rows, _) = rows(scenario, usize::MAX);
    let ready: Vec<Simulated> = rows
        .iter()
        .map(|row| Simulated::new(scenario, &row.variant))
        .collect::<Result<_, Failure>>()?;
    let limits = limits(&scenario.workload);
    let rows: Vec<(&Row, &Simulated)> = rows.iter().zip(&ready).collect();
    let variants = match &scenario.run.load {
        Load::Each(loads) => {
            let jobs: Vec<(usize, f64)> = rows
                .iter()
                .enumerate()
                .flat_map(|(at, (row, _))| loads.iter().map(move |load| (at, load * row.factor)))
                .collect();
            let label = |&(at, load): &(usize, f64)| {
                format!("{}: {:.0} k/s", rows[at].0.variant.name, load / 1e3)
            };
            let outcomes = parallel::each(&jobs, &ground.progress, label, |&(at, load)| {
                let (row, simulated) = rows[at];
                ground.point(simulated, &row.variant.name, load)
            })?;
            let rows: Vec<_> = rows.iter().zip(outcomes.chunks(loads.len())).collect();
            match scenario.run.refine {
                0 => rows
                    .iter()
                    .map(|((row, _), run)| variant_found(&row.variant, &limits, run.to_vec()))
                    .collect(),
                more => {
                    let label = |&(&(row, _), _): &(&(&Row, &Simulated), &[Outcome])| {
                        format!("{}: saturation between these", row.variant.name)
                    };
                    parallel::each(&rows, &ground.progress, label, |((row, simulated), run)| {
                        let point = |load| ground.point(simulated, &row.variant.name, load);
                        let run = refine(run.to_vec(), more, &limits, point)?;
                        Ok(variant_found(&row.variant, &limits, run))
                    })?
                }
            }
        }
        &Load::Search { low, high, probes } => {
            let label = |(row, _): &(&Row, &Simulated)| format!("{}: saturation", row.variant.name);
            parallel::each(&rows, &ground.progress, label, |(row, simulated)| {
                let range = (low * row.factor, high * row.factor);
                let point = |load| ground.point(simulated, &row.variant.name, load);
                let outcomes = search(range, probes, &limits, point)?;
                Ok(variant_found(&row.variant, &limits, outcomes))
            })?
        }
    };
    let mut found = Found { variants, ..Found::default() };
    if let Some(compared) = &scenario.run.compare
        && let Some(load) = compare::load(compared, &mut found)
    {
        let label = |variant: &Variant| format!("{}: {:.1} k/s", variant.name, load / 1e3);
        let points = parallel::each(&scenario.variants, &ground.progress, label, |variant| {
            let simulated = Simulated::new(scenario, variant)?;
            let outcomes = vec![ground.point(&simulated, &variant.name, load)?];
            Ok(Runs { variant: variant.clone(), outcomes, ideal: None })
        })?;
        compare::conclude(&mut found, &scenario.workload, load, &compared.with, points);
    }
    Ok(found)
}

/// Runs every variant under the ladder's load, and under a little less than it served.
pub fn ladder(ground: &Ground<'_>) -> Result<Found, Failure> {
    let scenario = ground.scenario;
    let offered = ladder::offered(&scenario.run)?;
    let limits = limits(&scenario.workload);
    let label = |variant: &Variant| format!("{}: {:.0} k/s", variant.name, offered / 1e3);
    let ran = parallel::each(&scenario.variants, &ground.progress, label, |variant| {
        let simulated = Simulated::new(scenario, variant)?;
        let outcome = ground.point(&simulated, &variant.name, offered)?;
        let served = ladder::Served::of(&[&outcome]);
        let confirmation = ground.point(&simulated, &variant.name, served.confirmed_at())?;
        let mut found = variant_found(variant, &limits, vec![outcome, confirmation.clone()]);
        ladder::account_for(&mut found, &confirmation);
        Ok((found, served))
    })?;
    let (mut variants, served): (Vec<_>, Vec<_>) = ran.into_iter().unzip();
    for variant in &mut variants {
        (variant.saturation_per_second, variant.not_measurable) = (None, None);
        (variant.saturation_by_limit, variant.limits_not_measurable) = (Vec::new(), Vec::new());
    }
    let mut found = Found { variants, ..Found::default() };
    ladder::conclude(&mut found, offered, &served);
    Ok(found)
}
