//! A peer that writes anything at any time: no side panics, nothing is committed that the table does
//! not allow, and the error or the signal names the side at fault.

use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::agent::{Agent, AgentError, Step};
use wave_core::clock::Nanos;
use wave_core::control::{AgentState, HostControl};
use wave_core::host::{HostCore, Mechanism, Next};
use wave_core::layout::{
    AGENT_READY, CONFIG_WORDS, Config, HeaderError, Layout, MAGIC, PROTOCOL_VERSION, PoolConfig,
    PoolScope, read_header, write_header,
};
use wave_core::link::{Home, LINE_WORDS, Port, Side, Transport};
use wave_core::message::{
    Decision, KIND_CORE, KIND_EXTENT_RETURNED, KIND_RESYNC, KIND_SNAPSHOT, Message, Sequence,
    Subject, TxnId, Upstream,
};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Choice, Desk, Policy, Progress};
use wave_core::queue::{Entry, Ring, Tag};
use wave_core::snapshot::{self, CoreRecord, Snapshot, State};
use wave_core_testing::nasty::{Bell, Link};
use wave_core_testing::{Replay, SHAPES, seeds, shape};

/// A word that is likely to have a meaning somewhere in the protocol, or a random one.
fn word(rng: &mut Pcg32) -> u64 {
    match rng.random_range(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.random_range(0..64),
        3 => rng.random_range(0..16),
        4 => (rng.random_range(0..6u64)) << 32 | rng.random_range(0..4u64),
        5 => MAGIC,
        _ => rng.random(),
    }
}

/// An entry that will be read: the right lap, everything else arbitrary.
fn entry(rng: &mut Pcg32, link: &Link, home: Home, ring: &Ring, index: u64) {
    let lap = index / u64::from(ring.entries) + 1;
    let kind = match rng.random_range(0..3) {
        0 => rng.random_range(0..8),
        1 => u64::from(KIND_CORE) + rng.random_range(0..5),
        _ => rng.random_range(0..0x1_0000),
    };
    let flags = if rng.random() { rng.random_range(0..4) } else { rng.random_range(0..256) };
    let words = if rng.random_range(0..8) == 0 {
        rng.random_range(0..256)
    } else {
        [1, 3, 5, 6][rng.random_range(0..4)]
    };
    let line = ring.first + (index % u64::from(ring.entries)) as u32;
    for at in 0..LINE_WORDS - 1 {
        link.poke(home, line, at, word(rng));
    }
    link.poke(home, line, LINE_WORDS - 1, lap << 32 | kind << 16 | flags << 8 | words);
}

/// One thread, which runs at most once per sequence.
struct OneThread {
    sequence: u32,
    running: bool,
}

const THREAD: Subject = Subject { id: 3, generation: 2 };

impl Mechanism for OneThread {
    type Work = ();

    fn apply(&mut self, decision: &Decision) -> Result<(), Code> {
        if decision.subject != THREAD {
            return Err(Code::TargetNotFound);
        }
        if decision.sequence != Sequence(self.sequence) {
            return Err(Code::TargetStale);
        }
        if self.running {
            return Err(Code::TargetOnCpu);
        }
        self.running = true;
        Ok(())
    }
}

fn layout(name: &str, cores: u16) -> Layout {
    let (messages, decisions) = shape(name, 8, 8);
    let config =
        Config { messages, decisions, subjects: 4, spin: Nanos(0), ..Config::coherent(cores) };
    Layout::new(config).unwrap()
}

