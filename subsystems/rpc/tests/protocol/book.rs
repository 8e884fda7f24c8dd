//! The oracle: its own records of what every client and handler did, and checks of what may follow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use wave_core::clock::Nanos;
use wave_core::message::Subject;
use wave_rpc::dispatch::Event;
use wave_rpc::metadata::{self, Metadata};
use wave_rpc::status::{Code, Status};
use wave_rpc::steer::{Request, Steering, Workers};
use wave_rpc::wire::{Begin, WINDOW_BYTES, WINDOW_MESSAGES};

/// How a handler answers a call.
#[derive(Clone, Debug)]
pub enum Script {
    /// Sends each message back.
    Echo,
    /// Reads all, then answers once.
    Aggregate(u32),
    /// Replies of these lengths, for any client messages.
    Stream(Vec<u32>),
    /// The handler ends without reading.
    Abrupt,
}

/// A handler's plan for a call, which the client draws.
#[derive(Clone, Debug)]
pub struct Plan {
    pub script: Script,
    pub headers: bool,
    /// Whether the last reply, if there is one, ends the call; otherwise a status does.
    pub with_end: bool,
    /// Steps of work before anything else.
    pub busy: u32,
    /// Steps between a cancellation and the end.
    pub late: u32,
    /// Ignores a cancellation until it is blocked.
    pub stubborn: bool,
    pub code: Code,
}

/// Where the steering policy has put a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Waiting,
    Left,
    Handed(u16),
}

/// How a call ended for its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Answered,
    Expired,
    Cancelled,
    /// Too many waited for their clients.
    Stopped,
    /// Its agent lost the window.
    Died,
}

#[derive(Debug)]
pub struct Entry {
    pub window: usize,
    pub subject: Subject,
    pub plan: Plan,
    pub place: Place,
    begin: (u16, u8),
    pub metadata: Bytes,
    deadline: Option<Nanos>,
    began: Nanos,
    /// Lengths of the client's messages.
    pub sent: Vec<u32>,
    pub half_closed: bool,
    taken: usize,
    taken_bytes: u64,
    pub over: Option<Over>,
    pub begun: bool,
    pub received: usize,
    heard_end: bool,
    said_headers: bool,
    replied: Vec<u32>,
    ended_by: Option<End>,
    got_headers: bool,
    got: usize,
    /// Number of replies that the client read; `granted` has their bytes.
    read: usize,
    granted: u64,
    /// Replies are granted when they arrive.
    eager: bool,
    /// Messages that the client still sends before it half-closes.
    more: u32,
}

/// How a handler ended a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Message,
    Status,
}

impl Entry {
    /// The client reads the next reply. Returns its length, if there is one.
    pub fn read(&mut self) -> Option<u32> {
        let length = self.replied[..self.got].get(self.read).copied()?;
        self.read += 1;
        self.granted += u64::from(length);
        Some(length)
    }

    /// Bytes that the client sent and that were not reported as taken.
    pub fn on_way(&self) -> u64 {
        bytes_of(&self.sent) - self.taken_bytes
    }
}

fn bytes_of(lengths: &[u32]) -> u64 {
    lengths.iter().map(|&length| u64::from(length)).sum()
}

/// Whether a message of this length is marked as compressed.
pub const fn is_odd(length: u32) -> bool {
    length % 2 == 1
}

/// The bytes of a message, which depend on the call, the direction and the message's number.
pub fn fill(serial: usize, reply: bool, index: usize, length: u32) -> Vec<u8> {
    let seed = serial * 31 + index * 7 + usize::from(reply) * 101;
    (0..length as usize).map(|at| (seed + at + (at >> 8)) as u8).collect()
}

/// The metadata by which a handler identifies the call.
pub fn name(serial: usize, padding: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    metadata::push(&mut bytes, "serial", serial.to_string().as_bytes()).unwrap();
    metadata::push(&mut bytes, "padding-bin", &vec![0xff; padding]).unwrap();
    bytes
}

/// The status with which a handler ends a call.
pub fn said(serial: usize, code: Code) -> Status {
    Status::new(code, format!("call {serial}"))
}

