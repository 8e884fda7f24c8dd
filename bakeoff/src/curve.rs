//! Savings at equal refaults: the settings of each tool as a curve, and the comparison of one curve with the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The result of one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Refaults per second; above 0.
    pub refaults: f64,
    /// Net bytes saved: compressed swap is subtracted.
    pub saved: f64,
}

/// One tool's savings over those of others: at each refault rate, over the rival that saves most there.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Ratio {
    /// Geometric mean over the compared refault rates; 0 where the first tool saves nothing at one of them. None where the
    /// others save nothing.
    pub ratio: Option<f64>,
    /// Smallest of the ratios at the points where both curves have one.
    pub least: Option<f64>,
    /// The largest of these ratios.
    pub most: Option<f64>,
    /// Whether the first tool's curve and another's have a range of refaults in common. If not, their nearest ends are
    /// compared.
    pub overlap: bool,
    /// Range of refault rates compared. With an overlap: its lowest and highest rate. Without: the rate at the first tool's
    /// end, and at the other's end.
    pub refaults_per_second: [f64; 2],
    /// For each rival, the number of compared rates at which it saves the most of all rivals.
    pub best_at: BTreeMap<String, usize>,
}

/// Number of steps into which an overlap is divided; both of its ends are compared.
const PLACES: usize = 32;

/// The Pareto frontier of one tool's settings: more saved with no more refaults. In ascending order.
pub fn frontier(spots: &[Spot]) -> Vec<Spot> {
    let mut sorted = spots.to_vec();
    sorted.sort_by(|a, b| a.refaults.total_cmp(&b.refaults).then(b.saved.total_cmp(&a.saved)));
    let mut best: Vec<Spot> = Vec::new();
    for spot in sorted {
        if best.last().is_none_or(|last| spot.saved > last.saved) {
            best.push(spot);
        }
    }
    best
}

/// Savings at this refault rate: linear between settings in the logarithm of the rate.
fn at(curve: &[Spot], refaults: f64) -> f64 {
    let after = curve.partition_point(|spot| spot.refaults < refaults);
    match (after.checked_sub(1).map(|before| curve[before]), curve.get(after)) {
        (Some(a), Some(b)) => {
            let share = (refaults / a.refaults).ln() / (b.refaults / a.refaults).ln();
            a.saved + share * (b.saved - a.saved)
        }
        (Some(only), None) | (None, Some(&only)) => only.saved,
        (None, None) => 0.0,
    }
}

/// The first tool's savings over the best of the others' at equal refault rates. None if a side has no settings.
pub fn compare(ours: &[Spot], others: &[(&str, Vec<Spot>)]) -> Option<Ratio> {
    let ours = frontier(ours);
    let curve = |(name, spots): &(&str, Vec<Spot>)| {
        let curve = frontier(spots);
        let ends = ends(&curve)?;
        Some(Curve { name: (*name).to_owned(), curve, ends })
    };
    let others: Vec<Curve> = others.iter().filter_map(curve).collect();
    let [our_low, our_high] = ends(&ours)?;
    let low = others.iter().map(|other| other.ends[0]).reduce(f64::min)?.max(our_low);
    let high = others.iter().map(|other| other.ends[1]).reduce(f64::max)?.min(our_high);
    let places = (0..=PLACES).map(|place| low * (high / low).powf(place as f64 / PLACES as f64));
    let places = places.filter(|_| low <= high);
    let compared = places.filter_map(|refaults| {
        let there = others.iter().filter(|other| other.has(refaults));
        let saved = there.map(|other| (other, at(&other.curve, refaults)));
        let (best, saved) = saved.max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some((best.name.clone(), refaults, over(at(&ours, refaults), saved)))
    });
    let compared: Vec<(String, f64, Option<f64>)> = compared.collect();
    if compared.is_empty() {
        let apart = others.iter().map(|other| other.apart([our_low, our_high], &ours));
        let order = |ratio: &Ratio| ratio.ratio.unwrap_or(f64::INFINITY);
        return apart.min_by(|a, b| order(a).total_cmp(&order(b)));
    }
    let ratios: Vec<f64> = compared.iter().filter_map(|(_, _, ratio)| *ratio).collect();
    let mut best_at = BTreeMap::new();
    compared.iter().for_each(|(name, _, _)| *best_at.entry(name.clone()).or_insert(0) += 1);
    let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    let end = |pick: fn(f64, f64) -> f64| ratios.iter().copied().reduce(pick);
    Some(Ratio {
        ratio: (!ratios.is_empty()).then_some(mean),
        least: end(f64::min),
        most: end(f64::max),
        overlap: true,
        refaults_per_second: [compared[0].1, compared[compared.len() - 1].1],
        best_at,
    })
}

/// The lowest and the highest refault rate of a curve.
fn ends(curve: &[Spot]) -> Option<[f64; 2]> {
    Some([curve.first()?.refaults, curve.last()?.refaults])
}

/// Ratio of the savings. None where the other tool saves nothing: then there is no measure of how much better the first is.
fn over(ours: f64, theirs: f64) -> Option<f64> {
    (theirs > 0.0).then(|| ours.max(0.0) / theirs)
}

/// The curve of a rival, for interpolation.
struct Curve {
    name: String,
    curve: Vec<Spot>,
    ends: [f64; 2],
}

