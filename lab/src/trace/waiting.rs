//! The number of subjects that wait for a decision, according to messages and outcomes.

use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::snapshot::{Snapshot, State};

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sequence: Sequence,
    seen: bool,
    waits: bool,
}

/// Counts the waiting subjects.
#[derive(Debug)]
pub struct Waiting {
    subjects: Vec<Known>,
    count: u64,
}

impl Waiting {
    /// A counter for ids below `subjects`; none waits yet.
    pub fn new(subjects: u32) -> Waiting {
        Waiting { subjects: vec![Known::default(); subjects as usize], count: 0 }
    }

    /// Number of subjects that wait now.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn set(&mut self, subject: Subject, sequence: Sequence, waits: bool) {
        let Some(known) = self.subjects.get_mut(subject.id as usize) else { return };
        self.count += u64::from(waits);
        self.count -= u64::from(known.waits);
        *known = Known { sequence, seen: true, waits };
    }

    /// Handles a message; a later one may have overtaken it.
    pub fn on_message(&mut self, message: &Message, waits: bool) {
        let Message { subject, sequence, .. } = *message;
        let known = self.subjects.get(subject.id as usize);
        if known.is_some_and(|known| !known.seen || sequence.ahead_of(known.sequence) > 0) {
            self.set(subject, sequence, waits);
        }
    }

    /// Handles a committed decision.
    pub fn on_complete(&mut self, decision: &Decision) {
        let known = self.subjects.get(decision.subject.id as usize);
        if known.is_some_and(|known| known.sequence == decision.sequence) {
            self.set(decision.subject, decision.sequence, false);
        }
    }

    /// Handles a snapshot, which may be older than messages already handled.
    pub fn on_snapshot(&mut self, snapshot: &Snapshot) {
        for record in &snapshot.records {
            let known = self.subjects.get(record.subject.id as usize);
            let is_news =
                |known: &Known| !known.seen || record.sequence.ahead_of(known.sequence) >= 0;
            if known.is_some_and(is_news) {
                self.set(record.subject, record.sequence, record.state == State::Runnable);
            }
        }
    }
}
