//! The RPC scenarios on a simulated host: the model of `wave reproduce fig6a fig6b`, with the scenario's parameters
//! (docs/adr/0043).
//!
//! Each point runs in a world of its own. A variant that the model does not cover is left out, with the reason.

use std::path::Path;
use std::sync::Arc;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_links::costs::Costs;
use wave_rpc::steer;
use wave_sim::paper::{self, Placement};
use wave_sim::requests::{Load, Service};
use wave_sim::rpc::costs::StackCosts;
use wave_sim::rpc::{self, RpcOutcome, RpcSetup};
use wave_workloads::grpc::load::{Answers, Open};
use wave_workloads::grpc::store::Worked;
use wave_workloads::point::{self as measured, Limits, Point, Verdict};

use super::limits;
use super::result::{self, Row};
use super::seats::{Equal, Seats, twin};
use super::serving::{Measured, Used};
use crate::ground::fields::Link;
use crate::ground::{Failure, Finished, Journal, links};
use crate::kinds::requests::sim::parallel;
use crate::kinds::requests::sim::point::{delta, point, sinks};
use crate::kinds::rpc::{Rpc, RpcPlacement, Stack};
use wave_apps::machine;
use wave_apps::recording::Recording;
use wave_report::RunResult;
use wave_terminal::Progress;

/// After this many unserved loads in a row, a variant is offered no higher ones.
const SATURATED_LOADS: usize = 2;

/// A variant, ready to be loaded.
struct Simulated<'a> {
    scenario: &'a Rpc,
    stack: &'a Stack,
    seats: Seats,
    setup: RpcSetup,
    /// Costs of the RPC stack before the scenario's own cores took their place.
    of_paper: StackCosts,
    /// Cost of a call to its core, besides its service.
    overhead: Nanos,
}

/// Simulates `scenario`. Schedulers write logs into the directory `record`, if given: a file per point. Points that `journal`
/// has are not run.
pub fn run(
    scenario: &Rpc,
    quiet: bool,
    record: Option<&Path>,
    journal: &Journal,
) -> Result<Finished, Failure> {
    let started = journal.started();
    let equal = Equal::of(scenario, usize::MAX);
    let missing: Vec<(&Stack, &str)> =
        scenario.variants.iter().filter_map(|stack| Some((stack, not_modelled(stack)?))).collect();
    let modelled = scenario.variants.iter().filter(|stack| not_modelled(stack).is_none());
    let (twins, stacks): (Vec<&Stack>, Vec<&Stack>) =
        modelled.partition(|stack| twin(scenario, stack, equal).is_some());
    if stacks.is_empty() {
        let why = "no variant is left: the simulator has a model of offload-all, of onhost-all, and of onhost-scheduler \
                   over a link";
        return Err(Failure::Scenario(format!("{}: {why}", scenario.name)));
    }
    // Scenarios that cannot be simulated are refused before anything runs.
    let systems = stacks
        .iter()
        .map(|stack| Simulated::new(scenario, stack, equal))
        .collect::<Result<Vec<_>, _>>()?;
    let loads = scenario.run.loads_per_second.len() as u64 + u64::from(scenario.run.refine);
    let progress = Progress::new(systems.len() as u64, quiet);
    journal.follow(&progress);
    let left_out: Vec<(String, String)> = missing
        .iter()
        .map(|(stack, why)| {
            (stack.name.clone(), format!("skipped: the simulator has no model of {why}"))
        })
        .collect();
    for (what, why) in &left_out {
        progress.say(&format!("{what}: {why}"));
    }
    let start = |folder| Recording::start(folder, &scenario.name, scenario.run.seed);
    let recording = record.map(start).transpose()?;
    let label = |system: &Simulated<'_>| format!("{}: {loads} loads at most", system.stack.name);
    let points = parallel::each(&systems, &progress, label, |system| {
        system.points(&limits(scenario), |load| {
            let key = format!("{}: {load}", system.stack.name);
            journal.point(&key, || system.run(load, recording.as_ref()))
        })
    })?;
    let limits = limits(scenario);
    let rows = systems.iter().zip(points);
    let rows: Vec<Row<'_>> = rows
        .map(|(system, points)| Row::simulated(system.stack, &system.seats, points, &limits))
        .collect();
    let ratio = |of: &str, to: &str, limit_us: u64| {
        result::of_saturations(&rows, scenario.run.loads_per_second[0], of, to, limit_us)
    };
    let mut facts = left_out;
    let why = "a host with one core has none left for an agent";
    facts.extend(result::left_out(scenario, equal, &twins, why));
    facts.extend(self::facts(&systems));
    facts.extend(recording.map(|recording| {
        let (what, _) = recording.fact();
        (what, "which takes no virtual time; steering is not recorded".to_owned())
    }));
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut machine = machine::machine(cpus);
    machine.model = format!("simulated ghost, on {}", machine.model);
    let result = RunResult {
        scenario: scenario.name.to_string(),
        host: "sim".to_owned(),
        kind: "rpc".to_owned(),
        description: scenario.description.clone(),
        limit_us: scenario.run.get_p99_us,
        seed: scenario.run.seed,
        version: machine::version().to_owned(),
        machine,
        seating: format!(
            "Simulated: every core has a CPU for itself. Equal in all placements: {}.",
            equal.name()
        ),
        started,
        variants: rows.iter().map(|row| row.variant(scenario, result::AGENT)).collect(),
        facts,
        paired: None,
        ladder: None,
        extra: result::extra(scenario, &rows, equal, &twins, &limits, &ratio),
    };
    let failed = rows.iter().filter(|row| row.answers_nobody());
    let failed = failed.map(|row| format!("{} answered no call", row.stack.name)).collect();
    Ok(Finished { result, failed })
}

