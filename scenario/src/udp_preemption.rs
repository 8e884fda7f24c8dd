//! `kind = "udp-preemption"`: short requests in datagrams beside long ones, with preemption and without. Form and meaning.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use wave_sched::policies;
use wave_workloads::udp::{Kind, UdpMix};

use super::check::{Source, link};
use super::error::ScenarioError;
use super::{Link, defaults, file};

/// Maximum number of cores and of threads: a window's limit.
const WORKERS_MAX: u32 = 240;
/// Maximum number of requests that a core holds.
const OUTSTANDING_MAX: u32 = 16;

/// A checked experiment on the preemption of requests in datagrams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UdpPreemption {
    /// Names the output directory.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// Work of a short request, which a long one exceeds.
    pub short_us: f64,
    /// Work of a long request.
    pub long_us: f64,
    /// Percentage of long requests.
    pub long_percent: f64,
    pub sockets: u32,
    /// Length of a trial, warm-up included.
    pub seconds: f64,
    /// First part of a trial, which is not counted.
    pub warmup_seconds: f64,
    /// Seed of arrivals and classes.
    pub seed: u64,
    /// In ascending order.
    pub loads_per_second: Vec<f64>,
    /// Rounds in which both systems run each load once.
    pub rounds: u32,
    pub cores: u32,
    /// Threads that serve requests.
    pub threads: u32,
    /// Maximum number of requests that a core holds, the running one included.
    pub outstanding: u32,
    /// Length of a slice with preemption.
    pub slice_us: u32,
    /// The link between host and agent.
    pub link: Link,
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
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawWorkload {
    short_us: Option<Spanned<f64>>,
    long_us: Option<Spanned<f64>>,
    long_percent: Option<Spanned<f64>>,
    sockets: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawRun {
    seconds: Option<Spanned<f64>>,
    warmup_seconds: Option<Spanned<f64>>,
    seed: Option<Spanned<u64>>,
    loads_per_second: Spanned<Vec<Spanned<f64>>>,
    rounds: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawHost {
    cores: Option<Spanned<u32>>,
    threads: Option<Spanned<u32>>,
    outstanding: Option<Spanned<u32>>,
    slice_us: Option<Spanned<u32>>,
    link: Option<Spanned<String>>,
}

pub fn parse(path: &Path, text: &str) -> Result<UdpPreemption, ScenarioError> {
    check(Source::new(path, text, policies::NAMES))
}

pub(super) fn check(source: Source<'_>) -> Result<UdpPreemption, ScenarioError> {
    let raw: Raw = file::parse(source.path, source.text)?;
    let (workload, run, host) = (&raw.workload, &raw.run, &raw.host);
    let micros = |field, value: &Option<_>, default| {
        source.within(field, value.as_ref(), default, 0.1..=100_000.0)
    };
    let short_us = micros("workload.short_us", &workload.short_us, 5.0)?;
    let long_us = micros("workload.long_us", &workload.long_us, 100.0)?;
    if let Some(written) = workload.long_us.as_ref().or(workload.short_us.as_ref())
        && long_us <= short_us
    {
        let message = format!(
            "`workload.long_us` is {long_us}, expected more than `workload.short_us`, {short_us}"
        );
        return Err(source.refuse(written.span(), message));
    }
    let percent = workload.long_percent.as_ref();
    let seconds = source.within("run.seconds", run.seconds.as_ref(), 2.0, 0.1..=3600.0)?;
    let warm_up = run.warmup_seconds.as_ref();
    let default = defaults::WARMUP_SECONDS.min(seconds / 2.0);
    let warmup_seconds =
        source.within("run.warmup_seconds", warm_up, default, 0.0..=seconds * 0.9)?;
    let loads_per_second = source.loads(&run.loads_per_second)?;
    let highest = loads_per_second.last().copied().unwrap_or(0.0);
    let span = run.loads_per_second.span();
    source.few_requests("run.loads_per_second", highest, seconds, span)?;
    let (cores, threads) = (host.cores.as_ref(), host.threads.as_ref());
    let default = defaults::RPC_THREADS;
    Ok(UdpPreemption {
        name: source.name(&raw.name)?,
        description: raw.description.unwrap_or_default(),
        short_us,
        long_us,
        long_percent: source.within("workload.long_percent", percent, 0.5, 0.01..=99.0)?,
        sockets: source.within("workload.sockets", workload.sockets.as_ref(), 4, 1..=256)?,
        seconds,
        warmup_seconds,
        // The load's request ids start at the seed in their upper half.
        seed: source.within("run.seed", run.seed.as_ref(), defaults::SEED, 0..=1 << 20)?,
        loads_per_second,
        rounds: source.within("run.rounds", run.rounds.as_ref(), 20, 1..=1_000)?,
        cores: source.within("host.cores", cores, defaults::CORES, 1..=WORKERS_MAX)?,
        threads: source.within("host.threads", threads, default, 1..=WORKERS_MAX)?,
        outstanding: source.within(
            "host.outstanding",
            host.outstanding.as_ref(),
            4,
            1..=OUTSTANDING_MAX,
        )?,
        slice_us: source.within("host.slice_us", host.slice_us.as_ref(), 10, 1..=1_000_000)?,
        link: host.link.as_ref().map_or(Ok(Link::Shm), |written| link(written, source))?,
    })
}

impl UdpPreemption {
    /// The requests: short ones first.
    pub fn mix(&self) -> UdpMix {
        let kind = |us: f64| Kind::Spin(Duration::from_nanos((us * 1e3).round() as u64));
        UdpMix(vec![
            (kind(self.short_us), 100.0 - self.long_percent),
            (kind(self.long_us), self.long_percent),
        ])
    }

    /// Lengths of a point's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        let warm_up = Duration::from_secs_f64(self.warmup_seconds);
        [warm_up, Duration::from_secs_f64(self.seconds - self.warmup_seconds)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "name = \"x\"\nkind = \"udp-preemption\"\n[run]\nloads_per_second = [1000, 2000]\n";

    #[test]
    fn defaults_are_those_of_the_papers_figure_2() {
        let found = parse(Path::new("x.toml"), TEXT).unwrap();
        assert_eq!(found.mix().to_string(), "5us=99.5,100us=0.5");
        assert_eq!((found.slice_us, found.outstanding, found.rounds), (10, 4, 20));
        assert_eq!(found.link, Link::Shm);
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
            let refused = parse(Path::new("x.toml"), &TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
