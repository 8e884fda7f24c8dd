//! Closing and duplicating descriptors (close(2), dup(2)), and the flags that descriptors share.

use std::ffi::c_int;
use std::time::Instant;

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::getpeername;
use rustix::net::sockopt::{socket_acceptconn, socket_type};

use crate::deferred_close::ClosedSocket;
use crate::description::{Description, State, Tcp};
use crate::names::family_of;
use crate::passing::names_of;
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::wait::{Entries, Woken};

/// Whether a descriptor is a kernel TCP socket that is neither connected nor listening, and was not the stream of a connection: one
/// both of whose streams have ended looks like a new socket.
pub fn may_become_ours(fd: c_int) -> bool {
    family_of(fd).is_some()
        && getpeername(sys::fd(fd)) == Err(Errno::NOTCONN)
        && socket_acceptconn(sys::fd(fd)) == Ok(false)
        && names_of(fd).is_none()
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
        if world.find(fd).is_none() {
            world.remove_set(fd);
            return Ok(false);
        }
        world.process_events();
        let Some(at) = world.find(fd) else { return Ok(false) };
        let linger = world.description(at).wait_bounds.linger;
        let (view, forks) = (world.view(at), world.forks);
        let description = world.description(at);
        let is_last = description.handles == 1;
        let others_may_have_it = description.forks < forks || description.is_passed;
        // Another program may have the listener. Children of fork(2) hold its place at the agent themselves.
        let listens = description.listens.as_ref();
        let is_passed = listens.is_some_and(|one| one.is_inherited && one.keeper.is_none());
        if is_last && is_passed {
            world.leave_listener(at);
        }
        let Description { incarnation, state, .. } = *world.description(at);
        let deferred = match state {
            _ if !is_last => None,
            State::Open(name) if others_may_have_it => Some(ClosedSocket::Connection(name)),
            // A shared listener's placeholder listens in the kernel, so an epoll does not show whether a copy is left.
            State::Listening { listener: Some(listener), is_shared: false } if is_passed => {
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
                    world.process_events();
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
            && crate::descriptor_bitmap::DescriptorBitmap::fits(new)
        {
            world.share(at, new);
        }
        if world.find(old).is_none() && may_become_ours(old) {
            world.note_duplicates(old, new);
        }
        // A set is known by all its descriptors, although it may have none of our sockets yet.
        if socket_type(sys::fd(old)).is_err()
            && let Ok(set) = world.watch(old)
            && crate::descriptor_bitmap::DescriptorBitmap::fits(new)
        {
            world.add_set(new, set);
        }
    }

    /// Called with descriptors that this process has received: some may be duplicates of its sets.
    #[cfg_attr(test, allow(dead_code))]
    pub fn received(&self, fds: &[c_int]) {
        let Ok(mut world) = self.open() else { return };
        // Only known sets have anything that the kernel's do not.
        fds.iter().for_each(|fd| drop(world.recognize(*fd)));
    }

    /// Records O_NONBLOCK and O_ASYNC as the program sets them by F_SETFL.
    #[cfg_attr(test, allow(dead_code))]
    pub fn set_flags(&self, fd: c_int, flags: c_int) -> Verdict<()> {
        self.set(fd, Some(flags & libc::O_NONBLOCK != 0), Some(flags & libc::O_ASYNC != 0))
    }

    /// Records O_NONBLOCK as the program sets it.
    pub fn set_nonblocking(&self, fd: c_int, is_nonblocking: bool) -> Verdict<()> {
        self.set(fd, Some(is_nonblocking), None)
    }

    /// Records O_ASYNC as the program sets it.
    pub fn set_signalling(&self, fd: c_int, is_on: bool) -> Verdict<()> {
        self.set(fd, None, Some(is_on))
    }

    fn set(
        &self,
        fd: c_int,
        is_nonblocking: Option<bool>,
        is_signalling: Option<bool>,
    ) -> Verdict<()> {
        self.answer(fd, |world, at| {
            if let Some(is_on) = is_signalling {
                world.set_signals(at, fd, is_on);
            }
            let Some(is_nonblocking) = is_nonblocking else { return Verdict::Kernels };
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
            Some(at) => Verdict::Ours(Ok(world.ask_nonblocking(fd, at))),
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
        self.note_change();
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
