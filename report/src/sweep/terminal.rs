//! A sweep's results as a table for a terminal.

use super::{Row, Sheet, figures, table};
use crate::Table;
use crate::number::{micros, short, thousands};
use crate::terminal::marked;

/// Maximum number of rows shown; results.csv has all.
const ROWS_MAX: usize = 60;

/// A row per combination. Latencies of an invalid point are in brackets.
pub fn text(sheet: &Sheet<'_>) -> String {
    let notice = sheet.notice().map(|notice| format!("{notice}\n\n"));
    notice.unwrap_or_default() + &table_of(sheet)
}

fn table_of(sheet: &Sheet<'_>) -> String {
    if sheet.is_of_runs() {
        let selection = figures::selection(sheet).map(|told| format!("\n{told}"));
        return drawn(figures::table(sheet)) + &selection.unwrap_or_default();
    }
    let searched = sheet.rows.iter().any(|row| row.search.is_some());
    let mut head: Vec<String> = sheet.axes.iter().map(|axis| axis.name.clone()).collect();
    head.push("variant".to_owned());
    let names = head.len();
    if searched {
        head.push("saturation\nk/s".to_owned());
    }
    let class = sheet.headline();
    head.extend(["offered\nk/s", "achieved\nk/s", "served\n%"].map(str::to_owned));
    head.extend(["p50", "p99"].map(|percentile| format!("{class} {percentile}\nus")));
    drawn(Table::new(names, head).with(sheet.rows.iter().map(|row| cells(sheet, row, searched))))
}

/// The table, but for the rows beyond [`ROWS_MAX`].
fn drawn(mut table: Table) -> String {
    match table.truncate(ROWS_MAX) {
        0 => table.to_string(),
        more => format!("{table}\nand {more} more rows in results.csv"),
    }
}

fn cells(sheet: &Sheet<'_>, row: &Row<'_>, searched: bool) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut cells: Vec<String> =
        sheet.axes.iter().zip(row.at).map(|(axis, at)| axis.values[*at].clone()).collect();
    cells.push(row.variant().to_owned());
    if let Some(search) = row.search {
        cells.push(
            search
                .saturation_per_second
                .map_or_else(|| table::end(search.end).replace('-', " "), thousands),
        );
    } else if searched {
        cells.push("-".to_owned());
    }
    let point = row.point;
    cells.push(or_dash(point.map(|point| thousands(point.offered_per_second))));
    cells.push(or_dash(point.map(|point| thousands(point.achieved_per_second))));
    cells.push(or_dash(point.map(|point| short(point.served() * 100.0))));
    let latency = row.headline().map(|class| class.latency);
    let time = |ns: Option<u64>| or_dash(ns.map(|ns| marked(micros(ns), row.valid())));
    cells.push(time(latency.map(|latency| latency.p50_ns)));
    cells.push(time(latency.map(|latency| latency.p99_ns)));
    cells
}
