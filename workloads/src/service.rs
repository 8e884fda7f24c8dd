//! A request's service: a GET from RocksDB, extended to a service time by spinning, or a RANGE that
//! keeps reading for its service time.
//!
//! Wave drives RocksDB with GETs of 10 us (section 7.2.2) without saying why they take so long: a
//! GET from memory takes about 1 us. Here the service spins for the rest, on the monotonic clock.

use std::hint::{black_box, spin_loop};
use std::time::Duration;

use crate::cpu::{monotonic_ns, thread_cpu_time_ns};
use crate::recorder::{Latency, histogram};
use crate::rocksdb::{self, Database};

/// Wave's service time of a GET.
pub const GET_SERVICE_TIME: Duration = Duration::from_micros(10);

/// A service cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A bare GET takes longer than the service time.
    #[error(
        "a bare GET takes {bare_p50_ns} ns (p50) on this machine, longer than the service time \
         of {service_ns} ns: choose a longer one"
    )]
    TooShort {
        service_ns: u64,
        /// Half of the bare GETs were at most this long.
        bare_p50_ns: u64,
    },
    /// The database has not been filled.
    #[error("the database is empty: there is no GET to calibrate with")]
    Empty,
    #[error(transparent)]
    Database(#[from] rocksdb::Error),
}

/// If a step of microseconds takes longer than this, its CPU was taken away meanwhile, so that the step tells nothing of the work.
const STALL_NS: u64 = 200_000;

/// Report on one call of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whether the key exists.
    pub found: bool,
    pub keys: u64,
    /// Time worked. Time on other work, inside preempt points, does not count, nor do stalls.
    pub worked_ns: u64,
    /// Total time of steps longer than 200 us: the CPU was taken away meanwhile.
    pub stalled_ns: u64,
}

/// Report on a GET whose value was compared with the written one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether the key exists and has the right value.
    pub right: bool,
    /// Time of the bare GET and the comparison.
    pub read_ns: u64,
    /// End of its service, on [`monotonic_ns`]'s clock.
    pub end_ns: u64,
}

/// Clock that measures service times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The monotonic clock: for threads that leave their core only in preempt points. A thread that the
    /// kernel takes off its CPU counts as working meanwhile.
    Wall,
    /// CPU time of the pthread: for threads with one pthread each, which lose their core without noticing.
    /// Reading it is a system call, so a RANGE reads it only at every sixteenth key.
    Cpu,
}

/// Number of keys that a RANGE reads between two readings of the CPU time.
const KEYS_PER_LOOK: u64 = 16;

impl Clock {
    #[inline]
    fn now_ns(self) -> u64 {
        match self {
            Clock::Wall => monotonic_ns(),
            Clock::Cpu => thread_cpu_time_ns(),
        }
    }
}

/// A service with a fixed service time, however long its GET takes.
#[derive(Debug)]
pub struct Calibrated {
    database: Database,
    service_ns: u64,
    bare: Latency,
}

impl Calibrated {
    /// Measures bare GETs on the calling thread, which should be pinned to a CPU like those that
    /// will serve, and creates a service with `service_time` (see [`GET_SERVICE_TIME`]).
    pub fn new(database: Database, service_time: Duration) -> Result<Calibrated, Error> {
        let service_ns = service_time.as_nanos().try_into().unwrap_or(u64::MAX);
        let bare = bare_get(&database)?;
        if bare.p50_ns > service_ns {
            return Err(Error::TooShort { service_ns, bare_p50_ns: bare.p50_ns });
        }
        Ok(Calibrated { database, service_ns, bare })
    }

    /// Serves a GET of `key`; returns once the service time is over.
    #[inline]
    pub fn get(&self, key: u64) -> Result<Served, Error> {
        self.get_with(key, || false)
    }

    /// Serves a GET of `key`, calling `preempt_point` repeatedly while it spins. There the runtime may
    /// switch to another thread and back, in which case it returns true. The time inside that call is not
    /// service time.
    #[inline]
    pub fn get_with(&self, key: u64, preempt_point: impl FnMut() -> bool) -> Result<Served, Error> {
        Ok(get(&self.database, key, self.service_ns, Clock::Wall, preempt_point)?)
    }

    /// Serves a GET of `key` and compares its whole value with the written one; returns once the service time
    /// is over.
    #[inline]
    pub fn get_checked(&self, key: u64) -> Result<Checked, rocksdb::Error> {
        let start_ns = monotonic_ns();
        let mut right = false;
        self.database.get(key, |value| right = rocksdb::is_value_of(key, value))?;
        let mut now_ns = monotonic_ns();
        let read_ns = now_ns - start_ns;
        while now_ns - start_ns < self.service_ns {
            spin_loop();
            now_ns = monotonic_ns();
        }
        Ok(Checked { right, read_ns, end_ns: now_ns })
    }

