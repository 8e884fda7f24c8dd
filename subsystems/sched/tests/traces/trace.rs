//! A brain with scripted inputs; the inputs and its decisions are written as text.

use std::fmt::Write;

use wave_core::brain::{Brain, Input};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::message::{Message, Sequence, Subject, TxnId, Upstream};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Decisions, Policy, Preemption, Progress};
use wave_core::snapshot::{CoreRecord, Record, Snapshot, State};
use wave_sched::policies;
use wave_sched::wire::{DECISION_RUN, Event, Kind, NO_CORE};

const BUDGET: usize = 64;

type Shipped = Box<dyn Policy + Send>;

pub struct Trace {
    brain: Brain<Shipped, Vec<(Nanos, Input)>>,
    policy: &'static str,
    config: Config,
    now: Nanos,
    deadline: Option<Nanos>,
    sequences: Vec<u32>,
    /// The class that the messages of each thread name.
    pub classes: Vec<u16>,
    /// The text that is compared with the committed file.
    pub text: String,
    /// Core and thread of each decision.
    pub decided: Vec<(u16, u32)>,
    /// Core and run of each preemption.
    pub preempted: Vec<(u16, u32)>,
}

impl Trace {
    /// `policy`: a name and settings for [`policies::by_name`].
    pub fn new(policy: &'static str, title: &str, cores: u16, prestage: u16) -> Trace {
        let config = Config { prestage, subjects: 8, ..Config::coherent(cores) };
        let made = policies::by_name(policy, &config).unwrap();
        Trace {
            brain: Brain::new(&config, made, Vec::new()),
            policy,
            now: Nanos(0),
            deadline: None,
            sequences: vec![0; config.subjects as usize],
            classes: vec![0; config.subjects as usize],
            config,
            text: format!("# {title}\n"),
            decided: Vec::new(),
            preempted: Vec::new(),
        }
    }

    /// Starts with as many running threads as cores, each on the core of its number.
    pub fn begun(policy: &'static str, title: &str, cores: u16, prestage: u16) -> Trace {
        let mut trace = Trace::new(policy, title, cores, prestage);
        trace.snapshot(&vec![ASKS; usize::from(cores)], &[]);
        for core in 0..cores {
            trace.outside(Kind::New, core.into());
            trace.answers(core, 1, Code::Complete, 1);
        }
        trace
    }

    fn enter(&mut self, context: u16, entry: Upstream) {
        assert!(!self.brain.on_entry(self.now, context, &entry).resync);
        self.decide();
    }

    fn decide(&mut self) {
        let mut out = Decisions::with_capacity(BUDGET);
        assert_eq!(self.brain.decide(self.now, BUDGET, &mut out), Progress::Done);
        for (core, decision) in &out.staged {
            assert_eq!(decision.kind, DECISION_RUN);
            let (thread, sequence) = (decision.subject.id, decision.sequence.0);
            let number = decision.txn.number();
            let slice = match decision.argument {
                0 => String::new(),
                slice_ns => format!(", for {} us", slice_ns / 1000),
            };
            writeln!(
                self.text,
                "    core {core} <- thread {thread} at {sequence} ({number}){slice}"
            )
            .unwrap();
            self.decided.push((*core, thread));
        }
        for Preemption { core, run } in out.preemptions {
            writeln!(self.text, "    core {core} is to end run {run}").unwrap();
            self.preempted.push((core, run));
        }
        assert!(out.notes.is_empty());
        let deadline = self.brain.next_deadline();
        assert!(deadline.is_none_or(|at| at > self.now), "a deadline must be in the future");
        if std::mem::replace(&mut self.deadline, deadline) != deadline {
            match deadline {
                Some(Nanos(at)) => writeln!(self.text, "    next deadline: {} us", at / 1000),
                None => writeln!(self.text, "    no deadline"),
            }
            .unwrap();
        }
    }

