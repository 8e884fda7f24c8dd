//! The page: conditions, plots, table.

use maud::{Markup, html};

use super::{Row, Sheet, figures, plot, table};
use crate::html::{document, figure};
use crate::number::{micros, short, thousands};
use crate::save::ReportError;

/// The whole page, self-contained, light or dark.
pub fn page(sheet: &Sheet<'_>) -> Result<String, ReportError> {
    let plots = plot::all(sheet)?;
    let body = html! {
        @if let Some(notice) = sheet.notice() { p { strong { (notice) } } }
        p.lead { (sheet.description) }
        (conditions(sheet))
        @for (axis, plots) in &plots { section {
            h2 { "Against " (axis) }
            p {
                "A line joins points that differ in " (axis) " only. Colour and marker distinguish lines, up to "
                (plot::CURVES_MAX) " of them; with more lines, variants only. "
                "Values stand at equal distances, in the scenario's order."
            }
            @for svg in plots { (figure(svg)) }
        } }
        (rows(sheet))
    };
    Ok(document(sheet.scenario, &body))
}

fn conditions(sheet: &Sheet<'_>) -> Markup {
    html! {
        dl {
            dt { "Version" } dd { (sheet.version) }
            dt { "Points" } dd { (sheet.points) }
            @for axis in &sheet.axes { dt { (axis.name) } dd { (axis.values.join(", ")) } }
        }
    }
}

fn rows(sheet: &Sheet<'_>) -> Markup {
    if sheet.is_of_runs() {
        return figures::rows(sheet);
    }
    let searched = sheet.rows.iter().any(|row| row.search.is_some());
    html! {
        section {
            h2 { "Every point" }
            p {
                "Latencies are those of " (sheet.headline()) ". All numbers are in results.csv, whole distributions in "
                "results.json."
                @if searched {
                    " Where the saturation was searched for, a row shows the point there."
                }
            }
            div.scroll { table {
                thead { tr {
                    @for axis in &sheet.axes { th { (axis.name) } }
                    th { "variant" }
                    @if searched { th.n { "saturation k/s" } }
                    th.n { "offered k/s" } th.n { "achieved k/s" } th.n { "served %" }
                    th.n { "p50 µs" } th.n { "p99 µs" } th.n { "p99.9 µs" }
                    th { "note" } th { "point" }
                } }
                tbody { @for each in &sheet.rows { (row(sheet, each, searched)) } }
            } }
        }
    }
}

fn row(sheet: &Sheet<'_>, row: &Row<'_>, searched: bool) -> Markup {
    let point = row.point;
    let latency = row.headline().map(|class| class.latency);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let note = match (point, row.search) {
        (None, Some(search)) => table::end(search.end).replace('-', " "),
        (Some(point), _) if !point.generator.valid => {
            point.generator.why_invalid.clone().unwrap_or_else(|| "invalid".to_owned())
        }
        _ => String::new(),
    };
    html! {
        tr.invalid[!row.valid()] {
            @for (axis, at) in sheet.axes.iter().zip(row.at) { td { (axis.values[*at]) } }
            td { (row.variant()) }
            @if searched {
                td.n { (or_dash(row.search.and_then(|search| search.saturation_per_second).map(thousands))) }
            }
            td.n { (or_dash(point.map(|point| thousands(point.offered_per_second)))) }
            td.n { (or_dash(point.map(|point| thousands(point.achieved_per_second)))) }
            td.n { (or_dash(point.map(|point| short(point.served() * 100.0)))) }
            td.n { (or_dash(latency.map(|latency| micros(latency.p50_ns)))) }
            td.n { (or_dash(latency.map(|latency| micros(latency.p99_ns)))) }
            td.n { (or_dash(latency.map(|latency| micros(latency.p999_ns)))) }
            td { (note) }
            td { (row.id) }
        }
    }
}
