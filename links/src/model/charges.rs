//! What a context spent on the link, part by part.

use std::ops::{Add, AddAssign};

/// How often something was charged, and how much in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of charged accesses.
    pub count: u64,
    /// Nanoseconds of the model's time that the context was busy with it.
    pub ns: u64,
}

impl Tally {
    pub(super) fn charge(&mut self, ns: u64) {
        self.count += 1;
        self.ns += ns;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// The accesses of one context on a modelled link, and their costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    /// Loads that crossed the link, including the wait for the stores that they push.
    pub far_loads: Tally,
    /// Uncached and write-through stores that crossed the link.
    pub far_stores: Tally,
    /// Drained write-combined lines; for an agent, lines stored through the copy engine.
    pub line_drains: Tally,
    /// Write-through lines dropped from the cache.
    pub flushes: Tally,
    /// Accesses to near memory that is mapped uncached.
    pub near_accesses: Tally,
    /// Coherent links: loads of a line that another context changed.
    pub line_transfers: Tally,
    /// Loads of a prefetched line that waited for it to arrive, or for the residue.
    pub prefetch_waits: Tally,
    /// Copies that were started.
    pub copies: Tally,
    /// Stores to a word whose previous store had not arrived yet.
    pub stalls: Tally,
    /// Number of lines prefetched.
    pub prefetches: u64,
    /// Loads of a prefetched line that had arrived: the latency was hidden.
    pub prefetch_hits: u64,
    /// Loads of write-through lines served from the cache.
    pub cache_hits: u64,
    /// Cache hits whose value differed from memory.
    pub stale_hits: u64,
}

impl Charges {
    /// Everything that was charged, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.parts().iter().map(|(_, tally)| tally.ns).sum()
    }

    /// The charged parts, by name.
    pub fn parts(&self) -> [(&'static str, Tally); 9] {
        [
            ("far_loads", self.far_loads),
            ("far_stores", self.far_stores),
            ("line_drains", self.line_drains),
            ("flushes", self.flushes),
            ("near_accesses", self.near_accesses),
            ("line_transfers", self.line_transfers),
            ("prefetch_waits", self.prefetch_waits),
            ("copies", self.copies),
            ("stalls", self.stalls),
        ]
    }
}

impl AddAssign for Charges {
    fn add_assign(&mut self, other: Charges) {
        self.far_loads += other.far_loads;
        self.far_stores += other.far_stores;
        self.line_drains += other.line_drains;
        self.flushes += other.flushes;
        self.near_accesses += other.near_accesses;
        self.line_transfers += other.line_transfers;
        self.prefetch_waits += other.prefetch_waits;
        self.copies += other.copies;
        self.stalls += other.stalls;
        self.prefetches += other.prefetches;
        self.prefetch_hits += other.prefetch_hits;
        self.cache_hits += other.cache_hits;
        self.stale_hits += other.stale_hits;
    }
}

impl Add for Charges {
    type Output = Charges;
    fn add(mut self, other: Charges) -> Charges {
        self += other;
        self
    }
}

impl std::iter::Sum for Charges {
    fn sum<I: Iterator<Item = Charges>>(all: I) -> Charges {
        all.fold(Charges::default(), Charges::add)
    }
}
