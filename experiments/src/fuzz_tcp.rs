//! Seeded histories of two TCP stacks over an adversarial wire, in virtual time, and rules that every history keeps.
//!
//! The stacks are the code of `subsystems/tcp`, compiled once more so that faults can be planted in it: each fault is planted
//! alone, and a history that breaks a rule catches it.

pub(crate) mod history;
pub(crate) mod machine;
mod trace;
mod watch;

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use history::Outcome;
use serde::Serialize;
use wave_lab::progress::Progress;
pub use wave_tcp_planted::planted::Planted;
use wave_tcp_planted::planted::plant;

/// Seeds that a thread takes at a time.
const BATCH: u64 = 50;
/// Violations that are shown.
const FAILURES_MAX: usize = 20;
/// Histories that are tried for each planted fault, at most.
pub const PLANTED_SEEDS_MAX: u64 = 500;

/// A rule that every history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Oracle {
    /// What is read is what was written, from the first byte to the last.
    Bytes,
    /// A host is told of bytes that lie in its memory, and positions do not go back.
    Told,
    /// Every connection ends, once.
    Ends,
    /// A connection fails only where a host has given it up.
    NoFailure,
    /// At the end, no table has an entry.
    Empty,
    /// An acknowledgement covers only bytes that were copied to the host's memory.
    AckOfCopied,
    /// An end that came with its bytes, in any order, is acknowledged with them.
    FinKept,
    /// The advertised right edge does not move left by a unit of the window or more.
    WindowKept,
    /// Beyond the peer's edge, only probes of one byte are sent.
    PeersWindow,
    /// A connection is reset only where its host has given it up.
    ResetHasCause,
    /// Times between retransmissions of the same bytes double, while the peer is silent.
    BackOff,
    /// A fast retransmit follows three duplicate acknowledgements without data, or a selective one of bytes behind a gap.
    FastRetransmit,
    /// A selective acknowledgement covers only bytes that came.
    SackOfReceived,
    /// ECE is sent, and data may be marked, only where the handshake agreed on ECN, and no bare acknowledgement, SYN, or data that is
    /// sent again may be marked.
    EcnAgreed,
    /// A mark of data is echoed by the next segment that acknowledges it; DCTCP echoes nothing else.
    MarkEchoed,
    /// An old SYN does not end TIME-WAIT.
    Remembered,
    /// The code does not panic.
    NoPanic,
}

/// A rule that a history breaks.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Seed of the history.
    pub seed: u64,
    pub oracle: Oracle,
    pub what: String,
}

/// What happened in histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Losses noticed without a timeout.
    pub fast_retransmits: u64,
    /// Those of them that selective acknowledgements told of.
    pub sack_recoveries: u64,
    /// Advertised windows that closed.
    pub zero_windows: u64,
    /// Streams whose sequence numbers wrapped.
    pub sequence_wraps: u64,
    /// Connections with ECN, by their ends.
    pub ecn_connections: u64,
    /// Marks on data that came in order of such connections.
    pub marks: u64,
    /// Segments that echo a mark.
    pub echoes: u64,
    /// Segments that say that the window was reduced.
    pub reductions: u64,
    /// SYNs that asked for ECN and were dropped for it.
    pub asking_syns_dropped: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.rtos += other.rtos;
        self.fast_retransmits += other.fast_retransmits;
        self.sack_recoveries += other.sack_recoveries;
        self.zero_windows += other.zero_windows;
        self.sequence_wraps += other.sequence_wraps;
        self.ecn_connections += other.ecn_connections;
        self.marks += other.marks;
        self.echoes += other.echoes;
        self.reductions += other.reductions;
        self.asking_syns_dropped += other.asking_syns_dropped;
    }
}

/// Which histories are run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seeds: u64,
    pub seed: u64,
    /// A fault in all of them.
    pub planted: Option<Planted>,
    /// Each fault is planted alone, in histories beside these.
    pub plants_all: bool,
}

/// Whether a planted fault was caught.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Caught {
    pub name: &'static str,
    /// The first seed that caught it, or the last that did not.
    pub seed: u64,
    /// Whether a rule was broken.
    pub caught: bool,
    /// Rule that caught it.
    pub oracle: Option<Oracle>,
}

/// What came of all histories.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    pub seeds: u64,
    /// Histories that broke a rule.
    pub violations: u64,
    #[serde(flatten)]
    pub counts: Counts,
    /// A hash of every frame, copy and end.
    pub trace_hash: String,
    /// The first violations, by seed.
    pub failures: Vec<Violation>,
    pub planted: Vec<Caught>,
}