#[test]
fn a_hostile_agent_harms_nobody() {
    let (mut faults, mut commits, mut busy) = (0, 0, 0u64);
    let seeds = seeds(1500);
    let many = seeds.end - seeds.start >= 1500;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-core --test hostile a_hostile_agent");
        let mut rng = wave_core_testing::rng(seed);
        let name = SHAPES[rng.random_range(0..SHAPES.len())];
        let layout = layout(name, 1);
        let link = Link::new(&layout, name == "coherent", seed);
        let port = link.port(Side::Host, &layout);
        let control_port = link.port(Side::Host, &layout);
        write_header(&layout, port.window(Home::Nic));
        let mut core = HostCore::new(&layout, 0, 0, rng.random());
        let mut control = HostControl::new(&layout);
        let mut table = OneThread { sequence: 1, running: false };
        let (mut decided, mut asked) = (0u64, 0u64);
        for now in 0..150 {
            match rng.random_range(0..8) {
                // All that the agent can write: its queues, credits, and any other word of the window.
                0 | 1 => {
                    let place = &layout.decisions[0];
                    entry(&mut rng, &link, place.home, &place.ring, decided);
                    decided += 1;
                    // Now and then a valid one, to check that valid decisions are committed at all.
                    if rng.random_range(0..4) == 0 {
                        let decision = Decision {
                            kind: 1,
                            subject: THREAD,
                            sequence: Sequence(table.sequence),
                            txn: TxnId::new(rng.random()),
                            flags: 0,
                            argument: 0,
                        };
                        let index = decided - 1;
                        let line = place.ring.first + (index % 8) as u32;
                        let lap = index / 8 + 1;
                        let (tag, words) = decision.encode();
                        for (at, word) in words.iter().enumerate() {
                            link.poke(place.home, line, at, *word);
                        }
                        link.poke(place.home, line, 7, lap << 32 | u64::from(tag.kind) << 16 | 3);
                    }
                }
                2 => {
                    let place = &layout.control;
                    entry(&mut rng, &link, place.home, &place.ring, asked);
                    asked += 1;
                }
                3 => {
                    let home = if rng.random() { Home::Nic } else { Home::Host };
                    let line = rng.random_range(0..link.lines(home));
                    link.poke(home, line, rng.random_range(0..LINE_WORDS), word(&mut rng));
                }
                4 if table.running => {
                    // The thread blocks and is woken.
                    table.running = false;
                    table.sequence += 2;
                    core.prefetch(&port);
                    core.hold(Message {
                        kind: 3,
                        subject: THREAD,
                        sequence: Sequence(table.sequence),
                        argument: 0,
                        payload: [0; 3],
                    });
                }
                5 => {
                    let requests = control.poll(&control_port);
                    faults += u64::from(requests.fault);
                    let _ = control.agent_state(&control_port);
                    let records = std::iter::empty();
                    control.send_snapshot(&control_port, &[core.record()], records);
                }
                _ if !table.running => {
                    let before = table.running;
                    let next = core.poll(&port, Nanos(now), &mut table);
                    commits += u64::from(matches!(next, Next::Run(())));
                    assert_eq!(matches!(next, Next::Run(())), table.running && !before);
                    faults += u64::from(core.take_signals().fault());
                }
                _ => {
                    let _ = core.preempt_requested(&port);
                }
            }
            link.tick();
        }
        busy += core.counts().iter().map(|(_, count)| count).sum::<u64>();
    }
    assert!(
        !many || (faults > 1000 && commits > 1000 && busy > 10_000),
        "{faults} {commits} {busy}"
    );
}

/// Returning an extent that was never lent, or returning it twice, is the agent's fault; so is a kind
/// that no agent sends. An honest request is not.
#[test]
fn the_control_context_tells_honest_from_hostile() {
    let layout = layout("coherent", 1);
    let link = Link::new(&layout, true, 1);
    let port = link.port(Side::Host, &layout);
    let mut control = HostControl::new(&layout);
    let mut index = 0;
    let mut ask = |control: &mut HostControl, kind: u16, words: &[u64]| {
        let ring = &layout.control.ring;
        let line = ring.first + index;
        for (at, word) in words.iter().enumerate() {
            link.poke(Home::Nic, line, at, *word);
        }
        link.poke(Home::Nic, line, 7, 1 << 32 | u64::from(kind) << 16 | words.len() as u64);
        index += 1;
        control.poll(&port)
    };
    let requests = ask(&mut control, KIND_RESYNC, &[0]);
    assert!(requests.resync && !requests.fault);
    assert!(control.send_snapshot(&port, &[CoreRecord::default()], std::iter::empty()));
    let lent = Subject { id: 0, generation: 1 }.to_word();
    assert!(!ask(&mut control, KIND_EXTENT_RETURNED, &[lent]).fault);
    assert!(ask(&mut control, KIND_EXTENT_RETURNED, &[lent]).fault, "returned twice");
    assert!(ask(&mut control, KIND_EXTENT_RETURNED, &[u64::MAX]).fault);
    assert!(ask(&mut control, KIND_RESYNC, &[0, 0]).fault);
    assert!(ask(&mut control, 1, &[0]).fault);
    assert!(!control.poll(&port).fault);
    assert_eq!(control.agent_state(&port), AgentState::Absent);
    let other = AGENT_READY | u64::from(PROTOCOL_VERSION + 1);
    link.poke(Home::Nic, layout.agent, 0, other);
    assert_eq!(control.agent_state(&port), AgentState::OtherVersion(PROTOCOL_VERSION + 1));
}

/// Trusts every input, and decides as often as it may.
struct Gullible(Vec<Choice>);

