//! Figure 5: two virtual machines of 128 vCPUs on a socket, scheduled with and without timer ticks.
//!
//! A number of vCPUs of each machine compute; the i-th vCPUs of both take turns on core i. On the host, ticks interrupt every
//! core: busy cores lose time, and idle ones never sleep deeply, so the socket's frequency is that of all first siblings. Under
//! Wave there are no ticks.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_sim::clocks::{Ticks, Turbo};
use wave_sim::enclave::{Enclave, Setup};
use wave_sim::paper::{HOST_GHZ, Model, Rung};
use wave_sim::vcpus::Vcpus;
use wave_sim::world::World;

use super::figures::{Curve, Figure};
use super::group::{Group, Ours};
use super::jobs::{ByName, Done, Job};
use super::rows::Kind;

/// Numbers of active vCPUs per machine.
const ACTIVE: [u16; 11] = [1, 8, 16, 24, 31, 32, 48, 63, 64, 96, 128];
/// Physical cores of the socket: with ticks, none of them sleeps deeply.
const PHYSICAL: u32 = 64;
/// The policy (7.2.4): quanta of 5 to 10 ms, checked every millisecond.
const POLICY: &str = "vm:quantum_ms=5..10";
/// One tick per millisecond. Tsafrir (ExpCS 2007) measured 0.5 to 1.5% at 1000 Hz, so 5 to 15 us each.
const TICKS: Ticks = Ticks { period: Nanos::from_millis(1), cost: Nanos::from_micros(10) };
/// Range of a tick's cost, by the same source.
const TICK_COSTS: [Nanos; 2] = [Nanos::from_micros(5), Nanos::from_micros(15)];

// Inputs: the policy's quanta, the table's highest frequency, and numbers of active vCPUs.
pub(super) const FIGURE_5A: Group = Group {
    id: "fig5a",
    title: "Figure 5a",
    about: "the conditions of the virtual machines' experiment",
    is_seeded: false,
    jobs: |_| Vec::new(),
    figures: |_| Vec::new(),
    rows: &[
        Ours::new("fig5a-tick-period", Kind::Assumed, |_| Some(1.0)),
        Ours::new("fig5a-quantum", Kind::Assumed, |_| Some(10.0)),
        Ours::new("fig5a-frequency", Kind::Assumed, |_| Some(HOST_GHZ)),
        Ours::new("fig5a-smaller-boost-from", Kind::Assumed, |_| Some(32.0)),
        Ours::new("fig5a-second-siblings-from", Kind::Assumed, |_| Some(64.0)),
        Ours::new("fig5a-no-boost-at", Kind::Assumed, |_| Some(128.0)),
    ],
};

pub(super) const FIGURE_5B: Group = Group {
    id: "fig5b",
    title: "Figure 5b",
    about: "virtual machines: what is gained without timer ticks",
    is_seeded: false,
    jobs,
    figures: |done| vec![virtual_machines(done)],
    rows: &[
        Ours::new("fig5b-gain-1", Kind::Predicted, |done| done.value("fig5-1", "gain")).within(|done| uncertain(done, "fig5-1", 1.0)).why("Rests on a turbo table that AMD does not publish (data/turbo.toml, each step within 5%), and on idle cores that ticks keep from sleeping deeply counting as active."),
        Ours::new("fig5b-gain-31", Kind::Predicted, |done| done.value("fig5-31", "gain")).within(|done| uncertain(done, "fig5-31", 1.0)).why("Rests on a turbo table that AMD does not publish (data/turbo.toml, each step within 5%), and on idle cores that ticks keep from sleeping deeply counting as active."),
        Ours::new("fig5b-gain-128", Kind::Predicted, |done| done.value("fig5-128", "gain")).within(|done| uncertain(done, "fig5-128", 1.0)).why("No turbo is left here, so this is what ticks take: we assume 10 us each, the middle of what Tsafrir (ExpCS 2007) measured; the paper's 1.7% would be 17 us, which a guest's exit and entry may explain."),
        Ours::new("fig5b-cores-saved", Kind::Predicted, |done| Some(done.value("fig5-128", "gain")? / 100.0 * 256.0)).within(|done| uncertain(done, "fig5-128", 2.56)).why("No turbo is left here, so this is what ticks take: we assume 10 us each, the middle of what Tsafrir (ExpCS 2007) measured; the paper's 1.7% would be 17 us, which a guest's exit and entry may explain."),
        Ours::new("fig5b-gain-slides", Kind::Predicted, |done| done.value("fig5-1", "gain")).within(|done| uncertain(done, "fig5-1", 1.0)).why("Rests on a turbo table that AMD does not publish (data/turbo.toml, each step within 5%), and on idle cores that ticks keep from sleeping deeply counting as active."),
    ],
};

