//! The jobs of a reproduction, and the store of their results.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use wave_sim::enclave::Setup;
use wave_sim::experiment;
use wave_sim::paper::{self, Model};
use wave_sim::requests::Load;
use wave_workloads::point::{self, Limits, Point};

use super::group;
use wave_terminal::{Failure, Progress};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Single figures of the job, by name.
    pub values: Vec<(String, f64)>,
    /// Points: load per second, served per second, p99 of a GET in microseconds.
    pub points: Vec<[f64; 3]>,
}

impl Done {
    /// Returns the figure with that name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    pub(super) fn of<const N: usize>(values: [(&str, f64); N]) -> Done {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Done { values, points: Vec::new() }
    }
}

pub struct Job {
    pub name: String,
    /// Seed of its arrivals; 1 if nothing is random.
    pub seed: u64,
    /// Whether the job measures this machine: then nothing else runs meanwhile, and its result is not kept.
    pub alone: bool,
    pub work: Box<dyn Fn() -> Done + Send + Sync>,
}

impl Job {
    pub(super) fn new(
        name: impl Into<String>,
        work: impl Fn() -> Done + Send + Sync + 'static,
    ) -> Job {
        Job { name: name.into(), seed: 1, alone: false, work: Box::new(work) }
    }

    /// A job that measures natively: nothing else runs meanwhile.
    pub(super) fn alone(
        name: impl Into<String>,
        work: impl Fn() -> Done + Send + Sync + 'static,
    ) -> Job {
        Job { alone: true, ..Job::new(name, work) }
    }

    /// Name of the job's file in the output folder.
    fn file(&self) -> String {
        match self.seed {
            1 => format!("{}.json", self.name),
            seed => format!("{}-seed-{seed}.json", self.name),
        }
    }
}

pub struct Found {
    pub name: String,
    pub seed: u64,
    /// Whether the result comes from an earlier run of this build.
    pub resumed: bool,
    pub done: Done,
}

/// Results by the names of their jobs.
#[derive(Clone, Debug, Default)]
pub struct ByName<'a>(BTreeMap<&'a str, &'a Done>);

impl<'a> FromIterator<(&'a str, &'a Done)> for ByName<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a Done)>>(all: I) -> ByName<'a> {
        ByName(all.into_iter().collect())
    }
}

impl<'a> ByName<'a> {
    pub fn get(&self, job: &str) -> Option<&'a Done> {
        self.0.get(job).copied()
    }

    /// A figure of a job.
    pub fn value(&self, job: &str, name: &str) -> Option<f64> {
        self.get(job)?.value(name)
    }
}

/// The results by seed, from 1 to `seeds`. A result without a seed counts under all of them.
pub fn by_seed(found: &[Found], seeds: u64) -> Vec<ByName<'_>> {
    let under = |seed| {
        let of = |seed| found.iter().filter(move |found| found.seed == seed);
        of(1).chain(of(seed)).map(|found| (found.name.as_str(), &found.done)).collect()
    };
    (1..=seeds).map(under).collect()
}

/// Names of the jobs that an earlier run of this build had done.
pub fn resumed(found: &[Found]) -> Vec<String> {
    let resumed = found.iter().filter(|found| found.resumed);
    let name = |found: &Found| match found.seed {
        1 => found.name.clone(),
        seed => format!("{} under seed {seed}", found.name),
    };
    let mut names: Vec<String> = resumed.map(name).collect();
    names.sort();
    names
}

/// Maximum number of probes of one search.
const PROBES: usize = 12;

/// The jobs of these groups, on this model of the paper's machine. Rows with random arrivals are simulated with each seed from
/// 1 to `seeds`. A job that several groups have is there once.
pub fn of(ids: &[&str], model: &Model, seeds: u64) -> Vec<Job> {
    let (mut jobs, mut known) = (Vec::new(), BTreeSet::new());
    // The last groups have the longest jobs.
    let groups: Vec<_> = group::of(ids).collect();
    for group in groups.into_iter().rev() {
        let seeds = if group.is_seeded { seeds } else { 1 };
        for seed in 1..=seeds {
            let of_group = (group.jobs)(&Model { seed, ..model.clone() });
            let new = of_group.into_iter().filter(|job| known.insert((job.name.clone(), seed)));
            jobs.extend(new.map(|job| Job { seed, ..job }));
        }
    }
    jobs
}

