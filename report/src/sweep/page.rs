//! The page: conditions, plots, table.

use maud::{Markup, html};

use super::{Sheet, figures, plot, table};
use crate::html::{document, figure};
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
    let is_searched = sheet.rows.iter().any(|row| row.search.is_some());
    html! {
        section { @if sheet.is_of_runs() {
            h2 { "Every combination" }
            p {
                @if let Some(selection) = figures::selection(sheet) { (selection) " " }
                "The whole results are in results.json, and each run's report in runs/."
            }
            (crate::table(&figures::table(sheet)))
        } @else {
            h2 { "Every point" }
            p {
                "Latencies are those of " (sheet.headline()) ", in brackets if the point is invalid. All numbers are in "
                "results.csv, whole distributions in results.json."
                @if is_searched {
                    " Where the saturation was searched for, a row shows the point there."
                }
            }
            (crate::table(&table::table(sheet)))
        } }
    }
}
