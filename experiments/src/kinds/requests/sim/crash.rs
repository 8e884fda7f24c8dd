//! A load while the agent is repeatedly killed and stopped, in turn.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use wave_core::clock::Nanos;
use wave_sched::wire::Kind as ThreadEvent;
use wave_sim::enclave::{Enclave, HostEvent, Mode};
use wave_sim::requests::Requests;
use wave_sim::world::World;

use super::super::crash::{Kill, Tally, extra};
use super::point::{of_served, sinks};
use super::{Ground, Simulated, parallel};
use crate::ground::point::with_use;
use crate::ground::service::Ran;
use crate::ground::{Failure, Found, limits, variant_result};
use crate::kinds::requests::scenario::{Crash, Variant};
use wave_apps::recording::Logs;
use wave_report::model::VariantResult;

/// Polling interval for what decides.
const POLL_EVERY: Nanos = Nanos::from_micros(10);
/// Time to start a process.
const RESTART: Nanos = Nanos::from_millis(1);
/// Time allowed for the host to notice, and for accepted requests to end.
const PATIENCE: Nanos = Nanos::from_millis(3_000);

/// Ends the world's tasks on drop, even if a run fails.
pub(crate) struct Ended(pub World);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Kills the agents of each variant in turn.
pub fn run(ground: &Ground<'_>, times: Crash) -> Result<Found, Failure> {
    let variants = &ground.scenario.variants;
    let label = |variant: &Variant| format!("{}: {} kills", variant.name, times.kills);
    let done = parallel::each(variants, &ground.progress, label, |variant| {
        let logs = ground.recording.as_ref().map(|recording| recording.logs(&variant.name));
        ground.journal.point(&variant.name, || one(ground, variant, times, logs))
    })?;
    let mut found = Found::default();
    let mut tallies = Vec::new();
    for (variant, (result, tally)) in variants.iter().zip(done) {
        found.variants.push(result);
        found.failed.extend(tally.complaints(&variant.name, times.kills));
        tallies.push((variant.name.clone(), tally));
    }
    found.extra = extra(&tallies);
    let how = "assumed: starting a process and mapping its window";
    found.facts.push((format!("an agent takes {} ms to start", RESTART.0 / 1_000_000), how.into()));
    Ok(found)
}

/// Threads as the host reports them: each is a request.
#[derive(Debug, Default)]
struct Threads {
    accepted: u64,
    ended: HashSet<(u32, u32)>,
    doubled: u64,
}

fn one(
    ground: &Ground<'_>,
    variant: &Variant,
    times: Crash,
    logs: Option<Logs>,
) -> Result<(VariantResult, Tally), Failure> {
    let scenario = ground.scenario;
    let simulated = Simulated::new(scenario, variant)?;
    let load = simulated.load(times.load_per_second);
    let world = World::new();
    let _ended = Ended(world.clone());
    let app = Requests::new(load.clone(), simulated.setup.seed);
    let enclave = Enclave::new(&world, simulated.setup.clone(), Rc::clone(&app) as _)
        .map_err(|error| Failure::Scenario(error.to_string()))?;
    let threads = Rc::new(RefCell::new(Threads::default()));
    let seen = Rc::clone(&threads);
    enclave.watch(Box::new(move |_, event| {
        let HostEvent::Changed(event) = event else { return };
        let mut seen = seen.borrow_mut();
        match event.kind {
            ThreadEvent::New => seen.accepted += 1,
            ThreadEvent::Dead => {
                let new = seen.ended.insert((event.thread.id, event.thread.generation));
                seen.doubled += u64::from(!new);
            }
            _ => {}
        }
    }));
    if let Some(logs) = logs {
        enclave.record_agents(logs.about(), sinks(logs));
    }
    enclave.start_agent();
    let kills = kill_over_and_over(&world, &enclave, times, load.warmup, scenario.run.seed)?;
    world.run_until(load.end().max(world.now()));
    let usage = enclave.usage();
    let until = world.now() + PATIENCE;
    let left = || threads.borrow().accepted > threads.borrow().ended.len() as u64;
    while left() && world.now() < until {
        world.run_until(world.now() + Nanos::from_millis(1));
    }
    if let Some(error) = enclave.counters().agent_errors.first() {
        return Err(Failure::Check(format!("{}: an agent left: {error}", variant.name)));
    }
    let served = app.served();
    let point = of_served(&load, &served);
    let headline = point.latency(&limits(&scenario.workload).class).copied().unwrap_or_default();
    let threads = threads.borrow();
    let tally = Tally {
        sent: threads.accepted + served.refused,
        refused: served.refused,
        ran: Ran { done: threads.ended.len() as u64, doubled: threads.doubled },
        failed: 0,
        kills,
        latencies: vec![(variant.name.clone(), headline)],
    };
    let mut result = variant_result(variant);
    let delta = simulated.delta(&usage, &load, simulated.setup.config.cores);
    result.points.push(with_use(point, &delta));
    Ok((result, tally))
}

fn kill_over_and_over(
    world: &World,
    enclave: &Rc<Enclave>,
    times: Crash,
    warmup: Nanos,
    seed: u64,
) -> Result<Vec<Kill>, Failure> {
    let mut random = Pcg64::seed_from_u64(seed);
    let every = Nanos::from_millis(times.every_ms);
    (0..times.kills)
        .map(|round| {
            let begins = warmup + Nanos(every.0 * u64::from(round));
            // Early enough in its turn that the next agent has attached before the next kill.
            let after = every.0 as f64 * random.random_range(0.05..0.5);
            world.run_until((begins + Nanos(after as u64)).max(world.now()));
            kill(world, enclave, round % 2 == 1)
        })
        .collect()
}

fn kill(world: &World, enclave: &Rc<Enclave>, stopped: bool) -> Result<Kill, Failure> {
    let what = if stopped { "stopped" } else { "killed" };
    let lost = |what: String| Failure::Check(format!("killing agents: {what}"));
    let agent =
        enclave.agent_task().ok_or_else(|| lost(format!("there is no agent to be {what}")))?;
    let start = world.now();
    // A stopped agent continues once its replacement decides: twice the watchdog's period.
    let goes_on = start + Nanos(2 * enclave.setup().config.patience.0) + RESTART;
    if stopped {
        world.stop(agent, goes_on);
    } else {
        enclave.kill_agent();
    }
    wait_for(world, enclave, Mode::Fallback)
        .ok_or_else(|| lost(format!("the host did not notice that an agent was {what}")))?;
    let fallback = world.now().since(start);
    let start = world.now();
    world.run_until(start + RESTART);
    enclave.start_agent();
    wait_for(world, enclave, Mode::Agent)
        .ok_or_else(|| lost(format!("no agent followed one that was {what}")))?;
    let takeover = world.now().since(start);
    let mut stayed = false;
    if stopped {
        world.run_until(goes_on.max(world.now()) + Nanos::from_millis(5));
        stayed = world.is_alive(agent);
    }
    let duration = |time: Nanos| Duration::from_nanos(time.0);
    Ok(Kill { fallback: duration(fallback), takeover: duration(takeover), stopped, stayed })
}

/// Runs the world until the enclave is in `mode`; None if that takes too long.
fn wait_for(world: &World, enclave: &Enclave, mode: Mode) -> Option<()> {
    let until = world.now() + PATIENCE;
    while enclave.mode() != mode {
        if world.now() >= until {
            return None;
        }
        world.run_until(world.now() + POLL_EVERY);
    }
    Some(())
}
