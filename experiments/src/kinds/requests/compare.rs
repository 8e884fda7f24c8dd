//! All variants at one load: a share of what one of them sustains.
//!
//! If a policy keeps short requests from waiting behind long ones, tails at the same load say more than the loads served at the
//! same tail: a policy that does not may serve no load at all. Natively each tail is compared with that of overhead-free scheduling
//! of the same arrivals ([`super::ideal`]), and the cost of a key read by a RANGE with its cost without preemption.

use std::time::Duration;

use serde_json::{Map, Value, json};
use wave_compare::curve::Served;
use wave_compare::median;
use wave_sched::policies;
use wave_workloads::generator::{Seat, Settings};

use super::ideal::{Ideal, ideal};
use super::load::Row;
use crate::ground::fields::Link;
use crate::ground::point::Terms;
use crate::ground::rounds::{AtLoad, Curves, over_rounds};
use crate::ground::{Found, Ground, limits, mix};
use crate::kinds::requests::scenario::{Compare, Variant, Workload};
use wave_report::model::{Compared, Figure, RangeCost};
use wave_report::slug;

/// One variant at the load; each round has a figure.
pub(crate) struct Runs<'a> {
    pub variant: &'a Variant,
    pub p99_ns: Vec<f64>,
    pub ranges: Vec<RangeCost>,
    /// The p99 of the same arrivals without overhead; empty if unknown.
    pub ideal: Vec<Ideal>,
}

/// Compares the rows with the scenario's own loads at one of these, if the scenario asks for it, and adds the results to `found`.
/// `of_rows` are the rows' trials, and `curves` their latencies.
pub(crate) fn in_rounds(
    ground: &Ground<'_>,
    rows: &[Row],
    of_rows: &[Vec<AtLoad>],
    curves: &Curves,
    found: &mut Found,
) {
    let Some(compare) = &ground.scenario.run.compare else { return };
    let workload = &ground.scenario.workload;
    let limits = limits(workload);
    let Some(with) = rows.iter().position(|row| row.variant.name == compare.with) else {
        let why = format!("left out: \"{}\" does not run on this machine", compare.with);
        found.facts.push(("comparison under one load".to_owned(), why));
        return;
    };
    let loads = ground.scenario.run.loads();
    let most = match curves.served(with, limits.p99_ns as f64) {
        Served::Below(_) => 0.0,
        served => served.load() * compare.at,
    };
    let (share, us) = (compare.at * 1e2, limits.p99_ns / 1_000);
    let up_to = format!("up to {share:.0}% of what it serves at a p99 of {us} us");
    let (at, why) = match loads.iter().rposition(|load| *load <= most) {
        Some(at) => (at, format!("the highest {up_to}")),
        None => (0, format!("the lowest: none is {up_to}")),
    };
    let class = workload.classes.iter().position(|class| class.name == limits.class);
    let runs = |row: usize| {
        let variant = &rows[row].variant;
        let ideals = class.map(|class| ideals(ground, variant, loads[at], class, curves.rounds));
        Runs {
            variant,
            p99_ns: curves.p99_ns(row, at).to_vec(),
            ranges: of_rows[row][at].outcomes().into_iter().filter_map(|one| one.range).collect(),
            ideal: ideals.unwrap_or_default(),
        }
    };
    let own_loads = (0..rows.len()).filter(|row| rows[*row].factor == 1.0);
    conclude(found, workload, loads[at], &compare.with, &own_loads.map(runs).collect::<Vec<_>>());
    found.facts.push((
        format!("compared with \"{}\" at {:.0}/s", compare.with, loads[at]),
        format!("of the run's loads, {why}; medians over {} rounds", curves.rounds),
    ));
}

/// The ideal of each round.
fn ideals(
    ground: &Ground<'_>,
    variant: &Variant,
    load: f64,
    class: usize,
    rounds: usize,
) -> Vec<Ideal> {
    let (workload, run) = (&ground.scenario.workload, &ground.scenario.run);
    let trials = run.trials();
    let [measured, warm_up] =
        [trials.measured_seconds, trials.warmup_seconds].map(Duration::from_secs_f64);
    let slice = variant.agent().and_then(|agent| policies::slice_of_one_queue(&agent.policy));
    let (classes_ns, cores) = (ground.service.classes_ns(), variant.host.cores);
    let mut terms = Terms {
        mix: mix(workload, 1),
        keys: workload.keys,
        seed: run.seed,
        settings: Settings::new(measured, warm_up, Seat::Own),
    };
    let mut of = |round: usize| {
        terms.seed = run.seed.wrapping_add(round as u64);
        ideal(&terms, load, classes_ns, class, cores, slice)
    };
    (0..rounds).map(&mut of).collect()
}

