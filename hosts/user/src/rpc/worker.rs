//! A worker, with its queues in the window of the attached agent.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wave_core::clock::{Clock, Nanos};
use wave_core::link::Doorbell;
use wave_core::message::Subject;
use wave_links::{AnyPort, EventFd};
use wave_rpc::metadata::Metadata;
use wave_rpc::status::{Code, Status};
use wave_rpc::stub::{Event, SendError, Stub, StubError, Wait};

use super::idle::Idle;
use super::server::Shared;
use crate::clock::MonotonicClock;
use crate::door::Incarnation;
use crate::shared::lock;

/// The longest sleep of a worker, after which it checks for another agent.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Message buffers that a worker keeps for reuse: their number, and the size of the largest.
const KEPT: usize = 4;
const KEPT_BYTES_MAX: usize = 256 * 1024;
/// Longest wait for copies of replies. They take microseconds, and never end once the agent is gone.
const COPIES_PATIENCE: Nanos = Nanos::from_millis(1);

/// The agent that knew of the call is gone, and with it the waiting client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent is gone, and its calls with it")]
pub struct Lost;

/// How a worker waits for the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It looks while that pays, and then sleeps until its doorbell rings.
    Pthread,
    /// It is a thread of an enclave, and lets other threads run.
    Thread,
}

#[derive(Debug)]
struct Link {
    port: AnyPort,
    stub: Stub,
    incarnation: Arc<Incarnation>,
}

