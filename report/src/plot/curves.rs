//! Curves over time, or over another quantity.

use plotters::prelude::*;

use super::chart::{Axis, chart};
use super::style::{DrawError, Key, axis_number, colour, legend, legend_height, plot, ticks};

/// A curve: its name, and its points as pairs (x, y).
pub type Curve = (String, Vec<(f64, f64)>);

/// Draws `curves`; `axes` names both axes, the horizontal one first.
pub fn draw(title: &str, axes: [&str; 2], curves: &[Curve]) -> Result<String, DrawError> {
    const HEIGHT: u32 = 360;
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|(x, _)| *x).fold(1.0, f64::max);
    let most = points().map(|(_, y)| *y).fold(1.0, f64::max);
    let (across, up) = (ticks(last, 8), ticks(most, 6));
    let top = up.last().copied().unwrap_or(most);
    plot(title, HEIGHT + legend_height(curves.len()), |root| {
        let (upper, lower) = root.split_vertically(HEIGHT);
        let x = Axis::new(0.0, last, across.clone(), axis_number, axes[0]);
        let y = Axis::new(0.0, top, up.clone(), axis_number, axes[1]);
        let mut chart = chart(&upper, x, y)?;
        for (index, (_, points)) in curves.iter().enumerate() {
            let line = colour(index).stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), line))?;
        }
        let names: Vec<String> = curves.iter().map(|(name, _)| name.clone()).collect();
        legend(&lower, (100, 6), Key::Patch, &names)
    })
}
