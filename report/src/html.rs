//! The report: one self-contained page, light or dark.
//!
//! Every string goes through `maud`, which escapes it, except our own style sheet and the plots, whose texts the
//! plotting library escapes.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use wave_terminal::Table;

use super::model::{RunResult, VariantResult};
use super::number::short;
use super::plot::{Plots, bars};
use super::{compared, terminal};

/// The style sheet of every page.
const STYLE: &str = include_str!("style.css");

/// A whole, self-contained page with this title.
pub fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " - Wave" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                h1 { (title) }
                (body)
            } }
        }
    };
    page.into_string()
}

/// A table. A line break in a column's name becomes a space, a hyphen before it is removed, and a last "us" becomes "µs".
pub fn table(table: &Table) -> Markup {
    let name = |name: &str| {
        let line = name.replace("-\n", "").replace('\n', " ");
        line.strip_suffix(" us").map(|name| format!("{name} µs")).unwrap_or(line)
    };
    html! {
        div.scroll { table {
            thead { tr { @for (column, is_number) in table.columns() {
                th.n[is_number] { (name(column)) }
            } } }
            tbody { @for (at, row) in table.rows().iter().enumerate() {
                tr class=[table.class(at)] { @for ((_, is_number), cell) in table.columns().zip(row) {
                    td.n[is_number] { (cell) }
                } }
            } }
        } }
    }
}

pub fn page(result: &RunResult, plots: &Plots) -> String {
    let body = html! {
        p.lead { (result.description) }
        @if let Some(banner) = result.banner() { p.banner role="alert" { (banner) } }
        @if let Some(simulated) = result.simulated() { p { strong { (simulated) } } }
        @if let Some(conclusion) = super::conclusion::of(result) { p { strong { (conclusion) } } }
        (conditions(result))
        // This kind has no loads.
        @if result.kind != "chaos" {
            (paired(result, plots))
            @if result.ladder.is_none() { (section("Saturation", terminal::saturation(result))) }
            (section("Under one load", compared::table(result)))
            (throughput(result, plots))
            (account(result, plots))
        }
        (extra(result))
        (facts(&result.facts))
    };
    document(&result.scenario, &body)
}

fn conditions(result: &RunResult) -> Markup {
    let machine = &result.machine;
    html! {
        dl {
            dt { "Started" } dd { (result.started) }
            dt { "Host" } dd { (result.host) }
            dt { "Version" } dd { (result.version) ", seed " (result.seed) }
            dt { "Machine" } dd { (machine.model) ", " (machine.cpus) " CPUs, " (machine.kernel) }
            dt { "Seating" } dd { (result.seating) }
            @for variant in &result.variants { dt { (variant.name) } dd { (setup(variant)) } }
        }
    }
}

fn paired(result: &RunResult, plots: &Plots) -> Markup {
    let (notes, tables) = if let Some(paired) = &result.paired {
        let tables = vec![super::paired::latencies(result, paired), super::paired::orders(paired)];
        (super::paired::notes(paired).into(), tables)
    } else if let Some(ladder) = &result.ladder {
        (super::ladder::notes(ladder), vec![super::ladder::table(ladder)])
    } else {
        return html! {};
    };
    html! {
        section {
            h2 { "Paired rounds" }
            @for note in &notes { p { (note) } }
            @if let Some(svg) = &plots.ladder { (figure(svg)) }
            @for table in &tables { (self::table(table)) }
        }
    }
}

/// A section of a table under its notes; nothing if there is no table.
fn section(title: &str, table: Option<(Table, Vec<String>)>) -> Markup {
    let Some((table, notes)) = table else { return html! {} };
    html! {
        section {
            h2 { (title) }
            @for note in &notes { p { (note) } }
            (self::table(&table))
        }
    }
}

