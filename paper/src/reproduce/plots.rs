//! Plots in the report's style: our curves beside the paper's points, and rows over the paper's ranges.
//!
//! The paper's figures are hollow in ink, or dashed lines; ours have the colour of their series.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::figures::{Curve, Figure};
use super::rows::Row;
use super::words;
use wave_report::plot::chart::{Axis, chart};
use wave_report::plot::style::{
    Area, DrawError, GRID, INK, MUTED, axis_number, colour, legend_height, legend_place,
    log_number, log_ticks, marker, plot, text, ticks,
};

const HEIGHT: u32 = 460;
/// Up to this many different x on a logarithmic axis each get a label.
const LABELLED_MAX: usize = 10;

/// Draws a figure; None if it has no point.
pub fn figure(figure: &Figure) -> Result<Option<String>, DrawError> {
    let shapes: Vec<Shape> = figure.curves.iter().map(|curve| Shape::new(figure, curve)).collect();
    let Some((x, y)) = axes(figure, &shapes) else { return Ok(None) };
    let Range { start: bottom, end: top } = y.range();
    plot(&figure.title, HEIGHT + legend_height(shapes.len()), |root| {
        let (upper, _) = root.split_vertically(HEIGHT);
        let mut chart = chart(&upper, x, y)?;
        for (index, shape) in shapes.iter().enumerate() {
            if let Shape::Line { band, .. } = shape {
                let lower = band.iter().map(|(x, low, _)| (*x, *low));
                let upper = band.iter().rev().map(|(x, _, high)| (*x, *high));
                let outline: Vec<_> = lower.chain(upper).collect();
                chart.draw_series([Polygon::new(outline, colour(index).mix(0.16).filled())])?;
            }
        }
        for (index, shape) in shapes.iter().enumerate() {
            match shape {
                Shape::Line { dots, leaves, .. } => {
                    let line = dots.iter().chain(leaves).copied();
                    chart.draw_series(LineSeries::new(line, colour(index).stroke_width(2)))?;
                }
                Shape::Loads { at, of } => {
                    let line = colour(of.unwrap_or(index)).stroke_width(2);
                    for x in at {
                        chart.draw_series(DashedLineSeries::new(
                            [(*x, bottom), (*x, top)],
                            DASH.0,
                            DASH.1,
                            line,
                        ))?;
                    }
                }
                Shape::Printed { .. } => {}
            }
        }
        for (index, shape) in shapes.iter().enumerate() {
            match shape {
                Shape::Line { dots, .. } => {
                    for dot in dots {
                        marker(root, chart.backend_coord(dot), index, false)?;
                    }
                }
                Shape::Printed { dots } => {
                    for dot in dots {
                        printed(root, chart.backend_coord(dot))?;
                    }
                }
                Shape::Loads { .. } => {}
            }
        }
        for (index, (shape, curve)) in shapes.iter().zip(&figure.curves).enumerate() {
            key(root, index, shape)?;
            let (x, y) = legend_place(LEGEND, index);
            let name = if shape.is_empty() {
                format!("{}: no point", curve.name)
            } else {
                curve.name.clone()
            };
            root.draw(&Text::new(name, (x + 26, y), text(13.0, INK, HPos::Left)))?;
        }
        Ok(())
    })
    .map(Some)
}

const LEGEND: (i32, i32) = (76, HEIGHT as i32 + 10);
/// A dashed line: pixels drawn, pixels skipped.
const DASH: (i32, i32) = (6, 4);

/// The shape of a curve in units of the axes; on a logarithmic axis, x is the logarithm.
enum Shape {
    /// A curve of our results.
    Line {
        dots: Vec<(f64, f64)>,
        /// Where the line leaves the plot at the top.
        leaves: Option<(f64, f64)>,
        /// x, and the lowest and highest y.
        band: Vec<(f64, f64, f64)>,
    },
    /// Points that the paper prints.
    Printed { dots: Vec<(f64, f64)> },
    /// Loads that the paper prints, without a y value.
    Loads {
        at: Vec<f64>,
        /// Our curve that they belong to.
        of: Option<usize>,
    },
}

