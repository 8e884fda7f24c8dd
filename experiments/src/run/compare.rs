//! All variants under one load: a share of what one of them sustains.
//!
//! If a policy keeps short requests from waiting behind long ones, tails under the same load say more than saturations: a
//! policy that does not may sustain no load at all. Each tail is shown beside that of overhead-free scheduling of the same
//! arrivals ([`super::ideal`]), and the cost of a key read by a RANGE beside its cost without preemption.

use serde_json::{Map, Value, json};
use wave_sched::policies;

use super::ideal::{Ideal, ideal};
use super::load::Row;
use super::point::Outcome;
use super::session::Session;
use super::{Failure, Found, Ground, limits};
use crate::scenario::{Compare, Link, Scenario, Variant, Workload};
use wave_report::model::{Compared, Point, RangeCost, VariantResult};
use wave_report::slug;

/// Number of runs of each variant, round-robin; its tail is the median. Machines have slow moments.
const REPETITIONS: usize = 3;

/// The runs of one variant.
pub(super) struct Runs {
    pub variant: Variant,
    pub outcomes: Vec<Outcome>,
    /// Result of the same arrivals without overhead, if known.
    pub ideal: Option<Ideal>,
}

/// The compared rows: those with the scenario's own loads.
fn compared(rows: &[Row]) -> impl Iterator<Item = &Variant> {
    rows.iter().filter(|row| row.factor == 1.0).map(|row| &row.variant)
}

/// Number of steps that [`run`] reports.
pub(super) fn steps(scenario: &Scenario, rows: &[Row]) -> u64 {
    scenario.run.compare.as_ref().map_or(0, |_| (REPETITIONS * compared(rows).count()) as u64)
}

/// Runs each of these `rows` under that load, and adds the results to `found`.
pub(super) fn run(ground: &Ground<'_>, rows: &[Row], found: &mut Found) -> Result<(), Failure> {
    let Some(compare) = &ground.scenario.run.compare else { return Ok(()) };
    let Some(load) = load(compare, found) else { return Ok(()) };
    let workload = &ground.scenario.workload;
    let class = workload.classes.iter().position(|class| class.name == limits(workload).class);
    let runs =
        |variant: &Variant| Runs { variant: variant.clone(), outcomes: Vec::new(), ideal: None };
    let mut all: Vec<Runs> = compared(rows).map(runs).collect();
    for repetition in 1..=REPETITIONS {
        for Runs { variant, outcomes, ideal: without_overhead } in &mut all {
            let of = format!("{repetition} of {REPETITIONS}");
            ground.begin(&format!("{}: {:.1} k/s, {of}", variant.name, load / 1e3));
            let mut session = Session::start(ground, variant)?;
            session.point(load)?;
            let terms = session.terms().clone();
            outcomes.extend(session.into_outcomes().pop());
            if let (None, Some(class)) = (&without_overhead, class) {
                let policy = variant.agent().map(|agent| &agent.policy);
                let slice = policy.and_then(|policy| policies::slice_of_one_queue(policy));
                let (classes_ns, cores) = (ground.service.classes_ns(), variant.host.cores);
                *without_overhead = Some(ideal(&terms, load, classes_ns, class, cores, slice));
            }
            ground.end();
        }
    }
    let incomplete: Vec<String> =
        all.iter().filter_map(|runs| short_of_runs(runs, workload)).collect();
    conclude(found, workload, load, &compare.with, all);
    let share = compare.at * 100.0;
    found.facts.push((
        format!("compared at {load:.0}/s: {share:.0}% of what \"{}\" sustained", compare.with),
        format!("median of {REPETITIONS} runs of each variant, round-robin, the same arrivals"),
    ));
    if !incomplete.is_empty() {
        found.facts.push((
            "runs that do not count: the generator lagged, or nothing was served".to_owned(),
            format!("{}; of two runs, the slower is taken", incomplete.join("; ")),
        ));
    }
    Ok(())
}

/// How many of a variant's runs do not count, if some do not.
fn short_of_runs(runs: &Runs, workload: &Workload) -> Option<String> {
    let class = limits(workload).class;
    let counts = |outcome: &&Outcome| valid_p99_ns(&outcome.report, &class).is_some();
    let (all, valid) = (runs.outcomes.len(), runs.outcomes.iter().filter(counts).count());
    (valid < all).then(|| format!("{}: {} of {all}", runs.variant.name, all - valid))
}

