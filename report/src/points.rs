//! A row per point, as CSV and as JSON lines. Histograms have their own files.

use serde::Serialize;

use wave_workloads::recorder::Latency;

use super::model::{Point, RunResult, VariantResult};
use super::save::ReportError;

/// The columns before the classes' latencies.
const HEAD: [&str; 13] = [
    "scenario",
    "seed",
    "version",
    "variant",
    "placement",
    "link",
    "policy",
    "workers",
    "offered_per_second",
    "achieved_per_second",
    "sent",
    "done",
    "refused",
];

/// The columns of one class, each prefixed with the class's name.
pub(crate) const LATENCY: [&str; 8] =
    ["count", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns", "mean_ns"];

/// The columns after the percentiles of each class.
const TAIL: [&str; 9] = [
    "duration_s",
    "lag_p50_ns",
    "lag_p99_ns",
    "lag_max_ns",
    "valid",
    "why_invalid",
    "host_useful_percent",
    "host_poll_percent",
    "agent_percent",
];

/// A header and a row per point. Columns of classes or outcomes that a point lacks are empty.
pub fn csv(result: &RunResult) -> Vec<u8> {
    let points = || result.variants.iter().flat_map(|variant| &variant.points);
    let classes =
        distinct(points().flat_map(|point| &point.classes).map(|class| class.name.as_str()));
    let outcomes =
        distinct(points().flat_map(|point| &point.outcomes).map(|(outcome, _)| outcome.as_str()));

    let mut header: Vec<String> = HEAD.map(str::to_owned).to_vec();
    header
        .extend(classes.iter().flat_map(|class| LATENCY.map(|column| format!("{class}_{column}"))));
    header.extend(TAIL.map(str::to_owned));
    header.extend(outcomes.iter().map(|outcome| format!("outcome_{outcome}")));

    let rows = result.variants.iter().flat_map(|variant| {
        let row = |point| row(result, variant, point, &classes, &outcomes);
        variant.points.iter().map(row)
    });
    super::csv(header, rows)
}

fn row(
    result: &RunResult,
    variant: &VariantResult,
    point: &Point,
    classes: &[&str],
    outcomes: &[&str],
) -> Vec<String> {
    let mut row = vec![
        result.scenario.clone(),
        result.seed.to_string(),
        result.version.clone(),
        variant.name.clone(),
        variant.placement.clone(),
        variant.link.clone(),
        variant.policy.clone(),
        variant.workers.to_string(),
        point.offered_per_second.to_string(),
        point.achieved_per_second.to_string(),
        point.sent.to_string(),
        point.done.to_string(),
        point.refused.to_string(),
    ];
    for name in classes {
        match point.classes.iter().find(|class| class.name == *name) {
            Some(class) => row.extend(latency(&class.latency)),
            None => row.extend(LATENCY.map(|_| String::new())),
        }
    }
    row.extend([
        point.duration_s.to_string(),
        point.generator.lag_p50_ns.to_string(),
        point.generator.lag_p99_ns.to_string(),
        point.generator.lag_max_ns.to_string(),
        point.generator.valid.to_string(),
        point.generator.why_invalid.clone().unwrap_or_default(),
        point.cpu.host_useful_percent.to_string(),
        point.cpu.host_poll_percent.to_string(),
        point.cpu.agent_percent.to_string(),
    ]);
    for name in outcomes {
        let count = point.outcomes.iter().find(|(outcome, _)| outcome == name);
        row.push(count.map_or_else(String::new, |(_, count)| count.to_string()));
    }
    row
}

/// The cells of the columns [`LATENCY`].
pub(crate) fn latency(latency: &Latency) -> [String; 8] {
    [
        latency.count.to_string(),
        latency.min_ns.to_string(),
        latency.p50_ns.to_string(),
        latency.p90_ns.to_string(),
        latency.p99_ns.to_string(),
        latency.p999_ns.to_string(),
        latency.max_ns.to_string(),
        latency.mean_ns.to_string(),
    ]
}

/// The names, each once, in the order of their first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for name in names {
        if !distinct.contains(&name) {
            distinct.push(name);
        }
    }
    distinct
}

/// A point with its scenario and variant.
#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    seed: u64,
    version: &'a str,
    variant: &'a str,
    placement: &'a str,
    link: &'a str,
    policy: &'a str,
    workers: u32,
    #[serde(flatten)]
    point: Point,
}

/// One line per point, each a JSON object.
pub fn json_lines(result: &RunResult) -> Result<Vec<u8>, ReportError> {
    let mut lines = Vec::new();
    for variant in &result.variants {
        for point in &variant.points {
            let mut point = point.clone();
            for class in &mut point.classes {
                class.histogram = String::new();
            }
            let line = Line {
                scenario: &result.scenario,
                seed: result.seed,
                version: &result.version,
                variant: &variant.name,
                placement: &variant.placement,
                link: &variant.link,
                policy: &variant.policy,
                workers: variant.workers,
                point,
            };
            serde_json::to_writer(&mut lines, &line)?;
            lines.push(b'\n');
        }
    }
    Ok(lines)
}
