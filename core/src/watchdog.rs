//! The watchdog: finds work that has waited too long for a decision (Wave 3.3: 20 ms for scheduling).
//!
//! Work *waits for a decision* while it is runnable, unchanged, and some core is idle at every look.
//! A queue that is long because all cores are busy is not the agent's fault.
//!
//! A bounded number of subjects is watched at a time, each until its state changes, and then others in
//! turn. So an agent that starves a single subject is found too, however many subjects there are.

use crate::clock::Nanos;
use crate::layout::Config;
use crate::message::{Sequence, Subject};

/// Subjects watched at a time.
pub const WATCHED_MAX: usize = 64;

/// A runnable subject that has waited too long beside an idle core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starved {
    /// The subject that waits.
    pub subject: Subject,
    /// A core that is idle.
    pub core: u16,
    /// How long the subject has waited since it was first seen beside an idle core.
    pub waited: Nanos,
}

impl Starved {
    /// Encodes it in the words that follow the window's incarnation word: the subject, the core, the wait.
    pub const fn to_words(self) -> [u64; 3] {
        [self.subject.to_word(), self.core as u64, self.waited.0]
    }

    /// Decodes the words. `None` if the host names nothing, or names a subject or core that the enclave does not have.
    pub fn from_words([subject, core, waited]: [u64; 3], config: &Config) -> Option<Starved> {
        let subject = Subject::from_word(subject);
        let is_valid = waited > 0 && subject.id < config.subjects && core < config.cores.into();
        is_valid.then_some(Starved { subject, core: core as u16, waited: Nanos(waited) })
    }
}

/// Finds runnable threads of an enclave that have waited too long for a decision.
#[derive(Debug)]
pub struct Watchdog {
    patience: Nanos,
    watched: [Option<(Subject, Sequence, Nanos)>; WATCHED_MAX],
    /// The id at which the search for more threads continues.
    next: u32,
}

impl Watchdog {
    /// Creates a watchdog with this limit. Call [`Watchdog::check`] at least four times per `patience`.
    pub const fn new(patience: Nanos) -> Watchdog {
        Watchdog { patience, watched: [None; WATCHED_MAX], next: 0 }
    }

    /// Checks once. `idle` is a core that is idle now, if there is one; `still_waits` tells whether a subject is runnable at
    /// exactly this sequence; `waiting` yields the runnable subjects, from the given id on, then from 0.
    /// Returns the subject that has waited longest, if its wait has reached the patience.
    pub fn check<I: Iterator<Item = (Subject, Sequence)>>(
        &mut self,
        now: Nanos,
        idle: Option<u16>,
        still_waits: impl Fn(Subject, Sequence) -> bool,
        waiting: impl FnOnce(u32) -> I,
    ) -> Option<Starved> {
        let Some(core) = idle else {
            self.watched = [None; WATCHED_MAX];
            return None;
        };
        let mut longest: Option<Starved> = None;
        for slot in &mut self.watched {
            match slot {
                Some((subject, sequence, since)) if still_waits(*subject, *sequence) => {
                    let waited = now.since(*since);
                    if longest.is_none_or(|longest| waited > longest.waited) {
                        longest = Some(Starved { subject: *subject, core, waited });
                    }
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
        longest.filter(|longest| longest.waited >= self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(id: u32) -> Subject {
        Subject { id, generation: 1 }
    }

    #[test]
    fn a_starved_subject_beyond_the_enclave_is_not_believed() {
        let config = Config { subjects: 8, ..Config::coherent(2) };
        let starved = Starved { subject: subject(7), core: 1, waited: Nanos(20) };
        assert_eq!(Starved::from_words(starved.to_words(), &config), Some(starved));
        let [subject, core, waited] = starved.to_words();
        assert_eq!(Starved::from_words([subject, 2, waited], &config), None);
        assert_eq!(Starved::from_words([subject, core | 1 << 16, waited], &config), None);
        assert_eq!(Starved::from_words([subject + 1, core, waited], &config), None);
        assert_eq!(Starved::from_words([0; 3], &config), None, "an older host says nothing");
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
            let bark = watchdog.check(
                Nanos(u64::from(look) * 5),
                Some(1),
                |subject, at| sequence(subject.id) == at,
                |from| {
                    let ids = (from..THREADS).chain(0..from);
                    ids.map(|id| (subject(id), sequence(id)))
                },
            );
            let is_starved = |bark: Starved| bark.subject == subject(STARVED) && bark.core == 1;
            assert!(bark.is_none_or(is_starved), "{bark:?}");
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
            let idle = (look % 3 != 0).then_some(0);
            let one = |_| [(subject(1), Sequence(1))].into_iter();
            assert_eq!(watchdog.check(Nanos(look * 5), idle, |_, _| true, one), None);
        }
    }
}
