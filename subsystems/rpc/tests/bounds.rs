//! Limits of calls, and what happens beyond them.

use bytes::Bytes;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{Config, Layout, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::Subject;
use wave_core_testing::nasty::{Bell, Link, NastyPort};
use wave_rpc::boxes::{FRAME_BYTES_MAX, Outbox};
use wave_rpc::dispatch::{Arrival, Dispatch, Event, Refused};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::metadata::Metadata;
use wave_rpc::service::{Method, Service};
use wave_rpc::status::{Code, Status};
use wave_rpc::steer;
use wave_rpc::stub::{self, SendError, Stub, StubError, Wait};
use wave_rpc::window::Load;
use wave_rpc::wire::{
    BEGIN, Begin, END, GRANT, Head, MESSAGE, SERVICE, WINDOW_BYTES, WINDOW_MESSAGES,
};

/// A dispatcher and one worker after the handshake.
struct Met {
    dispatch: Dispatch<NastyPort, Bell>,
    stub: Stub,
    port: NastyPort,
    link: Link,
    events: Vec<Event>,
}

const NOW: Nanos = Nanos(1_000_000);

impl Met {
    fn new() -> Met {
        Met::with(Config { contexts: 1, subjects: 64, ..Config::coherent(1) }, None)
    }

    fn with(config: Config, thread: Option<Subject>) -> Met {
        Met::steered(config, "jbsq:k=64", thread)
    }

    fn steered(config: Config, steering: &str, thread: Option<Subject>) -> Met {
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, true, 1);
        let port = link.port(Side::Host, &layout);
        write_header(&layout, port.window(Home::Nic));
        let method = Method { path: "/a/b".into(), ..Method::default() };
        let service = Service { methods: vec![method], descriptors: Vec::new() }.encode();
        let mut control =
            Outbox::new(Sender::new(&layout.messages[1], Side::Host), Extents::none());
        let head = Head::new(SERVICE, Subject::default());
        let head = Head { lengths: [service.len() as u32, 0], ..head };
        control.send(&port, &head, &service, &[]).unwrap();
        let mut stub = Stub::new(&layout, 0);
        stub.announce(&port, thread).unwrap();
        let steering = steer::by_name(steering, &config).unwrap();
        let bells = vec![Bell::default(); layout.doorbells()];
        let agent = link.port(Side::Agent, &layout);
        let dispatch = Dispatch::new(layout, agent, bells, steering);
        let mut met = Met { dispatch, stub, port, link, events: Vec::new() };
        met.settle();
        assert!(met.dispatch.is_ready());
        met.events.clear();
        met
    }

    /// Delivers everything that can arrive while the worker's handlers are busy.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.stub.publish(&self.port).unwrap();
            self.link.settle();
            let came = self.stub.attend(&self.port, NOW).unwrap();
            self.link.settle();
            let step = self.dispatch.step(NOW, &mut self.events).unwrap();
            if !came && matches!(step, Step::Idle(_)) {
                return;
            }
        }
        panic!("the dispatcher and the worker never come to rest");
    }

    fn begin(&mut self) -> Subject {
        let call = self.dispatch.begin(NOW, Arrival::default()).unwrap();
        self.settle();
        call
    }

    /// Reads a call's messages. Returns their number.
    fn read(&mut self, call: Subject) -> usize {
        let mut count = 0;
        while let Some(event) = self.stub.poll_call(&self.port, NOW, call).unwrap() {
            count += usize::from(matches!(event, stub::Event::Message { .. }));
        }
        count
    }
}

fn is_begin(event: Option<stub::Event<'_>>, of: Subject) -> bool {
    matches!(event, Some(stub::Event::Begin { call, .. }) if call == of)
}

