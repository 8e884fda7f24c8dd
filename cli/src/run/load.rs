//! Latency and throughput of each variant under each load, or its saturation.
//!
//! An offloaded agent leaves the on-host agent's core to the workload. Where a scenario has agents
//! of both kinds, each offloaded variant therefore runs twice: with as many workers as the on-host
//! one (the price of the link), and with as many *cores* (the gain), under loads that are higher by
//! the same factor. Where the machine has too few CPUs for the latter, that is left out and said.
//! At last the variants are compared under one load, if the scenario says so.

use super::session::Session;
use super::{Failure, Found, Ground, compare};
use crate::scenario::{Load, Placement, Scenario, Variant};

/// A variant to run, and by how much its loads are higher than the scenario's.
pub(super) struct Row {
    /// The variant.
    pub variant: Variant,
    /// Its loads, as multiples of the scenario's.
    pub factor: f64,
}

/// Every row that `cpus` CPUs are enough for, and what has to be said about those that are not there.
pub(super) fn rows(scenario: &Scenario, cpus: usize) -> (Vec<Row>, Option<(String, String)>) {
    let is = |variant: &Variant, placement| {
        variant.agent().is_some_and(|agent| agent.placement == placement)
    };
    let variants = &scenario.variants;
    let mut rows: Vec<Row> =
        variants.iter().map(|variant| Row { variant: variant.clone(), factor: 1.0 }).collect();
    if !variants.iter().any(|variant| is(variant, Placement::OnHost)) {
        return (rows, None);
    }
    let mut left_out = None;
    for variant in variants.iter().filter(|variant| is(variant, Placement::Offload)) {
        let mut more = variant.clone();
        more.host.cores += 1;
        more.name = format!("{}, equal cores", variant.name);
        let needed = more.host.cores as usize + 2;
        if cpus < needed {
            let why = format!(
                "left out: it needs {needed} CPUs (one for each worker, the agent and the \
                 generator), this machine has {}",
                cpus
            );
            left_out = Some(("comparison with equal cores".to_owned(), why));
            continue;
        }
        let factor = f64::from(more.host.cores) / f64::from(variant.host.cores);
        rows.push(Row { variant: more, factor });
    }
    (rows, left_out)
}

/// How many steps [`run`] will report.
pub(super) fn steps(scenario: &Scenario, cpus: usize) -> u64 {
    let per_row = match &scenario.run.load {
        Load::Each(loads) => loads.len(),
        Load::Search { .. } => 1,
    };
    (rows(scenario, cpus).0.len() * per_row) as u64 + compare::steps(scenario)
}

/// Runs all variants, one after the other.
pub(super) fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let (rows, left_out) = rows(ground.scenario, ground.cpus.len());
    let mut found = Found { facts: left_out.into_iter().collect(), ..Found::default() };
    for Row { variant, factor } in &rows {
        let mut session = Session::start(ground, variant)?;
        match &ground.scenario.run.load {
            Load::Each(loads) => {
                for load in loads {
                    let load = load * factor;
                    ground.begin(&format!("{}: {:.0} k/s", variant.name, load / 1e3));
                    session.point(load)?;
                    ground.end();
                }
            }
            Load::Search { low, high, probes } => {
                ground.begin(&format!("{}: saturation", variant.name));
                session.search(low * factor, high * factor, *probes)?;
                ground.end();
            }
        }
        found.facts.extend(session.preemptions());
        found.variants.push(session.finish(variant));
    }
    compare::run(ground, &mut found)?;
    Ok(found)
}
