//! Notes in a queue, over every layout and the worst link: the receiver gets a note of every open
//! request, even when notes are dropped or the receiver is new.

use std::collections::BTreeSet;

use proptest::prelude::*;
use wave_core::layout::{Config, Layout};
use wave_core::link::{Home, Side};
use wave_core::message::Subject;
use wave_core::note::queue::{NoteError, NoteReceiver, NoteSender};
use wave_core::note::{NOTE_REQUEST, Request};
use wave_core::policy::Note;
use wave_core_testing::nasty::{Bell, Link, NastyPort};
use wave_core_testing::{SHAPES, shape};

/// Threads, at most: no more notes than three quarters of the smallest queue.
const THREADS: u32 = 6;
const ENTRIES: u32 = 8;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// A request for a thread arrives, and its note is sent.
    Request(u32),
    /// The front takes a turn.
    Front,
    /// The scheduler takes a turn: it takes notes, and the threads that they name serve all their requests.
    Scheduler,
    /// The scheduler goes to sleep if it finds nothing.
    Sleep,
    /// Another scheduler attaches, with a fresh window.
    Attach,
    /// Deliver a part of the stores in flight.
    Tick,
    /// Let everything arrive that has left.
    Settle,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (0..THREADS).prop_map(Operation::Request),
        4 => Just(Operation::Front),
        4 => Just(Operation::Scheduler),
        2 => Just(Operation::Sleep),
        1 => Just(Operation::Attach),
        4 => Just(Operation::Tick),
        1 => Just(Operation::Settle),
    ]
}

fn note(thread: u32) -> Note {
    let thread = Subject { id: thread, generation: 1 };
    Request { thread, class: 1, slo: None }.to_note()
}

/// The two ends over one window.
struct Line {
    link: Link,
    bell: Bell,
    sender: NoteSender<NastyPort, Bell>,
    receiver: NoteReceiver<NastyPort>,
}

impl Line {
    fn new(name: &str, seed: u64) -> Line {
        let (messages, decisions) = shape(name, ENTRIES, ENTRIES);
        let config =
            Config { messages, decisions, prestage: 0, subjects: 1, ..Config::coherent(1) };
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, name == "coherent", seed);
        let bell = Bell::default();
        Line {
            sender: NoteSender::new(&layout, link.port(Side::Agent, &layout), bell.clone()),
            receiver: NoteReceiver::new(&layout, link.port(Side::Host, &layout)),
            link,
            bell,
        }
    }
}

struct Model {
    name: &'static str,
    seed: u64,
    line: Line,
    /// Threads for which requests wait.
    open: BTreeSet<u32>,
    sleeps: bool,
}

impl Model {
    fn new(name: &'static str, seed: u64) -> Model {
        let line = Line::new(name, seed);
        Model { name, seed, line, open: BTreeSet::new(), sleeps: false }
    }

    fn catch_up(&mut self) {
        if self.line.sender.is_behind() {
            let open: Vec<Note> = self.open.iter().map(|thread| note(*thread)).collect();
            self.line.sender.catch_up(&open).unwrap();
        }
    }

    /// Returns whether notes came.
    fn take(&mut self) -> bool {
        let mut notes = Vec::new();
        let came = self.line.receiver.poll(&mut notes).unwrap();
        assert_eq!(came, !notes.is_empty());
        for note in notes {
            let request = Request::from_note(&note).expect("only such notes were sent");
            assert_eq!(request.thread.generation, 1);
            assert!(request.thread.id < THREADS);
            // A repeated note is harmless: the thread then finds no request.
            self.open.remove(&request.thread.id);
        }
        came
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Request(thread) => {
                self.open.insert(thread);
                self.line.sender.send(&[note(thread)]).unwrap();
                self.catch_up();
            }
            Operation::Front => self.catch_up(),
            Operation::Scheduler if self.sleeps => {
                if self.line.bell.take() {
                    self.line.receiver.unpark();
                    self.sleeps = false;
                }
            }
            Operation::Scheduler => drop(self.take()),
            Operation::Sleep => {
                if !self.sleeps {
                    self.line.receiver.prepare_park();
                    self.sleeps = !self.take();
                    if !self.sleeps {
                        self.line.receiver.unpark();
                    }
                }
            }
            Operation::Attach => {
                self.line.sender.replace();
                self.line.link.settle();
                assert!(self.line.receiver.is_replaced());
                self.seed = self.seed.wrapping_add(1);
                self.line = Line::new(self.name, self.seed);
                assert!(!self.line.receiver.is_replaced());
                self.sleeps = false;
            }
            Operation::Tick => self.line.link.tick(),
            Operation::Settle => self.line.link.settle(),
        }
    }

    /// Without further input, the scheduler gets a note of every waiting request within a few turns.
    fn finish(&mut self) {
        for _ in 0..8 * ENTRIES {
            self.apply(Operation::Front);
            self.apply(Operation::Settle);
            self.apply(Operation::Scheduler);
        }
        assert!(self.open.is_empty(), "no note arrived for threads {:?}", self.open);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_waiting_request_is_noted(
        name in prop::sample::select(SHAPES.to_vec()),
        seed in any::<u64>(),
        operations in prop::collection::vec(operation(), 0..200),
    ) {
        let mut model = Model::new(name, seed);
        operations.into_iter().for_each(|operation| model.apply(operation));
        model.finish();
    }
}

