//! Fields of the kind `rpc`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_core::layout::{CORES_MAX, Config};
use wave_rpc::steer;
use wave_scenario::{ScenarioError, Source};
use wave_sched::policies;

use crate::ground::fields::{
    GHZ_MAX, GHZ_MIN, Link, Name, RATE_MAX, RATE_MIN, Trials, distinct_names, loads, rounds, times,
    warmup,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rpc {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    kind: String,
    /// Database and calls.
    #[serde(default)]
    pub workload: Workload,
    /// Lengths and loads of points.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub run: Run,
    /// The host's side.
    #[serde(default)]
    pub host: Host,
    /// Placements to compare, at least one.
    #[serde(rename = "variant")]
    pub variants: Vec<Stack>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Keys in the database.
    #[default(100_000)]
    #[schemars(range(min = 100, max = 100_000_000))]
    pub keys: u64,
    /// Size of a value.
    #[default(64)]
    #[schemars(range(min = 1, max = 65_536))]
    pub value_bytes: u32,
    /// CPU time of a GET, calibrated.
    #[default(10.0)]
    #[schemars(range(min = 0, max = 1e6))]
    pub get_us: f64,
    /// CPU time of a RANGE, calibrated.
    #[default(10_000.0)]
    #[schemars(range(min = 0, max = 1e6))]
    pub range_us: f64,
    /// Share of RANGEs among the calls.
    #[default(0.5)]
    #[schemars(range(min = 0.01, max = 99))]
    pub range_percent: f64,
    /// Pairs of key and value in a RANGE's reply.
    #[default(10)]
    #[schemars(range(min = 1, max = 10_000))]
    pub range_pairs: u32,
    /// SLO that a GET's request states.
    #[default(50)]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub get_slo_us: u32,
    /// SLO that a RANGE's request states.
    #[default(10_000)]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub range_slo_us: u32,
    /// TCP connections of the clients.
    #[default(4)]
    #[schemars(range(min = 1, max = 1024))]
    pub connections: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of a point, warm-up included.
    #[default(1.5)]
    #[schemars(range(min = 0.1, max = 3600))]
    pub seconds: f64,
    /// First part of a point, which is not counted.
    #[schemars(extend("x-default" = "the lesser of 0.3 and half of `run.seconds`", "x-range" = "0 to 0.9 of `run.seconds`"))]
    pub warmup_seconds: Option<f64>,
    /// Seed of every random stream.
    #[default(1)]
    pub seed: u64,
    /// Rounds in which every variant runs each load once, in random order: 6 or more. `run.seconds` is the length of one trial. With
    /// 0 it is that of a point, which is divided among 20 rounds.
    #[schemars(range(min = 0, max = 10_000))]
    pub rounds: u32,
    /// Loads to offer, in ascending order, 1,000 at most.
    #[schemars(inner(range(min = RATE_MIN, max = RATE_MAX)), extend("x-required" = true))]
    pub loads_per_second: Vec<f64>,
    /// One of `run.loads_per_second`, at which the table compares all variants.
    #[schemars(extend("x-default" = "the lowest load", "x-range" = "one of `run.loads_per_second`"))]
    pub compare_at: Option<f64>,
    /// Further loads for each variant, near its saturation, on a simulated host.
    #[schemars(range(min = 0, max = 20))]
    pub refine: u32,
    /// Limit on a GET's p99 that defines saturation.
    #[default(300)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub get_p99_us: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Cores of the host.
    #[default(1)]
    #[schemars(range(min = 1, max = 240))]
    pub cores: u32,
    /// Threads that are workers, where a policy schedules them.
    #[default(128)]
    #[schemars(range(min = 1, max = 240))]
    pub threads: u32,
}

/// Places of the RPC stack and the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RpcPlacement {
    /// RPC stack and scheduler in one agent beside the host.
    OffloadAll,
    /// RPC stack and scheduler in one agent on one of the host's cores.
    OnhostAll,
    /// An agent with the stack beside the host, one with the scheduler on a core of the host.
    OnhostScheduler,
    /// An agent with the stack on a core of the host, and no scheduler.
    Sidecar,
    /// No agent.
    Tonic,
}

