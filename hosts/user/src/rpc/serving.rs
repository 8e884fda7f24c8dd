//! A worker that calls handlers. Handlers of one message each way run until they return; streaming ones run as [`Streams`].

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use wave_core::clock::Clock;
use wave_core::message::Subject;
use wave_rpc::status::{Code, Status};
use wave_rpc::stub::Event;
use wave_rpc::wire::{Begin, message_flags};

use super::call::Call;
use super::server::Shared;
use super::streams::{Pauser, Streams};
use super::worker::Worker;
use crate::clock::MonotonicClock;

struct Begun {
    call: Subject,
    begin: Begin,
    metadata: Vec<u8>,
    message: Option<Vec<u8>>,
    flags: u8,
}

/// Calls handlers until the server stops and all of them have returned.
pub(super) fn serve(worker: Worker) {
    let shared = Arc::clone(worker.shared());
    let mut epoch = worker.epoch();
    let worker = Rc::new(RefCell::new(worker));
    let mut streams = Streams::default();
    let (mut calls, mut has_worked, mut looked) = (0, false, MonotonicClock.now());
    while !shared.stop.load(Ordering::Relaxed) || !streams.is_empty() {
        // Handlers need not have a safe point.
        crate::preempt_point();
        let begun = next(&mut worker.borrow_mut());
        wake(&mut worker.borrow_mut(), &mut epoch, &mut streams);
        // If a stream kept sending without room, it would delay the replies of other calls.
        let has_room = !worker.borrow().is_stuck();
        let has_run = has_room && streams.run_next();
        let has_begun = begun.is_some();
        if let Some(begun) = begun {
            if has_run {
                worker.borrow_mut().publish_batch();
            }
            handle(&worker, &shared, &mut streams, begun);
            calls += 1;
        }
        let mut worker = worker.borrow_mut();
        if has_run || has_begun {
            has_worked = true;
            worker.publish_batch();
            continue;
        }
        if std::mem::take(&mut has_worked) {
            worker.publish();
            worker.tally(calls, MonotonicClock.now().since(looked));
            calls = 0;
        }
        if streams.has_ready() {
            worker.wait_for_room();
        } else {
            worker.wait();
        }
        looked = MonotonicClock.now();
    }
}

/// Takes the next call, if one has begun.
fn next(worker: &mut Worker) -> Option<Begun> {
    // Buffers are taken first, because the event borrows the worker.
    let (mut bytes, mut first) = (worker.memory(), worker.memory());
    while let Some(event) = worker.poll() {
        // Other events are of calls that have ended.
        let Event::Begin { call, begin, metadata, message, compressed, end } = event else {
            continue;
        };
        bytes.extend_from_slice(metadata.as_bytes());
        let message = message.map(|message| {
            first.extend_from_slice(message);
            first
        });
        let flags = message_flags(end, compressed);
        return Some(Begun { call, begin, metadata: bytes, message, flags });
    }
    worker.keep(bytes);
    worker.keep(first);
    None
}

/// Marks handlers whose calls have new events as ready.
fn wake(worker: &mut Worker, epoch: &mut u64, streams: &mut Streams) {
    if std::mem::replace(epoch, worker.epoch()) != worker.epoch() {
        streams.wake_all();
    }
    while let Some(call) = worker.take_woken() {
        streams.wake(call);
    }
}

fn handle(worker: &Rc<RefCell<Worker>>, shared: &Arc<Shared>, streams: &mut Streams, begun: Begun) {
    let method = shared.methods.service().methods.get(usize::from(begun.begin.method));
    if !method.is_some_and(|method| method.client_streams || method.server_streams) {
        return call_handler(worker, shared, None, begun);
    }
    let call = begun.call;
    let stack = match streams.stack() {
        Ok(stack) => stack,
        Err(error) => {
            let text = format!("the host has no memory for a handler's stack: {error}");
            let status = Status::new(Code::ResourceExhausted, text);
            return begun.into_call(worker, None).end(Err(status));
        }
    };
    worker.borrow_mut().detach(call);
    let (worker, shared) = (Rc::clone(worker), Arc::clone(shared));
    streams.start(call, stack, move |pauser| call_handler(&worker, &shared, Some(pauser), begun));
}

fn call_handler(
    worker: &RefCell<Worker>,
    shared: &Shared,
    pauser: Option<Pauser<'_>>,
    begun: Begun,
) {
    let handler = shared.methods.handler(begun.begin.method);
    let mut call = begun.into_call(worker, pauser);
    let Some(handler) = handler else {
        return call.end(Err(Status::new(Code::Unimplemented, "the host has no such method")));
    };
    let result = catch_unwind(AssertUnwindSafe(|| handler(&mut call)));
    call.end(result.unwrap_or_else(|_| Err(Status::new(Code::Internal, "the handler panicked"))));
}

impl Begun {
    fn into_call<'a>(self, worker: &'a RefCell<Worker>, pauser: Option<Pauser<'a>>) -> Call<'a> {
        let Begun { call, begin, metadata, message, flags } = self;
        Call::new(worker, pauser, call, begin, metadata, message, flags)
    }
}
