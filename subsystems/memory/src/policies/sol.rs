//! SOL: learns of each batch how many of its pages are touched in a while, and scans those more often of
//! which it is not sure.
//!
//! Sources: SOL (ASPLOS 2022) as Wave 4.2 and 7.4 and Tide 7.3.1 describe it: Thompson sampling with a Beta
//! prior, a period per batch of 300 ms (or 600 ms) to 9.6 s, epochs of four times the longest period. What a
//! trial is, and when a period changes, the papers do not say. Here:
//!
//! - **What is estimated** is the share of a batch's pages that are touched at least once in the longest
//!   period, the *window*: it is what paging out would cost, against the rest, which it would save.
//! - **An observation** is the union of a batch's young pages over scans that add up to a window. A union
//!   over another length is made comparable by its rate: a share f in time T is lambda = -ln(1 - f) / T per
//!   page, and 1 - exp(-lambda window) in a window. Once the union is a hot share already, the observation
//!   ends early. One that is not never does: ten hot pages in 300 ms are no sixty in 9.6 s.
//! - **The posterior** is Beta(1 + hot, 1 + cold). An observation adds [`TRIALS`] in its proportion, not one for
//!   each page, as the pages of a batch are alike; what was known before is kept to [`KEPT`] of it.
//! - **Thompson sampling**: after each scan a share is drawn from the posterior. If it is on the same side of
//!   the limit as the mean, the batch's period is doubled, else halved.
//! - **At the end of an epoch** a batch moves to the tier on whose side both another draw and the mean are.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;

use super::tiered::{Classifier, Opinion, Pace, Schedule, Sight, Verdict};
use crate::beta::Sampling;
use crate::wire::BATCH_PAGES;

/// The limit between hot and cold, unless it is set: a third of the pages in a window. RocksDB's batches have
/// fewer than a quarter or more than three quarters.
pub const HOT_SHARE: f32 = 1.0 / 3.0;
/// How many trials an observation counts as.
pub const TRIALS: f32 = 8.0;
/// How much of what was known an observation leaves: at most `TRIALS / (1 - KEPT)` trials are remembered.
pub const KEPT: f32 = 0.75;
/// How often batches are moved, in windows (Wave 4.2).
pub const EPOCH_WINDOWS: u32 = 4;

/// What can be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The shortest period (SOL's 300 ms; 600 ms in Wave 7.4.1).
    pub shortest: Nanos,
    /// How many periods there are, each twice the one before: 6 up to 9.6 s.
    pub levels: u32,
    /// Cold below this share of pages that are touched in a window.
    pub hot_share: f32,
    /// How to draw.
    pub sampling: Sampling,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shortest: Nanos::from_millis(300),
            levels: 6,
            hot_share: HOT_SHARE,
            sampling: Sampling::Fast,
        }
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Sol {
    settings: Settings,
    window_us: f32,
    /// A union over so much counts as a window: host and agent have different clocks.
    enough_us: u32,
    /// Logarithms of the numbers of pages.
    ln: [f32; BATCH_PAGES as usize + 1],
}

/// What is kept of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// Pages that were touched since the last observation.
    touched: u64,
    /// Time since then.
    elapsed_us: u32,
    /// Trials for hot.
    hot: f32,
    /// Trials for cold.
    cold: f32,
}

impl Batch {
    fn mean(&self) -> f32 {
        (1.0 + self.hot) / (2.0 + self.hot + self.cold)
    }
}

impl Default for Sol {
    fn default() -> Sol {
        Sol::new(Settings::default())
    }
}

impl Sol {
    /// With these settings. Panics if there is no level, or the window is longer than an hour.
    pub fn new(settings: Settings) -> Sol {
        let shortest_us = settings.shortest.0 / 1_000;
        assert!(settings.levels >= 1, "SOL needs a period");
        let window_us = shortest_us << (settings.levels - 1);
        let hour_us = 3_600_000_000;
        assert!((1..=hour_us).contains(&window_us), "a window of {window_us} us");
        Sol {
            settings,
            window_us: window_us as f32,
            enough_us: (window_us - shortest_us / 2) as u32,
            ln: core::array::from_fn(|pages| libm::logf(pages as f32)),
        }
    }

    #[inline]
    fn draw(&self, batch: &Batch, rng: &mut Pcg64Mcg) -> f32 {
        self.settings.sampling.beta(1.0 + batch.hot, 1.0 + batch.cold, rng)
    }

    /// The share of pages that are touched in a window, by a union over another time.
    #[inline]
    fn share_in_window(&self, touched: u32, pages: u32, elapsed_us: u32) -> f32 {
        let untouched_ln = self.ln[(pages - touched) as usize] - self.ln[pages as usize];
        1.0 - libm::expf(untouched_ln * (self.window_us / elapsed_us as f32))
    }
}

impl Classifier for Sol {
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "sol"
    }

    fn schedule(&self) -> Schedule {
        let Settings { shortest, levels, .. } = self.settings;
        Schedule { shortest, levels, epoch_periods: EPOCH_WINDOWS << (levels - 1) }
    }

    #[inline]
    fn observe(&self, batch: &mut Batch, sight: &Sight, rng: &mut Pcg64Mcg) -> Pace {
        batch.touched |= sight.young;
        batch.elapsed_us = batch.elapsed_us.saturating_add(sight.interval_us);
        let touched = batch.touched.count_ones().min(sight.pages);
        let is_hot = touched as f32 >= self.settings.hot_share * sight.pages as f32;
        if is_hot || batch.elapsed_us >= self.enough_us {
            let share = self.share_in_window(touched, sight.pages, batch.elapsed_us);
            *batch = Batch {
                touched: 0,
                elapsed_us: 0,
                hot: KEPT * batch.hot + TRIALS * share,
                cold: KEPT * batch.cold + TRIALS * (1.0 - share),
            };
        }
        let limit = self.settings.hot_share;
        let agrees = (self.draw(batch, rng) < limit) == (batch.mean() < limit);
        if agrees { Pace::Slower } else { Pace::Faster }
    }

    #[inline]
    fn judge(&self, batch: &Batch, rng: &mut Pcg64Mcg) -> Verdict {
        let limit = self.settings.hot_share;
        match (self.draw(batch, rng) < limit, batch.mean() < limit) {
            (true, true) => Verdict::Cold,
            (false, false) => Verdict::Hot,
            _ => Verdict::Unsure,
        }
    }

    fn opinion(&self, batch: &Batch) -> Opinion {
        let weight = batch.hot + batch.cold;
        Opinion { warmth: batch.mean(), limit: self.settings.hot_share, weight }
    }
}
