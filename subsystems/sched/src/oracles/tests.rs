//! The oracles against closed forms, and against each other on the same jobs.

use std::vec::Vec;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::*;

/// Arrival time, and service time.
type Job = (Nanos, Nanos);

/// Completion time of each job, in the order of `jobs`.
fn completions(oracle: &mut impl Oracle, jobs: &[Job]) -> Vec<Nanos> {
    let mut ends = std::vec![Nanos(0); jobs.len()];
    let mut take = |oracle: &mut dyn Oracle| {
        let due = oracle.next_completion();
        let (at, id) = oracle.complete().unwrap();
        assert_eq!(due, Some((at, id)));
        ends[id as usize] = at;
    };
    for (id, (now, service)) in jobs.iter().enumerate() {
        while oracle.next_completion().is_some_and(|(at, _)| at <= *now) {
            take(oracle);
        }
        oracle.arrive(*now, id as u64, *service);
    }
    while !oracle.is_empty() {
        take(oracle);
    }
    assert_eq!((oracle.next_completion(), oracle.complete()), (None, None));
    ends
}

/// The same through `complete_by`, without `next_completion`.
fn completions_by(oracle: &mut impl Oracle, jobs: &[Job]) -> Vec<Nanos> {
    let mut ends = std::vec![Nanos(0); jobs.len()];
    for (id, (now, service)) in jobs.iter().enumerate() {
        while let Some((at, id)) = oracle.complete_by(*now) {
            assert!(at <= *now);
            ends[id as usize] = at;
        }
        oracle.arrive(*now, id as u64, *service);
    }
    while let Some((at, id)) = oracle.complete() {
        ends[id as usize] = at;
    }
    ends
}

fn mean_ns(oracle: &mut impl Oracle, jobs: &[Job]) -> f64 {
    let ends = completions(oracle, jobs);
    let times = ends.iter().zip(jobs).map(|(end, (now, _))| end.since(*now).0 as f64);
    times.sum::<f64>() / jobs.len() as f64
}

fn exponential(rng: &mut Pcg32, mean_ns: f64) -> f64 {
    -mean_ns * (1.0 - rng.random::<f64>()).ln()
}

const MEAN_NS: f64 = 10_000.0;

/// Poisson arrivals at `load` of the capacity of `servers`.
fn jobs(seed: u64, servers: u32, load: f64, service: impl Fn(&mut Pcg32) -> f64) -> Vec<Job> {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mut now = 0.0;
    let job = |_| {
        now += exponential(&mut rng, MEAN_NS / load / f64::from(servers));
        (Nanos(now as u64), Nanos(service(&mut rng) as u64))
    };
    (0..400_000).map(job).collect()
}

fn memoryless(rng: &mut Pcg32) -> f64 {
    exponential(rng, MEAN_NS)
}

/// One in a hundred is 50 times as long as the others, with the same mean.
fn dispersed(rng: &mut Pcg32) -> f64 {
    let short = MEAN_NS / 1.49;
    if rng.random_range(0..100) == 0 { short * 50.0 } else { short }
}

fn assert_close(found: f64, expected: f64) {
    let off = found / expected - 1.0;
    assert!(off.abs() < 0.05, "{found} is {:+.1}% from {expected}", 100.0 * off);
}

/// Mean time in an M/M/c queue, by Erlang's C formula.
fn erlang_ns(servers: u32, load: f64) -> f64 {
    let offered = load * f64::from(servers);
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..servers {
        sum += term;
        term *= offered / f64::from(k + 1);
    }
    let waits = term / (1.0 - load) / (sum + term / (1.0 - load));
    MEAN_NS + waits * MEAN_NS / f64::from(servers) / (1.0 - load)
}

