//! A checked scenario, with every default filled in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An experiment: what is compared, under which load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Names the output directory: small letters, digits and hyphens.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// What is done with each variant.
    pub kind: Kind,
    /// What the requests ask for.
    pub workload: Workload,
    /// How long, how often and how fast.
    pub run: Run,
    /// What a simulated host's own work costs; means nothing elsewhere.
    pub machine: Machine,
    /// What is compared: at least one, with distinct [`wave_report::slug`]s.
    pub variants: Vec<Variant>,
}

/// What a simulated host's own work costs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// A machine that comes with the simulator: one of its names.
    Builtin(String),
    File(PathBuf),
}

/// What is done with each variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Latency and throughput under each load.
    Load,
    /// Saturation, as steps from the first variant to the last. The load is a search.
    Ladder,
    /// Kill the agent over and over under load. The load is one.
    Crash(Crash),
    /// Several enclaves with an agent each, loaded at once.
    Enclaves(Enclaves),
    /// Threads that check all that they read and allocate while they are preempted. There is no load.
    Chaos(Chaos),
}

/// What the requests ask for. RocksDB answers them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    pub keys: u64,
    pub value_bytes: u32,
    /// At least one; weights need not add up to one.
    pub classes: Vec<Class>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Class {
    /// Name of the operation, as `GET`.
    pub name: String,
    /// Share of the requests, relative to the other classes; above 0.
    pub weight: f64,
    /// What one request costs its core, calibrated.
    pub service_us: f64,
    /// What it asks RocksDB for.
    pub operation: Operation,
}

/// What a request asks for. A simulated host knows only how long it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A GET of one key, drawn at random.
    #[default]
    Get,
    /// Keys in order, for as long as the service takes.
    Range,
}

/// How long, how often and how fast.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Length of one point, warm-up included.
    pub seconds: f64,
    /// The first part of a point, which is not counted; below `seconds`.
    pub warmup_seconds: f64,
    /// Seed of every random stream.
    pub seed: u64,
    pub load: Load,
    /// Besides [`Load::Each`], so many loads of each variant's own: each is halfway between the highest
    /// load that it served and the next one that was tried. Only with [`Kind::Load`].
    pub refine: u32,
    /// What all variants are compared at besides; only with [`Kind::Load`].
    pub compare: Option<Compare>,
    /// Whether each offloaded variant also runs with one core more, if another variant is on-host; only with [`Kind::Load`].
    #[serde(skip_serializing_if = "is_default")]
    pub equal_cores: bool,
}

/// Results omit the default, so that they stay comparable with older ones.
fn is_default(equal_cores: &bool) -> bool {
    *equal_cores
}

/// All variants under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compare {
    /// Name of the variant that the load is taken from.
    pub with: String,
    /// The load, as a share of that one's saturation.
    pub at: f64,
}

/// The loads to offer, in requests per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Each of these; ascending, at least one.
    Each(Vec<f64>),
    /// Search for the saturation.
    Search {
        /// Lowest load to try; above 0.
        low: f64,
        /// Highest load to try; above `low`.
        high: f64,
        /// Points to spend, at least 2.
        probes: u32,
    },
}

/// A row, or a curve, of the results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// Name of the variant in results.
    pub name: String,
    pub host: Host,
    /// Who decides which thread runs.
    pub scheduler: Scheduler,
}

/// The host's side of a variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Worker cores of an enclave, at least 1.
    pub cores: u32,
    /// Threads an enclave can hold; no fewer than `cores`.
    pub max_threads: u32,
    /// An idle core spins this long, then parks.
    pub spin_us: u64,
    /// What threads are scheduled as. A simulated host has user-level ones only.
    pub threads: Threads,
}

/// What threads are scheduled as.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// User-level threads, preempted at safe points.
    #[default]
    User,
    /// A pthread each, preempted anywhere.
    Kernel,
}

/// Who decides which thread runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The kernel's own scheduler, with plain threads.
    Linux,
    Agent(Agent),
}

/// An agent and how it is reached.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agent {
    /// Whether it takes a core from the enclave.
    pub placement: Placement,
    /// Its program, where it is not `wave agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Name of the policy that it runs.
    pub policy: String,
    /// What lies between it and the host.
    pub link: Link,
    /// The queues from host to agent.
    pub messages: Queue,
    /// The queues from agent to host.
    pub decisions: Queue,
    /// Decisions left in a core's queue before it asks, at most 64; 0 for none.
    pub prestage: u32,
    /// Whether the host asks for the line of its next decision before it needs it.
    pub prefetch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one of the host's cores.
    OnHost,
    /// On a core that is not the host's.
    Offload,
}

/// What lies between host and agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// Coherent shared memory, without a modelled link.
    Shm,
    /// A model whose costs come with the program (`wave_links::costs`).
    Builtin(String),
    /// A model with the costs stated in this file. Whether it is coherent is known to who reads it.
    File(PathBuf),
}

/// How one direction's queues are reached (Wave 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// How an entry gets across.
    pub transport: Transport,
    /// Whose memory holds the entries.
    pub home: Home,
    /// How the host maps these lines.
    pub host: Mapping,
    /// How the agent maps these lines.
    pub agent: Mapping,
}

/// How a queue's entries get across the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Loads and stores across the link.
    Mmio,
    /// Copied; the producer waits for completion.
    DmaSync,
    /// Copied; completion is polled.
    DmaAsync,
}

/// Whose memory holds a queue's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Home {
    Nic,
    Host,
}

/// How one side maps a queue's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// UC: every access crosses.
    Uncached,
    /// WC: stores gather until a fence.
    WriteCombining,
    /// WT: loads are cached, until flushed.
    WriteThrough,
    /// WB: ordinary cached memory.
    WriteBack,
}

/// How often the agent is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Crash {
    /// Agents to end; at least 1.
    pub kills: u32,
    /// Milliseconds between two ends.
    pub every_ms: u64,
}

/// Enclaves that run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enclaves {
    /// At least 1. Each has [`Host::cores`] cores and an agent.
    pub count: u32,
}

/// Threads that are preempted without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Chaos {
    /// Threads of a variant, at least 1.
    pub threads: u32,
}

impl Scenario {
    /// All agents of its variants.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.variants.iter().filter_map(Variant::agent)
    }

    /// All agents of its variants.
    pub fn agents_mut(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.variants.iter_mut().filter_map(|variant| match &mut variant.scheduler {
            Scheduler::Linux => None,
            Scheduler::Agent(agent) => Some(agent),
        })
    }
}

impl Variant {
    /// `linux`, `onhost` or `offload`, as in the file.
    pub fn placement(&self) -> &'static str {
        match &self.scheduler {
            Scheduler::Linux => "linux",
            Scheduler::Agent(Agent { placement: Placement::OnHost, .. }) => "onhost",
            Scheduler::Agent(Agent { placement: Placement::Offload, .. }) => "offload",
        }
    }

    /// The agent, unless the kernel's scheduler decides.
    pub fn agent(&self) -> Option<&Agent> {
        match &self.scheduler {
            Scheduler::Linux => None,
            Scheduler::Agent(agent) => Some(agent),
        }
    }
}

impl Link {
    /// The file of a model's costs, if it has one of its own.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Link::File(file) => Some(file),
            Link::Shm | Link::Builtin(_) => None,
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Builtin(name) => f.write_str(name),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shm => f.write_str("shm"),
            Self::Builtin(name) => write!(f, "model:{name}"),
            Self::File(path) => write!(f, "model:{}", path.display()),
        }
    }
}
