//! What is bounded, by what, and what is refused to whom.

#[path = "../../../core/tests/common/mod.rs"]
mod common;

use bytes::Bytes;
use common::nasty::{Bell, Link, NastyPort};
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{Config, Layout, PayloadConfig, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::Subject;
use wave_rpc::boxes::{FRAME_BYTES_MAX, Outbox};
use wave_rpc::dispatch::{Arrival, Dispatch, Event};
use wave_rpc::extents::Extents;
use wave_rpc::metadata::Metadata;
use wave_rpc::service::{Method, Service};
use wave_rpc::status::{Code, Status};
use wave_rpc::steer;
use wave_rpc::stub::{self, SendError, Stub};
use wave_rpc::wire::{END, Head, SERVICE, WINDOW_BYTES, WINDOW_MESSAGES};

/// A dispatcher and one worker that have met.
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
        let steering = steer::by_name("jbsq:k=64", &config).unwrap();
        let bells = vec![Bell::default(); layout.doorbells()];
        let agent = link.port(Side::Agent, &layout);
        let dispatch = Dispatch::new(layout, agent, bells, steering);
        let mut met = Met { dispatch, stub, port, link, events: Vec::new() };
        met.settle();
        assert!(met.dispatch.is_ready());
        met.events.clear();
        met
    }

    /// Lets everything arrive that can, while the worker's handlers are busy.
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
        panic!("it does not come to rest");
    }

    fn begin(&mut self) -> Subject {
        let call = self.dispatch.begin(NOW, Arrival::default()).unwrap();
        self.settle();
        call
    }

    /// How many messages there are for a call now.
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

/// A thread that looks only when a note came. Returns how often it did until it found the request.
fn looks_of_a_thread(entries: u32, payloads: PayloadConfig) -> usize {
    let mut config = Config { contexts: 1, subjects: 64, prestage: 1, ..Config::coherent(1) };
    (config.decisions.entries, config.payloads) = (entries, payloads);
    let thread = Subject { id: 3, generation: 1 };
    let mut met = Met::with(config, Some(thread));
    let message = Some(Bytes::from(vec![7; 1_000]));
    met.dispatch.begin(NOW, Arrival { message, end: true, ..Arrival::default() }).unwrap();
    let mut looks = 0;
    for _ in 0..1_000 {
        met.dispatch.step(NOW, &mut met.events).unwrap();
        met.link.settle();
        let notes: Vec<_> = met.dispatch.take_notes().collect();
        assert!(notes.iter().all(|note| note.thread == thread));
        if notes.is_empty() {
            continue;
        }
        looks += 1;
        if met.stub.poll(&met.port, NOW).unwrap().is_some() {
            return looks;
        }
        met.stub.publish(&met.port).unwrap();
        met.link.settle();
    }
    panic!("no note leads to the request, after {looks}");
}

#[test]
fn a_scheduler_hears_of_a_request_when_its_thread_would_find_it() {
    let extents = |extents, lines| PayloadConfig { extents, lines, inline_max: 100 };
    assert_eq!(looks_of_a_thread(64, PayloadConfig::NONE), 1, "it is there whole");
    assert_eq!(looks_of_a_thread(64, extents(4, 4)), 1, "and so it is once it was copied");
    // What does not fit has to be taken in pieces.
    assert!(looks_of_a_thread(2, PayloadConfig::NONE) > 5);
    assert!(looks_of_a_thread(64, extents(1, 2)) > 5);
    assert!(looks_of_a_thread(2, extents(2, 1)) > 5);
}

#[test]
fn empty_messages_fill_a_window_too() {
    let mut met = Met::new();
    let call = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), call));
    let window = WINDOW_MESSAGES as usize;
    for _ in 0..3 * window {
        met.dispatch.message(call, Bytes::new(), false, false);
    }
    met.settle();
    assert_eq!(met.read(call), window, "as many as may be on their way, and no more");
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
    // And the other way.
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
fn a_handler_gets_its_message_whatever_other_clients_send() {
    let mut met = Met::new();
    let waits = met.begin();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), waits));
    // Each as much as it can, in small pieces and in large ones.
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
fn what_was_given_up_is_not_begun() {
    let mut met = Met::new();
    // Both are in the queue when one is cancelled. The worker looks at that first.
    let calls = [(); 2].map(|()| met.dispatch.begin(NOW, Arrival::default()).unwrap());
    met.dispatch.step(NOW, &mut met.events).unwrap();
    met.dispatch.cancel(calls[0], Code::Cancelled);
    met.dispatch.step(NOW, &mut met.events).unwrap();
    met.link.settle();
    assert!(is_begin(met.stub.poll(&met.port, NOW).unwrap(), calls[1]));
    // Nor is what waited too long with a busy worker.
    let deadline = Some(NOW + Nanos::from_micros(10));
    let late = met.dispatch.begin(NOW, Arrival { deadline, ..Arrival::default() }).unwrap();
    met.settle();
    assert_eq!(met.stub.open(), 2);
    assert_eq!(met.stub.poll(&met.port, NOW + Nanos::from_micros(10)), Ok(None));
    assert_eq!(met.stub.open(), 1, "it was ended");
    met.settle();
    let [Event::Status { call, status, .. }] = &met.events[..] else { panic!("{:?}", met.events) };
    assert_eq!((*call, status.code), (late, Code::DeadlineExceeded));
}

#[test]
fn a_handler_that_sends_too_much_or_too_late_harms_its_own_call_only() {
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
