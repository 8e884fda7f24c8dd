//! One life of an agent, with a front and well-behaved clients.

use std::rc::Rc;

use bytes::Bytes;
use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::layout::read_header;
use wave_core::link::{Home, Port, Side};
use wave_rpc::dispatch::{Arrival, Dispatch, Event, Refused};
use wave_rpc::status::Code;
use wave_rpc::steer;
use wave_rpc::wire::WINDOW_BYTES;

use crate::book::{self, Over, Plan, Script, Shared, Watched, fill, is_odd, name};
use crate::host::{Incarnation, service};
use wave_core_testing::nasty::{Bell, NastyPort};

/// State of an agent's loop. It parks in three steps; anything may happen between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    Stepping,
    SaidItSleeps,
    Asleep(Option<Nanos>),
    Left,
}

pub struct Life {
    pub dispatch: Dispatch<NastyPort, Bell>,
    pub incarnation: Rc<Incarnation>,
    book: Shared,
    pub at: Loop,
    announced: bool,
    events: Vec<Event>,
    pub parks: u64,
    pub died: u64,
    clients: Clients,
}

#[derive(Clone, Copy, Debug)]
pub struct Clients {
    pub appetite: usize,
    pub large: u32,
    /// Whether most messages are large.
    pub bulky: bool,
    /// Whether deadlines are short.
    pub hasty: bool,
    /// Whether their front never sleeps.
    pub restless: bool,
}

impl Life {
    pub fn new(
        incarnation: &Rc<Incarnation>,
        steering: &str,
        book: &Shared,
        clients: Clients,
    ) -> Life {
        let port = incarnation.link.port_with(Side::Agent, &[]);
        let (nic, host) = (incarnation.link.lines(Home::Nic), incarnation.link.lines(Home::Host));
        let layout = read_header(port.window(Home::Nic), nic, host).unwrap();
        assert_eq!(layout.config, incarnation.layout.config);
        let port = incarnation.link.port(Side::Agent, &layout);
        let policy = steer::by_name(steering, &layout.config).unwrap();
        let window = incarnation.number;
        let watched = Watched { policy, book: book.clone(), window };
        let bells = incarnation.bells.clone();
        Life {
            dispatch: Dispatch::new(layout, port, bells, Box::new(watched)),
            incarnation: Rc::clone(incarnation),
            book: book.clone(),
            at: Loop::Stepping,
            announced: false,
            events: Vec::new(),
            parks: 0,
            died: 0,
            clients,
        }
    }

    /// Wakes the agent's loop, because the front has something to do.
    fn wake(&mut self) {
        if matches!(self.at, Loop::Asleep(_) | Loop::SaidItSleeps) {
            self.dispatch.unpark();
            self.at = Loop::Stepping;
        }
    }

    /// Returns whether anything happened.
    pub fn step(&mut self, now: Nanos) -> bool {
        if !self.announced {
            self.announced = true;
            self.dispatch.announce();
            return true;
        }
        match self.at {
            Loop::Left => return false,
            Loop::Asleep(until) => {
                let is_rung = self.incarnation.bells[self.incarnation.layout.agent_vector()].take();
                if !is_rung && until.is_none_or(|until| now < until) {
                    return false;
                }
                self.wake();
            }
            Loop::Stepping => match self.round(now) {
                Step::Revoked => self.leave(),
                Step::Progress => {}
                Step::Idle(_) => {
                    if self.clients.restless {
                        return false;
                    }
                    self.dispatch.prepare_park();
                    self.at = Loop::SaidItSleeps;
                }
            },
            Loop::SaidItSleeps => match self.round(now) {
                Step::Revoked => self.leave(),
                Step::Progress => self.wake(),
                Step::Idle(until) => {
                    self.parks += 1;
                    self.at = Loop::Asleep(until);
                }
            },
        }
        true
    }

    fn leave(&mut self) {
        self.at = Loop::Left;
        self.died = book::open(&self.book).window_dies(self.incarnation.number);
    }

