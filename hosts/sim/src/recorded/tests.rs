use proptest::prelude::*;
use wave_sched::workload::{End, Header, Run, Thread, VERSION, Waker};

use super::*;

const MS: u64 = 1_000_000;
const POLICIES: [&str; 3] = ["fifo", "shinjuku", "vm"];

fn run(at_ns: u64, cpu_ns: u64, waker: Option<(u32, u64)>) -> Run {
    let waker = waker.map(|(thread, cpu_ns)| Waker { thread, cpu_ns });
    Run { at_ns, waited_ns: Some(0), cpu_ns, waker, ..Run::default() }
}

fn workload(threads: Vec<Vec<Run>>) -> Rc<Workload> {
    let thread = |(at, runs): (usize, Vec<Run>)| Thread {
        pid: 100 + at as u32,
        process: 100,
        name: format!("t{at}"),
        end: End::Exited,
        ended_ns: runs.last().map_or(0, |run| run.at_ns + run.cpu_ns),
        runs,
    };
    let header = Header {
        wave_workload: VERSION,
        machine: "test".into(),
        kernel: "6.1".into(),
        cpus: 1,
        scope: "test".into(),
        command: None,
        duration_ns: 0,
        dropped_events: 0,
        unfollowed_threads: 0,
        repaired: 0,
        interference_ns: None,
        threads: threads.len() as u32,
    };
    let threads = threads.into_iter().enumerate().map(thread).collect();
    Rc::new(Workload { header, threads })
}

fn replayed(workload: &Rc<Workload>, cores: u16, policy: &str) -> Replayed {
    let replayed = replay(&setup(workload, cores, policy), workload).unwrap();
    assert_eq!(replayed.unfinished, 0, "{policy}");
    assert_eq!((replayed.counters.lost_agents, replayed.counters.fallback_switches), (0, 0));
    replayed
}

/// Checks that `ns` is at least `expected`, and at most 1% and 100 us above it: the cost of switches and the link.
#[track_caller]
fn nearly(ns: u64, expected: u64) {
    assert!((expected..=expected + expected / 100 + 100_000).contains(&ns), "{ns} for {expected}");
}

#[test]
fn two_threads_share_a_core_or_have_one_each() {
    let both = workload(vec![vec![run(0, 10 * MS, None)], vec![run(0, 10 * MS, None)]]);
    for policy in ["fifo", "vm"] {
        nearly(replayed(&both, 1, policy).schedule.makespan_ns, 20 * MS);
        nearly(replayed(&both, 2, policy).schedule.makespan_ns, 10 * MS);
    }
    let schedule = replayed(&both, 1, "fifo").schedule;
    nearly(schedule.latency.max_ns, 10 * MS);
    assert_eq!((schedule.switches, schedule.preemptions), (2, 0));
    // With slices of 30 us, each waits for a slice of the other, and both end late.
    let schedule = replayed(&both, 1, "shinjuku").schedule;
    assert!(schedule.latency.max_ns < MS && schedule.preemptions > 300, "{schedule:?}");
    assert!(schedule.threads.iter().all(|thread| thread.ended_ns > Some(19 * MS)));
}

#[test]
fn a_thread_sleeps_as_long_as_in_the_recording() {
    // It sleeps 7 ms after its first run, 2 ms after its second, in which it was preempted, and not at all after its third.
    let recorded = |at_ns, cpu_ns, blocked_ns| Run { blocked_ns, ..run(at_ns, cpu_ns, None) };
    let sleeper = vec![
        recorded(0, 3 * MS, None),
        recorded(10 * MS, 5 * MS, Some(7 * MS)),
        recorded(30 * MS, MS, Some(2 * MS)),
        recorded(31 * MS, MS, Some(0)),
    ];
    let schedule = replayed(&workload(vec![sleeper.clone()]), 1, "fifo").schedule;
    nearly(schedule.makespan_ns, 19 * MS);
    assert_eq!((schedule.switches, schedule.latency.count), (4, 4));
    assert!(schedule.latency.max_ns < 100_000);
    // Even if another thread delays its first run by 50 ms, it sleeps as long.
    let held_up = workload(vec![vec![run(0, 50 * MS, None)], sleeper]);
    nearly(replayed(&held_up, 1, "fifo").schedule.makespan_ns, 69 * MS);
    // In version 1, the time for which it had lost its core counts as sleep.
    let of_version_1 =
        vec![run(0, 3 * MS, None), run(10 * MS, 5 * MS, None), run(30 * MS, MS, None)];
    nearly(replayed(&workload(vec![of_version_1]), 1, "fifo").schedule.makespan_ns, 31 * MS);
}

