//! A log returns the recorded entries up to where it was cut off; no bytes make its reader panic; and
//! a policy can replay all that the reader returns.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;
use wave_core::brain::{Brain, Input, Recorder};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::log::{BUFFER_BYTES, Ended, Header, LogError, LogReader, LogWriter, Record, What};
use wave_core::message::{Decision, Message, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Choice, Decisions, Desk, Note, Policy, Preemption, Progress};
use wave_core::replay::{Output, Replay};
use wave_core::snapshot::{self, CoreRecord, Snapshot, State};

const CORES: u16 = 3;
const SUBJECTS: u32 = 16;

fn header() -> Header {
    let config = Config { subjects: SUBJECTS, ..Config::pcie(CORES) };
    Header { config, policy: "fifo:a=1,b=2".into(), about: "scenario x, seed 7".into() }
}

/// Bytes that a closure writes and a test reads.
#[derive(Clone, Default)]
struct Bytes(Rc<RefCell<Vec<u8>>>);

impl Bytes {
    fn writer(&self) -> LogWriter<impl FnMut(&[u8]) + use<>> {
        let Bytes(bytes) = self.clone();
        LogWriter::new(&header(), move |piece: &[u8]| bytes.borrow_mut().extend_from_slice(piece))
    }
}

fn written(records: &[Record]) -> Vec<u8> {
    let bytes = Bytes::default();
    let mut writer = bytes.writer();
    records.iter().for_each(|record| writer.write(record));
    drop(writer);
    bytes.0.take()
}

fn subject() -> impl Strategy<Value = Subject> {
    (any::<u32>(), any::<u32>()).prop_map(|(id, generation)| Subject { id, generation })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    (any::<u32>(), prop::sample::select(Code::ALL), any::<u32>())
        .prop_map(|(txn, code, run)| Outcome { txn: TxnId::new(txn), code, run })
}

fn message() -> impl Strategy<Value = Message> {
    (any::<u16>(), subject(), any::<u32>(), any::<u32>(), any::<[u64; 3]>()).prop_map(
        |(kind, subject, sequence, argument, payload)| Message {
            kind,
            subject,
            sequence: Sequence(sequence),
            argument,
            payload,
        },
    )
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    let core = (any::<u32>(), any::<u32>(), any::<bool>())
        .prop_map(|(run, txn, asks)| CoreRecord { run, txn: TxnId::new(txn), asks });
    const STATES: &[State] = &[State::Free, State::Runnable, State::Running, State::Blocked];
    let numbers = (any::<u32>(), any::<u32>(), any::<u16>(), any::<u16>());
    let record = (0..SUBJECTS, prop::sample::select(STATES), numbers).prop_map(
        |(id, state, (generation, sequence, core, class))| snapshot::Record {
            subject: Subject { id, generation },
            sequence: Sequence(sequence),
            state,
            core,
            class,
        },
    );
    (
        prop::collection::vec(record, 0..SUBJECTS as usize),
        prop::collection::vec(core, usize::from(CORES)),
    )
        .prop_map(|(records, cores)| Snapshot { records, cores })
}

fn note() -> impl Strategy<Value = Note> {
    (any::<u16>(), subject(), any::<[u64; 2]>()).prop_map(|(kind, subject, words)| Note {
        kind,
        subject,
        words,
    })
}

fn decision() -> impl Strategy<Value = Decision> {
    let numbers = (any::<u16>(), any::<u32>(), any::<u32>(), any::<u8>(), any::<u64>());
    (subject(), numbers).prop_map(|(subject, (kind, sequence, txn, flags, argument))| Decision {
        kind,
        subject,
        sequence: Sequence(sequence),
        txn: TxnId::new(txn),
        flags,
        argument,
    })
}