/// The load to compare at; None if the reference variant sustained none.
pub(super) fn load(compare: &Compare, found: &mut Found) -> Option<f64> {
    let variant = found.variants.iter().find(|variant| variant.name == compare.with);
    let sustained = variant.and_then(|variant| variant.saturation_per_second);
    if sustained.is_none() {
        let unknown = variant.and_then(|variant| variant.not_measurable.as_deref());
        let why = match unknown {
            Some(why) => format!("not measurable, {why}"),
            None => "sustained none of its loads".to_owned(),
        };
        let why = format!("left out: \"{}\": {why}", compare.with);
        found.facts.push(("comparison under one load".to_owned(), why));
    }
    sustained.map(|sustained| sustained * compare.at)
}

/// Adds the runs at `load` to `found`: each variant's result gets its ideal, its cost and the median point; `found` gets the
/// figures that compare the variants with the one named `with`.
pub(super) fn conclude(
    found: &mut Found,
    workload: &Workload,
    load: f64,
    with: &str,
    all: Vec<Runs>,
) {
    let class = limits(workload).class;
    let of_class = workload.classes.iter().find(|each| each.name == class);
    let service_ns = of_class.map_or(0.0, |class| class.service_us * 1e3);
    let costs: Vec<Option<RangeCost>> = all.iter().map(|runs| cost(&runs.outcomes)).collect();
    // The cost without any preemption.
    let whole = costs.iter().flatten().find(|cost| cost.preempted == 0).copied();
    for (runs, cost) in all.iter().zip(&costs) {
        let median = median(&runs.outcomes, &class);
        let Some(result) = found.variants.iter_mut().find(|each| each.name == runs.variant.name)
        else {
            continue;
        };
        let mut compared = Compared { offered_per_second: load, ..Compared::default() };
        compared.p99_ns = median.and_then(|point| p99_ns(point, &class));
        let slowdown = |ns: u64| Some(ns as f64 / service_ns).filter(|times| times.is_finite());
        compared.slowdown = compared.p99_ns.and_then(slowdown);
        let against = |other: Option<f64>| Some(compared.slowdown? / other?);
        let agent = runs.variant.agent();
        let slice = agent.and_then(|agent| policies::slice_of_one_queue(&agent.policy));
        compared.oracle_slowdown = runs.ideal.and_then(|ideal| slowdown(ideal.shared_ns));
        compared.slowdown_vs_oracle = against(compared.oracle_slowdown);
        compared.slice_us = slice.map(|slice| slice.0 as f64 / 1e3);
        compared.sliced_slowdown = runs.ideal.and_then(|ideal| slowdown(ideal.sliced_ns?));
        compared.slowdown_vs_sliced = against(compared.sliced_slowdown);
        let growth = |of: fn(&RangeCost) -> f64| {
            let (cost, whole) = (cost.as_ref()?, whole.as_ref()?);
            (cost.preempted > 0).then(|| of(cost) / of(whole) - 1.0)
        };
        compared.range = cost.map(|cost| RangeCost {
            service_growth: growth(|cost| cost.service_ns_per_key),
            core_growth: growth(|cost| cost.core_ns_per_key),
            ..cost
        });
        result.compared = Some(compared);
        if let Some(point) = median {
            insert(result, point.clone());
        }
    }
    let variants: Vec<&Variant> = all.iter().map(|runs| &runs.variant).collect();
    found.extra = figures(found, &variants, load, &class, with);
}

