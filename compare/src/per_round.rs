//! The values of one metric over rounds, and the loop that measures rows in turns.

use serde_json::{Value, json};

use crate::estimate::quantile;
use crate::{Estimate, balanced_order};

/// The values of one metric, one per round, in the order of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PerRound(Vec<f64>);

impl FromIterator<f64> for PerRound {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl PerRound {
    /// Collects `value` of each round's result.
    pub fn of<T>(rounds: &[T], value: impl Fn(&T) -> f64) -> Self {
        rounds.iter().map(value).collect()
    }

    /// Applies `each` to each round's value.
    pub fn map(&self, each: impl FnMut(f64) -> f64) -> Self {
        self.0.iter().copied().map(each).collect()
    }

    /// Combines the two metrics' values of each round. Panics if they have different numbers of rounds.
    pub fn with(&self, other: &Self, each: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "metrics of the same rounds");
        self.0.iter().zip(&other.0).map(|(own, other)| each(*own, *other)).collect()
    }

    /// The ratio within each round, to the other metric.
    pub fn over(&self, other: &Self) -> Self {
        self.with(other, |own, other| own / other)
    }

    /// The median; NaN without rounds.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    fn at(&self, share: f64) -> f64 {
        quantile(&self.0, share).unwrap_or(f64::NAN)
    }

    /// How the values spread over rounds: `{p5, p50, p95}`.
    pub fn spread(&self) -> Value {
        json!({ "p5": self.at(0.05), "p50": self.median(), "p95": self.at(0.95) })
    }

    /// The median with its 95% interval ([`Estimate::of_rounds`]): `{median, low, high}`. Fewer than six rounds have no
    /// interval: then `low` and `high` are null.
    pub fn estimate(&self) -> Value {
        let estimate = Estimate::of_rounds(&self.0);
        let [low, high] = [estimate.map(|found| found.low), estimate.map(|found| found.high)];
        json!({ "median": self.median(), "low": low, "high": high })
    }
}

/// Measures `N` rows in turns: in each round, `run` is called with each row's index once, in an [order](balanced_order) drawn from `seed`. Returns
/// each row's results, in the order of the rounds, without those of the first `warm_up` rounds.
///
/// # Errors
///
/// The first error of `run`.
pub fn in_turns<T, E, const N: usize>(
    seed: u64,
    warm_up: usize,
    rounds: usize,
    mut run: impl FnMut(usize) -> Result<T, E>,
) -> Result<[Vec<T>; N], E> {
    let mut results = [const { Vec::new() }; N];
    for round in 0..warm_up + rounds {
        for row in balanced_order(seed, round as u64, N) {
            let result = run(row)?;
            if round >= warm_up {
                results[row].push(result);
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_within_a_round() {
        let ours: PerRound = [2.0, 30.0, 8.0].into_iter().collect();
        let theirs: PerRound = [1.0, 10.0, 2.0].into_iter().collect();
        assert_eq!(ours.over(&theirs), [2.0, 3.0, 4.0].into_iter().collect());
        assert_eq!(ours.over(&theirs).median(), 3.0);
        assert_eq!(ours.map(|value| value / 2.0).median(), 4.0);
        assert!(PerRound::default().median().is_nan());
    }

    #[test]
    fn an_estimate_of_few_rounds_has_no_interval() {
        let few: PerRound = (1..=5).map(f64::from).collect();
        assert_eq!(few.estimate(), json!({ "median": 3.0, "low": null, "high": null }));
        let six: PerRound = [3.0, 1.0, 6.0, 4.0, 2.0, 5.0].into_iter().collect();
        assert_eq!(six.estimate(), json!({ "median": 3.5, "low": 1.0, "high": 6.0 }));
    }

    #[test]
    fn rows_take_turns_and_the_warm_up_is_left_out() {
        let mut turns = Vec::new();
        let results: [Vec<usize>; 3] = in_turns(1, 2, 4, |row| {
            turns.push(row);
            Ok::<_, ()>(turns.len())
        })
        .unwrap();
        assert_eq!((turns.len(), results.each_ref().map(Vec::len)), (18, [4; 3]));
        for round in turns.chunks(3) {
            assert!((0..3).all(|row| round.contains(&row)), "{turns:?}");
        }
        assert!(results.iter().flatten().all(|turn| *turn > 6), "{results:?}");
        let failed: Result<[Vec<()>; 1], _> = in_turns(1, 0, 4, |_| Err("broken"));
        assert_eq!(failed, Err("broken"));
    }
}
