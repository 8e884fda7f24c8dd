//! Sets, poll and select compared with the running kernel's, in seeded random programs: equal events, data and errors after each call.
//!
//! One side registers real sockets with the kernel's epoll. The other has a [`Source`] for each socket, whose bits come from the
//! kernel's poll and whose edges follow from the operations. The order of events is compared in sets that contain only sources and
//! that are not polled. If a set contains kernel descriptors or other sets, ours reports sources first; and polling a set drops
//! entries that are not ready from the kernel's list, at a time that ours cannot see. There, the combined reports of several calls
//! are compared.
//!
//! `WAVE_SEED=n` replays one seed; `WAVE_SEEDS=n` runs the first n.

mod polls;
mod world;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use rand::Rng;
use rand_pcg::Pcg32;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, pipe_with};
use wave_core_testing::{Replay, rng, seeds};
use wave_readiness::{Alone, Event, EventData, EventFlags, Target, Timespec};
use world::{Sets, World, number, place};

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Number of calls within which a set asks the kernel.
const ROUNDS: usize = 17;
const NO_EVENT: Event = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };

/// A random program and its state.
struct Program {
    rng: Pcg32,
    world: World,
    sets: Vec<Sets>,
    /// Kernel descriptors on both sides: eventfds, and the reading end of a pipe as the last.
    kernels: Vec<OwnedFd>,
    /// The pipe's other end.
    pipe: Option<OwnedFd>,
    /// The flag with which sets are added to sets: edge-triggered or oneshot, see [`Program::agree`].
    set_flag: EventFlags,
    /// Event data of the sets in sets.
    set_data: BTreeSet<u64>,
    next_data: u64,
    log: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Control {
    Add,
    Modify,
    Delete,
}

/// The object of an operation.
#[derive(Clone, Copy, Debug)]
enum Named {
    Socket(usize),
    Kernel(usize),
    Set(usize),
}

impl Program {
    fn new(seed: u64, lowest: RawFd, sets: usize, has_kernels: bool) -> Program {
        let mut rng = rng(seed);
        let pairs = rng.random_range(1..=3);
        let mut kernels = Vec::new();
        let mut pipe = None;
        if has_kernels {
            for _ in 0..2 {
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                kernels.push(place(eventfd(0, flags).unwrap(), lowest));
            }
            let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            kernels.push(place(reading, lowest));
            pipe = Some(place(writing, lowest));
        }
        Program {
            world: World::new(pairs, lowest),
            sets: (0..sets).map(|_| Sets::new(lowest)).collect(),
            kernels,
            pipe,
            set_flag: if seed.is_multiple_of(2) { EventFlags::ET } else { EventFlags::ONESHOT },
            set_data: BTreeSet::new(),
            next_data: 0,
            log: Vec::new(),
            rng,
        }
    }

    /// Performs a random operation on a socket. Returns false if no socket is left.
    fn touch(&mut self) -> bool {
        if self.world.descriptors.is_empty() {
            return false;
        }
        let which = self.rng.random_range(0..self.world.descriptors.len());
        let fd = number(&self.world.descriptors[which]);
        let bytes = self.rng.random_range(1..400);
        let step = match self.rng.random_range(0..100) {
            0..40 => format!("write({fd}, {bytes}) = {:?}", self.world.write(which, bytes)),
            40..80 => {
                let bytes = bytes * 2;
                format!("read({fd}, {bytes}) = {:?}", self.world.read(which, bytes))
            }
            80..86 => {
                let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                let how = how[self.rng.random_range(0..3)];
                self.world.shutdown(which, how);
                format!("shutdown({fd}, {how:?})")
            }
            86..95 => {
                self.world.duplicate(which);
                let last = self.world.descriptors.last().expect("a descriptor was just added");
                format!("dup({fd}) = {}", number(last))
            }
            _ => {
                self.world.close(which);
                format!("close({fd})")
            }
        };
        self.log.push(step);
        true
    }

