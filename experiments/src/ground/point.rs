//! One load point of one system, and its result.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wave_workloads::arrivals::{Load, Mix};
use wave_workloads::generator::{self, Seat, Settings};
use wave_workloads::{point as measured, recorder};

use super::Failure;
use super::seating::Seating;
use super::service::{Ranges, Work};
use super::system::{Delta, System};
use crate::kinds::requests::scenario::{Run, Workload};
use wave_report::model::{Cpu, Point, RangeCost};
use wave_report::slug;

/// Time allowed for a system to answer accepted requests after the load has ended.
pub const DRAIN_PATIENCE: Duration = Duration::from_secs(10);
/// Time after the last answer for cores to park and publish their counters.
const SETTLE: Duration = Duration::from_millis(3);

/// Parameters of a point.
#[derive(Clone, Debug)]
pub struct Terms {
    pub mix: Mix,
    pub keys: u64,
    /// Seed of every random stream.
    pub seed: u64,
    pub settings: Settings,
}

impl Terms {
    /// Settings of the scenario, for a generator with the seat that `seating` gives it.
    pub fn new(workload: &Workload, run: &Run, mix: Mix, seating: &Seating) -> Terms {
        let seat = if seating.generator_yields { Seat::Shared } else { Seat::Own };
        let measured = Duration::from_secs_f64(run.seconds - run.warmup_seconds);
        let warm_up = Duration::from_secs_f64(run.warmup_seconds);
        let settings = Settings::new(measured, warm_up, seat);
        Terms { mix, keys: workload.keys, seed: run.seed, settings }
    }

