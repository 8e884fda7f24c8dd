//! Doorbells between processes of one machine.
//!
//! The peer may lie: it can swallow a ring or ring without cause, and it shares the file description
//! of each descriptor that it was handed, flags included. So a waiter never relies on `O_NONBLOCK`,
//! and the host never *writes* to an eventfd that an agent holds: a peer that clears the flag and fills
//! the counter would block it for good. Agents ring eventfds, as a device does through VFIO; the host
//! rings a [`SocketBell`], whose flags at its own end no peer can change, and wakes its own cores through
//! eventfds that it keeps to itself.
//!
//! A vector that has to interrupt a thread is a pipe: the kernel sends a signal to the owner of its
//! reading end ([`EventFd::interrupt`]), as part of the peer's write. No thread of the host stands in
//! between. The peer needs no right to send signals, because the owner chose to get them. The ringing
//! side cannot tell the pipe from an eventfd.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::{read, write};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use wave_core::link::{Doorbell, Waiter};

use crate::memory::check;

/// Both ends of a doorbell vector, or one end of a vector that interrupts.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    /// A pipe's reading end, whose flags no other process can change.
    is_own: bool,
}

/// The most bytes that one read takes from a vector; a ring has eight.
const BYTES_PER_LOOK: usize = 512;
/// Reads after which a vector counts as drained: a pipe holds no more.
const LOOKS_MAX: usize = 65_536 / BYTES_PER_LOOK;

impl EventFd {
    /// Creates a vector that has not been rung.
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: no memory is involved.
        let raw = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `raw` was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(EventFd { fd, is_own: false })
    }

    /// The vector behind a descriptor that was received from the peer.
    pub fn from_fd(fd: OwnedFd) -> io::Result<EventFd> {
        // SAFETY: the descriptor is open; no memory is involved.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        let flags = flags | libc::O_NONBLOCK;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) })?;
        Ok(EventFd { fd, is_own: false })
    }

    /// Creates a vector that can interrupt a thread: the end to wait on, and the end to ring, which goes
    /// to the peer. Rings send `signal` once a thread is named ([`EventFd::interrupt`]).
    pub fn interrupting(signal: libc::c_int) -> io::Result<[EventFd; 2]> {
        let mut raw = [0; 2];
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: `raw` is valid for writes of two descriptors.
        check(unsafe { libc::pipe2(raw.as_mut_ptr(), flags) })?;
        // SAFETY: both were just opened and belong to nobody else.
        let [waiting, ringing] = raw.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        let ends = [(waiting, true), (ringing, false)].map(|(fd, is_own)| EventFd { fd, is_own });
        let waiting = ends[0].fd.as_raw_fd();
        // SAFETY: the descriptor is open; no memory is involved.
        check(unsafe { libc::fcntl(waiting, F_SETSIG, signal) })?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(waiting, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC) })?;
        Ok(ends)
    }

    /// From now on each ring interrupts this thread of this process, or no thread. For the waiting end
    /// of [`EventFd::interrupting`]. Safe in a signal handler.
    pub fn interrupt(&self, thread: Option<libc::pid_t>) {
        let owner = Owner { kind: F_OWNER_TID, id: thread.unwrap_or(0) };
        // SAFETY: `owner` is valid for reads during the call. It can fail only for a thread that has
        // ended, which need not be interrupted.
        unsafe { libc::fcntl(self.fd.as_raw_fd(), F_SETOWN_EX, &raw const owner) };
    }

    /// Another handle of the same vector.
    pub fn try_clone(&self) -> io::Result<EventFd> {
        Ok(EventFd { fd: self.fd.try_clone()?, is_own: self.is_own })
    }

    /// Forgets all rings so far. Returns whether there was one.
    pub fn drain(&self) -> bool {
        let mut rung = false;
        for _ in 0..LOOKS_MAX {
            let mut bytes = [0u8; BYTES_PER_LOOK];
            let (fd, start) = (self.fd.as_raw_fd(), bytes.as_mut_ptr().cast());
            let vector = libc::iovec { iov_base: start, iov_len: BYTES_PER_LOOK };
            let got = match self.is_own {
                // Kernels before 6.5 refuse RWF_NOWAIT for pipes.
                // SAFETY: `start` is that of `bytes`, valid for writes during the call.
                true => unsafe { libc::read(fd, start, BYTES_PER_LOOK) },
                // The peer may have cleared O_NONBLOCK.
                // SAFETY: the vector names `bytes`, valid for writes during the call.
                false => unsafe { libc::preadv2(fd, &vector, 1, -1, libc::RWF_NOWAIT) },
            };
            rung |= got > 0;
            if got < BYTES_PER_LOOK as isize {
                break;
            }
        }
        rung
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
        // A timeout beyond the clock's range means for ever.
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
    let mut entries = bells.map(|bell| entry(bell.as_fd(), libc::POLLIN));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let _ = poll_all(&mut entries, left);
        let rung = [0, 1].map(|at| entries[at].revents != 0 && bells[at].drain());
        for (entry, rung) in entries.iter_mut().zip(rung) {
            // The peer has closed the ringing end, which every further poll(2) would report at once.
            if entry.revents & libc::POLLHUP != 0 && !rung {
                entry.fd = -1;
            }
        }
        if rung != [false; 2] || left == Some(Duration::ZERO) {
            return rung;
        }
    }
}

