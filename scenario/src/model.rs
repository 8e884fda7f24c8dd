//! A checked scenario, with every default filled in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::defaults;

/// An experiment: the compared variants, and their load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Scenario {
    /// Names the output directory: lowercase letters, digits and hyphens.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// The kind of experiment run on each variant.
    pub kind: Kind,
    /// The operations of the requests.
    pub workload: Workload,
    /// Times, seed and loads.
    pub run: Run,
    /// Costs of a simulated host's own work; unused elsewhere.
    pub machine: Machine,
    /// The compared variants: at least one, with distinct [`wave_report::slug`]s.
    pub variants: Vec<Variant>,
}

/// Costs of a simulated host's own work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// A machine built into the simulator, by name.
    Builtin(String),
    File(PathBuf),
}

/// The kind of experiment run on each variant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Latency and throughput at each load.
    Load,
    /// Throughputs under overload, as steps from the first variant to the last. There is one load.
    Ladder,
    /// The agent is killed repeatedly under load. There is one load.
    Crash(Crash),
    /// Several enclaves with an agent each, loaded at once.
    Enclaves(Enclaves),
    /// Threads that verify everything they read and allocate while they are preempted. There is no load.
    Chaos(Chaos),
}

/// The operations of the requests, which RocksDB serves.
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
    /// CPU time of one request, calibrated.
    pub service_us: f64,
    /// Its operation in RocksDB.
    pub operation: Operation,
}

/// The operation of a request. A simulated host knows only its duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A GET of one key, drawn at random.
    #[default]
    Get,
    /// A scan of keys in order, for the length of the service time.
    Range,
}

/// Times, seed and loads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Length of one point, warm-up included; with `rounds`, of one trial.
    pub seconds: f64,
    /// First part of it, which is not counted; shorter than `seconds`.
    pub warmup_seconds: f64,
    /// Seed of every random stream.
    pub seed: u64,
    pub load: Load,
    /// Number of rounds in which every variant runs each load once; 0 for the usual number, among which a point is divided
    /// ([`Run::trials`]). Only with [`Kind::Load`], and with [`Kind::Ladder`], where it is at least 6. A simulated host, on which nothing
    /// disturbs, runs one point as long as all rounds.
    #[serde(skip_serializing_if = "is_zero")]
    pub rounds: u32,
    /// Number of additional loads for each variant besides [`Load::Each`]: each is halfway between the highest load that it
    /// served and the next one that was tried. Only with [`Kind::Load`], on a simulated host.
    pub refine: u32,
    /// A comparison of all variants at one load; only with [`Kind::Load`].
    pub compare: Option<Compare>,
    /// Whether each offloaded variant also runs with as many cores as the on-host variant, its agent's included, if they differ; only with [`Kind::Load`].
    #[serde(skip_serializing_if = "is_default")]
    pub equal_cores: bool,
}

/// Trials of a native run: every variant runs each load once in each round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trials {
    pub rounds: u32,
    /// First part of a trial, which is not counted.
    pub warmup_seconds: f64,
    pub measured_seconds: f64,
}

impl Trials {
    /// This number of rounds with trials of this length, warm-up included. If it is 0, the usual number, among which a point of this
    /// length is divided.
    pub(crate) fn of(rounds: u32, seconds: f64, warmup_seconds: f64) -> Trials {
        let measured_seconds = seconds - warmup_seconds;
        if rounds > 0 {
            return Trials { rounds, warmup_seconds, measured_seconds };
        }
        let (rounds, least) = (defaults::ROUNDS, defaults::TRIAL_SECONDS);
        let share = |seconds: f64, least: f64| (seconds / f64::from(rounds)).max(least);
        Trials {
            rounds,
            warmup_seconds: share(warmup_seconds, least.0),
            measured_seconds: share(measured_seconds, least.1),
        }
    }

    pub fn seconds(&self) -> f64 {
        self.warmup_seconds + self.measured_seconds
    }
}

impl Run {
    /// The trials of a native run with [`Kind::Load`] or [`Kind::Ladder`]. Without [`Run::rounds`] they divide a point among
    /// them.
    pub fn trials(&self) -> Trials {
        Trials::of(self.rounds, self.seconds, self.warmup_seconds)
    }

    /// The loads of a native run, in requests per second: of a search, as many as it has probes, by equal factors.
    pub fn loads(&self) -> Vec<f64> {
        match &self.load {
            Load::Each(loads) => loads.clone(),
            Load::Search { low, high, probes } => {
                let share = |at: u32| f64::from(at) / f64::from(probes - 1);
                (0..*probes).map(|at| low * (high / low).powf(share(at))).collect()
            }
        }
    }
}

/// Results omit it, so that they stay comparable with older ones.
pub(crate) fn is_zero(rounds: &u32) -> bool {
    *rounds == 0
}

/// Results omit the default, so that they stay comparable with older ones.
fn is_default(equal_cores: &bool) -> bool {
    *equal_cores
}

/// All variants under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compare {
    /// Name of the variant that the others are compared with, and whose saturation gives the load.
    pub with: String,
    /// The load, as a share of that saturation. A native run takes the highest of its loads that is not above.
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
        /// Maximum number of points, at least 2.
        probes: u32,
    },
}

/// A row, or a curve, of the results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Variant {
    /// Name of the variant in results.
    pub name: String,
    pub host: Host,
    /// What decides which thread runs.
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
    /// Kind of the threads. A simulated host has only user-level ones.
    pub threads: Threads,
}

/// Kind of the threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// User-level threads, preempted at safe points.
    #[default]
    User,
    /// One pthread each, preempted anywhere.
    Kernel,
}

/// What decides which thread runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The kernel's own scheduler, with plain threads.
    Linux,
    Agent(Agent),
}

/// An agent, and its link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Agent {
    /// Whether it takes a core from the enclave.
    pub placement: Placement,
    /// Its program; None for `wave agent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Name of the policy that it runs.
    pub policy: String,
    /// The link between agent and host.
    pub link: Link,
    /// The queues from host to agent.
    pub messages: Queue,
    /// The queues from agent to host.
    pub decisions: Queue,
    /// Decisions left in a core's queue before it asks, at most 64; 0 for none.
    pub prestage: u32,
    /// Whether the host asks for the line of its next decision before it needs it.
    pub prefetch: bool,
    /// Clock rate of its core, in GHz, on a simulated host. None: the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ghz: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one of the host's cores.
    OnHost,
    /// On a core that is not the host's.
    Offload,
}

/// The link between host and agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// Coherent shared memory, not modelled.
    Shm,
    /// A model with costs built into the program (`wave_links::costs`).
    Builtin(String),
    /// A model with the costs in this file. Only the file says whether it is coherent.
    File(PathBuf),
}

/// How one direction's queues are reached (Wave 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// How an entry gets across.
    pub transport: Transport,
    /// The side whose memory holds the entries.
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

/// The side whose memory holds a queue's entries.
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
    /// UC: every access crosses the link.
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
    /// Number of agents to kill; at least 1.
    pub kills: u32,
    /// Milliseconds between two kills.
    pub every_ms: u64,
}

/// Enclaves that run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enclaves {
    /// At least 1. Each has [`Host::cores`] cores and an agent.
    pub count: u32,
}

/// Threads that are preempted continually.
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
    /// The file of a modelled link's costs, if it has one.
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