#[test]
fn processor_sharing_matches_its_closed_form_for_any_service_times() {
    for load in [0.3, 0.5, 0.7] {
        let expected = MEAN_NS / (1.0 - load);
        assert_close(
            mean_ns(&mut ProcessorSharing::new(1), &jobs(1, 1, load, memoryless)),
            expected,
        );
        assert_close(
            mean_ns(&mut ProcessorSharing::new(1), &jobs(2, 1, load, dispersed)),
            expected,
        );
    }
}

/// With memoryless jobs, the order of service does not change the mean.
#[test]
fn several_servers_match_erlangs_formula() {
    for (servers, load) in [(4, 0.6), (16, 0.9)] {
        let jobs = jobs(3, servers, load, memoryless);
        let expected = erlang_ns(servers, load);
        assert_close(mean_ns(&mut ProcessorSharing::new(servers), &jobs), expected);
        assert_close(mean_ns(&mut FirstInFirstOut::new(servers), &jobs), expected);
    }
}

/// The closed form is the Pollaczek-Khinchine formula.
#[test]
fn first_in_first_out_matches_its_closed_form() {
    let load = 0.6;
    let short = MEAN_NS / 1.49;
    let second_moment = 0.99 * short * short + 0.01 * (50.0 * short) * (50.0 * short);
    let expected = MEAN_NS + load / MEAN_NS * second_moment / (2.0 * (1.0 - load));
    assert_close(mean_ns(&mut FirstInFirstOut::new(1), &jobs(4, 1, load, dispersed)), expected);
}

#[test]
fn srpt_has_the_lowest_mean_on_one_server() {
    for seed in 0..20 {
        for service in [memoryless as fn(&mut Pcg32) -> f64, dispersed] {
            let jobs = &jobs(seed, 1, 0.8, service)[..5000];
            let srpt = mean_ns(&mut Srpt::new(1), jobs);
            assert!(srpt <= mean_ns(&mut FirstInFirstOut::new(1), jobs));
            assert!(srpt <= mean_ns(&mut ProcessorSharing::new(1), jobs));
        }
    }
}

#[test]
fn srpt_beats_first_in_first_out_on_several_servers() {
    for seed in 0..5 {
        let jobs = jobs(seed, 8, 0.9, dispersed);
        let srpt = mean_ns(&mut Srpt::new(8), &jobs);
        assert!(srpt < mean_ns(&mut FirstInFirstOut::new(8), &jobs));
    }
}

/// On one server all four are idle at the same times, so each busy period's last completion is at the same time under all,
/// whichever job it is.
#[test]
fn one_server_is_never_idle_while_there_is_work() {
    for seed in 0..20 {
        let jobs = &jobs(seed, 1, 0.7, dispersed)[..5000];
        let mut expected: Vec<Nanos> = Vec::new();
        let mut free = Nanos(0);
        for (now, service) in jobs {
            if *now >= free {
                expected.push(free);
                free = *now;
            }
            free = free + *service;
        }
        expected.push(free);
        expected.remove(0);
        let last_before = |ends: &[Nanos]| -> Vec<Nanos> {
            let mut ends = ends.to_vec();
            ends.sort_unstable();
            let at = |time: &Nanos| ends.partition_point(|end| end <= time);
            expected.iter().map(|time| ends[at(time) - 1]).collect()
        };
        assert_eq!(last_before(&completions(&mut FirstInFirstOut::new(1), jobs)), expected);
        assert_eq!(last_before(&completions(&mut Srpt::new(1), jobs)), expected);
        let sliced = completions_by(&mut RoundRobin::new(1, Nanos(3_000)), jobs);
        assert_eq!(last_before(&sliced), expected);
        let shared = last_before(&completions(&mut ProcessorSharing::new(1), jobs));
        assert_eq!(shared, expected);
    }
}