/// Found with seed 9728081587839157170: the receiver slept before the copy of its credit had arrived, so that the
/// sender never had room for what it owed, and never rang.
#[test]
fn a_receiver_does_not_sleep_before_its_credit_has_arrived() {
    let mut model = Model::new("dma-async", 9728081587839157170);
    for operation in [
        Operation::Attach,
        Operation::Attach,
        Operation::Attach,
        Operation::Request(0),
        Operation::Attach,
        Operation::Sleep,
        Operation::Tick,
        Operation::Request(1),
        Operation::Request(0),
        Operation::Request(0),
        Operation::Tick,
        Operation::Tick,
        Operation::Tick,
        Operation::Request(0),
        Operation::Tick,
        Operation::Tick,
        Operation::Request(0),
        Operation::Request(0),
        Operation::Scheduler,
        Operation::Request(0),
        Operation::Scheduler,
        Operation::Sleep,
        Operation::Request(0),
        Operation::Request(1),
        Operation::Request(2),
    ] {
        model.apply(operation);
    }
    model.finish();
}

#[test]
fn a_sender_drops_notes_without_room_and_catches_up_later() {
    let mut line = Line::new("coherent", 1);
    assert!(line.sender.is_behind(), "no receiver knows of any request yet");
    line.sender.catch_up(&[]).unwrap();
    let notes: Vec<Note> = (0..ENTRIES).map(note).collect();
    line.sender.send(&notes).unwrap();
    assert!(!line.sender.is_behind());
    line.sender.send(&[note(0)]).unwrap();
    assert!(line.sender.is_behind());
    // The queue is full: nothing is sent, and the sender stays behind.
    line.sender.catch_up(&notes[..2]).unwrap();
    assert!(line.sender.is_behind());
    let mut came = Vec::new();
    while line.receiver.poll(&mut came).unwrap() {}
    assert_eq!(came, notes);
    // The credit is on its way.
    line.link.settle();
    line.sender.catch_up(&notes[..2]).unwrap();
    assert!(!line.sender.is_behind());
    came.clear();
    line.receiver.poll(&mut came).unwrap();
    assert_eq!(came, notes[..2]);
}

#[test]
fn entries_that_are_no_notes_name_the_peer() {
    let (messages, decisions) = shape("coherent", ENTRIES, ENTRIES);
    let config = Config { messages, decisions, prestage: 0, subjects: 1, ..Config::coherent(1) };
    let layout = Layout::new(config).unwrap();
    let line = layout.decisions[0].ring.first;
    let lap =
        |kind: u16, flags: u64, words: u64| 1 << 32 | u64::from(kind) << 16 | flags << 8 | words;
    let lies = [
        lap(NOTE_REQUEST - 1, 0, 3),
        lap(NOTE_REQUEST, 1, 3),
        lap(NOTE_REQUEST, 0, 2),
        lap(NOTE_REQUEST, 0, 7),
        lap(NOTE_REQUEST, 0, 8),
    ];
    for lie in lies {
        let link = Link::new(&layout, true, 1);
        link.poke(Home::Nic, line, 7, lie);
        let mut receiver = NoteReceiver::new(&layout, link.port(Side::Host, &layout));
        let error = receiver.poll(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().starts_with("peer's fault"), "{error}");
    }
    let link = Link::new(&layout, true, 1);
    link.poke(Home::Nic, layout.decisions[0].ring.credit, 0, u64::MAX);
    let mut sender = NoteSender::new(&layout, link.port(Side::Agent, &layout), Bell::default());
    sender.catch_up(&[]).unwrap();
    let notes: Vec<Note> = (0..=ENTRIES).map(note).collect();
    let error = sender.send(&notes).unwrap_err();
    assert!(matches!(error, NoteError::Credit(_)), "{error}");
    assert!(error.to_string().starts_with("peer's fault"), "{error}");
}
