use std::collections::VecDeque;

use wave_workloads::grpc::load::{Answers, Open};
use wave_workloads::point::{ClassLatency, GeneratorLag};
use wave_workloads::recorder::Latency;

use super::*;
use crate::run::point::{Outcome, for_report};
use crate::run::rpc::Measured;
use crate::run::system::Delta;

const MS: f64 = 1e6;

/// A point of a thousand requests, all served.
fn point(load: f64, p99_us: u64, why_invalid: Option<&str>) -> Point {
    let latency = Latency { count: 1000, p99_ns: p99_us * 1_000, ..Latency::default() };
    Point {
        offered_per_second: load,
        achieved_per_second: load,
        sent: 1000,
        done: 1000,
        set_aside: 0,
        refused: 0,
        duration_s: 1000.0 / load,
        classes: vec![ClassLatency { name: "GET".into(), latency, histogram: String::new() }],
        generator: GeneratorLag {
            lag_p50_ns: 0,
            lag_p99_ns: 0,
            lag_max_ns: 0,
            valid: why_invalid.is_none(),
            why_invalid: why_invalid.map(str::to_owned),
        },
    }
}

/// Observations of one second on two cores, with these shares taken by others: of the cores, and of all CPUs.
fn observed(others_ms: f64, neighbours_cpus: f64) -> Observed {
    Observed { cores_ns: 2_000.0 * MS, others_ns: others_ms * MS, neighbours_cpus }
}

/// A kind of row, made from a measured point and observations.
trait Row: Try + Sized {
    fn made(point: Point, observed: Observed) -> Self;
    fn others(&self) -> Vec<String>;
}

/// An outcome of Linux's thread pool.
struct Pool(Outcome);
/// An outcome of threads that an agent schedules.
struct Scheduled(Outcome);

fn outcome(point: Point, observed: Observed, has_agent: bool) -> Outcome {
    let report = for_report(&point, &Delta { has_agent, ..Delta::default() });
    let disturbed = observed.disturbance();
    Outcome { measured: point, report, account: Vec::new(), range: None, disturbed }
}

macro_rules! outcome_row {
    ($row:ident, $has_agent:expr) => {
        impl Try for $row {
            fn point(&self) -> &Point {
                self.0.point()
            }
            fn disturbance(&self) -> Option<&str> {
                self.0.disturbance()
            }
            fn set_aside(&mut self, others: Vec<String>) {
                self.0.set_aside(others);
            }
            fn invalidate(&mut self, why: &str) {
                self.0.invalidate(why);
            }
        }
        impl Row for $row {
            fn made(point: Point, observed: Observed) -> $row {
                $row(outcome(point, observed, $has_agent))
            }
            fn others(&self) -> Vec<String> {
                assert_eq!(self.0.report.generator.valid, self.0.measured.generator.valid);
                self.0.report.other_tries.clone()
            }
        }
    };
}
outcome_row!(Pool, false);
outcome_row!(Scheduled, true);

impl Row for Measured {
    fn made(point: Point, observed: Observed) -> Measured {
        let answers =
            Answers { statuses: Vec::new(), failures: Vec::new(), unanswered: 0, wrong: 0 };
        Measured {
            open: Open { point, answers },
            used: Default::default(),
            disturbed: observed.disturbance(),
            other_tries: Vec::new(),
            broken: None,
        }
    }
    fn others(&self) -> Vec<String> {
        self.other_tries.clone()
    }
}

/// The result of a load: number of tries, p99 in microseconds of the try that counts, whether it is a measurement, and why the
/// others were set aside.
type Came = (usize, u64, bool, Vec<String>);

/// The results of each load in turn, by the rule for one kind of row, with patience for two seconds.
fn feed<R: Row>(most: usize, loads: &[&[(Point, Observed)]]) -> Vec<Came> {
    let mut rule = Rule::new(Limits::default(), Duration::from_secs(2));
    rule.pause = Duration::ZERO;
    let came = loads.iter().map(|tries| {
        let mut left: VecDeque<_> = tries.iter().cloned().collect();
        let run = || {
            let (point, observed) = left.pop_front().expect("no more tries than expected");
            Ok(R::made(point, observed))
        };
        let best = rule.load(most, run).unwrap();
        let (point, others) = (best.point(), best.others());
        let p99_us = point.classes[0].latency.p99_ns / 1_000;
        (tries.len() - left.len(), p99_us, point.generator.valid, others)
    });
    came.collect()
}

