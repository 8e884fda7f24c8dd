//! Fields of the kinds `load`, `ladder`, `crash`, `enclaves` and `chaos`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_core::layout::CORES_MAX;

use crate::ground::fields::{
    GHZ_MAX, GHZ_MIN, Link, Name, RATE_MAX, RATE_MIN, Trials, WARMUP_SECONDS,
};

/// Maximum number of prestaged decisions: as many as any queue is certain to hold.
const PRESTAGE_MAX: u32 = 64;
/// Minimum time measured.
pub(super) const SECONDS_MIN: f64 = 0.001;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Form {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    pub kind: KindName,
    /// Database and requests.
    #[serde(default)]
    pub workload: Workload,
    /// Lengths and loads of points. `crash` and `chaos` need none.
    #[serde(default)]
    pub run: Run,
    /// The host's side; variants may differ from it.
    #[serde(default)]
    pub host: Host,
    /// Each is a curve or row of the results: at least one, and at least two with `ladder`.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub variant: Vec<Variant>,
    /// Kills of agents. Only `crash`, which needs it.
    #[schemars(extend("x-default" = ""))]
    pub crash: Option<Crash>,
    /// Enclaves that run at once. Only `enclaves`.
    #[serde(default)]
    pub enclaves: Enclaves,
    /// Threads that are preempted. Only `chaos`.
    #[serde(default)]
    pub chaos: Chaos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum KindName {
    /// Latency and throughput under each load.
    Load,
    /// Throughputs under overload, as steps from the first variant to the last.
    Ladder,
    /// Agents that are killed under load.
    Crash,
    /// Several enclaves at once.
    Enclaves,
    /// Continuous preemption of threads that check what they read and allocate.
    Chaos,
}

/// The operations of the requests, which RocksDB serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Keys in the database.
    #[default(100_000)]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub keys: u64,
    /// Size of a value.
    #[default(64)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub value_bytes: u32,
    /// CPU time of a request, calibrated.
    #[default(10.0)]
    #[schemars(range(min = 0, max = 1e6))]
    pub service_us: f64,
    /// Classes of requests, at least one. `chaos` needs one with `operation = "range"`.
    #[default(vec![Class { name: "GET".to_owned(), weight: 1.0, service_us: None, operation: Operation::Get }])]
    #[schemars(extend("x-default" = "one class, `GET`"))]
    pub classes: Vec<Class>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Name in results, distinct for each class.
    pub name: String,
    /// Share of the requests, relative to the other classes.
    #[schemars(range(min = 1e-9, max = 1e9))]
    pub weight: f64,
    /// CPU time of a request of this class.
    #[schemars(range(min = 0, max = 1e6), extend("x-default" = "`workload.service_us`"))]
    pub service_us: Option<f64>,
    /// Operation on RocksDB.
    #[serde(default)]
    pub operation: Operation,
}

/// The operation of a request. A simulated host knows only its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A GET of one key, drawn at random.
    #[default]
    Get,
    /// Keys in order, for as long as the service takes.
    Range,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of a point, warm-up included. Not with `crash`.
    #[default(1.5)]
    #[schemars(range(min = SECONDS_MIN, max = 3600))]
    pub seconds: f64,
    /// First part of a point, which is not counted; less than `run.seconds`.
    #[default(WARMUP_SECONDS)]
    #[schemars(range(min = 0, max = 3600))]
    pub warmup_seconds: f64,
    /// Seed of every random stream.
    #[default(1)]
    pub seed: u64,
    /// Loads to offer, in ascending order, 1,000 at most. `load` needs this or `run.search`, `enclaves` needs this, `ladder` needs one
    /// load that is more than any variant can serve.
    #[schemars(inner(range(min = RATE_MIN, max = RATE_MAX)), extend("x-default" = "none"))]
    pub loads_per_second: Vec<f64>,
    /// Rounds in which every variant runs each load once, in random order: 6 or more. `run.seconds` is the length of one trial. With
    /// 0, which `ladder` does not have, it is that of a point, which is divided among 20 rounds.
    // A simulated host, on which nothing disturbs, runs one point as long as all rounds.
    #[schemars(range(min = 0, max = 10_000), extend("x-default" = "0; with `ladder` 24"))]
    pub rounds: u32,
    /// Further loads for each variant, near its saturation. Only `load`, beside `run.loads_per_second`, on a simulated host.
    #[schemars(range(min = 0, max = 16))]
    pub refine: u32,
    /// Search for saturations on a simulated host. A native run instead offers `probes` loads from `low` to `high`, each the same factor
    /// above the last, in every round. Only `load`.
    pub search: Option<Search>,
    /// Compares all variants with one of them. Only `load`.
    pub compare: Option<Compare>,
    /// Whether each `offload` variant also runs with as many cores as the `onhost` variant and its agent have together, if it has
    /// another number. Only `load`.
    #[default(true)]
    pub equal_cores: bool,
}

