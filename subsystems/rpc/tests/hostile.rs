//! A peer that writes arbitrary words: no side panics, the error names the side at fault, and events for handlers and fronts
//! stay consistent.

use std::collections::BTreeSet;

use bytes::Bytes;
use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Config, Layout, QueuePlace, write_header};
use wave_core::link::{Home, LINE_WORDS, Port, Side};
use wave_core::message::Subject;
use wave_core_testing::nasty::{Bell, Link, NastyPort};
use wave_core_testing::{Replay, SHAPES, seeds, shape};
use wave_rpc::boxes::{Inbox, Outbox};
use wave_rpc::dispatch::{Arrival, Dispatch, Event};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::metadata::{self, Metadata};
use wave_rpc::service::{Method, Service};
use wave_rpc::status::{Code, Status};
use wave_rpc::steer;
use wave_rpc::stub::{self, SendError, Stub};
use wave_rpc::wire::{
    BEGIN, Begin, CANCEL, END, EXTENT, GRANT, HALF_CLOSE, HAS_MESSAGE, HEADERS, Head, MESSAGE,
    RETURN, SERVICE, STATUS, TAKEN, WAITS, WINDOW_BYTES, WORKER, YIELDS,
};

const CALLS: u32 = 4;

fn layout(rng: &mut Pcg32, workers: u16) -> (&'static str, Layout) {
    let name = SHAPES[rng.random_range(0..SHAPES.len())];
    let (messages, decisions) = shape(name, 64, 64);
    let config = Config {
        messages,
        decisions,
        contexts: 1,
        subjects: CALLS,
        prestage: 0,
        spin: Nanos(0),
        pools: PayloadConfig {
            extents: [0, 1, 4][rng.random_range(0..3)],
            lines: 2,
            inline_max: 100,
        }
        .pools(),
        ..Config::coherent(workers)
    };
    (name, Layout::new(config).unwrap())
}

/// A word that is valid somewhere in the protocol, or any word.
fn word(rng: &mut Pcg32) -> u64 {
    match rng.random_range(0..7) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.random_range(0..64),
        3 => rng.random_range(0..16),
        4 => (rng.random_range(0..6u64)) << 32 | rng.random_range(0..4u64),
        5 => rng.random_range(0..2 * u64::from(WINDOW_BYTES)),
        _ => rng.random(),
    }
}

/// A peer's end of a queue.
struct Liar {
    port: NastyPort,
    outbox: Outbox,
    place: QueuePlace,
    /// Whether it writes only complete frames, and makes no false statement about extents.
    is_neat: bool,
}

impl Liar {
    fn new(
        link: &Link,
        layout: &Layout,
        place: &QueuePlace,
        (side, extents): (Side, Extents),
        is_neat: bool,
    ) -> Liar {
        let outbox = Outbox::new(Sender::new(place, side), extents);
        Liar { port: link.port(side, layout), outbox, place: *place, is_neat }
    }

    /// Writes a frame, valid or not. Returns whether the liar's own outbox still works.
    fn send(&mut self, head: Head, first: &[u8], second: &[u8]) -> bool {
        let lengths = [first.len() as u32, second.len() as u32];
        let port = &self.port;
        let sent = self.outbox.send(port, &Head { lengths, ..head }, first, second).is_ok();
        let flushed = self.outbox.flush(port).is_ok();
        self.outbox.fence(port);
        sent && flushed
    }

    /// Writes something that is not a frame, into an entry or anywhere in the window.
    fn scribble(&mut self, rng: &mut Pcg32, link: &Link) {
        if self.is_neat {
            return;
        }
        if rng.random() {
            let home = if rng.random() { Home::Nic } else { Home::Host };
            let line = rng.random_range(0..link.lines(home));
            return link.poke(home, line, rng.random_range(0..LINE_WORDS), word(rng));
        }
        if rng.random() {
            return self.lie_about_extents(rng, link);
        }
        let ring = &self.place.ring;
        let line = ring.first + rng.random_range(0..ring.entries);
        // Starts from an existing entry's lap word, so that the result often passes as an entry.
        let lap = link.peek(self.place.home, line, LINE_WORDS - 1);
        let lap = match rng.random_range(0..3) {
            0 => lap ^ 1 << rng.random_range(0..32),
            1 => lap & !0xff_ffff | rng.random_range(0..15u64) << 16 | 7,
            _ => lap + (1 << 32),
        };
        link.poke(self.place.home, line, LINE_WORDS - 1, lap);
        link.poke(self.place.home, line, rng.random_range(0..LINE_WORDS - 1), word(rng));
    }

