//! One simulated load point in the form of native ones.

use std::path::PathBuf;
use std::time::Duration;

use wave_agent::LogEnd;
use wave_sim::agent::Sink;
use wave_sim::enclave::Counters;
use wave_sim::experiment::{self, Outcome};
use wave_sim::machine::Machine;
use wave_sim::requests::{Load, Served};
use wave_sim::usage::Usage;
use wave_workloads::generator::{Invalid, Report, Seat, Settings};
use wave_workloads::point::{self as measured, Limits, Point};
use wave_workloads::recorder::{Recorded, Window};

use super::Simulated;
use crate::ground::Failure;
use crate::ground::point::{self as native, account, with_use};
use crate::ground::session::failed_point;
use crate::ground::system::Delta;
use wave_apps::recording::{self, Logs};

use wave_terminal::note;

/// Converts a simulated outcome of `load` to a load point.
pub fn point(load: &Load, outcome: &Outcome) -> Point {
    let mut point = of_served(load, &outcome.served);
    if let Some(why) = lost_agent(&outcome.counters) {
        point.generator.valid = false;
        point.generator.why_invalid = Some(why);
    }
    point
}

/// Fills in the requests' latencies.
pub(crate) fn of_served(load: &Load, served: &Served) -> Point {
    let settings = Settings::new(
        Duration::from_nanos(load.measure.0),
        Duration::from_nanos(load.warmup.0),
        Seat::Own,
    );
    let (p99_ns, last_ns) = (served.lags.value_at_quantile(0.99), served.lag_last.0);
    let invalid = if served.lags.is_empty() {
        Some(Invalid::NoRequest)
    } else if p99_ns > settings.lag_p99_limit_ns {
        Some(Invalid::Lagged { p99_ns, limit_ns: settings.lag_p99_limit_ns })
    } else if last_ns > settings.last_lag_limit_ns {
        Some(Invalid::BehindAtEnd { lag_ns: last_ns, limit_ns: settings.last_lag_limit_ns })
    } else {
        None
    };
    let report = Report {
        offered_per_second: load.per_second,
        window: Window { start_ns: 0, from_ns: load.warmup.0, to_ns: load.end().0 },
        submitted: served.sent,
        lag_p50_ns: served.lags.value_at_quantile(0.5),
        lag_p99_ns: p99_ns,
        lag_max_ns: served.lags.max(),
        invalid,
    };
    let names = load.classes.iter().map(|class| class.name.clone());
    let recorded = Recorded {
        classes: names.zip(served.latencies.iter().cloned()).collect(),
        sent: served.sent,
        refused: served.refused,
        done: served.done,
        finished_within: served.finished_within,
        in_warm_up: 0,
        stale: 0,
        unrecorded: 0,
        outstanding: served.sent - served.refused - served.done,
    };
    Point::new(&report, &recorded)
}

/// Why the end of the agent invalidates the point, if it does.
fn lost_agent(counters: &Counters) -> Option<String> {
    if counters.attached == 0 {
        return Some("no agent attached".to_owned());
    }
    match (counters.lost_agents, counters.barks) {
        (0, _) => None,
        (_, 0) => Some("the agent was lost".to_owned()),
        _ => Some("the watchdog turned the agent out".to_owned()),
    }
}

impl Simulated {
    /// Runs one point. The agent writes one of `logs`.
    ///
    /// # Errors
    ///
    /// The agent left because of what the host wrote: a bug of ours.
    pub fn run(&self, per_second: f64, logs: Option<&Logs>) -> Result<native::Outcome, Failure> {
        let load = self.load(per_second);
        let logs = logs.map(|logs| (logs.about(), sinks(logs.clone())));
        let outcome = experiment::serve_logged(&self.setup, &load, logs)
            .map_err(|error| Failure::Scenario(error.to_string()))?;
        if let Some(error) = outcome.counters.agent_errors.first() {
            return Err(Failure::Check(format!("at {per_second:.0}/s the agent left: {error}")));
        }
        let measured = point(&load, &outcome);
        let delta = self.delta(&outcome.usage, &load, self.setup.config.cores);
        let counts: Vec<u64> = outcome.served.latencies.iter().map(|class| class.len()).collect();
        // Over the whole time, like the time that it divides.
        let ends = outcome.served.finished_within as f64;
        let served = ends * load.end().0 as f64 / load.measure.0.max(1) as f64;
        let account = account(&delta, &self.service_ns(), &counts, served.round() as u64);
        let point = with_use(measured, &delta);
        Ok(native::Outcome { point, account, range: None })
    }

