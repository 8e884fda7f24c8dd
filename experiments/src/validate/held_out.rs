//! The held-out points, to which nothing was fitted: their definition, native runs and simulations.

use std::time::Duration;

use wave_workloads::point::{self, Limits, SearchResult};

use super::calibration::{SERVICE_US, median, quantiles};
use super::model::Model;
use crate::run::probe::Native;
use crate::scenario::{Scenario, Scheduler, Variant};
use wave_lab::Failure;

/// Length of a native run; its beginning is not counted.
const SECONDS: f64 = 0.25;
/// Number of runs of the same requests; a latency is their median. A machine that stalls for milliseconds several times a
/// second spoils the tail of one run in two or three.
const RUNS: usize = 7;
/// Minimum number of undisturbed runs.
const RUNS_MIN: usize = 3;
const WARM_UP_SECONDS: f64 = 0.05;
/// The papers' share of RANGE queries.
const RANGES: f64 = 0.005;
/// Their service time here. With the papers' 10 ms a native run would have ten of them, and its tail would be determined by
/// their arrivals; of these it has some fifty, each preempted some thirty times.
pub const RANGE_US: f64 = 1_000.0;
/// Two lengths of GETs; latencies are those of the shorter.
pub const SHORT_US: f64 = 5.0;
pub const LONG_US: f64 = 50.0;
/// Share of long GETs. Each takes as long as ten short ones.
const LONG: f64 = 0.1;
/// With this, host cores sleep between most requests; with calibration's 50 us they hardly do.
const SHORT_SPIN_US: u64 = 5;
/// The policy that preempts them, with the papers' slice.
const SHINJUKU: &str = "shinjuku:slice_us=30";
/// Maximum number of loads in a search for saturation, in a range around the prediction.
const PROBES: u32 = 9;
const RANGE: (f64, f64) = (0.45, 1.6);

/// The figure to determine of a system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question {
    /// The highest load that it serves.
    Saturation,
    /// Latency at this share of its predicted saturation.
    Latency(f64),
}

/// A point to which nothing was fitted.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// Name of the load in results.
    pub name: String,
    /// The scenario, except for the load.
    pub scenario: Scenario,
    pub variant: Variant,
    pub question: Question,
    /// Index of the system; points of the same system share it.
    pub system: usize,
}

/// The result, native or simulated.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Answer {
    /// Requests per second: the load, or the saturation.
    pub per_second: f64,
    /// Median latency in nanoseconds; None for a saturation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<f64>,
    /// p99 in nanoseconds; None for a saturation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<f64>,
}

impl Answer {
    fn latency(per_second: f64, point: &point::Point) -> Answer {
        let [p50_ns, p99_ns] = quantiles(point).map(Some);
        Answer { per_second, p50_ns, p99_ns }
    }

    fn saturation(result: &SearchResult) -> Answer {
        let per_second = result.saturation_per_second.unwrap_or(f64::NAN);
        Answer { per_second, ..Answer::default() }
    }
}

/// The points, in the order in which they run.
pub fn all(native: &Native, quick: bool, seed: u64) -> Vec<HeldOut> {
    let gets = |service_us: f64| {
        assert!(
            service_us != SERVICE_US,
            "held-out points must not use calibration's service time"
        );
        native.scenario(service_us, SECONDS, WARM_UP_SECONDS, seed)
    };
    let fifo = |service_us: f64, rung: usize, shares: &[f64]| {
        let scenario = gets(service_us);
        let variant = scenario.variants[rung].clone();
        let name = format!("{}, {service_us} us", variant.name);
        system(&name, scenario, variant, shares)
    };
    let shinjuku = |shares: &[f64]| {
        let scenario = native.with_ranges(gets(10.0), RANGES);
        let mut variant = scenario.variants[0].clone();
        if let Scheduler::Agent(agent) = &mut variant.scheduler {
            agent.policy = SHINJUKU.to_owned();
        }
        let (name, ranges) = (&variant.name, 100.0 * RANGES);
        let name = format!("{name}, Shinjuku, 10 us and {ranges}% of {RANGE_US} us");
        system(&name, scenario, variant, shares)
    };
    let mixed = |shares: &[f64]| {
        let scenario = native.with_long_gets(gets(SHORT_US), LONG_US, LONG);
        let variant = scenario.variants[0].clone();
        let name = format!("{}, {SHORT_US} us and {}% of {LONG_US} us", variant.name, 100.0 * LONG);
        system(&name, scenario, variant, shares)
    };
    let changed = |what: &str, shares: &[f64], change: fn(&mut Variant)| {
        let scenario = gets(10.0);
        let mut variant = scenario.variants[0].clone();
        change(&mut variant);
        let name = format!("{}, {what}, 10 us", variant.name);
        system(&name, scenario, variant, shares)
    };
    let spins_briefly = |shares: &[f64]| {
        let what = format!("spin {SHORT_SPIN_US} us");
        changed(&what, shares, |variant| variant.host.spin_us = SHORT_SPIN_US)
    };
    let one_staged = |shares: &[f64]| {
        changed("one decision staged", shares, |variant| {
            if let Scheduler::Agent(agent) = &mut variant.scheduler {
                agent.prestage = 1;
            }
        })
    };
    let mut systems = vec![fifo(10.0, 0, &[0.25, 0.5, 0.7, 0.85])];
    let rungs = gets(10.0).variants.len();
    // The rung with all optimisations for loads and stores.
    let top = rungs - 2;
    if quick {
        systems.push(shinjuku(&[0.7]));
        systems.push(fifo(10.0, top, &[0.5, 0.7]));
        systems.push(fifo(20.0, 0, &[0.7]));
        systems.push(mixed(&[0.7]));
        systems.push(spins_briefly(&[0.25]));
    } else {
        systems.push(shinjuku(&[0.5, 0.7, 0.85]));
        systems.extend((1..rungs).map(|rung| fifo(10.0, rung, &[0.5, 0.7])));
        for rung in [0, top] {
            systems.push(fifo(20.0, rung, &[0.7]));
            systems.push(fifo(5.0, rung, &[0.7]));
        }
        systems.push(mixed(&[0.5, 0.7]));
        systems.push(spins_briefly(&[0.25, 0.5]));
        systems.push(one_staged(&[0.7]));
    }
    let numbered = systems.into_iter().enumerate();
    numbered
        .flat_map(|(system, points)| {
            points.into_iter().map(move |point| HeldOut { system, ..point })
        })
        .collect()
}

