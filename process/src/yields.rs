//! Yields of a thread that shares its CPU, as long as they are short.
//!
//! Since Linux 6.18 a thread that yields gives up a whole time slice: for its next turn it waits 1.4 ms beside one busy thread and
//! 2.8 ms beside two, and so gets less than 1% of the CPU (docs/adr/0085).

use std::time::{Duration, Instant};

/// A yield of at least this time is long: another thread probably used the CPU.
const LONG: Duration = Duration::from_micros(500);
/// Time after a long yield in which the thread does not yield: at first, and at most. It doubles from one long yield to the next.
const RESPITE_MIN: Duration = Duration::from_millis(5);
const RESPITE_MAX: Duration = Duration::from_millis(100);
/// A long yield this long after the last one is the first again.
const ALONE_AFTER: Duration = Duration::from_millis(200);

/// The yields of one thread.
#[derive(Debug, Default)]
pub struct Yields {
    /// When the last long yield ended.
    long: Option<Instant>,
    /// Time without yields after it.
    respite: Duration,
}

impl Yields {
    /// Whether the last yield was long, and the respite after it is not over. A thread without work should then sleep instead of looking for some.
    #[inline]
    pub fn are_long(&self) -> bool {
        self.long.is_some_and(|long| long.elapsed() < self.respite)
    }

    /// Lets other threads run on this CPU, unless yields are long.
    pub fn yield_now(&mut self) {
        if self.are_long() {
            return;
        }
        let before = Instant::now();
        std::thread::yield_now();
        let after = Instant::now();
        if after - before >= LONG {
            self.respite = respite(self.respite, self.long.map(|long| after - long));
            self.long = Some(after);
        }
    }
}

/// The respite after a long yield that ended this long after the one before, whose respite was `last`.
fn respite(last: Duration, since: Option<Duration>) -> Duration {
    match since {
        Some(since) if since < ALONE_AFTER => (2 * last).min(RESPITE_MAX),
        _ => RESPITE_MIN,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::cpus;

    /// Ends a thread also if the test fails.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn yields_beside_a_busy_thread_are_long_for_a_while() {
        let cpu = cpus::allowed().unwrap()[0];
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                cpus::pin(&[cpu]).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let _end = End(&ends);
            let mut yields = Yields::default();
            assert!(!yields.are_long());
            cpus::pin(&[cpu]).unwrap();
            while !yields.are_long() {
                yields.yield_now();
            }
            std::thread::sleep(RESPITE_MAX);
            assert!(!yields.are_long());
        });
    }

    #[test]
    fn respite_is_short_after_a_single_long_yield_and_longer_beside_a_busy_thread() {
        let ms = Duration::from_millis;
        assert_eq!(respite(Duration::ZERO, None), ms(5));
        let mut last = ms(5);
        let each = [10, 20, 40, 80, 100, 100].map(|expected| {
            last = respite(last, Some(last + ms(3)));
            (last, ms(expected))
        });
        assert!(each.iter().all(|(found, expected)| found == expected), "{each:?}");
        assert_eq!(respite(last, Some(ms(200))), ms(5));
    }
}
