//! Connections of which several processes have a descriptor (docs/adr/0104).
//!
//! Before another process may get a descriptor, the agent gets the connection's placeholder, by which it knows how long any process has one.
//! From then on every call tells the agent how far it has read and written before it returns ([`World::leave_shared`]), so that the agent
//! can give the connection to somebody else while this process does not run.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::sockopt::set_socket_linger;
use wave_links::socket::SocketError;
use wave_posix::{Identity, Phase};

use crate::description::State;
use crate::sys;
use crate::world::{ANSWER_PATIENCE, RETRY, World};

/// A sandbox may forbid this process system calls that the library does without.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);
/// Most placeholders in a message.
const PLACEHOLDERS_MAX: usize = 128;
/// Sleep between two looks for the event after which this process may go on.
const LOOK_AGAIN: Duration = Duration::from_micros(20);

/// What a process needs to use a connection that belongs to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub identity: Identity,
    /// The secret that entitles to the connection.
    pub secret: u128,
    /// The port of the agent's door for streams of the kernel's.
    pub door: u16,
}

/// Called before the process sets a filter of system calls.
#[cfg_attr(test, allow(dead_code))]
pub fn confine() {
    IS_CONFINED.store(true, Ordering::Relaxed);
}

impl World {
    /// Begins a call: waits until the agent has said which of the shared connections it has taken away.
    pub fn enter_shared(&mut self) {
        for agent in &mut self.agents {
            while agent.context.shares() && !agent.context.enter_shared() {
                self.has_unnotified = true;
                if !agent.process_events() {
                    wave_posix::pause(LOOK_AGAIN);
                }
            }
        }
    }

    /// From now on, the agent knows of all reads and writes of a connection before this process leaves a call.
    pub fn share_connection(&mut self, incarnation: u64, name: u32) {
        self.shares = true;
        self.context(incarnation).share_connection(name);
    }

    /// Ends a call: the agent knows how far this process has read and written.
    pub fn leave_shared(&mut self) {
        for agent in &mut self.agents {
            while agent.context.shares() && !agent.context.leave_shared() {
                // The queue has no room.
                agent.process_events();
                wave_posix::pause(RETRY);
            }
        }
    }

    /// O_NONBLOCK. Processes share that of a connection, and set it on the placeholder: it is asked for, unless a sandbox may forbid that.
    pub fn is_nonblocking(&mut self, fd: c_int, at: usize) -> bool {
        match IS_CONFINED.load(Ordering::Relaxed) {
            true => self.description(at).is_nonblocking,
            false => self.ask_nonblocking(fd, at),
        }
    }

    /// Whether O_NONBLOCK is set, as far as no system call is needed to tell.
    pub fn is_known_nonblocking(&mut self, at: usize) -> bool {
        let description = self.description(at);
        description.claim.is_none() && description.is_nonblocking
    }

    /// As [`World::is_nonblocking`], for a program that asks itself.
    pub fn ask_nonblocking(&mut self, fd: c_int, at: usize) -> bool {
        let description = self.description(at);
        if description.claim.is_some()
            && let Ok(flags) = fcntl_getfl(sys::fd(fd))
        {
            description.is_nonblocking = flags.contains(OFlags::NONBLOCK);
        }
        description.is_nonblocking
    }

    /// What another process needs to use a connection, which is shared for that if it is this process's.
    pub fn claim(&mut self, at: usize) -> Option<Claim> {
        if let State::Open(_) = self.description(at).state {
            if self.family_secret.is_none() {
                self.family_secret = sys::random().ok();
            }
            let (incarnation, secret) = (self.description(at).incarnation, self.family_secret);
            self.join(incarnation, secret);
            self.share_connections(|other| other == at);
        }
        self.description(at).claim.as_deref().copied()
    }

