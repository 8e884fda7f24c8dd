//! `wave bench sol`: an iteration of SOL over 100 GiB, against the same arithmetic as a plain loop with
//! `rand_distr::Beta`.
//!
//! [`iterations`] describes an iteration and the variants that take turns. The plain loop has no strips, wire format
//! or moves, and both compute the same posterior. Its `rand_distr` uses the standard library's logarithms and powers
//! (`std_math`): without them the loop takes half as long again.
//!
//! A separate run, with periods that change and batches that move, checks that dividing the strips changes nothing.
//! The distance of fast draws from the distribution is measured over the shapes that SOL can reach.

use crate::bench::Better::Lower;
use crate::bench::{Bench, Figure, without_arguments};
use rand::SeedableRng;
use rand_distr::{Beta, Distribution};
use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::policy::Choice;
use wave_experiments::measure::sol::{
    Agent, BATCHES, Iterations, PERIOD, ROUNDS, SEED, access_words, iterations, parts, readings,
};
use wave_memory::beta::{Sampling, ks_distance};
use wave_memory::policies::sol::{HOT_SHARE, KEPT, Settings, Sol, TRIALS};
use wave_memory::policies::{Explanation, Tiered, Tiering};
use wave_memory::wire::STRIP_BATCHES;
use wave_terminal::Progress;

pub static BENCH: Bench = Bench {
    name: "sol",
    about: "An iteration of SOL over 100 GiB, against a plain loop with rand_distr",
    help: "Each of 409,600 batches of 256 KiB is due.

  iteration_ms_100gib        on one core, with approximate, fast draws (fast_ms: p5, p50, p95)
  ratio_vs_rand_distr        a plain loop with rand_distr's Beta, divided by that (higher is better)
  exact_ms, rand_distr_ms    SOL with exact draws; the plain loop
  two_cores                  the strips divided between two threads, from the first start to the last end
  identical_however_divided  whether decisions and beliefs are the same for 1, 2 and 3 parts: checked
  ks_distance                largest distance of fast draws from the Beta distribution (ks: where; and that of
                             exact draws, which is the error of this number of draws)
  state_bytes_per_batch      size of the policy's state

Examples:
  wave bench sol
  wave bench sol --json | jq '.iteration_ms_100gib, .ratio_vs_rand_distr, .ks_distance'",
    figures: &[
        Figure::of("ratio_vs_rand_distr").measured("a plain loop with rand_distr's Beta / an iteration of SOL"),
        Figure::of("exact_ratio_vs_rand_distr").measured("the same / SOL with exact draws"),
        Figure::of("iteration_ms_100gib").measured("an iteration over 100 GiB, ms"),
        Figure::of("two_cores.fast_speedup").measured("iterations of SOL on two cores / on one, fast draws"),
        Figure::of("fast_ms.p50").compared(Lower),
        Figure::of("exact_ms.p50").compared(Lower),
        Figure::of("two_cores.fast_ms.p50").compared(Lower),
        Figure::of("two_cores.exact_ms.p50").compared(Lower),
        Figure::of("state_bytes_per_batch").compared(Lower),
        Figure::of("ks_distance").compared(Lower),
        Figure::peer("rand_distr_ms.p50").compared(Lower),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: without_arguments,
    run: |_, quiet| sol(quiet),
};

/// Numbers of parts into which the strips are divided for the check, and the number of its iterations.
const DIVISIONS: [u32; 3] = [1, 2, 3];
const CHECKED: u64 = 12;
/// Time between two of these iterations, chosen so that all strips see the end of an epoch.
const CHECKED_PERIOD: Nanos = Nanos::from_millis(4_800);
/// Shape parameters of Beta distributions: SOL's two add up to at most [`SHAPES_MAX`].
const SHAPES: [u32; 7] = [1, 2, 3, 5, 9, 17, 33];
const SHAPES_MAX: f32 = 2.0 + TRIALS / (1.0 - KEPT);
const DRAWS: u32 = 100_000;

/// A batch in its plainest form.
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

/// An iteration of the same model: union, rate, posterior, draw, period; without strips, masks, wire format or moves.
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

/// Runs the strips in `count` parts. Returns each strip's decisions in their order, and the final belief about each
/// batch.
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
            explanations.extend(batches.map(|batch| agent.explain(strip, batch)));
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

pub fn sol(quiet: bool) -> Result<serde_json::Value, String> {
    let progress = Progress::new(3, quiet);
    progress.begin("iterations over 100 GiB");
    let (alpha, beta, period) = (1.0, 1.0, PERIOD.0 as f64 / 1e9);
    let batch = Plain { alpha, beta, touched: 0, elapsed: 0.0, pages: 0, period, next_scan: 0.0 };
    let mut plain = vec![batch; BATCHES];
    let mut rng = Pcg64Mcg::seed_from_u64(SEED);
    let measured =
        iterations(|round, words| plain_iteration(&mut plain, words, round as f64, &mut rng))?;
    let (ours, theirs) = (measured.warmth, plain[0].alpha / (plain[0].alpha + plain[0].beta));
    assert!((ours - theirs).abs() < 1e-3, "the posteriors differ: {ours}, {theirs}");
    progress.end();
    progress.begin("dividing the strips");
    let words = access_words();
    let whole = divided(&words, DIVISIONS[0]);
    let same = DIVISIONS[1..].iter().all(|count| divided(&words, *count) == whole);
    progress.end();
    progress.begin("comparing draws with the Beta distribution");
    let (ks, alpha, beta) = worst_distance(Sampling::Fast);
    let (exact_ks, ..) = worst_distance(Sampling::Exact);
    progress.end();

    let Iterations { fast, exact, peer: plain, fast_on_two, exact_on_two, .. } = &measured;
    let state_bytes = Tiered::new(Sol::default(), 1, SEED).state_bytes_per_batch();
    Ok(serde_json::json!({
        "bench": "sol",
        "peer": "the same iteration written plainly, with rand_distr 0.5's Beta",
        "batches": BATCHES,
        "rounds": ROUNDS,
        "iteration_ms_100gib": fast.median(),
        "ratio_vs_rand_distr": plain.over(fast).estimate(),
        "ks_distance": ks,
        "state_bytes_per_batch": state_bytes,
        "identical_however_divided": same,
        "fast_ms": fast.spread(),
        "exact_ms": exact.spread(),
        "rand_distr_ms": plain.spread(),
        "exact_ratio_vs_rand_distr": plain.over(exact).estimate(),
        "two_cores": {
            "fast_ms": fast_on_two.spread(),
            "exact_ms": exact_on_two.spread(),
            "fast_speedup": fast.over(fast_on_two).estimate(),
            "exact_speedup": exact.over(exact_on_two).estimate(),
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
    use wave_experiments::measure::sol::STRIPS;

    use super::*;

    #[test]
    fn comparison_detects_a_division_that_changes_decisions() {
        let mut words = access_words();
        let one = divided(&words, 1);
        assert!(one.0.len() > STRIPS as usize);
        assert!(one.1.iter().all(Option::is_some));
        words[7][0] = !words[7][0];
        assert!(divided(&words, 1) != one);
    }
}
