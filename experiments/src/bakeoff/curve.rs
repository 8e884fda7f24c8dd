//! Savings at equal refaults: what two tools' settings come to as curves, and how those compare.

use serde::{Deserialize, Serialize};

/// What one setting came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spot {
    /// Refaults per second; above 0.
    pub refaults: f64,
    /// Net bytes saved.
    pub saved: f64,
}

/// One tool's savings over another's.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Ratio {
    /// The geometric mean over the range that both curves have; none where one of them saves nothing.
    pub ratio: Option<f64>,
    /// The smallest there.
    pub least: Option<f64>,
    /// The largest.
    pub most: Option<f64>,
    /// Whether the curves have a range of refaults in common. If not, their nearest ends are compared.
    pub overlap: bool,
    /// From how many refaults per second to how many: of an overlap, the same for both; else where the first
    /// tool's end is, and where the other's.
    pub refaults_per_second: [f64; 2],
}

/// Compares as many places of an overlap.
const PLACES: usize = 32;

/// The settings of one tool that no other of its settings beats: more saved with no more refaults. Ascending.
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

/// The savings at so many refaults: between settings, linear in the logarithm of refaults.
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

/// The first tool's savings over the other's, at equal refaults. None without settings.
pub fn compare(ours: &[Spot], theirs: &[Spot]) -> Option<Ratio> {
    let (ours, theirs) = (frontier(ours), frontier(theirs));
    let ends = |curve: &[Spot]| Some([curve.first()?.refaults, curve.last()?.refaults]);
    let ([our_low, our_high], [their_low, their_high]) = (ends(&ours)?, ends(&theirs)?);
    let (low, high) = (our_low.max(their_low), our_high.min(their_high));
    let of = |ours: f64, theirs: f64| (ours > 0.0 && theirs > 0.0).then(|| ours / theirs);
    if low > high {
        let [mine, other] = match our_high < their_low {
            true => [our_high, their_low],
            false => [our_low, their_high],
        };
        let ratio = of(at(&ours, mine), at(&theirs, other));
        let [least, most] = [ratio; 2];
        return Some(Ratio {
            ratio,
            least,
            most,
            overlap: false,
            refaults_per_second: [mine, other],
        });
    }
    let ratios: Option<Vec<f64>> = (0..=PLACES)
        .map(|place| {
            let refaults = low * (high / low).powf(place as f64 / PLACES as f64);
            of(at(&ours, refaults), at(&theirs, refaults))
        })
        .collect();
    let mean = |ratios: &Vec<f64>| {
        (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp()
    };
    let end = |pick: fn(f64, f64) -> f64| ratios.iter().flatten().copied().reduce(pick);
    Some(Ratio {
        ratio: ratios.as_ref().map(mean),
        least: end(f64::min),
        most: end(f64::max),
        overlap: true,
        refaults_per_second: [low, high],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spots(spots: &[(f64, f64)]) -> Vec<Spot> {
        spots.iter().map(|&(refaults, saved)| Spot { refaults, saved }).collect()
    }

    #[test]
    fn what_is_beaten_by_another_setting_is_no_part_of_a_curve() {
        let found =
            frontier(&spots(&[(10.0, 5.0), (1.0, 2.0), (20.0, 4.0), (1.0, 1.0), (9.0, 5.0)]));
        assert_eq!(found, spots(&[(1.0, 2.0), (9.0, 5.0)]));
    }

    #[test]
    fn equal_refaults_are_compared() {
        let theirs = spots(&[(1.0, 10.0), (100.0, 30.0)]);
        let twice = spots(&[(1.0, 20.0), (100.0, 60.0)]);
        let found = compare(&twice, &theirs).unwrap();
        assert!((found.ratio.unwrap() - 2.0).abs() < 1e-9 && found.overlap);
        assert_eq!(found.refaults_per_second, [1.0, 100.0]);
        // At 10 refaults theirs is halfway, 20.
        let one = compare(&spots(&[(10.0, 10.0)]), &theirs).unwrap();
        assert!((one.ratio.unwrap() - 0.5).abs() < 1e-9, "{one:?}");
    }

    #[test]
    fn curves_apart_are_compared_at_their_nearest_ends_and_say_so() {
        let (few, many) =
            (spots(&[(1.0, 10.0), (2.0, 20.0)]), spots(&[(50.0, 40.0), (90.0, 50.0)]));
        let found = compare(&few, &many).unwrap();
        assert_eq!((found.ratio, found.overlap), (Some(0.5), false));
        assert_eq!(found.refaults_per_second, [2.0, 50.0]);
        let back = compare(&many, &few).unwrap();
        assert_eq!((back.ratio, back.refaults_per_second), (Some(2.0), [50.0, 2.0]));
        assert_eq!(compare(&few, &spots(&[(1.0, -5.0), (2.0, -1.0)])).unwrap().ratio, None);
        assert_eq!(compare(&few, &[]), None);
    }
}
