//! Figure 6: the RPC stack and the scheduler on the host or on the NIC (Wave 7.3), in virtual time, and the gain from
//! prefetching and prestaging requests.

use std::cell::RefCell;
use std::collections::BTreeMap;

use wave_core::clock::Nanos;
use wave_sim::paper::{self, Model, Placement};
use wave_sim::requests::Load;
use wave_sim::rpc::{self, RpcSetup};
use wave_workloads::point::Point;

use super::figures::{Curve, Figure};
use super::group::{Group, Ours};
pub(crate) use super::jobs::SHINJUKU;
use super::jobs::{ByName, Done, Job, search};
use super::rows::{Kind, against};

/// Slices of 30 us, as in 7.3.2.
pub(crate) const MULTI_QUEUE: &str = "multi-queue:slice_us=30";
/// A load that every placement serves.
const LOW: f64 = 60e3;

/// One curve: its job's name without the group, its name for readers, the placement, RocksDB's cores, and whether requests are
/// prefetched.
type Variant = (&'static str, &'static str, Placement, u16, bool);

const VARIANTS: [Variant; 5] = [
    ("on-host-all", "OnHost-All, 15 cores", Placement::OnHostAll, 15, false),
    ("on-host-scheduler", "OnHost-Scheduler, 15 cores", Placement::OnHostScheduler, 15, false),
    ("offload-all-16", "Offload-All, 16 cores", Placement::OffloadAll, 16, false),
    ("offload-all-15", "Offload-All, 15 cores", Placement::OffloadAll, 15, false),
    ("prefetched", "Offload-All, 16 cores, requests prefetched", Placement::OffloadAll, 16, true),
];

/// GETs alone under FIFO, Offload-All with 16 cores: the job's name without the group, the threads, the requests that a thread
/// has at once, and whether requests are prefetched. The paper did not prestage or prefetch requests.
const GETS: [(&str, u16, u32, bool); 3] = [
    ("gets", paper::RPC_WORKERS, 1, false),
    ("gets-prefetched", paper::RPC_WORKERS, 1, true),
    ("gets-prestaged", 64, 2, true),
];
/// A load of GETs alone that all placements serve.
const LOW_GETS: f64 = 500e3;

/// Figure 6b's gain depends on two numbers that the paper does not print: the number of RocksDB's threads, and the time over
/// which requests are counted, in multiples of 200 ms. The figure itself uses the last number of threads and the first length.
const THREADS: [u16; 3] = [60, 120, paper::RPC_WORKERS];
const LENGTHS: [u64; 3] = [1, 2, 4];

pub(super) const FIGURE_6A: Group = Group {
    id: "fig6a",
    title: "Figure 6a",
    about: "RPCs: stack and scheduler on the host or on the NIC, single-queue Shinjuku (7.3.1)",
    is_seeded: true,
    jobs: |model| {
        let mut jobs = curve_jobs("fig6a", model);
        jobs.extend(once(model, gets));
        jobs
    },
    figures: |done| vec![figure("fig6a", done)],
    rows: &[
        Ours::new("fig6a-offload16", Kind::Compatible, |done| against(done, "fig6a-offload-all-16", "fig6a-on-host-all")).why("As in Figure 4b, preemptions decide: an on-host decision takes its agent 770 ns, an offloaded one is read across the link unhidden. Reading a request and writing a reply across the link cost another 1.5 us of 64 that a request takes on average. The paper's -6.3% is 15/16 of \"about identical\"."),
        Ours::new("fig6a-offload15", Kind::Compatible, |done| against(done, "fig6a-offload-all-15", "fig6a-on-host-all")).why("As in Figure 4b, preemptions decide: an on-host decision takes its agent 770 ns, an offloaded one is read across the link unhidden. Reading a request and writing a reply across the link cost another 1.5 us of 64 that a request takes on average. The paper's -6.3% is 15/16 of \"about identical\"."),
        // RocksDB has one core more, and nine are freed: the stack's eight and the scheduler's.
        Ours::new("fig6-cores-freed", Kind::Assumed, |_| Some(8.0 + 1.0)),
    ],
};

