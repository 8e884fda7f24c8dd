//! Threads of class 1 exclude one another: at most one of them runs at a time, on any core. All others run first in, first out.
//!
//! The policy keeps an account of running threads. Each pick is followed by `ran` or by `did_not_run`, whatever
//! happens to the decision on its way. `runs` reports the threads that run already when the agent attaches.

use std::collections::VecDeque;

use wave_core::clock::Nanos;
use wave_sched::scheduler::{Run, Scheduler, Thread};

/// The class of threads that exclude one another.
pub const EXCLUSIVE: u16 = 1;

/// Threads that wait, and the account of exclusive threads that run or are about to.
#[derive(Debug, Default)]
pub struct Exclusive {
    free: VecDeque<Thread>,
    exclusive: VecDeque<Thread>,
    /// More than one only if another decided before: the host itself, or an earlier agent.
    running: u32,
}

impl Scheduler for Exclusive {
    fn ready(&mut self, thread: Thread) {
        let line = if is_exclusive(thread) { &mut self.exclusive } else { &mut self.free };
        line.push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        let exclusive = if self.running == 0 { self.exclusive.pop_front() } else { None };
        self.running += u32::from(exclusive.is_some());
        exclusive.or_else(|| self.free.pop_front()).map(Run::to_completion)
    }

    fn runs(&mut self, thread: Thread, _core: u16) {
        self.running += u32::from(is_exclusive(thread));
    }

    fn ran(&mut self, thread: Thread, _time: Nanos) {
        self.running -= u32::from(is_exclusive(thread));
    }

    fn did_not_run(&mut self, thread: Thread) {
        self.running -= u32::from(is_exclusive(thread));
    }
}

fn is_exclusive(thread: Thread) -> bool {
    thread.class() == EXCLUSIVE
}