    /// Changes an entry of the queue that lends or returns extents, or returns another extent.
    fn lie_about_extents(&mut self, rng: &mut Pcg32, link: &Link) {
        let QueuePlace { ring, home, .. } = self.place;
        let lines = ring.first..ring.first + ring.entries;
        let kind = |line| (link.peek(home, line, LINE_WORDS - 1) >> 16) as u16;
        let speak: Vec<u32> =
            lines.filter(|line| [EXTENT, RETURN].contains(&kind(*line))).collect();
        if speak.is_empty() || rng.random_range(0..4) == 0 {
            // A RETURN entry with the number of words of a head.
            let flags = rng.random_range(0..=8);
            self.send(Head { flags, ..Head::new(RETURN, extent(rng)) }, &[], &[]);
            return;
        }
        let line = speak[rng.random_range(0..speak.len())];
        let (at, lie) = match rng.random_range(0..3) {
            0 => (0, extent(rng).to_word()),
            1 => (1, [0, 1, 128, 129, 1 << 32, word(rng)][rng.random_range(0..6)]),
            _ => (LINE_WORDS - 1, link.peek(home, line, LINE_WORDS - 1) ^ rng.random_range(1..16)),
        };
        link.poke(home, line, at, lie);
    }
}

fn extent(rng: &mut Pcg32) -> Subject {
    Subject { id: rng.random_range(0..5), generation: rng.random_range(0..4) }
}

fn call(rng: &mut Pcg32) -> Subject {
    let id =
        if rng.random_range(0..200) == 0 { word(rng) as u32 } else { rng.random_range(0..CALLS) };
    Subject { id, generation: rng.random_range(1..3) }
}

fn bytes(rng: &mut Pcg32) -> Vec<u8> {
    let most =
        if rng.random_range(0..40) == 0 { 40_000 } else { [0, 40, 300][rng.random_range(0..3)] };
    vec![rng.random(); rng.random_range(0..=most)]
}

fn pairs(rng: &mut Pcg32) -> Vec<u8> {
    let mut pairs = Vec::new();
    metadata::push(&mut pairs, "key", b"value").unwrap();
    if rng.random_range(0..100) == 0 {
        let at = rng.random_range(0..pairs.len());
        pairs[at] = rng.random();
    }
    pairs
}

