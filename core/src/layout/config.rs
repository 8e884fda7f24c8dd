//! The configuration of a window, on which host and agent agree before anything is laid out.

use super::CONTROL_ENTRIES;
use crate::clock::Nanos;
use crate::link::{Home, LINE_WORDS, Mapping, Side, Transport};
use crate::queue::Ring;
use crate::subsystem::SubsystemId;

/// Words of a [`Config`] before its pools.
const FIELDS: usize = 6;
/// Words of a [`Config`] in a header.
pub const CONFIG_WORDS: usize = FIELDS + POOLS_MAX;

/// The configuration of all queues of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// The mechanism that moves entries between the two sides.
    pub transport: Transport,
    /// Where an MMIO queue lives. A DMA queue lives with its consumer.
    pub home: Home,
    /// Mapping of the ring at the host.
    pub host: Mapping,
    /// Mapping of the ring at the agent.
    pub agent: Mapping,
    /// Entries in each queue: a power of two.
    pub entries: u32,
}

/// Kinds of pools in one configuration, at most.
pub const POOLS_MAX: usize = 4;

/// Whether a window has one pool of a kind, or one for each of its cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PoolScope {
    /// One pool per window. The control context sends its extents: see [`crate::control::HostControl::send_bulk`].
    Window = 0,
    /// One pool for each core of the enclave.
    Core = 1,
}

/// A pool of extents that a subsystem asks for: memory for data that is too large for queue entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// The side that fills its extents.
    pub producer: Side,
    /// How many pools there are of this kind.
    pub scope: PoolScope,
    /// Extents in each pool; 0 is no pool.
    pub extents: u8,
    /// Number of lines in each extent.
    pub lines: u16,
    /// Whether the control context waits for each copy ([`Transport::DmaSync`]), or checks for its completion later. Extents of
    /// cores are never waited for.
    pub transport: Transport,
    /// The most bytes that still go through the queue, if the subsystem has such a limit: longer data goes in extents.
    pub inline_max: u32,
}

impl PoolConfig {
    /// A pool that does not exist.
    pub const NONE: PoolConfig = PoolConfig {
        producer: Side::Host,
        scope: PoolScope::Window,
        extents: 0,
        lines: 0,
        transport: Transport::DmaSync,
        inline_max: 0,
    };

    /// Whether its extents carry bulk data: from the host's control context to the agent.
    pub const fn is_bulk(&self) -> bool {
        matches!((self.scope, self.producer), (PoolScope::Window, Side::Host)) && self.extents > 0
    }

    /// Number of words in an extent.
    pub const fn words(&self) -> usize {
        self.lines as usize * LINE_WORDS
    }

    /// In this order: extents, flags, lines, `inline_max`.
    const fn to_word(self) -> u64 {
        let flags = (self.transport as u64) << 4 | (self.scope as u64) << 1 | self.producer as u64;
        (self.extents as u64) << 56
            | flags << 48
            | (self.lines as u64) << 32
            | self.inline_max as u64
    }

    fn from_word(word: u64) -> Option<PoolConfig> {
        let flags = (word >> 48) as u8;
        let pool = PoolConfig {
            producer: if flags & 1 == 0 { Side::Host } else { Side::Agent },
            scope: if flags & 2 == 0 { PoolScope::Window } else { PoolScope::Core },
            extents: (word >> 56) as u8,
            lines: (word >> 32) as u16,
            transport: decode_transport(flags >> 4)?,
            inline_max: word as u32,
        };
        (pool.to_word() == word).then_some(pool)
    }
}

