//! SOL: learns for each batch how many of its pages are touched in a while, and scans batches more often when it is not sure of
//! them.
//!
//! Sources: SOL (ASPLOS 2022) as Wave 4.2 and 7.4 and Tide 7.3.1 describe it: Thompson sampling with a Beta prior, a period per
//! batch of 300 ms (or 600 ms) to 9.6 s, epochs of four times the longest period. The papers do not define a trial, nor when a
//! period changes. Here:
//!
//! - **The estimate** is the share of a batch's pages that are touched at least once in the longest period, the *horizon*:
//!   these are the cost of paging out, the others the gain.
//! - **An observation** is the union of a batch's young pages over scans that add up to a horizon. A union over another length
//!   is made comparable by its rate: a share f in time T is lambda = -ln(1 - f) / T per page, and 1 - exp(-lambda horizon) in a
//!   horizon. An observation ends early only when its union is a hot share already. Otherwise it waits for the horizon, because
//!   a rate assumes that the pages of a batch are alike: three pages that are always touched would look, after 300 ms, like
//!   forty in 9.6 s.
//! - **The posterior** is Beta(1 + hot, 1 + cold). An observation adds [`TRIALS`], divided in its proportion, not one for each
//!   page, as the pages of a batch are alike; earlier knowledge is reduced to [`KEPT`] of it.
//! - **Thompson sampling**: after each scan a share is drawn from the posterior. If it is on the same side of the limit as the
//!   mean, the batch's period is doubled, else halved.
//! - **At the end of an epoch** another share is drawn. If it and the mean are on the same side of the limit, the batch moves
//!   to that side's tier.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;
use wave_core::settings::{self, Setting, SettingError};

use super::tiered::{Classifier, LANES, LEVELS_MAX, Opinion, Paces, Schedule, Sights, Verdicts};
use super::{PREFETCH, SEED};
use crate::beta::{CHUNK, Draws, Sampling, mask};
use crate::wire::{BATCH_PAGES, bits};

/// The default limit between hot and cold: a third of the pages in a horizon. RocksDB's batches have fewer than a quarter or
/// more than three quarters.
pub const HOT_SHARE: f32 = 0.333;
/// Number of trials that an observation counts as.
pub const TRIALS: f32 = 8.0;
/// The share of earlier trials that remains after an observation: at most `TRIALS / (1 - KEPT)` trials are remembered.
pub const KEPT: f32 = 0.75;
/// The default length of an epoch, in horizons (Wave 4.2).
pub const EPOCH_HORIZONS: u32 = 4;

/// The settings as text, with their defaults.
pub static SETTINGS: [Setting; 7] = [
    Setting::number(
        "shortest_ms",
        "300",
        1..=3_600_000,
        "the shortest period between scans of a batch, in milliseconds; further ones are each \
         twice the one before, six at most and none above the horizon",
    ),
    Setting::number(
        "horizon_ms",
        "9600",
        1..=3_600_000,
        "the time, in milliseconds, in which pages that are touched count as used",
    ),
    Setting::number(
        "epoch_horizons",
        "4",
        1..=64,
        "horizons between two moves of batches: fewer follow a program sooner, and page out sooner \
         again what came back",
    ),
    Setting::share(
        "hot_share",
        "0.333",
        "a batch is cold where fewer of its pages than this share are touched in a horizon",
    ),
    Setting::one_of(
        "sampling",
        &["fast", "exact"],
        "how a share is drawn: fast and nearly exact, or exact",
    ),
    PREFETCH,
    SEED,
];

/// Settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The shortest period (SOL's 300 ms; 600 ms in Wave 7.4.1).
    pub shortest: Nanos,
    /// Number of periods, each twice the one before: 6 up to 9.6 s.
    pub levels: u32,
    /// Length of a horizon: the longest period.
    pub horizon: Nanos,
    /// Length of an epoch, in horizons.
    pub epoch_horizons: u32,
    /// A batch is cold below this share of pages touched in a horizon.
    pub hot_share: f32,
    /// Method of drawing from beliefs.
    pub sampling: Sampling,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shortest: Nanos::from_millis(300),
            levels: 6,
            horizon: Nanos::from_millis(9_600),
            epoch_horizons: EPOCH_HORIZONS,
            hot_share: HOT_SHARE,
            sampling: Sampling::Fast,
        }
    }
}

/// SOL: Thompson sampling of scan periods by accessed bits.
#[derive(Clone, Debug)]
pub struct Sol {
    settings: Settings,
    horizon_us: f32,
    /// The time from which a union counts as a horizon; a little less than a horizon, as host and agent have different clocks.
    enough_us: u32,
    /// Logarithms of numbers of pages.
    ln: [f32; BATCH_PAGES as usize + 1],
    /// For each number of pages, the least number of touched pages that is a hot share.
    hot_from: [u8; BATCH_PAGES as usize + 1],
    draws: Draws,
}

