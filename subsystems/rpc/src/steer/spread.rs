//! The baselines: each call is assigned to a worker on arrival, by its connection (as RSS does in hardware) or in turn. A call
//! waits for its worker even if another is idle.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{Setting, Settings};
use wave_core::waiting::Queues;

use super::{Request, Steering, Workers};

/// Settings of the policy.
pub static SETTINGS: [Setting; 1] = [Setting::number(
    "ahead",
    "4",
    1..=1024,
    "calls that a worker may have at once; the others of its queue wait in the agent",
)];

/// How a call's worker is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By the hash of the connection.
    Hash,
    /// Each worker in turn.
    Turn,
}

/// Spreads calls over workers without regard to their load.
#[derive(Debug)]
pub struct Spread {
    by: By,
    ahead: u16,
    lines: Queues,
    workers: usize,
    turn: usize,
    /// The worker whose queue is checked next.
    look: usize,
}

impl Spread {
    /// Makes the policy with values of [`SETTINGS`].
    pub fn new(config: &Config, settings: &Settings<'_>, by: By) -> Spread {
        let workers = usize::from(config.cores);
        let ahead = settings.number("ahead") as u16;
        Spread {
            by,
            ahead,
            lines: Queues::new(workers, config.subjects),
            workers,
            turn: 0,
            look: 0,
        }
    }
}

impl Steering for Spread {
    fn name(&self) -> &'static str {
        if self.by == By::Hash { "rss" } else { "round-robin" }
    }

    fn arrived(&mut self, _now: Nanos, call: u32, request: &Request) {
        let worker = match self.by {
            By::Hash => (request.hash % self.workers as u64) as usize,
            By::Turn => {
                let turn = self.turn;
                self.turn = (turn + 1) % self.workers;
                turn
            }
        };
        self.lines.push(worker, call);
    }

    fn left(&mut self, call: u32) {
        self.lines.remove(call);
    }

    fn next(&mut self, _now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)> {
        let lines = &self.lines;
        let worker =
            workers.least(Some(self.ahead), self.look, |worker| lines.first(worker).is_some())?;
        self.look = (usize::from(worker) + 1) % self.workers;
        Some((self.lines.pop(worker.into())?, worker))
    }
}
