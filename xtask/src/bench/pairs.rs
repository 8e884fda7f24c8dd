//! Pairs of runs of a bench, alternating which side runs first.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::builds::Side;
use super::figures::Bench;
use super::run::{Failure, Stop, run};

/// Shortest time between two progress lines, if standard error is not a terminal.
const SHOWN_EVERY: Duration = Duration::from_secs(30);

/// Number of failed runs after which a bench is given up.
const FAILURES_MAX: usize = 5;

/// The order in which the sides of a pair run; pair 0 is the warm-up.
pub fn order(pair: usize) -> [Side; 2] {
    if pair.is_multiple_of(2) { [Side::Base, Side::Tip] } else { [Side::Tip, Side::Base] }
}

/// The objects that both sides of a pair printed.
#[derive(Debug)]
pub struct Pair {
    pub base: Value,
    pub tip: Value,
}

/// The results of a bench.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Pairs in which both runs succeeded.
    pub whole: Vec<Pair>,
    /// Failed runs: the side and the reason.
    pub failed: Vec<(Side, String)>,
    /// The side that does not know the bench, if any, and the reason.
    pub unknown: Option<(Side, String)>,
    /// Whether a signal ended it.
    pub is_interrupted: bool,
}

impl Pairs {
    /// Why no figure of this bench may be called held: a run of the tip failed, or the bench was given up after too many
    /// failures. The remaining pairs are only those in which nothing went wrong.
    pub fn doubt(&self) -> Option<String> {
        let of_tip = || self.failed.iter().filter(|(side, _)| *side == Side::Tip);
        if let Some((_, why)) = of_tip().next() {
            return Some(format!("runs of the tip that failed: {}: {why}", of_tip().count()));
        }
        let (side, why) = self.failed.first().filter(|_| self.is_given_up())?;
        Some(format!("given up: the {} failed: {why}", side.name()))
    }

    fn is_given_up(&self) -> bool {
        self.failed.len() >= FAILURES_MAX
    }
}

/// The two programs, and how to run them.
#[derive(Debug)]
pub struct Programs {
    pub base: PathBuf,
    pub tip: PathBuf,
    /// Why instructions are not counted, if they are not.
    pub no_counters: Option<String>,
}

impl Programs {
    fn of(&self, side: Side) -> &Path {
        match side {
            Side::Base => &self.base,
            Side::Tip => &self.tip,
        }
    }

    /// Runs the warm-up pair and `count` more, and passes each run to `keep` when it ends.
    pub fn pairs(
        &self,
        bench: &Bench,
        count: usize,
        stop: &Stop,
        mut keep: impl FnMut(usize, Side, &Result<Value, Failure>) -> Result<(), String>,
    ) -> Result<Pairs, String> {
        let counts = self.no_counters.is_none() && bench.is_counted();
        let mut pairs = Pairs::default();
        let mut progress = Progress::new(&bench.name, count);
        for pair in 0..=count {
            progress.begin(pair);
            let mut printed = Vec::new();
            for side in order(pair) {
                let result = run(self.of(side), bench, counts, stop);
                keep(pair, side, &result)?;
                match result {
                    Ok(value) => printed.push((side, value)),
                    Err(Failure::Failed(why)) => pairs.failed.push((side, why)),
                    Err(Failure::Unknown(why)) => {
                        pairs.unknown = Some((side, why));
                        return Ok(pairs);
                    }
                    Err(Failure::Interrupted) => {
                        pairs.is_interrupted = true;
                        return Ok(pairs);
                    }
                }
            }
            if pair > 0 {
                pairs.whole.extend(joined(printed));
            }
            if pairs.is_given_up() {
                return Ok(pairs);
            }
        }
        Ok(pairs)
    }
}

fn joined(mut printed: Vec<(Side, Value)>) -> Option<Pair> {
    printed.sort_by_key(|(side, _)| *side == Side::Tip);
    let [(_, base), (_, tip)] = <[_; 2]>::try_from(printed).ok()?;
    Some(Pair { base, tip })
}

/// The progress of a bench on standard error: one line that changes on a terminal, an occasional line elsewhere.
struct Progress<'a> {
    bench: &'a str,
    count: usize,
    begun: Instant,
    shown: Option<Instant>,
    is_terminal: bool,
}

impl<'a> Progress<'a> {
    fn new(bench: &'a str, count: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { bench, count, begun: Instant::now(), shown: None, is_terminal }
    }

    fn begin(&mut self, pair: usize) {
        let is_due = self.is_terminal || self.shown.is_none_or(|at| at.elapsed() >= SHOWN_EVERY);
        if !is_due {
            return;
        }
        self.shown = Some(Instant::now());
        let line = line(self.bench, pair, self.count, self.begun.elapsed());
        let mut out = std::io::stderr();
        // Standard error may be closed.
        let _ =
            if self.is_terminal { write!(out, "\r\x1b[K{line}") } else { writeln!(out, "{line}") };
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The line at the beginning of a pair.
fn line(bench: &str, pair: usize, count: usize, took: Duration) -> String {
    if pair == 0 {
        return format!("bench: {bench}: warm-up pair");
    }
    let left = took.mul_f64((count + 1 - pair) as f64 / pair as f64).as_secs();
    format!("bench: {bench}: pair {pair} of {count}, about {} min {} s left", left / 60, left % 60)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn each_side_runs_first_in_every_other_pair() {
        for pair in 0..20 {
            let [first, second] = order(pair);
            assert_ne!(first, second);
            assert_eq!(order(pair + 1), [second, first]);
        }
    }

    #[test]
    fn a_pair_has_both_sides_in_either_order() {
        for order in [order(1), order(2)] {
            let printed = order.map(|side| (side, Value::from(side.name())));
            let pair = joined(printed.to_vec()).unwrap();
            assert_eq!((pair.base, pair.tip), ("base".into(), "tip".into()));
        }
        assert!(joined(vec![(Side::Tip, Value::Null)]).is_none());
    }

    #[test]
    fn the_time_left_follows_from_the_pairs_so_far() {
        let text = line("queue", 1, 20, Duration::from_secs(4));
        assert_eq!(text, "bench: queue: pair 1 of 20, about 1 min 20 s left");
    }
}
