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

use wave_core::clock::Nanos;
use wave_experiments::measure::{Chunks, Preempted, REST, ns_per, two_cpus};
use wave_user::{Attributes, Enclave, ThreadKind, preempt_point};
use wave_workloads::rocksdb::Database;
use wave_workloads::signal;

const CHUNKS: usize = 21;
/// Number of preemptions and of signals in a chunk.
const ROUNDS: usize = 1_000;
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
fn scans(enclave: &Enclave, database: &Arc<Database>) -> Result<(Vec<f64>, f64), String> {
    let database = Arc::clone(database);
    let body = move || -> Result<(Vec<f64>, f64), String> {
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
        Ok((overheads, Chunks::new(without_ns).median()))
    };
    let thread = enclave.spawn(0, body).map_err(|error| error.to_string())?;
    thread.join().map_err(|error| error.to_string())?
}

/// The median's 95% confidence interval, from the ranks between which it lies, for any distribution.
fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    // Of `n` values, the number below the median is binomial: 1.96 standard deviations around n / 2.
    let half = values.len() as f64 / 2.0;
    let reach = 0.98 * (values.len() as f64).sqrt();
    let low = (half - reach).floor().max(0.0) as usize;
    let high = ((half + reach).ceil() as usize).min(values.len() - 1);
    (values[low], values[high])
}

pub fn preempt() -> Result<serde_json::Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let [host, other] = two_cpus()?;
    let mut database = Database::open_in_order(None).map_err(|error| text(&error))?;
    database.fill(KEYS, 64, |_, _| {}).map_err(|error| text(&error))?;
    let database = Arc::new(database);
    let preempted = Preempted::start(host, other)?;
    let enclave = Arc::clone(preempted.enclave());
    let mut measured: [Vec<f64>; 3] = Default::default();
    for chunk in 0..=CHUNKS {
        let safe_points = preempted.preemptions(ThreadKind::User, ROUNDS)?;
        let kernel = preempted.preemptions(ThreadKind::Kernel, ROUNDS)?;
        let signals = signal::to_handler_ns(other, host, ROUNDS, REST.0);
        let signals = signals.map_err(|error| format!("the signals failed: {error}"))?;
        let signals = signals.into_iter().map(|ns| ns as f64).collect();
        // The first chunk warms up.
        if chunk > 0 {
            for (all, values) in measured.iter_mut().zip([safe_points, kernel, signals]) {
                all.push(Chunks::new(values).median());
            }
        }
    }
    let mut growths: [Vec<f64>; 2] = Default::default();
    for _ in 0..LONG_SCANS {
        for ((kind, slice), growths) in SLICES.into_iter().zip(&mut growths) {
            let alone = long_scan(&preempted, &database, kind, None)?;
            growths.push(long_scan(&preempted, &database, kind, Some(slice))? / alone - 1.0);
        }
    }
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
    let [safe_points, kernel, signals] = measured.map(Chunks::new);
    let [user_growth, kernel_growth] = growths.map(Chunks::new);
    let (overhead_lower, overhead_upper) = median_interval(overheads.clone());
    Ok(serde_json::json!({
        "bench": "preempt",
        "peer": "tgkill to a thread, until its handler runs",
        "chunks": CHUNKS,
        "preemptions_per_chunk": ROUNDS,
        "safe_point_vs_signal_ratio": signals.median() / safe_points.median(),
        "klt_vs_signal_ratio": kernel.median() / signals.median(),
        "safe_point_ns": safe_points.json(),
        "klt_ns": kernel.json(),
        "signal_ns": signals.json(),
        "range_growth_ult_30us": user_growth.json(),
        "range_growth_klt_100us": kernel_growth.json(),
        "idle_overhead": Chunks::new(overheads).median(),
        "idle_overhead_lower": overhead_lower,
        "idle_overhead_upper": overhead_upper,
        "idle_overhead_pairs": PAIRS,
        "scan_without_safe_points_ns_per_key": next_ns,
        "safe_point_alone_ns": alone,
    }))
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    use super::median_interval;

    #[test]
    fn median_interval_has_about_its_nominal_coverage() {
        let mut random = Pcg64::seed_from_u64(1);
        const TRIALS: usize = 4_000;
        const VALUES: usize = 60;
        let holds = (0..TRIALS)
            .filter(|_| {
                // A skewed distribution: the median of the square is a quarter.
                let values = (0..VALUES).map(|_| random.random::<f64>().powi(2)).collect();
                let (low, high) = median_interval(values);
                (low..=high).contains(&0.25)
            })
            .count();
        // At least 95%; a little more, because ranks are whole numbers.
        assert!((0.945..0.99).contains(&(holds as f64 / TRIALS as f64)), "{holds}");
        assert_eq!(median_interval(vec![7.0]), (7.0, 7.0));
    }
}
