//! Runs independent points on as many threads as there are CPUs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::ground::Failure;
use wave_agent::panics::caught;
use wave_terminal::Progress;

/// Does `work` for each of `jobs`, and returns the results in the jobs' order. After a failure no further job is started; the
/// first failure is returned.
pub fn each<T: Sync, R: Send>(
    jobs: &[T],
    progress: &Progress,
    label: impl Fn(&T) -> String + Sync,
    work: impl Fn(&T) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<R, Failure>)>> = Mutex::new(Vec::with_capacity(jobs.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    progress.begin(&label(job));
                    let result = caught(|| work(job)).unwrap_or_else(|why| {
                        Err(Failure::Check(format!("{}: {why}", label(job))))
                    });
                    progress.end();
                    if result.is_err() {
                        next.store(jobs.len(), Ordering::Relaxed);
                    }
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_job_order_and_a_failure_stops_further_jobs() {
        let progress = Progress::new(0, true);
        let jobs: Vec<u32> = (0..40).collect();
        let label = |_: &u32| String::new();
        let squares = each(&jobs, &progress, label, |job| Ok(job * job)).unwrap();
        assert!(squares.iter().zip(&jobs).all(|(square, job)| *square == job * job));
        let fails = |job: &u32| {
            if *job < 7 { Ok(()) } else { Err(Failure::Check(job.to_string())) }
        };
        assert_eq!(each(&jobs, &progress, label, fails).unwrap_err().to_string(), "7");
    }
}
