//! `kind = "memory"`: RocksDB's memory under an agent, compared with the same run without one. Form and meaning.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use wave_memory::guard::Limits;
use wave_memory::{policies, serve};

use super::check::Source;
use super::error::ScenarioError;
use super::{SwapOn, defaults, file, size};

/// A checked experiment on memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Memory {
    /// Names the output directory.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// The database, and the load on it.
    pub workload: CachedWorkload,
    /// Length of a variant's run, from the first GET.
    pub seconds: f64,
    /// First part of that time, which is not counted.
    pub warmup_seconds: f64,
    /// Swap that is set up for the run.
    pub swap_bytes: u64,
    /// Kind of swap; None for compressed memory, or a file if the kernel has no zram.
    pub swap_on: Option<SwapOn>,
    /// Nothing is paged out while tasks wait for memory for more than this share of the time, in percent.
    pub pressure_percent: f64,
    /// The compared variants; the first has no policy.
    pub variants: Vec<Managed>,
}

/// RocksDB with its blocks in a cache, and GETs at a fixed rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedWorkload {
    pub keys: u64,
    pub value_bytes: u32,
    pub block_bytes: u32,
    /// Size of the cache, which must hold all blocks.
    pub cache_bytes: u64,
    /// CPU time of a GET, calibrated.
    pub service_us: f64,
    /// GETs per second, arriving at random.
    pub gets_per_second: f64,
    /// Share of the keys that are hot: the first in order.
    pub hot_keys: f64,
    /// Share of the GETs that go to hot keys. The rest go to the other keys.
    pub hot_gets: f64,
    /// Interval in microseconds at which memory is mapped, touched and unmapped, to detect delays.
    pub map_every_us: u64,
    /// Bytes that the probe maps each time.
    pub map_bytes: u32,
    /// Seed of arrivals and keys.
    pub seed: u64,
}

/// One managed run of the process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Managed {
    /// Name of the variant in results.
    pub name: String,
    /// Policy that decides on its memory; None for no agent.
    pub policy: Option<String>,
    /// Nothing is paged out while refaults cost the programs more than this share of the time.
    pub slowdown: f64,
    /// Nothing is paged out while more pages than this share of the resident ones come back in a minute. None for no limit.
    pub refaults_per_minute: Option<f64>,
}

