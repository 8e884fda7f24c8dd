//! Each subject's messages are delivered once and in order, in any order of arrival across queues; a loss is
//! detected in time; a snapshot, whenever it was taken, never sets a subject back.

use std::collections::VecDeque;

use proptest::prelude::*;
use wave_core::clock::Nanos;
use wave_core::message::{Message, Sequence, Subject};
use wave_core::order::{GAP_MAX, Gap, HELD_MAX, Order};
use wave_core::snapshot::{Record, Snapshot, State};

const SUBJECTS: usize = 4;
const CONTEXTS: usize = 3;

fn message(id: usize, sequence: u32) -> Message {
    Message {
        kind: 1,
        subject: Subject { id: id as u32, generation: 0 },
        sequence: Sequence(sequence),
        argument: sequence,
        payload: [0; 3],
    }
}

/// An event of a host that never waits for its agent.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A subject changes, and a context sends the message, or finds no room.
    Change { id: usize, context: usize, lost: bool },
    /// One subject's record is read for the snapshot under way.
    Scan,
    /// The agent takes a message, or a snapshot that is complete.
    Take { context: usize },
}

fn event(lossy: bool) -> impl Strategy<Value = Event> {
    let loss = if lossy { prop::bool::weighted(0.15).boxed() } else { Just(false).boxed() };
    prop_oneof![
        4 => (0..SUBJECTS, 0..CONTEXTS, loss)
            .prop_map(|(id, context, lost)| Event::Change { id, context, lost }),
        2 => Just(Event::Scan),
        5 => (0..=CONTEXTS).prop_map(|context| Event::Take { context }),
    ]
}

/// A host with `SUBJECTS` subjects, an agent's order, and a policy that keeps the last sequence delivered to it.
struct World {
    truth: [u32; SUBJECTS],
    first: u32,
    queues: [VecDeque<Message>; CONTEXTS],
    scan: Vec<Record>,
    snapshots: VecDeque<Snapshot>,
    order: Order,
    known: [u32; SUBJECTS],
    delivered: [Vec<u32>; SUBJECTS],
    gap: bool,
}

impl World {
    /// `first` is the sequence from which everything starts, as after long use.
    fn new(first: u32) -> World {
        let mut world = World {
            truth: [first; SUBJECTS],
            first,
            queues: Default::default(),
            scan: Vec::new(),
            snapshots: VecDeque::new(),
            order: Order::new(SUBJECTS as u32),
            known: [first; SUBJECTS],
            delivered: Default::default(),
            gap: false,
        };
        if first != 0 {
            // A new agent: the first snapshot is on its way.
            (0..SUBJECTS).for_each(|_| world.scan_one());
        }
        world
    }

    fn age(&self, sequence: u32) -> u32 {
        sequence.wrapping_sub(self.first)
    }

    fn scan_one(&mut self) {
        let id = self.scan.len();
        let subject = Subject { id: id as u32, generation: 0 };
        let sequence = Sequence(self.truth[id]);
        self.scan.push(Record { subject, sequence, state: State::Runnable, core: 0, class: 0 });
        if self.scan.len() == SUBJECTS {
            let records = std::mem::take(&mut self.scan);
            self.snapshots.push_back(Snapshot { records, cores: vec![] });
        }
    }

    fn take_message(&mut self, context: usize) {
        let Some(message) = self.queues[context].pop_front() else { return };
        let (known, delivered) = (&mut self.known, &mut self.delivered);
        let told = self.order.accept(Nanos(0), message, |message| {
            known[message.subject.id as usize] = message.sequence.0;
            delivered[message.subject.id as usize].push(message.sequence.0);
        });
        self.gap |= told == Err(Gap);
    }

