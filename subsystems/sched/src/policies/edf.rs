//! Earliest deadline first. A thread's deadline is the time at which it became runnable, plus its class's relative deadline or
//! the SLO of the request that it serves. A waiting thread takes the core of the running thread with the latest deadline, if
//! its own is earlier.
//!
//! Source: Liu and Layland (1973), on several cores without partitions (global EDF). A preempted thread keeps its deadline; a
//! thread that yields has finished the work that the deadline was for, and gets a new one. Nothing is prestaged on a core that
//! is not about to switch: a prestaged decision cannot be taken back, and would run before a thread with an earlier deadline
//! that comes later.
//!
//! A thread that wakes ends at most one run, so there are no more preemptions than wake-ups. Where no decision can be staged
//! for a running core (prestaging is off), one preemption at a time is under way: only then is it certain which thread it is
//! for.

use wave_core::clock::Nanos;
use wave_core::layout::Config;

use super::common::{
    Cause, Discipline, Heap, PerClass, Preemptive, Runs, Setting, Settings, Thread,
};

/// Settings of earliest deadline first: a deadline per class.
pub static SETTINGS: [Setting; 1] = [Setting::per_class(
    "deadline_us",
    "100/20000",
    1..=1_000_000_000,
    "by when a thread of each class is due, in microseconds after it became runnable",
)];

/// Earliest deadline first, preemptive, with a relative deadline per class.
pub type Edf = Preemptive<ByDeadline>;

impl Edf {
    /// For an enclave of this configuration, with relative deadlines.
    pub fn new(config: &Config, deadlines: PerClass<Nanos>) -> Edf {
        Preemptive::with(config, ByDeadline { deadlines, waiting: Heap::new(config.subjects) })
    }

    /// The policy with settings from [`SETTINGS`].
    pub fn from_settings(config: &Config, settings: &Settings<'_>) -> Edf {
        Edf::new(config, settings.micros_per_class("deadline_us"))
    }
}

/// Threads by deadline (a thread's mark); the run with the latest deadline has the lowest rank.
#[derive(Debug)]
pub struct ByDeadline {
    deadlines: PerClass<Nanos>,
    waiting: Heap,
}

impl Discipline for ByDeadline {
    const PRESTAGES: bool = false;

    fn name(&self) -> &'static str {
        "edf"
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn enter(&mut self, now: Nanos, id: u32, thread: &mut Thread, cause: Cause) {
        if cause != Cause::Preempted {
            let deadline = thread.slo().unwrap_or(self.deadlines.of(thread.class));
            thread.mark = (now + deadline).0;
        }
        self.waiting.push(id, thread.mark);
    }

    fn leave(&mut self, id: u32) {
        self.waiting.remove(id);
    }

    fn take(&mut self, _now: Nanos, _core: u16, _threads: &[Thread]) -> Option<u32> {
        let (_, id) = self.waiting.first()?;
        self.waiting.remove(id);
        Some(id)
    }

    fn clear(&mut self) {
        self.waiting.clear();
    }

    fn rank(&self, _now: Nanos, thread: &Thread) -> u64 {
        !thread.mark
    }

    fn victim(&mut self, _now: Nanos, runs: &Runs, threads: &[Thread]) -> Option<u16> {
        let (earliest, _) = self.waiting.first()?;
        let (core, run) = runs.first()?;
        let is_later = threads[run.thread as usize].mark > earliest;
        (is_later && runs.claims() == 0).then_some(core)
    }

    fn next_victim(&self, _now: Nanos, _runs: &Runs) -> Option<Nanos> {
        None
    }
}
