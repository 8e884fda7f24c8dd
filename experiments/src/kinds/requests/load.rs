//! Latency and throughput of each variant at each load, or its saturation.
//!
//! An offloaded agent leaves the on-host agent's core to the workload. If a scenario has agents of both kinds, each offloaded
//! variant therefore runs twice: as the scenario has it (the price of the link), and with as many *cores* as the on-host one, its
//! agent's included (the gain), at loads that are changed by the same factor. The latter is omitted where the scenario gives
//! them equal cores already. If the machine has too few CPUs for it, it is left out, and the report says so; an on-host variant is
//! then left out, too, if it equals an offloaded one but for its name.

use crate::ground::{Failure, Found, Ground, enough_requests, limits, rounds, without_effect};
use crate::kinds::requests::scenario::{Agent, Placement, Run, Scenario, Scheduler, Variant};

/// A variant to run, and the factor by which its loads exceed the scenario's.
pub(crate) struct Row {
    pub variant: Variant,
    /// Factor of its loads over the scenario's.
    pub factor: f64,
}

/// Every row for which `cpus` CPUs are enough, and facts about those left out.
pub(crate) fn rows(scenario: &Scenario, cpus: usize) -> (Vec<Row>, Vec<(String, String)>) {
    let is = |variant: &Variant, placement| {
        variant.agent().is_some_and(|agent| agent.placement == placement)
    };
    let variants = &scenario.variants;
    let mut rows: Vec<Row> =
        variants.iter().map(|variant| Row { variant: variant.clone(), factor: 1.0 }).collect();
    if !scenario.run.equal_cores {
        return (rows, Vec::new());
    }
    let mut left_out = Vec::new();
    for variant in variants.iter().filter(|variant| is(variant, Placement::Offload)) {
        let onhost = || variants.iter().filter(|other| is(other, Placement::OnHost));
        let policy = |of: &Variant| of.agent().map(|agent| agent.policy.clone());
        let like = onhost().find(|other| policy(other) == policy(variant));
        let Some(other) = like.or_else(|| onhost().next()) else { continue };
        // An on-host agent takes a core of the host beside its workers.
        let cores = other.host.cores + 1;
        if cores == variant.host.cores {
            continue;
        }
        let mut more = variant.clone();
        more.host.cores = cores;
        more.name = format!("{}, equal cores", variant.name);
        let needed = more.host.cores as usize + 2;
        if cpus < needed {
            let why = format!(
                "left out: it needs {needed} CPUs (one for each worker, the agent and the \
                 generator), this machine has {}",
                cpus
            );
            left_out = vec![("comparison with equal cores".to_owned(), why)];
            continue;
        }
        let factor = f64::from(more.host.cores) / f64::from(variant.host.cores);
        rows.push(Row { variant: more, factor });
    }
    if !left_out.is_empty() {
        rows.retain(|Row { variant, .. }| {
            let offloaded =
                variants.iter().find(|other| is(other, Placement::Offload) && same(other, variant));
            let Some(offloaded) = offloaded.filter(|_| is(variant, Placement::OnHost)) else {
                return true;
            };
            let why = format!(
                "left out: with equal workers it is the same system as \"{}\", and there are too \
                 few CPUs for equal cores",
                offloaded.name
            );
            left_out.push((variant.name.clone(), why));
            false
        });
    }
    (rows, left_out)
}

/// Whether they differ only in name and placement.
fn same(one: &Variant, other: &Variant) -> bool {
    let anywhere = |variant: &Variant| match variant.scheduler.clone() {
        Scheduler::Agent(agent) => Some(Agent { placement: Placement::Offload, ..agent }),
        Scheduler::Linux => None,
    };
    one.host == other.host && anywhere(one) == anywhere(other)
}

/// Number of steps that [`run`] reports: its rounds.
pub(crate) fn steps(run: &Run) -> u64 {
    run.trials().rounds.into()
}

/// Duration of one of these steps, in seconds.
pub(crate) fn step_seconds(scenario: &Scenario, cpus: usize) -> f64 {
    let (run, rows) = (&scenario.run, rows(scenario, cpus).0.len());
    (rows * run.loads().len()) as f64 * run.trials().seconds()
}

/// Runs all variants in rounds.
pub(crate) fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let (rows, left_out) = rows(ground.scenario, ground.cpus.len());
    let (workload, run) = (&ground.scenario.workload, &ground.scenario.run);
    let class = limits(workload).class;
    let all: f64 = workload.classes.iter().map(|class| class.weight).sum();
    let of_class = workload.classes.iter().filter(|of| of.name == class).map(|of| of.weight / all);
    let class = (class.as_str(), of_class.sum());
    enough_requests(&ground.scenario.name, run.loads()[0], class, run.trials())?;
    let mut found = rounds::run(ground, &rows)?;
    found.facts.splice(0..0, left_out);
    if run.search.is_some() {
        let why = "a native run offers a fixed set of loads in rounds; --host sim searches";
        found.facts.push((
            "run.search gives fixed loads, each the same factor above the last".to_owned(),
            why.to_owned(),
        ));
    }
    found.facts.extend((run.refine > 0).then(|| without_effect("run.refine")));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SCENARIO: &str = r#"name = "x"
kind = "load"
[run]
loads_per_second = [1]
[[variant]]
name = "far"
placement = "offload"
policy = "fifo"
[[variant]]
name = "near"
placement = "onhost"
policy = "fifo"
[[variant]]
name = "near, deeper"
placement = "onhost"
policy = "fifo"
prestage = 4
"#;

    fn scenario() -> Scenario {
        crate::kinds::requests::scenario::read(
            &wave_scenario::Source::new(Path::new("x.toml"), SCENARIO),
            wave_sched::policies::NAMES,
        )
        .unwrap()
    }

    #[test]
    fn on_host_twin_is_left_out_if_cpus_are_too_few_for_equal_cores() {
        let scenario = scenario();
        let names = |cpus| {
            let (rows, left_out) = rows(&scenario, cpus);
            let names: Vec<String> = rows.into_iter().map(|row| row.variant.name).collect();
            (names.join("; "), left_out.len())
        };
        assert_eq!(names(3), ("far; near, deeper".to_owned(), 2));
        assert_eq!(names(4), ("far; near; near, deeper; far, equal cores".to_owned(), 0));
    }

    #[test]
    fn equal_cores_include_the_core_of_the_agent() {
        let mut scenario = scenario();
        let mut rows_with = |far: u32, near: u32| -> Vec<(String, u32, f64)> {
            scenario.variants[0].host.cores = far;
            scenario.variants[1].host.cores = near;
            let more = rows(&scenario, 64).0.into_iter().skip(3);
            more.map(|row| (row.variant.name, row.variant.host.cores, row.factor)).collect()
        };
        assert_eq!(rows_with(4, 4), [("far, equal cores".to_owned(), 5, 1.25)]);
        // 3 workers and the agent's core are 4 already.
        assert_eq!(rows_with(4, 3), []);
        assert_eq!(rows_with(4, 7), [("far, equal cores".to_owned(), 8, 2.0)]);
    }

    #[test]
    fn equal_cores_can_be_switched_off() {
        let mut scenario = scenario();
        scenario.run.equal_cores = false;
        for cpus in [3, 4] {
            let (rows, left_out) = rows(&scenario, cpus);
            let names: Vec<_> = rows.iter().map(|row| row.variant.name.as_str()).collect();
            assert_eq!((names, left_out.len()), (vec!["far", "near", "near, deeper"], 0));
        }
    }
}
