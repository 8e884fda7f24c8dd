//! The kinds of faults, and their injection.

use std::cell::Cell;
use std::rc::Rc;

use rand::Rng;
use wave_core::clock::Nanos;
use wave_core::link::{Home, LINE_WORDS, Port, Window};
use wave_core::policy::{BadBulk, Choice, Desk, Note, Policy, Progress};
use wave_core::{
    message::{Decision, Message, Sequence, Subject},
    outcome::Outcome,
    snapshot::Snapshot,
};

use super::plan::Injection;
use crate::enclave::Enclave;
use crate::random::{self, Stream};
use crate::world::Delivery;

/// A kind of fault that the fuzzer injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// Kicks of cores get lost for a while.
    LostKick,
    /// Kicks of cores arrive late for a while.
    LateKick,
    /// The agent dies at any point; another starts later.
    AgentCrash,
    /// The agent dies at any point, and another starts at once.
    AgentRestart,
    /// The agent stops at any point, is turned out and replaced, and then continues.
    AgentStop,
    /// The agent stops at any point, and continues before any patience runs out.
    AgentContinue,
    /// Another agent takes over from a live one.
    Replacement,
    /// Nothing crosses the link for a while.
    LinkStall,
    /// Queues so short that messages find no room.
    FullQueue,
    /// The agent writes invalid entries, makes forbidden decisions, or only decisions that cannot be committed.
    Hostile,
    /// Copies of several queues arrive in any order.
    Reordered,
    /// The agent's clock differs from the host's.
    ClockSkew,
    /// A core goes offline, and comes back online.
    CoreOffline,
}

/// All kinds of faults, each of them once.
pub const FAULTS: [Fault; 13] = [
    Fault::LostKick,
    Fault::LateKick,
    Fault::AgentCrash,
    Fault::AgentRestart,
    Fault::AgentStop,
    Fault::AgentContinue,
    Fault::Replacement,
    Fault::LinkStall,
    Fault::FullQueue,
    Fault::Hostile,
    Fault::Reordered,
    Fault::ClockSkew,
    Fault::CoreOffline,
];

impl Fault {
    /// Name of the fault in results.
    pub fn name(self) -> &'static str {
        match self {
            Fault::LostKick => "lost-kick",
            Fault::LateKick => "late-kick",
            Fault::AgentCrash => "agent-crash",
            Fault::AgentRestart => "agent-restart",
            Fault::AgentStop => "agent-stop",
            Fault::AgentContinue => "agent-continue",
            Fault::Replacement => "replacement",
            Fault::LinkStall => "link-stall",
            Fault::FullQueue => "full-queue",
            Fault::Hostile => "hostile",
            Fault::Reordered => "reordered",
            Fault::ClockSkew => "clock-skew",
            Fault::CoreOffline => "core-offline",
        }
    }

    /// Whether the fault takes effect whenever it is injected, and not only if the history gives it a chance.
    pub fn is_certain(self) -> bool {
        let chances = [Fault::LostKick, Fault::LateKick, Fault::FullQueue, Fault::Reordered];
        !chances.contains(&self)
    }

    /// The fault with this name in results.
    pub fn by_name(name: &str) -> Option<Fault> {
        FAULTS.into_iter().find(|fault| fault.name() == name)
    }
}

/// The delivery of kicks as the history proceeds.
#[derive(Debug)]
pub(super) struct Kicks {
    fate: Cell<(u64, Delivery)>,
    random: std::cell::RefCell<Stream>,
    pub(super) lost: Cell<u64>,
    pub(super) late: Cell<u64>,
}

impl Kicks {
    pub(super) fn new(seed: u64) -> Rc<Kicks> {
        Rc::new(Kicks {
            fate: Cell::new((0, Delivery::OnTime)),
            random: std::cell::RefCell::new(random::stream(seed, "kicks", 0)),
            lost: Cell::new(0),
            late: Cell::new(0),
        })
    }

    pub(super) fn disturb(&self, until: Nanos, how: Delivery) {
        self.fate.set((until.0, how));
    }

    pub(super) fn next(&self, now: Nanos) -> Delivery {
        let (until, how) = self.fate.get();
        if now.0 >= until || self.random.borrow_mut().random_bool(0.5) {
            return Delivery::OnTime;
        }
        match how {
            Delivery::Lost => self.lost.set(self.lost.get() + 1),
            _ => self.late.set(self.late.get() + 1),
        }
        how
    }
}

