//! Saturation of each variant as a ladder: the first variant is the reference, each other a rung.
//!
//! Machines have slow moments. Every variant is therefore searched three times, round-robin, and its saturation is the median.
//! From the second time on, the search begins around the first estimate and takes fewer probes.

use serde_json::json;
use wave_workloads::point::{SearchEnd, SearchResult};

use super::session::Session;
use super::verdict::TRIES;
use super::{Failure, Found, Ground};
use crate::scenario::{Load, Scenario, Variant};
use wave_report::model::VariantResult;

/// Number of searches per variant.
pub(super) const REPETITIONS: usize = 3;
/// Range of a later search, relative to the median so far.
const AROUND: (f64, f64) = (0.88, 1.12);
/// Maximum number of loads in a later search.
const LATER_PROBES: u32 = 6;

/// Number of steps that [`run`] reports.
pub(super) fn steps(scenario: &Scenario) -> u64 {
    (REPETITIONS * scenario.variants.len()) as u64
}

/// Searches all variants, round-robin.
pub(super) fn run(ground: &Ground<'_>) -> Result<Found, Failure> {
    let Load::Search { low, high, probes } = ground.scenario.run.load else {
        return Err(Failure::Scenario("a ladder needs a [run.search]".into()));
    };
    let variants = &ground.scenario.variants;
    let mut searches: Vec<Vec<VariantResult>> = variants.iter().map(|_| Vec::new()).collect();
    for repetition in 1..=REPETITIONS {
        for (variant, searches) in variants.iter().zip(&mut searches) {
            let step = format!("{}: saturation, {repetition} of {REPETITIONS}", variant.name);
            ground.begin(&step);
            let mut session = Session::start(ground, variant)?;
            match median(searches) {
                Some(estimate) => search_around(&mut session, estimate, low, high)?,
                None => session.search(low, high, probes)?,
            };
            searches.push(session.finish(variant));
            ground.end();
        }
    }
    let mut found = compare(variants, searches);
    found.facts.push((
        format!("saturation: median of {REPETITIONS} searches, round-robin"),
        format!(
            "measured; the points shown are those of the median search of those that could be \
             measured. A load that was served too slowly was tried up to {TRIES} times"
        ),
    ));
    Ok(found)
}

/// Result of the `searches` of each variant. The first variant is the reference.
pub(super) fn compare(variants: &[Variant], searches: Vec<Vec<VariantResult>>) -> Found {
    let spreads: Vec<Spread> = searches.iter().map(|searches| Spread::of(searches)).collect();
    let rungs: Vec<_> = variants
        .iter()
        .zip(&spreads)
        .map(|(variant, spread)| {
            json!({
                "name": variant.name,
                "saturation_per_second": spread.median,
                "min_per_second": spread.min,
                "max_per_second": spread.max,
                "repetitions": spread.all,
            })
        })
        .collect();
    let (reference, rungs) = rungs.split_first().expect("a ladder has at least two variants");
    let on_rungs = || spreads[1..].iter().filter_map(|spread| spread.median);
    // Each rung has all optimisations applicable to it; the figure is the best of them.
    let best = on_rungs().reduce(f64::max);
    let extra = json!({
        "reference": reference,
        "rungs": rungs,
        "rungs_throughput": spreads[1..].iter().map(|spread| spread.median).collect::<Vec<_>>(),
        "offload_vs_shm": best.zip(spreads[0].median).map(|(best, shm)| best / shm),
    });
    let mut found = Found { extra, ..Found::default() };
    for (searches, spread) in searches.into_iter().zip(&spreads) {
        let unknown = searches.iter().filter(|search| search.not_measurable.is_some()).count();
        let of = searches.len();
        let median = searches.into_iter().min_by(|a, b| {
            let off = |result: &VariantResult| match (result.saturation_per_second, spread.median) {
                (Some(rate), Some(median)) => (rate - median).abs(),
                (None, None) => 0.0,
                _ => f64::INFINITY,
            };
            off(a).total_cmp(&off(b))
        });
        found.variants.extend(median.map(|mut median| {
            if unknown > 0 && spread.median.is_none() {
                let why =
                    format!("{unknown} of {of} searches met points that are not measurements");
                (median.saturation_per_second, median.not_measurable) = (None, Some(why));
            }
            median
        }));
    }
    found
}

/// Searches near `estimate`, and beyond if the saturation turns out to lie elsewhere.
fn search_around(
    session: &mut Session,
    estimate: f64,
    low: f64,
    high: f64,
) -> Result<SearchResult, Failure> {
    let (from, to) = ((estimate * AROUND.0).max(low), (estimate * AROUND.1).min(high));
    let result = session.search(from, to, LATER_PROBES)?;
    match result.end {
        SearchEnd::BelowRange if from > low => session.search(low, from, LATER_PROBES),
        SearchEnd::AboveRange if to < high => session.search(to, high, LATER_PROBES),
        _ => Ok(result),
    }
}

/// Saturations of one variant.
struct Spread {
    all: Vec<Option<f64>>,
    median: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Spread {
    /// The median is None if most of the searches could not be measured.
    fn of(searches: &[VariantResult]) -> Spread {
        let all: Vec<Option<f64>> =
            searches.iter().map(|search| search.saturation_per_second).collect();
        let known = || all.iter().flatten().copied();
        let unknown = searches.iter().filter(|search| search.not_measurable.is_some()).count();
        Spread {
            median: median(searches).filter(|_| 2 * unknown <= searches.len()),
            min: known().reduce(f64::min),
            max: known().reduce(f64::max),
            all,
        }
    }
}

/// The median saturation of the searches that could be measured; the higher of the middle two, because slow moments only lower it.
/// A search that served no load is the lowest.
fn median(searches: &[VariantResult]) -> Option<f64> {
    let measured = searches.iter().filter(|search| search.not_measurable.is_none());
    let mut found: Vec<Option<f64>> = measured.map(|search| search.saturation_per_second).collect();
    found.sort_by(|a, b| a.unwrap_or(f64::MIN).total_cmp(&b.unwrap_or(f64::MIN)));
    found.get(found.len() / 2).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::{Spread, VariantResult};

    #[test]
    fn a_search_that_served_no_load_is_the_lowest() {
        let spread = |rates: &[Option<f64>]| {
            let searches: Vec<VariantResult> = rates
                .iter()
                .map(|&rate| VariantResult {
                    name: String::new(),
                    placement: String::new(),
                    link: String::new(),
                    policy: String::new(),
                    workers: 1,
                    points: Vec::new(),
                    saturation_per_second: rate,
                    not_measurable: None,
                    saturation_by_limit: Vec::new(),
                    limits_not_measurable: Vec::new(),
                    account: Vec::new(),
                    account_per_second: None,
                    preemptions: None,
                    compared: None,
                })
                .collect();
            let Spread { median, min, max, .. } = Spread::of(&searches);
            (median, min, max)
        };
        assert_eq!(spread(&[Some(3.0), Some(1.0), Some(2.0)]), (Some(2.0), Some(1.0), Some(3.0)));
        assert_eq!(spread(&[Some(3.0), None, Some(2.0)]), (Some(2.0), Some(2.0), Some(3.0)));
        assert_eq!(spread(&[None, None]), (None, None, None));
    }
}