    fn round(&mut self, now: Nanos) -> Step {
        let step = self.dispatch.step(now, &mut self.events).unwrap();
        assert!(self.events.is_empty() || step == Step::Progress, "{:?}", self.events);
        for event in std::mem::take(&mut self.events) {
            if let Event::Service(told) = &event {
                assert_eq!(*told, service());
                continue;
            }
            let heard = book::open(&self.book).front_hears(self.incarnation.number, now, &event);
            let Some((serial, grant)) = heard else { continue };
            if let Some(grant) = grant {
                let call = book::open(&self.book).calls[serial].subject;
                self.dispatch.grant(call, grant);
                self.wake();
            }
        }
        step
    }

    /// A random action of a client. Returns whether it did anything.
    pub fn client_acts(&mut self, now: Nanos, rng: &mut Pcg32, begins: bool) -> bool {
        if self.at == Loop::Left || !self.announced {
            return false;
        }
        let book = book::open(&self.book);
        let live: Vec<_> = book.live(self.incarnation.number).collect();
        drop(book);
        let wants = live.len() < self.clients.appetite && self.dispatch.is_ready();
        let wants = wants || rng.random_range(0..64) == 0;
        if begins && wants && rng.random_range(0..3) == 0 {
            return self.begin(now, rng);
        }
        if live.is_empty() {
            return false;
        }
        let serial = live[rng.random_range(0..live.len())];
        match rng.random_range(0..12) {
            0..=5 if begins => self.send(serial, rng),
            6..=8 => self.read(serial),
            9 if rng.random_range(0..4) == 0 => self.half_close(serial),
            10 if begins && rng.random_range(0..8) == 0 => self.cancel(serial),
            11 if begins => self.speak_of_the_dead(rng),
            _ => false,
        }
    }

    /// Lets every client finish: it sends its remaining messages, half-closes, and reads all replies.
    pub fn clients_finish(&mut self, rng: &mut Pcg32) -> bool {
        let live: Vec<_> = book::open(&self.book).live(self.incarnation.number).collect();
        let mut any = false;
        for serial in live {
            if self.at == Loop::Left {
                break;
            }
            any |= self.read(serial);
            let more = book::open(&self.book).more_to_say(serial);
            any |= more || self.half_close(serial);
            if more {
                self.send(serial, rng);
            }
        }
        any
    }

    fn begin(&mut self, now: Nanos, rng: &mut Pcg32) -> bool {
        let mut book = book::open(&self.book);
        let serial = book.calls.len();
        let metadata = Bytes::from(name(serial, [0, 1, 40, 600][rng.random_range(0..4)]));
        let deadline = match rng.random_range(0..if self.clients.hasty { 6 } else { 30 }) {
            0 => Some(Nanos(now.0.saturating_sub(rng.random_range(0..3)))),
            1 => Some(now + Nanos(rng.random_range(0..3_000))),
            2..=3 => Some(now + Nanos(rng.random_range(0..100_000))),
            4 => Some(now + Nanos::from_millis(10_000)),
            _ => None,
        };
        let first = if rng.random() { Some(self.length(rng)) } else { None };
        let (method, class) = (rng.random_range(0..5), rng.random_range(0..4));
        let end = rng.random_range(0..6) == 0;
        let arrival = Arrival {
            method,
            class,
            slo: if rng.random() { Some(Nanos(rng.random_range(0..100_000))) } else { None },
            hash: rng.random(),
            address: (!rng.random_ratio(1, 4)).then(|| u64::from(rng.random::<u8>() % 3)),
            deadline,
            metadata: metadata.clone(),
            message: first.map(|length| Bytes::from(fill(serial, false, 0, length))),
            compressed: first.is_some_and(is_odd),
            end,
        };
        book.arrive();
        drop(book);
        let result = self.dispatch.begin(now, arrival);
        let plan = self.plan(rng);
        let mut book = book::open(&self.book);
        match result {
            Ok(call) => {
                book.began(
                    self.incarnation.number,
                    call,
                    plan,
                    (method, class),
                    metadata,
                    (now, deadline),
                    (first, end),
                    (rng.random(), rng.random_range(0..if self.clients.bulky { 40 } else { 8 })),
                );
                drop(book);
                self.wake();
            }
            Err(Refused::Full) => {
                // All slots are in use, or the address has three times as many as are free.
                let subjects = self.incarnation.layout.config.subjects;
                assert!(4 * self.dispatch.open() >= 3 * subjects);
                book.refused();
            }
            Err(Refused::NoHost) => {
                assert!(!self.dispatch.is_ready());
                book.refused();
            }
        }
        true
    }

