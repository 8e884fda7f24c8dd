//! Counts looks of an idle core during which the machine took its CPU away.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wave_core::clock::Nanos;

/// A look at an empty queue takes less than a microsecond.
const STALL: Nanos = Nanos::from_micros(200);

/// Counts stalled looks if [`crate::Options::stalled_looks`] asks for it.
pub(super) struct StalledLooks {
    counter: Option<Arc<AtomicU64>>,
    /// Involuntary context switches of the core's pthread so far; `None` before the first look of an idle period.
    switches: Cell<Option<i64>>,
}

impl StalledLooks {
    pub(super) fn new(counter: Option<Arc<AtomicU64>>) -> StalledLooks {
        StalledLooks { counter, switches: Cell::new(None) }
    }

    /// Records a look of duration `took` that found nothing. The first look of an idle period does not count.
    #[inline]
    pub(super) fn look(&self, took: Nanos) {
        if self.counter.is_some() && (took > STALL || self.switches.get().is_none()) {
            self.account(took, involuntary_switches());
        }
    }

    /// Ends the measurement of an idle period.
    #[inline]
    pub(super) fn end(&self) {
        self.switches.set(None);
    }

    #[cold]
    fn account(&self, took: Nanos, switches: i64) {
        let before = self.switches.replace(Some(switches));
        // The kernel gave the CPU to no other thread.
        if took > STALL && before == Some(switches) {
            self.counter.iter().for_each(|counter| _ = counter.fetch_add(1, Ordering::Release));
        }
    }
}

/// How often the kernel has taken the CPU from the calling thread and given it to another.
fn involuntary_switches() -> i64 {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is valid for writes during the call, which fails for no thread of ours.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_looks_count_unless_another_thread_ran_or_they_are_the_first() {
        let counter = Arc::new(AtomicU64::new(0));
        let looks = StalledLooks::new(Some(Arc::clone(&counter)));
        let long = Nanos(STALL.0 + 1);
        let counted = |took, switches| {
            looks.account(took, switches);
            counter.load(Ordering::Relaxed)
        };
        assert_eq!(counted(long, 7), 0, "the first look");
        assert_eq!(counted(STALL, 7), 0, "a short look");
        assert_eq!(counted(long, 7), 1);
        assert_eq!(counted(long, 8), 1, "another thread ran");
        assert_eq!(counted(long, 8), 2);
        looks.end();
        assert_eq!(counted(long, 8), 2, "the first look of the next idle period");
    }
}
