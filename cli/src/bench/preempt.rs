//! `wave bench preempt`: preemption at a safe point and by a signal, against a signal to its handler.
//!
//! One host core runs a user-level thread that passes safe points without end, or a kernel-level one that
//! passes none. The agent, on the other CPU, asks for the end of its run now and then; counted is from
//! before the agent's step that writes the word until the core has the thread back. The peer is tgkill(2)
//! from one thread, pinned to the agent's CPU, to another, pinned to the host core's, until the handler's
//! first instruction.
//!
//! What the machinery costs with nothing to preempt is told from scans of RocksDB in a user-level thread,
//! in pairs: one passes a safe point after each key, one none. What preemption costs is told from scans as
//! well, on either kind: of so many keys, preempted after each slice and left alone. Counted is the
//! time on the core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_agent::{Seat, attach, run};
use wave_core::clock::{Clock, Nanos};
use wave_core::message::{Decision, Message};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Preemption, Progress};
use wave_core::snapshot::Snapshot;
use wave_links::places;
use wave_sched::policies::fifo::Fifo;
use wave_user::{Attributes, Enclave, Mode, MonotonicClock, Options, ThreadKind, preempt_point};
use wave_workloads::rocksdb::Database;
use wave_workloads::signal;

use super::{Chunks, ns_per, pin, two_cpus};

const CHUNKS: usize = 21;
/// Preemptions and signals in a chunk.
const ROUNDS: usize = 1_000;
/// Between two of them.
const REST: Nanos = Nanos::from_micros(20);
/// Slices of long scans, on each kind of threads.
const SLICES: [(ThreadKind, Nanos); 2] =
    [(ThreadKind::User, Nanos::from_micros(30)), (ThreadKind::Kernel, Nanos::from_micros(100))];
/// Long scans of each sort, and keys that each reads: some ten milliseconds.
const LONG_SCANS: usize = 31;
const KEYS_PER_LONG_SCAN: u64 = 60_000;
const KEYS: u64 = 100_000;
/// Pairs of scans, and keys that each reads: so few that most scans end before anything disturbs them.
const PAIRS: usize = 1_000;
const KEYS_PER_SCAN: u64 = 4_000;

/// What policy and measured thread tell each other.
#[derive(Default)]
struct Exchange {
    /// Whether runs are to be ended.
    preempts: AtomicBool,
    /// After how long; 0 if each only when the thread has taken note of the one before.
    slice_ns: AtomicU64,
    /// When the last preemption was asked for; 0 while the thread has not been asked, or is back.
    asked_ns: AtomicU64,
}

/// FIFO that ends every run, a while after the one before.
struct Ender {
    fifo: Fifo,
    exchange: Arc<Exchange>,
    /// When the run that is known to be there is to be ended; none if none is.
    end: Option<Nanos>,
}

impl Ender {
    fn slice(&self) -> Option<Nanos> {
        let slice = self.exchange.slice_ns.load(Ordering::Relaxed);
        (slice != 0).then_some(Nanos(slice))
    }
}

impl Policy for Ender {
    fn name(&self) -> &'static str {
        "ender"
    }

    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.end = None;
        self.fifo.on_message(now, message);
    }

    fn on_outcome(&mut self, now: Nanos, core: u16, of: &Decision, outcome: Outcome) {
        self.fifo.on_outcome(now, core, of, outcome);
        self.end = (outcome.code == Code::Complete).then(|| now + self.slice().unwrap_or(REST));
    }

    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        let progress = self.fifo.decide(now, desk);
        let Exchange { preempts, asked_ns, .. } = &*self.exchange;
        if preempts.load(Ordering::Acquire)
            && self.end.is_some_and(|end| end <= now)
            && (self.slice().is_some() || asked_ns.load(Ordering::Acquire) == 0)
        {
            self.end = None;
            asked_ns.store(MonotonicClock.now().0, Ordering::Release);
            desk.preempt(Preemption { core: 0, run: desk.run(0) });
        }
        progress
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.end.filter(|_| self.exchange.preempts.load(Ordering::Acquire))
    }

    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.fifo.resync(now, snapshot);
    }
}

/// One host core with an agent that ends its runs, on another CPU.
pub struct Preempted {
    enclave: Arc<Enclave>,
    exchange: Arc<Exchange>,
    agent: JoinHandle<Result<(), String>>,
}

