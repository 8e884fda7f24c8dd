//! A policy: a pure state machine. Events and time in, decisions out.
//!
//! A policy has no clock, no I/O, no link and no thread, so the same object runs in a simulator, in
//! a process beside the host, and on a NIC. Everything it learns passes [`crate::brain::Brain`],
//! whose inputs can be recorded and replayed.

use alloc::vec::Vec;

use crate::clock::Nanos;
use crate::cores::Cores;
use crate::message::{Decision, Message, Sequence, Subject, TxnId};
use crate::outcome::Outcome;
use crate::snapshot::Snapshot;

/// Whether there is more to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The budget ran out first: call again.
    More,
    /// Nothing more until something happens, or until the next deadline.
    Done,
}

/// A typed word between two policies, or a front and a policy (an RPC's class and core, say).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Meaning of the note, agreed on by the policies and fronts that share the agent.
    pub kind: u16,
    /// Subject that the note is about.
    pub subject: Subject,
    /// Two arguments, whose meaning depends on the kind.
    pub words: [u64; 2],
}

/// Bulk data that is not valid: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: bulk data of {words} words, at word {at}: {what}")]
pub struct BadBulk {
    /// Number of words that arrived.
    pub words: usize,
    /// Index of the word that is wrong.
    pub at: usize,
    /// The fault, in words; the last part of the message.
    pub what: &'static str,
}

/// What a policy must do. Calls come in the order in which the agent received their causes; each
/// subject's messages come in the order in which they were sent.
pub trait Policy {
    /// A short name, as in `wave agent --policy NAME`.
    fn name(&self) -> &'static str;

    /// Something happened to a subject. A message states what *is*, not what changed: after a resync
    /// the last message of a subject may come again.
    fn on_message(&mut self, now: Nanos, message: &Message);

    /// The outcome of a decision for `core`. The policy must still place a refused subject, unless a
    /// message has said or will say otherwise. After a resync, a core's last completed decision may
    /// come again.
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome);

    /// Makes decisions for cores that have room, at most as many as the desk takes. A change by time
    /// alone must happen at a deadline that [`Policy::next_deadline`] named before: a log leaves out
    /// calls with no new input, no deadline that was due and no decision.
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress;

    /// The time at which `decide` must be called even if nothing happens; `None` if there is none.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// How long the policy lets a subject wait beside an idle core on purpose, for example to limit how many subjects
    /// of a class run at once. Zero for a policy that never does. The host's patience must be longer, or it turns the
    /// agent out.
    fn idles_for(&self) -> Nanos {
        Nanos(0)
    }

    /// Forgets everything, and starts again from the host's state.
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot);

    /// Bulk data arrived in an extent. The subsystem defines its meaning.
    ///
    /// # Errors
    /// The data is not valid: the host is at fault, and the agent leaves.
    fn on_bulk(&mut self, _now: Nanos, _words: &[u64]) -> Result<(), BadBulk> {
        Ok(())
    }

    /// A note came from a front or from another policy of this agent.
    fn on_note(&mut self, _now: Nanos, _note: &Note) {}
}

impl<P: Policy + ?Sized> Policy for alloc::boxed::Box<P> {
    fn name(&self) -> &'static str {
        (**self).name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        (**self).on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        (**self).on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        (**self).decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        (**self).next_deadline()
    }
    fn idles_for(&self) -> Nanos {
        (**self).idles_for()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        (**self).resync(now, snapshot);
    }
    fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        (**self).on_bulk(now, words)
    }
    fn on_note(&mut self, now: Nanos, note: &Note) {
        (**self).on_note(now, note);
    }
}

/// A policy's choice for a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What to do, named by the subsystem.
    pub kind: u16,
    /// Subject that the decision is about.
    pub subject: Subject,
    /// The subject's sequence, as of its last message.
    pub sequence: Sequence,
    /// One argument, for the mechanism.
    pub argument: u64,
}

/// A policy's request to end one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Core on which the run is to end.
    pub core: u16,
    /// The core's run number: a late preemption names an old run, and is ignored.
    pub run: u32,
}

