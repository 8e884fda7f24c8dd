//! An open loop of requests, served by threads: one per request, or a pool of workers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use hdrhistogram::Histogram;
use rand::Rng;
use rand_distr::{Distribution, Exp};
use wave_core::clock::Nanos;
use wave_sched::wire::Kind;

use crate::app::{After, Application, Outside};
use crate::enclave::Enclave;
use crate::random;
use crate::world::Cause;

/// How long a request keeps its core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// The same time for every request.
    Fixed(Nanos),
    /// Exponentially distributed, with this mean.
    Exponential(Nanos),
    /// Evenly distributed around a mean, by at most this share of it.
    Uniform {
        /// Mean of the distribution.
        mean: Nanos,
        /// The largest deviation, as a share of the mean.
        spread: f64,
    },
}

impl Service {
    /// Mean of the distribution.
    pub fn mean(&self) -> Nanos {
        match *self {
            Service::Fixed(mean) | Service::Exponential(mean) | Service::Uniform { mean, .. } => {
                mean
            }
        }
    }

    /// Draws one request's time.
    pub fn draw(&self, random: &mut impl Rng) -> Nanos {
        match *self {
            Service::Fixed(time) => time,
            Service::Exponential(mean) => {
                let ns = -(1.0 - random.random::<f64>()).ln() * mean.0 as f64;
                Nanos(ns.round() as u64)
            }
            Service::Uniform { mean, spread } => {
                let factor = 1.0 + spread * random.random_range(-1.0..=1.0);
                Nanos((mean.0 as f64 * factor).round() as u64)
            }
        }
    }
}

/// A class of requests with its share and service time.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Name of the class in results.
    pub name: String,
    /// Its share, relative to the other classes' weights.
    pub weight: f64,
    /// How long its requests take.
    pub service: Service,
}

/// Threads that serve requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// A new thread for each request, as in the runtime; the request is refused if every id is taken.
    PerRequest,
    /// A pool of this many workers, which block in between; requests queue in front of them.
    Pool(u32),
}

/// An open-loop load: arrivals do not wait for completions.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Requests a second, at the times of a Poisson process.
    pub per_second: f64,
    /// The classes of requests, at least one.
    pub classes: Vec<Class>,
    /// Threads that serve the requests.
    pub threads: Threads,
    /// Cost of each request for its core, in addition to its service.
    pub overhead: Nanos,
    /// Requests that arrive before this time are not counted.
    pub warmup: Nanos,
    /// How long requests are counted.
    pub measure: Nanos,
    /// Number of contexts that submit requests.
    pub generators: usize,
}

impl Load {
    /// When the last request arrives.
    pub fn end(&self) -> Nanos {
        self.warmup + self.measure
    }

    /// Whether a request that arrives at `at` is counted.
    pub fn counts(&self, at: Nanos) -> bool {
        (self.warmup..self.end()).contains(&at)
    }
}

/// A request of a load whose arrivals are given one by one, instead of by a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time at which the request is due.
    pub at: Nanos,
    /// Index of the request's class.
    pub class: u16,
}

/// The most requests that a generator submits before it yields.
const BURST_MAX: u32 = 64;

/// The results of the requests that arrived in the measurement window.
#[derive(Clone, Debug)]
pub struct Served {
    /// Requests that arrived in the window.
    pub sent: u64,
    /// Of the requests sent, those that were completed.
    pub done: u64,
    /// Of the requests sent, those that found no thread.
    pub refused: u64,
    /// Requests completed within the window, whenever they arrived.
    pub finished_within: u64,
    /// Latencies in nanoseconds by class, from a request's intended arrival.
    pub latencies: Vec<Histogram<u64>>,
    /// How late the generators were, in nanoseconds, for each counted request.
    pub lags: Histogram<u64>,
    /// The longest lag of a generator, warm-up included.
    pub lag_max: Nanos,
    /// The lag of the last request.
    pub lag_last: Nanos,
}

impl Served {
    /// Empty results for `classes` classes.
    pub(crate) fn none(classes: usize) -> Served {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        Served {
            sent: 0,
            done: 0,
            refused: 0,
            finished_within: 0,
            latencies: (0..classes).map(|_| histogram()).collect(),
            lags: histogram(),
            lag_max: Nanos(0),
            lag_last: Nanos(0),
        }
    }
}