impl Curve {
    /// Whether the rival can be had at this refault rate, up to rounding. Beyond its highest rate it saves what it saves there, with
    /// fewer refaults.
    fn has(&self, refaults: f64) -> bool {
        const ROUNDING: f64 = 1e-9;
        self.ends[0] * (1.0 - ROUNDING) <= refaults
    }

    /// Compares curves without a common range, where they are nearest.
    fn apart(&self, [our_low, our_high]: [f64; 2], ours: &[Spot]) -> Ratio {
        let [low, high] = self.ends;
        let [mine, other] = if our_high < low { [our_high, low] } else { [our_low, high] };
        let ratio = over(at(ours, mine), at(&self.curve, other));
        let [least, most] = [ratio; 2];
        Ratio {
            ratio,
            least,
            most,
            overlap: false,
            refaults_per_second: [mine, other],
            best_at: [(self.name.clone(), 1)].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spots(spots: &[(f64, f64)]) -> Vec<Spot> {
        spots.iter().map(|&(refaults, saved)| Spot { refaults, saved }).collect()
    }

    #[test]
    fn curve_is_the_pareto_frontier_of_the_settings() {
        let found =
            frontier(&spots(&[(10.0, 5.0), (1.0, 2.0), (20.0, 4.0), (1.0, 1.0), (9.0, 5.0)]));
        assert_eq!(found, spots(&[(1.0, 2.0), (9.0, 5.0)]));
    }

    /// The ratio of net savings at equal refaults, against one rival.
    fn versus(ours: &[Spot], theirs: &[Spot]) -> Option<Ratio> {
        compare(ours, &[("theirs", theirs.to_vec())])
    }

    #[test]
    fn savings_are_compared_at_equal_refaults() {
        let theirs = spots(&[(1.0, 10.0), (100.0, 30.0)]);
        let twice = spots(&[(1.0, 20.0), (100.0, 60.0)]);
        let found = versus(&twice, &theirs).unwrap();
        assert!((found.ratio.unwrap() - 2.0).abs() < 1e-9 && found.overlap);
        let [low, high] = found.refaults_per_second;
        assert!((low - 1.0).abs() < 1e-9 && (high - 100.0).abs() < 1e-6, "{low} {high}");
        // At 10 refaults the rival is halfway between its settings: 20.
        let one = versus(&spots(&[(10.0, 10.0)]), &theirs).unwrap();
        assert!((one.ratio.unwrap() - 0.5).abs() < 1e-9, "{one:?}");
    }

    #[test]
    fn curves_without_overlap_are_compared_at_nearest_ends_and_marked() {
        let (few, many) =
            (spots(&[(1.0, 10.0), (2.0, 20.0)]), spots(&[(50.0, 40.0), (90.0, 50.0)]));
        let found = versus(&few, &many).unwrap();
        assert_eq!((found.ratio, found.overlap), (Some(0.5), false));
        assert_eq!(found.refaults_per_second, [2.0, 50.0]);
        let back = versus(&many, &few).unwrap();
        assert_eq!((back.ratio, back.refaults_per_second), (Some(2.0), [50.0, 2.0]));
        assert_eq!(versus(&few, &spots(&[(1.0, -5.0), (2.0, -1.0)])).unwrap().ratio, None);
        assert_eq!(versus(&few, &[]), None);
    }

    #[test]
    fn best_rival_is_chosen_at_each_refault_rate() {
        let ours = spots(&[(1.0, 10.0), (100.0, 10.0001)]);
        let careful = ("careful", spots(&[(1.0, 20.0), (10.0, 20.0001)]));
        let eager = ("eager", spots(&[(10.0, 25.0), (100.0, 40.0)]));
        let found = compare(&ours, &[careful.clone(), eager.clone()]).unwrap();
        assert!(found.overlap && found.best_at.len() == 2, "{found:?}");
        assert_eq!(found.best_at.values().sum::<usize>(), PLACES + 1);
        let [alone, other] = [careful, eager].map(|one| compare(&ours, &[one]).unwrap());
        // Each rival alone is an easier comparison than the best of both.
        assert!((alone.ratio.unwrap() - 0.5).abs() < 1e-3, "{alone:?}");
        let least = found.least.unwrap();
        assert!((least - 0.25).abs() < 1e-3 && (other.least.unwrap() - 0.25).abs() < 1e-3);
        assert!(found.most.unwrap() <= 0.5001 && found.ratio < alone.ratio);
    }

    /// More refaults than it needs cannot make a rival lose.
    #[test]
    fn a_rival_competes_beyond_its_highest_refault_rate() {
        let ours = spots(&[(10.0, 30.0), (100.0, 44.0)]);
        let best = ("best", spots(&[(1.0, 20.0), (10.0, 50.0)]));
        let other = ("other", spots(&[(5.0, 20.0), (100.0, 40.0)]));
        let found = compare(&ours, &[best, other]).unwrap();
        assert_eq!(found.best_at, BTreeMap::from([("best".to_owned(), PLACES + 1)]));
        assert!((found.most.unwrap() - 44.0 / 50.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn zero_savings_of_the_first_tool_give_ratio_zero_not_none() {
        let ours = spots(&[(1.0, -2.0), (10.0, 5.0)]);
        let found = versus(&ours, &spots(&[(1.0, 10.0), (10.0, 20.0)])).unwrap();
        assert_eq!((found.ratio, found.least), (Some(0.0), Some(0.0)));
    }
}
