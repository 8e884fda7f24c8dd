//! `wave bench sim`: the simulator's event queue, against nexosim's engine.
//!
//! Both run one model, [`Station`]: an M/M/c queue at 0.9 of its capacity, with two events for each
//! job, its arrival and its departure. Every entity (the arrivals, each server) has its own stream of
//! random numbers. Ours holds events of one enum in an [`EventQueue`]; nexosim has the station as
//! one model with two scheduled inputs, the leanest form that its interface allows, on one thread.
//! The two take turns; a rate is events per second of CPU time.
//!
//! Our simulation is checked against Erlang's formula: the mean wait must lie within the 99%
//! confidence interval of batch means. The seed is fixed, and so is the result.
//!
//! Last, the cost of a whole simulated host: CPU seconds for a simulated second of the paper's sixteen cores, and the number of
//! tasks of that world that are resumed per second of CPU time. A task's step is an event of the bare queue plus all the work of a
//! core or agent that follows from it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nexosim::model::{BuildContext, Context, Model, ProtoModel, schedulable};
use nexosim::simulation::{Mailbox, SimInit, Simulation};
use nexosim::time::MonotonicTime;
use rand_distr::{Distribution, Exp1};
use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;
use wave_process::cpus;
use wave_sim::paper::{self, Rung};
use wave_sim::queue::EventQueue;
use wave_sim::random::{Stream, stream};
use wave_workloads::cpu::process_cpu_time_ns;

use wave_compare::{PerRound, in_turns};
use wave_experiments::measure::pin;

use crate::SEED;
use crate::bench::Better::{Higher, Lower};
use crate::bench::{Bench, Figure, without_arguments};

