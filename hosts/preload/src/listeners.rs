//! Listening sockets: listen(2) and accept(2), across agents that come and go, and in children of fork(2).
//!
//! A listener has a place at an agent while [`State::Listening`] has its name. It loses the place when the agent dies, and a child of
//! fork(2) begins without one. It gets a place again once an agent is there and the program waits for its connections
//! ([`World::await_connections`]).

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, getpeername,
    socket_with,
};
use wave_posix::Sharing;
use wave_readiness::{EventFlags, Source};

use crate::address::{self, Encoded, Family};
use crate::description::{Description, State};
use crate::keeper::Keeper;
use crate::names::{family_of, kernels_name};
use crate::options::Kept;
use crate::passing::listener_of;
use crate::poll::Set;
use crate::signals::{self, waits};
use crate::sockets::{Sockets, Verdict};
use crate::sys;
use crate::wait::Stop;
use crate::world::{RETRY, World};

/// Largest backlog, as Linux's `somaxconn`.
const BACKLOG_MAX: c_int = 4_096;
/// Shortest time between two attempts to find an agent for a listener that has none.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Longest attempt, with the lock held, to attach to an agent that accepts the connection but does not answer. The next attempt
/// follows after `WAITS_PER_TRY` times the duration of this one.
const TRY_LASTS: Duration = Duration::from_millis(500);
const WAITS_PER_TRY: u32 = 8;
/// Longest time from another process's place at the agent until its ticket is there, or from its end until the agent has noticed.
const TICKET_LASTS: Duration = Duration::from_millis(200);

/// The state of a listening socket that survives a change of agent and a fork.
#[derive(Clone, Debug)]
pub struct Listens {
    /// Address and port at the agent.
    pub own: SocketAddr,
    pub backlog: u16,
    pub sharing: Sharing,
    /// Options that its connections inherit.
    pub kept: Kept,
    /// Other processes may have the listener, too: this one gets a connection only while its program waits.
    pub is_inherited: bool,
    /// The program has waited for connections.
    pub is_awaited: bool,
    /// The program's sets that contain the listener.
    pub sets: Vec<Weak<Set>>,
    /// The place at the agent that it shares with its children.
    pub keeper: Option<Arc<Keeper>>,
}

impl Listens {
    fn is_in(&self, set: &Arc<Set>) -> bool {
        self.sets.iter().any(|other| other.as_ptr() == Arc::as_ptr(set))
    }
}

impl Listens {
    /// The state of a listener that only this process has.
    pub fn new(own: SocketAddr, backlog: u16, sharing: Sharing, kept: Kept) -> Listens {
        let (is_inherited, is_awaited) = (false, false);
        let (sets, keeper) = (Vec::new(), None);
        Listens { own, backlog, sharing, kept, is_inherited, is_awaited, sets, keeper }
    }

    /// The state in another process that has the listener.
    pub fn inherited(mut self) -> Listens {
        (self.is_inherited, self.is_awaited) = (true, false);
        self.sets.clear();
        self.keeper = None;
        self
    }
}

/// An accepted connection: its descriptor, and the peer's address as the program sees it.
#[derive(Debug)]
pub struct Accepted {
    pub fd: c_int,
    pub peer: Option<Encoded>,
}