    /// Calibrated length of a call.
    pub fn service_time(&self) -> Duration {
        Duration::from_nanos(self.service_ns)
    }

    /// Latency of bare GETs, measured when the service was created.
    pub fn bare(&self) -> &Latency {
        &self.bare
    }

    pub fn database(&self) -> &Database {
        &self.database
    }
}

/// Serves a GET of `key` from `database`, which takes `service_ns` by `clock`; see
/// [`Calibrated::get_with`].
#[inline]
pub fn get(
    database: &Database,
    key: u64,
    service_ns: u64,
    clock: Clock,
    preempt_point: impl FnMut() -> bool,
) -> Result<Served, rocksdb::Error> {
    get_value(database, key, service_ns, clock, touch, preempt_point)
}

/// The same, also passing the value to a function.
#[inline]
pub fn get_value(
    database: &Database,
    key: u64,
    service_ns: u64,
    clock: Clock,
    value: impl FnOnce(&[u8]),
    mut preempt_point: impl FnMut() -> bool,
) -> Result<Served, rocksdb::Error> {
    let mut work = Work::begin(service_ns, clock);
    let found = database.get(key, value)?;
    while work.step(&mut preempt_point) {
        spin_loop();
    }
    Ok(work.served(found, 1))
}

/// Spins for `service_ns`, without reading a key.
#[inline]
pub fn spin(service_ns: u64, mut preempt_point: impl FnMut() -> bool) -> Served {
    let mut work = Work::begin(service_ns, Clock::Wall);
    while work.step(&mut preempt_point) {
        spin_loop();
    }
    work.served(true, 0)
}

/// Serves a RANGE from `database`, which must be in order: reads keys from `first` on until `service_ns`
/// are over by `clock`, and calls `preempt_point` after each.
#[inline]
pub fn range(
    database: &Database,
    first: u64,
    service_ns: u64,
    clock: Clock,
    mut preempt_point: impl FnMut() -> bool,
) -> Result<Served, rocksdb::Error> {
    let mut work = Work::begin(service_ns, clock);
    let mut keys = 0;
    database.scan(first, |_, value| {
        black_box(value.first());
        keys += 1;
        if clock == Clock::Cpu && keys % KEYS_PER_LOOK != 0 {
            preempt_point();
            return true;
        }
        work.step(&mut preempt_point)
    })?;
    Ok(work.served(keys > 0, keys))
}

/// The time that a request has worked: steps, each followed by a preempt point. Time inside a preempt
/// point that returns true ("another thread ran meanwhile") does not count.
struct Work {
    clock: Clock,
    now_ns: u64,
    until_ns: u64,
    worked_ns: u64,
    stalled_ns: u64,
}

impl Work {
    #[inline]
    fn begin(work_ns: u64, clock: Clock) -> Work {
        let now_ns = clock.now_ns();
        Work {
            clock,
            now_ns,
            until_ns: now_ns.saturating_add(work_ns),
            worked_ns: 0,
            stalled_ns: 0,
        }
    }

    /// Ends a step. Returns whether there is work left.
    #[inline]
    fn step(&mut self, preempt_point: impl FnOnce() -> bool) -> bool {
        let now_ns = self.clock.now_ns();
        let took_ns = now_ns - self.now_ns;
        match took_ns > STALL_NS {
            true => self.stalled_ns += took_ns,
            false => self.worked_ns += took_ns,
        }
        self.now_ns = now_ns;
        if preempt_point() {
            self.now_ns = self.clock.now_ns();
            self.until_ns = self.until_ns.saturating_add(self.now_ns - now_ns);
        }
        self.now_ns < self.until_ns
    }

    fn served(self, found: bool, keys: u64) -> Served {
        let Work { worked_ns, stalled_ns, .. } = self;
        Served { found, keys, worked_ns, stalled_ns }
    }
}

/// Measures GETs of keys spread over the database, one after the other on this thread.
fn bare_get(database: &Database) -> Result<Latency, Error> {
    const GETS: u64 = 20_000;
    if database.keys() == 0 {
        return Err(Error::Empty);
    }
    let mut times = histogram();
    for get in 0..GETS {
        // Scattered, so that neither caches nor the prefetcher can anticipate the next key.
        let key = get.wrapping_mul(0x9e37_79b9_7f4a_7c15) % database.keys();
        let start_ns = monotonic_ns();
        read(database, key)?;
        times.saturating_record(monotonic_ns() - start_ns);
    }
    Ok(Latency::of(&times))
}

#[inline]
fn read(database: &Database, key: u64) -> Result<bool, rocksdb::Error> {
    database.get(key, touch)
}