/// The state of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    /// Pages that were touched since the last observation.
    touched: u64,
    /// Time since the last observation, in microseconds.
    elapsed_us: u32,
    /// Trials that found the batch hot.
    hot: f32,
    /// Trials that found the batch cold.
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
    /// SOL with settings from [`SETTINGS`].
    ///
    /// # Errors
    /// The shortest period is longer than the horizon.
    pub fn from_settings(settings: &settings::Settings<'_>) -> Result<Sol, SettingError> {
        let (shortest, horizon) = settings.ascending("shortest_ms", "horizon_ms")?;
        Ok(Sol::new(Settings {
            shortest: Nanos::from_millis(shortest),
            levels: (horizon / shortest).ilog2().min(LEVELS_MAX as u32 - 1) + 1,
            horizon: Nanos::from_millis(horizon),
            epoch_horizons: settings.number("epoch_horizons") as u32,
            hot_share: settings.share("hot_share"),
            sampling: match settings.choice("sampling") {
                "exact" => Sampling::Exact,
                _ => Sampling::Fast,
            },
        }))
    }

    /// SOL with these settings. Panics if a horizon is shorter than the shortest period, or longer than an hour.
    pub fn new(settings: Settings) -> Sol {
        let Settings { shortest, horizon, .. } = settings;
        let hour = Nanos::from_millis(3_600_000);
        assert!(shortest <= horizon && horizon <= hour, "a horizon of {horizon:?}");
        Sol {
            settings,
            horizon_us: (horizon.0 / 1_000) as f32,
            enough_us: (horizon.since(Nanos(shortest.0 / 2)).0 / 1_000) as u32,
            ln: core::array::from_fn(|pages| libm::logf(pages as f32)),
            hot_from: core::array::from_fn(|pages| {
                libm::ceilf(settings.hot_share * pages as f32) as u8
            }),
            draws: Draws::new(settings.sampling, settings.hot_share),
        }
    }

    /// The share of pages touched in a horizon, estimated from a union over another time.
    #[inline]
    fn share_in_horizon(&self, touched: u32, pages: u32, elapsed_us: u32) -> f32 {
        let untouched_ln = self.ln[(pages - touched) as usize] - self.ln[pages as usize];
        let exponent = untouched_ln * (self.horizon_us / elapsed_us as f32);
        // A high share in a short time means that all pages are touched in a horizon: below this exponent the result is 1
        // anyway.
        if exponent < -17.5 { 1.0 } else { 1.0 - libm::expf(exponent) }
    }
}

/// The shapes of some batches' posteriors; beyond those, 1.
struct Posteriors {
    alphas: [f32; LANES],
    betas: [f32; LANES],
}

impl Posteriors {
    fn new() -> Posteriors {
        Posteriors { alphas: [1.0; LANES], betas: [1.0; LANES] }
    }

    #[inline]
    fn set(&mut self, at: usize, batch: &Batch) {
        (self.alphas[at], self.betas[at]) = (1.0 + batch.hot, 1.0 + batch.cold);
    }
}

/// The sides of the limit on which batches are.
struct Sides {
    /// Batches whose draw is cold.
    drawn_cold: u64,
    mean_cold: u64,
}

impl Sol {
    /// Draws for each of `lanes`, which are ascending.
    #[inline]
    fn sides(&self, posteriors: &Posteriors, lanes: &[u8], rng: &mut Pcg64Mcg) -> Sides {
        let Posteriors { alphas, betas } = posteriors;
        let drawn_cold = self.draws.below(lanes.len(), alphas, betas, rng);
        let limit = self.settings.hot_share;
        let chunks = alphas.as_chunks::<CHUNK>().0.iter().zip(betas.as_chunks::<CHUNK>().0);
        let mean_cold = chunks.enumerate().fold(0, |cold, (chunk, (alphas, betas))| {
            let mut is_cold = [false; CHUNK];
            for (is_cold, (alpha, beta)) in is_cold.iter_mut().zip(alphas.iter().zip(betas)) {
                *is_cold = *alpha < limit * (alpha + beta);
            }
            cold | u64::from(mask(&is_cold)) << (chunk * CHUNK)
        });
        let [drawn_cold, mean_cold] = [drawn_cold, mean_cold].map(|mask| spread(mask, lanes));
        Sides { drawn_cold, mean_cold }
    }
}

/// Moves the lowest bits of a mask to the positions in `lanes`.
#[inline]
fn spread(mask: u64, lanes: &[u8]) -> u64 {
    if lanes.len() == LANES {
        return mask;
    }
    (0..).zip(lanes).fold(0, |all, (at, lane): (u32, _)| all | (mask >> at & 1) << lane)
}

impl Classifier for Sol {
    type Batch = Batch;