    /// As an agent does it: the snapshot goes to the policy first, then the messages that are newer than it.
    fn take_snapshot(&mut self) {
        let Some(snapshot) = self.snapshots.pop_front() else { return };
        let before = self.known;
        for record in &snapshot.records {
            self.known[record.subject.id as usize] = record.sequence.0;
        }
        let told = self.known;
        let known = &mut self.known;
        self.order.resync(&snapshot, |message| {
            known[message.subject.id as usize] = message.sequence.0;
        });
        for id in 0..SUBJECTS {
            let least = self.age(before[id]).max(self.age(told[id]));
            assert!(self.age(self.known[id]) >= least, "subject {id} was set back");
            assert!(self.age(self.known[id]) <= self.age(self.truth[id]));
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Change { id, context, lost } => {
                self.truth[id] = self.truth[id].wrapping_add(1);
                if !lost {
                    self.queues[context].push_back(message(id, self.truth[id]));
                }
            }
            Event::Scan => self.scan_one(),
            Event::Take { context } if context < CONTEXTS => self.take_message(context),
            Event::Take { .. } => self.take_snapshot(),
        }
    }

    fn drain(&mut self) {
        for context in 0..CONTEXTS {
            while !self.queues[context].is_empty() {
                self.take_message(context);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_comes_once_and_in_order(
        events in prop::collection::vec(event(false), 0..200),
    ) {
        let mut world = World::new(0);
        for event in events {
            if !matches!(event, Event::Scan) {
                world.apply(event);
            }
        }
        world.drain();
        for id in 0..SUBJECTS {
            let all: Vec<u32> = (1..=world.truth[id]).collect();
            prop_assert_eq!(&world.delivered[id], &all);
        }
        prop_assert!(world.order.is_settled() && !world.gap);
        prop_assert_eq!(world.order.check(Nanos::MAX), Ok(()));
    }

    #[test]
    fn a_snapshot_of_any_moment_loses_no_message(
        first in prop_oneof![Just(0u32), Just(u32::MAX - 20), any::<u32>()],
        events in prop::collection::vec(event(false), 0..200),
    ) {
        let mut world = World::new(first);
        events.into_iter().for_each(|event| world.apply(event));
        world.drain();
        while !world.snapshots.is_empty() {
            world.take_snapshot();
        }
        prop_assert_eq!(world.known, world.truth);
        prop_assert!(world.order.is_settled());
    }

    #[test]
    fn a_loss_is_detected_in_time_and_repaired(
        first in prop_oneof![Just(0u32), Just(u32::MAX - 20)],
        events in prop::collection::vec(event(true), 0..200),
    ) {
        let mut world = World::new(first);
        events.into_iter().for_each(|event| world.apply(event));
        world.drain();
        while !world.snapshots.is_empty() {
            world.take_snapshot();
        }
        let missing = !world.order.is_settled();
        let patience = GAP_MAX + Nanos(1);
        prop_assert_eq!(world.order.check(GAP_MAX), Ok(()));
        prop_assert_eq!(world.order.check(patience).is_err(), missing);
        // The next snapshot is up to date, and later messages continue from it.
        world.scan.clear();
        (0..SUBJECTS).for_each(|_| world.scan_one());
        world.take_snapshot();
        prop_assert_eq!(world.known, world.truth);
        prop_assert!(world.order.is_settled());
        for id in 0..SUBJECTS {
            world.apply(Event::Change { id, context: 0, lost: false });
        }
        world.drain();
        prop_assert_eq!(world.known, world.truth);
    }
}

#[test]
fn held_back_messages_are_bounded() {
    let mut order = Order::new(1);
    for ahead in 0..HELD_MAX as u32 {
        order.accept(Nanos(0), message(0, ahead + 2), |_| panic!("out of order")).unwrap();
    }
    let one_more = message(0, HELD_MAX as u32 + 2);
    assert_eq!(order.accept(Nanos(0), one_more, |_| panic!("out of order")), Err(Gap));
    let mut delivered = 0;
    order.accept(Nanos(0), message(0, 1), |_| delivered += 1).unwrap();
    assert_eq!(delivered, HELD_MAX + 1);
    assert!(order.is_settled());
}

#[test]
fn an_id_beyond_the_table_is_a_gap_and_nothing_else() {
    let mut order = Order::new(4);
    for id in [4, 5, u32::MAX as usize] {
        assert_eq!(order.accept(Nanos(0), message(id, 1), |_| panic!("delivered")), Err(Gap));
    }
    let record = Record {
        subject: Subject { id: 4, generation: 0 },
        sequence: Sequence(7),
        state: State::Runnable,
        core: 0,
        class: 0,
    };
    order.resync(&Snapshot { records: vec![record], cores: vec![] }, |_| panic!("delivered"));
    assert!(order.is_settled());
}
