//! RocksDB in a process of its own: serves GETs at a fixed rate, and reports their latencies.
//!
//! The order arrives as a line of JSON on standard input, and a second line starts the GETs; reports go as lines of JSON to
//! standard output. The process ends when its input does, and removes its database.

use std::hint::spin_loop;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use wave_process::cpus;
use wave_workloads::arrivals::Arrivals;
use wave_workloads::cpu::{monotonic_ns, yield_now};
use wave_workloads::mapping::map_touch_unmap;
use wave_workloads::recorder::{self, Latency};
use wave_workloads::rocksdb::Database;
use wave_workloads::service::Calibrated;

use super::served::NICE;
use crate::kinds::memory::scenario::Workload;

/// Interval between reports of latencies.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Bytes that the probe maps each time.
const MAP_BYTES: usize = 64 << 10;
/// Longest time until a waiting GET notices the end.
const LOOK_NS: u64 = 10_000_000;

#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The database, and the load on it.
    pub workload: Workload,
    /// Seed of arrivals and keys.
    pub seed: u64,
    /// Folder of RocksDB's tables.
    pub folder: PathBuf,
    /// CPU of the serving thread.
    pub cpu: usize,
    /// Whether agent and enclave run on it as well; then it is yielded between looks at the clock.
    pub shares_cpu: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The database is filled, and all its blocks are in the cache.
    Ready(Ready),
    /// Results of the GETs in one interval.
    Interval(Interval),
    /// The process cannot go on, and why.
    Failed(String),
}

/// A database ready for GETs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Version of the RocksDB library.
    pub version: String,
    /// Latencies of bare GETs, of keys all over the database.
    pub bare: Latency,
    /// Bytes in the block cache.
    pub held_bytes: u64,
}

/// Results since the previous interval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// End of the interval, in seconds since the first GET was due.
    pub seconds: f64,
    /// Histogram of times from when a GET was due until it was served.
    pub gets: String,
    /// Histogram of bare GETs, with the comparison of their values.
    pub raw: String,
    /// Histogram of mapping, touching and unmapping memory.
    pub maps: String,
    /// GETs with a key or value other than what was written.
    pub wrong: u64,
}

/// Serves until the input ends.
pub fn main() -> ExitCode {
    // A terminal's interrupt must not reach this process: it ends when its input does. Also, where the kernel divides CPUs by
    // session (autogroup), a nice value counts only within a session, so the session's own is set. Not every kernel does this.
    let _ = rustix::process::setsid();
    let _ = std::fs::write("/proc/self/autogroup", NICE.to_string());
    let (lines, input) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&stop);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
        end.store(true, Ordering::SeqCst);
    });
    match serve(&input, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            write_report(&Told::Failed(why));
            ExitCode::FAILURE
        }
    }
}

/// Writes a report. Returns whether anything still reads them.
fn write_report(told: &Told) -> bool {
    let line = serde_json::to_string(told).expect("reports have string keys only");
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).is_ok()
}