/// The load to compare simulated variants at; None if the reference variant sustained none.
pub(crate) fn load(compare: &Compare, found: &mut Found) -> Option<f64> {
    let variant = found.variants.iter().find(|variant| variant.name == compare.with);
    let sustained = variant.and_then(|variant| variant.saturation_per_second);
    if sustained.is_none() {
        let why = format!("left out: \"{}\" sustained none of its loads", compare.with);
        found.facts.push(("comparison under one load".to_owned(), why));
    }
    sustained.map(|sustained| sustained * compare.at)
}

/// Adds the runs at `load` to `found`: each variant's result gets its ideal and its cost; `found` gets the figures that compare the
/// variants with the one named `with`.
pub(crate) fn conclude(
    found: &mut Found,
    workload: &Workload,
    load: f64,
    with: &str,
    all: &[Runs<'_>],
) {
    let class = limits(workload).class;
    let of_class = workload.classes.iter().find(|each| each.name == class);
    let service_ns = of_class.map_or(0.0, |class| workload.service_us(class) * 1e3);
    let costs: Vec<Option<RangeCost>> = all.iter().map(|runs| cost(&runs.ranges)).collect();
    // The cost without any preemption.
    let whole = costs.iter().flatten().find(|cost| cost.preempted == 0).copied();
    let reference = all.iter().find(|runs| runs.variant.name == with);
    let ratio = |runs: &Runs<'_>| {
        let other = reference.filter(|_| runs.variant.name != with)?;
        let pairs = runs.p99_ns.iter().zip(&other.p99_ns);
        let ratios: Vec<f64> = pairs.map(|(own, other)| own / other).collect();
        (!ratios.is_empty()).then(|| over_rounds(&ratios))
    };
    for (runs, cost) in all.iter().zip(&costs) {
        let Some(result) = found.variants.iter_mut().find(|each| each.name == runs.variant.name)
        else {
            continue;
        };
        let slowdown = |ns: Option<f64>| Some(ns? / service_ns).filter(|times| times.is_finite());
        let over = |ideal: fn(&Ideal) -> Option<u64>| -> (Option<f64>, Option<Figure>) {
            let ns: Option<Vec<f64>> =
                runs.ideal.iter().map(|each| ideal(each).map(|ns| ns as f64)).collect();
            let Some(ns) = ns.filter(|ns| !ns.is_empty()) else { return (None, None) };
            // A round without a request of the class has no ideal.
            let pairs = runs.p99_ns.iter().zip(&ns).filter(|(_, ideal)| **ideal > 0.0);
            let (ratios, ns): (Vec<f64>, Vec<f64>) =
                pairs.map(|(own, ideal)| (own / ideal, *ideal)).unzip();
            (slowdown(median(&ns)), (!ratios.is_empty()).then(|| over_rounds(&ratios)))
        };
        let (oracle_slowdown, slowdown_vs_oracle) = over(|ideal| Some(ideal.shared_ns));
        let (sliced_slowdown, slowdown_vs_sliced) = over(|ideal| ideal.sliced_ns);
        let agent = runs.variant.agent();
        let slice = agent.and_then(|agent| policies::slice_of_one_queue(&agent.policy));
        let p99_ns = median(&runs.p99_ns);
        let growth = |of: fn(&RangeCost) -> f64| {
            let (cost, whole) = (cost.as_ref()?, whole.as_ref()?);
            (cost.preempted > 0).then(|| of(cost) / of(whole) - 1.0)
        };
        result.compared = Some(Compared {
            offered_per_second: load,
            p99_ns: p99_ns.map(|ns| ns as u64),
            p99_ratio: ratio(runs),
            slowdown: slowdown(p99_ns),
            oracle_slowdown,
            slowdown_vs_oracle,
            slice_us: slice.map(|slice| slice.0 as f64 / 1e3),
            sliced_slowdown,
            slowdown_vs_sliced,
            range: cost.map(|cost| RangeCost {
                service_growth: growth(|cost| cost.service_ns_per_key),
                core_growth: growth(|cost| cost.core_ns_per_key),
                ..cost
            }),
        });
    }
    found.extra = figures(found, all, load, &class, with);
}