fn what() -> impl Strategy<Value = What> {
    let contexts = CORES + header().config.contexts;
    let entry = (0..contexts, prop::option::of(message()), prop::option::of(outcome()));
    prop_oneof![
        4 => (entry, any::<bool>()).prop_map(|((context, message, outcome), asks)| {
            What::Input(Input::Entry { context, entry: Upstream { message, outcome, asks } })
        }),
        1 => snapshot().prop_map(|snapshot| What::Input(Input::Snapshot(snapshot))),
        1 => note().prop_map(|note| What::Input(Input::Note(note))),
        2 => (any::<u32>(), any::<u16>()).prop_map(|(budget, held)| {
            What::Input(Input::Decide { budget: budget as usize, held: held.into() })
        }),
        2 => (0..CORES, decision()).prop_map(|(core, decision)| What::Decided { core, decision }),
        1 => (0..CORES, any::<u32>())
            .prop_map(|(core, run)| What::Preempted(Preemption { core, run })),
        1 => note().prop_map(What::Noted),
        1 => (0..CORES).prop_map(|core| What::Kicked { core }),
    ]
}

/// Records at times that mostly go forwards.
fn records() -> impl Strategy<Value = Vec<Record>> {
    let since = prop_oneof![4 => Just(0), 4 => 0..100_000_u64, 1 => any::<u64>()];
    prop::collection::vec((since, what()), 0..40).prop_map(|records| {
        let mut now = Nanos(0);
        let record = |(since, what)| {
            now = Nanos(now.0.wrapping_add(since));
            Record { now, what }
        };
        records.into_iter().map(record).collect()
    })
}

