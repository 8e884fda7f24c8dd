//! The host's control context: what it says to an agent beside messages and decisions.

use alloc::collections::VecDeque;

use crate::endpoint::Receiver;
use crate::extent::Pool;
use crate::host::{Context, Signals};
use crate::layout::{
    AGENT_READY, INCARNATION_ENDED, INCARNATION_FAULT, INCARNATION_LIVE, INCARNATION_REPLACED,
    INCARNATION_REVOKED, Layout, PROTOCOL_VERSION,
};
use crate::link::{Dma, Home, LINE_WORDS, Port, Side, Ticket, Transport, Window};
use crate::message::{
    KIND_BULK, KIND_BULK_RETURNED, KIND_EXTENT_RETURNED, KIND_RESYNC, KIND_SNAPSHOT, Message,
    Sequence, Subject,
};
use crate::snapshot::{self, CoreRecord, Record};

/// What the agent has written about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// No agent has announced itself in the window.
    Absent,
    /// It is there and speaks our version.
    Ready,
    /// It speaks another version, which must be refused.
    OtherVersion(u32),
}

/// What the agent asks of the control context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The agent asks for a snapshot.
    pub resync: bool,
    /// It wrote what no agent of ours writes.
    pub fault: bool,
}

/// Why a host turns its back on an agent's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Revoked {
    /// The watchdog found that it hangs, or the host was asked to turn it out.
    TurnedOut = INCARNATION_REVOKED,
    /// Another agent has taken over.
    Replaced = INCARNATION_REPLACED,
    /// The host shuts down.
    Ended = INCARNATION_ENDED,
    /// The host read an entry that no Wave agent writes.
    Fault = INCARNATION_FAULT,
}

impl Revoked {
    /// From the window's word on its incarnation ([`Layout::incarnation`]); nothing of a live one.
    ///
    /// # Errors
    /// The word means nothing: the host, or another writer of its memory, is at fault.
    pub const fn from_word(word: u64) -> Result<Option<Revoked>, BadIncarnation> {
        match word {
            INCARNATION_LIVE => Ok(None),
            INCARNATION_REVOKED => Ok(Some(Revoked::TurnedOut)),
            INCARNATION_REPLACED => Ok(Some(Revoked::Replaced)),
            INCARNATION_ENDED => Ok(Some(Revoked::Ended)),
            INCARNATION_FAULT => Ok(Some(Revoked::Fault)),
            _ => Err(BadIncarnation(word)),
        }
    }
}

/// A word on an incarnation that means nothing: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: the window's word on its incarnation is {0:#x}, which means nothing")]
pub struct BadIncarnation(pub u64);

/// The control context's end of one incarnation's window.
#[derive(Debug)]
pub struct HostControl {
    context: Context,
    down: Receiver,
    pool: Pool,
    bulk: Pool,
    bulk_transport: Transport,
    /// Extents of bulk data that the agent was not told of yet, the oldest first: how many words, and the copy.
    copying: VecDeque<(Subject, u64, Ticket)>,
    incarnation: u32,
    agent: u32,
    budget: u32,
}

impl HostControl {
    /// The control context of a fresh window.
    pub fn new(layout: &Layout) -> HostControl {
        HostControl {
            context: Context::new(layout, &layout.messages[layout.control_context()]),
            down: Receiver::new(&layout.control, Side::Host),
            pool: Pool::new(layout.snapshots),
            bulk: Pool::new(layout.bulk()),
            bulk_transport: layout.config.bulk().transport,
            copying: VecDeque::with_capacity(layout.config.bulk().extents.into()),
            incarnation: layout.incarnation,
            agent: layout.agent,
            budget: layout.control.ring.entries,
        }
    }

    /// Whether an agent has announced itself in this window.
    pub fn agent_state(&self, port: &impl Port) -> AgentState {
        let word = port.window(Home::Nic).load(self.agent, 0);
        let version = word as u32;
        match word & AGENT_READY != 0 {
            false => AgentState::Absent,
            true if version == PROTOCOL_VERSION => AgentState::Ready,
            true => AgentState::OtherVersion(version),
        }
    }