/// What the uncertainty of a job's inputs leaves open, in this many units of its gain.
fn uncertain(done: &ByName<'_>, job: &str, times: f64) -> Option<[f64; 2]> {
    Some([times * done.value(job, "gain_low")?, times * done.value(job, "gain_high")?])
}

/// A job for each number of active vCPUs.
fn jobs(model: &Model) -> Vec<Job> {
    let job = |active: u16| {
        let model = model.clone();
        Job::new(format!("fig5-{active}"), move || {
            let turbo = Turbo::milan();
            let awake = u32::from(active).max(PHYSICAL);
            let (quiet, ticking) = (turbo.at(u32::from(active)), turbo.at(awake));
            let on_host = model.on_host(active, false, POLICY);
            let mut wave = model.wave(active, Rung::HostCombining, POLICY);
            wave.prefetch = false;
            let with_ticks = work(&on_host, active, Some(TICKS), ticking.ghz);
            let without = work(&wave, active, None, quiet.ghz);
            let gain = |ratio: f64| 100.0 * (without / with_ticks * ratio - 1.0);
            // Share of a core left by ticks of that cost, relative to our assumption.
            let left = |cost: Nanos| {
                let share = |cost: Nanos| cost.0 as f64 / TICKS.period.0 as f64;
                (1.0 - share(cost)) / (1.0 - share(TICKS.cost))
            };
            // If both frequencies are the same step, its error cancels out.
            let is_same = std::ptr::eq(quiet, ticking) || quiet.ghz == ticking.ghz;
            let [low, high] = if is_same {
                [1.0; 2]
            } else {
                let (q, t) = (quiet.uncertainty, ticking.uncertainty);
                [(1.0 - q) / (1.0 + t), (1.0 + q) / (1.0 - t)]
            };
            Done::of([
                ("gain", gain(1.0)),
                ("gain_low", gain(low / left(TICK_COSTS[0]))),
                ("gain_high", gain(high / left(TICK_COSTS[1]))),
                ("ghz", quiet.ghz),
                ("ghz_ticking", ticking.ghz),
            ])
        })
    };
    ACTIVE.into_iter().map(job).collect()
}

/// Cycles that both machines' vCPUs received, per nanosecond.
fn work(setup: &Setup, active: u16, ticks: Option<Ticks>, ghz: f64) -> f64 {
    // Long compared with a quantum, because unfinished runs are not counted.
    let (warmup, measure) = (Nanos::from_millis(20), Nanos::from_millis(2_000));
    let world = World::new();
    let app = Vcpus::new(2 * u32::from(active), Ticks::pace(ticks, ghz), warmup);
    let enclave = Enclave::new(&world, setup.clone(), Rc::clone(&app) as _);
    enclave.expect("the paper's setups can be laid out").start_agent();
    world.run_until(warmup + measure);
    let work = app.work() / measure.0 as f64;
    world.end();
    work
}
fn virtual_machines(done: &ByName<'_>) -> Figure {
    let jobs = ACTIVE.iter().filter_map(|active| {
        let done = done.get(format!("fig5-{active}").as_str())?;
        Some((
            f64::from(*active),
            done.value("gain")?,
            done.value("gain_low")?,
            done.value("gain_high")?,
        ))
    });
    let jobs: Vec<_> = jobs.collect();
    let ours = Curve {
        name: "Wave over On-Host, with its inputs' uncertainty".to_owned(),
        points: jobs.iter().map(|(active, gain, ..)| [*active, *gain]).collect(),
        band: jobs.iter().map(|(_, _, low, high)| [*low, *high]).collect(),
        paper: false,
    };
    let paper = Curve::paper("paper", vec![[1.0, 11.2], [31.0, 9.7], [128.0, 1.7]]);
    Figure {
        id: "fig5b".to_owned(),
        group: "fig5b".to_owned(),
        title: "Figure 5b: virtual machines without timer ticks".to_owned(),
        x: "active vCPUs of each machine".to_owned(),
        y: "more work done, %".to_owned(),
        log_x: false,
        y_max: None,
        text: "Turbo frequencies are from a table that was not fitted to this figure; the band is \
               what its uncertainty, and that of a tick's cost (5 to 15 us), make of the result."
            .to_owned(),
        curves: vec![ours, paper],
    }
}
