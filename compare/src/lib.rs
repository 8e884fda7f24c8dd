//! The statistics of a comparison by paired rounds. This crate does not know which system a row is.
//!
//! What disturbs a shared machine comes and goes within seconds, so two rows are compared only within a round, in which they run
//! one after the other. In each round every row runs once, in an [`order`] drawn from the run's seed; nothing is repeated or left
//! out because of how a row fared. The estimate for two rows is the median over rounds of the ratio within a round ([`Estimate`]),
//! and an order is claimed unless the shares of slow samples speak against it ([`Pair`], [`Pool`]). [`Spread`] shows what a median
//! hides. [`PerRound`] has the values of one metric. [`curve`] turns latencies under several loads into the load that a row serves at a given latency.

#![forbid(unsafe_code)]

pub mod curve;
mod estimate;
mod per_round;
mod pool;
mod rows;

use rand::seq::SliceRandom;
use rand_pcg::Pcg64;

pub use estimate::{Better, CONFIDENCE, Estimate, median, quantile};
pub use per_round::{PerRound, in_turns};
pub use pool::Pool;
pub use rows::{EQUAL, Interval, Pair, Spread, Verdict, resampled_range};

/// The order in which `rows` rows run in a round: a random one, the same for the same seed and round.
pub fn order(seed: u64, round: u64, rows: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rows).collect();
    order.shuffle(&mut Pcg64::new(u128::from(seed), u128::from(round)));
    order
}

/// The order in a bench of few rounds and always the same seed: a random one in each even round, and its reverse in the next, so that
/// each of two rows is first in half of the rounds.
pub fn balanced_order(seed: u64, round: u64, rows: usize) -> Vec<usize> {
    let mut order = order(seed, round / 2, rows);
    if !round.is_multiple_of(2) {
        order.reverse();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_once_and_orders_follow_from_the_seed() {
        let orders: Vec<_> = (0..200).map(|round| order(7, round, 4)).collect();
        let firsts = |row| orders.iter().filter(|order| order[0] == row).count();
        for row in 0..4 {
            assert!(orders.iter().all(|order| order.contains(&row) && order.len() == 4));
            // 50 are expected, with a deviation of 6.
            assert!((25..75).contains(&firsts(row)), "row {row} is first {} times", firsts(row));
        }
        assert_eq!(order(7, 3, 4), order(7, 3, 4));
    }

    #[test]
    fn each_of_two_rows_is_first_in_half_of_a_benchs_rounds() {
        let before = |order: &Vec<usize>| {
            let place = |row| order.iter().position(|other| *other == row);
            place(0) < place(3)
        };
        let orders: Vec<_> = (0..20).map(|round| balanced_order(1, round, 4)).collect();
        assert_eq!(orders.iter().filter(|order| before(order)).count(), 10);
        assert!(orders.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn resampled_mean_has_the_interval_of_the_normal_distribution() {
        // Mean 49.5, standard deviation of the mean 2.89.
        let mean = |drawn: &[usize]| drawn.iter().sum::<usize>() as f64 / drawn.len() as f64;
        let Interval { value, low, high } = Interval::resampled(100, 1, mean).unwrap();
        assert_eq!(value, 49.5);
        assert!((low - 43.8).abs() < 1.0 && (high - 55.2).abs() < 1.0, "{low} to {high}");
        assert_eq!(Interval::resampled(0, 1, mean), None);
    }
}
