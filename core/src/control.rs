//! The host's control context: attaching and revoking an agent, snapshots and bulk data.

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
use crate::watchdog::Starved;

/// What the agent has written about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// No agent has announced itself in the window.
    Absent,
    /// The agent has announced itself and this protocol version.
    Ready,
    /// The agent has announced another protocol version, and must be refused.
    OtherVersion(u32),
}

/// What the agent asks of the control context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The agent asks for a snapshot.
    pub resync: bool,
    /// The agent wrote something that no Wave agent writes.
    pub fault: bool,
}

/// Why a host has revoked an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Revoked {
    /// The watchdog found that the agent hangs, or the host was asked to turn it out.
    TurnedOut = INCARNATION_REVOKED,
    /// Another agent has taken over.
    Replaced = INCARNATION_REPLACED,
    /// The host shuts down.
    Ended = INCARNATION_ENDED,
    /// The host read an entry that no Wave agent writes.
    Fault = INCARNATION_FAULT,
}

impl Revoked {
    /// Decodes the window's incarnation word ([`Layout::incarnation`]); `None` for a live incarnation.
    ///
    /// # Errors
    /// The word has no defined value: the host, or another writer of its memory, is at fault.
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

/// An incarnation word without a defined value: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: the window's incarnation word is {0:#x}, which is not a defined value")]
pub struct BadIncarnation(pub u64);

/// The control context's end of one incarnation's window.
#[derive(Debug)]
pub struct HostControl {
    context: Context,
    down: Receiver,
    pool: Pool,
    bulk: Pool,
    bulk_transport: Transport,
    /// Extents of bulk data that are not announced to the agent yet, oldest first: number of words, and the copy.
    copying: VecDeque<(Subject, u64, Ticket)>,
    incarnation: u32,
    agent: u32,
    budget: u32,
}

impl HostControl {
    /// Creates the control context of a fresh window.
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

    /// Tells the agent to leave, and why. From now on the host reads nothing from the window, whether the agent obeys or not.
    pub fn revoke(&self, port: &impl Port, why: Revoked) {
        port.window(Home::Nic).store(self.incarnation, 0, why as u64);
        port.window(Home::Nic).publish();
    }

    /// Tells the agent to leave, as [`HostControl::revoke`] does, because of this thread. On a link that reorders
    /// stores, the agent may leave without having seen the thread.
    pub fn turn_out(&self, port: &impl Port, starved: &Starved) {
        let near = port.window(Home::Nic);
        for (at, word) in (1..).zip(starved.to_words()) {
            near.store(self.incarnation, at, word);
        }
        near.publish();
        self.revoke(port, Revoked::TurnedOut);
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
        self.announce_copies(port);
        requests
    }

    /// Words that fit in one extent of bulk data.
    pub fn bulk_words(&self) -> usize {
        self.bulk.place().lines as usize * LINE_WORDS
    }

    /// Sends these words, at most [`HostControl::bulk_words`], as bulk data. Returns false if no extent is free
    /// (each is lent, or not announced yet): poll, and call again later.
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
        self.announce_copies(port);
        true
    }

    /// Whether bulk data is on its way: poll again soon.
    pub fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Announces finished copies to the agent, in order, as far as the queue has room.
    fn announce_copies(&mut self, port: &impl Port) {
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

    /// Takes back a returned extent. False if it was not lent, or not yet announced to the agent.
    fn take_back(&mut self, extent: Subject) -> bool {
        let told = self.copying.iter().all(|(copying, ..)| *copying != extent);
        told && self.bulk.returned(extent).is_ok()
    }

    /// Sends a message that belongs to no other context. Returns whether there was room.
    pub fn send(&mut self, port: &impl Port, message: &Message) -> bool {
        self.context.try_send(port, message)
    }

    /// Sends the host's state. Returns false if both extents are lent, because the agent has not read
    /// the earlier snapshots: call again later.
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
