//! The queue: unidirectional, one producer, one consumer, bounded, over a [`Window`].
//!
//! An entry is one 64-byte line: up to seven payload words and, last, the *lap word*.
//!
//! ```text
//! word   0 .. 6   payload, only the first `words` of them are meaningful
//! word   7        lap << 32 | kind << 16 | flags << 8 | words
//! ```
//!
//! `lap` counts how often the ring has been filled, starting at 1, so zeroed memory is an empty
//! queue. The producer writes the payload, then the lap word; the consumer loads the lap word, then
//! only the words it names, and never clears it. The one word that flows back is the *credit*: the
//! consumer's index, published every quarter of the ring (Floem's and iPipe's lazy head, Wave 5.1),
//! and read by the producer only when it believes that the ring is full. No index is shared on the
//! fast path, which is why an unbatched push costs one line transfer and not three.
//!
//! Invariants, for any writes by the peer: an endpoint touches only its ring and its credit line; the
//! producer never has more than `entries` unconsumed entries; each entry is popped at most once and
//! in order; a lap word that is not the expected one is an empty queue.

use crate::link::{LINE_WORDS, Mapping, Window};
use crate::planted::{Planted, is_planted};

/// Payload words of an entry.
pub const PAYLOAD_WORDS: usize = LINE_WORDS - 1;
/// Lines that [`Consumer::prefetch_ahead`] asks for: a switch takes less time than the transfer of a
/// line between distant cores.
const LINES_AHEAD: u64 = 2;
/// The word of an entry that holds its lap, kind, flags and length: written last.
pub const LAP_WORD: usize = LINE_WORDS - 1;

/// Where a queue lies in its region, as both sides compute it from the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Index of the line of entry 0.
    pub first: u32,
    /// How many entries: a power of two, at least [`Ring::ENTRIES_MIN`].
    pub entries: u32,
    /// The line whose word 0 is the credit.
    pub credit: u32,
}

impl Ring {
    /// The smallest ring. The credit is published every quarter, but at least with every entry.
    pub const ENTRIES_MIN: u32 = 2;

    fn line(&self, index: u64) -> u32 {
        self.first + (index as u32 & (self.entries - 1))
    }

    fn lap(&self, index: u64) -> u32 {
        (index >> self.entries.trailing_zeros()) as u32 + 1
    }

    fn check(&self) {
        assert!(
            self.entries.is_power_of_two() && self.entries >= Self::ENTRIES_MIN,
            "a ring needs a power of two of at least {} entries, not {}",
            Self::ENTRIES_MIN,
            self.entries
        );
    }
}

/// The kind and flags of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The type, named by the subsystem; from [`crate::message::KIND_CORE`] up, by this crate.
    pub kind: u16,
    /// Flags, whose meaning depends on the direction of the queue.
    pub flags: u8,
}

/// A popped entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind, flags and number of words.
    pub tag: Tag,
    words: [u64; PAYLOAD_WORDS],
    len: u8,
}

impl Entry {
    /// An entry as a producer would have written it. Panics if there are more than
    /// [`PAYLOAD_WORDS`] words.
    pub fn new(tag: Tag, payload: &[u64]) -> Entry {
        let mut words = [0; PAYLOAD_WORDS];
        words[..payload.len()].copy_from_slice(payload);
        Entry { tag, words, len: payload.len() as u8 }
    }

    /// The payload: as many words as its tag claims.
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.len)]
    }
}

/// The queue is full: the entry was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

/// Why an entry could not be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PushError {
    /// The consumer has not caught up; try again later, or drop and resynchronise.
    #[error(transparent)]
    Full(#[from] Full),
    /// The consumer published an impossible index: the peer is at fault.
    #[error("peer's fault: it claims to have consumed {credit} entries of {produced}")]
    BadCredit {
        credit: u64,
        /// Number of entries pushed so far.
        produced: u64,
    },
}

/// The peer published an entry that no Wave producer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: entry {index} names {words} payload words, at most 7 fit")]
pub struct Malformed {
    /// Number of the entry, from the queue's beginning.
    pub index: u64,
    /// Number of words that its tag claims.
    pub words: u8,
}

/// The writing end of a queue.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    cached: bool,
    produced: u64,
    credit: u64,
}

impl Producer {
    /// Creates the producer of a queue in zeroed memory, which it sees under `mapping`.
    pub fn new(ring: Ring, mapping: Mapping) -> Producer {
        ring.check();
        Producer { ring, cached: mapping == Mapping::WriteThrough, produced: 0, credit: 0 }
    }

    /// Continues for another producer, which has pushed `produced` entries.
    pub fn resume(ring: Ring, mapping: Mapping, produced: u64) -> Producer {
        // Assume a full ring: the first push then reads the credit.
        let credit = produced.saturating_sub(ring.entries.into());
        Producer { produced, credit, ..Producer::new(ring, mapping) }
    }

    /// Place and size of the ring.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Number of entries pushed since the beginning.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// Writes one entry. It travels with the next [`Window::publish`] at the latest.
    #[inline]
    pub fn push<const N: usize>(
        &mut self,
        window: &impl Window,
        tag: Tag,
        payload: &[u64; N],
    ) -> Result<(), PushError> {
        const { assert!(N <= PAYLOAD_WORDS, "an entry has seven payload words") };
        if self.produced - self.credit >= u64::from(self.ring.entries) {
            self.refresh(window)?;
        }
        let lap = u64::from(self.ring.lap(self.produced)) << 32
            | u64::from(tag.kind) << 16
            | u64::from(tag.flags) << 8
            | N as u64;
        window.write_line(self.ring.line(self.produced), payload, lap);
        self.produced += 1;
        Ok(())
    }

