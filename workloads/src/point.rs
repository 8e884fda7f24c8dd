//! Load points, and saturation: the highest load that a system serves.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::generator::Report;
use crate::recorder::{Latency, Recorded, encode};

/// The result of one load point: a system under one offered load for some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The rate asked of the generator.
    pub offered_per_second: f64,
    /// The rate at which requests ended in the measured time.
    pub achieved_per_second: f64,
    /// Requests due in the measured time, including refused ones.
    pub sent: u64,
    /// Those of `sent` that were done.
    pub done: u64,
    /// Those of `sent` that the system refused.
    pub refused: u64,
    /// Length of the measured time.
    pub duration_s: f64,
    pub classes: Vec<ClassLatency>,
    /// The generator's report.
    pub generator: GeneratorLag,
}

/// Latencies of a class, each from the intended arrival to the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassLatency {
    /// The class's name, such as `GET`.
    pub name: String,
    /// Summary of its latencies.
    pub latency: Latency,
    /// The whole histogram, as [`recorder::encode`](crate::recorder::encode) writes it; may be
    /// missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub histogram: String,
}

impl ClassLatency {
    /// The latencies in `histogram`, which counts nanoseconds.
    pub fn of(name: &str, histogram: &Histogram<u64>) -> ClassLatency {
        let (latency, histogram) = (Latency::of(histogram), encode(histogram));
        ClassLatency { name: name.to_owned(), latency, histogram }
    }

    /// The latencies of each class.
    pub fn all(recorded: &Recorded) -> Vec<ClassLatency> {
        let classes = recorded.classes.iter();
        classes.map(|(name, histogram)| ClassLatency::of(name, histogram)).collect()
    }
}

/// The generator's lag, and whether the point is valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneratorLag {
    /// Half of the requests were submitted at most this late.
    pub lag_p50_ns: u64,
    /// 99% of the requests were submitted at most this late.
    pub lag_p99_ns: u64,
    /// The latest request was submitted this late.
    pub lag_max_ns: u64,
    /// Whether the generator offered the load that it was asked for.
    pub valid: bool,
    pub why_invalid: Option<String>,
}

impl Point {
    /// The point from a generator's report and the recorder's counts.
    ///
    /// A point with latencies that could not be recorded is not valid either.
    pub fn new(report: &Report, recorded: &Recorded) -> Point {
        let duration_s = (report.window.to_ns - report.window.from_ns) as f64 / 1e9;
        let why_invalid = match report.invalid {
            Some(invalid) => Some(invalid.to_string()),
            None if recorded.unrecorded > 0 => Some(format!(
                "{} requests were done and not recorded, as all slots were held",
                recorded.unrecorded
            )),
            None => None,
        };
        Point {
            offered_per_second: report.offered_per_second,
            achieved_per_second: if duration_s > 0.0 {
                recorded.finished_within as f64 / duration_s
            } else {
                0.0
            },
            sent: recorded.sent,
            done: recorded.done,
            refused: recorded.refused,
            duration_s,
            classes: ClassLatency::all(recorded),
            generator: GeneratorLag {
                lag_p50_ns: report.lag_p50_ns,
                lag_p99_ns: report.lag_p99_ns,
                lag_max_ns: report.lag_max_ns,
                valid: why_invalid.is_none(),
                why_invalid,
            },
        }
    }

    /// The share of the load that was served: of the requests sent, those done, or those that
    /// ended in time, whichever is less.
    ///
    /// The load is the number of requests sent, not the number asked for: a Poisson process of a thousand
    /// requests has 3% more or fewer, independent of the system.
    pub fn served(&self) -> f64 {
        if self.sent == 0 {
            return 0.0;
        }
        let in_time = self.achieved_per_second * self.duration_s;
        (self.done as f64).min(in_time) / self.sent as f64
    }

    /// The latencies of the class of that name.
    pub fn latency(&self, class: &str) -> Option<&Latency> {
        let class = self.classes.iter().find(|each| each.name == class)?;
        Some(&class.latency)
    }

    /// The class of that name, if it has requests.
    pub fn class(&self, name: &str) -> Option<&ClassLatency> {
        self.classes.iter().find(|class| class.name == name && class.latency.count > 0)
    }