    fn touch_kernels(&mut self) {
        let which = self.rng.random_range(0..self.kernels.len());
        let fd = &self.kernels[which];
        if which + 1 == self.kernels.len() {
            self.pipe = None;
        } else if self.rng.random() {
            rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
        } else {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
        self.log.push(format!("kernel's {which}: {:?}", world::bits(fd.as_fd())));
    }

    fn interest(&mut self) -> EventFlags {
        let one = [
            (EventFlags::IN, 60),
            (EventFlags::OUT, 40),
            (EventFlags::RDHUP, 30),
            (EventFlags::PRI, 10),
            (EventFlags::HUP, 10),
            (EventFlags::ERR, 10),
            (EventFlags::RDNORM, 10),
            (EventFlags::WRBAND, 10),
            (EventFlags::ET, 45),
            (EventFlags::ONESHOT, 15),
            (EventFlags::EXCLUSIVE, 7),
        ];
        let mut interest = EventFlags::empty();
        for (flag, percent) in one {
            interest.set(flag, self.rng.random_range(0..100) < percent);
        }
        interest
    }

    fn control(&mut self) {
        let set = self.rng.random_range(0..self.sets.len());
        let sockets = self.world.descriptors.len();
        let named = match self.rng.random_range(0..10) {
            0..2 if !self.kernels.is_empty() => {
                Named::Set(self.rng.random_range(0..self.sets.len()))
            }
            0..5 if !self.kernels.is_empty() => {
                Named::Kernel(self.rng.random_range(0..self.kernels.len()))
            }
            _ if sockets > 0 => Named::Socket(self.rng.random_range(0..sockets)),
            _ => return,
        };
        let control = match self.rng.random_range(0..10) {
            0..5 => Control::Add,
            5..8 => Control::Modify,
            _ => Control::Delete,
        };
        self.apply(control, set, named);
    }

    /// Adds most of the objects to each set.
    fn populate(&mut self) {
        for set in 0..self.sets.len() {
            let sockets = (0..self.world.descriptors.len()).map(Named::Socket);
            let kernels = (0..self.kernels.len()).map(Named::Kernel);
            let later_sets = (set + 1..self.sets.len()).map(Named::Set);
            let later_sets = later_sets.filter(|_| !self.kernels.is_empty());
            let all: Vec<_> = sockets.chain(kernels).chain(later_sets).collect();
            for named in all {
                let percent = if let Named::Set(_) = named { 30 } else { 60 };
                if self.rng.random_range(0..100) < percent {
                    self.apply(Control::Add, set, named);
                }
            }
        }
    }

    fn apply(&mut self, control: Control, set: usize, named: Named) {
        self.next_data += 1;
        let (mut flags, data) = (self.interest(), EventData::new_u64(self.next_data));
        if let Named::Set(_) = named {
            let both = EventFlags::ET | EventFlags::ONESHOT;
            flags.remove(both.difference(self.set_flag));
            self.set_data.insert(self.next_data);
        }
        let event = Event { flags, data };

        let theirs = &self.sets[set].theirs;
        let real = match named {
            Named::Socket(which) => self.world.descriptors[which].fd.as_fd(),
            Named::Kernel(which) => self.kernels[which].as_fd(),
            Named::Set(which) => self.sets[which].theirs.as_fd(),
        };
        let ours = &self.sets[set].ours;
        let target = match named {
            Named::Socket(which) => {
                Target::Source(number(&self.world.descriptors[which]), self.world.source(which))
            }
            Named::Kernel(_) => Target::Kernel(real),
            Named::Set(which) => Target::Set(self.sets[which].ours.as_fd(), &self.sets[which].ours),
        };
        let (want, got) = match control {
            Control::Add => (epoll::add(theirs, real, data, flags), ours.add(target, event)),
            Control::Modify => {
                (epoll::modify(theirs, real, data, flags), ours.modify(target, event))
            }
            Control::Delete => (epoll::delete(theirs, real), ours.delete(target)),
        };
        let real = rustix::fd::AsRawFd::as_raw_fd(&real);
        self.log.push(format!(
            "set {set}: {control:?} {named:?} (fd {real}) {flags:?} data {} = {want:?}",
            self.next_data
        ));
        self.compare(want, got);
        match named {
            Named::Socket(_) => {}
            Named::Kernel(_) => self.sets[set].is_ordered = false,
            Named::Set(which) => {
                (self.sets[set].is_ordered, self.sets[which].is_ordered) = (false, false);
            }
        }
    }

    fn wait(&mut self) {
        let set = self.rng.random_range(0..self.sets.len());
        if !self.sets[set].is_ordered {
            return self.wait_often(set);
        }
        let room = [1, 1, 2, 3, 16][self.rng.random_range(0..5)];
        let want = self.their_events(set, room);
        let got = self.our_events(set, room);
        self.log.push(format!("set {set}: wait for {room} = {want:?}"));
        self.compare(want, got);
    }

    fn wait_often(&mut self, set: usize) {
        // With room for one event, each kernel descriptor needs a separate turn.
        let (room, rounds) = match self.rng.random_range(0..4) {
            0 => (1, ROUNDS * 12),
            _ => (64, ROUNDS),
        };
        let mut want = BTreeSet::new();
        let mut got = BTreeSet::new();
        for _ in 0..rounds {
            want.extend(self.their_events(set, room));
            got.extend(self.our_events(set, room));
        }
        self.log.push(format!("set {set}: wait {rounds} times for {room} = {want:?}"));
        self.agree(want, got);
    }

    /// Compares events, except for one known difference: if an entry that is linked but not ready becomes ready by EPOLL_CTL_MOD, the
    /// kernel reports no edge to those that wait for edges of the set, and ours does.
    fn agree(&self, want: BTreeSet<(u32, u64)>, mut got: BTreeSet<(u32, u64)>) {
        if self.set_flag == EventFlags::ET {
            got.retain(|event| want.contains(event) || !self.set_data.contains(&event.1));
        }
        self.compare(want, got);
    }

    fn their_events(&self, set: usize, room: usize) -> Vec<(u32, u64)> {
        let mut events = vec![NO_EVENT; room];
        let count = epoll::wait(&self.sets[set].theirs, &mut events[..], Some(&AT_ONCE)).unwrap();
        plain(&events[..count])
    }

    fn our_events(&self, set: usize, room: usize) -> Vec<(u32, u64)> {
        let mut events = vec![NO_EVENT; room];
        let count = self.sets[set].ours.wait(&Alone, &mut events, Some(Duration::ZERO)).unwrap();
        plain(&events[..count])
    }

    #[track_caller]
    fn compare<T: PartialEq + std::fmt::Debug>(&self, want: T, got: T) {
        if want != got {
            panic!("the kernel: {want:?}\nours: {got:?}\nafter:\n{}", self.log.join("\n"));
        }
    }
}

fn plain(events: &[Event]) -> Vec<(u32, u64)> {
    events.iter().map(|event| ({ event.flags }.bits(), { event.data }.u64())).collect()
}

/// Sets that contain only sockets, which they share: the order of events must be the kernel's.
fn ordered(seed: u64) {
    let _replay = Replay(seed, "-p wave-readiness --test differential ordered");
    let sets = 1 + (seed % 2) as usize;
    let mut program = Program::new(seed, 200, sets, false);
    program.populate();
    for _ in 0..program.rng.random_range(10..80) {
        match program.rng.random_range(0..10) {
            0..3 => program.control(),
            3..6 => program.wait(),
            _ => drop(program.touch()),
        }
    }
}

/// Sets that also contain kernel descriptors and other sets.
fn mixed(seed: u64) {
    let _replay = Replay(seed, "-p wave-readiness --test differential mixed");
    let mut program = Program::new(seed, 400, 1 + (seed % 7) as usize, true);
    program.populate();
    for _ in 0..program.rng.random_range(10..60) {
        match program.rng.random_range(0..20) {
            0..7 => program.control(),
            7..10 => program.wait(),
            10..12 => program.touch_kernels(),
            _ => drop(program.touch()),
        }
    }
}

#[test]
fn ordered_sets_of_sources_report_the_same_events_as_the_kernels() {
    seeds(2_000).for_each(ordered);
}

#[test]
fn mixed_and_nested_sets_report_the_same_events_as_the_kernels() {
    seeds(2_000).for_each(mixed);
}

#[test]
fn a_set_without_room_for_events_is_invalid() {
    let set = Sets::new(600);
    let none: &mut [Event] = &mut [];
    let want = epoll::wait(&set.theirs, &mut *none, Some(&AT_ONCE));
    assert_eq!(want, Err(Errno::INVAL));
    assert_eq!(set.ours.wait(&Alone, none, None), want);
}
