//! A worker's events and replies.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wave_core::clock::{Clock, Nanos};
use wave_core::message::Subject;
use wave_user::MonotonicClock;
use wave_user::rpc::{Begin, COMPRESSED, Code, END, Event, Metadata, Status, Worker};

use crate::answer::{
    Failure, WAVE_RPC_BAD_ARGUMENT, WAVE_RPC_NOT_OPEN, WAVE_RPC_OK, WAVE_RPC_STOPPED, WAVE_RPC_YES,
    answer,
};
use crate::calls::{Calls, Open};
use crate::handle::{Entered, Kind, Shell};
use crate::text::{pairs, slice, text, wave_rpc_pair};

/// [`wave_rpc_event::kind`]: a call begins.
pub const WAVE_RPC_BEGIN: u32 = 1;
/// [`wave_rpc_event::kind`]: a further message from the client.
pub const WAVE_RPC_MESSAGE: u32 = 2;
/// [`wave_rpc_event::kind`]: the client sends nothing more.
pub const WAVE_RPC_HALF_CLOSE: u32 = 3;
/// [`wave_rpc_event::kind`]: the call was cancelled.
pub const WAVE_RPC_CANCEL: u32 = 4;

/// [`wave_rpc_event::flags`]: there is a message.
pub const WAVE_RPC_HAS_MESSAGE: u32 = 1;
/// [`wave_rpc_event::flags`]: the client sends nothing more. In replies: the call ends.
pub const WAVE_RPC_END: u32 = 2;
/// [`wave_rpc_event::flags`]: the message arrived compressed. In replies: compress it.
pub const WAVE_RPC_COMPRESSED: u32 = 4;

/// Value of `remaining_ns` for a call without a deadline.
pub const WAVE_RPC_FOREVER: u64 = u64::MAX;

/// An event of a worker.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct wave_rpc_event {
    /// Kind of the event: [`WAVE_RPC_BEGIN`] to [`WAVE_RPC_CANCEL`].
    pub kind: u32,
    /// [`WAVE_RPC_HAS_MESSAGE`], [`WAVE_RPC_END`], [`WAVE_RPC_COMPRESSED`].
    pub flags: u32,
    /// Number of the call.
    pub call: u64,
    /// When a call begins: the index of its method.
    pub method: u16,
    /// When a call begins: the class by which it was steered.
    pub request_class: u8,
    /// Always zero.
    pub reserved: u8,
    /// When a call was cancelled: the reason, as a gRPC status code.
    pub code: i32,
    /// When a call begins: nanoseconds until its deadline, or [`WAVE_RPC_FOREVER`].
    pub remaining_ns: u64,
    /// The message, valid until the next poll; null if there is none.
    pub message: *const u8,
    /// Length of the message in bytes.
    pub message_bytes: usize,
    /// When a call begins: its encoded metadata, for `wave_rpc_event_metadata`.
    pub metadata: *const u8,
    /// Length of the metadata in bytes.
    pub metadata_bytes: usize,
}

/// An event without its bytes.
#[derive(Clone, Copy)]
enum Came {
    Begin { call: Subject, begin: Begin, flags: u32 },
    Message { call: Subject, flags: u32 },
    HalfClose { call: Subject },
    Cancel { call: Subject, why: Code },
}

/// State of a worker behind its handle.
pub struct WorkerState {
    worker: Worker,
    is_stopped: Arc<AtomicBool>,
    calls: Calls,
    /// Message of the last event.
    message: Vec<u8>,
    metadata: Vec<u8>,
    /// Calls whose agent has gone, and for which no event was returned yet.
    lost: VecDeque<u64>,
    /// The first event from the next agent, kept until `lost` is empty.
    held: Option<Came>,
    epoch: u64,
}

/// Handle of a worker.
pub type wave_rpc_worker = Shell<WorkerState>;

impl Kind for WorkerState {
    const WORD: u64 = u64::from_le_bytes(*b"wavework");
    const NAME: &'static str = "worker";
}

impl WorkerState {
    pub(crate) fn new(worker: Worker, is_stopped: Arc<AtomicBool>) -> WorkerState {
        WorkerState {
            worker,
            is_stopped,
            calls: Calls::default(),
            message: Vec::new(),
            metadata: Vec::new(),
            lost: VecDeque::new(),
            held: None,
            epoch: 0,
        }
    }

