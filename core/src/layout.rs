//! Where everything lies in a window: computed from one [`Config`] by both sides alike, and carried
//! in the window's header, which the agent checks before it believes anything.
//!
//! ```text
//! NIC memory   header | agent line | core status lines | credits | rings | extents
//! host memory  agent's parking word | preemption words | credits | rings | extents' staging
//! ```
//!
//! Rings lie at power-of-two strides behind one base per direction, so that a program that can only
//! add and shift (BPF) can address them; and that base begins a page, so that a direction may lie in
//! memory of its own.

use alloc::vec::Vec;

use crate::clock::Nanos;
use crate::link::{Home, LINE_WORDS, Mapping, Side, Span, Transport, Window};
use crate::queue::Ring;

/// Version of everything that crosses a link: layout, entries, handshake.
pub const PROTOCOL_VERSION: u32 = 2;
/// First word of a header: "WAVEwave".
pub const MAGIC: u64 = u64::from_le_bytes(*b"WAVEwave");

/// Words of a [`Config`] in a header.
pub const CONFIG_WORDS: usize = 9;

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
            spin: Nanos(words[7]),
            patience: Nanos(words[8]),
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

/// One queue's place, of whatever transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// What moves the entries.
    pub transport: Transport,
    /// Where [`QueuePlace::ring`] lies.
    pub home: Home,
    /// The ring that the consumer reads.
    pub ring: Ring,
    /// For DMA, the ring that the producer writes, on its own side. Otherwise the same.
    pub staging: Ring,
    host: Mapping,
    agent: Mapping,
}

impl QueuePlace {
    /// How a side sees the queue's memory.
    pub const fn mapping(&self, side: Side) -> Mapping {
        match side {
            Side::Host => self.host,
            Side::Agent => self.agent,
        }
    }
}

/// Pool of extents for bulk data from host to agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// First line in NIC memory.
    pub target: u32,
    /// First line of the staging copy in host memory.
    pub staging: u32,
    /// How many extents.
    pub extents: u32,
    /// Lines in each.
    pub lines: u32,
}

/// The places of everything, for one configuration.
#[derive(Clone, Debug)]
pub struct Layout {
    /// What it was computed from.
    pub config: Config,
    /// Lines of NIC memory.
    pub nic_lines: u32,
    /// Lines of host memory.
    pub host_lines: u32,
    /// NIC memory: written by the host before attach (see [`write_header`]).
    pub header: u32,
    /// NIC memory: word 0 is the host's word on this incarnation ([`INCARNATION_LIVE`]).
    pub incarnation: u32,
    /// NIC memory: the agent's own line: version, state.
    pub agent: u32,
    /// NIC memory: a line per core, written by the host; word 0 is [`CORE_PARKED`] or not.
    pub core_status: u32,
    /// Host memory: word 0 is [`AGENT_PARKED`] or not, written by the agent.
    pub agent_parked: u32,
    /// Host memory: a line per core, written by the agent; word 0 is the preemption word.
    pub preempt: u32,
    /// A queue of messages per context: cores first, then the others, the control context last.
    pub messages: Vec<QueuePlace>,
    /// A queue of decisions per core.
    pub decisions: Vec<QueuePlace>,
    /// Agent to the host's control context.
    pub control: QueuePlace,
    /// Snapshots.
    pub snapshots: PoolPlace,
    /// Bulk data.
    pub bulk: PoolPlace,
}

/// [`Layout::incarnation`]: the agent may go on.
pub const INCARNATION_LIVE: u64 = 1;
/// [`Layout::incarnation`]: the host has turned its back on this window; the agent must leave.
pub const INCARNATION_REVOKED: u64 = 2;
/// [`Layout::core_status`]: the core waits for its doorbell.
pub const CORE_PARKED: u64 = 1;
/// [`Layout::agent_parked`]: the agent waits for its doorbell.
pub const AGENT_PARKED: u64 = 1;
/// Word 0 of [`Layout::agent`]: the agent's protocol version in the low half, and this above.
pub const AGENT_READY: u64 = 1 << 32;

const HEADER_LINES: u32 = 4;
/// Lines in a page.
const PAGE_LINES: u32 = 64;
const SNAPSHOT_EXTENTS: u32 = 2;
const CONTROL_ENTRIES: u32 = 64;

