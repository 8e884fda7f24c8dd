//! First in, first out, each thread to the end of its run (Wave 7.2.1).
//!
//! Cores that ask are served first. The rest of the run queue is prestaged on running cores only while the queue is at least as
//! long as there are cores (Wave 4.1: "linear in the number of cores"): a thread that is bound to a running core would
//! otherwise wait for that core while another goes idle.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::note::Request;
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Note, Policy, Progress};
use wave_core::snapshot::{Snapshot, State};

use crate::wire::{self, Event, Kind};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Not waiting: blocked, dead or unknown.
    #[default]
    Away,
    Queued,
    Staged,
    Running,
    /// Runnable, but without work before a request's note.
    Awaiting,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    generation: u32,
    sequence: Sequence,
    place: Place,
    /// Whether its id is in the queue, even if the thread no longer waits.
    listed: bool,
    /// Whether a request came, or may have come, since it last awaited one.
    noted: bool,
    /// After a snapshot: the next AWAITS may have been heard before, or end a run that began before a note. So that AWAITS
    /// leaves `noted` for the next one.
    unsure: bool,
}

/// The run-to-completion policy.
#[derive(Debug)]
pub struct Fifo {
    threads: Vec<Thread>,
    queue: VecDeque<u32>,
}

impl Fifo {
    /// For an enclave of this configuration.
    pub fn new(config: &Config) -> Fifo {
        let count = config.subjects as usize;
        Fifo {
            threads: alloc::vec![Thread::default(); count],
            queue: VecDeque::with_capacity(count),
        }
    }

    /// Length of the run queue, including ids of threads that no longer wait.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    fn enqueue(&mut self, id: u32) {
        let Some(thread) = self.threads.get_mut(id as usize) else { return };
        thread.place = Place::Queued;
        if !core::mem::replace(&mut thread.listed, true) {
            self.queue.push_back(id);
        }
    }

    fn dequeue(&mut self) -> Option<(Subject, Sequence)> {
        while let Some(id) = self.queue.pop_front() {
            let thread = &mut self.threads[id as usize];
            thread.listed = false;
            if thread.place == Place::Queued {
                thread.place = Place::Staged;
                return Some((Subject { id, generation: thread.generation }, thread.sequence));
            }
        }
        None
    }

    #[inline]
    fn stage_next(&mut self, desk: &mut Desk<'_>, core: u16) -> bool {
        let Some((thread, sequence)) = self.dequeue() else { return false };
        desk.stage(core, wire::run(thread, sequence, Nanos(0)));
        true
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    #[inline]
    fn on_message(&mut self, _now: Nanos, message: &Message) {
        let Some(event) = Event::from_message(message) else { return };
        let Some(thread) = self.threads.get_mut(event.thread.id as usize) else { return };
        thread.noted &= thread.generation == event.thread.generation;
        thread.generation = event.thread.generation;
        thread.sequence = event.sequence;
        let noted = thread.noted;
        if event.kind == Kind::Awaits && !core::mem::take(&mut thread.unsure) {
            thread.noted = false;
        }
        if event.kind == Kind::Awaits && !noted {
            thread.place = Place::Awaiting;
        } else if event.kind.leaves_runnable() {
            self.enqueue(event.thread.id);
        } else {
            thread.place = Place::Away;
        }
    }

    fn on_note(&mut self, _now: Nanos, note: &Note) {
        let Some(Request { thread: subject, .. }) = Request::from_note(note) else { return };
        let Some(thread) = self.threads.get_mut(subject.id as usize) else { return };
        if thread.generation != subject.generation {
            return;
        }
        if thread.place == Place::Awaiting {
            self.enqueue(subject.id);
        } else {
            // Also if the thread only waits: it may have run already, on a decision from before a snapshot.
            thread.noted = true;
        }
    }

    #[inline]
    fn on_outcome(&mut self, _now: Nanos, _core: u16, decision: &Decision, outcome: Outcome) {
        let Some(thread) = self.threads.get_mut(decision.subject.id as usize) else { return };
        let unchanged = thread.generation == decision.subject.generation
            && thread.sequence == decision.sequence
            && thread.place == Place::Staged;
        if !unchanged {
            return;
        }
        match outcome.code {
            Code::Complete | Code::TargetOnCpu => thread.place = Place::Running,
            // The thread's next message will report what made the decision stale.
            Code::TargetStale | Code::TargetNotFound | Code::TargetNotRunnable => {}
            // The refusal concerns the core or the form of the decision: the thread still waits.
            _ => self.enqueue(decision.subject.id),
        }
    }

    #[inline]
    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        while let Some(core) = desk.asking() {
            if !self.stage_next(desk, core) {
                return Progress::Done;
            }
        }
        let cores = usize::from(desk.cores());
        while cores == 1 || self.queue.len() >= cores {
            let Some(core) = desk.open() else { break };
            if !self.stage_next(desk, core) {
                return Progress::Done;
            }
        }
        if desk.is_full() { Progress::More } else { Progress::Done }
    }

    fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
        self.queue.clear();
        self.threads.fill(Thread::default());
        for record in &snapshot.records {
            let Some(thread) = self.threads.get_mut(record.subject.id as usize) else { continue };
            thread.generation = record.subject.generation;
            thread.sequence = record.sequence;
            (thread.noted, thread.unsure) = (true, true);
            match record.state {
                State::Runnable => self.enqueue(record.subject.id),
                State::Running => thread.place = Place::Running,
                State::Blocked | State::Free => {}
            }
        }
    }
}
