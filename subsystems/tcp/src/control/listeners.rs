//! Listeners: their ports, and the slots that hosts offer for future connections.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::shares::Kind;
use super::{Call, Listener, Slot, Stack, secrets};
use crate::context::{ContextId, Event, Interest, Reason, Sharing};
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
        let is_met = |other: &Listener, port: u16| {
            self.address.all().any(|own| {
                covers(local.ip(), own) && is_at(other.local, SocketAddr::new(own, port))
            })
        };
        let is_taken = |port: u16| {
            self.listeners.iter().any(|other| {
                let is_same = other.local == SocketAddr::new(local.ip(), port);
                is_met(other, port) && !(is_same && self.may_share(from, sharing, other))
            })
        };
        // A process with the listener's secret got it from a process that may have the port.
        let is_let_in = |port: u16| {
            let mut others = self.listeners.iter();
            others.any(|other| has_secret(sharing, other) && other.local.port() == port)
        };
        let port = match local.port() {
            0 => secrets::PORTS.clone().rev().find(|port| !is_taken(*port)),
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
            Some(port) if is_taken(port) => Some(Reason::AddressInUse),
            Some(_) if !self.has_room(from.process, Kind::Listener) => {
                self.counters.beyond_share += 1;
                Some(Reason::TooMany)
            }
            Some(port) if is_let_in(port) => None,
            Some(port) => self.may_have_port(from.process, port).err(),
        };
        if let Some(reason) = refused {
            self.refused(from, Call::Listen, reason);
            return self.tell(from, Event::NotListening { listener: name, reason });
        }
        let port = port.unwrap_or_default();
        self.take_share(from.process, Kind::Listener);
        self.listeners.push(Listener {
            context: from,
            name,
            local: SocketAddr::new(local.ip(), port),
            backlog,
            sharing,
            interest: Interest::Unknown,
            mss_max: u16::MAX,
            slots: VecDeque::with_capacity(u32::from(backlog).min(self.bounds.slots) as usize),
            half_open: 0,
            acknowledged: 0,
            waiting: VecDeque::new(),
            shape: None,
            slots_max: 0,
            cookie_sent_at: None,
        });
        let local = self.told(SocketAddr::new(local.ip(), port));
        self.tell(from, Event::Listening { listener: name, local });
    }

    /// Whether a process may listen at the address and port of an existing listener.
    pub(super) fn may_share(&self, from: ContextId, sharing: Sharing, other: &Listener) -> bool {
        let user = |process| self.shares.owner(process).map(|owner| owner.user);
        let both_reuse = sharing.reuses_port && other.sharing.reuses_port;
        has_secret(sharing, other)
            || (both_reuse && user(from.process) == user(other.context.process))
    }

    pub(super) fn await_connections(&mut self, from: ContextId, name: u32, interest: Interest) {
        let Some(at) = self.listener_of(from, name) else { return };
        self.listeners[at].interest = interest;
        if interest == Interest::No {
            self.give_slots_back(at);
        }
    }

    fn give_slots_back(&mut self, at: usize) {
        let context = self.listeners[at].context;
        while let Some(Slot { socket, .. }) = self.listeners[at].slots.pop_front() {
            self.tell(context, Event::Unused { socket });
        }
    }

    /// Chooses the listener for a new connection to our address and port `own`: of those that share the port, one with a slot,
    /// in turn.
    pub(super) fn place(&mut self, own: SocketAddr) -> Option<usize> {
        let all = || self.listeners.iter().enumerate().filter(|(_, one)| is_at(one.local, own));
        let interest = all().map(|(_, one)| one.interest).max()?;
        let may = || all().filter(|(_, one)| one.interest == interest && interest > Interest::No);
        let has_slot = || may().filter(|(_, one)| !one.slots.is_empty());
        let chosen = match has_slot().count() {
            0 => may().next(),
            count => has_slot().nth(self.turn % count),
        };
        let at = chosen.map(|(at, _)| at);
        self.turn = self.turn.wrapping_add(1);
        at
    }

    /// Limit of handshakes of one listener, so that a flood of its port leaves room for others.
    pub(super) fn half_open_max(&self, backlog: u16) -> u32 {
        u32::from(backlog).clamp(1, (self.bounds.handshakes / 2).max(1))
    }

    /// A listener's address as reported to its host: the agent's address, if `local` stands for just one.
    pub(super) fn told(&self, local: SocketAddr) -> SocketAddr {
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

    pub(super) fn take_slot(
        &mut self,
        now: Nanos,
        from: ContextId,
        name: u32,
        slot: Slot,
    ) -> Option<Reason> {
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
        self.open_next(now, at);
        None
    }

    /// Gives the new slot of a listener to the oldest handshake that waits for one: of this listener, or of another one at its
    /// port.
    fn open_next(&mut self, now: Nanos, at: usize) {
        let local = self.listeners[at].local;
        let others = (0..self.listeners.len()).filter(|other| *other != at);
        let waits = |other: &usize| {
            let one = &self.listeners[*other];
            one.acknowledged > 0 && (*other == at || one.local == local && one.slots.is_empty())
        };
        let Some(of) = core::iter::once(at).chain(others).find(waits) else { return };
        while let Some(id) = self.listeners[of].waiting.pop_front() {
            if self.is_waiting(id, of) {
                if !self.open_acknowledged(now, id) {
                    self.listeners[of].waiting.push_front(id);
                }
                return;
            }
        }
    }

    pub(super) fn unlisten(&mut self, from: ContextId, name: u32) {
        if let Some(at) = self.listener_of(from, name) {
            self.drop_listener(at, true);
        }
    }

    pub(super) fn drop_listener(&mut self, at: usize, tells: bool) {
        if tells {
            self.give_slots_back(at);
        }
        let Listener { context, name, local, cookie_sent_at, .. } = self.listeners.swap_remove(at);
        for other in self.listeners.iter_mut().filter(|one| one.local.port() == local.port()) {
            other.cookie_sent_at = other.cookie_sent_at.max(cookie_sent_at);
        }
        self.give_share(context.process, Kind::Listener);
        let waiting: Vec<(FlowId, SocketAddr)> = self
            .handshakes
            .iter()
            .filter(|(_, _, handshake)| handshake.is_of(context.process, name))
            .map(|(id, tuple, _)| (id, tuple.local))
            .collect();
        for (id, own) in waiting {
            // Another listener that shares the port completes the handshake, even if no program waits there yet.
            match self.place(own).or_else(|| self.listener_at(own)) {
                Some(at) => self.give_handshake(id, at),
                None => self.drop_handshake(id),
            }
        }
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
pub(super) fn is_at(listener: SocketAddr, own: SocketAddr) -> bool {
    listener.port() == own.port() && covers(listener.ip(), own.ip())
}
