//! The watchdog: work has waited too long for a decision (Wave 3.3: 20 ms for scheduling).
//!
//! Work *waits for a decision* while it is runnable, unchanged, and some core has nothing to do at
//! every look. A queue that is long because all cores are busy is no fault of the agent's.
//!
//! A bounded number of subjects is watched at a time, each until it moves, and then others in turn.
//! So an agent that serves all but one is found too, however many there are.

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
    /// Barks when something has waited for `patience`. Wants to look at least four times as often.
    pub const fn new(patience: Nanos) -> Watchdog {
        Watchdog { patience, watched: [None; WATCHED_MAX], next: 0 }
    }

    /// One look. `a_core_is_idle` as of now; `still_waits` says whether a subject is runnable at
    /// just this sequence; `waiting` gives those that are runnable, from the id it is given on, then
    /// from 0. Returns how long something has waited where that is longer than the patience.
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

    /// All threads but one move between any two looks.
    #[test]
    fn one_that_is_never_served_is_found_among_many() {
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
        // The search comes by within 500 / 64 looks, and the patience is 4 looks.
        assert!(barked.is_some_and(|look| look <= 13), "{barked:?}");
    }

    #[test]
    fn a_line_in_front_of_busy_cores_is_no_fault() {
        let mut watchdog = Watchdog::new(Nanos(20));
        for look in 0..20 {
            // Every third time all cores are busy.
            let idle = look % 3 != 0;
            let one = |_| [(subject(1), Sequence(1))].into_iter();
            assert_eq!(watchdog.look(Nanos(look * 5), idle, |_, _| true, one), None);
        }
    }
}
