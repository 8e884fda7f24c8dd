//! Passing sockets to another program: over exec(2), by posix_spawn(3), or by SCM_RIGHTS (docs/adr/0078).
//!
//! The placeholder carries a *ticket*, which any holder of a descriptor can read. It says what the socket is; for a connection it also
//! has a secret, and the agent hands the connection over to a process that presents it. The ticket is stored in a socket filter, which
//! the kernel keeps with the open file description; a process that may not attach one uses short tickets.

mod short;

use std::cell::LazyCell;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::AddressFamily;
use rustix::net::sockopt;
use wave_posix::demotion::Cause;
use wave_posix::{Checkpoint, Identity, Sharing, address, address_words};
use wave_readiness::EventFlags;

use crate::close::may_become_ours;
use crate::description::{Description, State};
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::listeners::Listens;
use crate::names::family_of;
use crate::options::{Kept, WaitBounds};
use crate::shared::Claim;
use crate::sockets::Sockets;
use crate::sys;
use crate::world::{ATTACH_PATIENCE, World};

/// The first word of a ticket, with its version.
const MAGIC: u64 = u64::from_le_bytes(*b"wavetoe3");
const BOUND: u64 = 1;
const LISTENING: u64 = 2;
const CONNECTION: u64 = 3;
const STREAM: u64 = 4;

/// The description of a socket that its placeholder carries.
struct Ticket {
    /// SO_COOKIE of the placeholder. It shows whether the ticket is the placeholder's own: connections accepted by a kernel listener
    /// inherit the listener's filter.
    cookie: u64,
    /// Descriptor of the owner's line to the agent, which stays open over exec(2) until the next program has taken over the socket.
    line: Option<c_int>,
    passed: Passed,
}

enum Passed {
    Bound(SocketAddr),
    Listening {
        own: SocketAddr,
        backlog: u16,
        sharing: Sharing,
        is_shared: bool,
        /// O_NONBLOCK as the program sees it: the placeholder of a shared listener always has it.
        is_nonblocking: bool,
    },
    /// `claim` is `None` if the connection has ended, `checkpoint` if it can only become a stream of the kernel's.
    Connection {
        claim: Option<Claim>,
        checkpoint: Option<Checkpoint>,
        is_read_shut: bool,
        is_write_shut: bool,
    },
    /// A connection that has become a stream of the kernel's: its own and its peer's address.
    Stream(SocketAddr, SocketAddr),
}

impl Ticket {
    fn to_words(&self) -> Vec<u64> {
        let line = self.line.map_or(0, |line| line as u64 + 1);
        let mut words = vec![MAGIC, self.cookie, line];
        match &self.passed {
            Passed::Bound(own) => {
                words.push(BOUND);
                words.extend(address_words(*own));
            }
            Passed::Listening { own, backlog, sharing, is_shared, is_nonblocking } => {
                words.push(LISTENING);
                words.extend(address_words(*own));
                words.extend([
                    u64::from(*backlog),
                    (*is_shared).into(),
                    sharing.reuses_port.into(),
                    (*is_nonblocking).into(),
                ]);
                words.extend(halves(sharing.secret));
            }
            Passed::Connection { claim, checkpoint, is_read_shut, is_write_shut } => {
                words.extend([CONNECTION, (*is_read_shut).into(), (*is_write_shut).into()]);
                if let Some(Claim { identity, secret, door }) = claim {
                    words.extend([identity.flow, u64::from(*door)]);
                    words.extend(halves(*secret));
                    words.extend(address_words(identity.local));
                    words.extend(address_words(identity.remote));
                    words.extend(checkpoint.iter().flat_map(Checkpoint::to_words));
                }
            }
            Passed::Stream(local, remote) => {
                words.push(STREAM);
                words.extend(address_words(*local));
                words.extend(address_words(*remote));
            }
        }
        words
    }

    /// Attaches the ticket to a descriptor.
    ///
    /// # Errors
    /// The process may attach no socket filter, and the ticket is too long for a short one.
    fn attach(&self, fd: c_int) -> Result<(), Errno> {
        match sys::attach(fd, &self.to_words()) {
            Err(Errno::PERM) => {
                let bytes = short::encode(self).ok_or(Errno::PERM)?;
                // It would be found first. Any process may remove it.
                sys::detach(fd);
                sys::set_keys(fd, &bytes)
            }
            attached => attached,
        }
    }

