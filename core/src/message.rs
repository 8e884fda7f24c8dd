//! The values that cross the link: messages and decisions; [`crate::outcome`] has the outcomes.
//!
//! Numbers arrive from a peer that may lie, so decoding goes through one checked constructor each,
//! and nothing here trusts an id to be in range: the tables that ids index check them.

use crate::outcome::Outcome;
use crate::queue::{Entry, Tag};

/// Kinds from here up belong to the core, below it to the subsystem.
pub const KIND_CORE: u16 = 0x8000;
/// An entry that carries no message, only an outcome.
pub const KIND_NONE: u16 = KIND_CORE;
/// Host to agent: a snapshot is in an extent. Subject: the extent.
pub const KIND_SNAPSHOT: u16 = KIND_CORE + 1;
/// Agent to host: messages were lost or are inconsistent; send a snapshot.
pub const KIND_RESYNC: u16 = KIND_CORE + 2;
/// Agent to host: an extent is returned to its producer. Subject: the extent.
pub const KIND_EXTENT_RETURNED: u16 = KIND_CORE + 3;
/// Host to agent: bulk data is in an extent. Subject: the extent; first word: number of words.
pub const KIND_BULK: u16 = KIND_CORE + 4;
/// Agent to host: an extent of bulk data is returned to its producer. Subject: the extent.
pub const KIND_BULK_RETURNED: u16 = KIND_CORE + 5;

/// Flag of an upstream entry: its context has nothing to do until a decision comes.
pub const FLAG_ASKS: u8 = 1;
/// Flag of an upstream entry: its last word is an [`Outcome`].
pub const FLAG_OUTCOME: u8 = 2;
/// Flag of a decision: it belongs to an atomic transaction of more than one decision.
pub const FLAG_ATOMIC: u8 = 1;

/// The subject of a message or a decision: an index into the host's table, and the generation of that slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// Index into the host's table; reused.
    pub id: u32,
    /// Tells the uses of a reused id apart.
    pub generation: u32,
}

impl Subject {
    /// As one word: generation in the high half.
    pub const fn to_word(self) -> u64 {
        (self.generation as u64) << 32 | self.id as u64
    }

    /// Reads id and generation from one word.
    pub const fn from_word(word: u64) -> Subject {
        Subject { id: word as u32, generation: (word >> 32) as u32 }
    }
}

/// A version of a subject's state. Bumped by each of its messages, never reset when an id is
/// reused, so that one number orders everything that ever happened to an id. Wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The following number, wrapping around.
    pub const fn next(self) -> Sequence {
        Sequence(self.0.wrapping_add(1))
    }

    /// How far `self` is ahead of `other` (negative: behind), for numbers less than 2^31 apart.
    pub const fn ahead_of(self, other: Sequence) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

/// Host to agent: something happened to a subject. Five words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// What happened, named by the subsystem.
    pub kind: u16,
    /// Subject that the message is about.
    pub subject: Subject,
    /// The version of the subject's state that this message made.
    pub sequence: Sequence,
    /// One small argument; its meaning depends on the kind.
    pub argument: u32,
    /// Further arguments; their meaning depends on the kind.
    pub payload: [u64; 3],
}

impl Message {
    /// The words of the message, as [`Upstream::decode`] reads them.
    pub const fn words(&self) -> [u64; 5] {
        let [a, b, c] = self.payload;
        let second = (self.argument as u64) << 32 | self.sequence.0 as u64;
        [self.subject.to_word(), second, a, b, c]
    }

    fn from_words(kind: u16, words: &[u64; 5]) -> Message {
        Message {
            kind,
            subject: Subject::from_word(words[0]),
            sequence: Sequence(words[1] as u32),
            argument: (words[1] >> 32) as u32,
            payload: [words[2], words[3], words[4]],
        }
    }
}

