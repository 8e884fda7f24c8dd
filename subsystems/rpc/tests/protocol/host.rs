//! The modelled host: workers that serve calls one after the other, or several at once, and the control context.

use std::collections::VecDeque;
use std::rc::Rc;

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl, Revoked};
use wave_core::endpoint::Sender;
use wave_core::layout::{Layout, write_header};
use wave_core::link::{Doorbell, Home, Port, Side};
use wave_core::message::Subject;
use wave_rpc::boxes::Outbox;
use wave_rpc::extents::Extents;
use wave_rpc::metadata::Metadata;
use wave_rpc::service::{Method, Service};
use wave_rpc::status::Code;
use wave_rpc::stub::{Event, SendError, Stub, Wait};
use wave_rpc::wire::{Begin, COMPRESSED, END, Head, SERVICE};

use crate::book::{self, Plan, Script, Shared, fill, is_odd, said};
use wave_core_testing::nasty::{Bell, Link, NastyPort};

/// How far the host's clock is ahead of the agent's.
const HOST_AHEAD: Nanos = Nanos(1 << 50);

/// The service of every modelled host.
pub fn service() -> Service {
    let method = |at: u8| Method {
        path: format!("/test.Service/{}", "Method".repeat(usize::from(at) + 1)),
        class: at,
        class_max: at + 1,
        ..Method::default()
    };
    Service { methods: (0..5).map(method).collect(), descriptors: vec![7; 6000] }
}

/// One life of an agent, as the host sees it.
pub struct Incarnation {
    pub number: usize,
    pub layout: Layout,
    pub link: Link,
    pub bells: Vec<Bell>,
}

impl Incarnation {
    pub fn new(number: usize, layout: Layout, coherent: bool, seed: u64) -> Incarnation {
        let link = Link::new(&layout, coherent, seed);
        let bells = (0..layout.doorbells()).map(|_| Bell::default()).collect();
        Incarnation { number, layout, link, bells }
    }

    fn ring_agent(&self) {
        self.bells[self.layout.agent_vector()].ring();
    }
}

/// What a handler did in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Something,
    /// Nothing: it waits for a message or for room.
    Nothing,
    Ended,
}

/// A call that a worker serves.
struct Job {
    call: Subject,
    serial: usize,
    plan: Plan,
    /// Lengths of the replies to send.
    due: VecDeque<u32>,
    sent: usize,
    said_headers: bool,
    heard_end: bool,
    cancelled: Option<Code>,
    /// The handler saw the cancellation before its event.
    saw_it: bool,
    /// The handler is suspended until the call has an event.
    is_suspended: bool,
}

impl Job {
    fn hear(&mut self, length: Option<usize>, end: bool) {
        if let (Some(length), Script::Echo) = (length, &self.plan.script) {
            self.due.push_back(length as u32);
        }
        if end {
            self.heard_end = true;
            if let Script::Aggregate(length) = self.plan.script {
                self.due.push_back(length);
            }
        }
    }

    fn reads_no_more(&self) -> bool {
        self.heard_end || matches!(self.plan.script, Script::Stream(_) | Script::Abrupt)
    }

    /// Does one piece of work.
    fn step(&mut self, link: &mut Worked, now: Nanos, book: &Shared) -> Did {
        let (stub, port, call) = (&mut link.stub, &link.port, self.call);
        if self.plan.busy > 0 {
            self.plan.busy -= 1;
            // A handler that works for long checks for a cancellation now and then.
            let why = stub.is_cancelled(port, now, call).unwrap();
            if let Some(why) = why.filter(|_| !self.saw_it) {
                self.saw_it = true;
                book::open(book).handler_is_cancelled(self.serial, why);
            }
            return Did::Something;
        }
        if self.cancelled.is_some() && !self.plan.stubborn {
            if self.plan.late > 0 {
                self.plan.late -= 1;
                return Did::Something;
            }
            return self.finish(link, book);
        }
        if self.plan.headers && !self.said_headers {
            self.said_headers = true;
            let metadata = book::open(book).calls[self.serial].metadata.clone();
            stub.headers(port, call, Metadata::new(&metadata).unwrap()).unwrap();
            book::open(book).handler_says_headers(self.serial);
            return Did::Something;
        }
        if let Some(&length) = self.due.front() {
            let end = self.plan.with_end && self.due.len() == 1 && self.reads_no_more();
            let reply = fill(self.serial, true, self.sent, length);
            let compressed = if is_odd(length) { COMPRESSED } else { 0 };
            let flags = if end { END } else { 0 } | compressed;
            match stub.message(port, call, &reply, flags) {
                Ok(()) => {
                    book::open(book).handler_replies(self.serial, length, end);
                    self.due.pop_front();
                    self.sent += 1;
                    return if end { Did::Ended } else { Did::Something };
                }
                Err(SendError::Blocked) if self.cancelled.is_some() => {
                    return self.finish(link, book);
                }
                Err(SendError::Blocked) => {
                    book::open(book).count("blocked");
                    return Did::Nothing;
                }
                Err(error) => panic!("call {}: {error}", self.serial),
            }
        }
        if self.reads_no_more() {
            return self.finish(link, book);
        }
        // After a cancellation no messages come: a handler that kept reading would never end.
        if self.cancelled.is_some() { self.finish(link, book) } else { Did::Nothing }
    }

