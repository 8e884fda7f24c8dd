//! Sockets that listen.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::stream::Stream;
use crate::toe::Toe;

/// A socket that listens. Dropping it resets the connections that nobody has accepted; those that were accepted go on.
///
/// It keeps room for a few connections at the agent, which so answers peers without waiting for the program.
#[derive(Debug)]
pub struct Listener {
    toe: Toe,
    name: u32,
    is_nonblocking: Cell<bool>,
}

impl Listener {
    pub(crate) fn new(toe: Toe, name: u32) -> Listener {
        Listener { toe, name, is_nonblocking: Cell::new(false) }
    }

    /// Accepts a connection, with its peer's address.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if there is none and the listener is nonblocking; `ECONNRESET` if the agent has gone; what the agent says if it
    /// listens no more.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let deadline = self.is_nonblocking.get().then(std::time::Instant::now);
        let inner = &self.toe.inner;
        let (name, remote) =
            inner.wait(deadline, Errno::WOULDBLOCK, |context| context.accept(self.name))?;
        // Room for the next one.
        inner.context.borrow_mut().flush();
        Ok((Stream::new(self.toe.clone(), name), remote))
    }

    /// Where it listens: the agent's own address and port where the request left them open.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.toe.inner.context.borrow_mut().listener(self.name).local;
        local.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Whether [`Listener::accept`] answers `EWOULDBLOCK` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.set(is_nonblocking);
    }

    /// Whether [`Listener::accept`] would not wait, by what the agent has said so far ([`Toe::poll_ready`]).
    pub fn is_ready(&self) -> bool {
        self.toe.inner.context.borrow_mut().acceptable(self.name) > 0
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut context = self.toe.inner.context.borrow_mut();
        context.unlisten(self.name);
        context.flush();
    }
}