#[test]
fn a_hostile_agent_harms_nobody() {
    let (mut errors, mut begun, mut messages, mut ended) = (0, 0, 0, 0);
    let mut of_extents = 0;
    let seeds = seeds(2000);
    let many = seeds.end - seeds.start >= 2000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-rpc --test hostile a_hostile_agent");
        let mut rng = wave_core_testing::rng(seed);
        let (name, layout) = layout(&mut rng, 1);
        let link = Link::new(&layout, name == "coherent", seed);
        let port = link.port(Side::Host, &layout);
        write_header(&layout, port.window(Home::Nic));
        link.settle();
        let neat = rng.random_range(0..4) != 0;
        let extents = (Side::Agent, Extents::new(&layout, 0, Side::Agent));
        let mut agent = Liar::new(&link, &layout, &layout.decisions[0], extents, neat);
        let mut inbox = Inbox::new(Receiver::new(&layout.messages[0], Side::Agent));
        let mut stub = Stub::new(&layout, 0);
        stub.announce(&port, None).unwrap();
        // Calls that the handlers have.
        let mut has: BTreeSet<Subject> = BTreeSet::new();
        // Calls that the agent began, and whose end it has not received.
        let mut open: BTreeSet<u32> = BTreeSet::new();
        for now in 0..300 {
            let now = Nanos(now * 1000);
            let step = rng.random_range(0..8);
            let mut result = Ok(());
            match step {
                0..=3 => {
                    let Liar { port, outbox, .. } = &mut agent;
                    while let Some(frame) = inbox.next(port, 1000, outbox.extents()).unwrap() {
                        let head = frame.head;
                        if head.kind == STATUS || head.kind == MESSAGE && head.flags & END != 0 {
                            open.remove(&head.call.id);
                        }
                    }
                    if !lie_to_stub(&mut agent, &has, &mut open, &mut rng) {
                        break;
                    }
                    if rng.random_range(0..16) == 0 {
                        agent.scribble(&mut rng, &link);
                    }
                }
                4 | 5 => {
                    let one = has.iter().nth(rng.random_range(0..CALLS as usize)).copied();
                    let event = match one.filter(|_| rng.random()) {
                        Some(one) => stub.poll_call(&port, now, one),
                        None => stub.poll(&port, now),
                    };
                    result = event.map(|event| match event {
                        Some(stub::Event::Begin { call, metadata, .. }) => {
                            assert!(has.insert(call), "{call:?} began twice");
                            assert!(metadata.iter().count() <= 1);
                            begun += 1;
                        }
                        Some(
                            stub::Event::Message { call, .. }
                            | stub::Event::HalfClose { call }
                            | stub::Event::Cancel { call, .. },
                        ) => {
                            assert!(has.contains(&call), "an event of {call:?}, which is not open");
                            messages += 1;
                        }
                        None => {}
                    });
                }
                6 => {
                    let Some(&call) = has.iter().nth(rng.random_range(0..CALLS as usize)) else {
                        continue;
                    };
                    let status = Status::new(Code::Internal, "because");
                    let done = match rng.random_range(0..5) {
                        0 => stub.message(&port, call, &bytes(&mut rng), END).map(|()| true),
                        1 => stub.message(&port, call, &bytes(&mut rng), 0).map(|()| false),
                        2 => stub.headers(&port, call, Metadata::default()).map(|()| false),
                        3 => stub.finish(&port, call, &status, Metadata::default()).map(|()| true),
                        _ => {
                            result = stub.is_cancelled(&port, now, call).map(drop);
                            Ok(false)
                        }
                    };
                    match done {
                        Ok(true) => {
                            ended += 1;
                            has.remove(&call);
                        }
                        Ok(false) | Err(SendError::Blocked | SendError::TooLate) => {}
                        Err(error @ (SendError::NotOpen | SendError::TooLong(_))) => {
                            panic!("{call:?}: {error}")
                        }
                        Err(SendError::Fault(error)) => result = Err(error.into()),
                    }
                }
                _ => {
                    result = match rng.random_range(0..4) {
                        3 if !has.is_empty() => {
                            let at = rng.random_range(0..has.len());
                            let call = *has.iter().nth(at).expect("it is below their number");
                            if rng.random() {
                                stub.detach(call);
                            }
                            let waits = match rng.random() {
                                true => stub.wait_for_client(&port, call),
                                false => stub.yield_to_others(&port, call),
                            };
                            while let Some(woken) = stub.take_woken() {
                                assert!(has.contains(&woken), "{woken:?} was woken after its end");
                            }
                            waits.map_err(Into::into)
                        }
                        0 => stub.wait(&port, now, true).map(drop),
                        1 => stub.attend(&port, now).map(drop),
                        _ => stub.publish(&port).map(drop).map_err(Into::into),
                    };
                }
            }
            if let Err(error) = result {
                assert!(error.to_string().contains("peer's fault"), "{error}");
                errors += 1;
                of_extents += u32::from(error.to_string().contains("extent"));
                break;
            }
            link.tick();
        }
    }
    assert!(
        !many
            || (errors > 200 && begun > 1000 && messages > 1000 && ended > 500 && of_extents > 50),
        "{errors} {begun} {messages} {ended} {of_extents}"
    );
}

