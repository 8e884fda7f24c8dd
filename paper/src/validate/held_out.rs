//! The held-out systems, to which nothing was fitted: their definition, native rounds and simulated ones.

use std::time::Duration;

use wave_compare::{Interval, Spread};
use wave_workloads::point::{self, Limits, Point};

use super::calibration::{SERVICE_US, quantiles};
use super::model::Model;
use wave_experiments::ground::fields::Trials;
use wave_experiments::ground::rounds::{At, Curves, Rounds};
use wave_experiments::kinds::requests::probe::Native;
use wave_experiments::kinds::requests::scenario::{Scenario, Scheduler, Variant};
use wave_terminal::Failure;

/// Lengths of a trial: what is counted, and the warm-up before it.
const SECONDS: f64 = 0.05;
const WARM_UP_SECONDS: f64 = 0.015;
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
/// The simulated search for the saturation around which both sides offer loads.
const PROBES: u32 = 9;
const RANGE: (f64, f64) = (0.45, 1.6);
const SEARCH: Duration = Duration::from_millis(250);
/// Loads around the saturation, as shares of the predicted one.
const AROUND: [f64; 7] = [0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7];

/// A system to which nothing was fitted.
#[derive(Clone, Debug)]
pub struct HeldOut {
    pub name: String,
    /// The scenario, except for the load.
    scenario: Scenario,
    variant: Variant,
    /// Loads at which latency is compared, as shares of the predicted saturation.
    shares: Vec<f64>,
}

/// One figure of a system, predicted and measured.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Compared {
    pub name: String,
    pub policy: String,
    /// The load, or the one measured at the limit.
    pub load_per_second: f64,
    /// The load that is served at the limit on the p99, or the p99 in nanoseconds.
    pub predicted: f64,
    pub measured: f64,
    /// Predicted over measured, minus 1, with the same rounds for both; NaN if the loads do not tell.
    pub rel_error: f64,
    /// Ends of its 95% interval; `None` if open, as one of the two is outside of the loads.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Median latencies in nanoseconds, predicted and measured; None for a saturation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<[f64; 2]>,
    pub is_saturation: bool,
}

/// The systems, in the order in which they run.
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
        HeldOut { name, scenario, variant, shares: shares.to_vec() }
    };
    let shinjuku = |shares: &[f64]| {
        let scenario = native.with_ranges(gets(10.0), RANGES);
        let mut variant = scenario.variants[0].clone();
        if let Scheduler::Agent(agent) = &mut variant.scheduler {
            agent.policy = SHINJUKU.to_owned();
        }
        let (name, ranges) = (&variant.name, 100.0 * RANGES);
        let name = format!("{name}, Shinjuku, 10 us and {ranges}% of {RANGE_US} us");
        HeldOut { name, scenario, variant, shares: shares.to_vec() }
    };
    let mixed = |shares: &[f64]| {
        let scenario = native.with_long_gets(gets(SHORT_US), LONG_US, LONG);
        let variant = scenario.variants[0].clone();
        let name = format!("{}, {SHORT_US} us and {}% of {LONG_US} us", variant.name, 100.0 * LONG);
        HeldOut { name, scenario, variant, shares: shares.to_vec() }
    };
    let changed = |what: &str, shares: &[f64], change: fn(&mut Variant)| {
        let scenario = gets(10.0);
        let mut variant = scenario.variants[0].clone();
        change(&mut variant);
        let name = format!("{}, {what}, 10 us", variant.name);
        HeldOut { name, scenario, variant, shares: shares.to_vec() }
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
    systems
}

impl Compared {
    /// Its relative error; NaN if an end of the interval is open, so that it is known from one side only.
    pub fn error(&self) -> f64 {
        if self.low.is_some() && self.high.is_some() { self.rel_error } else { f64::NAN }
    }
}

