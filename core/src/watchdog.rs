//! The watchdog: work has waited too long for a decision (Wave 3.3: 20 ms for scheduling).
//!
//! Work *waits for a decision* while it is runnable, unchanged, and some core has nothing to do at
//! every look. A queue that is long because all cores are busy is no fault of the agent's. One
//! subject is watched at a time, until it moves; so an agent that serves all but one is found too.

use crate::clock::Nanos;
use crate::message::{Sequence, Subject};

/// Watches one enclave.
#[derive(Debug)]
pub struct Watchdog {
    patience: Nanos,
    watched: Option<(Subject, Sequence, Nanos)>,
}

impl Watchdog {
    /// Barks when something has waited for `patience`. Wants to look at least four times as often.
    pub const fn new(patience: Nanos) -> Watchdog {
        Watchdog { patience, watched: None }
    }

    /// One look. `a_core_is_idle` as of now; `still_waits` says whether a subject is runnable at
    /// just this sequence; `find` gives one that is runnable. Returns how long something has waited
    /// where that is longer than the patience.
    pub fn look(
        &mut self,
        now: Nanos,
        a_core_is_idle: bool,
        still_waits: impl FnOnce(Subject, Sequence) -> bool,
        find: impl FnOnce() -> Option<(Subject, Sequence)>,
    ) -> Option<Nanos> {
        if !a_core_is_idle {
            self.watched = None;
            return None;
        }
        match self.watched {
            Some((subject, sequence, since)) if still_waits(subject, sequence) => {
                let waited = now.since(since);
                (waited >= self.patience).then_some(waited)
            }
            _ => {
                self.watched = find().map(|(subject, sequence)| (subject, sequence, now));
                None
            }
        }
    }
}
