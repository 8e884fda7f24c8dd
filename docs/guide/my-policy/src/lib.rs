//! Two classes of threads with strict priority: an ordinary thread is chosen only while no urgent
//! one waits. Within a class, first in, first out. Each thread runs until it stops by itself.
//!
//! Class 0 is urgent, every other class is ordinary. Only urgent threads are prestaged. A staged
//! decision cannot be taken back, so a prestaged ordinary thread would run before an urgent one
//! that comes after it.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Progress};
use wave_core::snapshot::{Snapshot, State};
use wave_sched::wire::{self, Event};

/// The class of urgent threads.
pub const URGENT: u16 = 0;

/// Where a class waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lane {
    Urgent,
    #[default]
    Ordinary,
}

/// Where a thread is, as far as the agent knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Not ours to place: blocked, dead, never heard of.
    #[default]
    Away,
    Queued,
    Staged,
    Running,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    generation: u32,
    sequence: Sequence,
    lane: Lane,
    place: Place,
    /// For each lane, whether the id stands in its queue, be it that the thread has moved on. So no
    /// id stands in a queue twice, and no queue outgrows its capacity.
    listed: [bool; 2],
}

/// The policy. One entry per id of the host's table.
#[derive(Debug)]
pub struct TwoClass {
    threads: Vec<Thread>,
    queues: [VecDeque<u32>; 2],
}

impl TwoClass {
    /// For an enclave of this configuration.
    pub fn new(config: &Config) -> TwoClass {
        let count = config.subjects as usize;
        let queue = || VecDeque::with_capacity(count);
        TwoClass { threads: vec![Thread::default(); count], queues: [queue(), queue()] }
    }

    fn enqueue(&mut self, id: u32) {
        let Some(thread) = self.threads.get_mut(id as usize) else { return };
        thread.place = Place::Queued;
        let lane = thread.lane as usize;
        if !std::mem::replace(&mut thread.listed[lane], true) {
            self.queues[lane].push_back(id);
        }
    }

    /// The next thread of a lane, whose place is then *staged*.
    fn dequeue(&mut self, lane: Lane) -> Option<(Subject, Sequence)> {
        while let Some(id) = self.queues[lane as usize].pop_front() {
            let thread = &mut self.threads[id as usize];
            thread.listed[lane as usize] = false;
            // An id that has moved on since it was queued is passed over.
            if thread.place == Place::Queued && thread.lane == lane {
                thread.place = Place::Staged;
                return Some((Subject { id, generation: thread.generation }, thread.sequence));
            }
        }
        None
    }
}

impl Policy for TwoClass {
    fn name(&self) -> &'static str {
        "two-class"
    }

    fn on_message(&mut self, _now: Nanos, message: &Message) {
        // A kind of a later version, or an id out of range, is passed over: nothing here may panic
        // because of what a host wrote.
        let Some(event) = Event::from_message(message) else { return };
        let Some(thread) = self.threads.get_mut(event.thread.id as usize) else { return };
        thread.generation = event.thread.generation;
        thread.sequence = event.sequence;
        thread.lane = if event.class == URGENT { Lane::Urgent } else { Lane::Ordinary };
        if event.kind.leaves_runnable() {
            self.enqueue(event.thread.id);
        } else {
            thread.place = Place::Away;
        }
    }

    fn on_outcome(&mut self, _now: Nanos, _core: u16, decision: &Decision, outcome: Outcome) {
        let Some(thread) = self.threads.get_mut(decision.subject.id as usize) else { return };
        let unchanged = thread.generation == decision.subject.generation
            && thread.sequence == decision.sequence
            && thread.place == Place::Staged;
        if !unchanged {
            return; // A message has said something newer.
        }
        match outcome.code {
            Code::Complete | Code::TargetOnCpu => thread.place = Place::Running,
            // The host knows something about the thread that its next message will tell.
            Code::TargetStale | Code::TargetNotFound | Code::TargetNotRunnable => {}
            // It was about the core, or the decision's form: the thread still waits.
            _ => self.enqueue(decision.subject.id),
        }
    }

    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        // First the cores that wait.
        while let Some(core) = desk.asking() {
            let next = self.dequeue(Lane::Urgent).or_else(|| self.dequeue(Lane::Ordinary));
            let Some((thread, sequence)) = next else { return Progress::Done };
            desk.stage(core, wire::run(thread, sequence, Nanos(0)));
        }
        // Then those that run, while there is more than a thread for each. Otherwise a thread would
        // be bound to a core that runs, and wait for it, while another core goes idle.
        let cores = usize::from(desk.cores());
        while cores == 1 || self.queues[Lane::Urgent as usize].len() >= cores {
            let Some(core) = desk.open() else { break };
            let Some((thread, sequence)) = self.dequeue(Lane::Urgent) else { break };
            desk.stage(core, wire::run(thread, sequence, Nanos(0)));
        }
        if desk.is_full() { Progress::More } else { Progress::Done }
    }

    fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        for thread in &mut self.threads {
            (thread.place, thread.listed) = (Place::Away, [false; 2]);
        }
        for record in &snapshot.records {
            let id = record.subject.id;
            let Some(thread) = self.threads.get_mut(id as usize) else { continue };
            thread.lane = if record.class == URGENT { Lane::Urgent } else { Lane::Ordinary };
            thread.generation = record.subject.generation;
            thread.sequence = record.sequence;
            match record.state {
                State::Runnable => self.enqueue(id),
                State::Running => thread.place = Place::Running,
                State::Blocked | State::Free => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
