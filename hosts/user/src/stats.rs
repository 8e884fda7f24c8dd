//! Counters of an enclave.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, TryLockError};

use wave_core::clock::{Clock, Nanos};
use wave_core::outcome::{Code, Counts};
use wave_links::model::Charges;

use crate::clock::MonotonicClock;
use crate::shared::lock;

pub use wave_sched::mechanism::fallback::Mode;

/// One core's counters since the enclave's start.
#[derive(Clone, Debug, Default)]
pub struct CoreStats {
    /// Number of switches to a thread.
    pub switches: u64,
    /// Number of these that the fallback chose.
    pub fallback_switches: u64,
    /// Preemptions requested during their run and acknowledged.
    pub preempted: u64,
    /// Preemptions requested during a run that then ended by itself before its next safe point. A request
    /// that comes after the run's end is not counted.
    pub ended_first: u64,
    /// How long acknowledged preemptions were deferred. At safe points this is an upper bound: the time since
    /// the last read of the clock at which the run had not been asked to end, some ten microseconds earlier,
    /// or one safe point earlier where they are rarer. On kernel-level threads it is the time since the signal.
    pub deferrals: Times,
    /// Number of acknowledged preemptions that found a kernel-level thread inside this crate, where it is not
    /// preempted.
    pub deferred_inside: u64,
    /// Safe points at which a thread did not acknowledge a preemption because it was unwinding.
    pub refused_unwinding: u64,
    /// Number of runs that the core itself ended, after their slices.
    pub sliced: u64,
    /// Durations of runs that the agent or the core preempted.
    pub preempted_runs: Times,
    /// When the core was back in its loop after the last preempted run, on [`MonotonicClock`].
    pub preempted_at: Nanos,
    /// Number of looks that found the queue empty.
    pub spins: u64,
    /// Number of times the core went to sleep.
    pub parks: u64,
    /// Time that the core spent running threads.
    pub busy: Nanos,
    /// Time spent looking at an empty queue, except the first look of each idle period (which sends the
    /// message that asks).
    pub polling: Nanos,
    /// The part of [`CoreStats::polling`] that a modelled link charged.
    pub polling_charged: Nanos,
    /// Time spent asleep, up to now.
    pub parked: Nanos,
    /// Outcomes by code. Up to date when the core parks; while it works, up to
    /// [`PUBLISH_EVERY`] switches old.
    pub outcomes: Vec<(Code, u64)>,
    /// The core's charges by modelled links; `None` without one. As old as the outcomes.
    pub charges: Option<Charges>,
}

/// Steps of a histogram per power of two.
const STEPS: usize = 8;
/// Number of buckets: enough for times up to about nine minutes.
const BUCKETS: usize = 40 * STEPS;

fn bucket(ns: u64) -> usize {
    let power = ns.max(STEPS as u64).ilog2() as usize - 2;
    let step = if ns < STEPS as u64 { ns as usize } else { (ns >> (power - 1)) as usize % STEPS };
    if ns < STEPS as u64 { step } else { (power * STEPS + step).min(BUCKETS - 1) }
}

/// The longest time of a bucket.
fn longest(bucket: usize) -> Nanos {
    let (power, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    match power {
        0 => Nanos(step),
        _ => Nanos(((STEPS as u64 + step + 1) << (power - 1)) - 1),
    }
}

/// A histogram of times, with a relative error of at most an eighth.
#[derive(Clone)]
pub struct Times {
    buckets: [u64; BUCKETS],
    /// The longest sample.
    pub max: Nanos,
}

impl Default for Times {
    fn default() -> Times {
        Times { buckets: [0; BUCKETS], max: Nanos(0) }
    }
}

impl std::fmt::Debug for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [p50, p99] = [0.5, 0.99].map(|share| self.within(share));
        write!(f, "{} times, p50 {p50:?}, p99 {p99:?}, max {:?}", self.count(), self.max)
    }
}

impl Times {
    /// Number of times in the histogram.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A time that this share of the samples did not exceed, at most an eighth longer than the shortest such
    /// time; zero without samples.
    pub fn within(&self, share: f64) -> Nanos {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && at < BUCKETS - 1 {
                return self.max.min(longest(at));
            }
        }
        self.max
    }

    /// Number of samples per bucket, for [`Times::from_buckets`].
    pub fn buckets(&self) -> &[u64] {
        &self.buckets
    }

    /// Rebuilds a histogram from [`Times::buckets`] and the longest sample; `None` if the number of buckets differs.
    pub fn from_buckets(buckets: &[u64], max: Nanos) -> Option<Times> {
        Some(Times { buckets: buckets.try_into().ok()?, max })
    }

    /// Adds the samples of another histogram, for example another core's.
    pub fn merge(&mut self, other: &Times) {
        for (bucket, other) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += other;
        }
        self.max = self.max.max(other.max);
    }
}

