//! The verdict on a figure, from the estimate of its ratio over pairs of runs.

use std::fmt;

use wave_compare::Estimate;

/// The least lower end of an interval for a figure that held.
pub const LOWER_END_MIN: f64 = 0.95;
/// The greatest width of a conclusive interval, relative to the median. A wider one is inconclusive if it reaches below 1,
/// unless all of it is too low.
pub const WIDTH_MAX: f64 = 0.03;

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

impl Verdict {
    pub fn by(estimate: &Estimate) -> Self {
        if estimate.high < LOWER_END_MIN {
            Self::Slower
        } else if estimate.low >= 1.0 {
            Self::Held
        } else if estimate.width() > WIDTH_MAX {
            Self::NotMeasured
        } else if estimate.low >= LOWER_END_MIN {
            Self::Held
        } else {
            Self::NotHeld
        }
    }
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

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn zeros_give_a_verdict_only_if_every_run_has_them() {
        let of = |ratio: fn(usize) -> f64| {
            Estimate::of(&(0..20).map(ratio).collect::<Vec<_>>()).unwrap()
        };
        let verdict = |ratio| Verdict::by(&of(ratio));
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
    fn verdicts_follow_from_the_interval() {
        let verdict =
            |low, high| Verdict::by(&Estimate { median: f64::midpoint(low, high), low, high });
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
}