/// The figures of the comparison, by name.
fn figures(found: &Found, all: &[Runs<'_>], load: f64, class: &str, with: &str) -> Value {
    let class = class.to_lowercase();
    let key = |name: &str| slug(name).replace('-', "_");
    let result = |name: &str| found.variants.iter().find(|variant| variant.name == name);
    let compared = |name: &str| result(name)?.compared.as_ref();
    let mut figures = Map::new();
    let mut add = |name: String, value: Value| figures.insert(name, value);
    add("compared_at_per_second".to_owned(), json!(load));
    let p99 = |runs: &Runs<'_>| {
        let ns = compared(&runs.variant.name).and_then(|compared| compared.p99_ns);
        (runs.variant.name.clone(), json!(ns))
    };
    add(format!("{class}_p99_ns"), Value::Object(all.iter().map(p99).collect()));
    let Some(reference) = all.iter().find(|runs| runs.variant.name == with) else {
        return Value::Object(figures);
    };
    if let Some(compared) = compared(with) {
        add(format!("{class}_p99_slowdown"), json!(compared.slowdown));
        if let Some(figure) = compared.slowdown_vs_oracle {
            add(format!("{class}_p99_slowdown_vs_oracle"), json!(figure));
        }
        if let Some(figure) = compared.slowdown_vs_sliced {
            add(format!("{class}_p99_slowdown_vs_ideal_slices"), json!(figure));
        }
        if let Some(range) = compared.range {
            add("range_service_growth".to_owned(), json!(range.service_growth));
            add("range_core_time_growth".to_owned(), json!(range.core_growth));
        }
    }
    let vs_oracle = |runs: &Runs<'_>| {
        let name = &runs.variant.name;
        Some((name.clone(), json!(compared(name)?.slowdown_vs_oracle?)))
    };
    let vs_oracle: Map<String, Value> = all.iter().filter_map(vs_oracle).collect();
    add(format!("{class}_p99_slowdown_vs_oracle_by_variant"), Value::Object(vs_oracle));
    for runs in all.iter().filter(|runs| runs.variant.name != with) {
        let (name, of) = (key(&runs.variant.name), key(with));
        let tails = compared(&runs.variant.name).and_then(|compared| compared.p99_ratio);
        add(format!("{class}_p99_ratio_{name}_over_{of}"), json!(tails));
        let served = served(found, &runs.variant.name, with);
        let gain = served.map(|Figure { value, interval }| Figure {
            value: value - 1.0,
            interval: interval.map(|(low, high)| (low - 1.0, high - 1.0)),
        });
        add(format!("{name}_saturation_gain"), json!(gain));
        if is_same_but_for_a_model(reference.variant, runs.variant) {
            add("offload_vs_shm".to_owned(), json!(served));
        }
    }
    Value::Object(figures)
}

/// What a variant serves, divided by what `with` serves: at one p99 in rounds, of saturations if simulated. `None` if an end of the
/// interval is open, or the slow samples speak against the ratio.
fn served(found: &Found, variant: &str, with: &str) -> Option<Figure> {
    if let Some(paired) = &found.paired {
        let share = paired.shares.iter().find(|share| share.name == variant)?;
        return share.figure().filter(|_| !share.is_doubted);
    }
    let result = |name: &str| found.variants.iter().find(|variant| variant.name == name);
    let sustained = |name: &str| result(name)?.saturation_per_second;
    // A saturation that is only a lower bound gives no ratio.
    let known = result(with).is_some_and(|result| !result.served_all());
    let ratio = sustained(variant)? / sustained(with)?;
    known.then_some(Figure { value: ratio, interval: None })
}

/// Whether the two differ only in the link, shared memory against a modelled one: the same policy, the same number of workers,
/// the same kind of threads.
fn is_same_but_for_a_model(shared: &Variant, modelled: &Variant) -> bool {
    let (Some(shm), Some(model)) = (shared.agent(), modelled.agent()) else { return false };
    let links = shm.link == Link::Shm && model.link != Link::Shm;
    links && shm.policy == model.policy && shared.host == modelled.host
}

