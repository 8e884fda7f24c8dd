//! Puts each subject's messages back in the order in which they happened.
//!
//! There is a queue per producing context, so the WAKEUP of a thread (sent by the core that woke it)
//! can arrive before its BLOCKED (sent by the core that it left). Every message carries its
//! subject's sequence, and is delivered in that order. A message that arrives early is held back: a
//! bounded number of them, for a bounded time. Beyond that, one was lost and a snapshot must repair it.

use alloc::vec::Vec;

use crate::clock::Nanos;
use crate::message::{Message, Sequence};
use crate::planted::{Planted, is_planted};
use crate::snapshot::Snapshot;

/// Messages held back at once.
pub const HELD_MAX: usize = 256;
/// How long a gap may last before it counts as a loss.
pub const GAP_MAX: Nanos = Nanos::from_millis(2);

/// A message was lost: ask the host for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap;

/// Delivers messages of each subject in the order of their sequences.
#[derive(Debug)]
pub struct Order {
    /// The sequence that each id's next message must have, up to the highest id that has occurred. Space for all is reserved
    /// from the start, and reserved space that was never written costs no memory unless it is locked.
    next: Vec<Sequence>,
    /// Each id's last delivered message, for [`Order::resync`].
    last: Vec<Option<Message>>,
    subjects: usize,
    held: Vec<(Nanos, Message)>,
    /// Whether a snapshot has come: until then no number is too old, for sequences wrap.
    synced: bool,
}

impl Order {
    /// Creates an order for ids below `subjects`. Every id starts with sequence 1.
    pub fn new(subjects: u32) -> Order {
        let subjects = subjects as usize;
        Order {
            next: Vec::with_capacity(subjects),
            last: Vec::with_capacity(subjects),
            subjects,
            held: Vec::with_capacity(HELD_MAX),
            synced: false,
        }
    }

    /// Takes a message and delivers it, and those that waited for it, in order.
    /// Drops a message that is older than expected: a snapshot has covered it.
    #[inline]
    pub fn accept(
        &mut self,
        now: Nanos,
        message: Message,
        mut deliver: impl FnMut(&Message),
    ) -> Result<(), Gap> {
        let id = message.subject.id as usize;
        if id >= self.next.len() {
            // An id beyond the table is the peer's fault; it can only cost the peer's enclave a resync.
            if id >= self.subjects {
                return Err(Gap);
            }
            self.extend_to(id + 1);
        }
        let next = &mut self.next[id];
        match message.sequence.ahead_of(*next) {
            ahead if ahead > 0 && self.synced && is_planted(Planted::OrderNotKept) => {
                *next = message.sequence.next();
                self.last[id] = Some(message);
                deliver(&message);
                Ok(())
            }
            0 => {
                *next = next.next();
                self.last[id] = Some(message);
                deliver(&message);
                if !self.held.is_empty() {
                    self.release(message.subject.id, deliver);
                }
                Ok(())
            }
            ahead if ahead > 0 || !self.synced => {
                if self.held.len() == HELD_MAX {
                    return Err(Gap);
                }
                self.held.push((now, message));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn extend_to(&mut self, ids: usize) {
        self.next.resize(ids, Sequence(1));
        self.last.resize(ids, None);
    }

    fn release(&mut self, id: u32, mut deliver: impl FnMut(&Message)) {
        let next = &mut self.next[id as usize];
        while let Some(at) = self
            .held
            .iter()
            .position(|(_, message)| message.subject.id == id && message.sequence == *next)
        {
            let (_, message) = self.held.swap_remove(at);
            *next = next.next();
            self.last[id as usize] = Some(message);
            deliver(&message);
        }
    }

    /// Fails if a gap has lasted too long.
    #[inline]
    pub fn check(&self, now: Nanos) -> Result<(), Gap> {
        let waits = |(since, _): &(Nanos, Message)| now.since(*since) > GAP_MAX;
        if self.held.iter().any(waits) { Err(Gap) } else { Ok(()) }
    }

    /// Whether nothing is held back.
    pub fn is_settled(&self) -> bool {
        self.held.is_empty()
    }

    /// Starts again from a snapshot, which the policy has just been given.
    ///
    /// While the snapshot was under way, newer messages may have been delivered already. They would
    /// be forgotten; so the last message of each such id is delivered once more. This is why a
    /// message must say what *is*, and not only what changed.
    pub fn resync(&mut self, snapshot: &Snapshot, mut deliver: impl FnMut(&Message)) {
        let mut truth = alloc::vec![Sequence(0); self.next.len()];
        for record in &snapshot.records {
            let id = record.subject.id as usize;
            if id >= self.subjects {
                continue;
            }
            if id >= truth.len() {
                truth.resize(id + 1, Sequence(0));
            }
            truth[id] = record.sequence;
        }
        self.extend_to(truth.len());
        self.synced = true;
        for (id, sequence) in truth.into_iter().enumerate() {
            match &self.last[id] {
                Some(message) if self.next[id].ahead_of(sequence.next()) > 0 => deliver(message),
                _ => self.next[id] = sequence.next(),
            }
            let next = self.next[id];
            self.held.retain(|(_, message)| {
                message.subject.id as usize != id || message.sequence.ahead_of(next) >= 0
            });
            self.release(id as u32, &mut deliver);
        }
    }
}