impl Policy for Gullible {
    fn name(&self) -> &'static str {
        "gullible"
    }
    fn on_message(&mut self, _now: Nanos, message: &Message) {
        let Message { kind, subject, sequence, .. } = *message;
        self.0.push(Choice { kind, subject, sequence, argument: 0 });
    }
    fn on_outcome(&mut self, _now: Nanos, _core: u16, _decision: &Decision, _outcome: Outcome) {}
    fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
        while let Some(core) = desk.asking().or_else(|| desk.open()) {
            let Some(choice) = self.0.pop() else { return Progress::Done };
            desk.stage(core, choice);
        }
        Progress::Done
    }
    fn resync(&mut self, _now: Nanos, _snapshot: &Snapshot) {
        self.0.clear();
    }
}

#[test]
fn a_hostile_host_only_ends_the_agent() {
    let (mut errors, mut scribbled_out, mut decided) = (0, 0, 0);
    let seeds = seeds(3000);
    let many = seeds.end - seeds.start >= 3000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-core --test hostile a_hostile_host");
        let mut rng = wave_core_testing::rng(seed);
        let name = SHAPES[rng.random_range(0..SHAPES.len())];
        let layout = layout(name, 2);
        let link = Link::new(&layout, name == "coherent", seed);
        let host = link.port(Side::Host, &layout);
        write_header(&layout, host.window(Home::Nic));
        link.settle();
        let mut control = HostControl::new(&layout);
        let bells = vec![Bell::default(); layout.doorbells()];
        let port = link.port(Side::Agent, &layout);
        let mut agent = Agent::new(layout.clone(), port, bells, Gullible(Vec::new()), ());
        agent.announce();
        let cores = [CoreRecord { asks: true, ..CoreRecord::default() }; 2];
        control.send_snapshot(&host, &cores, std::iter::empty());
        link.settle();
        let mut pushed = vec![0u64; layout.messages.len()];
        pushed[layout.control_context()] = 1;
        // Half of the hosts write nothing but entries; the others scribble.
        let scribbles = rng.random();
        for now in 0..200u64 {
            match rng.random_range(0..6) {
                0..=2 => {
                    let context = rng.random_range(0..layout.messages.len());
                    let place = &layout.messages[context];
                    let index = pushed[context];
                    entry(&mut rng, &link, place.home, &place.ring, index);
                    pushed[context] += 1;
                    // Mostly well-formed ones, so that the agent lives to see the next.
                    if rng.random_range(0..64) != 0 {
                        let line = place.ring.first + (index % 8) as u32;
                        let lap = index / 8 + 1;
                        let outcome = Outcome {
                            txn: TxnId::new(rng.random_range(0..8)),
                            code: Code::ALL[rng.random_range(0..Code::ALL.len())],
                            run: rng.random(),
                        };
                        link.poke(place.home, line, 5, outcome.to_word());
                        let flags = rng.random_range(2..4u64);
                        link.poke(place.home, line, 7, lap << 32 | 1 << 16 | flags << 8 | 6);
                    }
                }
                3 if scribbles => {
                    let home = if rng.random() { Home::Nic } else { Home::Host };
                    let line = rng.random_range(0..link.lines(home));
                    link.poke(home, line, rng.random_range(0..LINE_WORDS), word(&mut rng));
                }
                _ => match agent.step(Nanos(now * 100_000)) {
                    Ok(Step::Revoked) => break,
                    Ok(_) => {
                        if rng.random_range(0..4) == 0 && agent.prepare_park() {
                            agent.unpark();
                        }
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("peer's fault"), "{error}");
                        errors += 1;
                        scribbled_out += u32::from(matches!(error, AgentError::Incarnation(_)));
                        break;
                    }
                },
            }
            link.tick();
        }
        decided += agent.counts().0;
    }
    assert!(
        !many || (errors > 500 && scribbled_out > 0 && decided > 1000),
        "{errors} {scribbled_out} {decided}"
    );
}

