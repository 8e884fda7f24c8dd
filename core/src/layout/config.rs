//! What host and agent agree on, before anything is laid out.

use super::CONTROL_ENTRIES;
use crate::clock::Nanos;
use crate::link::{Home, LINE_WORDS, Mapping, Transport};
use crate::queue::Ring;

/// Words of a [`Config`] in a header.
pub const CONFIG_WORDS: usize = 10;

/// How a direction's queues are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// What moves the entries.
    pub transport: Transport,
    /// Where an MMIO queue lives. A DMA queue lives with its consumer.
    pub home: Home,
    /// How the host maps it.
    pub host: Mapping,
    /// How the agent maps it.
    pub agent: Mapping,
    /// Entries in each queue: a power of two.
    pub entries: u32,
}

/// How bulk data travels from host to agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkConfig {
    /// Extents in the pool; 0 where the subsystem sends none.
    pub extents: u16,
    /// Lines in each.
    pub lines: u32,
    /// Whether the host waits for each copy, or goes on and looks later.
    pub transport: Transport,
}

impl BulkConfig {
    /// No bulk data.
    pub const NONE: BulkConfig = BulkConfig { extents: 0, lines: 0, transport: Transport::DmaSync };

    /// Words in an extent.
    pub const fn words(&self) -> usize {
        self.lines as usize * LINE_WORDS
    }

    const fn to_word(self) -> u64 {
        (self.extents as u64) << 48 | (self.lines as u64) << 8 | self.transport as u64
    }
}

/// How what is too large for a core's queues travels: for each core a pool of extents in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadConfig {
    /// Extents in each pool; 0 where all goes through the queues.
    pub extents: u16,
    /// Lines in each.
    pub lines: u16,
    /// Bytes that still go through the queue: what is longer goes in extents.
    pub inline_max: u32,
}

impl PayloadConfig {
    /// All goes through the queues.
    pub const NONE: PayloadConfig = PayloadConfig { extents: 0, lines: 0, inline_max: u32::MAX };

    const fn to_word(self) -> u64 {
        (self.extents as u64) << 48 | (self.lines as u64) << 32 | self.inline_max as u64
    }

    const fn from_word(word: u64) -> PayloadConfig {
        PayloadConfig {
            extents: (word >> 48) as u16,
            lines: (word >> 32) as u16,
            inline_max: word as u32,
        }
    }
}

/// Everything both sides must agree on before they speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Host cores of the enclave.
    pub cores: u16,
    /// Producing contexts that are not cores: outside threads and the control context (the last).
    pub contexts: u16,
    /// Subjects at once: ids are below this.
    pub subjects: u32,
    /// Decisions that an agent leaves in a core's queue before the core asks; 0 is none.
    pub prestage: u16,
    /// Messages and outcomes, host to agent.
    pub messages: QueueConfig,
    /// Decisions, agent to host.
    pub decisions: QueueConfig,
    /// Bulk data, host to agent.
    pub bulk: BulkConfig,
    /// What is too large for a core's queues, both ways.
    pub payloads: PayloadConfig,
    /// How long a core or an agent without work looks for some before it parks.
    pub spin: Nanos,
    /// The watchdog's limit: work has waited this long for a decision.
    pub patience: Nanos,
}

impl Config {
    /// Everything in near memory and mapped coherently: for links of shared memory.
    pub const fn coherent(cores: u16) -> Config {
        let queue = QueueConfig {
            transport: Transport::Mmio,
            home: Home::Nic,
            host: Mapping::WriteBack,
            agent: Mapping::WriteBack,
            entries: 1024,
        };
        Config {
            cores,
            contexts: 2,
            subjects: 4096,
            prestage: 2,
            messages: queue,
            decisions: QueueConfig { entries: 64, ..queue },
            bulk: BulkConfig::NONE,
            payloads: PayloadConfig::NONE,
            spin: Nanos::from_micros(50),
            patience: Nanos::from_millis(20),
        }
    }

    /// Everything in NIC memory across a link that is not coherent, mapped as Wave 5.3.1 has it:
    /// messages are write-combined, decisions are read through the cache.
    pub const fn pcie(cores: u16) -> Config {
        let mut config = Config::coherent(cores);
        config.messages.host = Mapping::WriteCombining;
        config.decisions.host = Mapping::WriteThrough;
        config
    }

    /// As words, for a header.
    pub fn to_words(&self) -> [u64; CONFIG_WORDS] {
        let queue = |queue: &QueueConfig| {
            u64::from(queue.entries) << 32
                | (queue.transport as u64) << 24
                | (queue.home as u64) << 16
                | (queue.host as u64) << 8
                | queue.agent as u64
        };
        [
            self.cores.into(),
            self.contexts.into(),
            self.subjects.into(),
            self.prestage.into(),
            queue(&self.messages),
            queue(&self.decisions),
            self.bulk.to_word(),
            self.payloads.to_word(),
            self.spin.0,
            self.patience.0,
        ]
    }

