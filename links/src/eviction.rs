//! Whether a consumer should evict the lines that it has read: decided by measurement at run time.
//!
//! A producer that writes a line that its consumer's cache still holds must first have that copy
//! invalidated. Between distant cores (Zen 4, different core complexes, measured) this bounds a queue
//! at 34 M entries/s, whatever else is done; with eviction by the consumer the same queue reaches 80
//! to 120 M/s. Nothing was gained by prefetching for write, by pausing the consumer, or by
//! writing back on the producer's side. Between near cores, which share a cache, it is the other way
//! round: 125 M/s without eviction and 50 M/s with it. A virtual machine's CPUs are sometimes near and
//! sometimes distant, so a window tries both from time to time and keeps the faster way per line.

use std::cell::Cell;
use std::time::Instant;

/// Lines in one stretch, the unit of measurement.
const STRETCH: u32 = 1024;
/// Stretches of one trial that are not measured: the producer notices the consumer's evictions only
/// when it comes round the ring again.
const SETTLING: u32 = 4;
/// Stretches of one trial that are measured. The fastest counts: others may contain a pause.
const MEASURED: u32 = 4;
/// Stretches after which the trials are repeated.
const KEEP: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    TryWithout,
    TryWith { without_ns: u64 },
    Keep,
}

/// Whether consumers of a window evict the lines that they have read.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    possible: bool,
    evicts: Cell<bool>,
    /// Lines left in this stretch.
    left: Cell<u32>,
    phase: Cell<Phase>,
    /// Stretches of this phase so far.
    stretches: Cell<u32>,
    fastest_ns: Cell<u64>,
    since: Cell<Option<Instant>>,
}

impl Eviction {
    pub(crate) fn new(possible: bool) -> Eviction {
        Eviction {
            possible,
            evicts: Cell::new(false),
            left: Cell::new(STRETCH),
            phase: Cell::new(Phase::TryWithout),
            stretches: Cell::new(0),
            fastest_ns: Cell::new(u64::MAX),
            since: Cell::new(None),
        }
    }

    /// Counts one line that was read. Returns whether to evict it.
    #[inline(always)]
    pub(crate) fn next(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        if left == 0 {
            self.end_stretch();
        }
        self.evicts.get()
    }

    #[cold]
    fn end_stretch(&self) {
        if !self.possible {
            self.left.set(u32::MAX);
            return;
        }
        self.left.set(STRETCH);
        let stretches = self.stretches.get() + 1;
        self.stretches.set(stretches);
        if self.phase.get() == Phase::Keep {
            if stretches == KEEP {
                self.begin(Phase::TryWithout, false);
            }
            return;
        }
        let now = Instant::now();
        let took = self.since.replace(Some(now)).map(|since| (now - since).as_nanos() as u64);
        if let (Some(took_ns), true) = (took, stretches > SETTLING) {
            self.fastest_ns.set(self.fastest_ns.get().min(took_ns));
        }
        if stretches == SETTLING + MEASURED {
            let fastest_ns = self.fastest_ns.get();
            match self.phase.get() {
                Phase::TryWith { without_ns } => self.begin(Phase::Keep, fastest_ns < without_ns),
                _ => self.begin(Phase::TryWith { without_ns: fastest_ns }, true),
            }
        }
    }

    fn begin(&self, phase: Phase, evicts: bool) {
        self.phase.set(phase);
        self.evicts.set(evicts);
        self.stretches.set(0);
        self.fastest_ns.set(u64::MAX);
        self.since.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_and_one_is_kept() {
        let eviction = Eviction::new(true);
        let run =
            |stretches: u32| (0..stretches * STRETCH).filter(|_| eviction.next()).count() as u32;
        let trial = SETTLING + MEASURED;
        assert!(run(trial) <= 1);
        assert!(run(trial) >= trial * STRETCH - 1);
        let kept = run(KEEP - 1);
        assert!(kept <= 1 || kept >= (KEEP - 1) * STRETCH - 1, "{kept}");
    }

    #[test]
    fn nothing_is_evicted_without_the_instruction() {
        let eviction = Eviction::new(false);
        assert!((0..3 * KEEP * STRETCH).all(|_| !eviction.next()));
    }
}
