//! Memory orderings, in every interleaving with a few preemptions: a worker or an agent goes to sleep while the other side
//! sends. Every access to the window is model-checked.

use bytes::Bytes;
use loom::thread;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{Config, Layout, PoolPlace, QueuePlace, write_header};
use wave_core::link::{Doorbell, Home, Side, Transport};
use wave_core::message::Subject;
use wave_core_testing::loom::{Bell, LoomPort, check, port};
use wave_rpc::boxes::Outbox;
use wave_rpc::dispatch::{Arrival, Dispatch, Event};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::service::{Method, Service};
use wave_rpc::steer;
use wave_rpc::stub::{self, Stub, Wait};
use wave_rpc::wire::{END, HEAD_BYTES, Head, SERVICE};

/// A dispatcher and one worker after the handshake.
struct Met {
    dispatch: Dispatch<LoomPort, Bell>,
    stub: Stub,
    port: LoomPort,
    /// Doorbells of the worker, the control context and the agent.
    bells: Vec<Bell>,
}

fn meet(transport: Transport) -> Met {
    meet_with(transport, PayloadConfig::NONE)
}

fn meet_with(transport: Transport, payloads: PayloadConfig) -> Met {
    let mut config = Config { pools: payloads.pools(), ..Config::coherent(1) };
    (config.messages.entries, config.decisions.entries) = (4, 4);
    (config.messages.transport, config.decisions.transport) = (transport, transport);
    (config.contexts, config.subjects, config.spin, config.prestage) = (1, 1, Nanos(0), 0);
    let layout = Layout::new(config).unwrap();
    // The modelled words of each entry: call, argument and lap. There is no race for the other words without one for these.
    let ring = |place: &QueuePlace| {
        let (ring, home) = (place.ring, place.home as u8);
        let words = (ring.first..ring.first + ring.entries)
            .flat_map(move |line| [0, 2, 7].map(|word| (home, line, word)));
        words.chain([(home, ring.credit, 0)])
    };
    let host = Home::Host as u8;
    let words = [(host, layout.agent_parked, 0), (host, layout.preempt, 0)];
    let words = words.into_iter().chain([(Home::Nic as u8, layout.core_status, 0)]);
    // The modelled word of an extent: the first, in either memory.
    let PoolPlace { target, staging, extents, .. } = layout.pool_of(1, 0);
    let extent = [(host, target, 0), (Home::Nic as u8, staging, 0)];
    let words = words.chain(extent.into_iter().filter(|_| extents > 0));
    let port = port(ring(&layout.messages[0]).chain(ring(&layout.decisions[0])).chain(words));
    write_header(&layout, &port.nic);
    let bells: Vec<Bell> = (0..layout.doorbells()).map(|_| Bell::default()).collect();
    let steering = steer::by_name("jbsq", &config).unwrap();
    let mut dispatch = Dispatch::new(layout.clone(), port.clone(), bells.clone(), steering);
    let method = Method { path: "/a/b".into(), ..Method::default() };
    let service = Service { methods: vec![method], descriptors: Vec::new() }.encode();
    let mut control = Outbox::new(Sender::new(&layout.messages[1], Side::Host), Extents::none());
    let head = Head::new(SERVICE, Subject::default());
    let head = Head { lengths: [service.len() as u32, 0], ..head };
    control.send(&port, &head, &service, &[]).unwrap();
    control.publish(&port);
    let mut stub = Stub::new(&layout, 0);
    stub.announce(&port, None).unwrap();
    stub.publish(&port).unwrap();
    let mut events = Vec::new();
    while !dispatch.is_ready() {
        dispatch.step(Nanos(0), &mut events).unwrap();
    }
    Met { dispatch, stub, port, bells }
}

/// Runs a worker's loop until a call begins.
fn next_call(stub: &mut Stub, port: &LoomPort, bell: &Bell) -> Subject {
    loop {
        if let Some(event) = stub.poll(port, Nanos(0)).unwrap() {
            let stub::Event::Begin { call, .. } = event else { panic!("{event:?}") };
            return call;
        }
        match stub.wait(port, Nanos(0), true).unwrap() {
            Wait::Spin | Wait::Yield => thread::yield_now(),
            Wait::Park => bell.wait(),
        }
    }
}