    /// The ticket of a descriptor, if it has one.
    fn of(fd: c_int) -> Option<Ticket> {
        let Some(words) = sys::attached(fd) else {
            let bytes = sys::keys(fd)?;
            return short::decode(&bytes, sockopt::socket_cookie(sys::fd(fd)).ok()?);
        };
        let (&[magic, cookie, line, kind], rest) = words.split_first_chunk()?;
        if magic != MAGIC || sockopt::socket_cookie(sys::fd(fd)) != Ok(cookie) {
            return None;
        }
        let passed = match (kind, rest) {
            (BOUND, &[a, b, c]) => Passed::Bound(address([a, b, c])),
            (LISTENING, &[a, b, c, backlog, is_shared, reuses_port, is_nonblocking, high, low]) => {
                Passed::Listening {
                    own: address([a, b, c]),
                    backlog: backlog as u16,
                    sharing: Sharing { secret: whole(high, low), reuses_port: reuses_port != 0 },
                    is_shared: is_shared != 0,
                    is_nonblocking: is_nonblocking != 0,
                }
            }
            (CONNECTION, &[is_read_shut, is_write_shut, ref rest @ ..]) => {
                let found = rest.split_first_chunk().map(
                    |(&[flow, door, high, low, a, b, c, d, e, f], rest)| {
                        let (local, remote) = (address([a, b, c]), address([d, e, f]));
                        let identity = Identity { flow, local, remote };
                        let secret = whole(high, low);
                        let checkpoint = rest.try_into().ok().and_then(Checkpoint::from_words);
                        (Claim { identity, secret, door: door as u16 }, checkpoint)
                    },
                );
                let (claim, checkpoint) = found.unzip();
                let [is_read_shut, is_write_shut] =
                    [is_read_shut, is_write_shut].map(|word| word != 0);
                let checkpoint = checkpoint.flatten();
                Passed::Connection { claim, checkpoint, is_read_shut, is_write_shut }
            }
            (STREAM, &[a, b, c, d, e, f]) => Passed::Stream(address([a, b, c]), address([d, e, f])),
            _ => return None,
        };
        let line = line.checked_sub(1).and_then(|line| c_int::try_from(line).ok());
        Some(Ticket { cookie, line, passed })
    }
}

fn halves(secret: u128) -> [u64; 2] {
    [(secret >> 64) as u64, secret as u64]
}

