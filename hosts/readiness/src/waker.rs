//! Descriptors that wake a sleeping thread.

use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, getpid};

/// Wakers kept for the next sleeps.
const SPARE_MAX: usize = 64;

static SPARE: Mutex<Vec<Arc<Waker>>> = Mutex::new(Vec::new());

/// An eventfd that is readable from a ring until it is drained.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    /// A child of fork(2) shares the eventfd, but none of its parent's threads.
    process: Pid,
}

impl Waker {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: eventfd(2).
    pub fn new() -> Result<Waker, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { event, process: getpid() })
    }

    /// A waker for one sleep; a spurious ring of its last sleep may still come.
    ///
    /// # Errors
    /// As [`Waker::new`].
    pub fn take() -> Result<Arc<Waker>, Errno> {
        // A signal handler may have interrupted a thread that has the lock.
        let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.pop());
        match spare.filter(|waker| waker.is_of_this_process()) {
            Some(waker) => Ok(waker),
            None => Waker::new().map(Arc::new),
        }
    }

    /// Keeps a waker that no list has, for [`Waker::take`].
    pub fn give_back(waker: Arc<Waker>) {
        waker.drain();
        if let Ok(mut spare) = SPARE.try_lock()
            && spare.len() < SPARE_MAX
        {
            spare.push(waker);
        }
    }

    /// Makes the eventfd readable, with a new edge each time.
    pub fn ring(&self) {
        // The counter has room for 2^64 - 2 rings.
        let _ = write(&self.event, &1u64.to_ne_bytes());
    }

    /// Forgets all rings.
    pub fn drain(&self) {
        let _ = read(&self.event, &mut [0; 8]);
    }

    /// Whether this process made the waker, not one that forked this process.
    pub fn is_of_this_process(&self) -> bool {
        self.process == getpid()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
