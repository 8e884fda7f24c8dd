//! A program's way to an agent that terminates TCP, for one thread.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use wave_links::Payload;

use crate::buddy::is_ring_size;
use crate::context::{Context, PLACE_BITS};
use crate::line::{Line, ToeError, Woken, create_payload};
use crate::listener::Listener;
use crate::stream::Stream;

/// Longest sleep before a program looks whether the agent still lives.
const LIFE_CHECK: Duration = Duration::from_millis(100);
/// Sleep between two tries to say what the agent's queue had no room for. Nobody rings when there is room.
const RETRY: Duration = Duration::from_millis(1);
/// How long an agent may take to answer a request of its own side, such as to listen.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How long the last handle waits for room for what is still to be said.
const FAREWELL: Duration = Duration::from_millis(100);

/// Sizes, and whom to trust.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of payload memory, which bounds the number of connections. It is sparse, and this process's: rings get memory as their
    /// streams need it. It is given back when the last handle is dropped.
    pub payload_bytes: u64,
    /// Bytes of a connection's ring of what comes in: a power of two, 4 KiB to 16 MiB.
    pub receive_bytes: u32,
    /// Bytes of a connection's ring of what goes out: as above.
    pub send_bytes: u32,
    /// Users as which the agent may run, beside this process's own and root.
    pub agent_users: Vec<u32>,
    /// How long the agent may take to let this process in.
    pub patience: Duration,
}

impl Default for Options {
    /// 64 GiB of payload memory, rings of 1 MiB for what comes in and 4 MiB for what goes out, 5 s.
    fn default() -> Options {
        Options {
            payload_bytes: 1 << 36,
            receive_bytes: 1 << 20,
            send_bytes: 4 << 20,
            agent_users: Vec::new(),
            patience: Duration::from_secs(5),
        }
    }
}

/// One context of an agent's TCP: a handle for one thread, and its clones share it.
///
/// It is neither [`Send`] nor [`Sync`]: a context has one producer of requests and one consumer of events, and each thread of a
/// program connects for itself. So no call takes a lock.
///
/// Data that was written travels in bursts: with the 16th write, when a quarter of a ring is full, before any wait (also in
/// [`Toe::poll_ready`]), and with [`flush`](std::io::Write::flush). A program that writes and then does something else for long
/// calls that.
///
/// If the agent dies, every call answers `ECONNRESET` once all was read that had come, at the latest 100 ms later.
#[derive(Clone)]
pub struct Toe {
    pub(crate) inner: Rc<Inner>,
}

impl Toe {
    /// Connects to the agent that listens at `path`, with [`Options::default`].
    ///
    /// # Errors
    /// Nobody is there, refuses, or does not answer.
    pub fn connect(path: impl AsRef<Path>) -> Result<Toe, ToeError> {
        Toe::connect_with(path, &Options::default())
    }

    /// As [`Toe::connect`], with these options.
    ///
    /// # Errors
    /// As [`Toe::connect`]; also if rings of these sizes cannot be had.
    pub fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Toe, ToeError> {
        let Options { payload_bytes, receive_bytes, send_bytes, .. } = *options;
        let needed = u64::from(receive_bytes) + u64::from(send_bytes);
        let are_sizes = is_ring_size(receive_bytes) && is_ring_size(send_bytes);
        if !are_sizes || needed > payload_bytes {
            return Err(ToeError::Rings { receive_bytes, send_bytes, payload_bytes });
        }
        let (payload, file): (Payload, OwnedFd) = create_payload(payload_bytes)?;
        let users = &options.agent_users;
        let lent = (&payload, file.as_fd());
        let line = Line::connect(path.as_ref(), users, lent, options.patience)?;
        // Its own descriptor, so that it can be polled while the context is in use.
        let bell = line.bell().try_clone_to_owned()?;
        let context = Context::new(line, payload_bytes, [receive_bytes, send_bytes]);
        Ok(Toe { inner: Rc::new(Inner { context: RefCell::new(context), payload, bell }) })
    }

    /// Listens at an address: port 0 asks for any, an unspecified address is the agent's own. Up to `backlog` connections (at least
    /// one) wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`; `EACCES` for a port below 1,024 where this user is neither root nor the agent's; `EMFILE` if this
    /// program or user has its share of listeners; `ETIMEDOUT` if the agent does not answer within 10 s, `ECONNRESET` if it has gone.
    pub fn listen(&self, local: SocketAddr, backlog: u16) -> io::Result<Listener> {
        let name = self.inner.context.borrow_mut().listen(local, backlog);
        let listener = Listener::new(self.clone(), name);
        let deadline = Instant::now().checked_add(ANSWER_PATIENCE);
        self.inner.wait(deadline, Errno::TIMEDOUT, |context| context.listening(name))?;
        // Room for connections, before the first accept.
        self.inner.context.borrow_mut().flush();
        Ok(listener)
    }

