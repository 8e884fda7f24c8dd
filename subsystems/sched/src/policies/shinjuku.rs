//! One queue, and a time slice: a thread that exceeds its slice while others wait is preempted and
//! goes to the end of the queue, so that short requests do not wait behind long ones.
//!
//! Source: Shinjuku (NSDI 2019), as Wave ports it (7.2.3: a slice of 30 us) and as Shinjuku-Offload
//! puts it on a NIC (section 3): there the worker's own timer ends a slice (3.4.4), here with
//! `timer=core`.

use wave_core::clock::Nanos;
use wave_core::layout::Config;

use super::common::{
    Cause, Discipline, Preemptive, Queues, Runs, Setting, Settings, Slice, Thread, Timer,
};

/// Settings of the policy.
pub static SETTINGS: [Setting; 2] = [
    Setting::number(
        "slice_us",
        "30",
        1..=1_000_000,
        "how long a thread runs, in microseconds, before it is preempted for one that waits",
    ),
    Timer::SETTING,
];

/// One queue, preempted at the end of slices while others wait.
pub type Shinjuku = Preemptive<OneQueue>;

impl Shinjuku {
    /// For an enclave of this configuration.
    pub fn new(config: &Config, slice: Slice) -> Shinjuku {
        Preemptive::with(config, OneQueue::new("shinjuku", config, slice))
    }

    /// The policy with settings from [`SETTINGS`].
    pub fn from_settings(config: &Config, settings: &Settings<'_>) -> Shinjuku {
        Shinjuku::new(config, Slice::from_settings(settings, "slice_us"))
    }
}

/// First in, first out, with one slice for all.
#[derive(Debug)]
pub struct OneQueue {
    name: &'static str,
    slice: Slice,
    queue: Queues,
}

impl OneQueue {
    /// The queue of the policy with this name.
    pub(super) fn new(name: &'static str, config: &Config, slice: Slice) -> OneQueue {
        OneQueue { name, slice, queue: Queues::new(1, config.subjects) }
    }
}

impl Discipline for OneQueue {
    fn name(&self) -> &'static str {
        self.name
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn enter(&mut self, _now: Nanos, id: u32, _thread: &mut Thread, _cause: Cause) {
        self.queue.push(0, id);
    }

    fn leave(&mut self, id: u32) {
        self.queue.remove(id);
    }

    fn take(&mut self, _now: Nanos, _core: u16, _threads: &[Thread]) -> Option<u32> {
        let id = self.queue.first(0)?;
        self.queue.remove(id);
        Some(id)
    }

    fn clear(&mut self) {
        self.queue.clear();
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