    /// How many entries can be pushed now. Reads across the link only if the cached credit leaves no room.
    pub fn room(&mut self, window: &impl Window) -> u32 {
        let _ = self.produced - self.credit < u64::from(self.ring.entries)
            || self.refresh(window).is_ok();
        self.ring.entries - (self.produced - self.credit) as u32
    }

    /// Whether `wanted` more entries can be pushed now. Reads across the link only if the cached credit leaves too little room.
    ///
    /// # Errors
    /// As [`Producer::push`], except that a full queue is no error.
    pub fn has_room(&mut self, window: &impl Window, wanted: u32) -> Result<bool, PushError> {
        let entries = u64::from(self.ring.entries);
        if self.produced - self.credit + u64::from(wanted) > entries {
            match self.refresh(window) {
                Ok(()) | Err(PushError::Full(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.produced - self.credit + u64::from(wanted) <= entries)
    }

    #[cold]
    fn refresh(&mut self, window: &impl Window) -> Result<(), PushError> {
        if self.cached {
            window.flush(self.ring.credit);
        }
        let credit = window.load(self.ring.credit, 0);
        if credit > self.produced {
            return Err(PushError::BadCredit { credit, produced: self.produced });
        }
        // A smaller credit than before is out of date, or a lie that only makes the ring look fuller.
        self.credit = self.credit.max(credit);
        if self.produced - self.credit >= u64::from(self.ring.entries) {
            return Err(Full.into());
        }
        Ok(())
    }
}

/// The reading end of a queue.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    cached: bool,
    /// Each word costs a transfer: read only the words that an entry has.
    word_by_word: bool,
    fresh: bool,
    consumed: u64,
    credited: u64,
}

impl Consumer {
    /// Creates the consumer of a queue in zeroed memory, which it sees under `mapping`.
    pub fn new(ring: Ring, mapping: Mapping) -> Consumer {
        ring.check();
        let cached = mapping == Mapping::WriteThrough;
        let word_by_word = mapping == Mapping::Uncached;
        Consumer { ring, cached, word_by_word, fresh: false, consumed: 0, credited: 0 }
    }

    /// Continues for another consumer, which has popped `consumed` entries and published `credited` of them as credit.
    pub fn resume(ring: Ring, mapping: Mapping, [consumed, credited]: [u64; 2]) -> Consumer {
        Consumer { consumed, credited, ..Consumer::new(ring, mapping) }
    }

    /// Place and size of the ring.
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// Number of entries popped since the beginning.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// The index last published as credit.
    pub fn credited(&self) -> u64 {
        self.credited
    }

    /// Whether entry number `index`, counted from 0, has been written. For an observer; the consumer has popped all entries
    /// before it.
    pub fn has(&self, window: &impl Window, index: u64) -> bool {
        let line = self.ring.line(index);
        if self.cached {
            window.flush(line);
        }
        (window.load(line, LAP_WORD) >> 32) as u32 == self.ring.lap(index)
    }

    /// Asks for the line of the next entry (Wave 5.4, `PREFETCH_TXNS`), dropping what a cache
    /// may still hold of it from the lap before.
    #[inline]
    pub fn prefetch(&mut self, window: &impl Window) {
        let line = self.ring.line(self.consumed);
        if self.cached && !is_planted(Planted::MissingFlush) {
            window.flush(line);
            self.fresh = true;
        }
        window.prefetch(line);
    }

    /// Asks for the lines of the next entries, for a consumer whose entries are left for it ahead of time.
    /// Does nothing under a mapping where it would hide the peer's later stores.
    #[inline]
    pub fn prefetch_ahead(&mut self, window: &impl Window) {
        if !self.cached && !self.word_by_word {
            for ahead in 0..LINES_AHEAD {
                window.prefetch(self.ring.line(self.consumed + ahead));
            }
        }
    }

    /// Gives up the line of the last popped entry. For a consumer that streams: the producer's next
    /// write to the line then invalidates no cached copy. Not for a consumer whose next instruction is locked:
    /// on x86 it would wait for the eviction.
    #[inline]
    pub fn release(&self, window: &impl Window) {
        window.release(self.ring.line(self.consumed.wrapping_sub(1)));
    }

    /// Takes the next entry, if it is there. A malformed one is skipped and reported.
    ///
    /// Most calls find an empty queue: that check is inlined everywhere; whether the copy is, the compiler decides.
    #[inline]
    pub fn pop(&mut self, window: &impl Window) -> Result<Option<Entry>, Malformed> {
        let line = self.ring.line(self.consumed);
        if self.cached && !core::mem::take(&mut self.fresh) && !is_planted(Planted::MissingFlush) {
            window.flush(line);
        }
        let lap = window.load(line, LAP_WORD);
        if (lap >> 32) as u32 != self.ring.lap(self.consumed) {
            return Ok(None);
        }
        self.take(window, line, lap).map(Some)
    }

    /// Takes the entry in this line, whose lap word is `lap`.
    #[inline]
    fn take(&mut self, window: &impl Window, line: u32, lap: u64) -> Result<Entry, Malformed> {
        let len = lap as u8;
        let mut words = [0; PAYLOAD_WORDS];
        if !self.word_by_word {
            window.read_line(line, &mut words);
        } else if usize::from(len) <= PAYLOAD_WORDS {
            window.read_line(line, &mut words[..usize::from(len)]);
        }
        let index = self.consumed;
        self.consumed += 1;
        if self.consumed - self.credited >= u64::from(self.ring.entries / 4) {
            self.credited = self.consumed;
            window.store(self.ring.credit, 0, self.consumed);
        }
        if usize::from(len) > PAYLOAD_WORDS {
            return Err(Malformed { index, words: len });
        }
        let tag = Tag { kind: (lap >> 16) as u16, flags: (lap >> 8) as u8 };
        Ok(Entry { tag, words, len })
    }
}
