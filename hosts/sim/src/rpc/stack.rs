//! The RPC stack: modelled cores and the real dispatcher, in a task of its own.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use wave_core::agent::Step;
use wave_core::clock::Nanos;
use wave_core::layout::read_header;
use wave_core::link::{Home, LINE_WORDS, Port, Side, Span};
use wave_core::policy::Note;
use wave_rpc::dispatch::{Arrival, Dispatch, Event, Refused};
use wave_rpc::steer;

use super::{CALLS, RpcSetup, RpcWindow};
use crate::enclave::{Enclave, SimPort};
use crate::random;
use crate::requests::{Load, Served, Upcoming};
use crate::world::{Cause, SimBell, TaskId, World};

/// The most calls that begin in one round.
const CALLS_PER_ROUND: usize = 16;

/// The state of the stack's task that others see.
pub(super) struct Stack {
    served: RefCell<Served>,
    busy: Cell<Nanos>,
    pool: RefCell<Pool>,
    task: Cell<Option<TaskId>>,
}

/// Cores that work in parallel: the time at which each of them is free.
struct Pool(BinaryHeap<Reverse<Nanos>>);

impl Pool {
    /// Assigns work that arrives at `at` to a core. Returns the time at which it is done.
    fn run(&mut self, at: Nanos, work: Nanos) -> Nanos {
        let Reverse(free) = self.0.pop().expect("a stack has cores");
        let end = free.max(at) + work;
        self.0.push(Reverse(end));
        end
    }

    /// Work left at `now`: a core with a backlog works without pause.
    fn left(&self, now: Nanos) -> Nanos {
        Nanos(self.0.iter().map(|Reverse(free)| free.0.saturating_sub(now.0)).sum())
    }
}

/// A request on its way through the stack's cores.
struct Coming {
    at: Nanos,
    ready: Nanos,
    class: u16,
    work: Nanos,
}

/// The state of the stack's task.
struct Running {
    world: World,
    enclave: Weak<Enclave>,
    stack: Rc<Stack>,
    setup: RpcSetup,
    load: Load,
    dispatch: Dispatch<SimPort, SimBell>,
    /// Arrival time and class of each call.
    calls: Vec<(Nanos, u16)>,
    coming: VecDeque<Coming>,
    notes: Arc<Mutex<VecDeque<(Nanos, Note)>>>,
    events: Vec<Event>,
}

impl Stack {
    pub(super) fn start(
        world: &World,
        window: &RpcWindow,
        setup: &RpcSetup,
        load: &Load,
        enclave: &Rc<Enclave>,
        notes: Arc<Mutex<VecDeque<(Nanos, Note)>>>,
    ) -> Rc<Stack> {
        let cores = setup.stack.cores.value as usize;
        let stack = Rc::new(Stack {
            served: RefCell::new(Served::none(load.classes.len())),
            busy: Cell::new(Nanos(0)),
            pool: RefCell::new(Pool((0..cores).map(|_| Reverse(Nanos(0))).collect())),
            task: Cell::new(None),
        });
        let port = window.port(Side::Agent, 2);
        let (nic, host) = (window.layout.nic_lines, window.layout.host_lines);
        let layout = read_header(port.window(Home::Nic), nic, host).expect("it was just written");
        let bell = || SimBell::new(world, Cause::KICK, Nanos(0), Nanos(0));
        // Workers do not sleep here: they are threads, which their scheduler wakes.
        let bells = (0..layout.doorbells()).map(|_| bell()).collect();
        let steering = steer::by_name(&setup.steering, &layout.config);
        let steering = steering
            .unwrap_or_else(|error| panic!("the setup's steering policy cannot be made: {error}"));
        let watched: Vec<_> =
            layout.messages.iter().map(|place| (place.home, place.ring)).collect();
        // The closure of a task must be small.
        let running = Box::new(Running {
            world: world.clone(),
            enclave: Rc::downgrade(enclave),
            stack: Rc::clone(&stack),
            setup: setup.clone(),
            // One task generates all arrivals.
            load: Load { generators: 1, ..load.clone() },
            dispatch: Dispatch::new(layout, port, bells, steering),
            calls: vec![(Nanos(0), 0); CALLS as usize],
            coming: VecDeque::new(),
            notes,
            events: Vec::new(),
        });
        let task = world.spawn(move || running.main());
        stack.task.set(Some(task));
        for (home, ring) in watched {
            let span = Span { home, line: ring.first, lines: ring.entries };
            world.watch(window.index, span, LINE_WORDS - 1, task, Cause::STORE);
        }
        stack
    }