    /// Tells the agent to leave, and why. The host reads nothing more from its window, whether it obeys or not.
    pub fn revoke(&self, port: &impl Port, why: Revoked) {
        port.window(Home::Nic).store(self.incarnation, 0, why as u64);
        port.window(Home::Nic).publish();
    }

    /// Takes the agent's pending requests: at most one ring's worth.
    pub fn poll(&mut self, port: &impl Port) -> Requests {
        let mut requests = Requests::default();
        for _ in 0..self.budget {
            match self.down.pop(port) {
                Ok(None) => break,
                Ok(Some(entry)) => match (entry.tag.kind, entry.words()) {
                    (KIND_RESYNC, [_]) => requests.resync = true,
                    (KIND_EXTENT_RETURNED, [word]) => {
                        requests.fault |= self.pool.returned(Subject::from_word(*word)).is_err();
                    }
                    (KIND_BULK_RETURNED, [word]) => {
                        requests.fault |= !self.take_back(Subject::from_word(*word));
                    }
                    _ => requests.fault = true,
                },
                Err(_) => requests.fault = true,
            }
        }
        self.tell_of_bulk(port);
        requests
    }

    /// Words that fit in one extent of bulk data.
    pub fn bulk_words(&self) -> usize {
        self.bulk.place().lines as usize * LINE_WORDS
    }

    /// Sends these words, at most [`HostControl::bulk_words`], as bulk data. Returns false where every extent
    /// is lent, or was not told of yet: poll, and call again later.
    pub fn send_bulk(&mut self, port: &impl Port, words: &[u64]) -> bool {
        assert!(words.len() <= self.bulk_words());
        let Some(extent) = self.bulk.free() else { return false };
        let near = port.window(Home::Host);
        let place = self.bulk.place();
        let first = place.staging + extent * place.lines;
        for (at, &word) in words.iter().enumerate() {
            near.store(first + (at / LINE_WORDS) as u32, at % LINE_WORDS, word);
        }
        near.publish();
        let lines = words.len().div_ceil(LINE_WORDS) as u32;
        let (subject, ticket) = self.bulk.begin(port, extent, lines);
        self.copying.push_back((subject, words.len() as u64, ticket));
        while self.bulk_transport == Transport::DmaSync && !port.dma().is_done(ticket) {
            core::hint::spin_loop();
        }
        self.tell_of_bulk(port);
        true
    }

    /// Whether bulk data is on its way: poll again soon.
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Tells the agent of copies that are done, in their order, as far as there is room.
    fn tell_of_bulk(&mut self, port: &impl Port) {
        while let Some(&(subject, words, ticket)) = self.copying.front() {
            let message = Message {
                kind: KIND_BULK,
                subject,
                sequence: Sequence(0),
                argument: 0,
                payload: [words, 0, 0],
            };
            if !port.dma().is_done(ticket) || !self.context.try_send(port, &message) {
                return;
            }
            self.copying.pop_front();
        }
    }

    /// An extent that the agent was not told of is not its to return.
    fn take_back(&mut self, extent: Subject) -> bool {
        let told = self.copying.iter().all(|(copying, ..)| *copying != extent);
        told && self.bulk.returned(extent).is_ok()
    }

    /// Sends a message that is no context's own, if there is room for it. Returns whether there was.
    pub fn send(&mut self, port: &impl Port, message: &Message) -> bool {
        self.context.try_send(port, message)
    }

    /// Sends the host's state. Returns false where both extents are lent: the agent has not read
    /// the ones before; call again later.
    pub fn send_snapshot(
        &mut self,
        port: &impl Port,
        cores: &[CoreRecord],
        records: impl Iterator<Item = Record>,
    ) -> bool {
        let Some(extent) = self.pool.free() else { return false };
        let lines = snapshot::stage(port, self.pool.place(), extent, cores, records);
        let subject = self.pool.lend(port, extent, lines);
        let message = Message {
            kind: KIND_SNAPSHOT,
            subject,
            sequence: Sequence(0),
            argument: 0,
            payload: [0; 3],
        };
        self.context.send(port, &message);
        true
    }

    /// What the driver has to do; cleared by reading.
    pub fn take_signals(&mut self) -> Signals {
        self.context.take_signals()
    }
}
