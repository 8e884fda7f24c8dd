//! The pure part of an agent: order, the cores' accounts and the policy, behind one recordable
//! point. The same inputs give the same decisions, always; that is what replay rests on.

use alloc::vec::Vec;

use crate::clock::Nanos;
use crate::cores::Cores;
use crate::layout::Config;
use crate::message::Upstream;
use crate::order::{Gap, Order};
use crate::policy::{Decisions, Desk, Note, Policy, Progress};
use crate::snapshot::Snapshot;

/// Everything that a policy's state depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An entry came in the queue of `context`.
    Entry {
        /// Which queue.
        context: u16,
        /// What it said.
        entry: Upstream,
    },
    /// A snapshot came.
    Snapshot(Snapshot),
    /// A note came.
    Note(Note),
    /// The policy was asked for at most `budget` decisions.
    Decide {
        /// At most how many.
        budget: usize,
    },
}

/// Sees every input before the policy does.
pub trait Recorder {
    /// Whether `record` wants to be called: spares the copies where nobody records.
    const ON: bool = true;

    /// One input, and the agent's time at which it came.
    fn record(&mut self, now: Nanos, input: &Input);
}

/// Records nothing.
impl Recorder for () {
    const ON: bool = false;
    fn record(&mut self, _now: Nanos, _input: &Input) {}
}

/// Keeps everything: for tests and replays, not for production.
impl Recorder for Vec<(Nanos, Input)> {
    fn record(&mut self, now: Nanos, input: &Input) {
        self.push((now, input.clone()));
    }
}

/// What the loop has to do because of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// This core asks although decisions are on their way: see whether it sleeps on top of them.
    pub look_after: Option<u16>,
    /// Something was lost: ask for a snapshot.
    pub resync: bool,
}

/// Order, accounts and policy of one agent.
#[derive(Debug)]
pub struct Brain<P, R = ()> {
    policy: P,
    order: Order,
    cores: Cores,
    recorder: R,
}

impl<P: Policy, R: Recorder> Brain<P, R> {
    /// A brain that has heard nothing yet.
    pub fn new(config: &Config, policy: P, recorder: R) -> Brain<P, R> {
        Brain {
            policy,
            order: Order::new(config.subjects),
            cores: Cores::new(config.cores, config.prestage),
            recorder,
        }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// The cores, as the agent knows them.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The recorder.
    pub fn recorder(&self) -> &R {
        &self.recorder
    }

    /// Whether only something new from the host can lead to a decision.
    pub fn is_quiet(&self) -> bool {
        self.cores.all_quiet() && self.order.is_settled()
    }

    /// When the policy wants to decide although nothing happens.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.policy.next_deadline()
    }

    /// Takes an entry of a host's queue. Contexts below the number of cores are cores.
    #[inline]
    pub fn on_entry(&mut self, now: Nanos, context: u16, entry: &Upstream) -> Reaction {
        if R::ON {
            self.recorder.record(now, &Input::Entry { context, entry: *entry });
        }
        let mut reaction = Reaction::default();
        if let Some(message) = entry.message {
            let policy = &mut self.policy;
            let told = self.order.accept(now, message, |message| policy.on_message(now, message));
            reaction.resync = told.is_err();
        }
        let is_core = context < self.cores.len();
        // Asking precedes the outcome in the host's time: the message of the run that ended, then
        // the decision. A completed decision clears it again.
        if entry.asks && is_core && self.cores.asked(context) {
            reaction.look_after = Some(context);
        }
        if let Some(outcome) = entry.outcome.filter(|_| is_core)
            && let Some(decision) = self.cores.answered(context, outcome)
        {
            self.policy.on_outcome(now, context, &decision, outcome);
        }
        reaction
    }

    /// Starts again from the host's truth.
    pub fn on_snapshot(&mut self, now: Nanos, snapshot: &Snapshot) {
        if R::ON {
            self.recorder.record(now, &Input::Snapshot(snapshot.clone()));
        }
        for (core, record) in snapshot.cores.iter().enumerate() {
            self.cores.resync(core as u16, record);
        }
        let policy = &mut self.policy;
        policy.resync(now, snapshot);
        self.order.resync(snapshot, |message| policy.on_message(now, message));
    }

    /// Takes a note.
    pub fn on_note(&mut self, now: Nanos, note: &Note) {
        if R::ON {
            self.recorder.record(now, &Input::Note(*note));
        }
        self.policy.on_note(now, note);
    }

    /// Whether a message has been missing for too long.
    pub fn check_order(&self, now: Nanos) -> Result<(), Gap> {
        self.order.check(now)
    }

    /// Asks the policy for at most `budget` decisions, beside those that `out` holds already.
    #[inline]
    pub fn decide(&mut self, now: Nanos, budget: usize, out: &mut Decisions) -> Progress {
        if R::ON {
            self.recorder.record(now, &Input::Decide { budget });
        }
        let budget = out.staged.len() + budget;
        self.policy.decide(now, &mut Desk { cores: &mut self.cores, out, budget })
    }

    /// Feeds a recorded input, and gives the decisions that it led to.
    pub fn replay(&mut self, now: Nanos, input: &Input, out: &mut Decisions) {
        match input {
            Input::Entry { context, entry } => {
                self.on_entry(now, *context, entry);
            }
            Input::Snapshot(snapshot) => self.on_snapshot(now, snapshot),
            Input::Note(note) => self.on_note(now, note),
            Input::Decide { budget } => {
                self.decide(now, *budget, out);
            }
        }
    }
}