impl Sockets {
    /// listen(2). On an unspecified address, both the kernel and the agent listen.
    pub fn listen(&self, fd: c_int, backlog: c_int) -> Verdict<()> {
        // A negative backlog means the largest one, as in the kernel.
        let backlog = backlog as u32;
        let backlog = backlog.min(BACKLOG_MAX as u32) as c_int;
        let mut world = match self.open() {
            Ok(world) => world,
            Err(error) => return Verdict::Ours(Err(error)),
        };
        if let Some(at) = world.find(fd) {
            world.process_events();
            let description = world.description(at);
            return match (description.state, description.bound) {
                (State::Listening { is_shared: true, .. }, _) => Verdict::Kernels,
                (State::Listening { is_shared: false, .. }, _) => Verdict::Ours(Ok(())),
                (State::Idle, Some(own)) => {
                    Verdict::Ours(world.listen(at, fd, own, backlog, false))
                }
                _ => Verdict::Ours(Err(Errno::INVAL)),
            };
        }
        let Some(family) = family_of(fd) else { return Verdict::Kernels };
        let Some(mut name) = kernels_name(fd) else { return Verdict::Kernels };
        // Another process may listen with this open file description: a worker of the same parent, say.
        let other = listener_of(fd);
        let is_used = (sockopt::socket_acceptconn(sys::fd(fd)).unwrap_or(true) && other.is_none())
            || getpeername(sys::fd(fd)).is_ok();
        if !name.ip().is_unspecified() || is_used {
            return Verdict::Kernels;
        }
        let only_v6 = family == Family::V6 && sockopt::ipv6_v6only(sys::fd(fd)).unwrap_or(false);
        let own = match (family, only_v6) {
            (Family::V4, _) => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            (Family::V6, false) => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
            (Family::V6, true) => world.config.own_like(name.ip()),
        };
        let Some(own) = own else { return Verdict::Kernels };
        if name.port() == 0 {
            // The kernel would choose the port in listen(2), but the agent must listen on the same one.
            if let Err(error) = rustix::net::bind(sys::fd(fd), &name) {
                return Verdict::Ours(Err(error));
            }
            match kernels_name(fd) {
                Some(bound) => name = bound,
                None => return Verdict::Kernels,
            }
        }
        let Ok(at) = world.adopt(fd, family, true) else { return Verdict::Kernels };
        if let Some(other) = other {
            world.description(at).is_nonblocking = other.is_nonblocking;
        }
        let own = SocketAddr::new(own, name.port());
        let listening = world.listen(at, fd, own, backlog, true);
        if listening.is_err() {
            world.return_to_kernel(fd);
        }
        Verdict::Ours(listening)
    }

    /// accept4(2). A shared listener accepts from the agent and the kernel in turn.
    pub fn accept(&self, fd: c_int, flags: c_int) -> Verdict<Accepted> {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return self.answer(fd, |_, _| Verdict::Ours(Err(Errno::INVAL)));
        }
        let shared = |world: &mut World, at| {
            let is_shared =
                matches!(world.description(at).state, State::Listening { is_shared: true, .. });
            is_shared.then_some(fd)
        };
        let step = |world: &mut World, at: usize, stop: Option<Stop>| {
            let State::Listening { is_shared, .. } = world.description(at).state else {
                return Some(Err(Errno::INVAL));
            };
            world.await_connections(at);
            let description = world.description(at);
            description.asks_kernel_first = !description.asks_kernel_first && is_shared;
            let accepted = if description.asks_kernel_first {
                kernels_accept(fd, flags).or_else(|| world.accept(at, flags))
            } else if is_shared {
                world.accept(at, flags).or_else(|| kernels_accept(fd, flags))
            } else {
                world.accept(at, flags)
            };
            accepted.or_else(|| stop.map(|stop| Err(stop.errno())))
        };
        waits(|| self.call(fd, false, Timeout::Recv, shared, step))
    }
}

fn kernels_accept(fd: c_int, flags: c_int) -> Option<Result<Accepted, Errno>> {
    let mut with = SocketFlags::empty();
    with.set(SocketFlags::NONBLOCK, flags & libc::SOCK_NONBLOCK != 0);
    with.set(SocketFlags::CLOEXEC, flags & libc::SOCK_CLOEXEC != 0);
    match acceptfrom_with(sys::fd(fd), with) {
        Err(Errno::AGAIN) => None,
        Err(error) => Some(Err(error)),
        Ok((accepted, peer)) => {
            // Linux has copied the listener's ticket, whose secret is not for everybody who gets the connection.
            if sys::attached(accepted.as_raw_fd()).is_some() {
                sys::detach(accepted.as_raw_fd());
            }
            let family = match &peer {
                Some(SocketAddrAny { .. }) if is_v4(&peer) => Family::V4,
                _ => Family::V6,
            };
            let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
            let peer = peer.map(|peer| address::encode(peer, family));
            Some(Ok(Accepted { fd: accepted.into_raw_fd(), peer }))
        }
    }
}

fn is_v4(peer: &Option<SocketAddrAny>) -> bool {
    peer.as_ref().is_some_and(|peer| peer.address_family() == AddressFamily::INET)
}

