//! Handover: a running agent exports the state of its stack, and its successor restores it (docs/adr/0072).
//!
//! The old agent accepts no more input, and works until nothing is in flight inside it ([`Stack::is_at_rest`]). Then it freezes
//! its connections and exports its state. A new stack that restores the state continues where the old one stopped: connections
//! keep their names, so hosts notice nothing. If no successor takes the state, the old agent thaws its connections, and nothing
//! is lost either.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use wave_core::clock::Nanos;

use super::connection::Connection;
use super::handshake::Handshake;
use super::neighbours::Neighbours;
use super::shares::{Kind, Owner};
use super::takeover::{Lent, Takeover};
use super::time_wait::TimeWaitEntry;
use super::{ControlCounters, Listener, Secrets, Stack};
use crate::capabilities::Capabilities;
use crate::congestion::Algorithm;
use crate::context::SocketOptions;
use crate::datapath::{Datapath, Established, FlowId, NoRoom, Ring, Tuple};

/// Why a stack cannot continue with another one's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// There is no room in the data path or in a table.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The data path lacks a capability that a connection or a handshake needs.
    #[error("connections use {0}, which the data path does not have")]
    Missing(&'static str),
}

/// A connection, its state in the data path, and its deadline.
type Kept = (Connection, Established, Option<Nanos>);

/// The complete state of a stack, except its addresses and bounds. Times are on the stack's clock, which the successor must
/// continue.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    secrets: Secrets,
    algorithm: Algorithm,
    owners: Vec<(u16, Owner)>,
    families: Vec<u128>,
    listeners: Vec<Listener>,
    arrivals: NonZeroU64,
    turn: usize,
    takes: Vec<Takeover>,
    lent: Vec<Lent>,
    handshakes: Vec<(FlowId, Tuple, Handshake, Option<Nanos>)>,
    connections: Vec<Kept>,
    /// The latest generation of a flow so far, and of a handshake: listeners' queues name those that have ended, too.
    newest: [u32; 2],
    time_wait: Vec<(Tuple, TimeWaitEntry)>,
    spent_cookies: VecDeque<u64>,
    neighbours: Neighbours,
    lingering: Vec<u16>,
    orphans: u32,
    ports_tried: u32,
    counters: ControlCounters,
}

