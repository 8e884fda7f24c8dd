//! Plots of each metric against each axis.
//!
//! Percentiles are never averaged: every point is drawn, and points that differ only in the axis are joined.

use std::collections::BTreeMap;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{Row, Sheet, figures};
use crate::plot::chart::{Axis as ChartAxis, chart};
use crate::plot::style::{
    DrawError, Key, MUTED, axis_number, colour, legend, legend_height, log_number, log_ticks,
    marker, plot, text, ticks, told_apart,
};
use crate::save::ReportError;

const HEIGHT: u32 = 400;

/// Reads a figure of a row.
type Read<'a> = dyn Fn(&Row<'_>) -> Option<f64> + 'a;

/// A figure of a row, and its axis.
struct Metric<'a> {
    title: String,
    /// Empty if the title says it.
    unit: &'static str,
    /// Whether its axis is logarithmic.
    log: bool,
    /// Minimum upper end of its axis, unless that is logarithmic.
    at_least: f64,
    of: Box<Read<'a>>,
}

fn metrics<'a>(sheet: &'a Sheet<'_>) -> Vec<Metric<'a>> {
    if !sheet.is_of_runs() {
        return metrics_of_points(sheet.headline()).into();
    }
    let metric = |path: &'a str| Metric {
        title: path.to_owned(),
        unit: "",
        log: false,
        at_least: 1e-9,
        of: Box::new(move |row| row.figure(path)),
    };
    figures::shown(sheet).0.into_iter().map(metric).collect()
}

fn metrics_of_points(class: &str) -> [Metric<'static>; 6] {
    type Of = fn(&Row<'_>) -> Option<f64>;
    let latency = |percentile: &str, of: Of| Metric {
        title: format!("{class} {percentile} latency"),
        unit: "µs, log scale",
        log: true,
        at_least: 0.0,
        of: Box::new(of),
    };
    let rate = |title: &str, of: Of| Metric {
        title: title.to_owned(),
        unit: "thousand per second",
        log: false,
        at_least: 1e-9,
        of: Box::new(of),
    };
    [
        rate("saturation", |row| Some(row.search?.saturation_per_second? / 1e3)),
        rate("achieved throughput", |row| Some(row.point?.achieved_per_second / 1e3)),
        Metric {
            title: "requests served".to_owned(),
            unit: "percent",
            log: false,
            at_least: 100.0,
            of: Box::new(|row| Some(row.point?.served() * 100.0)),
        },
        latency("p50", |row| Some(row.headline()?.latency.p50_ns as f64 / 1e3)),
        latency("p99", |row| Some(row.headline()?.latency.p99_ns as f64 / 1e3)),
        latency("p99.9", |row| Some(row.headline()?.latency.p999_ns as f64 / 1e3)),
    ]
}

/// The horizontal axis of a plot: an axis of the sweep, or the load.
struct Below {
    name: String,
    /// Values of an axis as labels.
    values: Vec<String>,
    /// For each row, the index of its value; None if it has none of them.
    at: Vec<Option<usize>>,
    /// For each row, the indices of all other varied values: rows with equal ones are joined.
    others: Vec<Vec<usize>>,
    /// Names and values of the other varied axes; `others` has indices into these values.
    varied: Vec<(String, Vec<String>)>,
}

/// Maximum number of curves with distinct colours and markers. With more, only variants are distinguished.
pub(super) const CURVES_MAX: usize = 16;

/// Name of the axis in which points of one combination differ.
const LOAD: &str = "offered load";

/// The plots of each axis with more than one value, by its name.
pub fn all(sheet: &Sheet<'_>) -> Result<Vec<(String, Vec<String>)>, ReportError> {
    let metrics = metrics(sheet);
    let mut all = Vec::new();
    for below in belows(sheet) {
        let mut plots = Vec::new();
        for metric in &metrics {
            let drawn = draw(sheet, &below, metric).map_err(|error| ReportError::Draw {
                file: "report.html",
                why: error.to_string(),
            })?;
            plots.extend(drawn);
        }
        if !plots.is_empty() {
            all.push((below.name, plots));
        }
    }
    Ok(all)
}

fn belows(sheet: &Sheet<'_>) -> Vec<Below> {
    let mut loads: Vec<f64> = sheet.rows.iter().filter_map(Row::load_per_second).collect();
    loads.sort_by(f64::total_cmp);
    loads.dedup();
    let load_of = |row: &Row<'_>| {
        let load = row.load_per_second()?;
        loads.iter().position(|other| *other == load)
    };
    let load_names: Vec<String> =
        loads.iter().map(|load| format!("{} k/s", axis_number(load / 1e3))).collect();
    // The first position is for rows that search.
    let of_load = (LOAD.to_owned(), [vec![String::new()], load_names.clone()].concat());
    let axes = sheet.axes.iter().map(|axis| (axis.name.clone(), axis.values.clone()));
    let varied: Vec<(String, Vec<String>)> = axes.chain([of_load]).collect();
    let swept_load = sheet.axes.iter().any(|axis| axis.name.starts_with("run.loads_per_second"));
    let mut belows = Vec::new();
    for (index, axis) in sheet.axes.iter().enumerate().filter(|(_, axis)| axis.values.len() > 1) {
        let others = |row: &Row<'_>| {
            let mut others = row.at.to_vec();
            others[index] = 0;
            others.push(load_of(row).map_or(0, |load| load + 1));
            others
        };
        belows.push(Below {
            name: axis.name.clone(),
            values: axis.values.clone(),
            at: sheet.rows.iter().map(|row| Some(row.at[index])).collect(),
            others: sheet.rows.iter().map(others).collect(),
            varied: varied.clone(),
        });
    }
    // Where the lists of loads are themselves an axis, it shows the same.
    if loads.len() > 1 && !swept_load {
        belows.push(Below {
            name: LOAD.to_owned(),
            values: load_names,
            at: sheet.rows.iter().map(load_of).collect(),
            others: sheet.rows.iter().map(|row| row.at.to_vec()).collect(),
            varied,
        });
    }
    belows
}

