//! Comparison of the executors of TCP's data path: one log of inputs, replayed through each executor; and histories in which
//! each executor runs both ends freely.
//!
//! A log is recorded from a history of [`crate::tcp`]: two stacks over an adversarial wire. It has everything that the
//! sequencer stamps, in order: packets, requests, the scheduler's turns (grants), completed copies, timers and commands.

mod log;
mod replay;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use wave_tcp_planted::executors::{Inline, Shape, Threads, VirtualTime};
use wave_tcp_planted::flextoe::FlexToe;
use wave_tcp_planted::pipeline::{Entry, Work};
use wave_tcp_planted::planted::{Planted, plant};
use wave_tcp_planted::stages::arbiter::ByStages;
use wave_tcp_planted::stages::recover::{GoBackN, Recovery, Sack};
use wave_tcp_testbed_planted::{By, Data, Runs};
use wave_terminal::{Failure, Progress, interrupt};
use wave_wires::Frame;

use crate::tcp::history::run_over;
use log::{Event, Log, Recorder};
pub use replay::Counts;
use replay::{NOBODY, Replayed, replay};

/// Replicas of the pre and of the post stage in the executor with threads.
const REPLICAS: NonZeroUsize = NonZeroUsize::new(2).expect("two");
/// Seeds that a worker takes at a time.
const BATCH: u64 = 10;
/// Maximum number of differences shown.
const FAILURES_MAX: usize = 20;

/// Entries of logs, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    pub packets: u64,
    /// Requests of hosts about their streams.
    pub requests: u64,
    /// Turns that the scheduler gave: to send, or to acknowledge and notify.
    pub grants: u64,
    pub completions: u64,
    /// Delayed acknowledgements that may be due.
    pub timers: u64,
    /// Commands of the control plane: losses, windows, ends.
    pub commands: u64,
}

/// Result of all seeds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    /// Number of seeds, each with a log of each end.
    pub seeds: u64,
    pub flows: u64,
    pub entries: u64,
    pub entries_by_kind: Kinds,
    /// Whether every flow's output is the same through all executors.
    pub flows_equal: bool,
    /// Seeds with a flow whose output differs without a sequencer, in virtual time.
    pub planted_seeds_that_differ: u64,
    pub planted_differs: bool,
    /// Number of histories in which threads run both ends, and of those in virtual time.
    pub free_runs: u64,
    /// Whether all of them keep all rules of `wave fuzz tcp`, including those about bytes.
    pub streams_agree: bool,
    /// Output of the executor on one core.
    pub inline: Counts,
    pub threads: Counts,
    pub virtual_time: Counts,
    /// Entries that were overtaken in a stage in virtual time.
    pub virtual_time_overtaken: u64,
    pub failures: Vec<Failed>,
}

/// A seed that shows a difference.
#[derive(Clone, Debug, Serialize)]
pub struct Failed {
    pub seed: u64,
    pub executor: &'static str,
    pub what: String,
}

/// Compares the executors by the histories of `seeds` seeds, from `first` on.
///
/// # Errors
/// Signals cannot be handled.
pub fn run(first: u64, seeds: u64, quiet: bool) -> Result<Found, Failure> {
    let batches = seeds.div_ceil(BATCH);
    let progress = Progress::new(batches, quiet);
    interrupt::say_steps("wave tcp executors", &progress, "batch")?;
    let (next, sum) = (AtomicU64::new(0), Mutex::new(Found::default()));
    let worker = || {
        loop {
            let step = next.fetch_add(1, Ordering::Relaxed);
            if step >= batches {
                return;
            }
            let from = first + step * BATCH;
            let batch = from..(from + BATCH).min(first + seeds);
            progress.begin(&format!("seeds {} to {}", batch.start, batch.end - 1));
            for seed in batch {
                let one = compare(seed);
                sum.lock().expect("nobody panics with it").add(one);
            }
            progress.end();
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(worker);
        }
    });
    let mut found = sum.into_inner().expect("nobody panics with it");
    let fails = |free: bool| found.failures.iter().any(|failed| is_free(failed.executor) == free);
    (found.flows_equal, found.streams_agree) = (!fails(false), !fails(true));
    found.planted_differs = found.planted_seeds_that_differ > 0;
    found.failures.sort_by_key(|failed| failed.seed);
    found.failures.truncate(FAILURES_MAX);
    Ok(found)
}

