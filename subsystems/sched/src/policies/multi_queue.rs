//! Multi-queue Shinjuku: a queue per class, and for each class an objective (SLO) for how long its
//! threads wait. The next thread comes from the queue whose head has waited longest in proportion
//! to its class's objective. Preemption is [`super::shinjuku`]'s.
//!
//! Source: Wave 7.3.2 (a run queue per SLO class, a slice of 30 us), after the multi-queue policy of Shinjuku (NSDI 2019),
//! which picks a queue by the same ratio. A thread's class, chosen by its spawner, comes with its messages. A thread that
//! awaits requests takes the class of each request from a front's note. If the note has an SLO instead, the request goes to the
//! queue with the longest objective that meets it. No class starves: the ratio of a queue's head grows for as long as it waits.

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::class_index;

use super::common::{
    CLASSES_MAX, Cause, Discipline, PerClass, Preemptive, Queues, Runs, Setting, Settings, Slice,
    Thread, Timer,
};

/// The settings. The default objectives suit the papers' mix of GETs of 10 us (class 0) and RANGE
/// queries of 10 ms (class 1).
pub static SETTINGS: [Setting; 3] = [
    Setting::number(
        "slice_us",
        "30",
        1..=1_000_000,
        "how long a thread runs, in microseconds, before it is preempted for one that waits",
    ),
    Setting::per_class(
        "slo_us",
        "50/10000",
        1..=1_000_000_000,
        "how long a thread of each class may wait, in microseconds",
    ),
    Timer::SETTING,
];

/// A queue per class, preempted at the end of slices.
pub type MultiQueue = Preemptive<QueuePerClass>;

impl MultiQueue {
    /// For an enclave of this configuration. No objective may be zero.
    pub fn new(config: &Config, slice: Slice, slo: PerClass<Nanos>) -> MultiQueue {
        let queues = Queues::new(CLASSES_MAX, config.subjects);
        Preemptive::with(config, QueuePerClass { slice, slo, queues })
    }

    /// The policy with settings from [`SETTINGS`].
    pub fn from_settings(config: &Config, settings: &Settings<'_>) -> MultiQueue {
        let slice = Slice::from_settings(settings, "slice_us");
        MultiQueue::new(config, slice, settings.micros_per_class("slo_us"))
    }
}

/// A queue per class, with one slice for all.
#[derive(Debug)]
pub struct QueuePerClass {
    slice: Slice,
    slo: PerClass<Nanos>,
    queues: Queues,
}

impl QueuePerClass {
    /// The queue in which a thread waits.
    fn queue_of(&self, thread: &Thread) -> usize {
        let Some(slo) = thread.slo() else { return class_index(thread.class) };
        let objective = |class: usize| self.slo.of(class as u16);
        // If no objective meets the SLO, the tightest. Of classes with equal objectives the lowest, so that such requests share
        // one queue.
        let key = |class: usize| match objective(class) {
            longest if longest <= slo => (0, Nanos::MAX - longest),
            tightest => (1, tightest),
        };
        (0..CLASSES_MAX).min_by_key(|class| key(*class)).unwrap_or(0)
    }

    /// The head that has waited longest in proportion to its class's objective; of equals, the head of the lower class.
    fn first(&self, now: Nanos, threads: &[Thread]) -> Option<u32> {
        let mut first: Option<(u32, u128, u128)> = None;
        for class in 0..CLASSES_MAX {
            let Some(id) = self.queues.first(class) else { continue };
            let waited = u128::from(now.since(threads[id as usize].since).0);
            let slo = u128::from(self.slo.of(class as u16).0);
            // If no head has waited yet, the tighter objective wins.
            let waited = waited + 1;
            if first.is_none_or(|(_, other, others_slo)| waited * others_slo > other * slo) {
                first = Some((id, waited, slo));
            }
        }
        first.map(|(id, ..)| id)
    }
}

impl Discipline for QueuePerClass {
    fn name(&self) -> &'static str {
        "multi-queue"
    }

    fn waiting(&self) -> usize {
        self.queues.len()
    }

    fn enter(&mut self, _now: Nanos, id: u32, thread: &mut Thread, _cause: Cause) {
        self.queues.push(self.queue_of(thread), id);
    }

    fn leave(&mut self, id: u32) {
        self.queues.remove(id);
    }

    fn take(&mut self, now: Nanos, _core: u16, threads: &[Thread]) -> Option<u32> {
        let id = self.first(now, threads)?;
        self.queues.remove(id);
        Some(id)
    }

    fn clear(&mut self) {
        self.queues.clear();
    }

    fn rank(&self, now: Nanos, _thread: &Thread) -> u64 {
        now.0
    }

    fn victim(&mut self, now: Nanos, runs: &Runs, _threads: &[Thread]) -> Option<u16> {
        self.slice.exceeded(now, runs)
    }

    fn next_victim(&self, _now: Nanos, runs: &Runs) -> Option<Nanos> {
        self.slice.first_end(runs)
    }

    fn slice_in_decisions(&self) -> Nanos {
        self.slice.in_decisions()
    }

    fn slice_end(&self, start: Nanos) -> Option<Nanos> {
        Some(self.slice.end(start))
    }
}
