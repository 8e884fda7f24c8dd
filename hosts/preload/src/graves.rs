//! Connections that the program has closed, and that a child of fork(2) may still have: they end with the last copy, as in Linux.
//!
//! The kernel knows when that is: a placeholder is in an epoll of ours, from which it disappears with its last descriptor in any process.
//! Until then it is reported, because a socket without a connection is always ready (POLLHUP).

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::sys;
use crate::world::World;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Closed connections that somebody may have.
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
    /// The agent's life, and the connection, until another process has taken it.
    connection: Option<(u64, u32)>,
}

impl Graves {
    /// Longest sleep before the next look.
    pub fn patience(&self) -> Option<Duration> {
        self.graves.iter().any(|grave| grave.connection.is_some()).then_some(LOOK_EVERY)
    }
}

impl World {
    /// Keeps a connection whose last descriptor here is about to be closed. Returns false if it must end at once.
    pub fn bury(&mut self, fd: c_int, life: u64, name: u32) -> bool {
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
        self.graves.graves.push(Grave { id, connection: Some((life, name)) });
        self.agent(life).owners.remove(&name);
        true
    }

    /// Ends connections that nobody has any more.
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
            if let Some((life, name)) = grave.connection
                && (!is_alive || self.has_ended(life, name))
            {
                self.end_connection(life, name);
                grave.connection = None;
            }
            is_alive
        });
        self.graves.graves = graves;
    }

    fn has_ended(&mut self, life: u64, name: u32) -> bool {
        let context = self.context(life);
        context.is_dead() || context.socket(name).phase == wave_posix::Phase::Ended
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

    /// Whether an agent has such connections.
    pub fn has_graves_of(&self, life: u64) -> bool {
        let of = |grave: &Grave| grave.connection.is_some_and(|(other, _)| other == life);
        self.graves.graves.iter().any(of)
    }
}
