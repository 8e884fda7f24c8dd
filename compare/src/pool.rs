//! All samples of a row by round, for statistics of resampled rounds.

/// The samples of a row, by round, the slowest first: a high quantile reads few of them.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Values with their counts and rounds, the greatest first.
    samples: Vec<(f64, u64, usize)>,
    /// Number of samples of each round.
    counts: Vec<u64>,
}

impl Pool {
    /// The samples of rounds, in their order: values with their counts, in any order.
    pub fn of_rounds(rounds: impl IntoIterator<Item = Vec<(f64, u64)>>) -> Pool {
        let mut pool = Pool::default();
        for (round, samples) in rounds.into_iter().enumerate() {
            pool.counts.push(samples.iter().map(|(_, count)| count).sum());
            pool.samples.extend(samples.into_iter().map(|(value, count)| (value, count, round)));
        }
        pool.samples.sort_by(|a, b| b.0.total_cmp(&a.0));
        pool
    }

    /// The value below which `share` of the samples of `drawn` rounds lie; a round that was drawn twice counts twice. NaN without
    /// samples.
    pub fn quantile(&self, drawn: &[usize], share: f64) -> f64 {
        let mut times = vec![0_u64; self.counts.len()];
        drawn.iter().for_each(|round| times[*round] += 1);
        let all: u64 = self.counts.iter().zip(&times).map(|(count, times)| count * times).sum();
        let above = ((1.0 - share) * all as f64) as u64;
        let mut passed = 0;
        for (value, count, round) in &self.samples {
            passed += count * times[*round];
            if passed > above {
                return *value;
            }
        }
        f64::NAN
    }

    /// The quantile of each round: the value below which `share` of its samples lie.
    pub fn quantile_of_each(&self, share: f64) -> Vec<f64> {
        (0..self.counts.len()).map(|round| self.quantile(&[round], share)).collect()
    }

    /// The samples of both rows, round by round.
    pub(crate) fn with(&self, other: &Pool) -> Pool {
        let mut both = self.clone();
        both.samples.extend(&other.samples);
        both.samples.sort_by(|a, b| b.0.total_cmp(&a.0));
        both.counts.iter_mut().zip(&other.counts).for_each(|(own, others)| *own += others);
        both
    }

    /// The share of each round's samples that are above `limit`.
    pub(crate) fn above(&self, limit: f64) -> Vec<f64> {
        let mut above = vec![0; self.counts.len()];
        for (value, count, round) in &self.samples {
            if *value > limit {
                above[*round] += count;
            }
        }
        let shares = above.iter().zip(&self.counts);
        shares.map(|(above, all)| *above as f64 / (*all).max(1) as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn quantile_is_that_of_all_drawn_samples_in_one_list(
            rounds in prop::collection::vec(prop::collection::vec((0_u32..1000, 1_u64..4), 1..20), 1..6),
            drawn in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
            share in 0.0_f64..1.0,
        ) {
            let values = |of: &Vec<(u32, u64)>| of.iter().map(|(value, n)| (f64::from(*value), *n)).collect();
            let pool = Pool::of_rounds(rounds.iter().map(values));
            let drawn: Vec<usize> = drawn.iter().map(|one| one.index(rounds.len())).collect();
            let mut list: Vec<u32> = Vec::new();
            for (value, count) in drawn.iter().flat_map(|round| &rounds[*round]) {
                list.extend(std::iter::repeat_n(*value, *count as usize));
            }
            list.sort_unstable();
            let above = ((1.0 - share) * list.len() as f64) as usize;
            prop_assert_eq!(pool.quantile(&drawn, share), f64::from(list[list.len() - 1 - above]));
        }
    }

    #[test]
    fn pool_without_samples_has_no_quantile() {
        assert!(Pool::default().quantile(&[], 0.99).is_nan());
    }
}
