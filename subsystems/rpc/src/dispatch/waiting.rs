//! Which calls take a place on their worker: all except streams that wait for their clients or yield to other calls.
//!
//! A worker reports two kinds of calls: those that can do nothing before their client reads replies or sends a message
//! ([`WAITS`]), and those with many messages, between which the worker runs other calls from then on ([`YIELDS`]). Steering
//! counts neither. So clients that leave streams unread or open, or read long ones, take no worker's place from other clients.
//! At most half of all calls may wait. Beyond that, the agent stops those that have waited longest, of the address and
//! connection with the most.

use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::link::{Doorbell, Port};

use super::calls::Standing;
use super::{Dispatch, DispatchError, Event};
use crate::status::{Code, Status};
use crate::steer::Workers;
use crate::wire::{Head, WAITS, YIELDS};

/// At most this fraction (1/N) of the calls that may wait is stopped at once.
const STOPPED_SHARE: u32 = 16;

/// Calls in an agent's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Workers of the host.
    pub workers: u32,
    /// Calls that a worker runs or has queued, without streams that wait for their clients.
    pub at_workers: u32,
    /// Calls that were not handed to a worker yet.
    pub waiting: u32,
}

/// Counters of calls at workers, by standing.
#[derive(Debug)]
pub(super) struct Tally {
    /// Running calls, per worker.
    running: Vec<u32>,
    /// Yielding calls, per worker.
    yielding: Vec<u32>,
    waiting: u32,
}

impl Tally {
    pub(super) fn new(workers: usize) -> Tally {
        Tally { running: alloc::vec![0; workers], yielding: alloc::vec![0; workers], waiting: 0 }
    }

    /// Counts a call of this worker with its new standing.
    pub(super) fn enter(&mut self, worker: u16, standing: Standing) {
        match standing {
            Standing::Runs => self.running[usize::from(worker)] += 1,
            Standing::Yields => self.yielding[usize::from(worker)] += 1,
            Standing::Waits => self.waiting += 1,
        }
    }

    /// Counts a call of this worker no longer.
    pub(super) fn leave(&mut self, worker: u16, standing: Standing) {
        match standing {
            Standing::Runs => self.running[usize::from(worker)] -= 1,
            Standing::Yields => self.yielding[usize::from(worker)] -= 1,
            Standing::Waits => self.waiting -= 1,
        }
    }

    /// Running and yielding calls of all workers.
    pub(super) fn at_workers(&self) -> u32 {
        self.running.iter().chain(&self.yielding).sum()
    }

    /// The workers as steering sees them.
    pub(super) fn workers(&self, are_threads: bool) -> Workers<'_> {
        Workers { calls: &self.running, yielding: &self.yielding, are_threads }
    }
}

impl<L: Port, B: Doorbell> Dispatch<L, B> {
    /// Counts the calls in the queues now. Visits each worker.
    pub fn queues(&self) -> Queues {
        let handed: u32 = self.workers.iter().map(|worker| worker.open).sum();
        Queues {
            workers: self.workers.len() as u32,
            at_workers: self.tally.at_workers(),
            waiting: self.open().saturating_sub(handed),
        }
    }

    /// Handles a WAITS frame: the worker has nothing to do for this call before its client acts.
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
            // The frames sent since wake the call. The thread may have looked before they arrived, so it gets a note.
            self.note_once(worker, head.call.id);
        } else if slot.front {
            self.tally.leave(worker, slot.standing());
            slot.waits = Some(now);
            self.tally.enter(worker, Standing::Waits);
            self.limit_waiting(events);
        }
        Ok(())
    }

    /// Handles a YIELDS frame: from now on the worker runs other calls between this call's messages.
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

    /// If more calls wait for their clients than may, stops some that have waited longest: several at once, so that clients
    /// cannot cause a scan of all calls with each stream that they open.
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

    /// Sends a frame after a call's BEGIN. The call no longer waits for its client.
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

    /// Prepares a note for a worker's thread unless one is pending: after any note the thread looks at everything that came.
    fn note_once(&mut self, worker: u16, call: u32) {
        if self.unsent.iter().all(|(other, _)| *other != worker) {
            self.note(worker, call);
        }
    }
}
