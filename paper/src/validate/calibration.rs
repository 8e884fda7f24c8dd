//! Calibration: micro-benchmarks on this machine, and the machine model for which the simulator gives the same results.

use std::time::Duration;

use wave_links::costs::{Costs, SourceKind};
use wave_links::measure::{self, Effort};
use wave_sim::machine::{Machine, SafePoints, SharedCpu};
use wave_workloads::point::Point;

use super::model::{Model, cost, figure, tenths};
use wave_experiments::kinds::requests::probe::{Bench, Native, gaps};
use wave_experiments::kinds::requests::scenario::{Scenario, Variant};
use wave_experiments::kinds::requests::sim::Simulated;
use wave_terminal::Failure;

/// Service time in all of calibration. No held-out point uses it.
pub const SERVICE_US: f64 = 8.0;
/// A burst: more than a core can serve, until every thread is in use.
const BURST_PER_SECOND: f64 = 150_000.0;
const BURST_WARM_UP: Duration = Duration::from_millis(3);
const BURST: Duration = Duration::from_millis(12);
/// Single requests, so close together that nothing sleeps in between, and none waits.
const SINGLE_PER_SECOND: f64 = 30_000.0;
const SINGLE: Duration = Duration::from_millis(60);
/// Single requests, so far apart that everything sleeps in between.
const RARE_PER_SECOND: f64 = 1_000.0;
const RARE: Duration = Duration::from_millis(300);

/// Assumed share of a round of two yields, of which only the sum is measured.
const AGENT_POLL_NS: f64 = 100.0;
const GENERATOR_LOOK_NS: f64 = 60.0;
/// Preemptions per measurement, 20 us apart.
const PREEMPTIONS: usize = 100;
/// Time for which the CPU is watched for interruptions.
const GAPS: Duration = Duration::from_millis(250);
/// Polling interval of an enclave's control context: a quarter of the watchdog's period.
const CONTROL_PERIOD: Duration = Duration::from_millis(5);

/// Results of the micro-benchmarks: medians, in nanoseconds.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Measured {
    /// Transfer of a line from one CPU to the other.
    pub line_transfer_ns: f64,
    /// Ringing an eventfd without a waiter.
    pub bell_send_ns: f64,
    /// Ringing it for a thread asleep on another CPU: the ring, and the time until the thread runs.
    pub kick_ns: [f64; 2],
    /// Time that the host's control context takes from the generator's CPU, each time.
    pub control_look_ns: f64,
    /// A round from generator to agent and back, both finding nothing to do.
    pub yield_round_ns: f64,
    /// Yielding the CPU when nothing else is ready.
    pub yield_alone_ns: f64,
    /// From just before an agent's step that ends a run until its thread has left at a safe point.
    pub preemption_ns: f64,
    /// Time to submit a request, in nanoseconds.
    pub submit_ns: f64,
    /// A request's share of a host core that always has work, with two decisions staged.
    pub cycle_ns: f64,
    /// The same share without staged decisions.
    pub cycle_unstaged_ns: f64,
    /// Latency of single requests while everything spins: median, p99.
    pub single_ns: [f64; 2],
    /// Latency of single requests while everything sleeps: median, p99.
    pub rare_ns: [f64; 2],
    /// Costs of the ladder's modelled link on this machine.
    #[serde(skip)]
    pub modelled: Costs,
}

/// The variants and the scenario of calibration.
pub struct Subjects {
    scenario: Scenario,
    staged: Variant,
    unstaged: Variant,
}

impl Subjects {
    /// Shared memory, with and without staged decisions.
    pub fn new(native: &Native, seed: u64) -> Subjects {
        let scenario = native.scenario(SERVICE_US, 0.1, 0.02, seed);
        let staged = scenario.variants[0].clone();
        let mut unstaged = staged.clone();
        if let wave_experiments::kinds::requests::scenario::Scheduler::Agent(agent) =
            &mut unstaged.scheduler
        {
            (agent.prestage, agent.prefetch) = (0, false);
        }
        Subjects { scenario, staged, unstaged }
    }
}