    fn finish(&mut self, link: &mut Worked, book: &Shared) -> Did {
        let status = said(self.serial, self.plan.code);
        let metadata = book::open(book).calls[self.serial].metadata.clone();
        let trailers = Metadata::new(&metadata).unwrap();
        link.stub.finish(&link.port, self.call, &status, trailers).unwrap();
        book::open(book).handler_finishes(self.serial);
        Did::Ended
    }
}

/// A worker's end of a window.
struct Worked {
    port: NastyPort,
    stub: Stub,
    incarnation: Rc<Incarnation>,
}

/// How a worker serves its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    /// One call at a time, until it has ended.
    OneByOne,
    /// All calls at once, in the order of their events.
    AsTheyCome,
    /// Each call by a handler that is suspended while it waits.
    Apart,
}

pub struct Worker {
    index: u16,
    link: Option<Worked>,
    epoch: u64,
    pub parked: bool,
    /// The worker has found nothing to do, and is about to announce that it sleeps.
    found_nothing: bool,
    serves: Serves,
    jobs: Vec<Job>,
    pub parks: u64,
}

/// The part of an event that a worker keeps.
enum Came {
    Begin(Subject, Begin, Vec<u8>, Option<Vec<u8>>, bool),
    Message(Subject, Vec<u8>, bool),
    HalfClose(Subject),
    Cancel(Subject, Code),
}

impl Worker {
    pub fn is_idle(&self) -> bool {
        self.parked && self.jobs.is_empty()
    }

    /// Number of calls that the worker got and has not ended.
    pub fn open(&self) -> u32 {
        self.link.as_ref().map_or(0, |link| link.stub.open())
    }

    fn adopt(&mut self, host: &HostSide) {
        self.epoch = host.epoch;
        // The clients of these calls are gone.
        self.jobs.clear();
        self.link = host.current.as_ref().map(|incarnation| {
            let layout = &incarnation.layout;
            let port = incarnation.link.port(Side::Host, layout);
            let mut stub = Stub::new(layout, self.index);
            stub.announce(&port, Some(Subject { id: self.index.into(), generation: 3 })).unwrap();
            Worked { port, stub, incarnation: Rc::clone(incarnation) }
        });
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(Worked { port, stub, incarnation }) = &mut self.link
            && stub.publish(port).unwrap()
        {
            incarnation.ring_agent();
        }
    }

    /// Returns whether anything happened.
    pub fn step(&mut self, now: Nanos, host: &HostSide, rng: &mut Pcg32, book: &Shared) -> bool {
        let now = now + HOST_AHEAD;
        if self.parked {
            let bell =
                self.link.as_ref().map(|link| &link.incarnation.bells[usize::from(self.index)]);
            if self.epoch == host.epoch && !bell.is_some_and(Bell::take) {
                return false;
            }
            self.parked = false;
        }
        // A busy handler does not check for another agent.
        if self.epoch != host.epoch && (self.jobs.is_empty() || rng.random_range(0..4) == 0) {
            self.adopt(host);
            return true;
        }
        if self.link.is_none() {
            self.parked = true;
            return true;
        }
        if !self.found_nothing {
            self.found_nothing = !self.poll_and_work(now, rng, book);
            self.publish();
            return true;
        }
        self.found_nothing = false;
        let Some(Worked { port, stub, .. }) = &mut self.link else { return false };
        if stub.wait(port, now, rng.random()).unwrap() == Wait::Park {
            self.parked = true;
            self.parks += 1;
            return true;
        }
        false
    }

