//! The worth of a try of a load, the number of tries, and the choice of the try that counts: one rule for every row of a
//! comparison, whatever schedules in it (docs/adr/0033).

use std::time::Duration;

use wave_workloads::cpu::monotonic_ns;
use wave_workloads::point::{self as measured, Limits, Point, Verdict};

use super::Failure;
use super::neighbours::{DISTURBING_CPUS, Neighbours, Tasks};
use super::seating::Seating;
use wave_report::model::{DISTURBED, VariantResult};
use wave_report::number::thousands;

/// Maximum number of tries of a load that was served too slowly or with a lagging generator: a slow moment of the machine looks
/// the same.
pub const TRIES: usize = 3;

/// Share of the time of a row's cores that other processes may take before a try is called disturbed: a 99th percentile is 1%
/// of the requests.
const DISTURBING_SHARE: f64 = 0.01;

/// Pause before a disturbed try is repeated: a neighbour may be done a little later.
const PAUSE: Duration = Duration::from_millis(300);

/// Observations during a try, the same for every row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Time of the CPUs on which the row serves requests.
    pub cores_ns: f64,
    /// Time for which other processes' threads ran on these CPUs.
    pub others_ns: f64,
    /// CPUs used by other processes, among those on which any part of the row runs.
    pub neighbours_cpus: f64,
}

impl Observed {
    /// Why the try is not a measurement, if other processes disturbed it.
    pub fn disturbance(&self) -> Option<String> {
        let share = self.others_ns / self.cores_ns.max(1.0);
        if self.neighbours_cpus > DISTURBING_CPUS {
            Some(format!(
                "{DISTURBED}: other processes used {:.2} of its CPUs",
                self.neighbours_cpus
            ))
        } else if share > DISTURBING_SHARE {
            Some(format!("{DISTURBED}: other processes took {:.1}% of its cores", share * 100.0))
        } else {
            None
        }
    }
}

/// Observes the CPUs of a row from the start of a try.
#[derive(Debug)]
pub struct Watch {
    workers: Vec<usize>,
    all: Vec<usize>,
    at_ns: u64,
    tasks: Tasks,
    neighbours: Option<Neighbours>,
}

impl Watch {
    /// Starts before a row with these seats is loaded.
    pub fn start(seating: &Seating) -> Watch {
        let workers = seating.workers.clone();
        let mut all = workers.clone();
        all.extend(seating.agents.iter().chain([&seating.generator]));
        let (tasks, neighbours) = (Tasks::now(), Neighbours::on(&all));
        Watch { workers, all, tasks, neighbours, at_ns: monotonic_ns() }
    }

    /// Returns the observations since the start. Agents, which are children not yet waited for, have used `agents_ns`.
    pub fn end(self, agents_ns: f64) -> Observed {
        let Watch { workers, all, at_ns, tasks, neighbours } = self;
        let wall_ns = (monotonic_ns() - at_ns) as f64;
        let others = neighbours.zip(Neighbours::on(&all));
        let others = others.map_or(0.0, |(before, now)| now.cpus_since(&before));
        Observed {
            cores_ns: wall_ns * workers.len() as f64,
            others_ns: Tasks::now().ran_ns_since(&tasks, &workers) as f64,
            neighbours_cpus: (others - agents_ns / wall_ns.max(1.0)).max(0.0),
        }
    }
}

/// A try of a load by a row of a comparison.
pub trait Try {
    fn point(&self) -> &Point;
    /// Why the try is not a measurement, if other processes disturbed it.
    fn disturbance(&self) -> Option<&str>;
    /// Marks the try as not a measurement, because of `why`.
    fn invalidate(&mut self, why: &str);
    /// Records why each of the other tries of its load was set aside.
    fn set_aside(&mut self, others: Vec<String>);
}

/// The rule for tries of a row's loads.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Limits within which a load counts as served.
    pub limits: Limits,
    /// Time left of the row's share for repeating disturbed tries. Each row has the same share.
    pub patience: Duration,
    /// Pause before each repetition.
    pub pause: Duration,
}

/// Worth of a try, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Not a measurement: other processes disturbed it.
    Disturbed,
    /// Not a measurement: the generator lagged, or most latencies had to be set aside.
    Invalid,
    /// The load was not served within the limits.
    Saturated,
    Sustained,
}

impl Rule {
    /// The rule for a row with this time for repetitions.
    pub fn new(limits: Limits, patience: Duration) -> Rule {
        Rule { limits, patience, pause: PAUSE }
    }

