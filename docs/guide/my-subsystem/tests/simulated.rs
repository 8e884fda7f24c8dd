//! The policies in virtual time, with the same result on every machine.

use my_subsystem::{SUBSYSTEM, disk::Disk, policies};
use wave_core::clock::Nanos;
use wave_core::modelled::ModelSetup;
use wave_sim::agent::PolicyText;
use wave_sim::modelled::{Outcome, simulate};
use wave_sim::paper::{Rung, wave};

/// Four arms of the paper's machine, the agent behind PCIe.
fn outcome(policy: &str, per_second: u32) -> Outcome {
    let mut setup = wave(4, Rung::Prestaged, "fifo");
    setup.agent.policy = PolicyText::of(policies::by_name, policy);
    (setup.config.subsystem, setup.config.subjects) = (SUBSYSTEM.id, 256);
    let model = ModelSetup { cores: 4, subjects: 256, per_second, seed: 1 };
    let span = [Nanos::from_millis(5), Nanos::from_millis(20)];
    simulate(&setup, Box::new(Disk::new(&model)), span).unwrap()
}

#[test]
fn serving_the_nearest_request_first_serves_more_requests() {
    let [arrival, nearest] = ["arrival", "nearest"].map(|policy| outcome(policy, 450_000));
    for outcome in [&arrival, &nearest] {
        assert_eq!((outcome.counters.lost_agents, outcome.counters.faults), (0, 0));
        // The host decides until the agent has attached.
        assert!(outcome.counters.fallback_switches <= 4, "{:?}", outcome.counters);
    }
    assert!(nearest.started > arrival.started);
    let p99 = |outcome: &Outcome| outcome.waits.value_at_quantile(0.99);
    assert!(p99(&nearest) < p99(&arrival) / 10, "{} and {} ns", p99(&nearest), p99(&arrival));
}

/// A request that still waits at the end has waited longest: a policy must not look good by never
/// serving some requests.
#[test]
fn requests_that_are_never_served_are_counted() {
    let starves = outcome("nearest:patience_us=1000000", 2_000_000);
    assert!(starves.unfinished > 50 && starves.unfinished <= starves.waiting, "{starves:?}");
    // Requests that waited when the measurement began may be served, too.
    assert!(starves.started <= starves.arrived + 256, "{starves:?}");
}

#[test]
fn the_same_setup_gives_the_same_run() {
    let hash = |load| outcome("nearest", load).trace_hash;
    assert_eq!(hash(100_000), hash(100_000));
    assert_ne!(hash(100_000), hash(100_001));
}
