//! A connection that several processes use becomes a stream of the kernel's (docs/adr/0104).
//!
//! The process that wants to use it asks at the agent's door, connects the placeholder to the same door, and tells the agent from which
//! port. From then on every descriptor of the placeholder, in any process, is an ordinary TCP socket, which the agent feeds.

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, set_ipv6_v6only};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, connect, recv, send,
    shutdown, socket_with,
};
use wave_posix::Identity;
use wave_posix::demotion::{Answer, Cause, Greeting, Shut};
use wave_readiness::Source;

use crate::description::{Description, State};
use crate::messages::warn_user;
use crate::names::kernels_name;
use crate::passing::{give_names, names_of};
use crate::poll::MOVED;
use crate::shared::Claim;
use crate::sockets::Sockets;
use crate::sys;
use crate::world::{RETRY, World};

/// Longest wait for an answer: the owner may be inside a call.
const PATIENCE: Duration = Duration::from_secs(10);

impl Sockets {
    /// Makes the connection of this descriptor a stream of the kernel's: what follows would bypass the library.
    #[cfg_attr(test, allow(dead_code))]
    pub fn demote(&self, fd: c_int, cause: Cause) {
        let Ok(mut world) = self.open() else { return };
        world.process_events();
        if let Some(at) = world.find(fd) {
            world.demote(fd, at, cause);
        }
    }

    /// As [`Sockets::demote`], for all connections of the process.
    #[cfg_attr(test, allow(dead_code))]
    pub fn demote_all(&self, cause: Cause) {
        let Ok(mut world) = self.open() else { return };
        world.process_events();
        let all: Vec<(c_int, usize)> = world.numbers().collect();
        for (fd, at) in all {
            world.demote(fd, at, cause);
        }
    }
}

impl World {
    /// Whether a socket is a connection that no process has ended.
    pub fn is_connection(&mut self, at: usize) -> bool {
        matches!(self.description(at).state, State::Open(_) | State::NotOwned)
    }

    /// Makes a connection, which has this descriptor, a stream of the kernel's. No effect on other sockets.
    pub fn demote(&mut self, fd: c_int, at: usize, cause: Cause) {
        let claim = self.claim(at);
        if self.is_connection(at)
            && let Some(claim) = claim
            && let Err(why) = self.make_stream(at, Some(fd), &claim, cause)
        {
            self.process_events();
            // One that has ended meanwhile needs none.
            if self.is_connection(at) {
                warn_user(&format!("cannot demote a connection: {why}"));
            }
        }
    }

    /// Makes a connection a stream of the kernel's. Its description has no descriptors afterwards. `fd`: one of them; in a child of
    /// vfork(2), others may be closed.
    pub fn make_stream(
        &mut self,
        at: usize,
        fd: Option<c_int>,
        claim: &Claim,
        cause: Cause,
    ) -> io::Result<()> {
        self.uncork_all();
        let fds: Vec<c_int> =
            self.numbers().filter(|(_, other)| *other == at).map(|(fd, _)| fd).collect();
        if let Some(placeholder) = fd.or(fds.first().copied()) {
            // Another process may have made it one before the connection ended.
            let is_stream = names_of(placeholder).is_some();
            // Another process may wait for this one to leave.
            self.leave_shared();
            let made = self.ask_for_stream(placeholder, claim, cause);
            self.enter_shared();
            if !is_stream {
                made?;
            }
        }
        self.has_unnotified = true;
        let Description { state, incarnation, is_read_shut, is_write_shut, .. } =
            *self.description(at);
        if let State::Open(name) = state {
            let agent = self.agent(incarnation);
            agent.owners.remove(&name);
            agent.context.close(name);
        }
        self.description(at).state = State::Stream;
        for fd in &fds {
            shut_down(*fd, Shut { read: is_read_shut, write: is_write_shut });
            self.hand_interests_to_kernel(at, *fd);
            self.remove(*fd);
            self.release(at);
        }
        // Threads that wait for it look again.
        self.description(at).source.changed(MOVED, Source::ANY);
        self.note_change();
        Ok(())
    }