proptest! {
    #[test]
    fn a_written_log_reads_back(records in records()) {
        let bytes = written(&records);
        let mut reader = LogReader::new(&bytes).unwrap();
        prop_assert_eq!(reader.header(), &header());
        let read: Vec<Record> = reader.by_ref().map(Result::unwrap).collect();
        prop_assert_eq!(&read, &records);
        prop_assert_eq!(reader.ended(), Some(Ended::Whole));
    }

    /// An agent can be killed at any byte.
    #[test]
    fn a_log_that_is_cut_off_reads_up_to_its_last_whole_record(records in records(), cut in any::<prop::sample::Index>()) {
        let bytes = written(&records);
        let bytes = &bytes[..cut.index(bytes.len())];
        match LogReader::new(bytes) {
            Err(error) => prop_assert_eq!(error, LogError::NoHeader { at: bytes.len() }),
            Ok(mut reader) => {
                let read: Vec<Record> = reader.by_ref().map(Result::unwrap).collect();
                prop_assert_eq!(&read[..], &records[..read.len()]);
                let again = written(&read).len();
                let whole = again == bytes.len();
                let ended = if whole { Ended::Whole } else { Ended::Truncated { at: again } };
                prop_assert_eq!(reader.ended(), Some(ended));
            }
        }
    }

    /// Damage is an error or another record, never a panic, neither of the reader nor of a brain.
    #[test]
    fn a_damaged_log_does_no_harm(
        records in records(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = written(&records);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        take(&bytes);
    }
}

/// `cargo bolero test -p wave-core --test log any_bytes_do_no_harm` fuzzes this.
#[test]
fn any_bytes_do_no_harm() {
    let head = written(&[]);
    bolero::check!().with_iterations(2_000).for_each(|bytes: &[u8]| {
        take(bytes);
        take(&[&head, bytes].concat());
    });
}

/// Reads a log, and replays all that can be read.
fn take(bytes: &[u8]) {
    let Ok(mut reader) = LogReader::new(bytes) else { return };
    // Any table that a configuration can ask for is possible; a test need not make them all.
    if reader.header().config.subjects > SUBJECTS {
        return reader.for_each(drop);
    }
    let mut replay = Replay::new(&reader.header().config, Turns::default());
    for record in reader.by_ref() {
        match record {
            Ok(record) => replay.feed(&record),
            Err(LogError::Record { at, .. }) => assert!(at < bytes.len()),
            Err(error) => panic!("{error}, after the header was read"),
        }
    }
    assert_eq!(replay.finish().records, reader.records());
    assert!(reader.next().is_none(), "the reader returns nothing after the end");
}

#[test]
fn damage_is_named_by_its_byte() {
    let kicked = Record { now: Nanos(5), what: What::Kicked { core: 1 } };
    let mut bytes = written(&[kicked.clone(), kicked]);
    let start = written(&[]).len();
    let second = |bytes: &[u8]| LogReader::new(bytes).unwrap().nth(1).unwrap().unwrap_err();
    // Tag, time, core; tag, core.
    assert_eq!(bytes.len(), start + 5);
    bytes[start + 4] = CORES as u8;
    assert_eq!(
        second(&bytes).to_string(),
        format!(
            "the log is damaged: byte {}, in record 2: a core that the enclave does not have",
            start + 4
        )
    );
    bytes[start + 3] = 0x1f;
    assert!(second(&bytes).to_string().contains("an unknown kind of record"));
}

#[test]
fn a_file_that_is_not_a_log_is_told_from_a_damaged_log() {
    let error = |bytes: &[u8]| LogReader::new(bytes).unwrap_err();
    assert_eq!(error(b"[variant]\nname = 1"), LogError::Magic);
    assert_eq!(error(b"WAVE"), LogError::NoHeader { at: 4 });
    assert_eq!(error(b"WAVElog\n\x09"), LogError::Version { found: 9 });
    let mut bytes = written(&[]);
    // The lowest bits of the first word of the configuration, after magic and version.
    bytes[9] &= 0x80;
    assert!(matches!(error(&bytes), LogError::Config(_)), "no core");
}

/// A killed agent loses at most the last buffer of its log.
#[test]
fn the_buffer_is_bounded() {
    let bytes = Bytes::default();
    let mut writer = bytes.writer();
    let mut count = 0_u64;
    while bytes.0.borrow().len() < 3 * BUFFER_BYTES {
        writer.record(Nanos(count), &Input::Decide { budget: 1, held: 0 });
        count += 1;
    }
    std::mem::forget(writer);
    let bytes = bytes.0.take();
    assert_eq!(LogReader::new(&bytes).unwrap().count() as u64, count - 1);
}

/// Gives the next core to a thread that became runnable; preempts core 0 and sends a note now and then. At a
/// deadline it changes its decisions without any new input.
#[derive(Default)]
struct Turns {
    waiting: Vec<(Subject, Sequence)>,
    backwards: bool,
    deadline: Nanos,
    /// Another policy: it never prestages.
    lazy: bool,
}

impl Policy for Turns {
    fn name(&self) -> &'static str {
        "turns"
    }
    fn on_message(&mut self, _now: Nanos, message: &Message) {
        self.waiting.push((message.subject, message.sequence));
    }
    fn on_outcome(&mut self, _now: Nanos, _core: u16, decision: &Decision, outcome: Outcome) {
        if outcome.code != Code::Complete {
            self.waiting.push((decision.subject, decision.sequence));
        }
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        if now >= self.deadline {
            self.backwards = !self.backwards;
            self.deadline = now + Nanos(50);
        }
        while !self.waiting.is_empty() {
            let open = if self.lazy { None } else { desk.open() };
            let Some(core) = desk.asking().or(open) else { break };
            let at = if self.backwards { self.waiting.len() - 1 } else { 0 };
            let (subject, sequence) = self.waiting.remove(at);
            desk.stage(core, Choice { kind: 1, subject, sequence, argument: 0 });
            if subject.id % 3 == 0 {
                desk.preempt(Preemption { core: 0, run: subject.id });
                desk.note(Note { kind: 1, subject, words: [now.0, 0] });
            }
        }
        if desk.is_full() { Progress::More } else { Progress::Done }
    }
    fn next_deadline(&self) -> Option<Nanos> {
        Some(self.deadline)
    }
    fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
        self.waiting =
            snapshot.records.iter().map(|record| (record.subject, record.sequence)).collect();
    }
}

