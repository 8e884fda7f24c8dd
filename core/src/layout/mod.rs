//! The layout of a window. Both sides compute it from one [`Config`], which the window's header
//! carries; the agent checks the header before it trusts anything.
//!
//! ```text
//! NIC memory   header | agent line | core status lines | credits | rings | extents
//! host memory  agent's parking word | preemption words | credits | rings | extents
//! ```
//!
//! Rings lie at power-of-two strides behind one base per direction, so that a program that can only
//! add and shift (BPF) can address them. The base begins a page, so that a direction may lie in
//! memory of its own.

mod config;

use alloc::vec::Vec;

use crate::endpoint::home_of;
use crate::link::{Home, LINE_WORDS, Mapping, Side, Span, Transport, Window};
#[cfg(doc)]
use crate::park::PARKED;
use crate::queue::Ring;

/// Version of everything that crosses a link: layout, entries, handshake.
pub const PROTOCOL_VERSION: u32 = 5;
/// First word of a header: "WAVEwave".
pub const MAGIC: u64 = u64::from_le_bytes(*b"WAVEwave");

pub use config::{
    CONFIG_WORDS, CONTEXTS_MAX, CORE_EXTENTS_MAX, CORES_MAX, Config, ConfigError, POOLS_MAX,
    PoolConfig, PoolScope, QueueConfig,
};

/// The place of one queue, for any transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// The mechanism that moves entries between the two sides.
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

/// A pool of extents, which one side fills and the other reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// Side that fills the extents.
    pub producer: Side,
    /// First line in the consumer's memory.
    pub target: u32,
    /// First line of the staging copy in the producer's memory.
    pub staging: u32,
    /// Number of extents in the pool.
    pub extents: u32,
    /// Number of lines in each extent.
    pub lines: u32,
}

impl PoolPlace {
    /// A pool that does not exist.
    pub const NONE: PoolPlace =
        PoolPlace { producer: Side::Host, target: 0, staging: 0, extents: 0, lines: 0 };

    /// The first lines of an extent, where its producer writes them.
    pub const fn staging_of(&self, extent: u32, lines: u32) -> Span {
        let home = home_of(self.producer);
        Span { home, line: self.staging + extent * self.lines, lines }
    }

    /// The first lines of an extent, where its consumer reads them.
    pub const fn target_of(&self, extent: u32, lines: u32) -> Span {
        let home = home_of(self.producer.other());
        Span { home, line: self.target + extent * self.lines, lines }
    }
}

/// The places of everything, for one configuration.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The configuration from which the layout was computed.
    pub config: Config,
    /// Number of lines in NIC memory.
    pub nic_lines: u32,
    /// Number of lines in host memory.
    pub host_lines: u32,
    /// Number of lines at the start of NIC and of host memory that both sides access all the time: all but snapshots and pools.
    pub busy_lines: [u32; 2],
    /// NIC memory: written by the host before attach (see [`write_header`]).
    pub header: u32,
    /// NIC memory: word 0 is the incarnation word, written by the host ([`INCARNATION_LIVE`]). If the watchdog turns
    /// an agent out, the next three words say which subject waits ([`Starved`](crate::watchdog::Starved)).
    pub incarnation: u32,
    /// NIC memory: the agent's own line: version, state.
    pub agent: u32,
    /// NIC memory: a line per core, written by the host; word 0 is [`PARKED`] while the core sleeps.
    pub core_status: u32,
    /// Host memory: word 0, written by the agent, is [`PARKED`] while the agent sleeps.
    pub agent_parked: u32,
    /// Host memory: a line per core, written by the agent; word 0 is the preemption word.
    pub preempt: u32,
    /// A queue of messages per context: cores first, then the others, the control context last.
    pub messages: Vec<QueuePlace>,
    /// A queue of decisions per core.
    pub decisions: Vec<QueuePlace>,
    /// Agent to the host's control context.
    pub control: QueuePlace,
    /// Extents that carry snapshots of cores and subjects to the agent.
    pub snapshots: PoolPlace,
    /// The pools that [`Config::pools`] asks for, by their index there: one for the window, or one per core.
    pub pools: [Vec<PoolPlace>; POOLS_MAX],
}

