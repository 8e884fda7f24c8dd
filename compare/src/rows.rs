//! One row over all rounds, and two rows against each other.

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::Pool;
use crate::estimate::{CONFIDENCE, Estimate, median, quantile};

/// A row's metric over rounds, where lower is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The lower quartile: what quiet rounds show.
    pub quiet: f64,
    /// The median over all rounds.
    pub median: f64,
    /// The worst round's value.
    pub worst: f64,
    /// The number of that round, from 0.
    pub worst_round: usize,
}

impl Spread {
    /// The spread of one value per round, in the order of rounds. `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        let worst_round = (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b]))?;
        Some(Self {
            quiet: quantile(values, 0.25)?,
            median: median(values)?,
            worst: values[worst_round],
            worst_round,
        })
    }
}

/// Two rows are equal if the interval of their ratio lies within `1 / EQUAL` and `EQUAL`.
pub const EQUAL: f64 = 1.15;

/// A statistic with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The statistic itself.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// The statistic of all `rounds` rounds, with an interval from rounds drawn with repetition. `statistic` is given the numbers of the
    /// drawn rounds, the same ones for all rows, so that the pairing is kept. `None` without rounds.
    pub fn resampled(
        rounds: usize,
        seed: u64,
        statistic: impl Fn(&[usize]) -> f64,
    ) -> Option<Self> {
        let range = |drawn: &[usize]| {
            let statistic = statistic(drawn);
            (statistic, statistic)
        };
        let (low, high) = resampled_range(rounds, seed, range)?;
        let all: Vec<usize> = (0..rounds).collect();
        Some(Self { value: statistic(&all), low, high })
    }

    /// Whether the interval lies within `1 / EQUAL` and [`EQUAL`].
    pub fn is_equal(&self) -> bool {
        self.low >= 1.0 / EQUAL && self.high <= EQUAL
    }

    /// Whether the interval contains 1.
    pub fn has_one(&self) -> bool {
        self.low <= 1.0 && self.high >= 1.0
    }
}

/// The interval of a statistic that may be known only within a range: `statistic` gives the ends of that range for drawn rounds, as in
/// [`Interval::resampled`]. An end that is open for more draws than lie outside of an interval is open. `None` without rounds.
pub fn resampled_range(
    rounds: usize,
    seed: u64,
    statistic: impl Fn(&[usize]) -> (f64, f64),
) -> Option<(f64, f64)> {
    const DRAWS: usize = 1_000;
    if rounds == 0 {
        return None;
    }
    let mut random = Pcg64::seed_from_u64(seed);
    let mut draw = || (0..rounds).map(|_| random.random_range(0..rounds)).collect::<Vec<_>>();
    let (mut lows, mut highs): (Vec<f64>, Vec<f64>) =
        (0..DRAWS).map(|_| statistic(&draw())).unzip();
    lows.sort_by(f64::total_cmp);
    highs.sort_by(f64::total_cmp);
    let tail = ((1.0 - CONFIDENCE) / 2.0 * DRAWS as f64) as usize;
    Some((lows[tail], highs[DRAWS - 1 - tail]))
}

/// What is claimed of two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first row's value is less.
    Lower,
    /// The interval of the ratio lies within `1 / EQUAL` and [`EQUAL`].
    Equal,
    /// The first row's value is greater.
    Higher,
}

impl Verdict {
    /// `lower`, `equal` or `higher`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lower => "lower",
            Self::Equal => "equal",
            Self::Higher => "higher",
        }
    }
}

/// One row against another, in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The first row's quantile divided by the second's within each round: the median over rounds.
    pub ratio: Interval,
    /// The same of the quantiles of all samples pooled.
    pub pooled: f64,
    /// The share of slow samples in the first row minus that in the second. Slow samples are those above the quantile of both rows'
    /// samples together. A row's own rare stalls are among them, which a median hides.
    pub slow: Interval,
}

impl Pair {
    /// Compares the values below which `share` of the samples of a round lie; `seed` is of the resampling. `None` for fewer than six
    /// rounds.
    ///
    /// # Panics
    /// If the rows have different numbers of rounds.
    pub fn of(first: &Pool, second: &Pool, share: f64, seed: u64) -> Option<Self> {
        let quantiles = [first, second].map(|pool| pool.quantile_of_each(share));
        let rounds = quantiles[0].len();
        assert_eq!(rounds, quantiles[1].len(), "every row runs in every round");
        let ratios: Vec<f64> = quantiles[0].iter().zip(&quantiles[1]).map(|(a, b)| a / b).collect();
        let Estimate { median: value, low, high } = Estimate::of_rounds(&ratios)?;
        let all: Vec<usize> = (0..rounds).collect();
        let limit = first.with(second).quantile(&all, share);
        let [slow_first, slow_second] = [first, second].map(|pool| pool.above(limit));
        let more = |drawn: &[usize]| {
            let sum: f64 = drawn.iter().map(|round| slow_first[*round] - slow_second[*round]).sum();
            sum / drawn.len() as f64
        };
        Some(Self {
            ratio: Interval { value, low, high },
            pooled: first.quantile(&all, share) / second.quantile(&all, share),
            slow: Interval::resampled(rounds, seed, more)?,
        })
    }