#[derive(Default)]
struct Bump(u32);

impl Bump {
    fn take(&mut self, lines: u32) -> u32 {
        let at = self.0;
        self.0 += lines;
        at
    }
}

impl Layout {
    /// Lays out `config`.
    pub fn new(config: Config) -> Result<Layout, ConfigError> {
        config.check()?;
        let mut bumps = [Bump::default(), Bump::default()];
        let nic = &mut bumps[Home::Nic as usize];
        let header = nic.take(HEADER_LINES);
        let incarnation = nic.take(1);
        let agent = nic.take(1);
        let core_status = nic.take(config.cores.into());
        let host = &mut bumps[Home::Host as usize];
        let agent_parked = host.take(1);
        let preempt = host.take(config.cores.into());

        let contexts = u32::from(config.cores) + u32::from(config.contexts);
        let messages = queues(&mut bumps, &config.messages, contexts, Side::Host);
        let decisions = queues(&mut bumps, &config.decisions, config.cores.into(), Side::Agent);
        let control_config = QueueConfig {
            transport: Transport::Mmio,
            home: Home::Nic,
            host: Mapping::Uncached,
            agent: Mapping::WriteBack,
            entries: CONTROL_ENTRIES,
        };
        let control = queues(&mut bumps, &control_config, 1, Side::Agent)[0];
        let mut pool = |extents: u32, lines: u32| {
            let mut take = |home: Home| bumps[home as usize].take(extents * lines);
            PoolPlace { target: take(Home::Nic), staging: take(Home::Host), extents, lines }
        };
        let snapshots = pool(SNAPSHOT_EXTENTS, crate::snapshot::lines(&config));
        let bulk = pool(config.bulk.extents.into(), config.bulk.lines);
        Ok(Layout {
            config,
            nic_lines: bumps[Home::Nic as usize].0,
            host_lines: bumps[Home::Host as usize].0,
            header,
            incarnation,
            agent,
            core_status,
            agent_parked,
            preempt,
            messages,
            decisions,
            control,
            snapshots,
            bulk,
        })
    }

    /// Index of the control context among [`Layout::messages`].
    pub fn control_context(&self) -> usize {
        self.messages.len() - 1
    }

    /// Doorbell vectors: one per core, then the host's control context, then the agent.
    pub fn doorbells(&self) -> usize {
        usize::from(self.config.cores) + 2
    }

    /// The vector that wakes the host's control context.
    pub fn control_vector(&self) -> usize {
        usize::from(self.config.cores)
    }

    /// The vector that wakes the agent.
    pub fn agent_vector(&self) -> usize {
        usize::from(self.config.cores) + 1
    }

    /// How `side` must map what, where it is not what a link does by itself (near memory
    /// write-back, far memory uncached).
    pub fn mappings(&self, side: Side) -> Vec<(Span, Mapping)> {
        let places = self.messages.iter().chain(&self.decisions).chain([&self.control]);
        places
            .filter(|place| place.transport == Transport::Mmio)
            .flat_map(|place| {
                let Ring { first, entries, credit } = place.ring;
                let span =
                    |line, lines| (Span { home: place.home, line, lines }, place.mapping(side));
                [span(first, entries), span(credit, 1)]
            })
            .collect()
    }
}

fn queues(
    bumps: &mut [Bump; 2],
    config: &QueueConfig,
    count: u32,
    producer: Side,
) -> Vec<QueuePlace> {
    let (source, sink) = match producer {
        Side::Host => (Home::Host, Home::Nic),
        Side::Agent => (Home::Nic, Home::Host),
    };
    let home = if config.transport == Transport::Mmio { config.home } else { sink };
    let mut rings = |home: Home| {
        let bump = &mut bumps[home as usize];
        let credits = bump.take(count);
        bump.0 = bump.0.next_multiple_of(PAGE_LINES);
        let first = bump.take(count * config.entries);
        (0..count)
            .map(|queue| Ring {
                first: first + queue * config.entries,
                entries: config.entries,
                credit: credits + queue,
            })
            .collect::<Vec<_>>()
    };
    let targets = rings(home);
    let stagings =
        if config.transport == Transport::Mmio { targets.clone() } else { rings(source) };
    targets
        .into_iter()
        .zip(stagings)
        .map(|(ring, staging)| QueuePlace {
            transport: config.transport,
            home,
            ring,
            staging,
            host: config.host,
            agent: config.agent,
        })
        .collect()
}

