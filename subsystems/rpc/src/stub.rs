//! A worker's side on the host: requests in, replies out.
//!
//! [`Stub`] is sans I/O: its driver owns the port, waits, and rings. It keeps no message but those that came while a handler
//! was busy with another call, and of these as many as the agent may have on their way to it.
//!
//! # Calls that wait for their clients
//!
//! A reply that finds no room, or a worker that runs out of work while a client has not half-closed, tells the agent that the call
//! waits ([`WAITS`]): steering does not count it until the agent has something for it. The frame says how much of the call had
//! come, so one that crosses with a grant or a message is told from one that still holds.
//!
//! A worker that suspends handlers keeps their calls [apart](Stub::keep_apart): what comes for such a call is kept for it, and its
//! name is [given](Stub::take_woken) once.
//!
//! # Parking without losing a wake-up
//!
//! As a core's ([`wave_core::host`]): the worker says that it is parked, fences, reads that back from NIC memory, looks once more,
//! and only then waits for its doorbell. The agent looks at that word after it has sent something.

mod event;
mod wait;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

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
use crate::boxes::{FRAME_BYTES_MAX, Frame, Inbox, Outbox};
use crate::extents::Extents;
use crate::metadata::Metadata;
use crate::status::{Code, Status};
use crate::window::Load;
use crate::wire::{
    BEGIN, Begin, CANCEL, END, GRANT, HALF_CLOSE, HAS_MESSAGE, HEADERS, Head, MESSAGE, STATUS,
    TAKEN, WAITS, WORKER, YIELDS,
};

/// Entries taken in one look.
const ENTRIES_PER_LOOK: usize = 4096;

/// A call that a worker has.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    generation: u32,
    is_open: bool,
    /// Why the call was cancelled, if it was.
    cancelled: Option<Code>,
    /// Replies on their way, for which the agent has not granted room again.
    on_way: Load,
    /// Messages that came and were not taken.
    untaken: Load,
    /// Messages that were taken, and the agent was not told.
    taken: Load,
    /// A reply was sent, or the metadata that precedes it.
    replied: bool,
    /// The client sends nothing more.
    half_closed: bool,
    /// Frames that came after its beginning.
    frames: u32,
    /// The agent was told that it waits, and has sent nothing since.
    waits: bool,
    /// The agent was told that the worker runs others between its messages.
    yields: bool,
    /// What comes for it is kept in a queue of its own.
    is_apart: bool,
    is_delivered: bool,
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
    /// CANCEL frames that came.
    cancels: u64,
    /// Of each open call its beginning, a window of messages, an end and a cancellation at most: no limit of its own, which one
    /// call could use up while its handler's next message waits in the queue.
    kept: VecDeque<Kept>,
    /// The same of calls that are kept apart, by slot.
    apart: Vec<VecDeque<Kept>>,
    /// Calls that are kept apart, waited, and for which something came.
    woken: VecDeque<Subject>,
    /// Calls of which something was given since the worker last ran out of work, and whose clients may send more.
    delivered: Vec<Subject>,
    /// What [`Stub::poll`] gave last, if it came out of `kept`.
    current: Vec<u8>,
    parked: bool,
}

impl Stub {
    /// Ends frames with checksums, in both directions. To be called before any frame is sent or received.
    pub fn check(&mut self) {
        self.inbox.check();
        self.outbox.check();
    }

