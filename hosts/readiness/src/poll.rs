//! poll(2).

use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;

use crate::epoll::{AT_ONCE, Epoll, Target};
use crate::list::List;
use crate::source::Source;
use crate::waiter::{Deadline, Waiter, sleep};

/// `POLLNVAL`, which epoll does not have.
pub const INVALID: EventFlags = EventFlags::from_bits_retain(0x20);

const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };

/// A `struct pollfd`.
#[derive(Clone, Copy, Debug)]
pub struct Polled<'a> {
    /// The object behind the descriptor; `None` for a negative descriptor, which is skipped.
    pub target: Option<Target<'a>>,
    /// `events`: POLL* and EPOLL* are the same numbers.
    pub events: EventFlags,
    /// `revents`.
    pub found: EventFlags,
}

/// Waits until one of `entries` is ready; without a `timeout`, for ever. Returns the number of ready entries, and sets `found` of each.
///
/// # Errors
/// `EINTR`, and the other errors of poll(2). `found` is then meaningless.
pub fn poll(
    waiter: &dyn Waiter,
    entries: &mut [Polled<'_>],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    for entry in entries.iter_mut() {
        entry.events |= EventFlags::ERR | EventFlags::HUP | INVALID;
    }
    wait(waiter, entries, timeout)
}

/// Like [`poll`], but only for the events of each entry.
pub fn wait(
    waiter: &dyn Waiter,
    entries: &mut [Polled<'_>],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let _watched = Watched::new(entries)?;
    let deadline = Deadline::after(timeout);
    let mut listed: Option<Listed> = None;
    let mut quiet: Option<Quiet> = None;
    loop {
        waiter.process_events();
        let ours = scan(entries);
        let longest = if ours > 0 { Some(Duration::ZERO) } else { deadline.left() };
        let is_last = longest == Some(Duration::ZERO);
        if is_last || quiet.is_some() {
            quiet.iter().for_each(Quiet::forget);
            let (places, mut fds) = kernels(entries, None);
            if ours > 0 && fds.is_empty() {
                return Ok(ours);
            }
            let polled = waiter.poll(&mut fds, Some(&AT_ONCE));
            let found = fds.iter().map(PollFd::revents);
            let count = ours + note(entries, &places, found);
            if count > 0 {
                return Ok(count);
            }
            polled?;
            if is_last {
                return Ok(0);
            }
        }
        let listed = listed.get_or_insert_with(|| Listed::new(entries));
        listed.forget();
        let (places, mut fds) = kernels(entries, quiet.as_ref());
        fds.extend(quiet.as_ref().map(|quiet| PollFd::new(&quiet.set, PollFlags::IN)));
        let slept = sleep(waiter, &listed.list, &fds, longest);
        waiter.process_events();
        let ours = scan(entries);
        let count = note(entries, &places, slept.found.iter().copied());
        if count > 0 {
            return Ok(ours + count);
        }
        if ours == 0 {
            slept.result?;
        }
        for (&place, found) in places.iter().zip(&slept.found) {
            let entry = &entries[place];
            if let Some(fd) = kernel(entry).filter(|_| !found.is_empty()) {
                Quiet::add(&mut quiet, fd, entry.events)?;
            }
        }
    }
}

/// Sets `found` of sources, and clears it for all other entries. Returns the number of ready entries.
fn scan(entries: &mut [Polled<'_>]) -> usize {
    let mut count = 0;
    for entry in entries {
        entry.found = match entry.target {
            Some(Target::Source(_, source)) => source.bits().intersection(entry.events),
            _ => EventFlags::empty(),
        };
        count += usize::from(!entry.found.is_empty());
    }
    count
}

/// The entries that the kernel polls, with their places, except those in `quiet`.
fn kernels<'a>(entries: &[Polled<'a>], quiet: Option<&Quiet>) -> (Vec<usize>, Vec<PollFd<'a>>) {
    let polled = entries.iter().enumerate().filter_map(|(place, entry)| {
        let fd = kernel(entry)?;
        if quiet.is_some_and(|quiet| quiet.fds.contains(&fd.as_raw_fd())) {
            return None;
        }
        // The lower half of the bits are those of poll(2).
        let events = PollFlags::from_bits_retain(entry.events.bits() as u16);
        Some((place, PollFd::from_borrowed_fd(fd, events)))
    });
    polled.unzip()
}

/// Sets `found` to the kernel's results.
fn note(
    entries: &mut [Polled<'_>],
    places: &[usize],
    found: impl Iterator<Item = PollFlags>,
) -> usize {
    let mut count = 0;
    for (&place, found) in places.iter().zip(found) {
        let found = EventFlags::from_bits_retain(found.bits().into());
        let entry = &mut entries[place];
        entry.found = found.intersection(entry.events);
        count += usize::from(!entry.found.is_empty());
    }
    count
}

fn kernel<'a>(entry: &Polled<'a>) -> Option<BorrowedFd<'a>> {
    match entry.target {
        Some(Target::Kernel(fd) | Target::Set(fd, _)) => Some(fd),
        _ => None,
    }
}

/// The sets among the entries. The kernel sees their readiness for the duration of a call.
struct Watched<'a>(Vec<&'a Epoll>);

impl<'a> Watched<'a> {
    fn new(entries: &[Polled<'a>]) -> Result<Watched<'a>, Errno> {
        let mut watched = Watched(Vec::new());
        for entry in entries {
            if let Some(Target::Set(_, set)) = entry.target {
                set.watch()?;
                watched.0.push(set);
            }
        }
        Ok(watched)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|set| set.unwatch());
    }
}

/// The sources among the entries, in a list that wakes the waiting thread.
struct Listed {
    list: Arc<List>,
}

impl Listed {
    fn new(entries: &[Polled<'_>]) -> Listed {
        let listed = Listed { list: Arc::new(List::new()) };
        for (entry, name) in entries.iter().zip(0..) {
            if let Some(Target::Source(_, source)) = entry.target {
                listed.add(name, source, entry.events);
            }
        }
        listed
    }

    /// Adds a source. `name` is the entry's place, because a descriptor may occur twice in a call.
    fn add(&self, name: RawFd, source: &Source, events: EventFlags) {
        let interest = events.difference(INVALID);
        let added = List::add(&self.list, name, source.file(), interest, 0);
        added.expect("each name is used once");
    }

    /// Discards changes that made no source ready.
    fn forget(&self) {
        self.list.collect(&mut [NO_EVENT]);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.list.clear();
    }
}

/// Descriptors with bits for which select(2) did not ask and which poll(2) always reports, such as `HUP`. They are edge-triggered in a
/// separate set, so that they end a sleep only when they change.
struct Quiet {
    set: OwnedFd,
    fds: Vec<RawFd>,
}

impl Quiet {
    fn add(quiet: &mut Option<Quiet>, fd: BorrowedFd<'_>, events: EventFlags) -> Result<(), Errno> {
        if quiet.is_none() {
            *quiet = Some(Quiet { set: epoll::create(CreateFlags::CLOEXEC)?, fds: Vec::new() });
        }
        let Some(quiet) = quiet else { return Ok(()) };
        let interest = events.difference(INVALID).union(EventFlags::ET);
        match epoll::add(&quiet.set, fd, EventData::new_u64(0), interest) {
            Ok(()) | Err(Errno::EXIST) => quiet.fds.push(fd.as_raw_fd()),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Discards the changes so far.
    fn forget(&self) {
        let mut events = [NO_EVENT; 16];
        while epoll::wait(&self.set, &mut events[..], Some(&AT_ONCE)) == Ok(events.len()) {}
    }
}
