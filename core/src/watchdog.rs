//! The watchdog: finds work that has waited too long for a decision (Wave 3.3: 20 ms for scheduling).
//!
//! Work *waits for a decision* while it is runnable, unchanged, and some core is idle at every look.
//! A queue that is long because all cores are busy is not the agent's fault.
//!
//! A bounded number of subjects is watched at a time, each until its state changes, and then others in
//! turn. So an agent that starves a single subject is found too, however many subjects there are.

use crate::clock::Nanos;
use crate::message::{Sequence, Subject};

/// Subjects watched at a time.
pub const WATCHED_MAX: usize = 64;

/// Finds runnable threads of an enclave that have waited too long for a decision.
#[derive(Debug)]
pub struct Watchdog {
    patience: Nanos,
    watched: [Option<(Subject, Sequence, Nanos)>; WATCHED_MAX],
    /// The id at which the search for more threads continues.
    next: u32,
}

impl Watchdog {
    /// Creates a watchdog with this limit. Call [`Watchdog::look`] at least four times per `patience`.
    pub const fn new(patience: Nanos) -> Watchdog {
        Watchdog { patience, watched: [None; WATCHED_MAX], next: 0 }
    }

    /// Checks once. `a_core_is_idle` holds now; `still_waits` tells whether a subject is runnable at
    /// exactly this sequence; `waiting` yields the runnable subjects, from the given id on, then from 0.
    /// Returns the longest wait if it has reached the patience.
    pub fn look<I: Iterator<Item = (Subject, Sequence)>>(
        &mut self,
        now: Nanos,
        a_core_is_idle: bool,
        still_waits: impl Fn(Subject, Sequence) -> bool,
        waiting: impl FnOnce(u32) -> I,
    ) -> Option<Nanos> {
        if !a_core_is_idle {
            self.watched = [None; WATCHED_MAX];
            return None;
        }
        let mut longest = None;
        for slot in &mut self.watched {
            match slot {
                Some((subject, sequence, since)) if still_waits(*subject, *sequence) => {
                    longest = longest.max(Some(now.since(*since)));
                }
                _ => *slot = None,
            }
        }
        let mut candidates = waiting(self.next).take(WATCHED_MAX);
        for at in 0..WATCHED_MAX {
            if self.watched[at].is_some() {
                continue;
            }
            let Some((subject, sequence)) = candidates.next() else { break };
            self.next = subject.id.wrapping_add(1);
            let watched = self.watched.iter().flatten();
            if watched.into_iter().all(|(known, ..)| *known != subject) {
                self.watched[at] = Some((subject, sequence, now));
            }
        }
        longest.filter(|waited| *waited >= self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(id: u32) -> Subject {
        Subject { id, generation: 1 }
    }

    /// The state of all threads but one changes between any two looks.
    #[test]
    fn a_starved_thread_is_found_among_many() {
        const THREADS: u32 = 500;
        const STARVED: u32 = 333;
        let mut watchdog = Watchdog::new(Nanos(20));
        let mut barked = None;
        for look in 0..40u32 {
            let sequence = |id| Sequence(if id == STARVED { 7 } else { look });
            let bark = watchdog.look(
                Nanos(u64::from(look) * 5),
                true,
                |subject, at| sequence(subject.id) == at,
                |from| {
                    let ids = (from..THREADS).chain(0..from);
                    ids.map(|id| (subject(id), sequence(id)))
                },
            );
            barked = barked.or(bark.map(|_| look));
        }
        // The search reaches each thread within 500 / 64 looks, and the patience is 4 looks.
        assert!(barked.is_some_and(|look| look <= 13), "{barked:?}");
    }

    #[test]
    fn a_queue_behind_busy_cores_is_not_reported() {
        let mut watchdog = Watchdog::new(Nanos(20));
        for look in 0..20 {
            // Every third time all cores are busy.
            let idle = look % 3 != 0;
            let one = |_| [(subject(1), Sequence(1))].into_iter();
            assert_eq!(watchdog.look(Nanos(look * 5), idle, |_, _| true, one), None);
        }
    }
}