    fn plan(&self, rng: &mut Pcg32) -> Plan {
        let script = match rng.random_range(0..8) {
            0..=3 => Script::Echo,
            4 => Script::Aggregate(self.length(rng)),
            5..=6 => {
                let count = [0, 1, 3, 30][rng.random_range(0..4)];
                Script::Stream((0..count).map(|_| self.length(rng)).collect())
            }
            _ => Script::Abrupt,
        };
        Plan {
            script,
            headers: rng.random(),
            with_end: rng.random(),
            busy: [0, 0, 2, 20][rng.random_range(0..4)],
            late: [0, 0, 5, 40][rng.random_range(0..4)],
            stubborn: rng.random_range(0..4) == 0,
            code: Code::ALL[rng.random_range(0..Code::ALL.len())],
        }
    }

    fn length(&self, rng: &mut Pcg32) -> u32 {
        let large = self.clients.large;
        match rng.random_range(0..20) {
            0..=2 => 0,
            3..=4 => rng.random_range(31..=33),
            5..=6 => rng.random_range(88..=89),
            7 => 4096.min(large),
            8 => rng.random_range(0..=large),
            9.. if self.clients.bulky => rng.random_range(0..=20_000.min(large)),
            _ => rng.random_range(0..300),
        }
    }

    fn send(&mut self, serial: usize, rng: &mut Pcg32) -> bool {
        let length = self.length(rng);
        let end = rng.random_range(0..16) == 0;
        let mut book = book::open(&self.book);
        let call = &mut book.calls[serial];
        // A front limits what it takes from its client.
        if call.half_closed || call.on_way() >= 2 * u64::from(WINDOW_BYTES) {
            return false;
        }
        let message = Bytes::from(fill(serial, false, call.sent.len(), length));
        call.sent.push(length);
        call.half_closed = end;
        let subject = call.subject;
        drop(book);
        self.dispatch.message(subject, message, end, is_odd(length));
        self.wake();
        true
    }

    fn half_close(&mut self, serial: usize) -> bool {
        let mut book = book::open(&self.book);
        let call = &mut book.calls[serial];
        if std::mem::replace(&mut call.half_closed, true) {
            return false;
        }
        let subject = call.subject;
        drop(book);
        self.dispatch.half_close(subject);
        self.wake();
        true
    }

    /// A client reads the next reply.
    fn read(&mut self, serial: usize) -> bool {
        let mut book = book::open(&self.book);
        let call = &mut book.calls[serial];
        let Some(bytes) = call.read() else { return false };
        let subject = call.subject;
        drop(book);
        self.dispatch.grant(subject, bytes);
        self.wake();
        true
    }

    fn cancel(&mut self, serial: usize) -> bool {
        let mut book = book::open(&self.book);
        let call = &mut book.calls[serial];
        call.over = Some(Over::Cancelled);
        let subject = call.subject;
        book.count("cancelled");
        drop(book);
        self.dispatch.cancel(subject, Code::Cancelled);
        self.wake();
        true
    }

    /// The front names a call that has ended, which must have no effect.
    fn speak_of_the_dead(&mut self, rng: &mut Pcg32) -> bool {
        let book = book::open(&self.book);
        let serial = rng.random_range(0..book.calls.len());
        let call = &book.calls[serial];
        if call.over.is_none() || call.window != self.incarnation.number {
            return false;
        }
        let subject = call.subject;
        drop(book);
        let before = *self.dispatch.counts();
        self.dispatch.cancel(subject, Code::Cancelled);
        self.dispatch.message(subject, Bytes::from_static(b"late"), true, false);
        self.dispatch.half_close(subject);
        self.dispatch.grant(subject, 1 << 20);
        assert_eq!(*self.dispatch.counts(), before);
        true
    }
}
