//! The part in which policies with two tiers differ: how they judge scans, and batches at the end of an epoch.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;

use crate::wire::STRIP_BATCHES;

/// The most levels of scan periods.
pub const LEVELS_MAX: usize = 6;

/// When batches are scanned and moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Shortest scan period of the schedule.
    pub shortest: Nanos,
    /// Number of periods, each twice the one before.
    pub levels: u32,
    /// Length of an epoch in shortest periods: a power of two.
    pub epoch_periods: u32,
}

impl Schedule {
    /// How long a page that came back must be untouched to count as resting: a quarter of the longest period.
    pub(super) fn rest_us(&self) -> u32 {
        let longest = self.shortest.0 << (self.levels - 1);
        u32::try_from(longest / 4_000).unwrap_or(u32::MAX)
    }
}

/// Number of batches in a strip.
pub const LANES: usize = STRIP_BATCHES as usize;

/// Access bits of batches of a strip that were last cleared at the same time.
#[derive(Clone, Debug)]
pub struct Sights {
    /// Time since they were cleared, in microseconds. Not zero.
    pub interval_us: u32,
    /// A bit for each batch of the strip.
    pub batches: u64,
    pub(super) count: usize,
    pub(super) lanes: [u8; LANES],
    pub(super) young: [u64; LANES],
    pub(super) pages: [u8; LANES],
}

impl Sights {
    pub(super) fn new(interval_us: u32) -> Sights {
        let (lanes, young, pages) = ([0; LANES], [0; LANES], [0; LANES]);
        Sights { interval_us, batches: 0, count: 0, lanes, young, pages }
    }

    /// Indices of the batches.
    pub fn lanes(&self) -> &[u8] {
        &self.lanes[..self.count]
    }

    /// The touched pages of each, in the order of [`Sights::lanes`].
    pub fn young(&self) -> &[u64] {
        &self.young[..self.count]
    }

    /// The most pages that each batch has had; pages that are paged out count. Not zero. A huge page counts as one.
    pub fn pages(&self) -> &[u8] {
        &self.pages[..self.count]
    }

    /// Each batch with its touched pages and its number of pages.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64, u8)> + '_ {
        let rest = self.young().iter().zip(self.pages());
        self.lanes()
            .iter()
            .zip(rest)
            .map(|(lane, (young, pages))| (usize::from(*lane), *young, *pages))
    }
}

/// Changes of scan periods; batches in neither mask keep theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paces {
    /// Batches to scan twice as often, a bit each.
    pub faster: u64,
    /// Batches to scan half as often, a bit each.
    pub slower: u64,
}

/// The tiers that batches belong in; batches in neither mask stay where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Batches that belong in the fast tier, a bit each.
    pub hot: u64,
    /// Batches that belong in the slow tier, a bit each.
    pub cold: u64,
}

/// A classifier's opinion of a batch, as in [`Explanation`](super::Explanation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opinion {
    /// Warmth of the batch, as the classifier estimates it.
    pub warmth: f32,
    /// Warmth below which a batch is cold.
    pub limit: f32,
    /// Number of observations behind the opinion.
    pub weight: f32,
}

/// The part in which policies with two tiers differ.
pub trait Classifier {
    /// The classifier's state of a batch.
    type Batch: Copy + Default;

    /// Name of the policy, as users type it.
    fn name(&self) -> &'static str;

    /// When batches are scanned and moved.
    fn schedule(&self) -> Schedule;

    /// Some batches of a strip were scanned.
    fn observe(
        &self,
        batches: &mut [Self::Batch; LANES],
        sights: &Sights,
        rng: &mut Pcg64Mcg,
    ) -> Paces;

    /// An epoch is over. `managed` are the batches that exist, a bit each.
    fn judge(&self, batches: &[Self::Batch; LANES], managed: u64, rng: &mut Pcg64Mcg) -> Verdicts;

    /// The opinion of a batch, for [`Tiering::explain`](super::Tiering::explain).
    fn opinion(&self, batch: &Self::Batch) -> Opinion;
}
