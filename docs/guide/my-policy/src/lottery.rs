//! A lottery by class. Each class with a waiting thread takes part with its tickets. The thread of the winning class that has waited
//! longest runs, for one slice at most. So classes share the cores in proportion to their tickets, and none starves.
//!
//! Source: Waldspurger and Weihl, Lottery Scheduling (OSDI 1994).

use std::collections::VecDeque;

use rand::seq::IndexedRandom;
use rand_pcg::{Pcg64Mcg, rand_core::SeedableRng};
use wave_core::clock::Nanos;
use wave_core::settings::{CLASSES_MAX, PerClass, Settings, class_index};
use wave_sched::scheduler::{Run, Scheduler, Thread};

/// Waiting threads by class, and the tickets of each class.
pub struct Lottery {
    lines: [VecDeque<Thread>; CLASSES_MAX],
    tickets: PerClass<u64>,
    slice: Nanos,
    random: Pcg64Mcg,
}

impl Lottery {
    /// A lottery with these settings. Its seed is fixed, so that a log replays.
    pub fn new(settings: &Settings<'_>) -> Lottery {
        let (lines, random) = (Default::default(), Pcg64Mcg::seed_from_u64(1));
        let slice = Nanos::from_micros(settings.number("slice_us"));
        Lottery { lines, tickets: settings.per_class("tickets"), slice, random }
    }
}

impl Scheduler for Lottery {
    fn ready(&mut self, thread: Thread) {
        self.lines[class_index(thread.class())].push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        let waits = |class: &u16| !self.lines[usize::from(*class)].is_empty();
        let classes: Vec<u16> = (0..CLASSES_MAX as u16).filter(waits).collect();
        let tickets = |class: &u16| self.tickets.of(*class);
        let winner = *classes.choose_weighted(&mut self.random, tickets).ok()?;
        let thread = self.lines[usize::from(winner)].pop_front()?;
        Some(Run::for_slice(thread, self.slice))
    }
}