pub(super) const FIGURE_6B: Group = Group {
    id: "fig6b",
    title: "Figure 6b",
    about: "RPCs: the same, multi-queue Shinjuku by the requests' SLO (7.3.2)",
    is_seeded: true,
    jobs: |model| {
        let mut jobs = once(model, gains);
        jobs.extend(curve_jobs("fig6b", model));
        // The reference for the multi-queue policy.
        jobs.push(curve_job("fig6a", VARIANTS[2], model));
        jobs
    },
    figures: |done| vec![figure("fig6b", done), gain_figure(done)],
    rows: &[
        Ours::new("fig6b-gain", Kind::Compatible, |done| against(done, "fig6b-offload-all-16", "fig6a-offload-all-16")).within(interval).why("Comes near, but rests on what the paper does not print. By the criterion a GET's p99 decides, and at this load not even the multi-queue policy keeps up: scans fall behind, and GETs do not before every worker has a scan. So the gain grows with the number of threads (240 here) and falls with the length of a run. The interval is over 60, 120 and 240 threads, counted for 0.2, 0.4 and 0.8 s."),
        Ours::new("fig6b-offload16", Kind::Compatible, |done| against(done, "fig6b-offload-all-16", "fig6b-on-host-all")).why("Like fig6b-gain, this compares how fast scans fall behind as much as it does the link."),
        Ours::new("fig6b-offload15", Kind::Compatible, |done| against(done, "fig6b-offload-all-15", "fig6b-on-host-all")).why("Like fig6b-gain, this compares how fast scans fall behind as much as it does the link."),
    ],
};

/// Jobs that are simulated under one seed only.
fn once(model: &Model, jobs: fn(&Model) -> Vec<Job>) -> Vec<Job> {
    if model.seed == 1 { jobs(model) } else { Vec::new() }
}

fn curve_job(group: &str, variant: Variant, model: &Model) -> Job {
    let setup = setup(model, group, variant);
    Job::new(format!("{group}-{}", variant.0), move || saturation(&setup, 1))
}

fn curve_jobs(group: &str, model: &Model) -> Vec<Job> {
    VARIANTS.into_iter().map(|variant| curve_job(group, variant, model)).collect()
}

/// Name of a group's job for Offload-All with 16 cores, with this many threads, counted over `length` times 200 ms.
fn gain_job(group: &str, threads: u16, length: u64) -> String {
    match (threads, length) {
        (paper::RPC_WORKERS, 1) => format!("{group}-offload-all-16"),
        _ => format!("{group}-offload-all-16-{threads}-threads-{length}-times"),
    }
}

/// Jobs for Figure 6b's gain with other numbers of threads, and over longer runs. Longest first.
pub(super) fn gains(model: &Model) -> Vec<Job> {
    let mut jobs = Vec::new();
    for length in LENGTHS.into_iter().rev() {
        for (threads, group) in THREADS.into_iter().flat_map(|of| [(of, "fig6b"), (of, "fig6a")]) {
            if (threads, length) == (paper::RPC_WORKERS, 1) {
                continue;
            }
            let mut setup = setup(model, group, VARIANTS[2]);
            setup.workers = threads;
            setup.scheduler.config.subjects = threads.into();
            let name = gain_job(group, threads, length);
            jobs.push(Job::new(name, move || saturation(&setup, length)));
        }
    }
    jobs
}

/// Jobs of GETs alone, which the paper does not have.
fn gets(model: &Model) -> Vec<Job> {
    let job = |(id, workers, ahead, prefetch): (&str, u16, u32, bool)| {
        let mut setup = model.rpc(Placement::OffloadAll, 16, "fifo", false);
        setup.workers = workers;
        setup.scheduler.config.subjects = workers.into();
        setup.steering = format!("jbsq:k={ahead}");
        setup.prestaged = ahead > 1;
        setup.prefetch = prefetch;
        Job::new(format!("fig6a-{id}"), move || saturation_of_gets(&setup))
    };
    GETS.into_iter().map(job).collect()
}

