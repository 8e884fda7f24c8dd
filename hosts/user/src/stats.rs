//! What an enclave counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

use wave_core::clock::{Clock, Nanos};
use wave_core::outcome::{Code, Counts};
use wave_links::model::Charges;

use crate::clock::MonotonicClock;
use crate::shared::lock;

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
    /// Preemptions that were asked for while the run was there: acknowledged at a safe point.
    pub preempted: u64,
    /// Preemptions that were asked for while the run was there, which then ended by itself before its
    /// next safe point. One that comes later still is not seen.
    pub ended_first: u64,
    /// How long the acknowledged ones were deferred, all together and at most: from the last look at
    /// the clock at which the run had not been asked to end, which was a few microseconds before, or
    /// one safe point.
    pub deferred: Nanos,
    /// The longest of these.
    pub deferred_max: Nanos,
    /// Looks at an empty queue.
    pub spins: u64,
    /// Times the core went to sleep.
    pub parks: u64,
    /// Time spent in threads.
    pub busy: Nanos,
    /// Time spent looking at an empty queue, but for the first look of each idle time (which
    /// sends the message that asks).
    pub polling: Nanos,
    /// Of [`CoreStats::polling`], what a modelled link charged.
    pub polling_charged: Nanos,
    /// Time spent asleep, up to now.
    pub parked: Nanos,
    /// Outcomes by code. Up to date when the core parks; while it works, up to
    /// [`PUBLISH_EVERY`] switches old.
    pub outcomes: Vec<(Code, u64)>,
    /// What the core was charged, where a link is or was modelled; as old as the outcomes.
    pub charges: Option<Charges>,
}

/// Switches after which a core that does not park publishes its outcomes and charges.
pub const PUBLISH_EVERY: u64 = 1024;

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
    pub(crate) preempted: AtomicU64,
    pub(crate) ended_first: AtomicU64,
    pub(crate) deferred_ns: AtomicU64,
    pub(crate) deferred_max_ns: AtomicU64,
    pub(crate) spins: AtomicU64,
    pub(crate) parks: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) polling_ns: AtomicU64,
    pub(crate) polling_charged_ns: AtomicU64,
    pub(crate) parked_ns: AtomicU64,
    /// When the sleep that the core is in began; 0 while it is awake.
    pub(crate) asleep_since_ns: AtomicU64,
    published: Mutex<Published>,
}

/// What a core counts per window.
#[derive(Clone, Default)]
struct Totals {
    outcomes: Counts,
    charges: Option<Charges>,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.outcomes.merge(&other.outcomes);
        if let Some(charges) = other.charges {
            *self.charges.get_or_insert_default() += charges;
        }
    }
}

#[derive(Default)]
struct Published {
    /// Of the windows that the core has left.
    left: Totals,
    /// Of the current one, as of the last time it was published.
    current: Totals,
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Counters {
    /// Publishes what the core counted in its current window. Skipped while somebody reads: the
    /// core never waits.
    pub(crate) fn publish(&self, outcomes: &Counts, charges: Option<Charges>) {
        let mut published = match self.published.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        published.current = Totals { outcomes: outcomes.clone(), charges };
    }

    /// Adds what the core counted in a window that it has left.
    pub(crate) fn leave_window(&self, outcomes: &Counts, charges: Option<Charges>) {
        let mut published = lock(&self.published);
        published.current = Totals::default();
        published.left.add(&Totals { outcomes: outcomes.clone(), charges });
    }

    pub(crate) fn read(&self) -> CoreStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let totals = {
            let published = lock(&self.published);
            let mut totals = published.left.clone();
            totals.add(&published.current);
            totals
        };
        let asleep = match get(&self.asleep_since_ns) {
            0 => 0,
            since => MonotonicClock.now().since(Nanos(since)).0,
        };
        CoreStats {
            switches: get(&self.switches),
            fallback_switches: get(&self.fallback_switches),
            preempted: get(&self.preempted),
            ended_first: get(&self.ended_first),
            deferred: Nanos(get(&self.deferred_ns)),
            deferred_max: Nanos(get(&self.deferred_max_ns)),
            spins: get(&self.spins),
            parks: get(&self.parks),
            busy: Nanos(get(&self.busy_ns)),
            polling: Nanos(get(&self.polling_ns)),
            polling_charged: Nanos(get(&self.polling_charged_ns)),
            parked: Nanos(get(&self.parked_ns) + asleep),
            outcomes: totals.outcomes.iter().collect(),
            charges: totals.charges,
        }
    }
}
