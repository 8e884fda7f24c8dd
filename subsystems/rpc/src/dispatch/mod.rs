//! The agent's side: calls that a front brings, handed to workers as the steering policy says, and what the workers answer.
//!
//! ```text
//!           begin                    steering: to this worker             STATUS, MESSAGE with END
//!  (free) --------> Waiting ------------------------------------> Handed --------------------------> (free)
//!                      |                                             |
//!                      | cancel, deadline: free at once              | cancel, deadline: CANCEL goes to the worker,
//!                      v                                             v the front hears no more, the worker still has to end it
//!                   (free)                                        Handed, alone
//! ```
//!
//! Each step is a bounded amount of work. What a call may have on its way is bounded in both directions ([`Load`]).

mod calls;
mod error;
mod event;
mod waiting;

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;
use wave_core::agent::{ENTRIES_PER_TURN, Step};
use wave_core::clock::Nanos;
use wave_core::control::Revoked;
use wave_core::endpoint::{Receiver, Sender, home_of};
use wave_core::layout::{AGENT_READY, Layout, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Side, Window};
use wave_core::message::Subject;
use wave_core::note;
use wave_core::park::ParkWord;
use wave_core::waiting::Heap;

pub use self::calls::Arrival;
use self::calls::{Calls, Place, Standing};
pub use self::error::{DispatchError, HostGone, Refused};
pub use self::event::Event;
pub use self::waiting::Queues;
use self::waiting::Tally;
use crate::boxes::{Frame, Inbox, Outbox};
use crate::extents::Extents;
use crate::metadata::Metadata;
use crate::service::Service;
use crate::status::{Code, Status};
use crate::steer::{Request, Steering};
use crate::window::Load;
use crate::wire::{
    BEGIN, Begin, CANCEL, COMPRESSED, END, GRANT, HALF_CLOSE, HAS_MESSAGE, HEADERS, Head, MESSAGE,
    SERVICE, STATUS, TAKEN, WAITS, WORKER, YIELDS, message_flags,
};

/// Calls handed over in one step, at most.
pub const CALLS_PER_STEP: usize = 64;
/// Frames taken from one worker in one step, at most.
pub const FRAMES_PER_TURN: usize = 64;

/// How many calls came to what, since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls taken from the front.
    pub begun: u64,
    /// Calls handed to a worker.
    pub handed: u64,
    /// Ended by a worker, and their front still cared.
    pub answered: u64,
    /// Calls that the front gave up.
    pub cancelled: u64,
    /// Not ended when their time was up.
    pub expired: u64,
    /// Ended because too many waited for their clients.
    pub stopped: u64,
    /// Of those that were handed to a worker and given up or expired, ended by it since.
    pub wound_up: u64,
}

/// The agent's record of a worker.
#[derive(Debug)]
struct Worker {
    outbox: Outbox,
    inbox: Inbox,
    is_there: bool,
    thread: Option<Subject>,
    open: u16,
    /// What its thread was told of last.
    noted: Option<note::Request>,
    /// CANCEL frames so far, which its cancel word tells.
    cancels: u64,
    /// Its queue has an entry of which no note has told its thread, or a call is about to.
    unheard: bool,
}

/// One incarnation of an agent over one window of RPCs.
pub struct Dispatch<L: Port, B: Doorbell> {
    layout: Layout,
    port: L,
    bells: Vec<B>,
    steering: Box<dyn Steering>,
    workers: Vec<Worker>,
    tally: Tally,
    absent: usize,
    /// Workers are threads that somebody schedules.
    are_threads: bool,
    control: Inbox,
    serves: bool,
    calls: Calls,
    /// When calls end by themselves.
    deadlines: Heap,
    notes: Vec<note::Request>,
    /// Calls of threads whose frames still wait, by worker: a thread that looked now would find no complete frame.
    unsent: Vec<(u16, note::Request)>,
    counts: Counts,
    /// What the host did wrong, be it found while a front spoke.
    fault: Option<DispatchError>,
}

impl<L: Port, B: Doorbell> core::fmt::Debug for Dispatch<L, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatch").field("steering", &self.steering.name()).finish_non_exhaustive()
    }
}

