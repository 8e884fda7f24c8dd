//! Results beyond the paper: how saturation and tail depend on design choices, as the distance from a zero-latency oracle,
//! which is the same host with a link and an agent that cost nothing.

use wave_core::clock::Nanos;
use wave_core::link::{Home, Mapping, Transport};
use wave_sim::enclave::Setup;
use wave_sim::paper::{self, Rung};
use wave_sim::requests::Load;

use super::figures::{Curve, Figure};
use super::group::Group;
use super::jobs::{ByName, Done, Job, probe, saturation};

const DEPTHS: [u16; 5] = [0, 1, 2, 4, 8];
const CORES: [u16; 6] = [8, 16, 24, 32, 64, 128];
/// Cores per enclave, where a host is divided into several.
const ENCLAVE: u16 = 16;
const FLIGHTS_NS: [u32; 7] = [50, 100, 200, 375, 1000, 2500, 5000];
const SLICES_US: [u32; 6] = [5, 10, 20, 30, 50, 100];

pub(super) const BEYOND: Group = Group {
    id: "beyond",
    title: "Beyond the paper",
    about: "not in the paper: depth, cores, latency, slices, push and pull",
    is_seeded: false,
    jobs: |_| jobs(),
    figures,
    rows: &[],
};

fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut search = |name: String, setup: Setup, low: f64| {
        jobs.push(Job::new(name, move || saturation(&setup, short_gets, low)));
    };
    let pulled = paper::wave(16, Rung::Prestaged, "fifo");
    for cores in CORES {
        let mut setup = pulled.clone();
        setup.config.cores = cores;
        // An agent that has collapsed serves far less than its cores could.
        let low = 20e3 * f64::from(cores.min(32));
        search(format!("beyond-cores-{cores}"), setup.clone(), low);
        search(format!("beyond-cores-{cores}-oracle"), oracle(&setup), 40e3 * f64::from(cores));
    }
    for depth in DEPTHS {
        let mut setup = pulled.clone();
        setup.config.prestage = depth;
        search(format!("beyond-depth-{depth}"), setup, 400e3);
    }
    for flight in FLIGHTS_NS {
        search(format!("beyond-flight-{flight}"), with_flight(&pulled, flight), 400e3);
    }
    for flight in FLIGHTS_NS {
        search(format!("beyond-pushed-{flight}"), pushed(&with_flight(&pulled, flight)), 400e3);
    }
    for slice in SLICES_US {
        let setup = paper::wave(16, Rung::Prestaged, &format!("shinjuku:slice_us={slice}"));
        jobs.push(Job::new(format!("beyond-slice-{slice}"), move || tail(&setup)));
        let setup =
            oracle(&paper::wave(16, Rung::Prestaged, &format!("shinjuku:slice_us={slice}")));
        jobs.push(Job::new(format!("beyond-slice-{slice}-oracle"), move || tail(&setup)));
    }
    jobs
}

/// GETs over a shorter time: there are many searches.
fn short_gets(per_second: f64, overhead: Nanos) -> Load {
    let mut load = paper::gets(per_second, overhead);
    load.warmup = Nanos::from_millis(5);
    load.measure = Nanos::from_millis(15);
    load
}

/// `setup` with a link and an agent that take no time.
fn oracle(setup: &Setup) -> Setup {
    let mut setup = setup.clone();
    let costs = &mut setup.costs;
    for cost in [
        &mut costs.host_read,
        &mut costs.host_write,
        &mut costs.line_drain,
        &mut costs.posted_flight,
        &mut costs.flush,
        &mut costs.prefetch_residue,
        &mut costs.agent_access_uncached,
        &mut costs.kick_send,
        &mut costs.kick_flight,
        &mut costs.kick_receive,
        &mut costs.dma_submit,
        &mut costs.dma_flight,
        &mut costs.dma_ns_per_kib,
        &mut costs.line_transfer,
    ] {
        cost.ns = 0.0;
    }
    let machine = &mut setup.machine;
    machine.agent_message.value = 0.0;
    machine.agent_decision.value = 0.0;
    machine.agent_poll.value = 1.0;
    setup
}

/// `setup` over a link with this one-way time: reads and kicks take longer accordingly.
fn with_flight(setup: &Setup, flight_ns: u32) -> Setup {
    let mut setup = setup.clone();
    let costs = &mut setup.costs;
    let more = f64::from(flight_ns) - costs.posted_flight.ns;
    costs.posted_flight.ns = f64::from(flight_ns);
    costs.host_read.ns = 2.0 * f64::from(flight_ns);
    costs.kick_flight.ns = (costs.kick_flight.ns + more).max(f64::from(flight_ns));
    costs.dma_flight.ns = (costs.dma_flight.ns + 2.0 * more).max(f64::from(flight_ns));
    setup
}

