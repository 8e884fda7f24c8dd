//! Sample results for tests, with every optional part of a run.

use hdrhistogram::Histogram;
use wave_workloads::point::{self as measured, ClassLatency, GeneratorLag};
use wave_workloads::recorder::{Latency, encode};

use super::model::{
    Cpu, Figure, Ladder, Machine, Point, RunResult, Rung, SATURATION_LIMIT_US, VariantResult,
};

/// Four variants under six loads, like the demonstration. The third variant's last point is invalid.
pub fn load() -> RunResult {
    let variants = [
        ("Linux threads", "linux", "", 62_000.0, 19.0),
        ("on-host agent", "onhost", "shm", 75_000.0, 14.0),
        ("offload, coherent link", "offload", "model:coherent", 73_000.0, 15.5),
        ("offload, PCIe-like link", "offload", "model:mount-evans", 68_000.0, 18.0),
    ];
    let mut result = run("rocksdb-fifo", "load");
    result.variants = variants
        .into_iter()
        .map(|(name, placement, link, capacity, base_us)| {
            let loads = [10_000.0, 20_000.0, 40_000.0, 55_000.0, 65_000.0, 80_000.0];
            let mut variant = variant(name, placement, link, capacity);
            variant.points = loads.into_iter().map(|load| point(load, capacity, base_us)).collect();
            variant
        })
        .collect();
    let last = result.variants[2].points.last_mut().expect("six points");
    last.generator.valid = false;
    last.generator.why_invalid = Some("lag p99 of 212 us exceeds 50 us".into());
    result
}

/// A sample result: a ladder of six rungs.
pub fn ladder() -> RunResult {
    let rungs = [
        ("shared memory", 74_000.0),
        ("uncached on both sides", 24_000.0),
        ("+ write-back on the NIC", 43_000.0),
        ("+ WC and WT on the host", 55_000.0),
        ("+ prestage and prefetch", 68_000.0),
        ("+ decisions pushed to the host", 71_000.0),
    ];
    let mut result = run("ladder", "ladder");
    result.variants = rungs
        .into_iter()
        .map(|(name, rate)| {
            let mut variant = variant(name, "offload", "model:mount-evans", rate);
            variant.points = vec![point(rate * 0.95, rate, 15.0), point(120_000.0, rate, 15.0)];
            variant
        })
        .collect();
    let figure = |value: f64| Figure { value, interval: Some((value * 0.99, value * 1.01)) };
    let rung = |at: usize| {
        let (name, rate) = rungs[at];
        Rung {
            name: name.into(),
            per_second: figure(rate),
            rounds_per_second: vec![rate; 24],
            of_first: (at > 0).then(|| figure(rate / rungs[0].1)),
            of_previous: (at > 1).then(|| figure(rate / rungs[at - 1].1)),
            is_confirmed: true,
        }
    };
    result.ladder = Some(Ladder {
        rounds: 24,
        offered_per_second: 120_000.0,
        confirmed_at: 0.95,
        rungs: (0..rungs.len()).map(rung).collect(),
        conclusion: "\"+ decisions pushed to the host\" serves 71.0 k/s.".into(),
    });
    result
}

fn run(scenario: &str, kind: &str) -> RunResult {
    RunResult {
        scenario: scenario.into(),
        host: "user".into(),
        kind: kind.into(),
        description: "RocksDB GETs under FIFO scheduling, decided in several places.".into(),
        limit_us: SATURATION_LIMIT_US,
        seed: 1,
        version: "0.1.0".into(),
        machine: Machine { cpus: 4, model: "Example CPU".into(), kernel: "6.12.0".into() },
        seating: "cpu 0: generator; cpu 1: worker; cpu 2: agent".into(),
        started: "2026-01-02T03:04:05Z".into(),
        variants: Vec::new(),
        paired: None,
        ladder: None,
        facts: vec![("UC read 750 ns".into(), "printed (Wave, Table 2)".into())],
        extra: serde_json::json!({ "kills": 20, "lost": 0 }),
    }
}

fn variant(name: &str, placement: &str, link: &str, rate: f64) -> VariantResult {
    VariantResult {
        name: name.into(),
        placement: placement.into(),
        link: link.into(),
        policy: if placement == "linux" { String::new() } else { "fifo".into() },
        workers: 1,
        points: Vec::new(),
        saturation_per_second: Some(rate),
        not_measurable: None,
        saturation_by_limit: vec![(100, rate * 0.93), (300, rate), (1000, rate * 1.02)],
        limits_not_measurable: Vec::new(),
        account: vec![
            ("service".into(), 10_000.0),
            ("message".into(), 300.0 * 75_000.0 / rate),
            ("wait for the decision".into(), 1100.0 * 75_000.0 / rate),
            ("switch".into(), 480.0),
        ],
        account_per_second: Some(rate * 0.95),
        preemptions: None,
        compared: None,
    }
}

/// A queue that is nearly full near `capacity`, and exponential tails.
fn point(offered: f64, capacity: f64, base_us: f64) -> Point {
    let busy = (offered / capacity).min(0.985);
    let achieved = offered.min(capacity);
    let mean_wait_us = if offered > capacity { 4000.0 } else { 6.0 * busy / (1.0 - busy) };
    let mut histogram = Histogram::<u64>::new(3).expect("three digits are allowed");
    let count: u64 = 40_000;
    for index in 0..count {
        let rank = (index as f64 + 0.5) / count as f64;
        let us = base_us * (1.0 + 0.05 * rank) - mean_wait_us * (1.0 - rank).ln();
        histogram.record((us * 1e3) as u64).expect("it resizes");
    }
    let sent = (offered * 1.2) as u64;
    let measured = measured::Point {
        offered_per_second: offered,
        achieved_per_second: achieved,
        sent,
        done: (sent as f64 * achieved / offered) as u64,
        refused: 0,
        duration_s: 1.2,
        classes: vec![ClassLatency {
            name: "GET".into(),
            latency: Latency::of(&histogram),
            histogram: encode(&histogram),
        }],
        generator: GeneratorLag {
            lag_p50_ns: 300,
            lag_p99_ns: 2_000,
            lag_max_ns: 30_000,
            valid: true,
            why_invalid: None,
        },
    };
    Point {
        measured,
        outcomes: vec![("complete".into(), sent), ("stale".into(), 3)],
        cpu: Cpu { host_useful_percent: busy * 95.0, host_poll_percent: 4.0, agent_percent: 60.0 },
    }
}
