//! What FIFO decides, as text: a change of behaviour shows as a change of `fifo.trace`. And what was
//! recorded replays.

use std::fmt::Write;

use wave_core::brain::{Brain, Input};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Message, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Decisions, Progress};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_sched::policies::fifo::Fifo;
use wave_sched::wire::{DECISION_RUN, Event, Kind, NO_CORE};

const BUDGET: usize = 64;

/// A brain whose inputs and decisions are written down.
struct Trace {
    brain: Brain<Fifo, Vec<(Nanos, Input)>>,
    config: Config,
    sequences: Vec<u32>,
    text: String,
    decided: Vec<(u16, u32)>,
}

impl Trace {
    fn new(title: &str, cores: u16, prestage: u16) -> Trace {
        let config = Config { prestage, subjects: 8, ..Config::coherent(cores) };
        Trace {
            brain: Brain::new(&config, Fifo::new(&config), Vec::new()),
            sequences: vec![0; config.subjects as usize],
            config,
            text: format!("# {title}\n"),
            decided: Vec::new(),
        }
    }

    fn enter(&mut self, context: u16, entry: Upstream) {
        assert!(!self.brain.on_entry(Nanos(0), context, &entry).resync);
        self.decide();
    }

    fn decide(&mut self) {
        let mut out = Decisions::with_capacity(BUDGET);
        assert_eq!(self.brain.decide(Nanos(0), BUDGET, &mut out), Progress::Done);
        for (core, decision) in &out.staged {
            assert_eq!(decision.kind, DECISION_RUN);
            let (thread, sequence) = (decision.subject.id, decision.sequence.0);
            let number = decision.txn.number();
            writeln!(self.text, "    core {core} <- thread {thread} at {sequence} ({number})")
                .unwrap();
            self.decided.push((*core, thread));
        }
        assert!(out.preemptions.is_empty() && out.notes.is_empty());
    }

    fn message(&mut self, kind: Kind, thread: u32, core: u16) -> Message {
        let sequence = &mut self.sequences[thread as usize];
        *sequence += 1;
        let event = Event {
            kind,
            thread: Subject { id: thread, generation: 1 },
            sequence: Sequence(*sequence),
            core,
            class: 0,
            ran: Nanos(0),
        };
        event.to_message()
    }

    /// A message from outside the cores.
    fn outside(&mut self, kind: Kind, thread: u32) {
        writeln!(self.text, "{kind:?} {thread}").unwrap();
        let message = Some(self.message(kind, thread, NO_CORE));
        let context = self.config.cores;
        self.enter(context, Upstream { message, outcome: None, asks: false });
    }

    /// A run ends and no decision was staged.
    fn asks(&mut self, core: u16, kind: Kind, thread: u32) {
        writeln!(self.text, "{kind:?} {thread}, core {core} asks").unwrap();
        let message = Some(self.message(kind, thread, core));
        self.enter(core, Upstream { message, outcome: None, asks: true });
    }

    /// A run ends and the next decision is answered.
    fn switches(&mut self, core: u16, kind: Kind, thread: u32, txn: u32, code: Code, run: u32) {
        writeln!(self.text, "{kind:?} {thread}, core {core} answers {txn}: {}", code.name())
            .unwrap();
        let message = Some(self.message(kind, thread, core));
        let outcome = Some(Outcome { txn: TxnId::new(txn), code, run });
        self.enter(core, Upstream { message, outcome, asks: code != Code::Complete });
    }

    fn answers(&mut self, core: u16, txn: u32, code: Code, run: u32) {
        writeln!(self.text, "core {core} answers {txn}: {}", code.name()).unwrap();
        let outcome = Some(Outcome { txn: TxnId::new(txn), code, run });
        self.enter(core, Upstream { message: None, outcome, asks: code != Code::Complete });
    }

    /// `states`: what each thread is doing, at its sequence now.
    fn snapshot(&mut self, cores: &[CoreRecord], states: &[State]) {
        writeln!(self.text, "snapshot {states:?}").unwrap();
        let record = |(id, state): (usize, &State)| Record {
            subject: Subject { id: id as u32, generation: 1 },
            sequence: Sequence(self.sequences[id]),
            state: *state,
            core: 0,
            class: 0,
        };
        let records = states.iter().enumerate().map(record).collect();
        self.brain.on_snapshot(Nanos(0), &Snapshot { records, cores: cores.into() });
        self.decide();
    }
}

const ASKS: CoreRecord = CoreRecord { run: 0, txn: TxnId::new(0), asks: true };
const RUNS: CoreRecord = CoreRecord { run: 1, txn: TxnId::new(0), asks: false };

fn first_come_first_served() -> Trace {
    let mut trace =
        Trace::new("first come, first served; nothing is prestaged while few wait", 2, 2);
    trace.snapshot(&[ASKS, ASKS], &[]);
    for thread in 0..3 {
        trace.outside(Kind::New, thread);
    }
    trace.answers(0, 1, Code::Complete, 1);
    trace.answers(1, 1, Code::Complete, 1);
    trace.asks(0, Kind::Blocked, 0);
    trace.outside(Kind::Wakeup, 0);
    trace.answers(0, 2, Code::Complete, 2);
    trace.asks(1, Kind::Yield, 1);
    trace.answers(1, 2, Code::Complete, 2);
    trace.asks(0, Kind::Dead, 2);
    trace
}

