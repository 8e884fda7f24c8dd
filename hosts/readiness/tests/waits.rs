//! Waits that sleep, and the events that end a sleep.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::pthread::pthread_kill;
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::event::epoll::{CreateFlags, create};
use rustix::event::{EventfdFlags, eventfd, poll as their_poll};
use rustix::io::dup;
use rustix::net::{SendFlags, connect, send};
use rustix::pipe::{PipeFlags, pipe_with};
use wave_readiness::{
    Alone, Bits, Epoll, Errno, Event, EventData, EventFlags, PollFd, PollFlags, Polled, Source,
    Target, Timespec, Waiter, poll, select,
};

const IN: EventFlags = EventFlags::IN;
const NONE: EventFlags = EventFlags::empty();
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// A descriptor number that only names a source.
const FD: i32 = 1000;

fn set() -> Epoll {
    Epoll::new(create(CreateFlags::CLOEXEC).unwrap())
}

fn event(flags: EventFlags, data: u64) -> Event {
    Event { flags, data: EventData::new_u64(data) }
}

fn ring() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn write_to(ring: impl AsFd) {
    rustix::io::write(ring, &1u64.to_ne_bytes()).unwrap();
}

fn drain(ring: impl AsFd) {
    let _ = rustix::io::read(ring, &mut [0; 8]);
}

/// Waits for one event without a timeout, and returns its data.
fn wait(set: &Epoll, waiter: &dyn Waiter) -> Result<u64, Errno> {
    let mut events = [event(NONE, 0)];
    assert_eq!(set.wait(waiter, &mut events, None)?, 1);
    Ok({ events[0].data }.u64())
}

fn polled<'a>(target: Target<'a>, events: EventFlags) -> Polled<'a> {
    Polled { target: Some(target), events, found: NONE }
}

/// A context whose agent has one piece of news, at a given point of the wait.
struct Context<'a> {
    source: &'a Source,
    bell: Arc<OwnedFd>,
    has_news: Cell<bool>,
    is_parked: Cell<bool>,
    /// The news arrives while the context parks, too early for the agent to see the parking and ring. Otherwise it arrives in the sleep.
    is_early: bool,
}

impl<'a> Context<'a> {
    fn new(source: &'a Source, is_early: bool) -> Context<'a> {
        let (has_news, is_parked) = (Cell::new(false), Cell::new(false));
        Context { source, bell: Arc::new(ring()), has_news, is_parked, is_early }
    }
}

impl Waiter for Context<'_> {
    fn process_events(&self) {
        if self.has_news.take() {
            self.source.changed(IN, IN);
        }
    }

    fn park(&self) {
        self.has_news.set(self.is_early);
        self.is_parked.set(true);
    }

    fn unpark(&self) {
        drain(&self.bell);
        self.is_parked.set(false);
    }

    fn bell(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.bell))
    }

    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        if self.is_parked.get() {
            assert!(!self.is_early, "the thread sleeps although news was there");
            self.has_news.set(true);
            write_to(&self.bell);
        }
        their_poll(fds, timeout)
    }
}

#[test]
fn news_from_an_agent_ends_a_sleep_with_or_without_a_ring() {
    for is_early in [false, true] {
        let source = Source::new(NONE);
        let set = set();
        set.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
        assert_eq!(wait(&set, &Context::new(&source, is_early)), Ok(7));

        source.changed(NONE, NONE);
        let mut entries = [polled(Target::Source(FD, &source), IN)];
        assert_eq!(poll(&Context::new(&source, is_early), &mut entries, None), Ok(1));
        assert_eq!(entries[0].found, IN);
    }
}

/// A context whose agent has news without a ring, like an agent that dies.
struct Silent<'a>(&'a Source, Cell<usize>);

impl Waiter for Silent<'_> {
    fn process_events(&self) {
        self.1.set(self.1.get() + 1);
        // After the looks before the first sleep.
        if self.1.get() == 5 {
            self.0.changed(IN, IN);
        }
    }

    fn patience(&self) -> Option<Duration> {
        Some(Duration::from_millis(1))
    }
}

#[test]
fn sleeping_thread_polls_again_after_its_patience() {
    let (source, set) = (Source::new(NONE), set());
    let target = Target::Source(FD, &source);
    set.add(target, event(IN, 7)).unwrap();
    assert_eq!(wait(&set, &Silent(&source, Cell::new(0))), Ok(7));
    source.changed(NONE, NONE);
    assert_eq!(poll(&Silent(&source, Cell::new(0)), &mut [polled(target, IN)], None), Ok(1));
}