/// The points of one system: its saturation, and latencies at shares of it.
fn system(name: &str, scenario: Scenario, variant: Variant, shares: &[f64]) -> Vec<HeldOut> {
    let asked = shares.iter().map(|&share| Question::Latency(share));
    let point = |question| {
        let what = match question {
            Question::Saturation => "saturation".to_owned(),
            Question::Latency(share) => format!("at {:.0}%", 100.0 * share),
        };
        HeldOut {
            name: format!("{name}, {what}"),
            scenario: scenario.clone(),
            variant: variant.clone(),
            question,
            system: 0,
        }
    };
    [Question::Saturation].into_iter().chain(asked).map(point).collect()
}

impl HeldOut {
    /// The policy's name, without its settings.
    pub fn policy(&self) -> &str {
        let policy = self.variant.agent().map_or("", |agent| &agent.policy);
        policy.split(':').next().unwrap_or_default()
    }

    /// The limits apply to GETs, as in every scenario.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn times(&self) -> (Duration, Duration) {
        let run = &self.scenario.run;
        let warm_up = Duration::from_secs_f64(run.warmup_seconds);
        (warm_up, Duration::from_secs_f64(run.seconds - run.warmup_seconds))
    }

    /// Saturation if nothing but the service took time: start of the first search.
    fn ideal(&self) -> f64 {
        let classes = &self.scenario.workload.classes;
        let total: f64 = classes.iter().map(|class| class.weight).sum();
        let busy_us: f64 = classes.iter().map(|class| class.weight * class.service_us).sum();
        1e6 * total / busy_us
    }

    /// The simulator's answer. `saturation` is the system's, once predicted.
    pub fn predict(&self, model: &Model, saturation: Option<f64>) -> Result<Answer, Failure> {
        let simulated = model.simulated(&self.scenario, &self.variant)?;
        let (warm_up, measured) = self.times();
        let mut failure = None;
        let run = |per_second: f64| {
            let load = super::load(&self.scenario, per_second)?;
            let (warm_up, measured) = (warm_up.as_nanos() as u64, measured.as_nanos() as u64);
            model.run(&simulated, &load, warm_up, measured)
        };
        if let (Question::Latency(share), Some(saturation)) = (self.question, saturation) {
            let per_second = share * saturation;
            return Ok(Answer::latency(per_second, &run(per_second)?));
        }
        // A coarse search first, then the same search as in the native runs.
        let mut found = None;
        for _ in 0..2 {
            let around = found.unwrap_or(self.ideal() / 2.0);
            let search = |per_second| {
                run(per_second).unwrap_or_else(|error| {
                    failure.get_or_insert(error);
                    crate::run::failed_point(per_second)
                })
            };
            let (low, high) = range(around);
            let result = point::search(search, low, high, PROBES as usize, &self.limits());
            found = result.saturation_per_second;
            if found.is_none() {
                break;
            }
        }
        failure.map_or(Ok(()), Err)?;
        let per_second = found.unwrap_or(f64::NAN);
        Ok(Answer { per_second, ..Answer::default() })
    }

    /// This machine's answer, and whether it was disturbed. `saturation` is the predicted one, around which both sides search.
    pub fn measure(&self, native: &Native, saturation: f64) -> Result<(Answer, bool), Failure> {
        let (warm_up, measured) = self.times();
        native.with(&self.scenario, &self.variant, |bench| match self.question {
            Question::Saturation => {
                let (low, high) = range(saturation);
                let (result, disturbed) = bench.search(low, high, PROBES)?;
                Ok((Answer::saturation(&result), disturbed))
            }
            Question::Latency(share) => {
                let per_second = share * saturation;
                let mut all = Vec::new();
                for _ in 0..RUNS {
                    let outcome = bench.run(bench.poisson(per_second), warm_up, measured)?;
                    let disturbed =
                        outcome.disturbed.is_some() || !outcome.measured.generator.valid;
                    all.push((Answer::latency(per_second, &outcome.measured), disturbed));
                }
                let calm = all.iter().filter(|(_, disturbed)| !disturbed).count() >= RUNS_MIN;
                if calm {
                    all.retain(|(_, disturbed)| !disturbed);
                }
                let middle = |of: fn(&Answer) -> Option<f64>| {
                    Some(median(
                        &mut all.iter().filter_map(|(answer, _)| of(answer)).collect::<Vec<_>>(),
                    ))
                };
                let (p50_ns, p99_ns) =
                    (middle(|answer| answer.p50_ns), middle(|answer| answer.p99_ns));
                Ok((Answer { per_second, p50_ns, p99_ns }, !calm))
            }
        })
    }
}

/// Lowest and highest load of a search around a prediction.
fn range(around: f64) -> (f64, f64) {
    (RANGE.0 * around, RANGE.1 * around)
}