    /// The class that limits apply to, if it has requests: GET, or the first.
    pub fn headline(&self) -> Option<&ClassLatency> {
        let get = self.classes.iter().find(|class| class.name == "GET");
        get.or(self.classes.first()).filter(|class| class.latency.count > 0)
    }

    /// The point's verdict on the system under `limits`.
    pub fn verdict(&self, limits: &Limits) -> Verdict {
        let quick_enough = |latency: &Latency| latency.count > 0 && latency.p99_ns <= limits.p99_ns;
        if !self.generator.valid {
            Verdict::Invalid
        } else if self.served() >= limits.served
            && self.latency(&limits.class).is_some_and(quick_enough)
        {
            Verdict::Sustained
        } else {
            Verdict::Saturated
        }
    }
}

/// Conditions for a load to count as served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Minimum share of the load that must be served, as in [`Point::served`].
    pub served: f64,
    /// Maximum p99 latency.
    pub p99_ns: u64,
    /// The class whose latency is limited.
    pub class: String,
}

impl Default for Limits {
    /// 99% served, and a GET's p99 of at most 300 us.
    fn default() -> Limits {
        Limits { served: 0.99, p99_ns: 300_000, class: "GET".into() }
    }
}

/// A point's verdict on the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The load was served within the limit.
    Sustained,
    Saturated,
    /// No verdict: the generator did not offer the load.
    Invalid,
}

/// Saturation: the point of the highest offered load that was served within `limits`, by the same
/// definition for every host. None if there is no such point; invalid points do not count.
pub fn saturation<'a>(points: &'a [Point], limits: &Limits) -> Option<&'a Point> {
    points
        .iter()
        .filter(|point| point.verdict(limits) == Verdict::Sustained)
        .max_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second))
}

/// The point that hides the saturation within `limits`: the next load above the highest one that was served
/// (the lowest, if none was) was run, but no point of it is a measurement. None if saturation is known, or the
/// highest load of all was served.
pub fn hides_saturation<'a>(points: &'a [Point], limits: &Limits) -> Option<&'a Point> {
    let floor = saturation(points, limits).map_or(0.0, |point| point.offered_per_second);
    let above = || points.iter().filter(|point| point.offered_per_second > floor);
    let next = above().map(|point| point.offered_per_second).reduce(f64::min)?;
    let mut of_next = above().filter(|point| point.offered_per_second == next);
    let last = of_next.clone().next_back();
    if of_next.any(|point| point.generator.valid) { None } else { last }
}

/// Limits on a GET's p99, in microseconds, within each of which results give the saturation.
pub const SENSITIVITY_LIMITS_US: [u64; 5] = [100, 200, 300, 500, 1_000];

/// The next load to run to narrow saturation down: halfway between the highest load that was served within
/// `limits` and the lowest above it that was not served, or could not be offered. None if there is no load
/// below or above.
pub fn next_probe(points: &[Point], limits: &Limits) -> Option<f64> {
    let floor = saturation(points, limits)?.offered_per_second;
    let above = points.iter().map(|point| point.offered_per_second).filter(|load| *load > floor);
    above.reduce(f64::min).map(|ceiling| f64::midpoint(floor, ceiling))
}

/// What a search for saturation found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// Every point that was run, in order, invalid ones included.
    pub points: Vec<Point>,
    /// The highest offered load that was served, by [`saturation`].
    pub saturation_per_second: Option<f64>,
    /// The lowest offered load known not to be served, or that could not be offered.
    pub ceiling_per_second: Option<f64>,
    /// The end of the search, which qualifies the result.
    pub end: SearchEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchEnd {
    /// Saturation lies between the highest load served and a load that saturated the system.
    Found,
    /// The lowest load saturated the system: its saturation is below the range.
    BelowRange,
    /// The highest load was served: saturation is above the range.
    AboveRange,
    /// The generator could not offer more: the saturation is a lower bound.
    GeneratorLimited,
    /// The steps were used up before any load saturated the system.
    OutOfSteps,
}

