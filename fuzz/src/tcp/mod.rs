//! Seeded histories of two TCP stacks over an adversarial wire, in virtual time, and rules that every history must keep.
//!
//! The stacks are the code of `subsystems/tcp`, compiled a second time so that faults can be planted in it. Each fault is
//! planted alone; a history that breaks a rule catches it.

pub(crate) mod history;
mod side;
mod trace;
mod watch;

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use history::Outcome;
use serde::Serialize;
pub use wave_tcp_planted::datapaths::DatapathKind;
pub use wave_tcp_planted::planted::Planted;
use wave_tcp_planted::planted::plant;
use wave_terminal::{Failure, Progress, counted, interrupt};

/// Seeds that a thread takes at a time.
const BATCH: u64 = 50;
/// Maximum number of violations shown.
const FAILURES_MAX: usize = 20;
/// Maximum number of histories tried for each planted fault.
pub const PLANTED_SEEDS_MAX: u64 = 500;

/// A rule that every history must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Oracle {
    /// The bytes read are the bytes written, from the first to the last.
    Bytes,
    /// A host is notified only of bytes that lie in its memory, and positions never go back.
    Told,
    /// Every connection ends, once.
    Ends,
    /// A connection fails only if a host gave it up.
    NoFailure,
    /// At the end, every table is empty.
    Empty,
    /// An acknowledgement covers only bytes already copied to the host's memory.
    AckOfCopied,
    /// A FIN whose preceding bytes have all arrived, in any order, is acknowledged with them.
    FinKept,
    /// The advertised right edge never moves left by a unit of the window or more.
    WindowKept,
    /// Beyond the peer's right edge, only probes of one byte are sent.
    PeersWindow,
    /// A connection is reset only if its host gave it up.
    ResetHasCause,
    /// Times between retransmissions of the same bytes double while the peer is silent.
    BackOff,
    /// A fast retransmit follows three duplicate acknowledgements without data, or a selective acknowledgement of bytes behind
    /// a gap.
    FastRetransmit,
    /// A selective acknowledgement covers only bytes that arrived.
    SackOfReceived,
    /// ECE is sent, and data is sent as ECN-capable, only if the handshake agreed on ECN. Bare acknowledgements, SYNs and
    /// retransmitted data are never ECN-capable.
    EcnAgreed,
    /// A mark on data is echoed by the next segment that acknowledges it; DCTCP echoes nothing else.
    MarkEchoed,
    /// An old SYN does not end TIME-WAIT.
    Remembered,
    /// The code does not panic.
    NoPanic,
}

/// A broken rule in a history.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// Seed of the history.
    pub seed: u64,
    pub oracle: Oracle,
    pub what: String,
}

/// Event counts of histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Losses detected without a timeout.
    pub fast_retransmits: u64,
    /// Those of them detected by selective acknowledgements.
    pub sack_recoveries: u64,
    /// Advertised windows that closed to zero.
    pub zero_windows: u64,
    /// Streams whose sequence numbers wrapped.
    pub sequence_wraps: u64,
    /// Connection ends that use ECN.
    pub ecn_connections: u64,
    /// Marks on in-order data of these connections.
    pub marks: u64,
    /// Segments that echo a mark.
    pub echoes: u64,
    /// Segments that report a reduced congestion window (CWR).
    pub reductions: u64,
    /// SYNs that asked for ECN and were dropped for that reason.
    pub asking_syns_dropped: u64,
    /// Replacements of a stack while it had connections.
    pub changes: u64,
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
        self.changes += other.changes;
    }
}

/// The histories to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seeds: u64,
    pub seed: u64,
    /// The data path of both sides; with another one than FlexTOE's, one side has FlexTOE's in half of the histories.
    pub datapath: DatapathKind,
    /// A fault to plant in all of them.
    pub planted: Option<Planted>,
    /// Whether each fault is also planted alone, in additional histories.
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

/// The result of all histories.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Found {
    pub seeds: u64,
    /// Histories that broke a rule.
    pub violations: u64,
    #[serde(flatten)]
    pub counts: Counts,
    /// Hash of every frame, copy and end of a connection.
    pub trace_hash: String,
    /// The first violations, by seed.
    pub failures: Vec<Violation>,
    pub planted: Vec<Caught>,
}