impl World {
    fn listen(
        &mut self,
        at: usize,
        fd: c_int,
        own: SocketAddr,
        backlog: c_int,
        is_shared: bool,
    ) -> Result<(), Errno> {
        let incarnation = self.attach()?;
        // A listener with a deferred close may still hold the port.
        self.finish_deferred_closes(true);
        let description = self.description(at);
        description.incarnation = incarnation;
        let kept = Kept::of(sys::fd(fd), description.family)?;
        let reuses_port = sockopt::socket_reuseport(sys::fd(fd))?;
        let length = backlog.max(1) as u16;
        let secret_of_other =
            || listener_of(fd).filter(|other| other.own == own).map(|other| other.sharing.secret);
        let mut other = secret_of_other();
        let secret = other.map_or_else(sys::random, Ok)?;
        let mut sharing = Sharing { secret, reuses_port };
        let (mut listener, mut failed) = self.request(incarnation, own, length, sharing, &kept);
        // The other process may have listened just now: then its ticket follows. Or the last process with another listener has just closed
        // it, which the agent is about to notice.
        let start = Instant::now();
        while failed == Some(Errno::ADDRINUSE) && start.elapsed() < TICKET_LASTS {
            let _ = signals::sleep(&mut [], Some(RETRY), None);
            if let Some(secret) = secret_of_other() {
                (sharing.secret, other) = (secret, Some(secret));
            }
            self.context(incarnation).unlisten(listener);
            (listener, failed) = self.request(incarnation, own, length, sharing, &kept);
        }
        let shared = |failed: Option<Errno>| match failed {
            Some(error) => Err(error),
            None if is_shared => {
                rustix::net::listen(sys::fd(fd), backlog)?;
                // A thread must not block in the placeholder's accept: it waits for the agent as well.
                let flags = fcntl_getfl(sys::fd(fd))?;
                fcntl_setfl(sys::fd(fd), flags | OFlags::NONBLOCK)
            }
            None => Ok(()),
        };
        if let Err(error) = shared(failed) {
            self.context(incarnation).unlisten(listener);
            self.context(incarnation).flush();
            return Err(error);
        }
        // Offers slots for connections before the first accept.
        self.context(incarnation).flush();
        let description = self.description(at);
        description.state = State::Listening { listener: Some(listener), is_shared };
        description.bound = Some(own);
        description.listens = Some(Box::new(Listens::new(own, length, sharing, kept)));
        self.listeners.push(at);
        if other.is_some() {
            self.leave_listener(at);
        }
        // For processes that listen with the same open file description: forked before this one listened.
        self.give_ticket(fd, at, None);
        self.notify(at, Source::ANY);
        Ok(())
    }

    /// Requests a listener from the agent. Returns its name, and the error if the agent refused it.
    fn request(
        &mut self,
        incarnation: u64,
        own: SocketAddr,
        backlog: u16,
        sharing: Sharing,
        kept: &Kept,
    ) -> (u32, Option<Errno>) {
        let context = self.context(incarnation);
        let listener = context.listen_sharing(own, backlog, sharing);
        if kept.mss_max != u16::MAX {
            context.limit_segments(listener, kept.mss_max);
        }
        let failed = match self.await_answer(incarnation, |context| context.listening(listener)) {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            None => Some(Errno::TIMEDOUT),
        };
        (listener, failed)
    }

    /// The program waits for a listener's connections: the agent gives it one. No effect on other sockets.
    pub fn await_connections(&mut self, at: usize) {
        let description = self.description(at);
        let (incarnation, state) = (description.incarnation, description.state);
        let State::Listening { listener, .. } = state else { return };
        let Some(listens) = &mut description.listens else { return };
        let is_first = !std::mem::replace(&mut listens.is_awaited, true);
        match listener {
            Some(listener) => {
                let context = self.context(incarnation);
                if context.await_connection(listener) {
                    context.flush();
                }
            }
            None if is_first => {
                self.next_try = None;
                self.reattach_listeners();
            }
            None => {}
        }
    }

    /// Records that a set contains this listener, if the descriptor is one.
    pub fn note_set(&mut self, set: &Arc<Set>, fd: c_int) {
        if let Some(at) = self.find(fd)
            && let Some(listens) = &mut self.description(at).listens
            && !listens.is_in(set)
        {
            listens.sets.retain(|other| other.strong_count() > 0);
            listens.sets.push(Arc::downgrade(set));
        }
    }

