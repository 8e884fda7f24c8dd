//! Properties that a user of a policy would notice, on a machine on which nothing costs anything, and how close the policies
//! come to the oracles there.

mod machine;

use machine::{Job, Served, serve};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use wave_core::clock::Nanos;
use wave_sched::oracles::{FirstInFirstOut, Oracle, ProcessorSharing, Srpt};

const LONG: Nanos = Nanos::from_millis(10);
const SHORT: Nanos = Nanos::from_micros(10);

/// The papers' mix (Wave 7.2.3): 99.5% are GETs of 10 us (class 0), the others RANGE queries of 10 ms.
fn mix(seed: u64, cores: u16, load: f64, count: usize) -> Vec<Job> {
    let mut rng = Pcg32::seed_from_u64(seed);
    let mean_ns = 0.995 * SHORT.0 as f64 + 0.005 * LONG.0 as f64;
    let mut now = 0.0;
    let job = |_| {
        now -= (1.0 - rng.random::<f64>()).ln() * mean_ns / load / f64::from(cores);
        let class = u16::from(rng.random_range(0..1000) < 5);
        Job { arrives: Nanos(now as u64), service: [SHORT, LONG][usize::from(class)], class }
    };
    (0..count).map(job).collect()
}

fn forever(classes: &[u16]) -> Vec<Job> {
    let job = |class: &u16| Job { arrives: Nanos(0), service: Nanos::MAX, class: *class };
    classes.iter().map(job).collect()
}

const END: Nanos = Nanos(u64::MAX / 2);

fn times(jobs: &[Job], served: &[Served], class: u16) -> Vec<u64> {
    let both = jobs.iter().zip(served).filter(|(job, _)| job.class == class);
    let mut times: Vec<_> =
        both.map(|(job, served)| (served.ended.unwrap() - job.arrives).0).collect();
    times.sort_unstable();
    times
}

fn p99_us(jobs: &[Job], served: &[Served], class: u16) -> u64 {
    let times = times(jobs, served, class);
    times[times.len() * 99 / 100] / 1000
}

fn mean_us(jobs: &[Job], ends: impl Iterator<Item = Nanos>) -> f64 {
    let times = jobs.iter().zip(ends).map(|(job, end)| (end - job.arrives).0 as f64);
    times.sum::<f64>() / jobs.len() as f64 / 1000.0
}

fn ends(served: &[Served]) -> impl Iterator<Item = Nanos> + '_ {
    served.iter().map(|served| served.ended.unwrap())
}

fn oracle_ends(oracle: &mut impl Oracle, jobs: &[Job]) -> Vec<Nanos> {
    let mut ends = vec![Nanos(0); jobs.len()];
    let mut waiting = jobs.iter().enumerate().peekable();
    loop {
        let arrival = waiting.peek().map(|(_, job)| job.arrives);
        match (oracle.next_completion(), arrival) {
            (Some((at, _)), arrival) if arrival.is_none_or(|arrival| at <= arrival) => {
                let (at, id) = oracle.complete().unwrap();
                ends[id as usize] = at;
            }
            (None, None) => return ends,
            _ => {
                let (id, job) = waiting.next().unwrap();
                oracle.arrive(job.arrives, id as u64, job.service);
            }
        }
    }
}