fn whole(high: u64, low: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Whether a descriptor that this process has just received has the ticket of a socket that is not the kernel's.
pub fn has_ticket(fd: c_int) -> bool {
    fd >= 0 && Ticket::of(fd).is_some_and(|ticket| !matches!(ticket.passed, Passed::Stream(..)))
}

/// Records the addresses of a connection on the placeholder that becomes a stream of the kernel's, whose own addresses are others.
pub fn give_names(fd: c_int, local: SocketAddr, remote: SocketAddr) {
    if let Ok(cookie) = sockopt::socket_cookie(sys::fd(fd)) {
        let ticket = Ticket { cookie, line: None, passed: Passed::Stream(local, remote) };
        // If this fails, programs see the addresses of the loopback.
        let _ = ticket.attach(fd);
    }
}

/// The own address and the peer's of a stream of the kernel's that stands for a connection.
pub fn names_of(fd: c_int) -> Option<[SocketAddr; 2]> {
    match Ticket::of(fd)?.passed {
        Passed::Stream(local, remote) => Some([local, remote]),
        _ => None,
    }
}

/// A listener, by its ticket.
#[derive(Clone, Copy)]
pub struct OtherListener {
    pub own: SocketAddr,
    pub sharing: Sharing,
    pub is_nonblocking: bool,
}

/// The listener of a process that has a descriptor of this socket and listens, or has listened.
pub fn listener_of(fd: c_int) -> Option<OtherListener> {
    match Ticket::of(fd)?.passed {
        Passed::Listening { own, sharing, is_nonblocking, .. } => {
            Some(OtherListener { own, sharing, is_nonblocking })
        }
        _ => None,
    }
}

/// The descriptors with tickets at the start of a program.
#[cfg_attr(test, allow(dead_code))]
pub fn inherited_descriptors() -> Vec<c_int> {
    let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    numbers.filter(|fd| has_ticket(*fd)).collect()
}

impl Sockets {
    /// Gives tickets to descriptors that are about to be passed to other programs.
    pub fn pass(&self, fds: &[c_int]) {
        let Ok(mut world) = self.open() else { return };
        let mut incarnations = Vec::new();
        for fd in fds {
            if let Some(at) = world.find(*fd) {
                incarnations.extend(world.give_ticket(*fd, at, None));
            }
        }
        world.await_lent(incarnations);
    }

    /// Called before an exec(2), of this process or (`is_in_child`) of a child by vfork(2), which shares its memory: the new program gets
    /// all descriptors without FD_CLOEXEC. `has_library`: whether it has this library; if not,
    /// connections become streams of the kernel's.
    /// Returns the lines that stay open, for [`Sockets::was_not_replaced`].
    pub fn pass_over_exec(&self, is_in_child: bool, has_library: impl Fn() -> bool) -> Vec<c_int> {
        let has_library = LazyCell::new(has_library);
        let Ok(mut world) = self.open() else { return Vec::new() };
        let numbers: Vec<(c_int, usize)> = world.numbers().collect();
        let (mut incarnations, mut lines) = (Vec::new(), Vec::new());
        for (fd, at) in numbers {
            let flags = fcntl_getfd(sys::fd(fd));
            let stays_open = flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC));
            // In a child of vfork(2), the descriptor may refer to another socket by now, which already has its own ticket.
            if stays_open && !(is_in_child && world.is_anothers(fd, at)) {
                if world.is_connection(at) && may_become_ours(fd) && !*has_library {
                    world.demote(fd, at, Cause::NoLibrary);
                }
                if world.find(fd) != Some(at) {
                    continue;
                }
                let lines = (!is_in_child).then_some(&mut lines);
                incarnations.extend(world.give_ticket(fd, at, lines));
            } else if !stays_open && !is_in_child {
                // Other processes may have this listener: connections not accepted here are theirs.
                world.leave_listener(at);
            }
        }
        world.await_lent(incarnations);
        if !is_in_child {
            // Connections with FD_CLOEXEC end here.
            world.flush_all();
        }
        lines.retain(|line| fcntl_setfd(sys::fd(*line), FdFlags::empty()).is_ok());
        lines
    }

    /// Called after exec(2) has failed: the lines to agents get FD_CLOEXEC again.
    pub fn was_not_replaced(&self, lines: &[c_int]) {
        for line in lines {
            let _ = fcntl_setfd(sys::fd(*line), FdFlags::CLOEXEC);
        }
    }

    /// Takes over descriptors that this process has received, from another process or (`is_beginning`) from the program before exec(2).
    pub fn receive_descriptors(&self, fds: &[c_int], is_beginning: bool) {
        let Ok(mut world) = self.open() else { return };
        let mut lines: Vec<c_int> = Vec::new();
        for fd in fds {
            lines.extend(world.get(*fd).filter(|_| is_beginning));
        }
        lines.sort_unstable();
        lines.dedup();
        let is_unix = |line: &c_int| {
            *line >= 0 && sockopt::socket_domain(sys::fd(*line)) == Ok(AddressFamily::UNIX)
        };
        lines.retain(is_unix);
        if lines.is_empty() {
            return;
        }
        // This process was their owner before the exec, so no other process serves them.
        for fd in fds {
            if let Some(at) = world.find(*fd) {
                world.take_over(at);
                world.await_connections(at);
                world.await_place(at);
                // It may be that only others accept: children of the program before, or of this one.
                world.leave_listener(at);
            }
        }
        lines.into_iter().for_each(sys::close);
    }
}

