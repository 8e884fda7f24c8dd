//! Rows that are whole experiments: the figures in which they differ.

use maud::{Markup, html};

use super::{Row, Sheet};
use crate::number::short;
use crate::save::ReportError;

/// Figures that tables and plots show; results.csv has all.
const SHOWN_MAX: usize = 6;

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

/// Paths of the first figures in which rows differ, and the number of such figures.
pub(super) fn shown<'a>(sheet: &'a Sheet<'_>) -> (Vec<&'a str>, usize) {
    let first = |path: &str| sheet.rows.first().and_then(|row| row.figure(path));
    let differs = |path: &&str| sheet.rows.iter().any(|row| row.figure(path) != first(path));
    let mut differing: Vec<&str> = paths(sheet).into_iter().filter(differs).collect();
    let count = differing.len();
    differing.truncate(SHOWN_MAX);
    (differing, count)
}

/// Header and cells: the axes, then the shown figures.
pub(super) fn table(sheet: &Sheet<'_>) -> (Vec<String>, Vec<Vec<String>>) {
    let (shown, _) = shown(sheet);
    let axes = sheet.axes.iter().map(|axis| axis.name.clone());
    // A path may be long: its parts stand below each other.
    let paths = shown.iter().map(|path| path.replace("].", "]\n"));
    let cell = |row: &Row<'_>, path| row.figure(path).map_or_else(|| "-".to_owned(), short);
    let cells = |row: &Row<'_>| {
        let values = sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone());
        values.chain(shown.iter().map(|path| cell(row, path))).collect()
    };
    (axes.chain(paths).collect(), sheet.rows.iter().map(cells).collect())
}

/// A header and a row per combination: id, the axes by their paths, then all figures, empty where a row has none.
pub(super) fn csv(sheet: &Sheet<'_>) -> Result<Vec<u8>, ReportError> {
    let paths = paths(sheet);
    let axes = sheet.axes.iter().map(|axis| axis.name.as_str());
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(std::iter::once("id").chain(axes).chain(paths.iter().copied()))?;
    for row in &sheet.rows {
        let values = sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone());
        let figure = |path: &&str| row.figure(path).map_or_else(String::new, |n| n.to_string());
        let record = std::iter::once(row.id.to_owned()).chain(values);
        writer.write_record(record.chain(paths.iter().map(figure)))?;
    }
    writer.into_inner().map_err(|error| csv::Error::from(error.into_error()).into())
}

/// The table of the page.
pub(super) fn rows(sheet: &Sheet<'_>) -> Markup {
    let ((head, rows), (shown, count)) = (table(sheet), shown(sheet));
    html! {
        section {
            h2 { "Every combination" }
            p {
                @if count > shown.len() { "The first " (shown.len()) " of " (count) " figures in which rows differ. " }
                "All figures are in results.csv, the whole results in results.json."
            }
            div.scroll { table {
                thead { tr { @for name in &head { th { (name) } } th { "point" } } }
                tbody { @for (cells, row) in rows.iter().zip(&sheet.rows) { tr {
                    @for (at, cell) in cells.iter().enumerate() { td.n[at >= sheet.axes.len()] { (cell) } }
                    td { (row.id) }
                } } }
            } }
        }
    }
}
