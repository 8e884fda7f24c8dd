//! Steering decides which worker gets which call, and when. Policies are pure: arrivals, ends and time in, (call, worker) out.
//!
//! ```text
//! rss:ahead=4                      all calls of a connection to one worker, at any load (the baseline)
//! round-robin:ahead=4              each call to the next worker
//! jbsq:k=4                         one queue; each call to the worker with the fewest, below k (R2P2; k=1: a single queue)
//! multi-queue:k=4,slo_us=50/10000  a queue per class; next is the head that waited longest relative to its objective
//! darc:reserve=1                   workers reserved for short classes, by measured service times (Persephone)
//! ```
//!
//! If the workers are threads of the runtime, `jbsq` is the single queue of Wave 7.3.1, and `multi-queue` the policy of 7.3.2:
//! the scheduler beside it preempts.

pub mod bounded;
pub mod darc;
pub mod multi_queue;
pub mod spread;

use alloc::boxed::Box;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{Known, Policies, PolicyError, Setting, Settings, known, names};

/// A call as policies see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Class of the call, from 0.
    pub class: u8,
    /// The call's latency objective, if it has one.
    pub slo: Option<Nanos>,
    /// Hash of the call's connection.
    pub hash: u64,
}

/// The workers of a host, as steering sees them.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a> {
    /// Calls that take a place, per worker: handed over and not ended, neither waiting for their clients nor yielding.
    pub calls: &'a [u32],
    /// Yielding calls, per worker: the worker runs other calls between their messages.
    pub yielding: &'a [u32],
    /// Whether the workers are threads under a scheduler, not CPUs.
    pub are_threads: bool,
}

impl Workers<'_> {
    /// Number of workers.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Always false: a host has at least one worker.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The worker of `among` with the fewest calls, if it has fewer than `k`; without `k`, the default for these workers
    /// applies. Ties go to the worker with the fewest yielding calls, then to the first at or after `from`, in a circle.
    pub fn least(&self, k: Option<u16>, from: usize, among: impl Fn(usize) -> bool) -> Option<u16> {
        let limit = u32::from(k.unwrap_or(if self.are_threads { 1 } else { K_OF_CPUS }));
        let count = self.calls.len();
        (0..count)
            .map(|step| (from + step) % count)
            .filter(|&worker| self.calls[worker] < limit && among(worker))
            .min_by_key(|&worker| (self.calls[worker], self.yielding[worker]))
            .map(|worker| worker as u16)
    }
}

/// A steering policy. Calls are named by their slots, which are below the configuration's number of subjects.
pub trait Steering: Send {
    /// The policy's name, as in `wave agent --steer NAME`.
    fn name(&self) -> &'static str;

    /// A call has arrived, and waits.
    fn arrived(&mut self, now: Nanos, call: u32, request: &Request);

    /// A waiting call was cancelled, or has expired.
    fn left(&mut self, call: u32);

    /// A worker has ended a call that was handed to it.
    fn ended(&mut self, _now: Nanos, _worker: u16, _request: &Request, _took: Nanos) {}

    /// The next call to hand over, and its worker. The call no longer waits then.
    fn next(&mut self, now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)>;
}

/// Steering policies that Wave ships.
pub static SHIPPED: Policies<dyn Steering> = Policies(&[
    (
        Known {
            name: "rss",
            about: "all calls of a connection to one worker, however busy it is: the baseline",
            settings: &spread::SETTINGS,
        },
        |config, settings| Ok(Box::new(spread::Spread::new(config, settings, spread::By::Hash))),
    ),
    (
        Known {
            name: "round-robin",
            about: "each call to the next worker",
            settings: &spread::SETTINGS,
        },
        |config, settings| Ok(Box::new(spread::Spread::new(config, settings, spread::By::Turn))),
    ),
    (
        Known {
            name: "jbsq",
            about: "one queue; each call to the worker with the fewest calls, if fewer than k",
            settings: &bounded::SETTINGS,
        },
        |config, settings| Ok(Box::new(bounded::Bounded::new(config, settings))),
    ),
    (
        Known {
            name: "multi-queue",
            about: "a queue per class; next is the head that waited longest relative to its objective",
            settings: &multi_queue::SETTINGS,
        },
        |config, settings| Ok(Box::new(multi_queue::MultiQueue::new(config, settings))),
    ),
    (
        Known {
            name: "darc",
            about: "reserves workers for short classes, by measured service times",
            settings: &darc::SETTINGS,
        },
        |config, settings| Ok(Box::new(darc::Darc::new(config, settings)?)),
    ),
]);

