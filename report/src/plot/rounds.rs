//! p99 latency against the offered load, from paired rounds: for each variant the quiet rounds, a band up to the median, and
//! every round.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::chart::{Axis, chart};
use super::style::{
    DrawError, Key, MUTED, axis_number, colour, legend, legend_height, log_number, log_ticks,
    marker, plot, text, ticks,
};
use crate::model::{Paired, PairedLoad, RunResult};

const HEIGHT: u32 = 480;
/// Share of all rounds that the vertical axis has room for; higher ones are drawn at its end.
const SHOWN: f64 = 0.97;
/// Distance of neighbouring variants' rounds from their load, as a share of the horizontal axis.
const ASIDE: f64 = 0.008;

/// Draws the plot, if the run had rounds.
pub fn draw(result: &RunResult) -> Result<Option<String>, DrawError> {
    let Some(paired) = &result.paired else { return Ok(None) };
    let loads = || paired.rows.iter().flat_map(|row| &row.loads);
    let mut all: Vec<f64> =
        loads().flat_map(|load| load.p99_ns.iter().copied().map(log_us)).collect();
    all.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) =
        (all.first(), all.get((all.len() as f64 * SHOWN) as usize).or(all.last()))
    else {
        return Ok(None);
    };
    let medians = loads().map(|load| log_us(load.median_p99_ns));
    let (low, high) = (least - 0.1, medians.fold(*most, f64::max) + 0.1);
    let x_ticks = ticks(loads().map(thousands).fold(0.0, f64::max) * 1.02, 8);
    let right = x_ticks.last().copied().unwrap_or(1.0);
    let names: Vec<String> = paired.rows.iter().map(|row| row.name.clone()).collect();
    plot(
        &format!("{}: {} p99 latency against load", result.scenario, paired.class),
        HEIGHT + legend_height(names.len()) + 24,
        |root| {
            let (upper, _) = root.split_vertically(HEIGHT);
            let y_title = format!("{} p99 latency (µs, log scale)", paired.class);
            let x = Axis::new(
                0.0,
                right,
                x_ticks,
                axis_number,
                "offered load (thousand requests per second)",
            );
            let y = Axis::new(low, high, log_ticks(low, high), log_number, y_title);
            let mut chart = chart(&upper, x, y)?;
            for (index, row) in paired.rows.iter().enumerate() {
                let quiet =
                    row.loads.iter().map(|load| (thousands(load), log_us(load.quiet_p99_ns)));
                let medians =
                    row.loads.iter().map(|load| (thousands(load), log_us(load.median_p99_ns)));
                let band: Vec<(f64, f64)> =
                    quiet.clone().chain(medians.rev()).map(|(x, y)| (x, y.min(high))).collect();
                chart.draw_series([Polygon::new(band, colour(index).mix(0.15).filled())])?;
                let side = (index as f64 - (paired.rows.len() as f64 - 1.0) / 2.0) * ASIDE * right;
                let rounds = row.loads.iter().flat_map(|load| {
                    load.p99_ns
                        .iter()
                        .map(move |ns| (thousands(load) + side, log_us(*ns).min(high)))
                });
                let dot = |at| Circle::new(at, 2, colour(index).mix(0.45).filled());
                chart.draw_series(rounds.map(dot))?;
                chart.draw_series(LineSeries::new(quiet.clone(), colour(index).stroke_width(2)))?;
                for at in quiet {
                    marker(root, chart.backend_coord(&at), index, false)?;
                }
            }
            legend(root, (76, HEIGHT as i32 + 10), Key::Curve, &names)?;
            let below = (HEIGHT + legend_height(names.len())) as i32;
            root.draw(&Text::new(caption(paired), (60, below), text(12.0, MUTED, HPos::Left)))
        },
    )
    .map(Some)
}

fn caption(paired: &Paired) -> String {
    format!(
        "Lines: quiet rounds (lower quartile of {}). Bands reach up to the median. Dots: each round; the highest are drawn at the upper end.",
        paired.rounds
    )
}

fn thousands(load: &PairedLoad) -> f64 {
    load.offered_per_second / 1e3
}

/// Nanoseconds as the decimal logarithm of microseconds.
fn log_us(ns: f64) -> f64 {
    (ns.max(1.0) / 1e3).log10()
}
