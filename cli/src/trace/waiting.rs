//! How many threads wait for a core, as far as messages and outcomes tell.

use wave_core::message::{Decision, Sequence, Subject};
use wave_core::snapshot::{Snapshot, State};
use wave_sched::wire::Event;

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    sequence: Sequence,
    seen: bool,
    waits: bool,
}

/// Counts them.
#[derive(Debug)]
pub struct Waiting {
    threads: Vec<Thread>,
    count: u64,
}

impl Waiting {
    /// Of ids below `subjects`, none of which has been heard of.
    pub fn new(subjects: u32) -> Waiting {
        Waiting { threads: vec![Thread::default(); subjects as usize], count: 0 }
    }

    /// How many wait now.
    pub fn count(&self) -> u64 {
        self.count
    }

    fn set(&mut self, subject: Subject, sequence: Sequence, waits: bool) {
        let Some(thread) = self.threads.get_mut(subject.id as usize) else { return };
        self.count += u64::from(waits);
        self.count -= u64::from(thread.waits);
        *thread = Thread { sequence, seen: true, waits };
    }

    /// A message, which one that happened later may have overtaken.
    pub fn on_event(&mut self, event: &Event) {
        let known = self.threads.get(event.thread.id as usize);
        if known.is_some_and(|known| !known.seen || event.sequence.ahead_of(known.sequence) > 0) {
            self.set(event.thread, event.sequence, event.kind.leaves_runnable());
        }
    }

    /// A thread got its core.
    pub fn on_complete(&mut self, decision: &Decision) {
        let known = self.threads.get(decision.subject.id as usize);
        if known.is_some_and(|known| known.sequence == decision.sequence) {
            self.set(decision.subject, decision.sequence, false);
        }
    }

    /// The host's truth, which may be older than what was heard.
    pub fn on_snapshot(&mut self, snapshot: &Snapshot) {
        for record in &snapshot.records {
            let known = self.threads.get(record.subject.id as usize);
            let is_news =
                |known: &Thread| !known.seen || record.sequence.ahead_of(known.sequence) >= 0;
            if known.is_some_and(is_news) {
                self.set(record.subject, record.sequence, record.state == State::Runnable);
            }
        }
    }
}
