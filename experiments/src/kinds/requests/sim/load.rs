//! Loads, saturations and ladders.

use super::super::compare::Runs;
use wave_report::model::{Point, VariantResult};
use wave_workloads::point::{self as measured, Limits, SENSITIVITY_LIMITS_US};

use super::super::load::{Row, rows};
use super::super::{compare, ladder};
use super::point::{refine, search};
use super::{Ground, Simulated, parallel};
use crate::ground::point::Outcome;
use crate::ground::saturation::put_saturations;
use crate::ground::{Failure, Found, limits, variant_result};
use crate::kinds::requests::scenario::{Scenario, Search, Variant};

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
    let of_row = match scenario.run.search {
        None => scenario.run.loads_per_second.len() + usize::from(scenario.run.refine > 0),
        Some(_) => 1,
    };
    (rows(scenario, usize::MAX).0.len() * of_row + compared) as u64
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
    let variants = match scenario.run.search {
        None => {
            let loads = &scenario.run.loads_per_second;
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
        Some(Search { low, high, probes }) => {
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
            Ok(ground.point(&simulated, &variant.name, load)?.point)
        })?;
        let runs = scenario.variants.iter().zip(&points).map(|(variant, point)| {
            let p99 = p99_ns(point, &limits.class).filter(|_| point.generator.valid);
            let p99_ns = p99.map(|ns| ns as f64).into_iter().collect();
            Runs { variant, p99_ns, ranges: Vec::new(), ideal: Vec::new() }
        });
        let runs: Vec<Runs<'_>> = runs.collect();
        compare::conclude(&mut found, &scenario.workload, load, &compared.with, &runs);
        for (result, point) in found.variants.iter_mut().zip(points) {
            insert(result, point);
        }
    }
    Ok(found)
}

/// Runs every variant under the ladder's load, and under a little less than it served.
pub fn ladder(ground: &Ground<'_>) -> Result<Found, Failure> {
    let scenario = ground.scenario;
    let offered = ladder::offered(&scenario.run)?;
    let label = |variant: &Variant| format!("{}: {:.0} k/s", variant.name, offered / 1e3);
    let ran = parallel::each(&scenario.variants, &ground.progress, label, |variant| {
        let simulated = Simulated::new(scenario, variant)?;
        let outcome = ground.point(&simulated, &variant.name, offered)?;
        let served = ladder::Served::of(&[&outcome]);
        let confirmation = ground.point(&simulated, &variant.name, served.confirmed_at())?;
        // A ladder has no saturations.
        let points = vec![confirmation.point.clone(), outcome.point];
        let mut found = VariantResult { points, ..variant_result(variant) };
        ladder::account_for(&mut found, &confirmation);
        Ok((found, served))
    })?;
    let (variants, served): (Vec<_>, Vec<_>) = ran.into_iter().unzip();
    let mut found = Found { variants, ..Found::default() };
    ladder::conclude(&mut found, offered, &served);
    Ok(found)
}

/// The result of a variant's points.
fn variant_found(variant: &Variant, limits: &Limits, mut outcomes: Vec<Outcome>) -> VariantResult {
    outcomes.sort_by(|a, b| a.point.offered_per_second.total_cmp(&b.point.offered_per_second));
    let points: Vec<measured::Point> =
        outcomes.iter().map(|outcome| outcome.point.measured.clone()).collect();
    let mut result = variant_result(variant);
    put_saturations(&mut result, &points, limits, &SENSITIVITY_LIMITS_US);
    // The point nearest to saturation.
    let nearest = outcomes.iter().rfind(|outcome| {
        let sustained = result.saturation_per_second;
        sustained.is_none_or(|load| outcome.point.offered_per_second <= load)
    });
    let account = nearest.filter(|outcome| !outcome.account.is_empty());
    result.account_per_second = account.map(|outcome| outcome.point.offered_per_second);
    result.account = account.map(|outcome| outcome.account.clone()).unwrap_or_default();
    result.points = outcomes.into_iter().map(|outcome| outcome.point).collect();
    result
}

/// Inserts a point, in place of one under the same load.
fn insert(result: &mut VariantResult, point: Point) {
    result.points.retain(|other| other.offered_per_second != point.offered_per_second);
    result.points.push(point);
    result.points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
}

fn p99_ns(point: &Point, class: &str) -> Option<u64> {
    let class = point.classes.iter().find(|each| each.name == class)?;
    Some(class.latency.p99_ns).filter(|_| class.latency.count > 0)
}
