//! A picture of how hot memory was, over time and address.

use std::collections::BTreeMap;

use plotters::prelude::*;
use wave_memory::wire::Place;

use super::explain::BATCH_BYTES;
use super::size::show;
use wave_report::plot::chart::{Axis, chart};
use wave_report::plot::style::{
    DrawError, GRID, INK, axis_number, legend_place, plot, text, ticks,
};

/// Maximum number of columns and rows of the picture.
const COLUMNS: usize = 160;
const ROWS: usize = 240;
const HEIGHT: u32 = 620;
/// Memory touched within this time is hot: SOL's longest period.
const HORIZON_US: f64 = 9_600_000.0;
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
            let seen = cells.iter().enumerate().filter_map(|(at, cell)| Some((at, cell.colour()?)));
            chart.draw_series(seen.map(|(at, colour)| {
                let (row, column) = (at / COLUMNS, at % COLUMNS);
                let corner = |right: usize, up: usize| {
                    ((column + right) as f64 * wide, (row + up) as f64 * per)
                };
                Rectangle::new([corner(0, 0), corner(1, 1)], colour.filled())
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
    let at = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let low = (at as usize).min(STOPS.len() - 2);
    let part = at - low as f64;
    let mix = |from: f64, to: f64| (from + (to - from) * part).round() as u8;
    let ((r, g, b), (r1, g1, b1)) = (STOPS[low], STOPS[low + 1]);
    RGBColor(mix(r, r1), mix(g, g1), mix(b, b1))
}
