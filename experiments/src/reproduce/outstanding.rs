//! Figure 3 of "Mind the Gap": outstanding requests per worker, over a link of 2.56 us one way. What is
//! simulated is the sweep of `scenarios/outstanding.toml`; of the requests that a worker has, it runs
//! one, and the others are prestaged.

use std::collections::BTreeMap;
use std::path::Path;

use wave_sched::policies;
use wave_workloads::point::{self, Limits};

use super::figures::{Curve, Figure};
use super::jobs::{Done, Job, probe};
use crate::run::sim::Simulated;
use crate::scenario::{self, Load, Scenario};

const SWEEP: &str = include_str!("../../../scenarios/outstanding.toml");

/// The paper's numbers of workers.
pub const WORKERS: [u32; 2] = [4, 16];

/// What is this near to the best, levels out.
const LEVEL: f64 = 0.95;

fn name(workers: u32, outstanding: u32) -> String {
    format!("outstanding-{workers}-{outstanding}")
}

/// A job per number of workers and of outstanding requests.
pub fn jobs(seed: u64) -> Vec<Job> {
    let file = Path::new("outstanding.toml");
    let sweep = scenario::parse_sweep(file, SWEEP, policies::NAMES).expect("it is tested");
    let job = |mut scenario: Scenario| {
        scenario.run.seed = seed;
        let variant = &scenario.variants[0];
        let prestage = variant.agent().expect("it is tested").prestage;
        let name = name(variant.host.cores, prestage + 1);
        Job::new(name, move || saturation(&scenario))
    };
    sweep.expansions.into_iter().map(|expansion| job(expansion.scenario)).collect()
}

fn saturation(scenario: &Scenario) -> Done {
    let simulated = Simulated::new(scenario, &scenario.variants[0]).expect("it is tested");
    let Load::Search { low, high, probes } = scenario.run.load else { return Done::default() };
    let run = |per_second| probe(&simulated.setup, &simulated.load(per_second));
    let found = point::search(run, low, high, probes as usize, &Limits::default());
    Done::of([("saturation", found.saturation_per_second.unwrap_or(f64::NAN))])
}

/// Saturation in thousands per second, by outstanding requests.
fn curve(workers: u32, done: &BTreeMap<&str, &Done>) -> Vec<[f64; 2]> {
    let at = |outstanding: u32| {
        let saturation = done.get(name(workers, outstanding).as_str())?.value("saturation")?;
        Some([f64::from(outstanding), saturation / 1e3]).filter(|_| saturation.is_finite())
    };
    (1..=64).filter_map(at).collect()
}

/// By how many percent saturation grows from one outstanding request to so many.
pub fn gain(workers: u32, outstanding: u32, done: &BTreeMap<&str, &Done>) -> Option<f64> {
    let curve = curve(workers, done);
    let at = |wanted: u32| curve.iter().find(|[x, _]| *x == f64::from(wanted)).map(|[_, y]| *y);
    Some(100.0 * (at(outstanding)? / at(1)? - 1.0))
}

/// The least number of outstanding requests with which saturation is near its highest.
pub fn level(workers: u32, done: &BTreeMap<&str, &Done>) -> Option<f64> {
    let curve = curve(workers, done);
    let best = curve.iter().map(|[_, y]| *y).reduce(f64::max)?;
    curve.iter().find(|[_, y]| *y >= LEVEL * best).map(|[x, _]| *x)
}

/// Our curves, and the points that the paper's percentages make of where ours begin.
pub fn figure(done: &BTreeMap<&str, &Done>) -> Figure {
    let mut curves = Vec::new();
    for workers in WORKERS {
        curves.push(Curve::ours(&format!("{workers} workers"), curve(workers, done)));
    }
    for (workers, outstanding, times) in [(4, 5, 3.5), (16, 3, 1.88)] {
        let first = curve(workers, done).first().map(|[_, first]| *first);
        let points = first.map(|first| [f64::from(outstanding), first * times]);
        let name = format!("{workers} workers, our first point and the paper's gain");
        curves.push(Curve::paper(&name, points.into_iter().collect()));
    }
    Figure {
        id: "outstanding".to_owned(),
        group: "outstanding".to_owned(),
        title: "Outstanding requests per worker, 1 us each, 2.56 us one way".to_owned(),
        x: "outstanding requests per worker".to_owned(),
        y: "saturation, thousand requests per second".to_owned(),
        log_x: false,
        y_max: None,
        text:
            "A worker runs one, the others are prestaged. The paper prints by how much throughput \
               grows, not the throughput."
                .to_owned(),
        curves,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sweep_has_a_job_for_each_number_of_requests_that_the_paper_has() {
        let names: Vec<String> = jobs(1).into_iter().map(|job| job.name).collect();
        for workers in WORKERS {
            assert!((1..=8).all(|outstanding| names.contains(&name(workers, outstanding))));
        }
    }

    #[test]
    fn a_curve_levels_out_where_more_gains_little() {
        let all = [100.0, 180.0, 290.0, 296.0, 300.0].map(|y| Done::of([("saturation", y)]));
        let names: Vec<String> = (1..=5).map(|outstanding| name(16, outstanding)).collect();
        let done = names.iter().map(String::as_str).zip(&all).collect();
        assert_eq!(gain(16, 3, &done).map(f64::round), Some(190.0));
        assert_eq!(level(16, &done), Some(3.0));
        assert_eq!((gain(4, 5, &done), level(4, &done)), (None, None));
    }
}