fn prestaging() -> Trace {
    let mut trace = Trace::new("prestaged only while as many wait as there are cores", 2, 2);
    trace.snapshot(&[RUNS, RUNS], &[]);
    // One waits: no core is bound to it. Two wait: one is prestaged, and the rest is too short.
    for thread in 0..5 {
        trace.outside(Kind::New, thread);
    }
    trace
}

fn prestaging_on_one_core() -> Trace {
    let mut trace =
        Trace::new("with one core there is nobody else to serve: up to two wait there", 1, 2);
    trace.snapshot(&[RUNS], &[]);
    for thread in 0..4 {
        trace.outside(Kind::New, thread);
    }
    trace.answers(0, 1, Code::Complete, 2);
    trace
}

fn no_prestaging() -> Trace {
    let mut trace = Trace::new("without prestaging a core gets what it asks for", 1, 0);
    trace.snapshot(&[RUNS], &[]);
    trace.outside(Kind::New, 0);
    trace.outside(Kind::New, 1);
    trace.asks(0, Kind::Blocked, 2);
    trace.answers(0, 1, Code::Complete, 2);
    trace
}

fn refusals() -> Trace {
    let mut trace = Trace::new(
        "what is refused for the core's sake waits again; else a message will come",
        2,
        0,
    );
    trace.snapshot(&[ASKS, ASKS], &[]);
    trace.outside(Kind::New, 0);
    trace.answers(0, 1, Code::Affinity, 0);
    trace.answers(1, 1, Code::TargetStale, 0);
    // The stale one is not tried again until its message comes.
    trace.outside(Kind::Preempt, 0);
    trace.answers(0, 2, Code::TargetOnCpu, 0);
    trace.outside(Kind::New, 1);
    trace.answers(1, 2, Code::CpuUnavailable, 0);
    trace.answers(0, 3, Code::Complete, 1);
    trace
}

fn resync() -> Trace {
    let mut trace = Trace::new("a snapshot starts everything again", 2, 0);
    trace.snapshot(&[ASKS, RUNS], &[]);
    trace.outside(Kind::New, 0);
    trace.outside(Kind::New, 1);
    trace.outside(Kind::New, 2);
    // The host has answered the decision for core 0, and says that 2 runs there.
    let answered = CoreRecord { run: 1, txn: TxnId::new(1), asks: false };
    trace.snapshot(&[answered, RUNS], &[State::Blocked, State::Runnable, State::Running]);
    trace.asks(1, Kind::Blocked, 3);
    trace.outside(Kind::Wakeup, 0);
    trace.asks(0, Kind::Yield, 2);
    trace
}

fn all() -> Vec<Trace> {
    let refused_then_moved = {
        let mut trace =
            Trace::new("an outcome that comes after the thread has moved on changes nothing", 1, 2);
        trace.snapshot(&[RUNS], &[]);
        trace.outside(Kind::New, 0);
        trace.switches(0, Kind::Blocked, 1, 1, Code::Complete, 2);
        trace.switches(0, Kind::Yield, 0, 2, Code::Complete, 3);
        trace
    };
    vec![
        first_come_first_served(),
        prestaging(),
        prestaging_on_one_core(),
        no_prestaging(),
        refusals(),
        resync(),
        refused_then_moved,
    ]
}

/// `WAVE_BLESS=1 cargo test -p wave-sched --test fifo` writes the file anew.
#[test]
fn decisions_are_as_committed() {
    let text: Vec<_> = all().into_iter().map(|trace| trace.text).collect();
    let text = text.join("\n");
    if std::env::var_os("WAVE_BLESS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fifo.trace"), &text).unwrap();
    }
    let expected = include_str!("fifo.trace");
    let differs = text.lines().zip(expected.lines()).position(|(new, old)| new != old);
    assert!(
        text == expected || std::env::var_os("WAVE_BLESS").is_some(),
        "FIFO decides otherwise from line {:?} of fifo.trace on; now:\n{text}",
        differs.map(|line| line + 1)
    );
}

#[test]
fn nothing_is_prestaged_while_fewer_wait_than_there_are_cores() {
    for cores in 2..6u16 {
        let mut trace = Trace::new("", cores, 2);
        trace.snapshot(&vec![RUNS; usize::from(cores)], &[]);
        for thread in 0..u32::from(cores) - 1 {
            trace.outside(Kind::New, thread);
        }
        assert_eq!(trace.decided, []);
        trace.outside(Kind::New, u32::from(cores) - 1);
        assert_eq!(trace.decided.len(), 1);
    }
}

#[test]
fn what_was_recorded_replays_to_the_same_decisions() {
    for trace in all() {
        let mut again = Brain::new(&trace.config, Fifo::new(&trace.config), ());
        let mut out = Decisions::default();
        for (now, input) in trace.brain.recorder() {
            again.replay(*now, input, &mut out);
        }
        let decided: Vec<_> =
            out.staged.iter().map(|(core, decision)| (*core, decision.subject.id)).collect();
        assert!(!decided.is_empty());
        assert_eq!(decided, trace.decided);
    }
}
