//! Traces of logs, among them one of a FIFO policy under a hand-made host.

use std::collections::BTreeMap;

use serde_json::Value;
use wave_core::brain::{Brain, Recorder};
use wave_core::layout::Config;
use wave_core::log::{LogReader, LogWriter};
use wave_core::message::{Sequence, TxnId};
use wave_core::policy::{Decisions, Preemption};
use wave_core::snapshot::{CoreRecord, Record as SubjectRecord};
use wave_core::subsystem::Subsystem;
use wave_sched::policies;
use wave_sched::wire::{Event, Kind, NO_CORE};

use super::*;

const ALL: Span = Span { from: Nanos(0), until: Nanos::MAX };
const CORES: u16 = 2;

fn header() -> Header {
    let config = Config {
        subsystem: wave_sched::SUBSYSTEM.id,
        subjects: 64,
        prestage: 1,
        ..Config::coherent(CORES)
    };
    Header { config, policy: "fifo".into(), about: "a test".into() }
}

/// The host's state of one thread.
#[derive(Clone, Copy)]
struct Thread {
    sequence: u32,
    runs_on: Option<u16>,
}

/// A host and an agent that take turns every 1,003 ns. Threads run for three turns, then yield or
/// end; every seventh decision is refused.
pub fn log(turns: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let writer = LogWriter::new(&header(), |piece: &[u8]| bytes.extend_from_slice(piece));
    let policy = policies::by_name("fifo", &header().config).unwrap();
    let mut brain = Brain::new(&header().config, policy, writer);
    let mut threads = [Thread { sequence: 1, runs_on: None }; 8];
    let mut runs = [(0_u32, None::<(usize, u64)>); CORES as usize];
    let mut queues: [VecDeque<Decision>; CORES as usize] = Default::default();
    let records = (0..8).map(|id| SubjectRecord {
        subject: Subject { id, generation: 3 },
        sequence: Sequence(1),
        state: State::Runnable,
        core: 0,
        class: 0,
    });
    let cores = vec![CoreRecord { run: 0, txn: TxnId::new(0), asks: true }; CORES.into()];
    brain.on_snapshot(Nanos(5), &Snapshot { records: records.collect(), cores });
    let mut out = Decisions::default();
    for turn in 0..turns {
        let now = Nanos(1_000 + turn * 1_003);
        for core in 0..CORES {
            let (run, running) = &mut runs[usize::from(core)];
            let mut entry = Upstream { message: None, outcome: None, asks: false };
            if let Some((id, since)) = *running
                && turn - since >= 3
            {
                let kind = if id % 2 == 0 { Kind::Yield } else { Kind::Blocked };
                let thread = &mut threads[id];
                (thread.sequence, thread.runs_on, *running) = (thread.sequence + 1, None, None);
                entry.message = Some(event(kind, id, thread.sequence, core).to_message());
            }
            if running.is_none() {
                match queues[usize::from(core)].pop_front() {
                    Some(decision) => {
                        let id = decision.subject.id as usize;
                        let stale = threads[id].sequence != decision.sequence.0;
                        let code = if stale || decision.txn.number() % 7 == 0 {
                            Code::TargetStale
                        } else {
                            (threads[id].runs_on, *running) = (Some(core), Some((id, turn)));
                            *run += 1;
                            Code::Complete
                        };
                        let outcome = Outcome { txn: decision.txn, code, run: *run };
                        entry = Upstream { outcome: Some(outcome), asks: stale, ..entry };
                    }
                    None => entry.asks = true,
                }
            }
            brain.on_entry(now, core, &entry);
        }
        // Blocked threads wake after a while, from outside the cores.
        for id in (1..8).step_by(2).filter(|_| turn % 10 == 9) {
            let thread = &mut threads[id];
            if thread.runs_on.is_none() && thread.sequence % 2 == 0 {
                thread.sequence += 1;
                let message = event(Kind::Wakeup, id, thread.sequence, NO_CORE).to_message();
                let entry = Upstream { message: Some(message), outcome: None, asks: false };
                brain.on_entry(now, CORES, &entry);
            }
        }
        brain.decide(now, 16, &mut out);
        for (core, decision) in out.staged.drain(..) {
            queues[usize::from(core)].push_back(decision);
            brain.recorder_mut().kicked(core);
        }
        // FIFO would not do this; logs of fewer turns still replay identically.
        if turn == 20 {
            brain.recorder_mut().preempted(now, &Preemption { core: 1, run: 4 });
        }
    }
    drop(brain);
    bytes
}

