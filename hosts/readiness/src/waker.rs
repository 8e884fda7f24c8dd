//! Descriptors that wake a sleeping thread.

use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, getpid};

/// Most wakers that are kept for later sleeps.
const SPARE_MAX: usize = 64;

static SPARE: Mutex<Vec<Arc<Waker>>> = Mutex::new(Vec::new());

/// What the process does with the descriptors that this crate keeps, such as hiding them from a program.
#[derive(Clone, Copy, Debug)]
pub struct Keeper {
    /// Takes a new descriptor, and returns it or a duplicate.
    pub keep: fn(OwnedFd) -> OwnedFd,
    /// Called before a descriptor is closed.
    pub closes: fn(BorrowedFd<'_>),
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// Sets the process's keeper. Only the first call has an effect.
pub fn set_keeper(keeper: Keeper) {
    let _ = KEEPER.set(keeper);
}

/// An eventfd that is readable after a ring, until it is drained.
#[derive(Debug)]
pub struct Waker {
    event: OwnedFd,
    /// The process that created the waker. A child of fork(2) shares the eventfd, but has none of its parent's threads.
    process: Pid,
}

impl Waker {
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: eventfd(2).
    pub fn new() -> Result<Waker, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let event = match KEEPER.get() {
            Some(keeper) => (keeper.keep)(event),
            None => event,
        };
        Ok(Waker { event, process: getpid() })
    }

    /// A waker for one sleep. A spurious ring from an earlier sleep may still arrive.
    ///
    /// # Errors
    /// As [`Waker::new`].
    pub fn take() -> Result<Arc<Waker>, Errno> {
        // A signal handler may have interrupted a thread that holds the lock.
        let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.pop());
        match spare {
            Some(waker) if waker.is_of_this_process() => return Ok(waker),
            // This process may have closed the number, and opened another file with it.
            Some(parents) => std::mem::forget(parents),
            None => {}
        }
        Waker::new().map(Arc::new)
    }

    /// Creates a waker for a later [`Waker::take`], if there is none.
    pub fn prepare() {
        let has_one =
            |spare: &mut Vec<Arc<Waker>>| spare.iter().any(|one| one.is_of_this_process());
        if SPARE.try_lock().is_ok_and(|mut spare| !has_one(&mut spare))
            && let Ok(waker) = Waker::new()
        {
            Waker::give_back(Arc::new(waker));
        }
    }

    /// Keeps a waker, which must be in no list, for [`Waker::take`].
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

    /// Clears all rings.
    pub fn drain(&self) {
        let _ = read(&self.event, &mut [0; 8]);
    }

    /// Whether this process created the waker, rather than a process that forked it.
    pub fn is_of_this_process(&self) -> bool {
        self.process == getpid()
    }
}

impl Drop for Waker {
    fn drop(&mut self) {
        if let Some(keeper) = KEEPER.get() {
            (keeper.closes)(self.event.as_fd());
        }
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
