//! A worker's side on the host: requests in, replies out.
//!
//! [`Stub`] is sans I/O: its driver owns the port, waits, and rings. It keeps only messages that came while a handler was busy
//! with another call, at most as many as the agent may have in flight to it.
//!
//! # Calls that wait for their clients
//!
//! A reply that finds no room, or a worker that [waits](Stub::wait) while a client has not half-closed, tells the agent that
//! the call waits ([`WAITS`](crate::wire::WAITS)): steering does not count it until the agent has something for it. The frame
//! says how many of the call's frames had arrived, so the agent can ignore a WAITS that crossed with a grant or a message.
//!
//! A worker that suspends handlers keeps their calls [detached](Stub::detach): frames for such a call are kept for it, and the
//! stub [names](Stub::take_woken) the call once.
//!
//! # Parking without losing a wake-up
//!
//! As for a core ([`wave_core::host`]): the worker sets PARKED in its word, fences, reads the word back from NIC memory, polls
//! once more, and only then waits for its doorbell. The agent checks that word after it has sent something.

mod detached;
mod event;
mod wait;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::backlog::Backlog;
use wave_core::clock::Nanos;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::Layout;
use wave_core::link::{Home, Port, Side, Window};
use wave_core::message::Subject;
use wave_core::park::ParkWord;
use wave_core::queue::PushError;

use self::event::event;
pub use self::event::{Event, SendError, StubError};
pub use self::wait::Wait;
use crate::boxes::{FRAME_BYTES_MAX, Inbox, Outbox};
use crate::extents::Extents;
use crate::metadata::Metadata;
use crate::status::{Code, Status};
use crate::window::Load;
use crate::wire::{
    BEGIN, Begin, CANCEL, END, GRANT, HALF_CLOSE, HAS_MESSAGE, HEADERS, Head, MESSAGE, STATUS,
    TAKEN, WORKER,
};

/// Most entries taken in one look.
const ENTRIES_PER_LOOK: usize = 4096;
/// Frames taken in one call, at most: an agent may write as fast as its worker reads, also after its window was revoked.
const FRAMES_PER_LOOK: usize = 1024;

/// A worker's record of a call.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    generation: u32,
    is_open: bool,
    /// Why the call was cancelled, if it was.
    cancelled: Option<Code>,
    /// Replies that were sent, and whose room the agent has not granted again.
    on_way: Load,
    /// Messages that arrived, and were not taken.
    untaken: Load,
    /// Messages that were taken, of which the agent was not told.
    taken: Load,
    /// A reply, or the metadata before it, was sent.
    replied: bool,
    /// The client sends nothing more.
    half_closed: bool,
    /// Frames that arrived after its BEGIN.
    frames: u32,
    /// The agent was told that the call waits, and has sent nothing for it since.
    waits: bool,
    /// The agent was told that the worker runs other calls between this call's messages.
    yields: bool,
    /// The call's frames are kept in a queue of its own.
    is_detached: bool,
    is_noted: bool,
}

/// A frame that came while a handler was busy.
#[derive(Debug)]
struct Kept {
    head: Head,
    bytes: Vec<u8>,
    at: Nanos,
}

/// One worker in one window.
#[derive(Debug)]
pub struct Stub {
    inbox: Inbox,
    outbox: Outbox,
    park: ParkWord,
    cancel_word: u32,
    agent: ParkWord,
    calls: Vec<Open>,
    open: u32,
    /// CANCEL frames so far.
    cancels: u64,
    /// Frames kept for later: per open call at most a BEGIN, a window of messages, a half-close and a cancellation. There is no
    /// common limit, which some calls could use up while the message that a handler waits for is still in the queue.
    kept: Backlog<Kept>,
    /// The same for calls that are kept apart, by slot.
    detached: Vec<Backlog<Kept>>,
    /// Calls that are kept apart, waited, and have got a frame since.
    woken: VecDeque<Subject>,
    /// As [`Stub::has_more`] says.
    has_more: bool,
    /// Calls that got a frame since the worker last ran out of work, and whose clients may send more.
    noted: Vec<Subject>,
    /// Bytes of the frame that [`Stub::poll`] returned last.
    current: Vec<u8>,
    parked: bool,
}