/// [`Layout::incarnation`]: the incarnation is live.
pub const INCARNATION_LIVE: u64 = 1;
/// [`Layout::incarnation`]: the host has turned this agent out. The agent must leave, as for all values that follow.
pub const INCARNATION_REVOKED: u64 = 2;
/// [`Layout::incarnation`]: another agent has taken over. Attaching again would only turn that one out.
pub const INCARNATION_REPLACED: u64 = 3;
/// [`Layout::incarnation`]: the host shuts down.
pub const INCARNATION_ENDED: u64 = 4;
/// [`Layout::incarnation`]: the host read something that no Wave agent writes. An agent that does not know this value takes it
/// for [`INCARNATION_REVOKED`].
pub const INCARNATION_FAULT: u64 = 5;
/// Word 0 of [`Layout::agent`]: the agent's protocol version in the low half, and this above.
pub const AGENT_READY: u64 = 1 << 32;

const HEADER_LINES: u32 = 4;
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
    /// Lays out a window for `config`; the error names a field that is not valid.
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
        let busy_lines = [Home::Nic, Home::Host].map(|home| bumps[home as usize].0);
        let mut pool = |producer: Side, extents: u32, lines: u32| {
            let mut take = |side| bumps[home_of(side) as usize].take(extents * lines);
            let (target, staging) = (take(producer.other()), take(producer));
            PoolPlace { producer, target, staging, extents, lines }
        };
        let snapshots = pool(Side::Host, SNAPSHOT_EXTENTS, crate::snapshot::lines(&config));
        let pools = config.pools.map(|asked| {
            let count = match (asked.extents, asked.scope) {
                (0, _) => 0,
                (_, PoolScope::Window) => 1,
                (_, PoolScope::Core) => config.cores,
            };
            let one = |_| pool(asked.producer, asked.extents.into(), asked.lines.into());
            (0..count).map(one).collect::<Vec<_>>()
        });
        Ok(Layout {
            config,
            nic_lines: bumps[Home::Nic as usize].0,
            host_lines: bumps[Home::Host as usize].0,
            busy_lines,
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
            pools,
        })
    }

    /// The pool whose extents carry bulk data. It has no extents if the configuration names none.
    pub fn bulk(&self) -> PoolPlace {
        let pools = self.config.pools.iter().zip(&self.pools);
        let bulk =
            pools.filter(|(asked, _)| asked.is_bulk()).find_map(|(_, places)| places.first());
        bulk.copied().unwrap_or(PoolPlace::NONE)
    }

    /// A core's pool of this kind; a pool without extents if the subsystem asked for none.
    pub fn pool_of(&self, kind: usize, core: u16) -> PoolPlace {
        self.pools[kind].get(usize::from(core)).copied().unwrap_or(PoolPlace::NONE)
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

    /// Mappings of `side` that differ from the link's default (near memory
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
    let (source, sink) = (home_of(producer), home_of(producer.other()));
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
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum HeaderError {
    /// The first word is not [`MAGIC`].
    #[error("peer's fault: the window does not begin with a Wave header")]
    Magic,
    /// Another protocol version.
    #[error(
        "the host speaks protocol version {host}, the agent {agent}: use builds of one version"
    )]
    Version { host: u32, agent: u32 },
    /// A field's value is undefined: the host is at fault.
    #[error("peer's fault: word {word} of the header is {value:#x}, which is not a defined value")]
    Field { word: usize, value: u64 },
    /// Each field is defined, but they cannot be laid out.
    #[error("peer's fault: {0}")]
    Config(#[from] ConfigError),
    /// The window is smaller than the layout.
    #[error("peer's fault: the layout needs {need:?} lines (NIC, host), the window has {have:?}")]
    Truncated {
        /// Lines that the header's configuration needs.
        need: (u32, u32),
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

/// Reads and checks a header (agent, once), and recomputes the layout from it.
///
/// `nic_lines` and `host_lines` are the actual sizes of the two regions.
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
    // Copied once; only the copy is trusted.
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
        let largest = PoolConfig {
            scope: PoolScope::Core,
            extents: CORE_EXTENTS_MAX,
            lines: 1 << 12,
            ..PoolConfig::NONE
        };
        config.pools = [largest; POOLS_MAX];
        config.pools[1].producer = Side::Agent;
        let with = Layout::new(config).unwrap();
        let pools = POOLS_MAX as u64 * u64::from(CORE_EXTENTS_MAX) * u64::from(largest.lines);
        let lines = u64::from(layout.nic_lines) + CORES_MAX as u64 * pools;
        assert_eq!(u64::from(with.nic_lines), lines);
        config.contexts += 1;
        assert!(Layout::new(config).is_err());
    }
}
