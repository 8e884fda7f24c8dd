//! The schedule of a workload's threads: recorded or replayed.

use wave_core::clock::Nanos;
use wave_sched::workload::{Thread, Workload};

use super::{BEGINS, Recorded};
use crate::enclave::Counters;

/// Scheduling latencies, each from a thread's wake-up until it ran, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Number of times measured.
    pub count: u64,
    /// Median, in nanoseconds.
    pub p50_ns: u64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// Maximum, in nanoseconds.
    pub max_ns: u64,
}

impl Latency {
    /// Summarises these latencies, given in any order.
    pub fn of(mut latencies_ns: Vec<u64>) -> Latency {
        latencies_ns.sort_unstable();
        let count = latencies_ns.len();
        let quantile = |q: f64| {
            let rank = (q * count as f64).ceil() as usize;
            latencies_ns.get(rank.max(1) - 1).copied().unwrap_or(0)
        };
        let (p50_ns, p99_ns) = (quantile(0.5), quantile(0.99));
        Latency { count: count as u64, p50_ns, p99_ns, max_ns: quantile(1.0) }
    }
}

/// One thread's share of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSchedule {
    /// Time from wake-up to run.
    pub latency: Latency,
    /// End of its last run, from the recording's beginning; `None` if the thread did not finish.
    pub ended_ns: Option<u64>,
    /// How often it lost its core.
    pub preemptions: u64,
}

/// When threads ran, and how long they waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The threads, in the workload's order.
    pub threads: Vec<ThreadSchedule>,
    /// Time from wake-up to run, over all threads.
    pub latency: Latency,
    /// From the time at which the first thread could run until the last run ended.
    pub makespan_ns: u64,
    /// CPU time that was used.
    pub cpu_ns: u64,
    /// Number of cores replayed on.
    pub cores: u32,
    /// Times that a thread got a core.
    pub switches: u64,
    /// Times that a thread lost its core.
    pub preemptions: u64,
}

impl Schedule {
    /// The schedule of the recording, made by Linux.
    pub fn recorded(workload: &Workload) -> Schedule {
        let waited = |thread: &Thread| -> Vec<u64> {
            thread.runs.iter().filter_map(|run| run.waited_ns).collect()
        };
        let threads = workload.threads.iter().map(|thread| ThreadSchedule {
            latency: Latency::of(waited(thread)),
            ended_ns: Some(thread.ended_ns),
            preemptions: thread.runs.iter().map(|run| run.preemptions).sum(),
        });
        let threads: Vec<_> = threads.collect();
        let preemptions = threads.iter().map(|thread| thread.preemptions).sum();
        Schedule {
            latency: Latency::of(workload.threads.iter().flat_map(waited).collect()),
            makespan_ns: workload.ends_ns().saturating_sub(workload.begins_ns()),
            cpu_ns: workload.cpu_ns(),
            cores: workload.header.cpus,
            switches: workload.runs().count() as u64 + preemptions,
            preemptions,
            threads,
        }
    }

    /// The share of the cores' time that threads used.
    pub fn cpu_use(&self) -> f64 {
        self.cpu_ns as f64 / (self.makespan_ns.max(1) as f64 * f64::from(self.cores))
    }
}

impl Recorded {
    pub(super) fn schedule(&self, counters: &Counters, cores: u16) -> Schedule {
        let state = self.state.borrow();
        let from_beginning = |at: Nanos| at.since(BEGINS).0;
        let threads = state.threads.iter().map(|progress| ThreadSchedule {
            latency: Latency::of(progress.latencies_ns.clone()),
            ended_ns: progress.ended.map(from_beginning),
            preemptions: progress.preemptions,
        });
        let threads: Vec<_> = threads.collect();
        let ends_ns = threads.iter().filter_map(|thread| thread.ended_ns).max().unwrap_or(0);
        let all = state.threads.iter().flat_map(|progress| &progress.latencies_ns);
        Schedule {
            latency: Latency::of(all.copied().collect()),
            makespan_ns: ends_ns.saturating_sub(self.workload.begins_ns()),
            cpu_ns: self.cpu.get().0,
            cores: cores.into(),
            switches: counters.switches + counters.fallback_switches,
            preemptions: threads.iter().map(|thread| thread.preemptions).sum(),
            threads,
        }
    }
}
