//! Whole runs: an application under a setup, from an empty world to results.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_core::layout::ConfigError;
use wave_links::model::Carried;

use crate::agent::Logs;
use crate::closed::Closed;
use crate::disturbance::Disturbance;
use crate::enclave::{Counters, Enclave, Setup};
use crate::requests::{Arrival, Load, Requests, Served};
use crate::usage::Usage;
use crate::world::World;

/// How long a run continues after the last arrival, for requests still under way.
pub(crate) const GRACE: Nanos = Nanos::from_millis(20);

/// The result of a run of requests.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Measures of the requests.
    pub served: Served,
    /// Counters of the host and its agent.
    pub counters: Counters,
    /// How the cores spent their time, until the last request arrived.
    pub usage: Usage,
    /// End of the run, in virtual time.
    pub until: Nanos,
    /// Bytes that crossed the link, headers included; none over a coherent one.
    pub carried: Carried,
    /// How often tasks were resumed: the run's size.
    pub resumed: u64,
    /// Equal for equal histories.
    pub trace_hash: u64,
}

impl Outcome {
    /// The share of its time that the agent was busy.
    pub fn agent_busy(&self) -> f64 {
        self.counters.agent_busy.0 as f64 / self.until.0.max(1) as f64
    }

    /// The share of runs that began without a kick: their decision was there in time.
    pub fn at_once(&self) -> f64 {
        1.0 - self.counters.kicks as f64 / self.counters.switches.max(1) as f64
    }
}

/// Ends the world's tasks also when a run panics.
pub(crate) struct Ended(pub(crate) World);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Serves an open loop of requests.
pub fn serve(setup: &Setup, load: &Load) -> Result<Outcome, ConfigError> {
    serve_logged(setup, load, None)
}

/// As [`serve`]. With `logs`, a text about the run and a place for each log, the agent writes a log.
pub fn serve_logged(
    setup: &Setup,
    load: &Load,
    logs: Option<(String, Box<Logs>)>,
) -> Result<Outcome, ConfigError> {
    serve_requests(setup, load, Requests::new(load.clone(), setup.seed), Vec::new(), logs)
}

/// Serves exactly these arrivals: those of a native run, for example, so that both have the same randomness.
pub fn serve_given(
    setup: &Setup,
    load: &Load,
    arrivals: Rc<[Arrival]>,
) -> Result<Outcome, ConfigError> {
    serve_disturbed(setup, load, arrivals, Vec::new())
}

/// As [`serve_given`], while disturbances take CPU time from the host, its agent and the generators.
pub fn serve_disturbed(
    setup: &Setup,
    load: &Load,
    arrivals: Rc<[Arrival]>,
    disturbances: Vec<Disturbance>,
) -> Result<Outcome, ConfigError> {
    let app = Requests::given(load.clone(), arrivals, setup.seed);
    serve_requests(setup, load, app, disturbances, None)
}

fn serve_requests(
    setup: &Setup,
    load: &Load,
    app: Rc<Requests>,
    mut disturbances: Vec<Disturbance>,
    logs: Option<(String, Box<Logs>)>,
) -> Result<Outcome, ConfigError> {
    let world = World::new();
    let _ended = Ended(world.clone());
    let enclave = Enclave::new(&world, setup.clone(), Rc::clone(&app) as _)?;
    if let Some((about, logs)) = logs {
        enclave.record_agents(about, logs);
    }
    enclave.start_agent();
    disturbances.retain(|one| one.at < load.end());
    disturbances.sort_by_key(|one| one.at);
    disturbances.into_iter().for_each(|one| one.strike(&enclave, &app));
    world.run_until(load.end());
    let usage = enclave.usage();
    world.run_until(load.end() + GRACE);
    Ok(Outcome {
        usage,
        served: app.served(),
        counters: enclave.counters(),
        until: world.now(),
        carried: world.time().bytes_carried(),
        resumed: world.resumed(),
        trace_hash: world.trace_hash(),
    })
}

/// Times measured by the switch benchmark, sorted, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Switches {
    /// From the end of a run to the start of the core's next run.
    pub switch_ns: Vec<u32>,
    /// From the time at which the agent began to decide until its kick was sent.
    pub open_ns: Vec<u32>,
}

impl Switches {
    /// The median of sorted times; `None` if there are none.
    pub fn median(times: &[u32]) -> Option<u32> {
        times.get(times.len() / 2).copied()
    }
}

/// Switches between threads that yield after `work` each, for `measure`.
pub fn switches(
    setup: &Setup,
    threads: u32,
    work: Nanos,
    measure: Nanos,
) -> Result<Switches, ConfigError> {
    let world = World::new();
    let _ended = Ended(world.clone());
    let enclave = Enclave::new(&world, setup.clone(), Closed::new(threads, work))?;
    enclave.start_agent();
    let warmup = Nanos::from_millis(1);
    world.run_until(warmup);
    enclave.keep_times();
    world.run_until(warmup + measure);
    let Counters { mut switch_ns, mut open_ns, .. } = enclave.counters();
    switch_ns.sort_unstable();
    open_ns.sort_unstable();
    Ok(Switches { switch_ns, open_ns })
}
