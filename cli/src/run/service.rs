//! What a request does: a GET from RocksDB, drawn out to its class's service time, or a RANGE.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use wave_workloads::arrivals::Mix;
use wave_workloads::cpu;
use wave_workloads::generator::{Request, STALL_NS};
use wave_workloads::recorder::Recorder;
use wave_workloads::rocksdb::{self, Database};
use wave_workloads::service::{self, Calibrated, Clock, Served};

use super::Failure;
use crate::report::Progress;
use crate::scenario::{Class, Operation, Workload};

/// A filled database and how long a request of each class takes.
#[derive(Debug)]
pub struct Service {
    calibrated: Calibrated,
    classes_ns: Vec<u64>,
    operations: Vec<Operation>,
}

impl Service {
    /// Opens and fills RocksDB, and measures its bare GETs on `cpu`, one of the host cores'.
    pub fn open(workload: &Workload, cpu: usize, progress: &Progress) -> Result<Service, Failure> {
        progress.begin(&format!("filling RocksDB with {} keys", workload.keys));
        let database = fill(workload).map_err(|error| {
            Failure::Cannot(format!(
                "{error}\nRocksDB needs some memory in /dev/shm (see `df -h /dev/shm`) and the \
                 library of your system: `apt-get install librocksdb-dev`"
            ))
        })?;
        progress.end();
        progress.begin("calibrating the GET");
        let service_ns = |class: &Class| (class.service_us * 1e3).round() as u64;
        let classes_ns: Vec<u64> = workload.classes.iter().map(service_ns).collect();
        let operations: Vec<_> = workload.classes.iter().map(|class| class.operation).collect();
        let gets = classes_ns.iter().zip(&operations).filter(|(_, of)| **of == Operation::Get);
        let shortest_ns = gets.map(|(&ns, _)| ns).min().unwrap_or(u64::MAX);
        // On a thread of its own, as pinning lasts.
        let calibrate = move || {
            cpu::pin_current_thread(cpu).map_err(Failure::cannot)?;
            Calibrated::new(database, Duration::from_nanos(shortest_ns)).map_err(Failure::cannot)
        };
        let calibrated = std::thread::spawn(calibrate).join();
        let calibrated = calibrated.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        progress.end();
        Ok(Service { calibrated, classes_ns, operations })
    }

    /// Serves a request of the class with this index, preempted wherever the enclave's agent wants.
    #[inline]
    fn serve(&self, class: usize, key: u64, clock: Clock) -> Result<Served, rocksdb::Error> {
        let (database, service_ns) = (self.calibrated.database(), self.classes_ns[class]);
        let preempt_point = wave_user::preempt_point;
        match self.operations[class] {
            Operation::Get => service::get(database, key, service_ns, clock, preempt_point),
            Operation::Range => service::range(database, key, service_ns, clock, preempt_point),
        }
    }

    /// The database.
    pub fn database(&self) -> &Database {
        self.calibrated.database()
    }

    /// Whether some class is a RANGE; the database can be scanned then.
    pub fn has_ranges(&self) -> bool {
        self.operations.contains(&Operation::Range)
    }

    /// How long a request takes on average that is no RANGE, where requests of each class are so many.
    pub fn other_ns(&self, counts: &[u64]) -> f64 {
        let classes = self.classes_ns.iter().zip(&self.operations).zip(counts);
        let others = classes.filter(|((_, of), _)| **of != Operation::Range);
        let (sum, count) = others.fold((0.0, 0), |(sum, all), ((ns, _), count)| {
            (sum + *ns as f64 * *count as f64, all + count)
        });
        sum / count.max(1) as f64
    }

    /// How long a request of each class takes.
    pub fn classes_ns(&self) -> &[u64] {
        &self.classes_ns
    }

    /// What is known of the database and the service times: for the report.
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
    database.fill(workload.keys, workload.value_bytes as usize, |_, _| {})?;
    Ok(database)
}

