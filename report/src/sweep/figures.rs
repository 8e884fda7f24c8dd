//! Rows that are whole experiments: the figures in which they differ.

use super::{Row, Sheet};
use crate::number::short;
use wave_terminal::Table;

/// Figures that tables and plots show; results.csv has all.
const SHOWN_MAX: usize = 8;

/// Last parts of the paths of figures that come first, also if they are the same in all rows.
const FIRST: [&str; 7] = [
    "resident_reduction",
    "net_reduction",
    "refaults_per_second",
    "saturation_per_second",
    "requests_lost",
    "p99_ns",
    "daemon_core_share",
];

/// Paths of all figures, in the order of the first row that has them.
fn paths<'a>(sheet: &'a Sheet<'_>) -> Vec<&'a str> {
    let mut paths: Vec<&str> = Vec::new();
    let mut known = std::collections::HashSet::new();
    for (path, _) in sheet.rows.iter().flat_map(|row| row.figures) {
        if known.insert(path.as_str()) {
            paths.push(path);
        }
    }
    paths
}

/// Paths of the figures that are shown, and the number of all: the [`FIRST`], then those in which rows differ. A figure that equals an
/// axis or an earlier figure in all rows is left out.
pub(super) fn shown<'a>(sheet: &'a Sheet<'_>) -> (Vec<&'a str>, usize) {
    let paths = paths(sheet);
    let column = |path: &str| -> Vec<Option<u64>> {
        sheet.rows.iter().map(|row| row.figure(path).map(f64::to_bits)).collect()
    };
    let axis = |(at, axis): (usize, &super::Axis)| -> Vec<Option<u64>> {
        let value = |row: &Row<'_>| axis.values[row.at[at]].parse().ok().map(f64::to_bits);
        sheet.rows.iter().map(value).collect()
    };
    let mut known: Vec<Vec<Option<u64>>> = sheet.axes.iter().enumerate().map(axis).collect();
    let last = |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned();
    let rank = |path: &str| FIRST.iter().position(|first| *first == last(path));
    let mut ranked: Vec<(usize, &str)> = Vec::new();
    for path in &paths {
        let column = column(path);
        let differs = sheet.rows.len() == 1 || column.iter().any(|value| *value != column[0]);
        match rank(path) {
            Some(rank) => ranked.push((rank, *path)),
            None if differs => ranked.push((FIRST.len(), *path)),
            None => {}
        }
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    let mut shown = Vec::new();
    for (_, path) in ranked {
        let column = column(path);
        if shown.len() < SHOWN_MAX && !known.contains(&column) {
            known.push(column);
            shown.push(path);
        }
    }
    (shown, paths.len())
}

/// Says which figures a table has, if it has not all.
pub(super) fn selection(sheet: &Sheet<'_>) -> Option<String> {
    let (shown, count) = shown(sheet);
    (count > shown.len())
        .then(|| format!("{} of {count} figures; results.csv has all.", shown.len()))
}

/// Three significant digits at least, also of a small figure.
fn digits(number: f64) -> String {
    match number.abs() {
        size if size > 0.0 && size < 1.0 => {
            let decimals = (2 - size.log10().floor() as i32).min(12) as usize;
            format!("{number:.decimals$}")
        }
        _ => short(number),
    }
}

/// A row per combination: the axes, the shown figures, and the point's id.
pub(super) fn table(sheet: &Sheet<'_>) -> Table {
    let (shown, _) = shown(sheet);
    let axes = sheet.axes.iter().map(|axis| axis.name.clone());
    // A path may be long: its parts stand below each other.
    let paths = shown.iter().map(|path| path.replace("].", "]\n"));
    let cell = |row: &Row<'_>, path| row.figure(path).map_or_else(|| "-".to_owned(), digits);
    let cells = |row: &Row<'_>| {
        let values = sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone());
        let figures = shown.iter().map(|path| cell(row, path));
        values.chain(figures).chain([row.id.to_owned()]).collect()
    };
    let head = axes.chain(paths).chain(["point".to_owned()]);
    Table::new(sheet.axes.len(), head).with_text_in(&["point"]).with(sheet.rows.iter().map(cells))
}

/// A header and a row per combination: id, the axes by their paths, then all figures, empty where a row has none.
pub(super) fn csv(sheet: &Sheet<'_>) -> Vec<u8> {
    let paths = paths(sheet);
    let axes = sheet.axes.iter().map(|axis| axis.name.as_str());
    let row = |row: &Row<'_>| {
        let values = sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone());
        let figure = |path: &&str| row.figure(path).map_or_else(String::new, |n| n.to_string());
        let cells = std::iter::once(row.id.to_owned()).chain(values);
        cells.chain(paths.iter().map(figure)).collect::<Vec<_>>()
    };
    let head = std::iter::once("id").chain(axes).chain(paths.iter().copied());
    crate::csv(head, sheet.rows.iter().map(row))
}