/// The serial number of the call that the metadata names.
pub fn named(metadata: Metadata<'_>) -> usize {
    let serial = metadata.get("serial").expect("every call's metadata has its serial number");
    std::str::from_utf8(serial).unwrap().parse().unwrap()
}

#[derive(Debug, Default)]
pub struct Book {
    pub calls: Vec<Entry>,
    /// The call that begins now, until the steering policy is told.
    arriving: Option<usize>,
    slots: BTreeMap<(usize, u32), usize>,
    outstanding: BTreeMap<(usize, u16), u32>,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Book {
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Calls of a window whose front still waits.
    pub fn live(&self, window: usize) -> impl Iterator<Item = usize> + '_ {
        let is_live =
            move |(_, call): &(usize, &Entry)| call.window == window && call.over.is_none();
        self.calls.iter().enumerate().filter(is_live).map(|(serial, _)| serial)
    }

    pub fn arrive(&mut self) {
        self.arriving = Some(self.calls.len());
    }

    pub fn refused(&mut self) {
        self.arriving = None;
        self.count("refused");
    }

    /// The front began a call.
    #[expect(clippy::too_many_arguments, reason = "all that an arrival says")]
    pub fn began(
        &mut self,
        window: usize,
        subject: Subject,
        plan: Plan,
        begin: (u16, u8),
        metadata: Bytes,
        (began, deadline): (Nanos, Option<Nanos>),
        (first, end): (Option<u32>, bool),
        (eager, more): (bool, u32),
    ) {
        let serial = self.calls.len();
        assert_eq!(self.arriving, None, "the steering policy was not told of the call");
        assert_eq!(self.slots.get(&(window, subject.id)), Some(&serial));
        self.calls.push(Entry {
            window,
            subject,
            plan,
            place: Place::Waiting,
            begin,
            metadata,
            deadline,
            began,
            sent: first.into_iter().collect(),
            half_closed: end,
            taken: 0,
            taken_bytes: 0,
            over: None,
            begun: false,
            received: 0,
            heard_end: false,
            said_headers: false,
            replied: Vec::new(),
            ended_by: None,
            got_headers: false,
            got: 0,
            read: 0,
            granted: 0,
            eager,
            more,
        });
        self.count("begun");
    }

    /// Whether the client sends another message before it half-closes.
    pub fn more_to_say(&mut self, serial: usize) -> bool {
        let call = &mut self.calls[serial];
        let any = call.more > 0 && !call.half_closed;
        call.more = call.more.saturating_sub(1);
        any
    }

    pub fn handler_begins(
        &mut self,
        (window, worker, now): (usize, u16, Nanos),
        subject: Subject,
        begin: Begin,
        metadata: &[u8],
        message: Option<&[u8]>,
        end: bool,
    ) -> usize {
        let serial = named(Metadata::new(metadata).unwrap());
        let call = &mut self.calls[serial];
        assert_eq!(
            (call.window, call.subject),
            (window, subject),
            "call {serial} has another name"
        );
        assert_eq!(call.place, Place::Handed(worker), "call {serial} was handed to another worker");
        assert!(!call.begun, "call {serial} was handled twice");
        call.begun = true;
        assert_eq!(metadata, call.metadata, "call {serial}");
        assert_eq!((begin.method, begin.class), call.begin, "call {serial}");
        assert_eq!(begin.left.is_some(), call.deadline.is_some(), "call {serial}");
        if let (Some(left), Some(deadline)) = (begin.left, call.deadline) {
            assert!(left.0 > 0 && left <= deadline.since(call.began), "call {serial}: {left:?}");
        }
        if call.over.is_some() {
            assert!(now >= call.began);
            self.count("begun in vain");
        }
        self.count("handled");
        if let Some(message) = message {
            self.handler_reads(serial, message, end);
        } else if end {
            self.handler_hears_end(serial);
        }
        serial
    }

    /// A handler got a message.
    pub fn handler_reads(&mut self, serial: usize, message: &[u8], end: bool) {
        let call = &mut self.calls[serial];
        let index = call.received;
        assert!(!call.heard_end, "call {serial}: message {index} came after the last");
        let length = *call.sent.get(index).expect("every message was sent");
        assert!(
            message == fill(serial, false, index, length),
            "call {serial}: message {index} of {length} bytes arrived as {}: {:?}",
            message.len(),
            &message[..message.len().min(16)]
        );
        let before = bytes_of(&call.sent[..index]);
        assert!(
            before < call.taken_bytes + u64::from(WINDOW_BYTES),
            "call {serial}: {before} bytes in flight"
        );
        assert!(index - call.taken < WINDOW_MESSAGES as usize, "call {serial}: message {index}");
        call.received += 1;
        if end {
            self.handler_hears_end(serial);
        }
        self.count("messages");
    }