    fn name(&self) -> &'static str {
        "sol"
    }

    fn schedule(&self) -> Schedule {
        let Settings { shortest, levels, horizon, epoch_horizons, .. } = self.settings;
        let periods = horizon.0 / shortest.0 * u64::from(epoch_horizons);
        Schedule { shortest, levels, epoch_periods: (periods as u32).next_power_of_two() }
    }

    fn observe(&self, batches: &mut [Batch; LANES], sights: &Sights, rng: &mut Pcg64Mcg) -> Paces {
        let mut posteriors = Posteriors::new();
        for (at, (batch, young, pages)) in sights.iter().enumerate() {
            let batch = &mut batches[batch];
            batch.touched |= young;
            batch.elapsed_us = batch.elapsed_us.saturating_add(sights.interval_us);
            let (least, pages) = (self.hot_from[usize::from(pages)], u32::from(pages));
            let touched = batch.touched.count_ones().min(pages);
            if touched >= u32::from(least) || batch.elapsed_us >= self.enough_us {
                let share = self.share_in_horizon(touched, pages, batch.elapsed_us);
                *batch = Batch {
                    touched: 0,
                    elapsed_us: 0,
                    hot: KEPT * batch.hot + TRIALS * share,
                    cold: KEPT * batch.cold + TRIALS * (1.0 - share),
                };
            }
            posteriors.set(at, batch);
        }
        let Sides { drawn_cold, mean_cold } = self.sides(&posteriors, sights.lanes(), rng);
        let agree = !(drawn_cold ^ mean_cold);
        Paces { faster: sights.batches & !agree, slower: sights.batches & agree }
    }

    fn judge(&self, batches: &[Batch; LANES], managed: u64, rng: &mut Pcg64Mcg) -> Verdicts {
        let (mut lanes, mut posteriors) = ([0; LANES], Posteriors::new());
        let mut count = 0;
        for batch in bits(managed) {
            lanes[count] = batch as u8;
            posteriors.set(count, &batches[batch as usize]);
            count += 1;
        }
        let Sides { drawn_cold, mean_cold } = self.sides(&posteriors, &lanes[..count], rng);
        Verdicts { hot: managed & !drawn_cold & !mean_cold, cold: drawn_cold & mean_cold }
    }

    fn opinion(&self, batch: &Batch) -> Opinion {
        let weight = batch.hot + batch.cold;
        Opinion { warmth: batch.mean(), limit: self.settings.hot_share, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_default_to_the_papers_values() {
        let settings = |text: &'static str| {
            let parsed = settings::Settings::parse(text, &SETTINGS).unwrap();
            Sol::from_settings(&parsed).unwrap().settings
        };
        assert_eq!(settings(""), Settings::default());
        let from_600 = Settings { shortest: Nanos::from_millis(600), levels: 5, ..settings("") };
        assert_eq!(settings("shortest_ms=600"), from_600);
        assert_eq!(settings("shortest_ms=1").levels, LEVELS_MAX as u32);
        assert_eq!(settings("sampling=exact").sampling, Sampling::Exact);
    }

    #[test]
    fn a_rate_gives_the_same_share_for_every_interval() {
        let sol = Sol::default();
        // A page is touched once in 9.6 s on average.
        for level in 0..6 {
            let elapsed_us = 300_000 << level;
            let share = 1.0 - libm::expf(-(elapsed_us as f32) / 9.6e6);
            let touched = libm::roundf(share * 64.0) as u32;
            let (low, high) = (touched as f32 - 0.5, touched as f32 + 0.5);
            let bounds = [low, high]
                .map(|touched| 1.0 - libm::powf(1.0 - touched / 64.0, 9.6e6 / elapsed_us as f32));
            let estimate = sol.share_in_horizon(touched, 64, elapsed_us);
            assert!(bounds[0] < estimate && estimate < bounds[1], "{elapsed_us} us: {estimate}");
            assert!((bounds[0]..bounds[1]).contains(&(1.0 - libm::expf(-1.0))));
        }
        let ends = [(0, 0.0), (64, 1.0)]
            .map(|(touched, share)| sol.share_in_horizon(touched, 64, 300_000) - share);
        assert_eq!(ends, [0.0, 0.0]);
        assert_eq!(sol.share_in_horizon(16, 64, 9_600_000), 0.25);
    }

    #[test]
    fn a_share_equal_to_the_limit_is_hot() {
        for hot_share in [0.25, 0.3, HOT_SHARE, 0.999] {
            let sol = Sol::new(Settings { hot_share, ..Settings::default() });
            for (pages, from) in sol.hot_from.into_iter().enumerate() {
                let is_hot = |touched: u8| f32::from(touched) >= hot_share * pages as f32;
                assert!((0..=64).all(|touched| (touched >= from) == is_hot(touched)), "{pages}");
            }
        }
    }

    #[test]
    fn a_mask_is_spread_to_its_lanes() {
        assert_eq!(spread(0b101, &[3, 9, 63]), 1 << 3 | 1 << 63);
        assert_eq!(spread(!0b101, &[3, 9, 63]), 1 << 9, "bits beyond the lanes are ignored");
        let all = core::array::from_fn::<u8, LANES, _>(|lane| lane as u8);
        assert_eq!(spread(0x8000_0000_0000_0005, &all), 0x8000_0000_0000_0005);
    }
}