/// One end of a doorbell that a host can ring without trusting the agent: a pair of connected
/// sockets.
///
/// A process rings and reads the end that it has created by write(2) and read(2) alone, which
/// sandboxes allow where they forbid send(2).
#[derive(Debug)]
pub struct SocketBell {
    fd: OwnedFd,
    /// Created here, with `O_NONBLOCK`. No other process has this end, so none can clear the flag.
    is_own: bool,
}

impl SocketBell {
    /// Creates the ringing end and the waiting end. Only one of them may be given to the peer.
    pub fn pair() -> io::Result<[SocketBell; 2]> {
        SocketBell::pair_of(libc::SOCK_DGRAM)
    }

    /// As [`SocketBell::pair`], but a poll of the waiting end also wakes up (`POLLHUP`) when the last ringing end
    /// is closed, for example because the peer died.
    pub fn pair_that_hangs_up() -> io::Result<[SocketBell; 2]> {
        SocketBell::pair_of(libc::SOCK_SEQPACKET)
    }

    fn pair_of(kind: libc::c_int) -> io::Result<[SocketBell; 2]> {
        let mut raw = [0; 2];
        let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `raw` is valid for writes of two descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, raw.as_mut_ptr()) })?;
        // SAFETY: both were just opened and belong to nobody else.
        let ends = raw.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) });
        Ok(ends.map(|fd| SocketBell { fd, is_own: true }))
    }

    /// The waiting end behind a descriptor that was received from the peer.
    pub fn from_fd(fd: OwnedFd) -> SocketBell {
        SocketBell { fd, is_own: false }
    }

    /// Either end, received from a peer that is not trusted: no operation on it waits for the peer, not even closing it.
    ///
    /// # Errors
    /// The descriptor is not a Unix socket (`InvalidData`): the peer's fault.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<SocketBell> {
        let mut domain: libc::c_int = 0;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // This asks no file system, unlike fstat(2).
        // SAFETY: `domain` is valid for writes of `length` bytes, and `length` for reads and writes.
        let asked = check(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_DOMAIN,
                (&raw mut domain).cast(),
                &mut length,
            )
        });
        if asked.is_err() || domain != libc::AF_UNIX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(SocketBell { fd, is_own: false })
    }

    /// Continues with `fd`, a duplicate of this end's descriptor, and closes the other.
    pub fn renumber(&mut self, fd: OwnedFd) {
        self.fd = fd;
    }

    /// Consumes the rings so far, in several reads if necessary. Returns whether there was one.
    pub fn drain(&self) -> bool {
        // Bounded: a peer that rings endlessly must not keep its waiter here.
        let rings = (0..RINGS_PER_DRAIN).take_while(|_| self.take().is_ok_and(|count| count > 0));
        rings.count() > 0
    }

    /// Consumes one ring, by one system call. Returns its size in bytes; 0 if the peer has closed its end, or has sent an empty one.
    ///
    /// # Errors
    /// `EWOULDBLOCK` if there is none.
    pub fn take(&self) -> io::Result<usize> {
        let taken = match self.is_own {
            true => read(&self.fd, &mut [0]),
            false => recv(&self.fd, &mut [0], RecvFlags::DONTWAIT).map(|(count, _)| count),
        };
        Ok(taken?)
    }
}

