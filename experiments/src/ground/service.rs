//! The service of a request: a GET from RocksDB, extended to its class's service time, or a RANGE.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use wave_process::cpus;
use wave_workloads::arrivals::Mix;
use wave_workloads::generator::Request;
use wave_workloads::recorder::Recorder;
use wave_workloads::rocksdb::{self, Database};
use wave_workloads::service::{self, Calibrated, Clock, Served};

use super::Failure;
use crate::kinds::requests::scenario::{Class, Operation, Workload};
use wave_terminal::{Progress, interrupt};

/// A filled database, and the service time of each class.
#[derive(Debug)]
pub struct Service {
    calibrated: Calibrated,
    classes_ns: Vec<u64>,
    operations: Vec<Operation>,
}

impl Service {
    /// Opens and fills RocksDB, and measures bare GETs on `cpu`, one of the host cores' CPUs.
    pub fn open(workload: &Workload, cpu: usize, progress: &Progress) -> Result<Service, Failure> {
        progress.begin(&format!("filling RocksDB with {} keys", workload.keys));
        let database = fill(workload).map_err(|error| match error {
            rocksdb::Error::Library(_) => Failure::cannot(error),
            error => Failure::Cannot(format!(
                "{error}\nRocksDB needs some memory in /dev/shm: see `df -h /dev/shm`"
            )),
        })?;
        progress.end();
        progress.begin("calibrating the GET");
        let service_ns = |class: &Class| (workload.service_us(class) * 1e3).round() as u64;
        let classes_ns: Vec<u64> = workload.classes.iter().map(service_ns).collect();
        let operations: Vec<_> = workload.classes.iter().map(|class| class.operation).collect();
        let gets = classes_ns.iter().zip(&operations).filter(|(_, of)| **of == Operation::Get);
        let shortest_ns = gets.map(|(&ns, _)| ns).min().unwrap_or(u64::MAX);
        // On a thread of its own, because pinning lasts.
        let calibrate = move || {
            cpus::pin(&[cpu]).map_err(Failure::cannot)?;
            Calibrated::new(database, Duration::from_nanos(shortest_ns)).map_err(Failure::cannot)
        };
        let calibrated = std::thread::spawn(calibrate).join();
        let calibrated = calibrated.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        progress.end();
        Ok(Service { calibrated, classes_ns, operations })
    }

    /// Serves a request of the class with this index; it can be preempted wherever the enclave's agent asks for it.
    #[inline]
    fn serve(&self, class: usize, key: u64, clock: Clock) -> Result<Served, rocksdb::Error> {
        let (database, service_ns) = (self.calibrated.database(), self.classes_ns[class]);
        let preempt_point = wave_user::preempt_point;
        match self.operations[class] {
            Operation::Get => service::get(database, key, service_ns, clock, preempt_point),
            Operation::Range => service::range(database, key, service_ns, clock, preempt_point),
        }
    }

    pub fn database(&self) -> &Database {
        self.calibrated.database()
    }

    /// Whether some class is a RANGE, for which the database must be scannable.
    pub fn has_ranges(&self) -> bool {
        self.operations.contains(&Operation::Range)
    }

    /// Mean service time of requests other than RANGEs, given the number of requests of each class.
    pub fn other_ns(&self, counts: &[u64]) -> f64 {
        let classes = self.classes_ns.iter().zip(&self.operations).zip(counts);
        let others = classes.filter(|((_, of), _)| **of != Operation::Range);
        let (sum, count) = others.fold((0.0, 0), |(sum, all), ((ns, _), count)| {
            (sum + *ns as f64 * *count as f64, all + count)
        });
        sum / count.max(1) as f64
    }

    /// Service time of each class, in nanoseconds.
    pub fn classes_ns(&self) -> &[u64] {
        &self.classes_ns
    }