/// An entry from host to agent: a message, an outcome, or the message and the outcome of one
/// switch (in this order of time), which share a line and a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The message, if the entry carries one.
    pub message: Option<Message>,
    /// The outcome of a decision, if the entry carries one.
    pub outcome: Option<Outcome>,
    /// Whether the sending context waits for a decision.
    pub asks: bool,
}

/// An entry whose parts do not fit its kind: the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer's fault: an entry of kind {kind:#x} with flags {flags:#x} cannot have {words} words")]
pub struct BadEntry {
    /// Kind of the entry, as the subsystem defines it.
    pub kind: u16,
    /// Flags of the entry, as they were on the wire.
    pub flags: u8,
    /// Number of payload words that the entry claims.
    pub words: u8,
}

impl BadEntry {
    fn of(entry: &Entry) -> BadEntry {
        let Tag { kind, flags } = entry.tag;
        BadEntry { kind, flags, words: entry.words().len() as u8 }
    }
}

impl Upstream {
    /// Reads an entry that a host pushed.
    #[inline]
    pub fn decode(entry: &Entry) -> Result<Upstream, BadEntry> {
        let bad = || BadEntry::of(entry);
        let asks = entry.tag.flags & FLAG_ASKS != 0;
        let with_outcome = entry.tag.flags & FLAG_OUTCOME != 0;
        let words = entry.words();
        let (message, rest) = if entry.tag.kind == KIND_NONE {
            (None, words)
        } else {
            let (head, rest) = words.split_first_chunk::<5>().ok_or_else(bad)?;
            (Some(Message::from_words(entry.tag.kind, head)), rest)
        };
        let outcome = match (with_outcome, rest) {
            (false, []) => None,
            (true, [word]) => Some(Outcome::from_word(*word).ok_or_else(bad)?),
            _ => return Err(bad()),
        };
        Ok(Upstream { message, outcome, asks })
    }
}

/// The number of a decision in its queue. Wraps at 24 bits; outcomes come back in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxnId(u32);

impl TxnId {
    const BITS: u32 = 24;
    const MASK: u32 = (1 << Self::BITS) - 1;

    /// The id with this number, modulo 2^24.
    pub const fn new(number: u32) -> TxnId {
        TxnId(number & Self::MASK)
    }

    /// The transaction number, below 2^24.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The following number, wrapping around.
    pub const fn next(self) -> TxnId {
        TxnId::new(self.0 + 1)
    }

    /// How many decisions lie between `earlier` and `self`, modulo 2^24.
    pub const fn after(self, earlier: TxnId) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }
}

/// Agent to host: what to do with a subject. Three words, so that a host that reads word by word
/// across the link pays for four loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What to do, named by the subsystem.
    pub kind: u16,
    /// Subject that the decision is about.
    pub subject: Subject,
    /// The version of the subject's state that the agent had seen. The host refuses a stale one.
    pub sequence: Sequence,
    /// Number of the decision in its queue, below 2^24.
    pub txn: TxnId,
    /// [`FLAG_ATOMIC`] if the decision belongs to a group, otherwise 0.
    pub flags: u8,
    /// One argument, for the mechanism.
    pub argument: u64,
}

impl Decision {
    /// The decision as the tag and payload of an entry.
    pub const fn encode(&self) -> (Tag, [u64; 3]) {
        let second = (self.txn.number() as u64) << 32 | self.sequence.0 as u64;
        let tag = Tag { kind: self.kind, flags: self.flags };
        (tag, [self.subject.to_word(), second, self.argument])
    }

    /// Reads an entry that an agent pushed.
    #[inline]
    pub fn decode(entry: &Entry) -> Result<Decision, BadEntry> {
        let [subject, second, argument] = entry.words() else { return Err(BadEntry::of(entry)) };
        Ok(Decision {
            kind: entry.tag.kind,
            flags: entry.tag.flags,
            subject: Subject::from_word(*subject),
            sequence: Sequence(*second as u32),
            txn: TxnId::new((*second >> 32) as u32),
            argument: *argument,
        })
    }
}
