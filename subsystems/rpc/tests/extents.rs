//! Payloads in extents: both directions at once through the smallest queues and pools, and invalid entries of a peer.

use wave_core::endpoint::{Receiver, Sender};
use wave_core::layout::{Config, Layout};
use wave_core::link::Side;
use wave_core::message::Subject;
use wave_core::queue::Tag;
use wave_core_testing::nasty::{Link, NastyPort};
use wave_core_testing::shape;
use wave_rpc::boxes::{Inbox, Outbox};
use wave_rpc::extents::{Extents, PayloadConfig};
use wave_rpc::wire::{DATA, EXTENT, Head, MESSAGE, RETURN};

/// One side's ends of a worker's two queues.
struct End {
    port: NastyPort,
    outbox: Outbox,
    inbox: Inbox,
}

impl End {
    fn new(link: &Link, layout: &Layout, side: Side) -> End {
        let (out, back) = match side {
            Side::Host => (&layout.messages[0], &layout.decisions[0]),
            Side::Agent => (&layout.decisions[0], &layout.messages[0]),
        };
        End {
            port: link.port(side, layout),
            outbox: Outbox::new(Sender::new(out, side), Extents::new(layout, 0, side)),
            inbox: Inbox::new(Receiver::new(back, side)),
        }
    }

    fn send(&mut self, message: &[u8]) {
        let head = Head::new(MESSAGE, Subject { id: 1, generation: 1 });
        let head = Head { lengths: [0, message.len() as u32], ..head };
        self.outbox.send(&self.port, &head, &[], message).unwrap();
    }

    /// Takes one entry, and sends what can be sent. Returns a message if that entry completes it.
    fn turn(&mut self) -> Option<Vec<u8>> {
        let End { port, outbox, inbox } = self;
        let came = inbox.next(port, 1, outbox.extents()).unwrap();
        let came = came.map(|frame| frame.second.to_vec());
        outbox.flush(port).unwrap();
        outbox.publish(port);
        came
    }
}

fn layout(name: &str, payloads: PayloadConfig) -> Layout {
    let (messages, decisions) = shape(name, 2, 2);
    let config =
        Config { messages, decisions, pools: payloads.pools(), prestage: 0, ..Config::coherent(1) };
    Layout::new(config).unwrap()
}

#[test]
fn payloads_cross_both_ways_with_two_entry_queues_and_one_extent() {
    for name in ["coherent", "pcie", "dma-async", "pushed"] {
        let payloads = PayloadConfig { extents: 1, lines: 3, inline_max: 64 };
        let layout = layout(name, payloads);
        let link = Link::new(&layout, name == "coherent", 7);
        let mut ends = [Side::Host, Side::Agent].map(|side| End::new(&link, &layout, side));
        // Long, short and in between: later messages wait for earlier ones.
        let lengths = [20_000, 3, 64, 65, 0, 1_000, 33, 224, 225];
        let message = |at: usize| vec![at as u8 + 1; lengths[at]];
        for end in &mut ends {
            (0..lengths.len()).for_each(|at| end.send(&message(at)));
        }
        let mut came = [0, 0];
        for _ in 0..100_000 {
            for (end, came) in ends.iter_mut().zip(&mut came) {
                if let Some(bytes) = end.turn() {
                    assert!(bytes == message(*came), "{name}: message {came}");
                    *came += 1;
                }
                link.tick();
            }
        }
        assert_eq!(came, [lengths.len(); 2], "{name}");
        for End { port, outbox, .. } in &mut ends {
            assert!(outbox.poll(port) && !outbox.lends(), "{name}: all extents were returned");
        }
    }
}