impl State {
    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Visits all payload memory that the stack uses: the process, the ring, and the number of bytes from the ring's beginning.
    pub fn visit_memory(&self, see: &mut dyn FnMut(u16, Ring, u32)) {
        for (connection, state, _) in &self.connections {
            let (process, filled) = (connection.context.process, connection.filled);
            see(process, state.receiving.ring, filled.receive);
            see(process, state.sending.ring, filled.send);
        }
        for listener in &self.listeners {
            for slot in &listener.slots {
                see(listener.context.process, slot.receive, slot.filled);
            }
        }
        for (_, _, handshake, _) in &self.handshakes {
            if let Some((process, slot)) = handshake.slot() {
                see(process, slot.receive, slot.filled);
            }
        }
        for (process, slot, filled) in self.takes.iter().filter_map(Takeover::memory) {
            see(process, slot.receive, filled.receive);
            see(process, slot.send, filled.send);
        }
    }
}

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    /// Whether the stack has nothing to do until time passes or input arrives. Outputs of earlier polls must have been
    /// performed.
    pub fn is_at_rest(&mut self, now: Nanos) -> bool {
        let is_done = self.packets.is_empty()
            && self.requests.is_empty()
            && self.tearing_down.is_empty()
            && self.gone.is_empty()
            && self.released.is_empty()
            && self.out.is_empty()
            && self.takes.iter().all(Takeover::is_unstarted);
        is_done && self.data.poll(now, 0, &mut self.data_outputs).is_none_or(|at| at > now)
    }

    /// Freezes all connections: they start no new work. The caller must poll until [`Stack::is_frozen`].
    pub fn freeze(&mut self) {
        for index in 0..self.connections.len() {
            if let Some(flow) = self.connections[index].map(|connection| connection.flow) {
                self.data.freeze(flow);
            }
        }
    }

    /// Whether all connections are frozen and none has work in flight.
    pub fn is_frozen(&self) -> bool {
        self.connections.iter().flatten().all(|connection| self.data.frozen(connection.flow))
    }

    /// Resumes frozen connections, as if their state had come from another agent.
    pub fn thaw(&mut self, now: Nanos) {
        self.takes.iter_mut().for_each(Takeover::restart);
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index] else { continue };
            // A connection that is torn down stays frozen.
            if !connection.is_tearing_down()
                && let Some(state) = self.data.export(connection.flow)
            {
                let restored = self.reinstall(now, &connection, &state);
                debug_assert!(restored.is_ok(), "its place has just become free");
            }
        }
    }

    /// Exports the state of a frozen stack.
    pub fn state(&self) -> State {
        let connection = |connection: &Connection| {
            let state = self.data.inspect(connection.flow)?;
            Some((*connection, state, self.deadline(connection.flow.index)))
        };
        let handshake = |(id, tuple, handshake): (FlowId, Tuple, &Handshake)| {
            (id, tuple, *handshake, self.deadline(self.bounds.flows + id.index))
        };
        State {
            secrets: self.secrets,
            algorithm: self.algorithm,
            owners: self.shares.owners().collect(),
            families: self.families.clone(),
            listeners: self.listeners.clone(),
            arrivals: self.arrivals,
            turn: self.turn,
            takes: self.takes.clone(),
            lent: self.lent.clone(),
            handshakes: self.handshakes.iter().map(handshake).collect(),
            connections: self.connections.iter().flatten().filter_map(connection).collect(),
            newest: [self.newest, self.handshakes.newest_generation()],
            time_wait: self.time_wait.in_order().map(|(tuple, over)| (tuple, *over)).collect(),
            spent_cookies: self.spent_cookies.clone(),
            neighbours: self.neighbours.clone(),
            lingering: self.lingering.clone(),
            orphans: self.orphans,
            ports_tried: self.ports_tried,
            counters: self.counters,
        }
    }

    /// Restores the state of another stack, which had the same addresses and bounds, into this one, which must be new.
    ///
    /// # Errors
    /// The state does not fit. This stack must then be dropped.
    pub fn restore(&mut self, now: Nanos, state: State) -> Result<(), RestoreError> {
        let ours = self.data.capabilities();
        let connections = state.connections.iter();
        let handshakes = state.handshakes.iter();
        let needed =
            connections.map(|(_, established, _)| Capabilities::needed_by(established)).chain(
                handshakes.map(|(_, tuple, handshake, _)| {
                    handshake.needed(tuple, state.algorithm.echo())
                }),
            );
        if let Some(missing) = needed.filter_map(|needed| ours.missing(&needed)).next() {
            return Err(RestoreError::Missing(missing));
        }
        let State { secrets, algorithm, owners, families, listeners, turn, takes, .. } = state;
        // Keep the own hash key: the places of the tables' entries depend on it.
        self.secrets = Secrets { table: self.secrets.table, ..secrets };
        self.algorithm = algorithm;
        owners.into_iter().for_each(|(process, owner)| self.shares.add_process(process, owner));
        self.families = families;
        self.lent = state.lent;
        self.arrivals = state.arrivals;
        self.turn = turn;
        self.takes.extend(takes);
        self.takes.iter_mut().for_each(Takeover::restart);
        for mut listener in listeners {
            let most = self.bounds.slots.min(listener.backlog.into()) as usize;
            listener.slots.reserve(most.saturating_sub(listener.slots.len()));
            self.acquire_share(listener.context.process, Kind::Listener);
            self.listeners.push(listener);
        }
        let [newest, newest_handshake] = state.newest;
        self.handshakes.reserve_generations(newest_handshake);
        for (id, tuple, handshake, deadline) in state.handshakes {
            self.handshakes.restore(tuple, id, handshake)?;
            self.acquire_share(handshake.process(), Kind::Handshake);
            self.set_timer(self.bounds.flows + id.index, deadline);
        }
        self.newest = newest;
        self.data.reserve_generations(newest);
        for (connection, established, deadline) in state.connections {
            self.reinstall(now, &connection, &established)?;
            self.acquire_share(connection.context.process, Kind::Connection);
            self.connections[connection.flow.index as usize] = Some(connection);
            self.set_timer(connection.flow.index, deadline);
        }
        for (tuple, over) in state.time_wait {
            self.time_wait.insert(tuple, over);
        }
        self.spent_cookies.extend(state.spent_cookies);
        self.neighbours = state.neighbours;
        self.lingering = state.lingering;
        self.orphans = state.orphans;
        self.ports_tried = state.ports_tried;
        self.counters = state.counters;
        Ok(())
    }

    /// Installs a connection in the data path.
    pub(super) fn install(
        &mut self,
        now: Nanos,
        established: &Established,
    ) -> Result<FlowId, NoRoom> {
        let flow = self.data.install(now, established)?;
        self.newest = self.newest.max(flow.generation);
        Ok(flow)
    }

    /// Installs a connection in the data path, under its old name.
    fn reinstall(
        &mut self,
        now: Nanos,
        connection: &Connection,
        established: &Established,
    ) -> Result<(), NoRoom> {
        self.data.restore(now, connection.flow, established)?;
        let path = connection.path();
        let usual = SocketOptions::default();
        if (path.diffserv, path.hop_limit) != (usual.diffserv, usual.hop_limit) {
            self.data.set_path(connection.flow, path);
        }
        Ok(())
    }

    /// The deadline of a connection or a handshake.
    fn deadline(&self, id: u32) -> Option<Nanos> {
        self.timers.key(id).map(Nanos)
    }
}