/// The part of a variant that the simulator does not model, if any.
fn not_modelled(stack: &Stack) -> Option<&'static str> {
    match (stack.placement, &stack.link) {
        (RpcPlacement::Tonic, _) => Some("tonic"),
        (RpcPlacement::Sidecar, _) => Some("workers without a scheduler"),
        (RpcPlacement::OnhostScheduler, Link::Shm) => {
            Some("a front and a scheduler in two agents that share memory")
        }
        _ if stack.steer.starts_with("rss") => Some("connections, which `rss` steers by"),
        _ => None,
    }
}

/// Whether `steer` gives a thread its next call before the current one has ended.
fn leaves_ahead(steer: &str) -> bool {
    steer::SHIPPED.parse(steer).is_ok_and(|(name, settings)| match name {
        "round-robin" => settings.number("ahead") > 1,
        "jbsq" | "multi-queue" => settings.given("k").is_some_and(|k| k > 1),
        _ => false,
    })
}

impl<'a> Simulated<'a> {
    fn new(scenario: &'a Rpc, stack: &'a Stack, equal: Equal) -> Result<Simulated<'a>, Failure> {
        let bad = |error: &dyn std::fmt::Display| {
            Failure::Scenario(format!("{}, {}: {error}", scenario.name, stack.name))
        };
        let nic = match &stack.link {
            Link::Shm => Costs::builtin("on-host"),
            Link::Builtin(name) => Costs::builtin(name),
            Link::File(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.map_err(|error| bad(&format!("{}: {error}", path.display())))?;
                let costs = Costs::parse(&text);
                Some(costs.map_err(|error| bad(&format!("{}: {error}", path.display())))?)
            }
        };
        let nic = nic.ok_or_else(|| bad(&"no such link"))?;
        let placement = match (stack.placement, &stack.link) {
            (RpcPlacement::OnhostScheduler, _) => Placement::OnHostScheduler,
            // An agent over shared memory is on the host, whichever core it uses.
            (RpcPlacement::OffloadAll, Link::Shm) => Placement::OnHostAll,
            (RpcPlacement::OffloadAll, _) => Placement::OffloadAll,
            _ => Placement::OnHostAll,
        };
        let taken = if equal == Equal::Cores { stack.placement.cores_taken() } else { 0 };
        let workers = (scenario.host.cores - taken) as u16;
        let by_slo =
            [&stack.policy, &stack.steer].iter().any(|text| text.starts_with("multi-queue"));
        let workload = &scenario.workload;
        let slo = [workload.get_slo_us, workload.range_slo_us];
        let slo = slo.map(|us| Nanos::from_micros(us.into()));
        let slo = if by_slo { slo.to_vec() } else { Vec::new() };
        let mut setup = paper::rpc_over(&nic, placement, workers, &stack.policy, slo);
        setup.workers = scenario.host.threads as u16;
        setup.scheduler.config.subjects = scenario.host.threads;
        setup.scheduler.seed = scenario.run.seed;
        setup.steering.clone_from(&stack.steer);
        setup.prestaged = leaves_ahead(&stack.steer);
        let of_paper = setup.stack.clone();
        if let Some(cores) = stack.stack_cores {
            setup.stack.cores.value = cores.into();
        }
        if let Some(ghz) = stack.agent_ghz {
            setup.run_agent_at(ghz);
        }
        setup.scheduler.config.check().map_err(|error| bad(&error))?;
        wave_sched::policies::by_name(&stack.policy, &setup.scheduler.config)
            .map_err(|error| bad(&error))?;
        // The check of the file knows how many threads are possible, but not how many this host has.
        let steered = Config { cores: setup.workers, ..setup.scheduler.config };
        steer::by_name(&stack.steer, &steered).map_err(|error| bad(&error))?;
        let overhead = paper::overhead(&setup.scheduler);
        let seats = seats(scenario, stack, equal, &setup);
        Ok(Simulated { scenario, stack, seats, setup, of_paper, overhead })
    }

    fn load(&self, per_second: f64) -> Load {
        let workload = &self.scenario.workload;
        let mut load = paper::gets_and_ranges(per_second, self.overhead);
        let weights = [100.0 - workload.range_percent, workload.range_percent];
        let service = [workload.get_us, workload.range_us];
        for ((class, weight), us) in load.classes.iter_mut().zip(weights).zip(service) {
            class.weight = weight;
            class.service = Service::Fixed(Nanos((us * 1e3).round() as u64));
        }
        let [warm_up, counted] = self.scenario.run.times();
        load.warmup = Nanos(warm_up.as_nanos() as u64);
        load.measure = Nanos(counted.as_nanos() as u64);
        load
    }

    /// Runs the points of the scenario's loads, and more near saturation.
    fn points(
        &self,
        limits: &Limits,
        run: impl Fn(f64) -> Result<Measured, Failure>,
    ) -> Result<Vec<Measured>, Failure> {
        let mut found: Vec<Measured> = Vec::new();
        for &load in &self.scenario.run.loads_per_second {
            let last = found.iter().rev().take(SATURATED_LOADS);
            let saturated =
                |point: &&Measured| point.open.point.verdict(limits) == Verdict::Saturated;
            let is_saturated = last.filter(saturated).count() == SATURATED_LOADS;
            if load == self.scenario.run.compare_at() || !is_saturated {
                found.push(run(load)?);
            }
        }
        for _ in 0..self.scenario.run.refine {
            let points: Vec<Point> = found.iter().map(|each| each.open.point.clone()).collect();
            let Some(load) = measured::next_probe(&points, limits) else { break };
            found.push(run(load)?);
        }
        Ok(found)
    }

    fn run(
        &self,
        per_second: f64,
        recording: Option<&Arc<Recording>>,
    ) -> Result<Measured, Failure> {
        let load = self.load(per_second);
        let logs = recording.map(|all| all.logs(&format!("{} {per_second:.0}", self.stack.name)));
        let logs = logs.map(|logs| (logs.about(), sinks(logs)));
        let found = rpc::serve_logged(&self.setup, &load, logs)
            .map_err(|error| Failure::Scenario(format!("{}: {error}", self.stack.name)))?;
        if let Some(error) = found.outcome.counters.agent_errors.first() {
            let name = &self.stack.name;
            return Err(Failure::Check(format!(
                "{name}: at {per_second:.0}/s the agent left: {error}"
            )));
        }
        let point = point(&load, &found.outcome);
        let served = &found.outcome.served;
        let unanswered = served.sent - served.refused - served.done;
        let used = self.used(&load, &found);
        let answers = Answers { statuses: Vec::new(), failures: Vec::new(), unanswered, wrong: 0 };
        let open = Open { point, answers };
        Ok(Measured { open, used, broken: None })
    }

    /// The use of time over the whole run, as natively.
    fn used(&self, load: &Load, found: &RpcOutcome) -> Used {
        let RpcOutcome { outcome, stack_time, .. } = found;
        let scheduler = &self.setup.scheduler;
        let cores = scheduler.config.cores;
        let delta = delta(&scheduler.machine, &outcome.usage, load, cores);
        let wall = load.end().0 as f64;
        let ends = outcome.served.finished_within as f64;
        let calls = ends * wall / load.measure.0.max(1) as f64;
        // Cores were also busy with calls that have not ended. The overhead of those that have is no service.
        let service = delta.busy_ns - calls * load.overhead.0 as f64;
        Used {
            wall_ns: load.end().0,
            worked: Worked { calls: calls.round() as u64, ns: service.max(0.0).round() as u64 },
            total_ns: None,
            host_ns: (delta.cores_ns - delta.parked_ns - delta.polling_ns).max(0.0).round() as u64,
            stalled_ns: None,
            agents_ns: outcome.usage.agent.0 + stack_time.0,
            generator_ns: None,
        }
    }
}