#[test]
fn any_header_is_read_or_refused_by_name() {
    let (mut accepted, mut with_pools) = (0, 0);
    let seeds = seeds(30_000);
    let many = seeds.end - seeds.start >= 30_000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-core --test hostile any_header");
        let mut rng = wave_core_testing::rng(seed);
        let mut config = layout(SHAPES[rng.random_range(0..SHAPES.len())], 2).config;
        if rng.random() {
            let mut pool = |producer, scope| PoolConfig {
                producer,
                scope,
                extents: rng.random_range(1..4),
                lines: 2,
                transport: Transport::DmaAsync,
                inline_max: 100,
            };
            config.pools = [
                pool(Side::Host, PoolScope::Window),
                pool(Side::Host, PoolScope::Core),
                pool(Side::Agent, PoolScope::Core),
                PoolConfig::NONE,
            ];
        }
        let layout = Layout::new(config).unwrap();
        let link = Link::new(&layout, true, seed);
        let port = link.port_with(Side::Agent, &[]);
        let nic = port.window(Home::Nic);
        write_header(&layout, nic);
        link.settle();
        let (mut nic_lines, mut host_lines) = (layout.nic_lines, layout.host_lines);
        for _ in 0..rng.random_range(0..3) {
            match rng.random_range(0..6) {
                0 => nic_lines = rng.random_range(0..=nic_lines),
                1 => host_lines = rng.random_range(0..=host_lines),
                _ => {
                    let at = rng.random_range(0..2 + CONFIG_WORDS as u32);
                    let old = link.peek(Home::Nic, at / 8, at as usize % 8);
                    let value = match rng.random_range(0..3) {
                        0 => word(&mut rng),
                        1 => old ^ 1 << rng.random_range(0..64),
                        _ => old.wrapping_add(rng.random_range(0..3)).wrapping_sub(1),
                    };
                    link.poke(Home::Nic, at / 8, at as usize % 8, value);
                }
            }
        }
        match read_header(nic, nic_lines, host_lines) {
            Ok(read) => {
                assert!(read.nic_lines <= nic_lines && read.host_lines <= host_lines);
                assert_eq!(Layout::new(read.config).unwrap().nic_lines, read.nic_lines);
                accepted += 1;
                with_pools += u32::from(read.pools.iter().any(|places| !places.is_empty()));
            }
            Err(HeaderError::Version { host, agent }) => {
                let text = HeaderError::Version { host, agent }.to_string();
                assert!(text.contains(&host.to_string()) && text.contains(&agent.to_string()));
            }
            Err(error) => assert!(error.to_string().starts_with("peer's fault"), "{error}"),
        }
    }
    assert!(!many || (1000..29_000).contains(&accepted), "{accepted}");
    assert!(!many || with_pools > 1000, "{with_pools}");
}

#[test]
fn any_snapshot_is_read_or_refused_by_name() {
    let (mut accepted, mut refused) = (0, 0);
    let seeds = seeds(20_000);
    let many = seeds.end - seeds.start >= 20_000;
    for seed in seeds {
        let _replay = Replay(seed, "-p wave-core --test hostile any_snapshot");
        let mut rng = wave_core_testing::rng(seed);
        let layout = layout("coherent", 2);
        let link = Link::new(&layout, true, seed);
        let port = link.port(Side::Agent, &layout);
        let pool = &layout.snapshots;
        for line in pool.target..pool.target + pool.lines * pool.extents {
            for at in 0..LINE_WORDS {
                // A record's second word: core, state, sequence.
                let state = rng.random_range(0..5u64);
                let value = if rng.random() { state << 32 } else { rng.random_range(0..5) };
                link.poke(
                    Home::Nic,
                    line,
                    at,
                    if rng.random_range(0..40) == 0 { word(&mut rng) } else { value },
                );
            }
        }
        let extent = rng.random_range(0..3);
        if extent < 2 && rng.random_range(0..4) != 0 {
            let line = pool.target + extent * pool.lines;
            link.poke(Home::Nic, line, 0, rng.random_range(0..=5));
            link.poke(Home::Nic, line, 1, 2);
        }
        match snapshot::read(&port, &layout.config, pool, extent) {
            Ok(read) => {
                assert!(extent < 2 && read.cores.len() == 2 && read.records.len() <= 4);
                assert!(read.records.iter().all(|record| record.subject.id < 4));
                accepted += 1;
            }
            Err(error) => {
                assert!(error.to_string().starts_with("peer's fault"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(!many || (accepted > 500 && refused > 500), "{accepted} {refused}");
}

#[test]
fn any_entry_is_decoded_or_refused_by_name() {
    let mut rng = wave_core_testing::rng(7);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..100_000 {
        let words: Vec<u64> = (0..rng.random_range(0..=7)).map(|_| word(&mut rng)).collect();
        let kind = if rng.random() { rng.random() } else { KIND_SNAPSHOT - 1 };
        let tag = Tag { kind, flags: rng.random_range(0..8) };
        let entry = Entry::new(tag, &words);
        match Upstream::decode(&entry) {
            Ok(read) => {
                let expected = 5 * usize::from(read.message.is_some());
                assert_eq!(words.len(), expected + usize::from(read.outcome.is_some()));
                good += 1;
            }
            Err(error) => {
                assert!(error.to_string().starts_with("peer's fault"));
                bad += 1;
            }
        }
        match Decision::decode(&entry) {
            Ok(decision) => assert_eq!(decision.encode().0, tag),
            Err(error) => {
                assert!(words.len() != 3 && error.to_string().starts_with("peer's fault"));
            }
        }
    }
    assert!(good > 1000 && bad > 1000);
    let state = State::from_number(4);
    assert_eq!(state, None);
}