#[test]
fn invalid_extent_entries_are_refused() {
    let payloads = PayloadConfig { extents: 2, lines: 2, inline_max: 100 };
    let layout = layout("coherent", payloads);
    let word = |id, generation| Subject { id, generation }.to_word();
    let head = Head { lengths: [0, 200], ..Head::new(MESSAGE, Subject::default()) };
    let (head_tag, head_words) = head.encode(&[0; 32]);
    let head = (head_tag, head_words.to_vec());
    let lent = |extent, bytes: u64| (Tag { kind: EXTENT, flags: 0 }, vec![extent, bytes]);
    let returned = |flags, extent| (Tag { kind: RETURN, flags }, vec![extent; 7]);
    let cases = [
        ("out of turn", vec![lent(word(0, 1), 100)]),
        ("extent 0.2 cannot be lent", vec![head.clone(), lent(word(0, 2), 100)]),
        ("extent 2.1 cannot be lent", vec![head.clone(), lent(word(2, 1), 100)]),
        (
            "extent 0.2 cannot be lent",
            vec![head.clone(), lent(word(0, 1), 100), lent(word(0, 2), 1)],
        ),
        ("an extent of 0 bytes", vec![head.clone(), lent(word(0, 1), 0)]),
        ("an extent of 129 bytes, where at most 128", vec![head.clone(), lent(word(0, 1), 129)]),
        (
            "an extent of 69 bytes, where at most 68",
            vec![head.clone(), lent(word(0, 1), 100), lent(word(1, 1), 69)],
        ),
        (
            "an entry of kind 12",
            vec![head.clone(), (Tag { kind: EXTENT, flags: 0 }, vec![word(0, 1)])],
        ),
        ("extent 0.1 was not lent", vec![returned(2, word(0, 1))]),
        ("extent 0.2 was not lent", vec![returned(1, word(0, 2))]),
        ("extent 1.1 was not lent", vec![returned(1, word(1, 1))]),
        ("an entry of kind 13", vec![returned(0, word(0, 1))]),
        ("an entry of kind 13", vec![returned(8, word(0, 1))]),
        ("an entry of kind 13", vec![(Tag { kind: RETURN, flags: 1 }, vec![word(0, 1)])]),
        ("out of turn", vec![(Tag { kind: DATA, flags: 0 }, vec![0; 7])]),
        ("", vec![returned(1, word(0, 1))]),
        (
            "",
            vec![
                head.clone(),
                lent(word(0, 1), 100),
                returned(1, word(0, 1)),
                lent(word(1, 1), 68),
            ],
        ),
    ];
    for (expected, entries) in cases {
        let link = Link::new(&layout, true, 1);
        let mut host = End::new(&link, &layout, Side::Host);
        // The host has lent one extent.
        host.send(&[9; 150]);
        host.turn();
        link.settle();
        host.turn();
        let agent = link.port(Side::Agent, &layout);
        let mut liar = Sender::new(&layout.decisions[0], Side::Agent);
        let mut errors = String::new();
        for (tag, words) in &entries {
            match words[..] {
                [one] => liar.push(&agent, *tag, &[one]).unwrap(),
                [one, two] => liar.push(&agent, *tag, &[one, two]).unwrap(),
                _ => liar.push(&agent, *tag, words.first_chunk::<7>().unwrap()).unwrap(),
            }
            liar.publish(&agent);
            link.settle();
            let End { port, outbox, inbox } = &mut host;
            if let Err(error) = inbox.next(port, 8, outbox.extents()) {
                errors = error.to_string();
            }
            link.settle();
        }
        assert!(errors.contains(expected) && errors.is_empty() == expected.is_empty(), "{errors}");
        assert!(errors.is_empty() || errors.contains("peer's fault"), "{errors}");
    }
}

#[test]
fn extent_still_being_copied_cannot_be_returned() {
    let payloads = PayloadConfig { extents: 1, lines: 2, inline_max: 100 };
    let layout = layout("pcie", payloads);
    let link = Link::new(&layout, false, 1);
    let mut host = End::new(&link, &layout, Side::Host);
    host.send(&[9; 150]);
    assert!(host.outbox.is_full(), "the copy is under way");
    let agent = link.port(Side::Agent, &layout);
    let mut liar = Sender::new(&layout.decisions[0], Side::Agent);
    let extent = Subject { id: 0, generation: 1 }.to_word();
    liar.push(&agent, Tag { kind: RETURN, flags: 1 }, &[extent; 7]).unwrap();
    liar.publish(&agent);
    while link.peek(layout.decisions[0].home, layout.decisions[0].ring.first, 7) == 0 {
        link.tick();
    }
    let error = host.inbox.next(&host.port, 8, host.outbox.extents()).unwrap_err();
    assert_eq!(error.to_string(), "peer's fault: extent 0.1 was not lent");
}