/// `struct f_owner_ex` of the kernel, which `libc` does not have.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// The most rings that one wait of a [`SocketBell`] consumes.
const RINGS_PER_DRAIN: usize = 64;

impl AsFd for SocketBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Doorbell for SocketBell {
    fn ring(&self) {
        // If there is no room for the byte, the peer has rings that it has not read yet; if there is
        // no peer, nobody waits. SIGPIPE comes from sockets of bytes, not from those of messages.
        let _ = match self.is_own {
            true => write(&self.fd, &[0]),
            false => send(&self.fd, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
    }
}

impl Waiter for SocketBell {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let _ = poll(self.fd.as_fd(), libc::POLLIN, timeout);
        self.drain()
    }
}

/// Waits for `events` on `fd`. Returns those that occurred; none after `timeout`.
pub fn poll(fd: BorrowedFd<'_>, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
    let mut entries = [entry(fd, events)];
    poll_all(&mut entries, timeout)?;
    Ok(entries[0].revents)
}

fn entry(fd: BorrowedFd<'_>, events: i16) -> libc::pollfd {
    libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// A timeout of ppoll(2) in milliseconds, -1 if there is none, for poll(2): sandboxes that are older
/// than ppoll(2) allow only that. `None` if it is no whole number of them.
pub fn whole_milliseconds(timeout: Option<&libc::timespec>) -> Option<libc::c_int> {
    let Some(timeout) = timeout else { return Some(-1) };
    let seconds = libc::c_int::try_from(timeout.tv_sec).ok()?;
    let milliseconds = libc::c_int::try_from(timeout.tv_nsec / 1_000_000).ok()?;
    let is_whole = timeout.tv_nsec % 1_000_000 == 0;
    seconds.checked_mul(1_000)?.checked_add(milliseconds).filter(|_| is_whole)
}

fn poll_all(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<()> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let count = entries.len() as libc::nfds_t;
    if let Some(milliseconds) = whole_milliseconds(timeout.as_ref()) {
        // SAFETY: `entries` is valid for reads and writes.
        check(unsafe { libc::poll(entries.as_mut_ptr(), count, milliseconds) })?;
        return Ok(());
    }
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entries` is valid for reads and writes, `timeout` is null or points to a live
    // timespec, and no signal mask is given.
    check(unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, std::ptr::null()) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_doorbell_neither_shortens_a_wait_nor_spins() {
        let [closed, ringing] = EventFd::interrupting(libc::SIGIO).unwrap();
        closed.interrupt(None);
        drop(ringing);
        let own = EventFd::new().unwrap();
        let before = thread_time();
        let start = Instant::now();
        let wait = Duration::from_millis(300);
        assert_eq!(wait_for_either([&closed, &own], Some(wait)), [false; 2]);
        assert!(start.elapsed() >= wait);
        assert!(thread_time() - before < wait / 4, "the wait kept the CPU busy");
        own.ring();
        assert_eq!(wait_for_either([&closed, &own], None), [false, true]);
    }

    /// CPU time of this thread.
    fn thread_time() -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes during the call.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn rings_are_kept_for_a_later_waiter_and_wake_it_once() {
        let bell = EventFd::new().unwrap();
        bell.ring();
        bell.ring();
        assert!(bell.wait(None));
        assert!(!bell.wait(Some(Duration::ZERO)));
        assert!(!bell.wait(Some(Duration::from_millis(1))));
    }

    #[test]
    fn an_interrupting_vector_can_be_waited_on() {
        let [waiting, ringing] = EventFd::interrupting(libc::SIGURG).unwrap();
        // More rings than a pipe holds; with nobody to interrupt, they send no signal.
        (0..10_000).for_each(|_| ringing.ring());
        assert!(waiting.wait(None));
        assert!(!waiting.wait(Some(Duration::from_millis(1))));
        drop(waiting);
        ringing.ring();
    }

    #[test]
    fn a_ring_interrupts_the_thread_that_the_waiting_end_names() {
        use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
        static INTERRUPTED: AtomicI32 = AtomicI32::new(0);
        extern "C" fn handler(_: libc::c_int) {
            // SAFETY: takes nothing.
            INTERRUPTED.store(unsafe { libc::gettid() }, SeqCst);
        }
        // SAFETY: all zeros is a valid sigaction, and the handler only stores.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
            check(libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut())).unwrap();
        }
        let [waiting, ringing] = EventFd::interrupting(libc::SIGURG).unwrap();
        // The second batch fills the pipe.
        for rings in [1, 10_000] {
            let me = {
                // SAFETY: takes nothing.
                let me = unsafe { libc::gettid() };
                waiting.interrupt(Some(me));
                std::thread::scope(|scope| {
                    scope.spawn(|| (0..rings).for_each(|_| ringing.ring()));
                });
                me
            };
            while INTERRUPTED.swap(0, SeqCst) != me {
                std::thread::yield_now();
            }
            waiting.interrupt(None);
            INTERRUPTED.store(0, SeqCst);
            ringing.ring();
            assert_eq!(INTERRUPTED.load(SeqCst), 0);
        }
    }

    #[test]
    fn ringing_an_agent_that_never_reads_does_not_block() {
        let [host, agent] = SocketBell::pair().unwrap();
        // SAFETY: the descriptor is open; no memory is involved.
        unsafe { libc::fcntl(agent.fd.as_raw_fd(), libc::F_SETFL, 0) };
        (0..10_000).for_each(|_| host.ring());
        assert!(agent.wait(None));
        drop(agent);
        host.ring();
    }

    #[test]
    fn ringing_a_peer_that_has_gone_raises_no_signal() {
        static RAISED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        extern "C" fn handler(_: libc::c_int) {
            RAISED.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        // SAFETY: all zeros is a valid sigaction, and the handler only stores.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as extern "C" fn(libc::c_int) as libc::sighandler_t;
            check(libc::sigaction(libc::SIGPIPE, &action, std::ptr::null_mut())).unwrap();
        }
        for [bell, peer] in [SocketBell::pair().unwrap(), SocketBell::pair_that_hangs_up().unwrap()]
        {
            drop(peer);
            bell.ring();
            assert!(!bell.drain());
        }
        assert!(!RAISED.load(std::sync::atomic::Ordering::SeqCst));
    }

    #[test]
    fn closing_the_ringing_end_wakes_the_waiter() {
        let [ringing, waiting] = SocketBell::pair_that_hangs_up().unwrap();
        let gone = |wait| poll(waiting.as_fd(), libc::POLLIN, wait).unwrap() & libc::POLLHUP != 0;
        ringing.ring();
        assert!(waiting.wait(None));
        assert!(!gone(Some(Duration::ZERO)));
        drop(ringing);
        assert!(gone(None));
        assert!(!waiting.drain());
    }

    #[test]
    fn an_untrusted_bell_must_be_a_unix_socket() {
        let [bell, other] = SocketBell::pair().unwrap();
        SocketBell::from_untrusted(bell.fd).unwrap().ring();
        assert!(other.drain());
        let internet = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in [internet.into(), file.into()] {
            let refused = SocketBell::from_untrusted(fd).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn whole_milliseconds_are_told_from_others() {
        let time = |tv_sec, tv_nsec| libc::timespec { tv_sec, tv_nsec };
        for (time, expected) in [
            (None, Some(-1)),
            (Some(time(0, 0)), Some(0)),
            (Some(time(1, 5_000_000)), Some(1_005)),
            (Some(time(0, 999)), None),
            (Some(time(1 << 40, 0)), None),
            (Some(time(3_000_000, 0)), None),
        ] {
            assert_eq!(whole_milliseconds(time.as_ref()), expected);
        }
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
