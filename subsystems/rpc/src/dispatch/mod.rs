//! The agent's side: takes calls from a front, hands them to workers as the steering policy decides, and returns the replies.
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
//! Each step is a bounded amount of work. The data in flight of a call is bounded in both directions ([`Load`]).

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

/// Counters of calls by outcome, since the beginning of this incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls taken from the front.
    pub begun: u64,
    /// Calls handed to a worker.
    pub handed: u64,
    /// Calls that a worker ended while the front still wanted them.
    pub answered: u64,
    /// Calls that the front gave up.
    pub cancelled: u64,
    /// Calls whose deadlines passed before they ended.
    pub expired: u64,
    /// Calls stopped because too many waited for their clients.
    pub stopped: u64,
    /// Calls that a worker ended after they were cancelled, expired or stopped.
    pub wound_up: u64,
}

/// The agent's record of a worker.
#[derive(Debug)]
struct Worker {
    outbox: Outbox,
    inbox: Inbox,
    is_there: bool,
    thread: Option<Subject>,
    open: u32,
    /// The last note for the worker's thread.
    noted: Option<note::Request>,
    /// CANCEL frames so far, as in the worker's cancel word.
    cancels: u64,
    /// The worker's queue has an entry that no note has announced to its thread, or is about to get one.
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
    /// Workers are threads under a scheduler, not CPUs.
    are_threads: bool,
    control: Inbox,
    serves: bool,
    calls: Calls,
    /// Deadlines of calls.
    deadlines: Heap,
    notes: Vec<note::Request>,
    /// Notes for threads whose frames still wait, with the worker: a thread that looked now would find no complete frame.
    unsent: Vec<(u16, note::Request)>,
    counts: Counts,
    /// Cancel words were written, and not published.
    has_cancelled: bool,
    /// The host's fault, which may be found in a call from the front as well.
    fault: Option<DispatchError>,
}

impl<L: Port, B: Doorbell> core::fmt::Debug for Dispatch<L, B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Dispatch").field("steering", &self.steering.name()).finish_non_exhaustive()
    }
}

