//! A worker's side on the host: requests in, replies out.
//!
//! [`Stub`] is sans I/O: whoever drives it owns the port, waits, and rings. It keeps no message but those that came while a handler
//! was busy with another call, and of these as many as the agent may have on their way to it.
//!
//! # Parking without losing a wake-up
//!
//! As a core's ([`wave_core::host`]): the worker says that it is parked, fences, reads that back from NIC memory, looks once more,
//! and only then waits for its doorbell. The agent looks at that word after it has sent something.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use wave_core::clock::Nanos;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{AGENT_PARKED, CORE_PARKED, Layout};
use wave_core::link::{Home, Port, Side, Window};
use wave_core::message::Subject;
use wave_core::queue::PushError;

use crate::boxes::{BadFrame, FRAME_BYTES_MAX, Frame, Inbox, Outbox};
use crate::extents::Extents;
use crate::metadata::{BadMetadata, Metadata};
use crate::status::{Code, Status};
use crate::window::Load;
use crate::wire::{
    BEGIN, Begin, CANCEL, COMPRESSED, END, GRANT, HALF_CLOSE, HAS_MESSAGE, HEADERS, Head, MESSAGE,
    STATUS, TAKEN, WORKER,
};

/// Entries taken in one look.
const ENTRIES_PER_LOOK: usize = 4096;

/// What came for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A call begins. It has to be ended, by [`Stub::finish`] or by a last [`Stub::message`].
    Begin {
        /// Which.
        call: Subject,
        /// Its method, its class, the time that it has left.
        begin: Begin,
        /// What its client says of it.
        metadata: Metadata<'a>,
        /// The first message, if it is here already.
        message: Option<&'a [u8]>,
        /// It came compressed.
        compressed: bool,
        /// The client sends nothing more.
        end: bool,
    },
    /// A message.
    Message {
        /// Of which call.
        call: Subject,
        /// Whole.
        message: &'a [u8],
        /// It came compressed.
        compressed: bool,
        /// The client sends nothing more.
        end: bool,
    },
    /// The client sends nothing more.
    HalfClose {
        /// In which call.
        call: Subject,
    },
    /// Nobody waits for the call any more. It still has to be ended.
    Cancel {
        /// Which.
        call: Subject,
        /// Why: CANCELLED or DEADLINE_EXCEEDED, or what the agent found.
        why: Code,
    },
}

/// The agent wrote what no agent of ours writes: it should lose its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// No frame.
    #[error(transparent)]
    Frame(#[from] BadFrame),
    /// Metadata.
    #[error(transparent)]
    Metadata(#[from] BadMetadata),
    /// Its credit.
    #[error(transparent)]
    Credit(#[from] PushError),
    /// A frame that has no place there.
    #[error("peer's fault: a frame of kind {0} has no place there")]
    Kind(u16),
    /// A call of a number that there cannot be, or that is open already.
    #[error("peer's fault: call {}.{} cannot begin", .0.id, .0.generation)]
    Call(Subject),
    /// More messages than were taken.
    #[error("peer's fault: it passed the window of call {}.{}", .0.id, .0.generation)]
    Window(Subject),
}

/// Why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The client has not read enough of earlier replies: poll, and try again.
    #[error("the client has not read enough of earlier replies yet")]
    Blocked,
    /// The call is not open, or was ended.
    #[error("the call is not open")]
    NotOpen,
    /// Metadata precedes the replies, and comes once.
    #[error("metadata precedes a call's replies, and was sent before or comes after one")]
    TooLate,
    /// More bytes than cross the link at once. Nothing was sent, and the call is as it was.
    #[error("{0} bytes are more than can be sent at once, which is {FRAME_BYTES_MAX}")]
    TooLong(u64),
    /// The agent is at fault.
    #[error(transparent)]
    Fault(#[from] PushError),
}

/// A call that a worker has.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    generation: u32,
    is_open: bool,
    /// Why nobody waits for it any more.
    cancelled: Option<Code>,
    /// Replies on their way, that the agent has not granted anew.
    on_way: Load,
    /// Messages that came and were not taken.
    untaken: Load,
    /// Messages that were taken, and the agent was not told.
    taken: Load,
    /// A reply was sent, or the metadata that precedes it.
    replied: bool,
    /// The client sends nothing more.
    half_closed: bool,
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
    status: u32,
    cancel_word: u32,
    agent_parked: u32,
    calls: Vec<Open>,
    open: u32,
    /// CANCEL frames that came.
    cancels: u64,
    /// Of each open call its beginning, a window of messages, an end and a cancellation at most: no limit of its own, which one
    /// call could use up while its handler's next message waits in the queue.
    kept: VecDeque<Kept>,
    /// What [`Stub::poll`] gave last, if it came out of `kept`.
    current: Vec<u8>,
    idle_since: Option<Nanos>,
    parked: bool,
    spin: Nanos,
}

/// What a worker without work does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Look again soon.
    Spin,
    /// Wait for the doorbell, then look again.
    Park,
}