/// A log of a policy with `count` subjects whose cores answer every decision; the agent
/// polls far more often than events happen.
fn recorded(count: u32) -> Vec<u8> {
    let bytes = Bytes::default();
    let config = header().config;
    let mut brain = Brain::new(&config, Turns::default(), bytes.writer());
    let mut out = Decisions::default();
    let cores = vec![CoreRecord::default(); usize::from(CORES)];
    brain.on_snapshot(Nanos(1), &Snapshot { records: Vec::new(), cores });
    for at in 0..count {
        let now = Nanos(u64::from(at) * 20);
        let subject = Subject { id: at % SUBJECTS, generation: at / SUBJECTS };
        let sequence = Sequence(at / SUBJECTS + 1);
        let message = Message { kind: 1, subject, sequence, argument: 0, payload: [0; 3] };
        let entry = Upstream { message: Some(message), outcome: None, asks: at % 2 == 0 };
        brain.on_entry(now, (at % u32::from(CORES)) as u16, &entry);
        for look in 0..10 {
            brain.decide(now + Nanos(look), 2, &mut out);
        }
        // In one round of four, a decision waits for room until the next round.
        let keep = if at % 4 == 3 { out.staged.len().min(1) } else { 0 };
        for (core, decision) in out.staged.drain(keep..) {
            let code = if at % 5 == 0 { Code::TargetStale } else { Code::Complete };
            let outcome = Some(Outcome { txn: decision.txn, code, run: at });
            brain.on_entry(now, core, &Upstream { message: None, outcome, asks: true });
        }
        out.preemptions.clear();
        out.notes.clear();
        brain.recorder_mut().kicked(0);
    }
    drop(brain.into_recorder());
    bytes.0.take()
}

fn replay(bytes: &[u8], policy: Turns) -> wave_core::replay::Tally {
    let reader = LogReader::new(bytes).unwrap();
    let mut replay = Replay::new(&reader.header().config, policy);
    reader.for_each(|record| replay.feed(&record.unwrap()));
    replay.finish()
}

#[test]
fn the_same_policy_replays_identically() {
    let bytes = recorded(300);
    let tally = replay(&bytes, Turns::default());
    assert!(tally.is_identical(), "{:?}", tally.first);
    assert!(tally.decisions >= 300, "{tally:?}");
    assert!(tally.preemptions > 50 && tally.notes > 50, "{tally:?}");
    assert_eq!(tally.identical, tally.decisions + tally.preemptions + tally.notes);
    assert_eq!((tally.different, tally.missing, tally.extra), (0, 0, 0));
}

/// Nine of ten polls find nothing; of these, only those at which the deadline came are in the log.
#[test]
fn polls_without_an_event_are_left_out() {
    let bytes = recorded(300);
    let asked = LogReader::new(&bytes)
        .unwrap()
        .filter(|record| {
            matches!(record, Ok(Record { what: What::Input(Input::Decide { .. }), .. }))
        })
        .count();
    assert!((300..1000).contains(&asked), "{asked} of 3000 looks");
}

#[test]
fn replaying_another_policy_shows_the_differences() {
    let bytes = recorded(300);
    let tally = replay(&bytes, Turns { lazy: true, ..Turns::default() });
    let first = tally.first.expect("the other policy does not prestage");
    assert!(matches!(first.expected, Some(Output::Decided(..))), "{first:?}");
    assert!(tally.identical + tally.alike < tally.decisions, "{tally:?}");
    let outputs = tally.decisions + tally.preemptions + tally.notes;
    assert_eq!(tally.identical + tally.alike + tally.different + tally.missing, outputs);
}

#[test]
fn a_missing_or_extra_decision_in_the_log_is_named() {
    let records: Vec<Record> = LogReader::new(&recorded(30)).unwrap().map(Result::unwrap).collect();
    let is_decision = |record: &Record| matches!(record.what, What::Decided { .. });
    let at = records.iter().position(is_decision).unwrap();
    let mut without = records.clone();
    without.remove(at);
    let first = replay(&written(&without), Turns::default()).first.unwrap();
    let Some(Output::Decided(..)) = first.got else { panic!("{first:?}") };
    let mut twice = records.clone();
    twice.insert(at, records[at].clone());
    let first = replay(&written(&twice), Turns::default()).first.unwrap();
    assert_eq!(first.record, at as u64 + 2, "counted from 1");
    assert_eq!(first.expected, Output::of(&records[at].what));
}