    fn poll_and_work(&mut self, now: Nanos, rng: &mut Pcg32, book: &Shared) -> bool {
        // A worker that suspends handlers takes all events first.
        if self.serves != Serves::Apart && rng.random() && self.work(now, rng, book) {
            return true;
        }
        if let Some(came) = self.poll_stub(now) {
            self.take(now, came, book);
            return true;
        }
        self.work(now, rng, book)
    }

    /// Does a piece of work on the first call that has some.
    fn work(&mut self, now: Nanos, rng: &mut Pcg32, book: &Shared) -> bool {
        let Some(link) = &mut self.link else { return false };
        let count = self.jobs.len();
        let start = if count == 0 { return false } else { rng.random_range(0..count) };
        for at in (0..count).map(|step| (start + step) % count) {
            let job = &mut self.jobs[at];
            if job.is_suspended {
                continue;
            }
            match job.step(link, now, book) {
                Did::Nothing if self.serves == Serves::Apart => {
                    link.stub.wait_for_client(&link.port, job.call).unwrap();
                    job.is_suspended = true;
                    book::open(book).count("handlers suspended");
                    continue;
                }
                Did::Nothing => continue,
                Did::Something if self.serves == Serves::Apart && rng.random() => {
                    link.stub.yield_to_others(&link.port, job.call).unwrap();
                }
                Did::Something => {}
                Did::Ended => drop(self.jobs.swap_remove(at)),
            }
            if rng.random() {
                self.publish();
            }
            return true;
        }
        false
    }

    fn poll_stub(&mut self, now: Nanos) -> Option<Came> {
        let Some(Worked { port, stub, .. }) = &mut self.link else { return None };
        if self.serves == Serves::Apart {
            while let Some(call) = stub.take_woken() {
                let job = self.jobs.iter_mut().find(|job| job.call == call);
                job.expect("an ended call is not woken").is_suspended = false;
            }
            for job in self.jobs.iter().filter(|job| !job.is_suspended) {
                if let Some(event) = stub.poll_call(port, now, job.call).unwrap() {
                    return Some(came(event));
                }
            }
        }
        let event = match self.jobs.first() {
            Some(job) if self.serves == Serves::OneByOne => {
                let call = job.call;
                let event = stub.poll_call(port, now, call).unwrap();
                if event.is_none() {
                    stub.attend(port, now).unwrap();
                    return None;
                }
                event
            }
            _ => stub.poll(port, now).unwrap(),
        };
        Some(came(event?))
    }

    fn take(&mut self, now: Nanos, came: Came, book: &Shared) {
        let Some(Worked { incarnation, stub, .. }) = &mut self.link else { return };
        let mut open = book::open(book);
        if let Came::Begin(call, begin, metadata, message, end) = came {
            if self.serves == Serves::Apart {
                stub.detach(call);
            }
            let place = (incarnation.number, self.index, now);
            let serial =
                open.handler_begins(place, call, begin, &metadata, message.as_deref(), end);
            assert!(self.serves != Serves::OneByOne || self.jobs.is_empty());
            let plan = open.calls[serial].plan.clone();
            let due = match &plan.script {
                Script::Stream(lengths) => lengths.iter().copied().collect(),
                _ => VecDeque::new(),
            };
            let mut job = Job {
                call,
                serial,
                plan,
                due,
                sent: 0,
                said_headers: false,
                heard_end: false,
                cancelled: None,
                saw_it: false,
                is_suspended: false,
            };
            job.hear(message.map(|message| message.len()), end);
            return self.jobs.push(job);
        }
        let (Came::Message(call, ..) | Came::HalfClose(call) | Came::Cancel(call, _)) = came else {
            return;
        };
        let job = self.jobs.iter_mut().find(|job| job.call == call);
        let job = job.expect("an ended call has no events");
        match came {
            Came::Message(_, message, end) => {
                open.handler_reads(job.serial, &message, end);
                job.hear(Some(message.len()), end);
            }
            Came::HalfClose(_) => {
                open.handler_hears_end(job.serial);
                job.hear(None, true);
            }
            Came::Cancel(_, why) => {
                assert_eq!(job.cancelled, None, "call {} was cancelled twice", job.serial);
                open.handler_is_cancelled(job.serial, why);
                job.cancelled = Some(why);
            }
            Came::Begin(..) => {}
        }
    }
}

