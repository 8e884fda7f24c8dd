//! Sets of descriptors: epoll(7).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::list::List;
use crate::source::Source;
use crate::waiter::{Deadline, Waiter, sleep};
use crate::waker::Waker;

/// With this many calls of [`Epoll::wait`] since the last time, the kernel is asked although sources are ready.
const CALLS_MAX: u32 = 16;
/// Time after which the kernel is asked although sources are ready.
const UNASKED_MAX: Duration = Duration::from_micros(50);
pub(crate) const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Event data of bells in the kernel's sets: random, so that the program's data equals it with a probability of 2^-64. All processes use the
/// same, so that each leaves out the bells of others in a set that they share.
const BELL: u64 = 0x9c1d_6e0b_f3a7_4285;

/// Events that are reported whether or not they were asked for.
const ALWAYS: EventFlags = EventFlags::ERR.union(EventFlags::HUP);
/// All flags that an exclusive interest may have.
const EXCLUSIVE_OK: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(ALWAYS)
    .union(EventFlags::WAKEUP)
    .union(EventFlags::ET)
    .union(EventFlags::EXCLUSIVE);

/// The object behind a program's descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// A kernel descriptor, which need not be open.
    Kernel(BorrowedFd<'a>),
    /// A set, by one of its descriptors.
    Set(BorrowedFd<'a>, &'a Epoll),
    /// A socket of this process, by its descriptor.
    Source(RawFd, &'a Source),
}

/// An interest of a set in a source.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    /// The descriptor under which the source was added.
    pub fd: RawFd,
    /// [`Source::id`].
    pub source: u64,
    /// The events, with `ET` and similar flags.
    pub flags: EventFlags,
    /// The event data.
    pub data: u64,
}

/// A set of descriptors, of which some are the kernel's and some are sockets of this process: epoll(7).
///
/// The kernel's epoll remains in use: kernel descriptors and other sets are registered in it under the program's data, so that
/// nesting, errors and limits are the kernel's. In a set that others watch, a *bell* is registered as well: an eventfd that is
/// readable while sources are ready.
///
/// Any thread may change a set while others wait for it.
#[derive(Debug)]
pub struct Epoll {
    kernel: OwnedFd,
    list: Arc<List>,
    bell: OnceLock<Arc<Waker>>,
    /// Whether anything but the bell may be in the kernel's set.
    has_kernel: AtomicBool,
    turn: Mutex<Turn>,
}

/// The time at which the kernel was last asked, and the number of calls since then.
#[derive(Debug)]
struct Turn {
    calls: u32,
    asked: Instant,
}

impl Epoll {
    /// A set over the kernel's epoll `kernel`, which may be a duplicate of the program's descriptor.
    pub fn new(kernel: OwnedFd) -> Epoll {
        Epoll {
            kernel,
            list: Arc::new(List::new()),
            bell: OnceLock::new(),
            has_kernel: AtomicBool::new(false),
            turn: Mutex::new(Turn { calls: 0, asked: Instant::now() }),
        }
    }

    /// As [`Epoll::new`], over a descriptor of a program's epoll, which may already contain kernel descriptors. The bell is registered at
    /// once: it identifies the set ([`Epoll::is_behind`]).
    ///
    /// # Errors
    /// `EINVAL` or `EPERM`: the descriptor is not an epoll. Otherwise as [`Epoll::watch`].
    pub fn over(kernel: OwnedFd) -> Result<Epoll, Errno> {
        let set = Epoll::new(kernel);
        set.has_kernel.store(true, Ordering::Relaxed);
        set.bell()?;
        Ok(set)
    }

