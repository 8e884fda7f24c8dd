//! A program's connection to an agent that terminates TCP, for one thread.

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

use crate::agent_window::{AgentWindow, ToeError, Woken};
use crate::buddy::is_ring_size;
use crate::context::{Context, PLACE_BITS};
use crate::limits::payload_within_limits;
use crate::listener::Listener;
use crate::stream::Stream;

/// Longest sleep before a check whether the agent is still alive.
const LIFE_CHECK: Duration = Duration::from_millis(100);
/// Sleep between two attempts to send requests for which the agent's queue had no room. No doorbell announces room.
const RETRY: Duration = Duration::from_millis(1);
/// Longest time for the agent to answer a request that involves no peer, such as to listen.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for which dropping the last handle waits for room for the pending requests.
const FAREWELL: Duration = Duration::from_millis(100);

/// Options of [`Toe::connect_with`]: sizes, trusted users and a timeout.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of payload memory, which bounds the number of connections. It is sparse, and belongs to this process: rings are populated as
    /// their streams need it. It is freed when the last handle is dropped. Under RLIMIT_AS and RLIMIT_FSIZE, payload memory and rings are
    /// smaller: see [`payload_within_limits`].
    pub payload_bytes: u64,
    /// Bytes of a connection's receive ring: a power of two, 4 KiB to 16 MiB.
    pub receive_bytes: u32,
    /// Bytes of a connection's send ring: a power of two, 4 KiB to 16 MiB.
    pub send_bytes: u32,
    /// Users as which the agent may run, besides this process's own and root.
    pub agent_users: Vec<u32>,
    /// Longest time for the agent to accept this process.
    pub patience: Duration,
}

impl Default for Options {
    /// 64 GiB of payload memory, receive rings of 1 MiB, send rings of 4 MiB, and a patience of 5 s.
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

/// A handle of one context of an agent's TCP, for one thread. Clones share the context.
///
/// It is neither [`Send`] nor [`Sync`]: a context has one producer of requests and one consumer of events, and each thread of a
/// program connects separately. So no call takes a lock.
///
/// Written data is published in bursts: with the 16th write, when a quarter of a ring is full, before any wait (also in
/// [`Toe::poll_ready`]), and with [`flush`](std::io::Write::flush). A program that writes and then does something else for a long
/// time should call `flush`.
///
/// If the agent dies, every call returns `ECONNRESET` once the bytes that had arrived are read, at the latest 100 ms after the death.
#[derive(Clone)]
pub struct Toe {
    pub(crate) inner: Rc<Inner>,
}

impl Toe {
    /// Connects to the agent that listens at `path`, with [`Options::default`].
    ///
    /// # Errors
    /// No agent is there, or it refuses, or it does not answer.
    pub fn connect(path: impl AsRef<Path>) -> Result<Toe, ToeError> {
        Toe::connect_with(path, &Options::default())
    }

    /// As [`Toe::connect`], with these options.
    ///
    /// # Errors
    /// As [`Toe::connect`]; also if the rings' sizes are invalid or do not fit into the payload memory.
    pub fn connect_with(path: impl AsRef<Path>, options: &Options) -> Result<Toe, ToeError> {
        let Options { payload_bytes, receive_bytes, send_bytes, .. } = *options;
        let needed = u64::from(receive_bytes) + u64::from(send_bytes);
        let are_sizes = is_ring_size(receive_bytes) && is_ring_size(send_bytes);
        if !are_sizes || needed > payload_bytes {
            return Err(ToeError::Rings { receive_bytes, send_bytes, payload_bytes });
        }
        let (payload, file, ring_bytes) = payload_within_limits(options)?;
        let users = &options.agent_users;
        let lent = (&payload, file.as_fd());
        let window = AgentWindow::connect(path.as_ref(), users, lent, options.patience)?;
        // A separate descriptor, so that it can be polled while the context is in use.
        let bell = window.bell().try_clone_to_owned()?;
        let context = Context::new(window, payload.bytes(), ring_bytes);
        Ok(Toe { inner: Rc::new(Inner { context: RefCell::new(context), payload, bell }) })
    }