fn came(event: Event<'_>) -> Came {
    match event {
        Event::Begin { call, begin, metadata, message, compressed, end } => {
            let is_odd = message.is_some_and(|message| is_odd(message.len() as u32));
            assert_eq!(compressed, is_odd, "the compressed flag");
            let message = message.map(<[u8]>::to_vec);
            Came::Begin(call, begin, metadata.as_bytes().to_vec(), message, end)
        }
        Event::Message { call, message, compressed, end } => {
            assert_eq!(compressed, is_odd(message.len() as u32), "the compressed flag");
            Came::Message(call, message.to_vec(), end)
        }
        Event::HalfClose { call } => Came::HalfClose(call),
        Event::Cancel { call, why } => Came::Cancel(call, why),
    }
}

/// The control context's side of an attached agent.
struct Attached {
    port: NastyPort,
    control: HostControl,
    incarnation: Rc<Incarnation>,
    outbox: Outbox,
    told: bool,
}

impl Attached {
    /// Revokes the agent's window. It also rings a sleeping agent, whose clients would wait for ever.
    fn revoke(&self, why: Revoked) {
        self.control.revoke(&self.port, why);
        self.incarnation.ring_agent();
    }
}

/// The part of the host that its workers share.
#[derive(Default)]
pub struct HostSide {
    current: Option<Rc<Incarnation>>,
    epoch: u64,
}

pub struct Host {
    pub workers: Vec<Worker>,
    pub side: HostSide,
    candidates: Vec<(Rc<Incarnation>, NastyPort, HostControl)>,
    attached: Option<Attached>,
}

impl Host {
    pub fn new(workers: u16, seed: u64, rng: &mut Pcg32) -> Host {
        let worker = |index: u16| Worker {
            index,
            link: None,
            epoch: 0,
            parked: false,
            found_nothing: false,
            serves: match (rng.random(), (seed + u64::from(index)) % 3) {
                (true, 0..=1) => Serves::OneByOne,
                (false, 0..=1) => Serves::AsTheyCome,
                _ => Serves::Apart,
            },
            jobs: Vec::new(),
            parks: 0,
        };
        Host {
            workers: (0..workers).map(worker).collect(),
            side: HostSide::default(),
            candidates: Vec::new(),
            attached: None,
        }
    }

    pub fn has_agent(&self) -> bool {
        self.attached.is_some()
    }

    /// Makes a window for a new agent; it takes over when it announces itself.
    pub fn offer(&mut self, incarnation: &Rc<Incarnation>) {
        let layout = &incarnation.layout;
        let port = incarnation.link.port(Side::Host, layout);
        write_header(layout, port.window(Home::Nic));
        incarnation.link.settle();
        self.candidates.push((Rc::clone(incarnation), port, HostControl::new(layout)));
    }

    pub fn kill_agent(&mut self) {
        if let Some(old) = self.attached.take() {
            old.revoke(Revoked::TurnedOut);
            self.switch(None);
        }
    }

    fn switch(&mut self, to: Option<Rc<Incarnation>>) {
        self.side.current = to;
        self.side.epoch += 1;
    }

    /// One step of the control context. Returns whether anything happened.
    pub fn step_control(&mut self) -> bool {
        let ready =
            self.candidates.iter().position(|(_, port, control)| match control.agent_state(port) {
                AgentState::Absent => false,
                AgentState::OtherVersion(version) => panic!("version {version}"),
                AgentState::Ready => true,
            });
        if let Some(at) = ready {
            let (incarnation, port, control) = self.candidates.remove(at);
            if let Some(old) = self.attached.take() {
                old.revoke(Revoked::Replaced);
            }
            let layout = &incarnation.layout;
            let place = &layout.messages[layout.control_context()];
            let mut outbox = Outbox::new(Sender::new(place, Side::Host), Extents::none());
            let bytes = service().encode();
            let lengths = [bytes.len() as u32, 0];
            let head = Head { lengths, ..Head::new(SERVICE, Subject::default()) };
            outbox.send(&port, &head, &bytes, &[]).unwrap();
            self.switch(Some(Rc::clone(&incarnation)));
            self.attached = Some(Attached { port, control, incarnation, outbox, told: false });
            return true;
        }
        let Some(Attached { port, incarnation, outbox, told, .. }) = &mut self.attached else {
            return false;
        };
        if *told {
            return false;
        }
        outbox.flush(port).unwrap();
        outbox.publish(port);
        *told = outbox.poll(port);
        incarnation.ring_agent();
        true
    }
}