/// `setup` with decisions copied into the host's memory ahead of time.
fn pushed(setup: &Setup) -> Setup {
    let mut setup = setup.clone();
    let decisions = &mut setup.config.decisions;
    decisions.transport = Transport::DmaAsync;
    decisions.home = Home::Host;
    (decisions.host, decisions.agent) = (Mapping::WriteBack, Mapping::WriteBack);
    setup.prefetch = false;
    setup
}

/// The p99 of a GET beside scans, at 60% of what 16 cores could serve without any overhead.
fn tail(setup: &Setup) -> Done {
    let overhead = paper::overhead(setup);
    let mean_us = 0.995 * 10.0 + 0.005 * 10_000.0;
    let load = paper::gets_and_ranges(0.6 * 16.0 / mean_us * 1e6, overhead);
    let point = probe(setup, &load);
    let p99_us = point.latency("GET").map_or(f64::NAN, |latency| latency.p99_ns as f64 / 1e3);
    Done::of([("p99_us", p99_us), ("served", point.served())])
}

fn figures(done: &ByName<'_>) -> Vec<Figure> {
    let value = |job: &str, name: &str| done.get(job)?.value(name);
    let kilo = |job: String| Some(value(&job, "saturation")? / 1e3);
    let curve = |name: &str, points: Vec<Option<[f64; 2]>>| {
        Curve::ours(name, points.into_iter().flatten().collect())
    };
    let over = |values: &[u32], job: &dyn Fn(u32) -> String, y: &dyn Fn(String) -> Option<f64>| {
        values.iter().map(|at| Some([f64::from(*at), y(job(*at))?])).collect::<Vec<_>>()
    };
    let cores = CORES.map(u32::from);
    let whole = cores.iter().copied().filter(|cores| cores % u32::from(ENCLAVE) == 0);
    let enclaves = whole.map(|cores| {
        let one = kilo(format!("beyond-cores-{ENCLAVE}"))?;
        Some([f64::from(cores), one * f64::from(cores / u32::from(ENCLAVE))])
    });
    let saturation = |id: &str, title: &str, x: &str, log_x, text: &str, curves| Figure {
        id: format!("beyond-{id}"),
        group: "beyond".to_owned(),
        title: title.to_owned(),
        x: x.to_owned(),
        y: "saturation, thousand requests per second".to_owned(),
        log_x,
        y_max: None,
        text: text.to_owned(),
        curves,
    };
    let oracle_16 = || kilo(format!("beyond-cores-{ENCLAVE}-oracle"));
    let flat =
        |values: &[u32]| values.iter().map(|at| Some([f64::from(*at), oracle_16()?])).collect();
    let depths = DEPTHS.map(u32::from);
    vec![
        saturation(
            "cores",
            "Cores for one agent, and enclaves",
            "cores",
            true,
            "One agent serves this number of cores and no more: its prestages come too late, each switch \
             costs a kick, and kicks cost the agent. Enclaves of 16 cores with an agent each do \
             not share anything, so that their sum is drawn.",
            vec![
                curve("one agent", over(&cores, &|at| format!("beyond-cores-{at}"), &kilo)),
                curve("an agent for 16 cores each", enclaves.collect()),
                curve(
                    "zero-latency oracle",
                    over(&cores, &|at| format!("beyond-cores-{at}-oracle"), &kilo),
                ),
            ],
        ),
        saturation(
            "depth",
            "Prestaging depth, 16 cores",
            "decisions left ahead of time",
            false,
            "Depth 0 is a kick for each switch.",
            vec![
                curve("Wave-16", over(&depths, &|at| format!("beyond-depth-{at}"), &kilo)),
                curve("zero-latency oracle", flat(&depths)),
            ],
        ),
        saturation(
            "latency",
            "Link latency, 16 cores: decisions pulled and pushed",
            "one way, ns",
            true,
            "Pulled: the host prefetches decisions from the NIC's memory. Pushed: the NIC copies \
             them into the host's.",
            vec![
                curve("pulled", over(&FLIGHTS_NS, &|at| format!("beyond-flight-{at}"), &kilo)),
                curve("pushed", over(&FLIGHTS_NS, &|at| format!("beyond-pushed-{at}"), &kilo)),
                curve("zero-latency oracle", flat(&FLIGHTS_NS)),
            ],
        ),
        Figure {
            y: "p99 of a GET, us".to_owned(),
            ..saturation(
                "slice",
                "Slices: a GET's tail beside scans of 10 ms",
                "slice, us",
                true,
                "At 60% of what 16 cores could serve if nothing cost anything. Short slices keep \
                 GETs from waiting, and cost preemptions: below 10 us, of the GETs themselves, which \
                 a faster link only makes more of.",
                vec![
                    curve(
                        "Wave-16",
                        over(&SLICES_US, &|at| format!("beyond-slice-{at}"), &|job| {
                            value(&job, "p99_us")
                        }),
                    ),
                    curve(
                        "zero-latency oracle",
                        over(&SLICES_US, &|at| format!("beyond-slice-{at}-oracle"), &|job| {
                            value(&job, "p99_us")
                        }),
                    ),
                ],
            )
        },
    ]
}
