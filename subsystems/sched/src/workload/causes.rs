//! Checks that every run of a workload can begin: no thread wakes itself, directly or through others.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::{Run, Thread};

/// Finds a run that waits for itself. Returns its thread's index, and the reason.
///
/// A run follows the one before it in its thread, and the run in which its waker reaches the CPU time of the wake-up. Each run
/// has at most these two, so the search takes time and memory in proportion to the number of runs. Wakers must be known.
pub(super) fn find_cycle(threads: &[Thread]) -> Option<(usize, String)> {
    let by_itself = |(at, thread): (usize, &Thread)| {
        let is_own = |run: &Run| run.waker.is_some_and(|waker| waker.thread as usize == at);
        let run = thread.runs.iter().position(is_own)?;
        Some((at, format!("run {run} is woken by its own thread, which is blocked until then")))
    };
    threads.iter().enumerate().find_map(by_itself).or_else(|| Causes::of(threads).find_cycle())
}

/// The runs of all threads, numbered thread by thread.
struct Causes<'a> {
    threads: &'a [Thread],
    /// Number of each thread's first run.
    firsts: Vec<usize>,
    /// CPU time that its thread has used by the end of each run, in nanoseconds.
    ends_ns: Vec<u64>,
}

/// How far the search has come with a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Search {
    New,
    Open,
    Done,
}

impl Causes<'_> {
    fn of(threads: &[Thread]) -> Causes<'_> {
        let (mut firsts, mut ends_ns) = (Vec::new(), Vec::new());
        for thread in threads {
            firsts.push(ends_ns.len());
            ends_ns.extend(thread.runs.iter().scan(0, |used_ns, run| {
                *used_ns += run.cpu_ns;
                Some(*used_ns)
            }));
        }
        Causes { threads, firsts, ends_ns }
    }

    /// The thread of a run, and the run's index there.
    fn place(&self, run: usize) -> (usize, usize) {
        let thread = self.firsts.partition_point(|first| *first <= run) - 1;
        (thread, run - self.firsts[thread])
    }

    /// The runs that must have begun before this one does.
    fn before(&self, run: usize) -> [Option<usize>; 2] {
        let (thread, at) = self.place(run);
        let waker = self.threads[thread].runs[at].waker.map(|waker| {
            let (first, count) = (
                self.firsts[waker.thread as usize],
                self.threads[waker.thread as usize].runs.len(),
            );
            let ends_ns = &self.ends_ns[first..first + count];
            first + ends_ns.partition_point(|end_ns| *end_ns < waker.cpu_ns)
        });
        [(at > 0).then(|| run - 1), waker]
    }

    fn find_cycle(&self) -> Option<(usize, String)> {
        let mut states = vec![Search::New; self.ends_ns.len()];
        for start in 0..states.len() {
            if states[start] == Search::Done {
                continue;
            }
            states[start] = Search::Open;
            // Runs on the way from `start`, each with the number of its causes that were followed.
            let mut way = vec![(start, 0)];
            while let Some((run, followed)) = way.last_mut() {
                let (run, cause) = (*run, self.before(*run).into_iter().flatten().nth(*followed));
                *followed += 1;
                match cause.map(|cause| (cause, states[cause])) {
                    Some((cause, Search::Open)) => return Some(self.reason(cause)),
                    Some((cause, Search::New)) => {
                        states[cause] = Search::Open;
                        way.push((cause, 0));
                    }
                    Some((_, Search::Done)) => {}
                    None => {
                        states[run] = Search::Done;
                        way.pop();
                    }
                }
            }
        }
        None
    }

    fn reason(&self, run: usize) -> (usize, String) {
        let (thread, at) = self.place(run);
        (thread, format!("run {at} waits for itself: its waker's wake-up depends on it"))
    }
}