/// Why a header is not one that this side can work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a header at all.
    #[error("peer's fault: the window does not begin with a Wave header")]
    Magic,
    /// Another protocol version.
    #[error(
        "the host speaks protocol version {host}, the agent {agent}: use builds of one version"
    )]
    Version {
        /// The host's version.
        host: u32,
        /// The agent's.
        agent: u32,
    },
    /// A field whose number means nothing.
    #[error("peer's fault: word {word} of the header is {value:#x}, which means nothing")]
    Field {
        /// Which word.
        word: usize,
        /// What it is.
        value: u64,
    },
    /// Fields that mean something but cannot be laid out.
    #[error("peer's fault: {0}")]
    Config(#[from] ConfigError),
    /// The window is smaller than the layout.
    #[error("peer's fault: the layout needs {need:?} lines (NIC, host), the window has {have:?}")]
    Truncated {
        /// Lines that the header's configuration needs.
        need: (u32, u32),
        /// Lines that there are.
        have: (u32, u32),
    },
}

fn header_words(config: &Config) -> [u64; 2 + CONFIG_WORDS] {
    let mut words = [0; 2 + CONFIG_WORDS];
    words[0] = MAGIC;
    words[1] = PROTOCOL_VERSION.into();
    words[2..].copy_from_slice(&config.to_words());
    words
}

/// Writes the header of `layout` (host, before the window is offered).
pub fn write_header(layout: &Layout, nic: &impl Window) {
    let words = header_words(&layout.config);
    for (at, word) in words.into_iter().enumerate().rev() {
        nic.store(layout.header + (at / LINE_WORDS) as u32, at % LINE_WORDS, word);
    }
    nic.store(layout.incarnation, 0, INCARNATION_LIVE);
    nic.publish();
}

/// Reads and checks a header (agent, once), and recomputes the layout it names.
///
/// `nic_lines` and `host_lines` are what is really there.
pub fn read_header(
    nic: &impl Window,
    nic_lines: u32,
    host_lines: u32,
) -> Result<Layout, HeaderError> {
    if nic_lines < HEADER_LINES {
        return Err(HeaderError::Truncated {
            need: (HEADER_LINES, 0),
            have: (nic_lines, host_lines),
        });
    }
    // Copied once; only the copy is believed.
    let words: [u64; 2 + CONFIG_WORDS] =
        core::array::from_fn(|at| nic.load((at / LINE_WORDS) as u32, at % LINE_WORDS));
    if words[0] != MAGIC {
        return Err(HeaderError::Magic);
    }
    let host = words[1] as u32;
    if words[1] != u64::from(PROTOCOL_VERSION) {
        return Err(HeaderError::Version { host, agent: PROTOCOL_VERSION });
    }
    let fields = words.last_chunk().expect("the array has that many");
    let config = Config::from_words(fields)
        .map_err(|at| HeaderError::Field { word: 2 + at, value: fields[at] })?;
    let layout = Layout::new(config)?;
    let (need, have) = ((layout.nic_lines, layout.host_lines), (nic_lines, host_lines));
    if need.0 > have.0 || need.1 > have.1 {
        return Err(HeaderError::Truncated { need, have });
    }
    Ok(layout)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_layout_counts_its_lines_without_overflow() {
        let mut config = Config::coherent(CORES_MAX as u16);
        config.contexts = CONTEXTS_MAX as u16;
        config.subjects = 1 << 20;
        (config.messages.entries, config.decisions.entries) = (1 << 16, 1 << 16);
        let layout = Layout::new(config).unwrap();
        assert_eq!(layout.messages.len(), CORES_MAX + CONTEXTS_MAX);
        let lines = [layout.nic_lines, layout.host_lines];
        for place in layout.messages.iter().chain(&layout.decisions) {
            let end = u64::from(place.ring.first) + u64::from(place.ring.entries);
            assert!(end <= lines[place.home as usize].into(), "{place:?}");
        }
        for two in layout.messages.windows(2) {
            assert_eq!(two[0].ring.first + two[0].ring.entries, two[1].ring.first);
        }
        config.contexts += 1;
        assert!(Layout::new(config).is_err());
    }
}