    /// Worker number `worker` of a fresh window.
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
            kept: VecDeque::new(),
            apart: (0..layout.config.subjects).map(|_| VecDeque::new()).collect(),
            woken: VecDeque::new(),
            delivered: Vec::new(),
            current: Vec::new(),
            parked: false,
        }
    }

    /// Tells the agent that this worker is there, and which thread it is, if a scheduler is to hear of its requests.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn announce(&mut self, port: &impl Port, thread: Option<Subject>) -> Result<(), PushError> {
        let argument = thread.map_or(0, Subject::to_word);
        let head = Head { argument, ..Head::new(WORKER, Subject::default()) };
        self.outbox.send(port, &head, &[], &[])
    }

    /// Entries of its request queue that this worker has taken so far.
    pub fn taken(&self) -> u64 {
        self.inbox.consumed()
    }

    /// Calls that this worker has.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Keeps what comes for a call from [`Stub::poll`]: its handler asks by [`Stub::poll_call`].
    pub fn keep_apart(&mut self, call: Subject) {
        let Some(open) = self.of(call) else { return };
        open.is_apart = true;
        if core::mem::take(&mut open.is_delivered) {
            self.delivered.retain(|delivered| *delivered != call);
        }
        // What came while another handler ran.
        for kept in core::mem::take(&mut self.kept) {
            let is_its = kept.head.call == call;
            let queue = if is_its { &mut self.apart[call.id as usize] } else { &mut self.kept };
            queue.push_back(kept);
        }
    }

    /// A call that is kept apart, said to wait, and for which something has come since.
    pub fn take_woken(&mut self) -> Option<Subject> {
        self.woken.pop_front()
    }

    /// Tells the agent that a call waits for its client: it will have something for it later. Once until then.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn wait_for_client(&mut self, port: &impl Port, call: Subject) -> Result<(), PushError> {
        let Some(open) = self.of(call).filter(|open| !open.waits) else { return Ok(()) };
        open.waits = true;
        let head = Head { argument: open.frames.into(), ..Head::new(WAITS, call) };
        self.outbox.send(port, &head, &[], &[])
    }

    /// Tells the agent that from now on the worker runs other calls between the messages of this one. Once for a call.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn yield_to_others(&mut self, port: &impl Port, call: Subject) -> Result<(), PushError> {
        let Some(open) = self.of(call).filter(|open| !open.yields && !open.waits) else {
            return Ok(());
        };
        open.yields = true;
        self.outbox.send(port, &Head::new(YIELDS, call), &[], &[])
    }

    /// The next thing that came (Wave Table 1, `POLL_TXNS`), but for calls that are kept apart. What concerns calls that were
    /// ended is passed over, and a call that was cancelled, or whose deadline has passed, ends here before it is begun. Returns
    /// none as well where a call that is kept apart was woken.
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
        loop {
            let Some(frame) = self.inbox.next(port, ENTRIES_PER_LOOK, self.outbox.extents())?
            else {
                return Ok(None);
            };
            let (head, first) = (frame.head, frame.first.len());
            self.current.clear();
            self.current.extend_from_slice(frame.first);
            self.current.extend_from_slice(frame.second);
            if self.admit(&head)? {
                if self.is_apart(head.call) {
                    let bytes = core::mem::take(&mut self.current);
                    self.apart[head.call.id as usize].push_back(Kept { head, bytes, at: now });
                } else if self.deliver(port, &head, Nanos(0))? {
                    return Ok(Some(event(&head, &self.current, first)?));
                }
            }
            if !self.woken.is_empty() {
                return Ok(None);
            }
        }
    }

    fn is_apart(&mut self, call: Subject) -> bool {
        self.of(call).is_some_and(|open| open.is_apart)
    }

    /// The next thing that came for one call: for a handler that waits for messages. What comes for others is kept.
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
                Some(call) if self.is_apart(call) => self.apart[call.id as usize].pop_front(),
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

    /// Whether the call was given up, as far as is known without a look across the link. For a handler that runs for long: what
    /// came meanwhile is kept for later.
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
        if self.cancel_is_on_its_way(port) {
            self.attend(port, now)?;
        }
        Ok(self.of(call).and_then(|open| open.cancelled))
    }

    #[inline]
    fn cancel_is_on_its_way(&self, port: &impl Port) -> bool {
        port.window(Home::Host).load(self.cancel_word, 0) != self.cancels
    }

    /// Takes what has come and keeps it for later: for a handler that waits until it may send. Returns whether there was
    /// anything: a worker that finds nothing may [`Stub::wait`].
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn attend(&mut self, port: &impl Port, now: Nanos) -> Result<bool, StubError> {
        while let Some(Frame { head, first, second }) =
            self.inbox.next(port, ENTRIES_PER_LOOK, self.outbox.extents())?
        {
            let mut bytes = Vec::with_capacity(first.len() + second.len());
            bytes.extend_from_slice(first);
            bytes.extend_from_slice(second);
            if self.admit(&head)? {
                let kept = match self.is_apart(head.call) {
                    true => &mut self.apart[head.call.id as usize],
                    false => &mut self.kept,
                };
                kept.push_back(Kept { head, bytes, at: now });
            }
        }
        Ok(self.inbox.took())
    }

    /// Records a frame as it comes. Returns whether the worker will get an event of it, now or later.
    fn admit(&mut self, head: &Head) -> Result<bool, StubError> {
        let call = head.call;
        if head.kind == BEGIN {
            let open = self.calls.get_mut(call.id as usize).ok_or(StubError::Call(call))?;
            if open.is_open {
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
        // A call that was ended may still be spoken of.
        let Some(open) = self.of(call) else { return Ok(false) };
        open.frames = open.frames.wrapping_add(1);
        let is_woken = core::mem::take(&mut open.waits) && open.is_apart;
        if is_woken {
            self.woken.push_back(call);
        }
        let Some(open) = self.of(call) else { return Ok(false) };
        match head.kind {
            MESSAGE | HALF_CLOSE => {
                if open.half_closed {
                    return Err(StubError::Kind(head.kind));
                }
                if open.untaken.is_full() {
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
                return Ok(false);
            }
            kind => return Err(StubError::Kind(kind)),
        }
        Ok(true)
    }

    /// Whether the worker hears of a frame that waited for so long.
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
        if let Some(open) = self.of(head.call)
            && !open.is_apart
            && !open.half_closed
            && !core::mem::replace(&mut open.is_delivered, true)
        {
            self.delivered.push(head.call);
        }
        Ok(true)
    }

    /// The worker has what came with a frame: as much more may come.
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

    /// Sends the metadata that precedes the replies.
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

    /// Sends a reply (Wave Table 1, `SET_TXNS_OUTCOMES`). Its flags: with [`END`] it is the last, and the call has ended with OK;
    /// with [`COMPRESSED`](crate::wire::COMPRESSED) the client gets it compressed, if it takes that.
    ///
    /// # Errors
    /// The client has not read enough; the call is not open; or the agent is at fault.
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
        if core::mem::take(&mut open.is_delivered) {
            self.delivered.retain(|delivered| *delivered != call);
        }
        self.open -= 1;
        // Nor may what was kept of it be taken for another's, should the agent name one the same.
        if !self.kept.is_empty() {
            self.kept.retain(|kept| kept.head.call != call);
        }
        self.apart[call.id as usize].clear();
        if !self.woken.is_empty() {
            self.woken.retain(|woken| *woken != call);
        }
    }

    fn of(&mut self, call: Subject) -> Option<&mut Open> {
        let open = self.calls.get_mut(call.id as usize)?;
        (open.is_open && open.generation == call.generation).then_some(open)
    }

    /// Makes replies travel. Returns whether the agent sleeps and must be rung: for a worker that answers several calls at once,
    /// after the last of them.
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

    /// Whether something waits for another [`Stub::publish`]: replies, for room or for copies that are under way; or extents, to
    /// be returned.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.outbox.is_behind()
    }

    /// Whether what was sent waits for the agent to take what came before, as of the last time that something was sent or published.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.outbox.is_stuck()
    }

    /// Whether everything that was sent is on its way. Until then, publish again.
    pub fn is_flushed(&mut self, port: &impl Port) -> bool {
        self.inbox.poll(port) & self.outbox.poll(port)
    }

    /// Starts to fetch the next request (Wave 5.4).
    #[inline]
    pub fn prefetch(&mut self, port: &impl Port) {
        self.inbox.prefetch(port);
    }
}

/// What a frame adds to its call's window.
fn load(head: &Head) -> Load {
    let has_message = head.kind == MESSAGE || head.flags & HAS_MESSAGE != 0;
    if has_message { Load::of(head.lengths[1]) } else { Load::default() }
}

/// What is longer would be the agent's to refuse, and the end of every call.
fn check_length(bytes: usize) -> Result<(), SendError> {
    if bytes as u64 > FRAME_BYTES_MAX { Err(SendError::TooLong(bytes as u64)) } else { Ok(()) }
}