    /// The worker's next event. Its bytes are copied.
    fn next_event(&mut self) -> Option<Came> {
        let WorkerState { worker, message: kept, metadata: own, .. } = self;
        let mut keep = |message: &[u8]| {
            kept.clear();
            kept.extend_from_slice(message);
        };
        let flags = |end, compressed| {
            (if end { WAVE_RPC_END } else { 0 })
                | (if compressed { WAVE_RPC_COMPRESSED } else { 0 })
        };
        Some(match worker.poll()? {
            Event::Begin { call, begin, metadata, message, compressed, end } => {
                own.clear();
                own.extend_from_slice(metadata.as_bytes());
                keep(message.unwrap_or_default());
                let has_message = if message.is_some() { WAVE_RPC_HAS_MESSAGE } else { 0 };
                Came::Begin { call, begin, flags: flags(end, compressed) | has_message }
            }
            Event::Message { call, message, compressed, end } => {
                keep(message);
                Came::Message { call, flags: flags(end, compressed) | WAVE_RPC_HAS_MESSAGE }
            }
            Event::HalfClose { call } => Came::HalfClose { call },
            Event::Cancel { call, why } => Came::Cancel { call, why },
        })
    }

    fn poll(&mut self) -> Option<wave_rpc_event> {
        loop {
            if let Some(call) = self.lost.pop_front() {
                return Some(cancelled(call, Code::Unavailable));
            }
            let came = self.held.take().or_else(|| self.next_event());
            let epoch = self.worker.epoch();
            if std::mem::replace(&mut self.epoch, epoch) != epoch {
                // The previous agent's calls are gone; their events are returned before new calls can take their ids.
                self.lost.extend(self.calls.end_all());
                self.held = came;
                if !self.lost.is_empty() || came.is_some() {
                    continue;
                }
            }
            // Events of calls that have ended are skipped.
            if let Some(event) = self.process_event(came?) {
                return Some(event);
            }
        }
    }

    fn process_event(&mut self, came: Came) -> Option<wave_rpc_event> {
        let has_message = |flags: u32| flags & WAVE_RPC_HAS_MESSAGE != 0;
        let message = |state: &WorkerState, flags: u32| match has_message(flags) {
            true => (state.message.as_ptr(), state.message.len()),
            false => (std::ptr::null(), 0),
        };
        match came {
            Came::Begin { call: subject, begin, flags } => {
                let deadline = begin.left.map(|left| MonotonicClock.now() + left);
                let call = self.calls.begin(Open { subject, deadline });
                let (message, message_bytes) = message(self, flags);
                Some(wave_rpc_event {
                    flags,
                    method: begin.method,
                    request_class: begin.class,
                    remaining_ns: begin.left.map_or(WAVE_RPC_FOREVER, |left| left.0),
                    message,
                    message_bytes,
                    metadata: self.metadata.as_ptr(),
                    metadata_bytes: self.metadata.len(),
                    ..empty(WAVE_RPC_BEGIN, call)
                })
            }
            Came::Message { call, flags } => {
                let (message, message_bytes) = message(self, flags);
                let call = self.calls.number(call)?;
                let event = empty(WAVE_RPC_MESSAGE, call);
                Some(wave_rpc_event { flags, message, message_bytes, ..event })
            }
            Came::HalfClose { call } => {
                let event = empty(WAVE_RPC_HALF_CLOSE, self.calls.number(call)?);
                Some(wave_rpc_event { flags: WAVE_RPC_END, ..event })
            }
            Came::Cancel { call, why } => Some(cancelled(self.calls.number(call)?, why)),
        }
    }

    fn find(&self, call: u64) -> Result<Open, Failure> {
        let gone = || Failure::new(WAVE_RPC_NOT_OPEN, format!("call {call:#x} is not open"));
        self.calls.find(call).ok_or_else(gone)
    }
}

fn empty(kind: u32, call: u64) -> wave_rpc_event {
    wave_rpc_event {
        kind,
        flags: 0,
        call,
        method: 0,
        request_class: 0,
        reserved: 0,
        code: 0,
        remaining_ns: WAVE_RPC_FOREVER,
        message: std::ptr::null(),
        message_bytes: 0,
        metadata: std::ptr::null(),
        metadata_bytes: 0,
    }
}

fn cancelled(call: u64, why: Code) -> wave_rpc_event {
    wave_rpc_event { code: why as i32, ..empty(WAVE_RPC_CANCEL, call) }
}

/// Locks a worker. If its server was stopped, frees the worker's contents and fails.
///
/// # Safety
/// As for [`Shell::enter`].
unsafe fn enter(worker: *mut wave_rpc_worker) -> Result<Entered<WorkerState>, Failure> {
    // SAFETY: the caller's promise.
    let state = unsafe { Shell::enter(worker) }?;
    if state.is_stopped.load(Ordering::SeqCst) {
        drop(state.take());
        return Err(Failure::new(WAVE_RPC_STOPPED, "the server was stopped"));
    }
    Ok(state)
}

/// Gets the next event.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_poll(
    worker: *mut wave_rpc_worker,
    event: *mut wave_rpc_event,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        if event.is_null() {
            return Err(Failure::argument("event is null"));
        }
        let Some(came) = state.poll() else { return Ok(WAVE_RPC_OK) };
        // SAFETY: the caller's promise: it points to memory for an event.
        unsafe { event.write(came) };
        Ok(WAVE_RPC_YES)
    })
}

