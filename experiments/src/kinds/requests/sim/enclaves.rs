//! Several enclaves on one simulated host, each with cores and an agent of its own.
//!
//! Then the first enclave's agent is killed under load, in a world of its own.

use std::rc::Rc;

use serde_json::{Value, json};
use wave_core::clock::Nanos;
use wave_sim::enclave::Enclave;
use wave_sim::requests::{Load as SimLoad, Requests, Served};
use wave_sim::usage::Usage;
use wave_sim::world::World;

use super::super::enclaves::{State, complaints};
use super::crash::Ended;
use super::point::{of_served, sinks};
use super::{Ground, Simulated, parallel};
use crate::ground::point::with_use;
use crate::ground::{Failure, Found, variant_result};
use crate::kinds::requests::scenario::{Scenario, Variant};
use wave_report::model::Point;

/// Time allowed for accepted requests to end.
const PATIENCE: Nanos = Nanos::from_millis(3_000);

/// Number of steps that [`run`] reports.
pub fn steps(scenario: &Scenario) -> u64 {
    (scenario.variants.len() * (scenario.run.loads_per_second.len() + 1)) as u64
}

/// Loads the enclaves of each variant.
pub fn run(ground: &Ground<'_>, count: u32) -> Result<Found, Failure> {
    let loads = &ground.scenario.run.loads_per_second;
    let variants = &ground.scenario.variants;
    let with_kill = || loads.iter().map(|&load| (load, false)).chain([(loads[0], true)]);
    let jobs: Vec<(&Variant, f64, bool)> = variants
        .iter()
        .flat_map(|variant| with_kill().map(move |(load, kills)| (variant, load, kills)))
        .collect();
    let label = |&(variant, load, kills): &(&Variant, f64, bool)| match kills {
        true => format!("{}: killing the first agent", variant.name),
        false => format!("{}: {:.0} k/s to each", variant.name, load / 1e3),
    };
    let done = parallel::each(&jobs, &ground.progress, label, |&(variant, load, kills)| {
        let key = format!("{}: {load}{}", variant.name, if kills { ", kill" } else { "" });
        ground.journal.point(&key, || one(ground, variant, count, load, kills))
    })?;
    let mut done = done.into_iter();
    let mut found = Found::default();
    let mut rows = Vec::new();
    for variant in variants {
        let mut result = variant_result(variant);
        result.workers *= count;
        let mut states: Vec<State> = Vec::new();
        for (at, (point, of_point)) in done.by_ref().take(loads.len() + 1).enumerate() {
            if at < loads.len() {
                result.points.push(point);
            }
            if states.is_empty() {
                states = of_point;
            } else {
                states.iter_mut().zip(of_point).for_each(|(sum, more)| add(sum, more));
            }
        }
        found.failed.extend(complaints(&variant.name, &states));
        rows.extend(states.iter().map(|state| state.to_json(&variant.name)));
        found.variants.push(result);
    }
    found.extra = json!({ "undisturbed": found.failed.is_empty(), "enclaves": Value::Array(rows) });
    Ok(found)
}

fn add(sum: &mut State, more: State) {
    sum.submitted += more.submitted;
    sum.refused += more.refused;
    sum.measured_done += more.measured_done;
    sum.alive += more.alive;
    sum.lost_agents += more.lost_agents;
    sum.fallback_switches += more.fallback_switches;
}

/// Offers one load to each of `count` enclaves.
fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    count: u32,
    per_second: f64,
    kills: bool,
) -> Result<(Point, Vec<State>), Failure> {
    let simulated = Simulated::new(ground.scenario, variant)?;
    let load = simulated.load(per_second);
    let world = World::new();
    let _ended = Ended(world.clone());
    let mut hosts = Vec::new();
    for number in 1..=count {
        let mut setup = simulated.setup.clone();
        // Enclaves with equal arrivals would be disturbed alike.
        setup.seed = setup.seed.wrapping_mul(1 << 20).wrapping_add(u64::from(number));
        let app = Requests::new(load.clone(), setup.seed);
        let enclave = Enclave::new(&world, setup, Rc::clone(&app) as _)
            .map_err(|error| Failure::Scenario(error.to_string()))?;
        if let Some(recording) = &ground.recording {
            let kill = if kills { " kill" } else { "" };
            let name = format!("{} enclave {number} {per_second:.0}{kill}", variant.name);
            let logs = recording.logs(&name);
            enclave.record_agents(logs.about(), sinks(logs));
        }
        enclave.start_agent();
        hosts.push((enclave, app));
    }
    world.run_until(load.warmup);
    // An enclave falls back until its agent has attached.
    let before: Vec<u64> =
        hosts.iter().map(|(enclave, _)| enclave.counters().fallback_switches).collect();
    if kills {
        world.run_until(load.warmup + Nanos(load.measure.0 / 2));
        hosts[0].0.kill_agent();
    }
    world.run_until(load.end());
    let usage = hosts.iter().fold(Usage::default(), |mut sum, (enclave, _)| {
        let usage = enclave.usage();
        sum.busy = sum.busy + usage.busy;
        sum.parked = sum.parked + usage.parked;
        sum.agent = sum.agent + usage.agent;
        sum.switches += usage.switches;
        sum.charges += usage.charges;
        sum.outcomes.merge(&usage.outcomes);
        sum
    });
    let left = || hosts.iter().map(|(_, app)| outstanding(&app.served())).sum::<u64>();
    let until = world.now() + PATIENCE;
    while left() > 0 && world.now() < until {
        world.run_until(world.now() + Nanos::from_millis(1));
    }
    let mut states = Vec::new();
    for (at, (enclave, app)) in hosts.iter().enumerate() {
        let (served, counters) = (app.served(), enclave.counters());
        if let Some(error) = counters.agent_errors.first() {
            return Err(Failure::Check(format!("{}: an agent left: {error}", variant.name)));
        }
        states.push(State {
            enclave: at + 1,
            submitted: served.sent,
            refused: served.refused,
            measured_done: served.done,
            alive: outstanding(&served),
            lost_agents: counters.lost_agents,
            fallback_switches: counters.fallback_switches - before[at],
            killed: at == 0,
        });
    }
    let (load, served) = together(&load, hosts.iter().map(|(_, app)| app.served()).collect());
    let cores = simulated.setup.config.cores * count as u16;
    let delta = simulated.delta(&usage, &load, cores);
    Ok((with_use(of_served(&load, &served), &delta), states))
}

/// Requests that count, were accepted, and have not ended.
fn outstanding(served: &Served) -> u64 {
    served.sent - served.refused - served.done
}

/// The requests of all enclaves together, with a set of classes for each.
fn together(load: &SimLoad, each: Vec<Served>) -> (SimLoad, Served) {
    let mut all = SimLoad { per_second: 0.0, classes: Vec::new(), ..load.clone() };
    let mut sum: Option<Served> = None;
    for (at, served) in each.into_iter().enumerate() {
        all.per_second += load.per_second;
        all.classes.extend(load.classes.iter().cloned().map(|mut class| {
            class.name = format!("{} enclave {}", class.name, at + 1);
            class
        }));
        sum = Some(match sum {
            None => served,
            Some(mut sum) => {
                sum.sent += served.sent;
                sum.done += served.done;
                sum.refused += served.refused;
                sum.finished_within += served.finished_within;
                sum.latencies.extend(served.latencies);
                sum.lags.add(&served.lags).expect("histograms of the same bounds");
                sum.lag_max = sum.lag_max.max(served.lag_max);
                sum.lag_last = sum.lag_last.max(served.lag_last);
                sum
            }
        });
    }
    (all, sum.expect("at least one enclave"))
}
