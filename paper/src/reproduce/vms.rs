//! Figure 5: two virtual machines of 128 vCPUs on a socket, scheduled with and without timer ticks.
//!
//! A number of vCPUs of each machine compute; the i-th vCPUs of both take turns on core i. On the host, ticks interrupt every
//! core: busy cores lose time, and idle ones never sleep deeply, so the socket's frequency is that of all first siblings. Under
//! Wave there are no ticks.

use std::rc::Rc;

use wave_core::clock::Nanos;
use wave_sim::clocks::{Ticks, Turbo};
use wave_sim::enclave::{Enclave, Setup};
use wave_sim::paper::{Model, Rung};
use wave_sim::vcpus::Vcpus;
use wave_sim::world::World;

use super::jobs::{Done, Job};

/// Numbers of active vCPUs per machine.
pub const ACTIVE: [u16; 11] = [1, 8, 16, 24, 31, 32, 48, 63, 64, 96, 128];
/// Physical cores of the socket: with ticks, none of them sleeps deeply.
const PHYSICAL: u32 = 64;
/// The policy (7.2.4): quanta of 5 to 10 ms, checked every millisecond.
const POLICY: &str = "vm:quantum_ms=5..10";
/// One tick per millisecond. Tsafrir (ExpCS 2007) measured 0.5 to 1.5% at 1000 Hz, so 5 to 15 us each.
const TICKS: Ticks = Ticks { period: Nanos::from_millis(1), cost: Nanos::from_micros(10) };
/// Range of a tick's cost, by the same source.
const TICK_COSTS: [Nanos; 2] = [Nanos::from_micros(5), Nanos::from_micros(15)];

/// A job for each number of active vCPUs.
pub fn jobs(model: &Model) -> Vec<Job> {
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
