//! Properties of every policy, under random events, around the small host of `model/`.
//!
//! `WAVE_SEED=n` replays one seed, `WAVE_SEEDS=n` runs the first n.

mod model;

use model::{Shape, World};
use rand::Rng;
use rand_pcg::Pcg32;
use wave_core::brain::Brain;
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Message, Sequence, Subject, TxnId, Upstream};
use wave_core::note::Request;
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::Decisions;
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_core_testing::{Replay, seeds};
use wave_sched::policies;
use wave_sched::policies::NAMES;
use wave_sched::wire::{Event, Kind};

/// Settings that exercise every rule of a policy.
const BUSY: [&str; 7] = [
    "shinjuku:slice_us=5",
    "multi-queue:slice_us=3,slo_us=10/40/500",
    "edf:deadline_us=20/400/9000",
    "vm:quantum_ms=2..4,latency_ms=6,weight=1/3/5",
    "shinjuku:slice_us=5,timer=core",
    "multi-queue:timer=core,slo_us=10/40/500",
    "round-robin:quantum_us=9,timer=core",
];

#[test]
fn no_thread_is_decided_twice_or_forgotten() {
    let seeds = seeds(300);
    let many = seeds.end - seeds.start >= 300;
    for policy in NAMES.iter().chain(&BUSY) {
        let (mut commits, mut preemptions, mut slices) = (0, 0, 0);
        for seed in seeds.clone() {
            let _replay = Replay(seed, "-p wave-sched --test policies");
            let shape = Shape::random(&mut wave_core_testing::rng(seed));
            println!("{seed}: {policy} {shape:?}");
            let mut world = World::new(policy, seed, shape);
            world.busy(2000);
            world.fair(300);
            world.finish();
            commits += world.commits;
            preemptions += world.preemptions;
            slices += world.slices;
        }
        println!("{policy}: {commits} commits, {preemptions} preemptions, {slices} slices");
        // A model without activity would find nothing.
        assert!(!many || commits > 10_000, "{policy} ran {commits} threads");
        let by_core = policy.contains("timer=core");
        assert!(
            !many || *policy == "fifo" || by_core || preemptions > 100,
            "{policy}: {preemptions} runs were preempted"
        );
        // The agent still ends runs known from a snapshot.
        assert!(
            !by_core || preemptions < slices,
            "{policy}: the agent ended {preemptions} runs too"
        );
        assert!(!many || by_core == (slices > 100), "{policy}: cores ended {slices} runs");
    }
}

/// Threads that await requests: each thread with a request runs, although messages overtake each other or get lost.
#[test]
fn no_request_is_forgotten() {
    let seeds = seeds(300);
    let many = seeds.end - seeds.start >= 300;
    for policy in NAMES.iter().chain(&BUSY) {
        let (mut commits, mut awaited) = (0, 0);
        for seed in seeds.clone() {
            let _replay = Replay(seed, "-p wave-sched --test policies");
            let shape =
                Shape { requests: true, ..Shape::random(&mut wave_core_testing::rng(seed)) };
            println!("{seed}: {policy} {shape:?}");
            let mut world = World::new(policy, seed, shape);
            world.busy(2000);
            world.fair(300);
            world.finish();
            commits += world.commits;
            awaited += world.awaited;
        }
        println!("{policy}: {commits} commits, {awaited} threads awaited requests");
        assert!(!many || commits.min(awaited) > 10_000, "{policy}: {commits}, {awaited}");
    }
}

/// A thread that awaits is not run for nothing; a policy that ignores notes would run it.
#[test]
fn a_thread_without_requests_is_not_run() {
    for policy in NAMES.iter().chain(&BUSY) {
        let config = Config { subjects: 2, ..Config::coherent(1) };
        let mut brain = Brain::new(&config, policies::by_name(policy, &config).unwrap(), ());
        let thread = Subject { id: 1, generation: 1 };
        let asks = CoreRecord { asks: true, ..CoreRecord::default() };
        brain.on_snapshot(Nanos(0), &Snapshot { records: vec![], cores: vec![asks] });
        let hears = |brain: &mut Brain<_>, kind, sequence, outcome| {
            let (sequence, ran) = (Sequence(sequence), Nanos(1));
            let event = Event { kind, thread, sequence, core: 0, class: 0, ran };
            let message = Some(event.to_message());
            let entry = Upstream { message, outcome, asks: kind == Kind::Awaits };
            brain.on_entry(Nanos(0), if entry.asks { 0 } else { 1 }, &entry);
        };
        let mut now = 0;
        let mut decided = |brain: &mut Brain<_>| {
            let mut out = Decisions::default();
            now += 100_000_000;
            brain.decide(Nanos(now), 8, &mut out);
            out.staged.first().map(|(_, decision)| decision.txn)
        };
        hears(&mut brain, Kind::New, 1, None);
        let runs = |brain: &mut Brain<_>, txn, run| {
            let outcome = Some(Outcome { txn, code: Code::Complete, run });
            brain.on_entry(Nanos(0), 0, &Upstream { message: None, outcome, asks: false });
        };
        let txn = decided(&mut brain).unwrap();
        runs(&mut brain, txn, 1);
        let note = Request { thread, class: 1, slo: None }.to_note();
        brain.on_note(Nanos(0), &note);
        hears(&mut brain, Kind::Awaits, 2, None);
        let txn =
            decided(&mut brain).expect("the note came before, and may announce a newer request");
        runs(&mut brain, txn, 2);
        hears(&mut brain, Kind::Awaits, 3, None);
        assert_eq!(decided(&mut brain), None, "{policy}");
        brain.on_note(
            Nanos(0),
            &Request {
                thread: Subject { generation: 2, ..thread },
                ..Request::from_note(&note).unwrap()
            }
            .to_note(),
        );
        assert_eq!(decided(&mut brain), None, "{policy}: the note was for another generation");
        brain.on_note(Nanos(0), &note);
        assert!(decided(&mut brain).is_some(), "{policy}");
    }
}