impl Shape {
    fn new(figure: &Figure, curve: &Curve) -> Shape {
        let place = |x: f64| if figure.log_x { x.log10() } else { x };
        let drawable = |point: &[f64; 2]| place(point[0]).is_finite() && point[1].is_finite();
        let points = || curve.points.iter().filter(|point| drawable(point));
        let dots = points().map(|[x, y]| (place(*x), *y)).collect::<Vec<_>>();
        if curve.paper && !dots.is_empty() && dots.iter().all(|(_, y)| *y == 0.0) {
            let ours = |other: &Curve| !other.paper && curve.name.starts_with(&other.name);
            let of = figure.curves.iter().position(ours);
            return Shape::Loads { at: dots.into_iter().map(|(x, _)| x).collect(), of };
        }
        let top = figure.y_max.unwrap_or(f64::INFINITY);
        if curve.paper {
            return Shape::Printed { dots: dots.into_iter().filter(|(_, y)| *y <= top).collect() };
        }
        let inside = dots.iter().position(|(_, y)| *y > top).unwrap_or(dots.len());
        let leaves = dots.get(inside).and_then(|(beyond_x, beyond_y)| {
            let (x, y) = dots[inside.checked_sub(1)?];
            Some((x + (beyond_x - x) * (top - y) / (beyond_y - y), top))
        });
        let whole = curve.band.len() == curve.points.len();
        let band = if whole { curve.points.iter().zip(&curve.band) } else { [].iter().zip(&[]) };
        let band = band
            .filter(|(point, band)| drawable(point) && band.iter().all(|end| end.is_finite()))
            .map(|([x, _], [low, high])| (place(*x), low.min(top), high.min(top)))
            .collect();
        Shape::Line { dots: dots[..inside].to_vec(), leaves, band }
    }

    fn is_empty(&self) -> bool {
        self.places().is_empty()
    }

    /// Every x and y that must fit into the plot; None for y if a shape has no y.
    fn places(&self) -> Vec<(f64, Option<f64>)> {
        match self {
            Shape::Line { dots, leaves, band } => {
                let ends = band.iter().flat_map(|(x, low, high)| [(*x, *low), (*x, *high)]);
                let all = dots.iter().chain(leaves).copied().chain(ends);
                all.map(|(x, y)| (x, Some(y))).collect()
            }
            Shape::Printed { dots } => dots.iter().map(|(x, y)| (*x, Some(*y))).collect(),
            Shape::Loads { at, .. } => at.iter().map(|x| (*x, None)).collect(),
        }
    }
}

/// The axes; None if no shape has a point.
fn axes(figure: &Figure, shapes: &[Shape]) -> Option<(Axis, Axis)> {
    let places: Vec<_> = shapes.iter().flat_map(Shape::places).collect();
    let mut xs: Vec<f64> = places.iter().map(|(x, _)| *x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (left, right) = (*xs.first()?, *xs.last()?);
    let x = if figure.log_x {
        let (low, high) = (left - 0.1, right + 0.1);
        let marks = if xs.len() <= LABELLED_MAX { xs } else { log_ticks(low, high) };
        Axis::new(low, high, marks, log_number, figure.x.clone())
    } else {
        let marks = marks(left, right, 8);
        Axis::new(*marks.first()?, *marks.last()?, marks, axis_number, figure.x.clone())
    };
    let ys = || places.iter().filter_map(|(_, y)| *y);
    let high = ys().fold(0.0, f64::max);
    // A plot of zeros only still needs a range.
    let high = if high > 0.0 { high } else { 1.0 };
    let marks = marks(ys().fold(0.0, f64::min), high, 6);
    let top = *marks.last()?;
    // A line must leave the plot exactly at the limit of y.
    let top = figure.y_max.filter(|most| *most <= top && *most >= high).unwrap_or(top);
    let marks: Vec<f64> = marks.into_iter().filter(|mark| *mark <= top).collect();
    Some((x, Axis::new(*marks.first()?, top, marks, axis_number, figure.y.clone())))
}

/// Round values that enclose `low` to `high`; starts from zero unless both are far from it.
fn marks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let start = if low > 0.0 && (low < 0.6 * high || low == high) { 0.0 } else { low };
    let span = (high - start).max(high.abs() * 1e-3).max(1e-6);
    let steps = ticks(span, count);
    let step = steps.get(1).copied().unwrap_or(span);
    let first = (start / step).floor();
    let all = (0..=2 * count).map(|index| (first + index as f64) * step);
    let below = all.clone().take_while(|mark| *mark < high - 1e-9 * step).count();
    all.take(below.max(1) + 1).collect()
}

