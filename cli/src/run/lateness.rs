//! How late a thread wakes on this machine while there is nothing else to do: shorter latencies cannot be told apart here.

use std::time::Duration;

use wave_workloads::cpu::monotonic_ns;

const SLEEPS: usize = 500;
const SLEEP: Duration = Duration::from_millis(1);

/// What was found, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    pub p50_ns: u64,
    pub p99_ns: u64,
}

impl Lateness {
    /// Of the calling thread, within half a second.
    pub fn measure() -> Lateness {
        let late = || {
            let due = monotonic_ns() + SLEEP.as_nanos() as u64;
            std::thread::sleep(SLEEP);
            monotonic_ns().saturating_sub(due)
        };
        Lateness::of((0..SLEEPS).map(|_| late()).collect())
    }

    fn of(mut late: Vec<u64>) -> Lateness {
        late.sort_unstable();
        let at = |share: f64| {
            let last = late.len().saturating_sub(1) as f64;
            late.get((last * share).round() as usize).copied().unwrap_or(0)
        };
        Lateness { p50_ns: at(0.5), p99_ns: at(0.99) }
    }

    /// The later of two.
    pub fn or_later(self, other: Lateness) -> Lateness {
        std::cmp::max_by_key(self, other, |late| late.p99_ns)
    }

    /// As a fact about a run that asks whether a p99 is within `limit_ns`.
    pub fn fact(self, limit_ns: u64) -> (String, String) {
        let us = |ns: u64| ns as f64 / 1e3;
        let what = format!(
            "a thread that slept woke {:.0} us late; one in a hundred, {:.0} us",
            us(self.p50_ns),
            us(self.p99_ns)
        );
        let how = "measured for half a second before the run and after it; the worse is given";
        let means = match 2 * self.p99_ns > limit_ns {
            true => format!(
                "; against a limit of {:.0} us, saturations and what follows from them say more about this machine \
                 than about what was compared: run again when it is quiet",
                us(limit_ns)
            ),
            false => String::new(),
        };
        (what, format!("{how}{means}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_too_late_for_a_limit_is_named() {
        let late = Lateness::of((0..=100).map(|at| at * 1_000).collect());
        assert_eq!(late, Lateness { p50_ns: 50_000, p99_ns: 99_000 });
        let (what, how) = late.fact(198_000);
        assert!(what.contains("50 us late") && what.contains("99 us"), "{what}");
        assert!(!how.contains("limit"), "{how}");
        let (_, how) = late.fact(197_000);
        assert!(how.contains("limit of 197 us") && how.contains("quiet"), "{how}");
    }

    #[test]
    fn who_sleeps_wakes_late_and_never_early() {
        let late = Lateness::measure();
        assert!(0 < late.p50_ns && late.p50_ns <= late.p99_ns, "{late:?}");
        let later = Lateness { p99_ns: late.p99_ns + 1, ..late };
        assert_eq!((late.or_later(later), later.or_later(late)), (later, later));
    }
}
