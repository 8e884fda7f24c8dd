//! What is known of a connection by its calls, and by whoever ends them all.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::task::Waker;

use super::limits::RESETS_MAX;

/// A connection.
#[derive(Debug)]
pub struct Peer {
    hash: u64,
    /// Calls so far.
    pub(super) opened: Cell<u64>,
    /// Calls that came to an end, or were reset after a while.
    pub(super) ended: Cell<u64>,
    /// Calls that were reset as soon as they had come.
    pub(super) resets: Cell<u64>,
    is_ending: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Peer {
    /// From this address.
    pub fn new(address: SocketAddr) -> Peer {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Peer {
            hash: hasher.finish(),
            opened: Cell::new(0),
            ended: Cell::new(0),
            resets: Cell::new(0),
            is_ending: Cell::new(false),
            waker: RefCell::new(None),
        }
    }

    /// What RSS would steer its calls by.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether none of its calls is open.
    pub fn is_idle(&self) -> bool {
        self.opened.get() == self.ended.get() + self.resets.get()
    }

    /// Whether it ends more calls than somebody would who wants answers.
    pub fn floods(&self) -> bool {
        self.resets.get() > RESETS_MAX + 2 * self.ended.get()
    }

    /// Asks the connection to take no more calls, and to end after those that it has.
    pub fn end(&self) {
        self.is_ending.set(true);
        self.wake();
    }

    /// Whether it was asked to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending.get()
    }

    /// Has the connection look at itself.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Whom to wake.
    pub fn set_waker(&self, waker: &Waker) {
        let mut own = self.waker.borrow_mut();
        if !own.as_ref().is_some_and(|own| own.will_wake(waker)) {
            *own = Some(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_resets_nearly_all_calls_floods() {
        let peer = Peer::new(([127, 0, 0, 1], 1).into());
        peer.resets.set(RESETS_MAX);
        assert!(!peer.floods());
        peer.resets.set(RESETS_MAX + 1);
        assert!(peer.floods());
        peer.ended.set(1);
        assert!(!peer.floods());
    }
}