/// Draws a legend entry's key in the style of its shape.
fn key(root: &Area<'_>, index: usize, shape: &Shape) -> Result<(), DrawError> {
    let (x, y) = legend_place(LEGEND, index);
    match shape {
        Shape::Line { band, .. } => {
            if !band.is_empty() {
                let corners = [(x - 16, y - 7), (x + 16, y + 7)];
                root.draw(&Rectangle::new(corners, colour(index).mix(0.16).filled()))?;
            }
            let line = vec![(x - 16, y), (x + 16, y)];
            root.draw(&PathElement::new(line, colour(index).stroke_width(2)))?;
            marker(root, (x, y), index, false)
        }
        Shape::Printed { .. } => printed(root, (x, y)),
        Shape::Loads { of, .. } => {
            let line = colour(of.unwrap_or(index)).stroke_width(2);
            let dash = |from: i32| PathElement::new(vec![(x, from), (x, from + DASH.0)], line);
            root.draw(&dash(y - 8))?;
            root.draw(&dash(y - 8 + DASH.0 + DASH.1))
        }
    }
}

/// The marker of the paper's figures at a pixel: a hollow diamond.
fn printed(root: &Area<'_>, (x, y): (i32, i32)) -> Result<(), DrawError> {
    let corners = vec![(x, y - 8), (x + 8, y), (x, y + 8), (x - 8, y), (x, y - 8), (x + 8, y)];
    root.draw(&PathElement::new(corners, INK.stroke_width(2)))
}

const LEFT: i32 = 24;
const RIGHT: i32 = 640;
const TOP: i32 = 48;
const ROW: i32 = 52;

/// Draws the rows that have the first row's unit: a bar for ours, a hollow box for the paper's figure, and the difference. None
/// without rows.
pub fn bars(title: &str, rows: &[&Row]) -> Result<Option<String>, DrawError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let rows: Vec<&Row> = rows.iter().copied().filter(|row| row.unit == first.unit).collect();
    let length = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let ours = |row: &Row| length(row.ours.unwrap_or(0.0));
    let most =
        rows.iter().map(|row| ours(row).max(length(row.paper_range[1]))).fold(1e-9, f64::max);
    let marks = ticks(most, 6);
    let scale = f64::from(RIGHT - LEFT) / marks.last().copied().unwrap_or(most);
    let at = |value: f64| LEFT + (length(value) * scale).round() as i32;
    let bottom = TOP + ROW * rows.len() as i32 + 6;
    let below = bottom + 54;
    plot(title, bottom as u32 + 54 + legend_height(2), |root| {
        for mark in &marks {
            let x = at(*mark);
            root.draw(&PathElement::new(vec![(x, TOP), (x, bottom)], GRID))?;
            let label = text(13.0, INK, HPos::Center);
            root.draw(&Text::new(axis_number(*mark), (x, bottom + 14), label))?;
        }
        let axis =
            Text::new(first.unit.clone(), (LEFT, bottom + 36), text(13.0, MUTED, HPos::Left));
        root.draw(&axis)?;
        for (index, row) in rows.iter().enumerate() {
            let y = TOP + index as i32 * ROW;
            let name = Text::new(row.text.clone(), (LEFT + 2, y + 13), text(13.0, INK, HPos::Left));
            root.draw(&name)?;
            let bar = [(LEFT, y + 28), (at(ours(row)), y + 42)];
            if bar[0].0 < bar[1].0 {
                root.draw(&Rectangle::new(bar, colour(0).filled()))?;
            }
            // A single printed figure is a box, too: three pixels to either side.
            let [low, high] = row.paper_range.map(at);
            let (low, high) = if high - low < 6 { (low - 3, low + 3) } else { (low, high) };
            outline(root, (low, y + 24), (high, y + 46))?;
            let label = match row.ours {
                Some(ours) => format!("{} ({})", axis_number(ours), words::difference(row)),
                None => "not simulated".to_owned(),
            };
            let beside = high.max(bar[1].0) + 8;
            root.draw(&Text::new(label, (beside, y + 35), text(13.0, INK, HPos::Left)))?;
        }
        let (x, y) = legend_place((LEFT, below), 0);
        root.draw(&Rectangle::new([(x, y - 7), (x + 14, y + 7)], colour(0).filled()))?;
        root.draw(&Text::new("simulated", (x + 26, y), text(13.0, INK, HPos::Left)))?;
        let (x, y) = legend_place((LEFT, below), 1);
        outline(root, (x, y - 9), (x + 14, y + 9))?;
        let printed = "printed in the paper: a figure, or a range";
        root.draw(&Text::new(printed, (x + 26, y), text(13.0, INK, HPos::Left)))
    })
    .map(Some)
}

