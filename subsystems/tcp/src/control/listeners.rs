//! Listeners: their ports, and the slots that hosts offer for future connections.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::shares::Kind;
use super::{Call, Listener, Slot, Stack, secrets};
use crate::context::{ContextId, Event, Reason, Sharing};
use crate::datapath::{Datapath, FlowId};
use wave_core::clock::Nanos;

impl<F: AsRef<[u8]>, D: Datapath<F>> Stack<F, D> {
    pub(super) fn listen(
        &mut self,
        from: ContextId,
        name: u32,
        local: SocketAddr,
        backlog: u16,
        sharing: Sharing,
    ) {
        let is_ours = self.address.all().any(|own| covers(local.ip(), own));
        let overlaps = |other: &Listener, port: u16| {
            self.address.all().any(|own| {
                covers(local.ip(), own) && accepts_at(other.local, SocketAddr::new(own, port))
            })
        };
        let is_in_use = |port: u16| {
            self.listeners.iter().any(|other| {
                let is_same = other.local == SocketAddr::new(local.ip(), port);
                overlaps(other, port) && !(is_same && self.may_share(from, sharing, other))
            })
        };
        // A process with the listener's secret got it from a process that may have the port.
        let may_join = |port: u16| {
            let mut others = self.listeners.iter();
            others.any(|other| has_secret(sharing, other) && other.local.port() == port)
        };
        let port = match local.port() {
            0 => secrets::EPHEMERAL_PORTS.clone().rev().find(|port| !is_in_use(*port)),
            port => Some(port),
        };
        let is_named = self
            .listeners
            .iter()
            .any(|other| (other.context.process, other.name) == (from.process, name));
        let refused = match port {
            _ if !is_ours => Some(Reason::AddressNotAvailable),
            _ if is_named => Some(Reason::Invalid),
            _ if self.listeners.len() >= self.bounds.listeners as usize => Some(Reason::NoRoom),
            None => Some(Reason::AddressNotAvailable),
            Some(port) if is_in_use(port) => Some(Reason::AddressInUse),
            Some(_) if !self.has_room(from.process, Kind::Listener) => {
                self.counters.beyond_share += 1;
                Some(Reason::TooMany)
            }
            Some(port) if may_join(port) => None,
            Some(port) => self.check_port(from.process, port).err(),
        };
        if let Some(reason) = refused {
            self.refused(from, Call::Listen, reason);
            return self.notify(from, Event::NotListening { listener: name, reason });
        }
        let port = port.unwrap_or_default();
        let address = SocketAddr::new(local.ip(), port);
        // Connections may have to wait before this process offers a slot.
        let is_same = |other: &&Listener| other.local == address && has_secret(sharing, other);
        let shape = self.listeners.iter().filter(is_same).find_map(|other| other.shape);
        self.acquire_share(from.process, Kind::Listener);
        self.listeners.push(Listener {
            context: from,
            name,
            local: address,
            backlog,
            sharing,
            is_shared: false,
            mss_max: u16::MAX,
            slots: VecDeque::with_capacity(u32::from(backlog).min(self.bounds.slots) as usize),
            half_open: 0,
            acknowledged: 0,
            waiting: VecDeque::new(),
            shape,
            slots_max: 0,
            unaccepted: 0,
            cookie_sent_at: None,
        });
        let local = self.reported_address(address);
        self.notify(from, Event::Listening { listener: name, local });
    }

    /// Whether a process may listen at the address and port of an existing listener.
    pub(super) fn may_share(&self, from: ContextId, sharing: Sharing, other: &Listener) -> bool {
        let user = |process| self.shares.owner(process).map(|owner| owner.user);
        let both_reuse = sharing.reuses_port && other.sharing.reuses_port;
        has_secret(sharing, other)
            || (both_reuse && user(from.process) == user(other.context.process))
    }

    /// Other processes may have the listener, too, or its program waits no more: its slots and the connections that it has not
    /// accepted are for whoever waits.
    pub(super) fn share(&mut self, from: ContextId, name: u32) {
        let Some(at) = self.listener_of(from, name) else { return };
        self.return_slots(at);
        let listener = &mut self.listeners[at];
        listener.is_shared = true;
        let (sharing, unaccepted) = (listener.sharing, core::mem::take(&mut listener.unaccepted));
        self.reoffer(true, |context, of| (context.process, of) == (from.process, name));
        self.offer_unaccepted(from, (name, sharing), unaccepted);
    }

