//! The pure part of an agent: message order, the state of the cores and the policy, behind one
//! recordable interface. The same inputs always give the same decisions; replay relies on this.

use alloc::vec::Vec;

use crate::clock::Nanos;
use crate::cores::Cores;
use crate::layout::Config;
use crate::message::{Decision, Upstream};
use crate::order::{Gap, Order};
use crate::policy::{BadBulk, Decisions, Desk, Note, Policy, Preemption, Progress};
use crate::snapshot::Snapshot;

/// Everything that a policy's state depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An entry arrived in the queue of `context`.
    Entry {
        /// Number of the context that sent it.
        context: u16,
        /// The entry that was popped.
        entry: Upstream,
    },
    /// A snapshot of the host's state arrived.
    Snapshot(Snapshot),
    /// Bulk data arrived in an extent.
    Bulk(Vec<u64>),
    /// A note from a front arrived.
    Note(Note),
    /// The policy was asked for at most `budget` decisions.
    Decide {
        /// The largest number of decisions that there is room for.
        budget: usize,
        /// Number of earlier decisions that still waited for room: they count against other limits of a step.
        held: usize,
    },
}

/// Sees every input before the policy does, and every output of the policy.
///
/// One call of `decide` is followed by its decisions, its preemptions and its notes, in this order.
/// A `decide` is left out where it cannot matter: no input came since the last one, the policy's
/// deadline has not come, and the policy decided nothing. A spinning agent would record little else.
pub trait Recorder {
    /// Whether the recorder is called at all: `false` saves the copies when nothing is recorded.
    const ON: bool = true;

    /// One input, and the agent's time at which it came.
    fn record(&mut self, now: Nanos, input: &Input);

    /// The policy chose this for `core`.
    fn decided(&mut self, _now: Nanos, _core: u16, _decision: &Decision) {}

    /// The policy asked for the end of a run.
    fn preempted(&mut self, _now: Nanos, _preemption: &Preemption) {}

    /// The policy sent a note during this `decide`.
    fn noted(&mut self, _now: Nanos, _note: &Note) {}

    /// The loop rang the doorbell of `core`, in the step of the last input.
    fn kicked(&mut self, _core: u16) {}

    /// The agent is idle or leaves: buffered records may be written now.
    fn flush(&mut self) {}
}

impl Recorder for () {
    const ON: bool = false;
    fn record(&mut self, _now: Nanos, _input: &Input) {}
}

/// Keeps every input: for tests and replays, not for production.
impl Recorder for Vec<(Nanos, Input)> {
    fn record(&mut self, now: Nanos, input: &Input) {
        self.push((now, input.clone()));
    }
}

/// What the agent's loop must do after an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// This core asks while decisions are on their way to it: check whether it sleeps without having seen them.
    pub to_kick: Option<u16>,
    /// Something was lost: ask for a snapshot.
    pub resync: bool,
}

/// Message order, core state and policy of one agent.
#[derive(Debug)]
pub struct Brain<P, R = ()> {
    policy: P,
    order: Order,
    cores: Cores,
    recorder: R,
    /// Whether any input came since the last `decide`, or that one had more to do. Kept only for a
    /// recorder.
    news: bool,
}

impl<P: Policy, R: Recorder> Brain<P, R> {
    /// Creates a brain that has received no input.
    pub fn new(config: &Config, policy: P, recorder: R) -> Brain<P, R> {
        Brain {
            policy,
            order: Order::new(config.subjects),
            cores: Cores::new(config.cores, config.prestage),
            recorder,
            news: true,
        }
    }

    /// The policy behind this recorder, for its counters.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The cores, as the agent knows them.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The recorder of inputs and outputs.
    pub fn recorder(&self) -> &R {
        &self.recorder
    }

    /// The recorder, to be told what the loop did.
    pub fn recorder_mut(&mut self) -> &mut R {
        &mut self.recorder
    }

    /// Drops all but the recorder, and returns it.
    pub fn into_recorder(self) -> R {
        self.recorder
    }