/// The output of a policy in one step. Reused from step to step.
#[derive(Debug, Default)]
pub struct Decisions {
    /// Decisions, each for a core, in order.
    pub staged: Vec<(u16, Decision)>,
    /// Runs to end before their time.
    pub preemptions: Vec<Preemption>,
    /// Notes to fronts and other policies.
    pub notes: Vec<Note>,
}

impl Decisions {
    /// Reserves room for `budget` items of each kind, so that a step allocates nothing.
    pub fn with_capacity(budget: usize) -> Decisions {
        Decisions {
            staged: Vec::with_capacity(budget),
            preemptions: Vec::with_capacity(budget),
            notes: Vec::with_capacity(budget),
        }
    }

    /// Removes everything that was staged.
    pub fn clear(&mut self) {
        self.staged.clear();
        self.preemptions.clear();
        self.notes.clear();
    }
}

/// A policy's view of the cores, and the place for its decisions.
pub struct Desk<'a> {
    pub(crate) cores: &'a mut Cores,
    pub(crate) out: &'a mut Decisions,
    /// How many decisions `out` may hold.
    pub(crate) budget: usize,
}

impl Desk<'_> {
    /// How many cores the enclave has.
    pub fn cores(&self) -> u16 {
        self.cores.len()
    }

    /// A core that waits for a decision and has none on its way; round-robin.
    #[inline]
    pub fn asking(&self) -> Option<u16> {
        if self.is_full() { None } else { self.cores.asking() }
    }

    /// A core that has room for one more prestaged decision; round-robin.
    #[inline]
    pub fn open(&self) -> Option<u16> {
        if self.is_full() { None } else { self.cores.open() }
    }

    /// Whether `core` waits for a decision and has none on its way: for a policy that prefers one
    /// core to another. False where there is no such core.
    #[inline]
    pub fn asks(&self, core: u16) -> bool {
        self.cores.asks(core)
    }

    /// Whether `core` has room for one more decision. False where there is no such core.
    #[inline]
    pub fn has_room(&self, core: u16) -> bool {
        self.cores.has_room(core)
    }

    /// How many decisions for `core` are unanswered: on their way, or waiting in its queue.
    /// Panics if there is no such core.
    #[inline]
    pub fn unanswered(&self, core: u16) -> usize {
        self.cores.unanswered(core)
    }

    /// The run that a preemption of `core` would end, as far as the agent knows: the one of its last
    /// COMPLETE, or of a newer snapshot. Panics if there is no such core.
    #[inline]
    pub fn run(&self, core: u16) -> u32 {
        self.cores.run(core)
    }

    /// How many decisions this step holds.
    pub fn made(&self) -> usize {
        self.out.staged.len()
    }

    /// Whether this step's budget is used up.
    pub fn is_full(&self) -> bool {
        self.out.staged.len() >= self.budget
    }

    /// Leaves a decision for `core` (Wave Table 1, `TXN_CREATE`), which must be one that
    /// [`Desk::asking`] or [`Desk::open`] just named, or that [`Desk::asks`] or [`Desk::has_room`]
    /// just affirmed while the desk is not full. Returns the decision's number, which says whether a snapshot's record of
    /// the core covers it. Panics if the core has no room.
    #[inline]
    pub fn stage(&mut self, core: u16, choice: Choice) -> TxnId {
        let decision = self.cores.stage(core, choice);
        self.out.staged.push((core, decision));
        decision.txn
    }

    /// Asks for the end of a run: the core then takes its next decision. Returns whether this
    /// step's budget had room for it; if not, ask again in the next step.
    pub fn preempt(&mut self, preemption: Preemption) -> bool {
        let has_room = self.out.preemptions.len() < self.budget;
        if has_room {
            self.out.preemptions.push(preemption);
        }
        has_room
    }

    /// Sends a note to the agent's fronts.
    pub fn note(&mut self, note: Note) {
        if self.out.notes.len() < self.budget {
            self.out.notes.push(note);
        }
    }
}
