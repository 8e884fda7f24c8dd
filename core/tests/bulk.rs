//! Bulk data over a link that reorders and delays: all of it arrives once and in order, extents are returned,
//! and errors name a peer that lies.

use std::cell::RefCell;
use std::rc::Rc;

use rand::Rng;
use wave_core::agent::{Agent, AgentError};
use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::host::Context;
use wave_core::layout::{Config, Layout, PoolConfig, write_header};
use wave_core::link::{Home, Port, Side, Transport};
use wave_core::message::{Decision, KIND_BULK, Message, Sequence, Subject};
use wave_core::outcome::Outcome;
use wave_core::policy::{BadBulk, Desk, Policy, Progress};
use wave_core::snapshot::{CoreRecord, Snapshot};
use wave_core_testing::nasty::{Bell, Link, NastyPort};
use wave_core_testing::{Replay, rng, seeds, shape};

/// Keeps the bulk data that it receives; refuses a zero.
struct Listener(Rc<RefCell<Vec<Vec<u64>>>>);

impl Policy for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }
    fn on_message(&mut self, _now: Nanos, _message: &Message) {}
    fn on_outcome(&mut self, _now: Nanos, _core: u16, _of: &Decision, _outcome: Outcome) {}
    fn decide(&mut self, _now: Nanos, _desk: &mut Desk<'_>) -> Progress {
        Progress::Done
    }
    fn resync(&mut self, _now: Nanos, _snapshot: &Snapshot) {}
    fn on_bulk(&mut self, _now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        if let Some(at) = words.iter().position(|&word| word == 0) {
            return Err(BadBulk { words: words.len(), at, what: "a zero" });
        }
        self.0.borrow_mut().push(words.to_vec());
        Ok(())
    }
}

type ListeningAgent = Agent<Listener, (), NastyPort, Bell>;

struct Setup {
    layout: Layout,
    link: Link,
    host: NastyPort,
    control: HostControl,
    agent: ListeningAgent,
    heard: Rc<RefCell<Vec<Vec<u64>>>>,
}

fn setup(name: &str, transport: Transport, seed: u64) -> Setup {
    let mut config = Config::coherent(1);
    (config.messages, config.decisions) = shape(name, 8, 8);
    config.prestage = 0;
    config.pools[1] = PoolConfig { extents: 3, lines: 2, transport, ..PoolConfig::NONE };
    let layout = Layout::new(config).unwrap();
    let link = Link::new(&layout, name == "coherent", seed);
    let host = link.port(Side::Host, &layout);
    write_header(&layout, host.window(Home::Nic));
    let heard = Rc::new(RefCell::new(Vec::new()));
    let bells = vec![Bell::default(), Bell::default()];
    let port = link.port(Side::Agent, &layout);
    let agent = Agent::new(layout.clone(), port, bells, Listener(Rc::clone(&heard)), ());
    let control = HostControl::new(&layout);
    let mut setup = Setup { layout, link, host, control, agent, heard };
    let core = CoreRecord { asks: true, ..CoreRecord::default() };
    assert!(setup.control.send_snapshot(&setup.host, &[core], std::iter::empty()));
    setup.link.settle();
    setup.agent.step(Nanos(0)).unwrap();
    setup
}

#[test]
fn bulk_data_arrives_once_and_in_order() {
    for name in ["coherent", "pcie", "dma-messages"] {
        for transport in [Transport::DmaSync, Transport::DmaAsync] {
            for seed in seeds(40) {
                let _replay = Replay(seed, "-p wave-core --test bulk arrives");
                let mut rng = rng(seed);
                let mut setup = setup(name, transport, seed);
                let mut sent = Vec::new();
                let mut refused = 0;
                for round in 0..4_000 {
                    if sent.len() < 60 && rng.random_range(0..3) == 0 {
                        let count = rng.random_range(1..=setup.control.bulk_words());
                        let words: Vec<u64> = (0..count).map(|_| rng.random::<u64>() | 1).collect();
                        match setup.control.send_bulk(&setup.host, &words) {
                            true => sent.push(words),
                            false => refused += 1,
                        }
                    }
                    if rng.random() {
                        assert!(!setup.control.poll(&setup.host).fault);
                    }
                    if rng.random_range(0..4) == 0 {
                        setup.agent.step(Nanos(round)).unwrap();
                    }
                    setup.link.tick();
                }
                assert_eq!(sent.len(), 60, "extents are returned");
                assert!(refused > 0, "the pool was never empty");
                for _ in 0..40 {
                    setup.control.poll(&setup.host);
                    setup.link.settle();
                    setup.agent.step(Nanos(5_000)).unwrap();
                }
                assert!(!setup.control.is_copying());
                assert_eq!(*setup.heard.borrow(), sent);
            }
        }
    }
}

#[test]
fn bad_bulk_from_the_host_is_named() {
    let lie = |subject: Subject, words: u64| {
        let mut setup = setup("coherent", Transport::DmaSync, 1);
        let place = &setup.layout.messages[setup.layout.control_context()];
        let mut context = Context::new(&setup.layout, place);
        // The first message in this queue announced the snapshot.
        let message = Message {
            kind: KIND_BULK,
            subject,
            sequence: Sequence(0),
            argument: 0,
            payload: [words, 0, 0],
        };
        context.send(&setup.host, &message);
        context.send(&setup.host, &message);
        setup.link.settle();
        setup.agent.step(Nanos(1)).unwrap_err()
    };
    let what = |error| match error {
        AgentError::Bulk(BadBulk { what, .. }) => what,
        other => panic!("{other}"),
    };
    let extent = |id| Subject { id, generation: 1 };
    assert_eq!(what(lie(extent(3), 1)), "the extent is not in the pool");
    assert_eq!(what(lie(extent(u32::MAX), 1)), "the extent is not in the pool");
    assert_eq!(what(lie(extent(0), 17)), "an extent does not hold that many words");
    assert_eq!(what(lie(extent(0), u64::MAX)), "an extent does not hold that many words");
    assert_eq!(what(lie(extent(0), 3)), "a zero");
}

#[test]
fn returning_an_extent_that_is_not_lent_is_the_agents_fault() {
    for (id, generation) in [(0_u32, 1_u32), (0, 0), (3, 1), (u32::MAX, 1)] {
        let mut setup = setup("coherent", Transport::DmaSync, 1);
        assert!(setup.control.send_bulk(&setup.host, &[5]));
        setup.link.settle();
        setup.agent.step(Nanos(1)).unwrap();
        setup.link.settle();
        assert!(!setup.control.poll(&setup.host).fault, "an honest return is no fault");
        let ring = setup.layout.control.ring;
        // The snapshot's extent and the bulk's were the first two of this lap.
        let word = u64::from(generation) << 32 | u64::from(id);
        setup.link.poke(Home::Nic, ring.first + 2, 0, word);
        let kind = u64::from(wave_core::message::KIND_BULK_RETURNED);
        setup.link.poke(Home::Nic, ring.first + 2, 7, 1 << 32 | kind << 16 | 1);
        assert!(setup.control.poll(&setup.host).fault, "{id}.{generation}");
        assert!(setup.control.send_bulk(&setup.host, &[6]), "a refused return changes nothing");
    }
}