    /// Use of the time of `cores` cores.
    pub(crate) fn delta(&self, usage: &Usage, load: &Load, cores: u16) -> Delta {
        delta(&self.setup.machine, usage, load, cores)
    }
}

/// Use of the time of `cores` cores of a machine.
pub fn delta(machine: &Machine, usage: &Usage, load: &Load, cores: u16) -> Delta {
    let wall_ns = load.end().0 as f64;
    let cores_ns = wall_ns * f64::from(cores);
    let (busy_ns, parked_ns) = (usage.busy.0 as f64, usage.parked.0 as f64);
    let switch_ns = machine.switch_before.value + machine.switch_after.value;
    let switching_ns = switch_ns * usage.switches as f64;
    let link_ns = usage.charges.total_ns() as f64;
    Delta {
        wall_ns,
        cores_ns,
        busy_ns,
        parked_ns,
        polling_ns: (cores_ns - busy_ns - parked_ns - switching_ns - link_ns).max(0.0),
        outcomes: usage
            .outcomes
            .iter()
            .map(|(code, count)| (code.name().to_owned(), count))
            .collect(),
        charges: usage
            .charges
            .parts()
            .into_iter()
            .map(|(name, tally)| (name, tally.ns as f64))
            .collect(),
        agent_ns: usage.agent.0 as f64,
        has_agent: true,
        ..Delta::default()
    }
}

/// Runs `loads` more points near the saturation by `outcomes`. Returns all points.
pub(crate) fn refine(
    mut outcomes: Vec<native::Outcome>,
    loads: u32,
    limits: &Limits,
    run: impl Fn(f64) -> Result<native::Outcome, Failure>,
) -> Result<Vec<native::Outcome>, Failure> {
    for _ in 0..loads {
        let points: Vec<Point> = outcomes.iter().map(|each| each.point.measured.clone()).collect();
        let Some(load) = measured::next_probe(&points, limits) else { break };
        outcomes.push(run(load)?);
    }
    Ok(outcomes)
}

/// Searches for saturation with at most `probes` points between two loads. Returns these points.
pub(crate) fn search(
    (low, high): (f64, f64),
    probes: u32,
    limits: &Limits,
    run: impl Fn(f64) -> Result<native::Outcome, Failure>,
) -> Result<Vec<native::Outcome>, Failure> {
    let (mut outcomes, mut failure) = (Vec::new(), None);
    let probe = |per_second| match run(per_second) {
        Ok(outcome) => {
            let point = outcome.point.measured.clone();
            outcomes.push(outcome);
            point
        }
        Err(error) => {
            failure.get_or_insert(error);
            failed_point(per_second)
        }
    };
    measured::search(probe, low, high, probes as usize, limits);
    failure.map_or(Ok(outcomes), Err)
}

/// A file for each agent's log.
pub fn sinks(logs: Logs) -> Box<wave_sim::agent::Logs> {
    Box::new(move |_| sink(logs.next().path))
}

/// The file of one agent's log. If it cannot be written, a note on stderr says so, and the run goes on.
pub fn sink(path: PathBuf) -> Sink {
    let end = LogEnd::default();
    let mut write = match wave_agent::log_sink(&path, end.clone()) {
        Ok(sink) => sink,
        Err(error) => {
            note!("wave run: the log {error}");
            recording::note_cut_off(&path);
            return Box::new(|_| ());
        }
    };
    let mut is_noted = false;
    Box::new(move |bytes| {
        write(bytes);
        if end.error().is_some() && !std::mem::replace(&mut is_noted, true) {
            recording::note_cut_off(&path);
        }
    })
}