/// Runs an agent's loop until there is an event for its front.
fn next_event(dispatch: &mut Dispatch<LoomPort, Bell>, bell: &Bell) -> Event {
    let mut events = Vec::new();
    loop {
        let mut step = dispatch.step(Nanos(0), &mut events).unwrap();
        if step != Step::Progress {
            dispatch.prepare_park();
            step = dispatch.step(Nanos(0), &mut events).unwrap();
            if step != Step::Progress {
                bell.wait();
            }
            dispatch.unpark();
        }
        if let Some(event) = events.pop() {
            return event;
        }
    }
}

fn a_worker_that_parks_meets_an_agent_that_sends(transport: Transport) {
    check(None, move || {
        let Met { mut dispatch, mut stub, port, bells } = meet(transport);
        let call = dispatch.begin(Nanos(0), Arrival::default()).unwrap();
        let bell = bells[0].clone();
        let host = thread::spawn(move || {
            assert_eq!(next_call(&mut stub, &port, &bell), call);
        });
        dispatch.step(Nanos(0), &mut Vec::new()).unwrap();
        host.join().unwrap();
    });
}

fn an_agent_that_parks_meets_a_worker_that_replies(transport: Transport) {
    check(None, move || {
        let Met { mut dispatch, mut stub, port, bells } = meet(transport);
        let call = dispatch.begin(Nanos(0), Arrival::default()).unwrap();
        dispatch.step(Nanos(0), &mut Vec::new()).unwrap();
        assert_eq!(next_call(&mut stub, &port, &bells[0]), call);
        let bell = bells[2].clone();
        let host = thread::spawn(move || {
            stub.message(&port, call, b"", END).unwrap();
            if stub.publish(&port).unwrap() {
                bell.ring();
            }
        });
        let event = next_event(&mut dispatch, &bells[2]);
        assert!(matches!(event, Event::Message { end: true, .. }), "{event:?}");
        host.join().unwrap();
    });
}

/// Two messages go in the only extent, one after the other: the second is copied only after the first was read.
#[test]
fn extent_is_reused_only_after_it_was_read() {
    check(Some(2), || {
        let payloads = PayloadConfig { extents: 1, lines: 1, inline_max: 0 };
        let Met { mut dispatch, mut stub, port, bells } = meet_with(Transport::Mmio, payloads);
        let message = |byte| Bytes::from(vec![byte; HEAD_BYTES + 8]);
        let arrival = Arrival { message: Some(message(1)), ..Arrival::default() };
        let call = dispatch.begin(Nanos(0), arrival).unwrap();
        dispatch.message(call, message(2), false, false);
        let bell = bells[0].clone();
        let host = thread::spawn(move || {
            let mut read = Vec::new();
            while read.len() < 2 {
                let event = stub.poll(&port, Nanos(0)).unwrap();
                let Some(event) = event else {
                    stub.publish(&port).unwrap();
                    match stub.wait(&port, Nanos(0), true).unwrap() {
                        Wait::Spin | Wait::Yield => thread::yield_now(),
                        Wait::Park => bell.wait(),
                    }
                    continue;
                };
                let (stub::Event::Begin { message: Some(bytes), .. }
                | stub::Event::Message { message: bytes, .. }) = event
                else {
                    panic!("{event:?}");
                };
                read.push(bytes.to_vec());
            }
            assert!(read.iter().map(|bytes| &bytes[..]).eq([message(1), message(2)]));
        });
        while dispatch.step(Nanos(0), &mut Vec::new()).unwrap() == Step::Progress {
            thread::yield_now();
        }
        host.join().unwrap();
    });
}

#[test]
fn a_worker_that_parks_is_woken_by_stores() {
    a_worker_that_parks_meets_an_agent_that_sends(Transport::Mmio);
}

#[test]
fn a_worker_that_parks_is_woken_by_copies() {
    a_worker_that_parks_meets_an_agent_that_sends(Transport::DmaSync);
}

#[test]
fn an_agent_that_parks_is_woken_by_stores() {
    an_agent_that_parks_meets_a_worker_that_replies(Transport::Mmio);
}

#[test]
fn an_agent_that_parks_is_woken_by_copies() {
    an_agent_that_parks_meets_a_worker_that_replies(Transport::DmaSync);
}
