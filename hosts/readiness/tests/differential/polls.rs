//! poll and select.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use nix::sys::select::{FdSet, select as their_select};
use nix::sys::time::TimeVal;
use rand::Rng;
use rustix::event::{PollFd, PollFlags, poll as their_poll};
use wave_readiness::{Alone, Bits, EventFlags, Polled, Target, poll, select};

use crate::world::number;
use crate::{AT_ONCE, Named, Program};
use wave_core_testing::{Replay, seeds};

/// All descriptors of the tests are below this number.
const COUNT: usize = 1024;

impl Program {
    fn any(&mut self) -> Option<Named> {
        let sockets = self.world.descriptors.len();
        match self.rng.random_range(0..10) {
            0 => Some(Named::Kernel(self.rng.random_range(0..self.kernels.len()))),
            1 => {
                let which = self.rng.random_range(0..self.sets.len());
                self.sets[which].is_ordered = false;
                Some(Named::Set(which))
            }
            _ if sockets > 0 => Some(Named::Socket(self.rng.random_range(0..sockets))),
            _ => None,
        }
    }

    fn real(&self, named: Named) -> BorrowedFd<'_> {
        match named {
            Named::Socket(which) => self.world.descriptors[which].fd.as_fd(),
            Named::Kernel(which) => self.kernels[which].as_fd(),
            Named::Set(which) => self.sets[which].theirs.as_fd(),
        }
    }

    /// With `is_ours`, a socket is named by its source, otherwise as a kernel descriptor.
    fn target(&self, named: Named, is_ours: bool) -> Target<'_> {
        match named {
            Named::Socket(which) if is_ours => {
                Target::Source(number(&self.world.descriptors[which]), self.world.source(which))
            }
            Named::Set(which) => Target::Set(self.sets[which].ours.as_fd(), &self.sets[which].ours),
            named => Target::Kernel(self.real(named)),
        }
    }

    fn poll(&mut self) {
        let count = self.rng.random_range(0..6);
        let mut asked: Vec<(Option<Named>, bool, u16)> = Vec::new();
        for _ in 0..count {
            let named = if self.rng.random_range(0..8) == 0 { None } else { self.any() };
            let events = self.rng.random_range(0..0x4000u16) & !PollFlags::NVAL.bits();
            asked.push((named, self.rng.random(), events));
        }
        let mut theirs: Vec<PollFd<'_>> = asked
            .iter()
            .filter_map(|&(named, _, events)| {
                let events = PollFlags::from_bits_retain(events);
                Some(PollFd::from_borrowed_fd(self.real(named?), events))
            })
            .collect();
        let mut ours: Vec<Polled<'_>> = asked
            .iter()
            .map(|&(named, is_ours, events)| Polled {
                target: named.map(|named| self.target(named, is_ours)),
                events: EventFlags::from_bits_retain(events.into()),
                found: EventFlags::ET,
            })
            .collect();
        let want = their_poll(&mut theirs, Some(&AT_ONCE)).unwrap();
        let got = poll(&Alone, &mut ours, Some(Duration::ZERO)).unwrap();
        let want_bits: Vec<u32> = theirs.iter().map(|fd| u32::from(fd.revents().bits())).collect();
        let named = ours.iter().filter(|entry| entry.target.is_some());
        let got_bits: Vec<u32> = named.map(|entry| entry.found.bits()).collect();
        let skipped = ours.iter().filter(|entry| entry.target.is_none());
        assert!(skipped.into_iter().all(|entry| entry.found.is_empty()));
        self.log.push(format!("poll {asked:?} = {want} {want_bits:x?}"));
        self.compare((want, want_bits), (got, got_bits));
    }

    fn select(&mut self) {
        let mut asked: Vec<(Named, bool, [bool; 3])> = Vec::new();
        for _ in 0..self.rng.random_range(0..6) {
            let Some(named) = self.any() else { continue };
            asked.push((named, self.rng.random(), self.rng.random()));
        }
        let mut theirs = [FdSet::new(), FdSet::new(), FdSet::new()];
        let mut words = [[0; COUNT / 64]; 3];
        for &(named, _, sets) in &asked {
            // On the kernel's side, a set has a different descriptor number from ours.
            for (which, _) in sets.iter().enumerate().filter(|(_, is_in)| **is_in) {
                theirs[which].insert(self.real(named));
                let fd = self.our_number(named);
                words[which][fd / 64] |= 1 << (fd % 64);
            }
        }
        let [read, write, except] = &mut theirs;
        let timeout = &mut TimeVal::new(0, 0);
        let want = their_select(COUNT as i32, read, write, except, timeout).unwrap() as usize;
        let find = |fd: i32| {
            let mut all = asked.iter();
            let (named, is_ours, _) =
                all.find(|(named, ..)| self.our_number(*named) == fd as usize)?;
            Some(self.target(*named, *is_ours))
        };
        let [read, write, except] = &mut words;
        let mut sets = [Some(Bits(read)), Some(Bits(write)), Some(Bits(except))];
        let got = select(&Alone, COUNT, &mut sets, find, Some(Duration::ZERO)).unwrap();
        let mut want_bits = Vec::new();
        let mut got_bits = Vec::new();
        for &(named, _, _) in &asked {
            let fd = self.our_number(named);
            want_bits.push([0, 1, 2].map(|which| theirs[which].contains(self.real(named))));
            got_bits.push([0, 1, 2].map(|which| words[which][fd / 64] & 1 << (fd % 64) != 0));
        }
        self.log.push(format!("select {asked:?} = {want} {want_bits:?}"));
        self.compare((want, want_bits), (got, got_bits));
    }

    fn our_number(&self, named: Named) -> usize {
        let fd = match named {
            Named::Set(which) => self.sets[which].ours.as_fd().as_raw_fd(),
            named => self.real(named).as_raw_fd(),
        };
        fd as usize
    }
}

fn polled(seed: u64) {
    let _replay = Replay(seed, "-p wave-readiness --test differential poll");
    let mut program = Program::new(seed, 700, 2, true);
    program.set_flag = EventFlags::ONESHOT;
    program.populate();
    for _ in 0..program.rng.random_range(10..40) {
        match program.rng.random_range(0..20) {
            0..3 => program.control(),
            3 => program.wait(),
            4..6 => program.touch_kernels(),
            6..10 => program.poll(),
            10..14 => program.select(),
            _ => drop(program.touch()),
        }
    }
}

#[test]
fn poll_and_select_report_the_same_events_as_the_kernels() {
    seeds(2_000).for_each(polled);
}