/// The figures of the comparison, by name.
fn figures(found: &Found, variants: &[&Variant], load: f64, class: &str, with: &str) -> Value {
    let class = class.to_lowercase();
    let key = |name: &str| slug(name).replace('-', "_");
    let result = |name: &str| found.variants.iter().find(|variant| variant.name == name);
    let p99 = |name: &str| result(name)?.compared.as_ref()?.p99_ns;
    let sustained = |name: &str| result(name)?.saturation_per_second;
    // A saturation that is only a lower bound gives no ratio.
    let known = result(with).filter(|result| !result.served_all());
    let known = known.and_then(|result| result.saturation_per_second);
    let ratio = |of: Option<f64>| Some(of? / known?);
    let mut figures = Map::new();
    let mut add = |name: String, value: Value| figures.insert(name, value);
    add("compared_at_per_second".to_owned(), json!(load));
    let reference = variants.iter().find(|variant| variant.name == with);
    let Some(reference) = reference else { return Value::Object(figures) };
    if let Some(compared) = result(with).and_then(|result| result.compared.as_ref()) {
        add(format!("{class}_p99_slowdown"), json!(compared.slowdown));
        if compared.oracle_slowdown.is_some() {
            add(format!("{class}_p99_slowdown_vs_oracle"), json!(compared.slowdown_vs_oracle));
        }
        if compared.sliced_slowdown.is_some() {
            let name = format!("{class}_p99_slowdown_vs_ideal_slices");
            add(name, json!(compared.slowdown_vs_sliced));
        }
        if let Some(range) = compared.range {
            add("range_service_growth".to_owned(), json!(range.service_growth));
            add("range_core_time_growth".to_owned(), json!(range.core_growth));
        }
    }
    let vs_oracle = |variant: &&Variant| {
        let compared = result(&variant.name)?.compared.as_ref()?;
        Some((variant.name.clone(), json!(compared.slowdown_vs_oracle?)))
    };
    let vs_oracle: Map<String, Value> = variants.iter().filter_map(vs_oracle).collect();
    add(format!("{class}_p99_slowdown_vs_oracle_by_variant"), Value::Object(vs_oracle));
    for variant in variants.iter().filter(|variant| variant.name != with) {
        let (name, of) = (key(&variant.name), key(with));
        let tails = p99(&variant.name).zip(p99(with));
        let tails = tails.map(|(ns, reference_ns)| ns as f64 / reference_ns as f64);
        add(format!("{class}_p99_ratio_{name}_over_{of}"), json!(tails));
        let gain = ratio(sustained(&variant.name)).map(|ratio| ratio - 1.0);
        add(format!("{name}_saturation_gain"), json!(gain));
        if is_same_but_for_a_model(reference, variant) {
            add("offload_vs_shm".to_owned(), json!(ratio(sustained(&variant.name))));
        }
    }
    let all = variants.iter().map(|variant| (variant.name.clone(), json!(p99(&variant.name))));
    let all: Map<String, Value> = all.collect();
    figures.insert(format!("{class}_p99_ns"), Value::Object(all));
    Value::Object(figures)
}

/// Whether the two differ only in the link, shared memory against a modelled one: the same policy, the same number of workers,
/// the same kind of threads.
fn is_same_but_for_a_model(shared: &Variant, modelled: &Variant) -> bool {
    let (Some(shm), Some(model)) = (shared.agent(), modelled.agent()) else { return false };
    let links = shm.link == Link::Shm && model.link != Link::Shm;
    links && shm.policy == model.policy && shared.host == modelled.host
}

/// Inserts a point, in place of one under the same load.
fn insert(result: &mut VariantResult, point: Point) {
    result.points.retain(|other| other.offered_per_second != point.offered_per_second);
    result.points.push(point);
    result.points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
}

fn p99_ns(point: &Point, class: &str) -> Option<u64> {
    let class = point.classes.iter().find(|each| each.name == class)?;
    Some(class.latency.p99_ns).filter(|_| class.latency.count > 0)
}

/// The tail of a run that counts.
fn valid_p99_ns(point: &Point, class: &str) -> Option<u64> {
    p99_ns(point, class).filter(|_| point.generator.valid)
}

/// The valid point with the median tail.
fn median<'a>(outcomes: &'a [Outcome], class: &str) -> Option<&'a Point> {
    let points = outcomes.iter().map(|outcome| &outcome.report);
    middle(points.filter_map(|point| Some((valid_p99_ns(point, class)? as f64, point))))
}

/// Median cost of a key, of each kind, and the total of preemptions.
fn cost(outcomes: &[Outcome]) -> Option<RangeCost> {
    let costs = || outcomes.iter().filter_map(|outcome| outcome.range);
    let median = |of: fn(&RangeCost) -> f64| middle(costs().map(|cost| (of(&cost), of(&cost))));
    Some(RangeCost {
        preempted: costs().map(|cost| cost.preempted).sum(),
        service_ns_per_key: median(|cost| cost.service_ns_per_key)?,
        core_ns_per_key: median(|cost| cost.core_ns_per_key)?,
        ..RangeCost::default()
    })
}