/// Runs a thread that polls only after a note. Returns how many polls it took to find the request.
fn polls_of_a_thread(entries: u32, payloads: PayloadConfig) -> usize {
    let mut config = Config { contexts: 1, subjects: 64, prestage: 1, ..Config::coherent(1) };
    (config.decisions.entries, config.pools) = (entries, payloads.pools());
    let thread = Subject { id: 3, generation: 1 };
    let mut met = Met::with(config, Some(thread));
    let message = Some(Bytes::from(vec![7; 1_000]));
    met.dispatch.begin(NOW, Arrival { message, end: true, ..Arrival::default() }).unwrap();
    let mut polls = 0;
    for _ in 0..1_000 {
        met.dispatch.step(NOW, &mut met.events).unwrap();
        met.link.settle();
        let notes: Vec<_> = met.dispatch.take_notes().collect();
        assert!(notes.iter().all(|note| note.thread == thread));
        if notes.is_empty() {
            continue;
        }
        polls += 1;
        if met.stub.poll(&met.port, NOW).unwrap().is_some() {
            return polls;
        }
        met.stub.publish(&met.port).unwrap();
        met.link.settle();
    }
    panic!("no request found after {polls} notes");
}

#[test]
fn note_is_sent_once_the_thread_would_find_the_request() {
    let extents = |extents, lines| PayloadConfig { extents, lines, inline_max: 100 };
    assert_eq!(
        polls_of_a_thread(64, PayloadConfig::NONE),
        1,
        "the request is complete in the queue"
    );
    assert_eq!(
        polls_of_a_thread(64, extents(4, 4)),
        1,
        "the request is complete once it was copied"
    );
    // A request that does not fit has to be taken in pieces.
    assert!(polls_of_a_thread(2, PayloadConfig::NONE) > 5);
    assert!(polls_of_a_thread(64, extents(1, 2)) > 5);
    assert!(polls_of_a_thread(2, extents(2, 1)) > 5);
}

#[test]
fn empty_messages_count_against_the_window() {
    let mut met = Met::new();
    let call = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    let window = WINDOW_MESSAGES as usize;
    for _ in 0..3 * window {
        met.dispatch.message(call, Bytes::new(), false, false);
    }
    met.settle();
    assert_eq!(met.read(call), window, "exactly a window of messages arrives");
    let mut told = 0;
    for _ in 0..10 {
        met.settle();
        met.read(call);
    }
    for event in met.events.drain(..) {
        let Event::Taken { bytes, messages, .. } = event else { panic!("{event:?}") };
        assert_eq!(bytes, 0);
        told += messages as usize;
    }
    assert!((2 * window..=3 * window).contains(&told), "{told}");
    // The other direction.
    let mut sent = 0;
    while met.stub.message(&met.port, call, &[], 0).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, window);
    assert_eq!(met.stub.message(&met.port, call, &[], END), Err(SendError::Blocked));
    met.settle();
    assert_eq!(met.events.len(), window);
    for _ in 0..window {
        met.dispatch.grant(call, 0);
    }
    met.settle();
    assert_eq!(met.stub.message(&met.port, call, &[], END), Ok(()));
    met.settle();
    assert_eq!((met.dispatch.open(), met.stub.open()), (0, 0));
}

#[test]
fn full_windows_of_other_clients_do_not_block_a_handlers_message() {
    let mut met = Met::new();
    let waits = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), waits));
    // Other clients send as much as they can, in empty messages and in large ones.
    for _ in 0..20 {
        let empty = met.begin();
        let large = met.begin();
        for _ in 0..WINDOW_MESSAGES {
            met.dispatch.message(empty, Bytes::new(), false, false);
        }
        let message = Bytes::from(vec![1; WINDOW_BYTES as usize]);
        met.dispatch.message(large, message, true, false);
    }
    met.dispatch.message(waits, Bytes::from_static(b"here"), true, false);
    met.settle();
    assert_eq!(met.read(waits), 1);
}