/// Checks that `end` ends a sleep of another thread, in a wait of `set` and in a poll of it. `again` resets the state in between.
fn ends_a_sleep(set: &Epoll, end: impl Fn(), again: impl Fn()) {
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| wait(set, &Alone));
        end();
        assert_eq!(sleeper.join().unwrap(), Ok(7));
    });
    again();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut entries = [polled(Target::Set(set.as_fd(), set), IN)];
            (poll(&Alone, &mut entries, None), entries[0].found)
        });
        end();
        assert_eq!(sleeper.join().unwrap(), (Ok(1), IN));
    });
}

#[test]
fn change_of_a_source_ends_a_sleep() {
    let (source, set) = (Source::new(NONE), set());
    set.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
    ends_a_sleep(&set, || source.changed(IN, IN), || source.changed(NONE, NONE));
}

#[test]
fn kernel_descriptor_ends_a_sleep() {
    let (fd, set) = (ring(), set());
    set.add(Target::Kernel(fd.as_fd()), event(IN, 7)).unwrap();
    ends_a_sleep(&set, || write_to(&fd), || drain(&fd));
}

#[test]
fn add_of_a_ready_source_ends_a_sleep() {
    let (source, set) = (Source::new(IN), set());
    let target = Target::Source(FD, &source);
    let add = || set.add(target, event(IN, 7)).unwrap();
    ends_a_sleep(&set, add, || set.delete(target).unwrap());
}

#[test]
fn change_in_a_nested_set_ends_a_sleep() {
    let (source, inner, outer) = (Source::new(NONE), set(), set());
    inner.add(Target::Source(FD, &source), event(IN, 1)).unwrap();
    outer.add(Target::Set(inner.as_fd(), &inner), event(IN, 7)).unwrap();
    ends_a_sleep(&outer, || source.changed(IN, IN), || source.changed(NONE, NONE));
    assert_eq!(wait(&inner, &Alone), Ok(1));
}

/// Found by seed 65 of the differential test `mixed`. The outer set has reported the inner one, which stays ready because of a kernel
/// descriptor. An edge that concerns an entry of the inner set is an edge of that set, whether the entry is ready or not.
#[test]
fn edge_that_makes_no_source_ready_is_an_edge_of_its_set() {
    let (source, fd, inner, outer) = (Source::new(NONE), ring(), set(), set());
    write_to(&fd);
    inner.add(Target::Kernel(fd.as_fd()), event(IN, 1)).unwrap();
    inner.add(Target::Source(FD, &source), event(EventFlags::RDHUP, 2)).unwrap();
    let edges = event(IN | EventFlags::ET, 7);
    outer.add(Target::Set(inner.as_fd(), &inner), edges).unwrap();
    let reported = || outer.wait(&Alone, &mut [event(NONE, 0)], Some(Duration::ZERO));
    assert_eq!([reported(), reported()], [Ok(1), Ok(0)]);
    source.changed(NONE, Source::DATA);
    assert_eq!(reported(), Ok(0), "the edge concerns no entry");
    source.changed(NONE, Source::ANY);
    assert_eq!([reported(), reported()], [Ok(1), Ok(0)]);
}

#[test]
fn timeouts_of_a_nanosecond_and_beyond_the_clocks_range_work() {
    let (source, set) = (Source::new(NONE), set());
    let target = Target::Source(FD, &source);
    set.add(target, event(IN, 7)).unwrap();
    let mut events = [event(NONE, 0)];
    assert_eq!(set.wait(&Alone, &mut events, Some(Duration::from_nanos(1))), Ok(0));
    let mut entries = [polled(target, IN)];
    assert_eq!(poll(&Alone, &mut entries, Some(Duration::from_nanos(1))), Ok(0));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| set.wait(&Alone, &mut [event(NONE, 0)], Some(Duration::MAX)));
        source.changed(IN, IN);
        assert_eq!(sleeper.join().unwrap(), Ok(1));
    });
}

/// Interrupts a call in another thread: sends signals until one arrives while the thread sleeps.
fn interrupted(
    call: impl FnOnce() -> Result<usize, Errno> + Send + 'static,
) -> Result<usize, Errno> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler = signal_hook::flag::register(signal_hook::consts::SIGUSR1, flag).unwrap();
    let sleeper = thread::spawn(call);
    while !sleeper.is_finished() {
        let _ = pthread_kill(sleeper.as_pthread_t(), Signal::SIGUSR1);
        thread::yield_now();
    }
    let result = sleeper.join().unwrap();
    signal_hook::low_level::unregister(handler);
    result
}