fn lie_to_stub(
    agent: &mut Liar,
    has: &BTreeSet<Subject>,
    open: &mut BTreeSet<u32>,
    rng: &mut Pcg32,
) -> bool {
    // Mostly frames that a correct agent could write, so that the worker survives to take the next.
    let wild = rng.random_range(0..60) == 0;
    let known = has.iter().nth(rng.random_range(0..CALLS as usize)).copied();
    let call = known.filter(|_| !wild).unwrap_or_else(|| call(rng));
    let mut head = Head::new(MESSAGE, call);
    head.flags = if rng.random_range(0..20) == 0 { END } else { 0 };
    head.argument = word(rng);
    match rng.random_range(0..10) {
        _ if !wild && known.is_none() => {
            if !open.insert(call.id) {
                return true;
            }
            let left = Some(Nanos(rng.random_range(0..90_000))).filter(|_| rng.random());
            head.kind = BEGIN;
            head.argument = Begin { method: rng.random(), class: rng.random(), left }.to_word();
            head.flags |= HAS_MESSAGE;
            let (first, second) = (pairs(rng), bytes(rng));
            agent.send(head, &first, &second)
        }
        0 if wild => {
            head.kind = BEGIN;
            agent.send(head, &[], &[])
        }
        0..=6 => {
            let message = bytes(rng);
            agent.send(head, &[], &message)
        }
        more => {
            head.kind = match more {
                7 => CANCEL,
                8 => GRANT,
                _ if wild => rng.random(),
                _ => HALF_CLOSE,
            };
            agent.send(head, &[], &[])
        }
    }
}

/// Calls as a front knows them.
#[derive(Default)]
struct Front {
    live: BTreeSet<Subject>,
    ended: u64,
    replies: u64,
    taken: u64,
}

impl Front {
    fn hear(&mut self, event: Event) {
        let (call, ends) = match event {
            Event::Service(service) => return service.check().unwrap(),
            Event::Headers { call, metadata } => {
                assert!(Metadata::new(&metadata).is_ok());
                (call, false)
            }
            Event::Message { call, end, .. } => {
                self.replies += 1;
                (call, end)
            }
            Event::Status { call, trailers, .. } => {
                assert!(Metadata::new(&trailers).is_ok());
                (call, true)
            }
            Event::Stopped { call, .. } => (call, true),
            Event::Taken { call, .. } => {
                self.taken += 1;
                (call, false)
            }
        };
        assert!(self.live.contains(&call), "an event about {call:?}, which has ended");
        if ends {
            self.live.remove(&call);
            self.ended += 1;
        }
    }

    fn acts(&mut self, dispatch: &mut Dispatch<NastyPort, Bell>, now: Nanos, rng: &mut Pcg32) {
        if rng.random_range(0..3) == 0 {
            let arrival = Arrival {
                deadline: if rng.random() { Some(now + Nanos(50_000)) } else { None },
                message: if rng.random() { Some(Bytes::from(bytes(rng))) } else { None },
                end: rng.random_range(0..4) == 0,
                hash: rng.random(),
                ..Arrival::default()
            };
            self.live.extend(dispatch.begin(now, arrival));
            return;
        }
        let at = rng.random_range(0..CALLS as usize);
        let Some(&call) = self.live.iter().nth(at) else { return };
        match rng.random_range(0..12) {
            0..=5 => {
                let end = rng.random_range(0..16) == 0;
                dispatch.message(call, Bytes::from(bytes(rng)), end, rng.random());
            }
            6..=9 => dispatch.grant(call, 1000),
            10 => dispatch.half_close(call),
            _ => {
                dispatch.cancel(call, Code::Cancelled);
                self.live.remove(&call);
            }
        }
    }
}

