//! The effect of prefetching for strided access on refaults, over a modelled address space.

mod common;

use common::{World, at};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_memory::policies::by_name;
use wave_memory::space::{Counts, Pattern, Space};

const STRIPS: u32 = 24;
const BATCHES: u64 = STRIPS as u64 * 64;
const PAGES: u64 = BATCHES * 64;
/// Three epochs, and the rest of a strip's first: untouched memory is paged out by then.
const SETTLED: Nanos = at(160);

/// The counts at the end, without prefetching and with it.
fn counts(policy: &str, pattern: &Pattern, seed: u64, until: Nanos) -> [Counts; 2] {
    let config = Config { subjects: STRIPS, ..Config::coherent(1) };
    ["off", "on"].map(|prefetch| {
        let text = format!("{policy},prefetch={prefetch},seed={seed}");
        let policy = by_name(&text, &config).unwrap();
        let mut world = World::new(policy, Space::new(STRIPS, pattern.clone(), seed));
        world.run(until);
        // So that touches since the last scans count, too.
        world.space.resident_pages(world.now);
        world.space.counts()
    })
}

/// No touches until all is paged out, then `per_second` batches per second, for one round.
fn sweep(stride: i64, per_second: f64) -> (Pattern, Nanos) {
    let strides = Pattern::Strides { stride, batches: BATCHES, per_second: per_second * 64.0 };
    let seconds = BATCHES.div_ceil(stride.unsigned_abs()) as f64 / per_second;
    // A round begins at a multiple of its length.
    let begins = (SETTLED.0 as f64 / 1e9 / seconds).ceil() * seconds;
    let nanos = |seconds: f64| Nanos((seconds * 1e9) as u64);
    let patterns = [Pattern::Sum(vec![]), strides].map(Box::new);
    (Pattern::Change { at: nanos(begins), patterns }, nanos(begins + seconds))
}

const SOL: &str = "sol:shortest_ms=300";

#[test]
fn prefetching_reduces_refaults_of_strided_access() {
    for (policy, stride, per_second, percent) in [
        (SOL, 1, 2.0, 10),
        (SOL, 1, 5.0, 10),
        (SOL, -1, 5.0, 10),
        (SOL, 3, 5.0, 10),
        (SOL, -7, 2.0, 10),
        // The first scans come late, by up to 9.6 s: 192 of 1,536 batches.
        (SOL, 1, 20.0, 20),
        (SOL, -1, 20.0, 20),
        // One batch in each strip.
        (SOL, 64, 0.25, 40),
        ("threshold:period_ms=600", 1, 5.0, 10),
        ("threshold:period_ms=600", -3, 5.0, 10),
    ] {
        let (pattern, until) = sweep(stride, per_second);
        let [without, with] = counts(policy, &pattern, 1, until);
        // Each page of the round comes back once, as a refault or brought back.
        let vain = (with.brought_back + with.refaults).saturating_sub(without.refaults);
        println!(
            "{policy}, stride {stride}, {per_second} batches/s: refaults {} -> {}, in vain \
             {vain}, scans {} -> {}",
            without.refaults, with.refaults, without.scans, with.scans,
        );
        let round = BATCHES.div_ceil(stride.unsigned_abs()) * 64;
        assert!(without.refaults >= round, "{} of {round}", without.refaults);
        assert!(with.refaults * 100 <= without.refaults * percent);
        assert!(vain * 100 <= without.refaults * 2, "{vain} of {}", without.refaults);
    }
}

#[test]
fn prefetching_leaves_access_without_a_stride_alone() {
    let zipf = |first_per_second| Pattern::Zipf { exponent: 0.99, first_per_second };
    let hot = |first| Pattern::HotSet { first, pages: PAGES / 5 / 64 * 64, per_second: 0.5 };
    let change = Pattern::Change { at: SETTLED, patterns: [hot(0), hot(PAGES / 2)].map(Box::new) };
    let heads = Pattern::Sum(vec![hot(0), Pattern::Heads { pages: 3, per_second: 0.05 }]);
    // `percent`: how many more refaults are allowed.
    for (name, pattern, percent) in [
        ("Zipf", zipf(200.0), 1),
        ("busy Zipf", zipf(2000.0), 1),
        ("hot set", hot(0), 0),
        ("hot set that moves", change, 0),
        ("uniform", Pattern::Uniform { per_second: 0.002 }, 1),
        // Batches whose pages come back one by one all the time are found to rest sooner, and are paged out more often.
        ("hot set, heads", heads, 4),
    ] {
        let mut sums = [Counts::default(); 2];
        for seed in 0..2 {
            let counts = counts(SOL, &pattern, seed, SETTLED + SETTLED);
            for (sum, counts) in sums.iter_mut().zip(counts) {
                sum.refaults += counts.refaults;
                sum.brought_back += counts.brought_back;
                sum.scans += counts.scans;
            }
        }
        let [without, with] = sums;
        let vain = with.brought_back.saturating_sub(without.brought_back);
        println!(
            "{name}: refaults {} -> {}, brought back in vain {vain} at most, scans {} -> {}",
            without.refaults, with.refaults, without.scans, with.scans,
        );
        assert!(with.refaults * 100 <= without.refaults * (100 + percent), "{name}");
        assert!(vain * 100 <= without.refaults, "{name}");
    }
}