#[test]
fn small_cases_by_hand() {
    let jobs = [(0, 10), (0, 10), (5, 2)].map(|(now, service)| (Nanos(now), Nanos(service)));
    let ends = |oracle: &mut dyn FnMut(&[Job]) -> Vec<Nanos>| -> Vec<u64> {
        oracle(&jobs).iter().map(|end| end.0).collect()
    };
    assert_eq!(ends(&mut |jobs| completions(&mut FirstInFirstOut::new(1), jobs)), [10, 20, 22]);
    assert_eq!(ends(&mut |jobs| completions(&mut Srpt::new(1), jobs)), [12, 22, 7]);
    // Three share from 5 to 11, in which the third gets its two; the others need 5.5 each at 5.
    assert_eq!(ends(&mut |jobs| completions(&mut ProcessorSharing::new(1), jobs)), [22, 22, 11]);
    assert_eq!(ends(&mut |jobs| completions(&mut FirstInFirstOut::new(2), jobs)), [10, 10, 12]);
    assert_eq!(ends(&mut |jobs| completions(&mut Srpt::new(2), jobs)), [10, 12, 7]);
    // Two servers for three jobs from 5 to 8, then enough for the rest.
    assert_eq!(ends(&mut |jobs| completions(&mut ProcessorSharing::new(2), jobs)), [11, 11, 8]);
    let slices =
        |servers, ns| ends(&mut |jobs| completions(&mut RoundRobin::new(servers, Nanos(ns)), jobs));
    // Runs in turn: first 4, second 4, first 4, the third, 4, 2, 2.
    assert_eq!(slices(1, 4), [20, 22, 14]);
    // The third arrives at two whose slices are over: both leave, and the first gets the second's server.
    assert_eq!(slices(2, 4), [10, 12, 7]);
}

#[test]
fn endless_slices_give_first_in_first_out() {
    for servers in [1, 3] {
        let jobs = &jobs(5, servers, 0.8, dispersed)[..5000];
        let fifo = completions(&mut FirstInFirstOut::new(servers), jobs);
        let mut long = RoundRobin::new(servers, Nanos::from_millis(1000));
        assert!(completions_by(&mut long, jobs) == fifo);
    }
}

#[test]
fn short_slices_approach_processor_sharing() {
    for servers in [1, 3] {
        let jobs = &jobs(6, servers, 0.8, dispersed)[..3000];
        let shared = completions(&mut ProcessorSharing::new(servers), jobs);
        let off_ns = |quantum_ns| {
            let mut slices = RoundRobin::new(servers, Nanos(quantum_ns));
            let ends = completions_by(&mut slices, jobs);
            ends.iter().zip(&shared).map(|(a, b)| a.0.abs_diff(b.0)).max().unwrap()
        };
        // No job is off by more than a few rounds of all jobs present.
        let off = [10_000, 1_000, 100, 10].map(off_ns);
        assert!(off.is_sorted_by(|a, b| *b * 5 < *a), "{off:?}");
    }
}

#[test]
fn slices_lose_no_work_and_completions_are_predicted() {
    for seed in 0..5 {
        let jobs = &jobs(seed, 1, 0.8, dispersed)[..5000];
        let slices = || RoundRobin::new(1, Nanos(3_000));
        let ends = completions(&mut slices(), jobs);
        assert!(completions_by(&mut slices(), jobs) == ends);
        let last = completions(&mut FirstInFirstOut::new(1), jobs).into_iter().max();
        assert_eq!(ends.into_iter().max(), last);
    }
}

/// Virtual time is a fraction; its rounding errors must not add up.
#[test]
fn sharing_loses_no_time() {
    let jobs: Vec<Job> = (0..1_000_000).map(|at| (Nanos(at), Nanos(3))).collect();
    let ends = completions(&mut ProcessorSharing::new(1), &jobs);
    assert_eq!(ends.iter().max(), Some(&Nanos(3_000_000)));
}

#[test]
#[should_panic(expected = "the caller's fault")]
fn an_arrival_after_an_untaken_completion_panics() {
    let mut oracle = Srpt::new(1);
    oracle.arrive(Nanos(0), 1, Nanos(5));
    oracle.arrive(Nanos(6), 2, Nanos(5));
}