    pub fn handler_hears_end(&mut self, serial: usize) {
        let call = &mut self.calls[serial];
        assert!(call.half_closed && !call.heard_end, "call {serial} ended for its handler");
        assert_eq!(call.received, call.sent.len(), "call {serial} ended before its messages");
        call.heard_end = true;
    }

    pub fn handler_is_cancelled(&mut self, serial: usize, why: Code) {
        let call = &self.calls[serial];
        let expected = match call.over {
            Some(Over::Cancelled) => Code::Cancelled,
            Some(Over::Expired) => Code::DeadlineExceeded,
            Some(Over::Stopped) => Code::ResourceExhausted,
            other => panic!("call {serial} was cancelled for its handler, but is {other:?}"),
        };
        assert_eq!(why, expected, "call {serial}");
        self.count("cancellations heard");
    }

    pub fn handler_says_headers(&mut self, serial: usize) {
        self.calls[serial].said_headers = true;
    }

    /// A handler sent a reply.
    pub fn handler_replies(&mut self, serial: usize, length: u32, end: bool) {
        let call = &mut self.calls[serial];
        let before = bytes_of(&call.replied);
        assert!(
            before < call.granted + u64::from(WINDOW_BYTES),
            "call {serial}: {before} bytes of replies in flight"
        );
        assert!(call.replied.len() - call.read < WINDOW_MESSAGES as usize, "call {serial}");
        call.replied.push(length);
        if end {
            call.ended_by = Some(End::Message);
        }
        self.count("replies");
    }

    pub fn handler_finishes(&mut self, serial: usize) {
        self.calls[serial].ended_by = Some(End::Status);
        self.count("statuses");
    }

    /// The front gets an event. Returns its call, and the bytes to grant at once.
    pub fn front_hears(
        &mut self,
        window: usize,
        now: Nanos,
        event: &Event,
    ) -> Option<(usize, Option<u32>)> {
        let (Event::Headers { call: subject, .. }
        | Event::Message { call: subject, .. }
        | Event::Status { call: subject, .. }
        | Event::Stopped { call: subject, .. }
        | Event::Taken { call: subject, .. }) = event
        else {
            return None;
        };
        let serial = self.slots[&(window, subject.id)];
        let call = &mut self.calls[serial];
        assert_eq!(call.subject, *subject, "call {serial} is in that slot: {event:?}");
        assert_eq!(call.over, None, "call {serial} is over for its front: {event:?}");
        let mut grant = None;
        match event {
            Event::Headers { metadata, .. } => {
                assert!(call.said_headers && !call.got_headers && call.got == 0, "call {serial}");
                assert_eq!(*metadata, call.metadata, "call {serial}");
                call.got_headers = true;
            }
            Event::Message { message, end, compress, .. } => {
                assert_eq!(*compress, is_odd(message.len() as u32), "call {serial}");
                assert_eq!(call.got_headers, call.said_headers, "call {serial}");
                let index = call.got;
                let length = *call.replied.get(index).expect("every reply was sent");
                assert!(
                    *message == fill(serial, true, index, length),
                    "call {serial}: reply {index} of {length} bytes arrived as {}",
                    message.len()
                );
                call.got += 1;
                let is_last = call.ended_by == Some(End::Message) && call.got == call.replied.len();
                assert_eq!(*end, is_last, "call {serial}");
                if *end {
                    call.over = Some(Over::Answered);
                } else if call.eager {
                    grant = call.read();
                }
                if *end {
                    self.count("answered");
                }
            }
            Event::Status { status, trailers, .. } => {
                self.front_hears_status(serial, status, trailers)
            }
            Event::Stopped { status, .. } if status.code == Code::DeadlineExceeded => {
                assert!(call.deadline.is_some_and(|deadline| deadline <= now), "call {serial}");
                call.over = Some(Over::Expired);
                self.count("expired");
            }
            Event::Stopped { status, .. } => {
                assert_eq!(status.code, Code::ResourceExhausted, "call {serial}");
                assert!(call.begun, "call {serial} waited for its client before it began");
                call.over = Some(Over::Stopped);
                self.count("stopped");
            }
            Event::Taken { bytes, messages, .. } => {
                call.taken += *messages as usize;
                call.taken_bytes += u64::from(*bytes);
                assert!(call.taken <= call.received, "call {serial}");
                assert_eq!(call.taken_bytes, bytes_of(&call.sent[..call.taken]), "call {serial}");
                self.count("taken");
            }
            Event::Service(_) => {}
        }
        Some((serial, grant))
    }