    /// Prepares connections to be used by other processes, under the secret of this process's family: those for whose descriptions `is_it`
    /// holds.
    pub fn share_connections(&mut self, is_it: impl Fn(usize) -> bool) {
        let Some(secret) = self.family_secret else { return };
        let mut is_known = vec![false; self.descriptions.len()];
        let mut places: Vec<(u64, usize, c_int, u32)> = Vec::new();
        for (fd, at) in self.numbers() {
            let description = self.descriptions[at].as_ref().filter(|_| is_it(at));
            if let Some(description) = description
                && let State::Open(name) = description.state
                && description.claim.is_none()
                && !std::mem::replace(&mut is_known[at], true)
            {
                places.push((description.incarnation, at, fd, name));
            }
        }
        let mut incarnations: Vec<u64> = places.iter().map(|place| place.0).collect();
        incarnations.dedup();
        for incarnation in incarnations {
            let its: Vec<_> = places.iter().filter(|place| place.0 == incarnation).collect();
            for some in its.chunks(PLACEHOLDERS_MAX) {
                let sent: Option<Vec<_>> = some
                    .iter()
                    .map(|(_, at, fd, name)| {
                        let identity = self.context(incarnation).identity(*name)?;
                        Some((*at, *fd, *name, identity))
                    })
                    .collect();
                let Some(sent) = sent else { continue };
                // With SO_LINGER, the agent would not take it: its close(2) of the last descriptor could wait.
                self.set_lingers(&sent, false);
                let is_known = self.send_placeholders(incarnation, &sent).is_some();
                self.set_lingers(&sent, true);
                if !is_known {
                    continue;
                }
                let door = self.context(incarnation).door().unwrap_or(0);
                for (at, _, name, identity) in sent {
                    self.share_connection(incarnation, name);
                    self.description(at).claim = Some(Box::new(Claim { identity, secret, door }));
                }
            }
        }
        // This call may have begun without shared connections. Nobody else knows of these yet.
        self.enter_shared();
    }

    /// Sets SO_LINGER of placeholders as their program has it, or turns it off.
    fn set_lingers(&mut self, placeholders: &[(usize, c_int, u32, Identity)], is_on: bool) {
        for (at, fd, ..) in placeholders {
            let linger = self.description(*at).wait_bounds.linger;
            if linger.is_some() {
                let _ = set_socket_linger(sys::fd(*fd), linger.filter(|_| is_on));
            }
        }
    }

    /// Sends the agent placeholders with the names of their connections, and waits for its answer.
    fn send_placeholders(
        &mut self,
        incarnation: u64,
        sent: &[(usize, c_int, u32, Identity)],
    ) -> Option<()> {
        let text: Vec<u8> = sent.iter().flat_map(|one| one.3.flow.to_le_bytes()).collect();
        let fds: Vec<BorrowedFd<'_>> = sent.iter().map(|one| sys::fd(one.1)).collect();
        let start = Instant::now();
        loop {
            match self.context(incarnation).send_shared(&text, &fds) {
                Ok(()) => break,
                Err(SocketError::HungUp) => return None,
                Err(_) if start.elapsed() > ANSWER_PATIENCE => return None,
                Err(_) => wave_posix::pause(RETRY),
            }
        }
        self.await_answer(incarnation, |context| context.door())?;
        Some(())
    }

    /// Follows the agent's news about a connection that is not this process's any more. Returns false if it still is.
    pub fn on_taken_away(&mut self, at: usize) -> bool {
        let description = self.description(at);
        let State::Open(name) = description.state else { return false };
        let incarnation = description.incarnation;
        let phase = self.context(incarnation).socket(name).phase;
        if !matches!(phase, Phase::Taken | Phase::Demoted) {
            return false;
        }
        let agent = self.agent(incarnation);
        agent.owners.remove(&name);
        agent.context.close(name);
        let description = self.description(at);
        description.state = State::NotOwned;
        description.checkpoint = None;
        // A thread waits for its events, or a set does, and nothing here would notice them.
        let is_watched = description.source.is_watched() || description.callers > 0;
        if is_watched {
            self.take_over(at);
        }
        true
    }
}
