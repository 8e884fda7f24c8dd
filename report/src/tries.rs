//! Sentences about the number of tries behind a saturation: of its load and of the next higher one, for every form of
//! the report.

use super::model::{DISTURBED, Point, VariantResult};
use super::number::thousands;

/// A sentence about `variant`; None if no relevant load was run.
pub fn of(variant: &VariantResult) -> Option<String> {
    let at = |point: &Point| {
        format!("{} k/s {}", thousands(point.offered_per_second), tries_of(&point.other_tries))
    };
    let points = &variant.points;
    let said = if variant.not_measurable.is_some() {
        let unknown = points.iter().filter(|point| !point.generator.valid);
        let unknown: Vec<String> = unknown.map(at).collect();
        format!("did not measure {}", unknown.join(", "))
    } else {
        let saturation = variant.saturation_per_second;
        let measured = || points.iter().filter(|point| point.generator.valid);
        let served = measured().find(|point| Some(point.offered_per_second) == saturation);
        let above = measured().filter(|point| point.offered_per_second > saturation.unwrap_or(0.0));
        let above = above.min_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
        match (served, above) {
            (Some(served), Some(above)) => {
                format!("served {}, did not serve {}", at(served), at(above))
            }
            (Some(served), None) => format!("served {}", at(served)),
            (None, Some(above)) if saturation.is_none() => format!("did not serve {}", at(above)),
            (None, _) => return None,
        }
    };
    Some(format!("{}: {said}.", variant.name))
}

/// The number of tries of a load, with the reasons why the `others` were set aside.
fn tries_of(others: &[String]) -> String {
    if others.is_empty() {
        return "in one try".to_owned();
    }
    let (disturbed, mut why): (Vec<&str>, Vec<&str>) =
        others.iter().map(String::as_str).partition(|why| why.starts_with(DISTURBED));
    let disturbed = format!("{} disturbed", disturbed.len());
    if !disturbed.starts_with('0') {
        why.insert(0, &disturbed);
    }
    format!("in the best of {} tries (set aside: {})", others.len() + 1, why.join("; "))
}