impl HeldOut {
    /// The policy's name, without its settings.
    pub fn policy(&self) -> &str {
        let policy = self.variant.agent().map_or("", |agent| &agent.policy);
        policy.split(':').next().unwrap_or_default()
    }

    /// The limits apply to GETs, as in every scenario.
    fn limits() -> Limits {
        Limits::default()
    }

    fn trials(&self) -> Trials {
        self.scenario.run.trials()
    }

    /// Saturation if nothing but the service took time: start of the first search.
    fn ideal(&self) -> f64 {
        let workload = &self.scenario.workload;
        let classes = &workload.classes;
        let total: f64 = classes.iter().map(|class| class.weight).sum();
        let busy_us: f64 =
            classes.iter().map(|class| class.weight * workload.service_us(class)).sum();
        1e6 * total / busy_us
    }

    /// The loads of a round, in ascending order, given the predicted saturation: those at which latency is compared, and those
    /// around it.
    fn loads(&self, saturation: f64) -> Vec<f64> {
        let mut shares: Vec<f64> = self.shares.iter().chain(&AROUND).copied().collect();
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        shares.into_iter().map(|share| share * saturation).collect()
    }

    /// The predicted saturation.
    pub fn saturation(&self, model: &Model) -> Result<f64, Failure> {
        let simulated = model.simulated(&self.scenario, &self.variant)?;
        let mut failure = None;
        let mut found = None;
        // A coarse search first.
        for _ in 0..2 {
            let around = found.unwrap_or(self.ideal() / 2.0);
            let search = |per_second| {
                let load = super::load(&self.scenario, per_second, self.scenario.run.seed);
                let warm_up_ns = (WARM_UP_SECONDS * 1e9) as u64;
                let run = load.and_then(|load| {
                    model.run(&simulated, &load, warm_up_ns, SEARCH.as_nanos() as u64)
                });
                run.unwrap_or_else(|error| {
                    failure.get_or_insert(error);
                    wave_experiments::ground::failed_point(per_second)
                })
            };
            let (low, high) = (RANGE.0 * around, RANGE.1 * around);
            let result = point::search(search, low, high, PROBES as usize, &Self::limits());
            found = result.saturation_per_second;
            if found.is_none() {
                break;
            }
        }
        failure.map_or(Ok(()), Err)?;
        found.ok_or_else(|| Failure::Check(format!("{}: no saturation is predicted", self.name)))
    }

    /// The simulator's trials at the loads around this saturation, a list for each load.
    pub fn predict(
        &self,
        model: &Model,
        saturation: f64,
        rounds: u64,
    ) -> Result<Vec<Vec<Point>>, Failure> {
        let simulated = model.simulated(&self.scenario, &self.variant)?;
        let trials = self.trials();
        let [warm_up_ns, measured_ns] =
            [trials.warmup_seconds, trials.measured_seconds].map(|seconds| (seconds * 1e9) as u64);
        let trial = |per_second: f64, round: u64| {
            let load = super::load(&self.scenario, per_second, self.seed(round))?;
            model.run(&simulated, &load, warm_up_ns, measured_ns)
        };
        let of_load = |load: f64| (0..rounds).map(|round| trial(load, round)).collect();
        self.loads(saturation).into_iter().map(of_load).collect()
    }

    /// This machine's trials at the same loads, with the same arrivals. `step` is called with each round before (false) and after
    /// it.
    pub fn measure(
        &self,
        native: &Native,
        saturation: f64,
        rounds: u64,
        step: impl Fn(u64, bool),
    ) -> Result<Vec<Vec<Point>>, Failure> {
        let trials = self.trials();
        let [warm_up, measured] =
            [trials.warmup_seconds, trials.measured_seconds].map(Duration::from_secs_f64);
        let loads = self.loads(saturation);
        let mut of_loads: Vec<Vec<Point>> = loads.iter().map(|_| Vec::new()).collect();
        native.with(&self.scenario, &self.variant, |bench| {
            for round in 0..rounds {
                step(round, false);
                for at in wave_compare::order(self.scenario.run.seed, round, loads.len()) {
                    let load = super::load(&self.scenario, loads[at], self.seed(round))?;
                    of_loads[at].push(bench.run(load, warm_up, measured)?.point.measured);
                }
                step(round, true);
            }
            Ok(())
        })?;
        Ok(of_loads)
    }

