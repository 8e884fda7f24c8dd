//! Horizontal bars: a variant's saturation, and the breakdown of a request's time.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::style::{
    DrawError, GRID, INK, Key, MUTED, PAPER, axis_number, colour, legend, legend_height, plot,
    text, ticks,
};
use crate::model::{RunResult, Rung};
use crate::number::{short, thousands};

const LEFT: i32 = 24;
const RIGHT: i32 = 700;
const TOP: i32 = 48;
const ROW: i32 = 52;

/// One bar: its name above it, its segments from the left, its label at its end.
struct Bar {
    name: String,
    /// Index of the colour, and length.
    segments: Vec<(usize, f64)>,
    interval: Option<(f64, f64)>,
    label: String,
}

/// Plot of each variant's throughput, if the scenario is a ladder.
pub fn ladder(result: &RunResult) -> Result<Option<String>, DrawError> {
    let Some(ladder) = &result.ladder else { return Ok(None) };
    let bar = |(index, rung): (usize, &Rung)| {
        let Rung { name, per_second, of_first, .. } = rung;
        let of_first = of_first.map_or_else(String::new, |ratio| format!(" ({:.2})", ratio.value));
        Bar {
            name: name.clone(),
            segments: vec![(if index == 0 { 7 } else { 0 }, per_second.value / 1e3)],
            interval: per_second.interval.map(|(low, high)| (low / 1e3, high / 1e3)),
            label: format!("{} k/s{of_first}", thousands(per_second.value)),
        }
    };
    let bars: Vec<Bar> = ladder.rungs.iter().enumerate().map(bar).collect();
    let title = format!(
        "{}: throughput under an overload of {} thousand requests per second",
        result.scenario,
        thousands(ladder.offered_per_second)
    );
    let axis =
        "thousand requests per second, with 95% intervals; in brackets the ratio to the first row";
    draw(&title, axis, &bars, &[]).map(Some)
}

/// Plot of the parts of a request's time, if any variant has an account.
pub fn account(result: &RunResult) -> Result<Option<String>, DrawError> {
    let parts = parts(result);
    if parts.is_empty() {
        return Ok(None);
    }
    let with_account = result.variants.iter().filter(|variant| !variant.account.is_empty());
    let bars: Vec<Bar> = with_account
        .map(|variant| {
            let segment = |(index, part): (usize, &String)| {
                let spent = variant
                    .account
                    .iter()
                    .filter(|(other, _)| other == part)
                    .map(|(_, ns)| ns)
                    .sum();
                (index, spent)
            };
            let segments: Vec<(usize, f64)> = parts.iter().enumerate().map(segment).collect();
            let total: f64 = segments.iter().map(|(_, spent)| spent).sum();
            Bar {
                name: variant.account_name(),
                segments,
                interval: None,
                label: format!("{} ns", axis_number(total.round())),
            }
        })
        .collect();
    let title = format!("{}: where a request's time goes", result.scenario);
    draw(&title, "nanoseconds per request", &bars, &parts).map(Some)
}

/// Plot of one figure of each row: its name, and the figure.
pub fn lengths(title: &str, axis: &str, rows: &[(String, f64)]) -> Result<String, DrawError> {
    let bar = |(name, figure): &(String, f64)| Bar {
        name: name.clone(),
        segments: vec![(0, *figure)],
        interval: None,
        label: short(*figure),
    };
    draw(title, axis, &rows.iter().map(bar).collect::<Vec<_>>(), &[])
}

/// The names of the parts, in the order of their first appearance.
pub fn parts(result: &RunResult) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for (part, _) in result.variants.iter().flat_map(|variant| &variant.account) {
        if !parts.contains(part) {
            parts.push(part.clone());
        }
    }
    parts
}

fn draw(title: &str, axis: &str, bars: &[Bar], parts: &[String]) -> Result<String, DrawError> {
    let total = |bar: &Bar| bar.segments.iter().map(|(_, length)| drawable(*length)).sum::<f64>();
    let highs = bars.iter().filter_map(|bar| bar.interval.map(|(_, high)| drawable(high)));
    let most = bars.iter().map(total).chain(highs).fold(1e-9, f64::max);
    let marks = ticks(most, 6);
    let scale = f64::from(RIGHT - LEFT) / marks.last().copied().unwrap_or(most);
    let at = |value: f64| LEFT + (value * scale).round() as i32;
    let bottom = TOP + ROW * bars.len() as i32 + 6;
    let legend_height = if parts.is_empty() { 0 } else { legend_height(parts.len()) };
    plot(title, bottom as u32 + 56 + legend_height, |area| {
        for mark in &marks {
            let x = at(*mark);
            area.draw(&PathElement::new(vec![(x, TOP), (x, bottom)], GRID))?;
            area.draw(&Text::new(
                axis_number(*mark),
                (x, bottom + 14),
                text(13.0, INK, HPos::Center),
            ))?;
        }
        area.draw(&Text::new(axis.to_owned(), (LEFT, bottom + 36), text(13.0, MUTED, HPos::Left)))?;
        for (row, bar) in bars.iter().enumerate() {
            let y = TOP + row as i32 * ROW;
            area.draw(&Text::new(
                bar.name.clone(),
                (LEFT + 2, y + 13),
                text(13.0, INK, HPos::Left),
            ))?;
            let mut from = 0.0;
            for (index, length) in &bar.segments {
                let length = drawable(*length);
                let corners = [(at(from), y + 24), (at(from + length), y + 44)];
                if corners[0].0 < corners[1].0 {
                    area.draw(&Rectangle::new(corners, colour(*index).filled()))?;
                }
                if from > 0.0 && length > 0.0 {
                    // A gap distinguishes neighbours, besides their colours.
                    area.draw(&PathElement::new(vec![corners[0], (corners[0].0, y + 44)], PAPER))?;
                }
                from += length;
            }
            let interval = bar.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
            for (from, to) in interval.into_iter().flat_map(|(low, high)| {
                let ends = [at(low), at(high)];
                let whiskers = ends.map(|x| ((x, y + 29), (x, y + 39)));
                whiskers.into_iter().chain([((ends[0], y + 34), (ends[1], y + 34))])
            }) {
                area.draw(&PathElement::new(vec![from, to], INK))?;
            }
            let end = interval.map_or(from, |(_, high)| from.max(high));
            area.draw(&Text::new(
                bar.label.clone(),
                (at(end) + 8, y + 34),
                text(13.0, INK, HPos::Left),
            ))?;
        }
        legend(area, (LEFT, bottom + 54), Key::Patch, parts)
    })
}

/// `length`, or 0 if it cannot be drawn.
fn drawable(length: f64) -> f64 {
    if length.is_finite() { length.max(0.0) } else { 0.0 }
}
