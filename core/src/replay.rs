//! A log fed to a policy again: the same inputs must give the same decisions, in the same order.

use alloc::collections::VecDeque;

use crate::brain::{Brain, Input};
use crate::clock::Nanos;
use crate::layout::Config;
use crate::log::{Record, What};
use crate::message::Decision;
use crate::policy::{Decisions, Note, Policy, Preemption};

/// An output of a policy, in the order in which it was produced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It chose this for a core.
    Decided(u16, Decision),
    /// It asked for the end of a run.
    Preempted(Preemption),
    /// The policy sent this note.
    Noted(Note),
}

impl Output {
    /// What a record says that the policy did, if it does.
    pub fn of(what: &What) -> Option<Output> {
        match *what {
            What::Decided { core, decision } => Some(Output::Decided(core, decision)),
            What::Preempted(preemption) => Some(Output::Preempted(preemption)),
            What::Noted(note) => Some(Output::Noted(note)),
            What::Input(_) | What::Kicked { .. } => None,
        }
    }

    /// Whether both come to the same although their numbers or arguments may differ: the same
    /// subject for the same core, the end of a run of the same core, a note about the same subject.
    pub fn is_like(&self, other: &Output) -> bool {
        match (self, other) {
            (Output::Decided(core, decision), Output::Decided(other_core, other)) => {
                core == other_core
                    && (decision.kind, decision.subject) == (other.kind, other.subject)
            }
            (Output::Preempted(preemption), Output::Preempted(other)) => {
                preemption.core == other.core
            }
            (Output::Noted(note), Output::Noted(other)) => {
                (note.kind, note.subject) == (other.kind, other.subject)
            }
            _ => false,
        }
    }
}

/// Where recording and replay part for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The record of the log, counted from 1: the output that differs, or the `decide` that led to
    /// one output more.
    pub record: u64,
    /// The agent's time at the input.
    pub now: Nanos,
    /// What the log has; nothing where the replay did one thing more.
    pub expected: Option<Output>,
    /// What the replay did; nothing where it did one thing less.
    pub got: Option<Output>,
}

/// How recording and replay compare. Outputs are compared one by one within each `decide`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of records in the log.
    pub records: u64,
    /// Number of decisions in the log.
    pub decisions: u64,
    /// Number of preemptions in the log.
    pub preemptions: u64,
    /// Number of notes in the log.
    pub notes: u64,
    /// Outputs that are the same in every field.
    pub identical: u64,
    /// Outputs that differ, but come to the same ([`Output::is_like`]).
    pub alike: u64,
    /// Number of outputs that differ.
    pub different: u64,
    /// Outputs that only the log has.
    pub missing: u64,
    /// Outputs that only the replay has.
    pub extra: u64,
    /// The first of those that are not identical.
    pub first: Option<Difference>,
}

impl Tally {
    /// Whether the replay did what the log says, and nothing else.
    pub fn is_identical(&self) -> bool {
        self.first.is_none()
    }
}

/// A replay under way. Give it every record of a log in turn, then [`Replay::finish`].
///
/// After a difference the log still holds the outcomes of the *recorded* decisions. They are replayed
/// all the same: for another policy the tally says what it would have decided in the recorded
/// circumstances, not the outcomes of its own decisions.
#[derive(Debug)]
pub struct Replay<P> {
    brain: Brain<P>,
    out: Decisions,
    /// What the last `decide` of the replay led to, and the log has not told yet.
    waiting: VecDeque<Output>,
    decide: (u64, Nanos),
    tally: Tally,
}

impl<P: Policy> Replay<P> {
    /// A fresh policy, made for the log's configuration.
    pub fn new(config: &Config, policy: P) -> Replay<P> {
        Replay {
            brain: Brain::new(config, policy, ()),
            out: Decisions::default(),
            waiting: VecDeque::new(),
            decide: (0, Nanos(0)),
            tally: Tally::default(),
        }
    }

    /// Takes the log's next record.
    pub fn feed(&mut self, record: &Record) {
        self.tally.records += 1;
        if let Some(expected) = Output::of(&record.what) {
            self.compare(record.now, expected);
        } else if let What::Input(input) = &record.what {
            self.settle();
            self.brain.replay(record.now, input, &mut self.out);
            let Decisions { staged, preemptions, notes } = &mut self.out;
            let staged = staged.drain(..).map(|(core, decision)| Output::Decided(core, decision));
            self.waiting.extend(staged);
            self.waiting.extend(preemptions.drain(..).map(Output::Preempted));
            self.waiting.extend(notes.drain(..).map(Output::Noted));
            if matches!(input, Input::Decide { .. }) {
                self.decide = (self.tally.records, record.now);
            }
        }
    }

    fn compare(&mut self, now: Nanos, expected: Output) {
        let tally = &mut self.tally;
        match expected {
            Output::Decided(..) => tally.decisions += 1,
            Output::Preempted(_) => tally.preemptions += 1,
            Output::Noted(_) => tally.notes += 1,
        }
        let got = self.waiting.pop_front();
        if got == Some(expected) {
            tally.identical += 1;
            return;
        }
        match got {
            Some(got) if got.is_like(&expected) => tally.alike += 1,
            Some(_) => tally.different += 1,
            None => tally.missing += 1,
        }
        let record = tally.records;
        let difference = Difference { record, now, expected: Some(expected), got };
        tally.first.get_or_insert(difference);
    }

    /// The log goes on: decisions that it does not contain did not happen.
    fn settle(&mut self) {
        if let Some(&got) = self.waiting.front() {
            let (record, now) = self.decide;
            let difference = Difference { record, now, expected: None, got: Some(got) };
            self.tally.first.get_or_insert(difference);
            self.tally.extra += self.waiting.len() as u64;
            self.waiting.clear();
        }
    }

    /// The log is over. What it does not tell of its very last `decide` may have been cut off with
    /// the agent's life, and is no difference.
    pub fn finish(self) -> Tally {
        self.tally
    }
}