/// Runs the micro-benchmarks, each `times` times; the median counts.
pub fn measure(native: &Native, subjects: &Subjects, times: usize) -> Result<Measured, Failure> {
    let Subjects { scenario, staged, unstaged } = subjects;
    let rows =
        native.unpinned(|| measure::shared_memory(Effort { chunks: 31, operations: 256 }))?;
    let rows = rows.map_err(Failure::cannot)?;
    let stated = Costs::builtin("mount-evans").expect("built in");
    let modelled = native
        .unpinned(|| measure::modelled(&stated, 31))?
        .map_err(Failure::cannot)?
        .unwrap_or(stated);
    let of = |row: Option<measure::Spread>| row.map_or(f64::NAN, |row| row.median_ns);
    let mut awake = staged.clone();
    awake.host.spin_us = 1_000_000;
    let (round, submit) = native.with(scenario, &awake, |bench| {
        // An agent that has nothing to do, but does not sleep.
        bench.run(bench.poisson(20_000.0), Duration::ZERO, Duration::from_millis(2))?;
        let mut rounds = bench.yields(20 * times);
        Ok((median(&mut rounds), median(&mut bench.submits(10 * times, 32)?)))
    })?;
    let mut preemptions = native.preemptions(PREEMPTIONS * times)?;
    let kicks = native.kicks(20 * times, Duration::from_micros(200))?;
    let quiet = gaps(GAPS);
    let (with_control, alone, cycle_ns, single, rare) = native.with(scenario, staged, |bench| {
        std::thread::sleep(Duration::from_millis(5));
        let with_control = gaps(GAPS);
        let alone = median(&mut bench.yields(20 * times));
        let per_request = cycle(bench, times)?;
        let single = latencies(bench, SINGLE_PER_SECOND, SINGLE, times)?;
        let rare = latencies(bench, RARE_PER_SECOND, RARE, times.div_ceil(3))?;
        Ok((with_control, alone, per_request, single, rare))
    })?;
    let cycle_unstaged_ns = native.with(scenario, unstaged, |bench| cycle(bench, times))?;
    Ok(Measured {
        line_transfer_ns: of(rows.line_transfer),
        bell_send_ns: of(rows.bell_send),
        kick_ns: kicks.map(|mut all| median(&mut all)),
        control_look_ns: control_poll_cost(&quiet, &with_control),
        preemption_ns: median(&mut preemptions),
        yield_round_ns: round,
        yield_alone_ns: alone,
        submit_ns: submit,
        cycle_ns,
        cycle_unstaged_ns,
        single_ns: single,
        rare_ns: rare,
        modelled,
    })
}

/// Additional time lost by the CPU with an idle enclave, per poll of its control context. The context polls at least this
/// often.
fn control_poll_cost(without: &[f64], with: &[f64]) -> f64 {
    // Longer gaps have other causes.
    let sum = |gaps: &[f64]| gaps.iter().filter(|gap| **gap < 100_000.0).sum::<f64>();
    let polls = GAPS.as_secs_f64() / CONTROL_PERIOD.as_secs_f64();
    ((sum(with) - sum(without)) / polls).clamp(0.0, 100_000.0)
}

/// Current transfer time of a line between CPUs, in nanoseconds: identifies the state of the machine.
pub fn line_transfer(native: &Native) -> Result<f64, Failure> {
    let rows = native.unpinned(|| measure::shared_memory(Effort { chunks: 11, operations: 64 }))?;
    let row = rows.map_err(Failure::cannot)?.line_transfer;
    row.map(|row| row.median_ns).ok_or_else(|| {
        Failure::Cannot("calibration needs two CPUs: the transfer time of a line between them could not be measured".into())
    })
}

fn cycle(bench: &mut Bench, times: usize) -> Result<f64, Failure> {
    let mut all = Vec::new();
    for _ in 0..times {
        let load = bench.poisson(BURST_PER_SECOND).evenly();
        all.push(cycle_of(&bench.run(load, BURST_WARM_UP, BURST)?.point));
    }
    Ok(median(&mut all))
}

fn cycle_of(point: &Point) -> f64 {
    1e9 / point.achieved_per_second
}

fn latencies(
    bench: &mut Bench,
    per_second: f64,
    measured: Duration,
    times: usize,
) -> Result<[f64; 2], Failure> {
    let mut all: [Vec<f64>; 2] = Default::default();
    for _ in 0..times {
        let load = bench.poisson(per_second).evenly();
        let outcome = bench.run(load, Duration::from_millis(2), measured)?;
        for (all, ns) in all.iter_mut().zip(quantiles(&outcome.point)) {
            all.push(ns);
        }
    }
    Ok(all.map(|mut all| median(&mut all)))
}