/// Median cost of a key, of each kind, and the total of preemptions.
fn cost(rounds: &[RangeCost]) -> Option<RangeCost> {
    let middle = |of: fn(&RangeCost) -> f64| median(&rounds.iter().map(of).collect::<Vec<f64>>());
    Some(RangeCost {
        preempted: rounds.iter().map(|cost| cost.preempted).sum(),
        service_ns_per_key: middle(|cost| cost.service_ns_per_key)?,
        core_ns_per_key: middle(|cost| cost.core_ns_per_key)?,
        ..RangeCost::default()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ground::point::with_use;
    use crate::ground::system::Delta;
    use crate::ground::{failed_point, variant_result};
    use wave_report::model::VariantResult;

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
        let scenario = crate::kinds::requests::scenario::read(
            &wave_scenario::Source::new(file, SCENARIO),
            policies::NAMES,
        )
        .unwrap();
        let saturations = [None, Some(10_000.0), Some(9_000.0)];
        let variants = scenario.variants.iter().zip(saturations).map(|(variant, saturation)| {
            VariantResult { saturation_per_second: saturation, ..variant_result(variant) }
        });
        let mut found = Found { variants: variants.collect(), ..Found::default() };
        // p99, preemptions, and nanoseconds per key in the RANGE and in total.
        let ran = [(5e6, 0, 100.0, 110.0), (200_000.0, 7, 103.0, 121.0), (300_000.0, 7, 1.0, 1.0)];
        let runs = scenario.variants.iter().zip(ran).map(|(variant, ran)| {
            let range = RangeCost {
                preempted: ran.1,
                service_ns_per_key: ran.2,
                core_ns_per_key: ran.3,
                ..RangeCost::default()
            };
            let sliced_ns = (variant.name != "FIFO").then_some(160_000);
            let ideal = vec![Ideal { shared_ns: 80_000, sliced_ns }; 3];
            // The second round is disturbed: the oracle's arrivals as well.
            let p99_ns = vec![ran.0, 10.0 * ran.0, ran.0];
            Runs { variant, p99_ns, ranges: vec![range; 3], ideal }
        });
        let runs: Vec<Runs<'_>> = runs.collect();
        conclude(&mut found, &scenario.workload, 8_000.0, "Shinjuku", &runs);
        let figure = |name: &str| {
            let figure = &found.extra[name];
            let figure = figure["value"].as_f64().or(figure.as_f64());
            (figure.unwrap_or_else(|| panic!("{name}: {}", found.extra)) * 1e3).round() / 1e3
        };
        assert_eq!(figure("get_p99_slowdown"), 20.0);
        assert_eq!(figure("get_p99_slowdown_vs_oracle"), 2.5);
        let by_variant = &found.extra["get_p99_slowdown_vs_oracle_by_variant"];
        assert_eq!(
            (by_variant["Shinjuku"]["value"].as_f64(), by_variant["FIFO"]["value"].as_f64()),
            (Some(2.5), Some(62.5))
        );
        assert_eq!(figure("get_p99_slowdown_vs_ideal_slices"), 1.25);
        assert_eq!(figure("get_p99_ratio_fifo_over_shinjuku"), 25.0);
        assert_eq!(figure("shinjuku_pcie_like_saturation_gain"), -0.1);
        assert_eq!(figure("offload_vs_shm"), 0.9);
        assert_eq!(figure("range_service_growth"), 0.03);
        assert_eq!(figure("range_core_time_growth"), 0.1);
        assert!(found.extra["fifo_saturation_gain"].is_null());
        let [fifo, shinjuku, _] = &found.variants[..] else { panic!("three variants") };
        let [fifo, shinjuku] = [fifo, shinjuku].map(|each| each.compared.as_ref().unwrap());
        assert_eq!(fifo.slowdown_vs_oracle.unwrap().value, 62.5);
        assert_eq!((fifo.slice_us, shinjuku.slice_us), (None, Some(30.0)));
        // FIFO is the one that the others are compared with.
        assert_eq!(fifo.range.unwrap().service_growth, None);
        let served_all = with_use(failed_point(10_000.0), &Delta::default());
        found.variants[1].points.push(served_all);
        let open_ended = figures(&found, &runs, 8_000.0, "GET", "Shinjuku");
        assert!(open_ended["offload_vs_shm"].is_null(), "{open_ended}");
    }
}
