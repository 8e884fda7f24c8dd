//! The host's state for an agent that is new or has lost messages: the source of truth, in one extent.
//!
//! The host stages a snapshot in its own memory, the copy engine moves it, a message names the
//! extent; the agent copies it once, checks the copy and returns the extent. Each subject's record
//! carries its sequence, so that messages that the snapshot already covers are dropped and later ones
//! apply: nothing needs to stand still while it is taken.

use alloc::vec::Vec;

use crate::layout::{CORES_MAX, Config, PoolPlace};
use crate::link::{Home, LINE_WORDS, Port, Window};
use crate::message::{Sequence, Subject, TxnId};
use crate::planted::{Planted, is_planted};

/// State of a subject when the snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// The id is not in use. Its sequence still counts.
    Free = 0,
    /// The subject waits for a decision.
    Runnable = 1,
    /// The subject is on a core.
    Running = 2,
    /// The subject waits for something other than a decision.
    Blocked = 3,
}

impl State {
    /// The state with this number; `None` for a number that no state has.
    pub const fn from_number(number: u8) -> Option<State> {
        match number {
            0 => Some(State::Free),
            1 => Some(State::Runnable),
            2 => Some(State::Running),
            3 => Some(State::Blocked),
            _ => None,
        }
    }
}

/// One id of the host's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The subject: its id and generation.
    pub subject: Subject,
    /// The version of its state.
    pub sequence: Sequence,
    /// State of the subject when the record was written.
    pub state: State,
    /// The core that the subject runs on; without meaning if it does not run.
    pub core: u16,
    /// The class that its messages name.
    pub class: u16,
}

/// A core's record in a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreRecord {
    /// The core's run number: its count of switches so far.
    pub run: u32,
    /// The last decision whose outcome the core has reported.
    pub txn: TxnId,
    /// Whether the core is idle and asks for work.
    pub asks: bool,
}

impl CoreRecord {
    /// Whether the core has been idle ever since `earlier`. Decisions that it refused meanwhile gave it
    /// no work: an agent that makes no others must not pass for one that decides.
    pub fn has_idled_since(&self, earlier: &CoreRecord) -> bool {
        let refused = is_planted(Planted::RefusalsCountAsWork) && self.txn != earlier.txn;
        self.asks && earlier.asks && self.run == earlier.run && !refused
    }

    /// Whether the core had answered this decision. A record of the decision's subject in the same snapshot is newer than this
    /// one, and so shows what became of an answered decision.
    pub fn has_answered(&self, txn: TxnId) -> bool {
        // Numbers wrap: a decision that is not answered is ahead by less than half of them.
        self.txn.after(txn) < 1 << 23
    }
}

/// The host's state at about one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Every id that was ever used.
    pub records: Vec<Record>,
    /// Records of all cores, by their numbers.
    pub cores: Vec<CoreRecord>,
}

const CORE_WORDS: usize = 2;
const RECORD_WORDS: usize = 3;

/// Lines of an extent that holds the largest snapshot of `config`.
pub fn lines(config: &Config) -> u32 {
    let words = usize::from(config.cores) * CORE_WORDS + config.subjects as usize * RECORD_WORDS;
    (LINE_WORDS + words).div_ceil(LINE_WORDS) as u32
}

/// An extent that carries no snapshot: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SnapshotError {
    /// The snapshot names an extent that does not exist.
    #[error("peer's fault: extent {0} is not in the pool")]
    Extent(u32),
    /// The numbers of subjects and cores do not fit the configuration.
    #[error(
        "peer's fault: a snapshot of {records} subjects and {cores} cores does not fit the window"
    )]
    Counts { records: u64, cores: u64 },
    /// A record that is not valid.
    #[error("peer's fault: record {0} of the snapshot is not valid")]
    Record(u32),
}

/// Host: stages a snapshot in `extent`. Returns how many lines of it are used.
pub fn stage(
    port: &impl Port,
    pool: &PoolPlace,
    extent: u32,
    cores: &[CoreRecord],
    records: impl Iterator<Item = Record>,
) -> u32 {
    assert!(extent < pool.extents);
    let near = port.window(Home::Host);
    let base = pool.staging + extent * pool.lines;
    let mut at = LINE_WORDS;
    let mut put = |words: &[u64]| {
        for &word in words {
            near.store(base + (at / LINE_WORDS) as u32, at % LINE_WORDS, word);
            at += 1;
        }
    };
    for core in cores {
        put(&[u64::from(core.run) << 32 | u64::from(core.txn.number()), core.asks.into()]);
    }
    let mut count = 0;
    for record in records {
        let second = u64::from(record.core) << 48
            | (record.state as u64) << 32
            | u64::from(record.sequence.0);
        put(&[record.subject.to_word(), second, record.class.into()]);
        count += 1;
    }
    near.store(base, 0, count);
    near.store(base, 1, cores.len() as u64);
    near.publish();
    at.div_ceil(LINE_WORDS) as u32
}

/// Agent: copies the snapshot in `extent` and checks the copy.
pub fn read(
    port: &impl Port,
    config: &Config,
    pool: &PoolPlace,
    extent: u32,
) -> Result<Snapshot, SnapshotError> {
    if extent >= pool.extents {
        return Err(SnapshotError::Extent(extent));
    }
    let near = port.window(Home::Nic);
    let base = pool.target + extent * pool.lines;
    let (records, cores) = (near.load(base, 0), near.load(base, 1));
    if records > config.subjects.into() || cores != config.cores.into() {
        return Err(SnapshotError::Counts { records, cores });
    }
    debug_assert!(usize::from(config.cores) <= CORES_MAX);
    let words = cores as usize * CORE_WORDS + records as usize * RECORD_WORDS;
    let mut copy = Vec::with_capacity(words + LINE_WORDS);
    for line in 0..words.div_ceil(LINE_WORDS) {
        let mut buffer = [0; LINE_WORDS];
        near.read_line(base + 1 + line as u32, &mut buffer);
        copy.extend_from_slice(&buffer);
    }
    copy.truncate(words);
    let (core_words, record_words) = copy.split_at(cores as usize * CORE_WORDS);
    let cores = core_words
        .chunks_exact(CORE_WORDS)
        .map(|pair| CoreRecord {
            run: (pair[0] >> 32) as u32,
            txn: TxnId::new(pair[0] as u32),
            asks: pair[1] != 0,
        })
        .collect();
    let records = record_words
        .chunks_exact(RECORD_WORDS)
        .enumerate()
        .map(|(at, words)| {
            let bad = SnapshotError::Record(at as u32);
            let subject = Subject::from_word(words[0]);
            if subject.id >= config.subjects {
                return Err(bad);
            }
            Ok(Record {
                subject,
                sequence: Sequence(words[1] as u32),
                state: State::from_number((words[1] >> 32) as u8).ok_or(bad)?,
                core: (words[1] >> 48) as u16,
                class: words[2] as u16,
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Snapshot { records, cores })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent whose decisions are all refused must not pass for one that decides.
    #[test]
    fn refused_decisions_do_not_count_as_work() {
        let record = |run, txn, asks| CoreRecord { run, txn: TxnId::new(txn), asks };
        assert!(record(7, 90, true).has_idled_since(&record(7, 3, true)));
        assert!(!record(8, 4, true).has_idled_since(&record(7, 3, true)), "it ran something");
        assert!(!record(7, 3, true).has_idled_since(&record(7, 3, false)), "it ran until now");
        assert!(!record(7, 3, false).has_idled_since(&record(7, 3, true)));
    }
}