    /// Lets time pass, and asks the policy.
    pub fn later_us(&mut self, us: u64) {
        self.now = self.now + Nanos::from_micros(us);
        writeln!(self.text, "{} us", self.now.0 / 1000).unwrap();
        self.decide();
    }

    fn message(&mut self, kind: Kind, thread: u32, core: u16) -> Message {
        let sequence = &mut self.sequences[thread as usize];
        *sequence += 1;
        let event = Event {
            kind,
            thread: Subject { id: thread, generation: 1 },
            sequence: Sequence(*sequence),
            core,
            class: self.classes[thread as usize],
            ran: Nanos(0),
        };
        event.to_message()
    }

    /// A message from outside the cores.
    pub fn outside(&mut self, kind: Kind, thread: u32) {
        writeln!(self.text, "{kind:?} {thread}").unwrap();
        let message = Some(self.message(kind, thread, NO_CORE));
        let context = self.config.cores;
        self.enter(context, Upstream { message, outcome: None, asks: false });
    }

    /// A run ends and no decision was staged.
    pub fn asks(&mut self, core: u16, kind: Kind, thread: u32) {
        writeln!(self.text, "{kind:?} {thread}, core {core} asks").unwrap();
        let message = Some(self.message(kind, thread, core));
        self.enter(core, Upstream { message, outcome: None, asks: true });
    }

    /// A run ends and the next decision is answered.
    pub fn switches(&mut self, core: u16, kind: Kind, thread: u32, txn: u32, code: Code, run: u32) {
        writeln!(self.text, "{kind:?} {thread}, core {core} answers {txn}: {}", code.name())
            .unwrap();
        let message = Some(self.message(kind, thread, core));
        let outcome = Some(Outcome { txn: TxnId::new(txn), code, run });
        self.enter(core, Upstream { message, outcome, asks: code != Code::Complete });
    }

    /// A decision is answered.
    pub fn answers(&mut self, core: u16, txn: u32, code: Code, run: u32) {
        writeln!(self.text, "core {core} answers {txn}: {}", code.name()).unwrap();
        let outcome = Some(Outcome { txn: TxnId::new(txn), code, run });
        self.enter(core, Upstream { message: None, outcome, asks: code != Code::Complete });
    }

    /// `states`: the state of each thread at its current sequence; a running thread is on the core
    /// of its number.
    pub fn snapshot(&mut self, cores: &[CoreRecord], states: &[State]) {
        writeln!(self.text, "snapshot {states:?}").unwrap();
        let record = |(id, state): (usize, &State)| Record {
            subject: Subject { id: id as u32, generation: 1 },
            sequence: Sequence(self.sequences[id]),
            state: *state,
            core: id as u16,
            class: self.classes[id],
        };
        let records = states.iter().enumerate().map(record).collect();
        self.brain.on_snapshot(self.now, &Snapshot { records, cores: cores.into() });
        self.decide();
    }

    /// The recorded inputs give the same decisions again.
    pub fn check_replay(&self) {
        let made = policies::by_name(self.policy, &self.config).unwrap();
        let mut again = Brain::new(&self.config, made, ());
        let mut out = Decisions::default();
        for (now, input) in self.brain.recorder() {
            again.replay(*now, input, &mut out);
        }
        let staged = out.staged.iter();
        let decided: Vec<_> = staged.map(|(core, decision)| (*core, decision.subject.id)).collect();
        assert!(!decided.is_empty());
        assert_eq!(decided, self.decided);
        let ended = out.preemptions.iter().map(|preemption| (preemption.core, preemption.run));
        assert_eq!(ended.collect::<Vec<_>>(), self.preempted);
    }
}

/// In a snapshot: a core with nothing to do.
pub const ASKS: CoreRecord = CoreRecord { run: 0, txn: TxnId::new(0), asks: true };
/// In a snapshot: a core that runs a thread.
pub const RUNS: CoreRecord = CoreRecord { run: 1, txn: TxnId::new(0), asks: false };
