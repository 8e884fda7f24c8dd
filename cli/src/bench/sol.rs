//! `wave bench sol`: an iteration of SOL over 100 GiB, against the same arithmetic written down plainly with
//! `rand_distr::Beta`.
//!
//! An iteration decides what to scan and to move, and takes in what was scanned; every one of the 409,600
//! batches is due. Fast draws, exact draws, the plain loop, and both draws with the strips divided between two
//! threads take turns; the first turns warm up. The plain loop knows neither strips nor wire nor moves, and
//! both come to the same posterior. Its `rand_distr` has the standard library's logarithms and powers
//! (`std_math`): without them the loop takes half as long again.
//!
//! That a division changes nothing is checked in a run of its own, with periods that change and batches
//! that move. How far fast draws are from the distribution is measured over the shapes that SOL can reach.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_distr::{Beta, Distribution};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::policy::{Choice, Policy};
use wave_memory::beta::{Sampling, ks_distance};
use wave_memory::policies::sol::{HOT_SHARE, KEPT, Settings, Sol, TRIALS};
use wave_memory::policies::{Explanation, Tiered, Tiering};
use wave_memory::wire::{Reading, STRIP_BATCHES, Strip};

use super::{Chunks, pin, two_cpus};
use crate::report::Progress;

/// 100 GiB in strips of 16 MiB.
const STRIPS: u32 = 6_400;
const BATCHES: usize = STRIPS as usize * STRIP_BATCHES as usize;
const ROUNDS: usize = 31;
const WARM_UP: usize = 2;
const SEED: u64 = 1;
/// The only period: every batch is due each time.
const PERIOD: Nanos = Nanos::from_millis(300);
/// Into how many parts the strips are divided to see that it changes nothing, and over how many iterations.
const DIVISIONS: [u32; 3] = [1, 2, 3];
const CHECKED: u64 = 12;
/// Between two of them: all strips see the end of an epoch.
const CHECKED_PERIOD: Nanos = Nanos::from_millis(4_800);
/// Shapes of Betas: SOL's two add up to at most [`SHAPES_MAX`].
const SHAPES: [u32; 7] = [1, 2, 3, 5, 9, 17, 33];
const SHAPES_MAX: f32 = 2.0 + TRIALS / (1.0 - KEPT);
const DRAWS: u32 = 100_000;

/// Access words of every batch: a fifth is hot, the others have a few young pages.
fn access_words() -> Vec<[u64; 2]> {
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let mut word = || rng.random::<u64>();
    let young = |at: usize| {
        if at.is_multiple_of(5) { word() | word() } else { word() & word() & word() }
    };
    (0..BATCHES).map(young).map(|young| [young, u64::MAX]).collect()
}

/// The words of these strips as the readings in which they cross the link.
fn readings(words: &[[u64; 2]], strips: Range<u32>, interval: Nanos) -> Vec<u64> {
    let mut extent = Vec::new();
    for id in strips {
        let first = id as usize * STRIP_BATCHES as usize;
        let reading = Reading {
            strip: Subject { id, generation: 1 },
            sequence: Sequence(1),
            interval_us: (interval.0 / 1_000) as u32,
            batches: u64::MAX,
            words: &words[first..first + STRIP_BATCHES as usize],
        };
        reading.write(&mut extent);
    }
    extent
}

/// A policy that manages some strips, and what it reads of them.
struct Agent {
    policy: Tiered<Sol>,
    readings: Vec<u64>,
    now: Nanos,
}

impl Agent {
    fn new(settings: Settings, strips: Range<u32>, readings: Vec<u64>) -> Agent {
        let mut policy = Tiered::new(Sol::new(settings), strips.end, SEED);
        for id in strips {
            let strip = Subject { id, generation: 1 };
            let all = u64::MAX;
            let told = Strip {
                strip,
                sequence: Sequence(1),
                mapped: all,
                void: all,
                huge: 0,
                place: Default::default(),
            };
            policy.on_message(Nanos(0), &told.to_message());
        }
        Agent { policy, readings, now: Nanos(0) }
    }

    /// One where every batch is always due.
    fn busy(sampling: Sampling, words: &[[u64; 2]], strips: Range<u32>) -> Agent {
        let settings = Settings { shortest: PERIOD, levels: 1, sampling, ..Settings::default() };
        Agent::new(settings, strips.clone(), readings(words, strips, PERIOD))
    }

    fn iterate(&mut self, period: Nanos, mut made: impl FnMut(Choice)) {
        while let Some(choice) = self.policy.next(self.now) {
            made(choice);
        }
        self.policy.on_bulk(self.now, &self.readings).expect("the readings are well-formed");
        self.now = self.now + period;
    }

    /// An iteration in which every strip is decided on, and when it began and ended.
    fn timed(&mut self, strips: u32) -> [Instant; 2] {
        let start = Instant::now();
        let mut decisions = 0;
        self.iterate(PERIOD, |_| decisions += 1);
        let end = Instant::now();
        assert!(decisions >= strips, "{decisions} decisions, and every batch was due");
        [start, end]
    }
}