const THREADS: &str = "threads";
const VIRTUAL_TIME: &str = "virtual time";
const FREE_THREADS: &str = "threads, free";
const FREE_VIRTUAL_TIME: &str = "virtual time, free";

fn is_free(executor: &str) -> bool {
    [FREE_THREADS, FREE_VIRTUAL_TIME].contains(&executor)
}

impl Found {
    fn add(&mut self, other: Found) {
        self.seeds += other.seeds;
        self.flows += other.flows;
        self.entries += other.entries;
        let (kinds, more) = (&mut self.entries_by_kind, other.entries_by_kind);
        kinds.packets += more.packets;
        kinds.requests += more.requests;
        kinds.grants += more.grants;
        kinds.completions += more.completions;
        kinds.timers += more.timers;
        kinds.commands += more.commands;
        self.planted_seeds_that_differ += other.planted_seeds_that_differ;
        self.free_runs += other.free_runs;
        self.inline.add(&other.inline);
        self.threads.add(&other.threads);
        self.virtual_time.add(&other.virtual_time);
        self.virtual_time_overtaken += other.virtual_time_overtaken;
        self.failures.extend(other.failures);
    }

    fn fails(&mut self, seed: u64, executor: &'static str, what: String) {
        self.failures.push(Failed { seed, executor, what });
    }
}

fn compare(seed: u64) -> Found {
    let mut found = Found { seeds: 1, ..Found::default() };
    let mut is_other_without_sequencer = false;
    for (log, end) in record(seed).iter().zip(0..) {
        is_other_without_sequencer |= match log.by {
            By::GoBackN => found.replay_all::<GoBackN>(seed, end, log),
            By::Sack => found.replay_all::<Sack>(seed, end, log),
        };
    }
    found.planted_seeds_that_differ = u64::from(is_other_without_sequencer);
    found.free_runs = 2;
    let free = [(FREE_THREADS, Runs::Threads), (FREE_VIRTUAL_TIME, Runs::VirtualTime(seed))];
    for (name, runs) in free {
        match caught(|| {
            run_over(seed, &|settings, by| runs.datapath(settings, by), false).violation
        }) {
            Ok(None) => {}
            Ok(Some(broken)) => {
                found.fails(seed, name, format!("{:?}: {}", broken.oracle, broken.what));
            }
            Err(panic) => found.fails(seed, name, panic),
        }
    }
    found
}

impl Found {
    /// Replays the log of one end through each executor. Returns whether the result differs without a sequencer.
    fn replay_all<R: Recovery>(&mut self, seed: u64, end: u64, log: &Log) -> bool {
        let found = self;
        found.entries += count(log, &mut found.entries_by_kind);
        let settings = log.settings;
        let inline = replay(log, &mut Inline::<_, ByStages<R>>::new(settings));
        found.flows += inline.flows.keys().filter(|id| **id != NOBODY).count() as u64;
        found.inline.add(&inline.counts);
        let delays = seed * 2 + end;
        let in_virtual_time = || {
            let mut executor = VirtualTime::<_, R>::new(settings, Shape::default(), delays);
            let replayed = replay(log, &mut executor);
            (replayed, executor.overtaken())
        };
        match caught(|| replay(log, &mut Threads::<_, R>::start(settings, REPLICAS))) {
            Ok(replayed) => {
                found.threads.add(&replayed.counts);
                found.differs(seed, THREADS, &inline, &replayed);
            }
            Err(panic) => found.fails(seed, THREADS, panic),
        }
        match caught(in_virtual_time) {
            Ok((replayed, overtaken)) => {
                found.virtual_time.add(&replayed.counts);
                found.virtual_time_overtaken += overtaken;
                found.differs(seed, VIRTUAL_TIME, &inline, &replayed);
            }
            Err(panic) => found.fails(seed, VIRTUAL_TIME, panic),
        }
        plant(Some(Planted::NoSequencer));
        let planted = caught(in_virtual_time);
        plant(None);
        planted.is_err() || planted.is_ok_and(|(out, _)| inline.difference(&out).is_some())
    }
}

