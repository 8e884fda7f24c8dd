//! Connections and listeners that the program has closed, and that a child of fork(2) may still have: they end with the last copy, as in
//! Linux.
//!
//! The kernel knows when that is: a placeholder is in an epoll of ours, from which it disappears with its last descriptor in any process.
//! Until then it is reported, because a socket without a connection is always ready (POLLHUP).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use wave_posix::Phase;

use crate::sys;
use crate::world::World;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A socket of this process at an agent.
#[derive(Clone, Copy, Debug)]
pub enum Buried {
    Connection(u32),
    /// A listener that was left to other processes. Until they listen, it keeps the connections that nobody has accepted.
    Listener(u32),
}

/// Closed sockets of which another process may have a copy.
#[derive(Debug, Default)]
pub struct Graves {
    set: Option<OwnedFd>,
    last: u64,
    graves: Vec<Grave>,
    looked: Option<Instant>,
}

#[derive(Debug)]
struct Grave {
    /// The data of the placeholder in the set.
    id: u64,
    /// The agent's life, and the socket; `None` once the socket has ended here, for example because another process has taken it.
    buried: Option<(u64, Buried)>,
}

impl Graves {
    /// Longest sleep before the next look. Only connections need one: their peers wait for the end.
    pub fn patience(&self) -> Option<Duration> {
        let is_connection =
            |grave: &Grave| matches!(grave.buried, Some((_, Buried::Connection(_))));
        self.graves.iter().any(is_connection).then_some(LOOK_EVERY)
    }
}

impl World {
    /// Keeps a socket whose last descriptor here is about to be closed. Returns false if it must end at once.
    pub fn bury(&mut self, fd: c_int, life: u64, socket: Buried) -> bool {
        if self.graves.set.is_none() {
            let Ok(set) = epoll::create(CreateFlags::CLOEXEC) else { return false };
            self.hide(set.as_raw_fd());
            self.graves.set = Some(set);
        }
        let Some(set) = &self.graves.set else { return false };
        let id = self.graves.last + 1;
        if epoll::add(set, sys::fd(fd), EventData::new_u64(id), EventFlags::empty()).is_err() {
            return false;
        }
        self.graves.last = id;
        self.graves.graves.push(Grave { id, buried: Some((life, socket)) });
        if let Buried::Connection(name) = socket {
            self.agent(life).owners.remove(&name);
        }
        true
    }

    /// Ends sockets whose last copy is closed.
    pub fn look_at_graves(&mut self, is_urgent: bool) {
        let count = self.graves.graves.len();
        if count == 0 {
            return;
        }
        let is_early = self.graves.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY);
        if is_early && !is_urgent {
            return;
        }
        self.graves.looked = Some(Instant::now());
        let Some(set) = &self.graves.set else { return };
        let none = || Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events: Vec<Event> = (0..count).map(|_| none()).collect();
        let Ok(count) = epoll::wait(set, &mut events[..], Some(&AT_ONCE)) else { return };
        let alive: Vec<u64> = events[..count].iter().map(|event| event.data.u64()).collect();
        let mut graves = std::mem::take(&mut self.graves.graves);
        graves.retain_mut(|grave| {
            let is_alive = alive.contains(&grave.id);
            if let Some((life, socket)) = grave.buried
                && (!is_alive || self.has_ended(life, socket))
            {
                self.end(life, socket);
                grave.buried = None;
            }
            is_alive
        });
        self.graves.graves = graves;
    }

    fn has_ended(&mut self, life: u64, socket: Buried) -> bool {
        let context = self.context(life);
        context.is_dead()
            || matches!(socket, Buried::Connection(name) if context.socket(name).phase == Phase::Ended)
    }

    fn end(&mut self, life: u64, socket: Buried) {
        match socket {
            Buried::Connection(name) => self.end_connection(life, name),
            Buried::Listener(listener) => {
                let context = self.context(life);
                context.unlisten(listener);
                context.flush();
            }
        }
    }

    /// Closes a connection that has no description any more.
    pub fn end_connection(&mut self, life: u64, name: u32) {
        let context = self.context(life);
        // RFC 2525, 2.17: no FIN goes before the reset.
        match context.socket(name).receiving.available() > 0 {
            true => context.abort(name),
            false => context.close(name),
        }
    }

    /// Whether sockets of this agent are kept here.
    pub fn has_graves_of(&self, life: u64) -> bool {
        let of = |grave: &Grave| grave.buried.is_some_and(|(other, _)| other == life);
        self.graves.graves.iter().any(of)
    }
}