impl World {
    /// Gives a descriptor's placeholder a ticket. Returns the incarnation of the agent that was told of it, if one was. `lines` is given
    /// before an exec of this process: the line that the next program needs until it has taken over the socket is added to it.
    pub fn give_ticket(
        &mut self,
        fd: c_int,
        at: usize,
        lines: Option<&mut Vec<c_int>>,
    ) -> Option<u64> {
        if self.is_connection(at) && names_of(fd).is_some() {
            // Another process has made it a stream of the kernel's, which needs no ticket, and this one may not know that yet.
            return None;
        }
        if self.description(at).secret.is_some() {
            // Only the owner of a connection can lend it. A stream of the kernel's needs no ticket.
            if !self.take_over(at) {
                return None;
            }
        }
        self.uncork_all();
        let family_secret = self.family_secret;
        let description = self.description(at);
        let (state, incarnation) = (description.state, description.incarnation);
        let (is_read_shut, is_write_shut) = (description.is_read_shut, description.is_write_shut);
        let is_nonblocking = description.is_nonblocking;
        let (mut line, mut lent_by) = (None, None);
        let owner = match state {
            State::Open(_) | State::Listening { listener: Some(_), .. } => Some(incarnation),
            _ => None,
        };
        let passed = match state {
            State::Idle => Passed::Bound(description.bound?),
            State::Listening { is_shared, .. } => {
                let Listens { own, backlog, sharing, .. } = description.listens.as_deref()?.clone();
                if lines.is_some() {
                    // Connections that were not accepted wait for the next program.
                    self.leave_listener(at);
                }
                Passed::Listening { own, backlog, sharing, is_shared, is_nonblocking }
            }
            _ => {
                let mut claim = self.claim(at);
                let checkpoint = match state {
                    State::Open(name) => {
                        self.description(at).is_passed = true;
                        lent_by = claim.map(|_| incarnation);
                        self.context(incarnation).checkpoint(name)
                    }
                    State::NotOwned => {
                        let checkpoint = self.description(at).checkpoint.as_deref().copied();
                        lent_by = claim.and_then(|_| self.attach_within(ATTACH_PATIENCE).ok());
                        lent_by
                            .into_iter()
                            .for_each(|incarnation| self.join(incarnation, family_secret));
                        checkpoint
                    }
                    _ => None,
                };
                if let (Some(claim), Some(incarnation), Ok(secret)) =
                    (&mut claim, lent_by, sys::random())
                {
                    self.context(incarnation).lend(claim.identity.flow, secret);
                    claim.secret = secret;
                }
                Passed::Connection { claim, checkpoint, is_read_shut, is_write_shut }
            }
        };
        if lines.is_some() {
            line = match owner {
                Some(incarnation) => {
                    Some(self.context(incarnation).queues.descriptors()[0].as_raw_fd())
                }
                None => {
                    let listens = self.description(at).listens.as_ref();
                    let keeper = listens.and_then(|one| one.keeper.as_ref());
                    keeper.map(|keeper| keeper.numbers()[0])
                }
            };
        }
        let cookie = sockopt::socket_cookie(sys::fd(fd)).ok()?;
        let is_connection = matches!(passed, Passed::Connection { .. });
        match (Ticket { cookie, line, passed }).attach(fd) {
            Ok(()) => lines.into_iter().for_each(|lines| lines.extend(line)),
            // A stream of the kernel's needs no ticket.
            Err(_) if is_connection => self.demote(fd, at, Cause::NoTicket),
            // The receiver sees an unconnected socket.
            Err(_) => {}
        }
        lent_by
    }

    /// Whether a descriptor's ticket names a different connection from the description's.
    fn is_anothers(&mut self, fd: c_int, at: usize) -> bool {
        let Some(Ticket { passed: Passed::Connection { claim: Some(theirs), .. }, .. }) =
            Ticket::of(fd)
        else {
            return false;
        };
        let ours = self.description(at).claim.as_deref();
        ours.is_none_or(|ours| ours.identity != theirs.identity)
    }

    /// Waits until the agents know of the lent connections: the loan then takes effect before any request from the receivers.
    fn await_lent(&mut self, incarnations: Vec<u64>) {
        for incarnation in incarnations {
            self.await_answer(incarnation, |context| context.has_lent().then_some(()));
        }
    }

    /// Waits until a listener has its place at the agent. No effect on other sockets, or without an agent.
    fn await_place(&mut self, at: usize) {
        let description = self.description(at);
        let incarnation = description.incarnation;
        if let State::Listening { listener: Some(listener), .. } = description.state {
            self.await_answer(incarnation, |context| context.listening(listener).map(|_| ()));
        }
    }

    /// Adds a received descriptor, as its ticket describes it. Returns the line that the ticket names.
    fn get(&mut self, fd: c_int) -> Option<c_int> {
        if self.find(fd).is_some() || !DescriptorBitmap::fits(fd) {
            return None;
        }
        let family = family_of(fd)?;
        let Ticket { cookie, line, passed } = Ticket::of(fd)?;
        let own =
            self.numbers().find(|(other, _)| sockopt::socket_cookie(sys::fd(*other)) == Ok(cookie));
        if let Some((_, at)) = own {
            // A socket of this process has come back.
            self.share(at, fd);
            return None;
        }
        let mut description = Description::new(0, family, State::Idle);
        let flags = rustix::fs::fcntl_getfl(sys::fd(fd)).unwrap_or(OFlags::empty());
        description.is_nonblocking = flags.contains(OFlags::NONBLOCK);
        description.reuses_address = sockopt::socket_reuseaddr(sys::fd(fd)).unwrap_or(false);
        description.reuses_port = sockopt::socket_reuseport(sys::fd(fd)).unwrap_or(false);
        description.is_corked = sockopt::tcp_cork(sys::fd(fd)).unwrap_or(false);
        description.wait_bounds = WaitBounds::of(sys::fd(fd));
        description.low_water = sys::low_water(sys::fd(fd));
        let mut is_listener = false;
        match passed {
            Passed::Bound(own) => description.bound = Some(own),
            Passed::Listening { own, backlog, sharing, is_shared, is_nonblocking } => {
                description.is_nonblocking = is_nonblocking;
                let kept = Kept::of(sys::fd(fd), family).ok()?;
                let listens = Listens::new(own, backlog, sharing, kept).inherited();
                description.state = State::Listening { listener: None, is_shared };
                description.bound = Some(own);
                description.listens = Some(Box::new(listens));
                is_listener = true;
            }
            Passed::Connection { claim, checkpoint, is_read_shut, is_write_shut } => {
                description.state = State::NotOwned;
                (description.is_read_shut, description.is_write_shut) =
                    (is_read_shut, is_write_shut);
                description.secret = Some(claim.map_or(0, |claim| claim.secret));
                description.checkpoint = checkpoint.map(Box::new);
                description.claim = claim.map(Box::new);
            }
            Passed::Stream(..) => return None,
        }
        let at = self.insert(fd, description);
        self.set_signals(at, fd, flags.contains(sys::ASYNC));
        if is_listener {
            self.listeners.push(at);
            self.has_inherited_listeners = true;
        }
        self.notify(at, EventFlags::empty());
        line
    }

