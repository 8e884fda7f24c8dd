//! Fields of the kind `memory`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_memory::guard::Limits;
use wave_memory::{policies, serve};
use wave_scenario::size::Size;
use wave_scenario::{ScenarioError, Source, SwapOn};

use crate::ground::fields::{Name, distinct_names};

/// Three epochs of 38.4 s (Wave 4.2), rounded up.
const WARMUP_SECONDS: f64 = 120.0;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    kind: String,
    /// Database and GETs.
    #[serde(default)]
    pub workload: Workload,
    /// Lengths of a variant's run.
    #[serde(default)]
    pub run: Run,
    /// Swap, and limits of the host.
    #[serde(default)]
    pub memory: Host,
    /// Runs to compare. The first has no policy; every other has one.
    #[serde(rename = "variant")]
    pub variants: Vec<Managed>,
}

/// RocksDB with its blocks in a cache, and GETs at a fixed rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Keys in the database.
    #[default(8_000_000)]
    #[schemars(range(min = 100, max = 1_000_000_000))]
    pub keys: u64,
    /// Size of a value.
    #[default(256)]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub value_bytes: u32,
    /// Size of RocksDB's blocks.
    #[default(4096)]
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub block_bytes: u32,
    /// Size of RocksDB's cache, which must hold all blocks.
    #[default(Size(3 << 30))]
    pub cache: Size,
    /// CPU time of a GET, calibrated.
    #[default(10.0)]
    #[schemars(range(min = 0, max = 1e6))]
    pub service_us: f64,
    /// GETs, which arrive at random.
    #[default(40_000.0)]
    #[schemars(range(min = 1, max = 1e7))]
    pub gets_per_second: f64,
    /// Share of the keys, the first in order, that are hot.
    #[default(0.2)]
    #[schemars(range(min = 0, max = 1))]
    pub hot_keys: f64,
    /// Share of the GETs that go to hot keys.
    #[default(0.999)]
    #[schemars(range(min = 0, max = 1))]
    pub hot_gets: f64,
    /// Interval at which a probe maps, touches and unmaps memory.
    #[default(200)]
    #[schemars(range(min = 1, max = 60_000_000))]
    pub map_every_us: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of a variant's run, warm-up included.
    #[default(165.0)]
    #[schemars(range(min = 1, max = 86_400))]
    pub seconds: f64,
    /// First part of a run, which is not counted.
    #[schemars(extend("x-default" = "the lesser of 120 and half of `run.seconds`", "x-range" = "0 to `run.seconds` - 1"))]
    warmup_seconds: Option<f64>,
    /// Seed of every random stream.
    #[default(1)]
    pub seed: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Size of the swap that is set up for the run.
    #[schemars(extend("x-default" = "1.25 times `workload.cache`"))]
    swap: Option<Size>,
    /// Place of that swap: compressed memory, or a file.
    #[schemars(extend("x-default" = "`zram`, or `file` where the kernel has no zram"))]
    pub swap_on: Option<SwapOn>,
    /// Nothing is paged out while refaults cost the program more than this share of the time.
    #[default(1.0)]
    #[schemars(range(min = 0, max = 100))]
    pub slowdown_percent: f64,
    /// Nothing is paged out while more than this share of the resident pages comes back in a minute.
    #[schemars(range(min = 0, max = 100), extend("x-default" = "none: no such limit"))]
    refaults_percent: Option<f64>,
    /// Nothing is paged out while some task waits for memory for more than this share of the time.
    #[default(10.0)]
    #[schemars(range(min = 0, max = 100))]
    pub pressure_percent: f64,
}

/// One managed run of the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Managed {
    /// Name in results and, by its ASCII letters and digits in lower case, of a file: distinct for each variant; 100 bytes at most.
    pub name: String,
    /// Policy of the memory's agent, one of `wave policies`.
    #[schemars(extend("x-default" = "none: memory is not managed"))]
    pub policy: Option<String>,
    /// `memory.slowdown_percent` of this variant.
    #[schemars(range(min = 0, max = 100), extend("x-default" = "`memory.slowdown_percent`"))]
    pub slowdown_percent: Option<f64>,
    /// `memory.refaults_percent` of this variant.
    #[schemars(range(min = 0, max = 100), extend("x-default" = "`memory.refaults_percent`"))]
    pub refaults_percent: Option<f64>,
}

