//! Which calls take a place on their worker: all but streams that wait for their clients or yield to other calls.
//!
//! A worker tells of a call that can do nothing before its client reads replies or sends a message ([`WAITS`]), and of one that has
//! sent or received many messages, between which the worker runs other calls from then on ([`YIELDS`]). Steering counts neither, so
//! clients that leave streams unread or open, or read long ones, take no worker's place from others. At most half of all calls may
//! wait. Beyond that the calls that have waited longest are stopped, of the connection and the address with most of them.

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::link::{Doorbell, Port};

use super::calls::Standing;
use super::{Dispatch, DispatchError, Event};
use crate::status::{Code, Status};
use crate::steer::Workers;
use crate::wire::{Head, WAITS, YIELDS};

/// Most calls that are stopped at once: one in this many of those that may wait.
const STOPPED_SHARE: u32 = 16;

/// Calls in an agent's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Workers of the host.
    pub workers: u32,
    /// Calls that a worker runs or has queued, without streams that wait for their clients.
    pub at_workers: u32,
    /// Calls that no worker has yet.
    pub waiting: u32,
}

/// How many calls of workers have which standing.
#[derive(Debug)]
pub(super) struct Tally {
    /// Of each worker its calls that run.
    running: Vec<u16>,
    /// Of each worker its calls that yield.
    yielding: Vec<u16>,
    waiting: u32,
}

impl Tally {
    pub(super) fn new(workers: usize) -> Tally {
        Tally { running: alloc::vec![0; workers], yielding: alloc::vec![0; workers], waiting: 0 }
    }

    /// A call of this worker has this standing now.
    pub(super) fn enter(&mut self, worker: u16, standing: Standing) {
        match standing {
            Standing::Runs => self.running[usize::from(worker)] += 1,
            Standing::Yields => self.yielding[usize::from(worker)] += 1,
            Standing::Waits => self.waiting += 1,
        }
    }

    /// A worker no longer has a call of this standing.
    pub(super) fn leave(&mut self, worker: u16, standing: Standing) {
        match standing {
            Standing::Runs => self.running[usize::from(worker)] -= 1,
            Standing::Yields => self.yielding[usize::from(worker)] -= 1,
            Standing::Waits => self.waiting -= 1,
        }
    }

    /// Calls that run or yield, of all workers.
    pub(super) fn at_workers(&self) -> u32 {
        self.running.iter().chain(&self.yielding).map(|&calls| u32::from(calls)).sum()
    }

    /// What steering may know.
    pub(super) fn workers(&self, are_threads: bool) -> Workers<'_> {
        Workers { calls: &self.running, yielding: &self.yielding, are_threads }
    }
}

impl<L: Port, B: Doorbell> Dispatch<L, B> {
    /// Counts the calls in the queues now. Looks at each worker.
    pub fn queues(&self) -> Queues {
        let handed: u32 = self.workers.iter().map(|worker| worker.open as u32).sum();
        Queues {
            workers: self.workers.len() as u32,
            at_workers: self.tally.at_workers(),
            waiting: self.open().saturating_sub(handed),
        }
    }

    /// A worker says that a call of its own waits.
    pub(super) fn on_waits(
        &mut self,
        now: Nanos,
        worker: u16,
        head: &Head,
        events: &mut Vec<Event>,
    ) -> Result<(), DispatchError> {
        let slot = self.calls.slot(head.call.id);
        if slot.waits.is_some() {
            return Err(DispatchError::Kind { worker, kind: WAITS });
        }
        if slot.frames != head.argument as u32 {
            // What was sent since wakes the call; but its thread may have looked before that came.
            self.note_once(worker, head.call.id);
        } else if slot.front {
            self.tally.leave(worker, slot.standing());
            slot.waits = Some(now);
            self.tally.enter(worker, Standing::Waits);
            self.limit_waiting(events);
        }
        Ok(())
    }

    /// A worker says that it runs others between the messages of a call of its own.
    pub(super) fn on_yields(&mut self, worker: u16, head: &Head) -> Result<(), DispatchError> {
        let slot = self.calls.slot(head.call.id);
        if slot.standing() != Standing::Runs {
            return Err(DispatchError::Kind { worker, kind: YIELDS });
        }
        slot.yields = true;
        self.tally.leave(worker, Standing::Runs);
        self.tally.enter(worker, Standing::Yields);
        Ok(())
    }

    /// Stops calls that have waited longest for their clients, if more wait than may: several at once, so that clients do not have all
    /// calls looked at for each stream that they open.
    fn limit_waiting(&mut self, events: &mut Vec<Event>) {
        let most = (self.layout.config.subjects / 2).max(1);
        if self.tally.waiting <= most {
            return;
        }
        let count = (most / STOPPED_SHARE).max(1) as usize;
        for call in self.calls.longest_of_most(count) {
            self.counts.stopped += 1;
            let text = "as many streams wait for their clients as may, and most of them here";
            let status = Status::new(Code::ResourceExhausted, text);
            events.push(Event::Stopped { call, status });
            self.give_up(call, Code::ResourceExhausted);
        }
    }

    /// Sends what follows a call's beginning: it no longer waits for its client.
    pub(super) fn follow_up(&mut self, worker: u16, head: &Head, message: &[u8]) {
        self.send(worker, head, &[], message);
        let slot = self.calls.slot(head.call.id);
        slot.frames = slot.frames.wrapping_add(1);
        if slot.waits.take().is_some() {
            let standing = slot.standing();
            self.tally.leave(worker, Standing::Waits);
            self.tally.enter(worker, standing);
            self.note_once(worker, head.call.id);
        }
    }

    /// Has a worker's thread told, unless it will be: any note has it look at all that came.
    fn note_once(&mut self, worker: u16, call: u32) {
        if self.unsent.iter().all(|(other, _)| *other != worker) {
            self.note(worker, call);
        }
    }
}
