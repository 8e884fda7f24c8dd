//! Closing and duplicating descriptors (close(2), dup(2)), and the flags that descriptors share.

use std::ffi::c_int;
use std::time::Instant;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::getpeername;
use rustix::net::sockopt::{socket_acceptconn, socket_linger};

use crate::deferred_close::ClosedSocket;
use crate::description::{Description, State, Tcp};
use crate::names::family_of;
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::wait::{Entries, Woken};

/// Whether a descriptor is a kernel TCP socket that is neither connected nor listening.
pub fn may_become_ours(fd: c_int) -> bool {
    family_of(fd).is_some()
        && getpeername(sys::fd(fd)) == Err(Errno::NOTCONN)
        && socket_acceptconn(sys::fd(fd)) == Ok(false)
}

/// Identifies a socket across its descriptors: each socket has its own inode.
fn inode(fd: c_int) -> Option<u64> {
    fstat(sys::fd(fd)).ok().map(|about| about.st_ino)
}

impl Sockets {
    /// Prepares a descriptor for close(2). With SO_LINGER, the last descriptor waits, or resets the connection. Returns whether the
    /// caller must call [`Sockets::closed`] after the close.
    ///
    /// # Errors
    /// EAGAIN in a signal handler whose thread is inside a call: the descriptor must not be closed.
    pub fn close(&self, fd: c_int) -> Result<bool, Errno> {
        let mut world = self.open()?;
        let Some(at) = world.find(fd) else {
            world.remove_set(fd);
            return Ok(false);
        };
        world.look();
        let linger = socket_linger(sys::fd(fd)).unwrap_or(None);
        let (view, forks) = (world.view(at), world.forks);
        let description = world.description(at);
        let is_last = description.handles == 1;
        let others_may_have_it = description.forks < forks || description.is_passed;
        let is_left = world.has_left_listeners;
        if is_last && is_left {
            world.leave_listener(at);
        }
        let Description { incarnation, state, .. } = *world.description(at);
        let deferred = match state {
            _ if !is_last => None,
            State::Open(name) if others_may_have_it => Some(ClosedSocket::Connection(name)),
            // A shared listener's placeholder listens in the kernel, so an epoll does not show whether a copy is left.
            State::Listening { listener: Some(listener), is_shared: false } if is_left => {
                Some(ClosedSocket::Listener(listener))
            }
            _ => None,
        };
        if deferred.is_some_and(|socket| world.defer_close(fd, incarnation, socket)) {
            world.description(at).state = State::Idle;
            world.remove(fd);
            world.release(at);
            return Ok(true);
        }
        let description = world.description(at);
        if let (true, State::Open(name), Some(patience)) = (is_last, description.state, linger) {
            let incarnation = description.incarnation;
            if patience.is_zero() {
                world.remove(fd);
                world.abort(at, name);
                world.release(at);
                return Ok(false);
            }
            if view.tcp == Tcp::Open {
                let deadline = Instant::now().checked_add(patience);
                let shut = world.context(incarnation).shutdown(name, std::net::Shutdown::Write);
                let description = world.description(at);
                description.is_write_shut |= shut.is_ok();
                description.handles += 1;
                loop {
                    let view = world.view(at);
                    let is_sent = view.room == view.ring;
                    let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
                    if is_sent || view.tcp == Tcp::Closed || is_late {
                        break;
                    }
                    let (next, woken) = self.sleep(world, deadline, &mut Entries::new(), None);
                    world = next;
                    world.look();
                    // As sk_stream_wait_close: the close goes on without the wait.
                    if woken == Woken::Interrupted {
                        break;
                    }
                }
                world.release(at);
            }
        }
        // Another thread may have closed the descriptor meanwhile.
        if let Some(at) = world.remove(fd) {
            world.release(at);
        }
        Ok(false)
    }

    /// Called after the close of a descriptor of which a child may have a copy.
    #[cfg_attr(test, allow(dead_code))]
    pub fn closed(&self) {
        if let Ok(mut world) = self.open() {
            world.finish_deferred_closes(true);
        }
    }

    /// Called after a descriptor was duplicated: `new` refers to the same socket or set as `old`.
    pub fn duplicated(&self, old: c_int, new: c_int) {
        let Ok(mut world) = self.open() else { return };
        if let Some(at) = world.find(old)
            && crate::marks::Marks::can(new)
        {
            world.share(at, new);
        }
        if let Some(set) = world.sets.get(&old).map(std::sync::Arc::clone) {
            world.add_set(new, set);
        }
        if world.find(old).is_none() && may_become_ours(old) {
            world.note_duplicates(old, new);
        }
    }

    /// Records O_NONBLOCK as the program sets it.
    pub fn set_nonblocking(&self, fd: c_int, is_nonblocking: bool) -> Verdict<()> {
        self.answer(fd, |world, at| {
            let description = world.description(at);
            description.is_nonblocking = is_nonblocking;
            // The placeholder of a shared listener is always nonblocking.
            match description.state {
                State::Listening { is_shared: true, .. } => Verdict::Ours(Ok(())),
                _ => Verdict::Kernels,
            }
        })
    }

    /// O_NONBLOCK, as the program sees it. The query does not count as use: a child takes over no connection for it.
    pub fn is_nonblocking(&self, fd: c_int) -> Verdict<bool> {
        let mut world = match self.open() {
            Ok(world) => world,
            Err(error) => return Verdict::Ours(Err(error)),
        };
        match world.find(fd) {
            Some(at) => Verdict::Ours(Ok(world.description(at).is_nonblocking)),
            None => Verdict::Kernels,
        }
    }

    /// Whether the descriptor is ours.
    #[cfg(test)]
    pub fn has(&self, fd: c_int) -> bool {
        self.open().is_ok_and(|world| world.find(fd).is_some())
    }
}

impl crate::world::World {
    /// Records that two descriptors share a kernel socket which may become ours.
    fn note_duplicates(&mut self, one: c_int, other: c_int) {
        self.duplicates.retain(|(socket, fd)| inode(*fd) == Some(*socket));
        let Some(socket) = inode(one) else { return };
        self.duplicates.extend([(socket, one), (socket, other)]);
    }

    /// Makes the duplicates of a socket ours, when the socket becomes ours.
    pub fn take_over_duplicates(&mut self, at: usize, fd: c_int, is_shared: bool) {
        if self.duplicates.is_empty() {
            return;
        }
        let socket = inode(fd);
        let is_its = |(of, _): &mut (u64, c_int)| socket == Some(*of);
        let duplicates: Vec<(u64, c_int)> = self.duplicates.extract_if(.., is_its).collect();
        for (_, duplicate) in duplicates {
            // The descriptor may refer to another file by now.
            if self.find(duplicate).is_none() && inode(duplicate) == socket {
                self.share(at, duplicate);
                self.take_over_interests(at, duplicate, is_shared);
            }
        }
    }

    /// Resets a connection. Its description then has no connection.
    pub fn abort(&mut self, at: usize, name: u32) {
        let incarnation = self.description(at).incarnation;
        let agent = self.agent(incarnation);
        agent.owners.remove(&name);
        agent.context.abort(name);
        self.description(at).state = State::Idle;
        self.note_news();
    }

    /// Releases a failed connection, so that its description may connect again.
    pub fn forget_connection(&mut self, at: usize) {
        let description = self.description(at);
        let (incarnation, Some(name)) = (description.incarnation, description.name()) else {
            return;
        };
        description.reset();
        let agent = self.agent(incarnation);
        agent.owners.remove(&name);
        agent.context.close(name);
    }
}
