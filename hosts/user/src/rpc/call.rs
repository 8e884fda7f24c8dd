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

/// The call has already ended: a last reply was sent, or its agent is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call has ended")]
pub struct EndedError;

impl From<EndedError> for Status {
    fn from(error: EndedError) -> Status {
        Status::new(Code::Unavailable, error.to_string())
    }
}

/// Number of messages after which a streaming handler lets other handlers of its worker run.
const MESSAGES_PER_TURN: u32 = 16;

/// A call that is being served. While its handler waits for a message or for the client to read, its worker serves other
/// calls.
#[derive(Debug)]
pub struct Call<'a> {
    /// Borrowed for one operation at a time, as suspended handlers share it.
    worker: &'a RefCell<Worker>,
    /// Suspends the handler. `None` in calls of one message each way, which never wait.
    pauser: Option<Pauser<'a>>,
    /// Epoch of the window through which the call came.
    epoch: u64,
    call: Subject,
    messages: u32,
    begin: Begin,
    begun: Nanos,
    metadata: Vec<u8>,
    /// The next message, if it has arrived.
    next: Option<Vec<u8>>,
    /// The client sends no more messages.
    half_closed: bool,
    /// The last received message came compressed.
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

    /// Calls `what` with the worker, unless the worker uses another window than when the call came: there, the same call number
    /// may name another call.
    fn with<R>(&self, what: impl FnOnce(&mut Worker) -> R) -> Result<R, Lost> {
        let mut worker = self.worker.borrow_mut();
        if worker.epoch() == self.epoch { Ok(what(&mut worker)) } else { Err(Lost) }
    }

    /// Lets other handlers of the worker run.
    fn pause(&self, pause: Pause) {
        match self.pauser {
            Some(pauser) => pauser.pause(pause),
            // Only a hostile agent causes this: others begin such calls with their single message, marked as the last.
            None => self.worker.borrow().yield_cpu(),
        }
    }

    /// Counts a message sent or received. Yields after every [`MESSAGES_PER_TURN`].
    fn count_message(&mut self) {
        self.messages += 1;
        if self.messages.is_multiple_of(MESSAGES_PER_TURN) {
            self.yield_to_others();
        }
    }

    /// Yields if the last reply found no room: otherwise replies of other calls would queue behind this handler's next ones.
    fn leave_room(&mut self) {
        if self.worker.borrow().is_stuck() {
            self.yield_to_others();
        }
    }

    /// Lets the worker serve its other calls before this one continues. It is for streaming handlers that wait for
    /// something other than their client. In a unary handler it does nothing.
    pub fn yield_now(&mut self) {
        self.yield_to_others();
    }

    /// Lets other handlers of the worker run, and tells the agent that it does.
    fn yield_to_others(&mut self) {
        if self.pauser.is_some() {
            let call = self.call;
            let _ = self.with(|worker| worker.yield_to_others(call));
            self.pause(Pause::Goes);
        }
    }

    /// Index of the method, in the order in which methods were added.
    pub fn method(&self) -> u16 {
        self.begin.method
    }

    /// The class under which the call was steered.
    pub fn class(&self) -> u8 {
        self.begin.class
    }

    /// Metadata that the client sent with the call.
    pub fn metadata(&self) -> Metadata<'_> {
        // Checked on arrival.
        Metadata::new(&self.metadata).unwrap_or_default()
    }

    /// Time left until the client's deadline; `None` if it set none.
    pub fn left(&self) -> Option<Duration> {
        let left = self.begin.left?;
        let passed = MonotonicClock.now().since(self.begun);
        Some(Duration::from_nanos(left.since(passed).0))
    }

    /// Whether the call was cancelled or its agent is gone. Cheap enough to call every few microseconds in a long handler.
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

    /// Waits for the client's next message and returns it; `None` after the last.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Status> {
        loop {
            if let Some(message) = self.next.take() {
                self.count_message();
                return Ok(Some(message));
            }
            // After the last reply no more messages come.
            if self.half_closed || self.ended {
                return Ok(None);
            }
            self.check_cancelled()?;
            match self.take_event() {
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

    /// Takes the next event of this call. Returns whether there was one.
    fn take_event(&mut self) -> Result<bool, Lost> {
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
        // What was taken makes room for the client's next messages.
        worker.publish();
        Ok(true)
    }

    /// Whether the last received message came compressed.
    pub fn came_compressed(&self) -> bool {
        self.came_compressed
    }

    /// Sets whether replies from here on are compressed, for clients that accept compression.
    pub fn compress(&mut self, compress: bool) {
        self.compress = compress;
    }

    /// The message of a call in which the client sends exactly one.
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

    /// Gives a message's memory back to the worker for reuse.
    pub(super) fn give_back(&mut self, message: Vec<u8>) {
        self.worker.borrow_mut().keep(message);
    }

    /// Sends metadata before the first reply.
    ///
    /// # Errors
    /// The call has ended, or the metadata is invalid, too long, or comes after a reply. Nothing is sent then, and the
    /// status names the problem.
    pub fn headers(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), Status> {
        let mut encoded = Vec::new();
        for (key, value) in pairs {
            metadata::push(&mut encoded, key, value)?;
        }
        let sent = self.with(|worker| {
            let sent = worker.headers(self.call, &encoded);
            worker.send_out();
            sent
        });
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ (SendError::TooLong(_) | SendError::TooLate))) => {
                Err(Status::new(Code::Internal, error.to_string()))
            }
            Ok(Err(_)) | Err(Lost) => Err(EndedError.into()),
        }
    }

    /// Adds a pair to the metadata that is sent with the status.
    ///
    /// # Errors
    /// The pair is not valid metadata.
    pub fn trailer(&mut self, key: &str, value: &[u8]) -> Result<(), BadPair> {
        metadata::push(&mut self.trailers, key, value)
    }

    /// Sends a reply at once, or as soon as the client has read enough of the earlier ones.
    ///
    /// # Errors
    /// The call was cancelled, its deadline has passed, or its agent is gone.
    pub fn send(&mut self, reply: &[u8]) -> Result<(), Status> {
        self.send_as(reply, false)
    }

    /// Sends the last reply, and ends the call with OK. If there are trailers, the call ends with the status that the handler
    /// returns instead.
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
                // In both cases the handler may go on working.
                Ok(()) if end => {
                    let _ = self.with(Worker::publish_batch);
                    return Ok(());
                }
                Ok(()) => {
                    let _ = self.with(Worker::send_out);
                    self.count_message();
                    self.leave_room();
                    return Ok(());
                }
                // The agent has been told that the call waits for its client.
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

    /// Ends the call with its handler's result.
    pub(super) fn end(mut self, result: Result<(), Status>) {
        if !self.ended {
            let status = result.err().unwrap_or_default();
            let trailers = std::mem::take(&mut self.trailers);
            // If the agent is gone, nobody receives the status.
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