/// A search for the saturation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// Lowest load to try, in requests per second.
    #[schemars(range(min = RATE_MIN, max = RATE_MAX))]
    pub low: f64,
    /// Highest load to try, above `low`, in requests per second.
    #[schemars(range(min = RATE_MIN, max = RATE_MAX))]
    pub high: f64,
    /// Number of loads to measure.
    #[serde(default = "Search::probes")]
    #[schemars(range(min = 2, max = 64))]
    pub probes: u32,
}

impl Search {
    fn probes() -> u32 {
        9
    }
}

/// All variants under one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// Variant that the others are compared with. Its throughput sets the load.
    pub with: String,
    /// Load as a share of what that variant serves (simulated: of its saturation). A native run takes the highest of its loads that is not above this share.
    #[serde(default = "Compare::at")]
    #[schemars(range(min = 0.01, max = 1))]
    pub at: f64,
}

impl Compare {
    fn at() -> f64 {
        0.8
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Worker cores of an enclave.
    #[default(1)]
    #[schemars(range(min = 1, max = CORES_MAX))]
    pub cores: u32,
    /// Threads that an enclave can hold, no fewer than `host.cores`.
    #[default(4096)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub max_threads: u32,
    /// Decisions left in a core's queue before it asks (Wave 5.4).
    #[default(2)]
    #[schemars(range(min = 0, max = PRESTAGE_MAX))]
    pub prestage: u32,
    /// Time for which an idle core spins before it parks.
    #[default(50)]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub spin_us: u64,
    /// Costs of a simulated host: a file of hosts/sim/machines by its name, or a path to a `.toml` file, relative to the scenario.
    // A run without `--host` uses the user-level runtime as well.
    #[default("user")]
    pub machine: String,
    /// Kind of the threads. Only `user` is simulated.
    pub threads: Threads,
}

/// Kind of the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Threads {
    /// User-level threads, preempted at safe points.
    #[default]
    User,
    /// A pthread for each thread, preempted anywhere.
    Kernel,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in results and, by its ASCII letters and digits in lower case, of a file: distinct for each variant; 100 bytes at most.
    pub name: String,
    /// Scheduler of the threads, and its place.
    pub placement: Placement,
    /// Policy of the agent, one of `wave policies`. Every agent needs one.
    #[serde(default)]
    #[schemars(extend("x-default" = "none"))]
    pub policy: String,
    /// Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the
    /// scenario. With `onhost` it is `shm`.
    #[serde(default)]
    pub link: Link,
    /// How the queues from host to agent are reached (Wave 5.3). With DMA both mappings are `write-back`. Only over a modelled link.
    #[schemars(extend("x-default" = ""))]
    pub messages: Option<Queue>,
    /// How the queues from agent to host are reached (Wave 5.3). Only over a modelled link.
    #[schemars(extend("x-default" = ""))]
    pub decisions: Option<Queue>,
    /// `host.cores` of this variant, `host.max_threads` at most.
    #[schemars(range(min = 1, max = CORES_MAX), extend("x-default" = "`host.cores`"))]
    pub cores: Option<u32>,
    /// `host.prestage` of this variant.
    #[schemars(range(min = 0, max = PRESTAGE_MAX), extend("x-default" = "`host.prestage`"))]
    pub prestage: Option<u32>,
    /// Whether the host asks for the line of its next decision before it needs it (Wave 5.4).
    #[serde(default = "Variant::prefetch")]
    pub prefetch: bool,
    /// Clock rate of the agent's core in GHz. Only with `--host sim`.
    #[schemars(range(min = GHZ_MIN, max = GHZ_MAX), extend("x-default" = "the machine's"))]
    pub agent_ghz: Option<f64>,
    /// `host.threads` of this variant.
    #[schemars(extend("x-default" = "`host.threads`"))]
    pub threads: Option<Threads>,
}

