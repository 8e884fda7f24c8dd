//! The statistics of rounds on a machine whose truth is known: a simulated one, from which disturbances take CPU time. The rule that
//! they replace stands beside them (docs/adr/0033): one long trial of each row, whose latencies are set aside where a step was stalled.

use std::path::Path;
use std::rc::Rc;

use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp};
use rand_pcg::Pcg64;
use wave_compare::{EQUAL, Pair, Pool, Spread, Verdict, order};
use wave_core::clock::Nanos;
use wave_sched::policies;
use wave_sim::disturbance::{Disturbance, Stops};
use wave_sim::experiment::serve_disturbed;
use wave_sim::requests::{Arrival, Load};

use crate::kinds::requests::sim::Simulated;

const SCENARIO: &str = include_str!("../../../../scenarios/rocksdb-fifo.toml");
/// CPU time taken from a thread that never slept, on each of two CPUs beside a build: the CPU, and the start and the length of each gap of at
/// least 1 ms, in microseconds.
const RECORDED: &str = include_str!("recorded-disturbances.csv");
const PER_SECOND: f64 = 45_000.0;
const WARM_UP: Nanos = Nanos(15_000_000);
const TRIAL: Nanos = Nanos(65_000_000);
const ROUNDS: usize = 50;
/// The trial of the old rule: 1.3 s after a warm-up.
const LONG: Nanos = Nanos(1_315_000_000);
const STALL: Nanos = Nanos(2_000_000);
/// The shortest disturbance that the old rule calls a stall.
const NOTICED: Nanos = Nanos(200_000);
const P99: f64 = 0.99;

/// A machine, and what takes CPU time from it, in the order of time.
struct Machine {
    name: &'static str,
    disturbances: Vec<Disturbance>,
    /// Whether more than half of all pairs of trials are undisturbed.
    leaves_quiet_rounds: bool,
}

impl Machine {
    fn new(name: &'static str, mut disturbances: Vec<Disturbance>) -> Machine {
        disturbances.sort_by_key(|one| one.at);
        let last = disturbances.last().map_or(TRIAL, |one| one.at);
        let mut disturbed: Vec<u64> = disturbances.iter().map(|one| one.at.0 / TRIAL.0).collect();
        disturbed.dedup();
        let share = disturbed.len() as f64 / (last.0 / TRIAL.0) as f64;
        Machine { name, disturbances, leaves_quiet_rounds: (1.0 - share).powi(2) > 0.5 }
    }
}

/// Disturbances at random times, so many a second on each CPU, with lengths between these, in microseconds.
fn random(per_second: f64, [shortest, longest]: [u64; 2]) -> Vec<Disturbance> {
    let mut random = Pcg64::seed_from_u64(9);
    let gap = Exp::new(per_second).unwrap();
    let mut all = Vec::new();
    for stops in [Stops::Core(0), Stops::Outside] {
        let mut at = 0.0;
        while at < 60.0 {
            at += gap.sample(&mut random);
            let lasts = Nanos::from_micros(random.random_range(shortest..longest));
            all.push(Disturbance { at: Nanos((at * 1e9) as u64), lasts, stops });
        }
    }
    all
}

fn recorded() -> Vec<Disturbance> {
    let recorded = RECORDED.lines().skip(1).map(|line| {
        let mut words = line.split(',').map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        let stops = if next() == 0 { Stops::Outside } else { Stops::Core(0) };
        Disturbance { stops, at: Nanos::from_micros(next()), lasts: Nanos::from_micros(next()) }
    });
    recorded.collect()
}

fn machines() -> [Machine; 5] {
    [
        Machine::new("quiet", Vec::new()),
        Machine::new("2 a second of 0.5 to 3 ms", random(2.0, [500, 3_000])),
        Machine::new("1 a second of 5 to 15 ms", random(1.0, [5_000, 15_000])),
        Machine::new("20 a second of 0.5 to 3 ms", random(20.0, [500, 3_000])),
        Machine::new("recorded", recorded()),
    ]
}

/// A row's own stalls, which are the machine's in no other row.
#[derive(Clone, Copy, Debug)]
enum Stalls {
    Never,
    /// Once in each second of the row's own time.
    EachSecond,
    /// Once in this share of its trials.
    In(f64),
}