/// Runs the histories of a plan.
pub fn run(plan: &Plan, quiet: bool) -> Found {
    let batches = plan.seeds.div_ceil(BATCH);
    let faults = if plan.plants_all { &Planted::ALL[..] } else { &[] };
    let progress = Progress::new(batches + faults.len() as u64, quiet);
    let (next, sum) = (AtomicU64::new(0), Mutex::new((Found::default(), 0)));
    let worker = || {
        loop {
            let step = next.fetch_add(1, Ordering::Relaxed);
            if step < batches {
                let first = plan.seed + step * BATCH;
                let seeds = first..(first + BATCH).min(plan.seed + plan.seeds);
                progress.begin(&format!("seeds {} to {}", seeds.start, seeds.end - 1));
                for seed in seeds {
                    let outcome = history(seed, plan.planted);
                    let (found, hash) = &mut *sum.lock().expect("nobody panics with it");
                    *hash ^= outcome.trace_hash.rotate_left((seed % 64) as u32);
                    found.take(outcome);
                }
            } else if let Some(fault) = faults.get((step - batches) as usize) {
                progress.begin(&format!("planted fault {}", fault.name()));
                let caught = caught(*fault, plan.seed);
                sum.lock().expect("nobody panics with it").0.planted.push(caught);
            } else {
                return;
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
    let (mut found, hash) = sum.into_inner().expect("nobody panics with it");
    found.trace_hash = format!("{hash:016x}");
    found.failures.sort_by_key(|violation| violation.seed);
    found.failures.truncate(FAILURES_MAX);
    let place = |name| Planted::ALL.iter().position(|fault| fault.name() == name);
    found.planted.sort_by_key(|caught| place(caught.name));
    found
}

/// Looks for a history that catches a fault.
fn caught(fault: Planted, first: u64) -> Caught {
    let name = fault.name();
    let mut seeds = first..first + PLANTED_SEEDS_MAX;
    let found = seeds.find_map(|seed| history(seed, Some(fault)).violation);
    match found {
        Some(Violation { seed, oracle, .. }) => {
            Caught { name, seed, caught: true, oracle: Some(oracle) }
        }
        None => Caught { name, seed: seeds.end - 1, caught: false, oracle: None },
    }
}

/// Runs one history in this thread. A panic in it breaks a rule, too.
fn history(seed: u64, planted: Option<Planted>) -> Outcome {
    plant(planted);
    let ended = catch_unwind(|| history::run(seed));
    plant(None);
    ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let what = text.unwrap_or("a panic").to_owned();
        let violation = Violation { seed, oracle: Oracle::NoPanic, what };
        Outcome { violation: Some(violation), counts: Counts::default(), trace_hash: 0 }
    })
}

impl Found {
    fn take(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.counts.add(&outcome.counts);
        self.violations += u64::from(outcome.violation.is_some());
        self.failures.extend(outcome.violation);
    }

    /// Names of planted faults that no history has caught.
    pub fn missed(&self) -> Vec<&'static str> {
        self.planted.iter().filter(|fault| !fault.caught).map(|fault| fault.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seeds: u64) -> Plan {
        Plan { seeds, seed: 0, planted: None, plants_all: false }
    }

    #[test]
    fn histories_keep_every_rule_and_meet_what_they_are_for() {
        let found = run(&plan(300), true);
        assert_eq!(found.violations, 0, "{:#?}", found.failures);
        let Counts { rtos, fast_retransmits, sack_recoveries, zero_windows, .. } = found.counts;
        let Counts { sequence_wraps, ecn_connections, marks, echoes, reductions, .. } =
            found.counts;
        let ecn = [ecn_connections, marks, echoes, reductions, found.counts.asking_syns_dropped];
        assert!(ecn.into_iter().all(|count| count > 0), "{:?}", found.counts);
        // Some by duplicates alone: not every connection has selective acknowledgements.
        let by_duplicates = fast_retransmits - sack_recoveries;
        let all = [rtos, by_duplicates, sack_recoveries, zero_windows, sequence_wraps];
        assert!(all.into_iter().all(|count| count > 0), "{:?}", found.counts);
    }

    #[test]
    fn the_same_seeds_give_the_same_histories() {
        let [one, other] = [(); 2].map(|()| run(&plan(60), true));
        assert_eq!((&one.trace_hash, one.counts), (&other.trace_hash, other.counts));
        let later = run(&Plan { seed: 60, ..plan(60) }, true);
        assert_ne!(one.trace_hash, later.trace_hash);
    }

    #[test]
    fn every_planted_fault_is_caught() {
        for fault in Planted::ALL {
            let caught = caught(fault, 0);
            assert!(caught.caught, "{caught:?}");
        }
    }
}
