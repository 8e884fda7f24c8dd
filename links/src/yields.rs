//! Yields of a thread that shares its CPU, as long as they are cheap.
//!
//! Since Linux 6.18 a thread that yields gives up a whole time slice: beside one busy thread it waits 1.4 to 3 ms for its next
//! turn, and so gets less than 1% of the CPU, where a thread that sleeps for 50 us between its turns gets its share (docs/adr/0085).

use std::time::{Duration, Instant};

/// A yield that takes longer has shown that a busy thread shares the CPU.
const LONG: Duration = Duration::from_micros(500);
/// How long after such a yield the thread does not yield again.
const RESPITE: Duration = Duration::from_millis(100);

/// Decides whether a thread yields or, beside busy threads, does without.
#[derive(Debug, Default)]
pub struct Yields {
    /// When the last yield that took long ended.
    long: Option<Instant>,
}

impl Yields {
    /// Whether a yield in the last 100 ms took long. Until then, a thread without work should sleep.
    #[inline]
    pub fn are_dear(&self) -> bool {
        self.long.is_some_and(|long| long.elapsed() < RESPITE)
    }

    /// Lets other threads run on this CPU, unless that is dear.
    pub fn yield_now(&mut self) {
        if self.are_dear() {
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
    fn yields_beside_a_busy_thread_are_dear_for_a_while() {
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
            assert!(!yields.are_dear());
            cpus::pin(&[cpu]).unwrap();
            while !yields.are_dear() {
                yields.yield_now();
            }
            yields.yield_now();
            std::thread::sleep(RESPITE);
            assert!(!yields.are_dear());
        });
    }
}
