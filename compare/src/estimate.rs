//! The estimate of a metric over rounds, with its interval.

/// The probability with which an interval must contain the median.
pub const CONFIDENCE: f64 = 0.95;

/// Whether higher or lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher is better, as for a rate.
    Higher,
    /// Lower is better, as for a time.
    Lower,
}

impl Better {
    /// The tip's value divided by the base's, or the inverse: above 1 the tip is better. Neither is negative. Two zeros
    /// are equal; if only one is zero, the ratio is infinite or 0, in favour of the better side.
    pub fn ratio(self, base: f64, tip: f64) -> f64 {
        let (better, worse) = match self {
            Self::Higher => (tip, base),
            Self::Lower => (base, tip),
        };
        match (better == 0.0, worse == 0.0) {
            (true, true) => 1.0,
            (true, false) => 0.0,
            (false, true) => f64::INFINITY,
            (false, false) => better / worse,
        }
    }

    /// `higher` or `lower`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
        }
    }
}

/// The fewest rounds that give an interval.
const FEWEST: usize = 6;

/// The estimate of a ratio, or of any metric, over rounds.
///
/// Its interval is that of order statistics: it assumes nothing about the distribution, so that another process that disturbs
/// a few rounds widens it little. For 20 rounds it reaches from the 6th value to the 15th, and
/// contains the median with a probability of 95.9%.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median over all rounds.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The estimate from one value per round, in the order of rounds. Where neighbouring rounds are alike, blocks of
    /// neighbours count as one round each, by their medians, as long as six blocks are left; the interval covers those of all
    /// lengths that were tried. Blocks of rounds that drift reach less than the stated probability. `None` for fewer than six rounds.
    pub fn of_rounds(values: &[f64]) -> Option<Self> {
        let mut estimate = Self::of(values)?;
        for length in 1..=values.len() / FEWEST {
            let blocks: Vec<f64> = values.chunks_exact(length).filter_map(median).collect();
            let of_blocks = Self::of(&blocks)?;
            (estimate.low, estimate.high) =
                (estimate.low.min(of_blocks.low), estimate.high.max(of_blocks.high));
            if !are_alike(&blocks) {
                break;
            }
        }
        Some(estimate)
    }

    /// The estimate from independent values, in any order. `None` for fewer than six.
    pub fn of(values: &[f64]) -> Option<Self> {
        let rank = rank(values.len())?;
        let sorted = sorted(values);
        let (low, high) = (sorted[rank - 1], sorted[sorted.len() - rank]);
        Some(Self { median: median(values)?, low, high })
    }

    /// The whole width of the interval, relative to the median. Infinite if one end is, or if the median is 0 and an end is
    /// not.
    pub fn width(&self) -> f64 {
        if self.low == self.high {
            0.0
        } else if self.high.is_infinite() {
            f64::INFINITY
        } else {
            (self.high - self.low) / self.median
        }
    }
}

/// The median of `values`; of an even number, the mean of the middle two.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[sorted.len() / 2 - 1], upper)
    } else {
        upper
    })
}

/// The value below which `share` of `values` lie, as a share from 0 to 1: interpolated between neighbours.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let sorted = sorted(values);
    let place = share * (sorted.len().checked_sub(1)? as f64);
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(low + (high - low) * place.fract())
}

