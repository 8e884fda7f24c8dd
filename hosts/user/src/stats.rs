//! What an enclave counts.

use std::sync::atomic::{AtomicU64, Ordering};

use wave_core::clock::Nanos;
use wave_core::outcome::{Code, Counts};

/// Who makes the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The host's own first-in first-out queue.
    Fallback,
    /// An agent.
    Agent,
}

/// One core's counters since the enclave's start.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Switches to a thread.
    pub switches: u64,
    /// Of these, chosen by the fallback.
    pub fallback_switches: u64,
    /// Looks at an empty queue.
    pub spins: u64,
    /// Times the core went to sleep.
    pub parks: u64,
    /// Time spent in threads.
    pub busy: Nanos,
    /// Time spent asleep.
    pub parked: Nanos,
    /// Outcomes by code.
    pub outcomes: Vec<(Code, u64)>,
}

/// An enclave's counters since its start.
#[derive(Clone, Debug)]
pub struct EnclaveStats {
    /// Each core's.
    pub cores: Vec<CoreStats>,
    /// Who decides now.
    pub mode: Mode,
    /// Agents that have been attached, one after the other.
    pub agents: u64,
    /// Agents that were lost: died, left or were turned out by the watchdog.
    pub lost_agents: u64,
    /// Of these, turned out by the watchdog.
    pub barks: u64,
    /// Of the lost agents, those that wrote nonsense.
    pub faults: u64,
    /// Snapshots sent.
    pub snapshots: u64,
    /// Messages that found their queue full (each led to a snapshot).
    pub overflows: u64,
}

/// A core's counters as it writes them. Read by others, written by the core alone.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) switches: AtomicU64,
    pub(crate) fallback_switches: AtomicU64,
    pub(crate) spins: AtomicU64,
    pub(crate) parks: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) parked_ns: AtomicU64,
    outcomes: [AtomicU64; Code::ALL.len() + 1],
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Counters {
    /// Adds the outcomes of a window that the core has left.
    pub(crate) fn add_outcomes(&self, counts: &Counts) {
        for (code, count) in counts.iter() {
            bump(&self.outcomes[code as usize], count);
        }
    }

    pub(crate) fn read(&self) -> CoreStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CoreStats {
            switches: get(&self.switches),
            fallback_switches: get(&self.fallback_switches),
            spins: get(&self.spins),
            parks: get(&self.parks),
            busy: Nanos(get(&self.busy_ns)),
            parked: Nanos(get(&self.parked_ns)),
            outcomes: Code::ALL
                .iter()
                .map(|&code| (code, get(&self.outcomes[code as usize])))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}