    /// Listens on an address. Port 0 selects any port; an unspecified address means the agent's own. Up to `backlog` connections (at
    /// least one) wait to be accepted.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`; `EACCES` for a port below 1,024 if this user is neither root nor the agent's; `EMFILE` if this
    /// program or user has used up its share of listeners; `ETIMEDOUT` if the agent does not answer within 10 s, `ECONNRESET` if it has
    /// gone.
    pub fn listen(&self, local: SocketAddr, backlog: u16) -> io::Result<Listener> {
        let name = self.inner.context.borrow_mut().listen(local, backlog);
        let listener = Listener::new(self.clone(), name);
        let deadline = Instant::now().checked_add(ANSWER_PATIENCE);
        self.inner.wait(deadline, Errno::TIMEDOUT, |context| context.listening(name))?;
        // Offers slots for connections before the first accept.
        self.inner.context.borrow_mut().flush();
        Ok(listener)
    }

    /// Connects to a peer, and waits for the connection; without a `timeout`, for ever.
    ///
    /// # Errors
    /// `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`, `EADDRNOTAVAIL`; `EMFILE` if this program or user has used up its share
    /// of connections; `ENOBUFS` if there is no payload memory for its rings, `ECONNRESET` if the agent has gone.
    pub fn connect_stream(
        &self,
        remote: SocketAddr,
        timeout: Option<Duration>,
    ) -> io::Result<Stream> {
        let stream = self.begin_connect(remote)?;
        stream.await_connected(timeout)?;
        Ok(stream)
    }

    /// Begins to connect to a peer, without waiting. The stream becomes writable when the connection is established
    /// ([`Stream::readiness`]); if connecting fails, any call on the stream returns the error.
    ///
    /// # Errors
    /// `ENOBUFS` if there is no payload memory for its rings, `ECONNRESET` if the agent has gone.
    pub fn begin_connect(&self, remote: SocketAddr) -> io::Result<Stream> {
        let mut context = self.inner.context.borrow_mut();
        context.process_events();
        if context.is_dead() {
            return Err(Errno::CONNRESET.into());
        }
        let name = context.connect(remote).ok_or(Errno::NOBUFS)?;
        context.flush();
        drop(context);
        Ok(Stream::new(self.clone(), name))
    }

    /// Processes the agent's events, and publishes written data. Returns whether something may have changed since the last call, including
    /// changes found by other calls. Once it returns false, the file descriptor ([`AsFd`]) becomes readable with the next change: call
    /// until then, look at the streams ([`Toe::next_changed`], or [`Stream::readiness`] of each), and poll. This suits level- and
    /// edge-triggered polling.
    ///
    /// # Errors
    /// `ECONNRESET`: the agent has gone, and all streams have failed.
    pub fn poll_ready(&self) -> io::Result<bool> {
        let mut context = self.inner.context.borrow_mut();
        context.queues.unpark();
        context.process_events();
        context.flush();
        if context.is_dead() {
            return Err(Errno::CONNRESET.into());
        }
        if context.take_had_events() {
            return Ok(true);
        }
        if context.has_unsent() {
            // The agent does not ring when its queue has room.
            std::thread::sleep(RETRY);
            context.flush();
            return Ok(true);
        }
        // The doorbell's rings so far announced events that have just been processed.
        if context.queues.clear_ring() {
            context.handle_death();
            return Err(Errno::CONNRESET.into());
        }
        context.queues.park();
        if context.process_events() {
            context.take_had_events();
            context.queues.unpark();
            return Ok(true);
        }
        Ok(false)
    }