impl Preempted {
    /// Starts both, each on the CPU of this number.
    pub fn start(host: usize, agents: usize) -> Result<Preempted, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let socket = places::socket("preempt").map_err(|error| text(&error))?;
        let mut options = Options::new(socket);
        options.cpus = vec![host];
        options.config.subjects = 16;
        options.config.spin = Nanos::from_micros(50);
        options.kernel_threads = 2;
        // While the signals have the host core's CPU, nothing is decided; that is nobody's fault.
        options.config.patience = Nanos::from_millis(60_000);
        let enclave = Arc::new(Enclave::start(options).map_err(|error| text(&error))?);
        let attached = attach(enclave.socket()).map_err(|error| text(&error))?;
        let exchange = Arc::new(Exchange::default());
        let policy = Ender {
            fifo: Fifo::new(&attached.layout.config),
            exchange: Arc::clone(&exchange),
            end: None,
        };
        let agent = std::thread::spawn(move || {
            let _ = pin(agents);
            run(attached, policy, (), Seat::Own).map(drop).map_err(|error| error.to_string())
        });
        while enclave.stats().mode != Mode::Agent {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Preempted { enclave, exchange, agent })
    }

    /// Nanoseconds of each of so many preemptions of a thread that does nothing but pass safe points, which
    /// mean nothing to a kernel-level one.
    pub fn preemptions(&self, kind: ThreadKind, rounds: usize) -> Result<Vec<f64>, String> {
        let (host, told) = (Arc::clone(&self.enclave), Arc::clone(&self.exchange));
        let body = move || {
            let mut took = Vec::with_capacity(rounds);
            told.preempts.store(true, Ordering::Release);
            while took.len() < rounds {
                let is_asked = told.asked_ns.load(Ordering::Acquire) != 0;
                // One that is preempted anywhere has to find out.
                if preempt_point() || (kind == ThreadKind::Kernel && is_asked) {
                    let asked_ns = told.asked_ns.load(Ordering::Acquire);
                    let back = host.stats().cores[0].preempted_at;
                    if back > Nanos(asked_ns) {
                        took.push(back.since(Nanos(asked_ns)).0 as f64);
                        told.asked_ns.store(0, Ordering::Release);
                    }
                }
            }
            told.preempts.store(false, Ordering::Release);
            took
        };
        let attributes = Attributes { class: 0, kind };
        let thread = self.enclave.spawn(attributes, body).map_err(|error| error.to_string())?;
        let took = thread.join().map_err(|error| error.to_string())?;
        self.exchange.asked_ns.store(0, Ordering::Release);
        Ok(took)
    }

    /// Nanoseconds that a long scan takes of its core, preempted after each `slice` if there is one.
    fn long_scan(
        &self,
        database: &Arc<Database>,
        kind: ThreadKind,
        slice: Option<Nanos>,
    ) -> Result<f64, String> {
        let database = Arc::clone(database);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let busy = || self.enclave.stats().cores[0].busy.0;
        self.exchange.slice_ns.store(slice.map_or(0, |slice| slice.0), Ordering::Release);
        self.exchange.preempts.store(slice.is_some(), Ordering::Release);
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
        let thread = self.enclave.spawn(Attributes { class: 0, kind }, body);
        let thread = thread.map_err(|error| text(&error))?;
        thread.join().map_err(|error| text(&error))?.map_err(|error| text(&error))?;
        self.exchange.preempts.store(false, Ordering::Release);
        self.exchange.slice_ns.store(0, Ordering::Release);
        // Its last run is counted when it has ended.
        while self.enclave.alive() > 0 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok((busy() - before) as f64)
    }

    /// Ends both. An error if the agent had not decided everything.
    pub fn end(self) -> Result<(), String> {
        let stats = self.enclave.stats();
        let by_fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
        if stats.lost_agents != 0 || by_fallback != 0 {
            return Err(format!("the agent was lost, and {by_fallback} switches were not its own"));
        }
        drop(self.enclave);
        self.agent.join().map_err(|_| "the agent panicked".to_owned())?
    }
}

/// Nanoseconds of one scan. Each way is compiled by itself.
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

/// How much longer scans take that pass a safe point after each key, of pairs of scans; and
/// nanoseconds per key without.
fn scans(enclave: &Enclave, database: &Arc<Database>) -> Result<(Vec<f64>, f64), String> {
    let database = Arc::clone(database);
    let body = move || -> Result<(Vec<f64>, f64), String> {
        let mut without_ns = Vec::with_capacity(PAIRS);
        let mut overheads = Vec::with_capacity(PAIRS);
        for pair in 0..PAIRS {
            let from = pair as u64 * KEYS_PER_SCAN % KEYS;
            // In turn, so that neither gains from being first.
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

/// The median's 95% interval: by the ranks between which it lies, whatever the distribution.
fn median_interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    // Of `n` values, the number below the median is binomial: 1.96 standard deviations around n / 2.
    let half = values.len() as f64 / 2.0;
    let reach = 0.98 * (values.len() as f64).sqrt();
    let low = (half - reach).floor().max(0.0) as usize;
    let high = ((half + reach).ceil() as usize).min(values.len() - 1);
    (values[low], values[high])
}

/// Runs the bench.
pub fn preempt(_quiet: bool) -> Result<serde_json::Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let [host, other] = two_cpus()?;
    let mut database = Database::open_in_order(None).map_err(|error| text(&error))?;
    database.fill(KEYS, 64, |_, _| {}).map_err(|error| text(&error))?;
    let database = Arc::new(database);
    let preempted = Preempted::start(host, other)?;
    let enclave = Arc::clone(&preempted.enclave);
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
            let alone = preempted.long_scan(&database, kind, None)?;
            growths.push(preempted.long_scan(&database, kind, Some(slice))? / alone - 1.0);
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
    fn the_interval_holds_the_median_about_as_often_as_it_says() {
        let mut random = Pcg64::seed_from_u64(1);
        const TRIALS: usize = 4_000;
        const VALUES: usize = 60;
        let holds = (0..TRIALS)
            .filter(|_| {
                // Skewed: the median of the square is a quarter.
                let values = (0..VALUES).map(|_| random.random::<f64>().powi(2)).collect();
                let (low, high) = median_interval(values);
                (low..=high).contains(&0.25)
            })
            .count();
        // 95% and no less; by whole ranks a little more.
        assert!((0.945..0.99).contains(&(holds as f64 / TRIALS as f64)), "{holds}");
        assert_eq!(median_interval(vec![7.0]), (7.0, 7.0));
    }
}
