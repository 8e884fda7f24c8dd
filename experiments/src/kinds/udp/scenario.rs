//! Fields of the kind `udp`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use wave_scenario::{ScenarioError, Source};

use crate::ground::fields::{Link, Name, ascending};

/// Maximum number of requests that a worker holds.
const OUTSTANDING_MAX: u32 = 64;
/// Maximum number of values of one scenario.
const VALUES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    pub name: Name,
    /// One paragraph for the reader of the results.
    #[serde(default)]
    pub description: String,
    /// Kind of the scenario.
    kind: String,
    /// Requests and their clients.
    #[serde(default)]
    pub workload: Workload,
    /// Measurements.
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
    #[default(1.0)]
    #[schemars(range(min = 0.1, max = 1e6))]
    pub work_us: f64,
    /// Sockets of the clients.
    #[default(4)]
    #[schemars(range(min = 1, max = 256))]
    pub sockets: u32,
    /// Requests in flight on each socket.
    #[default(16)]
    #[schemars(range(min = 1, max = 256))]
    pub under_way: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Length of one measurement.
    #[default(0.5)]
    #[schemars(range(min = 0.01, max = 3600))]
    pub seconds: f64,
    /// Rounds in which each value is measured once, in random order. Fewer than 6 give no interval.
    #[default(20)]
    #[schemars(range(min = 1, max = 1_000))]
    pub rounds: u32,
    /// Outstanding requests per worker: values in ascending order, 64 at most. All workers hold fewer than are in flight
    /// (`workload.sockets` times `workload.under_way`).
    #[schemars(inner(range(min = 1, max = OUTSTANDING_MAX)), extend("x-required" = true))]
    pub outstanding: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// Worker cores.
    #[default(1)]
    #[schemars(range(min = 1, max = 64))]
    pub workers: u32,
    /// Link between host and agent: `shm`; `model:NAME`, a cost file of links/costs; or `model:PATH.toml`, relative to the
    /// scenario.
    pub link: Link,
}

pub fn read(source: &Source<'_>) -> Result<Udp, ScenarioError> {
    let mut udp: Udp = source.read()?;
    udp.host.link = udp.host.link.beside(source.path);
    ascending(source, "run.outstanding", &udp.run.outstanding, VALUES_MAX)?;
    let most = udp.host.workers * udp.run.outstanding.last().copied().unwrap_or(0);
    let in_flight = udp.workload.sockets * udp.workload.under_way;
    if in_flight <= most {
        let why = format!(
            "`run.outstanding`: {in_flight} requests are in flight (`workload.sockets` times `workload.under_way`), expected more than the \
             {most} that the workers can hold"
        );
        return Err(source.refuse("run.outstanding", why));
    }
    Ok(udp)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = "name = \"x\"\nkind = \"udp\"\n[run]\noutstanding = [1, 3]\n";

    fn read_text(text: &str) -> Result<Udp, ScenarioError> {
        read(&Source::new(Path::new("x.toml"), text))
    }

    #[test]
    fn missing_fields_have_defaults() {
        let Udp { run, host, .. } = read_text(TEXT).unwrap();
        assert_eq!((run.outstanding, run.rounds, host.link), (vec![1, 3], 20, Link::Shm));
    }

    #[test]
    fn bad_field_is_refused_with_its_line() {
        for (from, to, expected) in [
            ("[1, 3]", "[3, 1]", "x.toml:4: `run.outstanding` has 1 after 3, expected ascending"),
            ("[1, 3]", "[]", "x.toml:4: `run.outstanding` is empty"),
            ("[1, 3]", "[0]", "x.toml:4: `run.outstanding` is 0, expected 1 to 64"),
            ("[run]", "[host]\nworkers = 1000\n[run]", "`host.workers` is 1000, expected 1 to 64"),
            ("[run]", "[host]\ncores = 1\n[run]", "cores"),
            (
                "[run]",
                "[host]\nlink = \"x\"\n[run]",
                "x.toml:4: `host.link`: \"x\", expected one of `shm`",
            ),
        ] {
            let refused = read_text(&TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
