//! A request's service: a GET from RocksDB, drawn out to a service time by spinning, or a RANGE that
//! reads for as long as that.
//!
//! Wave drives RocksDB with GETs of 10 us (section 7.2.2) without saying what makes them so long:
//! a GET from memory takes about one. Here the rest is spun away, on the monotonic clock.

use std::hint::{black_box, spin_loop};
use std::time::Duration;

use crate::cpu::{involuntary_switches, monotonic_ns, thread_cpu_time_ns};
use crate::generator::STALL_NS;
use crate::recorder::{Latency, histogram};
use crate::rocksdb::{self, Database};

/// Wave's service time of a GET.
pub const GET_SERVICE_TIME: Duration = Duration::from_micros(10);

/// Why a service cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A GET alone takes longer than the whole service shall.
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

/// What one call of the service was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// Whether the key was there.
    pub found: bool,
    pub keys: u64,
    /// How long it worked: time elsewhere, between preempt points, does not count, nor do stalls.
    pub worked_ns: u64,
    /// Steps longer than [`STALL_NS`], all of their time.
    pub stalled_ns: u64,
    /// Whether the machine stalled in one of these steps: its thread kept the CPU, as far as the kernel
    /// knows, so that a hypervisor or an interrupt took the time. A step in which the kernel gave the CPU
    /// to another thread is no stall, whatever schedules: where Linux does, that is what is measured.
    pub machine_stalled: bool,
}

/// A GET with its value compared with the written one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether it was there, and the same.
    pub right: bool,
    /// How long the GET alone took, with the comparison.
    pub read_ns: u64,
    /// When its service was over, on [`monotonic_ns`]'s clock.
    pub end_ns: u64,
}

/// What a service's time is told from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The monotonic clock: for threads that are away only in preempt points. One that the kernel takes
    /// off its CPU counts as working meanwhile.
    Wall,
    /// CPU time of the pthread: for threads that have one each, and are away without knowing it. Reading it
    /// is a system call, so a RANGE looks at each sixteenth key only.
    Cpu,
}

/// Keys of a RANGE from one look at the CPU time to the next.
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

/// A service with a fixed time, for any duration of its GET.
#[derive(Debug)]
pub struct Calibrated {
    database: Database,
    service_ns: u64,
    bare: Latency,
}

impl Calibrated {
    /// Measures bare GETs on the calling thread, which should be pinned to a CPU like those that
    /// will serve, and makes a service of `service_time` (see [`GET_SERVICE_TIME`]).
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

    /// Serves a GET of `key`, calling `preempt_point` again and again while it spins: there the
    /// runtime may switch to another thread and back, and then returns true. The time until then
    /// is not service time.
    #[inline]
    pub fn get_with(&self, key: u64, preempt_point: impl FnMut() -> bool) -> Result<Served, Error> {
        Ok(get(&self.database, key, self.service_ns, Clock::Wall, preempt_point)?)
    }

    /// Serves a GET of `key` whose whole value is compared with what was written; returns once the service time
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

    /// How long GETs alone took when the service was made.
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

/// The same, with a look at the value.
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

/// Works for `service_ns`, and does nothing else.
#[inline]
pub fn spin(service_ns: u64, mut preempt_point: impl FnMut() -> bool) -> Served {
    let mut work = Work::begin(service_ns, Clock::Wall);
    while work.step(&mut preempt_point) {
        spin_loop();
    }
    work.served(true, 0)
}

/// Serves a RANGE from `database`, which must be in order: reads one key after the other from `first`
/// on until `service_ns` are over by `clock`, and calls `preempt_point` after each.
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

/// The time that a request has worked: steps, each followed by a preempt point. What passes inside of
/// a preempt point that returns true, for "another thread ran meanwhile", does not count.
struct Work {
    clock: Clock,
    now_ns: u64,
    until_ns: u64,
    worked_ns: u64,
    stalled_ns: u64,
    machine_stalled: bool,
    /// Of the pthread that the request is on, when it came there.
    switches: i64,
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
            machine_stalled: false,
            switches: involuntary_switches(),
        }
    }

    /// A step has ended. Returns whether there is work left.
    #[inline]
    fn step(&mut self, preempt_point: impl FnOnce() -> bool) -> bool {
        let now_ns = self.clock.now_ns();
        let took_ns = now_ns - self.now_ns;
        match took_ns > STALL_NS {
            true => self.stalled(took_ns),
            false => self.worked_ns += took_ns,
        }
        self.now_ns = now_ns;
        if preempt_point() {
            self.now_ns = self.clock.now_ns();
            self.until_ns = self.until_ns.saturating_add(self.now_ns - now_ns);
            // It may be on another pthread.
            self.switches = involuntary_switches();
        }
        self.now_ns < self.until_ns
    }

    /// A step took longer than [`STALL_NS`].
    #[cold]
    fn stalled(&mut self, took_ns: u64) {
        self.stalled_ns += took_ns;
        let switches = involuntary_switches();
        self.machine_stalled |= switches == self.switches;
        self.switches = switches;
    }

    fn served(self, found: bool, keys: u64) -> Served {
        let Work { worked_ns, stalled_ns, machine_stalled, .. } = self;
        Served { found, keys, worked_ns, stalled_ns, machine_stalled }
    }
}

/// GETs of keys all over the database, one after the other on this thread.
fn bare_get(database: &Database) -> Result<Latency, Error> {
    const GETS: u64 = 20_000;
    if database.keys() == 0 {
        return Err(Error::Empty);
    }
    let mut times = histogram();
    for get in 0..GETS {
        // Scattered, so that neither caches nor the prefetcher know the next.
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
    fn a_checked_get_takes_its_time_and_notices_what_is_missing() {
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
    fn cpu_time_is_work_wherever_the_thread_is() {
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

    // Linux's pool and an agent's cores end their requests by this.
    #[test]
    fn a_step_is_a_stall_of_the_machine_unless_the_kernel_switched_its_thread_out() {
        let cpu = crate::cpu::allowed_cpus().unwrap()[0];
        crate::cpu::pin_current_thread(cpu).unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let spin_past = |work: &Work| {
            while monotonic_ns() <= work.now_ns + STALL_NS {
                spin_loop();
            }
        };
        std::thread::scope(|scope| {
            // Takes the CPU now and then, as a neighbour does, or another thread of a pool.
            scope.spawn(|| {
                while !over.load(relaxed) {
                    spin_loop();
                }
            });
            let mut work = Work::begin(u64::MAX, Clock::Wall);
            while involuntary_switches() == work.switches {
                spin_loop();
            }
            spin_past(&work);
            work.step(|| false);
            over.store(true, relaxed);
            let served = work.served(true, 1);
            assert!(served.stalled_ns > STALL_NS && !served.machine_stalled, "{served:?}");
        });
        // Other processes may take the CPU here too: the test waits for a step without that.
        loop {
            let mut work = Work::begin(u64::MAX, Clock::Wall);
            spin_past(&work);
            let kept = involuntary_switches() == work.switches;
            work.step(|| false);
            let kept = kept && involuntary_switches() == work.switches;
            let served = work.served(true, 1);
            assert!(
                served.stalled_ns > STALL_NS && (served.machine_stalled || !kept),
                "{served:?}"
            );
            if kept {
                break;
            }
        }
    }

    #[test]
    fn a_step_in_which_the_machine_stalled_is_no_work() {
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
        let nothing =
            Served { found: false, keys: 0, worked_ns: 0, stalled_ns: 0, machine_stalled: false };
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