pub fn read(source: &Source<'_>) -> Result<Memory, ScenarioError> {
    let mut memory: Memory = source.read()?;
    let (written, most) = (memory.run.warmup_seconds, memory.run.seconds - 1.0);
    if let Some(warmup) = written.filter(|warmup| !(0.0..=most).contains(warmup)) {
        let why = format!("`run.warmup_seconds` is {warmup}, expected 0 to {most}");
        return Err(source.refuse("run.warmup_seconds", why));
    }
    distinct_names(source, memory.variants.iter().map(|variant| &variant.name))?;
    for (index, variant) in memory.variants.iter().enumerate() {
        if let Some(policy) = &variant.policy
            && let Err(error) = policies::by_name(policy, &serve::config(1))
        {
            let at = format!("variant[{index}].policy");
            return Err(source.refuse(&at, format!("`variant.policy`: {error}")));
        }
    }
    // What a file leaves to a default is, for a run's identity, as if it had been written.
    memory.run.warmup_seconds = Some(memory.run.warmup_seconds());
    memory.memory.swap = Some(Size(memory.swap_bytes()));
    let Host { slowdown_percent, refaults_percent, .. } = memory.memory;
    for variant in &mut memory.variants {
        variant.slowdown_percent.get_or_insert(slowdown_percent);
        variant.refaults_percent = variant.refaults_percent.or(refaults_percent);
    }
    // Every variant has its own now: a run's identity does not depend on what none of them takes.
    let Host { slowdown_percent, refaults_percent, .. } = Host::default();
    memory.memory = Host { slowdown_percent, refaults_percent, ..memory.memory };
    let managed = memory.variants.iter().skip(1);
    let with = managed.clone().all(|variant| variant.policy.is_some()) && managed.len() > 0;
    match memory.variants.first() {
        Some(Managed { policy: None, .. }) if with => Ok(memory),
        _ => Err(source.refuse(
            "variant",
            "expected a first [[variant]] without `policy`, as the reference, and one or more with a `policy` each",
        )),
    }
}

impl Memory {
    pub fn swap_bytes(&self) -> u64 {
        let cache = self.workload.cache.0;
        self.memory.swap.map_or(cache + cache / 4, |Size(bytes)| bytes)
    }

    /// The limits of a variant.
    pub fn limits(&self, variant: &Managed) -> Limits {
        let Managed { slowdown_percent, refaults_percent, .. } = variant;
        let share = |percent: f64| percent / 100.0;
        Limits {
            slowdown: share(slowdown_percent.unwrap_or(self.memory.slowdown_percent)),
            refaults_per_minute: refaults_percent.map_or(f64::INFINITY, share),
            pressure_percent: self.memory.pressure_percent,
        }
    }
}

impl Run {
    pub fn warmup_seconds(&self) -> f64 {
        let most = (self.seconds / 2.0).min(self.seconds - 1.0);
        self.warmup_seconds.unwrap_or(WARMUP_SECONDS.min(most))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read_text(text: &str) -> Result<Memory, ScenarioError> {
        read(&Source::new(Path::new("m.toml"), text))
    }

    const GOOD: &str = "name = \"m\"\nkind = \"memory\"\n[workload]\ncache = \"1GiB\"\n[run]\nseconds = 60\n\
                        [memory]\nrefaults_percent = 2\n[[variant]]\nname = \"without\"\n\
                        [[variant]]\nname = \"with\"\npolicy = \"sol:shortest_ms=600\"\n";

    fn message(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from} is not in the valid scenario");
        let text = GOOD.replacen(from, to, 1);
        read_text(&text).expect_err("the scenario is refused").to_string()
    }

    #[test]
    fn missing_fields_have_defaults() {
        let memory = read_text(GOOD).unwrap();
        assert_eq!(memory.workload.cache, Size(1 << 30));
        assert_eq!((memory.swap_bytes(), memory.memory.swap_on), ((1 << 30) + (1 << 28), None));
        let file = GOOD.replacen("[memory]\n", "[memory]\nswap_on = \"file\"\n", 1);
        assert_eq!(read_text(&file).unwrap().memory.swap_on, Some(SwapOn::File));
        assert_eq!(memory.run.seconds, 60.0);
        let limits = |memory: &Memory| {
            let Limits { slowdown, refaults_per_minute, .. } = memory.limits(&memory.variants[1]);
            (slowdown, refaults_per_minute)
        };
        assert_eq!(limits(&memory), (0.01, 0.02));
        let own = format!("{GOOD}refaults_percent = 0.5\n");
        let own = read_text(&own).unwrap();
        assert_eq!(limits(&own), (0.01, 0.005));
        let none = GOOD.replacen("refaults_percent = 2\n", "slowdown_percent = 5\n", 1);
        let none = read_text(&none).unwrap();
        assert_eq!(limits(&none), (0.05, f64::INFINITY));
        assert_eq!(memory.workload.keys, 8_000_000);
        assert_eq!(memory.variants[1].policy.as_deref(), Some("sol:shortest_ms=600"));
    }

    #[test]
    fn bad_field_is_refused_with_line_and_allowed_values() {
        assert_eq!(
            message("seconds = 60", "seconds = 0"),
            "m.toml:6: `run.seconds` is 0, expected 1 to 86400"
        );
        assert!(
            message("1GiB", "much").starts_with("m.toml:4: `workload.cache`: `much` is not a size")
        );
        assert!(message("sol:short", "sol:shirt").contains("m.toml:13: `variant.policy`: "));
        assert!(message("refaults_percent", "refaults").contains("unknown field `refaults`"));
        assert!(message("name = \"with\"", "name = \"Without\"").contains("m.toml:12"));
        assert!(message("name = \"m\"", "name = \"M m\"").contains("lowercase letters"));
        for [from, to] in [
            ["policy = \"sol:shortest_ms=600\"\n", ""],
            ["name = \"without\"", "name = \"without\"\npolicy = \"sol\""],
        ] {
            assert!(message(from, to).contains("a first [[variant]] without `policy`"));
        }
    }
}
