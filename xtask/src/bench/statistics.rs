//! The statistics of a figure over pairs of runs.
//!
//! Each pair gives one ratio, turned so that above 1 the tip is better. The estimate is the median of these ratios. Its
//! interval is that of order statistics: it assumes that pairs are independent, but nothing about their distribution, so
//! another process that disturbs a few of them widens it little. For 20 pairs it reaches from the 6th ratio to the 15th, and
//! contains the median with a probability of 95.9%.

use std::fmt;

/// The probability with which an interval must contain the median.
pub const CONFIDENCE: f64 = 0.95;
/// The least lower end of an interval for a figure that held.
pub const LOWER_END_MIN: f64 = 0.95;
/// The greatest width of a conclusive interval, relative to the median. A wider one is inconclusive if it reaches below 1,
/// unless all of it is too low.
pub const WIDTH_MAX: f64 = 0.03;

/// Whether higher or lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Higher is better, as for a rate.
    Higher,
    /// Lower is better, as for a time.
    Lower,
}

impl Better {
    /// The tip's figure divided by the base's, or the inverse: above 1 the tip is better. Neither figure is negative. Two zeros
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

    pub fn name(self) -> &'static str {
        match self {
            Self::Higher => "higher",
            Self::Lower => "lower",
        }
    }
}

/// The estimate of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// The estimate from the ratios of pairs. `None` for fewer than six.
    pub fn of(ratios: &[f64]) -> Option<Self> {
        let rank = rank(ratios.len())?;
        let sorted = sorted(ratios);
        let (low, high) = (sorted[rank - 1], sorted[sorted.len() - rank]);
        Some(Self { median: median(ratios)?, low, high })
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

    pub fn verdict(&self) -> Verdict {
        if self.high < LOWER_END_MIN {
            Verdict::Slower
        } else if self.low >= 1.0 {
            Verdict::Held
        } else if self.width() > WIDTH_MAX {
            Verdict::NotMeasured
        } else if self.low >= LOWER_END_MIN {
            Verdict::Held
        } else {
            Verdict::NotHeld
        }
    }
}

/// The verdict on the tip by an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The tip is not slower by more than is allowed: the interval is narrow, or nowhere below 1.
    Held,
    /// The tip is slower by more than is allowed, even at the upper end, however wide the interval is.
    Slower,
    /// The interval is narrow, and only its lower end is too low.
    NotHeld,
    /// The interval is too wide to judge, or a failure left nothing to judge.
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Self::Held => "held",
            Self::Slower => "slower",
            Self::NotHeld => "not held",
            Self::NotMeasured => "not measured",
        })
    }
}

pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(if sorted.len().is_multiple_of(2) {
        f64::midpoint(sorted[sorted.len() / 2 - 1], upper)
    } else {
        upper
    })
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The rank, from 1, of the lower end among `count` ratios; the upper end has the same rank from the other side. The median
/// lies below the value of rank r with the probability that fewer than r of `count` fair coins show heads.
fn rank(count: usize) -> Option<usize> {
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let (mut below, mut rank) = (exactly, 0);
    while below <= (1.0 - CONFIDENCE) / 2.0 && rank < count {
        rank += 1;
        exactly *= (count + 1 - rank) as f64 / rank as f64;
        below += exactly;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn a_better_tip_has_a_ratio_above_one() {
        assert_eq!(Better::Lower.ratio(200.0, 100.0), 2.0);
        assert_eq!(Better::Higher.ratio(100.0, 200.0), 2.0);
        assert_eq!(Better::Lower.ratio(100.0, 200.0), 0.5);
        assert_eq!(Better::Higher.ratio(200.0, 100.0), 0.5);
    }

    #[test]
    fn zero_figures_are_compared_too() {
        for better in [Better::Higher, Better::Lower] {
            assert_eq!(better.ratio(0.0, 0.0), 1.0);
        }
        assert_eq!(Better::Higher.ratio(100.0, 0.0), 0.0);
        assert_eq!(Better::Higher.ratio(0.0, 100.0), f64::INFINITY);
        assert_eq!(Better::Lower.ratio(100.0, 0.0), f64::INFINITY);
        assert_eq!(Better::Lower.ratio(0.0, 100.0), 0.0);
    }

    #[test]
    fn zeros_give_a_verdict_only_if_every_run_has_them() {
        let of = |ratio: fn(usize) -> f64| {
            Estimate::of(&(0..20).map(ratio).collect::<Vec<_>>()).unwrap()
        };
        let verdict = |ratio| of(ratio).verdict();
        assert_eq!(verdict(|_| 0.0), Verdict::Slower);
        assert_eq!((verdict(|_| 1.0), of(|_| 1.0).width()), (Verdict::Held, 0.0));
        assert_eq!(
            (verdict(|_| f64::INFINITY), of(|_| f64::INFINITY).width()),
            (Verdict::Held, 0.0)
        );
        let some = |at| if at < 9 { 0.98 } else { f64::INFINITY };
        assert_eq!((verdict(some), of(some).width()), (Verdict::NotMeasured, f64::INFINITY));
        let some = |at| if at < 11 { 0.0 } else { 1.0 };
        assert_eq!((verdict(some), of(some).width()), (Verdict::NotMeasured, f64::INFINITY));
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
    fn verdicts_follow_from_the_interval() {
        let verdict =
            |low, high| Estimate { median: f64::midpoint(low, high), low, high }.verdict();
        assert_eq!(verdict(0.99, 1.01), Verdict::Held);
        assert_eq!(verdict(0.951, 0.96), Verdict::Held);
        assert_eq!(verdict(0.94, 0.96), Verdict::NotHeld);
        assert_eq!(verdict(0.96, 1.04), Verdict::NotMeasured);
        assert_eq!(verdict(0.93, 0.949), Verdict::Slower);
        assert_eq!(verdict(0.5, 0.9), Verdict::Slower);
        assert_eq!(verdict(1.0, 1.2), Verdict::Held);
        assert_eq!(verdict(1.8, 2.2), Verdict::Held);
        assert_eq!(verdict(0.999, 1.2), Verdict::NotMeasured);
    }

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