/// Runs the histories of a plan. If the process is interrupted, it says what they have found so far.
///
/// # Errors
/// Signals cannot be handled.
pub fn run(plan: &Plan, quiet: bool) -> Result<Found, Failure> {
    let batches = plan.seeds.div_ceil(BATCH);
    let faults = if plan.plants_all { &Planted::ALL[..] } else { &[] };
    let progress = Progress::new(batches + faults.len() as u64, quiet);
    let (next, sum) = (AtomicU64::new(0), Arc::new(Mutex::new((Found::default(), 0))));
    let (so_far, seeds) = (Arc::clone(&sum), plan.seeds);
    interrupt::say(move || {
        let found = &so_far.lock().unwrap_or_else(PoisonError::into_inner).0;
        format!("wave fuzz tcp: interrupted: {}", found.so_far(seeds))
    })?;
    let worker = || {
        loop {
            let step = next.fetch_add(1, Ordering::Relaxed);
            if step < batches {
                let first = plan.seed + step * BATCH;
                let seeds = first..(first + BATCH).min(plan.seed + plan.seeds);
                progress.begin(&format!("seeds {} to {}", seeds.start, seeds.end - 1));
                for seed in seeds {
                    let outcome = history(seed, plan.datapath, plan.planted);
                    let (found, hash) = &mut *sum.lock().expect("nobody panics with it");
                    *hash ^= outcome.trace_hash.rotate_left((seed % 64) as u32);
                    found.take(outcome);
                }
            } else if let Some(fault) = faults.get((step - batches) as usize) {
                progress.begin(&format!("planted fault {}", fault.name()));
                let caught = caught(*fault, plan.datapath, plan.seed);
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
    let (mut found, hash) = std::mem::take(&mut *sum.lock().expect("nobody panics with it"));
    found.trace_hash = format!("{hash:016x}");
    found.failures.sort_by_key(|violation| violation.seed);
    found.failures.truncate(FAILURES_MAX);
    let place = |name| Planted::ALL.iter().position(|fault| fault.name() == name);
    found.planted.sort_by_key(|caught| place(caught.name));
    Ok(found)
}

/// Searches for a history that catches a fault.
fn caught(fault: Planted, datapath: DatapathKind, first: u64) -> Caught {
    let name = fault.name();
    let mut seeds = first..first + PLANTED_SEEDS_MAX;
    let found = seeds.find_map(|seed| history(seed, datapath, Some(fault)).violation);
    match found {
        Some(Violation { seed, oracle, .. }) => {
            Caught { name, seed, caught: true, oracle: Some(oracle) }
        }
        None => Caught { name, seed: seeds.end - 1, caught: false, oracle: None },
    }
}

/// Runs one history in this thread. A panic counts as a broken rule.
fn history(seed: u64, datapath: DatapathKind, planted: Option<Planted>) -> Outcome {
    plant(planted);
    let ended = catch_unwind(|| history::run(seed, datapath));
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
    /// The findings of an interrupted run of `seeds` histories.
    fn so_far(&self, seeds: u64) -> String {
        let failures = self
            .failures
            .iter()
            .map(|Violation { seed, what, .. }| format!("\nseed {seed}: {what}"));
        format!(
            "{} of {} done, {}{}",
            self.seeds,
            counted(seeds, "history"),
            counted(self.violations, "violation"),
            failures.collect::<String>()
        )
    }

    fn take(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.counts.add(&outcome.counts);
        self.violations += u64::from(outcome.violation.is_some());
        self.failures.extend(outcome.violation);
    }

    /// Names of planted faults that no history caught.
    pub fn missed(&self) -> Vec<&'static str> {
        self.planted.iter().filter(|fault| !fault.caught).map(|fault| fault.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seeds: u64) -> Plan {
        let datapath = DatapathKind::FlexToe;
        Plan { seeds, seed: 0, datapath, planted: None, plants_all: false }
    }

    #[test]
    fn histories_keep_every_rule_and_cover_every_kind_of_event() {
        let found = run(&plan(300), true).unwrap();
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
    fn histories_over_laminar_keep_every_rule() {
        let found = run(&Plan { datapath: DatapathKind::Laminar, ..plan(300) }, true).unwrap();
        assert_eq!(found.violations, 0, "{:#?}", found.failures);
        let Counts { rtos, fast_retransmits, zero_windows, sequence_wraps, marks, changes, .. } =
            found.counts;
        let all = [rtos, fast_retransmits, zero_windows, sequence_wraps, marks, changes];
        assert!(all.into_iter().all(|count| count > 0), "{:?}", found.counts);
    }

    #[test]
    fn equal_seeds_give_equal_histories() {
        let [one, other] = [(); 2].map(|()| run(&plan(60), true).unwrap());
        assert_eq!((&one.trace_hash, one.counts), (&other.trace_hash, other.counts));
        let later = run(&Plan { seed: 60, ..plan(60) }, true).unwrap();
        assert_ne!(one.trace_hash, later.trace_hash);
    }

    #[test]
    fn every_planted_fault_is_caught() {
        for (fault, kind) in Planted::ALL
            .iter()
            .flat_map(|fault| DatapathKind::ALL.iter().map(move |kind| (fault, kind)))
        {
            let caught = caught(*fault, *kind, 0);
            assert!(caught.caught, "{}: {caught:?}", kind.name());
        }
    }
}
