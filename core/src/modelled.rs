//! A subsystem's host as a model, without a machine. The simulator and the fuzzer run the subsystem on it (ADR 44).

use alloc::string::String;

use crate::clock::Nanos;
use crate::message::{Decision, Message};
use crate::outcome::Code;
use crate::policy::Choice;
use crate::snapshot::Record;

/// The parameters of a modelled host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSetup {
    /// Cores that carry out decisions.
    pub cores: u16,
    /// Subjects at once, at most. Ids are below this number.
    pub subjects: u32,
    /// Mean rate of events, such as requests a second.
    pub per_second: u32,
    /// Decides everything random.
    pub seed: u64,
}

/// A subsystem's host: its mechanism, and the events that no agent decides, such as the arrival of a request.
///
/// All else is production code: queues, host protocol, supervisor, agent and policy. The driver calls from one thread, with times
/// that never decrease.
///
/// # The contract
///
/// 1. Each message bumps its subject's sequence by one, and states the subject's new state. Sequences continue when an id is
///    reused, and its generation goes up by one.
/// 2. [`commit`](ModelledHost::commit) accepts a decision only if its subject is [`Runnable`](crate::snapshot::State::Runnable) and has
///    the decision's generation and sequence; the subject is then running on that core, at the same sequence. A refusal changes nothing.
/// 3. Every runnable subject can run on any core.
pub trait ModelledHost {
    /// The time of the next event; `None` if there is none before a run ends. From that time on,
    /// [`event`](ModelledHost::event) returns a message.
    fn next_event(&self) -> Option<Nanos>;

    /// Carries out one event that is due at `now`, if there is one. Returns its message.
    fn event(&mut self, now: Nanos) -> Option<Message>;

    /// Checks a decision for `core` and commits it. Returns how long it occupies the core.
    ///
    /// # Errors
    /// The decision is refused, and nothing has changed.
    fn commit(&mut self, now: Nanos, core: u16, decision: &Decision) -> Result<Nanos, Code>;

    /// The run on `core` is over. Returns the message that ends it.
    fn finish(&mut self, now: Nanos, core: u16) -> Message;

    /// What `core` is to do while no agent decides. It is committed next.
    fn fallback(&mut self, core: u16) -> Option<Choice>;

    /// The state of the subject with this id; `None` if the id was never used.
    fn record(&self, id: u32) -> Option<Record>;

    /// The longest time that a decision occupies a core.
    fn run_max(&self) -> Nanos;

    /// Creates no new events from now on. Subjects that wait or run still finish.
    fn stop(&mut self);

    /// Checks the subsystem's own rules. The fuzzer calls it whenever its checkers run.
    ///
    /// # Errors
    /// The rule that is broken, and how.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
