//! Axes and grid, shared by the plots with curves.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;

use super::style::{Area, DrawError, GRID, INK, MUTED};

/// A linear axis with chosen ticks and labels.
#[derive(Debug, Clone)]
pub struct Axis {
    range: (f64, f64),
    ticks: Vec<f64>,
    label: fn(f64) -> String,
    /// Labels to use instead, where ticks are positions in a list.
    names: Vec<String>,
    title: String,
}

impl Axis {
    /// An axis from `low` to `high`, with a `label` at each of `ticks`.
    pub fn new(
        low: f64,
        high: f64,
        ticks: Vec<f64>,
        label: fn(f64) -> String,
        title: impl Into<String>,
    ) -> Self {
        Self { range: (low, high), ticks, label, names: Vec::new(), title: title.into() }
    }

    /// An axis with a position for each of `names`, at 0, 1 and so on.
    pub fn named(names: Vec<String>, title: impl Into<String>) -> Self {
        let ticks = (0..names.len()).map(|place| place as f64).collect();
        let range = (-0.5, names.len() as f64 - 0.5);
        Self { range, ticks, label: |_| String::new(), names, title: title.into() }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let (low, high) = self.range;
        from + ((value - low) / (high - low) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Axis {
    fn format(value: &f64) -> String {
        value.to_string()
    }

    fn format_ext(&self, value: &f64) -> String {
        let name = self.names.get(value.round().max(0.0) as usize);
        name.map_or_else(|| (self.label)(*value), Clone::clone)
    }
}

/// A chart below the title of `area`, with axes and grid drawn.
pub fn chart<'a>(
    area: &Area<'a>,
    x: Axis,
    y: Axis,
) -> Result<ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>, DrawError> {
    let (x_title, y_title) = (x.title.clone(), y.title.clone());
    let mut chart = ChartBuilder::on(area)
        .margin_top(44)
        .margin_right(36)
        .margin_left(8)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(MUTED)
        .label_style(("sans-serif", 13.0 * 1.24).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 13.0 * 1.24).into_font().color(&MUTED))
        .x_desc(x_title)
        .y_desc(y_title)
        .draw()?;
    Ok(chart)
}