    /// Tries a load with `run` until a try counts. A load that was served too slowly, or with a lagging generator, is tried up
    /// to `most` times; disturbed tries are repeated as long as the row's patience lasts.
    ///
    /// The best try counts: one in which the load was served, else the last that is a measurement. If none is, the last try is
    /// returned, marked as not a measurement.
    pub fn load<T: Try>(
        &mut self,
        most: usize,
        mut run: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut tries, mut counted) = (Vec::new(), 0);
        loop {
            let one = run()?;
            let worth = self.worth(&one);
            let took = Duration::from_secs_f64(one.point().duration_s) + self.pause;
            let slow = one.point().served() >= self.limits.served;
            tries.push((worth, one));
            counted += usize::from(worth != Worth::Disturbed);
            match worth {
                Worth::Disturbed if !self.patience.is_zero() => {
                    self.patience = self.patience.saturating_sub(took);
                    std::thread::sleep(self.pause);
                }
                Worth::Saturated if slow && counted < most => {}
                Worth::Invalid if counted < most => {}
                _ => break,
            }
        }
        // The last of several with the same worth.
        let at =
            (0..tries.len()).max_by_key(|&at| tries[at].0).expect("a load is tried at least once");
        let (worth, mut best) = tries.remove(at);
        if let (Worth::Disturbed, Some(why)) = (worth, best.disturbance().map(str::to_owned)) {
            best.invalidate(&why);
        }
        best.set_aside(tries.iter().map(|(worth, one)| self.why(*worth, one)).collect());
        Ok(best)
    }

    /// Maximum number of tries of a load: one if a lower load of `points` was not served.
    pub fn most<'a>(&self, points: impl IntoIterator<Item = &'a Point>, load: f64) -> usize {
        let mut lower = points.into_iter().filter(|point| point.offered_per_second < load);
        if lower.any(|point| point.verdict(&self.limits) == Verdict::Saturated) { 1 } else { TRIES }
    }

    fn worth(&self, one: &impl Try) -> Worth {
        match one.point().verdict(&self.limits) {
            _ if one.disturbance().is_some() => Worth::Disturbed,
            Verdict::Invalid => Worth::Invalid,
            Verdict::Saturated => Worth::Saturated,
            Verdict::Sustained => Worth::Sustained,
        }
    }

    /// Explains why a try was set aside.
    fn why(&self, worth: Worth, one: &impl Try) -> String {
        let point = one.point();
        let p99 = point.latency(&self.limits.class).map_or(0, |latency| latency.p99_ns);
        match worth {
            Worth::Disturbed => one.disturbance().unwrap_or_default().to_owned(),
            Worth::Invalid => point.generator.why_invalid.clone().unwrap_or_default(),
            Worth::Saturated | Worth::Sustained => format!("p99 of {:.0} us", p99 as f64 / 1e3),
        }
    }
}

/// The saturation by the points of a row; None if none of the loads was served.
///
/// # Errors
///
/// Why it is unknown: it would rest on a point that is not a measurement.
pub fn saturation(points: &[Point], limits: &Limits) -> Result<Option<f64>, String> {
    let served = measured::saturation(points, limits).map(|point| point.offered_per_second);
    let Some(hides) = measured::hides_saturation(points, limits) else { return Ok(served) };
    let why = hides.generator.why_invalid.as_deref().unwrap_or("invalid");
    let at_least = served.map_or_else(String::new, |load| format!("at least {}; ", rate(load)));
    Err(format!("{at_least}{} is not a measurement ({why})", rate(hides.offered_per_second)))
}

fn rate(per_second: f64) -> String {
    format!("{} k/s", thousands(per_second))
}

/// Puts a row's saturations into its result: within `limits`, and within the usual limits on the p99.
pub fn put_saturations(
    result: &mut VariantResult,
    points: &[Point],
    limits: &Limits,
    limits_us: &[u64],
) {
    match saturation(points, limits) {
        Ok(per_second) => result.saturation_per_second = per_second,
        Err(why) => result.not_measurable = Some(why),
    }
    for &us in limits_us {
        let limits = Limits { p99_ns: us * 1_000, ..limits.clone() };
        match saturation(points, &limits) {
            Ok(Some(per_second)) => result.saturation_by_limit.push((us as u32, per_second)),
            Ok(None) => {}
            Err(_) => result.limits_not_measurable.push(us as u32),
        }
    }
}

/// Maximum time that all `sessions` of a run spend on repeating disturbed tries: less than a run's own time. Each has an equal
/// share of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The share of a session.
pub fn patience(sessions: usize) -> Duration {
    PATIENCE / sessions.max(1) as u32
}

#[cfg(test)]
mod tests;