    /// Connects to a peer, and waits for that; for ever where there is no `timeout`.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`, `EADDRNOTAVAIL`; `EMFILE` if this program or user has its share of
    /// connections; `ENOBUFS` if there is no payload memory for its rings, `ECONNRESET` if the agent has gone.
    pub fn connect_stream(
        &self,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<Stream> {
        let stream = self.begin_connect(remote)?;
        stream.await_connected(timeout)?;
        Ok(stream)
    }

    /// Begins to connect to a peer. The stream is writable once that has succeeded ([`Stream::readiness`]); any call on it fails if
    /// it has not.
    ///
    /// # Errors
    /// `ENOBUFS` if there is no payload memory for its rings, `ECONNRESET` if the agent has gone.
    pub fn begin_connect(&self, remote: SocketAddr) -> io::Result<Stream> {
        let mut context = self.inner.context.borrow_mut();
        context.look();
        if context.is_dead() {
            return Err(Errno::CONNRESET.into());
        }
        let name = context.connect(remote).ok_or(Errno::NOBUFS)?;
        context.flush();
        drop(context);
        Ok(Stream::new(self.clone(), name))
    }

    /// Takes what the agent has said, and publishes what was written. Returns whether something may have changed since the last call,
    /// by whichever call it was taken. Once it returns
    /// false, the file descriptor ([`AsFd`]) becomes readable as soon as something does: call until then, look at the streams
    /// ([`Toe::next_changed`], or [`Stream::readiness`] of each), and poll. This suits level- and edge-triggered polling.
    ///
    /// # Errors
    /// `ECONNRESET`: the agent has gone, and all streams have failed.
    pub fn poll_ready(&self) -> io::Result<bool> {
        let mut context = self.inner.context.borrow_mut();
        context.line.unpark();
        context.look();
        context.flush();
        if context.is_dead() {
            return Err(Errno::CONNRESET.into());
        }
        if context.take_news() {
            return Ok(true);
        }
        if context.has_unsent() {
            // The agent does not ring when its queue has room.
            std::thread::sleep(RETRY);
            context.flush();
            return Ok(true);
        }
        // Rings so far were for what was seen just now.
        if context.line.wait(Duration::ZERO) == Woken::HungUp {
            context.mourn();
            return Err(Errno::CONNRESET.into());
        }
        context.line.park();
        if context.look() {
            context.take_news();
            context.line.unpark();
            return Ok(true);
        }
        Ok(false)
    }

    /// Waits until something may have changed since the last call, and takes it, as [`Toe::poll_ready`]; for ever where there is no
    /// `timeout`. Returns false after the timeout. For programs that wait for nothing else, and cheaper than to poll(2).
    ///
    /// # Errors
    /// As [`Toe::poll_ready`].
    pub fn wait_ready(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let waited = self.inner.wait(deadline, Errno::TIMEDOUT, |context| {
            context.flush();
            match (context.is_dead(), context.take_news()) {
                (true, _) => Some(Err(Errno::CONNRESET.into())),
                (false, has_news) => has_news.then_some(Ok(())),
            }
        });
        match waited {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// A stream of which the agent has said something since it was last named here, if there is one: bytes or the end came, room
    /// became free, it connected, or it failed. A program with many streams looks at these alone. A stream that was accepted is
    /// named afterwards, too.
    ///
    /// A stream is named once, however much it has (as by epoll's EPOLLET): read and write until `EWOULDBLOCK`, or come back
    /// unasked.
    pub fn next_changed(&self) -> Option<StreamId> {
        self.inner.context.borrow_mut().pop_changed().map(StreamId)
    }

    /// Publishes what was written on all streams of this context.
    pub fn flush(&self) {
        self.inner.context.borrow_mut().flush();
    }
}

/// Tells a stream from the others of its context, and from those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// A number that no other stream has at the same time, for a flat table: smaller than the most streams that there were at once,
    /// offered room included.
    pub fn index(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }
}

impl AsFd for Toe {
    /// To be polled for input: see [`Toe::poll_ready`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.bell.as_fd()
    }
}

impl fmt::Debug for Toe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toe").finish_non_exhaustive()
    }
}

/// What all handles of a context share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) context: RefCell<Context<Line>>,
    pub(crate) payload: Payload,
    bell: OwnedFd,
}

impl Inner {
    /// Waits until `ready` has something, which looks at what the agent has said so far; for ever where there is no deadline.
    ///
    /// # Errors
    /// What `ready` found, or `late` after the deadline.
    pub(crate) fn wait<R>(
        &self,
        deadline: Option<Instant>,
        late: Errno,
        mut ready: impl FnMut(&mut Context<Line>) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut context = self.context.borrow_mut();
        loop {
            context.look();
            if let Some(found) = ready(&mut context) {
                return found;
            }
            context.flush();
            let now = Instant::now();
            let left = deadline.map(|at| at.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                // Who never waits hears of it as well.
                if !context.is_dead() && context.line.has_gone_by(now, LIFE_CHECK) {
                    context.mourn();
                    continue;
                }
                return Err(late.into());
            }
            let most = if context.has_unsent() { RETRY } else { LIFE_CHECK };
            context.line.park();
            // What came before the agent could see this is there now.
            let woken = match context.look() {
                true => Woken::Rung,
                false => context.line.wait(left.map_or(most, |left| left.min(most))),
            };
            context.line.unpark();
            let has_gone = match woken {
                Woken::Rung => false,
                Woken::TimedOut => context.line.hung_up(),
                Woken::HungUp => true,
            };
            if has_gone {
                context.mourn();
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let context = self.context.get_mut();
        let start = Instant::now();
        context.flush();
        while context.has_unsent()
            && !context.is_dead()
            && !context.line.hung_up()
            && start.elapsed() < FAREWELL
        {
            std::thread::sleep(RETRY);
            context.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use wave_tcp::control::Bounds;

    use super::*;

    #[test]
    fn payload_memory_has_rings_for_a_programs_share_of_an_agents_connections() {
        let Options { payload_bytes, receive_bytes, send_bytes, .. } = Options::default();
        let connections = payload_bytes / u64::from(receive_bytes + send_bytes);
        // A program that is alone has three quarters.
        assert!(connections >= u64::from(Bounds::default().flows) * 3 / 4, "{connections}");
    }
}
