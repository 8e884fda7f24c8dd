//! Decides whether a worker without work looks for the next call or sleeps at once.
//!
//! Looking pays if the next call comes before a sleep and its wake-up would have cost as much CPU time. The worker decides by
//! the previous idle periods (Karlin, Li, Manasse and Owicki, "Empirical studies of competitive spinning for a shared-memory
//! multiprocessor", SOSP 1991): it looks if most of them ended in time. Otherwise it sleeps at once, but looks in every
//! sixteenth period to learn when that changes.

use wave_core::clock::Nanos;

/// Fixed-point 1 of [`Idle::in_time`].
const ALL: u32 = 1 << 16;
/// Inverse of the newest period's weight in the average.
const PARTS: u32 = 8;
/// The worker looks for work in every `PROBE`th idle period, whatever the share.
const PROBE: u32 = 16;

/// Decides in each idle period of one worker whether it looks for work before it sleeps.
#[derive(Debug)]
pub(super) struct Idle {
    /// Longest time to look for work before sleeping.
    spin: Nanos,
    /// When the current period began, and whether the worker looks in it.
    period: Option<(Nanos, bool)>,
    /// The share of periods that ended in time among those in which the worker looked, as a decaying average in fixed point.
    in_time: u32,
    periods: u32,
}

impl Idle {
    pub(super) fn new(spin: Nanos) -> Idle {
        Idle { spin, period: None, in_time: ALL, periods: 0 }
    }

    /// Records that there is no work. Returns whether the worker may sleep.
    pub(super) fn may_sleep(&mut self, now: Nanos) -> bool {
        let looks = self.in_time >= ALL / 2 || self.periods.is_multiple_of(PROBE);
        let (since, looks) = *self.period.get_or_insert((now, looks));
        !looks || now.since(since) >= self.spin
    }

    #[inline]
    pub(super) fn work_came(&mut self, now: Nanos) {
        let Some((since, looked)) = self.period.take() else { return };
        self.periods = self.periods.wrapping_add(1);
        if looked {
            let share = if now.since(since) < self.spin { ALL } else { 0 };
            self.in_time = self.in_time - self.in_time / PARTS + share / PARTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Nanos = Nanos(5_000);

    /// Runs idle periods of these lengths in sequence. Returns the number of looks and the time spent on them.
    fn passes(idle: &mut Idle, lengths: impl IntoIterator<Item = u64>) -> (u32, u64) {
        let (mut now, mut looks, mut looked_ns) = (0, 0, 0);
        for length in lengths {
            let (start, end) = (now, now + length);
            while now < end && !idle.may_sleep(Nanos(now)) {
                now += 100;
            }
            looks += u32::from(now > start);
            looked_ns += now - start;
            idle.work_came(Nanos(end));
            now = end + 1_000;
        }
        (looks, looked_ns)
    }

    #[test]
    fn a_worker_spins_while_calls_come_soon() {
        let mut idle = Idle::new(SPIN);
        assert_eq!(passes(&mut idle, [1_000; 100]), (100, 100_000));
    }

    #[test]
    fn a_worker_sleeps_at_once_while_calls_come_late_except_every_sixteenth_time() {
        let mut idle = Idle::new(SPIN);
        passes(&mut idle, [100_000; 8]);
        let (looks, looked_ns) = passes(&mut idle, [100_000; 1_600]);
        assert_eq!((looks, looked_ns), (100, 100 * SPIN.0));
    }

    #[test]
    fn a_worker_spins_again_once_calls_come_soon_again() {
        let mut idle = Idle::new(SPIN);
        passes(&mut idle, [100_000; 100]);
        passes(&mut idle, [1_000; 200]);
        assert_eq!(passes(&mut idle, [1_000; 100]).0, 100);
    }

    #[test]
    fn a_spin_of_zero_sleeps_at_once() {
        assert!(Idle::new(Nanos(0)).may_sleep(Nanos(7)));
    }
}