/// The item with the median first component.
fn middle<T>(all: impl Iterator<Item = (f64, T)>) -> Option<T> {
    let mut all: Vec<(f64, T)> = all.collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let middle = all.len() / 2;
    (!all.is_empty()).then(|| all.swap_remove(middle).1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::run::session::failed_point;
    use crate::run::variant_result;
    use crate::scenario;
    use wave_report::model::{ClassLatency, Cpu, Generator, Latency};

    fn outcome(p99_ns: u64, valid: bool) -> Outcome {
        let latency = Latency { count: 10, p99_ns, ..Latency::default() };
        let report = Point {
            offered_per_second: 1.0,
            achieved_per_second: 1.0,
            sent: 10,
            done: 10,
            set_aside: 0,
            refused: 0,
            duration_s: 1.0,
            other_tries: Vec::new(),
            classes: vec![ClassLatency { name: "GET".into(), latency, histogram_base64: None }],
            generator: Generator { valid, ..Generator::default() },
            outcomes: Vec::new(),
            cpu: Cpu::default(),
        };
        let (account, measured) = (Vec::new(), failed_point(1.0));
        Outcome { measured, report, account, range: None, disturbed: None }
    }

    #[test]
    fn median_ignores_invalid_points() {
        let tail = |points: &[(u64, bool)]| {
            let all: Vec<_> = points.iter().map(|&(ns, valid)| outcome(ns, valid)).collect();
            median(&all, "GET").and_then(|point| p99_ns(point, "GET"))
        };
        assert_eq!(tail(&[(5, true), (1, true), (3, true)]), Some(3));
        assert_eq!(tail(&[(5, false), (1, true), (9, false)]), Some(1));
        assert_eq!(tail(&[(5, false)]), None);
    }

    const SCENARIO: &str = r#"name = "x"
kind = "load"
[workload]
classes = [{ name = "GET", weight = 1, service_us = 10 }]
[run]
loads_per_second = [1]
[[variant]]
name = "FIFO"
placement = "offload"
policy = "fifo"
[[variant]]
name = "Shinjuku"
placement = "offload"
policy = "shinjuku:slice_us=30"
[[variant]]
name = "Shinjuku, PCIe-like"
placement = "offload"
policy = "shinjuku:slice_us=30"
link = "model:mount-evans"
"#;

    #[test]
    fn variants_are_compared_with_the_ideal_and_the_reference() {
        let file = Path::new("x.toml");
        let scenario = scenario::parse(file, SCENARIO, policies::NAMES).unwrap();
        let saturations = [None, Some(10_000.0), Some(9_000.0)];
        let variants = scenario.variants.iter().zip(saturations).map(|(variant, saturation)| {
            VariantResult { saturation_per_second: saturation, ..variant_result(variant) }
        });
        let mut found = Found { variants: variants.collect(), ..Found::default() };
        // p99, preemptions, and nanoseconds per key in the RANGE and in total.
        let ran =
            [(5_000_000, 0, 100.0, 110.0), (200_000, 7, 103.0, 121.0), (300_000, 7, 1.0, 1.0)];
        let runs = scenario.variants.iter().zip(ran).map(|(variant, ran)| {
            let mut outcome = outcome(ran.0, true);
            outcome.range = Some(RangeCost {
                preempted: ran.1,
                service_ns_per_key: ran.2,
                core_ns_per_key: ran.3,
                ..RangeCost::default()
            });
            let sliced_ns = (variant.name != "FIFO").then_some(160_000);
            let ideal = Some(Ideal { shared_ns: 80_000, sliced_ns });
            Runs { variant: variant.clone(), outcomes: vec![outcome], ideal }
        });
        conclude(&mut found, &scenario.workload, 8_000.0, "Shinjuku", runs.collect());
        let figure = |name: &str| {
            let figure = found.extra[name].as_f64();
            (figure.unwrap_or_else(|| panic!("{name}: {}", found.extra)) * 1e3).round() / 1e3
        };
        assert_eq!(figure("get_p99_slowdown"), 20.0);
        assert_eq!(figure("get_p99_slowdown_vs_oracle"), 2.5);
        let by_variant = &found.extra["get_p99_slowdown_vs_oracle_by_variant"];
        assert_eq!(
            (by_variant["Shinjuku"].as_f64(), by_variant["FIFO"].as_f64()),
            (Some(2.5), Some(62.5))
        );
        assert_eq!(figure("get_p99_slowdown_vs_ideal_slices"), 1.25);
        assert_eq!(figure("get_p99_ratio_fifo_over_shinjuku"), 25.0);
        assert_eq!(figure("shinjuku_pcie_like_saturation_gain"), -0.1);
        assert_eq!(figure("offload_vs_shm"), 0.9);
        assert_eq!(figure("range_service_growth"), 0.03);
        assert_eq!(figure("range_core_time_growth"), 0.1);
        assert!(found.extra["fifo_saturation_gain"].is_null());
        found.variants[1].points[0].offered_per_second = 10_000.0;
        let all: Vec<&Variant> = scenario.variants.iter().collect();
        let open_ended = figures(&found, &all, 8_000.0, "GET", "Shinjuku");
        assert!(open_ended["offload_vs_shm"].is_null(), "{open_ended}");
        let [fifo, shinjuku, _] = &found.variants[..] else { panic!("three variants") };
        let [fifo, shinjuku] = [fifo, shinjuku].map(|each| each.compared.as_ref().unwrap());
        assert_eq!((fifo.slowdown_vs_oracle, fifo.slice_us), (Some(62.5), None));
        assert_eq!(shinjuku.slice_us, Some(30.0));
        // FIFO is the one that the others are compared with.
        assert_eq!(fifo.range.unwrap().service_growth, None);
    }
}
