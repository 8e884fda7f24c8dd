//! Idle age, as CLOCK and its descendants have it: a batch is cold when none of its pages was young for a
//! while, and hot as soon as one is. Scans everything at one period.
//!
//! Source: Wave 4.2 names CLOCK as what designers resort to where compute is dear.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::settings::{Setting, Settings};

use super::tiered::{Classifier, LANES, Opinion, Paces, Schedule, Sights, Verdicts};
use super::{PREFETCH, SEED};
use crate::wire::bits;

/// The settings.
pub static SETTINGS: [Setting; 4] = [
    Setting::number(
        "period_ms",
        "9600",
        1..=3_600_000,
        "how often everything is scanned, in milliseconds; batches are moved every fourth time",
    ),
    Setting::number(
        "idle_ms",
        "38400",
        1..=3_600_000,
        "how long none of a batch's pages was touched until it is cold, in milliseconds",
    ),
    PREFETCH,
    SEED,
];

/// The policy.
#[derive(Clone, Debug)]
pub struct IdleAge {
    /// How often everything is scanned.
    pub period: Nanos,
    /// How often batches are moved, in periods: a power of two.
    pub epoch_periods: u32,
    /// Cold after this long without a young page.
    pub idle: Nanos,
}

impl Default for IdleAge {
    fn default() -> IdleAge {
        IdleAge {
            period: Nanos::from_millis(9_600),
            epoch_periods: 4,
            idle: Nanos::from_millis(38_400),
        }
    }
}

/// What is kept of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// How long it has been idle, in microseconds.
    idle_us: u32,
    scans: u32,
}

impl IdleAge {
    /// With settings of [`SETTINGS`].
    pub fn from_settings(settings: &Settings<'_>) -> IdleAge {
        IdleAge {
            period: Nanos::from_millis(settings.number("period_ms")),
            idle: Nanos::from_millis(settings.number("idle_ms")),
            ..IdleAge::default()
        }
    }

    /// The age as of which a batch is cold. An interval that was cut short by the host's clock still counts.
    fn limit_us(&self) -> f32 {
        (self.idle.since(Nanos(self.period.0 / 2)).0 / 1_000) as f32
    }
}

impl Classifier for IdleAge {
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "idle-age"
    }

    fn schedule(&self) -> Schedule {
        Schedule { shortest: self.period, levels: 1, epoch_periods: self.epoch_periods }
    }

    fn observe(&self, batches: &mut [Batch; LANES], sights: &Sights, _rng: &mut Pcg64Mcg) -> Paces {
        for (batch, young, _) in sights.iter() {
            let batch = &mut batches[batch];
            batch.scans = batch.scans.saturating_add(1);
            batch.idle_us = batch.idle_us.saturating_add(sights.interval_us);
            if young != 0 {
                batch.idle_us = 0;
            }
        }
        Paces::default()
    }

    fn judge(&self, batches: &[Batch; LANES], managed: u64, _rng: &mut Pcg64Mcg) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for batch in bits(managed) {
            let Batch { idle_us, scans } = batches[batch as usize];
            if scans > 0 && idle_us == 0 {
                verdicts.hot |= 1 << batch;
            } else if idle_us as f32 >= self.limit_us() {
                verdicts.cold |= 1 << batch;
            }
        }
        verdicts
    }

    fn opinion(&self, batch: &Batch) -> Opinion {
        let age = batch.idle_us as f32 / self.limit_us();
        Opinion { warmth: 1.0 / (1.0 + age), limit: 0.5, weight: batch.scans as f32 }
    }
}
