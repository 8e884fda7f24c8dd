//! An agent that receives a snapshot that is out of date.

use wave_core::agent::Agent;
use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::layout::{Config, Layout, write_header};
use wave_core::link::{Home, Port, Side};
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::Outcome;
use wave_core::park::PARKED;
use wave_core::policy::{Choice, Desk, Policy, Progress};
use wave_core::snapshot::{CoreRecord, Snapshot};
use wave_core_testing::nasty::{Bell, Link};
use wave_core_testing::shape;

/// Makes one decision.
struct Once(Option<Choice>);

impl Policy for Once {
    fn name(&self) -> &'static str {
        "once"
    }
    fn on_message(&mut self, _now: Nanos, _message: &Message) {}
    fn on_outcome(&mut self, _now: Nanos, _core: u16, _decision: &Decision, _outcome: Outcome) {}
    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        if let Some(core) = desk.asking().or_else(|| desk.open())
            && let Some(choice) = self.0.take()
        {
            desk.stage(core, choice);
        }
        Progress::Done
    }
    fn resync(&mut self, _now: Nanos, _snapshot: &Snapshot) {}
}

/// After a loss, the request of a core can be older or newer than a snapshot in which the core runs.
/// Its status decides. Found when a core slept for ever with a prestaged decision in its queue.
#[test]
fn a_sleeping_core_is_kicked_even_if_it_runs_in_the_snapshot() {
    for name in wave_core_testing::SHAPES {
        for sleeps in [true, false] {
            let (messages, decisions) = shape(name, 8, 8);
            let config = Config { messages, decisions, subjects: 1, ..Config::coherent(1) };
            let layout = Layout::new(config).unwrap();
            let link = Link::new(&layout, name == "coherent", 3);
            let host = link.port(Side::Host, &layout);
            write_header(&layout, host.window(Home::Nic));
            link.settle();
            let choice =
                Choice { kind: 1, subject: Subject::default(), sequence: Sequence(1), argument: 0 };
            let bells: Vec<Bell> = (0..layout.doorbells()).map(|_| Bell::default()).collect();
            let port = link.port(Side::Agent, &layout);
            let policy = Once(Some(choice));
            let mut agent = Agent::new(layout.clone(), port, bells.clone(), policy, ());
            let runs = CoreRecord { run: 5, asks: false, ..CoreRecord::default() };
            HostControl::new(&layout).send_snapshot(&host, &[runs], std::iter::empty());
            link.settle();
            if sleeps {
                link.poke(Home::Nic, layout.core_status, 0, PARKED);
            }
            agent.step(Nanos(0)).unwrap();
            assert_eq!(agent.counts().0, 1, "{name}");
            assert_eq!(agent.brain().cores().waits(0), sleeps, "{name}");
            assert_eq!(bells[0].take(), sleeps, "{name}");
        }
    }
}
