//! Doorbells between processes of one machine.
//!
//! The peer may lie: it can swallow a ring or ring without cause, and it shares the file description
//! of what it was handed, flags included. So whoever waits never relies on `O_NONBLOCK`, and the
//! host never *writes* to an eventfd that an agent holds: a peer that clears the flag and fills the
//! counter would block it for good. Agents ring eventfds, as a device does through VFIO; the host
//! rings a [`SocketBell`], where every call says for itself that it must not block, and wakes its own
//! cores through eventfds that it hands to nobody.

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

/// Waits until one of two bells was rung, or for `timeout`; forgets all rings of both. Returns which
/// were rung.
pub(crate) fn wait_for_either(bells: [&EventFd; 2], timeout: Option<Duration>) -> [bool; 2] {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut entries = bells.map(|bell| entry(bell.as_fd(), libc::POLLIN));
        let _ = poll_all(&mut entries, left);
        let rung = bells.map(EventFd::drain);
        if rung != [false; 2] || left == Some(Duration::ZERO) {
            return rung;
        }
    }
}

/// One end of a doorbell that a host can ring although it does not trust the agent: a pair of
/// connected sockets.
#[derive(Debug)]
pub struct SocketBell {
    fd: OwnedFd,
}

impl SocketBell {
    /// The ringing end and the waiting end.
    pub fn pair() -> io::Result<[SocketBell; 2]> {
        let mut raw = [0; 2];
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: `raw` is valid for writes of two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, raw.as_mut_ptr()) })?;
        // SAFETY: both were just opened and belong to nobody else.
        Ok(raw.map(|raw| SocketBell { fd: unsafe { OwnedFd::from_raw_fd(raw) } }))
    }

    /// The waiting end behind a descriptor that was received from the peer.
    pub fn from_fd(fd: OwnedFd) -> SocketBell {
        SocketBell { fd }
    }

    fn drain(&self) -> bool {
        let mut rung = false;
        let mut byte = 0u8;
        // Bounded: a peer that rings without end must not keep its waiter here.
        for _ in 0..RINGS_PER_DRAIN {
            let (fd, at) = (self.fd.as_raw_fd(), (&raw mut byte).cast());
            // SAFETY: one byte is valid for writes during the call.
            if unsafe { libc::recv(fd, at, 1, libc::MSG_DONTWAIT) } < 0 {
                break;
            }
            rung = true;
        }
        rung
    }
}

/// Rings that one wait of a [`SocketBell`] forgets at most.
const RINGS_PER_DRAIN: usize = 64;

impl AsFd for SocketBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Doorbell for SocketBell {
    fn ring(&self) {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte is valid for reads during the call. Where there is no room for it, the
        // peer has rings that it has not looked at; where there is no peer, nobody waits.
        unsafe { libc::send(self.fd.as_raw_fd(), [0u8].as_ptr().cast(), 1, flags) };
    }
}

impl Waiter for SocketBell {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let _ = poll(self.fd.as_fd(), libc::POLLIN, timeout);
        self.drain()
    }
}

/// Waits for `events` on `fd`. Returns those that came, none after `timeout`.
pub(crate) fn poll(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entries = [entry(fd, events)];
    poll_all(&mut entries, timeout)?;
    Ok(entries[0].revents)
}

fn entry(fd: BorrowedFd<'_>, events: i16) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

fn poll_all(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: `entries` is valid for reads and writes, `timeout` is null or points to a live
    // timespec, and no signal mask is given.
    check(unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, std::ptr::null()) })?;
    Ok(())
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
    fn a_host_can_ring_an_agent_that_never_looks() {
        let [host, agent] = SocketBell::pair().unwrap();
        // SAFETY: the descriptor is open; no memory is involved.
        unsafe { libc::fcntl(agent.fd.as_raw_fd(), libc::F_SETFL, 0) };
        (0..10_000).for_each(|_| host.ring());
        assert!(agent.wait(None));
        drop(agent);
        host.ring();
    }

    #[test]
    fn either_of_two_bells_wakes() {
        let [first, second] = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        second.ring();
        assert_eq!(wait_for_either([&first, &second], None), [false, true]);
        let nothing = wait_for_either([&first, &second], Some(Duration::from_millis(1)));
        assert_eq!(nothing, [false, false]);
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