#[test]
fn cancelled_or_expired_call_in_a_queue_does_not_begin() {
    let mut met = Met::new();
    // Both calls are in the queue when one is cancelled. The worker takes the cancelled one first.
    let calls = [(); 2].map(|()| met.dispatch.begin(NOW, Arrival::default()).unwrap());
    met.dispatch.step(NOW, &mut met.events).unwrap();
    met.dispatch.cancel(calls[0], Code::Cancelled);
    met.dispatch.step(NOW, &mut met.events).unwrap();
    met.link.settle();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), calls[1]));
    // A call that expires in the queue of a busy worker does not begin either.
    let deadline = Some(NOW + Nanos::from_micros(10));
    let late = met.dispatch.begin(NOW, Arrival { deadline, ..Arrival::default() }).unwrap();
    met.settle();
    assert_eq!(met.stub.open(), 2);
    assert_eq!(met.stub.poll(&met.port, NOW + Nanos::from_micros(10)), Ok(None));
    assert_eq!(met.stub.open(), 1, "the expired call was ended");
    met.settle();
    let [Event::Status { call, status, .. }] = &met.events[..] else { panic!("{:?}", met.events) };
    assert_eq!((*call, status.code), (late, Code::DeadlineExceeded));
}

#[test]
fn too_long_reply_or_late_metadata_is_refused_and_the_call_continues() {
    let mut met = Met::new();
    let call = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    let length = FRAME_BYTES_MAX + 1;
    let long = vec![0; length as usize];
    let sent = met.stub.message(&met.port, call, &long, END);
    assert_eq!(sent, Err(SendError::TooLong(length)));
    met.stub.headers(&met.port, call, Metadata::default()).unwrap();
    let again = met.stub.headers(&met.port, call, Metadata::default());
    assert_eq!(again, Err(SendError::TooLate));
    met.stub.message(&met.port, call, b"short", 0).unwrap();
    let status = Status::new(Code::Internal, "because");
    met.stub.finish(&met.port, call, &status, Metadata::default()).unwrap();
    met.settle();
    let [Event::Headers { .. }, Event::Message { .. }, Event::Status { .. }] = &met.events[..]
    else {
        panic!("{:?}", met.events)
    };
}

/// A dispatcher with one worker, which takes one call at a time.
fn met_one_at_a_time(subjects: u32) -> Met {
    let config = Config { contexts: 1, subjects, ..Config::coherent(1) };
    let mut met = Met::steered(config, "jbsq:k=1", Some(Subject { id: 3, generation: 1 }));
    met.dispatch.take_notes().for_each(drop);
    met
}

/// Fills the window of a call's replies.
fn fill_replies(met: &mut Met, call: Subject) {
    let reply = vec![7; WINDOW_BYTES as usize];
    met.stub.message(&met.port, call, &reply, 0).unwrap();
    let blocked = met.stub.message(&met.port, call, b"more", 0);
    assert_eq!(blocked, Err(SendError::Blocked));
}

#[test]
fn call_with_unread_replies_takes_no_place_on_its_worker() {
    let mut met = met_one_at_a_time(64);
    let unread = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), unread));
    met.stub.detach(unread);
    let other = met.begin();
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None), "the worker's only place is taken");
    fill_replies(&mut met, unread);
    met.settle();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), other));
    // When the client reads, the call is woken and counts again, and its thread gets a note.
    met.dispatch.take_notes().for_each(drop);
    met.dispatch.grant(unread, WINDOW_BYTES);
    met.settle();
    assert_eq!(met.dispatch.take_notes().count(), 1);
    assert_eq!(met.stub.take_woken(), Some(unread));
    met.stub.message(&met.port, other, b"", END).unwrap();
    let third = met.begin();
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None));
    met.stub.message(&met.port, unread, b"more", END).unwrap();
    met.settle();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), third));
}

#[test]
fn stream_with_a_silent_client_takes_no_place_on_its_worker() {
    let mut met = met_one_at_a_time(64);
    let silent = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), silent));
    // A poll that finds nothing shows that the worker has run out of work.
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None));
    met.stub.wait(&met.port, NOW, true).unwrap();
    let other = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), other));
}