/// Three pipelines `head | gzip | md5sum`, recorded on two CPUs beside other programs, which slowed all of them by the
/// factor `disturbed`. The wakers of every seventh run of `gzip` and of every run of `md5sum` were not recorded.
fn pipelines(disturbed: u64) -> Rc<Workload> {
    const CHUNKS: u64 = 40;
    const HEAD_NS: u64 = 200_000;
    const GZIP_NS: u64 = 2_300_000;
    const SUM_NS: u64 = 50_000;
    /// How long a thread was blocked before an unrecorded waker woke it.
    const BLOCKED_NS: u64 = 30_000;
    // Each of the three pipelines has two thirds of a CPU.
    let chunk_ns = (HEAD_NS + GZIP_NS + SUM_NS) * 3 / 2 * disturbed;
    let outside = |at_ns, cpu_ns| Run { blocked_ns: Some(BLOCKED_NS), ..run(at_ns, cpu_ns, None) };
    let mut threads = Vec::new();
    for pipeline in 0..3 {
        let [head, gzip] = [3 * pipeline, 3 * pipeline + 1];
        let [mut heads, mut gzips, mut sums] = [Vec::new(), Vec::new(), Vec::new()];
        for chunk in 0..CHUNKS {
            let at_ns = chunk * chunk_ns;
            // `gzip`'s pipe has room again when it has begun with the previous chunk.
            let room = (chunk > 0).then(|| (gzip, (chunk - 1) * GZIP_NS + 1));
            heads.push(run(at_ns, HEAD_NS, room));
            let filled = Some((head, (chunk + 1) * HEAD_NS));
            gzips.push(match chunk % 7 {
                3 => outside(at_ns + chunk_ns / 10, GZIP_NS),
                _ => run(at_ns + chunk_ns / 10, GZIP_NS, filled),
            });
            sums.push(match chunk {
                0 => run(at_ns, SUM_NS, filled),
                _ => outside(at_ns + chunk_ns / 2, SUM_NS),
            });
        }
        threads.extend([heads, gzips, sums]);
    }
    workload(threads)
}

#[test]
fn makespans_of_pipelines_scale_with_cores_despite_unrecorded_wakers() {
    let work = pipelines(2);
    let cpu_ns = work.cpu_ns();
    let one_pipeline_ns = cpu_ns / 3;
    assert!(work.ends_ns() > 2 * one_pipeline_ns, "the recording was disturbed");
    for policy in ["fifo", "round-robin", "vm"] {
        let [one, two, eight] =
            [1, 2, 8].map(|cores| replayed(&work, cores, policy).schedule.makespan_ns);
        let percent = |makespan_ns: u64, of_ns: u64| makespan_ns * 100 / of_ns;
        assert!((100..=102).contains(&percent(one, cpu_ns)), "{policy}: {one} for {cpu_ns}");
        assert!((100..=110).contains(&percent(two, cpu_ns / 2)), "{policy}: {two} for half");
        // Within a pipeline `head` and `gzip` overlap.
        let eight = percent(eight, one_pipeline_ns);
        assert!((88..=102).contains(&eight), "{policy}: {eight}% of one pipeline's CPU time");
    }
    // The slowdown by other programs during the recording makes no difference.
    for cores in [1, 2, 8] {
        let makespan = |work| replayed(&work, cores, "fifo").schedule.makespan_ns;
        assert_eq!(makespan(pipelines(2)), makespan(pipelines(5)));
    }
}

#[test]
fn a_thread_waits_for_its_waker() {
    // The second is woken when the first has used 2 of 6 ms; its recorded time does not matter.
    let first = vec![run(0, 6 * MS, None)];
    let second = vec![run(MS, MS, Some((0, 2 * MS)))];
    let work = workload(vec![first, second]);
    let ends = |cores, policy| {
        let schedule = replayed(&work, cores, policy).schedule;
        (schedule.threads[1].ended_ns.unwrap(), schedule.threads[1].latency.max_ns)
    };
    let (ended_ns, waited_ns) = ends(2, "fifo");
    nearly(ended_ns, 3 * MS);
    assert!(waited_ns < 100_000);
    // On one core it waits for the first to end.
    let (ended_ns, waited_ns) = ends(1, "fifo");
    nearly(ended_ns, 7 * MS);
    nearly(waited_ns + 100_000, 4 * MS);
}

#[test]
fn a_delayed_thread_delays_the_threads_that_it_wakes() {
    // Two threads pass a token to each other, beside a thread that computes for 50 ms.
    let there = |turn: u64| run(turn * MS, MS / 2, (turn > 0).then_some((1, turn * MS / 2)));
    let back = |turn: u64| run(turn * MS, MS / 2, Some((0, (turn + 1) * MS / 2)));
    let token = |side: &dyn Fn(u64) -> Run| (0..10).map(side).collect::<Vec<_>>();
    let alone = workload(vec![token(&there), token(&back)]);
    nearly(replayed(&alone, 1, "fifo").schedule.makespan_ns, 10 * MS);
    let beside = workload(vec![token(&there), token(&back), vec![run(0, 50 * MS, None)]]);
    let ended = |policy| replayed(&beside, 1, policy).schedule.threads[1].ended_ns.unwrap();
    // First in, first out: the token waits for the end of the computation.
    assert!(ended("fifo") > 55 * MS);
    assert!(ended("shinjuku") < 25 * MS);
}

