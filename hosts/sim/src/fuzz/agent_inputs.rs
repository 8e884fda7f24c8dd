//! Checks the messages that agents receive, and the inputs of their policies.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message, Sequence, TxnId, Upstream};
use wave_core::outcome::Outcome;
use wave_core::policy::{BadBulk, Desk, Note, Policy, Progress};
use wave_core::snapshot::Snapshot;

use super::books::{Broken, broken};

/// The messages and outcomes that one agent received.
#[derive(Debug, Default)]
pub struct AgentInputs {
    outcomes: HashMap<u16, TxnId>,
    /// Number of messages that arrived after a later one of the same subject.
    pub reordered: u64,
    arrived: HashMap<u32, Sequence>,
}

impl AgentInputs {
    /// Checks an entry from a core or an outside context.
    pub fn on_entry(&mut self, context: u16, entry: &Upstream) -> Result<(), Broken> {
        if let Some(message) = entry.message {
            let last = self.arrived.entry(message.subject.id).or_insert(message.sequence);
            if message.sequence.ahead_of(*last) < 0 {
                self.reordered += 1;
            } else {
                *last = message.sequence;
            }
        }
        if let Some(outcome) = entry.outcome {
            let last = self.outcomes.insert(context, outcome.txn).unwrap_or(TxnId::new(0));
            // Some outcomes may have found no room, but none comes twice.
            if !(1..1 << 23).contains(&outcome.txn.after(last)) {
                return broken("outcome", format!("core {context}: {outcome:?} after {last:?}"));
            }
        }
        Ok(())
    }
}

/// The messages and snapshots that one policy received.
#[derive(Debug, Default)]
pub struct Told {
    last: HashMap<u32, (Sequence, bool)>,
}

impl Told {
    /// Checks a message that was delivered.
    pub fn on_message(&mut self, message: &Message) -> Result<(), Broken> {
        let told = self.last.insert(message.subject.id, (message.sequence, false));
        let Some((last, fresh_snapshot)) = told else { return Ok(()) };
        let ahead = message.sequence.ahead_of(last);
        // After a snapshot that is out of date, the last message delivered before it comes once more.
        if ahead == 1 || (fresh_snapshot && ahead >= 0) {
            return Ok(());
        }
        broken(
            "order",
            format!("subject {}: {:?} after {last:?}", message.subject.id, message.sequence),
        )
    }

    /// Takes the state of a snapshot.
    pub fn on_snapshot(&mut self, records: impl Iterator<Item = (u32, Sequence)>) {
        self.last.clear();
        self.last.extend(records.map(|(id, sequence)| (id, (sequence, true))));
    }
}

/// Observes the inputs of the policy. It belongs to the agent, which could live on another thread.
pub(super) struct ToldPolicy {
    pub(super) policy: Box<dyn Policy + Send>,
    pub(super) told: Told,
    pub(super) broken: Arc<Mutex<Option<Broken>>>,
    pub(super) tainted: Arc<AtomicBool>,
}

impl Policy for ToldPolicy {
    fn name(&self) -> &'static str {
        self.policy.name()
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        if let Err(broken) = self.told.on_message(message)
            && !self.tainted.load(Ordering::Relaxed)
        {
            self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(broken);
        }
        self.policy.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, decision: &Decision, outcome: Outcome) {
        self.policy.on_outcome(now, core, decision, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        self.policy.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        self.policy.next_deadline()
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        let records = snapshot.records.iter();
        self.told.on_snapshot(records.map(|record| (record.subject.id, record.sequence)));
        self.policy.resync(now, snapshot);
    }
    fn on_bulk(&mut self, now: Nanos, words: &[u64]) -> Result<(), BadBulk> {
        self.policy.on_bulk(now, words)
    }
    fn on_note(&mut self, now: Nanos, note: &Note) {
        self.policy.on_note(now, note);
    }
}