/// A grant counts a waiting call again, but brings the worker no event.
#[test]
fn stream_whose_client_reads_and_stays_silent_takes_no_place_on_a_worker_that_polls() {
    let mut met = met_one_at_a_time(64);
    let silent = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), silent));
    fill_replies(&mut met, silent);
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None));
    met.stub.wait(&met.port, NOW, true).unwrap();
    met.settle();
    met.dispatch.grant(silent, WINDOW_BYTES);
    met.settle();
    for _ in 0..2 {
        let other = met.begin();
        met.stub.wait(&met.port, NOW, true).unwrap();
        met.settle();
        assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), other));
        met.stub.message(&met.port, other, b"", END).unwrap();
        met.settle();
    }
}

/// Frames taken by a check for cancellation do not ring again. They count as work, so the worker polls again.
#[test]
fn worker_polls_again_after_a_check_for_cancellation_has_taken_frames() {
    let config = Config { contexts: 1, subjects: 64, ..Config::coherent(1) };
    let mut met = Met::steered(config, "jbsq:k=2", None);
    let (busy, cancelled) = (met.begin(), met.begin());
    for call in [busy, cancelled] {
        assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    }
    met.begin();
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None), "both places of the worker are taken");
    met.dispatch.message(busy, Bytes::from_static(b"more"), false, false);
    met.dispatch.cancel(cancelled, Code::Cancelled);
    while !matches!(met.dispatch.step(NOW, &mut met.events).unwrap(), Step::Idle(_)) {}
    met.link.settle();
    let why = met.stub.is_cancelled(&met.port, NOW, cancelled);
    assert_eq!(why, Ok(Some(Code::Cancelled)));
    assert_eq!(met.stub.wait(&met.port, NOW, true), Ok(Wait::Spin));
    met.settle();
    let mut events = Vec::new();
    while let Some(event) = met.stub.poll(&met.port, NOW).unwrap() {
        events.push(format!("{event:?}"));
    }
    assert!(events[0].starts_with("Message"), "{events:?}");
    assert!(!events.iter().any(|event| event.starts_with("Begin")), "{events:?}");
}

/// The worker may share its CPU with the agent, which has to make room.
#[test]
fn a_worker_whose_replies_wait_for_room_yields_its_cpu() {
    let mut met = met_one_at_a_time(64);
    let call = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    met.stub.message(&met.port, call, &vec![7; WINDOW_BYTES as usize - 1], 0).unwrap();
    met.stub.publish(&met.port).unwrap();
    assert!(met.stub.is_stuck(), "the reply has more entries than the queue");
    assert_eq!(met.stub.wait(&met.port, NOW, false), Ok(Wait::Spin), "the worker may not sleep");
    assert_eq!(met.stub.wait(&met.port, NOW, true), Ok(Wait::Yield));
    met.settle();
    assert!(!met.stub.is_stuck());
    assert_ne!(met.stub.wait(&met.port, NOW, true), Ok(Wait::Yield));
}

#[test]
fn a_yielding_stream_takes_no_place_on_its_worker() {
    let mut met = met_one_at_a_time(64);
    let long = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), long));
    met.stub.detach(long);
    for _ in 0..2 {
        met.stub.yield_to_others(&met.port, long).unwrap();
    }
    let other = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), other));
    // It takes no place after it has waited for its client either. When it ends, the other call still has its place.
    met.stub.wait_for_client(&met.port, long).unwrap();
    met.settle();
    met.dispatch.half_close(long);
    met.settle();
    met.stub.message(&met.port, long, b"", END).unwrap();
    met.begin();
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None), "the other call takes the place");
    met.stub.message(&met.port, other, b"", END).unwrap();
    met.settle();
    assert!(met.stub.poll(&met.port, NOW).unwrap().is_some());
}