struct Row {
    name: &'static str,
    simulated: Simulated,
    stalls: Stalls,
}

fn rows() -> Vec<Row> {
    let parsed = crate::kinds::requests::scenario::read(
        &wave_scenario::Source::new(Path::new("rocksdb-fifo.toml"), SCENARIO),
        policies::NAMES,
    );
    let scenario = parsed.unwrap();
    let row = |name, variant: &str, stalls| {
        let variant = scenario.variants.iter().find(|one| one.name == variant).unwrap();
        Row { name, simulated: Simulated::new(&scenario, variant).unwrap(), stalls }
    };
    vec![
        row("coherent link", "offload, coherent link", Stalls::Never),
        row("on-host agent", "on-host agent", Stalls::Never),
        row("PCIe-like link", "offload, PCIe-like link", Stalls::Never),
        row("stalls each second", "offload, coherent link", Stalls::EachSecond),
        row("stalls in 10% of trials", "offload, coherent link", Stalls::In(0.1)),
        row("stalls in half of trials", "offload, coherent link", Stalls::In(0.5)),
    ]
}

/// Arrivals of a round, which are the same for all rows.
fn arrivals(round: u64, until: Nanos) -> Vec<Arrival> {
    let mut random = Pcg64::seed_from_u64(round);
    let gap = Exp::new(PER_SECOND).unwrap();
    let mut at = 0.0;
    let next = std::iter::from_fn(|| {
        at += gap.sample(&mut random);
        Some(Arrival { at: Nanos((at * 1e9) as u64), class: 0 })
    });
    next.take_while(|arrival| arrival.at < until).collect()
}

impl Row {
    /// The samples of a trial that begins at `begins` on the machine's clock, as values with their counts; `own_ns` is the row's own time
    /// before. With `sets_aside`, those that arrived during a stall are left out.
    fn trial(
        &self,
        (round, begins, own_ns): (u64, Nanos, u64),
        lasts: Nanos,
        disturbances: &[Disturbance],
        sets_aside: bool,
    ) -> Vec<(f64, u64)> {
        let mut load: Load = self.simulated.load(PER_SECOND);
        (load.warmup, load.measure) = (WARM_UP, Nanos(lasts.0 - WARM_UP.0));
        let ends = Nanos(begins.0 + lasts.0);
        let from = disturbances.partition_point(|one| one.at < begins);
        let within = disturbances[from..].iter().take_while(|one| one.at < ends);
        let mut all: Vec<Disturbance> =
            within.map(|one| Disturbance { at: Nanos(one.at.0 - begins.0), ..*one }).collect();
        let mut random = Pcg64::seed_from_u64(round ^ 77);
        let mut stall = |at: Nanos| {
            all.push(Disturbance { at, lasts: STALL, stops: Stops::Core(0) });
        };
        match self.stalls {
            Stalls::Never => {}
            Stalls::EachSecond => {
                let second = 1_000_000_000;
                let first = own_ns.next_multiple_of(second) - own_ns;
                let own = (first..lasts.0).step_by(second as usize);
                own.for_each(|at| stall(Nanos(at)));
            }
            Stalls::In(share) => {
                for trial in 0..lasts.0.div_ceil(TRIAL.0) {
                    if random.random_bool(share) {
                        stall(Nanos(trial * TRIAL.0 + 30_000_000));
                    }
                }
            }
        }
        let mut arrivals = arrivals(round, lasts);
        if sets_aside {
            load.classes.push(load.classes[0].clone());
            for arrival in &mut arrivals {
                let is_stalled = |one: &Disturbance| {
                    one.lasts >= NOTICED && (one.at..one.at + one.lasts).contains(&arrival.at)
                };
                arrival.class = u16::from(all.iter().any(is_stalled));
            }
        }
        let arrivals: Rc<[Arrival]> = arrivals.into();
        let outcome = serve_disturbed(&self.simulated.setup, &load, arrivals, all).unwrap();
        let latencies = outcome.served.latencies[0].iter_recorded();
        latencies
            .map(|one| (one.value_iterated_to() as f64, one.count_since_last_iteration()))
            .collect()
    }
}

