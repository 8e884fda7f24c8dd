//! The compact log of one incarnation of an agent: its policy's inputs and outputs, and its kicks.
//!
//! Everything that a trace or a replay needs passes through the agent, so one format serves native and
//! simulated runs. [`LogWriter`] is a [`crate::brain::Recorder`]; [`LogReader`] checks every byte;
//! [`crate::replay`] feeds a log to a policy again.
//!
//! # Format, version 4
//!
//! A *number* is a LEB128 of at most 64 bits; a *subject* is an id and a generation.
//!
//! ```text
//! header    "WAVElog\n" | version | the words of the Config | text: policy | text: about
//! text      length | UTF-8
//! record    tag | number: time since the last record, wrapping; absent if TAG_SAME_TIME | body
//! tag       bits 0-3 kind | bit 4 TAG_SAME_TIME | bits 5-7 flags of the kind
//!
//! 1 entry      context | message, if flag 5 | outcome, if flag 6           (flag 7: it asks)
//!   message    kind | subject | sequence | argument | 3 words
//!   outcome    code | txn | run
//! 2 snapshot   cores | per core: run | txn | asks
//!              records | each: subject | sequence | state | core | class
//! 3 note       kind | subject | 2 words                                      to the policy
//! 4 decide     budget | held, if flag 5
//! 5 decided    core | kind | subject | sequence | txn | flags | argument
//! 6 preempted  core | run
//! 7 noted      as a note                                                     from the policy
//! 8 kicked     core
//! 9 bulk       count | as many words
//! ```
//!
//! There is no trailer: at worst, the log of a killed agent ends in the middle of a record.

mod read;
mod write;

use alloc::string::String;

use crate::brain::Input;
use crate::clock::Nanos;
use crate::layout::{Config, ConfigError};
use crate::message::Decision;
use crate::policy::{Note, Preemption};

pub use read::LogReader;
pub use write::{BUFFER_BYTES, LogWriter};

/// The bytes with which a log begins.
pub const MAGIC: [u8; 8] = *b"WAVElog\n";
/// Version of the log's format. A reader refuses others.
pub const VERSION: u32 = 4;
/// Bytes of a text in a header, at most; a longer one is cut.
pub const TEXT_BYTES_MAX: usize = 4096;

const TAG_KIND: u8 = 0x0f;
const TAG_SAME_TIME: u8 = 0x10;
/// A flag of an entry, as are the next two.
const TAG_MESSAGE: u8 = 0x20;
const TAG_OUTCOME: u8 = 0x40;
const TAG_ASKS: u8 = 0x80;
/// Set in the tag of a decide that has decisions waiting for room.
const TAG_HELD: u8 = 0x20;

/// Kinds of records, as numbers in the file.
mod kind {
    pub const ENTRY: u8 = 1;
    pub const SNAPSHOT: u8 = 2;
    pub const NOTE: u8 = 3;
    pub const DECIDE: u8 = 4;
    pub const DECIDED: u8 = 5;
    pub const PREEMPTED: u8 = 6;
    pub const NOTED: u8 = 7;
    pub const KICKED: u8 = 8;
    pub const BULK: u8 = 9;
}

/// The header of a log: configuration, policy and origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The enclave's configuration, from which the policy was made.
    pub config: Config,
    /// The policy's full name, parameters included.
    pub policy: String,
    /// The log's origin, for people: scenario, variant, seed.
    pub about: String,
}

/// One record of a log: its time, and an input or output of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The agent's time at the record.
    pub now: Nanos,
    /// The recorded input or output.
    pub what: What,
}

/// The input or output that a record holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Something that the policy's state depends on.
    Input(Input),
    /// The policy decided. Belongs, like preemptions and notes, to the [`Input::Decide`] before it.
    Decided {
        /// Core that the decision is for.
        core: u16,
        /// The decision as it was sent.
        decision: Decision,
    },
    /// The policy asked for the end of a run.
    Preempted(Preemption),
    /// The policy sent a note.
    Noted(Note),
    /// The agent rang a core's doorbell.
    Kicked {
        /// The core that was rung.
        core: u16,
    },
}

/// The way in which a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// At the end of a whole record.
    Whole,
    /// In the middle of a record, which is lost: the agent was killed while it wrote.
    Truncated {
        /// The byte at which that record begins.
        at: usize,
    },
}

/// A file that is not a log, or a damaged log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum LogError {
    /// The bytes do not begin with [`MAGIC`].
    #[error("not a log of an agent: it does not begin with `WAVElog`")]
    Magic,
    /// Another version of the format.
    #[error("the log's version is {found}, this program reads {VERSION}")]
    Version { found: u64 },
    /// The log ends before its first record: the agent was killed at once.
    #[error("the log ends within its header, at byte {at}")]
    NoHeader { at: usize },
    /// A field of the header is not valid.
    #[error("the log is damaged: byte {at}, in its header: {what}")]
    Header { at: usize, what: &'static str },
    /// A configuration that no agent runs with.
    #[error("the log is damaged: its header's configuration: {0}")]
    Config(#[from] ConfigError),
    /// A field of a record is not valid.
    #[error("the log is damaged: byte {at}, in record {record}: {what}")]
    Record {
        /// Which record, counted from 1.
        record: u64,
        /// The byte at which the field begins.
        at: usize,
        what: &'static str,
    },
}
