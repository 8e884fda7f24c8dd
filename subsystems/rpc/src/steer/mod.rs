//! Steering: which worker gets which call, and when. Each policy is pure: arrivals, ends and time in, (call, worker) out.
//!
//! ```text
//! rss:ahead=4                      a connection's calls to one worker, for any load (the baseline)
//! round-robin:ahead=4              each call to the next worker
//! jbsq:k=4                         one line; the worker with the fewest calls, below k (R2P2; k=1: a single queue)
//! multi-queue:k=4,slo_us=50/10000  a line per class, the head that waited longest by its objective
//! darc:reserve=1                   workers kept for short classes, by what classes were seen to take (Persephone)
//! ```
//!
//! With workers that are threads of the runtime, `jbsq` is Wave 7.3.1's single queue, and `multi-queue` 7.3.2's: the
//! scheduler beside it preempts.

pub mod bounded;
pub mod darc;
pub mod multi_queue;
pub mod spread;

use alloc::boxed::Box;

use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::settings::{Known, Policies, PolicyError, Setting, Settings, known, names};

/// What a policy may know of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Class of the call, from 0.
    pub class: u8,
    /// The latency that it is to keep.
    pub slo: Option<Nanos>,
    /// Hash of the call's connection.
    pub hash: u64,
}

/// The workers of a host, as steering sees them.
#[derive(Clone, Copy, Debug)]
pub struct Workers<'a> {
    /// Calls that take a place, per worker: handed over, not ended, neither waiting for their clients nor yielding.
    pub calls: &'a [u16],
    /// Yielding calls, per worker: the worker runs other calls between their messages.
    pub yielding: &'a [u16],
    /// They are threads that somebody schedules, and not CPUs.
    pub are_threads: bool,
}

impl Workers<'_> {
    /// How many workers there are.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// False: there is always a worker.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The worker of `among` with the fewest calls, if that is below `k`, or below what suits the workers. Of equal ones the one with
    /// the fewest that yield; of those the first at or after `from`, in a circle.
    pub fn least(&self, k: Option<u16>, from: usize, among: impl Fn(usize) -> bool) -> Option<u16> {
        let limit = k.unwrap_or(if self.are_threads { 1 } else { K_OF_CPUS });
        let count = self.calls.len();
        (0..count)
            .map(|step| (from + step) % count)
            .filter(|&worker| self.calls[worker] < limit && among(worker))
            .min_by_key(|&worker| (self.calls[worker], self.yielding[worker]))
            .map(|worker| worker as u16)
    }
}

/// A steering policy. A call is told of by its slot, which is below the configuration's number of subjects.
pub trait Steering: Send {
    /// Its name, as in `wave agent --steer NAME`.
    fn name(&self) -> &'static str;

    /// A call has come, and waits.
    fn arrived(&mut self, now: Nanos, call: u32, request: &Request);

    /// A call that waits has gone: cancelled, or expired.
    fn left(&mut self, call: u32);

    /// A worker is done with a call that was handed to it.
    fn ended(&mut self, _now: Nanos, _worker: u16, _request: &Request, _took: Nanos) {}

    /// The next call to hand over, and its worker. It waits no longer then.
    fn next(&mut self, now: Nanos, workers: Workers<'_>) -> Option<(u32, u16)>;
}

/// Policies for steering that Wave ships.
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

/// What there is to know of each.
pub static KNOWN: [Known; 5] = known(&SHIPPED);

/// Names of the shipped policies.
pub static NAMES: &[&str] = &names(&KNOWN);

/// The shipped policy of this name, with its settings, for workers and calls of this configuration.
pub fn by_name(text: &str, config: &Config) -> Result<Box<dyn Steering>, PolicyError> {
    SHIPPED.make(text, config)
}

/// The default of [`K`], for workers that are CPUs. One of them in a closed loop of 64 calls, on a machine with two:
/// k=1 16,000/s, 4 33,000/s, 16 54,000/s, no limit 62,000/s. Below, each call has a wake-up and a write of its own.
const K_OF_CPUS: u16 = 16;

/// How many calls a worker may have at once.
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

    /// Drives a policy over workers that take what they get, and end calls in the order given.
    struct Bench {
        policy: Box<dyn Steering>,
        outstanding: Vec<u16>,
        yielding: Vec<u16>,
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
    fn every_policy_goes_by_its_name_and_hands_over_what_arrived_and_did_not_leave() {
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
    fn a_hash_keeps_its_worker_and_a_turn_goes_round() {
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
    fn the_shortest_bounded_line_gets_the_call() {
        let mut bench = Bench::new("jbsq:k=2", 2);
        for call in 0..6 {
            bench.arrive(0, call, 0);
        }
        assert_eq!(bench.hand_over(0).len(), 4, "two each, the rest waits");
        bench.end(1, 1, 0, 1);
        bench.end(1, 1, 0, 1);
        assert_eq!(bench.hand_over(1), [(4, 1), (5, 1)]);
    }

    #[test]
    fn of_equal_lines_the_one_with_fewer_streams_gets_the_call() {
        let mut bench = Bench::new("jbsq:k=2", 3);
        bench.yielding = vec![2, 1, 3];
        for call in 0..4 {
            bench.arrive(0, call, 0);
        }
        assert_eq!(bench.hand_over(0), [(0, 1), (1, 0), (2, 2), (3, 1)]);
    }

    #[test]
    fn settings_that_leave_nobody_to_serve_are_refused() {
        let error = |text: &str, workers: u16| {
            let config = Config { subjects: 64, ..Config::coherent(workers) };
            by_name(text, &config).err().map(|error| alloc::string::ToString::to_string(&error))
        };
        assert_eq!(
            error("jbsq:k=0", 2).as_deref(),
            Some("policy `jbsq`: `0` is no value for `k`: write k=N, 1 to 1024")
        );
        assert!(error("multi-queue:k=0", 2).is_some());
        assert_eq!(
            error("darc:reserve=3", 2).as_deref(),
            Some("policy `darc`: `reserve` is 3, and there are 2 workers")
        );
        assert_eq!(error("darc:reserve=2", 2), None);
        assert_eq!(error("darc", 1), None);
    }

    #[test]
    fn a_thread_that_is_scheduled_gets_one_call_at_a_time() {
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
    fn the_head_that_waited_longest_by_its_objective_comes_first() {
        let mut bench = Bench::new("multi-queue:k=1,slo_us=50/10000", 1);
        bench.arrive(0, 0, 1);
        bench.arrive(1_000_000, 1, 0);
        // A millisecond of ten against a microsecond of fifty, and later ten of those.
        assert_eq!(bench.hand_over(1_001_000), [(0, 0)]);
        bench.end(1_001_000, 0, 1, 1);
        bench.arrive(1_001_000, 2, 1);
        assert_eq!(bench.hand_over(1_010_000), [(1, 0)]);
    }

    #[test]
    fn short_classes_keep_their_workers() {
        let mut bench = Bench::new("darc", 2);
        // Both classes have been seen: class 0 takes 10 us, class 1 takes 10 ms.
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
