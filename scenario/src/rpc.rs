//! `kind = "rpc"`: RocksDB behind gRPC, with the RPC stack and the scheduler in several places. Form and meaning.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use wave_core::layout::{CORES_MAX, Config};
use wave_rpc::steer;
use wave_sched::policies;

use super::check::{GHZ_MAX, GHZ_MIN, Source, link, rounds};
use super::error::ScenarioError;
use super::model::is_zero;
use super::{Link, Trials, defaults, file};

/// Maximum number of cores of a simulated RPC stack.
const STACK_CORES_MAX: u32 = 240;

/// A checked experiment on RPCs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rpc {
    /// Names the output directory.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// The database, and the calls.
    pub workload: RpcWorkload,
    /// Length of a point, warm-up included; with `rounds`, of one trial.
    pub seconds: f64,
    /// First part of it, which is not counted.
    pub warmup_seconds: f64,
    /// Number of rounds in which every variant runs each load once; 0 for the usual number, among which a point is divided
    /// ([`Rpc::trials`]). A simulated host runs one point as long as all rounds.
    #[serde(skip_serializing_if = "is_zero")]
    pub rounds: u32,
    /// Seed of arrivals and keys.
    pub seed: u64,
    /// The loads to offer, in ascending order.
    pub loads_per_second: Vec<f64>,
    /// One of these loads, at which all variants are compared.
    pub compare_at: f64,
    /// Number of further loads for each variant, near its saturation, on a simulated host.
    pub refine: u32,
    /// Limit on a GET's p99 that defines saturation, in microseconds.
    pub get_p99_us: u32,
    pub cores: u32,
    /// Workers that are threads.
    pub threads: u32,
    pub variants: Vec<Stack>,
}

/// GETs and RANGEs, called over gRPC.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RpcWorkload {
    pub keys: u64,
    pub value_bytes: u32,
    /// CPU time of a GET, calibrated.
    pub get_us: f64,
    /// CPU time of a RANGE, calibrated.
    pub range_us: f64,
    /// RANGEs in percent of the calls.
    pub range_percent: f64,
    /// Pairs in a RANGE's reply.
    pub range_pairs: u32,
    /// SLO that a GET's request carries, in microseconds.
    pub get_slo_us: u32,
    /// SLO of a RANGE, in microseconds.
    pub range_slo_us: u32,
    /// The clients' TCP connections.
    pub connections: u32,
}

/// Places of the RPC stack and the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RpcPlacement {
    /// Both in one agent, which takes none of the host's cores.
    OffloadAll,
    /// Both in one agent, which takes one of the host's cores.
    OnhostAll,
    /// An agent with the stack takes none of the host's cores, and one with the scheduler takes one.
    OnhostScheduler,
    /// No scheduler; an agent with the stack takes one of the host's cores, and the others serve.
    Sidecar,
    /// No agent: tonic on all of the host's cores.
    Tonic,
}

