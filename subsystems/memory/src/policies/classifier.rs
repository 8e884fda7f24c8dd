//! What tells one policy of two tiers from another: what it makes of scans, and of batches at the end of an epoch.

use rand_pcg::Pcg64Mcg;
use wave_core::clock::Nanos;

use crate::wire::STRIP_BATCHES;

/// Levels of scan periods at most.
pub const LEVELS_MAX: usize = 6;

/// When batches are scanned and moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Shortest scan period of the schedule.
    pub shortest: Nanos,
    /// How many periods there are, each twice the one before.
    pub levels: u32,
    /// How many of the shortest periods an epoch has: a power of two.
    pub epoch_periods: u32,
}

impl Schedule {
    /// What came back and is not touched for this long rests: a quarter of the longest period.
    pub(super) fn rest_us(&self) -> u32 {
        let longest = self.shortest.0 << (self.levels - 1);
        u32::try_from(longest / 4_000).unwrap_or(u32::MAX)
    }
}

/// Number of batches in a strip.
pub const LANES: usize = STRIP_BATCHES as usize;

/// What was seen of some batches of a strip since they were last cleared, all at the same time.
#[derive(Clone, Debug)]
pub struct Sights {
    /// How long that was. Not zero.
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

    /// Their pages that were touched.
    pub fn young(&self) -> &[u64] {
        &self.young[..self.count]
    }

    /// How many pages each has had at most: those that are paged out count. Not zero. A huge page is one.
    pub fn pages(&self) -> &[u8] {
        &self.pages[..self.count]
    }

    /// Batch, touched pages, number of pages.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64, u8)> + '_ {
        let rest = self.young().iter().zip(self.pages());
        self.lanes()
            .iter()
            .zip(rest)
            .map(|(lane, (young, pages))| (usize::from(*lane), *young, *pages))
    }
}

/// How often to scan batches from now on; those that are in neither mask as often as before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paces {
    /// Batches to scan twice as often, a bit each.
    pub faster: u64,
    /// Batches to scan half as often, a bit each.
    pub slower: u64,
}

/// Where batches belong; those that are in neither mask where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Batches that belong into the fast tier, a bit each.
    pub hot: u64,
    /// Batches that belong into the slow tier, a bit each.
    pub cold: u64,
}

/// What a policy thinks of a batch, as in [`Explanation`](super::Explanation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opinion {
    /// Warmth of the batch, as the classifier estimates it.
    pub warmth: f32,
    /// Warmth below which a batch is cold.
    pub limit: f32,
    /// How many observations this rests on.
    pub weight: f32,
}

/// What tells one policy of two tiers from another.
pub trait Classifier {
    /// What is kept of a batch.
    type Batch: Copy + Default;

    /// Name of the policy, as users type it.
    fn name(&self) -> &'static str;

    /// When to scan and to move.
    fn schedule(&self) -> Schedule;

    /// Some batches of a strip were scanned.
    fn observe(
        &self,
        batches: &mut [Self::Batch; LANES],
        sights: &Sights,
        rng: &mut Pcg64Mcg,
    ) -> Paces;

    /// An epoch is over. `managed` are the batches that there are.
    fn judge(&self, batches: &[Self::Batch; LANES], managed: u64, rng: &mut Pcg64Mcg) -> Verdicts;

    /// Opinion about a batch, for those who ask.
    fn opinion(&self, batch: &Self::Batch) -> Opinion;
}