struct State {
    idle: Vec<u32>,
    backlog: VecDeque<(u64, u16, Nanos)>,
    served: Served,
}

/// An application that serves requests.
pub struct Requests {
    load: Load,
    /// The given arrivals; `None` if they are drawn.
    given: Option<Rc<[Arrival]>>,
    seed: u64,
    state: RefCell<State>,
    generators: RefCell<Vec<crate::world::TaskId>>,
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").field("load", &self.load).finish_non_exhaustive()
    }
}

impl Requests {
    /// The tasks of its generators.
    pub(crate) fn generators(&self) -> Vec<crate::world::TaskId> {
        self.generators.borrow().clone()
    }

    /// Creates an open loop under this seed.
    pub fn new(load: Load, seed: u64) -> Rc<Requests> {
        Requests::with(load, None, seed)
    }

    /// Creates a load of exactly these requests, in ascending order, which a single generator submits;
    /// everything else is as in `load`.
    pub fn given(load: Load, arrivals: Rc<[Arrival]>, seed: u64) -> Rc<Requests> {
        Requests::with(Load { generators: 1, ..load }, Some(arrivals), seed)
    }

    fn with(load: Load, given: Option<Rc<[Arrival]>>, seed: u64) -> Rc<Requests> {
        let served = Served::none(load.classes.len());
        let state = State { idle: Vec::new(), backlog: VecDeque::new(), served };
        let (state, generators) = (RefCell::new(state), RefCell::default());
        Rc::new(Requests { load, given, seed, state, generators })
    }

    /// The results of the requests so far.
    pub fn served(&self) -> Served {
        self.state.borrow().served.clone()
    }

    /// Number of requests that wait in front of the workers.
    pub fn backlog(&self) -> usize {
        self.state.borrow().backlog.len()
    }

    fn in_window(&self, at: u64) -> bool {
        self.load.counts(Nanos(at))
    }

    fn generate(&self, enclave: &Rc<Enclave>, index: usize) {
        let task = self.generators.borrow()[index];
        let world = enclave.world().clone();
        let cpu = enclave.cpu.as_deref();
        let mut outside = Outside::new(enclave, index);
        let mut random = random::stream(self.seed, "arrivals", index as u64);
        let mut arrivals = Upcoming::new(self, index, &mut random);
        let mut in_burst = 0;
        if let Some(cpu) = cpu {
            cpu.enter(task);
        }
        loop {
            let at = arrivals.at();
            if at >= self.load.end() {
                // Requests that wait are still served.
                cpu.inspect(|cpu| cpu.leave());
                world.wait(task, Cause::NUDGE, None);
                cpu.inspect(|cpu| cpu.enter(task));
            } else if let Some(cpu) = cpu {
                if world.now() < at || in_burst == BURST_MAX {
                    cpu.give_way(task);
                    in_burst = 0;
                }
                world.spend(cpu.costs().generator_look.nanos());
            } else if world.now() < at {
                world.wait(task, Cause::NUDGE, Some(at));
            }
            self.wake_workers(&mut outside);
            if world.now() < at || at >= self.load.end() {
                continue;
            }
            in_burst += 1;
            let class = arrivals.take(&mut random);
            let service = self.load.classes[usize::from(class)].service;
            let work = service.draw(&mut random) + self.load.overhead;
            {
                let served = &mut self.state.borrow_mut().served;
                let lag = world.now().since(at);
                served.lag_max = served.lag_max.max(lag);
                served.lag_last = lag;
                if self.in_window(at.0) {
                    served.sent += 1;
                    served.lags.saturating_record(lag.0);
                }
            }
            self.submit(&mut outside, at.0, class, work);
        }
    }

    fn submit(&self, outside: &mut Outside, at: u64, class: u16, work: Nanos) {
        match self.load.threads {
            Threads::PerRequest => {
                if outside.create(class, work, at).is_none() {
                    self.state.borrow_mut().served.refused += u64::from(self.in_window(at));
                }
            }
            Threads::Pool(_) => {
                self.state.borrow_mut().backlog.push_back((at, class, work));
                self.wake_workers(outside);
            }
        }
    }