/// Writes random words into the window of the attached agent, as that agent could. Returns whether
/// an agent was attached.
pub(super) fn scribble(enclave: &Rc<Enclave>, injection: &Injection) -> bool {
    let Some((port, layout)) = enclave.agents_port() else { return false };
    let mut random = random::stream(injection.seed, "hostile", 0);
    for _ in 0..random.random_range(1..40) {
        // The queues that an agent writes, and now and then any other line of the window.
        let decisions = &layout.decisions[random.random_range(0..layout.decisions.len())];
        let (home, line) = match random.random_range(0..10) {
            0..5 => (
                decisions.home,
                decisions.ring.first + random.random_range(0..decisions.ring.entries),
            ),
            5 => (
                Home::Nic,
                layout.control.ring.first + random.random_range(0..layout.control.ring.entries),
            ),
            6 => (
                Home::Host,
                layout.preempt + random.random_range(0..u32::from(layout.config.cores)),
            ),
            7 => (Home::Host, layout.agent_parked),
            8 => (Home::Nic, random.random_range(0..layout.nic_lines)),
            _ => (Home::Host, random.random_range(0..layout.host_lines)),
        };
        let window = port.window(home);
        for word in 0..LINE_WORDS {
            let value = match random.random_range(0..4) {
                0 => random.random(),
                1 => random.random_range(0..300),
                // A lap word that may be the expected one.
                2 => random.random_range(0u64..4) << 32 | 1 << 16 | 3,
                _ => continue,
            };
            window.store(line, word, value);
        }
        window.publish();
    }
    true
}

/// A policy that makes invalid decisions, in addition to its valid ones or instead of them: with stale
/// sequences or generations, or with subjects that never existed.
pub(super) struct Lying {
    policy: Box<dyn Policy + Send>,
    random: Stream,
    /// Whether it gives every core only decisions to refuse.
    starves: bool,
    /// Kind of its decisions.
    kind: u16,
    /// Threads as of some earlier message.
    known: Vec<(Subject, Sequence)>,
}

impl Lying {
    pub(super) fn new(policy: Box<dyn Policy + Send>, kind: u16, seed: u64) -> Lying {
        let mut random = random::stream(seed, "lying", 0);
        let starves = random.random_bool(0.5);
        Lying { policy, random, starves, kind, known: Vec::new() }
    }

    fn lie(&mut self) -> Option<Choice> {
        let chosen = self.random.random_range(0..self.known.len().max(1));
        let (mut subject, mut sequence) = *self.known.get(chosen)?;
        match self.random.random_range(0..4) {
            0 => {}
            1 => subject.generation = subject.generation.wrapping_sub(1),
            2 => sequence = Sequence(sequence.0.wrapping_add(1)),
            _ => subject.id = self.random.random_range(0..1 << 12),
        }
        Some(Choice { kind: self.kind, subject, sequence, argument: 0 })
    }
}

impl Policy for Lying {
    fn name(&self) -> &'static str {
        "lying"
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        let known = (message.subject, message.sequence);
        if self.known.len() < 256 {
            self.known.push(known);
        } else if self.random.random_bool(0.1) {
            let chosen = self.random.random_range(0..self.known.len());
            self.known[chosen] = known;
        }
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        self.policy.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        if self.starves {
            let subject = Subject { id: 0, generation: u32::MAX };
            let nobody = Choice { kind: self.kind, subject, sequence: Sequence(1), argument: 0 };
            while let Some(core) = desk.asking() {
                desk.stage(core, nobody);
            }
            return Progress::Done;
        }
        if self.random.random_bool(0.2)
            && let Some(core) = desk.asking().or_else(|| desk.open())
            && let Some(choice) = self.lie()
        {
            desk.stage(core, choice);
        }
        self.policy.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        if self.starves { None } else { self.policy.next_deadline() }
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.policy.resync(now, snapshot);
    }
    fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        self.policy.on_bulk(now, words)
    }
    fn on_note(&mut self, now: Nanos, note: &Note) {
        self.policy.on_note(now, note);
    }
}