impl RpcPlacement {
    /// Its name in scenarios.
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Name in results and, by its ASCII letters and digits in lower case, of a file: distinct for each variant; 100 bytes at most.
    pub name: String,
    /// Places of the RPC stack and the scheduler.
    pub placement: RpcPlacement,
    /// Policy of the scheduler, one of `wave policies`. `sidecar` and `tonic` have none.
    #[serde(default)]
    #[schemars(extend("x-default" = "none"))]
    pub policy: String,
    /// Steering of calls to workers, one of `wave policies`. `tonic` has none.
    #[serde(default)]
    #[schemars(extend("x-default" = "`jbsq:k=1`; with `sidecar` `jbsq:k=2`"))]
    pub steer: String,
    /// Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the
    /// scenario. It is `shm` except with `offload-all` and `onhost-scheduler`.
    #[serde(default)]
    pub link: Link,
    /// Cores of the RPC stack. Only with `--host sim`; not with `sidecar` and `tonic`.
    #[schemars(range(min = 1, max = 240), extend("x-default" = "the paper's"))]
    pub stack_cores: Option<u32>,
    /// Clock rate, in GHz, of the agent's cores, which also run the stack. Only with `--host sim` and the placements `offload-all`
    /// and `onhost-all`.
    #[schemars(range(min = GHZ_MIN, max = GHZ_MAX), extend("x-default" = "the paper's"))]
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

pub fn read(source: &Source<'_>) -> Result<Rpc, ScenarioError> {
    let mut rpc: Rpc = source.read()?;
    let run = &mut rpc.run;
    run.warmup_seconds = Some(warmup(source, run.warmup_seconds, run.seconds)?);
    rounds(source, run.rounds, 0)?;
    loads(source, &run.loads_per_second, run.seconds * f64::from(run.rounds.max(1)))?;
    let compare_at = run.compare_at();
    run.compare_at = Some(compare_at);
    if !run.loads_per_second.contains(&compare_at) {
        let why =
            format!("`run.compare_at` is {compare_at}, expected one of `run.loads_per_second`");
        return Err(source.refuse("run.compare_at", why));
    }
    if rpc.variants.is_empty() {
        return Err(source.refuse("variant", "expected at least one [[variant]]"));
    }
    distinct_names(source, rpc.variants.iter().map(|stack| &stack.name))?;
    for (index, stack) in rpc.variants.iter_mut().enumerate() {
        stack.check(source, &format!("variant[{index}]"))?;
    }
    Ok(rpc)
}

impl Stack {
    /// Checks the fields, and fills in what depends on the placement. `at` is the variant's path in the file.
    fn check(&mut self, source: &Source<'_>, at: &str) -> Result<(), ScenarioError> {
        use RpcPlacement::{OffloadAll, OnhostAll, OnhostScheduler, Sidecar, Tonic};

        let Stack { placement, .. } = *self;
        let named = placement.name();
        let refuse = |field: &str, why: String| Err(source.refuse(&format!("{at}.{field}"), why));
        let has = |field: &str| source.has(&format!("{at}.{field}"));
        // The smallest host suffices to check the name.
        let config = Config { subjects: 1, ..Config::coherent(1) };
        match (has("policy"), placement.has_scheduler()) {
            (true, true) => {
                if let Err(error) = policies::by_name(&self.policy, &config) {
                    return refuse("policy", format!("`variant.policy`: {error}"));
                }
            }
            (true, false) => {
                let why = format!(
                    "`variant.policy` has no meaning with placement = \"{named}\", whose workers have no scheduler"
                );
                return refuse("policy", why);
            }
            (false, true) => {
                let why = format!(
                    "`variant.policy` is missing: placement = \"{named}\" has a scheduler, as in \"shinjuku:slice_us=30\""
                );
                return refuse("placement", why);
            }
            (false, false) => {}
        }
        match (has("steer"), placement) {
            (true, Tonic) => {
                let why = "`variant.steer` has no meaning with placement = \"tonic\", where no agent steers";
                return refuse("steer", why.to_owned());
            }
            (true, _) => {
                let most = Config { cores: CORES_MAX as u16, ..config };
                if let Err(error) = steer::by_name(&self.steer, &most) {
                    return refuse("steer", format!("`variant.steer`: {error}"));
                }
            }
            (false, Tonic) => {}
            // The next call is there when one ends.
            (false, Sidecar) => self.steer = "jbsq:k=2".to_owned(),
            // A thread holds one call.
            (false, _) => self.steer = "jbsq:k=1".to_owned(),
        }
        if self.link != Link::Shm && !matches!(placement, OffloadAll | OnhostScheduler) {
            let why = format!(
                "`variant.link` is \"{}\", expected \"shm\": with placement = \"{named}\" everything is on the host",
                self.link
            );
            return refuse("link", why);
        }
        self.link = std::mem::take(&mut self.link).beside(source.path);
        // With `onhost-scheduler`, stack and scheduler have different kinds of cores.
        let of_stack = matches!(placement, OffloadAll | OnhostAll | OnhostScheduler);
        let of_agent = matches!(placement, OffloadAll | OnhostAll);
        for (field, has_meaning, expected) in [
            ("stack_cores", of_stack, "offload-all, onhost-all or onhost-scheduler"),
            ("agent_ghz", of_agent, "offload-all or onhost-all"),
        ] {
            if has(field) && !has_meaning {
                let why = format!(
                    "`variant.{field}` has no meaning with placement = \"{named}\", expected {expected}"
                );
                return refuse(field, why);
            }
        }
        Ok(())
    }
}

impl Run {
    /// One of the loads, at which all variants are compared.
    pub fn compare_at(&self) -> f64 {
        self.compare_at.unwrap_or(self.loads_per_second[0])
    }

    /// Lengths of a simulated point's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        let [warmup, counted] = times(self.seconds, self.warmup_seconds);
        [warmup, counted * self.rounds.max(1)]
    }

    /// The trials of a native run.
    pub fn trials(&self) -> Trials {
        Trials::of(self.rounds, self.seconds, self.warmup_seconds.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read_text(text: &str) -> Result<Rpc, ScenarioError> {
        read(&Source::new(Path::new("r.toml"), text))
    }

    const GOOD: &str = "name = \"r\"\nkind = \"rpc\"\n[workload]\nget_us = 20\n[run]\nseconds = 2\n\
                        loads_per_second = [100, 200]\n[[variant]]\nname = \"all\"\nplacement = \"offload-all\"\n\
                        policy = \"fifo\"\nlink = \"model:mount-evans\"\n[[variant]]\nname = \"t\"\nplacement = \"tonic\"\n";

    fn message(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from} is not in the valid scenario");
        let text = GOOD.replacen(from, to, 1);
        read_text(&text).expect_err("the scenario is refused").to_string()
    }

    #[test]
    fn missing_fields_have_defaults() {
        let rpc = read_text(GOOD).unwrap();
        assert_eq!((rpc.workload.get_us, rpc.workload.range_us), (20.0, 10_000.0));
        assert_eq!((rpc.run.compare_at(), rpc.run.get_p99_us), (100.0, 300));
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
            ("mount-evans", "mount", "r.toml:12: `variant[0].link`: \"model:mount\""),
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
