//! State of a connection that its calls and the front share.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use wave_core::clock::Nanos;
use wave_rpc::client::Address;
use wave_rpc::status::Status;

use crate::admission::Connection;
use crate::limits::RESETS_MAX;

#[derive(Debug)]
pub struct Peer {
    hash: u64,
    address_hash: u64,
    connection: Arc<Connection>,
    opened: Cell<u64>,
    /// Calls that ended, or were reset late.
    ended: Cell<u64>,
    /// Calls that were reset early ([`crate::limits::RESET_SOON`]).
    resets: Cell<u64>,
    /// Bytes that the connection's calls hold.
    held: Cell<usize>,
    is_ending: Cell<bool>,
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Peer {
    pub fn new(address: SocketAddr, connection: Arc<Connection>) -> Peer {
        Peer {
            hash: hash(address),
            address_hash: hash(Address::from(address.ip())),
            connection,
            opened: Cell::new(0),
            ended: Cell::new(0),
            resets: Cell::new(0),
            held: Cell::new(0),
            is_ending: Cell::new(false),
            is_cut: Cell::new(false),
            waker: RefCell::new(None),
        }
    }

    /// Hash of the connection, by which RSS would steer its calls.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Hash of the client's address, without the port.
    pub fn address_hash(&self) -> u64 {
        self.address_hash
    }

    /// Number of the connection, unique over all cores.
    pub fn id(&self) -> u64 {
        self.connection.id
    }

    /// Records that the handshakes are done.
    pub fn greeted(&self, now: Nanos) {
        self.connection.set_idle(now);
    }

    /// Counts a call that began.
    pub fn begin(&self) {
        if self.is_idle() {
            self.connection.set_busy();
        }
        self.opened.set(self.opened.get() + 1);
    }

    /// Counts a call that is over. `is_reset`: it was reset early.
    pub fn finish(&self, now: Nanos, is_reset: bool) {
        let count = if is_reset { &self.resets } else { &self.ended };
        count.set(count.get() + 1);
        if self.is_idle() {
            self.connection.set_idle(now);
        }
    }

    /// Number of calls so far.
    pub fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// Records that a call that held `was` bytes now holds `is`.
    pub fn hold(&self, was: usize, is: usize) {
        self.held.set(self.held.get() - was + is);
        self.connection.account.hold(was, is);
    }

    /// Checks whether the connection's calls may hold `more` bytes more.
    pub fn check_room(&self, more: usize) -> Result<(), Status> {
        self.connection.account.check_room(self.held.get(), more)
    }

    /// Number of calls that are over.
    pub fn over(&self) -> u64 {
        self.ended.get() + self.resets.get()
    }

    /// Whether the connection has no open call.
    pub fn is_idle(&self) -> bool {
        self.opened.get() == self.over()
    }

    /// Whether the client resets far more calls than it lets finish, as only an attacker does.
    pub fn floods(&self) -> bool {
        self.resets.get() > RESETS_MAX + 2 * self.ended.get()
    }

    /// Asks the connection to accept no more calls, and to end after its open ones.
    pub fn end(&self) {
        self.is_ending.set(true);
        self.wake();
    }

    /// Asks the connection to end at once, or after its calls if it has some by now.
    pub fn cut(&self) {
        self.is_cut.set(self.is_idle());
        self.end();
    }

    /// Whether the connection is to end at once.
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Whether the connection was asked to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    pub fn set_waker(&self, waker: &Waker) {
        let mut own = self.waker.borrow_mut();
        if !own.as_ref().is_some_and(|own| own.will_wake(waker)) {
            *own = Some(waker.clone());
        }
    }
}

fn hash(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Admission;
    use crate::shared::Totals;

    #[test]
    fn client_that_resets_nearly_all_calls_floods() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let admission = Arc::new(Admission::new(1, Arc::new(Totals::new(0))));
        let admitted = admission.admit(address.ip(), 0, Nanos(0)).admitted.unwrap();
        let peer = Peer::new(address, Arc::clone(&admitted.connection));
        peer.resets.set(RESETS_MAX);
        assert!(!peer.floods());
        peer.resets.set(RESETS_MAX + 1);
        assert!(peer.floods());
        peer.ended.set(1);
        assert!(!peer.floods());
    }
}