    fn ask_for_stream(
        &mut self,
        placeholder: c_int,
        claim: &Claim,
        cause: Cause,
    ) -> io::Result<()> {
        if claim.door == 0 {
            return Err(io::Error::other("the agent has no door on 127.0.0.1"));
        }
        let door = SocketAddr::from((Ipv4Addr::LOCALHOST, claim.door));
        let greeting = Greeting { secret: claim.secret, flow: claim.identity.flow, cause };
        let start = Instant::now();
        loop {
            let call =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            self.hide(call.as_raw_fd());
            let asked = ask(&call, door, &greeting, placeholder, claim.identity);
            self.show(call.as_raw_fd());
            match asked {
                // The agent hands over to another one, which has the same door.
                Err(error) if is_hung_up(&error) && start.elapsed() < PATIENCE => {
                    wave_posix::pause(RETRY);
                }
                asked => return asked,
            }
        }
    }
}

/// The dialogue of [`wave_posix::door`].
fn ask(
    call: &OwnedFd,
    door: SocketAddr,
    greeting: &Greeting,
    placeholder: c_int,
    names: Identity,
) -> io::Result<()> {
    connect(call, &door)?;
    send(call, &greeting.to_bytes(), SendFlags::NOSIGNAL)?;
    let start = Instant::now();
    loop {
        await_events(call, PollFlags::IN, PATIENCE.saturating_sub(start.elapsed()))?;
        let mut answer = [0];
        let (_, count) = recv(call, &mut answer, RecvFlags::empty())?;
        if count == 0 {
            return Err(Errno::PIPE.into());
        }
        match Answer::from_byte(answer[0]) {
            Some(Answer::Done) => {
                // Another process may have given it a ticket since it became a stream.
                give_names(placeholder, names.local, names.remote);
                return Ok(());
            }
            Some(Answer::Go(shut)) => {
                let port = connect_placeholder(placeholder, door, names)?;
                shut_down(placeholder, shut);
                send(call, &port.to_le_bytes(), SendFlags::NOSIGNAL)?;
            }
            Some(Answer::Never) | None => return Err(Errno::CONNRESET.into()),
        }
    }
}

/// Whether the agent has ended the dialogue without an answer.
fn is_hung_up(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PIPE))
}

/// Connects the placeholder to the door, and returns its port.
fn connect_placeholder(placeholder: c_int, door: SocketAddr, names: Identity) -> io::Result<u16> {
    let fd = sys::fd(placeholder);
    give_names(placeholder, names.local, names.remote);
    let door = match sockopt::socket_domain(fd)? {
        AddressFamily::INET6 => {
            let _ = set_ipv6_v6only(fd, false);
            let mapped: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
            SocketAddr::from((mapped, door.port()))
        }
        _ => door,
    };
    match connect(fd, &door) {
        Ok(()) | Err(Errno::ISCONN) => {}
        Err(Errno::INPROGRESS | Errno::ALREADY) => {
            await_events(&fd, PollFlags::OUT, PATIENCE)?;
            sockopt::socket_error(fd)??;
        }
        Err(error) => return Err(error.into()),
    }
    kernels_name(placeholder).map(|name| name.port()).ok_or_else(|| Errno::NOTCONN.into())
}

/// Shuts down directions of a stream of the kernel's, as its program has of the connection.
fn shut_down(fd: c_int, shut: Shut) {
    for (is_shut, how) in [(shut.read, Shutdown::Read), (shut.write, Shutdown::Write)] {
        if is_shut {
            let _ = shutdown(sys::fd(fd), how);
        }
    }
}

fn await_events(
    fd: &impl std::os::fd::AsFd,
    events: PollFlags,
    patience: Duration,
) -> io::Result<()> {
    let fd: BorrowedFd<'_> = fd.as_fd();
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&fd, events)], Some(&timeout)) {
            Ok(0) => return Err(Errno::TIMEDOUT.into()),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