/// What the threads of one system under load share: each request's body ends here.
#[derive(Debug)]
pub struct Work {
    service: std::sync::Arc<Service>,
    /// The fate of the requests of the current point.
    pub recorder: Recorder,
    recorder_slots: usize,
    /// How often each request ran, by its id; empty where nobody counts.
    runs: Vec<AtomicU8>,
    /// GETs that RocksDB failed.
    failed: AtomicU64,
    ranges: RangeCounters,
}

#[derive(Debug, Default)]
struct RangeCounters {
    requests: AtomicU64,
    keys: AtomicU64,
    worked_ns: AtomicU64,
    /// Of all requests.
    stalled_ns: AtomicU64,
}

/// What RANGEs have read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Those that have ended.
    pub requests: u64,
    /// Keys that they read.
    pub keys: u64,
    /// Time that they took, but for where they were preempted.
    pub worked_ns: u64,
    /// Time in which the machine stalled, of all requests: RANGEs and others.
    pub stalled_ns: u64,
}

impl Ranges {
    /// Since `before`.
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
    /// For requests of the classes of `mix` (a multiple of the service's, one set per enclave),
    /// ended by `slots` cores or threads at once. The runs of the first `counted` requests are counted.
    pub fn new(
        service: std::sync::Arc<Service>,
        mix: &Mix,
        slots: usize,
        counted: usize,
    ) -> std::sync::Arc<Work> {
        std::sync::Arc::new(Work {
            service,
            recorder: Recorder::new(mix, slots + 1),
            recorder_slots: slots + 1,
            runs: (0..counted).map(|_| AtomicU8::new(0)).collect(),
            failed: AtomicU64::new(0),
            ranges: RangeCounters::default(),
        })
    }

    /// A request's body: serves it and records its end, on the core that `slot` tells then, which has a
    /// CPU for itself as far as this process goes: whatever takes it away is the machine.
    #[inline]
    pub fn serve(&self, request: &Request, clock: Clock, slot: impl FnOnce() -> usize) {
        self.serve_unless(request, clock, slot, || false);
    }

    /// The same on a thread that Linux schedules among others of the pool: what Linux makes it wait is
    /// part of what is measured, and no stall.
    #[inline]
    pub fn serve_under_linux(&self, request: &Request, slot: usize) {
        thread_local! {
            static SEEN: Cell<i64> = const { Cell::new(0) };
        }
        self.serve_unless(
            request,
            Clock::Wall,
            || slot,
            || {
                let switches = cpu::involuntary_switches();
                SEEN.replace(switches) != switches
            },
        );
    }

    #[inline]
    fn serve_unless(
        &self,
        request: &Request,
        clock: Clock,
        slot: impl FnOnce() -> usize,
        taken_off: impl FnOnce() -> bool,
    ) {
        if let Some(runs) = self.runs.get(request.id as usize) {
            runs.fetch_add(1, Ordering::Relaxed);
        }
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
                if served.longest_step_ns > STALL_NS && !taken_off() {
                    self.recorder.stalled();
                }
            }
            Err(_) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.recorder.done(slot(), request);
    }

    /// How many cores or threads may end requests at once.
    pub fn recorder_slots(&self) -> usize {
        self.recorder_slots
    }

    /// GETs that RocksDB failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// What its RANGEs have read since it was made.
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

    /// Of the requests whose runs are counted: how many ran, and how many more than once.
    pub fn ran(&self) -> Ran {
        Ran::count(self.runs.iter().map(|runs| runs.load(Ordering::Relaxed)))
    }

    /// The service that the requests get.
    pub fn service(&self) -> &Service {
        &self.service
    }
}

/// How often requests ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    /// At least once.
    pub done: u64,
    /// More than once.
    pub doubled: u64,
}

impl Ran {
    fn count(runs: impl Iterator<Item = u8>) -> Ran {
        runs.fold(Ran::default(), |ran, runs| Ran {
            done: ran.done + u64::from(runs > 0),
            doubled: ran.doubled + u64::from(runs > 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Ran;

    #[test]
    fn a_request_counts_as_done_once_however_often_it_ran() {
        let ran = Ran::count([1, 0, 2, 1, 3].into_iter());
        assert_eq!(ran, Ran { done: 4, doubled: 2 });
    }
}