/// A search stops once floor and ceiling are this close, relative to each other.
const RESOLUTION: f64 = 0.005;

/// Searches for saturation between the offered loads `low` and `high` (per second): from `low` the
/// load doubles until it is no longer served, then the gap is halved until it is below half a
/// percent.
///
/// `run` runs a point at the given load; at most `steps` loads are run. An invalid point is run
/// once more; if it is invalid again, its load counts as one that cannot be offered, not as
/// saturation.
///
/// # Panics
///
/// Unless `0 < low <= high`.
pub fn search(
    mut run: impl FnMut(f64) -> Point,
    low: f64,
    high: f64,
    steps: usize,
    limits: &Limits,
) -> SearchResult {
    assert!(0.0 < low && low <= high, "a range of loads above zero");
    let mut points = Vec::new();
    let mut floor = None;
    let mut ceiling = None;
    let mut load = low;
    for _ in 0..steps {
        let mut verdict = Verdict::Invalid;
        for _attempt in 0..2 {
            let point = run(load);
            verdict = point.verdict(limits);
            points.push(point);
            if verdict != Verdict::Invalid {
                break;
            }
        }
        match verdict {
            Verdict::Sustained => floor = Some(load),
            Verdict::Saturated | Verdict::Invalid => ceiling = Some((load, verdict)),
        }
        load = match (floor, ceiling) {
            (None, _) => break,
            (Some(floor), None) if floor >= high => break,
            (Some(floor), None) => (floor * 2.0).min(high),
            (Some(floor), Some((ceiling, _))) if ceiling - floor <= ceiling * RESOLUTION => break,
            (Some(floor), Some((ceiling, _))) => f64::midpoint(floor, ceiling),
        };
    }
    let end = match (floor, ceiling) {
        (_, Some((_, Verdict::Invalid))) => SearchEnd::GeneratorLimited,
        (Some(_), Some(_)) => SearchEnd::Found,
        (None, Some(_)) => SearchEnd::BelowRange,
        (Some(floor), None) if floor >= high => SearchEnd::AboveRange,
        (_, None) => SearchEnd::OutOfSteps,
    };
    SearchResult {
        saturation_per_second: saturation(&points, limits).map(|point| point.offered_per_second),
        ceiling_per_second: ceiling.map(|(load, _)| load),
        points,
        end,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::arrivals::{Load, Mix};
    use crate::generator::{self, Refused, Request, Seat, Server, Settings};
    use crate::recorder::Recorder;

    fn point(offered_per_second: f64, served: f64, p99_ns: u64, valid: bool) -> Point {
        const SENT: u64 = 100_000;
        let done = (SENT as f64 * served) as u64;
        let duration_s = SENT as f64 / offered_per_second;
        Point {
            offered_per_second,
            achieved_per_second: done as f64 / duration_s,
            sent: SENT,
            done,
            refused: SENT - done,
            duration_s,
            classes: vec![ClassLatency {
                name: "GET".into(),
                latency: Latency { count: done, p99_ns, ..Latency::default() },
                histogram: String::new(),
            }],
            generator: GeneratorLag {
                lag_p50_ns: 0,
                lag_p99_ns: 0,
                lag_max_ns: 0,
                valid,
                why_invalid: (!valid).then(|| "lagged".into()),
            },
        }
    }

    #[test]
    fn saturation_is_hidden_if_the_next_higher_load_was_not_measured() {
        let limits = Limits::default();
        let (served, slow) = (100_000, 900_000);
        let all = [
            point(10.0, 1.0, served, true),
            point(20.0, 1.0, served, false),
            point(20.0, 1.0, slow, false),
            point(30.0, 1.0, slow, true),
        ];
        let hides = |points: &[Point]| {
            hides_saturation(points, &limits).map(|point| point.offered_per_second)
        };
        assert_eq!(hides(&all), Some(20.0));
        // Not hidden: one of its points is a measurement, or it is not the next load, or no load is above.
        let again = [&all[..], &[point(20.0, 1.0, slow, true)]].concat();
        assert_eq!(hides(&again), None);
        assert_eq!(hides(&[all[0].clone(), point(15.0, 1.0, slow, true), all[1].clone()]), None);
        assert_eq!((hides(&all[..1]), hides(&[])), (None, None));
        // No load is known to be served.
        assert_eq!(hides(&all[1..]), Some(20.0));
        assert_eq!(hides(&all[3..]), None);
    }

    prop_compose! {
        fn any_point()(
            offered in 1u32..1_000_000,
            served in prop_oneof![0.9f64..1.0, Just(1.0)],
            p99_us in 1u64..2_000,
            valid in prop::bool::weighted(0.9),
        ) -> Point {
            point(f64::from(offered), served, p99_us * 1_000, valid)
        }
    }

    proptest! {
        #[test]
        fn saturation_is_the_highest_point_within_the_limits(
            points in prop::collection::vec(any_point(), 0..20),
            p99_us in 1u64..2_000,
        ) {
            let limits = Limits { p99_ns: p99_us * 1_000, ..Limits::default() };
            let within = |point: &&Point| {
                point.generator.valid
                    && point.done * 100 >= point.sent * 99
                    && point.classes[0].latency.p99_ns <= limits.p99_ns
            };
            let highest = points.iter().filter(within)
                .map(|point| point.offered_per_second).reduce(f64::max);
            let found = saturation(&points, &limits);
            prop_assert_eq!(found.map(|point| point.offered_per_second), highest);
            let mut reversed = points.clone();
            reversed.reverse();
            let found = saturation(&reversed, &limits);
            prop_assert_eq!(found.map(|point| point.offered_per_second), highest);
        }

        #[test]
        fn a_looser_limit_never_lowers_saturation(
            points in prop::collection::vec(any_point(), 0..20),
        ) {
            let within = |limit_us| Limits { p99_ns: limit_us * 1_000, ..Limits::default() };
            let found = SENSITIVITY_LIMITS_US.map(|limit_us| {
                saturation(&points, &within(limit_us)).map(|point| point.offered_per_second)
            });
            prop_assert!(found.is_sorted());
        }

        // An M/M/1 queue's p99 is ln(100) / (capacity - load); 5% of noise either way.
        #[test]
        fn a_search_finds_where_a_queue_saturates(
            capacity in 30_000f64..2_000_000.0,
            from in 0.001f64..0.4,
            seed: u64,
        ) {
            const NOISE: f64 = 0.05;
            const STEPS: usize = 24;
            let mut random = Pcg64::seed_from_u64(seed);
            let run = |load: f64| {
                if load >= capacity {
                    return point(load, capacity / load, 10_000_000_000, true);
                }
                let noise = random.random_range(1.0 - NOISE..1.0 + NOISE);
                let p99_ns = 100f64.ln() / (capacity - load) * 1e9 * noise;
                point(load, 1.0, p99_ns as u64, true)
            };
            let result = search(run, capacity * from, capacity * 3.0, STEPS, &Limits::default());
            prop_assert_eq!(result.end, SearchEnd::Found);
            prop_assert!(result.points.len() <= STEPS);
            // The loads at which the p99 is 300 us with the largest and the smallest noise.
            let at = |noise: f64| capacity - 100f64.ln() * noise / 300e-6;
            let (lowest, highest) = (at(1.0 + NOISE), at(1.0 - NOISE));
            let found = result.saturation_per_second.unwrap();
            let ceiling = result.ceiling_per_second.unwrap();
            prop_assert!(found <= highest + 1.0, "{} above {}", found, highest);
            prop_assert!(ceiling >= lowest - 1.0, "{} below {}", ceiling, lowest);
            prop_assert!(found < ceiling && ceiling - found <= ceiling * RESOLUTION);
        }

        #[test]
        fn a_search_is_bounded_and_tries_an_invalid_point_twice(
            steps in 0usize..12,
            verdicts in prop::collection::vec(0u8..3, 24),
        ) {
            let mut verdicts = verdicts.into_iter();
            let run = |load| match verdicts.next().unwrap() {
                0 => point(load, 1.0, 1_000, true),
                1 => point(load, 0.5, 1_000, true),
                _ => point(load, 1.0, 1_000, false),
            };
            let result = search(run, 1_000.0, 16_000.0, steps, &Limits::default());
            let mut loads: Vec<f64> =
                result.points.iter().map(|point| point.offered_per_second).collect();
            for group in result.points.chunk_by(|a, b| a.offered_per_second == b.offered_per_second)
            {
                prop_assert!(group.len() == 1 || (group.len() == 2 && !group[0].generator.valid));
            }
            loads.dedup();
            prop_assert!(loads.len() <= steps);
            prop_assert!(loads.iter().all(|load| (1_000.0..=16_000.0).contains(load)));
            if let (Some(found), Some(ceiling)) =
                (result.saturation_per_second, result.ceiling_per_second)
            {
                prop_assert!(found < ceiling);
            }
        }
    }

    #[test]
    fn probes_between_loads_close_in_on_saturation() {
        let limits = Limits::default();
        let at = |load: f64| point(load, f64::min(1.0, 10_700.0 / load), 1_000, true);
        let mut points = vec![at(4_000.0), at(8_000.0)];
        assert_eq!(next_probe(&points, &limits), None, "all were served");
        points.push(at(16_000.0));
        assert_eq!(next_probe(&points[2..], &limits), None, "none was served");
        let mut probes = Vec::new();
        for _ in 0..4 {
            let load = next_probe(&points, &limits).unwrap();
            probes.push(load);
            points.push(at(load));
        }
        assert_eq!(probes, [12_000.0, 10_000.0, 11_000.0, 10_500.0]);
        assert_eq!(saturation(&points, &limits).unwrap().offered_per_second, 10_500.0);
    }

    #[test]
    fn a_search_qualifies_its_result() {
        let limits = Limits::default();
        let end = |capacity: f64, generator: f64, steps| {
            let run = |load| point(load, f64::min(1.0, capacity / load), 1_000, load <= generator);
            search(run, 1_000.0, 64_000.0, steps, &limits).end
        };
        assert_eq!(end(20_000.0, 1e9, 30), SearchEnd::Found);
        assert_eq!(end(500.0, 1e9, 30), SearchEnd::BelowRange);
        assert_eq!(end(100_000.0, 1e9, 30), SearchEnd::AboveRange);
        assert_eq!(end(100_000.0, 20_000.0, 30), SearchEnd::GeneratorLimited);
        assert_eq!(end(100_000.0, 500.0, 30), SearchEnd::GeneratorLimited);
        assert_eq!(end(100_000.0, 1e9, 2), SearchEnd::OutOfSteps);
    }

    #[test]
    fn a_point_round_trips_through_a_results_file() {
        let original = point(1_000.0, 0.995, 250_000, true);
        let text = serde_json::to_string(&original).unwrap();
        assert_eq!(serde_json::from_str::<Point>(&text).unwrap(), original);
    }

    /// Serves every other request at once and refuses the rest.
    struct Half<'a>(&'a Recorder);

    impl Server for Half<'_> {
        fn submit(&mut self, request: Request) -> Result<(), Refused> {
            if request.id % 2 == 1 {
                return Err(Refused);
            }
            self.0.done(0, &request);
            Ok(())
        }
    }

    #[test]
    fn a_run_that_refuses_half_serves_half() {
        let mix = Mix::get_only();
        let recorder = Recorder::new(&mix, 1);
        let load = Load::new(100_000.0, mix, 10, 3).unwrap();
        let settings = Settings {
            lag_p99_limit_ns: u64::MAX,
            last_lag_limit_ns: u64::MAX,
            give_up_lag_ns: u64::MAX,
            ..Settings::new(
                std::time::Duration::from_millis(50),
                std::time::Duration::from_millis(10),
                Seat::Own,
            )
        };
        let report = generator::run(load, &settings, &recorder, &mut Half(&recorder));
        let point = Point::new(&report, &recorder.collect());
        assert!(point.generator.valid);
        assert_eq!(point.sent, point.done + point.refused);
        assert!(point.refused.abs_diff(point.done) <= 1);
        assert!(point.served() <= 0.51);
        assert_eq!(point.latency("GET").unwrap().count, point.done);
        assert_eq!(point.verdict(&Limits::default()), Verdict::Saturated);
    }
}