#[test]
fn a_hostile_host_only_ends_the_agent() {
    let (mut errors, mut ended, mut replies, mut taken) = (0, 0, 0, 0);
    let mut of_extents = 0;
    let seeds = seeds(2000);
    let many = seeds.end - seeds.start >= 2000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-rpc --test hostile a_hostile_host");
        let mut rng = wave_core_testing::rng(seed);
        let (name, layout) = layout(&mut rng, 2);
        let link = Link::new(&layout, name == "coherent", seed);
        let port = link.port(Side::Host, &layout);
        write_header(&layout, port.window(Home::Nic));
        link.settle();
        let neat = rng.random_range(0..4) != 0;
        let liar = |(at, place)| {
            let none = at == usize::from(layout.config.cores);
            let extents = || Extents::new(&layout, at as u16, Side::Host);
            let extents = if none { Extents::none() } else { extents() };
            Liar::new(&link, &layout, place, (Side::Host, extents), neat)
        };
        let mut hosts: Vec<_> = layout.messages.iter().enumerate().map(liar).collect();
        let inbox = |place| Inbox::new(Receiver::new(place, Side::Host));
        let mut inboxes: Vec<_> = layout.decisions.iter().map(inbox).collect();
        // Calls that each worker was handed.
        let mut has = [const { Vec::new() }; 2];
        let steering = steer::by_name("jbsq:k=2", &layout.config).unwrap();
        let bells = vec![Bell::default(); layout.doorbells()];
        let agent = link.port(Side::Agent, &layout);
        let mut dispatch = Dispatch::new(layout, agent, bells, steering);
        dispatch.announce();
        let method = Method { path: "/a/b".into(), ..Method::default() };
        let service = Service { methods: vec![method], descriptors: Vec::new() }.encode();
        hosts[2].send(Head::new(SERVICE, Subject::default()), &service, &[]);
        for host in &mut hosts[..2] {
            host.send(Head::new(WORKER, Subject::default()), &[], &[]);
        }
        let (mut front, mut events) = (Front::default(), Vec::new());
        for now in 0..300 {
            let now = Nanos(now * 1000);
            match rng.random_range(0..8) {
                0..=2 => {
                    let at = rng.random_range(0..2);
                    let host = &mut hosts[at];
                    let Liar { port, outbox, .. } = host;
                    while let Some(frame) = inboxes[at].next(port, 1000, outbox.extents()).unwrap()
                    {
                        if frame.head.kind == BEGIN {
                            has[at].push(frame.head.call);
                        }
                    }
                    let wild = rng.random_range(0..300) == 0;
                    let Some(call) =
                        (if wild { Some(call(&mut rng)) } else { has[at].last().copied() })
                    else {
                        continue;
                    };
                    if !lie_to_dispatch(host, call, &mut has[at], &mut rng) {
                        break;
                    }
                    if rng.random_range(0..6) == 0 {
                        host.scribble(&mut rng, &link);
                    }
                }
                3..=4 => front.acts(&mut dispatch, now, &mut rng),
                _ => {
                    let result = dispatch.step(now, &mut events);
                    events.drain(..).for_each(|event| front.hear(event));
                    match result {
                        Ok(Step::Revoked) => break,
                        Ok(_) if rng.random_range(0..4) == 0 => {
                            dispatch.prepare_park();
                            dispatch.unpark();
                        }
                        Ok(_) => {}
                        Err(error) => {
                            assert!(error.to_string().contains("peer's fault"), "{error}");
                            assert_eq!(
                                dispatch.step(now, &mut events),
                                Err(error),
                                "the error persists"
                            );
                            errors += 1;
                            of_extents += u32::from(error.to_string().contains("extent"));
                            break;
                        }
                    }
                }
            }
            // Every call that the front waits for has a slot.
            assert!((front.live.len() as u32..=CALLS).contains(&dispatch.open()));
            link.tick();
        }
        ended += front.ended;
        replies += front.replies;
        taken += front.taken;
    }
    assert!(
        !many || (errors > 500 && ended > 500 && replies > 500 && taken > 100 && of_extents > 50),
        "{errors} {ended} {replies} {taken} {of_extents}"
    );
}

fn lie_to_dispatch(
    host: &mut Liar,
    call: Subject,
    has: &mut Vec<Subject>,
    rng: &mut Pcg32,
) -> bool {
    let mut head = Head::new(MESSAGE, call);
    let end = rng.random_range(0..8) == 0;
    match rng.random_range(0..12) {
        0..=5 => {
            let message = bytes(rng);
            if end {
                has.pop();
                head.flags = END;
            }
            host.send(head, &[], &message)
        }
        6 => {
            has.pop();
            head.kind = STATUS;
            head.argument = word(rng);
            let (first, second) = (bytes(rng), pairs(rng));
            host.send(head, &first, &second)
        }
        7 if rng.random_range(0..8) == 0 => {
            head.kind = HEADERS;
            head.flags = if end { END } else { 0 };
            let first = pairs(rng);
            host.send(head, &first, &[])
        }
        8 if rng.random_range(0..50) == 0 => {
            head.kind = rng.random_range(0..16);
            host.send(head, &[], &[])
        }
        9 if rng.random() => {
            head.kind = if rng.random() { WAITS } else { YIELDS };
            head.argument = rng.random_range(0..3);
            host.send(head, &[], &[])
        }
        _ => {
            head.kind = TAKEN;
            head.argument =
                if rng.random_range(0..100) == 0 { word(rng) } else { rng.random_range(0..3) };
            host.send(head, &[], &[])
        }
    }
}
