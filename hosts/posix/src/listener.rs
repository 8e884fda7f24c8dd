//! Listening sockets.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use crate::stream::Stream;
use crate::toe::Toe;

/// A listening socket. Dropping it resets the connections that were not accepted; accepted ones continue.
///
/// It keeps slots for connections at the agent, so that the agent answers peers without waiting for the program.
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

    /// Accepts a connection, and returns it with its peer's address.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if there is none and the listener is nonblocking; `ECONNRESET` if the agent has gone; the agent's error if the
    /// listener has ended.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let deadline = self.is_nonblocking.get().then(std::time::Instant::now);
        let inner = &self.toe.inner;
        let (name, remote) =
            inner.wait(deadline, Errno::WOULDBLOCK, |context| context.accept(self.name))?;
        // Offers a slot for the next connection.
        inner.context.borrow_mut().flush();
        Ok((Stream::new(self.toe.clone(), name), remote))
    }

    /// The local address. Where the request left the address or port open, the agent's choice.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let local = self.toe.inner.context.borrow_mut().listener(self.name).local;
        local.ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Sets whether [`Listener::accept`] returns `EWOULDBLOCK` instead of waiting.
    pub fn set_nonblocking(&self, is_nonblocking: bool) {
        self.is_nonblocking.set(is_nonblocking);
    }

    /// Whether [`Listener::accept`] would not wait, according to the events processed so far ([`Toe::poll_ready`]).
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
