//! The saturation of a simulated row.

use wave_report::model::VariantResult;
use wave_report::number::thousands;
use wave_workloads::point::{self as measured, Limits, Point};

/// The saturation by the points of a row; None if none of the loads was served.
///
/// # Errors
///
/// Why it is unknown: it would rest on a point that is not a measurement.
pub fn saturation(points: &[Point], limits: &Limits) -> Result<Option<f64>, String> {
    let served = measured::saturation(points, limits).map(|point| point.offered_per_second);
    let Some(hides) = measured::hides_saturation(points, limits) else { return Ok(served) };
    let why = hides.generator.why_invalid.as_deref().unwrap_or("invalid");
    let at_least = served.map_or_else(String::new, |load| format!("at least {}; ", rate(load)));
    Err(format!("{at_least}{} is not a measurement ({why})", rate(hides.offered_per_second)))
}

fn rate(per_second: f64) -> String {
    format!("{} k/s", thousands(per_second))
}

/// Puts a row's saturations into its result: within `limits`, and within the usual limits on the p99.
pub fn put_saturations(
    result: &mut VariantResult,
    points: &[Point],
    limits: &Limits,
    limits_us: &[u64],
) {
    match saturation(points, limits) {
        Ok(per_second) => result.saturation_per_second = per_second,
        Err(why) => result.not_measurable = Some(why),
    }
    for &us in limits_us {
        let limits = Limits { p99_ns: us * 1_000, ..limits.clone() };
        match saturation(points, &limits) {
            Ok(Some(per_second)) => result.saturation_by_limit.push((us as u32, per_second)),
            Ok(None) => {}
            Err(_) => result.limits_not_measurable.push(us as u32),
        }
    }
}