/// Also with prestaging: a thread that is bound to a core only while every core has work waits no longer for it than in a
/// common queue, except for the order of equals.
#[test]
fn fifo_is_the_oracle() {
    for cores in [1, 4] {
        let jobs = mix(1, cores, 0.8, 3000);
        let expected = oracle_ends(&mut FirstInFirstOut::new(cores.into()), &jobs);
        let served = serve("fifo", cores, 0, &jobs, END);
        assert_eq!(ends(&served).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_round_robin_with_a_short_quantum_is_nearly_processor_sharing() {
    for cores in [1, 4] {
        let jobs = mix(2, cores, 0.7, 3000);
        let shared = oracle_ends(&mut ProcessorSharing::new(cores.into()), &jobs);
        let expected = mean_us(&jobs, shared.into_iter());
        let found = |policy| mean_us(&jobs, ends(&serve(policy, cores, 0, &jobs, END)));
        let (near, far) = (found("round-robin:quantum_us=1"), found("round-robin:quantum_us=5000"));
        let by_core = found("round-robin:quantum_us=1,timer=core");
        assert!((by_core / expected - 1.0).abs() < 0.02, "{by_core} us, shared {expected} us");
        assert!((near / expected - 1.0).abs() < 0.02, "{near} us, shared {expected} us");
        assert!((near - expected).abs() < (far - expected).abs(), "{near}, {far}, {expected} us");
    }
}

#[test]
fn no_policy_beats_srpt_on_one_core() {
    let jobs = mix(3, 1, 0.8, 3000);
    let best = mean_us(&jobs, oracle_ends(&mut Srpt::new(1), &jobs).into_iter());
    for policy in wave_sched::policies::NAMES {
        let found = mean_us(&jobs, ends(&serve(policy, 1, 1, &jobs, END)));
        assert!(found >= best, "{policy}: {found} us, at best {best} us");
    }
}

#[test]
fn with_slices_short_requests_do_not_wait_behind_long_ones() {
    for prestage in [0, 1, 2] {
        let jobs = mix(4, 4, 0.7, 10_000);
        let p99 = |policy| p99_us(&jobs, &serve(policy, 4, prestage, &jobs, END), 0);
        let (fifo, shinjuku) = (p99("fifo"), p99("shinjuku"));
        assert!(fifo > 4_000, "{fifo} us");
        assert!(shinjuku < 1_000, "prestaging {prestage}: {shinjuku} us, FIFO {fifo} us");
        // A queue per class does better still: short requests do not wait for slices of long ones.
        let multi_queue = p99("multi-queue");
        assert!(multi_queue <= shinjuku, "{prestage}: {multi_queue} us, one queue {shinjuku} us");
    }
}

/// The core's own timer against the agent's preemptions, where both are free.
#[test]
fn short_requests_wait_as_long_whichever_side_ends_slices() {
    for prestage in [0, 1] {
        for policy in ["shinjuku", "multi-queue", "round-robin:quantum_us=30"] {
            let jobs = mix(5, 4, 0.7, 10_000);
            let p99 = |policy: &str| p99_us(&jobs, &serve(policy, 4, prestage, &jobs, END), 0);
            let divider = if policy.contains(':') { ',' } else { ':' };
            let (agent, core) = (p99(policy), p99(&format!("{policy}{divider}timer=core")));
            let ratio = core as f64 / agent as f64;
            assert!((0.7..1.3).contains(&ratio), "{policy}, {prestage}: {core} us, {agent} us");
        }
    }
}

#[test]
fn at_most_one_run_is_preempted_per_waiting_thread() {
    let mut jobs = forever(&[0; 4]);
    jobs.push(Job { arrives: Nanos::from_micros(100), service: SHORT, class: 0 });
    for prestage in [0, 1] {
        for policy in ["shinjuku", "multi-queue", "round-robin:quantum_us=30", "edf:deadline_us=50"]
        {
            let served = serve(policy, 4, prestage, &jobs, Nanos::from_micros(115));
            let stopped = served[..4].iter().filter(|served| served.waited_max != Nanos(0)).count();
            assert!(stopped <= 1, "{policy}: {stopped} runs were preempted for one thread");
        }
    }
}

#[test]
fn urgent_threads_meet_their_deadlines_among_others_that_need_every_core() {
    let mut jobs = forever(&[1; 4]);
    for period in 1..=200 {
        for _ in 0..3 {
            jobs.push(Job { arrives: Nanos::from_micros(100 * period), service: SHORT, class: 0 });
        }
    }
    for prestage in [0, 2] {
        let until = Nanos::from_millis(21);
        let served = serve("edf:deadline_us=50/1000000", 4, prestage, &jobs, until);
        let longest = times(&jobs[4..], &served[4..], 0).pop();
        assert_eq!(longest, Some(SHORT.0), "each thread gets a core at once");
    }
}

#[test]
fn virtual_cpus_get_shares_by_their_weights() {
    let second = Nanos::from_millis(1000);
    for (cores, classes) in [(1, &[0, 1][..]), (2, &[0, 0, 1]), (2, &[0, 0, 0, 1, 1, 1])] {
        let served = serve("vm:weight=1/2", cores, 0, &forever(classes), second);
        let weights: u64 = classes.iter().map(|class| u64::from(class + 1)).sum();
        for (served, class) in served.iter().zip(classes) {
            let share = served.ran.0 as f64 / second.0 as f64 / f64::from(cores);
            let fair = f64::from(class + 1) / weights as f64;
            assert!((share / fair - 1.0).abs() < 0.05, "{classes:?}: {share}, fair is {fair}");
        }
    }
}

/// 15 ms, checked once a millisecond.
#[test]
fn no_virtual_cpu_waits_for_longer_than_the_bound() {
    for (cores, count, weights) in [(1, 6, "1"), (4, 40, "1"), (2, 9, "1/1000")] {
        let classes: Vec<u16> = (0..count).map(|at| u16::from(at == 0)).collect();
        let policy = format!("vm:latency_ms=15,weight={weights}");
        let served = serve(&policy, cores, 0, &forever(&classes), Nanos::from_millis(2000));
        let longest = served.iter().map(|served| served.waited_max).max().unwrap();
        let ms = longest.0 / 1_000_000;
        assert!(ms <= 15 + 1 + count / u64::from(cores), "{count} on {cores}: {ms} ms");
    }
}