/// Everything that both sides must agree on before they communicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The subsystem, set by the host when it lays the window out.
    pub subsystem: SubsystemId,
    /// Host cores of the enclave.
    pub cores: u16,
    /// Producing contexts that are not cores: outside threads and the control context (the last).
    pub contexts: u16,
    /// The most subjects at once: ids are below this number.
    pub subjects: u32,
    /// The most decisions that an agent leaves in a core's queue before the core asks; 0 turns prestaging off.
    pub prestage: u16,
    /// Messages and outcomes, host to agent.
    pub messages: QueueConfig,
    /// Decisions, agent to host.
    pub decisions: QueueConfig,
    /// Memory for data that is too large for the queues, as the subsystem asks for it.
    pub pools: [PoolConfig; POOLS_MAX],
    /// How long an idle core or agent polls for work before it parks.
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
            subsystem: SubsystemId::NONE,
            cores,
            contexts: 2,
            subjects: 4096,
            prestage: 2,
            messages: queue,
            decisions: QueueConfig { entries: 64, ..queue },
            pools: [PoolConfig::NONE; POOLS_MAX],
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

    /// The pool whose extents carry bulk data, or [`PoolConfig::NONE`].
    pub fn bulk(&self) -> PoolConfig {
        self.pools.into_iter().find(PoolConfig::is_bulk).unwrap_or(PoolConfig::NONE)
    }

    /// Encodes the configuration as words of the window's header.
    pub fn to_words(&self) -> [u64; CONFIG_WORDS] {
        let queue = |queue: &QueueConfig| {
            u64::from(queue.entries) << 32
                | (queue.transport as u64) << 24
                | (queue.home as u64) << 16
                | (queue.host as u64) << 8
                | queue.agent as u64
        };
        let mut words = [0; CONFIG_WORDS];
        let (fields, pools) = words.split_at_mut(FIELDS);
        fields.copy_from_slice(&[
            u64::from(self.subsystem.number()) << 48
                | u64::from(self.prestage) << 32
                | u64::from(self.contexts) << 16
                | u64::from(self.cores),
            self.subjects.into(),
            queue(&self.messages),
            queue(&self.decisions),
            self.spin.0,
            self.patience.0,
        ]);
        pools.copy_from_slice(&self.pools.map(PoolConfig::to_word));
        words
    }

    /// Decodes words of [`Config::to_words`]; the result is still to be checked ([`Config::check`]).
    ///
    /// # Errors
    /// The index of the first word without a defined meaning.
    pub fn from_words(words: &[u64; CONFIG_WORDS]) -> Result<Config, usize> {
        let queue = |at: usize| decode_queue(words[at]).ok_or(at);
        let mut pools = [PoolConfig::NONE; POOLS_MAX];
        for (at, pool) in (FIELDS..).zip(&mut pools) {
            *pool = PoolConfig::from_word(words[at]).ok_or(at)?;
        }
        let [first, ..] = *words;
        Ok(Config {
            subsystem: SubsystemId::new((first >> 48) as u16),
            cores: first as u16,
            contexts: (first >> 16) as u16,
            prestage: (first >> 32) as u16,
            subjects: u32::try_from(words[1]).map_err(|_| 1_usize)?,
            messages: queue(2)?,
            decisions: queue(3)?,
            spin: Nanos(words[4]),
            patience: Nanos(words[5]),
            pools,
        })
    }

    /// Checks every field against its bounds.
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
        // A consumer never publishes its credit store, so write-combining would hold the store back.
        if self.decisions.host == Mapping::WriteCombining {
            return Err(ConfigError::WriteCombiningReader { field: "decisions", side: "host" });
        }
        if self.messages.agent == Mapping::WriteCombining {
            return Err(ConfigError::WriteCombiningReader { field: "messages", side: "agent" });
        }
        // Outstanding decisions and credit not yet published (a quarter) must fit in the ring, so
        // that an honest agent never finds it full.
        within("prestage", self.prestage.into(), 0, u64::from(self.decisions.entries) / 2)?;
        let mut bulk = 0;
        for pool in self.pools.iter().filter(|pool| pool.extents > 0) {
            let most = match pool.scope {
                // Extents are returned through the control queue, which they must not fill.
                PoolScope::Window => u64::from(CONTROL_ENTRIES) / 4,
                PoolScope::Core => CORE_EXTENTS_MAX.into(),
            };
            within("extents of a pool", pool.extents.into(), 1, most)?;
            within("lines of an extent", pool.lines.into(), 1, 1 << 12)?;
            if pool.transport == Transport::Mmio {
                return Err(ConfigError::PoolTransport);
            }
            bulk += usize::from(pool.is_bulk());
            if pool.scope == PoolScope::Window && !pool.is_bulk() || bulk > 1 {
                return Err(ConfigError::WindowPools);
            }
        }
        within("patience", self.patience.0, 1_000_000, u64::MAX)
    }
}

/// The most cores in one enclave. An enclave is scheduled by one agent; more cores need more
/// enclaves (one agent's prestaging collapses between 24 and 32 cores in the fitted model). A doorbell
/// per core and two more must fit in one message of a Unix socket, which carries 253 descriptors.
pub const CORES_MAX: usize = 240;

/// The most producing contexts of one enclave that are not cores: one for each CPU outside the enclave, as many
/// as a Linux kernel commonly supports, and the control context. Each has a queue of messages: 64 KiB by default.
pub const CONTEXTS_MAX: usize = 1025;

/// The most extents in a core's pool; it bounds what a consumer copies in one turn.
pub const CORE_EXTENTS_MAX: u8 = 16;

/// A configuration that cannot be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ConfigError {
    /// A number is too small or too large.
    #[error("{field} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        field: &'static str,
        value: u64,
        /// The smallest value that is allowed.
        min: u64,
        /// The largest value that is allowed.
        max: u64,
    },
    /// The reading side has a mapping that holds stores back.
    #[error("{field} are read by the {side}, which cannot map them write-combining")]
    WriteCombiningReader { field: &'static str, side: &'static str },
    /// A pool's transport does not copy.
    #[error("a pool's extents are copied: its transport must be dma-sync or dma-async")]
    PoolTransport,
    /// More pools with window scope than the control context serves.
    #[error("at most one pool may belong to the window, and the host must fill it")]
    WindowPools,
    /// The size of a ring is not a power of two.
    #[error("{field} have queues of {value} entries, which is not a power of two")]
    NotPowerOfTwo { field: &'static str, value: u32 },
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
