//! Idle age, as CLOCK and its descendants have it: a batch is cold when none of its pages was young for a
//! while, and hot as soon as one is. Scans everything at one period.
//!
//! Source: Wave 4.2 names CLOCK as what designers resort to where compute is dear.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;

use super::tiered::{Classifier, Opinion, Pace, Schedule, Sight, Verdict};

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

    fn observe(&self, batch: &mut Batch, sight: &Sight, _rng: &mut Pcg64Mcg) -> Pace {
        batch.scans = batch.scans.saturating_add(1);
        batch.idle_us =
            if sight.young == 0 { batch.idle_us.saturating_add(sight.interval_us) } else { 0 };
        Pace::Same
    }

    fn judge(&self, batch: &Batch, _rng: &mut Pcg64Mcg) -> Verdict {
        match batch.idle_us {
            _ if batch.scans == 0 => Verdict::Unsure,
            0 => Verdict::Hot,
            age if age as f32 >= self.limit_us() => Verdict::Cold,
            _ => Verdict::Unsure,
        }
    }

    fn opinion(&self, batch: &Batch) -> Opinion {
        let age = batch.idle_us as f32 / self.limit_us();
        Opinion { warmth: 1.0 / (1.0 + age), limit: 0.5, weight: batch.scans as f32 }
    }
}
