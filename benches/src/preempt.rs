//! `wave bench preempt`: preemption at a safe point and by a signal, against a signal to its handler.
//!
//! One host core runs a user-level thread that passes safe points all the time, or a kernel-level thread that
//! passes none. The agent, on the other CPU, preempts it now and then. A preemption lasts from just before the
//! agent's step that writes the preemption word until the core has the thread back. The peer is tgkill(2) from a
//! thread pinned to the agent's CPU to a thread pinned to the host core's, until the handler's first instruction.
//!
//! The cost of safe points without preemption is measured by pairs of RocksDB scans in a user-level thread: one
//! scan passes a safe point after each key, the other passes none. The cost of preemption is measured by scans as
//! well, on both kinds of threads: one scan is preempted after each slice, the other is not. The measure is the
//! time on the core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wave_compare::{PerRound, in_turns};
use wave_core::clock::Nanos;
use wave_experiments::measure::{Preempted, REST, ns_per};
use wave_process::cpus;
use wave_user::{Attributes, Enclave, ThreadKind, preempt_point};
use wave_workloads::rocksdb::Database;
use wave_workloads::signal;

use crate::SEED;
use crate::bench::{Bench, Figure, without_arguments};

pub static BENCH: Bench = Bench {
    name: "preempt",
    about: "Preemption at safe points and of kernel-level threads, against the delivery of a signal to its handler",
    help: "safe_point_ns, klt_ns: from before the agent's request until the core has the thread back; signal_ns: from
tgkill(2) to the handler. safe_point_vs_signal_ratio is signal over safe point (higher is better),
klt_vs_signal_ratio kernel-level thread over signal (lower is better). range_growth_*: how much more core
time a scan of RocksDB takes that is preempted every 30 us at safe points (ult), or every 100 us on a
kernel-level thread (klt), as a share: 0.01 is 1%. idle_overhead: how much longer a scan takes with a safe
point after each key and nothing to preempt, as a share. If p5 and p95 are far apart, something else used the
CPUs: run again.",
    figures: &[
        Figure::of("safe_point_vs_signal_ratio").measured("signal to its handler / preemption at a safe point"),
        Figure::of("klt_vs_signal_ratio").measured("preemption of a kernel-level thread / signal to its handler"),
        Figure::of("idle_overhead").measured("a safe point that preempts nothing, of a scan's time"),
    ],
    short: &[],
    has_two_cpus: true,
    arguments: without_arguments,
    run: |_, _| preempt(),
};

const CHUNKS: usize = 21;
/// Number of preemptions and of signals in a chunk.
const PREEMPTIONS: usize = 1_000;
/// Slices of long scans, by kind of thread.
const SLICES: [(ThreadKind, Nanos); 2] =
    [(ThreadKind::User, Nanos::from_micros(30)), (ThreadKind::Kernel, Nanos::from_micros(100))];
/// Number of long scans per variant, and of keys that each reads in some ten milliseconds.
const LONG_SCANS: usize = 31;
const KEYS_PER_LONG_SCAN: u64 = 60_000;
const KEYS: u64 = 100_000;
/// Number of pairs of scans, and of keys that each scan reads: so few that most scans end undisturbed.
const PAIRS: usize = 1_000;
const KEYS_PER_SCAN: u64 = 4_000;

/// Nanoseconds of core time of a long scan, preempted after each `slice` if there is one.
fn long_scan(
    preempted: &Preempted,
    database: &Arc<Database>,
    kind: ThreadKind,
    slice: Option<Nanos>,
) -> Result<f64, String> {
    let database = Arc::clone(database);
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let enclave = preempted.enclave();
    let busy = || enclave.stats().cores[0].busy.0;
    preempted.slices(slice);
    let before = busy();
    let body = move || {
        let mut left = KEYS_PER_LONG_SCAN;
        database.scan(0, |_, value| {
            std::hint::black_box(value.first());
            left -= 1;
            preempt_point();
            left > 0
        })
    };
    let thread = enclave.spawn(Attributes { class: 0, kind }, body);
    let thread = thread.map_err(|error| text(&error))?;
    thread.join().map_err(|error| text(&error))?.map_err(|error| text(&error))?;
    preempted.slices(None);
    // The last run is counted once the thread has ended.
    while enclave.alive() > 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(1));
    Ok((busy() - before) as f64)
}

