//! `kind = "udp-feedback"`: overload by senders that follow the queue at the host, compared with senders that do not. Form and
//! meaning.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use wave_sched::policies;
use wave_workloads::udp::{Kind, UdpMix};

use super::check::{Source, link};
use super::error::ScenarioError;
use super::{Link, defaults, file};

/// Maximum number of loads of one scenario.
const LOADS_MAX: usize = 32;
/// Maximum number of requests that a worker holds.
const OUTSTANDING_MAX: u32 = 64;

/// A checked experiment on feedback of the queue's length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UdpFeedback {
    /// Names the output directory.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// Work of each request, in microseconds.
    pub work_us: f64,
    /// Sockets of each kind of sender.
    pub sockets: u32,
    /// Length of a measurement, warm-up included.
    pub seconds: f64,
    /// First part of a measurement, which is not counted.
    pub warmup_seconds: f64,
    /// Seed of arrivals.
    pub seed: u64,
    /// Offered loads as multiples of the capacity, in ascending order.
    pub loads: Vec<f64>,
    /// Rounds in which both kinds of sender run each load once.
    pub rounds: u32,
    /// Time from due to reply within which a reply counts as goodput.
    pub limit_us: u32,
    /// Open requests at the host at which the windows aim.
    pub queue_target: u32,
    pub workers: u32,
    /// Maximum number of requests that each worker holds.
    pub outstanding: u32,
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
    work_us: Option<Spanned<f64>>,
    sockets: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawRun {
    seconds: Option<Spanned<f64>>,
    warmup_seconds: Option<Spanned<f64>>,
    seed: Option<Spanned<u64>>,
    loads: Spanned<Vec<Spanned<f64>>>,
    rounds: Option<Spanned<u32>>,
    limit_us: Option<Spanned<u32>>,
    queue_target: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawHost {
    workers: Option<Spanned<u32>>,
    outstanding: Option<Spanned<u32>>,
    link: Option<Spanned<String>>,
}

pub fn parse(path: &Path, text: &str) -> Result<UdpFeedback, ScenarioError> {
    check(Source::new(path, text, policies::NAMES))
}

pub(super) fn check(source: Source<'_>) -> Result<UdpFeedback, ScenarioError> {
    let raw: Raw = file::parse(source.path, source.text)?;
    let (workload, run, host) = (&raw.workload, &raw.run, &raw.host);
    let (work_us, sockets) = (workload.work_us.as_ref(), workload.sockets.as_ref());
    let seconds = source.within("run.seconds", run.seconds.as_ref(), 1.0, 0.05..=3600.0)?;
    let warm_up = run.warmup_seconds.as_ref();
    let default = defaults::WARMUP_SECONDS.min(seconds / 2.0);
    let (target, outstanding) = (run.queue_target.as_ref(), host.outstanding.as_ref());
    Ok(UdpFeedback {
        name: source.name(&raw.name)?,
        description: raw.description.unwrap_or_default(),
        work_us: source.within("workload.work_us", work_us, 100.0, 0.1..=1_000_000.0)?,
        sockets: source.within("workload.sockets", sockets, 8, 1..=256)?,
        seconds,
        warmup_seconds: source.within(
            "run.warmup_seconds",
            warm_up,
            default,
            0.0..=seconds * 0.9,
        )?,
        // The load's request ids start at the seed in their upper half.
        seed: source.within("run.seed", run.seed.as_ref(), defaults::SEED, 0..=1 << 20)?,
        loads: loads(&run.loads, source)?,
        rounds: source.within("run.rounds", run.rounds.as_ref(), 20, 1..=1_000)?,
        limit_us: source.within("run.limit_us", run.limit_us.as_ref(), 5_000, 1..=10_000_000)?,
        queue_target: source.within("run.queue_target", target, 16, 1..=65_535)?,
        workers: source.within("host.workers", host.workers.as_ref(), 1, 1..=64)?,
        outstanding: source.within("host.outstanding", outstanding, 4, 1..=OUTSTANDING_MAX)?,
        link: host.link.as_ref().map_or(Ok(Link::Shm), |written| link(written, source))?,
    })
}

fn loads(
    written: &Spanned<Vec<Spanned<f64>>>,
    source: Source<'_>,
) -> Result<Vec<f64>, ScenarioError> {
    let field = "run.loads";
    let mut loads: Vec<f64> = Vec::new();
    for load in written.get_ref() {
        let load = source.within(field, Some(load), 1.0, 0.01..=100.0)?;
        if let Some(last) = loads.last().filter(|last| **last >= load) {
            let message = format!("`{field}` has {load} after {last}, expected ascending loads");
            return Err(source.refuse(written.span(), message));
        }
        loads.push(load);
    }
    match (1..=LOADS_MAX).contains(&loads.len()) {
        true => Ok(loads),
        false => {
            Err(source
                .refuse(written.span(), format!("`{field}`: expected 1 to {LOADS_MAX} loads")))
        }
    }
}

impl UdpFeedback {
    /// The requests.
    pub fn mix(&self) -> UdpMix {
        UdpMix(vec![(Kind::Spin(self.work()), 1.0)])
    }

    /// Work of each request.
    pub fn work(&self) -> Duration {
        Duration::from_nanos((self.work_us * 1e3).round() as u64)
    }

    /// Lengths of a measurement's warm-up and of its counted part.
    pub fn times(&self) -> [Duration; 2] {
        let warm_up = Duration::from_secs_f64(self.warmup_seconds);
        [warm_up, Duration::from_secs_f64(self.seconds - self.warmup_seconds)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\nkind = \"udp-feedback\"\n[run]\nloads = [0.5, 2]\n";

    #[test]
    fn missing_fields_have_defaults() {
        let found = parse(Path::new("x.toml"), TEXT).unwrap();
        assert_eq!((found.loads.clone(), found.queue_target), (vec![0.5, 2.0], 16));
        assert_eq!((found.mix().to_string(), found.link), ("100us=1".to_owned(), Link::Shm));
    }

    #[test]
    fn bad_fields_are_refused_with_their_line() {
        for (from, to, expected) in [
            ("[0.5, 2]", "[2, 0.5]", "x.toml:4: `run.loads` has 0.5 after 2, expected ascending"),
            ("[0.5, 2]", "[]", "x.toml:4: `run.loads`: expected 1 to 32 loads"),
            ("[0.5, 2]", "[0]", "x.toml:4: `run.loads` is 0, expected 0.01 to 100"),
            ("[run]", "[run]\nqueue_target = 0", "`run.queue_target` is 0, expected 1 to 65535"),
            ("[run]", "[host]\ncores = 1\n[run]", "cores"),
        ] {
            let refused = parse(Path::new("x.toml"), &TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