#[test]
fn wait_that_crosses_with_a_message_is_ignored_and_its_thread_gets_a_note() {
    let mut met = met_one_at_a_time(64);
    let call = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    met.stub.detach(call);
    met.stub.wait_for_client(&met.port, call).unwrap();
    met.dispatch.take_notes().for_each(drop);
    met.dispatch.message(call, Bytes::from_static(b"now"), false, false);
    met.settle();
    assert_eq!(
        met.dispatch.take_notes().count(),
        1,
        "the thread may have polled before the message came"
    );
    assert_eq!(met.stub.take_woken(), Some(call));
    met.begin();
    assert_eq!(met.stub.poll(&met.port, NOW), Ok(None), "the call still takes its place");
    assert_eq!(met.read(call), 1);
}

/// Calls that were given up keep their slots until their workers end them, so they count as well.
#[test]
fn the_calls_of_an_address_leave_room_for_others() {
    let mut met = met_one_at_a_time(16);
    let arrival = |address| Arrival { address: Some(address), end: true, ..Arrival::default() };
    let begun = |met: &mut Met, address| met.dispatch.begin(NOW, arrival(address));
    let calls: Vec<_> = std::iter::from_fn(|| begun(&mut met, 1).ok()).collect();
    assert_eq!(calls.len(), 12, "three times as many as remain free");
    met.settle();
    let handed = calls[0];
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), handed));
    met.dispatch.cancel(handed, Code::Cancelled);
    assert_eq!(begun(&mut met, 1), Err(Refused::Full));
    // The others have not reached a worker, and end at once.
    for call in &calls[6..] {
        met.dispatch.cancel(*call, Code::Cancelled);
    }
    let others: Vec<_> = std::iter::from_fn(|| begun(&mut met, 2).ok()).collect();
    assert_eq!(others.len(), 8, "10 slots were free");
    assert_eq!(begun(&mut met, 1), Err(Refused::Full));
    for call in others {
        met.dispatch.cancel(call, Code::Cancelled);
    }
    assert!(begun(&mut met, 1).is_ok());
}

#[test]
fn too_many_waiting_streams_stop_the_oldest_of_the_address_with_most() {
    let mut met = met_one_at_a_time(8);
    let mut wait = |address, hash| {
        let arrival = Arrival { address: Some(address), hash, ..Arrival::default() };
        let call = met.dispatch.begin(NOW, arrival).unwrap();
        met.settle();
        assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
        met.stub.detach(call);
        met.stub.wait_for_client(&met.port, call).unwrap();
        met.settle();
        call
    };
    // Older streams wait as well: one of another address, and one of another connection of the same address.
    let patient = wait(1, 10);
    let small = wait(2, 20);
    let oldest = wait(2, 21);
    wait(2, 21);
    let last = wait(2, 21);
    let [Event::Stopped { call, status }] = &met.events[..] else { panic!("{:?}", met.events) };
    assert_eq!((*call, status.code), (oldest, Code::ResourceExhausted));
    assert_eq!(met.dispatch.counts().stopped, 1);
    // The worker is told, and other calls continue.
    assert_eq!(met.stub.take_woken(), Some(oldest));
    for call in [patient, small, last] {
        met.stub.message(&met.port, call, b"", END).unwrap();
    }
    met.settle();
    assert_eq!(met.dispatch.counts().answered, 3);
}

/// A worker, and an agent that sends what it likes and takes nothing.
struct Deaf {
    stub: Stub,
    port: NastyPort,
    agent: NastyPort,
    outbox: Outbox,
    link: Link,
}

/// More frames than queue and windows have room for.
const MANY: u32 = 20_000;