    /// Facts about the database and the service times, for the report.
    pub fn facts(&self) -> Vec<(String, String)> {
        let bare = self.calibrated.bare();
        let mut facts = vec![
            (
                format!("RocksDB {}", self.calibrated.database().version()),
                match self.has_ranges() {
                    false => "the system's library, PlainTable in memory".into(),
                    true => "the system's library, PlainTable in memory, in order".into(),
                },
            ),
            (
                format!("bare GET {} ns (p50), {} ns (p99)", bare.p50_ns, bare.p99_ns),
                "measured on a host core's CPU before the run; spun out to the service time".into(),
            ),
        ];
        if self.has_ranges() {
            let how = "reads keys in order for its service time; a safe point after each";
            facts.push(("RANGE".into(), how.into()));
        }
        facts
    }
}

fn fill(workload: &Workload) -> Result<Database, rocksdb::Error> {
    let is_range = |class: &Class| class.operation == Operation::Range;
    let mut database = match workload.classes.iter().any(is_range) {
        true => Database::open_in_order(None)?,
        false => Database::open(None)?,
    };
    interrupt::remove_at_end(database.directory());
    database.fill(workload.keys, workload.value_bytes as usize, |_, _| {})?;
    Ok(database)
}

/// Shared state of the threads of one system under load: each request's body ends here.
#[derive(Debug)]
pub struct Work {
    service: std::sync::Arc<Service>,
    /// The fate of the requests of the current point.
    pub recorder: Recorder,
    recorder_slots: usize,
    runs: Runs,
    /// Number of GETs that failed in RocksDB.
    failed: AtomicU64,
    ranges: RangeCounters,
}

#[derive(Debug, Default)]
struct RangeCounters {
    requests: AtomicU64,
    keys: AtomicU64,
    worked_ns: AtomicU64,
    /// Nanoseconds for which requests of all classes were stalled.
    stalled_ns: AtomicU64,
}

/// Work done by RANGE queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    pub requests: u64,
    pub keys: u64,
    /// Time that they took, without preempted time.
    pub worked_ns: u64,
    /// Time of steps that took too long to be work, for all requests: RANGEs and others.
    pub stalled_ns: u64,
}

impl Ranges {
    pub fn since(self, before: Ranges) -> Ranges {
        Ranges {
            requests: self.requests - before.requests,
            keys: self.keys - before.keys,
            worked_ns: self.worked_ns - before.worked_ns,
            stalled_ns: self.stalled_ns - before.stalled_ns,
        }
    }
}

impl Work {
    /// For requests of the classes of `mix` (the service's classes, or a multiple with one set per enclave), ended by up to
    /// `slots` cores or threads at once.
    pub fn new(service: std::sync::Arc<Service>, mix: &Mix, slots: usize) -> std::sync::Arc<Work> {
        std::sync::Arc::new(Work {
            service,
            recorder: Recorder::new(mix, slots + 1),
            recorder_slots: slots + 1,
            runs: Runs::default(),
            failed: AtomicU64::new(0),
            ranges: RangeCounters::default(),
        })
    }

