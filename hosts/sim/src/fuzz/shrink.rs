//! Makes a failing history smaller, as long as it breaks the same rule.

use super::faults::Fault;
use super::plan::{Overrides, Plan};
use super::run::run;

/// The most plans that are tried.
const TRIES: usize = 60;

/// The smallest overrides found under which `seed` still breaks `rule`.
pub fn shrink(seed: u64, wanted: &[Fault], from: &Overrides, rule: &str) -> Overrides {
    let mut tries = TRIES;
    let mut fails = |overrides: &Overrides| {
        if tries == 0 {
            return false;
        }
        tries -= 1;
        let report = run(&Plan::new(seed, wanted).with(overrides));
        report.violation.is_some_and(|violation| violation.rule == rule)
    };
    let mut best = from.clone();
    let count = Plan::new(seed, wanted).enclaves[0].injections.len();
    let mut attempt = |best: &mut Overrides, change: &dyn Fn(&mut Overrides)| {
        let mut smaller = best.clone();
        change(&mut smaller);
        if smaller.to_arguments() != best.to_arguments() && fails(&smaller) {
            *best = smaller;
        }
    };
    attempt(&mut best, &|smaller| smaller.alone = true);
    for fault in 0..count {
        attempt(&mut best, &|smaller| {
            let kept = smaller.faults.clone().unwrap_or_else(|| (0..count).collect());
            smaller.faults = Some(kept.into_iter().filter(|other| *other != fault).collect());
        });
    }
    for messages in [5_000, 2_000, 1_000, 500, 200, 100, 50] {
        attempt(&mut best, &|smaller| smaller.messages = Some(messages));
    }
    for threads in [16, 8, 4, 2, 1] {
        attempt(&mut best, &|smaller| smaller.threads = Some(threads));
    }
    best
}