    fn seed(&self, round: u64) -> u64 {
        self.scenario.run.seed.wrapping_add(round)
    }

    /// Compares the trials of both sides: the saturation first, then the latency at each of the system's shares.
    pub fn compare(
        &self,
        saturation: f64,
        predicted: &[Vec<Point>],
        measured: &[Vec<Point>],
    ) -> Vec<Compared> {
        let (loads, limits) = (self.loads(saturation), Self::limits());
        let seen = |side: &'static str, of_loads| (side.to_owned(), rounds(&loads, of_loads));
        let sides = [seen("predicted", predicted), seen("measured", measured)];
        let seed = self.scenario.run.seed;
        let Some(curves) = Curves::of(sides.into_iter(), &limits.class, seed) else {
            return Vec::new();
        };
        let limit_ns = limits.p99_ns as f64;
        let [served, found] = [0, 1].map(|row| curves.served(row, limit_ns));
        let share = curves.share(0, 1, At::Ns(limit_ns));
        let row = |what: String, is_saturation| Compared {
            name: format!("{}, {what}", self.name),
            policy: self.policy().to_owned(),
            load_per_second: found.load(),
            predicted: served.load(),
            measured: found.load(),
            rel_error: f64::NAN,
            low: None,
            high: None,
            p50_ns: None,
            is_saturation,
        };
        let mut rows = vec![Compared {
            rel_error: share.as_ref().map_or(f64::NAN, |of| of.ratio - 1.0),
            low: share.as_ref().and_then(|of| Some(of.low? - 1.0)),
            high: share.as_ref().and_then(|of| Some(of.high? - 1.0)),
            ..row("saturation".to_owned(), true)
        }];
        for share in &self.shares {
            let Some(at) = loads.iter().position(|load| *load == share * saturation) else {
                continue;
            };
            let [p50, own_p50] = [&predicted[at], &measured[at]]
                .map(|points| points.iter().map(|point| quantiles(point)[0]).collect::<Vec<f64>>());
            let [p99, own_p99] = [0, 1].map(|side| curves.p99_ns(side, at));
            let quiet = |values: &[f64], drawn: &[usize]| {
                let drawn: Vec<f64> = drawn.iter().map(|round| values[*round]).collect();
                Spread::of(&drawn).map_or(f64::NAN, |spread| spread.quiet)
            };
            let all: Vec<usize> = (0..p99.len()).collect();
            let of_tails = Interval::resampled(all.len(), seed, |drawn| {
                quiet(p99, drawn) / quiet(own_p99, drawn)
            });
            rows.push(Compared {
                load_per_second: loads[at],
                predicted: quiet(p99, &all),
                measured: quiet(own_p99, &all),
                rel_error: of_tails.map_or(f64::NAN, |of| of.value - 1.0),
                low: of_tails.map(|of| of.low - 1.0),
                high: of_tails.map(|of| of.high - 1.0),
                p50_ns: Some([quiet(&p50, &all), quiet(&own_p50, &all)]),
                ..row(format!("at {:.0}%", 100.0 * share), false)
            });
        }
        rows
    }
}

fn rounds<'a>(loads: &[f64], of_loads: &'a [Vec<Point>]) -> Vec<Rounds<'a>> {
    let of_load = |(per_second, points): (&f64, &'a Vec<Point>)| Rounds {
        per_second: *per_second,
        trials: points.iter().map(|point| (point, 0.0)).collect(),
    };
    loads.iter().zip(of_loads).map(of_load).collect()
}
