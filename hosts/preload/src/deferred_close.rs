//! Deferred closes: connections and listeners that the program has closed, but of which a child of fork(2) may still have a copy. As in
//! Linux, the close takes effect with the last copy.
//!
//! The kernel tells us when that is: each placeholder is in an epoll of ours, and leaves it when its last descriptor in any process is
//! closed. Until then epoll reports it, because an unconnected socket is always ready (POLLHUP).

use std::collections::HashSet;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use wave_posix::Phase;

use crate::sys;
use crate::world::World;

/// Shortest time between two checks of the epoll.
const CHECK_EVERY: Duration = Duration::from_millis(100);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A socket that this process has closed, by its name at the agent.
#[derive(Clone, Copy, Debug)]
pub enum ClosedSocket {
    Connection(u32),
    /// A listener that was passed to other programs. Until they listen, it keeps the connections that are not yet accepted.
    Listener(u32),
}

/// The closed sockets of which another process may have a copy.
#[derive(Debug, Default)]
pub struct DeferredCloses {
    set: Option<OwnedFd>,
    last: u64,
    entries: Vec<DeferredClose>,
    checked_at: Option<Instant>,
}

#[derive(Debug)]
struct DeferredClose {
    /// The event data of the placeholder in the epoll.
    id: u64,
    /// The agent's incarnation, and the socket; `None` once the socket has ended here, for example because another process took it
    /// over.
    socket: Option<(u64, ClosedSocket)>,
}

impl DeferredCloses {
    /// Longest sleep before the next check. Only connections need one: their peers wait for the FIN or reset.
    pub fn patience(&self) -> Option<Duration> {
        let is_connection =
            |close: &DeferredClose| matches!(close.socket, Some((_, ClosedSocket::Connection(_))));
        self.entries.iter().any(is_connection).then_some(CHECK_EVERY)
    }
}

impl World {
    /// Defers the close of a socket whose last descriptor in this process is about to be closed. Returns false if the socket must be
    /// closed at once.
    pub fn defer_close(&mut self, fd: c_int, incarnation: u64, socket: ClosedSocket) -> bool {
        if self.deferred_closes.set.is_none() {
            let Ok(set) = epoll::create(CreateFlags::CLOEXEC) else { return false };
            let set = sys::move_away(set);
            self.hide(set.as_raw_fd());
            self.deferred_closes.set = Some(set);
        }
        let Some(set) = &self.deferred_closes.set else { return false };
        let id = self.deferred_closes.last + 1;
        if epoll::add(set, sys::fd(fd), EventData::new_u64(id), EventFlags::empty()).is_err() {
            return false;
        }
        self.deferred_closes.last = id;
        self.deferred_closes
            .entries
            .push(DeferredClose { id, socket: Some((incarnation, socket)) });
        if let ClosedSocket::Connection(name) = socket {
            self.agent(incarnation).owners.remove(&name);
        }
        true
    }

    /// Closes the sockets that have no copy left in any process. Checks at most every [`CHECK_EVERY`], unless `is_urgent`.
    #[inline]
    pub fn finish_deferred_closes(&mut self, is_urgent: bool) {
        if !self.deferred_closes.entries.is_empty() {
            self.check_deferred_closes(is_urgent);
        }
    }

    fn check_deferred_closes(&mut self, is_urgent: bool) {
        let count = self.deferred_closes.entries.len();
        let is_early = self.deferred_closes.checked_at.is_some_and(|at| at.elapsed() < CHECK_EVERY);
        if is_early && !is_urgent {
            return;
        }
        self.deferred_closes.checked_at = Some(Instant::now());
        let Some(set) = &self.deferred_closes.set else { return };
        let none = || Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events: Vec<Event> = (0..count).map(|_| none()).collect();
        let Ok(count) = epoll::wait(set, &mut events[..], Some(&AT_ONCE)) else { return };
        let alive: HashSet<u64> = events[..count].iter().map(|event| event.data.u64()).collect();
        let mut closes = std::mem::take(&mut self.deferred_closes.entries);
        closes.retain_mut(|close| {
            let is_alive = alive.contains(&close.id);
            if let Some((incarnation, socket)) = close.socket
                && (!is_alive || self.has_ended(incarnation, socket))
            {
                self.end(incarnation, socket);
                close.socket = None;
            }
            is_alive
        });
        self.deferred_closes.entries = closes;
    }

    fn has_ended(&mut self, incarnation: u64, socket: ClosedSocket) -> bool {
        let context = self.context(incarnation);
        context.is_dead()
            || matches!(socket, ClosedSocket::Connection(name)
                if matches!(context.socket(name).phase, Phase::Ended | Phase::Taken | Phase::Demoted))
    }

    fn end(&mut self, incarnation: u64, socket: ClosedSocket) {
        match socket {
            ClosedSocket::Connection(name) => self.end_connection(incarnation, name),
            ClosedSocket::Listener(listener) => {
                let context = self.context(incarnation);
                context.unlisten(listener);
                context.flush();
            }
        }
    }

    /// Closes a connection that no longer has a description.
    pub fn end_connection(&mut self, incarnation: u64, name: u32) {
        let context = self.context(incarnation);
        // RFC 2525, 2.17: with unread bytes, a reset without a FIN before it.
        match context.socket(name).receiving.available() > 0 {
            true => context.abort(name),
            false => context.close(name),
        }
    }

    /// Whether closes of this agent's sockets are pending.
    pub fn has_deferred_closes_of(&self, incarnation: u64) -> bool {
        let of =
            |close: &DeferredClose| close.socket.is_some_and(|(other, _)| other == incarnation);
        self.deferred_closes.entries.iter().any(of)
    }
}