impl Deaf {
    fn new() -> Deaf {
        let mut config = Config { contexts: 1, subjects: 4, ..Config::coherent(1) };
        config.messages.entries = 16;
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, true, 1);
        let [port, agent] = [Side::Host, Side::Agent].map(|side| link.port(side, &layout));
        write_header(&layout, port.window(Home::Nic));
        let outbox = Outbox::new(Sender::new(&layout.decisions[0], Side::Agent), Extents::none());
        Deaf { stub: Stub::new(&layout, 0), port, agent, outbox, link }
    }

    fn sends(&mut self, head: Head, message: &[u8]) {
        let head = Head { lengths: [0, message.len() as u32], ..head };
        self.outbox.send(&self.agent, &head, &[], message).unwrap();
        self.outbox.publish(&self.agent);
        self.link.settle();
    }

    fn begins(&mut self, generation: u32, flags: u8) -> Result<Subject, StubError> {
        let call = Subject { id: 0, generation };
        let argument = Begin { method: 0, class: 0, left: None }.to_word();
        self.sends(Head { flags, argument, ..Head::new(BEGIN, call) }, &[]);
        let event = self.stub.poll(&self.port, NOW)?;
        assert!(is_begin(event, call));
        Ok(call)
    }

    /// Repeats `step` until the worker refuses what the agent sent.
    fn fault(mut self, mut step: impl FnMut(&mut Deaf, u32) -> Result<(), StubError>) -> StubError {
        for count in 0..MANY {
            if let Err(error) = step(&mut self, count) {
                return error;
            }
            self.stub.publish(&self.port).unwrap();
            self.link.settle();
        }
        panic!("the worker keeps any number of frames for an agent that takes none");
    }
}

#[test]
fn agent_may_not_reuse_a_slot_before_it_has_seen_the_end_of_the_last_call() {
    let error = Deaf::new().fault(|deaf, generation| {
        let call = deaf.begins(generation, END)?;
        deaf.stub.finish(&deaf.port, call, &Status::ok(), Metadata::default()).unwrap();
        Ok(())
    });
    assert!(matches!(error, StubError::Call(Subject { id: 0, .. })), "{error:?}");
}

#[test]
fn agent_may_not_make_room_for_replies_that_it_has_not_taken() {
    let mut deaf = Deaf::new();
    let call = deaf.begins(1, END).unwrap();
    let error = deaf.fault(|deaf, _| {
        let blocked =
            (0..MANY).find_map(|_| deaf.stub.message(&deaf.port, call, &[7; 1_000], 0).err());
        assert!(matches!(blocked, Some(SendError::Blocked)));
        let all = Load { bytes: WINDOW_BYTES, messages: WINDOW_MESSAGES };
        deaf.sends(Head { argument: all.to_word(), ..Head::new(GRANT, call) }, &[]);
        deaf.stub.poll_call(&deaf.port, NOW, call).map(|_| ())
    });
    assert!(matches!(error, StubError::Window(_)), "{error:?}");
}

#[test]
fn agent_may_not_send_messages_beyond_the_window_that_it_was_told() {
    let mut deaf = Deaf::new();
    let call = deaf.begins(1, 0).unwrap();
    let error = deaf.fault(|deaf, _| {
        deaf.sends(Head::new(MESSAGE, call), &[7; 1_000]);
        deaf.stub.poll_call(&deaf.port, NOW, call).map(|_| ())
    });
    assert!(matches!(error, StubError::Window(_)), "{error:?}");
}

#[test]
fn worker_keeps_one_frame_that_says_that_a_call_waits() {
    let mut deaf = Deaf::new();
    let call = deaf.begins(1, 0).unwrap();
    let before = deaf.stub.waiting();
    for _ in 0..MANY {
        deaf.stub.wait_for_client(&deaf.port, call).unwrap();
        deaf.stub.publish(&deaf.port).unwrap();
        // Each frame of the agent's has the worker say again that the call waits.
        deaf.sends(Head::new(GRANT, call), &[]);
        assert!(deaf.stub.poll_call(&deaf.port, NOW, call).unwrap().is_none());
    }
    assert!(deaf.stub.waiting() <= before + 1);
}
