//! One operation model and oracle of the queue, for the property test and the fuzzer alike.

use std::collections::VecDeque;

use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Config, Layout, QueuePlace};
use wave_core::link::Side;
use wave_core::queue::{Entry, PAYLOAD_WORDS, PushError, Tag};

use super::nasty::{Link, NastyPort};
use super::{SHAPES, shape};

/// What can be done to a queue.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Push an entry with this number of words.
    Push(u8),
    /// Ask how much room there is.
    Room,
    /// Publish the pushed entries.
    Publish,
    /// Publish stores, and order them before later ones.
    Fence,
    /// Let the producer's copies progress.
    Poll,
    /// Prefetch the next line of the ring.
    Prefetch,
    /// Pop one entry, if there is one.
    Pop,
    /// Check whether an entry is there, through an observer of the consumer.
    Watch,
    /// Deliver a part of the stores in flight.
    Tick,
    /// Let everything arrive that has left.
    Settle,
}

impl Operation {
    pub fn from_byte(byte: u8) -> Operation {
        match byte % 16 {
            0..=3 => Operation::Push((byte / 16) % (PAYLOAD_WORDS as u8 + 1)),
            4 => Operation::Room,
            5 | 6 => Operation::Publish,
            7 => Operation::Fence,
            8 => Operation::Poll,
            9 => Operation::Prefetch,
            10 | 11 => Operation::Pop,
            12 => Operation::Watch,
            13 | 14 => Operation::Tick,
            _ => Operation::Settle,
        }
    }
}

/// A queue of the layout, by its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Messages,
    Decisions,
}

/// A queue on a nasty link, and a plain queue as its oracle.
pub struct Model {
    link: Link,
    place: QueuePlace,
    sender: Sender,
    receiver: Receiver,
    /// A receiver that never pops, and only watches.
    watcher: Receiver,
    source: NastyPort,
    sink: NastyPort,
    oracle: VecDeque<Entry>,
    pushed: u64,
    popped: u64,
}

impl Model {
    /// An empty queue of a shape.
    pub fn new(name: &str, direction: Direction, entries: u32, seed: u64) -> Model {
        let (messages, decisions) = shape(name, entries, entries);
        let config =
            Config { messages, decisions, prestage: 2, subjects: 1, ..Config::coherent(2) };
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, name == "coherent", seed);
        let (place, producer, consumer) = match direction {
            Direction::Messages => (layout.messages[1], Side::Host, Side::Agent),
            Direction::Decisions => (layout.decisions[1], Side::Agent, Side::Host),
        };
        Model {
            sender: Sender::new(&place, producer),
            receiver: Receiver::new(&place, consumer),
            watcher: Receiver::new(&place, consumer),
            source: link.port(producer, &layout),
            sink: link.port(consumer, &layout),
            place,
            link,
            oracle: VecDeque::new(),
            pushed: 0,
            popped: 0,
        }
    }

    fn held(&self) -> u32 {
        (self.pushed - self.popped) as u32
    }

    /// Does one operation and compares.
    pub fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Push(words) => self.push(words),
            Operation::Room => {
                let room = self.sender.room(&self.source);
                assert!(
                    room <= self.place.ring.entries - self.held(),
                    "more room is reported than there is"
                );
            }
            Operation::Publish => self.sender.publish(&self.source),
            Operation::Fence => self.sender.fence(&self.source),
            Operation::Poll => drop(self.sender.poll(&self.source)),
            Operation::Prefetch => self.receiver.prefetch(&self.sink),
            Operation::Pop => drop(self.pop()),
            Operation::Watch => drop(self.watch()),
            Operation::Tick => self.link.tick(),
            Operation::Settle => self.link.settle(),
        }
    }

    fn push(&mut self, words: u8) {
        // Every word differs from all earlier words in its place.
        let payload: [u64; PAYLOAD_WORDS] =
            std::array::from_fn(|at| (self.pushed + 1) * 8 + at as u64);
        let tag = Tag { kind: !(self.pushed as u16), flags: self.pushed as u8 };
        macro_rules! push {
            ($($count:literal)*) => {
                match words {
                    $($count => self.sender.push::<$count>(
                        &self.source, tag, payload[..$count].try_into().unwrap(),
                    ),)*
                    _ => unreachable!(),
                }
            };
        }
        match push!(0 1 2 3 4 5 6 7) {
            Ok(()) => {
                assert!(self.held() < self.place.ring.entries, "an entry was overwritten");
                self.oracle.push_back(Entry::new(tag, &payload[..usize::from(words)]));
                self.pushed += 1;
            }
            Err(PushError::Full(_)) => {
                let entries = self.place.ring.entries;
                assert!(self.pushed >= entries.into(), "a queue that was never filled is full");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn watch(&self) -> bool {
        assert_eq!(self.receiver.consumed(), self.popped);
        let is_there = self.watcher.has(&self.sink, self.popped);
        assert!(
            !is_there || !self.oracle.is_empty(),
            "the watcher sees an entry that was never pushed"
        );
        is_there
    }

    fn pop(&mut self) -> bool {
        let Some(entry) = self.receiver.pop(&self.sink).unwrap() else { return false };
        self.popped += 1;
        let expected = self.oracle.pop_front().expect("an entry came that was never pushed");
        assert_eq!((entry.tag, entry.words()), (expected.tag, expected.words()));
        true
    }

    /// Everything that was pushed comes out, and the room comes back.
    pub fn finish(&mut self) {
        while !self.oracle.is_empty() {
            self.sender.publish(&self.source);
            self.link.settle();
            // A prefetch may have fetched the line before the entry was there, once.
            assert!(self.watch() || self.watch(), "the watcher does not see an entry");
            assert!(self.pop() || self.pop(), "an entry was lost on the way");
        }
        assert!(!self.watch() && !self.pop());
        // Credit goes back at the latest a quarter late, by copies that progress in pop.
        self.link.settle();
        assert!(!self.pop());
        self.link.settle();
        assert!(self.sender.room(&self.source) > 0);
        let entries = self.place.ring.entries;
        for _ in 0..=entries - entries / 4 {
            self.push(3);
        }
        assert!(self.oracle.len() as u32 > entries - entries / 4, "credit was lost");
    }
}

/// Runs operations over one shape.
pub fn run(
    name: &str,
    direction: Direction,
    entries: u32,
    seed: u64,
    operations: impl Iterator<Item = Operation>,
) {
    let mut model = Model::new(name, direction, entries, seed);
    operations.for_each(|operation| model.apply(operation));
    model.finish();
}

/// Runs a fuzzer's bytes: shape and direction, size, seed, then one byte per operation.
pub fn run_bytes(bytes: &[u8]) {
    let [shape, entries, seed, operations @ ..] = bytes else { return };
    let name = SHAPES[usize::from(*shape) % SHAPES.len()];
    let direction = if shape & 0x80 == 0 { Direction::Messages } else { Direction::Decisions };
    let operations = operations.iter().map(|byte| Operation::from_byte(*byte));
    run(name, direction, 4 << (entries % 4), u64::from(*seed), operations);
}