pub static BENCH: Bench = Bench {
    name: "sim",
    about: "The simulator's event queue, against nexosim",
    help: "An M/M/c queue at 0.9 of its capacity, two events per job.

  events_per_second              events of the bare queue per second of CPU time, with 16 servers; ratio_vs_nexosim is the ratio to nexosim
  world_events_per_second        tasks resumed per second of CPU time in a simulated host of 16 cores with its agent, queues and
                                 link (the ladder's last rung): the speed of `wave sweep` and `wave fuzz`
  world_ratio_vs_bare_queue      world_events_per_second divided by events_per_second, of medians
  ladder_cpu_seconds_per_second  CPU time of a simulated second of that host
  erlang_c_within_ci             whether the mean wait agrees with Erlang's formula

Examples:
  wave bench sim
  wave bench sim --json | jq '.ratio_vs_nexosim, .world_events_per_second'",
    figures: &[
        Figure::of("ratio_vs_nexosim").measured("events per second of the bare queue / nexosim's"),
        Figure::of("events_per_second").measured("events per second of the bare queue"),
        Figure::of("world_events_per_second").measured("tasks resumed per second in a simulated host of 16 cores"),
        Figure::of("ladder_cpu_seconds_per_second").compared(Lower).measured("CPU seconds for a simulated second of that host"),
        Figure::of("events_per_second_c16.p50").compared(Higher),
        Figure::of("events_per_second_c1024.p50").compared(Higher),
        Figure::peer("nexosim_events_per_second_c16.p50").compared(Higher),
        Figure::peer("nexosim_events_per_second_c1024.p50").compared(Higher),
    ],
    short: &[],
    has_two_cpus: false,
    arguments: without_arguments,
    run: |_, _| sim(),
};

/// Load as a share of a station's capacity.
const LOAD: f64 = 0.9;
const SERVICE_NS: f64 = 1_000_000.0;
const CHUNKS: usize = 15;
const WARM_UP: usize = 2;
/// Approximate number of events of a chunk.
const OUR_EVENTS: f64 = 2_000_000.0;
const THEIR_EVENTS: f64 = 200_000.0;
const BATCHES: usize = 60;
const BATCH_JOBS: u64 = 100_000;
/// Student's t for 59 degrees of freedom, 99% two-sided.
const STUDENT_T: f64 = 2.662;
/// Rate of the ladder's last rung: just below its saturation.
const LADDER_PER_SECOND: f64 = 880e3;
const LADDER_MS: u64 = 250;
const WORLDS: usize = 5;

/// An M/M/c queue. It computes the times of the next events; the engine keeps the events.
struct Station {
    arrivals: Stream,
    servers: Vec<Stream>,
    idle: Vec<u16>,
    waiting: VecDeque<u64>,
    gap_ns: f64,
    /// Number of jobs whose service has begun, and the sum of their waits.
    begun: u64,
    waited_ns: u64,
}

fn draw(random: &mut Stream, mean_ns: f64) -> u64 {
    let unit: f64 = Exp1.sample(random);
    // At least 1, because an engine may not allow events without delay.
    ((unit * mean_ns) as u64).max(1)
}

impl Station {
    fn new(servers: u16) -> Station {
        Station {
            arrivals: stream(SEED, "arrivals", 0),
            servers: (0..servers).map(|at| stream(SEED, "server", at.into())).collect(),
            idle: (0..servers).rev().collect(),
            waiting: VecDeque::new(),
            gap_ns: SERVICE_NS / (LOAD * f64::from(servers)),
            begun: 0,
            waited_ns: 0,
        }
    }

    /// A job arrives. Returns the time of the next arrival and, if this job need not wait, its server and the time of its departure.
    fn arrive(&mut self, now: u64) -> (u64, Option<(u16, u64)>) {
        let gap = draw(&mut self.arrivals, self.gap_ns);
        let Some(server) = self.idle.pop() else {
            self.waiting.push_back(now);
            return (gap, None);
        };
        self.begun += 1;
        (gap, Some((server, draw(&mut self.servers[usize::from(server)], SERVICE_NS))))
    }

    /// A job departs. Returns the time of the server's next departure, if a job is waiting.
    fn depart(&mut self, now: u64, server: u16) -> Option<u64> {
        let Some(since) = self.waiting.pop_front() else {
            self.idle.push(server);
            return None;
        };
        self.begun += 1;
        self.waited_ns += now - since;
        Some(draw(&mut self.servers[usize::from(server)], SERVICE_NS))
    }

    /// The mean wait, by Erlang's formula.
    fn erlang_wait_ns(servers: u16) -> f64 {
        let (c, a) = (f64::from(servers), LOAD * f64::from(servers));
        // Erlang B by its recursion, and C from B.
        let b = (1..=servers).fold(1.0, |b, n| a * b / (f64::from(n) + a * b));
        let wait = b / (1.0 - LOAD * (1.0 - b));
        wait * SERVICE_NS / (c - a)
    }
}

#[derive(Clone, Copy)]
enum Event {
    Arrival,
    Departure(u16),
}

/// The station under our event queue.
struct Ours {
    station: Station,
    events: EventQueue<Event>,
    now: u64,
}

impl Ours {
    fn new(servers: u16) -> Ours {
        let mut events = EventQueue::new();
        events.push(Nanos(1), Event::Arrival);
        Ours { station: Station::new(servers), events, now: 0 }
    }

    /// Runs until the condition holds. Returns the number of events.
    #[inline]
    fn run(&mut self, mut until: impl FnMut(&Station, u64) -> bool) -> u64 {
        let mut count = 0;
        while !until(&self.station, self.now) {
            let Some((at, event)) = self.events.pop() else { break };
            self.now = at.0;
            count += 1;
            match event {
                Event::Arrival => {
                    let (gap, departs) = self.station.arrive(at.0);
                    self.events.push(Nanos(at.0 + gap), Event::Arrival);
                    if let Some((server, after)) = departs {
                        self.events.push(Nanos(at.0 + after), Event::Departure(server));
                    }
                }
                Event::Departure(server) => {
                    if let Some(after) = self.station.depart(at.0, server) {
                        self.events.push(Nanos(at.0 + after), Event::Departure(server));
                    }
                }
            }
        }
        count
    }

    fn run_for(&mut self, span_ns: u64) -> u64 {
        let end = self.now + span_ns;
        self.run(|_, now| now >= end)
    }
}

/// The station under nexosim. Its contents are not part of the serialized state.
#[derive(Serialize, Deserialize)]
struct Theirs;

struct Inside {
    station: Station,
    events: Arc<AtomicU64>,
}

impl Inside {
    fn count(&self) {
        // Only the simulation's thread writes the count.
        self.events.store(self.events.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

fn since_epoch(time: MonotonicTime) -> u64 {
    time.duration_since(MonotonicTime::EPOCH).as_nanos() as u64
}

#[Model(type Env = Inside)]
impl Theirs {
    #[nexosim(init)]
    async fn init(&mut self, context: &Context<Self>) {
        let first = Duration::from_nanos(1);
        let _ = context.schedule_event(first, schedulable!(Self::arrive), ());
    }

    #[nexosim(schedulable)]
    async fn arrive(&mut self, _: (), context: &Context<Self>, inside: &mut Inside) {
        inside.count();
        let (gap, departs) = inside.station.arrive(since_epoch(context.time()));
        let after = Duration::from_nanos;
        let _ = context.schedule_event(after(gap), schedulable!(Self::arrive), ());
        if let Some((server, ns)) = departs {
            let _ = context.schedule_event(after(ns), schedulable!(Self::depart), server);
        }
    }

    #[nexosim(schedulable)]
    async fn depart(&mut self, server: u16, context: &Context<Self>, inside: &mut Inside) {
        inside.count();
        if let Some(ns) = inside.station.depart(since_epoch(context.time()), server) {
            let after = Duration::from_nanos(ns);
            let _ = context.schedule_event(after, schedulable!(Self::depart), server);
        }
    }
}

/// The prototype that builds the model and its environment.
struct Built(Inside);

impl ProtoModel for Built {
    type Model = Theirs;

    fn build(self, _: &mut BuildContext<Self>) -> (Theirs, <Theirs as Model>::Env) {
        (Theirs, self.0)
    }
}

struct Nexosim {
    simulation: Simulation,
    events: Arc<AtomicU64>,
}

impl Nexosim {
    fn new(servers: u16) -> Result<Nexosim, String> {
        let events = Arc::new(AtomicU64::new(0));
        let inside = Inside { station: Station::new(servers), events: Arc::clone(&events) };
        let simulation = SimInit::with_num_threads(1)
            .add_model(Built(inside), Mailbox::new(), "station")
            .init(MonotonicTime::EPOCH)
            .map_err(|error| error.to_string())?;
        Ok(Nexosim { simulation, events })
    }

    fn run_for(&mut self, span_ns: u64) -> Result<u64, String> {
        let before = self.events.load(Ordering::Relaxed);
        self.simulation
            .step_until(Duration::from_nanos(span_ns))
            .map_err(|error| error.to_string())?;
        Ok(self.events.load(Ordering::Relaxed) - before)
    }
}

/// Events per second of CPU time.
fn rate(run: impl FnOnce() -> Result<u64, String>) -> Result<f64, String> {
    let before = process_cpu_time_ns();
    let events = run()?;
    Ok(events as f64 * 1e9 / (process_cpu_time_ns() - before).max(1) as f64)
}

/// Rates of the two engines, which take turns.
fn rates(servers: u16) -> Result<[PerRound; 2], String> {
    let mut ours = Ours::new(servers);
    let mut theirs = Nexosim::new(servers)?;
    let gap_ns = ours.station.gap_ns;
    let span = |events: f64| (events / 2.0 * gap_ns) as u64;
    let measured: [Vec<f64>; 2] = in_turns(SEED, WARM_UP, CHUNKS, |row| match row {
        0 => rate(|| Ok(ours.run_for(span(OUR_EVENTS)))),
        _ => rate(|| theirs.run_for(span(THEIR_EVENTS))),
    })?;
    Ok(measured.map(PerRound::from_iter))
}

/// Mean wait in nanoseconds, and half the width of its 99% confidence interval.
fn simulated_wait(servers: u16) -> (f64, f64) {
    let mut ours = Ours::new(servers);
    ours.run(|station, _| station.begun >= BATCH_JOBS);
    let mut means = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let (begun, waited) = (ours.station.begun, ours.station.waited_ns);
        ours.run(|station, _| station.begun >= begun + BATCH_JOBS);
        let jobs = ours.station.begun - begun;
        means.push((ours.station.waited_ns - waited) as f64 / jobs as f64);
    }
    let count = means.len() as f64;
    let mean = means.iter().sum::<f64>() / count;
    let variance = means.iter().map(|each| (each - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, STUDENT_T * (variance / count).sqrt())
}

/// CPU seconds for a second of the ladder's last rung, and tasks resumed per second of CPU time.
fn ladder_cost() -> Result<[f64; 2], String> {
    let setup = paper::wave(16, Rung::Prestaged, "fifo");
    let mut load = paper::gets(LADDER_PER_SECOND, paper::overhead(&setup));
    load.measure = Nanos::from_millis(LADDER_MS);
    let before = process_cpu_time_ns();
    let outcome = wave_sim::experiment::serve(&setup, &load).map_err(|error| error.to_string())?;
    let took_ns = (process_cpu_time_ns() - before).max(1) as f64;
    Ok([took_ns / outcome.until.0 as f64, outcome.resumed as f64 * 1e9 / took_ns])
}

pub fn sim() -> Result<serde_json::Value, String> {
    let cpus = cpus::allowed().map_err(|error| error.to_string())?;
    pin(cpus[0])?;
    let [ours, theirs] = rates(16)?;
    let [ours_many, theirs_many] = rates(1024)?;
    let expected = Station::erlang_wait_ns(16);
    let (wait, half) = simulated_wait(16);
    let mut worlds: [Vec<f64>; 2] = Default::default();
    for _ in 0..WORLDS {
        worlds.iter_mut().zip(ladder_cost()?).for_each(|(all, found)| all.push(found));
    }
    let [ladder, resumed] = worlds.map(PerRound::from_iter);
    Ok(serde_json::json!({
        "bench": "sim",
        "peer": "nexosim 1.0, one thread, one model with two scheduled inputs",
        "model": "M/M/c at 0.9 of its capacity, two events a job; events per second of CPU time",
        "chunks": CHUNKS,
        "events_per_second": ours.median(),
        "ratio_vs_nexosim": ours.over(&theirs).estimate(),
        "erlang_c_within_ci": (wait - expected).abs() <= half,
        "ladder_cpu_seconds_per_second": ladder.median(),
        "world_events_per_second": resumed.median(),
        "world_ratio_vs_bare_queue": resumed.median() / ours.median(),
        "world_events_per_second_chunks": resumed.spread(),
        "events_per_second_c16": ours.spread(),
        "nexosim_events_per_second_c16": theirs.spread(),
        "events_per_second_c1024": ours_many.spread(),
        "nexosim_events_per_second_c1024": theirs_many.spread(),
        "ratio_vs_nexosim_c1024": ours_many.over(&theirs_many).estimate(),
        "mean_wait": {
            "erlang_c_ns": expected,
            "simulated_ns": wait,
            "ci99_half_width_ns": half,
            "jobs": BATCHES as u64 * BATCH_JOBS,
        },
        "ladder_per_second": LADDER_PER_SECOND,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erlang_wait_matches_textbook_formulas() {
        // M/M/1: the mean wait is load / (1 - load) service times.
        assert!((Station::erlang_wait_ns(1) - 9.0 * SERVICE_NS).abs() < 1.0);
        // M/M/2: load^2 / (1 - load^2).
        let expected = 0.81 / 0.19 * SERVICE_NS;
        assert!((Station::erlang_wait_ns(2) - expected).abs() < 1.0);
    }

    #[test]
    fn both_engines_run_the_same_sequence_of_events() {
        let (mut ours, mut theirs) = (Ours::new(16), Nexosim::new(16).unwrap());
        let span = 100_000_000;
        let count = ours.run(|_, now| now > span);
        // Our engine has also run the first event beyond the end.
        assert_eq!(theirs.run_for(span), Ok(count - 1));
    }
}