    /// From words that [`Config::to_words`] gave; still to be checked ([`Config::check`]).
    ///
    /// # Errors
    /// The index of the first word that means nothing.
    pub fn from_words(words: &[u64; CONFIG_WORDS]) -> Result<Config, usize> {
        let small = |at: usize| u16::try_from(words[at]).map_err(|_| at);
        let queue = |at: usize| decode_queue(words[at]).ok_or(at);
        Ok(Config {
            cores: small(0)?,
            contexts: small(1)?,
            subjects: u32::try_from(words[2]).map_err(|_| 2_usize)?,
            prestage: small(3)?,
            messages: queue(4)?,
            decisions: queue(5)?,
            bulk: decode_bulk(words[6]).ok_or(6_usize)?,
            payloads: PayloadConfig::from_word(words[7]),
            spin: Nanos(words[8]),
            patience: Nanos(words[9]),
        })
    }

    /// Checks every field.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |field, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ConfigError::OutOfRange { field, value, min, max })
            }
        };
        within("cores", self.cores.into(), 1, CORES_MAX as u64)?;
        within("contexts", self.contexts.into(), 1, CONTEXTS_MAX as u64)?;
        within("subjects", self.subjects.into(), 1, 1 << 20)?;
        for (field, queue) in [("messages", &self.messages), ("decisions", &self.decisions)] {
            within(field, queue.entries.into(), Ring::ENTRIES_MIN.into(), 1 << 16)?;
            if !queue.entries.is_power_of_two() {
                return Err(ConfigError::NotPowerOfTwo { field, value: queue.entries });
            }
        }
        // A reader's credit is a store that nobody publishes.
        if self.decisions.host == Mapping::WriteCombining {
            return Err(ConfigError::WriteCombiningReader { field: "decisions", side: "host" });
        }
        if self.messages.agent == Mapping::WriteCombining {
            return Err(ConfigError::WriteCombiningReader { field: "messages", side: "agent" });
        }
        // Outstanding decisions and credit not yet published (a quarter) must fit in the ring, so
        // that an honest agent never finds it full.
        within("prestage", self.prestage.into(), 0, u64::from(self.decisions.entries) / 2)?;
        // Each comes back by the control queue, which must not be full of them.
        within("bulk extents", self.bulk.extents.into(), 0, u64::from(CONTROL_ENTRIES) / 4)?;
        if self.bulk.extents > 0 {
            within("lines of a bulk extent", self.bulk.lines.into(), 1, 1 << 12)?;
            if self.bulk.transport == Transport::Mmio {
                return Err(ConfigError::BulkTransport);
            }
        }
        let PayloadConfig { extents, lines, .. } = self.payloads;
        within("payload extents", extents.into(), 0, PAYLOAD_EXTENTS_MAX.into())?;
        if extents > 0 {
            within("lines of a payload extent", lines.into(), 1, 1 << 12)?;
        }
        within("patience", self.patience.0, 1_000_000, u64::MAX)
    }
}

/// Cores in one enclave. An enclave is scheduled by one agent; more cores want more enclaves
/// (one agent's prestaging collapses between 24 and 32 cores in the fitted model). A doorbell per
/// core and two more must fit in one message of a Unix socket, which carries 253 descriptors.
pub const CORES_MAX: usize = 240;

/// Producing contexts of one enclave that are not cores: a CPU outside for each, as many as a Linux kernel
/// commonly knows, and the control context. Each has a queue of messages: 64 KiB by default.
pub const CONTEXTS_MAX: usize = 1025;

/// Extents in a pool of payloads: what a consumer copies in one turn is bounded by it.
pub const PAYLOAD_EXTENTS_MAX: u16 = 16;

/// A configuration that cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number is too small or too large.
    #[error("{field} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        /// Which.
        field: &'static str,
        /// What it is.
        value: u64,
        /// Smallest allowed.
        min: u64,
        /// Largest allowed.
        max: u64,
    },
    /// A mapping that holds stores back, for the side that reads.
    #[error("{field} are read by the {side}, which cannot map them write-combining")]
    WriteCombiningReader {
        /// Which queues.
        field: &'static str,
        /// Who reads them.
        side: &'static str,
    },
    /// Bulk data whose extents nobody copies.
    #[error("bulk data is copied: its transport is dma-sync or dma-async, not mmio")]
    BulkTransport,
    /// A ring's size.
    #[error("{field} have queues of {value} entries, which is no power of two")]
    NotPowerOfTwo {
        /// Which queues.
        field: &'static str,
        /// What was asked for.
        value: u32,
    },
}

fn decode_bulk(word: u64) -> Option<BulkConfig> {
    let [transport, ..] = word.to_le_bytes();
    Some(BulkConfig {
        extents: (word >> 48) as u16,
        lines: (word >> 8) as u32,
        transport: decode_transport(transport)?,
    })
    .filter(|bulk| bulk.to_word() == word)
}

fn decode_transport(number: u8) -> Option<Transport> {
    [Transport::Mmio, Transport::DmaSync, Transport::DmaAsync]
        .into_iter()
        .find(|&kind| kind as u8 == number)
}

fn decode_queue(word: u64) -> Option<QueueConfig> {
    let mapping = |number: u8| {
        [Mapping::Uncached, Mapping::WriteCombining, Mapping::WriteThrough, Mapping::WriteBack]
            .into_iter()
            .find(|&mapping| mapping as u8 == number)
    };
    let [agent, host, home, transport, ..] = word.to_le_bytes();
    Some(QueueConfig {
        transport: decode_transport(transport)?,
        home: [Home::Nic, Home::Host].into_iter().find(|&at| at as u8 == home)?,
        host: mapping(host)?,
        agent: mapping(agent)?,
        entries: (word >> 32) as u32,
    })
}
