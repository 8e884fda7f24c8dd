//! A picture of how hot memory was, over time and address.

use std::collections::BTreeMap;
use std::ops::Range;

use plotters::prelude::*;
use wave_memory::wire::Place;

use super::explain::BATCH_BYTES;
use wave_report::plot::chart::{Axis, chart};
use wave_report::plot::style::{
    DrawError, GRID, INK, axis_number, legend_place, plot, text, ticks,
};
use wave_scenario::size::show;

/// Maximum number of columns and rows of the picture.
const COLUMNS: usize = 160;
const ROWS: usize = 240;
const HEIGHT: u32 = 620;
/// Memory touched within this time is hot: SOL's longest period.
const HORIZON_US: f64 = 9_600_000.0;
/// Number of shades of warmth: the fewer, the longer the runs of one colour.
const SHADES: f64 = 24.0;
/// Colour of pages in the slow tier.
const AWAY: RGBColor = RGBColor(0xC6, 0xDB, 0xEF);

/// One scan's reading of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub seconds: f64,
    pub place: Place,
    pub lane: u32,
    /// Number of touched pages.
    pub touched: u32,
    /// Present pages of the batch.
    pub present: u32,
    pub pages: u32,
    /// Time since the bits were cleared, in microseconds; 0 if unknown.
    pub interval_us: u32,
}

/// All readings of a run.
#[derive(Debug, Default)]
pub struct Heat(Vec<Look>);

impl Heat {
    pub fn push(&mut self, look: Look) {
        self.0.push(look);
    }

    /// Keeps the readings of some places only.
    pub fn keep(&mut self, of: impl Fn(&Place) -> bool) {
        self.0.retain(|look| of(&look.place));
    }

    /// Draws time to the right and addresses upwards, without the gaps between managed ranges. Readings over another time than
    /// 9.6 s are scaled by their rate of touches.
    pub fn draw(&self) -> Result<String, DrawError> {
        let last = self.0.iter().map(|look| look.seconds).fold(1.0, f64::max);
        let batch = |look: &Look| {
            let Place { space, address } = look.place;
            (space, address / BATCH_BYTES + u64::from(look.lane))
        };
        let mut rows: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for look in &self.0 {
            rows.entry(batch(look)).or_default();
        }
        let count = rows.len().max(1);
        let per_row = count.div_ceil(ROWS);
        for (at, row) in rows.values_mut().enumerate() {
            *row = at / per_row;
        }
        let height = count.div_ceil(per_row);
        let mut cells = vec![Cell::default(); COLUMNS * height];
        let column =
            |seconds: f64| ((seconds.max(0.0) / last * COLUMNS as f64) as usize).min(COLUMNS - 1);
        // For each batch: the largest number of present pages, and its last reading.
        let mut seen: BTreeMap<(u32, u64), (u32, Cell)> = BTreeMap::new();
        let mut until: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for look in &self.0 {
            let key = batch(look);
            let (most, before) = seen.entry(key).or_default();
            *most = look.present.max(*most);
            let now = Cell::of(look, *most);
            // A reading covers the time since the bits were cleared; the reading at that time tells whether the batch was away.
            let away = if look.touched > 0 { now.away } else { before.away };
            let end = column(look.seconds);
            let begin = column(look.seconds - f64::from(look.interval_us) / 1e6).min(end);
            if look.interval_us > 0 {
                for column in begin..=end {
                    cells[rows[&key] * COLUMNS + column].add(&Cell { away, ..now });
                }
            }
            *before = now;
            until.insert(key, end);
        }
        // After its last reading, a batch keeps its last colour.
        for (key, (_, last)) in &seen {
            for column in until[key] + 1..COLUMNS {
                cells[rows[key] * COLUMNS + column].add(last);
            }
        }
        let bytes = count as u64 * BATCH_BYTES;
        let title = format!("Share of pages touched in 9.6 s, of {} managed", show(bytes));
        plot(&title, HEIGHT, |root| {
            let (upper, lower) = root.split_vertically(HEIGHT - 50);
            let x = Axis::new(0.0, last, ticks(last, 8), axis_number, "seconds");
            let per = per_row as f64 * BATCH_BYTES as f64 / f64::from(1 << 20);
            let top = height as f64 * per;
            let y = Axis::new(0.0, top, ticks(top, 6), axis_number, "MiB, by address");
            let mut chart = chart(&upper, x, y)?;
            let wide = last / COLUMNS as f64;
            let rows = cells.chunks(COLUMNS).enumerate();
            let runs =
                rows.flat_map(|(row, cells)| runs(cells).into_iter().map(move |run| (row, run)));
            chart.draw_series(runs.map(|(row, (columns, colour))| {
                let corner = |column: usize, row: usize| (column as f64 * wide, row as f64 * per);
                let corners = [corner(columns.start, row), corner(columns.end, row + 1)];
                Rectangle::new(corners, colour.filled())
            }))?;
            let entries = [(warm(0.0), "nothing"), (warm(0.5), "half"), (warm(1.0), "all of it")];
            let entries = entries.into_iter().chain([(AWAY, "in the slow tier")]);
            for (at, (colour, name)) in entries.enumerate() {
                let (x, y) = (legend_place((90, 4), 0).0 + at as i32 * 190, 18);
                let square = [(x, y - 7), (x + 14, y + 7)];
                lower.draw(&Rectangle::new(square, colour.filled()))?;
                lower.draw(&Rectangle::new(square, GRID.stroke_width(1)))?;
                let style = text(13.0, INK, plotters::style::text_anchor::HPos::Left);
                lower.draw(&Text::new(name, (x + 22, y), style))?;
            }
            Ok(())
        })
    }
}

