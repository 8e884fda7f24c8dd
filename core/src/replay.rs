//! Feeds a log to a policy again: the same inputs must give the same decisions, in the same order.

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
    /// The policy made this decision for a core.
    Decided(u16, Decision),
    /// The policy asked for the end of a run.
    Preempted(Preemption),
    /// The policy sent this note.
    Noted(Note),
}

impl Output {
    /// The policy's output in a record; `None` if the record holds none.
    pub fn of(what: &What) -> Option<Output> {
        match *what {
            What::Decided { core, decision } => Some(Output::Decided(core, decision)),
            What::Preempted(preemption) => Some(Output::Preempted(preemption)),
            What::Noted(note) => Some(Output::Noted(note)),
            What::Input(_) | What::Kicked { .. } => None,
        }
    }

    /// Whether both have the same effect, although their numbers or arguments may differ: the same
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

/// The first difference between recording and replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The record of the log, counted from 1: the output that differs, or the `decide` with an extra
    /// output in the replay.
    pub record: u64,
    /// The agent's time at the input.
    pub now: Nanos,
    /// The output in the log; `None` if the replay has an extra output.
    pub expected: Option<Output>,
    /// The output of the replay; `None` if it is missing there.
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
    /// Outputs that differ, but have the same effect ([`Output::is_like`]).
    pub alike: u64,
    /// Number of outputs that differ.
    pub different: u64,
    /// Outputs that only the log has.
    pub missing: u64,
    /// Outputs that only the replay has.
    pub extra: u64,
    /// The first output that is not identical.
    pub first: Option<Difference>,
}

impl Tally {
    /// Whether the replay has exactly the outputs of the log.
    pub fn is_identical(&self) -> bool {
        self.first.is_none()
    }
}

/// A replay under way. Give it every record of a log in turn, then [`Replay::finish`].
///
/// After a difference the log still holds the outcomes of the *recorded* decisions. They are replayed
/// nevertheless: for another policy the tally shows its decisions in the recorded circumstances, not
/// the outcomes of its own decisions.
#[derive(Debug)]
pub struct Replay<P> {
    brain: Brain<P>,
    out: Decisions,
    /// Outputs of the replay's last `decide` that are not yet matched with the log.
    waiting: VecDeque<Output>,
    decide: (u64, Nanos),
    tally: Tally,
}

impl<P: Policy> Replay<P> {
    /// Starts a replay with a fresh policy, made for the log's configuration.
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

    /// The log continues with another input: outputs that are still unmatched are extra.
    fn settle(&mut self) {
        if let Some(&got) = self.waiting.front() {
            let (record, now) = self.decide;
            let difference = Difference { record, now, expected: None, got: Some(got) };
            self.tally.first.get_or_insert(difference);
            self.tally.extra += self.waiting.len() as u64;
            self.waiting.clear();
        }
    }

    /// Ends the replay. Outputs that the log lacks for its very last `decide` may have been cut off when
    /// the agent was killed, and count as no difference.
    pub fn finish(self) -> Tally {
        self.tally
    }
}
