//! A sweep's results as a table, for a terminal and for the page.

use wave_workloads::point::SearchEnd;

use super::{Row, Sheet, figures};
use crate::number::{micros, short, thousands};
use crate::terminal::marked;
use wave_terminal::Table;

/// Maximum number of rows shown on a terminal; results.csv has all.
const ROWS_MAX: usize = 60;

/// A row per combination, for a terminal.
pub fn text(sheet: &Sheet<'_>) -> String {
    let notice = sheet.notice().map_or_else(String::new, |notice| format!("{notice}\n\n"));
    let p999 = p999(sheet);
    let mut table = match sheet.is_of_runs() {
        true => figures::table(sheet),
        false => table(sheet).without(&[&p999, "note"]),
    }
    .without(&["point"]);
    let more = match table.truncate(ROWS_MAX) {
        0 => String::new(),
        more => format!("\nand {more} more rows in results.csv"),
    };
    let selection = sheet.is_of_runs().then(|| figures::selection(sheet)).flatten();
    format!(
        "{notice}{table}{more}{}",
        selection.map_or_else(String::new, |told| format!("\n{told}"))
    )
}

/// The name of the last percentile's column.
fn p999(sheet: &Sheet<'_>) -> String {
    format!("{} p99.9\nus", sheet.headline())
}

/// A row per combination. Latencies of an invalid point are in brackets, and a search that ended without a saturation says how.
pub(super) fn table(sheet: &Sheet<'_>) -> Table {
    let mut head: Vec<String> = sheet.axes.iter().map(|axis| axis.name.clone()).collect();
    head.extend(
        ["variant", "saturation\nk/s", "offered\nk/s", "achieved\nk/s", "served\n%"]
            .map(str::to_owned),
    );
    head.extend(["p50", "p99"].map(|percentile| format!("{} {percentile}\nus", sheet.headline())));
    head.extend([p999(sheet), "note".to_owned(), "point".to_owned()]);
    let mut table = Table::new(sheet.axes.len() + 1, head).with_text_in(&["note", "point"]);
    for row in &sheet.rows {
        match row.valid() {
            true => table.push(cells(sheet, row)),
            false => table.push_as("invalid", cells(sheet, row)),
        }
    }
    let is_searched = sheet.rows.iter().any(|row| row.search.is_some());
    if is_searched { table } else { table.without(&["saturation\nk/s"]) }
}

fn cells(sheet: &Sheet<'_>, row: &Row<'_>) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut cells: Vec<String> =
        sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone()).collect();
    cells.push(row.variant().to_owned());
    let saturation = row.search.map(|search| {
        let rate = search.saturation_per_second;
        rate.map_or_else(|| end(search.end).replace('-', " "), thousands)
    });
    cells.push(or_dash(saturation));
    let point = row.point;
    cells.push(or_dash(point.map(|point| thousands(point.offered_per_second))));
    cells.push(or_dash(point.map(|point| thousands(point.achieved_per_second))));
    cells.push(or_dash(point.map(|point| short(point.served() * 100.0))));
    let latency = row.headline().map(|class| class.latency);
    for time in [
        latency.map(|latency| latency.p50_ns),
        latency.map(|latency| latency.p99_ns),
        latency.map(|latency| latency.p999_ns),
    ] {
        cells.push(or_dash(time.map(|ns| marked(micros(ns), row.valid()))));
    }
    let invalid = point.filter(|_| !row.valid());
    let why = invalid.map(|point| point.generator.why_invalid.as_deref().unwrap_or("invalid"));
    cells.extend([why.unwrap_or_default().to_owned(), row.id.to_owned()]);
    cells
}

/// The end of a search, named as in JSON.
pub(super) fn end(end: SearchEnd) -> String {
    let text = serde_json::to_value(end).ok();
    text.as_ref().and_then(|text| text.as_str()).unwrap_or_default().to_owned()
}