    /// The results of the requests so far.
    pub(super) fn served(&self) -> Served {
        self.served.borrow().clone()
    }

    /// Total work that the stack's cores have accepted.
    pub(super) fn busy(&self) -> Nanos {
        self.busy.get()
    }

    /// Total time that the stack's cores have worked until `now`.
    pub(super) fn worked(&self, now: Nanos) -> Nanos {
        self.busy.get().since(self.pool.borrow().left(now))
    }
}

impl Running {
    fn main(mut self) {
        let task = self.stack.task.get().expect("set before it runs");
        let load = self.load.clone();
        let mut random = random::stream(self.setup.scheduler.seed, "arrivals", 0);
        let mut upcoming = Upcoming::drawn(&load, &mut random);
        let look = self.setup.scheduler.machine.agent_poll.nanos();
        self.dispatch.announce();
        loop {
            let now = self.world.now();
            while upcoming.at() <= now.min(load.end()) {
                let at = upcoming.at();
                let class = upcoming.take(&mut random);
                let service = load.classes[usize::from(class)].service;
                let work = service.draw(&mut random) + load.overhead;
                self.arrive(at, class, work);
            }
            self.begin();
            match self.dispatch.step(self.world.now(), &mut self.events) {
                Ok(Step::Progress) => {
                    self.answer();
                    self.notify_scheduler();
                    self.world.spend(look);
                }
                Ok(_) => {
                    let ready = self.coming.front().map(|coming| coming.ready);
                    let next = Some(upcoming.at()).filter(|at| *at < load.end());
                    let until = [ready, next].into_iter().flatten().min();
                    let until = until.map(|at| at.max(self.world.now()));
                    self.world.wait(task, Cause::STORE, until);
                }
                Err(error) => panic!("an honest host wrote invalid entries: {error}"),
            }
        }
    }

    /// A request has arrived: one of the stack's cores accepts it.
    fn arrive(&mut self, at: Nanos, class: u16, work: Nanos) {
        if self.load.counts(at) {
            let served = &mut *self.stack.served.borrow_mut();
            served.sent += 1;
            // An open loop that is never late.
            served.lags.saturating_record(0);
        }
        let ready = self.work(at, self.setup.stack.request.nanos());
        self.coming.push_back(Coming { at, ready, class, work });
    }

    fn work(&mut self, at: Nanos, work: Nanos) -> Nanos {
        self.stack.busy.set(self.stack.busy.get() + work);
        self.stack.pool.borrow_mut().run(at, work)
    }

    /// Steers the requests that the stack's cores have processed.
    fn begin(&mut self) {
        for _ in 0..CALLS_PER_ROUND {
            if self.coming.front().is_none_or(|coming| coming.ready > self.world.now()) {
                return;
            }
            let Some(Coming { at, class, work, .. }) = self.coming.pop_front() else { return };
            self.world.spend(self.setup.stack.steer.nanos());
            let arrival = Arrival {
                class: class as u8,
                slo: self.setup.slo.get(usize::from(class)).copied(),
                message: Some(Bytes::copy_from_slice(&work.0.to_le_bytes())),
                end: true,
                ..Arrival::default()
            };
            match self.dispatch.begin(self.world.now(), arrival) {
                Ok(call) => self.calls[call.id as usize] = (at, class),
                Err(Refused::Full | Refused::NoHost) => {
                    let refused = u64::from(self.load.counts(at));
                    self.stack.served.borrow_mut().refused += refused;
                }
            }
        }
    }

    /// Passes replies on to the clients.
    fn answer(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let Event::Message { call, end: true, .. } = event else { continue };
            let (at, class) = self.calls[call.id as usize];
            let done = self.work(self.world.now(), self.setup.stack.reply.nanos());
            let served = &mut *self.stack.served.borrow_mut();
            served.finished_within += u64::from(self.load.counts(done));
            if self.load.counts(at) {
                served.done += 1;
                let latency = done.since(at).0.max(1);
                served.latencies[usize::from(class)].saturating_record(latency);
            }
        }
        self.events = events;
    }

    /// Notifies the scheduler of threads that have requests now.
    fn notify_scheduler(&mut self) {
        let now = self.world.now();
        let mut any = false;
        {
            let mut notes = self.notes.lock().expect("no task panics while holding it");
            for request in self.dispatch.take_notes() {
                notes.push_back((now, request.to_note()));
                any = true;
            }
        }
        let agent = self.enclave.upgrade().and_then(|enclave| enclave.agent_task());
        if let Some(agent) = agent.filter(|_| any) {
            self.world.wake(agent, now, Cause::STORE);
        }
    }
}
