//! Two classes of threads with strict priority: an ordinary thread is picked only while no urgent one waits. Within a class, first
//! in, first out. Class 0 is urgent, every other class is ordinary.

use std::collections::VecDeque;

use wave_sched::scheduler::{Run, Scheduler, Thread};

/// The class of urgent threads.
pub const URGENT: u16 = 0;

/// Threads that wait: urgent ones, then ordinary ones.
#[derive(Default)]
pub struct TwoClass([VecDeque<Thread>; 2]);

impl Scheduler for TwoClass {
    fn ready(&mut self, thread: Thread) {
        self.0[usize::from(thread.class() != URGENT)].push_back(thread);
    }

    fn pick(&mut self, _core: u16) -> Option<Run> {
        self.0.iter_mut().find_map(VecDeque::pop_front).map(Run::to_completion)
    }

    /// Only urgent threads are prestaged: an ordinary one would run before an urgent one that becomes ready later.
    fn may_prestage(&self, cores: u16) -> bool {
        self.0[0].len() >= usize::from(cores)
    }
}