#[test]
fn no_thread_waits_for_a_long_run_while_another_core_is_idle() {
    let often = |at: u64| (0..50).map(|turn| run((turn * 2 + at) * MS, MS / 10, None)).collect();
    let mut threads = vec![often(1); 6];
    threads.push(vec![run(0, 150 * MS, None)]);
    for policy in POLICIES {
        let schedule = replayed(&workload(threads.clone()), 2, policy).schedule;
        assert!(schedule.latency.max_ns < 2 * MS, "{policy}: {schedule:?}");
    }
}

#[test]
fn without_an_agent_the_fallback_runs_the_workload() {
    let work = workload(vec![vec![run(0, MS, None), run(3 * MS, MS, None)]; 3]);
    let world = World::new();
    let _ended = Ended(world.clone());
    let app = Recorded::new(Rc::clone(&work));
    let enclave = Enclave::new(&world, setup(&work, 1, "fifo"), Rc::clone(&app) as _).unwrap();
    app.watch(&enclave);
    world.run_until(Nanos::from_millis(20));
    assert_eq!(app.unfinished(), 0);
    let schedule = app.schedule(&enclave.counters(), 1);
    assert_eq!((schedule.cpu_ns, schedule.latency.count, schedule.switches), (6 * MS, 6, 6));
}

#[test]
fn cyclic_wakers_are_reported_as_unfinished() {
    let work = workload(vec![vec![run(0, MS, Some((1, MS)))], vec![run(0, MS, Some((0, MS)))]]);
    let replayed = replay(&setup(&work, 1, "fifo"), &work).unwrap();
    assert_eq!((replayed.unfinished, replayed.schedule.cpu_ns), (2, 0));
}

#[test]
fn recorded_and_replayed_schedules_are_summarized_alike() {
    let mut work = Rc::into_inner(workload(vec![
        vec![run(MS, 2 * MS, None), run(5 * MS, MS, None)],
        vec![run(2 * MS, MS, None)],
    ]));
    let work = work.as_mut().unwrap();
    work.threads[0].runs[0].waited_ns = None;
    work.threads[0].runs[1].waited_ns = Some(700);
    work.threads[1].runs[0].preemptions = 3;
    let schedule = Schedule::recorded(work);
    assert_eq!((schedule.makespan_ns, schedule.cpu_ns), (5 * MS, 4 * MS));
    assert_eq!((schedule.switches, schedule.preemptions), (6, 3));
    assert_eq!((schedule.latency.count, schedule.latency.max_ns), (2, 700));
    assert!((schedule.cpu_use() - 0.8).abs() < 1e-9);
}

#[test]
fn quantiles_are_those_of_the_nearest_rank() {
    let latency = Latency::of((1..=200).rev().collect());
    assert_eq!((latency.p50_ns, latency.p99_ns, latency.max_ns), (100, 198, 200));
    assert_eq!(Latency::of(vec![7]), Latency { count: 1, p50_ns: 7, p99_ns: 7, max_ns: 7 });
    assert_eq!(Latency::of(Vec::new()), Latency::default());
}

/// Workloads in which each waker has run before the thread that it wakes, as in a recording.
fn recorded() -> impl Strategy<Value = Rc<Workload>> {
    let run = (0..2 * MS, 0..MS, prop::option::of(any::<prop::sample::Index>()));
    let threads = prop::collection::vec(prop::collection::vec(run, 1..8), 1..8);
    threads.prop_map(|threads| {
        let (mut made, mut used) = (vec![Vec::new(); threads.len()], vec![0; threads.len()]);
        let rounds = threads.iter().map(Vec::len).max().unwrap_or(0);
        let mut ends: Vec<u64> = vec![0; threads.len()];
        for round in 0..rounds {
            for (at, runs) in threads.iter().enumerate() {
                let Some((gap, cpu_ns, waker)) = &runs.get(round) else { continue };
                let waker = waker.map(|index| index.index(threads.len()));
                // The waker has run already; its CPU time so far is known, because of the order of these loops.
                let waker = waker.filter(|waker| *waker != at && used[*waker] > 0);
                let at_ns = ends[at] + gap;
                let waker = waker.map(|waker| (waker as u32, used[waker]));
                made[at].push(self::run(at_ns, *cpu_ns, waker));
                ends[at] = at_ns + cpu_ns;
                used[at] += cpu_ns;
            }
        }
        workload(made)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_cpu_time_is_used_under_each_policy_and_runs_are_reproducible(
        workload in recorded(),
        cores in 1..4_u16,
    ) {
        for policy in POLICIES {
            let once = replayed(&workload, cores, policy);
            prop_assert_eq!(once.schedule.cpu_ns, workload.cpu_ns());
            let runs = workload.runs().count() as u64;
            prop_assert_eq!(once.schedule.latency.count, runs);
            prop_assert_eq!(once.schedule.switches, runs + once.schedule.preemptions);
            let again = replayed(&workload, cores, policy);
            prop_assert_eq!(&once.schedule, &again.schedule);
            prop_assert_eq!(once.trace_hash, again.trace_hash);
        }
    }
}