#[test]
fn signal_interrupts_a_sleep() {
    let (source, empty) = (Source::new(NONE), set());
    empty.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
    assert_eq!(
        interrupted(move || empty.wait(&Alone, &mut [event(NONE, 0)], None)),
        Err(Errno::INTR)
    );
    let call = || {
        let source = Source::new(NONE);
        poll(&Alone, &mut [polled(Target::Source(FD, &source), IN)], None)
    };
    assert_eq!(interrupted(call), Err(Errno::INTR));
    let call = || {
        let (source, mut words) = (Source::new(NONE), [1]);
        let mut sets = [Some(Bits(&mut words)), None, None];
        let result = select(&Alone, 1, &mut sets, |fd| Some(Target::Source(fd, &source)), None);
        assert_eq!(words, [1], "an error must leave the sets unchanged");
        result
    };
    assert_eq!(interrupted(call), Err(Errno::INTR));
}

/// epoll_pwait with an empty mask. It does not return the kernel's events.
struct Unmasked;

impl Waiter for Unmasked {
    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        let timeout = timeout.map(|timeout| {
            nix::sys::time::TimeSpec::new(timeout.tv_sec as _, timeout.tv_nsec as _)
        });
        let flags = nix::poll::PollFlags::POLLIN;
        let mut theirs: Vec<_> =
            fds.iter().map(|fd| nix::poll::PollFd::new(fd.as_fd(), flags)).collect();
        let result = nix::poll::ppoll(&mut theirs, timeout, Some(SigSet::empty()));
        result.map(|count| count as usize).map_err(|error| Errno::from_raw_os_error(error as i32))
    }
}

#[test]
fn masked_signal_is_delivered_in_the_sleep_and_not_with_events() {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR2, Arc::clone(&flag)).unwrap();
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGUSR2);
    blocked.thread_block().unwrap();
    raise(Signal::SIGUSR2).unwrap();

    let (source, set) = (Source::new(IN), set());
    set.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
    assert_eq!(wait(&set, &Unmasked), Ok(7));
    assert!(!flag.load(Ordering::SeqCst), "a wait with events must not unmask the signal");
    source.changed(NONE, NONE);
    assert_eq!(wait(&set, &Unmasked), Err(Errno::INTR));
    assert!(flag.load(Ordering::SeqCst));
}

#[test]
fn ready_sources_do_not_starve_kernel_descriptors() {
    let (sources, fd, set) = ([Source::new(IN), Source::new(IN)], ring(), set());
    for (place, source) in (0..).zip(&sources) {
        set.add(Target::Source(FD + place, source), event(IN, 1)).unwrap();
    }
    set.add(Target::Kernel(fd.as_fd()), event(IN, 7)).unwrap();
    for room in [1, 2, 8] {
        write_to(&fd);
        let mut seen = Vec::new();
        for _ in 0..16 {
            let mut events = vec![event(NONE, 0); room];
            let count = set.wait(&Alone, &mut events, None).unwrap();
            seen.extend(events[..count].iter().map(|event| { event.data }.u64()));
        }
        assert!(seen.contains(&7) && seen.contains(&1), "{room}: {seen:?}");
        drain(&fd);
    }
}

#[test]
fn kernel_descriptors_do_not_starve_ready_sources_of_a_slow_program() {
    let (source, fd, set) = (Source::new(IN), ring(), set());
    write_to(&fd);
    set.add(Target::Source(FD, &source), event(IN, 1)).unwrap();
    set.add(Target::Kernel(fd.as_fd()), event(IN, 7)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(wait(&set, &Alone).unwrap());
        // After this time, it is the kernel's turn.
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_micros(50) {}
    }
    assert!(seen.contains(&7) && seen.contains(&1), "{seen:?}");
}

