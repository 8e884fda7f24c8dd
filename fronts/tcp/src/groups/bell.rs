//! The bell of a thread that sleeps in poll(2) while its lanes are empty.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use wave_agent::lanes::Sleeper;

#[derive(Debug)]
pub(crate) struct Bell {
    event: OwnedFd,
    /// Whether the owner sleeps, or is about to.
    is_parked: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> std::io::Result<Bell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event, is_parked: AtomicBool::new(false) })
    }

    /// The owner is about to sleep: it looks at its lanes once more, and then polls the bell for input.
    pub(crate) fn prepare_park(&self) {
        self.is_parked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake. Discards rings.
    pub(crate) fn unpark(&self) {
        self.is_parked.store(false, Ordering::Relaxed);
        let _ = read(&self.event, &mut [0; 8]);
    }

    /// Wakes the owner, or keeps it from falling asleep.
    pub(crate) fn ring(&self) {
        // The counter has room for 2^64 - 2 rings.
        let _ = write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl Sleeper for Bell {
    fn ring_if_parked(&self) {
        // Either this load sees `is_parked`, or the owner's last look sees what was put into its lanes before.
        fence(Ordering::SeqCst);
        if self.is_parked.load(Ordering::Relaxed) {
            self.ring();
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
