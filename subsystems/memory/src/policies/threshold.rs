//! A static threshold: a batch is cold when fewer of its pages than a fixed share were young at its last
//! scan. Scans everything at one period. The baseline that knows nothing of the past.

use wave_core::clock::Nanos;

use super::tiered::{Classifier, Opinion, Pace, Schedule, Sight, Verdict};
use rand_pcg::Pcg64Mcg;

/// The policy.
#[derive(Clone, Debug)]
pub struct Threshold {
    /// How often everything is scanned.
    pub period: Nanos,
    /// How often batches are moved, in periods: a power of two.
    pub epoch_periods: u32,
    /// Cold below this share of young pages.
    pub hot_share: f32,
}

impl Default for Threshold {
    fn default() -> Threshold {
        Threshold {
            period: Nanos::from_millis(9_600),
            epoch_periods: 4,
            hot_share: super::sol::HOT_SHARE,
        }
    }
}

impl Classifier for Threshold {
    /// The share of its pages that were young, if it was scanned.
    type Batch = Option<f32>;

    fn name(&self) -> &'static str {
        "threshold"
    }

    fn schedule(&self) -> Schedule {
        Schedule { shortest: self.period, levels: 1, epoch_periods: self.epoch_periods }
    }

    fn observe(&self, batch: &mut Option<f32>, sight: &Sight, _rng: &mut Pcg64Mcg) -> Pace {
        *batch = Some(sight.share());
        Pace::Same
    }

    fn judge(&self, batch: &Option<f32>, _rng: &mut Pcg64Mcg) -> Verdict {
        match *batch {
            Some(share) if share < self.hot_share => Verdict::Cold,
            Some(_) => Verdict::Hot,
            None => Verdict::Unsure,
        }
    }

    fn opinion(&self, batch: &Option<f32>) -> Opinion {
        let weight = if batch.is_some() { 1.0 } else { 0.0 };
        Opinion { warmth: batch.unwrap_or(1.0), limit: self.hot_share, weight }
    }
}