/// Facts about the figures.
fn facts(systems: &[Simulated<'_>]) -> Vec<(String, String)> {
    let fact = |what: &str, how: &str| (what.to_owned(), how.to_owned());
    let mut facts = vec![
        fact(
            "RPC stack, machine and costs are those of `wave reproduce fig6a fig6b`",
            "except for `variant.stack_cores` and `variant.agent_ghz`, where the scenario has them",
        ),
        fact(
            "over shared memory the stack has cores of the host, beside those that serve",
            "assumed: its agent is on the host",
        ),
        fact(
            "requests carry their SLO where policy or steering is `multi-queue`",
            "elsewhere it is not used",
        ),
        fact(
            "keys, values, pairs of a RANGE, connections",
            "not modelled: GETs and RANGEs take their service times",
        ),
        fact(
            "CPU time of agents: schedulers and the stack, without polling",
            "simulated; stalls and the generator's CPU time are not modelled: null in the result",
        ),
    ];
    let mut told = Vec::new();
    for Simulated { stack, setup, of_paper, .. } in systems {
        facts.extend(
            stack.simulated_only().into_iter().map(|it| (it, format!("in {:?}", stack.name))),
        );
        let RpcSetup { scheduler, link, .. } = setup;
        let machine = &scheduler.machine;
        let cores = ("cores of the stack", &of_paper.cores);
        let parts = of_paper.all().map(|(name, figure)| match name {
            "cores" => cores,
            "request" => ("a request in the stack, ns", figure),
            "reply" => ("a reply in the stack, ns", figure),
            "steer" => ("steering a request, ns", figure),
            _ => ("a note to a scheduler beside the stack, ns", figure),
        });
        let key = (machine.name.clone(), link.name.clone());
        if told.contains(&key) {
            continue;
        }
        facts.push((format!("machine {}, link {}", key.0, key.1), machine.description.clone()));
        facts.extend(links::facts(link));
        let figures = machine.all().into_iter().chain(parts);
        facts.extend(figures.map(|(name, figure)| {
            let name = format!("{}, {}: {} {}", key.0, key.1, name.replace('_', " "), figure.value);
            (name, figure.source.to_string())
        }));
        told.push(key);
    }
    facts
}

/// The cores of a variant, the stack's included.
fn seats(scenario: &Rpc, stack: &Stack, equal: Equal, setup: &RpcSetup) -> Seats {
    let cpus: Vec<usize> = (0..=scenario.host.cores as usize + stack.placement.agents()).collect();
    let seats = Seats::new(scenario, stack, equal, &cpus);
    let of_stack = setup.stack.cores.value as u32;
    let serving = seats.seating.workers.len() as u32;
    // A scheduler takes a core.
    let (host_cores, agent_cores) = match stack.placement {
        RpcPlacement::OffloadAll => (serving, of_stack + 1),
        RpcPlacement::OnhostScheduler => (serving + 1, of_stack),
        _ => (serving + of_stack + 1, 0),
    };
    Seats { host_cores, agent_cores, ..seats }
}

#[cfg(test)]
mod tests;
