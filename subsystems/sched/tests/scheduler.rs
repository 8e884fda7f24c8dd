//! The guarantees of `wave_sched::scheduler` to a policy of two functions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use wave_core::brain::Brain;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Message, Sequence, Subject, Upstream};
use wave_core::policy::Decisions;
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_sched::scheduler::{Run, Scheduled, Scheduler, Thread};
use wave_sched::wire::{Event, Kind};

const CORES: u16 = 4;

/// Threads that the scheduler holds: handed to it and not yet picked.
type Held = Rc<RefCell<VecDeque<Thread>>>;

/// A first-in, first-out scheduler.
struct Line(Held);

impl Scheduler for Line {
    fn ready(&mut self, thread: Thread) {
        self.0.borrow_mut().push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.borrow_mut().pop_front().map(Run::to_completion)
    }
}

/// Runs each thread only on the core of its number.
struct PerCore(Vec<Thread>);

impl Scheduler for PerCore {
    fn ready(&mut self, thread: Thread) {
        self.0.push(thread);
    }

    fn pick(&mut self, core: u16) -> Option<Run> {
        let at =
            self.0.iter().position(|thread| thread.id() % u32::from(CORES) == u32::from(core))?;
        Some(Run::to_completion(self.0.remove(at)))
    }
}

/// Picks its first thread again and again.
struct Stubborn(Option<Thread>);

impl Scheduler for Stubborn {
    fn ready(&mut self, thread: Thread) {
        self.0.get_or_insert(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.map(Run::to_completion)
    }
}

struct World<S: Scheduler> {
    brain: Brain<Scheduled<S>>,
    sequences: [u32; 64],
}

impl<S: Scheduler> World<S> {
    /// All cores are idle, and ask.
    fn new(scheduler: S) -> World<S> {
        let config = Config { subjects: 64, ..Config::coherent(CORES) };
        let brain = Brain::new(&config, Scheduled::of(&config, scheduler), ());
        let mut world = World { brain, sequences: [0; 64] };
        world.resync(Vec::new());
        world
    }

    fn resync(&mut self, records: Vec<Record>) {
        let cores = vec![CoreRecord { asks: true, ..CoreRecord::default() }; CORES.into()];
        self.brain.on_snapshot(Nanos(0), &Snapshot { records, cores });
    }

    fn hears(&mut self, kind: Kind, id: u32, class: u16) {
        let sequence = &mut self.sequences[id as usize];
        *sequence += 1;
        let (thread, sequence) = (Subject { id, generation: 1 }, Sequence(*sequence));
        let event = Event { kind, thread, sequence, core: 0, class, ran: Nanos(0) };
        let message: Message = event.to_message();
        let entry = Upstream { message: Some(message), outcome: None, asks: false };
        self.brain.on_entry(Nanos(0), CORES, &entry);
    }

    /// Decisions as (core, thread).
    fn decisions(&mut self) -> Vec<(u16, u32)> {
        let mut out = Decisions::default();
        self.brain.decide(Nanos(0), 64, &mut out);
        out.staged.into_iter().map(|(core, decision)| (core, decision.subject.id)).collect()
    }
}

fn record(id: u32, state: State) -> Record {
    let subject = Subject { id, generation: 1 };
    Record { subject, sequence: Sequence(9), state, core: 0, class: 0 }
}

#[test]
fn a_core_without_a_thread_does_not_delay_other_cores() {
    let mut world = World::new(PerCore(Vec::new()));
    for id in [2, 3, 6] {
        world.hears(Kind::New, id, 0);
    }
    let mut decided = world.decisions();
    decided.sort_unstable();
    assert_eq!(decided, [(2, 2), (3, 3)]);
}

#[test]
fn a_thread_that_is_picked_twice_is_decided_once() {
    let mut world = World::new(Stubborn(None));
    world.hears(Kind::New, 1, 0);
    world.hears(Kind::New, 2, 0);
    assert_eq!(world.decisions().len(), 1);
    assert_eq!(world.decisions(), []);
}

#[test]
fn a_thread_is_handed_over_at_most_once_per_class() {
    let held = Held::default();
    let mut world = World::new(Line(Rc::clone(&held)));
    for class in 0..1000 {
        world.hears(Kind::Wakeup, 1, class);
        world.hears(Kind::Blocked, 1, class);
    }
    assert_eq!(held.borrow().len(), wave_core::settings::CLASSES_MAX);
    // All entries are out of date.
    assert_eq!(world.decisions(), []);
    world.hears(Kind::Wakeup, 1, 3);
    assert_eq!(world.decisions().iter().map(|(_, id)| *id).collect::<Vec<_>>(), [1]);
    assert!(held.borrow().len() < wave_core::settings::CLASSES_MAX);
}

#[test]
fn a_snapshot_hands_over_threads_that_wait_and_none_that_runs() {
    let held = Held::default();
    let mut world = World::new(Line(Rc::clone(&held)));
    world.hears(Kind::New, 5, 0);
    let states =
        [(1, State::Running), (2, State::Runnable), (3, State::Blocked), (5, State::Runnable)];
    world.resync(states.map(|(id, state)| record(id, state)).to_vec());
    // Thread 5 keeps its place.
    let ids: Vec<u32> = held.borrow().iter().map(|thread| thread.id()).collect();
    assert_eq!(ids, [5, 2]);
}