/// Threads share a set and rearm the entries that they took: each unit of work is done exactly once.
#[test]
fn threads_that_share_a_set_lose_no_event() {
    const UNITS: usize = 2_000;
    const STOP: u64 = 99;
    let sources: Vec<Source> = (0..4).map(|_| Source::new(NONE)).collect();
    let work: Vec<_> = (0..4).map(|_| std::sync::Mutex::new(0usize)).collect();
    let (stop, done, set) = (Source::new(NONE), AtomicUsize::new(0), set());
    let armed = |place: usize| event(IN | EventFlags::ET | EventFlags::ONESHOT, place as u64);
    for (place, source) in sources.iter().enumerate() {
        set.add(Target::Source(FD + place as i32, source), armed(place)).unwrap();
    }
    set.add(Target::Source(FD - 1, &stop), event(IN, STOP)).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let data = wait(&set, &Alone).unwrap();
                    if data == STOP {
                        break;
                    }
                    let place = data as usize;
                    let mut units = work[place].lock().unwrap();
                    let taken = std::mem::take(&mut *units);
                    sources[place].changed(NONE, NONE);
                    drop(units);
                    let target = Target::Source(FD + place as i32, &sources[place]);
                    set.modify(target, armed(place)).unwrap();
                    if done.fetch_add(taken, Ordering::SeqCst) + taken == 4 * UNITS {
                        stop.changed(IN, IN);
                    }
                }
            });
        }
        for (units, source) in work.iter().zip(&sources) {
            scope.spawn(move || {
                for _ in 0..UNITS {
                    let mut units = units.lock().unwrap();
                    *units += 1;
                    source.changed(IN, IN);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), 4 * UNITS);
}

#[test]
fn closed_descriptor_is_invalid_in_poll_and_an_error_in_select() {
    // SAFETY: no call affects a file through it: a process has no descriptor with this number.
    let closed = unsafe { BorrowedFd::borrow_raw(i32::MAX) };
    let source = Source::new(NONE);
    let mut entries = [polled(Target::Kernel(closed), IN), polled(Target::Source(FD, &source), IN)];
    assert_eq!(poll(&Alone, &mut entries, None), Ok(1));
    assert_eq!(entries[0].found.bits(), u32::from(PollFlags::NVAL.bits()));
    let mut words = [0b11];
    let mut sets = [Some(Bits(&mut words)), None, None];
    let find =
        |fd| Some(if fd == 0 { Target::Kernel(closed) } else { Target::Source(fd, &source) });
    assert_eq!(select(&Alone, 2, &mut sets, find, None), Err(Errno::BADF));
    assert_eq!(select(&Alone, 2, &mut sets, |_| None, None), Err(Errno::BADF));
    assert_eq!(words, [0b11]);
}

/// A waiter that acts at its second sleep, once no pending event would end that sleep at once.
struct Second<'a> {
    sleeps: Cell<usize>,
    act: RefCell<Box<dyn FnMut() + 'a>>,
}

impl Waiter for Second<'_> {
    fn poll(&self, fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        if timeout.is_none() {
            self.sleeps.set(self.sleeps.get() + 1);
            if self.sleeps.get() == 2 {
                assert_eq!(
                    their_poll(fds, Some(&AT_ONCE)),
                    Ok(0),
                    "a pending event would end the sleep"
                );
                self.act.borrow_mut()();
            }
        }
        their_poll(fds, timeout)
    }
}

#[test]
fn select_sleeps_despite_a_hang_up_that_it_did_not_ask_for() {
    let (pipe, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(writer);
    let source = Source::new(EventFlags::HUP);
    let find =
        |fd| Some(if fd == 0 { Target::Kernel(pipe.as_fd()) } else { Target::Source(fd, &source) });
    let act = || source.changed(EventFlags::HUP | EventFlags::PRI, Source::ANY);
    let second = Second { sleeps: Cell::new(0), act: RefCell::new(Box::new(act)) };
    let mut words = [0b11];
    let mut sets = [None, None, Some(Bits(&mut words))];
    assert_eq!(select(&second, 2, &mut sets, find, None), Ok(1));
    assert_eq!(words, [0b10]);
}

#[test]
fn select_reports_an_exception_after_a_hang_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // A stream socket reports a hang-up until it is connected.
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
    let socket = rustix::net::socket(family, kind, None).unwrap();
    let mut peer = None;
    let act = || {
        connect(&socket, &address).unwrap();
        let (stream, _) = listener.accept().unwrap();
        send(&stream, b"!", SendFlags::OOB).unwrap();
        peer = Some(stream);
    };
    let second = Second { sleeps: Cell::new(0), act: RefCell::new(Box::new(act)) };
    let mut words = [1];
    let mut sets = [None, None, Some(Bits(&mut words))];
    let find = |_| Some(Target::Kernel(socket.as_fd()));
    assert_eq!(select(&second, 1, &mut sets, find, None), Ok(1));
    assert_eq!(words, [1]);
}