    /// Waits until something may have changed since the last call, and processes it, as [`Toe::poll_ready`]; without a `timeout`, for
    /// ever. Returns false after the timeout. For programs that wait for nothing else; cheaper than poll(2).
    ///
    /// # Errors
    /// As [`Toe::poll_ready`].
    pub fn wait_ready(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let waited = self.inner.wait(deadline, Errno::TIMEDOUT, |context| {
            context.flush();
            match (context.is_dead(), context.take_had_events()) {
                (true, _) => Some(Err(Errno::CONNRESET.into())),
                (false, had_events) => had_events.then_some(Ok(())),
            }
        });
        match waited {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// A stream with news since this call last returned it, if there is one: bytes or the end of the stream arrived, room became free, it
    /// connected, or it failed. A program with many streams needs to look at these only. A newly accepted stream is returned as well.
    ///
    /// A stream is returned once for all its news (like epoll's EPOLLET): read and write until `EWOULDBLOCK`, or come back to it without
    /// being told.
    pub fn next_changed(&self) -> Option<StreamId> {
        self.inner.context.borrow_mut().pop_changed().map(StreamId)
    }

    /// Publishes the written data of all streams of this context.
    pub fn flush(&self) {
        self.inner.context.borrow_mut().flush();
    }
}

/// Identifies a stream among all past and present streams of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// An index for a flat table, unique among the present streams. It is less than the largest number of simultaneous streams so far,
    /// offered slots included.
    pub fn index(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }
}

impl AsFd for Toe {
    /// The descriptor to poll for input: see [`Toe::poll_ready`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.bell.as_fd()
    }
}

impl fmt::Debug for Toe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toe").finish_non_exhaustive()
    }
}

/// The state that all handles of a context share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) context: RefCell<Context<AgentWindow>>,
    pub(crate) payload: Payload,
    bell: OwnedFd,
}

impl Inner {
    /// Waits until `ready` returns a result from the events processed so far; without a deadline, for ever.
    ///
    /// # Errors
    /// The error from `ready`, or `late` after the deadline.
    pub(crate) fn wait<R>(
        &self,
        deadline: Option<Instant>,
        late: Errno,
        mut ready: impl FnMut(&mut Context<AgentWindow>) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut context = self.context.borrow_mut();
        loop {
            context.process_events();
            if let Some(found) = ready(&mut context) {
                return found;
            }
            context.flush();
            let now = Instant::now();
            let left = deadline.map(|at| at.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                // Calls that never wait must detect a dead agent as well.
                if !context.is_dead() && context.queues.check_hung_up(LIFE_CHECK) {
                    context.handle_death();
                    continue;
                }
                return Err(late.into());
            }
            let most = if context.has_unsent() { RETRY } else { LIFE_CHECK };
            context.queues.park();
            // Events from before the agent could see the parking are in the queue now.
            let woken = match context.process_events() {
                true => Woken::Rung,
                false => context.queues.wait(left.map_or(most, |left| left.min(most))),
            };
            context.queues.unpark();
            let has_gone = match woken {
                Woken::Rung => false,
                Woken::TimedOut => context.queues.hung_up(),
                Woken::HungUp => true,
            };
            if has_gone {
                context.handle_death();
            }
        }
    }
}

impl Context<AgentWindow> {
    /// Sends all pending requests, and waits up to `patience` while the agent has no room for them.
    pub fn flush_all(&mut self, patience: Duration) {
        let start = Instant::now();
        self.flush();
        while self.has_unsent()
            && !self.is_dead()
            && !self.queues.hung_up()
            && start.elapsed() < patience
        {
            std::thread::sleep(RETRY);
            self.flush();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.context.get_mut().flush_all(FAREWELL);
    }
}

#[cfg(test)]
mod tests {
    use wave_tcp::control::Bounds;

    use super::*;

    #[test]
    fn default_payload_memory_has_rings_for_a_programs_share_of_connections() {
        let Options { payload_bytes, receive_bytes, send_bytes, .. } = Options::default();
        let connections = payload_bytes / u64::from(receive_bytes + send_bytes);
        // The share of a single program is three quarters.
        assert!(connections >= u64::from(Bounds::default().flows) * 3 / 4, "{connections}");
    }
}