    fn return_slots(&mut self, at: usize) {
        let context = self.listeners[at].context;
        while let Some(Slot { socket, .. }) = self.listeners[at].slots.pop_front() {
            self.notify(context, Event::Unused { socket });
        }
    }

    /// Chooses the listener for a new connection to our address and port `local`: of those that share the port, one with a slot, in
    /// turn. If none has any, the connection waits at one that knows what a slot looks like.
    pub(super) fn choose_listener(&mut self, local: SocketAddr) -> Option<usize> {
        let all =
            || self.listeners.iter().enumerate().filter(|(_, one)| accepts_at(one.local, local));
        let has_slot = || all().filter(|(_, one)| !one.slots.is_empty());
        let chosen = match has_slot().count() {
            0 => all().find(|(_, one)| one.shape.is_some()).or_else(|| all().next()),
            count => has_slot().nth(self.turn % count),
        };
        let at = chosen.map(|(at, _)| at);
        self.turn = self.turn.wrapping_add(1);
        at
    }

    /// Processes that have the same listener as this process, by its secret.
    pub fn sharers(&self, process: u16, name: u32) -> impl Iterator<Item = u16> {
        let at = self.listener_named(process, name);
        let listener = at.map(|at| (self.listeners[at].local, self.listeners[at].sharing));
        let all = self.listeners.iter().filter(move |other| {
            listener
                .is_some_and(|(local, sharing)| other.local == local && has_secret(sharing, other))
        });
        all.map(|other| other.context.process).filter(move |other| *other != process)
    }

    /// Processes that have a listener at this port.
    pub fn listening_at(&self, port: u16) -> impl Iterator<Item = u16> {
        let its = self.listeners.iter().filter(move |listener| listener.local.port() == port);
        its.map(|listener| listener.context.process)
    }

    /// Number of acknowledged handshakes in a listener's queue: also those that wait at the same listener of other processes.
    pub(super) fn queued(&self, at: usize) -> u32 {
        let listener = &self.listeners[at];
        let is_same =
            |other: &Listener| other.local == listener.local && has_secret(listener.sharing, other);
        let all = self.listeners.iter().enumerate();
        all.filter(|(of, other)| *of == at || is_same(other))
            .map(|(_, other)| other.acknowledged)
            .sum()
    }

    /// Limit of handshakes of one listener, so that a flood of its port leaves room for others.
    pub(super) fn half_open_max(&self, backlog: u16) -> u32 {
        u32::from(backlog).clamp(1, (self.bounds.handshakes / 2).max(1))
    }

    /// A listener's address as reported to its host: the agent's address, if `local` stands for just one.
    pub(super) fn reported_address(&self, local: SocketAddr) -> SocketAddr {
        let mut meant = self.address.all().filter(|own| covers(local.ip(), *own));
        match (meant.next(), meant.next()) {
            (Some(own), None) => SocketAddr::new(own, local.port()),
            _ => local,
        }
    }

    pub(super) fn listener_of(&self, from: ContextId, name: u32) -> Option<usize> {
        self.listener_named(from.process, name)
    }

    pub(super) fn listener_named(&self, process: u16, name: u32) -> Option<usize> {
        self.listeners.iter().position(|one| (one.context.process, one.name) == (process, name))
    }

    pub(super) fn add_slot(&mut self, from: ContextId, name: u32, slot: Slot) -> Option<Reason> {
        let Some(at) = self.listener_of(from, name) else { return Some(Reason::Invalid) };
        let most = self.bounds.slots as usize;
        let listener = &mut self.listeners[at];
        if listener.slots.len() >= most {
            return Some(Reason::NoRoom);
        }
        // Events go to the context that offers slots: the thread that accepts.
        listener.context = from;
        listener.shape = Some(slot.shape());
        listener.slots.push_back(slot);
        listener.slots_max = listener.slots_max.max(listener.slots.len() as u32);
        None
    }

