//! A static threshold: a batch is cold when fewer of its pages than a fixed share were young at its last scan. Scans everything
//! at one period. The baseline without a memory of the past.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::settings::{Setting, Settings};

use super::tiered::{Classifier, LANES, Opinion, Paces, Schedule, Sights, Verdicts};
use super::{PREFETCH, SEED};
use crate::wire::bits;

/// Settings of the policy.
pub static SETTINGS: [Setting; 4] = [
    Setting::number(
        "period_ms",
        "9600",
        1..=3_600_000,
        "the scan period of all batches, in milliseconds; batches are moved every fourth period",
    ),
    Setting::share(
        "hot_share",
        "0.333",
        "a batch is cold where fewer of its pages than this share were touched at its last scan",
    ),
    PREFETCH,
    SEED,
];

/// Calls a batch cold if too few of its pages were touched at its last scan.
#[derive(Clone, Debug)]
pub struct Threshold {
    /// The scan period of all batches.
    pub period: Nanos,
    /// Number of periods between moves: a power of two.
    pub epoch_periods: u32,
    /// A batch is cold below this share of young pages.
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

impl Threshold {
    /// The policy with settings from [`SETTINGS`].
    pub fn from_settings(settings: &Settings<'_>) -> Threshold {
        Threshold {
            period: Nanos::from_millis(settings.number("period_ms")),
            hot_share: settings.share("hot_share"),
            ..Threshold::default()
        }
    }
}

impl Classifier for Threshold {
    /// The share of the batch's pages that were young, if it was scanned.
    type Batch = Option<f32>;

    fn name(&self) -> &'static str {
        "threshold"
    }

    fn schedule(&self) -> Schedule {
        Schedule { shortest: self.period, levels: 1, epoch_periods: self.epoch_periods }
    }

    fn observe(
        &self,
        batches: &mut [Option<f32>; LANES],
        sights: &Sights,
        _rng: &mut Pcg64Mcg,
    ) -> Paces {
        for (batch, young, pages) in sights.iter() {
            batches[batch] = Some(young.count_ones() as f32 / f32::from(pages));
        }
        Paces::default()
    }

    fn judge(&self, batches: &[Option<f32>; LANES], managed: u64, _rng: &mut Pcg64Mcg) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for batch in bits(managed) {
            match batches[batch as usize] {
                Some(share) if share < self.hot_share => verdicts.cold |= 1 << batch,
                Some(_) => verdicts.hot |= 1 << batch,
                None => {}
            }
        }
        verdicts
    }

    fn opinion(&self, batch: &Option<f32>) -> Opinion {
        let weight = if batch.is_some() { 1.0 } else { 0.0 };
        Opinion { warmth: batch.unwrap_or(1.0), limit: self.hot_share, weight }
    }
}
