//! The common look of plots: colours, type, markers, axes, legend.
//!
//! The colours of paper, ink and lines are constants that the report's style sheet finds in the SVG and replaces in
//! dark mode. Series are distinguished by colour (Okabe and Ito's, safe for the colour-blind) and by marker.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Error of drawing a plot.
pub type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// Width of a plot, in pixels.
pub const WIDTH: u32 = 880;

pub const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFE);
/// Colour of text and outlines.
pub const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
/// Colour of secondary text.
pub const MUTED: RGBColor = RGBColor(0x5B, 0x63, 0x6E);
pub const GRID: RGBColor = RGBColor(0xE4, 0xE7, 0xEB);

const SERIES: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0x8A, 0x6B, 0x3D),
    RGBColor(0x7F, 0x7F, 0x7F),
];

/// Height of one row of a legend.
const LEGEND_ROW: i32 = 24;

/// The colour of series `index`.
pub const fn colour(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

/// Type of `size` pixels, in `colour`, anchored at its middle height and at `horizontal`.
pub fn text(size: f64, colour: RGBColor, horizontal: HPos) -> TextStyle<'static> {
    // The SVG backend writes a font size of size / 1.24.
    TextStyle {
        font: ("sans-serif", size * 1.24).into_font(),
        color: colour.to_backend_color(),
        pos: Pos::new(horizontal, VPos::Center),
    }
}

/// Draws a plot of `height` with `title` by `draw`, which gets the area below the title.
pub fn plot(
    title: &str,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&PAPER)?;
        root.draw(&Text::new(title.to_owned(), (16, 22), text(16.0, INK, HPos::Left)))?;
        draw(&root)?;
        root.present()?;
    }
    Ok(svg)
}

/// Draws the marker of series `index` at a pixel; hollow for an invalid point.
pub fn marker(
    area: &Area<'_>,
    at: (i32, i32),
    index: usize,
    hollow: bool,
) -> Result<(), DrawError> {
    let (x, y) = at;
    // The ninth series has the first one's colour, and another marker.
    let outline = match (index + index / SERIES.len()) % 4 {
        0 => None,
        1 => Some(vec![(x - 5, y - 5), (x + 5, y - 5), (x + 5, y + 5), (x - 5, y + 5)]),
        2 => Some(vec![(x, y - 6), (x + 6, y + 5), (x - 6, y + 5)]),
        _ => Some(vec![(x, y - 7), (x + 7, y), (x, y + 7), (x - 7, y)]),
    };
    let fill = if hollow { PAPER } else { colour(index) };
    let line = colour(index).stroke_width(2);
    match outline {
        None => {
            area.draw(&Circle::new(at, 5, fill.filled()))?;
            area.draw(&Circle::new(at, 5, line))
        }
        Some(mut corners) => {
            area.draw(&Polygon::new(corners.clone(), fill.filled()))?;
            corners.push(corners[0]);
            area.draw(&PathElement::new(corners, line))
        }
    }
}

/// Symbol before an entry of a legend.
#[derive(Debug, Clone, Copy)]
pub enum Key {
    Curve,
    Patch,
}

/// Names for the legend. A curve equal to an earlier one names that one, since only the one drawn last is visible.
pub fn told_apart<C: PartialEq>(names: Vec<String>, curves: &[Vec<C>]) -> Vec<String> {
    let twin = |at: usize| {
        let curve = curves.get(at).filter(|curve| !curve.is_empty())?;
        curves[..at].iter().position(|other| other == curve)
    };
    let name = |(at, name): (usize, &String)| match twin(at) {
        Some(first) => format!("{name} (same curve as {})", names[first]),
        None => name.clone(),
    };
    names.iter().enumerate().map(name).collect()
}

pub fn legend_height(entries: usize) -> u32 {
    (entries.div_ceil(2) as u32) * LEGEND_ROW as u32 + 20
}

/// Position of the key of entry `index` of a legend in two columns; its text begins 26 pixels to the right.
pub fn legend_place((left, top): (i32, i32), index: usize) -> (i32, i32) {
    let (column, row) = ((index % 2) as i32, (index / 2) as i32);
    (left + column * 400, top + row * LEGEND_ROW + LEGEND_ROW / 2)
}

/// Draws a legend in two columns, from its `corner` down and to the right.
pub fn legend(
    area: &Area<'_>,
    corner: (i32, i32),
    key: Key,
    entries: &[String],
) -> Result<(), DrawError> {
    for (index, entry) in entries.iter().enumerate() {
        let (x, y) = legend_place(corner, index);
        match key {
            Key::Curve => {
                area.draw(&PathElement::new(
                    vec![(x - 16, y), (x + 16, y)],
                    colour(index).stroke_width(2),
                ))?;
                marker(area, (x, y), index, false)?;
            }
            Key::Patch => {
                area.draw(&Rectangle::new([(x, y - 7), (x + 14, y + 7)], colour(index).filled()))?
            }
        }
        area.draw(&Text::new(entry.clone(), (x + 26, y), text(13.0, INK, HPos::Left)))?;
    }
    Ok(())
}

/// Round values from 0 to at least `most`, about `count` of them.
pub fn ticks(most: f64, count: usize) -> Vec<f64> {
    let raw = (most / count as f64).max(f64::MIN_POSITIVE);
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * magnitude)
        .into_iter()
        .find(|step| *step >= raw);
    let step = step.unwrap_or(10.0 * magnitude);
    (0..).map(|index| f64::from(index) * step).take_while(|tick| *tick < most + step).collect()
}

/// Round values between two decimal logarithms, as logarithms: whole decades, and 2 and 5 between them if decades are few.
pub fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let factors: &[f64] = if high - low > 2.6 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let decades = (low.floor() as i32)..=(high.ceil() as i32);
    decades
        .flat_map(|decade| factors.iter().map(move |factor| f64::from(decade) + factor.log10()))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// A number on an axis: 0.5, 20, 1,000.
pub fn axis_number(number: f64) -> String {
    if number < 1000.0 {
        // Two significant digits below 1: ticks of a small figure differ.
        let decimals = match number.abs() {
            size if size > 0.0 && size < 1.0 => (1 - size.log10().floor() as i32).min(12) as usize,
            _ => 2,
        };
        let text = format!("{number:.decimals$}");
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number with this decimal logarithm, as text.
pub fn log_number(log: f64) -> String {
    axis_number(10f64.powf(log))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legend_of_a_curve_equal_to_an_earlier_one_names_that_one() {
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let curves = [vec![1, 2], vec![3], vec![1, 2], vec![]];
        let told = told_apart(names, &curves);
        assert_eq!(told, ["a", "b", "c (same curve as a)", "d"]);
    }
}
