//! One row over all rounds, and two rows against each other.

use std::cmp::Ordering;

use crate::estimate::{Estimate, median, quantile};

/// A row's figure over rounds, where lower is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The lower quartile: what quiet rounds show.
    pub quiet: f64,
    /// The median over all rounds.
    pub median: f64,
    /// The worst round's figure.
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

/// One row against another, in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The first row's figure divided by the second's within each round: the median over rounds.
    pub ratio: Estimate,
    /// The same of the figures of all samples pooled, which a row's own rare stalls are part of.
    pub pooled: f64,
}

impl Pair {
    /// Compares one value per round of each row; `pooled` has both rows' figures of all samples. `None` for fewer than six
    /// rounds.
    ///
    /// # Panics
    /// If the rows have different numbers of rounds.
    pub fn of(first: &[f64], second: &[f64], pooled: (f64, f64)) -> Option<Self> {
        assert_eq!(first.len(), second.len(), "every row runs in every round");
        let ratios: Vec<f64> = first.iter().zip(second).map(|(a, b)| a / b).collect();
        Some(Self { ratio: Estimate::of_rounds(&ratios)?, pooled: pooled.0 / pooled.1 })
    }

    /// Whether the first row's figure is less or greater. `None` if no order can be claimed: the interval contains 1, or the
    /// pooled figures say otherwise.
    pub fn order(&self) -> Option<Ordering> {
        if self.ratio.high < 1.0 && self.pooled < 1.0 {
            Some(Ordering::Less)
        } else if self.ratio.low > 1.0 && self.pooled > 1.0 {
            Some(Ordering::Greater)
        } else {
            None
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

    #[test]
    fn order_is_claimed_only_if_paired_and_pooled_figures_agree() {
        let rounds: Vec<f64> = (0..20).map(|round| 100.0 + f64::from(round % 7)).collect();
        let half: Vec<f64> = rounds.iter().map(|value| value / 2.0).collect();
        let order = |a: &[f64], b: &[f64], pooled| Pair::of(a, b, pooled).unwrap().order();
        assert_eq!(order(&half, &rounds, (50.0, 100.0)), Some(Ordering::Less));
        assert_eq!(order(&rounds, &half, (100.0, 50.0)), Some(Ordering::Greater));
        // The first row is quicker in most rounds, but its own stalls make it slower in all samples.
        assert_eq!(order(&half, &rounds, (500.0, 100.0)), None);
        assert_eq!(order(&rounds, &rounds, (100.0, 100.0)), None);
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
            let pair = Pair::of(&first, &second, (ratio, 1.0)).unwrap();
            prop_assert!((pair.ratio.median - ratio).abs() < 1e-9);
            prop_assert_eq!(pair.order(), Some(Ordering::Less));
        }
    }
}