/// Nanoseconds of one scan. The variants with and without safe points are compiled separately.
fn scan<const PASSES: bool>(database: &Database, first: u64) -> Result<f64, String> {
    let start = Instant::now();
    let mut left = KEYS_PER_SCAN;
    let scanned = database.scan(first, |_, value| {
        std::hint::black_box(value.first());
        left -= 1;
        if PASSES {
            preempt_point();
        }
        left > 0
    });
    scanned.map_err(|error| error.to_string())?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// For each pair of scans, the overhead of a safe point after each key, as a share; and the
/// nanoseconds per key without safe points.
fn scans(enclave: &Enclave, database: &Arc<Database>) -> Result<(PerRound, f64), String> {
    let database = Arc::clone(database);
    let body = move || -> Result<(PerRound, f64), String> {
        let mut without_ns = Vec::with_capacity(PAIRS);
        let mut overheads = Vec::with_capacity(PAIRS);
        for pair in 0..PAIRS {
            let from = pair as u64 * KEYS_PER_SCAN % KEYS;
            // In alternating order, so that neither variant gains from being first.
            let (with, without) = if pair % 2 == 0 {
                let with = scan::<true>(&database, from)?;
                (with, scan::<false>(&database, from)?)
            } else {
                let without = scan::<false>(&database, from)?;
                (scan::<true>(&database, from)?, without)
            };
            overheads.push(with / without - 1.0);
            without_ns.push(without / KEYS_PER_SCAN as f64);
        }
        Ok((overheads.into_iter().collect(), without_ns.into_iter().collect::<PerRound>().median()))
    };
    let thread = enclave.spawn(0, body).map_err(|error| error.to_string())?;
    thread.join().map_err(|error| error.to_string())?
}

pub fn preempt() -> Result<serde_json::Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let [host, other] = cpus::two()?;
    let mut database = Database::open_in_order(None).map_err(|error| text(&error))?;
    database.fill(KEYS, 64, |_, _| {}).map_err(|error| text(&error))?;
    let database = Arc::new(database);
    let preempted = Preempted::start(host, other)?;
    let enclave = Arc::clone(preempted.enclave());
    let measured: [Vec<f64>; 3] = in_turns(SEED, 1, CHUNKS, |row| {
        let took: PerRound = match row {
            0 => preempted.preemptions(ThreadKind::User, PREEMPTIONS)?.into_iter().collect(),
            1 => preempted.preemptions(ThreadKind::Kernel, PREEMPTIONS)?.into_iter().collect(),
            _ => {
                let signals = signal::to_handler_ns(other, host, PREEMPTIONS, REST.0);
                let signals = signals.map_err(|error| format!("the signals failed: {error}"))?;
                signals.into_iter().map(|ns| ns as f64).collect()
            }
        };
        Ok::<_, String>(took.median())
    })?;
    let scanned: [Vec<f64>; 4] = in_turns(SEED, 0, LONG_SCANS, |row| {
        let (kind, slice) = SLICES[row / 2];
        long_scan(&preempted, &database, kind, (row % 2 == 1).then_some(slice))
    })?;
    let (overheads, next_ns) = scans(&enclave, &database)?;
    let alone = enclave.spawn(0, || {
        const POINTS: usize = 1_000_000;
        ns_per(POINTS, || {
            for _ in 0..POINTS {
                preempt_point();
            }
        })
    });
    let alone = alone.map_err(|error| text(&error))?.join().map_err(|error| text(&error))?;
    drop(enclave);
    preempted.end()?;
    let [safe_points, kernel, signals] = measured.map(PerRound::from_iter);
    let [user, user_preempted, kernel_alone, kernel_preempted] = scanned.map(PerRound::from_iter);
    let growth = |preempted: &PerRound, alone| preempted.over(alone).map(|ratio| ratio - 1.0);
    Ok(serde_json::json!({
        "bench": "preempt",
        "peer": "tgkill to a thread, until its handler runs",
        "chunks": CHUNKS,
        "preemptions_per_chunk": PREEMPTIONS,
        "safe_point_vs_signal_ratio": signals.over(&safe_points).estimate(),
        "klt_vs_signal_ratio": kernel.over(&signals).estimate(),
        "safe_point_ns": safe_points.spread(),
        "klt_ns": kernel.spread(),
        "signal_ns": signals.spread(),
        "range_growth_ult_30us": growth(&user_preempted, &user).estimate(),
        "range_growth_klt_100us": growth(&kernel_preempted, &kernel_alone).estimate(),
        "idle_overhead": overheads.estimate(),
        "idle_overhead_pairs": PAIRS,
        "scan_without_safe_points_ns_per_key": next_ns,
        "safe_point_alone_ns": alone,
    }))
}