#[test]
fn select_keeps_bits_beyond_its_count_and_counts_the_bits_of_each_set() {
    let source = Source::new(IN | EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
    let find = |fd| Some(Target::Source(fd, &source));
    let [mut read, mut write, mut except] = [[0b101, 7]; 3];
    let mut sets = [Some(Bits(&mut read)), Some(Bits(&mut write)), Some(Bits(&mut except))];
    assert_eq!(select(&Alone, 2, &mut sets, find, None), Ok(2));
    assert_eq!((read, write, except), ([1, 7], [1, 7], [0, 7]));
}

#[test]
fn hang_up_is_readable_and_error_is_readable_and_writable() {
    for (bits, want) in [(EventFlags::HUP, [1, 0, 0]), (EventFlags::ERR, [1, 1, 0])] {
        let source = Source::new(bits);
        let [mut read, mut write, mut except] = [[1]; 3];
        let mut sets = [Some(Bits(&mut read)), Some(Bits(&mut write)), Some(Bits(&mut except))];
        let find = |fd| Some(Target::Source(fd, &source));
        select(&Alone, 1, &mut sets, find, Some(Duration::ZERO)).unwrap();
        assert_eq!([read, write, except].concat(), want);
    }
}

#[test]
fn watched_set_is_readable_in_the_kernel_while_sources_are_ready() {
    let (source, set) = (Source::new(NONE), set());
    set.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
    let is_readable = || {
        let mut fds = [PollFd::new(&set, PollFlags::IN)];
        their_poll(&mut fds, Some(&AT_ONCE)).unwrap() == 1
    };
    source.changed(IN, IN);
    assert!(!is_readable(), "without a watcher, a change must not ring the bell");
    set.watch().unwrap();
    assert!(is_readable());
    source.changed(NONE, NONE);
    assert!(!is_readable());
    source.changed(IN, IN);
    assert!(is_readable());
    set.unwatch();
    assert!(!is_readable());
    assert_eq!(wait(&set, &Alone), Ok(7));
}

#[test]
fn set_is_recognized_by_any_of_its_descriptors() {
    let [one, other] = [(); 2].map(|()| create(CreateFlags::CLOEXEC).unwrap());
    let duplicate = dup(&one).unwrap();
    let set = Epoll::over(one).unwrap();
    assert_eq!(set.is_behind(duplicate.as_fd()), Ok(true));
    assert_eq!(set.is_behind(other.as_fd()), Ok(false));
    assert_eq!(set.is_behind(ring().as_fd()), Err(Errno::INVAL));
    assert_eq!(Epoll::over(ring()).unwrap_err(), Errno::INVAL);
    // Neither the question nor the bell is an event.
    let mut events = [event(NONE, 0)];
    assert_eq!(set.wait(&Alone, &mut events, Some(Duration::ZERO)), Ok(0));
}

/// Two processes with a set in common each register a bell.
#[test]
fn bells_of_other_processes_are_no_events() {
    let kernel = create(CreateFlags::CLOEXEC).unwrap();
    let (theirs, set) = (Epoll::over(dup(&kernel).unwrap()).unwrap(), Epoll::over(kernel).unwrap());
    let [source, own] = [(); 2].map(|()| Source::new(IN));
    theirs.add(Target::Source(FD, &source), event(IN, 1)).unwrap();
    theirs.watch().unwrap();
    let mut events = [event(NONE, 0); 4];
    assert_eq!(set.wait(&Alone, &mut events, Some(Duration::ZERO)), Ok(0));
    set.add(Target::Source(FD, &own), event(IN, 2)).unwrap();
    assert_eq!(wait(&set, &Alone), Ok(2));
}

#[test]
fn duplicate_keeps_an_entry_and_the_last_close_removes_it() {
    let set = set();
    let source = Source::new(IN);
    set.add(Target::Source(FD, &source), event(IN, 7)).unwrap();
    // The descriptor is closed while a duplicate is open: its number names nothing any more, but its entry remains.
    assert_eq!(set.delete(Target::Source(FD + 1, &source)), Err(Errno::NOENT));
    assert_eq!(wait(&set, &Alone), Ok(7));
    let reused = Source::new(IN);
    assert_eq!(set.delete(Target::Source(FD, &reused)), Err(Errno::NOENT));
    set.add(Target::Source(FD, &reused), event(IN, 8)).unwrap();
    drop(source);
    assert_eq!([wait(&set, &Alone), wait(&set, &Alone)], [Ok(8), Ok(8)]);
}

#[test]
fn poll_returns_a_ready_pipe_and_a_ready_source_together() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let source = Source::new(NONE);
    writer.write_all(b"x").unwrap();
    source.changed(IN, IN);
    let mut entries =
        [polled(Target::Source(FD, &source), IN), polled(Target::Kernel(reader.as_fd()), IN)];
    assert_eq!(poll(&Alone, &mut entries, None), Ok(2));
    reader.read_exact(&mut [0]).unwrap();
}