/// Times as a core writes them.
pub(crate) struct TimeCounters {
    buckets: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
}

impl Default for TimeCounters {
    fn default() -> TimeCounters {
        TimeCounters { buckets: [const { AtomicU64::new(0) }; _], max_ns: AtomicU64::new(0) }
    }
}

impl TimeCounters {
    /// Adds a sample. Returns whether it is the longest so far.
    pub(crate) fn add(&self, Nanos(ns): Nanos) -> bool {
        bump(&self.buckets[bucket(ns)], 1);
        let is_longest = ns > self.max_ns.load(Ordering::Relaxed);
        if is_longest {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
        is_longest
    }

    fn read(&self) -> Times {
        Times {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            max: Nanos(self.max_ns.load(Ordering::Relaxed)),
        }
    }
}

/// Switches after which a core that does not park publishes its outcomes and charges.
pub const PUBLISH_EVERY: u64 = 1024;

/// An enclave's counters since its start.
#[derive(Clone, Debug)]
pub struct EnclaveStats {
    /// Counters of each core, by index.
    pub cores: Vec<CoreStats>,
    /// Whether the agent or the fallback decides at the moment.
    pub mode: Mode,
    /// Number of agents attached so far, one after another.
    pub agents: u64,
    /// Number of lost agents: they died, left or were turned out.
    pub lost_agents: u64,
    /// Number of lost agents that the watchdog turned out.
    pub barks: u64,
    /// Number of lost agents that violated the protocol.
    pub faults: u64,
    /// Number of snapshots sent.
    pub snapshots: u64,
    /// Messages that found their queue full (each led to a snapshot).
    pub overflows: u64,
}

/// A core's counters. Only the core writes them; other threads read them.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) switches: AtomicU64,
    pub(crate) fallback_switches: AtomicU64,
    pub(crate) preempted: AtomicU64,
    pub(crate) ended_first: AtomicU64,
    pub(crate) deferrals: TimeCounters,
    pub(crate) deferred_inside: AtomicU64,
    pub(crate) refused_unwinding: AtomicU64,
    pub(crate) sliced: AtomicU64,
    pub(crate) preempted_runs: TimeCounters,
    pub(crate) preempted_at_ns: AtomicU64,
    pub(crate) spins: AtomicU64,
    pub(crate) parks: AtomicU64,
    pub(crate) busy_ns: AtomicU64,
    pub(crate) polling_ns: AtomicU64,
    pub(crate) polling_charged_ns: AtomicU64,
    pub(crate) parked_ns: AtomicU64,
    /// When the core's current sleep began; 0 while it is awake.
    pub(crate) asleep_since_ns: AtomicU64,
    published: Mutex<Published>,
}

/// Counters of a core that belong to a window.
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
    /// Totals of the windows that the core has left.
    left: Totals,
    /// Totals of the current window, as last published.
    current: Totals,
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Counters {
    /// Publishes the core's counters of its current window. Skipped while another thread reads them: the
    /// core never waits.
    pub(crate) fn publish(&self, outcomes: &Counts, charges: Option<Charges>) {
        let mut published = match self.published.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        published.current = Totals { outcomes: outcomes.clone(), charges };
    }

    /// Adds the core's counters of a window that it has left.
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
            deferrals: self.deferrals.read(),
            deferred_inside: get(&self.deferred_inside),
            refused_unwinding: get(&self.refused_unwinding),
            sliced: get(&self.sliced),
            preempted_runs: self.preempted_runs.read(),
            preempted_at: Nanos(get(&self.preempted_at_ns)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounded_from_above_and_below() {
        let counters = TimeCounters::default();
        let mut all: Vec<u64> = (0..1_000u64).map(|at| (at * at * 7_919) % 1_000_003).collect();
        all.extend([0, 1, u64::MAX]);
        all.iter().for_each(|&ns| _ = counters.add(Nanos(ns)));
        all.sort_unstable();
        let times = counters.read();
        assert_eq!((times.count(), times.max), (all.len() as u64, Nanos(u64::MAX)));
        for share in [0.01, 0.25, 0.5, 0.9, 0.99] {
            let exact = all[(all.len() as f64 * share).ceil() as usize - 1];
            let within = times.within(share).0;
            assert!(within >= exact && within <= exact + exact / 8, "{share}: {exact} {within}");
        }
        let mut twice = times.clone();
        twice.merge(&times);
        assert_eq!(twice.count(), 2 * times.count());
        assert_eq!(twice.within(0.5), times.within(0.5));
        assert_eq!(Times::default().within(0.5), Nanos(0));
    }
}
