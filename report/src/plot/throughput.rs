//! p99 latency against achieved throughput: a curve per variant, along its offered loads.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Axis, chart};
use super::style::{
    DrawError, Key, MUTED, axis_number, colour, legend, legend_height, log_number, log_ticks,
    marker, plot, text, ticks, told_apart,
};
use crate::model::{Point, RunResult};

const HEIGHT: u32 = 480;

/// Thousands of requests per second, decimal logarithm of microseconds, and whether the point is valid.
type Dot = (f64, f64, bool);

/// Draws the plot, if any point has a latency.
pub fn draw(result: &RunResult) -> Result<Option<String>, DrawError> {
    let curves: Vec<Vec<Dot>> =
        result.variants.iter().map(|variant| curve(&variant.points)).collect();
    let dots = || curves.iter().flatten();
    if dots().next().is_none() {
        return Ok(None);
    }
    let limit = f64::from(result.limit_us).log10();
    let low = dots().map(|dot| dot.1).fold(limit, f64::min) - 0.15;
    let high = dots().map(|dot| dot.1).fold(limit, f64::max) + 0.15;
    let x_ticks = ticks(dots().map(|dot| dot.0).fold(0.0, f64::max) * 1.02, 8);
    let right = x_ticks.last().copied().unwrap_or(1.0);
    let names = result.variants.iter().map(|variant| variant.name.clone()).collect();
    let names = told_apart(names, &curves);
    let class = headline(result);

    plot(
        &format!("{}: {class} p99 latency against throughput", result.scenario),
        HEIGHT + legend_height(names.len()) + 24,
        |root| {
            let (upper, _) = root.split_vertically(HEIGHT);
            let x_title = "achieved throughput (thousand requests per second)";
            let y_title = format!("{class} p99 latency (µs, log scale)");
            let x = Axis::new(0.0, right, x_ticks, axis_number, x_title);
            let y = Axis::new(low, high, log_ticks(low, high), log_number, y_title);
            let mut chart = chart(&upper, x, y)?;
            chart.draw_series(DashedLineSeries::new(
                [(0.0, limit), (right, limit)],
                6,
                5,
                MUTED.stroke_width(1),
            ))?;
            let (x, y) = chart.backend_coord(&(0.0, limit));
            let label = format!("limit for saturation: {} µs", result.limit_us);
            root.draw(&Text::new(label, (x + 8, y - 10), text(12.0, MUTED, HPos::Left)))?;
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
            legend(root, (76, HEIGHT as i32 + 10), Key::Curve, &names)?;
            let below = (HEIGHT + legend_height(names.len())) as i32;
            let hollow = "A hollow marker is not a measurement: the point was disturbed, or its generator lagged. No line goes through it.";
            if dots().any(|dot| !dot.2) {
                root.draw(&Text::new(hollow, (60, below), text(12.0, MUTED, HPos::Left)))?;
            }
            Ok(())
        },
    )
    .map(Some)
}

/// The points with a latency, in the order of their offered loads.
fn curve(points: &[Point]) -> Vec<Dot> {
    let mut points: Vec<_> = points.iter().collect();
    points.sort_by(|a, b| a.offered_per_second.total_cmp(&b.offered_per_second));
    let dot = |point: &&Point| {
        let p99_us = point.headline()?.latency.p99_ns as f64 / 1e3;
        let thousands = point.achieved_per_second / 1e3;
        let drawable = p99_us > 0.0 && thousands.is_finite() && thousands >= 0.0;
        drawable.then(|| (thousands, p99_us.log10(), point.generator.valid))
    };
    points.iter().filter_map(dot).collect()
}

/// Name of the class to draw.
fn headline(result: &RunResult) -> &str {
    let mut points = result.variants.iter().flat_map(|variant| &variant.points);
    points.find_map(|point| point.headline()).map_or("request", |class| class.name.as_str())
}