impl Stub {
    /// Adds checksums to frames, and requires them. Call it before any frame is sent or received.
    pub fn check(&mut self) {
        self.inbox.check();
        self.outbox.check();
    }

    /// The stub of worker number `worker` in a fresh window.
    pub fn new(layout: &Layout, worker: u16) -> Stub {
        let at = usize::from(worker);
        Stub {
            inbox: Inbox::new(Receiver::new(&layout.decisions[at], Side::Host)),
            outbox: Outbox::new(
                Sender::new(&layout.messages[at], Side::Host),
                Extents::new(layout, worker, Side::Host),
            ),
            park: ParkWord::of_core(layout, worker),
            cancel_word: layout.preempt + u32::from(worker),
            agent: ParkWord::of_agent(layout),
            calls: alloc::vec![Open::default(); layout.config.subjects as usize],
            open: 0,
            cancels: 0,
            kept: Backlog::new(),
            detached: (0..layout.config.subjects).map(|_| Backlog::new()).collect(),
            woken: VecDeque::new(),
            has_more: false,
            noted: Vec::new(),
            current: Vec::new(),
            parked: false,
        }
    }

    /// Announces this worker to the agent, with its thread if a scheduler is to get notes about its requests.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn announce(&mut self, port: &impl Port, thread: Option<Subject>) -> Result<(), PushError> {
        let argument = thread.map_or(0, Subject::to_word);
        let head = Head { argument, ..Head::new(WORKER, Subject::default()) };
        self.outbox.send(port, &head, &[], &[])
    }

    /// Number of entries that this worker has taken from its request queue so far.
    pub fn taken(&self) -> u64 {
        self.inbox.consumed()
    }

    /// Number of open calls of this worker.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// The next event (Wave Table 1, `POLL_TXNS`), except those of calls that are kept apart. Frames for calls that have ended
    /// are skipped. A call that was cancelled or has expired before it begins is ended here. Also returns `None` if a call that
    /// is kept apart was woken.
    ///
    /// # Errors
    /// The agent is at fault.
    #[inline]
    pub fn poll(&mut self, port: &impl Port, now: Nanos) -> Result<Option<Event<'_>>, StubError> {
        if self.parked {
            self.parked = false;
            self.park.unpark(port);
        }
        if !self.kept.is_empty() || self.cancel_is_on_its_way(port) {
            self.attend(port, now)?;
            return self.poll_kept(port, now, None);
        }
        for _ in 0..FRAMES_PER_LOOK {
            let Some(frame) = self.inbox.next(port, ENTRIES_PER_LOOK, self.outbox.extents())?
            else {
                return Ok(None);
            };
            let (head, first) = (frame.head, frame.first.len());
            self.current.clear();
            self.current.extend_from_slice(frame.first);
            self.current.extend_from_slice(frame.second);
            if self.admit(&head)? {
                if self.is_detached(head.call) {
                    let bytes = core::mem::take(&mut self.current);
                    self.detached[head.call.id as usize].push_back(Kept { head, bytes, at: now });
                } else if self.deliver(port, &head, Nanos(0))? {
                    return Ok(Some(event(&head, &self.current, first)?));
                }
            }
            if !self.woken.is_empty() {
                return Ok(None);
            }
        }
        self.has_more = true;
        Ok(None)
    }

    fn is_detached(&mut self, call: Subject) -> bool {
        self.of(call).is_some_and(|open| open.is_detached)
    }

    /// The next event of one call, for a handler that waits for messages. Frames for other calls are kept.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn poll_call(
        &mut self,
        port: &impl Port,
        now: Nanos,
        call: Subject,
    ) -> Result<Option<Event<'_>>, StubError> {
        self.attend(port, now)?;
        self.poll_kept(port, now, Some(call))
    }

    fn poll_kept(
        &mut self,
        port: &impl Port,
        now: Nanos,
        of: Option<Subject>,
    ) -> Result<Option<Event<'_>>, StubError> {
        loop {
            let next = match of {
                Some(call) if self.is_detached(call) => self.detached[call.id as usize].pop_front(),
                Some(call) => {
                    let at = self.kept.iter().position(|kept| kept.head.call == call);
                    at.and_then(|at| self.kept.remove(at))
                }
                None => self.kept.pop_front(),
            };
            let Some(Kept { head, bytes, at }) = next else { return Ok(None) };
            self.current = bytes;
            if self.deliver(port, &head, now.since(at))? {
                let first = head.lengths[0] as usize;
                return Ok(Some(event(&head, &self.current, first)?));
            }
        }
    }

    /// Whether and why the call was cancelled, for a handler that runs for long. Reads across the link only if the cancel word
    /// has changed; frames that arrived meanwhile are kept for later.
    ///
    /// # Errors
    /// The agent is at fault.
    #[inline]
    pub fn is_cancelled(
        &mut self,
        port: &impl Port,
        now: Nanos,
        call: Subject,
    ) -> Result<Option<Code>, StubError> {
        if self.cancel_is_on_its_way(port) && self.attend(port, now)? {
            self.has_more = true;
        }
        Ok(self.of(call).and_then(|open| open.cancelled))
    }

    #[inline]
    fn cancel_is_on_its_way(&self, port: &impl Port) -> bool {
        port.window(Home::Host).load(self.cancel_word, 0) != self.cancels
    }

    /// Checks and records a frame as it arrives. Returns whether it becomes an event for the worker, now or later.
    fn admit(&mut self, head: &Head) -> Result<bool, StubError> {
        let call = head.call;
        if head.kind == BEGIN {
            let open = self.calls.get_mut(call.id as usize).ok_or(StubError::Call(call))?;
            // An agent reuses a slot after it has seen its last call's end, so that no frame of the slot waits here.
            let is_free =
                !open.is_open && self.outbox.waiting().all(|head| head.call.id != call.id);
            if !is_free {
                return Err(StubError::Call(call));
            }
            *open = Open {
                generation: call.generation,
                is_open: true,
                untaken: load(head),
                half_closed: head.flags & END != 0,
                ..Open::default()
            };
            self.open += 1;
            return Ok(true);
        }
        if head.kind == CANCEL {
            self.cancels += 1;
        }
        // The agent may still name a call that this worker has ended.
        let Some(open) = self.of(call) else { return Ok(false) };
        open.frames = open.frames.wrapping_add(1);
        if core::mem::take(&mut open.waits) {
            if open.is_detached {
                self.woken.push_back(call);
            } else if head.kind == GRANT {
                // The agent counts the call again, and the worker gets no event after which it would report the call.
                self.report_when_idle(call);
            }
        }
        let unseen = self.unseen(call, head.kind);
        let Some(open) = self.of(call) else { return Ok(false) };
        match head.kind {
            MESSAGE | HALF_CLOSE => {
                if open.half_closed {
                    return Err(StubError::Kind(head.kind));
                }
                if open.untaken.plus(open.taken).plus(unseen).is_full() {
                    return Err(StubError::Window(call));
                }
                open.untaken = open.untaken.plus(load(head));
                open.half_closed |= head.flags & END != 0 || head.kind == HALF_CLOSE;
            }
            CANCEL => {
                let why = Code::from_number(head.argument as i32);
                if open.cancelled.replace(why).is_some() {
                    return Err(StubError::Kind(CANCEL));
                }
            }
            GRANT => {
                open.on_way = open.on_way.less(Load::from_word(head.argument));
                // Room for replies that the agent has not taken would let any number of them wait here.
                let is_taken = open.on_way.minus(unseen).is_some();
                return if is_taken { Ok(false) } else { Err(StubError::Window(call)) };
            }
            kind => return Err(StubError::Kind(kind)),
        }
        Ok(true)
    }

    /// The load of a call's frames that the agent cannot have seen: for a frame of this kind, those that the agent must have seen
    /// before it sends more.
    fn unseen(&self, call: Subject, kind: u16) -> Load {
        let heads = self.outbox.waiting().filter(|head| head.call == call);
        let load = |head: &Head| match (kind, head.kind) {
            (GRANT, MESSAGE) => load(head),
            (MESSAGE | HALF_CLOSE, TAKEN) => Load::from_word(head.argument),
            _ => Load::default(),
        };
        heads.map(load).fold(Load::default(), Load::plus)
    }

    /// Handles a frame that was kept for `waited`. Returns whether the worker gets an event of it.
    fn deliver(&mut self, port: &impl Port, head: &Head, waited: Nanos) -> Result<bool, StubError> {
        let Some(open) = self.of(head.call) else { return Ok(false) };
        match head.kind {
            BEGIN => {
                let left = Begin::from_word(head.argument).left;
                let expired =
                    left.is_some_and(|left| left <= waited).then_some(Code::DeadlineExceeded);
                if let Some(why) = open.cancelled.or(expired) {
                    self.end(port, head.call, &Status { code: why, ..Status::ok() }, &[])?;
                    return Ok(false);
                }
                self.take(port, head)?;
            }
            MESSAGE => self.take(port, head)?,
            _ => {}
        }
        self.report_when_idle(head.call);
        Ok(true)
    }

    /// The worker has taken a frame's message: the agent may send as much again.
    fn take(&mut self, port: &impl Port, head: &Head) -> Result<(), PushError> {
        let call = head.call;
        let Some(open) = self.of(call) else { return Ok(()) };
        open.untaken = open.untaken.less(load(head));
        open.taken = open.taken.plus(load(head));
        if !open.half_closed && open.taken.is_much() {
            let taken = core::mem::take(&mut open.taken);
            let head = Head { argument: taken.to_word(), ..Head::new(TAKEN, call) };
            self.outbox.send(port, &head, &[], &[])?;
        }
        Ok(())
    }

    /// Sends the metadata before the replies.
    ///
    /// # Errors
    /// The call is not open, or the agent is at fault.
    pub fn headers(
        &mut self,
        port: &impl Port,
        call: Subject,
        metadata: Metadata<'_>,
    ) -> Result<(), SendError> {
        let bytes = metadata.as_bytes();
        check_length(bytes.len())?;
        let open = self.of(call).ok_or(SendError::NotOpen)?;
        if core::mem::replace(&mut open.replied, true) {
            return Err(SendError::TooLate);
        }
        let head = Head { lengths: [bytes.len() as u32, 0], ..Head::new(HEADERS, call) };
        Ok(self.outbox.send(port, &head, bytes, &[])?)
    }

    /// Sends a reply (Wave Table 1, `SET_TXNS_OUTCOMES`). The flag [`END`] makes it the last one and ends the call with OK;
    /// [`COMPRESSED`](crate::wire::COMPRESSED) has it compressed if the client accepts that.
    ///
    /// # Errors
    /// The client has not read enough of earlier replies, the call is not open, the reply is too long, or the agent is at
    /// fault.
    #[inline]
    pub fn message(
        &mut self,
        port: &impl Port,
        call: Subject,
        message: &[u8],
        flags: u8,
    ) -> Result<(), SendError> {
        check_length(message.len())?;
        let open = self.of(call).ok_or(SendError::NotOpen)?;
        if open.on_way.is_full() {
            self.wait_for_client(port, call)?;
            return Err(SendError::Blocked);
        }
        open.on_way = open.on_way.plus(Load::of(message.len() as u32));
        open.replied = true;
        let head = Head { flags, lengths: [0, message.len() as u32], ..Head::new(MESSAGE, call) };
        if flags & END != 0 {
            self.forget(call);
        }
        Ok(self.outbox.send(port, &head, &[], message)?)
    }

    /// Ends a call.
    ///
    /// # Errors
    /// The call is not open, or the agent is at fault.
    pub fn finish(
        &mut self,
        port: &impl Port,
        call: Subject,
        status: &Status,
        trailers: Metadata<'_>,
    ) -> Result<(), SendError> {
        self.of(call).ok_or(SendError::NotOpen)?;
        check_length(status.message.len() + trailers.as_bytes().len())?;
        Ok(self.end(port, call, status, trailers.as_bytes())?)
    }

    fn end(
        &mut self,
        port: &impl Port,
        call: Subject,
        status: &Status,
        trailers: &[u8],
    ) -> Result<(), PushError> {
        self.forget(call);
        let text = status.message.as_bytes();
        let head = Head {
            lengths: [text.len() as u32, trailers.len() as u32],
            argument: status.code as u64,
            ..Head::new(STATUS, call)
        };
        self.outbox.send(port, &head, text, trailers)
    }

    fn forget(&mut self, call: Subject) {
        let open = &mut self.calls[call.id as usize];
        open.is_open = false;
        if core::mem::take(&mut open.is_noted) {
            self.noted.retain(|noted| *noted != call);
        }
        self.open -= 1;
        // Kept frames must not be taken for those of a later call, should the agent reuse the name.
        if !self.kept.is_empty() {
            self.kept.retain(|kept| kept.head.call != call);
        }
        self.detached[call.id as usize].clear();
        if !self.woken.is_empty() {
            self.woken.retain(|woken| *woken != call);
        }
    }

    fn of(&mut self, call: Subject) -> Option<&mut Open> {
        let open = self.calls.get_mut(call.id as usize)?;
        (open.is_open && open.generation == call.generation).then_some(open)
    }

    /// Publishes replies. Returns whether the agent sleeps and must be rung. A worker that answers several calls at once calls
    /// it after the last of them.
    ///
    /// # Errors
    /// The agent is at fault.
    #[inline]
    pub fn publish(&mut self, port: &impl Port) -> Result<bool, PushError> {
        if self.outbox.is_behind() {
            self.outbox.flush(port)?;
        }
        if !self.outbox.publish(port) {
            return Ok(false);
        }
        self.outbox.fence(port);
        Ok(self.agent.is_parked(port))
    }

    /// Whether another [`Stub::publish`] is needed: replies wait for room or for copies under way, or extents are to be
    /// returned.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.outbox.is_behind()
    }

    /// Whether sent frames wait only for this side's copies.
    pub fn is_copying(&self) -> bool {
        self.outbox.waiting().next().is_some() && !self.is_stuck()
    }

    /// Number of sent frames that are not completely written: they wait for room, for extents or for copies.
    pub fn waiting(&self) -> usize {
        self.outbox.waiting().count()
    }

    /// Whether sent frames wait for the agent to take earlier ones, as of the last time that something was sent or published.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.outbox.is_stuck()
    }

    /// Whether everything that was sent is on its way. If not, publish again.
    pub fn is_flushed(&mut self, port: &impl Port) -> bool {
        self.inbox.poll(port) & self.outbox.poll(port)
    }

    /// Starts to fetch the next request (Wave 5.4).
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        self.inbox.prefetch(port);
    }
}

/// The load that a frame adds to its call's window.
fn load(head: &Head) -> Load {
    let has_message = head.kind == MESSAGE || head.flags & HAS_MESSAGE != 0;
    if has_message { Load::of(head.lengths[1]) } else { Load::default() }
}

/// The agent would refuse a longer frame and drop this host, which would end every call.
fn check_length(bytes: usize) -> Result<(), SendError> {
    if bytes as u64 > FRAME_BYTES_MAX { Err(SendError::TooLong(bytes as u64)) } else { Ok(()) }
}
