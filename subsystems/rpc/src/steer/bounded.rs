//! JBSQ(k): one queue; its head goes to the worker with the fewest calls, if fewer than k. With k = 1 it is a single queue.
//! Sources: R2P2 (ATC 2019); Mind the Gap 3.4.3 on how k hides the link's latency.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{Setting, Settings};
use wave_core::waiting::Queues;

use super::{K, Request, Steering, Workers, k};

/// Settings of the policy.
pub static SETTINGS: [Setting; 1] = [K];

/// Steers to the worker with the fewest calls, up to a bound (JBSQ).
#[derive(Debug)]
pub struct Bounded {
    k: Option<u16>,
    line: Queues,
    look: usize,
}

impl Bounded {
    /// Makes the policy with values of [`SETTINGS`].
    pub fn new(config: &Config, settings: &Settings<'_>) -> Bounded {
        Bounded { k: k(settings), line: Queues::new(1, config.subjects), look: 0 }
    }
}

impl Steering for Bounded {
    fn name(&self) -> &'static str {
        "jbsq"
    }

    fn arrived(&mut self, _now: Nanos, call: u32, _request: &Request) {
        self.line.push(0, call);
    }

    fn left(&mut self, call: u32) {
        self.line.remove(call);
    }

    fn next(&mut self, _now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)> {
        self.line.first(0)?;
        let worker = workers.least(self.k, self.look, |_| true)?;
        self.look = (usize::from(worker) + 1) % workers.len();
        Some((self.line.pop(0)?, worker))
    }
}
