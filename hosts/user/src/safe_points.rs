//! Measures how long a preemption was deferred, without reading the clock at each safe point.
//!
//! A safe point costs one load of the preemption word, and reading the clock costs ten times that. So a
//! core reads the clock only at some safe points, and remembers when it last saw that its run was not
//! asked to end. A preemption that is seen later was deferred for at most the time since then. Reads of the
//! clock are some ten microseconds apart where safe points are dense; where they are sparse, each safe point reads it.

use std::cell::Cell;

use wave_core::clock::Nanos;

/// Target for the time between reads of the clock: at most this and at least half of it, unless a slice
/// is short.
const RESOLUTION: Nanos = Nanos::from_micros(16);
/// Reads of the clock per slice that the core itself ends. The slice may last longer by this fraction of it.
const LOOKS_PER_SLICE: u64 = 8;
/// Most safe points between two reads of the clock: as many may pass before the core notices that a
/// thread's safe points have become rare.
const STRIDE_MAX: u32 = 64;

/// The safe points of one core.
pub(crate) struct SafePoints {
    /// Safe points until the next read of the clock.
    left: Cell<u32>,
    stride: Cell<u32>,
    /// Target for the longest time between reads of the clock; the shortest is half of it.
    resolution: Cell<Nanos>,
    /// The last time at which the run was known not to have been asked to end.
    clear_at: Cell<Nanos>,
}

impl SafePoints {
    pub(crate) fn new() -> SafePoints {
        SafePoints {
            left: Cell::new(1),
            stride: Cell::new(1),
            resolution: Cell::new(RESOLUTION),
            clear_at: Cell::new(Nanos(0)),
        }
    }

    /// Begins a run at `now` or shortly after. `slice` is zero if the core does not end the run.
    #[inline]
    pub(crate) fn begin(&self, now: Nanos, slice: Nanos) {
        let resolution = match slice {
            Nanos(0) => RESOLUTION,
            Nanos(slice) => RESOLUTION.min(Nanos(slice / LOOKS_PER_SLICE)),
        };
        self.resolution.set(resolution);
        self.clear_at.set(now);
        self.left.set(self.stride.get());
    }

    /// Passes a safe point at which the run was not asked to end. Returns whether it is time for
    /// [`SafePoints::clear`].
    #[inline]
    pub(crate) fn pass(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        left == 0
    }

    /// Records that the clock read `now`, and that afterwards the run was not asked to end.
    pub(crate) fn clear(&self, now: Nanos) {
        let since = now.since(self.clear_at.replace(now));
        let stride = self.stride.get();
        let stride = match since {
            since if since > self.resolution.get() => 1.max(stride / 2),
            since if since < Nanos(self.resolution.get().0 / 2) => STRIDE_MAX.min(stride * 2),
            _ => stride,
        };
        self.stride.set(stride);
        self.left.set(stride);
    }

    /// Upper bound of the time since the run was asked to end.
    pub(crate) fn deferred(&self, now: Nanos) -> Nanos {
        now.since(self.clear_at.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes safe points `apart` from each other until the reads of the clock have settled. Returns the longest
    /// time between two reads afterwards.
    fn settled_gap(apart: Nanos) -> Nanos {
        let points = SafePoints::new();
        points.begin(Nanos(0), Nanos(0));
        let (mut now, mut longest) = (Nanos(0), Nanos(0));
        for point in 0..10_000 {
            now = now + apart;
            if points.pass() {
                if point > 5_000 {
                    longest = longest.max(points.deferred(now));
                }
                points.clear(now);
            }
        }
        longest
    }

    #[test]
    fn clock_reads_follow_the_density_of_safe_points() {
        for apart in [1, 5, 60, 220, 900, 3_000, 10_000, 1_000_000].map(Nanos) {
            let gap = settled_gap(apart);
            let densest = Nanos(apart.0 * u64::from(STRIDE_MAX));
            let resolved = RESOLUTION.max(apart);
            assert!(
                gap >= Nanos(RESOLUTION.0 / 2).min(densest) && gap <= resolved,
                "{apart:?}: {gap:?}"
            );
        }
    }

    #[test]
    fn rare_safe_points_are_noticed_within_one_stride() {
        let points = SafePoints::new();
        points.begin(Nanos(0), Nanos(0));
        for point in 1..=100_000 {
            if points.pass() {
                points.clear(Nanos(point));
            }
        }
        // Now a millisecond apart: the first read of the clock comes late, then each safe point reads it.
        let mut now = Nanos(100_000);
        let mut passed = 0;
        for _ in 0..1_000 {
            now = now + Nanos::from_millis(1);
            passed += 1;
            if points.pass() {
                assert!(passed <= STRIDE_MAX);
                points.clear(now);
                passed = 0;
            }
        }
        assert_eq!((points.stride.get(), passed), (1, 0));
    }
}