/// One worker of a server, to be polled. [`Worker::poll`] returns requests; end each call that began with
/// [`Worker::finish`] or with a last [`Worker::message`]. Call [`Worker::publish`] after answering.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    index: u16,
    bell: Arc<EventFd>,
    epoch: u64,
    link: Option<Link>,
    patience: Patience,
    idle: Idle,
    kept: Vec<Vec<u8>>,
    unpublished: u32,
    /// Whether an event came since the heap was last looked at.
    has_worked: bool,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        index: u16,
        bell: Arc<EventFd>,
        patience: Patience,
    ) -> Worker {
        let idle = Idle::new(shared.spin);
        Worker {
            shared,
            index,
            bell,
            epoch: 0,
            link: None,
            patience,
            idle,
            kept: Vec::new(),
            unpublished: 0,
            has_worked: false,
        }
    }

    /// Index of this worker in its server.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Number of windows that this worker has used. When [`Worker::poll`] changes it, all earlier calls are gone, and new calls
    /// may reuse their numbers.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Switches to the attached agent's window, if that is another one.
    fn adopt(&mut self) {
        if self.epoch == self.shared.epoch.load(Ordering::Acquire) {
            return;
        }
        self.has_worked = true;
        let incarnation = lock(&self.shared.incarnation);
        self.epoch = self.shared.epoch.load(Ordering::Acquire);
        self.link = incarnation.as_ref().map(|incarnation| Link {
            port: incarnation.port(),
            stub: Stub::new(&incarnation.layout, self.index),
            incarnation: Arc::clone(incarnation),
        });
        drop(incarnation);
        let thread = match self.patience {
            Patience::Thread => crate::current::current().map(|thread| thread.0),
            Patience::Pthread => None,
        };
        if let Some(Link { port, stub, .. }) = &mut self.link {
            if self.shared.checksums {
                stub.check();
            }
            let announced = stub.announce(port, thread);
            self.unpublished += 1;
            self.publish();
            if let Err(error) = announced {
                self.fault(error);
            }
        }
    }

    /// Returns the next event of the attached agent. If another agent has attached since the last poll, all calls of the
    /// previous one are gone.
    pub fn poll(&mut self) -> Option<Event<'_>> {
        self.adopt();
        if self.link.as_ref().is_some_and(|link| link.stub.is_behind()) {
            self.publish();
        }
        let Link { port, stub, incarnation } = self.link.as_mut()?;
        let now = MonotonicClock.now();
        match stub.poll(port, now) {
            Ok(event) => {
                if event.is_some() {
                    self.idle.work_came(now);
                    self.has_worked = true;
                }
                event
            }
            Err(error) => {
                self.shared.fault(incarnation, self.index, error);
                None
            }
        }
    }

    /// Sends the metadata that precedes the replies of a call.
    ///
    /// # Errors
    /// The call is not open.
    pub fn headers(&mut self, call: Subject, encoded: &[u8]) -> Result<(), SendError> {
        let metadata = Metadata::new(encoded).map_err(|_| SendError::NotOpen)?;
        let Link { port, stub, .. } = self.live()?;
        stub.headers(port, call, metadata)?;
        self.unpublished += 1;
        Ok(())
    }

    /// Sends a reply. Its flags: with [`END`](wave_rpc::wire::END) it is the last, and the call has ended with OK; with
    /// [`COMPRESSED`](wave_rpc::wire::COMPRESSED) the client gets it compressed, if it accepts compression.
    ///
    /// # Errors
    /// The call is not open; or its client has not read enough yet: then poll, and try again.
    pub fn message(&mut self, call: Subject, reply: &[u8], flags: u8) -> Result<(), SendError> {
        let Link { port, stub, .. } = self.live()?;
        let sent = stub.message(port, call, reply, flags);
        // Also without room: the agent is told that the call waits.
        self.unpublished += 1;
        sent
    }

    /// Ends a call.
    ///
    /// # Errors
    /// The call is not open because its agent is gone; or status and trailers are too long, and the call stays open.
    pub fn finish(
        &mut self,
        call: Subject,
        status: &Status,
        trailers: &[u8],
    ) -> Result<(), SendError> {
        let Link { port, stub, .. } = self.live()?;
        let trailers = Metadata::new(trailers).unwrap_or_default();
        stub.finish(port, call, status, trailers)?;
        self.unpublished += 1;
        Ok(())
    }

    /// Publishes replies that were sent since the last call.
    pub fn publish(&mut self) {
        self.unpublished = 0;
        let Some(Link { port, stub, incarnation }) = &mut self.link else { return };
        match stub.publish(port) {
            Ok(true) => incarnation.agent_bell.ring(),
            Ok(false) => {}
            Err(error) => self.fault(error),
        }
    }

    /// Publishes, and waits until copies of replies are done: only then is the agent told of them. It waits neither for the agent
    /// nor for longer than [`COPIES_PATIENCE`].
    pub(super) fn send_out(&mut self) {
        self.publish();
        let mut until = None;
        while self.link.as_ref().is_some_and(|link| link.stub.is_copying()) {
            let now = MonotonicClock.now();
            if now >= *until.get_or_insert(now + COPIES_PATIENCE) {
                return;
            }
            std::hint::spin_loop();
            self.publish();
        }
    }

    /// Waits for an event, after [`Worker::poll`] found none.
    ///
    /// On a thread of an enclave it switches: see [the rule](crate#threads-move-between-pthreads) for what may be held across it.
    pub fn wait(&mut self) {
        self.publish();
        if self.patience == Patience::Thread {
            return match &mut self.link {
                Some(Link { port, stub, .. }) => match stub.is_flushed(port) && !stub.has_more() {
                    true => {
                        let awaits = &self.shared.tallies[usize::from(self.index)].awaits;
                        awaits.begin(stub.taken());
                        crate::await_note();
                        awaits.end();
                    }
                    // Nothing wakes the worker when its own replies find room, or when it has left frames for the next look.
                    false => crate::yield_now(),
                },
                // Attaching an agent unparks the worker.
                None => crate::park(),
            };
        }
        let index = usize::from(self.index);
        let now = MonotonicClock.now();
        let Some(Link { port, stub, incarnation }) = &mut self.link else {
            self.has_worked &= !self.shared.trim_heap(now, self.has_worked);
            wave_core::link::Waiter::wait(&*self.bell, Some(SLEEP_MAX));
            return;
        };
        match stub.wait(port, now, self.idle.may_sleep(now)) {
            Ok(Wait::Spin) if !self.shared.yields_cpu => std::hint::spin_loop(),
            Ok(Wait::Spin | Wait::Yield) => std::thread::yield_now(),
            Ok(Wait::Park) => {
                self.has_worked &= !self.shared.trim_heap(now, self.has_worked);
                incarnation.core_bells[index].wait_with(&self.bell, Some(SLEEP_MAX));
            }
            Err(error) => self.fault(error),
        }
    }

    /// Yields the CPU, which the agent may need to make room for replies. No doorbell rings once there is room.
    pub(super) fn wait_for_room(&mut self) {
        self.publish();
        if self.is_stuck() {
            self.yield_cpu();
        }
    }

    /// Yields the CPU: to other threads of the enclave if the worker is one of them, otherwise to the kernel's.
    pub(super) fn yield_cpu(&self) {
        match self.patience {
            Patience::Thread => crate::yield_now(),
            Patience::Pthread => std::thread::yield_now(),
        }
    }

    /// Withholds a call's events from [`Worker::poll`], for a handler that is suspended while it waits.
    pub(super) fn detach(&mut self, call: Subject) {
        if let Ok(Link { stub, .. }) = self.live() {
            stub.detach(call);
        }
    }

    /// Takes a call that is kept apart and no longer needs to wait for its client.
    pub(super) fn take_woken(&mut self) -> Option<Subject> {
        let woken = self.link.as_mut()?.stub.take_woken()?;
        self.idle.work_came(MonotonicClock.now());
        self.has_worked = true;
        Some(woken)
    }

    /// Tells the agent that a call waits for its client.
    pub(super) fn wait_for_client(&mut self, call: Subject) {
        let Ok(Link { port, stub, .. }) = self.live() else { return };
        match stub.wait_for_client(port, call) {
            Ok(()) => self.unpublished += 1,
            Err(error) => self.fault(error),
        }
    }

    /// Whether replies wait for the agent to take earlier ones.
    pub(super) fn is_stuck(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.stub.is_stuck())
    }

    /// Tells the agent that the worker runs other handlers between the messages of this call.
    pub(super) fn yield_to_others(&mut self, call: Subject) {
        let Ok(Link { port, stub, .. }) = self.live() else { return };
        match stub.yield_to_others(port, call) {
            Ok(()) => self.unpublished += 1,
            Err(error) => self.fault(error),
        }
    }

    /// Adds the work done between two looks that found nothing to the counters.
    pub(super) fn tally(&self, calls: u64, busy: Nanos) {
        self.shared.tallies[usize::from(self.index)].add(calls, busy);
    }

    /// Publishes sent replies once they fill the server's batch.
    pub(super) fn publish_batch(&mut self) {
        if self.unpublished >= self.shared.batch {
            self.publish();
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The reason for which a call was cancelled, if it was. Does not read across the link, so a long call can check often.
    ///
    /// # Errors
    /// The call's agent is gone.
    pub fn is_cancelled(&mut self, call: Subject) -> Result<Option<Code>, Lost> {
        let Link { port, stub, incarnation } = self.live().map_err(|_| Lost)?;
        let incarnation = Arc::clone(incarnation);
        let result = stub.is_cancelled(port, MonotonicClock.now(), call);
        // The cancellation may wait at the agent until extents are returned.
        if stub.is_behind() {
            self.publish();
        }
        result.map_err(|error| self.lose(&incarnation, error))
    }

    pub(super) fn poll_call(&mut self, call: Subject) -> Result<Option<Event<'_>>, Lost> {
        self.live().map_err(|_| Lost)?;
        let Link { port, stub, incarnation } = self.link.as_mut().ok_or(Lost)?;
        let now = MonotonicClock.now();
        match stub.poll_call(port, now, call) {
            Ok(event) => {
                if event.is_some() {
                    self.idle.work_came(now);
                    self.has_worked = true;
                }
                Ok(event)
            }
            Err(error) => {
                self.shared.fault(incarnation, self.index, error);
                Err(Lost)
            }
        }
    }

    fn lose(&self, incarnation: &Incarnation, error: StubError) -> Lost {
        self.shared.fault(incarnation, self.index, error);
        Lost
    }

    /// This worker's link, if it uses the attached agent's window.
    fn live(&mut self) -> Result<&mut Link, SendError> {
        let is_current = self.epoch == self.shared.epoch.load(Ordering::Acquire);
        self.link.as_mut().filter(|_| is_current).ok_or(SendError::NotOpen)
    }

    fn fault(&self, seen: impl Display) {
        if let Some(link) = &self.link {
            self.shared.fault(&link.incarnation, self.index, seen);
        }
    }

    /// An empty buffer for a message.
    pub(super) fn memory(&mut self) -> Vec<u8> {
        let mut memory = self.kept.pop().unwrap_or_default();
        memory.clear();
        memory
    }

    pub(super) fn keep(&mut self, memory: Vec<u8>) {
        if self.kept.len() < KEPT && memory.capacity() <= KEPT_BYTES_MAX {
            self.kept.push(memory);
        }
    }
}
