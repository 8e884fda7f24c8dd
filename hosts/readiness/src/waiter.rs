//! The interface through which a thread waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::list::List;
use crate::waker::Waker;

/// Longest sleep of a thread without a descriptor to wake it.
const UNWOKEN_SLEEP: Duration = Duration::from_millis(1);

/// How a call waits: the contexts whose news its thread takes, and the kernel's call in which it sleeps.
///
/// A sleep is [`park`](Waiter::park), [`look`](Waiter::look), [`poll`](Waiter::poll) with the bell, [`unpark`](Waiter::unpark).
/// The defaults are for a thread without contexts, whose sources other threads change.
pub trait Waiter {
    /// Takes news from agents, and passes it to the sources by [`Source::changed`](crate::Source::changed).
    fn look(&self) {}

    /// Announces to agents that this thread is about to sleep: later news makes the bell readable.
    fn park(&self) {}

    /// Announces that the thread is awake, and forgets the bell's rings.
    fn unpark(&self) {}

    /// Readable as soon as there is news from agents, while parked. `None` without contexts, and once the agents are dead: a
    /// descriptor that is always readable would keep the thread from sleeping. Asked for each sleep, since another agent has another
    /// one.
    fn bell(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The longest sleep before the thread looks again, since an agent may die without a ring.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// poll(2), or `ppoll` for a call with a signal mask, which is set here and nowhere else, as in the kernel's own waits.
    ///
    /// # Errors
    /// poll(2)'s. `EINTR` ends the call.
    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        poll(fds, timeout)
    }
}

/// A waiter without contexts and without a signal mask.
#[derive(Clone, Copy, Debug)]
pub struct Alone;

impl Waiter for Alone {}

/// When a call has to return.
#[derive(Clone, Copy, Debug)]
pub enum Deadline {
    Never,
    At(Instant),
}

impl Deadline {
    /// A timeout beyond the clock's range is for ever.
    pub fn after(timeout: Option<Duration>) -> Deadline {
        let at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        at.map_or(Deadline::Never, Deadline::At)
    }

    /// Time left; `None` for ever.
    pub fn left(self) -> Option<Duration> {
        match self {
            Deadline::Never => None,
            Deadline::At(at) => Some(at.saturating_duration_since(Instant::now())),
        }
    }
}

/// Result of a sleep.
#[derive(Debug)]
pub struct Slept {
    /// Events that the kernel found for each descriptor; none if it was not asked.
    pub found: Vec<PollFlags>,
    /// [`Waiter::poll`]'s.
    pub result: Result<usize, Errno>,
}

/// Sleeps until `list` has an entry, one of `fds` is ready, or there is news; at most for `longest`. The caller looks at all of them
/// afterwards, however the sleep ended.
pub fn sleep(
    waiter: &dyn Waiter,
    list: &List,
    fds: &[PollFd<'_>],
    longest: Option<Duration>,
) -> Slept {
    let waker = Waker::take().ok();
    waiter.park();
    // Takes news that came before the agents could see that this thread parks.
    waiter.look();
    let slept = match &waker {
        Some(waker) if !list.sleep(waker) => {
            Slept { found: vec![PollFlags::empty(); fds.len()], result: Ok(0) }
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
    let mut all: Vec<PollFd<'_>> = fds.iter().cloned().chain(ours).collect();
    let longest = match (longest, waiter.patience()) {
        (Some(longest), Some(patience)) => Some(longest.min(patience)),
        (longest, patience) => longest.or(patience),
    };
    let timeout = longest.and_then(|longest| Timespec::try_from(longest).ok());
    let result = waiter.poll(&mut all, timeout.as_ref());
    // The kernel writes nothing before it fails.
    Slept { found: all[..fds.len()].iter().map(PollFd::revents).collect(), result }
}
