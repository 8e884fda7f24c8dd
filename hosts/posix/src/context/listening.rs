//! Listeners of a context, and the slots for connections that they offer.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use wave_tcp::context::{Request, Sharing};

use super::{Context, Listening, SLOTS};
use crate::agent_window::Queues;
use crate::socket::{Phase, Socket};

/// Time until a listener for which the agent has no room offers a slot again.
const OFFERS_AGAIN: Duration = Duration::from_millis(20);

impl Listening {
    fn new(backlog: u16) -> Listening {
        Listening {
            local: None,
            error: None,
            accepted: VecDeque::new(),
            backlog: backlog.into(),
            is_shared: false,
            is_awaited: false,
            offered: 0,
            slots_max: SLOTS,
        }
    }

    /// The agent has room for fewer slots than were offered. Sets when to try again, if it has room for none.
    pub(super) fn on_no_room(&mut self, retry_at: &mut Option<Instant>) {
        self.slots_max = self.offered;
        if self.offered == 0 {
            *retry_at = Some(Instant::now() + OFFERS_AGAIN);
        }
    }

    /// A connection has taken a slot. The agent may have room for one more slot than before.
    pub(super) fn on_connected(&mut self, socket: u32) {
        self.offered -= 1;
        self.is_awaited = false;
        self.slots_max = (self.slots_max + 1).min(SLOTS);
        self.accepted.push_back(socket);
    }

    /// Number of slots that it should offer.
    fn wanted(&self) -> usize {
        let room = match self.is_shared {
            // One at a time: what this process does not accept, another one may.
            true => usize::from(self.is_awaited && self.accepted.is_empty()),
            false => self.backlog.saturating_sub(self.accepted.len()),
        };
        room.min(self.slots_max)
    }
}

impl<Q: Queues> Context<Q> {
    /// Requests a listener that does not share its port.
    pub fn listen(&mut self, local: SocketAddr, backlog: u16) -> u32 {
        self.listen_sharing(local, backlog, Sharing::default())
    }

    /// Requests a listener that may share its port with others.
    pub fn listen_sharing(&mut self, local: SocketAddr, backlog: u16, sharing: Sharing) -> u32 {
        loop {
            self.last_listener = self.last_listener.wrapping_add(1);
            if !self.listeners.contains_key(&self.last_listener) {
                break;
            }
        }
        let listener = self.last_listener;
        let backlog = backlog.max(1);
        self.listeners.insert(listener, Listening::new(backlog));
        self.outbox.push_back(Request::Listen { listener, local, backlog, sharing });
        listener
    }

    /// Other processes may have the listener from now on, or its program waits no more: its unused slots and the connections that
    /// were not accepted go back to the agent, for whoever waits. The request is sent with the next flush.
    pub fn share(&mut self, listener: u32) {
        self.outbox.push_back(Request::Share { listener });
        let listening = self.listener(listener);
        (listening.is_shared, listening.is_awaited, listening.offered) = (true, false, 0);
        let accepted = std::mem::take(&mut listening.accepted);
        self.leave(listener, accepted);
    }

    /// The program waits for a connection of this listener. Returns whether a shared listener needs a flush, to offer a slot.
    pub fn await_connection(&mut self, listener: u32) -> bool {
        let listening = self.listener(listener);
        let is_new = listening.is_shared && listening.accepted.is_empty();
        let is_new = is_new && !std::mem::replace(&mut listening.is_awaited, true);
        self.wants_slots |= is_new;
        is_new
    }

    /// TCP_MAXSEG: limits segments of future connections to `mss_max` bytes, options included.
    pub fn limit_segments(&mut self, listener: u32, mss_max: u16) {
        self.outbox.push_back(Request::LimitSegments { listener, mss_max });
        self.flush();
    }

