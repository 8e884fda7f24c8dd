//! All variants under one load, which is a share of what one of them sustains.
//!
//! Where a policy keeps short requests from waiting behind long ones, tails under the same load tell
//! more than saturations: a policy that does not may sustain no load at all.

use serde_json::{Map, Value, json};

use super::session::Session;
use super::{Failure, Found, Ground, limits};
use crate::report::model::{Point, VariantResult};
use crate::scenario::{Compare, Scenario, Variant};

/// How often each variant is run, round-robin; its tail is the median. Machines have slow moments.
const REPETITIONS: usize = 3;

/// How many steps [`run`] will report.
pub(super) fn steps(scenario: &Scenario) -> u64 {
    scenario.run.compare.as_ref().map_or(0, |_| (REPETITIONS * scenario.variants.len()) as u64)
}

/// Runs each variant of the scenario under that load, and adds what came of it to what was found.
pub(super) fn run(ground: &Ground<'_>, found: &mut Found) -> Result<(), Failure> {
    let Some(compare) = &ground.scenario.run.compare else { return Ok(()) };
    let Some(load) = load(compare, found) else { return Ok(()) };
    let variants = &ground.scenario.variants;
    let mut points: Vec<Vec<Point>> = variants.iter().map(|_| Vec::new()).collect();
    for repetition in 1..=REPETITIONS {
        for (variant, points) in variants.iter().zip(&mut points) {
            let of = format!("{repetition} of {REPETITIONS}");
            ground.begin(&format!("{}: {:.1} k/s, {of}", variant.name, load / 1e3));
            let mut session = Session::start(ground, variant)?;
            session.point(load)?;
            let mut result = session.finish(variant);
            points.append(&mut result.points);
            ground.end();
        }
    }
    let class = limits(&ground.scenario.workload).class;
    let with = &compare.with;
    found.extra = tails(found, variants, points, load, &class, with);
    found.facts.push((
        format!("compared at {load:.0}/s: {:.0}% of what \"{with}\" sustained", compare.at * 100.0),
        format!("median p99 of {REPETITIONS} runs of each variant, round-robin"),
    ));
    Ok(())
}

/// The load to compare at, if the variant that it is taken from sustained any.
pub(super) fn load(compare: &Compare, found: &mut Found) -> Option<f64> {
    let variant = found.variants.iter().find(|variant| variant.name == compare.with);
    let sustained = variant.and_then(|variant| variant.saturation_per_second);
    if sustained.is_none() {
        let why = format!("left out: \"{}\" sustained none of its loads", compare.with);
        found.facts.push(("comparison under one load".to_owned(), why));
    }
    sustained.map(|sustained| sustained * compare.at)
}

/// The tails of the `points` of each variant at `load`, and each as a multiple of `with`'s. The median
/// point of each variant is added to its result.
pub(super) fn tails(
    found: &mut Found,
    variants: &[Variant],
    points: Vec<Vec<Point>>,
    load: f64,
    class: &str,
    with: &str,
) -> Value {
    let key = class.to_lowercase();
    let medians: Vec<Option<Point>> = points.into_iter().map(|all| median(all, class)).collect();
    let p99 = |point: &Option<Point>| point.as_ref().and_then(|point| p99_ns(point, class));
    let policy = |variant: &Variant| {
        let name = variant.agent().map_or("linux", |agent| &agent.policy);
        name.split(':').next().unwrap_or(name).replace('-', "_")
    };
    let of = |name: &str| variants.iter().position(|variant| variant.name == name);
    let reference = of(with).and_then(|at| Some((policy(&variants[at]), p99(&medians[at])?)));
    let mut extra = Map::new();
    extra.insert("compared_at_per_second".into(), json!(load));
    let mut all = Map::new();
    for (variant, point) in variants.iter().zip(&medians) {
        all.insert(variant.name.clone(), json!(p99(point)));
        if variant.name != with
            && let Some((reference, reference_ns)) = &reference
        {
            let ratio = p99(point).map(|ns| ns as f64 / *reference_ns as f64);
            let name = format!("{key}_p99_ratio_{}_over_{reference}", policy(variant));
            extra.insert(name, json!(ratio));
        }
    }
    extra.insert(format!("{key}_p99_ns"), Value::Object(all));
    for (variant, point) in variants.iter().zip(medians) {
        if let Some(point) = point
            && let Some(result) = found.variants.iter_mut().find(|found| found.name == variant.name)
        {
            insert(result, point);
        }
    }
    Value::Object(extra)
}

/// In the place of one under the same load.
fn insert(result: &mut VariantResult, point: Point) {
    result.points.retain(|other| other.offered_per_second != point.offered_per_second);
    result.points.push(point);
    result.points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
}

fn p99_ns(point: &Point, class: &str) -> Option<u64> {
    let class = point.classes.iter().find(|each| each.name == class)?;
    Some(class.latency.p99_ns).filter(|_| class.latency.count > 0)
}

/// The valid point whose tail is the median.
fn median(points: Vec<Point>, class: &str) -> Option<Point> {
    let mut valid: Vec<Point> = points
        .into_iter()
        .filter(|point| point.generator.valid && p99_ns(point, class).is_some())
        .collect();
    valid.sort_by_key(|point| p99_ns(point, class));
    let middle = valid.len() / 2;
    (!valid.is_empty()).then(|| valid.swap_remove(middle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{ClassLatency, Cpu, Generator, Latency};

    fn point(p99_ns: u64, valid: bool) -> Point {
        let latency = Latency { count: 10, p99_ns, ..Latency::default() };
        Point {
            offered_per_second: 1.0,
            achieved_per_second: 1.0,
            sent: 10,
            done: 10,
            set_aside: 0,
            refused: 0,
            duration_s: 1.0,
            classes: vec![ClassLatency { name: "GET".into(), latency, histogram_base64: None }],
            generator: Generator {
                lag_p50_ns: 0,
                lag_p99_ns: 0,
                lag_max_ns: 0,
                valid,
                why_invalid: None,
            },
            outcomes: Vec::new(),
            cpu: Cpu { host_useful_percent: 0.0, host_poll_percent: 0.0, agent_percent: 0.0 },
        }
    }

    #[test]
    fn the_median_is_of_valid_points_only() {
        let tail = |points: &[(u64, bool)]| {
            let points = points.iter().map(|&(p99_ns, valid)| point(p99_ns, valid)).collect();
            median(points, "GET").and_then(|point| p99_ns(&point, "GET"))
        };
        assert_eq!(tail(&[(5, true), (1, true), (3, true)]), Some(3));
        assert_eq!(tail(&[(5, false), (1, true), (9, false)]), Some(1));
        assert_eq!(tail(&[(5, false)]), None);
    }
}