/// Names, descriptions and settings of the shipped policies.
pub static KNOWN: [Known; 5] = known(&SHIPPED);

/// Names of the shipped policies.
pub static NAMES: &[&str] = &names(&KNOWN);

/// Makes the shipped policy of this name, with the settings that follow it, for workers and calls of this configuration.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Steering>, PolicyError> {
    SHIPPED.make(text, config)
}

/// The default of [`K`] for workers that are CPUs. One worker in a closed loop of 64 calls, on a machine with two CPUs, served
/// 16,000/s with k=1, 33,000/s with 4, 54,000/s with 16, 62,000/s without a limit. With a small k each call has a wake-up and a
/// write of its own.
const K_OF_CPUS: u16 = 16;

/// The most calls that a worker may have at once.
pub(crate) const K: Setting = Setting::number(
    "k",
    "1 for threads that are scheduled, 16 for CPUs",
    1..=1024,
    "calls that a worker may have at once: more hide the link's latency and are cheaper, fewer keep short calls from \
     waiting behind long ones",
);

pub(crate) fn k(settings: &Settings<'_>) -> Option<u16> {
    settings.given(K.key).map(|k| k as u16)
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    /// Drives a policy over workers that take every call, and end calls in the order given.
    struct Bench {
        policy: Box<dyn Steering>,
        outstanding: Vec<u32>,
        yielding: Vec<u32>,
        are_threads: bool,
    }

    impl Bench {
        fn new(text: &str, workers: u16) -> Bench {
            let config = Config { subjects: 64, ..Config::coherent(workers) };
            let policy = by_name(text, &config).unwrap();
            let none = vec![0; workers.into()];
            Bench { policy, outstanding: none.clone(), yielding: none, are_threads: false }
        }

        fn arrive(&mut self, now: u64, call: u32, class: u8) {
            let request = Request { class, hash: u64::from(call), slo: None };
            self.policy.arrived(Nanos(now), call, &request);
        }

        fn hand_over(&mut self, now: u64) -> Vec<(u32, u16)> {
            let mut handed = vec![];
            while let Some((call, worker)) = self.policy.next(
                Nanos(now),
                Workers {
                    calls: &self.outstanding,
                    yielding: &self.yielding,
                    are_threads: self.are_threads,
                },
            ) {
                self.outstanding[usize::from(worker)] += 1;
                handed.push((call, worker));
            }
            handed
        }

        fn end(&mut self, now: u64, worker: u16, class: u8, took: u64) {
            self.outstanding[usize::from(worker)] -= 1;
            let request = Request { class, ..Request::default() };
            self.policy.ended(Nanos(now), worker, &request, Nanos(took));
        }
    }

    #[test]
    fn every_policy_hands_over_each_waiting_call_exactly_once() {
        for name in NAMES {
            let mut bench = Bench::new(name, 3);
            assert_eq!(bench.policy.name(), *name);
            for call in 0..40 {
                bench.arrive(u64::from(call), call, (call % 3) as u8);
            }
            for call in 0..10 {
                bench.policy.left(call);
            }
            let mut seen = vec![];
            for round in 0..100 {
                for (call, worker) in bench.hand_over(100 + round) {
                    assert!(call >= 10, "{name}: {call} had left");
                    seen.push(call);
                    bench.end(100 + round, worker, (call % 3) as u8, 10);
                }
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(10..40), "{name}: each call once");
        }
    }

    #[test]
    fn rss_keeps_a_connection_on_its_worker_and_round_robin_takes_turns() {
        let mut bench = Bench::new("rss:ahead=8", 4);
        for call in [0, 4, 8, 1] {
            bench.arrive(0, call, 0);
        }
        let mut handed = bench.hand_over(0);
        handed.sort_unstable();
        assert_eq!(handed, [(0, 0), (1, 1), (4, 0), (8, 0)]);
        let mut bench = Bench::new("round-robin:ahead=8", 3);
        for call in [0, 3, 6, 9] {
            bench.arrive(0, call, 0);
        }
        let mut handed = bench.hand_over(0);
        handed.sort_unstable();
        assert_eq!(handed, [(0, 0), (3, 1), (6, 2), (9, 0)]);
    }

    #[test]
    fn jbsq_picks_the_shortest_bounded_queue() {
        let mut bench = Bench::new("jbsq:k=2", 2);
        for call in 0..6 {
            bench.arrive(0, call, 0);
        }
        assert_eq!(bench.hand_over(0).len(), 4, "two per worker; the rest waits");
        bench.end(1, 1, 0, 1);
        bench.end(1, 1, 0, 1);
        assert_eq!(bench.hand_over(1), [(4, 1), (5, 1)]);
    }

    #[test]
    fn jbsq_breaks_ties_by_fewer_yielding_calls() {
        let mut bench = Bench::new("jbsq:k=2", 3);
        bench.yielding = vec![2, 1, 3];
        for call in 0..4 {
            bench.arrive(0, call, 0);
        }
        assert_eq!(bench.hand_over(0), [(0, 1), (1, 0), (2, 2), (3, 1)]);
    }

    #[test]
    fn settings_that_leave_no_worker_for_a_call_are_refused() {
        let error = |text: &str, workers: u16| {
            let config = Config { subjects: 64, ..Config::coherent(workers) };
            by_name(text, &config).err().map(|error| alloc::string::ToString::to_string(&error))
        };
        assert_eq!(
            error("jbsq:k=0", 2).as_deref(),
            Some("policy `jbsq`: `0` is not a valid value for `k`: write k=N, 1 to 1024")
        );
        assert!(error("multi-queue:k=0", 2).is_some());
        assert_eq!(
            error("darc:reserve=3", 2).as_deref(),
            Some("policy `darc`: `reserve` is 3, but there are only 2 workers")
        );
        assert_eq!(error("darc:reserve=2", 2), None);
        assert_eq!(error("darc", 1), None);
    }

    #[test]
    fn scheduled_thread_gets_one_call_at_a_time() {
        for (are_threads, calls) in [(true, 1), (false, K_OF_CPUS)] {
            let mut bench = Bench::new("jbsq", 1);
            bench.are_threads = are_threads;
            for call in 0..2 * u32::from(K_OF_CPUS) {
                bench.arrive(0, call, 0);
            }
            assert_eq!(bench.hand_over(0).len(), usize::from(calls), "threads: {are_threads}");
        }
    }

    #[test]
    fn multi_queue_picks_the_longest_wait_relative_to_the_objective() {
        let mut bench = Bench::new("multi-queue:k=1,slo_us=50/10000", 1);
        bench.arrive(0, 0, 1);
        bench.arrive(1_000_000, 1, 0);
        // At first 1 ms of an objective of 10 ms against 1 us of one of 50 us; later 10 us of the latter.
        assert_eq!(bench.hand_over(1_001_000), [(0, 0)]);
        bench.end(1_001_000, 0, 1, 1);
        bench.arrive(1_001_000, 2, 1);
        assert_eq!(bench.hand_over(1_010_000), [(1, 0)]);
    }

    /// Otherwise one client holds up all calls behind its own.
    #[test]
    fn multi_queue_ignores_objectives_laxer_than_the_classs() {
        let mut bench = Bench::new("multi-queue:k=1,slo_us=50/10000", 1);
        let lax = Request { class: 0, hash: 0, slo: Some(Nanos(u64::from(u32::MAX) * 1_000)) };
        bench.policy.arrived(Nanos(0), 0, &lax);
        bench.arrive(0, 1, 0);
        bench.arrive(0, 2, 1);
        assert_eq!(bench.hand_over(1_000_000), [(0, 0)]);
        bench.end(1_000_000, 0, 0, 1);
        assert_eq!(bench.hand_over(1_000_000), [(1, 0)]);
    }

    #[test]
    fn darc_reserves_a_worker_for_the_short_class() {
        let mut bench = Bench::new("darc", 2);
        // Calls of both classes have ended: class 0 takes 10 us, class 1 takes 10 ms.
        for (call, class, took) in [(0, 0, 10_000), (1, 1, 10_000_000)] {
            bench.arrive(0, call, class);
            let [(_, worker)] = bench.hand_over(0)[..] else { panic!("it is handed over") };
            bench.end(0, worker, class, took);
        }
        for call in 2..6 {
            bench.arrive(1, call, 1);
        }
        let long = bench.hand_over(1);
        assert_eq!(long.len(), 1, "one worker is kept for short calls: {long:?}");
        bench.arrive(2, 10, 0);
        let short = bench.hand_over(2);
        assert_eq!(short.len(), 1);
        assert_ne!(short[0].1, long[0].1);
    }
}