impl Found {
    fn differs(&mut self, seed: u64, executor: &'static str, one: &Replayed, other: &Replayed) {
        if let Some(what) = one.difference(other) {
            self.fails(seed, executor, what);
        }
    }
}

/// The logs of both ends of a seed's history.
fn record(seed: u64) -> Vec<Log> {
    let logs: RefCell<Vec<Rc<RefCell<Log>>>> = RefCell::default();
    let make = |settings, by| -> Data<Frame> {
        let (recorder, log) = Recorder::new(settings, by);
        logs.borrow_mut().push(log);
        Box::new(FlexToe::over(&settings, recorder))
    };
    // Whether the history keeps the rules is for the fuzzer to check.
    let _ = run_over(seed, &make, true);
    let take =
        |log: Rc<RefCell<Log>>| Rc::try_unwrap(log).expect("the history is over").into_inner();
    logs.into_inner().into_iter().map(take).collect()
}

/// Counts entries by kind; returns their total.
fn count(log: &Log, kinds: &mut Kinds) -> u64 {
    let mut entries = 0;
    for event in &log.events {
        let Event::Entry(stamped) = event else { continue };
        entries += 1;
        *match stamped.entry {
            Entry::Packet(_) => &mut kinds.packets,
            Entry::Flow(_, work) => match work {
                Work::Request(..) => &mut kinds.requests,
                Work::Transmit | Work::Announce(_) => &mut kinds.grants,
                Work::Copied(_) => &mut kinds.completions,
                Work::Timer => &mut kinds.timers,
                Work::Command(_)
                | Work::Resume
                | Work::SetMss(_)
                | Work::Pace(_)
                | Work::Freeze => &mut kinds.commands,
            },
        } += 1;
    }
    entries
}

/// Returns the result of `run`, or the text of its panic.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("a panic: {}", text.unwrap_or("without a text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_agree_except_without_a_sequencer() {
        let found = run(0, 20, true).unwrap();
        assert!(found.flows_equal && found.streams_agree, "{:#?}", found.failures);
        assert!(found.planted_differs, "{found:#?}");
        let kinds = found.entries_by_kind;
        let all = [kinds.packets, kinds.requests, kinds.grants, kinds.completions, kinds.timers];
        assert!(all.into_iter().all(|count| count > 0), "{kinds:?}");
        for counts in [found.inline, found.threads, found.virtual_time] {
            assert_eq!(counts.entries, found.entries);
            assert_eq!(Counts { in_flight_max: 1, ..counts }, found.inline);
        }
        assert!(found.virtual_time.in_flight_max > 8 && found.virtual_time_overtaken > 0);
    }

    #[test]
    fn virtual_time_is_deterministic() {
        let [one, other] = [(); 2].map(|()| {
            let logs = record(1);
            let outs = logs.iter().map(|log| {
                let mut executor = VirtualTime::<_, Sack>::new(log.settings, Shape::default(), 9);
                plant(Some(Planted::NoSequencer));
                let replayed = caught(|| replay(log, &mut executor));
                plant(None);
                replayed.map(|out| out.flows)
            });
            outs.collect::<Vec<_>>()
        });
        assert_eq!(one, other);
    }
}
