//! Fields of the kind `udp-feedback`.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_scenario::{ScenarioError, Source};
use wave_workloads::udp::{Kind, UdpMix};

use crate::ground::fields::{Link, Name, ascending, times, warmup};

/// Maximum number of loads of one scenario.
const LOADS_MAX: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UdpFeedback {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    kind: String,
    /// Requests and their clients.
    #[serde(default)]
    pub workload: Workload,
    /// Lengths and loads of measurements.
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
    /// Work of each request.
    #[default(100.0)]
    #[schemars(range(min = 0.1, max = 1e6))]
    pub work_us: f64,
    /// Sockets of each kind of sender.
    #[default(8)]
    #[schemars(range(min = 1, max = 256))]
    pub sockets: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of one measurement, warm-up included.
    #[default(1.0)]
    #[schemars(range(min = 0.05, max = 3600))]
    pub seconds: f64,
    /// First part of a measurement, which is not counted.
    #[schemars(extend("x-default" = "the lesser of 0.3 and half of `run.seconds`", "x-range" = "0 to 0.9 of `run.seconds`"))]
    warmup_seconds: Option<f64>,
    /// Seed of arrivals.
    // The load's request ids start at the seed in their upper half.
    #[default(1)]
    #[schemars(range(min = 0, max = 1_048_576))]
    pub seed: u64,
    /// Loads to offer as multiples of the capacity, in ascending order, 32 at most.
    #[schemars(inner(range(min = 0.01, max = 100)), extend("x-required" = true))]
    pub loads: Vec<f64>,
    /// Rounds in which senders with and without feedback run each load once, in random order. Fewer than 6 give no interval.
    #[default(20)]
    #[schemars(range(min = 1, max = 1_000))]
    pub rounds: u32,
    /// Time from when a request is due to its reply, within which the reply counts as goodput.
    #[default(5_000)]
    #[schemars(range(min = 1, max = 10_000_000))]
    pub limit_us: u32,
    /// Number of open requests at the host at which the senders' windows aim.
    #[default(16)]
    #[schemars(range(min = 1, max = 65_535))]
    pub queue_target: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Worker cores.
    #[default(1)]
    #[schemars(range(min = 1, max = 64))]
    pub workers: u32,
    /// Maximum number of requests that each worker holds.
    #[default(4)]
    #[schemars(range(min = 1, max = 64))]
    pub outstanding: u32,
    /// Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the
    /// scenario.
    pub link: Link,
}

pub fn read(source: &Source<'_>) -> Result<UdpFeedback, ScenarioError> {
    let mut feedback: UdpFeedback = source.read()?;
    feedback.host.link = feedback.host.link.beside(source.path);
    let run = &mut feedback.run;
    run.warmup_seconds = Some(warmup(source, run.warmup_seconds, run.seconds)?);
    ascending(source, "run.loads", &run.loads, LOADS_MAX)?;
    Ok(feedback)
}

impl UdpFeedback {
    /// The requests.
    pub fn mix(&self) -> UdpMix {
        UdpMix(vec![(Kind::Spin(self.work()), 1.0)])
    }

    /// Work of each request.
    pub fn work(&self) -> Duration {
        Duration::from_nanos((self.workload.work_us * 1e3).round() as u64)
    }

    /// Lengths of a measurement's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        times(self.run.seconds, self.run.warmup_seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read_text(text: &str) -> Result<UdpFeedback, ScenarioError> {
        read(&Source::new(Path::new("x.toml"), text))
    }

    const TEXT: &str = "name = \"x\"\nkind = \"udp-feedback\"\n[run]\nloads = [0.5, 2]\n";

    #[test]
    fn missing_fields_have_defaults() {
        let found = read_text(TEXT).unwrap();
        assert_eq!((found.run.loads.clone(), found.run.queue_target), (vec![0.5, 2.0], 16));
        assert_eq!((found.mix().to_string(), found.host.link), ("100us=1".to_owned(), Link::Shm));
    }

    #[test]
    fn bad_fields_are_refused_with_their_line() {
        for (from, to, expected) in [
            ("[0.5, 2]", "[2, 0.5]", "x.toml:4: `run.loads` has 0.5 after 2, expected ascending"),
            ("[0.5, 2]", "[]", "x.toml:4: `run.loads` is empty, expected at least one"),
            ("[0.5, 2]", "[0]", "x.toml:4: `run.loads` is 0, expected 0.01 to 100"),
            ("[run]", "[run]\nqueue_target = 0", "`run.queue_target` is 0, expected 1 to 65535"),
            ("[run]", "[host]\ncores = 1\n[run]", "cores"),
        ] {
            let refused = read_text(&TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