/// Median and 99th percentile of a point's GETs.
pub fn quantiles(point: &Point) -> [f64; 2] {
    point.latency("GET").map_or([f64::NAN; 2], |get| [get.p50_ns as f64, get.p99_ns as f64])
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Fits the machine model for which the simulator gives the measured results.
pub fn fit(subjects: &Subjects, measured: &Measured) -> Result<Model, Failure> {
    let mut model = start(measured);
    for _ in 0..8 {
        let found = simulate(&model, subjects)?;
        let machine = &mut model.machine;
        let add = |value: &mut f64, more: f64| *value = (*value + more).max(0.0);
        let (sum, before) = (measured.cycle_ns - found.cycle, measured.single_ns[0] - found.single);
        add(&mut machine.switch_after.value, before);
        add(&mut machine.switch_before.value, sum - before);
        let turn = (measured.cycle_unstaged_ns - found.cycle_unstaged - sum) / 2.0;
        add(&mut machine.agent_message.value, turn);
        add(&mut machine.agent_decision.value, turn);
        add(&mut machine.idle_exit.value, measured.rare_ns[0] - found.rare - before);
    }
    let Machine { switch_before, switch_after, agent_message, agent_decision, idle_exit, .. } =
        &mut model.machine;
    for fitted in [switch_before, switch_after, agent_message, agent_decision, idle_exit] {
        fitted.value = tenths(fitted.value);
    }
    Ok(model)
}

/// The model before any simulation.
fn start(measured: &Measured) -> Model {
    let mut machine = Machine::builtin("user").expect("built in");
    machine.name = "here".into();
    machine.description =
        "This machine, as `wave validate` calibrated it: the user-level runtime, \
                           an agent and a generator that share a CPU"
            .into();
    let fitted = |value: f64, what: &str| {
        let note = format!("simulated micro-benchmarks agree with those measured: {what}");
        figure(SourceKind::Fitted, value, &note)
    };
    let assumed = |value: f64, note: &str| figure(SourceKind::Assumed, value, note);
    let found = |value: f64, note: &str| figure(SourceKind::Measured, value, note);
    machine.switch_before = fitted(150.0, "a host core's time per request, bursts");
    machine.switch_after = fitted(150.0, "latency of single requests, everybody spins");
    machine.idle_exit = fitted(1_000.0, "latency of single requests, everybody sleeps");
    machine.agent_message = fitted(100.0, "time per request without decisions staged");
    machine.agent_decision = fitted(100.0, "as agent_message");
    machine.spawn = found(measured.submit_ns, "bursts of 32 requests submitted");
    machine.request_overhead = assumed(0.0, "within switch_before and switch_after");
    let leave = measured.preemption_ns - measured.line_transfer_ns;
    machine.safe_points = Some(SafePoints {
        leave: found(leave.max(0.0), "preemptions at a safe point, less line_transfer"),
        ring_core: found(measured.bell_send_ns, "an eventfd that nobody waits for"),
    });
    // Only the sum of a round is measured.
    machine.agent_poll = assumed(AGENT_POLL_NS, "a share of the round of two yields");
    let switches = measured.yield_round_ns - AGENT_POLL_NS - GENERATOR_LOOK_NS;
    machine.shared_cpu = Some(SharedCpu {
        yield_switch: found(switches / 2.0, "half of a round between generator and idle agent"),
        yield_alone: found(measured.yield_alone_ns, "sched_yield where nobody waits"),
        generator_look: assumed(GENERATOR_LOOK_NS, "a share of the round of two yields"),
        ring_agent: assumed(measured.bell_send_ns, "as an eventfd that nobody waits for"),
        wake_agent: assumed(1_000.0, "a return from poll; the fit of idle_exit takes the rest"),
        control_look: found(
            measured.control_look_ns,
            "what an idle enclave takes of the generator's CPU, each 5 ms",
        ),
    });
    let mut shm = Costs::builtin("coherent").expect("built in");
    shm.name = "here-shm".into();
    shm.description = "Memory that two CPUs of this machine share".into();
    shm.line_transfer = cost(measured.line_transfer_ns, "half of a round trip between CPUs");
    let [ring, woken] = measured.kick_ns;
    shm.kick_send = cost(ring, "an eventfd written for a thread that sleeps on another CPU");
    shm.kick_flight = cost((woken - ring).max(0.0), "until that thread runs, less kick_send");
    shm.kick_receive = cost(0.0, "within kick_flight, and the machine's idle_exit");
    Model { machine, shm, modelled: measured.modelled.clone() }
}

/// Simulated micro-benchmarks.
#[derive(Debug)]
struct Found {
    cycle: f64,
    cycle_unstaged: f64,
    single: f64,
    rare: f64,
}

fn simulate(model: &Model, subjects: &Subjects) -> Result<Found, Failure> {
    let staged = model.simulated(&subjects.scenario, &subjects.staged)?;
    let unstaged = model.simulated(&subjects.scenario, &subjects.unstaged)?;
    let run = |simulated: &Simulated, per_second: f64, warm_up: Duration, measured: Duration| {
        let mut load = subjects.load(per_second)?;
        load = load.evenly();
        model.run(simulated, &load, warm_up.as_nanos() as u64, measured.as_nanos() as u64)
    };
    let soon = Duration::from_millis(2);
    Ok(Found {
        cycle: cycle_of(&run(&staged, BURST_PER_SECOND, BURST_WARM_UP, BURST)?),
        cycle_unstaged: cycle_of(&run(&unstaged, BURST_PER_SECOND, BURST_WARM_UP, BURST)?),
        single: quantiles(&run(&staged, SINGLE_PER_SECOND, soon, SINGLE)?)[0],
        rare: quantiles(&run(&staged, RARE_PER_SECOND, soon, RARE)?)[0],
    })
}

impl Subjects {
    fn load(&self, per_second: f64) -> Result<wave_workloads::arrivals::Load, Failure> {
        super::load(&self.scenario, per_second, self.scenario.run.seed)
    }
}