#[test]
fn no_thread_starves() {
    for policy in NAMES.iter().chain(&BUSY) {
        for seed in seeds(10) {
            let _replay = Replay(seed, "-p wave-sched --test policies");
            let shape = Shape {
                cores: 2,
                subjects: 12,
                ..Shape::random(&mut wave_core_testing::rng(seed))
            };
            println!("{seed}: {policy} {shape:?}");
            let mut world = World::new(policy, seed, shape);
            world.busy(2000);
            world.fair(50_000);
        }
    }
}

/// A number at the edge of its field in a message, or a small one.
fn number(rng: &mut Pcg32) -> u64 {
    match rng.random_range(0..8) {
        0 => u64::MAX - rng.random_range(0..2),
        _ => rng.random_range(0..6),
    }
}

fn nonsense(rng: &mut Pcg32, next: &mut [u32]) -> Upstream {
    let id = number(rng) as u32;
    let sequence = match next.get_mut(id as usize).filter(|_| rng.random_range(0..20) > 0) {
        Some(sequence) => {
            *sequence = sequence.wrapping_add(1);
            *sequence
        }
        None => number(rng) as u32,
    };
    let message = Message {
        kind: rng.random_range(1..10),
        subject: Subject { id, generation: number(rng) as u32 },
        sequence: Sequence(sequence),
        argument: (number(rng) as u32) << 16 | u32::from(number(rng) as u16),
        payload: [number(rng), 0, 0],
    };
    let code = Code::ALL[rng.random_range(0..Code::ALL.len())];
    let code = if rng.random() { Code::Complete } else { code };
    let outcome =
        Outcome { txn: TxnId::new(rng.random_range(0..200)), code, run: number(rng) as u32 };
    Upstream {
        message: rng.random::<bool>().then_some(message),
        outcome: rng.random::<bool>().then_some(outcome),
        asks: rng.random(),
    }
}

fn untrue_snapshot(rng: &mut Pcg32, cores: u16, next: &mut [u32]) -> Snapshot {
    let record = |_| {
        let id = number(rng) as u32;
        let sequence = number(rng) as u32;
        if let Some(next) = next.get_mut(id as usize) {
            *next = sequence;
        }
        Record {
            subject: Subject { id, generation: number(rng) as u32 },
            sequence: Sequence(sequence),
            state: State::from_number(rng.random_range(0..4)).unwrap(),
            core: number(rng) as u16,
            class: number(rng) as u16,
        }
    };
    let records = (0..6).map(record).collect();
    let core = |_| CoreRecord {
        run: number(rng) as u32,
        txn: TxnId::new(rng.random_range(0..200)),
        asks: rng.random(),
    };
    Snapshot { records, cores: (0..cores).map(core).collect() }
}

/// A host that sends arbitrary messages: the policy neither panics nor decides without end.
#[test]
fn a_lying_host_harms_no_policy() {
    for policy in NAMES.iter().chain(&BUSY) {
        for seed in seeds(100) {
            let _replay = Replay(seed, "-p wave-sched --test policies");
            let mut rng = wave_core_testing::rng(seed);
            let (cores, prestage) = (rng.random_range(1..=3), rng.random_range(0..=2));
            let config = Config { subjects: 4, prestage, ..Config::coherent(cores) };
            let made = policies::by_name(policy, &config).unwrap();
            let mut brain = Brain::new(&config, made, ());
            let (mut now, mut next) = (Nanos(0), [0; 4]);
            for _ in 0..2000 {
                now = now + Nanos(number(&mut rng).min(1_000_000_000));
                if rng.random_range(0..30) == 0 {
                    brain.on_snapshot(now, &untrue_snapshot(&mut rng, cores, &mut next));
                }
                let context = rng.random_range(0..=cores);
                brain.on_entry(now, context, &nonsense(&mut rng, &mut next));
                let thread =
                    Subject { id: number(&mut rng) as u32, generation: number(&mut rng) as u32 };
                let slo = rng.random::<bool>().then(|| Nanos(number(&mut rng)));
                let class = number(&mut rng) as u8;
                brain.on_note(now, &Request { thread, class, slo }.to_note());
                let mut out = Decisions::default();
                brain.decide(now, 8, &mut out);
                assert!(out.staged.len() <= 8 && out.preemptions.len() <= 8);
            }
        }
    }
}
