//! poll(2), select(2) and epoll(7) over our descriptors and the kernel's, by [`wave_readiness`] with a source for each of our sockets.

use std::ffi::{c_int, c_ulong};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags};
use rustix::io::Errno;
use rustix::net::sockopt::socket_type;
use smallvec::SmallVec;
use wave_readiness::{Bits, Epoll, Event, EventData, EventFlags, Polled, Source, Target};

use crate::close::may_become_ours;
use crate::description::State;
use crate::descriptor_bitmap::DescriptorBitmap;
use crate::signals::waits;
use crate::sockets::{Sockets, Verdict};
use crate::sys::{self, SignalMask};
use crate::wait::Thread;
use crate::world::World;

/// One of the program's sets, whatever descriptors refer to it. The library's own descriptor is hidden from the program, also while a thread
/// still waits for a set that another thread has closed.
pub struct Set {
    epoll: Epoll,
    private: &'static DescriptorBitmap,
}

/// The words of an `fd_set`, of which the usual number needs no allocation.
type Words = SmallVec<[c_ulong; libc::FD_SETSIZE / c_ulong::BITS as usize]>;

/// An interest in a kernel socket that may become ours: the set, the events and the event data.
pub type EarlyInterest = (Weak<Set>, EventFlags, u64);

impl Deref for Set {
    type Target = Epoll;

    fn deref(&self) -> &Epoll {
        &self.epoll
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        self.private.clear(self.epoll.as_fd().as_raw_fd());
    }
}

/// The object behind one of the program's descriptors, held for the duration of a call.
enum Held {
    Kernel,
    Source(Arc<Source>),
    /// A shared listener, ours and the kernel's. `Joined` is the same as a single descriptor.
    Shared(Arc<Source>),
    Joined(Epoll),
    Set(Arc<Set>),
}

/// Readiness of a source whose descriptors have become ordinary sockets: calls that wait for it return, and wait for the sockets.
pub const MOVED: EventFlags = EventFlags::ERR.union(EventFlags::from_bits_retain(1 << 27));

impl Held {
    fn has_moved(&self) -> bool {
        matches!(self, Held::Source(source) if source.bits().contains(MOVED))
    }

    fn of(world: &mut World, fd: c_int) -> Held {
        if let Some(set) = world.sets.get(&fd) {
            return Held::Set(Arc::clone(set));
        }
        match world.find(fd) {
            None => Held::Kernel,
            Some(at) => {
                let description = world.description(at);
                let source = Arc::clone(&description.source);
                match description.state {
                    State::Listening { is_shared: true, .. } => Held::Shared(source),
                    State::Stream => Held::Kernel,
                    _ => Held::Source(source),
                }
            }
        }
    }

    /// As [`Held::of`], when the program waits for the object's events.
    fn awaited(world: &mut World, fd: c_int) -> Held {
        if let Some(at) = world.find(fd) {
            world.await_connections(at);
            let _ = world.take_over(at);
        }
        if world.sets.contains_key(&fd) {
            world.await_sets();
        }
        Held::of(world, fd)
    }

    /// A set with both targets, which is readable if one of them is.
    fn join(&self, fd: c_int) -> Result<Epoll, Errno> {
        let set = Epoll::new(epoll::create(CreateFlags::CLOEXEC)?);
        let readable = Event { flags: EventFlags::IN, data: EventData::new_u64(0) };
        for target in self.targets(fd).into_iter().flatten() {
            set.add(target, readable)?;
        }
        Ok(set)
    }

    /// The target; for a shared listener, the placeholder's as well.
    fn targets(&self, fd: c_int) -> [Option<Target<'_>>; 2] {
        let kernel: BorrowedFd<'static> = sys::fd(fd);
        match self {
            Held::Kernel => [Some(Target::Kernel(kernel)), None],
            Held::Source(source) => [Some(Target::Source(fd, source)), None],
            Held::Shared(source) => {
                [Some(Target::Source(fd, source)), Some(Target::Kernel(kernel))]
            }
            Held::Set(set) => [Some(Target::Set(kernel, set)), None],
            Held::Joined(set) => [Some(Target::Set(set.as_fd(), set)), None],
        }
    }
}