    /// A request's body under any scheduler: serves it and records its end, in the slot that `slot` returns at that time.
    #[inline]
    pub fn serve(&self, request: &Request, clock: Clock, slot: impl FnOnce() -> usize) {
        self.runs.note(request.id, Runs::BEGUN);
        let class = usize::from(request.class.0) % self.service.classes_ns.len();
        match self.service.serve(class, request.key, clock) {
            Ok(served) => {
                if self.service.operations[class] == Operation::Range {
                    self.ranges.requests.fetch_add(1, Ordering::Relaxed);
                    self.ranges.keys.fetch_add(served.keys, Ordering::Relaxed);
                    self.ranges.worked_ns.fetch_add(served.worked_ns, Ordering::Relaxed);
                }
                if served.stalled_ns > 0 {
                    self.ranges.stalled_ns.fetch_add(served.stalled_ns, Ordering::Relaxed);
                }
            }
            Err(_) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.runs.note(request.id, Runs::ENDED);
        self.recorder.done(slot(), request);
    }

    /// Number of cores or threads that may end requests at once.
    pub fn recorder_slots(&self) -> usize {
        self.recorder_slots
    }

    /// Number of GETs that failed in RocksDB.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The RANGEs served so far.
    pub fn ranges(&self) -> Ranges {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let RangeCounters { requests, keys, worked_ns, stalled_ns } = &self.ranges;
        Ranges {
            requests: get(requests),
            keys: get(keys),
            worked_ns: get(worked_ns),
            stalled_ns: get(stalled_ns),
        }
    }

    /// Starts counting the runs of the request with this id, and of a block of others. Must be called before the request is
    /// submitted. False if there is no room for more.
    pub fn expect(&self, id: u64) -> bool {
        self.runs.expect(id)
    }

    /// Of the counted requests: how many ran to their end, and how many began more than once.
    pub fn ran(&self) -> Ran {
        Ran::count(self.runs.each())
    }

    /// The service of the requests.
    pub fn service(&self) -> &Service {
        &self.service
    }
}

/// For each request, by id, how often it began to run (lower half of a byte), and how often it ended (upper half). Blocks are allocated when requests are sent, not when they run: a thread preempted
/// during the allocation would hold up all others.
#[derive(Debug)]
struct Runs(Box<[OnceLock<Box<[AtomicU8]>>]>);

impl Runs {
    const BLOCK: u64 = 1 << 16;
    const BLOCKS_MAX: usize = 1 << 14;
    const BEGUN: u8 = 1;
    const ENDED: u8 = 1 << 4;

    /// Returns false beyond a billion requests.
    fn expect(&self, id: u64) -> bool {
        let block = || (0..Runs::BLOCK).map(|_| AtomicU8::new(0)).collect();
        let at = self.0.get((id / Runs::BLOCK) as usize);
        at.inspect(|at| _ = at.get_or_init(block)).is_some()
    }

    #[inline]
    fn note(&self, id: u64, what: u8) {
        if let Some(block) = self.0.get((id / Runs::BLOCK) as usize).and_then(OnceLock::get) {
            block[(id % Runs::BLOCK) as usize].fetch_add(what, Ordering::Relaxed);
        }
    }

    fn each(&self) -> impl Iterator<Item = u8> {
        let blocks = self.0.iter().map_while(OnceLock::get);
        blocks.flat_map(|block| block.iter().map(|runs| runs.load(Ordering::Relaxed)))
    }
}

impl Default for Runs {
    fn default() -> Runs {
        Runs((0..Runs::BLOCKS_MAX).map(|_| OnceLock::new()).collect())
    }
}

/// Counts of requests by their number of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Ran {
    /// Requests that ran to their end at least once.
    pub done: u64,
    /// Requests that began to run more than once.
    pub doubled: u64,
}

impl Ran {
    fn count(runs: impl Iterator<Item = u8>) -> Ran {
        runs.fold(Ran::default(), |ran, runs| Ran {
            done: ran.done + u64::from(runs >= Runs::ENDED),
            doubled: ran.doubled + u64::from(runs % Runs::ENDED > Runs::BEGUN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Ran, Runs};

    #[test]
    fn runs_are_counted_for_expected_requests() {
        let runs = Runs::default();
        for id in [0, 1, Runs::BLOCK, Runs::BLOCK + 1] {
            assert!(runs.expect(id));
        }
        for id in [0, Runs::BLOCK + 1, Runs::BLOCK + 1, 5 * Runs::BLOCK] {
            runs.note(id, Runs::BEGUN);
            runs.note(id, Runs::ENDED);
        }
        assert_eq!(Ran::count(runs.each()), Ran { done: 2, doubled: 1 });
        assert!(!runs.expect(Runs::BLOCK * Runs::BLOCKS_MAX as u64));
    }

    #[test]
    fn request_that_began_and_did_not_end_is_not_done() {
        let [begun, ended] = [Runs::BEGUN, Runs::ENDED];
        let runs = [0, begun, begun + ended, 2 * begun + ended, 2 * (begun + ended)];
        assert_eq!(Ran::count(runs.into_iter()), Ran { done: 3, doubled: 2 });
    }
}
