//! The entries that a host core sends at a switch, and its parking, over the worst link.

use wave_core::clock::Nanos;
use wave_core::endpoint::{Receiver, Sender};
use wave_core::host::{HostCore, Mechanism, Next, preempt_word};
use wave_core::layout::{Config, Layout};
use wave_core::link::{Home, Port, Side, Window};
use wave_core::message::{Decision, FLAG_ATOMIC, Message, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::Code;
use wave_core::park::PARKED;
use wave_core::queue::{Entry, Tag};
use wave_core_testing::nasty::{Link, NastyPort};
use wave_core_testing::shape;

/// Commits decisions with an even argument.
struct Even;

impl Mechanism for Even {
    type Work = u64;

    fn apply(&mut self, decision: &Decision) -> Result<u64, Code> {
        if decision.argument.is_multiple_of(2) {
            Ok(decision.argument)
        } else {
            Err(Code::TargetStale)
        }
    }
}

struct Desk {
    layout: Layout,
    link: Link,
    host: NastyPort,
    agent: NastyPort,
    core: HostCore,
    up: Receiver,
    down: Sender,
    txn: u32,
}

impl Desk {
    fn new(name: &str) -> Desk {
        let (messages, decisions) = shape(name, 4, 8);
        let spin = Nanos(0);
        let config = Config { messages, decisions, spin, subjects: 1, ..Config::coherent(1) };
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, name == "coherent", 5);
        Desk {
            host: link.port(Side::Host, &layout),
            agent: link.port(Side::Agent, &layout),
            core: HostCore::new(&layout, 0, 41, true),
            up: Receiver::new(&layout.messages[0], Side::Agent),
            down: Sender::new(&layout.decisions[0], Side::Agent),
            link,
            layout,
            txn: 0,
        }
    }

    fn decide(&mut self, argument: u64, flags: u8) {
        self.txn += 1;
        let decision = Decision {
            kind: 1,
            subject: Subject::default(),
            sequence: Sequence(1),
            txn: TxnId::new(self.txn),
            flags,
            argument,
        };
        let (tag, words) = decision.encode();
        self.down.push(&self.agent, tag, &words).unwrap();
        self.down.publish(&self.agent);
        self.link.settle();
    }

    fn poll(&mut self) -> Next<u64> {
        let next = self.core.poll(&self.host, Nanos(0), &mut Even);
        self.link.settle();
        next
    }

    fn heard(&mut self) -> Option<Upstream> {
        let entry: Option<Entry> = self.up.pop(&self.agent).unwrap();
        entry.map(|entry| Upstream::decode(&entry).unwrap())
    }
}

fn message(sequence: u32) -> Message {
    Message {
        kind: 3,
        subject: Subject::default(),
        sequence: Sequence(sequence),
        argument: 9,
        payload: [1, 2, 3],
    }
}

#[test]
fn message_and_outcome_of_a_switch_travel_together_at_once() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.decide(2, 0);
        desk.core.prefetch(&desk.host);
        desk.core.hold(message(7));
        assert_eq!(desk.poll(), Next::Run(2), "{name}");
        let heard = desk.heard().expect(name);
        assert_eq!(heard.message, Some(message(7)));
        let outcome = heard.outcome.unwrap();
        assert_eq!((outcome.txn, outcome.code, outcome.run), (TxnId::new(1), Code::Complete, 42));
        assert!(!heard.asks);
        assert_eq!(desk.heard(), None);
    }
}

#[test]
fn a_refusal_is_reported_and_changes_no_run() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.decide(1, 0);
        desk.decide(2, FLAG_ATOMIC);
        desk.decide(2, 0x40);
        desk.decide(4, 0);
        desk.core.hold(message(7));
        assert_eq!(desk.poll(), Next::Run(4));
        let heard: Vec<_> = std::iter::from_fn(|| desk.heard()).collect();
        let codes: Vec<_> = heard.iter().map(|entry| entry.outcome.unwrap().code).collect();
        let refused = [Code::TargetStale, Code::Unsupported, Code::InvalidFlags];
        assert_eq!(codes, [&refused[..], &[Code::Complete]].concat(), "{name}");
        let runs: Vec<_> = heard.iter().map(|entry| entry.outcome.unwrap().run).collect();
        assert_eq!(runs, [41, 41, 41, 42]);
        assert_eq!(heard.iter().filter(|entry| entry.message.is_some()).count(), 1);
        assert_eq!(desk.core.counts().get(Code::TargetStale), 1);
    }
}

#[test]
fn a_core_without_a_decision_asks_parks_and_announces_both() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.core.hold(message(7));
        let parked = (0..100).any(|_| desk.poll() == Next::Park);
        assert!(parked, "{name}");
        let heard = desk.heard().expect(name);
        assert!(heard.asks && heard.outcome.is_none() && heard.message == Some(message(7)));
        let status = desk.link.peek(Home::Nic, desk.layout.core_status, 0);
        assert_eq!(status, PARKED);
        desk.decide(2, 0);
        assert_eq!(desk.poll(), Next::Run(2));
        assert_eq!(desk.link.peek(Home::Nic, desk.layout.core_status, 0), 0);
    }
}