impl Sockets {
    /// ppoll(2). Returns the number of entries with events.
    pub fn poll(
        &self,
        fds: &mut [libc::pollfd],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<usize, Errno> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        waits(|| {
            loop {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                if let Some(count) = self.poll_once(fds, left, mask)? {
                    return Ok(count);
                }
            }
        })
    }

    /// As [`Sockets::poll`]; `None` if a descriptor has become an ordinary socket meanwhile.
    fn poll_once(
        &self,
        fds: &mut [libc::pollfd],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<Option<usize>, Errno> {
        let held: Vec<Option<Held>> = {
            let mut world = self.open()?;
            // Negative numbers are skipped.
            let mut hold =
                |entry: &libc::pollfd| (entry.fd >= 0).then(|| Held::awaited(&mut world, entry.fd));
            fds.iter().map(&mut hold).collect()
        };
        let mut entries = Vec::with_capacity(fds.len());
        let mut places = Vec::with_capacity(fds.len());
        for (place, (entry, held)) in fds.iter().zip(&held).enumerate() {
            let events = EventFlags::from_bits_retain(entry.events as u16 as u32);
            let targets = held.as_ref().map_or([None, None], |held| held.targets(entry.fd));
            for target in targets.into_iter().flatten() {
                entries.push(Polled { target: Some(target), events, found: EventFlags::empty() });
                places.push(place);
            }
        }
        let thread = Thread::new(self, mask)?.naming(fds.iter().map(|entry| entry.fd));
        wave_readiness::poll(&thread, &mut entries, timeout)?;
        drop(thread);
        if held.iter().flatten().any(Held::has_moved) {
            return Ok(None);
        }
        fds.iter_mut().for_each(|entry| entry.revents = 0);
        for (entry, place) in entries.iter().zip(places) {
            fds[place].revents |= entry.found.bits() as u16 as i16;
        }
        Ok(Some(fds.iter().filter(|entry| entry.revents != 0).count()))
    }

    /// pselect(2) of the first `count` descriptors. Each set has a bit per descriptor; on return only the bits of ready ones are set.
    pub fn select(
        &self,
        count: usize,
        mut sets: [Option<&mut [c_ulong]>; 3],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<usize, Errno> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        waits(|| {
            loop {
                let left = end.map(|end| end.saturating_duration_since(Instant::now()));
                let asked = sets.each_ref().map(|set| set.as_deref().map(Words::from_slice));
                let parts = sets.each_mut().map(Option::as_deref_mut);
                if let Some(found) = self.select_once(count, parts, left, mask)? {
                    return Ok(found);
                }
                for (set, asked) in sets.iter_mut().flatten().zip(asked.iter().flatten()) {
                    set.copy_from_slice(asked);
                }
            }
        })
    }

    /// As [`Sockets::select`]; `None` if a descriptor has become an ordinary socket meanwhile.
    fn select_once(
        &self,
        count: usize,
        sets: [Option<&mut [c_ulong]>; 3],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<Option<usize>, Errno> {
        let is_named = |fd: usize| {
            let bits = c_ulong::BITS as usize;
            sets.iter().flatten().any(|set| set[fd / bits] & 1 << (fd % bits) != 0)
        };
        let mut held: Vec<Option<Held>> = {
            let mut world = self.open()?;
            let hold = |fd: usize| is_named(fd).then(|| Held::awaited(&mut world, fd as c_int));
            (0..count).map(hold).collect()
        };
        // A descriptor has one bit, so a shared listener becomes a set of two targets for the duration of the call.
        for (place, held) in held.iter_mut().enumerate() {
            if let Some(shared @ Held::Shared(_)) = held {
                *held = Some(Held::Joined(shared.join(place as c_int)?));
            }
        }
        let mut sets = sets.map(|set| set.map(Bits));
        let named = (0..).zip(&held).filter(|(_, held)| held.is_some()).map(|(fd, _)| fd);
        let thread = Thread::new(self, mask)?.naming(named);
        let resolve = |fd: c_int| held[fd as usize].as_ref()?.targets(fd)[0];
        let found = wave_readiness::select(&thread, count, &mut sets, resolve, timeout)?;
        let has_moved = held.iter().flatten().any(Held::has_moved);
        Ok((!has_moved).then_some(found))
    }

    /// epoll_ctl(2) on `set`. `event` is `None` with EPOLL_CTL_DEL.
    pub fn epoll_control(
        &self,
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: Option<Event>,
    ) -> Verdict<()> {
        let (interests, held) = {
            let mut world = match self.open() {
                Ok(world) => world,
                Err(error) => return Verdict::Ours(Err(error)),
            };
            let mut held = match operation {
                libc::EPOLL_CTL_DEL => Held::of(&mut world, fd),
                _ => Held::awaited(&mut world, fd),
            };
            // A set in a set may get sockets of ours later.
            if matches!(held, Held::Kernel)
                && operation == libc::EPOLL_CTL_ADD
                && fd != set
                && socket_type(sys::fd(fd)).is_err()
                && let Ok(inner) = world.watch(fd)
            {
                held = Held::Set(inner);
            }
            let is_early = matches!(held, Held::Kernel)
                && matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD)
                && fd >= 0
                && may_become_ours(fd);
            if matches!(held, Held::Kernel) && !is_early && !world.sets.contains_key(&set) {
                return Verdict::Kernels;
            }
            // An error means that it is not an epoll, or not an open descriptor.
            let Ok(epoll) = world.watch(set) else { return Verdict::Kernels };
            if matches!(held, Held::Kernel) {
                world.note_early(&epoll, fd, event.filter(|_| is_early));
            }
            match operation {
                libc::EPOLL_CTL_DEL => world.forget_set(&epoll, fd),
                _ => world.note_set(&epoll, fd),
            }
            (epoll, held)
        };
        let mut done = Ok(());
        for target in held.targets(fd).into_iter().flatten() {
            let one = match (operation, event) {
                (libc::EPOLL_CTL_ADD, Some(event)) => interests.add(target, event),
                (libc::EPOLL_CTL_MOD, Some(event)) => interests.modify(target, event),
                (libc::EPOLL_CTL_DEL, _) => interests.delete(target),
                (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => Err(Errno::FAULT),
                _ => Err(Errno::INVAL),
            };
            done = done.and(one);
        }
        Verdict::Ours(done)
    }

    /// epoll_pwait(2). A call that may sleep makes every set ours: another thread may add the set's first socket of ours meanwhile.
    pub fn epoll_wait(
        &self,
        set: c_int,
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Verdict<usize> {
        waits(|| self.epoll_wait_once(set, events, timeout, mask))
    }

    fn epoll_wait_once(
        &self,
        set: c_int,
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Verdict<usize> {
        let epoll = match self.open() {
            Ok(mut world) => {
                // Without sets, none of them can have another descriptor.
                let is_kernels = timeout == Some(Duration::ZERO)
                    && world.sets.is_empty()
                    && world.inherited_sets.is_empty();
                // An error means that it is not an epoll, or not an open descriptor: the kernel answers.
                let epoll = if is_kernels { None } else { world.watch(set).ok() };
                epoll.iter().for_each(|epoll| world.claim_sockets(epoll));
                world.await_sets();
                epoll
            }
            Err(error) => return Verdict::Ours(Err(error)),
        };
        let Some(epoll) = epoll else { return Verdict::Kernels };
        let thread = match Thread::new(self, mask) {
            Ok(thread) => thread,
            Err(error) => return Verdict::Ours(Err(error)),
        };
        Verdict::Ours(epoll.wait(&thread, events, timeout))
    }
}

impl World {
    /// The set behind one of the program's descriptors, prepared to contain our sockets.
    ///
    /// # Errors
    /// It is not an epoll, or not an open descriptor; there is no descriptor or no memory left.
    pub fn watch(&mut self, number: c_int) -> Result<Arc<Set>, Errno> {
        if let Some(set) = self.recognize(number)? {
            return Ok(set);
        }
        if !DescriptorBitmap::fits(number) {
            return Err(Errno::MFILE);
        }
        let epoll = Epoll::over(sys::own_duplicate(sys::fd(number))?)?;
        self.hide(epoll.as_fd().as_raw_fd());
        let set = Arc::new(Set { epoll, private: self.private });
        self.add_set(number, Arc::clone(&set));
        if let Some(inherited) = self.take_inherited_set(number) {
            self.fill_set(&set, inherited);
        }
        Ok(set)
    }

    /// As [`World::watch`], if the set is already known by a descriptor: `number` may be a duplicate that was made by a system call, or that
    /// this process has received.
    pub fn recognize(&mut self, number: c_int) -> Result<Option<Arc<Set>>, Errno> {
        if let Some(set) = self.sets.get(&number) {
            return Ok(Some(Arc::clone(set)));
        }
        if number < 0 {
            return Err(Errno::BADF);
        }
        for set in self.sets.values() {
            if set.is_behind(sys::fd(number))? && DescriptorBitmap::fits(number) {
                let set = Arc::clone(set);
                self.add_set(number, Arc::clone(&set));
                return Ok(Some(set));
            }
        }
        Ok(None)
    }

    /// Records a set's interest in an unconnected kernel socket, which may become ours; `None` if it has no such interest any more.
    pub fn note_early(&mut self, set: &Arc<Set>, fd: c_int, interest: Option<Event>) {
        let mut known = self.early.remove(&fd).unwrap_or_default();
        known.retain(|(other, ..)| other.strong_count() > 0 && other.as_ptr() != Arc::as_ptr(set));
        let early = |event: Event| (Arc::downgrade(set), event.flags, event.data.u64());
        known.extend(interest.map(early));
        if !known.is_empty() {
            self.early.insert(fd, known);
        }
    }

    /// Moves the interests in a descriptor that becomes an ordinary socket to the kernel's sets.
    pub fn hand_interests_to_kernel(&mut self, at: usize, fd: c_int) {
        let source = Arc::clone(&self.description(at).source);
        let mut sets: Vec<Arc<Set>> = self.sets.values().map(Arc::clone).collect();
        sets.sort_by_key(|set| set.epoll.as_fd().as_raw_fd());
        sets.dedup_by(|a, b| Arc::ptr_eq(a, b));
        for set in sets {
            // Most sets do not contain it.
            let _ = set.hand_to_kernel(sys::fd(fd), &source);
        }
    }

    /// Moves the interests in a socket that becomes ours from the kernel's sets to our own. Those in a shared listener (`is_shared`) also
    /// stay in the kernel's, whose connections it accepts as well.
    pub fn take_over_interests(&mut self, at: usize, fd: c_int, is_shared: bool) {
        self.use_inherited_sets_of(fd);
        for (set, flags, data) in self.early.remove(&fd).unwrap_or_default() {
            let Some(set) = set.upgrade() else { continue };
            // The descriptor may refer to another file by now, in which the set has no interest.
            let has_interest = match is_shared {
                true => epoll::modify(set.as_fd(), sys::fd(fd), EventData::new_u64(data), flags),
                false => epoll::delete(set.as_fd(), sys::fd(fd)),
            };
            if has_interest.is_err() {
                continue;
            }
            let source = Arc::clone(&self.description(at).source);
            let event = Event { flags, data: EventData::new_u64(data) };
            // It cannot fail with EEXIST: the set had no such source until now.
            let _ = set.add(Target::Source(fd, &source), event);
        }
    }
}