    /// Records that a set does not contain this listener any more. The last one: the program waits no more.
    pub fn forget_set(&mut self, set: &Arc<Set>, fd: c_int) {
        let Some(at) = self.find(fd) else { return };
        if let Some(listens) = &mut self.description(at).listens
            && listens.is_in(set)
        {
            listens.sets.retain(|other| other.as_ptr() != Arc::as_ptr(set));
            if listens.sets.is_empty() && listens.is_inherited {
                self.leave_listener(at);
            }
        }
    }

    /// Called when the program waits for events of sets: asks for connections of the listeners in them that other processes may have,
    /// too. It may be a set with the listener's set in it, so all sets count.
    pub fn await_sets(&mut self) {
        if !self.has_inherited_listeners {
            return;
        }
        for place in 0..self.listeners.len() {
            let at = self.listeners[place];
            let listens = &self.description(at).listens;
            if listens.as_ref().is_some_and(|listens| !listens.sets.is_empty()) {
                self.await_connections(at);
            }
        }
    }

    /// Those of the descriptors that are sockets which other processes may have, too.
    pub fn shared_with_others(&self, fds: impl Iterator<Item = c_int>) -> Vec<c_int> {
        let is_shared = |fd: &c_int| {
            let description = self.find(*fd).and_then(|at| self.descriptions[at].as_ref());
            description.is_some_and(|description| {
                let listens = description.listens.as_ref();
                description.claim.is_some() || listens.is_some_and(|listens| listens.is_inherited)
            })
        };
        match self.has_inherited_listeners || self.agents.iter().any(|one| one.context.shares()) {
            true => fds.filter(is_shared).collect(),
            false => Vec::new(),
        }
    }

    /// After a fork(2), children have the listeners, too.
    pub fn leave_to_children(&mut self) {
        for place in 0..self.listeners.len() {
            let at = self.listeners[place];
            let listens = &self.description(at).listens;
            if listens.as_ref().is_some_and(|listens| !listens.is_inherited) {
                self.leave_listener(at);
            }
        }
    }

    /// Leaves a listener's unused slots, and the connections that were not accepted, to whoever waits: other processes, or this one when
    /// it waits again. No effect on other sockets.
    pub fn leave_listener(&mut self, at: usize) {
        let description = self.description(at);
        let (incarnation, state) = (description.incarnation, description.state);
        let Some(listens) = &mut description.listens else { return };
        listens.is_inherited = true;
        self.has_inherited_listeners = true;
        if let State::Listening { listener: Some(listener), .. } = state {
            let context = self.context(incarnation);
            if !context.is_dead() {
                context.share(listener);
                context.flush();
            }
        }
    }

    /// Finds listeners whose agent has gone, and moves those for which the program waits to a new agent.
    pub fn reattach_listeners(&mut self) {
        let mut is_wanted = false;
        self.lacks_place = false;
        for place in 0..self.listeners.len() {
            let at = self.listeners[place];
            let has_none = self.has_no_place(at);
            self.lacks_place |= has_none;
            is_wanted |= has_none && self.waits(at);
        }
        if !is_wanted {
            return;
        }
        let now = Instant::now();
        if self.next_try.is_some_and(|next| now < next) {
            return;
        }
        let attached = self.attach_within(TRY_LASTS);
        self.next_try = Some(now + TRY_AGAIN.max(now.elapsed() * WAITS_PER_TRY));
        let Ok(incarnation) = attached else { return };
        for place in 0..self.listeners.len() {
            let at = self.listeners[place];
            if !self.has_no_place(at) || !self.waits(at) {
                continue;
            }
            let description = self.description(at);
            let State::Listening { is_shared, .. } = description.state else { continue };
            let Some(listens) = description.listens.as_deref().cloned() else { continue };
            let Listens { own, backlog, sharing, kept, is_inherited, .. } = listens;
            let context = self.context(incarnation);
            let listener = context.listen_sharing(own, backlog, sharing);
            if kept.mss_max != u16::MAX {
                context.limit_segments(listener, kept.mss_max);
            }
            if is_inherited {
                context.share(listener);
            }
            context.await_connection(listener);
            let description = self.description(at);
            description.incarnation = incarnation;
            description.state = State::Listening { listener: Some(listener), is_shared };
        }
        self.context(incarnation).flush();
    }

