//! p99 latency against achieved throughput: a curve per variant, along its offered loads.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Axis, chart};
use super::style::{
    Area, DrawError, Key, MUTED, axis_number, colour, legend, legend_height, log_number, log_ticks,
    marker, plot, text, ticks, told_apart,
};
use crate::model::{Point, RunResult};

const HEIGHT: u32 = 480;

/// Thousands of requests per second, decimal logarithm of microseconds, and whether the point is valid.
type Dot = (f64, f64, bool);

/// A class of requests, and a curve for each variant.
struct Panel<'a> {
    class: &'a str,
    curves: Vec<Vec<Dot>>,
}

/// Draws the plot of the headline class, if any point has a latency.
pub fn draw(result: &RunResult) -> Result<Option<String>, DrawError> {
    let class = result.headline();
    let title = format!("{}: {class} p99 latency against throughput", result.scenario);
    panels(result, &title, &[class], Some(result.limit_us))
}

/// Draws a panel for each other class. The limit for saturation does not apply to them.
pub fn others(result: &RunResult) -> Result<Option<String>, DrawError> {
    let title = format!("{}: p99 latency of other classes against throughput", result.scenario);
    panels(result, &title, result.classes().get(1..).unwrap_or_default(), None)
}

fn panels(
    result: &RunResult,
    title: &str,
    classes: &[&str],
    limit_us: Option<u32>,
) -> Result<Option<String>, DrawError> {
    let panel = |class: &&'_ str| {
        let curves = result.variants.iter().map(|variant| curve(&variant.points, class));
        let curves: Vec<Vec<Dot>> = curves.collect();
        curves.iter().any(|curve| !curve.is_empty()).then_some(curves)
    };
    let panels: Vec<Panel<'_>> =
        classes.iter().filter_map(|class| Some(Panel { class, curves: panel(class)? })).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let whole = |at: usize| -> Vec<Dot> {
        panels.iter().flat_map(|panel| panel.curves[at].iter().copied()).collect()
    };
    let whole: Vec<Vec<Dot>> = (0..result.variants.len()).map(whole).collect();
    let names = result.variants.iter().map(|variant| variant.name.clone()).collect();
    let names = told_apart(names, &whole);
    let height = HEIGHT * panels.len() as u32;
    plot(title, height + legend_height(names.len()) + 24, |root| {
        let mut rest = root.clone();
        for panel in &panels {
            let (upper, lower) = rest.split_vertically(HEIGHT);
            draw_panel(root, &upper, panel, limit_us)?;
            rest = lower;
        }
        legend(root, (76, height as i32 + 10), Key::Curve, &names)?;
        let below = (height + legend_height(names.len())) as i32;
        let hollow = "A hollow marker is not a measurement: its agent was lost, or its generator lagged. No line goes through it.";
        if whole.iter().flatten().any(|dot| !dot.2) {
            root.draw(&Text::new(hollow, (60, below), text(12.0, MUTED, HPos::Left)))?;
        }
        Ok(())
    })
    .map(Some)
}

fn draw_panel(
    root: &Area<'_>,
    area: &Area<'_>,
    Panel { class, curves }: &Panel<'_>,
    limit_us: Option<u32>,
) -> Result<(), DrawError> {
    let dots = || curves.iter().flatten();
    let limit = limit_us.map(|us| f64::from(us).log10());
    let logs = || dots().map(|dot| dot.1).chain(limit);
    let low = logs().fold(f64::INFINITY, f64::min) - 0.15;
    let high = logs().fold(f64::NEG_INFINITY, f64::max) + 0.15;
    let x_ticks = ticks(dots().map(|dot| dot.0).fold(0.0, f64::max) * 1.02, 8);
    let right = x_ticks.last().copied().unwrap_or(1.0);
    let x_title = "achieved throughput (thousand requests per second)";
    let y_title = format!("{class} p99 latency (µs, log scale)");
    let x = Axis::new(0.0, right, x_ticks, axis_number, x_title);
    let y = Axis::new(low, high, log_ticks(low, high), log_number, y_title);
    let mut chart = chart(area, x, y)?;
    if let Some((limit, us)) = limit.zip(limit_us) {
        let line = [(0.0, limit), (right, limit)];
        chart.draw_series(DashedLineSeries::new(line, 6, 5, MUTED.stroke_width(1)))?;
        let (x, y) = chart.backend_coord(&(0.0, limit));
        let label = format!("limit for saturation: {us} µs");
        root.draw(&Text::new(label, (x + 8, y - 10), text(12.0, MUTED, HPos::Left)))?;
    }
    for (index, curve) in curves.iter().enumerate() {
        // No line leads to or from an invalid point.
        for line in curve.split(|dot| !dot.2).filter(|line| line.len() > 1) {
            let line = line.iter().map(|(x, y, _)| (*x, *y));
            chart.draw_series(LineSeries::new(line, colour(index).stroke_width(2)))?;
        }
    }
    for (index, curve) in curves.iter().enumerate() {
        for (x, y, valid) in curve {
            marker(root, chart.backend_coord(&(*x, *y)), index, !valid)?;
        }
    }
    Ok(())
}

/// The points with a latency of this class, in the order of their offered loads.
fn curve(points: &[Point], class: &str) -> Vec<Dot> {
    let mut points: Vec<_> = points.iter().collect();
    points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
    let dot = |point: &&Point| {
        let p99_us = point.class(class)?.latency.p99_ns as f64 / 1e3;
        let thousands = point.achieved_per_second / 1e3;
        let drawable = p99_us > 0.0 && thousands.is_finite() && thousands >= 0.0;
        drawable.then(|| (thousands, p99_us.log10(), point.generator.valid))
    };
    points.iter().filter_map(dot).collect()
}