/// The strips of each of `count` parts.
fn parts(count: u32) -> impl Iterator<Item = Range<u32>> {
    (0..count).map(move |part| STRIPS * part / count..STRIPS * (part + 1) / count)
}

/// An iteration of two halves at once, each on a CPU of its own: from the first start to the last end.
fn on_two_cores(halves: &mut [Agent], cpus: [usize; 2]) -> Result<Duration, String> {
    let ready = Barrier::new(halves.len());
    let run = |(half, cpu): (&mut Agent, usize)| {
        let pinned = pin(cpu);
        ready.wait();
        pinned.map(|()| half.timed(STRIPS / 2))
    };
    let times = std::thread::scope(|scope| {
        let mut halves = halves.iter_mut().zip(cpus);
        let own = halves.next();
        let others: Vec<_> = halves.map(|other| scope.spawn(|| run(other))).collect();
        let own = own.map(run);
        let others = others.into_iter().map(|other| other.join().expect("it does not panic"));
        own.into_iter().chain(others).collect::<Result<Vec<_>, _>>()
    })?;
    let start = times.iter().map(|[start, _]| *start).min();
    let end = times.iter().map(|[_, end]| *end).max();
    Ok(start.zip(end).map_or(Duration::ZERO, |(start, end)| end - start))
}

/// A batch as one would write it down.
#[derive(Clone)]
struct Plain {
    alpha: f64,
    beta: f64,
    touched: u64,
    elapsed: f64,
    pages: u32,
    period: f64,
    next_scan: f64,
}

/// The same model: union, rate, posterior, draw, period; without strips, masks, wire or moves.
fn plain_iteration(batches: &mut [Plain], words: &[[u64; 2]], now: f64, rng: &mut Pcg64Mcg) {
    let seconds = |nanos: Nanos| nanos.0 as f64 / 1e9;
    let (period, horizon) = (seconds(PERIOD), seconds(Settings::default().horizon));
    let (limit, kept, trials) = (f64::from(HOT_SHARE), f64::from(KEPT), f64::from(TRIALS));
    for (batch, [young, present]) in batches.iter_mut().zip(words) {
        if batch.next_scan > now {
            continue;
        }
        batch.pages = batch.pages.max(present.count_ones());
        batch.touched |= young;
        batch.elapsed += period;
        let share = f64::from(batch.touched.count_ones()) / f64::from(batch.pages);
        if share >= limit || batch.elapsed >= horizon - period / 2.0 {
            let rate = -(1.0 - share).ln() / batch.elapsed;
            let share = 1.0 - (-rate * horizon).exp();
            batch.alpha = 1.0 + kept * (batch.alpha - 1.0) + trials * share;
            batch.beta = 1.0 + kept * (batch.beta - 1.0) + trials * (1.0 - share);
            (batch.touched, batch.elapsed) = (0, 0.0);
        }
        let draw = Beta::new(batch.alpha, batch.beta).expect("both are at least 1").sample(rng);
        let mean = batch.alpha / (batch.alpha + batch.beta);
        let agrees = (draw < limit) == (mean < limit);
        batch.period = if agrees { batch.period * 2.0 } else { batch.period / 2.0 };
        batch.period = batch.period.clamp(period, period);
        batch.next_scan = now + batch.period;
    }
}

/// Milliseconds of an iteration.
pub struct Iterations {
    fast: Chunks,
    exact: Chunks,
    plain: Chunks,
    fast_on_two: Chunks,
    exact_on_two: Chunks,
}

impl Iterations {
    /// Medians with fast draws, on one core and on two.
    pub fn medians(&self) -> [f64; 2] {
        [self.fast.median(), self.fast_on_two.median()]
    }
}

/// Times iterations. Needs two CPUs.
pub fn iterations() -> Result<Iterations, String> {
    let cpus = two_cpus()?;
    pin(cpus[0])?;
    let words = access_words();
    let agents = |sampling: Sampling, count: u32| {
        parts(count).map(|part| Agent::busy(sampling, &words, part)).collect::<Vec<_>>()
    };
    let mut whole = [Sampling::Fast, Sampling::Exact].map(|sampling| agents(sampling, 1).remove(0));
    let mut halves = [Sampling::Fast, Sampling::Exact].map(|sampling| agents(sampling, 2));
    let (alpha, beta, period) = (1.0, 1.0, PERIOD.0 as f64 / 1e9);
    let batch = Plain { alpha, beta, touched: 0, elapsed: 0.0, pages: 0, period, next_scan: 0.0 };
    let mut plain = vec![batch; BATCHES];
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);

    let mut measured: [Vec<f64>; 5] = Default::default();
    for round in 0..WARM_UP + ROUNDS {
        let [fast, exact] = [0, 1].map(|at| {
            let [start, end] = whole[at].timed(STRIPS);
            end - start
        });
        let start = Instant::now();
        plain_iteration(&mut plain, &words, round as f64, &mut rng);
        let took = start.elapsed();
        let [fast_on_two, exact_on_two] = [0, 1].map(|at| on_two_cores(&mut halves[at], cpus));
        if round >= WARM_UP {
            let times = [fast, exact, took, fast_on_two?, exact_on_two?];
            for (all, time) in measured.iter_mut().zip(times) {
                all.push(time.as_secs_f64() * 1e3);
            }
        }
    }
    let ours = whole[0].policy.explain(0, 0).map_or(f64::NAN, |batch| batch.warmth.into());
    let theirs = plain[0].alpha / (plain[0].alpha + plain[0].beta);
    assert!((ours - theirs).abs() < 1e-3, "the same posterior: {ours}, {theirs}");
    let [fast, exact, plain, fast_on_two, exact_on_two] = measured.map(Chunks::new);
    Ok(Iterations { fast, exact, plain, fast_on_two, exact_on_two })
}