    /// Whether only something new from the host can lead to a decision.
    pub fn is_quiet(&self) -> bool {
        self.cores.all_quiet() && self.order.is_settled()
    }

    /// The time at which the policy wants to decide even if nothing happens.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.policy.next_deadline()
    }

    /// Takes an entry of a host's queue. Contexts below the number of cores are cores.
    #[inline]
    pub fn on_entry(&mut self, now: Nanos, context: u16, entry: &Upstream) -> Reaction {
        if R::ON {
            self.record(now, &Input::Entry { context, entry: *entry });
        }
        let mut reaction = Reaction::default();
        if let Some(message) = entry.message {
            let policy = &mut self.policy;
            let told = self.order.accept(now, message, |message| policy.on_message(now, message));
            reaction.resync = told.is_err();
        }
        let is_core = context < self.cores.len();
        // On the host the request precedes the outcome: the run ends with a message, then the decision
        // is read. A completed decision clears the request again.
        if entry.asks && is_core && self.cores.asked(context) {
            reaction.to_kick = Some(context);
        }
        if let Some(outcome) = entry.outcome.filter(|_| is_core)
            && let Some(decision) = self.cores.answered(context, outcome)
        {
            self.policy.on_outcome(now, context, &decision, outcome);
        }
        reaction
    }

    /// Starts again from the host's state.
    pub fn on_snapshot(&mut self, now: Nanos, snapshot: &Snapshot) {
        if R::ON {
            self.record(now, &Input::Snapshot(snapshot.clone()));
        }
        for (core, record) in snapshot.cores.iter().enumerate() {
            self.cores.resync(core as u16, record);
        }
        let policy = &mut self.policy;
        policy.resync(now, snapshot);
        self.order.resync(snapshot, |message| policy.on_message(now, message));
        for (core, record) in snapshot.cores.iter().enumerate() {
            if let Some((decision, outcome)) = self.cores.completed_since(core as u16, record) {
                self.policy.on_outcome(now, core as u16, &decision, outcome);
            }
        }
    }

    /// Delivers bulk data to the policy.
    pub fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        if R::ON {
            self.record(now, &Input::Bulk(words.to_vec()));
        }
        self.policy.on_bulk(now, words)
    }

    /// Delivers a note to the policy.
    pub fn on_note(&mut self, now: Nanos, note: &Note) {
        if R::ON {
            self.record(now, &Input::Note(*note));
        }
        self.policy.on_note(now, note);
    }

    /// Fails if a message has been missing for too long.
    pub fn check_order(&self, now: Nanos) -> Result<(), Gap> {
        self.order.check(now)
    }

    /// Asks the policy for at most `budget` decisions, in addition to those that `out` holds already.
    #[inline]
    pub fn decide(&mut self, now: Nanos, budget: usize, out: &mut Decisions) -> Progress {
        if R::ON { self.decide_recorded(now, budget, out) } else { self.ask(now, budget, out) }
    }

    #[inline]
    fn ask(&mut self, now: Nanos, budget: usize, out: &mut Decisions) -> Progress {
        let budget = out.staged.len() + budget;
        self.cores.ask();
        self.policy.decide(now, &mut Desk { cores: &mut self.cores, out, budget })
    }

    fn decide_recorded(&mut self, now: Nanos, budget: usize, out: &mut Decisions) -> Progress {
        let (held, preemptions, notes) = (out.staged.len(), out.preemptions.len(), out.notes.len());
        let input = Input::Decide { budget, held };
        let matters = self.news || self.policy.next_deadline().is_some_and(|at| at <= now);
        if matters {
            self.recorder.record(now, &input);
        }
        let progress = self.ask(now, budget, out);
        let (staged, preemptions, notes) =
            (&out.staged[held..], &out.preemptions[preemptions..], &out.notes[notes..]);
        let silent = staged.is_empty() && preemptions.is_empty() && notes.is_empty();
        if !matters && !silent {
            self.recorder.record(now, &input);
        }
        for (core, decision) in staged {
            self.recorder.decided(now, *core, decision);
        }
        for preemption in preemptions {
            self.recorder.preempted(now, preemption);
        }
        for note in notes {
            self.recorder.noted(now, note);
        }
        self.news = progress == Progress::More;
        progress
    }

    fn record(&mut self, now: Nanos, input: &Input) {
        self.news = true;
        self.recorder.record(now, input);
    }

    /// Feeds a recorded input, and adds the resulting decisions to `out`. Returns what `decide` did, for that input.
    pub fn replay(&mut self, now: Nanos, input: &Input, out: &mut Decisions) -> Progress {
        match input {
            Input::Entry { context, entry } => {
                self.on_entry(now, *context, entry);
            }
            Input::Snapshot(snapshot) => self.on_snapshot(now, snapshot),
            // An error here ended the recorded agent.
            Input::Bulk(words) => drop(self.on_bulk(now, words)),
            Input::Note(note) => self.on_note(now, note),
            Input::Decide { budget, held } => {
                // The policy reads only the number of decisions that wait for room, not the decisions.
                let filler = (0, Decision::default());
                out.staged.splice(0..0, core::iter::repeat_n(filler, *held));
                let progress = self.decide(now, *budget, out);
                out.staged.drain(..*held);
                return progress;
            }
        }
        Progress::Done
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::message::{Decision, Message, Sequence, Subject};
    use crate::outcome::{Code, Outcome};
    use crate::policy::{Choice, Desk};
    use crate::snapshot::{CoreRecord, Record, State};

    const THREAD: Subject = Subject { id: 0, generation: 1 };

    /// Decides once, and tracks whether its thread runs.
    #[derive(Default)]
    struct One {
        waits: bool,
        runs: bool,
    }

    impl Policy for One {
        fn name(&self) -> &'static str {
            "one"
        }
        fn on_message(&mut self, _now: Nanos, _message: &Message) {
            self.waits = true;
        }
        fn on_outcome(&mut self, _now: Nanos, _core: u16, _of: &Decision, outcome: Outcome) {
            self.runs |= outcome.code == Code::Complete;
        }
        fn decide(&mut self, _now: Nanos, desk: &mut Desk<'_>) -> Progress {
            if core::mem::take(&mut self.waits)
                && let Some(core) = desk.asking()
            {
                let choice =
                    Choice { kind: 1, subject: THREAD, sequence: Sequence(1), argument: 0 };
                desk.stage(core, choice);
            }
            Progress::Done
        }
        fn resync(&mut self, _now: Nanos, snapshot: &Snapshot) {
            self.runs = snapshot.records.iter().any(|record| record.state == State::Running);
        }
    }

    /// Found in the simulator, with two threads that never stop by themselves and a snapshot taken just
    /// before the first one began to run: nothing was ever preempted.
    #[test]
    fn a_snapshot_does_not_hide_a_later_completed_decision() {
        let mut brain = Brain::new(&Config::coherent(1), One::default(), ());
        let snapshot = |run| Snapshot {
            cores: vec![CoreRecord { run, txn: Default::default(), asks: true }],
            records: vec![Record {
                subject: THREAD,
                sequence: Sequence(1),
                state: State::Runnable,
                core: 0,
                class: 0,
            }],
        };
        let now = Nanos(0);
        brain.on_snapshot(now, &snapshot(7));
        brain.policy.waits = true;
        let mut out = Decisions::with_capacity(4);
        brain.decide(now, 4, &mut out);
        let (core, decision) = out.staged[0];
        let outcome = Outcome { txn: decision.txn, code: Code::Complete, run: 8 };
        let entry = Upstream { message: None, outcome: Some(outcome), asks: false };
        brain.on_entry(now, core, &entry);
        brain.on_snapshot(now, &snapshot(7));
        assert!(brain.policy.runs, "the snapshot predates the outcome, so the thread runs");
        brain.on_snapshot(now, &snapshot(8));
        assert!(!brain.policy.runs, "the snapshot is newer than the outcome, so the thread waits");
    }
}