impl Stub {
    /// Worker number `worker` of a fresh window.
    pub fn new(layout: &Layout, worker: u16) -> Stub {
        let at = usize::from(worker);
        Stub {
            inbox: Inbox::new(Receiver::new(&layout.decisions[at], Side::Host)),
            outbox: Outbox::new(
                Sender::new(&layout.messages[at], Side::Host),
                Extents::new(layout, worker, Side::Host),
            ),
            status: layout.core_status + u32::from(worker),
            cancel_word: layout.preempt + u32::from(worker),
            agent_parked: layout.agent_parked,
            calls: alloc::vec![Open::default(); layout.config.subjects as usize],
            open: 0,
            cancels: 0,
            kept: VecDeque::new(),
            current: Vec::new(),
            idle_since: None,
            parked: false,
            spin: layout.config.spin,
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

    /// The next thing that came (Wave Table 1, `POLL_TXNS`). What concerns calls that were ended is passed over, and a call that
    /// nobody waits for any more, or whose time is up, ends here before it is begun.
    ///
    /// # Errors
    /// The agent is at fault.
    #[inline]
    pub fn poll(&mut self, port: &impl Port, now: Nanos) -> Result<Option<Event<'_>>, StubError> {
        if self.parked {
            self.parked = false;
            port.window(Home::Nic).store(self.status, 0, 0);
            port.window(Home::Nic).publish();
        }
        if !self.kept.is_empty() || self.cancel_is_on_its_way(port) {
            self.attend(port, now)?;
            return self.poll_kept(port, now, |_| true);
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
            if self.admit(&head)? && self.deliver(port, &head, Nanos(0))? {
                self.idle_since = None;
                return Ok(Some(event(&head, &self.current, first)?));
            }
        }
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
        self.poll_kept(port, now, |head| head.call == call)
    }

    fn poll_kept(
        &mut self,
        port: &impl Port,
        now: Nanos,
        is_wanted: impl Fn(&Head) -> bool,
    ) -> Result<Option<Event<'_>>, StubError> {
        loop {
            let at = self.kept.iter().position(|kept| is_wanted(&kept.head));
            let Some(Kept { head, bytes, at }) = at.and_then(|at| self.kept.remove(at)) else {
                return Ok(None);
            };
            self.current = bytes;
            if self.deliver(port, &head, now.since(at))? {
                self.idle_since = None;
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
                self.kept.push_back(Kept { head, bytes, at: now });
            }
        }
        Ok(self.inbox.took())
    }

    /// Takes note of a frame as it comes. Returns whether the worker is to hear of it, now or later.
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
    /// with [`COMPRESSED`] the client gets it compressed, if it takes that.
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
        self.calls[call.id as usize].is_open = false;
        self.open -= 1;
        // Nor may what was kept of it be taken for another's, should the agent name one the same.
        if !self.kept.is_empty() {
            self.kept.retain(|kept| kept.head.call != call);
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
        Ok(port.window(Home::Host).load(self.agent_parked, 0) == AGENT_PARKED)
    }

    /// Whether something waits for another [`Stub::publish`]: replies, for room or for copies that are under way; or extents, to
    /// be returned.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.outbox.is_behind()
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

    /// What to do after [`Stub::poll`] found nothing. On [`Wait::Park`] the agent has been told so.
    ///
    /// # Errors
    /// The agent is at fault.
    pub fn wait(&mut self, port: &impl Port, now: Nanos) -> Result<Wait, StubError> {
        let since = *self.idle_since.get_or_insert(now);
        if !self.is_flushed(port) || now.since(since) < self.spin {
            return Ok(Wait::Spin);
        }
        let nic = port.window(Home::Nic);
        nic.store(self.status, 0, CORE_PARKED);
        nic.fence();
        nic.load(self.status, 0);
        self.parked = true;
        // Also what is not kept counts: a grant, or a part of a frame of which more may be there.
        Ok(if self.attend(port, now)? { Wait::Spin } else { Wait::Park })
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

fn event<'a>(head: &Head, bytes: &'a [u8], first: usize) -> Result<Event<'a>, StubError> {
    let call = head.call;
    let (first, message) = bytes.split_at(first);
    let (end, compressed) = (head.flags & END != 0, head.flags & COMPRESSED != 0);
    Ok(match head.kind {
        BEGIN => Event::Begin {
            call,
            begin: Begin::from_word(head.argument),
            metadata: Metadata::new(first)?,
            message: (head.flags & HAS_MESSAGE != 0).then_some(message),
            compressed,
            end,
        },
        MESSAGE => Event::Message { call, message, compressed, end },
        HALF_CLOSE => Event::HalfClose { call },
        CANCEL => Event::Cancel { call, why: Code::from_number(head.argument as i32) },
        kind => return Err(StubError::Kind(kind)),
    })
}