/// Runs of neighbouring cells of one colour in a row. One rectangle per cell makes a file of 3 MB.
fn runs(row: &[Cell]) -> Vec<(Range<usize>, RGBColor)> {
    let mut runs: Vec<(Range<usize>, RGBColor)> = Vec::new();
    for (column, cell) in row.iter().enumerate() {
        let Some(colour) = cell.colour() else { continue };
        match runs.last_mut() {
            Some((columns, last)) if columns.end == column && *last == colour => columns.end += 1,
            _ => runs.push((column..column + 1, colour)),
        }
    }
    runs
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    warmth: f64,
    away: f64,
    looks: f64,
}

impl Cell {
    /// One reading of a batch that has had up to `most` pages: absent ones are in the slow tier.
    fn of(look: &Look, most: u32) -> Cell {
        let share = (f64::from(look.touched) / f64::from(look.pages)).min(0.999);
        let rate = -(1.0 - share).ln() / f64::from(look.interval_us.max(1));
        let away = 1.0 - f64::from(look.present) / f64::from(most.max(1));
        let away = if most == 0 { 0.0 } else { away };
        Cell { warmth: 1.0 - (-rate * HORIZON_US).exp(), away, looks: 1.0 }
    }

    fn add(&mut self, other: &Cell) {
        self.warmth += other.warmth;
        self.away += other.away;
        self.looks += other.looks;
    }

    fn colour(&self) -> Option<RGBColor> {
        if self.looks == 0.0 {
            return None;
        }
        let (warmth, away) = (self.warmth / self.looks, self.away / self.looks);
        Some(if away > 0.5 { AWAY } else { warm(warmth) })
    }
}

/// A colour between paper (0) and dark red (1).
fn warm(share: f64) -> RGBColor {
    const STOPS: [(f64, f64, f64); 4] =
        [(255.0, 247.0, 236.0), (253.0, 212.0, 158.0), (239.0, 101.0, 72.0), (127.0, 0.0, 0.0)];
    let share = (share.clamp(0.0, 1.0) * SHADES).round() / SHADES;
    let at = share * (STOPS.len() - 1) as f64;
    let low = (at as usize).min(STOPS.len() - 2);
    let part = at - low as f64;
    let mix = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    let ((r, g, b), (r1, g1, b1)) = (STOPS[low], STOPS[low + 1]);
    RGBColor(mix(r, r1), mix(g, g1), mix(b, b1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_colour_are_one_rectangle() {
        let cell = |warmth: f64, away: f64| Cell { warmth, away, looks: 1.0 };
        let none = Cell::default();
        let row = [
            cell(0.2, 0.0),
            cell(0.201, 0.0),
            cell(0.9, 0.0),
            none,
            cell(0.9, 0.0),
            cell(0.1, 1.0),
        ];
        let found: Vec<Range<usize>> = runs(&row).into_iter().map(|(columns, _)| columns).collect();
        assert_eq!(found, [0..2, 2..3, 4..5, 5..6]);
        assert_eq!(runs(&row)[3].1, AWAY);
    }
}