/// What becomes of the strips divided into so many parts: each strip's decisions in their order, and what is
/// thought of each batch in the end.
fn divided(words: &[[u64; 2]], count: u32) -> (Vec<Choice>, Vec<Option<Explanation>>) {
    let (mut choices, mut explanations) = (Vec::new(), Vec::new());
    for part in parts(count) {
        let readings = readings(words, part.clone(), CHECKED_PERIOD);
        let mut agent = Agent::new(Settings::default(), part.clone(), readings);
        for _ in 0..CHECKED {
            agent.iterate(CHECKED_PERIOD, |choice| choices.push(choice));
        }
        for strip in part {
            let batches = 0..STRIP_BATCHES;
            explanations.extend(batches.map(|batch| agent.policy.explain(strip, batch)));
        }
    }
    choices.sort_by_key(|choice: &Choice| choice.subject.id);
    (choices, explanations)
}

/// The largest distance of draws from their distribution, and the shapes where it is.
fn worst_distance(sampling: Sampling) -> (f64, u32, u32) {
    let pairs = SHAPES.into_iter().flat_map(|alpha| SHAPES.map(|beta| (alpha, beta)));
    let reached = pairs.filter(|(alpha, beta)| (alpha + beta) as f32 <= SHAPES_MAX);
    reached
        .map(|(alpha, beta)| (ks_distance(sampling, alpha, beta, DRAWS, SEED), alpha, beta))
        .fold((0.0, 0, 0), |worst, found| if found.0 > worst.0 { found } else { worst })
}

/// Runs the bench.
pub fn sol(quiet: bool) -> Result<serde_json::Value, String> {
    let progress = Progress::new(3, quiet);
    progress.begin("iterations over 100 GiB");
    let measured = iterations()?;
    progress.end();
    progress.begin("the strips divided otherwise");
    let words = access_words();
    let whole = divided(&words, DIVISIONS[0]);
    let same = DIVISIONS[1..].iter().all(|count| divided(&words, *count) == whole);
    progress.end();
    progress.begin("distances of draws from the Beta distribution");
    let (ks, alpha, beta) = worst_distance(Sampling::Fast);
    let (exact_ks, ..) = worst_distance(Sampling::Exact);
    progress.end();

    let Iterations { fast, exact, plain, fast_on_two, exact_on_two } = &measured;
    let state_bytes = Tiered::new(Sol::default(), 1, SEED).state_bytes_per_batch();
    Ok(serde_json::json!({
        "bench": "sol",
        "peer": "the same iteration written plainly, with rand_distr 0.5's Beta",
        "batches": BATCHES,
        "rounds": ROUNDS,
        "iteration_ms_100gib": fast.median(),
        "ratio_vs_rand_distr": plain.median() / fast.median(),
        "ks_distance": ks,
        "state_bytes_per_batch": state_bytes,
        "identical_however_divided": same,
        "fast_ms": fast.json(),
        "exact_ms": exact.json(),
        "rand_distr_ms": plain.json(),
        "exact_ratio_vs_rand_distr": plain.median() / exact.median(),
        "two_cores": {
            "fast_ms": fast_on_two.json(),
            "exact_ms": exact_on_two.json(),
            "fast_speedup": fast.median() / fast_on_two.median(),
            "exact_speedup": exact.median() / exact_on_two.median(),
        },
        "ks": {
            "fast": ks,
            "fast_worst_at": format!("Beta({alpha}, {beta})"),
            "exact": exact_ks,
            "draws": DRAWS,
            "shapes": SHAPES,
            "shapes_add_up_to_at_most": SHAPES_MAX,
        },
        "divisions": {
            "parts": DIVISIONS,
            "iterations": CHECKED,
            "decisions": whole.0.len(),
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_strips_once() {
        for count in [1, 2, 3, 7] {
            assert!(parts(count).flatten().eq(0..STRIPS));
        }
    }

    #[test]
    fn a_division_that_mattered_would_be_seen() {
        let mut words = access_words();
        let one = divided(&words, 1);
        assert!(one.0.len() > STRIPS as usize);
        assert!(one.1.iter().all(Option::is_some));
        words[7][0] = !words[7][0];
        assert!(divided(&words, 1) != one);
    }
}