    /// Whether a descriptor refers to this set, which [`Epoll::over`] has created: a duplicate, however it was made. Only this set contains
    /// the bell.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` if the descriptor is not an epoll.
    pub fn is_behind(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        let Some(bell) = self.bell.get() else { return Ok(false) };
        match epoll::modify(fd, &**bell, EventData::new_u64(BELL), EventFlags::IN) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// `EPOLL_CTL_ADD`. A set that is added is watched until it is deleted again, even if this set is closed first.
    ///
    /// # Errors
    /// `EEXIST`; `EINVAL` for an exclusive interest with flags that epoll_ctl(2) does not allow; for kernel descriptors and sets, any
    /// error of epoll_ctl(2).
    pub fn add(&self, target: Target<'_>, event: Event) -> Result<(), Errno> {
        let Event { flags, data, .. } = event;
        match target {
            Target::Source(fd, source) => {
                let is_exclusive = flags.contains(EventFlags::EXCLUSIVE);
                if is_exclusive && !EXCLUSIVE_OK.contains(flags) {
                    return Err(Errno::INVAL);
                }
                List::add(&self.list, fd, source.file(), flags.union(ALWAYS), data.u64())
            }
            Target::Kernel(fd) => self.add_kernel(fd, event),
            Target::Set(fd, set) => {
                set.watch()?;
                let added = self.add_kernel(fd, event);
                if added.is_err() {
                    set.unwatch();
                }
                added
            }
        }
    }

    /// `EPOLL_CTL_MOD`. It also rearms a disarmed `EPOLLONESHOT` entry, and reports again a source that is ready.
    ///
    /// # Errors
    /// `ENOENT`; `EINVAL` if the old or the new interest is exclusive; otherwise as [`Epoll::add`].
    pub fn modify(&self, target: Target<'_>, event: Event) -> Result<(), Errno> {
        let Event { flags, data, .. } = event;
        match target {
            Target::Source(..) if flags.contains(EventFlags::EXCLUSIVE) => Err(Errno::INVAL),
            Target::Source(fd, source) => {
                self.list.modify(fd, source.file(), flags.union(ALWAYS), data.u64())
            }
            Target::Kernel(fd) | Target::Set(fd, _) => epoll::modify(&self.kernel, fd, data, flags),
        }
    }

    /// `EPOLL_CTL_DEL`.
    ///
    /// # Errors
    /// `ENOENT`; otherwise as [`Epoll::add`].
    pub fn delete(&self, target: Target<'_>) -> Result<(), Errno> {
        match target {
            Target::Source(fd, source) => self.list.delete(fd, source.file()).map(|_| ()),
            Target::Kernel(fd) => epoll::delete(&self.kernel, fd),
            Target::Set(fd, set) => {
                epoll::delete(&self.kernel, fd)?;
                set.unwatch();
                Ok(())
            }
        }
    }

    /// All interests in sources.
    pub fn interests(&self) -> Vec<Interest> {
        let entries = self.list.entries().into_iter();
        entries.map(|(fd, source, flags, data)| Interest { fd, source, flags, data }).collect()
    }

    /// Moves the interest in a source to the kernel's set: its descriptor is an ordinary one from now on.
    ///
    /// # Errors
    /// `ENOENT` if the set does not contain the source; any error of epoll_ctl(2).
    pub fn hand_to_kernel(&self, fd: BorrowedFd<'_>, source: &Source) -> Result<(), Errno> {
        let (flags, data) = self.list.delete(fd.as_raw_fd(), source.file())?;
        self.add_kernel(fd, Event { flags, data: EventData::new_u64(data) })
    }

    /// epoll_wait(2) and similar calls: waits until something is ready; without a `timeout`, for ever. Returns the number of events, 0
    /// after the timeout.
    ///
    /// Sources come first, in the order in which they became ready. The kernel is asked if no source is ready. Otherwise it is asked with
    /// each 16th call or after 50 us, but not in two calls in a row; then its events come first.
    ///
    /// # Errors
    /// `EINVAL` if `events` is empty; `EINTR`.
    pub fn wait(
        &self,
        waiter: &dyn Waiter,
        events: &mut [Event],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        waiter.process_events();
        let is_asked = self.is_kernels_turn();
        let mut count = if is_asked { self.poll_kernel(events)? } else { 0 };
        count += self.list.collect(&mut events[count..]);
        let is_last = timeout == Some(Duration::ZERO);
        if count == 0 && is_last && !is_asked && self.has_kernel() {
            count = self.poll_kernel(events)?;
            // A source may have become ready since.
            count += self.list.collect(&mut events[count..]);
        }
        if count > 0 || is_last {
            return Ok(count);
        }
        let deadline = Deadline::after(timeout);
        loop {
            let longest = deadline.left();
            let kernel = PollFd::new(&self.kernel, PollFlags::IN);
            let slept = sleep(waiter, &self.list, &[kernel], longest);
            waiter.process_events();
            let mut count = 0;
            if !slept.found[0].is_empty() {
                self.has_kernel.store(true, Ordering::Relaxed);
                count = self.poll_kernel(events)?;
            }
            count += self.list.collect(&mut events[count..]);
            // Events take precedence over a signal, as in the kernel.
            if count > 0 {
                return Ok(count);
            }
            slept.result?;
            if longest.is_some_and(|longest| longest.is_zero()) {
                return Ok(0);
            }
        }
    }

    /// Makes all threads that wait for the set look again: they call [`Waiter::bell`] again before they sleep.
    pub fn wake(&self) {
        self.list.wake();
    }

    /// Makes the kernel's epoll readable while sources are ready, until [`Epoll::unwatch`], for threads that poll it in the kernel.
    /// [`Target::Set`] does this for sets and polls. Calls nest.
    ///
    /// # Errors
    /// No descriptor or no memory is left: eventfd(2), epoll_ctl(2).
    pub fn watch(&self) -> Result<(), Errno> {
        self.list.watch(self.bell()?);
        Ok(())
    }

    /// Ends one [`Epoll::watch`].
    pub fn unwatch(&self) {
        self.list.unwatch();
    }

    /// The bell, which is registered in the kernel's set.
    fn bell(&self) -> Result<&Arc<Waker>, Errno> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        let bell = Arc::new(Waker::new()?);
        epoll::add(&self.kernel, &*bell, EventData::new_u64(BELL), EventFlags::IN)?;
        // If another thread was first, this thread's eventfd is closed, and so leaves the set.
        Ok(self.bell.get_or_init(|| bell))
    }

