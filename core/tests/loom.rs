//! Orderings, in every interleaving with a few preemptions: the real queue, host protocol and agent
//! loop over memory whose every access is model-checked.

use loom::thread;
use wave_core::agent::{Agent, Step};
use wave_core::clock::Nanos;
use wave_core::control::HostControl;
use wave_core::host::{Context, HostCore, Mechanism, Next};
use wave_core::layout::{Config, Layout, write_header};
use wave_core::link::{Doorbell, Home, Mapping, Window};
use wave_core::message::{Decision, Message, Sequence, Subject};
use wave_core::outcome::{Code, Outcome};
use wave_core::park::ParkWord;
use wave_core::policy::{Choice, Desk, Policy, Progress};
use wave_core::queue::{Consumer, Producer, PushError, Ring, Tag};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_core_testing::loom::{Bell, LoomPort, check, port};

/// Payloads are seen whole with their lap word, and an entry is overwritten only after it was
/// consumed.
#[test]
fn a_tiny_ring_hands_over_whole_entries() {
    check(Some(3), || {
        let ring = Ring { first: 0, entries: 4, credit: 4 };
        let words = (0..4).flat_map(|line| [(0u8, line, 0), (0, line, 1), (0, line, 7)]);
        let port = port(words.chain([(0, 4, 0)]));
        let (source, sink) = (port.nic.clone(), port.nic);
        const COUNT: u64 = 6;
        let producer = thread::spawn(move || {
            let mut producer = Producer::new(ring, Mapping::WriteBack);
            for index in 1..=COUNT {
                loop {
                    match producer.push(&source, Tag::default(), &[index, index * 10]) {
                        Ok(()) => break,
                        Err(PushError::Full(_)) => thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
        let mut consumer = Consumer::new(ring, Mapping::WriteBack);
        for index in 1..=COUNT {
            let entry = loop {
                match consumer.pop(&sink).unwrap() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry.words(), [index, index * 10]);
        }
        producer.join().unwrap();
    });
}

/// Runs every decision once.
struct Anything;

impl Mechanism for Anything {
    type Work = ();
    fn apply(&mut self, _decision: &Decision) -> Result<(), Code> {
        Ok(())
    }
}

/// Places each thread that becomes known, on a core that asks or else on any core with room.
struct Next1(Vec<Choice>);

impl Policy for Next1 {
    fn name(&self) -> &'static str {
        "next"
    }
    fn on_message(&mut self, _now: Nanos, message: &Message) {
        if message.kind == 1 {
            let Message { subject, sequence, .. } = *message;
            self.0.push(Choice { kind: 1, subject, sequence, argument: 0 });
        }
    }
    fn on_outcome(&mut self, _now: Nanos, _core: u16, _decision: &Decision, _outcome: Outcome) {}
    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        while let Some(core) = desk.asking().or_else(|| desk.open()) {
            let Some(choice) = self.0.pop() else { break };
            desk.stage(core, choice);
        }
        Progress::Done
    }
    fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
        for record in &snapshot.records {
            if record.state == State::Runnable {
                let Record { subject, sequence, .. } = *record;
                self.0.push(Choice { kind: 1, subject, sequence, argument: 0 });
            }
        }
    }
}

type LoomAgent = Agent<Next1, (), LoomPort, Bell>;

/// An attached agent and its host of one core.
struct Met {
    layout: Layout,
    port: LoomPort,
    bells: Vec<Bell>,
    agent: LoomAgent,
}

/// `runnable`: a thread waits, and the agent learns of it at its next step.
fn meet(core_asks: bool, runnable: bool) -> Met {
    let mut config = Config::coherent(1);
    (config.messages.entries, config.decisions.entries) = (4, 4);
    (config.subjects, config.spin, config.prestage) = (1, Nanos(0), 1);
    let layout = Layout::new(config).unwrap();
    let ring = |ring: Ring, home: Home| {
        let words = (ring.first..ring.first + 2)
            .flat_map(move |line| [0, 1, 2, 7].map(|word| (home as u8, line, word)));
        words.chain([(home as u8, ring.credit, 0)])
    };
    let nic = Home::Nic as u8;
    let raced = ring(layout.messages[0].ring, Home::Nic)
        .chain(ring(layout.messages[1].ring, Home::Nic))
        .chain(ring(layout.decisions[0].ring, Home::Nic))
        .chain([(nic, layout.core_status, 0), (Home::Host as u8, layout.agent_parked, 0)]);
    let port = port(raced);
    write_header(&layout, &port.nic);
    let bells: Vec<Bell> = (0..layout.doorbells()).map(|_| Bell::default()).collect();
    let policy = Next1(Vec::new());
    let mut agent = Agent::new(layout.clone(), port.clone(), bells.clone(), policy, ());
    agent.announce();
    let mut control = HostControl::new(&layout);
    let cores = [CoreRecord { asks: core_asks, ..CoreRecord::default() }];
    let record = Record {
        subject: Subject { id: 0, generation: 1 },
        sequence: Sequence(1),
        state: if runnable { State::Runnable } else { State::Blocked },
        core: 0,
        class: 0,
    };
    control.send_snapshot(&port, &cores, [record].into_iter());
    if !runnable {
        assert_eq!(agent.step(Nanos(0)), Ok(Step::Progress));
        assert!(matches!(agent.step(Nanos(0)), Ok(Step::Idle(_))));
        assert_eq!(agent.brain().is_quiet(), core_asks);
    }
    Met { layout, port, bells, agent }
}

/// Runs an agent's thread, until `done`.
fn agent_loop(mut agent: LoomAgent, bell: &Bell, mut done: impl FnMut(&LoomAgent) -> bool) {
    while !done(&agent) {
        if agent.step(Nanos(0)).unwrap() == Step::Progress {
            continue;
        }
        if !agent.prepare_park() {
            thread::yield_now();
            continue;
        }
        if agent.step(Nanos(0)).unwrap() != Step::Progress {
            bell.wait();
        }
        agent.unpark();
    }
}

fn core_loop(core: &mut HostCore, port: &LoomPort, bell: &Bell, agent_bell: &Bell) {
    loop {
        let next = core.poll(port, Nanos(0), &mut Anything);
        if core.take_signals().ring_agent() {
            agent_bell.ring();
        }
        match next {
            Next::Run(()) => return,
            Next::Spin => thread::yield_now(),
            Next::Park => bell.wait(),
        }
    }
}

/// The park handshake alone, for either sleeper: the sleeper sees each of two sent words before it sleeps, or is rung.
#[test]
fn a_sleeper_sees_what_was_sent_or_is_rung() {
    let words: [fn(&Layout) -> ParkWord; 2] =
        [|layout| ParkWord::of_core(layout, 0), ParkWord::of_agent];
    for word in words {
        check(Some(3), move || {
            let layout = Layout::new(Config::coherent(1)).unwrap();
            let nic = Home::Nic as u8;
            let sent = layout.decisions[0].ring.first;
            let port = port(
                [
                    (nic, sent, 0),
                    (nic, layout.core_status, 0),
                    (Home::Host as u8, layout.agent_parked, 0),
                ]
                .into_iter(),
            );
            let (park, bell) = (word(&layout), Bell::default());
            let (theirs, ring) = (port.clone(), bell.clone());
            let waker = thread::spawn(move || {
                for word in 1..=2 {
                    theirs.nic.store(sent, 0, word);
                    theirs.nic.fence();
                    if park.is_parked(&theirs) {
                        ring.ring();
                    }
                }
            });
            let mut seen = 0;
            while seen < 2 {
                park.park(&port);
                let found = port.nic.load(sent, 0);
                if found == seen {
                    bell.wait();
                }
                park.unpark(&port);
                seen = port.nic.load(sent, 0);
            }
            waker.join().unwrap();
        });
    }
}

/// A core that asks finds its slot empty and goes to sleep, while the agent fills it.
#[test]
fn a_core_that_parks_gets_a_decision_staged_meanwhile() {
    check(None, || {
        let Met { layout, port, bells, mut agent } = meet(true, true);
        let (core_bell, agent_bell) = (bells[0].clone(), bells[2].clone());
        let host = thread::spawn(move || {
            let mut core = HostCore::new(&layout, 0, 0, true);
            core_loop(&mut core, &port, &core_bell, &agent_bell);
        });
        agent.step(Nanos(0)).unwrap();
        assert_eq!(agent.counts().0, 1);
        host.join().unwrap();
    });
}

/// A core ends its run and goes to sleep while a decision is prestaged without a kick.
#[test]
fn a_core_that_parks_with_a_prestaged_decision_is_kicked() {
    check(Some(4), || {
        let Met { layout, port, bells, agent } = meet(false, true);
        let (core_bell, agent_bell) = (bells[0].clone(), bells[2].clone());
        let host = thread::spawn(move || {
            let mut core = HostCore::new(&layout, 0, 0, true);
            core.runs_already();
            core.hold(Message {
                kind: 3,
                subject: Subject { id: 0, generation: 1 },
                sequence: Sequence(2),
                argument: 0,
                payload: [0; 3],
            });
            core_loop(&mut core, &port, &core_bell, &agent_bell);
            agent_bell.ring();
        });
        // Until the agent knows that the decision was committed.
        agent_loop(agent, &bells[2], |agent| {
            let cores = agent.brain().cores();
            agent.counts().0 == 1 && cores.run(0) == 1
        });
        host.join().unwrap();
    });
}

/// An agent goes to sleep while a thread outside the cores sends it work.
#[test]
fn an_agent_that_parks_gets_a_message_sent_meanwhile_from_outside() {
    check(None, || {
        let Met { layout, port, bells, agent } = meet(true, false);
        let agent_bell = bells[2].clone();
        let outside = thread::spawn(move || {
            let mut context = Context::new(&layout, &layout.messages[1]);
            context.send(
                &port,
                &Message {
                    kind: 1,
                    subject: Subject { id: 0, generation: 1 },
                    sequence: Sequence(2),
                    argument: 0,
                    payload: [0; 3],
                },
            );
            if context.take_signals().ring_agent() {
                agent_bell.ring();
            }
        });
        agent_loop(agent, &bells[2], |agent| agent.counts().0 == 1);
        outside.join().unwrap();
    });
}