    fn wake_workers(&self, outside: &mut Outside) {
        loop {
            let (id, (at, class, work)) = {
                let state = &mut *self.state.borrow_mut();
                if state.backlog.is_empty() || state.idle.is_empty() {
                    return;
                }
                let request = state.backlog.pop_front().expect("just seen");
                (state.idle.pop().expect("just seen"), request)
            };
            outside.wake(id, class, work, at);
        }
    }
}

/// The requests of one generator that are still to come.
pub(crate) enum Upcoming<'a> {
    /// Arrivals of a Poisson process.
    Drawn {
        gaps: Exp<f64>,
        next: f64,
        classes: &'a [Class],
        total: f64,
    },
    Given {
        arrivals: &'a [Arrival],
    },
}

impl<'a> Upcoming<'a> {
    fn new(requests: &'a Requests, index: usize, random: &mut random::Stream) -> Upcoming<'a> {
        match &requests.given {
            Some(given) => Upcoming::Given { arrivals: if index == 0 { given } else { &[] } },
            None => Upcoming::drawn(&requests.load, random),
        }
    }

    /// The drawn requests of one of the load's generators.
    pub(crate) fn drawn(load: &'a Load, random: &mut random::Stream) -> Upcoming<'a> {
        let rate = load.per_second / load.generators as f64 / 1e9;
        let gaps = Exp::new(rate.max(1e-18)).expect("a rate above zero");
        let next = gaps.sample(random);
        let total = load.classes.iter().map(|class| class.weight).sum();
        Upcoming::Drawn { gaps, next, classes: &load.classes, total }
    }

    /// Time at which the next request is due.
    pub(crate) fn at(&self) -> Nanos {
        match self {
            Upcoming::Drawn { next, .. } => Nanos(*next as u64),
            Upcoming::Given { arrivals } => arrivals.first().map_or(Nanos::MAX, |first| first.at),
        }
    }

    /// Takes the next request, and returns its class.
    pub(crate) fn take(&mut self, random: &mut random::Stream) -> u16 {
        match self {
            Upcoming::Drawn { gaps, next, classes, total } => {
                *next += gaps.sample(random);
                let mut chosen = random.random::<f64>() * *total;
                let mut class = 0;
                while class + 1 < classes.len() && chosen >= classes[class].weight {
                    chosen -= classes[class].weight;
                    class += 1;
                }
                class as u16
            }
            Upcoming::Given { arrivals } => {
                let (first, rest) = arrivals.split_first().expect("one is due");
                *arrivals = rest;
                first.class
            }
        }
    }
}

impl Application for Requests {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        if let Threads::Pool(workers) = self.load.threads {
            let made = (0..workers).map_while(|_| enclave.create_parked(0));
            self.state.borrow_mut().idle = made.collect();
        }
        for index in 0..self.load.generators {
            let (app, enclave_weak) = (Rc::clone(&self), Rc::downgrade(enclave));
            let task = enclave.world().spawn(move || {
                if let Some(enclave) = enclave_weak.upgrade() {
                    app.generate(&enclave, index);
                }
            });
            self.generators.borrow_mut().push(task);
        }
    }

    fn after(&self, enclave: &Enclave, id: u32) -> After {
        let now = enclave.world().now().0;
        let (at, class) = (enclave.table().own(id).tag.get(), enclave.table().class(id));
        let served = &mut self.state.borrow_mut().served;
        served.finished_within += u64::from(self.in_window(now));
        if self.in_window(at) {
            served.done += 1;
            let latency = now.saturating_sub(at).max(1);
            served.latencies[usize::from(class)].saturating_record(latency);
        }
        match self.load.threads {
            Threads::PerRequest => After::Exit,
            Threads::Pool(_) => After::Block,
        }
    }

    fn left(&self, enclave: &Enclave, id: u32, kind: Kind) {
        if kind != Kind::Blocked {
            return;
        }
        let state = &mut *self.state.borrow_mut();
        state.idle.push(id);
        if !state.backlog.is_empty() {
            let generators = self.generators.borrow();
            let chosen = generators[id as usize % generators.len()];
            enclave.world().wake(chosen, enclave.world().now(), Cause::NUDGE);
        }
    }
}