/// Waits for an event.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_wait(worker: *mut wave_rpc_worker) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        if state.lost.is_empty() && state.held.is_none() {
            state.worker.wait();
        }
        Ok(WAVE_RPC_OK)
    })
}

/// Publishes replies.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_publish(worker: *mut wave_rpc_worker) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { enter(worker) }?.worker.publish();
        Ok(WAVE_RPC_OK)
    })
}

/// Sends metadata, once, before the first reply.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_headers(
    worker: *mut wave_rpc_worker,
    call: u64,
    pairs: *const wave_rpc_pair,
    pairs_count: usize,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        // SAFETY: as above.
        let encoded = unsafe { self::pairs(pairs, pairs_count) }?;
        let Open { subject, .. } = state.find(call)?;
        state.worker.headers(subject, &encoded)?;
        Ok(WAVE_RPC_OK)
    })
}

/// Sends a reply.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_message(
    worker: *mut wave_rpc_worker,
    call: u64,
    message: *const c_void,
    message_bytes: usize,
    flags: u32,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        // SAFETY: as above.
        let message = unsafe { slice("message", message.cast(), message_bytes) }?;
        if flags & !(WAVE_RPC_END | WAVE_RPC_COMPRESSED) != 0 {
            return Err(Failure::argument(format!("invalid flags of a reply: {flags:#x}")));
        }
        let end = flags & WAVE_RPC_END != 0;
        let compressed = flags & WAVE_RPC_COMPRESSED != 0;
        let flags = if end { END } else { 0 } | if compressed { COMPRESSED } else { 0 };
        let Open { subject, .. } = state.find(call)?;
        state.worker.message(subject, message, flags)?;
        if end {
            state.calls.end(call);
        }
        Ok(WAVE_RPC_OK)
    })
}

/// Ends a call with a status and trailing metadata.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_finish(
    worker: *mut wave_rpc_worker,
    call: u64,
    code: i32,
    message: *const c_char,
    trailers: *const wave_rpc_pair,
    trailers_count: usize,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        let message = match message.is_null() {
            true => "",
            // SAFETY: as above.
            false => unsafe { text("message", message) }?,
        };
        // SAFETY: as above.
        let trailers = unsafe { pairs(trailers, trailers_count) }?;
        let known = Code::ALL.get(usize::try_from(code).unwrap_or(usize::MAX)).copied();
        let code = known.ok_or_else(|| {
            Failure::new(WAVE_RPC_BAD_ARGUMENT, format!("{code} is not a gRPC status code"))
        })?;
        let Open { subject, .. } = state.find(call)?;
        state.worker.finish(subject, &Status::new(code, message), &trailers)?;
        state.calls.end(call);
        Ok(WAVE_RPC_OK)
    })
}

/// Whether a call was cancelled.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_is_cancelled(
    worker: *mut wave_rpc_worker,
    call: u64,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let mut state = unsafe { enter(worker) }?;
        let Open { subject, deadline } = state.find(call)?;
        let is_late = deadline.is_some_and(|deadline| MonotonicClock.now() >= deadline);
        let is_over = is_late || !matches!(state.worker.is_cancelled(subject), Ok(None));
        Ok(is_over.into())
    })
}

/// Gets the time left until a call's deadline.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_worker_remaining(
    worker: *mut wave_rpc_worker,
    call: u64,
    remaining_ns: *mut u64,
) -> i32 {
    answer(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { enter(worker) }?;
        if remaining_ns.is_null() {
            return Err(Failure::argument("remaining_ns is null"));
        }
        let left = |deadline: Nanos| deadline.since(MonotonicClock.now()).0;
        let left = state.find(call)?.deadline.map_or(WAVE_RPC_FOREVER, left);
        // SAFETY: the caller's promise: it points to a number.
        unsafe { remaining_ns.write(left) };
        Ok(WAVE_RPC_OK)
    })
}

/// Gets pair number `index` of an event's metadata.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wave_rpc_event_metadata(
    event: *const wave_rpc_event,
    index: usize,
    pair: *mut wave_rpc_pair,
) -> i32 {
    answer(|| {
        if event.is_null() || pair.is_null() {
            return Err(Failure::argument("event or pair is null"));
        }
        // SAFETY: the caller's promise: a poll wrote it.
        let event = unsafe { &*event };
        // SAFETY: as above, and no other poll followed.
        let bytes = unsafe { slice("metadata", event.metadata, event.metadata_bytes) }?;
        let metadata =
            Metadata::new(bytes).map_err(|error| Failure::argument(error.to_string()))?;
        let Some((key, value)) = metadata.iter().nth(index) else { return Ok(WAVE_RPC_OK) };
        let found = wave_rpc_pair {
            key: key.as_ptr().cast(),
            key_bytes: key.len(),
            value: value.as_ptr().cast(),
            value_bytes: value.len(),
        };
        // SAFETY: the caller's promise: it points to memory for a pair.
        unsafe { pair.write(found) };
        Ok(WAVE_RPC_YES)
    })
}
