//! The interface through which a thread waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::list::List;
use crate::waker::Waker;

/// A wait for no more descriptors allocates nothing.
const FEW: usize = 8;
/// Longest sleep of a thread without a descriptor to wake it.
const UNWOKEN_SLEEP: Duration = Duration::from_millis(1);

/// The way in which a call waits: the contexts whose news its thread processes, and the system call in which it sleeps.
///
/// A sleep is [`park`](Waiter::park), [`process_events`](Waiter::process_events), [`poll`](Waiter::poll) with the bell, [`unpark`](Waiter::unpark).
/// The default methods are for a thread without contexts, whose sources are changed by other threads.
pub trait Waiter {
    /// Processes news from agents, and passes it to the sources by [`Source::changed`](crate::Source::changed).
    fn process_events(&self) {}

    /// Announces to agents that this thread is about to sleep: later news makes the bell readable.
    fn park(&self) {}

    /// Announces that the thread is awake, and clears the bell.
    fn unpark(&self) {}

    /// A descriptor that becomes readable with news from agents, while parked. `None` without contexts, and once the agents are dead: a
    /// descriptor that is always readable would keep the thread from sleeping. Called for each sleep, since each agent has a different
    /// bell.
    fn bell(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The longest sleep before the thread looks again, since an agent may die without ringing the bell. `None` is unlimited.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Sleeps in poll(2), or in `ppoll` for a call with a signal mask. The mask is in effect only here, as in the kernel's own waits.
    ///
    /// # Errors
    /// The errors of poll(2). `EINTR` ends the call.
    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        poll(fds, timeout)
    }
}

/// A waiter without contexts and without a signal mask.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Waiter for Alone {}

/// The time at which a call must return.
#[derive(Clone, Copy, Debug)]
pub enum Deadline {
    Never,
    At(Instant),
}

impl Deadline {
    /// The end of a timeout that starts now. A timeout beyond the clock's range is infinite.
    pub fn after(timeout: Option<Duration>) -> Deadline {
        let at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        at.map_or(Deadline::Never, Deadline::At)
    }

    /// Time left; `None` is infinite.
    pub fn left(self) -> Option<Duration> {
        match self {
            Deadline::Never => None,
            Deadline::At(at) => Some(at.saturating_duration_since(Instant::now())),
        }
    }
}

/// Creates what a thread needs to sleep, ahead of a sandbox that forbids eventfd(2).
pub fn prepare_sleep() {
    Waker::prepare();
}

/// Result of a sleep.
#[derive(Debug)]
pub struct Slept {
    /// Events that the kernel found for each descriptor; empty if it was not asked.
    pub found: SmallVec<[PollFlags; FEW]>,
    /// The result of [`Waiter::poll`].
    pub result: Result<usize, Errno>,
}

/// Sleeps until `list` has an entry, one of `fds` is ready, or there is news; at most for `longest`. The caller checks all of them
/// afterwards, however the sleep has ended.
pub fn sleep(
    waiter: &dyn Waiter,
    list: &List,
    fds: &[PollFd<'_>],
    longest: Option<Duration>,
) -> Slept {
    let waker = Waker::take().ok();
    waiter.park();
    // Processes news that arrived before the agents could see that this thread is parked.
    waiter.process_events();
    let slept = match &waker {
        Some(waker) if !list.sleep(waker) => {
            Slept { found: SmallVec::from_elem(PollFlags::empty(), fds.len()), result: Ok(0) }
        }
        Some(waker) => {
            let slept = wait(waiter, fds, Some(waker), longest);
            list.awake(waker);
            slept
        }
        None => {
            let most = longest.map_or(UNWOKEN_SLEEP, |longest| longest.min(UNWOKEN_SLEEP));
            wait(waiter, fds, None, Some(most))
        }
    };
    waiter.unpark();
    if let Some(waker) = waker {
        Waker::give_back(waker);
    }
    slept
}

fn wait(
    waiter: &dyn Waiter,
    fds: &[PollFd<'_>],
    waker: Option<&Waker>,
    longest: Option<Duration>,
) -> Slept {
    let bell = waiter.bell();
    let bell = bell.as_ref().map(|bell| bell.as_fd());
    let ours = bell.into_iter().chain(waker.map(Waker::as_fd));
    let ours = ours.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let mut all: SmallVec<[PollFd<'_>; FEW]> = fds.iter().cloned().chain(ours).collect();
    let longest = match (longest, waiter.patience()) {
        (Some(longest), Some(patience)) => Some(longest.min(patience)),
        (longest, patience) => longest.or(patience),
    };
    let timeout = longest.and_then(|longest| Timespec::try_from(longest).ok());
    let result = waiter.poll(&mut all, timeout.as_ref());
    // If it fails, the kernel has written no events.
    Slept { found: all[..fds.len()].iter().map(PollFd::revents).collect(), result }
}