impl<L: Port, B: Doorbell> Dispatch<L, B> {
    /// An agent over a checked layout. `bells` are the host's vectors: one per worker, then the control context's.
    pub fn new(layout: Layout, port: L, bells: Vec<B>, steering: Box<dyn Steering>) -> Self {
        let count = usize::from(layout.config.cores);
        assert!(bells.len() > count, "a doorbell per worker and one for the control context");
        let inbox = |place| Inbox::new(Receiver::new(place, Side::Agent));
        let worker = |at: usize| Worker {
            outbox: Outbox::new(
                Sender::new(&layout.decisions[at], Side::Agent),
                Extents::new(&layout, at as u16, Side::Agent),
            ),
            inbox: inbox(&layout.messages[at]),
            is_there: false,
            thread: None,
            open: 0,
            noted: None,
            cancels: 0,
            unheard: false,
        };
        Dispatch {
            workers: (0..count).map(worker).collect(),
            tally: Tally::new(count),
            absent: count,
            are_threads: false,
            control: inbox(&layout.messages[layout.control_context()]),
            serves: false,
            calls: Calls::new(layout.config.subjects),
            deadlines: Heap::new(layout.config.subjects),
            notes: Vec::with_capacity(CALLS_PER_STEP),
            unsent: Vec::with_capacity(CALLS_PER_STEP),
            counts: Counts::default(),
            fault: None,
            layout,
            port,
            bells,
            steering,
        }
    }

    /// Tells the host that this agent is there (Wave Table 1, `START_WAVE_AGENT`). It answers with what it serves.
    pub fn announce(&mut self) {
        let nic = self.port.window(home_of(Side::Agent));
        nic.store(self.layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
        nic.fence();
        self.bells[self.layout.control_vector()].ring();
    }

    /// How long to look for work before parking.
    pub fn spin(&self) -> Nanos {
        self.layout.config.spin
    }

    /// Whether calls may begin.
    pub fn is_ready(&self) -> bool {
        self.serves && self.absent == 0
    }

    /// How many calls came to what.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Calls whose slots are in use.
    pub fn open(&self) -> u32 {
        self.calls.open()
    }

    /// The calls that were handed to threads since the last time: for a scheduler. Each call leaves one, so take them.
    pub fn take_notes(&mut self) -> impl Iterator<Item = note::Request> + '_ {
        self.notes.drain(..)
    }