    fn add_kernel(&self, fd: BorrowedFd<'_>, event: Event) -> Result<(), Errno> {
        let Event { flags, data, .. } = event;
        // Set first, so that no wait skips the kernel once the descriptor is registered.
        self.has_kernel.store(true, Ordering::Relaxed);
        epoll::add(&self.kernel, fd, data, flags)
    }

    fn has_kernel(&self) -> bool {
        self.has_kernel.load(Ordering::Relaxed)
    }

    fn is_kernels_turn(&self) -> bool {
        if !self.has_kernel() {
            return false;
        }
        let mut turn = self.turn.lock().expect("no panic while the lock is held");
        turn.calls += 1;
        // Never twice in a row: the kernel's events could fill the room for the sources'.
        turn.calls > 1 && (turn.calls >= CALLS_MAX || turn.asked.elapsed() >= UNASKED_MAX)
    }

    /// Takes events from the kernel's set.
    fn poll_kernel(&self, events: &mut [Event]) -> Result<usize, Errno> {
        let count = epoll::wait(&self.kernel, &mut *events, Some(&AT_ONCE))?;
        *self.turn.lock().expect("no panic while the lock is held") =
            Turn { calls: 0, asked: Instant::now() };
        // A bell's event means that sources are ready, or were a moment ago.
        let mut kept = 0;
        for at in 0..count {
            if events[at].data.u64() != BELL {
                events[kept] = events[at];
                kept += 1;
            }
        }
        Ok(kept)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        self.list.clear();
    }
}