fn serve(input: &Receiver<String>, stop: &AtomicBool) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let line = input.recv().map_err(|_| "no order on standard input".to_owned())?;
    let Order { workload, seed, folder, cpu, shares_cpu } = serde_json::from_str(&line)
        .map_err(|error| format!("the order on standard input: {error}"))?;
    let cache_bytes = workload.cache.0 as usize;
    let database = Database::open_cached(&folder, workload.block_bytes as usize, cache_bytes);
    let mut database = database.map_err(|error| text(&error))?;
    let filled = database.fill(workload.keys, workload.value_bytes as usize, |_, _| {});
    filled.map_err(|error| text(&error))?;
    let held_bytes = database.warm().map_err(|error| text(&error))?;
    let service = Duration::from_secs_f64(workload.service_us / 1e6);
    // On a thread of its own, because pinning lasts.
    let calibrate = || {
        cpus::pin(&[cpu]).map_err(|error| text(&error))?;
        Calibrated::new(database, service).map_err(|error| text(&error))
    };
    let calibrated = std::thread::scope(|scope| scope.spawn(calibrate).join());
    let calibrated = calibrated.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let version = calibrated.database().version().to_owned();
    write_report(&Told::Ready(Ready { version, bare: *calibrated.bare(), held_bytes }));
    // Without a second line, no GETs are wanted.
    if input.recv().is_err() {
        return Ok(());
    }
    let arrivals = Arrivals::new(workload.gets_per_second, seed);
    let arrivals = arrivals.map_err(|error| text(&error))?;
    let (meter, maps) = (Mutex::new(Served::new()), Mutex::new(recorder::histogram()));
    let start_ns = monotonic_ns();
    std::thread::scope(|scope| {
        let gets = scope.spawn(|| {
            let pinned = cpus::pin(&[cpu]).map_err(|error| text(&error));
            let keys = Keys::new(&workload, seed);
            let wait = if shares_cpu { yield_now } else { spin_loop };
            pinned.and_then(|()| get_all(&calibrated, arrivals, keys, wait, start_ns, &meter, stop))
        });
        let mapper = scope.spawn(|| map_again_and_again(&workload, &maps, stop));
        let (mut served, mut mapped) = (Served::new(), recorder::histogram());
        for number in 1.. {
            let end_ns = start_ns + number * INTERVAL.as_nanos() as u64;
            while monotonic_ns() < end_ns && !stop.load(Ordering::SeqCst) {
                let left_ns = end_ns.saturating_sub(monotonic_ns());
                std::thread::sleep(Duration::from_nanos(left_ns.min(LOOK_NS)));
            }
            std::mem::swap(&mut *lock(&meter), &mut served);
            std::mem::swap(&mut *lock(&maps), &mut mapped);
            let interval = Interval {
                seconds: (monotonic_ns() - start_ns) as f64 / 1e9,
                gets: recorder::encode(&served.gets),
                raw: recorder::encode(&served.raw),
                maps: recorder::encode(&mapped),
                wrong: served.wrong,
            };
            served.clear();
            mapped.reset();
            let heard = write_report(&Told::Interval(interval));
            let over = gets.is_finished() || mapper.is_finished();
            if !heard || over || stop.load(Ordering::SeqCst) {
                break;
            }
        }
        stop.store(true, Ordering::SeqCst);
        let joined = [gets.join(), mapper.join()];
        joined
            .into_iter()
            .try_for_each(|end| end.unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// GETs since the last report.
struct Served {
    gets: Histogram<u64>,
    raw: Histogram<u64>,
    wrong: u64,
}

impl Served {
    fn new() -> Served {
        Served { gets: recorder::histogram(), raw: recorder::histogram(), wrong: 0 }
    }

    fn clear(&mut self) {
        self.gets.reset();
        self.raw.reset();
        self.wrong = 0;
    }
}

/// Serves one GET after the other, each when it is due or as soon as the previous one is done.
fn get_all(
    calibrated: &Calibrated,
    arrivals: Arrivals,
    mut keys: Keys,
    wait: fn(),
    start_ns: u64,
    meter: &Mutex<Served>,
    stop: &AtomicBool,
) -> Result<(), String> {
    for at_ns in arrivals {
        let due_ns = start_ns + at_ns;
        while monotonic_ns() < due_ns {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            wait();
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let checked = calibrated.get_checked(keys.next()).map_err(|error| error.to_string())?;
        let mut served = lock(meter);
        served.gets.saturating_record(checked.end_ns - due_ns);
        served.raw.saturating_record(checked.read_ns);
        served.wrong += u64::from(!checked.right);
    }
    Ok(())
}

/// Draws keys, mostly from the first ones in order.
struct Keys {
    random: Pcg64,
    hot: u64,
    all: u64,
    hot_gets: f64,
}

impl Keys {
    fn new(workload: &Workload, seed: u64) -> Keys {
        let hot = (workload.keys as f64 * workload.hot_keys) as u64;
        Keys {
            random: Pcg64::seed_from_u64(seed),
            hot,
            all: workload.keys,
            hot_gets: workload.hot_gets,
        }
    }

    fn next(&mut self) -> u64 {
        let is_hot = self.random.random::<f64>() < self.hot_gets;
        match (is_hot && self.hot > 0) || self.hot == self.all {
            true => self.random.random_range(0..self.hot),
            false => self.random.random_range(self.hot..self.all),
        }
    }
}

/// Maps memory at an interval. Mappings due while one took long count as if they had waited for its end.
fn map_again_and_again(
    workload: &Workload,
    maps: &Mutex<Histogram<u64>>,
    stop: &AtomicBool,
) -> Result<(), String> {
    let every = Duration::from_micros(workload.map_every_us);
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let took_ns =
            map_touch_unmap(MAP_BYTES).map_err(|error| format!("mapping memory: {error}"))?;
        let mut maps = lock(maps);
        let every_ns = workload.map_every_us * 1_000;
        (0..=took_ns / every_ns).for_each(|late| maps.saturating_record(took_ns - late * every_ns));
        drop(maps);
        next += every;
        let now = Instant::now();
        match next.checked_duration_since(now) {
            Some(rest) => std::thread::sleep(rest),
            None => next = now,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(hot_keys: f64, hot_gets: f64) -> Keys {
        Keys::new(&Workload { keys: 1_000, hot_keys, hot_gets, ..Workload::default() }, 1)
    }

    #[test]
    fn hot_keys_come_first_and_get_their_share() {
        const GETS: usize = 100_000;
        let hot = |mut keys: Keys| (0..GETS).filter(|_| keys.next() < 200).count();
        // The share's standard error is below 1 in 1,000.
        assert!(hot(keys(0.2, 0.9)).abs_diff(GETS * 9 / 10) < GETS / 100);
        assert_eq!(hot(keys(0.2, 1.0)), GETS);
        assert_eq!(hot(keys(0.2, 0.0)), 0);
        for share in [0.0, 1.0] {
            assert!((0..1_000).all(|_| keys(share, 0.5).next() < 1_000));
        }
    }
}
