//! Honest and hostile processes at the door.

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use common::Program;
use wave_core::clock::Nanos;
use wave_core::endpoint::Sender;
use wave_core::layout::{AGENT_READY, Layout, PROTOCOL_VERSION, write_header};
use wave_core::link::{Doorbell, Home, Port, Window};
use wave_core::park::ParkWord;
use wave_core::queue::Tag;
use wave_core::subsystem::SubsystemId;
use wave_front_tcp::{
    Door, DoorError, DoorOptions, Fault, OFFER_PATIENCE, OfferError, Process, Received,
};
use wave_links::socket::Connection;
use wave_links::{Memory, Payload};
use wave_tcp::context::{
    Event, Filled, Progress, QUEUE_ENTRIES, Request, Sharing, Tail, Update, window,
};
use wave_tcp::datapath::{FlowId, Ring};

const PAYLOAD_BYTES: u64 = 1 << 20;
const NOW: Nanos = Nanos(1);

fn connect(path: &Path, contexts: u16) -> Program {
    Program::over(|| Connection::connect(path).unwrap(), contexts, PAYLOAD_BYTES)
}

struct Test {
    folder: tempfile::TempDir,
    door: Door,
}

impl Test {
    fn new() -> Test {
        let folder = tempfile::tempdir().unwrap();
        let options = DoorOptions { payload_bytes_max: PAYLOAD_BYTES, ..DoorOptions::default() };
        let door = Door::bind(&folder.path().join("socket"), options).unwrap();
        Test { folder, door }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn take_in(&mut self, contexts: u16) -> (Program, Process) {
        let program = connect(&self.path(), contexts);
        program.offer().unwrap();
        let process = self.door.poll(NOW).unwrap().unwrap();
        (program, process)
    }

    fn refuse(&mut self, program: Program) -> OfferError {
        program.offer().unwrap();
        let Err(DoorError::Offer { error, uid, pid }) = self.door.poll(NOW) else {
            panic!("the process was let in");
        };
        assert_eq!((pid, uid), (std::process::id() as i32, program.connection.peer_uid()));
        assert_eq!(program.connection.refusal(), Some(error.to_string()));
        assert!(!self.door.is_waiting());
        error
    }
}

fn push(program: &Program, sender: &mut Sender, request: Request) {
    let (tag, words) = request.to_words();
    sender.push(&program.port, tag, &words).unwrap();
    sender.publish(&program.port);
}

fn update(written: u64) -> Request {
    let flow = FlowId { index: 1, generation: 2 };
    Request::Update(Update {
        flow,
        written,
        read: 0,
        is_finished: false,
        is_eager: false,
        tail: Tail::Whole,
        filled: Filled::default(),
    })
}

fn progress(received: u64) -> Event {
    Event::Progress(Progress { socket: 1, received, acknowledged: 0, is_finished: false })
}

#[test]
fn requests_events_and_payload_cross() {
    let mut test = Test::new();
    let (program, mut process) = test.take_in(2);
    assert_eq!((process.pid(), process.contexts()), (std::process::id() as i32, 2));
    process.announce();
    let word = program.port.window(Home::Nic).load(program.layout.agent, 0);
    assert_eq!(word, AGENT_READY | u64::from(PROTOCOL_VERSION));
    assert!(program.bells[0].drain());

    let local: SocketAddr = "[2001:db8::1]:80".parse().unwrap();
    let listen = Request::Listen { listener: 3, local, backlog: 9, sharing: Sharing::default() };
    push(&program, &mut program.requests(0), listen);
    push(&program, &mut program.requests(1), update(7));
    let mut taken = Vec::new();
    let got = process.poll(8, |context, request| taken.push((context, request))).unwrap();
    assert_eq!(got, 2);
    assert_eq!(taken, [(0, Received::Request(listen)), (1, Received::Request(update(7)))]);

    program.payload.write(123, b"bytes").unwrap();
    let mut bytes = [0; 5];
    assert!(process.payload().read(123, &mut bytes).is_err(), "the page was not looked for");
    assert!(process.payload_mut().is_backed(123, 5));
    process.payload().read(123, &mut bytes).unwrap();
    assert_eq!(&bytes, b"bytes");

    assert!(process.send(1, &Event::Listening { listener: 3, local }).unwrap());
    process.publish();
    let entry = program.events(1).pop(&program.port).unwrap().unwrap();
    assert_eq!(Event::from_entry(&entry), Ok(Event::Listening { listener: 3, local }));
    assert_eq!(program.events(0).pop(&program.port).unwrap(), None);

    assert!(!process.has_hung_up());
    drop(program);
    assert!(process.has_hung_up());
}

#[test]
fn contexts_are_polled_fairly_and_within_the_budget() {
    let mut test = Test::new();
    let (program, mut process) = test.take_in(3);
    for context in 0..3 {
        let mut requests = program.requests(context);
        (0..100).for_each(|written| push(&program, &mut requests, update(written)));
    }
    let mut taken = [0_u64; 3];
    while taken.iter().sum::<u64>() < 300 {
        let before: u64 = taken.iter().sum();
        let got = process.poll(20, |context, request| {
            assert_eq!(request, Received::Request(update(taken[usize::from(context)])));
            taken[usize::from(context)] += 1;
        });
        assert_eq!(got.unwrap() as u64, taken.iter().sum::<u64>() - before);
        let [least, most] = [taken.iter().min(), taken.iter().max()].map(|taken| *taken.unwrap());
        assert!(most - least <= 32, "{taken:?}");
    }
    assert_eq!(process.poll(20, |_, _| unreachable!()).unwrap(), 0);
}

#[test]
fn only_sleeping_contexts_are_rung() {
    let mut test = Test::new();
    let (program, mut process) = test.take_in(2);
    process.send(0, &progress(1)).unwrap();
    process.publish();
    assert!(!program.bells[0].drain());
    ParkWord::of_core(&program.layout, 0).park(&program.port);
    ParkWord::of_core(&program.layout, 1).park(&program.port);
    process.send(0, &progress(2)).unwrap();
    assert!(!program.bells[0].drain());
    process.publish();
    assert!(program.bells[0].drain() && !program.bells[1].drain());

    let agent = ParkWord::of_agent(&program.layout);
    assert!(!agent.is_parked(&program.port));
    process.park();
    assert!(agent.is_parked(&program.port));
    program.bells[2].ring();
    process.unpark();
    assert!(!agent.is_parked(&program.port));
}

#[test]
fn full_event_queue_is_reported_and_takes_events_again_later() {
    let mut test = Test::new();
    let (program, mut process) = test.take_in(1);
    for received in 0..u64::from(QUEUE_ENTRIES) {
        assert!(process.send(0, &progress(received)).unwrap());
    }
    assert!(!process.send(0, &progress(0)).unwrap());
    assert_eq!(process.room(0), 0);
    process.publish();
    let mut events = program.events(0);
    for received in 0..u64::from(QUEUE_ENTRIES) / 4 {
        let entry = events.pop(&program.port).unwrap().unwrap();
        assert_eq!(Event::from_entry(&entry), Ok(progress(received)));
    }
    assert!(process.send(0, &progress(0)).unwrap());
    assert_eq!(process.room(0), QUEUE_ENTRIES / 4 - 1);
}

#[test]
fn invalid_entries_and_credits_are_the_processs_fault() {
    let mut test = Test::new();
    let ring = |offset, bytes| Ring { offset, bytes };
    let good = ring(0, 4096);
    for bad in [ring(PAYLOAD_BYTES, 4096), ring(u64::MAX, 4096), ring(0, 4095), ring(0, 1 << 21)] {
        let remote = "192.0.2.1:1".parse().unwrap();
        for (receive, send) in [(good, bad), (bad, good)] {
            let (program, mut process) = test.take_in(1);
            let mut requests = program.requests(0);
            push(
                &program,
                &mut requests,
                Request::Slot { listener: 1, socket: 2, receive, send, filled: 0 },
            );
            let connect = Request::Connect {
                socket: 3,
                remote,
                local_port: 0,
                mss_max: u16::MAX,
                receive,
                send,
                filled: 0,
            };
            push(&program, &mut requests, connect);
            let mut taken = Vec::new();
            process.poll(8, |_, request| taken.push(request)).unwrap();
            assert_eq!(taken, [Received::Invalid { socket: 2 }, Received::Invalid { socket: 3 }]);
        }
    }

    let (program, mut process) = test.take_in(1);
    program.requests(0).push(&program.port, Tag { kind: 99, flags: 0 }, &[0; 6]).unwrap();
    assert!(matches!(process.poll(1, |_, _| ()), Err(Fault::Request(_))));

    let (program, mut process) = test.take_in(1);
    let place = program.layout.messages[0];
    program.port.window(place.home).write_line(place.ring.first, &[0; 7], 1 << 32 | 8);
    assert!(matches!(process.poll(1, |_, _| ()), Err(Fault::Entry(_))));

    let (program, mut process) = test.take_in(1);
    let place = program.layout.decisions[0];
    program.port.window(place.home).store(place.ring.credit, 0, 1 << 40);
    let fault = (0..=QUEUE_ENTRIES).find_map(|_| process.send(0, &progress(0)).err());
    assert!(matches!(fault, Some(Fault::Credit(_))));
}

#[test]
fn invalid_offers_are_refused() {
    let mut test = Test::new();
    let program = |test: &Test, change: fn(&mut Program)| {
        let mut program = connect(&test.path(), 1);
        change(&mut program);
        program
    };
    let other = program(&test, |program| program.subsystem = SubsystemId::new(1));
    assert!(matches!(test.refuse(other), OfferError::Subsystem(1)));
    let model = program(&test, |program| program.link = "mount-evans");
    assert!(matches!(test.refuse(model), OfferError::NotShared));
    let none = program(&test, |program| program.doorbells.clear());
    assert!(matches!(test.refuse(none), OfferError::Doorbells(0)));
    let file = program(&test, |program| {
        program.doorbells[1] = std::fs::File::open("/dev/null").unwrap().into();
    });
    assert!(matches!(test.refuse(file), OfferError::Doorbell { vector: 1 }));
    let bare = program(&test, |program| program.files.clear());
    assert!(matches!(test.refuse(bare), OfferError::Files(0)));
    // A window as large as all of the agent's memory is refused before anything is mapped.
    let huge = program(&test, |program| program.lines = [u32::MAX; 3]);
    assert!(matches!(test.refuse(huge), OfferError::Lines { .. }));
    let small = program(&test, |program| {
        program.memory = Memory::create_to_lend("test", 1, 1).unwrap().1;
    });
    assert!(matches!(test.refuse(small), OfferError::Map { .. }));
    let blank = program(&test, |program| {
        let [nic, host, _] = program.lines;
        program.memory = Memory::create_to_lend("test", nic, host).unwrap().1;
    });
    assert!(matches!(test.refuse(blank), OfferError::Header(_)));
    let config = program(&test, |program| {
        let mut config = window(1);
        config.subjects = 2;
        write_header(&Layout::new(config).unwrap(), program.port.window(Home::Nic));
    });
    assert!(matches!(test.refuse(config), OfferError::Config));
    let large = program(&test, |program| {
        program.files = vec![Payload::create("test", PAYLOAD_BYTES + 1).unwrap().1];
    });
    assert!(matches!(test.refuse(large), OfferError::PayloadBytes { .. }));
    // Pages of a window that the program has not touched would be allocated by the agent.
    let hollow = program(&test, |program| {
        let [nic, host, _] = program.lines;
        program.memory = Payload::create("test", u64::from(nic + host) * 64).unwrap().1;
    });
    let error = test.refuse(hollow);
    assert!(error.to_string().contains("no page at byte 0"), "{error}");
    let ordinary = program(&test, |program| {
        program.files = vec![tempfile::tempfile().unwrap().into()];
    });
    assert!(matches!(test.refuse(ordinary), OfferError::Map { .. }));

    // The door still works, and may turn a good process away.
    let (program, process) = test.take_in(1);
    process.refuse("too many processes");
    assert_eq!(program.connection.refusal().as_deref(), Some("too many processes"));
    assert!(program.connection.hung_up());
}

#[test]
fn silent_connection_is_dropped_in_time_and_delays_no_other() {
    let mut test = Test::new();
    let silent = connect(&test.path(), 1);
    assert!(test.door.poll(NOW).unwrap().is_none());
    assert!(test.door.is_waiting());
    assert_eq!(test.door.fds().count(), 2);
    // Other processes are let in meanwhile.
    drop(test.take_in(1));
    assert!(test.door.poll(OFFER_PATIENCE).unwrap().is_none());
    let late = Nanos(NOW.0 + OFFER_PATIENCE.0);
    let error = test.door.poll(late).unwrap_err();
    assert!(matches!(error, DoorError::Offer { error: OfferError::Silent, .. }), "{error}");
    assert!(silent.connection.hung_up());
    let gone = connect(&test.path(), 1);
    drop(gone);
    let error = test.door.poll(NOW).unwrap_err();
    assert!(matches!(error, DoorError::Offer { error: OfferError::Socket(_), .. }), "{error}");
}