/// The setup of one curve of a group.
fn setup(model: &Model, group: &str, (_, _, placement, cores, prefetch): Variant) -> RpcSetup {
    let slo = group == "fig6b";
    let mut setup = model.rpc(placement, cores, if slo { MULTI_QUEUE } else { SHINJUKU }, slo);
    setup.prefetch = prefetch;
    setup
}

/// One load of one curve of a group. Also returns the CPUs that scheduler and stack used until the last request arrived.
#[cfg(test)]
pub(crate) fn probe_of(group: &str, id: &str, per_second: f64) -> (Point, f64) {
    let variant = VARIANTS.into_iter().find(|variant| variant.0 == id).expect("such a curve");
    let setup = setup(&Model::builtin(), group, variant);
    let load = paper::gets_and_ranges(per_second, paper::overhead(&setup.scheduler));
    let found = rpc::serve(&setup, &load).expect("the paper's setups can be laid out");
    let agents = found.outcome.usage.agent.0 + found.stack_time.0;
    (
        wave_experiments::kinds::requests::sim::point(&load, &found.outcome),
        agents as f64 / load.end().0 as f64,
    )
}

/// The saturation of a setup, counted over `length` times 200 ms.
fn saturation(setup: &RpcSetup, length: u64) -> Done {
    let overhead = paper::overhead(&setup.scheduler);
    let busy = RefCell::new(BTreeMap::new());
    let run = |per_second: f64| {
        let (point, shares) = probe(setup, overhead, per_second, length);
        busy.borrow_mut().insert(per_second as u64, shares);
        point
    };
    let mut done = search(run, LOW);
    let at = done.value("saturation").map_or(0, |saturation| saturation as u64);
    if let Some([agent, stack]) = busy.borrow().get(&at) {
        done.values.push(("agent_busy".to_owned(), *agent));
        done.values.push(("stack_busy".to_owned(), *stack));
    }
    done
}

/// One load, with the busy shares of the scheduler's core and of the stack's cores.
fn probe(setup: &RpcSetup, overhead: Nanos, per_second: f64, length: u64) -> (Point, [f64; 2]) {
    let mut load: Load = paper::gets_and_ranges(per_second, overhead);
    load.measure = Nanos(load.measure.0 * length);
    let found = rpc::serve(setup, &load).expect("the paper's setups can be laid out");
    let busy = [found.outcome.agent_busy(), found.stack_busy];
    (wave_experiments::kinds::requests::sim::point(&load, &found.outcome), busy)
}

fn saturation_of_gets(setup: &RpcSetup) -> Done {
    let overhead = paper::overhead(&setup.scheduler);
    let run = |per_second: f64| {
        let load = paper::gets(per_second, overhead);
        let found = rpc::serve(setup, &load).expect("the paper's setups can be laid out");
        wave_experiments::kinds::requests::sim::point(&load, &found.outcome)
    };
    search(run, LOW_GETS)
}

/// Figure 6b's gain in percent with this many threads, counted over `length` times 200 ms.
fn gain(threads: u16, length: u64, done: &ByName<'_>) -> Option<f64> {
    let saturation =
        |group| done.get(gain_job(group, threads, length).as_str())?.value("saturation");
    let (single, multi) = (saturation("fig6a")?, saturation("fig6b")?);
    Some(100.0 * (multi / single - 1.0)).filter(|gain| gain.is_finite())
}

/// Lowest and highest gain of Figure 6b over the values that the paper does not print.
fn interval(done: &ByName<'_>) -> Option<[f64; 2]> {
    let each = THREADS.into_iter().flat_map(|threads| LENGTHS.map(|length| (threads, length)));
    let gains: Option<Vec<f64>> =
        each.map(|(threads, length)| gain(threads, length, done)).collect();
    let gains = gains?;
    Some([gains.iter().copied().reduce(f64::min)?, gains.iter().copied().reduce(f64::max)?])
}