    pub fn load(&self, per_second: f64) -> Load {
        let load = Load::new(per_second, self.mix.clone(), self.keys, self.seed);
        load.expect("the scenario was checked: rates above 0, at least one key")
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Outcome {
    pub point: Point,
    /// Nanoseconds per request by part; empty for plain Linux threads.
    pub account: Vec<(String, f64)>,
    /// Cost of its RANGEs; None without any.
    pub range: Option<RangeCost>,
}

impl Outcome {
    /// All samples of the trials of one load as one point. `None` without trials.
    pub fn pooled(trials: &[&Outcome]) -> Option<Outcome> {
        let points: Vec<&measured::Point> =
            trials.iter().map(|trial| &trial.point.measured).collect();
        let measured = pooled(&points)?;
        let count = trials.len() as f64;
        let mean = |of: fn(&Cpu) -> f64| {
            trials.iter().map(|trial| of(&trial.point.cpu)).sum::<f64>() / count
        };
        let cpu = Cpu {
            host_useful_percent: mean(|cpu| cpu.host_useful_percent),
            host_poll_percent: mean(|cpu| cpu.host_poll_percent),
            agent_percent: mean(|cpu| cpu.agent_percent),
        };
        let outcomes = trials.iter().flat_map(|trial| &trial.point.outcomes);
        let outcomes = summed(outcomes.cloned());
        let point = Point { measured, outcomes, cpu };
        let accounts = trials.iter().flat_map(|trial| &trial.account);
        let with_account = trials.iter().filter(|trial| !trial.account.is_empty()).count();
        let accounts = accounts.map(|(part, ns)| (part.clone(), ns / with_account as f64));
        Some(Outcome { point, account: summed(accounts), range: trials[0].range })
    }
}

/// All samples of these points, which are of one load, as one point; the generator's p50 and p99 are medians over the points. `None`
/// without points.
pub fn pooled(points: &[&measured::Point]) -> Option<measured::Point> {
    let offered_per_second = points.first()?.offered_per_second;
    let sum = |of: fn(&measured::Point) -> u64| points.iter().map(|point| of(point)).sum();
    let lags = |of: fn(&measured::GeneratorLag) -> u64| {
        points.iter().map(move |point| of(&point.generator))
    };
    let middle = |of: fn(&measured::GeneratorLag) -> u64| {
        let lags: Vec<f64> = lags(of).map(|ns| ns as f64).collect();
        wave_compare::median(&lags).unwrap_or(0.0) as u64
    };
    let duration_s: f64 = points.iter().map(|point| point.duration_s).sum();
    let ended: f64 = points.iter().map(|point| point.achieved_per_second * point.duration_s).sum();
    Some(measured::Point {
        offered_per_second,
        achieved_per_second: ended / duration_s,
        sent: sum(|point| point.sent),
        done: sum(|point| point.done),
        refused: sum(|point| point.refused),
        duration_s,
        classes: pooled_classes(points),
        generator: measured::GeneratorLag {
            lag_p50_ns: middle(|lag| lag.lag_p50_ns),
            lag_p99_ns: middle(|lag| lag.lag_p99_ns),
            lag_max_ns: lags(|lag| lag.lag_max_ns).max().unwrap_or(0),
            valid: true,
            why_invalid: None,
        },
    })
}

/// The latencies of each class, over all points.
fn pooled_classes(points: &[&measured::Point]) -> Vec<measured::ClassLatency> {
    let classes = points.first().map(|point| &point.classes[..]).unwrap_or_default();
    let pooled = |class: &measured::ClassLatency| {
        let mut all = recorder::histogram();
        let same = points.iter().flat_map(|point| &point.classes);
        for text in same.filter(|other| other.name == class.name).map(|other| &other.histogram) {
            let latencies = recorder::decode(text).expect("this program has encoded it");
            all.add(latencies).expect("the bounds are the same");
        }
        measured::ClassLatency {
            name: class.name.clone(),
            latency: recorder::Latency::of(&all),
            histogram: recorder::encode(&all),
        }
    };
    classes.iter().map(pooled).collect()
}

/// The values of each name added up, in the order of their first appearance.
fn summed<T: AddAssign>(values: impl Iterator<Item = (String, T)>) -> Vec<(String, T)> {
    let mut sums: Vec<(String, T)> = Vec::new();
    for (name, value) in values {
        match sums.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => *sum += value,
            None => sums.push((name, value)),
        }
    }
    sums
}

/// Runs one point of a system with `cores` host cores, on the calling thread, which is the generator. Fails if requests were lost.
pub fn run(
    system: &mut System,
    work: &Work,
    load: Load,
    settings: &Settings,
    cores: usize,
) -> Result<Outcome, Failure> {
    let per_second = load.rate_per_second();
    let before = system.sample();
    let ranges_before = work.ranges();
    let report = generator::run(load, settings, &work.recorder, system);
    let lost = work.recorder.drain(DRAIN_PATIENCE);
    std::thread::sleep(SETTLE);
    let after = system.sample();
    let recorded = work.recorder.collect();
    if lost > 0 {
        let text =
            format!("{lost} requests of {} were lost at {per_second:.0}/s", report.submitted);
        return Err(Failure::Check(text));
    }
    if work.failed() > 0 {
        return Err(Failure::Check(format!("RocksDB failed {} GETs", work.failed())));
    }
    let delta = Delta::between(&before, &after, cores);
    let measured = measured::Point::new(&report, &recorded);
    let counts: Vec<u64> = recorded.classes.iter().map(|(_, latencies)| latencies.len()).collect();
    let served = recorded.done + recorded.in_warm_up;
    let account = account(&delta, work.service().classes_ns(), &counts, served);
    let range = range_cost(work, work.ranges().since(ranges_before), &delta, &counts, served);
    let point = with_use(measured, &delta);
    Ok(Outcome { point, account, range })
}

/// Cost of `ranges`, which were among `served` requests; `counts` are requests by class.
fn range_cost(
    work: &Work,
    ranges: Ranges,
    delta: &Delta,
    counts: &[u64],
    served: u64,
) -> Option<RangeCost> {
    if !delta.has_agent || ranges.keys == 0 {
        return None;
    }
    let others = served.saturating_sub(ranges.requests);
    let not_ranges = others as f64 * work.service().other_ns(counts) + ranges.stalled_ns as f64;
    let core_ns = delta.busy_ns - not_ranges;
    Some(RangeCost {
        preempted: delta.preempted,
        service_ns_per_key: ranges.worked_ns as f64 / ranges.keys as f64,
        core_ns_per_key: core_ns / ranges.keys as f64,
        ..RangeCost::default()
    })
}

/// Adds the use of the cores in the same interval to `measured`.
pub fn with_use(measured: measured::Point, delta: &Delta) -> Point {
    let percent =
        |ns: f64, of: f64| if of > 0.0 { (ns / of * 100.0).clamp(0.0, 100.0) } else { 0.0 };
    let poll_ns =
        if delta.has_agent { delta.cores_ns - delta.busy_ns - delta.parked_ns } else { 0.0 };
    Point {
        measured,
        outcomes: delta.outcomes.iter().map(|(code, count)| (slug(code), *count)).collect(),
        cpu: Cpu {
            host_useful_percent: percent(delta.busy_ns, delta.cores_ns),
            host_poll_percent: percent(poll_ns, delta.cores_ns),
            agent_percent: percent(delta.agent_ns, delta.wall_ns),
        },
    }
}

/// The cores' time per request, by part. The parts add up to all time in which the cores were not asleep. Polling excludes what
/// the link charged meanwhile, which counts as the link's.
pub(crate) fn account(
    delta: &Delta,
    service_ns: &[u64],
    classes: &[u64],
    served: u64,
) -> Vec<(String, f64)> {
    let counted: u64 = classes.iter().sum();
    if !delta.has_agent || served == 0 || counted == 0 {
        return Vec::new();
    }
    let of_service = service_ns.iter().cycle().zip(classes);
    let service_ns = of_service.map(|(&ns, &count)| ns as f64 * count as f64).sum::<f64>();
    let mut parts = vec![("service".to_owned(), service_ns / counted as f64)];
    let per_request = |ns: f64| ns / served as f64;
    for &(name, ns) in delta.charges.iter().filter(|(_, ns)| *ns > 0.0) {
        parts.push((format!("link: {}", name.replace('_', " ")), per_request(ns)));
    }
    parts.push(("waiting for a decision".to_owned(), per_request(delta.polling_ns.max(0.0))));
    let awake = per_request(delta.cores_ns - delta.parked_ns);
    let known: f64 = parts.iter().map(|(_, ns)| ns).sum();
    parts.push(("switch and runtime".to_owned(), (awake - known).max(0.0)));
    parts
}