#[test]
fn one_rule_judges_and_repeats_tries_of_every_kind_of_row() {
    let calm = observed(0.0, 0.0);
    // 1.5% of the cores' time; and one CPU, but none of the cores' time.
    let (stalled, busy) = (observed(30.0, 0.0), observed(0.0, 1.0));
    let ok = |observed| (point(1_000.0, 100, None), observed);
    let slow = |p99_us, observed| (point(1_000.0, p99_us, None), observed);
    let lagged = (point(1_000.0, 100, Some("the generator lagged")), calm);
    let loads: [&[(Point, Observed)]; 7] = [
        // A slightly stalled try is a measurement.
        &[ok(observed(19.0, 0.09))],
        &[ok(stalled), ok(calm)],
        &[slow(400, calm), slow(350, calm), ok(calm)],
        &[lagged, slow(320, calm), slow(310, calm)],
        // Disturbed tries do not count; this uses the patience up.
        &[slow(400, calm), ok(busy), slow(500, calm), slow(600, calm)],
        // A measurement is better than a disturbed try that looks good.
        &[slow(400, calm), ok(stalled)],
        &[ok(stalled)],
    ];
    let pool = feed::<Pool>(TRIES, &loads);
    let text = |all: &[&str]| all.iter().map(|why| why.to_string()).collect::<Vec<String>>();
    let disturbed = "disturbed: other processes took 1.5% of its cores";
    let busy = "disturbed: other processes used 1.00 of its CPUs";
    let expected: [Came; 7] = [
        (1, 100, true, text(&[])),
        (2, 100, true, text(&[disturbed])),
        (3, 100, true, text(&["p99 of 400 us", "p99 of 350 us"])),
        (3, 310, true, text(&["the generator lagged", "p99 of 320 us"])),
        (4, 600, true, text(&["p99 of 400 us", busy, "p99 of 500 us"])),
        (2, 400, true, text(&[disturbed])),
        (1, 100, false, text(&[])),
    ];
    assert_eq!(pool, expected);
    assert_eq!(feed::<Scheduled>(TRIES, &loads), expected);
    assert_eq!(feed::<Measured>(TRIES, &loads), expected);
    let once: [&[(Point, Observed)]; 1] = [&[slow(400, calm)]];
    let expected = [(1, 400, true, Vec::new())];
    assert_eq!(feed::<Pool>(1, &once), expected);
    assert_eq!(feed::<Scheduled>(1, &once), expected);
    assert_eq!(feed::<Measured>(1, &once), expected);
}

#[test]
fn load_above_an_unserved_one_is_tried_once() {
    let rule = Rule::new(Limits::default(), Duration::ZERO);
    let points =
        [point(1_000.0, 100, None), point(2_000.0, 400, None), point(3_000.0, 900, Some("lagged"))];
    assert_eq!(rule.most(&points, 2_000.0), TRIES);
    assert_eq!(rule.most(&points, 2_500.0), 1);
    assert_eq!(rule.most(&points[2..], 4_000.0), TRIES);
}

#[test]
fn saturation_resting_on_a_disturbed_point_is_unknown() {
    let limits = Limits::default();
    let disturbed = Some("disturbed: other processes took 9.0% of its cores");
    let [low, served] = [point(1_000.0, 100, None), point(2_000.0, 100, None)];
    let hides = point(2_000.0, 100, disturbed);
    let slow = point(3_000.0, 900, None);
    let all = [low.clone(), served, slow.clone()];
    assert_eq!(saturation(&all, &limits), Ok(Some(2_000.0)));
    let why = saturation(&[low, hides.clone(), slow.clone()], &limits).unwrap_err();
    assert!(
        why.starts_with("at least 1.0 k/s; 2.0 k/s is not a measurement (disturbed: "),
        "{why}"
    );
    let why = saturation(&[hides, slow.clone()], &limits).unwrap_err();
    assert!(why.starts_with("2.0 k/s is not a measurement"), "{why}");
    assert_eq!(saturation(&[slow], &limits), Ok(None));
}

#[test]
fn sessions_share_the_time_for_repetitions_equally() {
    assert_eq!(patience(4), Duration::from_millis(3750));
    assert_eq!(patience(0), Duration::from_secs(15));
}