impl<L: Port, B: Doorbell> Dispatch<L, B> {
    /// An agent over a checked layout. `bells` are the host's doorbells: one per worker, then the control context's.
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
            has_cancelled: false,
            fault: None,
            layout,
            port,
            bells,
            steering,
        }
    }

    /// Tells the host that this agent is there (Wave Table 1, `START_WAVE_AGENT`). The host answers with its service.
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

    /// Counters of calls by outcome.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Number of slots in use, including those of calls that were given up and have not ended yet.
    pub fn open(&self) -> u32 {
        self.calls.open()
    }

    /// Drains the notes for a scheduler about calls that were handed to threads. Take them regularly: each call adds one.
    pub fn take_notes(&mut self) -> impl Iterator<Item = note::Request> + '_ {
        self.notes.drain(..)
    }

    /// The last note of each thread that has open calls, for a scheduler that may have missed earlier notes.
    pub fn open_notes(&self) -> impl Iterator<Item = note::Request> + '_ {
        self.workers.iter().filter(|worker| worker.open > 0).filter_map(|worker| worker.noted)
    }

    /// Begins a call.
    ///
    /// # Errors
    /// The call cannot begin; the front tells the client.
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

    /// The client has sent a message; with `end` it is the last. The message is uncompressed here; `compressed` says whether it
    /// arrived compressed.
    pub fn message(&mut self, call: Subject, message: Bytes, end: bool, compressed: bool) {
        self.client_sends(call, Some(message), message_flags(end, compressed));
    }

    /// The client sends nothing more.
    pub fn half_close(&mut self, call: Subject) {
        self.client_sends(call, None, END);
    }

    fn client_sends(&mut self, call: Subject, message: Option<Bytes>, flags: u8) {
        // After a half-close the client sends nothing.
        let Some(slot) = self.calls.of_front(call).filter(|slot| !slot.half_closed) else { return };
        slot.half_closed = flags & END != 0;
        slot.pending.push_back((message, flags));
        self.pass_on(call.id);
    }

    /// The front gives a call up: it gets no more events about it.
    pub fn cancel(&mut self, call: Subject, why: Code) {
        if self.calls.of_front(call).is_some() {
            self.counts.cancelled += 1;
            self.give_up(call, why);
        }
    }

    /// Grants the worker the room of a reply of `bytes` bytes again, which reached the client. Call it once for each reply but
    /// the last.
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

    /// One round: takes replies from workers, ends expired calls, and hands calls over.
    ///
    /// # Errors
    /// The host is at fault; each later call returns the same error. Drop this, and tell every client that the host is gone.
    pub fn step(&mut self, now: Nanos, events: &mut Vec<Event>) -> Result<Step, DispatchError> {
        if self.fault.is_none() {
            match self.round(now, events) {
                Ok(step) => return Ok(step),
                Err(error) => self.fault = Some(error),
            }
        }
        Err(self.fault.expect("the fault is known"))
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
        if core::mem::take(&mut self.has_cancelled) | progress {
            // Cancel words, and credits of queues across the link.
            self.port.window(Home::Host).publish();
        }
        match self.fault {
            Some(fault) => Err(fault),
            None if progress => Ok(Step::Progress),
            None => Ok(Step::Idle(self.deadlines.first().map(|(at, _)| Nanos(at)))),
        }
    }

    /// Why the host has gone, according to its window; if the window says nothing, it hung up. An agent that was replaced must
    /// not attach again.
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

    /// Announces that the agent is about to sleep. Step once more; if that finds nothing, wait for the doorbell, then call
    /// [`Dispatch::unpark`].
    pub fn prepare_park(&mut self) {
        ParkWord::of_agent(&self.layout).park(&self.port);
    }

    /// Removes PARKED from the agent's word.
    pub fn unpark(&mut self) {
        ParkWord::of_agent(&self.layout).unpark(&self.port);
    }

    /// Takes the host's description of its service from the control context's queue, once.
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

    /// Gives a call up: its front gets no more events. A worker that has the call must still end it.
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
                // A running handler reads this word in its own memory: it learns of the cancellation without a read across the
                // link.
                let line = self.layout.preempt + u32::from(worker);
                self.port.window(Home::Host).store(line, 0, of.cancels);
                self.has_cancelled = true;
            }
            Place::Waiting => {
                self.steering.left(call.id);
                self.calls.free(call.id);
            }
        }
    }

    /// Wave Table 1, `TXN_CREATE`: hands calls to workers as the policy decides.
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

    /// Prepares a note about a call, if the worker is a scheduled thread.
    fn note(&mut self, worker: u16, id: u32) {
        let of = &mut self.workers[usize::from(worker)];
        let Some(thread) = of.thread else { return };
        let Request { class, slo, .. } = self.calls.slot(id).request;
        self.unsent.push((worker, note::Request { thread, class, slo }));
        of.unheard = true;
    }

    /// Sends a call's pending messages to its worker, as far as the window allows.
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

    /// Wave Table 1, `TXNS_COMMIT`: publishes everything that was written, and rings workers that sleep.
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
            // If nothing more fits, the thread must take what is in the queue first.
            if !waits || outbox.is_stuck() && core::mem::take(unheard) {
                *noted = Some(*note);
                notes.push(*note);
            }
            waits
        });
        Ok(())
    }

    /// Lets copies progress. Returns whether some are under way or frames wait for room: no doorbell rings when that changes.
    fn is_moving(&mut self) -> bool {
        let mut moving = !self.serves && !self.control.poll(&self.port);
        for Worker { inbox, outbox, .. } in &mut self.workers {
            moving |= !inbox.poll(&self.port) | !outbox.poll(&self.port);
        }
        moving
    }
}