fn event(kind: Kind, id: usize, sequence: u32, core: u16) -> Event {
    let thread = Subject { id: id as u32, generation: 3 };
    Event { kind, thread, sequence: Sequence(sequence), core, class: 0, ran: Nanos(77) }
}

fn trace(log: &[u8], span: Span) -> Vec<Value> {
    trace_as(&wave_sched::SUBSYSTEM, log, span)
}

fn trace_as(subsystem: &Subsystem, log: &[u8], span: Span) -> Vec<Value> {
    let mut reader = LogReader::new(log).unwrap();
    assert_eq!(reader.header().config.subsystem, subsystem.id);
    let mut out = Vec::new();
    let mut trace = Trace::new(reader.header(), subsystem.show, span, &mut out).unwrap();
    let _ = reader.by_ref().all(|record| trace.feed(&record.unwrap()).unwrap());
    let events = trace.finish().unwrap();
    let mut json: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["otherData"]["policy"], reader.header().policy);
    let Value::Array(all) = json["traceEvents"].take() else { panic!("no events") };
    assert_eq!(all.len() as u64, events);
    all
}

fn of<'a>(events: &'a [Value], phase: &str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == phase)
}

/// Slices of every track, as (from, until, name). Fails if one begins within another, or ends
/// without having begun.
fn slices(events: &[Value]) -> BTreeMap<u64, Vec<(f64, f64, String)>> {
    let mut slices: BTreeMap<u64, Vec<(f64, f64, String)>> = BTreeMap::new();
    let mut open: BTreeMap<u64, (f64, String)> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "B" || event["ph"] == "E") {
        let (track, time) = (event["tid"].as_u64().unwrap(), event["ts"].as_f64().unwrap());
        let name = event["name"].as_str().unwrap().to_owned();
        if event["ph"] == "B" {
            let ended = slices.get(&track).and_then(|slices| slices.last());
            assert!(ended.is_none_or(|(_, until, _)| *until <= time), "{event} overlaps {ended:?}");
            assert_eq!(open.insert(track, (time, name)), None, "{event} begins within another");
        } else {
            let (from, begun) = open.remove(&track).expect("an ending slice has begun");
            assert_eq!(begun, name);
            assert!(from <= time, "{event} ends before it began");
            slices.entry(track).or_default().push((from, time, name));
        }
    }
    assert!(open.is_empty(), "{open:?} never end");
    slices
}

#[test]
fn runs_on_a_core_do_not_overlap() {
    let events = trace(&log(200), ALL);
    let slices = slices(&events);
    assert_eq!(slices.len(), usize::from(CORES));
    for (track, slices) in &slices {
        assert!(slices.len() > 20, "core {} ran {} times", track - 1, slices.len());
        // All except the last run lasted three turns.
        for (from, until, name) in &slices[..slices.len() - 1] {
            assert!((until - from - 3.009).abs() < 1e-6, "{name}: {from} to {until}");
            assert!(name.starts_with("thread ") && name.ends_with(" gen 3"), "{name}");
        }
    }
    let why = |event: &Value| event["args"]["ended"].as_str().unwrap().to_owned();
    let ended: Vec<String> = of(&events, "E").map(why).collect();
    assert!(ended.contains(&"YIELD".into()) && ended.contains(&"BLOCKED".into()));
    assert!(!ended.contains(&"not recorded".into()));
}

#[test]
fn tracks_have_the_names_of_cores() {
    let events = trace(&log(1), ALL);
    let named: Vec<&str> = of(&events, "M")
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(named, ["core 0", "core 1", "outside 0", "control 1", "policy fifo"]);
}

#[test]
fn a_decision_is_linked_with_its_outcome() {
    let events = trace(&log(200), ALL);
    let mut open = BTreeMap::new();
    let mut refused = 0;
    for event in events.iter().filter(|event| event["cat"] == "decision") {
        match event["ph"].as_str().unwrap() {
            "b" => assert_eq!(open.insert(event["id"].to_string(), event), None),
            "e" => {
                open.remove(&event["id"].to_string()).expect("an arriving decision was sent");
                refused += u32::from(event["args"]["outcome"] == "TARGET_STALE");
            }
            _ => {}
        }
    }
    assert!(open.is_empty());
    let failures: Vec<&Value> =
        of(&events, "i").filter(|event| event["cat"] == "failure").collect();
    assert_eq!(failures.len(), refused as usize);
    assert!(refused > 3);
    let first = failures[0];
    assert!(first["name"].as_str().unwrap().starts_with("TARGET_STALE thread "), "{first}");
    assert!(first["args"]["reason"].as_str().unwrap().contains("had not seen"), "{first}");
    assert_eq!(first["args"]["txn"], 7);
    let decided = of(&events, "i").filter(|event| event["cat"] == "decision").count();
    assert_eq!(decided, of(&events, "b").count());
}

