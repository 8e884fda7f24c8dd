//! The interval between looks at processes that wait at the door: the process that they wait for does not ring when it leaves a call.

use wave_core::clock::Nanos;

const SHORTEST: Nanos = Nanos::from_micros(100);
const LONGEST: Nanos = Nanos::from_millis(4);

/// When to look next. The interval doubles as long as looks find nothing new.
#[derive(Debug, Default)]
pub(super) struct PollInterval {
    interval: Nanos,
    at: Nanos,
}

impl PollInterval {
    /// When the next look is due.
    pub(super) fn at(&self) -> Nanos {
        self.at
    }

    /// Records a look. After a change the next turn looks again, since most changes lead to another one.
    pub(super) fn record_poll(&mut self, now: Nanos, has_changed: bool) {
        self.interval = match has_changed {
            true => Nanos(0),
            false => (self.interval + self.interval).clamp(SHORTEST, LONGEST),
        };
        self.at = now + self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_doubles_while_nothing_changes_and_is_reset_by_a_change() {
        let (mut interval, mut now) = (PollInterval::default(), Nanos::from_millis(1_000));
        assert!(interval.at() <= now);
        let mut intervals = Vec::new();
        for poll in 0..12 {
            interval.record_poll(now, poll == 0 || poll == 9);
            intervals.push(interval.at().since(now).0 / 1_000);
            now = interval.at();
        }
        assert_eq!(intervals, [0, 100, 200, 400, 800, 1_600, 3_200, 4_000, 4_000, 0, 100, 200]);
    }
}