impl Managed {
    /// The variant's limits, with this one on memory pressure.
    pub fn limits(&self, pressure_percent: f64) -> Limits {
        let refaults_per_minute = self.refaults_per_minute.unwrap_or(f64::INFINITY);
        Limits { slowdown: self.slowdown, refaults_per_minute, pressure_percent }
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
    #[serde(default)]
    run: RawRun,
    #[serde(default)]
    memory: RawMemory,
    variant: Spanned<Vec<RawVariant>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawWorkload {
    keys: Option<Spanned<u64>>,
    value_bytes: Option<Spanned<u32>>,
    block_bytes: Option<Spanned<u32>>,
    cache: Option<Spanned<String>>,
    service_us: Option<Spanned<f64>>,
    gets_per_second: Option<Spanned<f64>>,
    hot_keys: Option<Spanned<f64>>,
    hot_gets: Option<Spanned<f64>>,
    map_every_us: Option<Spanned<u64>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawRun {
    seconds: Option<Spanned<f64>>,
    warmup_seconds: Option<Spanned<f64>>,
    seed: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawMemory {
    swap: Option<Spanned<String>>,
    swap_on: Option<SwapOn>,
    slowdown_percent: Option<Spanned<f64>>,
    refaults_percent: Option<Spanned<f64>>,
    pressure_percent: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawVariant {
    name: Spanned<String>,
    policy: Option<Spanned<String>>,
    slowdown_percent: Option<Spanned<f64>>,
    refaults_percent: Option<Spanned<f64>>,
}

pub fn parse(path: &Path, text: &str) -> Result<Memory, ScenarioError> {
    check(Source::new(path, text, policies::NAMES))
}

pub(super) fn check(source: Source<'_>) -> Result<Memory, ScenarioError> {
    let raw: Raw = file::parse(source.path, source.text)?;
    let name = source.name(&raw.name)?;
    let run = &raw.run;
    let default = defaults::MEMORY_SECONDS;
    let seconds = source.within("run.seconds", run.seconds.as_ref(), default, 1.0..=86_400.0)?;
    let warmup_seconds = source.within(
        "run.warmup_seconds",
        run.warmup_seconds.as_ref(),
        defaults::MEMORY_WARMUP_SECONDS.min(seconds / 2.0),
        0.0..=seconds - 1.0,
    )?;
    let workload = workload(&raw.workload, run.seed.unwrap_or(defaults::SEED), source)?;
    let memory = &raw.memory;
    let default = workload.cache_bytes + workload.cache_bytes / 4;
    Ok(Memory {
        name,
        description: raw.description.unwrap_or_default(),
        seconds,
        warmup_seconds,
        swap_on: memory.swap_on,
        swap_bytes: bytes("memory.swap", memory.swap.as_ref(), default, source)?,
        pressure_percent: source.within(
            "memory.pressure_percent",
            memory.pressure_percent.as_ref(),
            defaults::PRESSURE_PERCENT,
            0.0..=100.0,
        )?,
        variants: variants(&raw.variant, memory, source)?,
        workload,
    })
}

fn workload(
    raw: &RawWorkload,
    seed: u64,
    source: Source<'_>,
) -> Result<CachedWorkload, ScenarioError> {
    let share = |field, value: &Option<_>, default| {
        source.within(field, value.as_ref(), default, 0.0..=1.0)
    };
    let gets_per_second = raw.gets_per_second.as_ref();
    Ok(CachedWorkload {
        keys: source.within(
            "workload.keys",
            raw.keys.as_ref(),
            defaults::CACHED_KEYS,
            100..=1_000_000_000,
        )?,
        value_bytes: source.within(
            "workload.value_bytes",
            raw.value_bytes.as_ref(),
            defaults::CACHED_VALUE_BYTES,
            1..=1_048_576,
        )?,
        block_bytes: source.within(
            "workload.block_bytes",
            raw.block_bytes.as_ref(),
            defaults::BLOCK_BYTES,
            1024..=1_048_576,
        )?,
        cache_bytes: bytes("workload.cache", raw.cache.as_ref(), defaults::CACHE_BYTES, source)?,
        service_us: source.within(
            "workload.service_us",
            raw.service_us.as_ref(),
            defaults::SERVICE_US,
            0.0..=1_000_000.0,
        )?,
        gets_per_second: source.within(
            "workload.gets_per_second",
            gets_per_second,
            defaults::GETS_PER_SECOND,
            1.0..=10_000_000.0,
        )?,
        hot_keys: share("workload.hot_keys", &raw.hot_keys, defaults::HOT_KEYS)?,
        hot_gets: share("workload.hot_gets", &raw.hot_gets, defaults::HOT_GETS)?,
        map_every_us: source.within(
            "workload.map_every_us",
            raw.map_every_us.as_ref(),
            defaults::MAP_EVERY_US,
            1..=60_000_000,
        )?,
        map_bytes: defaults::MAP_BYTES,
        seed,
    })
}

fn bytes(
    field: &str,
    written: Option<&Spanned<String>>,
    default: u64,
    source: Source<'_>,
) -> Result<u64, ScenarioError> {
    let Some(written) = written else { return Ok(default) };
    let refuse = |why| source.refuse(written.span(), format!("`{field}`: {why}"));
    size::parse(written.get_ref()).map_err(refuse)
}

fn variants(
    raw: &Spanned<Vec<RawVariant>>,
    of_all: &RawMemory,
    source: Source<'_>,
) -> Result<Vec<Managed>, ScenarioError> {
    let percent = |field: &str, value: Option<&Spanned<f64>>, default| {
        source.within(field, value, default, 0.0..=100.0)
    };
    let share = |field: &str, value: Option<&Spanned<f64>>| {
        let Some(value) = value else { return Ok(None) };
        Ok(Some(percent(field, Some(value), 0.0)? / 100.0))
    };
    let default = defaults::SLOWDOWN_PERCENT;
    let slowdown = percent("memory.slowdown_percent", of_all.slowdown_percent.as_ref(), default)?;
    let refaults = share("memory.refaults_percent", of_all.refaults_percent.as_ref())?;
    let mut variants: Vec<Managed> = Vec::new();
    for variant in raw.get_ref() {
        let others = variants.iter().map(|other: &Managed| other.name.as_str());
        let name = source.variant_name(&variant.name, others)?;
        if let Some(policy) = &variant.policy
            && let Err(error) = policies::by_name(policy.get_ref(), &serve::config(1))
        {
            return Err(source.refuse(policy.span(), format!("`variant.policy`: {error}")));
        }
        let policy = variant.policy.as_ref().map(|policy| policy.get_ref().clone());
        let own = variant.slowdown_percent.as_ref();
        let slowdown = percent("variant.slowdown_percent", own, slowdown)? / 100.0;
        let own = variant.refaults_percent.as_ref();
        let refaults_per_minute = share("variant.refaults_percent", own)?.or(refaults);
        variants.push(Managed { name, policy, slowdown, refaults_per_minute });
    }
    let with = variants.iter().skip(1).all(|variant| variant.policy.is_some());
    match variants.first() {
        Some(Managed { policy: None, .. }) if with && variants.len() > 1 => Ok(variants),
        _ => Err(source.refuse(
            raw.span(),
            "expected a first [[variant]] without `policy`, as the reference, and at least one with",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"m\"\nkind = \"memory\"\n[workload]\ncache = \"1GiB\"\n[run]\nseconds = 60\n\
                        [memory]\nrefaults_percent = 2\n[[variant]]\nname = \"without\"\n\
                        [[variant]]\nname = \"with\"\npolicy = \"sol:shortest_ms=600\"\n";

    fn message(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from} is not in the valid scenario");
        let text = GOOD.replacen(from, to, 1);
        parse(Path::new("m.toml"), &text).expect_err("the scenario is refused").to_string()
    }

    #[test]
    fn missing_fields_have_defaults() {
        let memory = parse(Path::new("m.toml"), GOOD).unwrap();
        assert_eq!(memory.workload.cache_bytes, 1 << 30);
        assert_eq!((memory.swap_bytes, memory.swap_on), ((1 << 30) + (1 << 28), None));
        let file = GOOD.replacen("[memory]\n", "[memory]\nswap_on = \"file\"\n", 1);
        assert_eq!(parse(Path::new("m.toml"), &file).unwrap().swap_on, Some(SwapOn::File));
        assert_eq!((memory.seconds, memory.variants[1].refaults_per_minute), (60.0, Some(0.02)));
        assert_eq!(memory.variants[1].slowdown, 0.01);
        let own = format!("{GOOD}refaults_percent = 0.5\n");
        let own = parse(Path::new("m.toml"), &own).unwrap();
        assert_eq!(own.variants[1].refaults_per_minute, Some(0.005));
        let none = GOOD.replacen("refaults_percent = 2\n", "slowdown_percent = 5\n", 1);
        let none = parse(Path::new("m.toml"), &none).unwrap();
        let Managed { slowdown, refaults_per_minute, .. } = none.variants[1];
        assert_eq!((slowdown, refaults_per_minute), (0.05, None));
        assert_eq!(memory.workload.keys, defaults::CACHED_KEYS);
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