#[test]
fn messages_kicks_preemptions_and_the_queue_are_shown() {
    let events = trace(&log(200), ALL);
    let instants = |category: &str| {
        of(&events, "i").filter(|event| event["cat"] == category).collect::<Vec<_>>()
    };
    let preemption = instants("preempt");
    assert_eq!(preemption.len(), 1);
    assert_eq!((&preemption[0]["tid"], &preemption[0]["args"]["run"]), (&2.into(), &4.into()));
    assert_eq!(instants("kick").len(), instants("decision").len(), "this host kicks each time");
    let said = |text: &str| {
        instants("message").iter().any(|event| event["name"].as_str().unwrap().starts_with(text))
    };
    for text in ["snapshot", "asks", "YIELD thread ", "BLOCKED thread ", "WAKEUP thread "] {
        assert!(said(text), "{text}");
    }
    let waiting: Vec<u64> =
        of(&events, "C").map(|event| event["args"]["count"].as_u64().unwrap()).collect();
    assert_eq!(waiting[0], 8, "in the snapshot all threads wait");
    assert!(waiting.iter().all(|&count| count <= 8));
    assert!(waiting.windows(2).all(|pair| pair[0] != pair[1]), "written only when it changes");
}

#[test]
fn partial_trace_equals_that_part_of_the_whole() {
    let log = log(200);
    let (whole, span) = (trace(&log, ALL), Span { from: Nanos(100_000), until: Nanos(150_000) });
    let part = trace(&log, span);
    let times = |event: &Value| event["ts"].as_f64().unwrap();
    assert!(
        part.iter()
            .filter(|event| event["ph"] != "M")
            .all(|event| { (100.0..=150.0).contains(&times(event)) })
    );
    let instants = |events: &[Value]| {
        let within = of(events, "i").filter(|event| (100.0..=150.0).contains(&times(event)));
        within.cloned().collect::<Vec<_>>()
    };
    assert_eq!(instants(&part), instants(&whole));
    // Slices are cut at the edges of the span; the last one ends with the last record.
    let (whole, part) = (slices(&whole), slices(&part));
    for (track, part) in part {
        let cut = whole[&track].iter().filter(|(from, until, _)| *until > 100.0 && *from <= 150.0);
        let expected: Vec<_> = cut.map(|(from, _, name)| (from.max(100.0), name)).collect();
        let begun: Vec<_> = part.iter().map(|(from, _, name)| (*from, name)).collect();
        assert_eq!(begun, expected);
    }
}

/// A log of a core that runs thread 0 until `policy`, or the core's own timer, makes it leave after 31 us,
/// and then thread 1.
fn preempted(policy: &str) -> Vec<u8> {
    let config = Config {
        subsystem: wave_sched::SUBSYSTEM.id,
        subjects: 8,
        prestage: 1,
        ..Config::coherent(1)
    };
    let header = Header { config, policy: policy.into(), about: "a test".into() };
    let mut bytes = Vec::new();
    let writer = LogWriter::new(&header, |piece: &[u8]| bytes.extend_from_slice(piece));
    let mut brain = Brain::new(&config, policies::by_name(policy, &config).unwrap(), writer);
    let asks = CoreRecord { run: 0, txn: TxnId::new(0), asks: true };
    brain.on_snapshot(Nanos(5), &Snapshot { records: Vec::new(), cores: vec![asks] });
    let mut out = Decisions::default();
    let mut hear = |ns: u64, context: u16, told: Option<Event>, answers: Option<u32>| {
        let outcome = answers.map(|number| Outcome {
            txn: TxnId::new(number),
            code: Code::Complete,
            run: number,
        });
        let message = told.map(|event| event.to_message());
        brain.on_entry(Nanos(ns), context, &Upstream { message, outcome, asks: false });
        brain.decide(Nanos(ns), 16, &mut out);
    };
    hear(1_000, 1, Some(event(Kind::New, 0, 1, NO_CORE)), None);
    hear(2_000, 0, None, Some(1));
    hear(20_000, 1, Some(event(Kind::New, 1, 1, NO_CORE)), None);
    // No message arrives, but time has passed.
    brain.decide(Nanos(32_100), 16, &mut out);
    let told = event(Kind::Preempt, 0, 2, 0).to_message();
    let outcome = Some(Outcome { txn: TxnId::new(2), code: Code::Complete, run: 2 });
    brain.on_entry(Nanos(33_000), 0, &Upstream { message: Some(told), outcome, asks: false });
    drop(brain);
    bytes
}