    /// Gives unused slots to handshakes that wait for one. Connections on offer come first: they are older.
    pub(super) fn assign_slots(&mut self, now: Nanos) {
        if self.listeners.iter().all(|one| one.acknowledged == 0) {
            return;
        }
        for at in 0..self.listeners.len() {
            while !self.listeners[at].slots.is_empty()
                && !self.has_offer_for(at)
                && self.open_oldest(now, at)
            {}
        }
    }

    /// Gives a slot of a listener to the oldest handshake that waits for one: of this listener in any process, otherwise of another one
    /// at its port.
    /// Returns false if there is none, or no room.
    fn open_oldest(&mut self, now: Nanos, at: usize) -> bool {
        let Listener { local, context, sharing, .. } = self.listeners[at];
        let mut oldest = None;
        for other in 0..self.listeners.len() {
            let one = &self.listeners[other];
            let may_have = other == at || one.local == local && one.slots.is_empty();
            if !may_have || one.acknowledged == 0 {
                continue;
            }
            // Processes that share a listener have one queue. Queues of other listeners come second.
            let is_other = other != at && !has_secret(sharing, one);
            if let Some(arrived) = self.first_waiting(other) {
                let key = (is_other, arrived, other);
                oldest = Some(oldest.map_or(key, |oldest| key.min(oldest)));
            }
        }
        let Some((_, _, of)) = oldest else { return false };
        if !self.has_room(context.process, Kind::Connection) {
            return false;
        }
        let Some(id) = self.listeners[of].waiting.pop_front() else { return false };
        let is_opened = self.open_acknowledged(now, id);
        if !is_opened {
            self.listeners[of].waiting.push_front(id);
        }
        is_opened
    }

    pub(super) fn unlisten(&mut self, from: ContextId, name: u32) {
        if let Some(at) = self.listener_of(from, name) {
            self.drop_listener(at, true);
        }
    }

    pub(super) fn drop_listener(&mut self, at: usize, notifies: bool) {
        if notifies {
            self.return_slots(at);
        }
        let listener = self.listeners.swap_remove(at);
        let Listener { context, name, local, sharing, shape, cookie_sent_at, unaccepted, .. } =
            listener;
        for other in self.listeners.iter_mut().filter(|one| one.local.port() == local.port()) {
            other.cookie_sent_at = other.cookie_sent_at.max(cookie_sent_at);
            if has_secret(sharing, other) {
                other.shape = other.shape.or(shape);
            }
        }
        self.release_share(context.process, Kind::Listener);
        self.reoffer(notifies, |of, its| (of.process, its) == (context.process, name));
        self.offer_unaccepted(context, (name, sharing), unaccepted);
        let waiting: Vec<(FlowId, SocketAddr)> = self
            .handshakes
            .iter()
            .filter(|(_, _, handshake)| handshake.is_of(context.process, name))
            .map(|(id, tuple, _)| (id, tuple.local))
            .collect();
        let mut given = Vec::new();
        for (id, local) in waiting {
            // Another listener that shares the port completes the handshake, even if no program waits there yet.
            match self.choose_listener(local) {
                Some(at) => {
                    self.move_handshake(id, at);
                    given.push(at);
                }
                None => {
                    self.reset_waiting(id);
                    self.drop_handshake(id);
                }
            }
        }
        given.sort_unstable();
        given.dedup();
        given.into_iter().for_each(|at| self.sort_waiting(at));
    }
}

pub(super) fn has_secret(sharing: Sharing, other: &Listener) -> bool {
    sharing.secret != 0 && sharing.secret == other.sharing.secret
}

/// Whether a listener at `local` accepts connections to the agent's address `own`. IPv6's unspecified address stands for both
/// families.
pub(super) fn covers(local: IpAddr, own: IpAddr) -> bool {
    local == own || (local.is_unspecified() && (local.is_ipv6() || own.is_ipv4()))
}

/// Whether a listener accepts connections to the agent's address and port `own`.
pub(super) fn accepts_at(listener: SocketAddr, own: SocketAddr) -> bool {
    listener.port() == own.port() && covers(listener.ip(), own.ip())
}