    fn front_hears_status(&mut self, serial: usize, status: &Status, trailers: &Bytes) {
        let call = &mut self.calls[serial];
        call.over = Some(Over::Answered);
        if call.ended_by.is_none() {
            // The deadline passed before the worker began the call.
            assert!(!call.begun && call.deadline.is_some(), "call {serial}: {status:?}");
            assert_eq!((status.code, &*status.message), (Code::DeadlineExceeded, ""));
            self.count("expired with their worker");
        } else {
            assert_eq!(call.ended_by, Some(End::Status), "call {serial}");
            assert_eq!(*status, said(serial, call.plan.code));
            assert_eq!(*trailers, call.metadata, "call {serial}");
            assert_eq!(call.got, call.replied.len(), "call {serial} ended before its replies");
            assert_eq!(call.got_headers, call.said_headers, "call {serial}");
        }
        self.count("answered");
    }

    /// The agent lost its window, which ends its calls. Returns their number.
    pub fn window_dies(&mut self, window: usize) -> u64 {
        let serials: Vec<_> = self.live(window).collect();
        for &serial in &serials {
            self.calls[serial].over = Some(Over::Died);
            self.count("died");
        }
        serials.len() as u64
    }
}

pub type Shared = Arc<Mutex<Book>>;

/// Locks the book. Keep the guard for one statement only.
pub fn open(book: &Shared) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Wraps a steering policy, and checks that its decisions are consistent and leave no call in its queues.
pub struct Watched {
    pub policy: Box<dyn Steering>,
    pub book: Shared,
    pub window: usize,
}

impl Watched {
    fn moves(&self, call: u32, from: impl Fn(Place) -> bool, to: Place) {
        let mut book = open(&self.book);
        let serial = book.slots[&(self.window, call)];
        let place = &mut book.calls[serial].place;
        assert!(from(*place), "call {serial} was {place:?} and is {to:?}");
        *place = to;
    }
}

impl Steering for Watched {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn arrived(&mut self, now: Nanos, call: u32, request: &Request) {
        let mut book = open(&self.book);
        let serial = book.arriving.take().expect("a front began the call");
        book.slots.insert((self.window, call), serial);
        drop(book);
        self.policy.arrived(now, call, request);
    }

    fn left(&mut self, call: u32) {
        self.moves(call, |place| place == Place::Waiting, Place::Left);
        self.policy.left(call);
    }

    fn ended(&mut self, now: Nanos, worker: u16, request: &Request, took: Nanos) {
        *open(&self.book).outstanding.entry((self.window, worker)).or_default() -= 1;
        self.policy.ended(now, worker, request, took);
    }

    fn next(&mut self, now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)> {
        let (call, worker) = self.policy.next(now, workers)?;
        let mut book = open(&self.book);
        let outstanding = book.outstanding.entry((self.window, worker)).or_default();
        // Calls that wait for their clients are not counted.
        let counted = workers.calls[usize::from(worker)];
        assert!(counted <= *outstanding, "worker {worker}: {counted} of {outstanding} calls");
        let passes_over = counted < *outstanding;
        *outstanding += 1;
        let serial = book.slots[&(self.window, call)];
        let entry = &book.calls[serial];
        assert_eq!(entry.over, None, "call {serial} was handed over although it was over");
        if passes_over {
            book.count("calls beside one that waits");
        }
        drop(book);
        self.moves(call, |place| place == Place::Waiting, Place::Handed(worker));
        Some((call, worker))
    }
}