    /// Whether some listener may have no place at an agent: it came from another process, or its agent has gone.
    pub fn may_lack_place(&self) -> bool {
        self.lacks_place
            || self.has_inherited_listeners
            || self.agents.iter().any(|agent| agent.context.is_dead())
    }

    fn waits(&mut self, at: usize) -> bool {
        let listens = &self.description(at).listens;
        listens.as_ref().is_some_and(|listens| listens.is_awaited)
    }

    /// Whether a listener has no place at an agent. Takes the place away if the agent has gone, or has refused the listener.
    fn has_no_place(&mut self, at: usize) -> bool {
        let description = self.description(at);
        let (incarnation, state) = (description.incarnation, description.state);
        let State::Listening { listener: Some(listener), is_shared } = state else { return true };
        let context = self.context(incarnation);
        if !context.is_dead() && !matches!(context.listening(listener), Some(Err(_))) {
            return false;
        }
        // Connections that were not accepted end with it.
        context.unlisten(listener);
        context.flush();
        let description = self.description(at);
        description.state = State::Listening { listener: None, is_shared };
        if let Some(listens) = &mut description.listens {
            listens.keeper = None;
        }
        self.notify(at, EventFlags::empty());
        true
    }

    /// Restores the program's O_NONBLOCK on the placeholder, once a shared listener has ended.
    pub fn unshare(&mut self, at: usize, fd: c_int) {
        let is_nonblocking = self.description(at).is_nonblocking;
        if let Ok(mut flags) = fcntl_getfl(sys::fd(fd)) {
            flags.set(OFlags::NONBLOCK, is_nonblocking);
            let _ = fcntl_setfl(sys::fd(fd), flags);
        }
    }

    /// Accepts a connection from the agent, if there is one.
    fn accept(&mut self, at: usize, flags: c_int) -> Option<Result<Accepted, Errno>> {
        let description = self.description(at);
        let (incarnation, family) = (description.incarnation, description.family);
        let State::Listening { listener: Some(listener), .. } = description.state else {
            return None;
        };
        let kept = description.listens.as_ref().map(|listens| listens.kept.clone());
        let low_water = description.low_water;
        let agent = self.agent(incarnation);
        if agent.context.is_dead() || agent.context.acceptable(listener) == 0 {
            return None;
        }
        let made = placeholder(family, flags, kept.as_ref());
        let fd = match made {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        let agent = self.agent(incarnation);
        match agent.context.accept(listener)? {
            Ok((name, remote)) => {
                agent.context.flush();
                let mut description = Description::new(incarnation, family, State::Open(name));
                description.is_nonblocking = flags & libc::SOCK_NONBLOCK != 0;
                description.wait_bounds = kept.as_ref().map(Kept::wait_bounds).unwrap_or_default();
                if low_water != description.low_water {
                    description.low_water = low_water;
                    sys::set_low_water(fd.as_fd(), low_water);
                }
                let fd = fd.into_raw_fd();
                let place = self.insert(fd, description);
                self.agent(incarnation).owners.insert(name, place);
                if let Some(kept) = kept {
                    self.configure(place, &kept);
                }
                self.notify(place, EventFlags::empty());
                Some(Ok(Accepted { fd, peer: Some(address::encode(remote, family)) }))
            }
            Err(error) => Some(Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        }
    }
}

/// The kernel's socket that stands for a connection.
fn placeholder(family: Family, flags: c_int, kept: Option<&Kept>) -> Result<OwnedFd, Errno> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let mut with = SocketFlags::empty();
    with.set(SocketFlags::NONBLOCK, flags & libc::SOCK_NONBLOCK != 0);
    with.set(SocketFlags::CLOEXEC, flags & libc::SOCK_CLOEXEC != 0);
    let fd = socket_with(domain, SocketType::STREAM, with, None)?;
    if let Some(kept) = kept {
        let fd = fd.as_fd();
        // A connection that lacks one of its listener's options is better than none.
        let _ = kept.give(fd, family);
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connection_of_the_kernels_does_not_carry_its_listeners_ticket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sys::attach(listener.as_raw_fd(), &[1, 2, 3]).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = kernels_accept(listener.as_raw_fd(), 0).unwrap().unwrap();
        assert!(sys::attached(listener.as_raw_fd()).is_some());
        assert_eq!(sys::attached(accepted.fd), None);
        sys::close(accepted.fd);
    }
}
