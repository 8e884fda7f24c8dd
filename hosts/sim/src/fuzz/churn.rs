//! The fuzzer's application: threads that are created, run, yield, block, are woken and end.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use rand::Rng;
use wave_core::clock::Nanos;
use wave_sched::wire::Kind;

use super::plan::RUN_MAX;
use crate::app::{After, Application, Outside};
use crate::enclave::Enclave;
use crate::random::{self, Stream};
use crate::world::{Cause, TaskId};

/// Number of classes of threads.
const CLASSES: u16 = 4;

/// Threads to wake, soonest first.
type Wakes = BinaryHeap<Reverse<(Nanos, u32)>>;

pub struct Churn {
    threads: u32,
    random: RefCell<Stream>,
    alive: Cell<u32>,
    stopped: Cell<bool>,
    generators: RefCell<Vec<TaskId>>,
    /// Wakes to come, by generator.
    wakes: RefCell<Vec<Wakes>>,
}

impl Churn {
    pub fn new(threads: u32, seed: u64) -> Rc<Churn> {
        Rc::new(Churn {
            threads,
            random: RefCell::new(random::stream(seed, "churn", 0)),
            alive: Cell::new(0),
            stopped: Cell::new(false),
            generators: RefCell::default(),
            wakes: RefCell::default(),
        })
    }

    /// Creates no new threads from now on. Those that live continue to their end.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    pub fn alive(&self) -> u32 {
        self.alive.get()
    }

    fn draw_work(&self) -> Nanos {
        Nanos(self.random.borrow_mut().random_range(200..RUN_MAX.0))
    }

    fn generate(&self, enclave: &Rc<Enclave>, index: usize) {
        let task = self.generators.borrow()[index];
        let world = enclave.world().clone();
        let mut outside = Outside::new(enclave, index);
        loop {
            let due = self.wakes.borrow()[index].peek().map(|Reverse((at, _))| *at);
            if let Some(at) = due.filter(|at| *at <= world.now()) {
                let Some(Reverse((_, id))) = self.wakes.borrow_mut()[index].pop() else { continue };
                debug_assert!(at <= world.now());
                let class = enclave.table().class(id);
                outside.wake(id, class, self.draw_work(), 0);
            } else if !self.stopped.get() && self.alive.get() < self.threads {
                let class = self.random.borrow_mut().random_range(0..CLASSES);
                self.alive.set(self.alive.get() + 1);
                if outside.create(class, self.draw_work(), 0).is_none() {
                    self.alive.set(self.alive.get() - 1);
                    world.wait(task, Cause::NUDGE, Some(world.now() + Nanos(20_000)));
                }
            } else {
                world.wait(task, Cause::NUDGE, due);
            }
        }
    }
}

impl Application for Churn {
    fn start(self: Rc<Self>, enclave: &Rc<Enclave>) {
        for index in 0..usize::from(enclave.setup().config.contexts) - 1 {
            self.wakes.borrow_mut().push(BinaryHeap::new());
            let (app, weak) = (Rc::clone(&self), Rc::downgrade(enclave));
            let task = enclave.world().spawn(move || {
                if let Some(enclave) = weak.upgrade() {
                    app.generate(&enclave, index);
                }
            });
            self.generators.borrow_mut().push(task);
        }
    }

    fn after(&self, _enclave: &Enclave, _id: u32) -> After {
        let chance = self.random.borrow_mut().random_range(0..100);
        match chance {
            0..25 => After::Again(self.draw_work()),
            25..65 => After::Block,
            _ => After::Exit,
        }
    }

    fn left(&self, enclave: &Enclave, id: u32, kind: Kind) {
        let generators = self.generators.borrow();
        let chosen = id as usize % generators.len();
        match kind {
            Kind::Blocked => {
                let mut random = self.random.borrow_mut();
                // Sometimes at once: the WAKEUP may then overtake the BLOCKED.
                let soon = random.random_bool(0.2);
                let delay = if soon { 0 } else { random.random_range(0..30_000) };
                let at = enclave.world().now() + Nanos(delay);
                self.wakes.borrow_mut()[chosen].push(Reverse((at, id)));
            }
            Kind::Dead => self.alive.set(self.alive.get() - 1),
            _ => return,
        }
        enclave.world().wake(generators[chosen], enclave.world().now(), Cause::NUDGE);
    }
}
