//! Running one shard of a sweep.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use wave_agent::panics::caught;
use wave_workloads::point::{self as measured, Point};

use super::plan::{Job, Work};
use super::store::{Measured, Store, Stored};
use super::{RunError, Runner};
use crate::ground::{Failure, failed_point, limits};
use crate::kinds::requests::scenario::{Scenario, Search};
use wave_terminal::{Progress, counted};

/// One of `count` parts of a sweep: the points whose number leaves `index` when divided by `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Index of the shard, from 0, below `count`.
    pub index: usize,
    /// Number of shards, at least 1.
    pub count: usize,
}

impl Shard {
    pub const WHOLE: Shard = Shard { index: 0, count: 1 };

    /// Whether the point with that number, from 0, belongs to this shard.
    pub const fn has(self, number: usize) -> bool {
        number % self.count == self.index
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(index, count)| {
            Some(Shard { index: index.parse().ok()?, count: count.parse().ok()? })
        });
        let shard = parts.ok_or("expected I/N, such as 0/4 for the first of four shards")?;
        if shard.index >= shard.count {
            return Err(format!(
                "expected I below N: the first of {0} shards is 0/{0}",
                shard.count
            ));
        }
        Ok(shard)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Result of running a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ran {
    /// Points that were in the store already.
    pub kept: usize,
    /// Points run and written.
    pub ran: usize,
    /// Points that could not be run: label and reason. They are run again next time.
    pub failed: Vec<(String, String)>,
}

/// The jobs of `shard` without a valid point in `store`, and the number of those with one.
pub(super) fn left<'a>(
    jobs: &'a [Job],
    shard: Shard,
    store: &Store,
) -> Result<(Vec<&'a Job>, usize), Failure> {
    let (mut left, mut kept) = (Vec::new(), 0);
    for (_, job) in jobs.iter().enumerate().filter(|(number, _)| shard.has(*number)) {
        match store.read(&job.id)? {
            Some(_) => kept += 1,
            None => left.push(job),
        }
    }
    Ok((left, kept))
}

/// Runs the points of `shard` that are not in `store`, `threads` at once.
///
/// A point that cannot be run does not stop the others.
///
/// # Errors
/// A point cannot be read or written; points written until then stay.
pub fn run_shard(
    jobs: &[Job],
    shard: Shard,
    store: &Store,
    runner: &dyn Runner,
    threads: usize,
    quiet: bool,
) -> Result<Ran, Failure> {
    let (left, kept) = left(jobs, shard, store)?;
    let progress = Progress::new(left.len() as u64, quiet);
    if kept > 0 {
        progress.say(&format!(
            "{} already in the store, {} left",
            counted(kept, "point"),
            left.len()
        ));
    }
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let broken = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, left.len().max(1)) {
            scope.spawn(|| {
                while let Some(job) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
                    progress.begin(&job.label);
                    match run_job(job, runner) {
                        Ok(measured) => {
                            if let Err(error) = store.write(&Stored::new(&job.id, measured)) {
                                // There is nowhere to put results: the other threads stop as well.
                                next.store(left.len(), Ordering::Relaxed);
                                lock(&broken).get_or_insert(error);
                                return;
                            }
                        }
                        Err(error) => {
                            lock(&failed).push((job.label.clone(), error.to_string()));
                        }
                    }
                    progress.end();
                }
            });
        }
    });
    if let Some(error) = lock(&broken).take() {
        return Err(error);
    }
    let mut failed = std::mem::take(&mut *lock(&failed));
    failed.sort();
    Ok(Ran { kept, ran: left.len() - failed.len(), failed })
}

/// Ignores poisoning: a thread that panicked with one of these locks left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run_job(job: &Job, runner: &dyn Runner) -> Result<Measured, RunError> {
    let run = || match &job.work {
        Work::Point(scenario) => measure(scenario, runner),
        Work::Run(run) => runner.run_experiment(&job.id, run).map(Measured::Run),
    };
    caught(run).unwrap_or_else(|why| Err(why.into()))
}

fn measure(scenario: &Scenario, runner: &dyn Runner) -> Result<Measured, RunError> {
    let run = |load: f64| -> Result<Point, RunError> {
        runner.point(scenario, 0, load, scenario.run.seed)
    };
    let Some(Search { low, high, probes }) = scenario.run.search else {
        return run(scenario.run.loads_per_second[0]).map(Measured::Point);
    };
    let mut error = None;
    let result = measured::search(
        |load| {
            run(load).unwrap_or_else(|why| {
                error.get_or_insert(why);
                failed_point(load)
            })
        },
        low,
        high,
        probes as usize,
        &limits(&scenario.workload),
    );
    error.map_or(Ok(Measured::Search(result)), Err)
}
