//! Fields of the kind `udp-preemption`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_scenario::{ScenarioError, Source};
use wave_workloads::udp::{Kind, UdpMix};

use crate::ground::fields::{Link, Name, RATE_MAX, RATE_MIN, loads, times, warmup};

/// Maximum number of cores and of threads: a window's limit.
const WORKERS_MAX: u32 = 240;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpPreemption {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    kind: String,
    /// Requests and their clients.
    #[serde(default)]
    pub workload: Workload,
    /// Lengths and loads of points.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub run: Run,
    /// The host's side.
    #[serde(default)]
    pub host: Host,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// Work of a short request.
    #[default(5.0)]
    #[schemars(range(min = 0.1, max = 100_000))]
    pub short_us: f64,
    /// Work of a long request, more than that of a short one.
    #[default(100.0)]
    #[schemars(range(min = 0.1, max = 100_000))]
    pub long_us: f64,
    /// Share of the long requests.
    #[default(0.5)]
    #[schemars(range(min = 0.01, max = 99))]
    pub long_percent: f64,
    /// Sockets of the clients.
    #[default(4)]
    #[schemars(range(min = 1, max = 256))]
    pub sockets: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of a point, warm-up included.
    #[default(2.0)]
    #[schemars(range(min = 0.1, max = 3600))]
    pub seconds: f64,
    /// First part of a point, which is not counted.
    #[schemars(extend("x-default" = "the lesser of 0.3 and half of `run.seconds`", "x-range" = "0 to 0.9 of `run.seconds`"))]
    pub warmup_seconds: Option<f64>,
    /// Seed of arrivals and classes.
    // The load's request ids start at the seed in their upper half.
    #[default(1)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub seed: u64,
    /// Loads to offer, in ascending order, 1,000 at most.
    #[schemars(inner(range(min = RATE_MIN, max = RATE_MAX)), extend("x-required" = true))]
    pub loads_per_second: Vec<f64>,
    /// Rounds in which the systems with and without preemption run each load once, in random order. Fewer than 6 give no interval.
    #[default(20)]
    #[schemars(range(min = 1, max = 1_000))]
    pub rounds: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Worker cores.
    #[default(1)]
    #[schemars(range(min = 1, max = WORKERS_MAX))]
    pub cores: u32,
    /// Threads that serve requests.
    #[default(128)]
    #[schemars(range(min = 1, max = WORKERS_MAX))]
    pub threads: u32,
    /// Maximum number of requests that a core holds, the running one included.
    #[default(4)]
    #[schemars(range(min = 1, max = 16))]
    pub outstanding: u32,
    /// Length of a slice with preemption.
    #[default(10)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub slice_us: u32,
    /// Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the
    /// scenario.
    pub link: Link,
}

pub fn read(source: &Source<'_>) -> Result<UdpPreemption, ScenarioError> {
    let mut found: UdpPreemption = source.read()?;
    found.host.link = found.host.link.beside(source.path);
    let Workload { short_us, long_us, .. } = found.workload;
    if long_us <= short_us {
        let at = ["workload.long_us", "workload.short_us"];
        let at = at.into_iter().find(|field| source.has(field)).unwrap_or("workload");
        let why = format!(
            "`workload.long_us` is {long_us}, expected more than `workload.short_us`, {short_us}"
        );
        return Err(source.refuse(at, why));
    }
    let run = &mut found.run;
    run.warmup_seconds = Some(warmup(source, run.warmup_seconds, run.seconds)?);
    loads(source, &run.loads_per_second, run.seconds)?;
    Ok(found)
}

impl UdpPreemption {
    /// The requests: short ones first.
    pub fn mix(&self) -> UdpMix {
        let Workload { short_us, long_us, long_percent, .. } = self.workload;
        let kind = |us: f64| Kind::Spin(Duration::from_nanos((us * 1e3).round() as u64));
        UdpMix(vec![(kind(short_us), 100.0 - long_percent), (kind(long_us), long_percent)])
    }

    /// Lengths of a point's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        times(self.run.seconds, self.run.warmup_seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read_text(text: &str) -> Result<UdpPreemption, ScenarioError> {
        read(&Source::new(Path::new("x.toml"), text))
    }

    const TEXT: &str =
        "name = \"x\"\nkind = \"udp-preemption\"\n[run]\nloads_per_second = [1000, 2000]\n";

    #[test]
    fn defaults_are_those_of_the_papers_figure_2() {
        let found = read_text(TEXT).unwrap();
        assert_eq!(found.mix().to_string(), "5us=99.5,100us=0.5");
        assert_eq!((found.host.slice_us, found.host.outstanding, found.run.rounds), (10, 4, 20));
        assert_eq!(found.host.link, Link::Shm);
    }

    #[test]
    fn inconsistent_values_are_refused_with_their_line() {
        for (from, to, expected) in [
            ("[1000, 2000]", "[2, 1]", "x.toml:4: `run.loads_per_second` has 1 after 2"),
            ("[run]\n", "[run]\nrounds = 0\n", "x.toml:4: `run.rounds` is 0, expected 1 to 1000"),
            (
                "[run]",
                "[workload]\nshort_us = 200\n[run]",
                "x.toml:4: `workload.long_us` is 100, expected more than `workload.short_us`, 200",
            ),
            ("[run]", "[host]\nslice_us = 0\n[run]", "`host.slice_us` is 0, expected 1 to 1000000"),
            ("[run]", "[host]\nlink = \"x\"\n[run]", "link"),
            ("[run]", "[host]\npolicy = \"fifo\"\n[run]", "policy"),
        ] {
            let refused = read_text(&TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
