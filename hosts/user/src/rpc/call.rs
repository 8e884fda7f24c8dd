//! One call, as its handler sees it.

use std::cell::RefCell;
use std::time::Duration;

use wave_core::clock::{Clock, Nanos};
use wave_core::message::Subject;
use wave_rpc::metadata::{self, BadPair, Metadata};
use wave_rpc::status::{Code, Status};
use wave_rpc::stub::{Event, SendError};
use wave_rpc::wire::{Begin, COMPRESSED, END, message_flags};

use super::streams::{Pause, Pauser};
use super::worker::{Lost, Worker};
use crate::clock::MonotonicClock;

/// The call has been ended already: a last reply was sent, or its agent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call has ended")]
pub struct EndedError;

impl From<EndedError> for Status {
    fn from(error: EndedError) -> Status {
        Status::new(Code::Unavailable, error.to_string())
    }
}

/// Messages after which a streaming handler lets other handlers of its worker run.
const MESSAGES_PER_TURN: u32 = 16;

/// A call that is being served. A handler that waits in it, for a message or for the client to read, lets its worker serve others
/// meanwhile.
#[derive(Debug)]
pub struct Call<'a> {
    /// Borrowed for one operation at a time: handlers that are suspended share it.
    worker: &'a RefCell<Worker>,
    /// By which its handler is suspended. `None` in calls of one message each way, which wait for nothing.
    pauser: Option<Pauser<'a>>,
    /// The window that the call came by.
    epoch: u64,
    call: Subject,
    messages: u32,
    begin: Begin,
    begun: Nanos,
    metadata: Vec<u8>,
    /// The next message, if it has come.
    next: Option<Vec<u8>>,
    /// The client sends nothing more.
    half_closed: bool,
    /// The last message that was received came compressed.
    came_compressed: bool,
    compress: bool,
    cancelled: Option<Code>,
    trailers: Vec<u8>,
    ended: bool,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        worker: &'a RefCell<Worker>,
        pauser: Option<Pauser<'a>>,
        call: Subject,
        begin: Begin,
        metadata: Vec<u8>,
        next: Option<Vec<u8>>,
        flags: u8,
    ) -> Call<'a> {
        let begun = if begin.left.is_some() { MonotonicClock.now() } else { Nanos(0) };
        Call {
            worker,
            pauser,
            epoch: worker.borrow().epoch(),
            call,
            messages: 0,
            begin,
            begun,
            metadata,
            next,
            half_closed: flags & END != 0,
            came_compressed: flags & COMPRESSED != 0,
            compress: false,
            cancelled: None,
            trailers: Vec::new(),
            ended: false,
        }
    }

    /// Does something with the worker, unless it has turned to another window since the call came: a call of the same name may
    /// have come by that.
    fn with<R>(&self, what: impl FnOnce(&mut Worker) -> R) -> Result<R, Lost> {
        let mut worker = self.worker.borrow_mut();
        if worker.epoch() == self.epoch { Ok(what(&mut worker)) } else { Err(Lost) }
    }

    /// Lets others of the worker run.
    fn pause(&self, pause: Pause) {
        match self.pauser {
            Some(pauser) => pauser.pause(pause),
            // A hostile agent's doing: honest ones begin such calls with their one message, and the end.
            None => std::thread::yield_now(),
        }
    }

    /// Counts a message sent or received. Yields after every [`MESSAGES_PER_TURN`].
    fn count_message(&mut self) {
        self.messages += 1;
        if self.messages.is_multiple_of(MESSAGES_PER_TURN) {
            self.yield_to_others();
        }
    }

    /// After a reply: yields if the reply found no room, as other calls' replies would queue behind this handler's next ones.
    fn leave_room(&mut self) {
        if self.worker.borrow().is_stuck() {
            self.yield_to_others();
        }
    }

    /// Lets others of the worker run. The call no longer takes its place from them.
    fn yield_to_others(&mut self) {
        if self.pauser.is_some() {
            let call = self.call;
            let _ = self.with(|worker| worker.yield_to_others(call));
            self.pause(Pause::Goes);
        }
    }

    /// Index of the method, as it was added.
    pub fn method(&self) -> u16 {
        self.begin.method
    }

    /// The class under which it was steered.
    pub fn class(&self) -> u8 {
        self.begin.class
    }

    /// What the client sent beside its messages.
    pub fn metadata(&self) -> Metadata<'_> {
        // Checked as it came.
        Metadata::new(&self.metadata).unwrap_or_default()
    }

    /// How long the client still waits; `None` where it said nothing of that.
    pub fn left(&self) -> Option<Duration> {
        let left = self.begin.left?;
        let passed = MonotonicClock.now().since(self.begun);
        Some(Duration::from_nanos(left.since(passed).0))
    }

    /// Whether the call was cancelled or its agent is gone. Cheap enough for every few microseconds of a long handler.
    pub fn is_cancelled(&mut self) -> bool {
        self.check_cancelled().is_err()
    }

    /// Checks for cancellation. A handler should return the status it gets.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn check_cancelled(&mut self) -> Result<(), Status> {
        if self.cancelled.is_none() {
            let call = self.call;
            self.cancelled = match self.with(|worker| worker.is_cancelled(call)) {
                Ok(Ok(why)) => why,
                Ok(Err(Lost)) | Err(Lost) => Some(Code::Unavailable),
            };
        }
        match self.cancelled {
            None => Ok(()),
            Some(code) => Err(Status::new(code, "nobody waits for the call any more")),
        }
    }

    /// The next message of the client, as soon as it has come; `None` after the last.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Status> {
        loop {
            if let Some(message) = self.next.take() {
                self.count_message();
                return Ok(Some(message));
            }
            // After a last reply nothing comes any more.
            if self.half_closed || self.ended {
                return Ok(None);
            }
            self.check_cancelled()?;
            match self.look() {
                Ok(true) => {}
                Ok(false) => {
                    let call = self.call;
                    let _ = self.with(|worker| worker.wait_for_client(call));
                    self.pause(Pause::Waits);
                }
                Err(Lost) => self.cancelled = Some(Code::Unavailable),
            }
        }
    }

    /// Takes the next thing that came. Returns whether there was one.
    fn look(&mut self) -> Result<bool, Lost> {
        let mut worker = self.worker.borrow_mut();
        if worker.epoch() != self.epoch {
            return Err(Lost);
        }
        match worker.poll_call(self.call)? {
            Some(Event::Message { message, compressed, end, .. }) => {
                self.next = Some(message.to_vec());
                (self.half_closed, self.came_compressed) = (end, compressed);
            }
            Some(Event::HalfClose { .. }) => self.half_closed = true,
            Some(Event::Cancel { why, .. }) => self.cancelled = Some(why),
            Some(Event::Begin { .. }) => {}
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Whether the last message that was received came compressed.
    pub fn came_compressed(&self) -> bool {
        self.came_compressed
    }

    /// Whether the replies from here on are to be compressed, for clients that take that.
    pub fn compress(&mut self, compress: bool) {
        self.compress = compress;
    }

    /// The one message of a call in which the client sends one.
    pub(super) fn only_message(&mut self) -> Result<Vec<u8>, Status> {
        let missing =
            || Status::new(Code::Unimplemented, "the method takes one message, and none came");
        let message = self.receive()?.ok_or_else(missing)?;
        if !self.half_closed && self.receive()?.is_some() {
            return Err(Status::new(
                Code::Unimplemented,
                "the method takes one message, and more came",
            ));
        }
        Ok(message)
    }

    /// A buffer for a reply, reused where the worker has one.
    pub(super) fn memory(&mut self) -> Vec<u8> {
        self.worker.borrow_mut().memory()
    }

    /// Memory for the next call.
    pub(super) fn give_back(&mut self, message: Vec<u8>) {
        self.worker.borrow_mut().keep(message);
    }

    /// Sends metadata before the first reply.
    ///
    /// # Errors
    /// The call has ended. A pair that is none is left out, and the error says so.
    pub fn headers(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), Status> {
        let mut encoded = Vec::new();
        for (key, value) in pairs {
            metadata::push(&mut encoded, key, value).map_err(not_sent)?;
        }
        match self.with(|worker| worker.headers(self.call, &encoded)) {
            Ok(Ok(())) => Ok(()),
            _ => Err(EndedError.into()),
        }
    }

    /// Adds to what is sent with the status.
    ///
    /// # Errors
    /// It is no pair.
    pub fn trailer(&mut self, key: &str, value: &[u8]) -> Result<(), BadPair> {
        metadata::push(&mut self.trailers, key, value)
    }

    /// Sends a reply, as soon as the client has read enough of the earlier ones.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn send(&mut self, reply: &[u8]) -> Result<(), Status> {
        self.send_as(reply, false)
    }

    /// Sends the last reply: the call ends with OK. With trailers, or after this, the status is what the handler returns.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn reply(&mut self, reply: &[u8]) -> Result<(), Status> {
        let is_last = self.trailers.is_empty();
        self.send_as(reply, is_last)?;
        self.ended |= is_last;
        Ok(())
    }

    fn send_as(&mut self, reply: &[u8], end: bool) -> Result<(), Status> {
        if self.ended {
            return Err(EndedError.into());
        }
        loop {
            let flags = message_flags(end, self.compress);
            let sent = self.with(|worker| worker.message(self.call, reply, flags));
            match sent.unwrap_or(Err(SendError::NotOpen)) {
                Ok(()) if end => return Ok(()),
                Ok(()) => {
                    self.count_message();
                    self.leave_room();
                    return Ok(());
                }
                // The agent was told so.
                Err(SendError::Blocked) => {
                    self.check_cancelled()?;
                    self.pause(Pause::Waits);
                }
                Err(SendError::NotOpen | SendError::Fault(_)) => {
                    self.cancelled = self.cancelled.or(Some(Code::Unavailable));
                    return Err(EndedError.into());
                }
                Err(error @ (SendError::TooLong(_) | SendError::TooLate)) => {
                    return Err(Status::new(Code::Internal, error.to_string()));
                }
            }
        }
    }

    /// Ends the call with what its handler returned.
    pub(super) fn end(mut self, result: Result<(), Status>) {
        if !self.ended {
            let status = result.err().unwrap_or_default();
            let trailers = std::mem::take(&mut self.trailers);
            // If the agent is gone, the status has no receiver.
            let _ = self.with(|worker| {
                let sent = worker.finish(self.call, &status, &trailers);
                if let Err(SendError::TooLong(_)) = sent {
                    let text = "its status and trailers are too long";
                    let _ = worker.finish(self.call, &Status::new(Code::Internal, text), &[]);
                }
            });
        }
        let metadata = std::mem::take(&mut self.metadata);
        self.worker.borrow_mut().keep(metadata);
    }
}

fn not_sent(error: BadPair) -> Status {
    Status::new(Code::Internal, error.to_string())
}