    /// One for each thread that was told of a call and has not ended all of its calls: for a scheduler that may not have heard.
    pub fn open_notes(&self) -> impl Iterator<Item = note::Request> + '_ {
        self.workers.iter().filter(|worker| worker.open > 0).filter_map(|worker| worker.noted)
    }

    /// A call begins.
    ///
    /// # Errors
    /// It cannot; the front says so to the client.
    pub fn begin(&mut self, now: Nanos, arrival: Arrival) -> Result<Subject, Refused> {
        if !self.is_ready() {
            return Err(Refused::NoHost);
        }
        let (request, deadline) = (arrival.request(), arrival.deadline);
        let call = self.calls.begin(arrival).ok_or(Refused::Full)?;
        if let Some(deadline) = deadline {
            self.deadlines.push(call.id, deadline.0);
        }
        self.counts.begun += 1;
        self.steering.arrived(now, call.id, &request);
        Ok(call)
    }

    /// The client has sent a message, and with `end` nothing follows. It is not compressed, but may have come so.
    pub fn message(&mut self, call: Subject, message: Bytes, end: bool, compressed: bool) {
        self.client_sends(call, Some(message), message_flags(end, compressed));
    }

    /// The client sends nothing more.
    pub fn half_close(&mut self, call: Subject) {
        self.client_sends(call, None, END);
    }

    fn client_sends(&mut self, call: Subject, message: Option<Bytes>, flags: u8) {
        // Nothing follows what was the last.
        let Some(slot) = self.calls.of_front(call).filter(|slot| !slot.half_closed) else { return };
        slot.half_closed = flags & END != 0;
        slot.pending.push_back((message, flags));
        self.pass_on(call.id);
    }

    /// The front is no longer interested: there comes no event about this call any more.
    pub fn cancel(&mut self, call: Subject, why: Code) {
        if self.calls.of_front(call).is_some() {
            self.counts.cancelled += 1;
            self.give_up(call, why);
        }
    }

    /// Returns the room of a reply of `bytes` bytes that reached the client. Call it once for each reply but the last.
    pub fn grant(&mut self, call: Subject, bytes: u32) {
        let Some(slot) = self.calls.of_front(call) else { return };
        slot.to_grant = slot.to_grant.plus(Load::of(bytes));
        let Place::Handed { worker, .. } = slot.place else { return };
        if slot.to_grant.is_much() {
            let granted = core::mem::take(&mut slot.to_grant);
            slot.replies = slot.replies.less(granted);
            let head = Head { argument: granted.to_word(), ..Head::new(GRANT, call) };
            self.follow_up(worker, &head, &[]);
        }
    }

    /// One round: replies of the workers, expired calls, and calls handed over.
    ///
    /// # Errors
    /// The host is at fault, and stays so: drop this, and tell every client that the host is gone.
    pub fn step(&mut self, now: Nanos, events: &mut Vec<Event>) -> Result<Step, DispatchError> {
        if self.fault.is_none() {
            match self.round(now, events) {
                Ok(step) => return Ok(step),
                Err(error) => self.fault = Some(error),
            }
        }
        Err(self.fault.expect("it was found just now, or is known"))
    }

    fn round(&mut self, now: Nanos, events: &mut Vec<Event>) -> Result<Step, DispatchError> {
        let nic = self.port.window(home_of(Side::Agent));
        if Revoked::from_word(nic.load(self.layout.incarnation, 0))?.is_some() {
            return Ok(Step::Revoked);
        }
        let mut progress = self.poll_control(events)?;
        for worker in 0..self.workers.len() {
            let of = &self.workers[worker];
            if of.open > 0 || !of.is_there || of.outbox.lends() {
                progress |= self.poll_worker(now, worker as u16, events)?;
            }
        }
        progress |= self.expire(now, events);
        progress |= self.hand_over(now);
        self.publish()?;
        progress |= self.is_moving();
        if progress {
            // Cancel words, and credits of queues across the link.
            self.port.window(Home::Host).publish();
        }
        match self.fault {
            Some(fault) => Err(fault),
            None if progress => Ok(Step::Progress),
            None => Ok(Step::Idle(self.deadlines.first().map(|(at, _)| Nanos(at)))),
        }
    }

    /// Why the host has gone, as far as its window says; otherwise it hung up. An agent that was replaced is not to come back.
    pub fn why_gone(&self) -> HostGone {
        let nic = self.port.window(home_of(Side::Agent));
        match Revoked::from_word(nic.load(self.layout.incarnation, 0)) {
            Ok(Some(Revoked::Replaced)) => HostGone::Replaced,
            Ok(Some(Revoked::Ended)) => HostGone::Ended,
            Ok(Some(Revoked::TurnedOut)) => HostGone::TurnedOut,
            Ok(Some(Revoked::Fault)) => HostGone::Fault,
            Ok(None) | Err(_) => HostGone::HungUp,
        }
    }

    /// Says that the agent is about to sleep. Step once more after it, and if that finds nothing, wait for the doorbell; then
    /// [`Dispatch::unpark`].
    pub fn prepare_park(&mut self) {
        ParkWord::of_agent(&self.layout).park(&self.port);
    }

    /// Takes PARKED back from the agent's word.
    pub fn unpark(&mut self) {
        ParkWord::of_agent(&self.layout).unpark(&self.port);
    }

    /// What the host serves, whole, from the control context.
    fn poll_control(&mut self, events: &mut Vec<Event>) -> Result<bool, DispatchError> {
        if self.serves {
            return Ok(false);
        }
        let worker = self.layout.config.cores;
        let frame = self.control.next(&self.port, ENTRIES_PER_TURN, &mut Extents::none());
        let Some(frame) = frame.map_err(|error| DispatchError::Frame { worker, error })? else {
            return Ok(self.control.took());
        };
        if frame.head.kind != SERVICE {
            return Err(DispatchError::Kind { worker, kind: frame.head.kind });
        }
        self.serves = true;
        events.push(Event::Service(Service::decode(frame.first)?));
        Ok(true)
    }

    /// Wave Table 1, `POLL_TXNS_OUTCOMES`: replies.
    fn poll_worker(
        &mut self,
        now: Nanos,
        worker: u16,
        events: &mut Vec<Event>,
    ) -> Result<bool, DispatchError> {
        for _ in 0..FRAMES_PER_TURN {
            let Dispatch { workers, calls, deadlines, port, .. } = self;
            let Dispatch { tally, steering, counts, absent, are_threads, .. } = self;
            let of = &mut workers[usize::from(worker)];
            let frame = of.inbox.next(port, ENTRIES_PER_TURN * 4, of.outbox.extents());
            let frame = frame.map_err(|error| DispatchError::Frame { worker, error })?;
            let Some(Frame { head, first, second }) = frame else { break };
            if head.kind == WORKER && !of.is_there {
                of.is_there = true;
                if of.inbox.is_checked() {
                    of.outbox.check();
                }
                of.thread = (head.argument != 0).then(|| Subject::from_word(head.argument));
                *absent -= 1;
                *are_threads |= of.thread.is_some();
                continue;
            }
            let call = head.call;
            let slot = calls.of_worker(call, worker);
            let slot = slot.ok_or(DispatchError::NotItsCall { worker, call })?;
            let to_front = slot.front;
            let mut ended = head.kind == MESSAGE && head.flags & END != 0;
            match head.kind {
                HEADERS => {
                    Metadata::new(first)?;
                    if core::mem::replace(&mut slot.replied, true) {
                        return Err(DispatchError::Kind { worker, kind: HEADERS });
                    }
                    if to_front {
                        events
                            .push(Event::Headers { call, metadata: Bytes::copy_from_slice(first) });
                    }
                }
                MESSAGE => {
                    if slot.replies.is_full() {
                        return Err(DispatchError::Window { worker, call });
                    }
                    slot.replied = true;
                    slot.replies = slot.replies.plus(Load::of(second.len() as u32));
                    if to_front {
                        let message = Bytes::copy_from_slice(second);
                        let compress = head.flags & COMPRESSED != 0;
                        events.push(Event::Message { call, message, end: ended, compress });
                    }
                }
                STATUS => {
                    Metadata::new(second)?;
                    ended = true;
                    if to_front {
                        let message = alloc::string::String::from_utf8_lossy(first).into_owned();
                        let status =
                            Status { code: Code::from_number(head.argument as i32), message };
                        let trailers = Bytes::copy_from_slice(second);
                        events.push(Event::Status { call, status, trailers });
                    }
                }
                TAKEN => {
                    let taken = Load::from_word(head.argument);
                    let Some(left) = slot.on_way.minus(taken) else {
                        return Err(DispatchError::Window { worker, call });
                    };
                    slot.on_way = left;
                    if to_front {
                        let Load { bytes, messages } = taken;
                        events.push(Event::Taken { call, bytes, messages });
                    }
                    self.pass_on(call.id);
                    continue;
                }
                WAITS => {
                    self.on_waits(now, worker, &head, events)?;
                    continue;
                }
                YIELDS => {
                    self.on_yields(worker, &head)?;
                    continue;
                }
                kind => return Err(DispatchError::Kind { worker, kind }),
            }
            if ended {
                if to_front {
                    counts.answered += 1
                } else {
                    counts.wound_up += 1
                }
                of.open -= 1;
                tally.leave(worker, slot.standing());
                let Place::Handed { at, .. } = slot.place else { continue };
                steering.ended(now, worker, &slot.request, now.since(at));
                deadlines.remove(call.id);
                calls.free(call.id);
            }
        }
        Ok(self.workers[usize::from(worker)].inbox.took())
    }

    /// Ends calls whose deadlines have passed.
    fn expire(&mut self, now: Nanos, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        for _ in 0..CALLS_PER_STEP {
            let first = self.deadlines.first();
            let Some((_, id)) = first.filter(|(at, _)| *at <= now.0) else { break };
            any = true;
            let call = self.calls.subject(id);
            self.counts.expired += 1;
            let status = Status::new(Code::DeadlineExceeded, "the deadline has passed");
            events.push(Event::Stopped { call, status });
            self.give_up(call, Code::DeadlineExceeded);
        }
        any
    }

    /// The front is told nothing more. A worker that has the call has to end it all the same.
    fn give_up(&mut self, call: Subject, why: Code) {
        let Some(slot) = self.calls.of_front(call) else { return };
        slot.front = false;
        slot.pending.clear();
        let place = slot.place;
        self.deadlines.remove(call.id);
        match place {
            Place::Handed { worker, .. } => {
                let head = Head { argument: why as u64, ..Head::new(CANCEL, call) };
                self.follow_up(worker, &head, &[]);
                let of = &mut self.workers[usize::from(worker)];
                of.cancels += 1;
                // The word by which a handler that runs learns of it without a look across the link.
                let line = self.layout.preempt + u32::from(worker);
                self.port.window(Home::Host).store(line, 0, of.cancels);
            }
            Place::Waiting => {
                self.steering.left(call.id);
                self.calls.free(call.id);
            }
        }
    }

    /// Wave Table 1, `TXN_CREATE`: calls to workers, as the policy says.
    fn hand_over(&mut self, now: Nanos) -> bool {
        for made in 0..CALLS_PER_STEP {
            let next = self.steering.next(now, self.tally.workers(self.are_threads));
            let Some((id, worker)) = next else { return made > 0 };
            self.tally.enter(worker, Standing::Runs);
            self.workers[usize::from(worker)].open += 1;
            self.counts.handed += 1;
            let call = self.calls.subject(id);
            let slot = self.calls.slot(id);
            slot.place = Place::Handed { worker, at: now };
            let (metadata, message, flags) = slot.take_first();
            let left = slot.deadline.map(|deadline| deadline.since(now));
            let begin = Begin { method: slot.method, class: slot.request.class, left };
            let length = message.as_ref().map(|message| message.len() as u32);
            slot.on_way = length.map_or(Load::default(), Load::of);
            let head = Head {
                flags: flags | if message.is_some() { HAS_MESSAGE } else { 0 },
                lengths: [metadata.len() as u32, slot.on_way.bytes],
                argument: begin.to_word(),
                ..Head::new(BEGIN, call)
            };
            self.send(worker, &head, &metadata, message.as_deref().unwrap_or_default());
            self.pass_on(id);
            self.note(worker, id);
        }
        true
    }

    /// Has a worker's thread told of a call, where it is one.
    fn note(&mut self, worker: u16, id: u32) {
        let of = &mut self.workers[usize::from(worker)];
        let Some(thread) = of.thread else { return };
        let Request { class, slo, .. } = self.calls.slot(id).request;
        self.unsent.push((worker, note::Request { thread, class, slo }));
        of.unheard = true;
    }

    /// Sends what a call has for its worker, as far as its window allows.
    fn pass_on(&mut self, id: u32) {
        let call = self.calls.subject(id);
        loop {
            let slot = self.calls.slot(id);
            let Place::Handed { worker, .. } = slot.place else { return };
            if slot.on_way.is_full() {
                return;
            }
            let Some((message, flags)) = slot.pending.pop_front() else { return };
            let kind = if message.is_some() { MESSAGE } else { HALF_CLOSE };
            if let Some(message) = &message {
                slot.on_way = slot.on_way.plus(Load::of(message.len() as u32));
            }
            let message = message.unwrap_or_default();
            let head = Head { flags, lengths: [0, message.len() as u32], ..Head::new(kind, call) };
            self.follow_up(worker, &head, &message);
        }
    }

    fn send(&mut self, worker: u16, head: &Head, first: &[u8], second: &[u8]) {
        let of = &mut self.workers[usize::from(worker)];
        if let Err(error) = of.outbox.send(&self.port, head, first, second) {
            self.fault = Some(DispatchError::Credit { worker, error });
        }
    }

    /// Wave Table 1, `TXNS_COMMIT`: makes everything travel, and rings for workers that sleep.
    fn publish(&mut self) -> Result<(), DispatchError> {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            if worker.outbox.is_behind() {
                let flushed = worker.outbox.flush(&self.port);
                flushed.map_err(|error| DispatchError::Credit { worker: at as u16, error })?;
            }
            if worker.outbox.publish(&self.port) {
                worker.unheard = true;
                worker.outbox.fence(&self.port);
                if ParkWord::of_core(&self.layout, at as u16).is_parked(&self.port) {
                    self.bells[at].ring();
                }
            }
        }
        let Dispatch { workers, notes, unsent, .. } = self;
        unsent.retain(|(worker, note)| {
            let Worker { outbox, unheard, noted, .. } = &mut workers[usize::from(*worker)];
            let waits = outbox.is_full();
            // Where nothing more fits, its thread has to take what there is.
            if !waits || outbox.is_stuck() && core::mem::take(unheard) {
                *noted = Some(*note);
                notes.push(*note);
            }
            waits
        });
        Ok(())
    }

    /// Lets copies progress. Returns whether some are under way, or frames wait for room: no doorbell rings when these are done.
    fn is_moving(&mut self) -> bool {
        let mut moving = !self.serves && !self.control.poll(&self.port);
        for Worker { inbox, outbox, .. } in &mut self.workers {
            moving |= !inbox.poll(&self.port) | !outbox.poll(&self.port);
        }
        moving
    }
}
