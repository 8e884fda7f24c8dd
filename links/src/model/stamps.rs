//! The model's own records in a window's extra region: when each word becomes visible.
//!
//! ```text
//! line 0, word 0         when the host's last posted store arrives
//! line 1, word 0         when the agent's last posted store arrives
//! lines 2..34            when each doorbell vector was last rung
//! then, for each line    a line of stamps and a line of previous values
//! ```
//!
//! A word's *stamp* is the time at which its value becomes visible; until then, its *previous*
//! value is visible. A writer stores previous value, stamp and value in this order, and only when the
//! last stamp has passed. A reader takes the value or the previous one according to the stamp, and
//! starts again if the stamp changed meanwhile.
//!
//! The peer may write here too. A false stamp can make words invisible, which the peer could have
//! done by not writing them; no side waits for a stamp that is further off than any true one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use wave_core::link::{Home, LINE_WORDS, Side};

use crate::memory::Memory;

/// Doorbell vectors that a modelled link has room for.
pub const VECTORS_MAX: usize = 256;

const RINGS_LINE: usize = 2;
const WORDS_LINE: usize = RINGS_LINE + VECTORS_MAX / LINE_WORDS;

/// How often a reader retries before it takes the value that it has: a word is stored far more rarely
/// than this, unless the peer is hostile.
const LOOKS_MAX: usize = 16;

/// Number of extra lines for a modelled link of this many lines.
///
/// # Panics
///
/// If they exceed a region's 2^32 lines.
pub fn extra_lines(lines_nic: u32, lines_host: u32) -> u32 {
    let lines = WORDS_LINE as u64 + 2 * (u64::from(lines_nic) + u64::from(lines_host));
    u32::try_from(lines).expect("a modelled link has fewer than 2^31 lines")
}

/// A window's words with their stamps.
#[derive(Clone, Debug)]
pub(super) struct Stamps {
    memory: Arc<Memory>,
    /// The first word of each region's values, and of its records.
    values: [usize; 2],
    records: [usize; 2],
}

impl Stamps {
    /// `None` if the memory has too little room.
    pub fn new(memory: Arc<Memory>) -> Option<Stamps> {
        let (nic, host) = (memory.lines(Home::Nic), memory.lines(Home::Host));
        if memory.lines_extra() < extra_lines(nic, host) {
            return None;
        }
        let (nic, host) = (nic as usize * LINE_WORDS, host as usize * LINE_WORDS);
        let records = nic + host + WORDS_LINE * LINE_WORDS;
        let (values, records) = ([0, nic], [records, records + 2 * nic]);
        Some(Stamps { memory, values, records })
    }

    pub fn lines(&self, home: Home) -> u32 {
        self.memory.lines(home)
    }

    /// When the word's value becomes visible.
    #[inline]
    pub fn stamp(&self, home: Home, line: u32, word: usize) -> u64 {
        self.records(home, line)[word].load(Acquire)
    }

    /// The latest of a line's stamps that are not after `horizon`.
    pub fn newest(&self, home: Home, line: u32, horizon: u64) -> u64 {
        let stamps = &self.records(home, line)[..LINE_WORDS];
        let visible = stamps.iter().map(|stamp| stamp.load(Acquire)).filter(|at| *at <= horizon);
        visible.max().unwrap_or(0)
    }

    /// The word as it is visible at `horizon`.
    #[inline]
    pub fn word(&self, home: Home, line: u32, word: usize, horizon: u64) -> u64 {
        let records = self.records(home, line);
        let (stamp, previous) = (&records[word], &records[LINE_WORDS + word]);
        let value = &self.values(home, line)[word];
        let mut seen = stamp.load(Acquire);
        let mut looks = 0;
        loop {
            let result = if seen <= horizon { value } else { previous }.load(Acquire);
            let again = stamp.load(Acquire);
            looks += 1;
            if again == seen || looks == LOOKS_MAX {
                return result;
            }
            seen = again;
        }
    }

    /// Stores a word that becomes visible at `visible`. The word's last store must be visible already.
    #[inline]
    pub fn put(&self, home: Home, line: u32, word: usize, value: u64, visible: u64) {
        let records = self.records(home, line);
        let target = &self.values(home, line)[word];
        records[LINE_WORDS + word].store(target.load(Relaxed), Relaxed);
        records[word].store(visible, Release);
        target.store(value, Release);
    }

    /// Stores a word that is visible at once. A store still in flight will overwrite it.
    #[inline]
    pub fn put_near(&self, home: Home, line: u32, word: usize, value: u64, in_flight: bool) {
        if in_flight {
            self.records(home, line)[LINE_WORDS + word].store(value, Release);
        } else {
            self.values(home, line)[word].store(value, Release);
        }
    }

    /// Records that a store posted by `side` arrives at `visible`.
    pub fn posted(&self, side: Side, visible: u64) {
        self.memory.extra()[side as usize * LINE_WORDS].fetch_max(visible, SeqCst);
    }

    /// The time at which all posted stores of `side` have arrived.
    pub fn arrival(&self, side: Side) -> u64 {
        self.memory.extra()[side as usize * LINE_WORDS].load(SeqCst)
    }

    /// The word that holds the time of a vector's last ring.
    pub fn ring(&self, vector: usize) -> &AtomicU64 {
        assert!(vector < VECTORS_MAX, "a modelled link has {VECTORS_MAX} doorbells");
        &self.memory.extra()[RINGS_LINE * LINE_WORDS + vector]
    }

    #[inline]
    fn values(&self, home: Home, line: u32) -> &[AtomicU64; LINE_WORDS] {
        let start = self.values[home as usize] + line as usize * LINE_WORDS;
        self.memory.words()[start..].first_chunk().expect("a line has eight words")
    }

    #[inline]
    fn records(&self, home: Home, line: u32) -> &[AtomicU64; 2 * LINE_WORDS] {
        let start = self.records[home as usize] + line as usize * 2 * LINE_WORDS;
        self.memory.words()[start..].first_chunk().expect("a line has two lines of records")
    }
}