fn throughput(result: &RunResult, plots: &Plots) -> Markup {
    let (table, notes) = terminal::points(result);
    html! {
        section {
            h2 { "Latency and throughput" }
            p { "Latency counts from when a request was due, so a late generator or a full queue is part of it." }
            @if let Some(svg) = &plots.throughput { (figure(svg)) }
            @if let Some(svg) = &plots.classes { (figure(svg)) }
            @if let Some(plot) = &plots.percentiles {
                p { "Below, each variant at " (plot.load) ": the highest load that all of them served, in valid points." }
                (figure(&plot.svg))
            }
            @if let Some(svg) = &plots.percentiles_of_classes { (figure(svg)) }
            p {
                "Useful: share of the host cores' time spent in requests. Poll: share spent waiting for decisions. Agent: "
                "busy share of the agent's core."
            }
            @for note in &notes { p { (note) } }
            (self::table(&table))
        }
    }
}

/// Placement, link and policy, as text.
fn setup(variant: &VariantResult) -> String {
    let parts = [&variant.placement, &variant.policy, &variant.link].map(String::as_str);
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

fn account(result: &RunResult, plots: &Plots) -> Markup {
    let parts = bars::parts(result);
    if parts.is_empty() {
        return html! {};
    }
    let spent = |variant: &VariantResult, part: &str| {
        let part = variant.account.iter().filter(|(other, _)| other == part).map(|(_, ns)| *ns);
        part.reduce(|a, b| a + b).map_or_else(String::new, short)
    };
    let variants: Vec<&VariantResult> =
        result.variants.iter().filter(|variant| !variant.account.is_empty()).collect();
    let head = variants.iter().map(|variant| variant.account_name());
    let mut table = Table::new(1, std::iter::once("part".to_owned()).chain(head));
    for part in &parts {
        let cells = variants.iter().map(|variant| spent(variant, part));
        table.push(std::iter::once(part.to_string()).chain(cells));
    }
    let sums = variants.iter().map(|variant| short(variant.account.iter().map(|(_, ns)| ns).sum()));
    table.push_as("total", std::iter::once("together".to_owned()).chain(sums).collect());
    html! {
        section {
            h2 { "Where a request's time goes" }
            p { "Nanoseconds per request, part by part, of each variant at one load." }
            @if let Some(svg) = &plots.account { (figure(svg)) }
            (self::table(&table))
        }
    }
}

fn extra(result: &RunResult) -> Markup {
    let Some(extra) = result.extra.as_object().filter(|extra| !extra.is_empty()) else {
        return html! {};
    };
    let plain = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    };
    html! {
        section {
            h2 { "This kind of experiment" }
            dl { @for (name, value) in extra { dt { (name.replace('_', " ")) } dd.pre { (plain(value)) } } }
        }
    }
}

/// The section of facts, each with how it is known; nothing if there are none.
pub fn facts(facts: &[(String, String)]) -> Markup {
    if facts.is_empty() {
        return html! {};
    }
    let rows = facts.iter().map(|(what, how)| vec![what.clone(), how.clone()]);
    html! {
        section {
            h2 { "Fitted, measured, assumed" }
            (table(&Table::new(2, ["what", "how it is known"]).with(rows)))
        }
    }
}

/// A plot, with its SVG unescaped.
pub fn figure(svg: &str) -> Markup {
    html! { figure { (PreEscaped(svg)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_on_a_page_has_names_on_one_line_and_classes_of_rows() {
        let mut rows = Table::new(1, ["variant", "p99\nus", "slow-\ndowns"]);
        rows.push(["a <b>", "12", "1"]);
        rows.push_as("invalid", vec!["c".to_owned(), "(7)".to_owned()]);
        let page = table(&rows).into_string();
        assert!(
            page.contains("<th class=\"n\">p99 µs</th><th class=\"n\">slowdowns</th>"),
            "{page}"
        );
        assert!(page.contains(">a &lt;b&gt;</td><td class=\"n\">12</td>"), "{page}");
        assert!(page.contains("<tr class=\"invalid\"><td class=\"\">c</td>"), "{page}");
    }
}