    /// What can be claimed of the rows; `None` if the interval of the ratio within a round leaves it open, or the slow samples
    /// speak against it.
    pub fn verdict(&self) -> Option<Verdict> {
        let claim = if self.ratio.high < 1.0 {
            Verdict::Lower
        } else if self.ratio.low > 1.0 {
            Verdict::Higher
        } else if self.ratio.is_equal() {
            Verdict::Equal
        } else {
            return None;
        };
        (!self.speaks_against(claim)).then_some(claim)
    }

    /// Whether the slow samples of both rows speak against a claim.
    pub fn speaks_against(&self, claim: Verdict) -> bool {
        let (has_more, has_less) = (self.slow.low > 0.0, self.slow.high < 0.0);
        match claim {
            Verdict::Lower => has_more,
            Verdict::Equal => has_more || has_less,
            Verdict::Higher => has_less,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn worst_round_is_shown_with_its_number() {
        let spread = Spread::of(&[4.0, 1.0, 9.0, 2.0]).unwrap();
        assert_eq!((spread.worst, spread.worst_round), (9.0, 2));
        assert!(spread.quiet < spread.median && spread.median < spread.worst);
        assert_eq!(Spread::of(&[]), None);
    }

    /// Rows of as many samples of one value per round.
    fn steady(values: &[f64]) -> Pool {
        Pool::of_rounds(values.iter().map(|value| vec![(*value, 1000)]))
    }

    /// The same, but in one round of `every` this many samples take 5000.
    fn stalling(values: &[f64], every: usize, stalled: u64) -> Pool {
        let samples = |(round, value): (usize, &f64)| match round.is_multiple_of(every) {
            true => vec![(*value, 1000 - stalled), (5000.0, stalled)],
            false => vec![(*value, 1000)],
        };
        Pool::of_rounds(values.iter().enumerate().map(samples))
    }

    fn verdict(first: &Pool, second: &Pool) -> Option<Verdict> {
        Pair::of(first, second, 0.99, 1).unwrap().verdict()
    }

    #[test]
    fn order_is_claimed_unless_slow_samples_speak_against_it() {
        let rounds: Vec<f64> = (0..48).map(|round| 100.0 + f64::from(round % 7)).collect();
        let half: Vec<f64> = rounds.iter().map(|value| value / 2.0).collect();
        assert_eq!(verdict(&steady(&half), &steady(&rounds)), Some(Verdict::Lower));
        assert_eq!(verdict(&steady(&rounds), &steady(&half)), Some(Verdict::Higher));
        assert_eq!(verdict(&steady(&rounds), &steady(&rounds)), Some(Verdict::Equal));
        let both: Vec<f64> = (0..48).map(|round| [80.0, 125.0][round % 2]).collect();
        assert_eq!(verdict(&steady(&both), &steady(&rounds)), None, "neither equal nor ordered");
        // A row's own stalls, in one round of eight: at least 1% of its samples.
        let stalls = stalling(&half, 8, 150);
        let pair = Pair::of(&stalls, &steady(&rounds), 0.99, 1).unwrap();
        assert!(pair.ratio.high < 1.0, "it is quicker in most rounds");
        assert_eq!(pair.verdict(), None, "{pair:?}");
        assert_eq!(verdict(&stalling(&rounds, 8, 150), &steady(&rounds)), None);
        // As many stalls of both rows, in different rounds.
        let mut others = rounds.clone();
        others.rotate_left(3);
        let disturbed = stalling(&others, 6, 150);
        assert_eq!(verdict(&stalls, &disturbed), Some(Verdict::Lower));
    }

    proptest! {
        // What both rows suffer in the same round does not change the verdict.
        #[test]
        fn disturbance_of_whole_rounds_cancels(
            slower in prop::collection::vec(1.0_f64..50.0, 20),
            ratio in 0.2_f64..0.9,
        ) {
            let second: Vec<f64> = slower.iter().map(|factor| 80.0 * factor).collect();
            let first: Vec<f64> = second.iter().map(|value| value * ratio).collect();
            let pair = Pair::of(&steady(&first), &steady(&second), 0.99, 1).unwrap();
            prop_assert!((pair.ratio.value - ratio).abs() < 1e-9);
            prop_assert_eq!(pair.verdict(), Some(Verdict::Lower));
        }
    }
}