#[test]
fn preempted_run_ends_on_its_cores_track_with_the_reason() {
    for (policy, asked, why) in [
        ("shinjuku:slice_us=30", 1, "the agent asked for it 900 ns before it learned of it"),
        ("shinjuku:slice_us=30,timer=core", 0, "its slice of 30000 ns was over"),
        ("fifo", 0, "the host wanted its core"),
    ] {
        let events = trace(&preempted(policy), ALL);
        let requests: Vec<&Value> =
            of(&events, "i").filter(|event| event["cat"] == "preempt").collect();
        assert_eq!(requests.len(), asked, "{policy}");
        for request in requests {
            let place = (&request["tid"], &request["ts"], &request["args"]["run"]);
            assert_eq!(place, (&1.into(), &32.1.into(), &1.into()));
        }
        let ends: Vec<&Value> = of(&events, "E").filter(|event| event["tid"] == 1).collect();
        assert_eq!(
            (&ends[0]["args"]["ended"], &ends[0]["args"]["why"]),
            (&"PREEMPT".into(), &why.into())
        );
        assert_eq!(ends[1]["args"]["why"], Value::Null);
        let ran: Vec<_> = slices(&events).remove(&1).unwrap();
        assert_eq!(ran[0], (2.0, 33.0, "thread 0 gen 3".to_owned()), "{policy}");
        assert_eq!(ran[1].2, "thread 1 gen 3");
    }
}

/// Subjects of the memory subsystem are shown under that subsystem's name for them.
#[test]
fn trace_of_a_memory_log_shows_strips_and_no_threads() {
    let config = wave_memory::serve::config(4);
    let header = Header { config, policy: "sol".into(), about: "a test".into() };
    let mut bytes = Vec::new();
    let writer = LogWriter::new(&header, |piece: &[u8]| bytes.extend_from_slice(piece));
    let policy = wave_memory::policies::by_name("sol", &config).unwrap();
    let mut brain = Brain::new(&config, policy, writer);
    let asks = CoreRecord { run: 0, txn: TxnId::new(0), asks: true };
    brain.on_snapshot(Nanos(5), &Snapshot { records: Vec::new(), cores: vec![asks] });
    let place = wave_memory::wire::Place { space: 77, address: 1 << 30 };
    let strip = wave_memory::wire::Strip {
        strip: Subject { id: 2, generation: 1 },
        sequence: Sequence(1),
        mapped: 0b111,
        void: 0b111,
        huge: 0,
        place,
    };
    let entry = Upstream { message: Some(strip.to_message()), outcome: None, asks: false };
    brain.on_entry(Nanos(10), 1, &entry);
    let mut out = Decisions::default();
    brain.decide(Nanos(20), 16, &mut out);
    assert!(!out.staged.is_empty(), "a new strip is scanned");
    let outcome = Some(Outcome { txn: TxnId::new(1), code: Code::Complete, run: 1 });
    brain.on_entry(Nanos(30), 0, &Upstream { message: None, outcome, asks: false });
    drop(brain);

    let events = trace_as(&wave_memory::SUBSYSTEM, &bytes, ALL);
    let named = |name: &str| events.iter().find(|event| event["name"] == name).unwrap();
    assert_eq!(named("MAPPED strip 2 gen 1")["args"]["process"], 77);
    assert_eq!(named("SCAN strip 2 gen 1 for core 0")["args"]["batches"], 3);
    named("COMPLETE strip 2 gen 1");
    // No thread runs on a core of a memory host.
    assert_eq!(of(&events, "B").count(), 0);
    assert!(events.iter().all(|event| !event["name"].to_string().contains("thread ")));
}

/// The beginning of the log is missing: its runs are of unknown threads, without overlaps.
#[test]
fn outcomes_of_unknown_decisions_are_shown_as_such() {
    let mut records: Vec<Record> = LogReader::new(&log(100)).unwrap().map(Result::unwrap).collect();
    records.retain(|record| !matches!(record.what, What::Decided { core: 0, .. }));
    let mut bytes = Vec::new();
    let mut writer = LogWriter::new(&header(), |piece: &[u8]| bytes.extend_from_slice(piece));
    records.iter().for_each(|record| writer.write(record));
    drop(writer);
    let slices = slices(&trace(&bytes, ALL));
    assert!(slices[&1].iter().all(|(_, _, name)| name == "unknown thread"));
    assert!(slices[&2].iter().all(|(_, _, name)| name != "unknown thread"));
}
