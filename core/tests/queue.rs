//! Every pushed entry is popped once and in order, over every layout and the worst link.

use proptest::prelude::*;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Config, Layout};
use wave_core::link::{Home, Side};
use wave_core::queue::{Consumer, Producer, PushError, Tag};
use wave_core_testing::queue_model::{Direction, Operation, run, run_bytes};
use wave_core_testing::{SHAPES, shape};

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_pushed_entry_is_popped_in_order(
        name in prop::sample::select(SHAPES.to_vec()),
        up in any::<bool>(),
        size in 0u32..4,
        seed in any::<u64>(),
        operations in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let direction = if up { Direction::Messages } else { Direction::Decisions };
        let operations = operations.into_iter().map(Operation::from_byte);
        run(name, direction, 4 << size, seed, operations);
    }
}

/// `cargo bolero test -p wave-core --test queue fuzzed_queue` fuzzes this; `cargo test` runs the corpus
/// and some random inputs.
#[test]
fn fuzzed_queue() {
    bolero::check!().with_iterations(500).for_each(run_bytes);
}

fn place(name: &str) -> (Layout, wave_core_testing::nasty::Link) {
    let (messages, decisions) = shape(name, 4, 4);
    let config = Config { messages, decisions, subjects: 1, ..Config::coherent(1) };
    let layout = Layout::new(config).unwrap();
    let link = wave_core_testing::nasty::Link::new(&layout, name == "coherent", 1);
    (layout, link)
}

#[test]
fn an_impossible_credit_names_the_peer_and_pushes_nothing() {
    for name in SHAPES {
        let (layout, link) = place(name);
        let mut sender = Sender::new(&layout.messages[0], Side::Host);
        let port = link.port(Side::Host, &layout);
        for _ in 0..4 {
            sender.push(&port, Tag::default(), &[1]).unwrap();
        }
        let (home, ring) = match &sender {
            Sender::Mmio(ring, home) => (*home, ring.ring()),
            Sender::Dma(_) => (Home::Host, layout.messages[0].staging),
        };
        for lie in [5, u64::MAX, 1 << 32] {
            link.poke(home, ring.credit, 0, lie);
            let error = sender.push(&port, Tag::default(), &[2]).unwrap_err();
            assert_eq!(error, PushError::BadCredit { credit: lie, produced: 4 });
            assert!(error.to_string().starts_with("peer's fault"));
        }
        link.poke(home, ring.credit, 0, 0);
        assert!(matches!(sender.push(&port, Tag::default(), &[2]), Err(PushError::Full(_))));
    }
}

#[test]
fn a_malformed_entry_is_skipped_and_names_the_peer() {
    let (layout, link) = place("coherent");
    let (sink, source) = (link.port(Side::Agent, &layout), link.port(Side::Host, &layout));
    let mut receiver = Receiver::new(&layout.messages[0], Side::Agent);
    let mut sender = Sender::new(&layout.messages[0], Side::Host);
    sender.push(&source, Tag::default(), &[1]).unwrap();
    sender.push(&source, Tag::default(), &[2]).unwrap();
    link.settle();
    for words in [8u64, 255] {
        let line = layout.messages[0].ring.first;
        link.poke(Home::Nic, line, 7, 1 << 32 | words);
        let mut receiver = Receiver::new(&layout.messages[0], Side::Agent);
        let error = receiver.pop(&sink).unwrap_err();
        assert_eq!((error.index, u64::from(error.words)), (0, words));
        assert!(error.to_string().starts_with("peer's fault"));
        assert_eq!(receiver.pop(&sink).unwrap().unwrap().words(), [2]);
        assert_eq!(receiver.pop(&sink).unwrap(), None);
    }
    assert!(receiver.pop(&sink).is_err());
}

/// The lap is 32 bits of the index: a ring of four entries uses it up after 2^34 entries, so a
/// consumer must not take an entry of a lap that is long gone.
#[test]
fn an_entry_of_another_lap_is_an_empty_queue() {
    let (layout, link) = place("coherent");
    let ring = layout.messages[0].ring;
    let port = link.port(Side::Agent, &layout);
    let mapping = wave_core::link::Mapping::WriteBack;
    let mut consumer = Consumer::new(ring, mapping);
    for lap in [0u64, 2, 3, u64::from(u32::MAX)] {
        link.poke(Home::Nic, ring.first, 7, lap << 32 | 1);
        assert_eq!(consumer.pop(wave_core::link::Port::window(&port, Home::Nic)).unwrap(), None);
    }
    assert_eq!(Producer::new(ring, mapping).ring(), ring);
}