    /// The descriptors that are ours, with the indices of their descriptions.
    pub fn numbers(&self) -> impl Iterator<Item = (c_int, usize)> {
        let all = (0..).zip(&self.fds);
        all.filter_map(|(fd, place)| Some((fd, (*place as usize).checked_sub(1)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use wave_posix::CHECKPOINT_WORDS;

    use super::*;

    #[test]
    fn encoded_tickets_decode_to_themselves() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        assert!(!has_ticket(fd));
        let cookie = sockopt::socket_cookie(listener.as_fd()).unwrap();
        let own: SocketAddr = "10.77.0.2:80".parse().unwrap();
        let sharing = Sharing { secret: 7 << 90 | 5, reuses_port: true };
        let words: [u64; CHECKPOINT_WORDS] =
            [9 << 32 | 3, 0, 0xffff_0a4d_0002, 80, 0, 0xffff_0a4d_0001, 999, 40, 30, 20, 10, 1];
        let checkpoint = Checkpoint::from_words(&words).unwrap();
        let identity = Identity { flow: 9 << 32 | 3, local: own, remote: own };
        let claim = Claim { identity, secret: 3 << 100 | 1, door: 4_567 };
        let passed = [
            Passed::Bound(own),
            Passed::Bound("[fd77::2]:80".parse().unwrap()),
            Passed::Listening {
                own,
                backlog: 511,
                sharing,
                is_shared: true,
                is_nonblocking: false,
            },
            Passed::Connection {
                claim: None,
                checkpoint: None,
                is_read_shut: true,
                is_write_shut: false,
            },
            Passed::Connection {
                claim: Some(claim),
                checkpoint: Some(checkpoint),
                is_read_shut: false,
                is_write_shut: true,
            },
            Passed::Connection {
                claim: Some(claim),
                checkpoint: None,
                is_read_shut: true,
                is_write_shut: true,
            },
            Passed::Stream(own, own),
        ];
        let lines = [None, Some(0), Some(5), None, Some(9), None, None];
        for (passed, line) in passed.into_iter().zip(lines) {
            let ticket = Ticket { cookie, line, passed };
            sys::attach(fd, &ticket.to_words()).unwrap();
            let read = Ticket::of(fd).unwrap();
            assert_eq!((read.cookie, read.line), (cookie, line));
            assert_eq!(read.to_words(), ticket.to_words());
        }
        // Positions beyond those of any connection that can be handed over.
        assert!(Checkpoint::from_words(&words.map(|word| word.max(1 << 40))).is_none());
    }

    #[test]
    fn connections_accepted_by_a_listener_with_a_ticket_have_no_ticket_and_carry_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cookie = sockopt::socket_cookie(listener.as_fd()).unwrap();
        let own = listener.local_addr().unwrap();
        let ticket = Ticket { cookie, line: None, passed: Passed::Bound(own) };
        sys::attach(listener.as_raw_fd(), &ticket.to_words()).unwrap();
        let mut client = TcpStream::connect(own).unwrap();
        client.write_all(b"bytes").unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        // Linux copies the listener's filter.
        assert!(sys::attached(accepted.as_raw_fd()).is_some());
        assert!(has_ticket(listener.as_raw_fd()) && !has_ticket(accepted.as_raw_fd()));
        let mut bytes = [0; 5];
        accepted.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
    }

    #[test]
    fn socket_filter_without_the_magic_word_is_no_ticket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sys::attach(listener.as_raw_fd(), &[1, 2, 3]).unwrap();
        assert!(!has_ticket(listener.as_raw_fd()) && !has_ticket(0) && !has_ticket(-1));
    }
}