    /// Leaves a listener's slots and the connections that were not accepted to the agent.
    fn leave(&mut self, listener: u32, accepted: VecDeque<u32>) {
        for name in accepted {
            match self.socket(name).flow() {
                Some(_) => self.socket(name).is_closed = true,
                None => self.close(name),
            }
        }
        let slots = self.places.iter_mut().filter_map(|place| place.socket.as_mut());
        for socket in slots.filter(|socket| socket.phase == Phase::Slot(listener)) {
            socket.is_closed = true;
        }
    }

    /// Closes a listener, with all connections that were not accepted: the agent gives them to another listener that shares the
    /// port, or resets them.
    pub fn unlisten(&mut self, name: u32) {
        let Some(listening) = self.listeners.remove(&name) else { return };
        self.outbox.push_back(Request::Unlisten { listener: name });
        self.leave(name, listening.accepted);
    }

    /// A listener's local address or its error, once the agent has answered.
    pub fn listening(&mut self, listener: u32) -> Option<io::Result<SocketAddr>> {
        let listening = self.listener(listener);
        match listening.error {
            Some(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
            None => listening.local.map(Ok),
        }
    }

    /// Accepts a connection, and returns it with its peer's address; `None` while that would wait.
    pub fn accept(&mut self, listener: u32) -> Option<io::Result<(u32, SocketAddr)>> {
        if let Some(name) = self.pop_accepted(listener) {
            return Some(Ok((name, self.socket(name).remote)));
        }
        let errno = self.listener(listener).error?;
        Some(Err(io::Error::from_raw_os_error(errno)))
    }

    /// Number of calls of [`Context::accept`] that would not wait; an error counts as one.
    pub fn acceptable(&mut self, listener: u32) -> usize {
        let listening = self.listener(listener);
        listening.accepted.len() + usize::from(listening.error.is_some())
    }

    /// Takes a connection from the accept queue, if there is one.
    fn pop_accepted(&mut self, listener: u32) -> Option<u32> {
        let name = self.listener(listener).accepted.pop_front()?;
        let local = self.listener(listener).local;
        self.wants_slots = true;
        let socket = self.socket(name);
        socket.local = local.unwrap_or(socket.local);
        socket.is_accepted = true;
        if let Some(flow) = socket.flow() {
            self.outbox.push_back(Request::Accept { flow });
        }
        // Its first bytes may have arrived earlier.
        self.change(name);
        self.fill_ahead(name);
        Some(name)
    }

    /// Offers a slot again of each listener for which the agent had no room, if it is time.
    pub(super) fn offer_again(&mut self) {
        if self.retry_at.is_some_and(|at| Instant::now() >= at) {
            self.retry_at = None;
            self.listeners.values_mut().for_each(|one| one.slots_max = one.slots_max.max(1));
            self.wants_slots = true;
        }
    }

    /// Offers slots, so that the agent answers connection requests without waiting for the program.
    pub(super) fn offer_slots(&mut self) {
        let names: Vec<u32> = self.listeners.keys().copied().collect();
        for name in names {
            loop {
                let listener = self.listener(name);
                let Some(local) = listener.local else { break };
                if listener.error.is_some() || listener.offered >= listener.wanted() {
                    break;
                }
                let Some(socket) = self.insert(Phase::Slot(name), local, local) else { break };
                self.listener(name).offered += 1;
                let Socket { receiving, sending, .. } = self.socket(socket);
                let (receive, send, filled) = (receiving.ring, sending.ring, receiving.filled);
                let slot = Request::Slot { listener: name, socket, receive, send, filled };
                self.outbox.push_back(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_that_was_short_of_slots_offers_more_again() {
        let mut listener = Listening::new(128);
        listener.offered = 1;
        let mut retry_at = None;
        listener.on_no_room(&mut retry_at);
        assert_eq!((listener.slots_max, retry_at), (1, None));
        for socket in 0..SLOTS as u32 {
            listener.on_connected(socket);
            listener.offered += 1;
        }
        assert_eq!((listener.slots_max, listener.accepted.len()), (SLOTS, SLOTS));
    }
}