fn touch(value: &[u8]) {
    black_box(value.first());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(keys: u64) -> Database {
        let mut database = Database::open(None).unwrap();
        database.fill(keys, 100, |_, _| {}).unwrap();
        database
    }

    #[test]
    fn a_service_never_ends_before_its_time() {
        let service = Calibrated::new(filled(1_000), Duration::from_millis(1)).unwrap();
        for key in [0, 999, 1_000] {
            let start_ns = monotonic_ns();
            let served = service.get(key).unwrap();
            assert!(monotonic_ns() - start_ns >= 1_000_000);
            assert_eq!(served.found, key < 1_000);
        }
    }

    #[test]
    fn a_checked_get_takes_its_service_time_and_notices_missing_keys() {
        let service = Calibrated::new(filled(1_000), Duration::from_micros(500)).unwrap();
        for key in [0, 999, 1_000] {
            let start_ns = monotonic_ns();
            let checked = service.get_checked(key).unwrap();
            assert!(checked.end_ns - start_ns >= 500_000);
            assert_eq!(checked.right, key < 1_000);
            assert!(checked.read_ns > 0);
        }
    }

    #[test]
    fn time_spent_elsewhere_is_not_work() {
        const WORK_NS: u64 = 1_000_000;
        const ELSEWHERE_NS: u64 = 3_000_000;
        let away = |been_away: &mut bool| {
            if std::mem::replace(been_away, true) {
                return false;
            }
            let until_ns = monotonic_ns() + ELSEWHERE_NS;
            while monotonic_ns() < until_ns {
                spin_loop();
            }
            true
        };
        let mut database = Database::open_in_order(None).unwrap();
        database.fill(100, 100, |_, _| {}).unwrap();
        type Serve = fn(&Database, u64, u64, &mut dyn FnMut() -> bool) -> Served;
        let get: Serve =
            |database, key, ns, away| get(database, key, ns, Clock::Wall, away).unwrap();
        let range: Serve =
            |database, key, ns, away| range(database, key, ns, Clock::Wall, away).unwrap();
        for serve in [get, range] {
            let start_ns = monotonic_ns();
            let mut been_away = false;
            let served = serve(&database, 99, WORK_NS, &mut || away(&mut been_away));
            let whole_ns = monotonic_ns() - start_ns;
            assert!(whole_ns >= WORK_NS + ELSEWHERE_NS);
            assert!(served.found && served.keys > 0);
            let inside_ns = served.worked_ns + served.stalled_ns;
            assert!((WORK_NS..=whole_ns - ELSEWHERE_NS).contains(&inside_ns));
        }
    }

    #[test]
    fn only_cpu_time_counts_as_work_by_the_cpu_clock() {
        let mut database = Database::open_in_order(None).unwrap();
        database.fill(1_000, 100, |_, _| {}).unwrap();
        let sleeps = || {
            std::thread::sleep(Duration::from_micros(50));
            false
        };
        let start_ns = thread_cpu_time_ns();
        let served = get(&database, 7, 200_000, Clock::Cpu, sleeps).unwrap();
        assert!(served.worked_ns >= 200_000 && served.worked_ns <= thread_cpu_time_ns() - start_ns);
        let served = range(&database, 7, 200_000, Clock::Cpu, || false).unwrap();
        assert!(served.found && served.keys > KEYS_PER_LOOK && served.worked_ns >= 200_000);
    }

    #[test]
    fn a_step_in_which_the_cpu_was_taken_away_does_not_count_as_work() {
        let mut work = Work::begin(u64::MAX, Clock::Wall);
        let until_ns = monotonic_ns() + 2 * STALL_NS;
        while monotonic_ns() < until_ns {
            spin_loop();
        }
        assert!(work.step(|| false));
        let served = work.served(true, 1);
        assert!(served.stalled_ns >= 2 * STALL_NS && served.worked_ns == 0, "{served:?}");
    }

    #[test]
    fn a_range_over_no_keys_ends() {
        let database = Database::open_in_order(None).unwrap();
        let served = range(&database, 7, u64::MAX, Clock::Cpu, || false).unwrap();
        let nothing = Served { found: false, keys: 0, worked_ns: 0, stalled_ns: 0 };
        assert_eq!(served, nothing);
    }

    #[test]
    fn a_service_time_below_a_bare_get_is_refused() {
        let error = Calibrated::new(filled(1_000), Duration::from_nanos(1)).unwrap_err();
        assert!(matches!(error, Error::TooShort { service_ns: 1, .. }), "{error}");
        let empty = Database::open(None).unwrap();
        let error = Calibrated::new(empty, GET_SERVICE_TIME).unwrap_err();
        assert!(matches!(error, Error::Empty));
    }
}
