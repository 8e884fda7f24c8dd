//! select(2).

use std::ffi::c_ulong;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::fd::RawFd;
use rustix::io::Errno;

use crate::epoll::Target;
use crate::poll::{INVALID, Polled, wait};
use crate::waiter::Waiter;

const READ: EventFlags = EventFlags::RDNORM
    .union(EventFlags::RDBAND)
    .union(EventFlags::IN)
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);
const WRITE: EventFlags =
    EventFlags::WRBAND.union(EventFlags::WRNORM).union(EventFlags::OUT).union(EventFlags::ERR);
const EXCEPT: EventFlags = EventFlags::PRI;
/// The events of the three sets (fs/select.c), in the order of the arguments.
const MEANINGS: [EventFlags; 3] = [READ, WRITE, EXCEPT];

/// An `fd_set`, with as many words as the number of descriptors requires.
#[derive(Debug)]
pub struct Bits<'a>(pub &'a mut [c_ulong]);

impl Bits<'_> {
    fn place(fd: usize) -> (usize, c_ulong) {
        (fd / c_ulong::BITS as usize, 1 << (fd % c_ulong::BITS as usize))
    }

    fn has(&self, fd: usize) -> bool {
        let (word, bit) = Bits::place(fd);
        self.0[word] & bit != 0
    }

    fn insert(&mut self, fd: usize) {
        let (word, bit) = Bits::place(fd);
        self.0[word] |= bit;
    }

    fn clear(&mut self, count: usize) {
        self.0[..count.div_ceil(c_ulong::BITS as usize)].fill(0);
    }
}

/// Waits until one of the first `count` descriptors is ready to read or to write or has an exception, according to the three `sets`;
/// without a `timeout`, for ever. Returns the number of bits that are left in the sets.
///
/// # Errors
/// `EBADF` for a descriptor that `resolve` does not know or that is not open; `EINTR`; the other errors of select(2). The sets are
/// then unchanged.
///
/// # Panics
/// If a set is shorter than `count` bits.
pub fn select<'a>(
    waiter: &dyn Waiter,
    count: usize,
    sets: &mut [Option<Bits<'_>>; 3],
    resolve: impl Fn(RawFd) -> Option<Target<'a>>,
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let mut entries = Vec::new();
    let mut fds = Vec::new();
    for fd in 0..count {
        let mut events = EventFlags::empty();
        for (set, meaning) in sets.iter().zip(MEANINGS) {
            if set.as_ref().is_some_and(|set| set.has(fd)) {
                events |= meaning;
            }
        }
        if events.is_empty() {
            continue;
        }
        let target = Some(resolve(fd as RawFd).ok_or(Errno::BADF)?);
        entries.push(Polled { target, events: events | INVALID, found: EventFlags::empty() });
        fds.push(fd);
    }
    wait(waiter, &mut entries, timeout)?;
    if entries.iter().any(|entry| entry.found.contains(INVALID)) {
        return Err(Errno::BADF);
    }
    let mut left = 0;
    for (set, meaning) in sets.iter_mut().zip(MEANINGS) {
        let Some(set) = set else { continue };
        let is_ready =
            |(entry, fd): &(&Polled<'_>, &usize)| set.has(**fd) && entry.found.intersects(meaning);
        let ready: Vec<usize> =
            entries.iter().zip(&fds).filter(is_ready).map(|(_, &fd)| fd).collect();
        set.clear(count);
        ready.iter().for_each(|&fd| set.insert(fd));
        left += ready.len();
    }
    Ok(left)
}
