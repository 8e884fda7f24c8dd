//! Yields of a thread that shares its CPU, as long as they are short.
//!
//! Since Linux 6.18 a thread that yields gives up a whole time slice: for its next turn it waits 1.4 ms beside one busy thread and
//! 2.8 ms beside two, and so gets less than 1% of the CPU (docs/adr/0085).

use std::time::{Duration, Instant};

/// A yield of at least this time is long: another thread probably used the CPU.
const LONG: Duration = Duration::from_micros(500);
/// Time after a long yield in which the thread does not yield.
const RESPITE: Duration = Duration::from_millis(100);

/// The yields of one thread.
#[derive(Debug, Default)]
pub struct Yields {
    /// When the last yield ended, if it was long.
    long: Option<Instant>,
}

impl Yields {
    /// Whether a yield in the last 100 ms was long. A thread without work should then sleep instead of looking for some.
    #[inline]
    pub fn are_long(&self) -> bool {
        self.long.is_some_and(|long| long.elapsed() < RESPITE)
    }

    /// Lets other threads run on this CPU, unless yields are long.
    pub fn yield_now(&mut self) {
        if self.are_long() {
            return;
        }
        let before = Instant::now();
        std::thread::yield_now();
        let after = Instant::now();
        self.long = (after - before >= LONG).then_some(after);
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
            std::thread::sleep(RESPITE);
            assert!(!yields.are_long());
        });
    }
}