impl Variant {
    fn prefetch() -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Plain threads under the kernel's scheduler, with no other field but `name` and `cores`; not with `crash`, `enclaves` and `chaos`.
    Linux,
    /// An agent on one of the host's cores.
    OnHost,
    /// An agent on a core of its own.
    Offload,
}

/// How one direction's queues are reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// How an entry gets across.
    #[schemars(extend("x-default" = "\"mmio\""))]
    pub transport: Option<Transport>,
    /// Side in whose memory the entries are; with DMA the reader's.
    #[schemars(extend("x-default" = "\"nic\""))]
    pub home: Option<Home>,
    /// Mapping of that memory by the host.
    #[schemars(extend("x-default" = "`write-back` over a built-in coherent link, else `write-combining` of messages and `write-through` of decisions"))]
    pub host: Option<Mapping>,
    /// Mapping of that memory by the agent.
    #[schemars(extend("x-default" = "\"write-back\""))]
    pub agent: Option<Mapping>,
}

/// How a queue's entries get across the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Loads and stores across the link.
    Mmio,
    /// Copies by DMA, whose completion the producer waits for.
    DmaSync,
    /// Copies by DMA, whose completion is polled.
    DmaAsync,
}

/// The side whose memory holds a queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Home {
    Nic,
    Host,
}

/// How one side maps a queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// Every access crosses the link (UC).
    Uncached,
    /// Stores gather until a fence (WC).
    WriteCombining,
    /// Loads are cached, until flushed (WT).
    WriteThrough,
    /// Ordinary cached memory (WB).
    WriteBack,
}

/// Kills of agents.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Crash {
    /// Agents to kill for each variant.
    #[serde(default = "Crash::kills")]
    #[schemars(range(min = 1, max = 100_000))]
    pub kills: u32,
    /// Time between two kills; `crash.kills` times this is a day at most.
    // The default is twenty times the scheduling watchdog's period. The least is short: the watchdog notices a stopped agent after
    // 20 ms, and the next one starts.
    #[serde(default = "Crash::every_ms")]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub every_ms: u64,
    /// Load during the kills.
    #[schemars(range(min = RATE_MIN, max = RATE_MAX))]
    pub load_per_second: f64,
}

impl Crash {
    fn kills() -> u32 {
        20
    }

    fn every_ms() -> u64 {
        400
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Enclaves {
    /// Enclaves, each with cores and an agent.
    #[default(2)]
    #[schemars(range(min = 1, max = 64))]
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Chaos {
    /// Threads of a variant.
    #[default(8)]
    #[schemars(range(min = 1, max = 4096))]
    pub threads: u32,
}

impl Workload {
    /// CPU time of a request of this class, in microseconds.
    pub fn service_us(&self, class: &Class) -> f64 {
        class.service_us.unwrap_or(self.service_us)
    }
}

impl Run {
    /// The trials of a native run with kind `load` or `ladder`. Without [`Run::rounds`] they divide a point among them.
    pub fn trials(&self) -> Trials {
        Trials::of(self.rounds, self.seconds, self.warmup_seconds)
    }

    /// The loads of a native run, in requests per second: of a search, as many as it has probes, by equal factors.
    pub fn loads(&self) -> Vec<f64> {
        let Some(Search { low, high, probes }) = self.search else {
            return self.loads_per_second.clone();
        };
        let share = |at: u32| f64::from(at) / f64::from(probes - 1);
        (0..probes).map(|at| low * (high / low).powf(share(at))).collect()
    }
}