/// A lost message can leave the agent with the belief that a running core asks; it may then sleep
/// while that core runs. The core finds out when it parks.
#[test]
fn a_core_that_parks_wakes_a_sleeping_agent() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.link.poke(Home::Host, desk.layout.agent_parked, 0, PARKED);
        desk.core.hold(message(7));
        assert!((0..100).any(|_| desk.poll() == Next::Park));
        assert!(desk.core.take_signals().ring_agent(), "{name}");
        assert!(desk.core.take_signals().is_empty());
    }
}

/// After a loss, a request alone does not tell the agent whether a snapshot is older.
#[test]
fn a_core_that_lost_a_message_asks_again_when_it_parks() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        for sequence in 0..5 {
            desk.core.send(&desk.host, &message(sequence));
        }
        assert!(desk.core.take_signals().lost());
        desk.link.settle();
        assert_eq!(std::iter::from_fn(|| desk.heard()).count(), 4, "{name}");
        desk.link.settle();
        assert!((0..100).any(|_| desk.poll() == Next::Park));
        let again = Upstream { message: None, outcome: None, asks: true };
        assert_eq!(desk.heard(), Some(again), "{name}");
        // It asks again only once.
        assert!((0..100).any(|_| desk.poll() == Next::Park));
        assert_eq!(desk.heard(), None);
    }
}

/// The core is offline for a part of one poll: its driver never notices, and the agent sends nothing until the core asks.
#[test]
fn a_core_that_answered_offline_asks_once_its_queue_is_empty() {
    struct Offline;
    impl Mechanism for Offline {
        type Work = ();
        fn apply(&mut self, _: &Decision) -> Result<(), Code> {
            Err(Code::CpuOffline)
        }
    }
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.link.poke(Home::Host, desk.layout.agent_parked, 0, PARKED);
        desk.decide(2, 0);
        desk.core.poll(&desk.host, Nanos(0), &mut Offline);
        assert!(desk.core.take_signals().ring_agent(), "{name}");
        desk.link.settle();
        let answer = desk.heard().expect(name);
        assert_eq!(answer.outcome.map(|outcome| outcome.code), Some(Code::CpuOffline));
        assert!(!answer.asks);
        assert!((0..100).any(|_| desk.poll() == Next::Park));
        let asks = Upstream { message: None, outcome: None, asks: true };
        assert_eq!(desk.heard(), Some(asks), "{name}");
        assert_eq!(desk.heard(), None, "once");
    }
}

/// A credit whose copy waits for another copy would never reach the agent.
#[test]
fn a_core_does_not_park_before_its_credit_has_gone_back() {
    let mut desk = Desk::new("dma-decisions");
    for round in 1..200u64 {
        for argument in [1, 1, 1, 2] {
            desk.decide(argument, 0);
        }
        // Without `settle`, copies progress only when the core polls.
        assert_eq!(desk.core.poll(&desk.host, Nanos(0), &mut Even), Next::Run(2));
        desk.core.hold(message(round as u32));
        while desk.core.poll(&desk.host, Nanos(0), &mut Even) != Next::Park {}
        let credit = desk.link.peek(Home::Nic, desk.layout.decisions[0].staging.credit, 0);
        assert_eq!(credit, 4 * round);
        while desk.heard().is_some() {}
        desk.link.settle();
    }
}

#[test]
fn an_invalid_decision_is_skipped_and_is_the_agents_fault() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        desk.down.push(&desk.agent, Tag { kind: 1, flags: 0 }, &[1, 2]).unwrap();
        desk.decide(2, 0);
        assert_eq!(desk.poll(), Next::Run(2), "{name}");
        assert!(desk.core.take_signals().fault(), "{name}");
        let mut desk = Desk::new(name);
        desk.decide(2, 0);
        assert_eq!(desk.poll(), Next::Run(2));
        assert!(desk.core.take_signals().is_empty(), "{name}");
    }
}

#[test]
fn a_preemption_names_one_run() {
    let mut desk = Desk::new("pcie");
    desk.decide(2, 0);
    assert_eq!(desk.poll(), Next::Run(2));
    let set = |desk: &Desk, run| {
        let host = desk.agent.window(Home::Host);
        host.store(desk.layout.preempt, 0, preempt_word(run));
        host.publish();
        desk.link.settle();
    };
    assert!(!desk.core.preempt_requested(&desk.host));
    set(&desk, 41);
    assert!(!desk.core.preempt_requested(&desk.host), "a late preemption is ignored");
    set(&desk, 42);
    assert!(desk.core.preempt_requested(&desk.host));
}

#[test]
fn a_message_that_finds_no_room_is_reported_as_lost() {
    for name in wave_core_testing::SHAPES {
        let mut desk = Desk::new(name);
        for sequence in 0..4 {
            desk.core.send(&desk.host, &message(sequence));
            assert!(!desk.core.take_signals().lost(), "{name}");
        }
        desk.core.send(&desk.host, &message(4));
        let signals = desk.core.take_signals();
        assert!(signals.lost() && !signals.fault(), "{name}");
    }
}