/// Position on the horizontal axis, value, and whether the point is valid.
type Dot = (f64, f64, bool);

fn draw(
    sheet: &Sheet<'_>,
    below: &Below,
    metric: &Metric<'_>,
) -> Result<Option<String>, DrawError> {
    let mut variants: Vec<&str> = Vec::new();
    let mut curves: BTreeMap<(usize, &[usize]), Vec<Dot>> = BTreeMap::new();
    for (number, row) in sheet.rows.iter().enumerate() {
        let name = row.variant();
        let variant = variants.iter().position(|other| *other == name).unwrap_or_else(|| {
            variants.push(name);
            variants.len() - 1
        });
        let drawable = |value: &f64| value.is_finite() && (*value > 0.0 || !metric.log);
        let (Some(at), Some(value)) = (below.at[number], (metric.of)(row).filter(drawable)) else {
            continue;
        };
        let value = if metric.log { value.log10() } else { value };
        let curve = curves.entry((variant, &below.others[number])).or_default();
        curve.push((at as f64, value, row.valid()));
    }
    let dots = || curves.values().flatten();
    if dots().next().is_none() {
        return Ok(None);
    }
    for curve in curves.values_mut() {
        curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let dots = || curves.values().flatten();
    let (low, high) = dots().fold((f64::MAX, f64::MIN), |(low, high), (_, value, _)| {
        (low.min(*value), high.max(*value))
    });
    let keys: Vec<(usize, &[usize])> = curves.keys().copied().collect();
    let is_each = keys.len() <= CURVES_MAX;
    // The colour and marker of a curve.
    let series = |key: &(usize, &[usize])| match is_each {
        true => keys.iter().position(|other| other == key).unwrap_or(0),
        false => key.0,
    };
    let names: Vec<String> = match is_each {
        true => {
            let names = keys.iter().map(|key| curve_name(&variants, key, &keys, below)).collect();
            told_apart(names, &curves.values().cloned().collect::<Vec<_>>())
        }
        false => variants.iter().map(|name| (*name).to_owned()).collect(),
    };
    let y_title = match metric.unit {
        "" => metric.title.clone(),
        unit => format!("{} ({unit})", metric.title),
    };
    let y = if metric.log {
        // Wide enough for a tick: 2 and 5 are furthest apart.
        let (low, high) = (low - 0.21, high + 0.21);
        ChartAxis::new(low, high, log_ticks(low, high), log_number, y_title)
    } else {
        let ticks = ticks(high.max(metric.at_least), 5);
        let top = ticks.last().copied().unwrap_or(1.0);
        ChartAxis::new(low.min(0.0), top, ticks, axis_number, y_title)
    };
    let x = ChartAxis::named(below.values.clone(), below.name.clone());
    let title = format!("{}: {} against {}", sheet.scenario, metric.title, below.name);
    plot(&title, HEIGHT + legend_height(names.len()) + 24, |root| {
        let (upper, _) = root.split_vertically(HEIGHT);
        let mut chart = chart(&upper, x, y)?;
        for (key, curve) in &curves {
            let line = curve.iter().map(|(x, y, _)| (*x, *y));
            chart.draw_series(LineSeries::new(line, colour(series(key)).stroke_width(1)))?;
        }
        for (key, curve) in &curves {
            for (x, y, valid) in curve {
                marker(root, chart.backend_coord(&(*x, *y)), series(key), !valid)?;
            }
        }
        legend(root, (76, HEIGHT as i32 + 10), Key::Curve, &names)?;
        if dots().any(|dot| !dot.2) {
            let hollow = "A hollow marker is an invalid point; the table says why.";
            let below = (HEIGHT + legend_height(names.len())) as i32;
            root.draw(&Text::new(hollow, (60, below), text(12.0, MUTED, HPos::Left)))?;
        }
        Ok(())
    })
    .map(Some)
}

/// `prestage` of `host.prestage`, unless another axis ends in the same.
fn last_part<'a>(name: &'a str, varied: &[(String, Vec<String>)]) -> &'a str {
    let last = |name: &'a str| name.rsplit('.').next().unwrap_or(name);
    let alike = varied.iter().filter(|(other, _)| other.rsplit('.').next() == Some(last(name)));
    if alike.count() > 1 { name } else { last(name) }
}

/// The name of a curve in the legend: the values that not all curves share.
fn curve_name(
    variants: &[&str],
    key: &(usize, &[usize]),
    keys: &[(usize, &[usize])],
    below: &Below,
) -> String {
    let (variant, others) = *key;
    let mut words = Vec::new();
    if variants.len() > 1 {
        words.push(variants[variant].to_owned());
    }
    for (place, (name, values)) in below.varied.iter().enumerate() {
        let is_varied = |other: &(usize, &[usize])| other.1.get(place) != others.get(place);
        if let Some(at) = others.get(place)
            && keys.iter().any(is_varied)
        {
            words.push(match name == LOAD {
                true => values[*at].clone(),
                false => format!("{} = {}", last_part(name, &below.varied), values[*at]),
            });
        }
    }
    match words.is_empty() {
        // Whole experiments are of no variant.
        true if variants[variant].is_empty() => "as in the scenario".to_owned(),
        true => variants[variant].to_owned(),
        false => words.join(", "),
    }
}