fn outline(
    root: &Area<'_>,
    (left, top): (i32, i32),
    (right, bottom): (i32, i32),
) -> Result<(), DrawError> {
    let corners =
        vec![(left, top), (right, top), (right, bottom), (left, bottom), (left, top), (right, top)];
    root.draw(&PathElement::new(corners, INK.stroke_width(2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::tests::{curves, row};

    fn draw(curves: Vec<Curve>, log_x: bool, y_max: Option<f64>) -> Option<String> {
        figure(&Figure { log_x, y_max, ..self::curves("fig4a", curves) }).unwrap()
    }

    #[test]
    fn extreme_points_are_plotted_without_panic() {
        let odd =
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e300, -5.0, 0.0, 1e-12, 7.0, 1e300];
        for log_x in [false, true] {
            for y_max in [None, Some(300.0)] {
                assert_eq!(draw(Vec::new(), log_x, y_max), None);
                assert_eq!(draw(vec![Curve::ours("none", Vec::new())], log_x, y_max), None);
                for x in odd {
                    for y in odd {
                        draw(vec![Curve::ours("ours", vec![[x, y]])], log_x, y_max);
                        let mut both = Curve::ours("ours", vec![[1.0, 2.0], [x, y], [3.0, 4.0]]);
                        both.band = vec![[1.0, 3.0], [y, x], [3.0, 5.0]];
                        let paper = Curve::paper("paper", vec![[x, y], [2.0, 0.0]]);
                        assert!(draw(vec![both, paper], log_x, y_max).is_some());
                    }
                }
            }
        }
    }

    #[test]
    fn curve_ends_where_it_leaves_the_plot_at_the_top() {
        let points = vec![[1.0, 10.0], [2.0, 100.0], [3.0, 500.0], [2.5, 50.0], [2.0, 60.0]];
        let figure = Figure { y_max: Some(300.0), ..curves("fig4a", Vec::new()) };
        let Shape::Line { dots, leaves, .. } = Shape::new(&figure, &Curve::ours("ours", points))
        else {
            panic!("ours is a line");
        };
        assert_eq!(dots, [(1.0, 10.0), (2.0, 100.0)]);
        assert_eq!(leaves, Some((2.5, 300.0)));
    }

    #[test]
    fn printed_load_has_the_colour_of_our_curve() {
        let ours = |name| Curve::ours(name, vec![[1.0, 10.0]]);
        let load = Curve::paper("Wave-16, paper's saturation", vec![[895.0, 0.0]]);
        let figure = curves("fig4a", vec![ours("Wave-15"), ours("Wave-16"), load]);
        let Shape::Loads { at, of } = Shape::new(&figure, &figure.curves[2]) else {
            panic!("a load is a vertical line");
        };
        assert_eq!((at, of), (vec![895.0], Some(1)));
    }

    #[test]
    fn bars_have_room_for_rows_without_our_figure() {
        let odd = [None, Some(f64::NAN), Some(-3.0), Some(0.0), Some(1e300)];
        let rows: Vec<Row> = odd.into_iter().map(|ours| row("table3", "ns", ours)).collect();
        let svg = bars("Table 3", &rows.iter().collect::<Vec<_>>()).unwrap().unwrap();
        assert!(svg.contains("not simulated"));
        assert_eq!(bars("nothing", &[]).unwrap(), None);
    }

    #[test]
    fn axis_marks_are_round_and_enclose_all_values() {
        assert_eq!(marks(258.0, 895.0, 8), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        let labels: Vec<String> = marks(2.0, 3.0, 8).into_iter().map(axis_number).collect();
        assert_eq!(labels, ["2", "2.2", "2.4", "2.6", "2.8", "3"]);
        assert_eq!(marks(-1.3, 11.2, 6), [-5.0, 0.0, 5.0, 10.0, 15.0]);
        assert_eq!(marks(0.0, 1.0, 6).first(), Some(&0.0));
    }
}