/// The samples of each row, by rounds.
fn pools(rows: &[Row], disturbances: &[Disturbance], rounds: usize) -> Vec<Pool> {
    let mut samples = vec![Vec::new(); rows.len()];
    let mut begins = 0;
    for round in 0..rounds as u64 {
        for row in order(5, round, rows.len()) {
            let when = (round, Nanos(begins), round * TRIAL.0);
            samples[row].push(rows[row].trial(when, TRIAL, disturbances, false));
            begins += TRIAL.0;
        }
    }
    samples.into_iter().map(Pool::of_rounds).collect()
}

fn quiet_ns(pool: &Pool) -> f64 {
    Spread::of(&pool.quantile_of_each(P99)).unwrap().quiet
}

/// p99 by the old rule: of a long trial, without what was set aside.
fn old_rule_ns(row: &Row, disturbances: &[Disturbance], begins: Nanos) -> f64 {
    let samples = row.trial((3, begins, 0), LONG, disturbances, true);
    Pool::of_rounds([samples]).quantile(&[0], P99)
}

/// Whether a claim is against the truth.
fn is_wrong(claim: Option<Verdict>, truth: f64) -> bool {
    match claim {
        None => false,
        Some(Verdict::Lower) => truth > 1.0,
        Some(Verdict::Equal) => !(1.0 / EQUAL..EQUAL).contains(&truth),
        Some(Verdict::Higher) => truth < 1.0,
    }
}

/// How close an estimate must be to its truth.
const CLOSE: f64 = 0.1;

#[test]
fn estimates_are_those_of_an_undisturbed_machine_and_no_claim_is_wrong() {
    let rows = rows();
    let truth = pools(&rows, &[], 2 * ROUNDS);
    let of_truth = |at: usize| Pair::of(&truth[at], &truth[0], P99, 1).unwrap();
    let (mut wrong, mut old_errors) = (Vec::new(), Vec::new());
    for Machine { name, disturbances, leaves_quiet_rounds } in machines() {
        let pools = pools(&rows, &disturbances, ROUNDS);
        let long = |at: usize| old_rule_ns(&rows[at], &disturbances, Nanos(LONG.0 * at as u64));
        let old_reference = long(0);
        println!("{name}");
        for (at, row) in rows.iter().enumerate().skip(1) {
            let (pair, true_pair) =
                (Pair::of(&pools[at], &pools[0], P99, 1).unwrap(), of_truth(at));
            let (ratio, ought) = (pair.ratio, true_pair.ratio.value);
            let [quiet, true_quiet] = [&pools, &truth].map(|pools| quiet_ns(&pools[at]));
            let old = long(at) / old_reference;
            println!(
                "  {:25} ratio {:.2} ({:.2} to {:.2}), truth {ought:.2}; quiet {:.0} us, truth {:.0}; more slow {:+.2}% ({:+.2} to {:+.2}), \
                 truth {:+.2}%; {:?}; old rule {old:.2}",
                row.name,
                ratio.value,
                ratio.low,
                ratio.high,
                quiet / 1e3,
                true_quiet / 1e3,
                pair.slow.value * 1e2,
                pair.slow.low * 1e2,
                pair.slow.high * 1e2,
                true_pair.slow.value * 1e2,
                pair.verdict(),
            );
            // A median says nothing of a row that stalls in half of its rounds.
            let has_median = !matches!(row.stalls, Stalls::In(share) if share >= 0.5);
            let is_far = |is: f64, ought: f64| (is / ought - 1.0).abs() > CLOSE;
            if leaves_quiet_rounds && has_median {
                old_errors.push((old / ought).ln().abs());
                if is_far(ratio.value, ought) || is_far(quiet, true_quiet) {
                    wrong.push(format!("{name}, {}: {ratio:?} instead of {ought}", row.name));
                }
            }
            if has_median && is_wrong(pair.verdict(), ought)
                || !has_median && pair.verdict().is_some()
            {
                wrong.push(format!("{name}, {}: {:?} is claimed", row.name, pair.verdict()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let old_far = old_errors.iter().filter(|error| **error > CLOSE).count();
    println!("old rule: {old_far} of {} ratios are off by more than 10%", old_errors.len());
}