/// Slices of 30 us, as in 7.2.3.
pub(crate) const SHINJUKU: &str = "shinjuku:slice_us=30";

pub(super) fn probe(setup: &Setup, load: &Load) -> Point {
    let outcome = experiment::serve(setup, load).expect("the paper's setups can be laid out");
    wave_experiments::kinds::requests::sim::point(load, &outcome)
}

/// Searches for a setup's saturation from the load `low` upwards, and measures how long its GETs take below it.
pub(super) fn saturation(
    setup: &Setup,
    load: fn(f64, wave_core::clock::Nanos) -> Load,
    low: f64,
) -> Done {
    let overhead = paper::overhead(setup);
    search(|per_second| probe(setup, &load(per_second, overhead)), low)
}

/// Searches for the saturation of `run` from the load `low` upwards, and measures how long GETs take below it.
pub(super) fn search(mut run: impl FnMut(f64) -> Point, low: f64) -> Done {
    let found = point::search(&mut run, low, 16.0 * low, PROBES, &Limits::default());
    let saturation = found.saturation_per_second.unwrap_or(f64::NAN);
    let mut points: Vec<Point> = found.points;
    for share in [0.25, 0.5, 0.7, 0.9] {
        if saturation.is_finite() {
            points.push(run(share * saturation));
        }
    }
    points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
    let p99_us = |point: &Point| point.latency("GET").map_or(f64::NAN, |l| l.p99_ns as f64 / 1e3);
    let values = vec![("saturation".to_owned(), saturation)];
    let points = points
        .iter()
        .map(|point| [point.offered_per_second, point.achieved_per_second, p99_us(point)])
        .collect();
    Done { values, points }
}

/// Runs the jobs whose results are not in `folder` yet: measurements first, one at a time, then the others on this many
/// threads.
pub fn run_all(
    jobs: &[Job],
    folder: &Path,
    version: &str,
    threads: usize,
    progress: &Progress,
) -> Result<Vec<Found>, Failure> {
    let failed = |what: &'static str| {
        move |error: std::io::Error| {
            Failure::Cannot(format!("{}: cannot {what}: {error}", folder.display()))
        }
    };
    let of =
        |job: &Job, resumed, done| Found { name: job.name.clone(), seed: job.seed, resumed, done };
    let mut measured = Vec::new();
    for job in jobs.iter().filter(|job| job.alone) {
        progress.begin(&job.name);
        // Runs in its own thread: the job may pin itself, and later threads must not inherit that.
        let found = std::thread::scope(|scope| scope.spawn(&job.work).join());
        measured.push(of(job, false, found.unwrap_or_else(|panic| resume_unwind(panic))));
        progress.end();
    }
    let jobs: Vec<&Job> = jobs.iter().filter(|job| !job.alone).collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(measured);
    let result = std::thread::scope(|scope| {
        let worker = || -> Result<(), Failure> {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                progress.begin(&job.name);
                let file = folder.join(job.file());
                let found = match kept(&file, version) {
                    Some(found) => of(job, true, found),
                    None => {
                        let found = (job.work)();
                        keep(&file, version, &found).map_err(failed("keep a result"))?;
                        of(job, false, found)
                    }
                };
                progress.end();
                done.lock().expect("no job panics while it holds this").push(found);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        })
    });
    result.map(|()| done.into_inner().expect("no job panics while it holds this"))
}

/// The stored form of a job's result. Valid only for the same version of the program.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: String,
    done: Done,
}

fn kept(file: &Path, version: &str) -> Option<Done> {
    let kept: Kept = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (kept.version == version).then_some(kept.done)
}

/// Writes a result atomically: a run that is killed here leaves no partial file.
fn keep(file: &Path, version: &str, done: &Done) -> std::io::Result<()> {
    let kept = Kept { version: version.to_owned(), done: done.clone() };
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut unfinished = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut unfinished, &kept)?;
    unfinished.flush()?;
    unfinished.persist(file)?;
    Ok(())
}