impl RpcPlacement {
    /// Name of the kind in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            RpcPlacement::OffloadAll => "offload-all",
            RpcPlacement::OnhostAll => "onhost-all",
            RpcPlacement::OnhostScheduler => "onhost-scheduler",
            RpcPlacement::Sidecar => "sidecar",
            RpcPlacement::Tonic => "tonic",
        }
    }

    /// Whether workers are threads that a policy schedules.
    pub fn has_scheduler(self) -> bool {
        !matches!(self, RpcPlacement::Sidecar | RpcPlacement::Tonic)
    }

    pub fn agents(self) -> usize {
        match self {
            RpcPlacement::Tonic => 0,
            RpcPlacement::OnhostScheduler => 2,
            _ => 1,
        }
    }

    /// Cores of the host that its agents take.
    pub fn cores_taken(self) -> u32 {
        u32::from(!matches!(self, RpcPlacement::OffloadAll | RpcPlacement::Tonic))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Stack {
    /// Name of the variant in results.
    pub name: String,
    /// Places of front and scheduler.
    pub placement: RpcPlacement,
    /// The scheduler's policy; empty without a scheduler.
    pub policy: String,
    /// Steering of calls to workers; empty without steering.
    pub steer: String,
    /// The link between the host and agents off it.
    pub link: Link,
    /// Cores of a simulated RPC stack, if not the paper's number.
    pub stack_cores: Option<u32>,
    /// Clock rate of the simulated cores of agent and stack in GHz, if not the machine's.
    pub agent_ghz: Option<f64>,
}

impl Stack {
    /// Each of its fields that only simulated hosts have, as in the file.
    pub fn simulated_only(&self) -> Vec<String> {
        let cores = self.stack_cores.map(|cores| format!("variant.stack_cores = {cores}"));
        let ghz = self.agent_ghz.map(|ghz| format!("variant.agent_ghz = {ghz}"));
        cores.into_iter().chain(ghz).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct Raw {
    name: Spanned<String>,
    description: Option<String>,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    workload: RawWorkload,
    run: RawRun,
    #[serde(default)]
    host: RawHost,
    variant: Spanned<Vec<RawVariant>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawWorkload {
    keys: Option<Spanned<u64>>,
    value_bytes: Option<Spanned<u32>>,
    get_us: Option<Spanned<f64>>,
    range_us: Option<Spanned<f64>>,
    range_percent: Option<Spanned<f64>>,
    range_pairs: Option<Spanned<u32>>,
    get_slo_us: Option<Spanned<u32>>,
    range_slo_us: Option<Spanned<u32>>,
    connections: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawRun {
    seconds: Option<Spanned<f64>>,
    warmup_seconds: Option<Spanned<f64>>,
    seed: Option<u64>,
    rounds: Option<Spanned<u32>>,
    loads_per_second: Spanned<Vec<Spanned<f64>>>,
    compare_at: Option<Spanned<f64>>,
    refine: Option<Spanned<u32>>,
    get_p99_us: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawHost {
    cores: Option<Spanned<u32>>,
    threads: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawVariant {
    name: Spanned<String>,
    placement: Spanned<RpcPlacement>,
    policy: Option<Spanned<String>>,
    steer: Option<Spanned<String>>,
    link: Option<Spanned<String>>,
    stack_cores: Option<Spanned<u32>>,
    agent_ghz: Option<Spanned<f64>>,
}

pub fn parse(path: &Path, text: &str) -> Result<Rpc, ScenarioError> {
    check(Source::new(path, text, policies::NAMES))
}

pub(super) fn check(source: Source<'_>) -> Result<Rpc, ScenarioError> {
    let raw: Raw = file::parse(source.path, source.text)?;
    let name = source.name(&raw.name)?;
    let run = &raw.run;
    let default = defaults::SECONDS;
    let seconds = source.within("run.seconds", run.seconds.as_ref(), default, 0.1..=3600.0)?;
    let warmup_seconds = source.within(
        "run.warmup_seconds",
        run.warmup_seconds.as_ref(),
        defaults::WARMUP_SECONDS.min(seconds / 2.0),
        0.0..=seconds * 0.9,
    )?;
    let loads_per_second = source.loads(&run.loads_per_second)?;
    let highest = loads_per_second.last().copied().unwrap_or(0.0);
    let span = run.loads_per_second.span();
    let rounds = rounds(run.rounds.as_ref(), 0, source)?;
    let length = seconds * f64::from(rounds.max(1));
    source.few_requests("run.loads_per_second", highest, length, span)?;
    let refine = source.within("run.refine", run.refine.as_ref(), defaults::REFINE, 0..=20)?;
    let limit = defaults::GET_P99_US;
    let (host, most) = (&raw.host, 240);
    Ok(Rpc {
        name,
        description: raw.description.unwrap_or_default(),
        workload: workload(&raw.workload, source)?,
        seconds,
        warmup_seconds,
        rounds,
        seed: run.seed.unwrap_or(defaults::SEED),
        compare_at: compare_at(run.compare_at.as_ref(), &loads_per_second, source)?,
        loads_per_second,
        refine,
        get_p99_us: source.within(
            "run.get_p99_us",
            run.get_p99_us.as_ref(),
            limit,
            1..=1_000_000,
        )?,
        cores: source.within("host.cores", host.cores.as_ref(), defaults::CORES, 1..=most)?,
        threads: source.within(
            "host.threads",
            host.threads.as_ref(),
            defaults::RPC_THREADS,
            1..=most,
        )?,
        variants: variants(&raw.variant, source)?,
    })
}

fn workload(raw: &RawWorkload, source: Source<'_>) -> Result<RpcWorkload, ScenarioError> {
    let micros = |field, value: &Option<_>, default| {
        source.within(field, value.as_ref(), default, 0.0..=1_000_000.0)
    };
    let slo = |field, value: &Option<_>, default| {
        source.within(field, value.as_ref(), default, 1..=10_000_000)
    };
    let value_bytes = raw.value_bytes.as_ref();
    let [get_slo, range_slo] = defaults::SLO_US;
    Ok(RpcWorkload {
        keys: source.within(
            "workload.keys",
            raw.keys.as_ref(),
            defaults::KEYS,
            100..=100_000_000,
        )?,
        value_bytes: source.within(
            "workload.value_bytes",
            value_bytes,
            defaults::VALUE_BYTES,
            1..=65_536,
        )?,
        get_us: micros("workload.get_us", &raw.get_us, defaults::SERVICE_US)?,
        range_us: micros("workload.range_us", &raw.range_us, defaults::RANGE_US)?,
        range_percent: source.within(
            "workload.range_percent",
            raw.range_percent.as_ref(),
            defaults::RANGE_PERCENT,
            0.01..=99.0,
        )?,
        range_pairs: source.within(
            "workload.range_pairs",
            raw.range_pairs.as_ref(),
            defaults::RANGE_PAIRS,
            1..=10_000,
        )?,
        get_slo_us: slo("workload.get_slo_us", &raw.get_slo_us, get_slo)?,
        range_slo_us: slo("workload.range_slo_us", &raw.range_slo_us, range_slo)?,
        connections: source.within(
            "workload.connections",
            raw.connections.as_ref(),
            defaults::CONNECTIONS,
            1..=1024,
        )?,
    })
}

/// The lowest load, unless the file names another.
fn compare_at(
    written: Option<&Spanned<f64>>,
    loads: &[f64],
    source: Source<'_>,
) -> Result<f64, ScenarioError> {
    match written {
        None => Ok(loads[0]),
        Some(load) if loads.contains(load.get_ref()) => Ok(*load.get_ref()),
        Some(load) => {
            let message = format!(
                "`run.compare_at` is {}, expected one of `run.loads_per_second`",
                load.get_ref()
            );
            Err(source.refuse(load.span(), message))
        }
    }
}

fn variants(
    raw: &Spanned<Vec<RawVariant>>,
    source: Source<'_>,
) -> Result<Vec<Stack>, ScenarioError> {
    let mut variants: Vec<Stack> = Vec::new();
    for raw in raw.get_ref() {
        let others = variants.iter().map(|other| other.name.as_str());
        source.variant_name(&raw.name, others)?;
        variants.push(variant(raw, source)?);
    }
    match variants.is_empty() {
        false => Ok(variants),
        true => Err(source.refuse(raw.span(), "expected at least one [[variant]]")),
    }
}

fn variant(raw: &RawVariant, source: Source<'_>) -> Result<Stack, ScenarioError> {
    let placement = *raw.placement.get_ref();
    // The smallest host suffices to check the name.
    let config = Config { subjects: 1, ..Config::coherent(1) };
    let policy = match (&raw.policy, placement.has_scheduler()) {
        (Some(policy), true) => {
            policies::by_name(policy.get_ref(), &config).map_err(|error| {
                source.refuse(policy.span(), format!("`variant.policy`: {error}"))
            })?;
            policy.get_ref().clone()
        }
        (None, false) => String::new(),
        (Some(policy), false) => {
            let message = format!(
                "`variant.policy` has no meaning with placement = \"{}\", whose workers have no scheduler",
                placement.name()
            );
            return Err(source.refuse(policy.span(), message));
        }
        (None, true) => {
            let message = format!(
                "`variant.policy` is missing: placement = \"{}\" has a scheduler, as in \"shinjuku:slice_us=30\"",
                placement.name()
            );
            return Err(source.refuse(raw.placement.span(), message));
        }
    };
    let steer = match (&raw.steer, placement) {
        (Some(steer), RpcPlacement::Tonic) => {
            let message =
                "`variant.steer` has no meaning with placement = \"tonic\", where no agent steers";
            return Err(source.refuse(steer.span(), message));
        }
        (Some(steer), _) => {
            let most = Config { cores: CORES_MAX as u16, ..config };
            steer::by_name(steer.get_ref(), &most).map_err(|error| {
                source.refuse(steer.span(), format!("`variant.steer`: {error}"))
            })?;
            steer.get_ref().clone()
        }
        (None, RpcPlacement::Tonic) => String::new(),
        (None, RpcPlacement::Sidecar) => defaults::STEER_TO_CORES.to_owned(),
        (None, _) => defaults::STEER.to_owned(),
    };
    let link = match &raw.link {
        Some(written) => {
            let is_offload =
                matches!(placement, RpcPlacement::OffloadAll | RpcPlacement::OnhostScheduler);
            match link(written, source)? {
                other if other != Link::Shm && !is_offload => {
                    let message = format!(
                        "`variant.link` is \"{other}\", expected \"shm\": with placement = \"{}\" everything is on the host",
                        placement.name()
                    );
                    return Err(source.refuse(written.span(), message));
                }
                link => link,
            }
        }
        None => Link::Shm,
    };
    let (stack_cores, agent_ghz) = simulated_cores(raw, source)?;
    let name = raw.name.get_ref().clone();
    Ok(Stack { name, placement, policy, steer, link, stack_cores, agent_ghz })
}

/// Number of the stack's cores, and clock rate of these and the agent's, where the simulator has a model of them.
fn simulated_cores(
    raw: &RawVariant,
    source: Source<'_>,
) -> Result<(Option<u32>, Option<f64>), ScenarioError> {
    use RpcPlacement::{OffloadAll, OnhostAll, OnhostScheduler};

    let refuse = |field: &str, span, expected: &str| {
        let placement = raw.placement.get_ref().name();
        let message = format!(
            "`{field}` has no meaning with placement = \"{placement}\", expected {expected}"
        );
        Err(source.refuse(span, message))
    };
    let placement = raw.placement.get_ref();
    let cores = match &raw.stack_cores {
        Some(cores) if !matches!(placement, OffloadAll | OnhostAll | OnhostScheduler) => {
            let expected = "offload-all, onhost-all or onhost-scheduler";
            return refuse("variant.stack_cores", cores.span(), expected);
        }
        cores => cores
            .as_ref()
            .map(|cores| source.within("variant.stack_cores", Some(cores), 1, 1..=STACK_CORES_MAX))
            .transpose()?,
    };
    let ghz = match &raw.agent_ghz {
        // With `onhost-scheduler`, stack and scheduler have different kinds of cores.
        Some(ghz) if !matches!(placement, OffloadAll | OnhostAll) => {
            return refuse("variant.agent_ghz", ghz.span(), "offload-all or onhost-all");
        }
        ghz => ghz
            .as_ref()
            .map(|ghz| source.within("variant.agent_ghz", Some(ghz), 1.0, GHZ_MIN..=GHZ_MAX))
            .transpose()?,
    };
    Ok((cores, ghz))
}

impl Rpc {
    /// Lengths of a simulated point's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        let counted = (self.seconds - self.warmup_seconds) * f64::from(self.rounds.max(1));
        [self.warmup_seconds, counted].map(Duration::from_secs_f64)
    }

    /// The trials of a native run.
    pub fn trials(&self) -> Trials {
        Trials::of(self.rounds, self.seconds, self.warmup_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"r\"\nkind = \"rpc\"\n[workload]\nget_us = 20\n[run]\nseconds = 2\n\
                        loads_per_second = [100, 200]\n[[variant]]\nname = \"all\"\nplacement = \"offload-all\"\n\
                        policy = \"fifo\"\nlink = \"model:mount-evans\"\n[[variant]]\nname = \"t\"\nplacement = \"tonic\"\n";

    fn message(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from} is not in the valid scenario");
        let text = GOOD.replacen(from, to, 1);
        parse(Path::new("r.toml"), &text).expect_err("the scenario is refused").to_string()
    }

    #[test]
    fn missing_fields_have_defaults() {
        let rpc = parse(Path::new("r.toml"), GOOD).unwrap();
        assert_eq!((rpc.workload.get_us, rpc.workload.range_us), (20.0, defaults::RANGE_US));
        assert_eq!((rpc.compare_at, rpc.get_p99_us), (100.0, 300));
        assert_eq!(rpc.variants[0].steer, "jbsq:k=1");
        assert_eq!(rpc.variants[0].link, Link::Builtin("mount-evans".into()));
        assert_eq!(rpc.variants[1].policy, "");
    }

    #[test]
    fn bad_field_is_refused_with_line_and_allowed_values() {
        for (from, to, expected) in [
            ("seconds = 2", "seconds = 0", "r.toml:6: `run.seconds` is 0, expected 0.1 to 3600"),
            (
                "[100, 200]",
                "[200, 100]",
                "r.toml:7: `run.loads_per_second` has 100 after 200, expected ascending",
            ),
            ("[100, 200]", "[]", "r.toml:7: `run.loads_per_second` is empty"),
            (
                "[100, 200]",
                "[100]\ncompare_at = 7",
                "r.toml:8: `run.compare_at` is 7, expected one of",
            ),
            ("\"fifo\"", "\"fofi\"", "r.toml:11: `variant.policy`: "),
            ("policy = \"fifo\"\n", "", "r.toml:10: `variant.policy` is missing"),
            ("\"fifo\"", "\"fifo\"\nsteer = \"x\"", "r.toml:12: `variant.steer`: "),
            ("mount-evans", "mount", "r.toml:12: `variant.link` is \"model:mount\""),
            (
                "\"offload-all\"",
                "\"onhost-all\"",
                "expected \"shm\": with placement = \"onhost-all\"",
            ),
            (
                "\"tonic\"\n",
                "\"tonic\"\npolicy = \"fifo\"\n",
                "r.toml:16: `variant.policy` has no meaning",
            ),
            (
                "\"tonic\"\n",
                "\"tonic\"\nsteer = \"rss\"\n",
                "r.toml:16: `variant.steer` has no meaning",
            ),
            (
                "\"tonic\"\n",
                "\"tonic\"\nstack_cores = 4\n",
                "r.toml:16: `variant.stack_cores` has no meaning with placement = \"tonic\"",
            ),
            ("\"fifo\"", "\"fifo\"\nstack_cores = 0", "r.toml:12: `variant.stack_cores` is 0"),
            ("\"fifo\"", "\"fifo\"\nagent_ghz = 11", "r.toml:12: `variant.agent_ghz` is 11"),
            (
                "\"offload-all\"",
                "\"onhost-scheduler\"\nagent_ghz = 2",
                "r.toml:11: `variant.agent_ghz` has no meaning",
            ),
            ("\"tonic\"\n", "\"sideboard\"\n", "r.toml:15: "),
            ("\"t\"", "\"All\"", "r.toml:14: `variant.name` is \"All\""),
            ("get_us", "got_us", "unknown field `got_us`"),
        ] {
            let message = message(from, to);
            assert!(message.contains(expected), "{message}");
        }
    }
}