/// Whether neighbours are alike: fewer runs above or below the median than of independent values, by the test of Wald and
/// Wolfowitz (one-sided, 5%).
fn are_alike(values: &[f64]) -> bool {
    let Some(middle) = median(values) else { return false };
    let sides: Vec<bool> =
        values.iter().filter(|value| **value != middle).map(|value| *value > middle).collect();
    let above = sides.iter().filter(|side| **side).count() as f64;
    let (all, below) = (sides.len() as f64, sides.len() as f64 - above);
    if above < 2.0 || below < 2.0 {
        return false;
    }
    let runs = 1.0 + sides.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64;
    let product = 2.0 * above * below;
    let mean = product / all + 1.0;
    let variance = product * (product - all) / (all * all * (all - 1.0));
    runs < mean - 1.645 * variance.sqrt()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The rank, from 1, of the lower end among `count` ratios; the upper end has the same rank from the other side. The median
/// lies below the value of rank r with the probability that fewer than r of `count` fair coins show heads.
fn rank(count: usize) -> Option<usize> {
    // The logarithm of the probability of exactly `rank` heads: from 1,075 coins on, that of none underflows to 0 in an f64.
    let mut exactly = -(count as f64) * std::f64::consts::LN_2;
    let (mut below, mut rank) = (exactly.exp(), 0);
    while below <= (1.0 - CONFIDENCE) / 2.0 && rank < count {
        rank += 1;
        exactly += ((count + 1 - rank) as f64 / rank as f64).ln();
        below += exactly.exp();
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_better_tip_has_a_ratio_above_one() {
        assert_eq!(Better::Lower.ratio(200.0, 100.0), 2.0);
        assert_eq!(Better::Higher.ratio(100.0, 200.0), 2.0);
        assert_eq!(Better::Lower.ratio(100.0, 200.0), 0.5);
        assert_eq!(Better::Higher.ratio(200.0, 100.0), 0.5);
    }

    #[test]
    fn zero_values_are_compared_too() {
        for better in [Better::Higher, Better::Lower] {
            assert_eq!(better.ratio(0.0, 0.0), 1.0);
        }
        assert_eq!(Better::Higher.ratio(100.0, 0.0), 0.0);
        assert_eq!(Better::Higher.ratio(0.0, 100.0), f64::INFINITY);
        assert_eq!(Better::Lower.ratio(100.0, 0.0), f64::INFINITY);
        assert_eq!(Better::Lower.ratio(0.0, 100.0), 0.0);
    }

    #[test]
    fn ranks_are_those_of_the_sign_test() {
        // Values from tables of the sign test.
        for (count, expected) in
            [(5, None), (6, Some(1)), (9, Some(2)), (20, Some(6)), (100, Some(40))]
        {
            assert_eq!(rank(count), expected, "{count} pairs");
        }
        assert_eq!(rank(0), None);
    }

    /// From 1,075 rounds on, the ends of an interval were swapped.
    #[test]
    fn ranks_of_many_rounds_are_those_of_the_normal_distribution() {
        for count in [1_000, 1_074, 1_075, 1_090, 10_000] {
            let half = count as f64 / 2.0;
            let expected = half - 1.96 * (half / 2.0).sqrt();
            let found = rank(count).unwrap() as f64;
            assert!((found - expected).abs() <= 1.5, "{count}: {found}, expected {expected}");
        }
    }

    #[test]
    fn an_interval_does_not_depend_on_the_order_of_ratios() {
        let mut ratios: Vec<f64> = (1..=20).map(f64::from).collect();
        ratios.reverse();
        ratios.swap(3, 11);
        let estimate = Estimate::of(&ratios).unwrap();
        assert_eq!(estimate, Estimate { median: 10.5, low: 6.0, high: 15.0 });
        assert!(Estimate::of(&ratios[..5]).is_none());
    }

    /// Ratios with a long tail, as those of disturbed pairs; their median is 1.
    fn disturbed(state: &mut u64) -> f64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (*state >> 11) as f64 / (1_u64 << 53) as f64;
        if unit < 0.5 { 0.98 + 0.04 * unit } else { 1.0 / (2.0 - 2.0 * unit) }
    }

    #[test]
    fn intervals_contain_the_median_with_the_stated_probability() {
        let mut state = 1;
        let trials = 20_000;
        let held = (0..trials).filter(|_| {
            let ratios: Vec<f64> = (0..20).map(|_| disturbed(&mut state)).collect();
            let estimate = Estimate::of(&ratios).unwrap();
            (estimate.low..=estimate.high).contains(&1.0)
        });
        // Expected: 95.86%, with a deviation of 0.14%.
        let share = held.count() as f64 / f64::from(trials);
        assert!((0.953..0.965).contains(&share), "{share}");
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_quantile_is_interpolated() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.25), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.25), Some(1.25));
        assert_eq!(quantile(&[], 0.25), None);
    }

    /// Rounds that drift: each is like its neighbours.
    fn drifting(state: &mut u64, count: usize) -> Vec<f64> {
        let mut level = 0.0;
        let next = |state: &mut u64| disturbed(state).min(1.5) - 1.0;
        (0..count)
            .map(|_| {
                level = 0.8 * level + next(state);
                level
            })
            .collect()
    }

    #[test]
    fn interval_of_rounds_that_drift_is_wider_than_that_of_independent_ones() {
        let mut state = 5;
        let truth = {
            let mut long = drifting(&mut state, 200_000);
            long.sort_by(f64::total_cmp);
            long[100_000]
        };
        let trials = 4_000;
        let mut holds = [0, 0];
        for _ in 0..trials {
            let rounds = drifting(&mut state, 60);
            let both = [Estimate::of(&rounds), Estimate::of_rounds(&rounds)];
            for (holds, estimate) in holds.iter_mut().zip(both) {
                let estimate = estimate.unwrap();
                *holds += u32::from((estimate.low..=estimate.high).contains(&truth));
            }
        }
        let [naive, blocks] = holds.map(|count| f64::from(count) / f64::from(trials));
        // Of independent rounds, both would be 0.95.
        assert!(naive < 0.75 && blocks > naive + 0.1, "{naive} and {blocks}");
    }
}
