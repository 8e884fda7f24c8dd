//! Latency at each percentile: a curve per variant, all at one load.
//!
//! A cumulative distribution with exchanged axes. The x axis counts nines, so that the tail has room.

use plotters::prelude::*;

use super::Percentiles;
use super::chart::{Axis, chart};
use super::style::{
    Area, DrawError, Key, colour, legend, legend_height, log_number, log_ticks, marker, plot,
};
use crate::model::{Point, RunResult, SATURATION_SERVED, VariantResult};
use crate::number::thousands;
use wave_workloads::recorder::decode;

const HEIGHT: u32 = 460;
/// Steps of a curve per nine.
const STEPS_PER_NINE: u32 = 24;
/// Limit of the x axis, 99.99%: beyond it a point has too few requests.
const NINES_MAX: u32 = 4;

/// Draws the plot of the headline class, if there is a load that every variant was offered and served.
pub fn draw(result: &RunResult) -> Result<Option<Percentiles>, DrawError> {
    let Some(load) = common_load(result) else {
        return Ok(None);
    };
    let svg = panels(result, load, &[result.headline()])?;
    let load = format!("{} thousand requests per second", thousands(load));
    Ok(svg.map(|svg| Percentiles { svg, load }))
}

/// Draws a panel for each other class, at the same load.
pub fn others(result: &RunResult) -> Result<Option<String>, DrawError> {
    let Some(load) = common_load(result) else {
        return Ok(None);
    };
    panels(result, load, result.classes().get(1..).unwrap_or_default())
}

/// A curve of each variant: pairs of a number of nines and a logarithm.
type Curves = Vec<Vec<(f64, f64)>>;

fn panels(result: &RunResult, load: f64, classes: &[&str]) -> Result<Option<String>, DrawError> {
    let mut entries = Vec::new();
    for variant in &result.variants {
        let missing = if at(variant, load).is_none() { ": no valid point" } else { "" };
        entries.push(format!("{}{missing}", variant.name));
    }
    let curves = |class: &str| -> Curves {
        let of = |variant| at(variant, load).and_then(|point| curve(point, class));
        result.variants.iter().map(|variant| of(variant).unwrap_or_default()).collect()
    };
    let panels = classes.iter().map(|class| (*class, curves(class)));
    let has_values = |curves: &Curves| curves.iter().any(|curve| !curve.is_empty());
    let panels: Vec<(&str, Curves)> = panels.filter(|(_, curves)| has_values(curves)).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let title =
        format!("{}: latency at each percentile, {} k/s offered", result.scenario, thousands(load));
    let height = HEIGHT * panels.len() as u32;
    plot(&title, height + legend_height(entries.len()), |root| {
        let mut rest = root.clone();
        for (class, curves) in &panels {
            let (upper, lower) = rest.split_vertically(HEIGHT);
            draw_panel(root, &upper, class, curves)?;
            rest = lower;
        }
        legend(root, (76, height as i32 + 10), Key::Curve, &entries)
    })
    .map(Some)
}

fn draw_panel(
    root: &Area<'_>,
    area: &Area<'_>,
    class: &str,
    curves: &Curves,
) -> Result<(), DrawError> {
    let values = || curves.iter().flatten().map(|(_, log)| *log);
    let low = values().fold(f64::INFINITY, f64::min) - 0.1;
    let high = values().fold(f64::NEG_INFINITY, f64::max) + 0.1;
    let right = f64::from(NINES_MAX);
    let nines: Vec<f64> =
        [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999].map(|part: f64| -(1.0 - part).log10()).to_vec();
    let x = Axis::new(0.0, right, nines, percent, "percentile of requests");
    let y_title = format!("{class} latency (µs, log scale)");
    let y = Axis::new(low, high, log_ticks(low, high), log_number, y_title);
    let mut chart = chart(area, x, y)?;
    for (index, curve) in curves.iter().enumerate() {
        let line = colour(index).stroke_width(2);
        chart.draw_series(LineSeries::new(curve.iter().copied(), line))?;
        // A few markers, at the ticks, distinguish the curves without colour.
        for nines in [1, 2, 3] {
            if let Some(dot) = curve.get((nines * STEPS_PER_NINE) as usize) {
                marker(root, chart.backend_coord(dot), index, false)?;
            }
        }
    }
    Ok(())
}

/// The highest load at which every variant has a good point. Variants without any good point are ignored.
fn common_load(result: &RunResult) -> Option<f64> {
    let loads = |variant: &VariantResult| -> Vec<f64> {
        variant
            .points
            .iter()
            .filter(|point| good(point))
            .map(|point| point.offered_per_second)
            .collect()
    };
    let loads: Vec<Vec<f64>> =
        result.variants.iter().map(loads).filter(|loads| !loads.is_empty()).collect();
    let common =
        |load: &f64| loads.iter().all(|other| other.iter().any(|other| same(*other, *load)));
    loads.first()?.iter().copied().filter(common).max_by(f64::total_cmp)
}

/// Whether two loads are equal to a reader.
fn same(one: f64, other: f64) -> bool {
    (one - other).abs() <= 0.01 * other.abs()
}

/// The good point at `load`.
fn at(variant: &VariantResult, load: f64) -> Option<&Point> {
    variant.points.iter().find(|point| good(point) && same(point.offered_per_second, load))
}

/// Whether the point is valid and not beyond saturation.
fn good(point: &Point) -> bool {
    let histogram = point.headline().is_some_and(|class| !class.histogram.is_empty());
    histogram && point.generator.valid && point.served() >= SATURATION_SERVED
}

/// Pairs of a number of nines and the decimal logarithm of the latency there in microseconds.
fn curve(point: &Point, class: &str) -> Option<Vec<(f64, f64)>> {
    let histogram = decode(&point.class(class)?.histogram).ok()?;
    let steps = 0..=NINES_MAX * STEPS_PER_NINE;
    // A percentile with fewer than ten requests beyond it is chance.
    let known = steps.map(|step| f64::from(step) / f64::from(STEPS_PER_NINE));
    let known = known.take_while(|nines| histogram.len() as f64 * 10f64.powf(-nines) >= 10.0);
    let dot = |nines: f64| {
        let ns = histogram.value_at_quantile(1.0 - 10f64.powf(-nines)).max(1);
        (nines, (ns as f64 / 1e3).log10())
    };
    Some(known.map(dot).collect())
}

fn percent(nines: f64) -> String {
    let decimals = (nines.round() as usize).saturating_sub(2);
    format!("{:.decimals$}%", (1.0 - 10f64.powf(-nines)) * 100.0)
}
