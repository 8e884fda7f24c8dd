//! How long one iteration takes over 100 GiB with every batch due, beside the same arithmetic written
//! down plainly with `rand_distr::Beta`. Takes turns, and prints medians.
//!
//! `cargo run --release -p wave-memory --example iteration [ROUNDS]`

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand_distr::{Beta, Distribution};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::message::{Sequence, Subject};
use wave_core::policy::Policy;
use wave_memory::beta::{Sampling, ks_distance};
use wave_memory::policies::sol::{HOT_SHARE, KEPT, Settings, Sol, TRIALS};
use wave_memory::policies::{Tiered, Tiering};
use wave_memory::wire::{Reading, Strip};

const STRIPS: u32 = 6400;
const BATCHES: usize = STRIPS as usize * 64;
/// 300 ms, and only this period: every batch is due at each tick.
const PERIOD: Nanos = Nanos::from_millis(300);
const INTERVAL_US: u32 = 300_000;
const PERIOD_S: f64 = 0.3;
const HORIZON_S: f64 = 9.6;

/// Access words of every batch: a fifth is hot, the others have a few young pages.
fn bits(rng: &mut Pcg64Mcg) -> Vec<[u64; 2]> {
    use rand::Rng;
    let young = |at: usize, rng: &mut Pcg64Mcg| {
        let word: u64 = rng.random();
        if at.is_multiple_of(5) {
            word | rng.random::<u64>()
        } else {
            word & rng.random::<u64>() & rng.random::<u64>()
        }
    };
    (0..BATCHES).map(|at| [young(at, rng), u64::MAX]).collect()
}

/// The same words as the extents in which they cross the link.
fn extents(words: &[[u64; 2]]) -> Vec<u64> {
    let mut extent = Vec::new();
    for (id, words) in words.chunks(64).enumerate() {
        let strip = Subject { id: id as u32, generation: 1 };
        let (sequence, interval_us) = (Sequence(1), INTERVAL_US);
        Reading { strip, sequence, interval_us, batches: u64::MAX, words }.write(&mut extent);
    }
    extent
}

struct Ours {
    policy: Tiered<Sol>,
    now: Nanos,
}

impl Ours {
    fn new(sampling: Sampling) -> Ours {
        let settings = Settings { shortest: PERIOD, levels: 1, sampling, ..Settings::default() };
        let mut policy = Tiered::new(Sol::new(settings), STRIPS, 1);
        for id in 0..STRIPS {
            let strip = Subject { id, generation: 1 };
            let all = u64::MAX;
            let strip = Strip {
                strip,
                sequence: Sequence(1),
                mapped: all,
                void: all,
                huge: 0,
                place: Default::default(),
            };
            policy.on_message(Nanos(0), &strip.to_message());
        }
        Ours { policy, now: Nanos(0) }
    }

    /// Decides what to scan and to move, and takes in what was scanned.
    fn iteration(&mut self, extent: &[u64]) -> Duration {
        let start = Instant::now();
        let mut decisions = 0;
        while self.policy.next(self.now).is_some() {
            decisions += 1;
        }
        self.policy.on_bulk(self.now, extent).expect("the readings are well-formed");
        let took = start.elapsed();
        assert!(decisions >= STRIPS, "{decisions} decisions, and every batch was due");
        self.now = self.now + PERIOD;
        took
    }
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
fn plain_iteration(
    batches: &mut [Plain],
    words: &[[u64; 2]],
    now: f64,
    rng: &mut Pcg64Mcg,
) -> Duration {
    let start = Instant::now();
    let (limit, kept, trials) = (f64::from(HOT_SHARE), f64::from(KEPT), f64::from(TRIALS));
    for (batch, [young, present]) in batches.iter_mut().zip(words) {
        if batch.next_scan > now {
            continue;
        }
        batch.pages = batch.pages.max(present.count_ones());
        batch.touched |= young;
        batch.elapsed += f64::from(INTERVAL_US) / 1e6;
        let share = f64::from(batch.touched.count_ones()) / f64::from(batch.pages);
        if share >= limit || batch.elapsed >= HORIZON_S - 0.15 {
            let rate = -(1.0 - share).ln() / batch.elapsed;
            let share = 1.0 - (-rate * HORIZON_S).exp();
            batch.alpha = 1.0 + kept * (batch.alpha - 1.0) + trials * share;
            batch.beta = 1.0 + kept * (batch.beta - 1.0) + trials * (1.0 - share);
            (batch.touched, batch.elapsed) = (0, 0.0);
        }
        let draw = Beta::new(batch.alpha, batch.beta).expect("both are at least 1").sample(rng);
        let mean = batch.alpha / (batch.alpha + batch.beta);
        let agrees = (draw < limit) == (mean < limit);
        batch.period = if agrees { batch.period * 2.0 } else { batch.period / 2.0 };
        batch.period = batch.period.clamp(PERIOD_S, PERIOD_S);
        batch.next_scan = now + batch.period;
    }
    start.elapsed()
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |text| {
        let rounds: usize = text.parse().expect("ROUNDS is a number");
        rounds.max(1)
    });
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let words = bits(&mut rng);
    let extent = extents(&words);
    let (mut fast, mut exact) = (Ours::new(Sampling::Fast), Ours::new(Sampling::Exact));
    let plain = Plain {
        alpha: 1.0,
        beta: 1.0,
        touched: 0,
        elapsed: 0.0,
        pages: 0,
        period: PERIOD_S,
        next_scan: 0.0,
    };
    let mut plain = vec![plain; BATCHES];
    let (mut fast_ms, mut exact_ms, mut plain_ms) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        fast_ms.push(fast.iteration(&extent));
        exact_ms.push(exact.iteration(&extent));
        plain_ms.push(plain_iteration(&mut plain, &words, round as f64, &mut rng));
    }
    let ours = fast.policy.explain(0, 0).expect("the batch is managed").warmth;
    let theirs = plain[0].alpha / (plain[0].alpha + plain[0].beta);
    assert!((f64::from(ours) - theirs).abs() < 1e-3, "the same posterior: {ours}, {theirs}");

    let shapes = [(1, 1), (1, 33), (33, 1), (3, 5), (17, 17)];
    let distance = |sampling| {
        let distances = shapes.map(|(alpha, beta)| ks_distance(sampling, alpha, beta, 100_000, 1));
        distances.into_iter().fold(0.0, f64::max)
    };
    let [fast, exact, plain] = [&mut fast_ms, &mut exact_ms, &mut plain_ms].map(|ms| median(ms));
    println!("{BATCHES} batches (100 GiB), every one due, one core, medians of {rounds} rounds");
    println!("  fast draws         {fast:6.1} ms   KS distance {:.4}", distance(Sampling::Fast));
    println!("  exact draws        {exact:6.1} ms   KS distance {:.4}", distance(Sampling::Exact));
    println!("  rand_distr::Beta   {plain:6.1} ms");
    println!(
        "  rand_distr / fast  {:6.1}      rand_distr / exact {:.1}",
        plain / fast,
        plain / exact
    );
}