/// Figure 6b's gain by the length of counting.
fn gain_figure(done: &ByName<'_>) -> Figure {
    let curve = |threads: u16| {
        let at = |length: u64| Some([0.2 * length as f64, gain(threads, length, done)?]);
        Curve::ours(&format!("{threads} threads"), LENGTHS.into_iter().filter_map(at).collect())
    };
    let mut curves: Vec<Curve> = THREADS.map(curve).into();
    let printed = LENGTHS.map(|length| [0.2 * length as f64, 20.8]);
    curves.push(Curve::paper("the paper, for a length that it does not print", printed.into()));
    Figure {
        id: "fig6b-gain".to_owned(),
        group: "fig6b".to_owned(),
        title: "Figure 6b's gain by threads and length of the run".to_owned(),
        x: "requests are counted for, seconds".to_owned(),
        y: "a queue for each SLO over one queue, %".to_owned(),
        log_x: false,
        y_max: None,
        text: "Offload-All with 16 cores. The paper prints neither how many threads RocksDB has nor how long it ran. At the \
               saturation of the multi-queue policy scans fall behind, so that the gain depends on both."
            .to_owned(),
        curves,
    }
}

fn figure(group: &str, done: &ByName<'_>) -> Figure {
    let job = |id: &str| done.get(&format!("{group}-{id}"));
    let mut curves = Vec::new();
    for (id, name, ..) in VARIANTS {
        let Some(done) = job(id) else { continue };
        let points = done.points.iter().map(|[_, served, p99]| [served / 1e3, *p99]).collect();
        curves.push(Curve::ours(name, points));
    }
    let which = match group {
        "fig6a" => "Figure 6a: RPC stack and scheduler, single-queue Shinjuku",
        _ => "Figure 6b: RPC stack and scheduler, multi-queue Shinjuku by SLO",
    };
    Figure {
        id: group.to_owned(),
        group: group.to_owned(),
        title: which.to_owned(),
        x: "served, thousand requests per second".to_owned(),
        y: "p99 of a GET, us".to_owned(),
        log_x: false,
        y_max: Some(300.0),
        text: text(&job),
        curves,
    }
}

/// The saturations in a sentence each, with figures that the paper does not print.
fn text<'a>(job: &dyn Fn(&str) -> Option<&'a Done>) -> String {
    let saturation = |id: &str| job(id)?.value("saturation");
    let mut text =
        "99.5% GETs of 10 us, 0.5% RANGE scans of 10 ms, behind an RPC stack whose own work \
                    is assumed. Saturation, in thousand requests per second:"
            .to_owned();
    for (id, name, ..) in VARIANTS {
        let Some(done) = job(id) else { continue };
        let value = |name: &str| done.value(name).unwrap_or(f64::NAN);
        let [saturation, agent, stack] = ["saturation", "agent_busy", "stack_busy"].map(value);
        text.push_str(&format!(
            " {name}: {:.1} (scheduler's core {:.0}% busy, stack's cores {:.0}%);",
            saturation / 1e3,
            100.0 * agent,
            100.0 * stack,
        ));
    }
    text.pop();
    text.push('.');
    let p99_at_half = |id: &str| {
        let load = saturation("offload-all-16")? / 2.0;
        super::scheduling::p99_at(job(id)?, load)
    };
    if let (Some(without), Some(with)) = (p99_at_half("offload-all-16"), p99_at_half("prefetched"))
    {
        text.push_str(&format!(
            " Beyond the paper, a core fetches a thread's request while it switches to it: at half of the \
             saturation a GET's p99 is {with:.1} us instead of {without:.1}."
        ));
    }
    let gets = GETS.map(|(id, ..)| saturation(id));
    if let [Some(plain), Some(prefetched), Some(prestaged)] = gets {
        text.push_str(&format!(
            " GETs alone, under FIFO, saturate at {:.1}; prefetched at {:.1} ({:+.1}%); and at {:.1} ({:+.1}%) where the agent also \
             prestages requests: 64 threads have two each, and one that has answered begins the next without a decision.",
            plain / 1e3,
            prefetched / 1e3,
            100.0 * (prefetched / plain - 1.0),
            prestaged / 1e3,
            100.0 * (prestaged / plain - 1.0)
        ));
    }
    text
}
