//! `kind = "udp"`: throughput by the number of outstanding requests per worker. Form and meaning.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use wave_sched::policies;

use super::check::{Source, link};
use super::error::ScenarioError;
use super::{Link, file};

/// Maximum number of requests that a worker holds.
const OUTSTANDING_MAX: u32 = 64;
/// Maximum number of values of one scenario.
const VALUES_MAX: usize = 64;

/// A checked experiment on requests in datagrams.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Udp {
    /// Names the output directory.
    pub name: String,
    /// One paragraph for the reader of the results; may be empty.
    pub description: String,
    /// Work of each request, in microseconds.
    pub work_us: f64,
    pub sockets: u32,
    /// Requests in flight on each socket.
    pub under_way: u32,
    /// Length of one measurement.
    pub seconds: f64,
    /// Rounds in which each value is measured once.
    pub rounds: u32,
    /// Numbers of outstanding requests per worker, in ascending order.
    pub outstanding: Vec<u32>,
    pub workers: u32,
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
    under_way: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawRun {
    seconds: Option<Spanned<f64>>,
    rounds: Option<Spanned<u32>>,
    outstanding: Spanned<Vec<Spanned<u32>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct RawHost {
    workers: Option<Spanned<u32>>,
    link: Option<Spanned<String>>,
}

pub fn parse(path: &Path, text: &str) -> Result<Udp, ScenarioError> {
    check(Source::new(path, text, policies::NAMES))
}

pub(super) fn check(source: Source<'_>) -> Result<Udp, ScenarioError> {
    let raw: Raw = file::parse(source.path, source.text)?;
    let (workload, run, host) = (&raw.workload, &raw.run, &raw.host);
    let work_us = workload.work_us.as_ref();
    let sockets = workload.sockets.as_ref();
    let under_way = workload.under_way.as_ref();
    let udp = Udp {
        name: source.name(&raw.name)?,
        description: raw.description.unwrap_or_default(),
        work_us: source.within("workload.work_us", work_us, 1.0, 0.1..=1_000_000.0)?,
        sockets: source.within("workload.sockets", sockets, 4, 1..=256)?,
        under_way: source.within("workload.under_way", under_way, 16, 1..=256)?,
        seconds: source.within("run.seconds", run.seconds.as_ref(), 0.5, 0.01..=3600.0)?,
        rounds: source.within("run.rounds", run.rounds.as_ref(), 20, 1..=1_000)?,
        outstanding: outstanding(&run.outstanding, source)?,
        workers: source.within("host.workers", host.workers.as_ref(), 1, 1..=64)?,
        link: host.link.as_ref().map_or(Ok(Link::Shm), |written| link(written, source))?,
    };
    let most = udp.workers * udp.outstanding.last().copied().unwrap_or(0);
    let in_flight = udp.sockets * udp.under_way;
    if in_flight <= most {
        let message = format!(
            "`run.outstanding`: {in_flight} requests are in flight (`workload.sockets` times `workload.under_way`), expected more than the \
             {most} that the workers can hold"
        );
        return Err(source.refuse(run.outstanding.span(), message));
    }
    Ok(udp)
}

fn outstanding(
    written: &Spanned<Vec<Spanned<u32>>>,
    source: Source<'_>,
) -> Result<Vec<u32>, ScenarioError> {
    let mut values: Vec<u32> = Vec::new();
    for value in written.get_ref() {
        let field = "run.outstanding";
        let value = source.within(field, Some(value), 1, 1..=OUTSTANDING_MAX)?;
        if values.last().is_some_and(|last| *last >= value) {
            let message = format!("`{field}` has {value} out of order, expected ascending values");
            return Err(source.refuse(written.span(), message));
        }
        values.push(value);
    }
    match (1..=VALUES_MAX).contains(&values.len()) {
        true => Ok(values),
        false => Err(source.refuse(written.span(), "`run.outstanding`: expected 1 to 64 values")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\nkind = \"udp\"\n[run]\noutstanding = [1, 3]\n";

    #[test]
    fn missing_fields_have_defaults() {
        let udp = parse(Path::new("x.toml"), TEXT).unwrap();
        assert_eq!((udp.outstanding, udp.rounds, udp.link), (vec![1, 3], 20, Link::Shm));
    }

    #[test]
    fn bad_field_is_refused_with_its_line() {
        for (from, to, expected) in [
            ("[1, 3]", "[3, 1]", "x.toml:4: `run.outstanding` has 1 out of order"),
            ("[1, 3]", "[]", "x.toml:4: `run.outstanding`: expected 1 to 64 values"),
            ("[1, 3]", "[0]", "x.toml:4: `run.outstanding` is 0, expected 1 to 64"),
            ("[run]", "[host]\nworkers = 1000\n[run]", "`host.workers` is 1000, expected 1 to 64"),
            ("[run]", "[host]\ncores = 1\n[run]", "cores"),
        ] {
            let refused = parse(Path::new("x.toml"), &TEXT.replace(from, to)).unwrap_err();
            assert!(refused.to_string().contains(expected), "{refused}");
        }
    }
}
