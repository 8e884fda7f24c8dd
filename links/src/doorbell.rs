//! Doorbells between processes of one machine: event file descriptors.
//!
//! An eventfd is shared with a peer that may lie. The peer can swallow a ring, ring without cause,
//! or clear the shared `O_NONBLOCK` flag. Waiting therefore never relies on that flag; ringing can
//! be made to block by a peer that also fills the counter, until someone calls
//! [`EventFd::drain`], which a watchdog does for every bell of an agent that it gives up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use wave_core::link::{Doorbell, Waiter};

use crate::memory::check;

/// Both ends of a doorbell vector.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    /// A new vector that was not rung yet.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no memory is involved.
        let raw = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `raw` was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(EventFd { fd })
    }

    /// The vector behind a descriptor that was received from the peer.
    pub fn from_fd(fd: OwnedFd) -> io::Result<EventFd> {
        // SAFETY: the descriptor is open; no memory is involved.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        let flags = flags | libc::O_NONBLOCK;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
        Ok(EventFd { fd })
    }

    /// Another handle of the same vector.
    pub fn try_clone(&self) -> io::Result<EventFd> {
        Ok(EventFd { fd: self.fd.try_clone()? })
    }

    /// Forgets all rings so far. Returns whether there was one.
    pub fn drain(&self) -> bool {
        let mut count = 0u64;
        let vector = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // SAFETY: the vector names eight bytes of `count`, valid for writes during the call.
        // RWF_NOWAIT, because the peer may have cleared O_NONBLOCK.
        let got = unsafe { libc::preadv2(self.fd.as_raw_fd(), &vector, 1, -1, libc::RWF_NOWAIT) };
        got == 8
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Doorbell for EventFd {
    fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of `one` are valid for reads during the call.
        // A full counter (EAGAIN) is a bell that rings already, and EINTR happens before writing
        // only where the write would block, so neither loses a ring.
        unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

impl Waiter for EventFd {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        if timeout == Some(Duration::ZERO) {
            return self.drain();
        }
        // A timeout beyond the clock's range is for ever.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let ready = poll(self.fd.as_fd(), libc::POLLIN, left).is_ok_and(|events| events != 0);
            if ready && self.drain() {
                return true;
            }
            if left == Some(Duration::ZERO) {
                return false;
            }
        }
    }
}

/// Waits for `events` on `fd`. Returns those that came, none after `timeout`.
pub(crate) fn poll(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entry` is valid for reads and writes, `timeout` is null or points to a live
    // timespec, and no signal mask is given.
    check(unsafe { libc::ppoll(&mut entry, 1, timeout, std::ptr::null()) })?;
    Ok(entry.revents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_kept_for_a_later_waiter_and_counted_once() {
        let bell = EventFd::new().unwrap();
        bell.ring();
        bell.ring();
        assert!(bell.wait(None));
        assert!(!bell.wait(Some(Duration::ZERO)));
        assert!(!bell.wait(Some(Duration::from_millis(1))));
    }

    #[test]
    fn a_waiter_in_another_thread_is_woken() {
        let bell = EventFd::new().unwrap();
        let other = bell.try_clone().unwrap();
        let waiter = std::thread::spawn(move || other.wait(None));
        bell.ring();
        assert!(waiter.join().unwrap());
    }

    #[test]
    fn a_peer_that_clears_the_nonblocking_flag_cannot_hold_a_waiter() {
        let bell = EventFd::new().unwrap();
        // SAFETY: the descriptor is open; no memory is involved.
        check(unsafe { libc::fcntl(bell.as_fd().as_raw_fd(), libc::F_SETFL, 0) }).unwrap();
        assert!(!bell.drain());
        bell.ring();
        assert!(bell.wait(Some(Duration::ZERO)));
        assert!(!bell.wait(Some(Duration::from_millis(1))));
    }
}
