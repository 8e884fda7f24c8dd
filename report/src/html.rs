//! The report: one self-contained page, light or dark.
//!
//! Every string goes through `maud`, which escapes it, except our own style sheet and the plots, whose texts the
//! plotting library escapes.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::model::{Latency, Point, RunResult, VariantResult};
use super::number::{difference, micros, short, thousands};
use super::plot::{Plots, bars};
use super::table::Table;
use super::terminal::{
    at_limit, definition, has_saturations, limits, lower_bounds, saturation_cell,
};

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
            (saturation(result))
            (compared(result))
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
            @for table in &tables { (table.html()) }
        }
    }
}

fn saturation(result: &RunResult) -> Markup {
    if !has_saturations(result) || result.ladder.is_some() {
        return html! {};
    }
    let limits = limits(result);
    let reference = result.variants.first().and_then(|variant| variant.saturation_per_second);
    html! {
        section {
            h2 { "Saturation" }
            p { "Saturation is " (definition(result)) " The columns to the right show how it changes with that limit." }
            div.scroll { table {
                thead { tr {
                    th { "variant" } th.n { "workers" } th.n { "saturation k/s" } th.n { "vs first" }
                    @for limit in &limits { th.n { "at " (limit) " µs" } }
                } }
                tbody { @for (index, variant) in result.variants.iter().enumerate() { tr {
                    td { (variant.name) }
                    td.n { (variant.workers) }
                    td.n { (saturation_cell(variant.saturation_per_second, variant.not_measurable.as_deref())) }
                    td.n { @if let (true, Some(rate), Some(reference)) = (index > 0, variant.saturation_per_second, reference) {
                        (difference(rate, reference))
                    } }
                    @for limit in &limits {
                        td.n { (at_limit(variant, *limit)) }
                    }
                } } }
            } }
            @if let Some(sentence) = lower_bounds(result) { p { (sentence) } }
            @for variant in &result.variants {
                @if let Some(why) = &variant.not_measurable {
                    p { "Not measurable: " (variant.name) ": " (why) }
                }
            }
        }
    }
}

fn compared(result: &RunResult) -> Markup {
    let Some((table, notes)) = super::compared::table(result) else { return html! {} };
    html! {
        section {
            h2 { "Under one load" }
            @for note in &notes { p { (note) } }
            (table.html())
        }
    }
}

fn throughput(result: &RunResult, plots: &Plots) -> Markup {
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
            div.scroll { table {
                thead { tr {
                    th.n { "offered k/s" } th.n { "achieved k/s" } th { "class" }
                    th.n { "p50 µs" } th.n { "p99 µs" } th.n { "p99.9 µs" } th.n { "max µs" }
                    th.n title="host cores, running requests" { "useful %" }
                    th.n title="host cores, looking for decisions" { "poll %" }
                    th.n title="the agent's core" { "agent %" }
                    th { "note" }
                } }
                @for variant in result.variants.iter().filter(|variant| !variant.points.is_empty()) {
                    tbody {
                        tr { th.group colspan="11" { (variant.name) span { (setup(variant)) } } }
                        @for point in &variant.points { (rows(point)) }
                    }
                }
            } }
        }
    }
}

/// Placement, link, policy and number of workers, as text.
fn setup(variant: &VariantResult) -> String {
    let workers =
        format!("{} worker{}", variant.workers, if variant.workers == 1 { "" } else { "s" });
    let parts = [variant.placement.clone(), variant.policy.clone(), variant.link.clone(), workers];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Rows of the point: one per class, or a single one if it has no class.
fn rows(point: &Point) -> Markup {
    let classes = point.classes.iter().map(|class| (class.name.as_str(), class.latency));
    let classes =
        if point.classes.is_empty() { vec![("", Latency::default())] } else { classes.collect() };
    let known = |latency: &Latency, ns| {
        if latency.count > 0 { micros(ns) } else { "-".to_owned() }
    };
    html! { @for (index, (class, latency)) in classes.iter().enumerate() {
        tr.invalid[!point.generator.valid] {
            td.n { @if index == 0 { (thousands(point.offered_per_second)) } }
            td.n { @if index == 0 { (thousands(point.achieved_per_second)) } }
            td { (class) }
            td.n { (known(latency, latency.p50_ns)) }
            td.n { (known(latency, latency.p99_ns)) }
            td.n { (known(latency, latency.p999_ns)) }
            td.n { (known(latency, latency.max_ns)) }
            td.n { @if index == 0 { (short(point.cpu.host_useful_percent)) } }
            td.n { @if index == 0 { (short(point.cpu.host_poll_percent)) } }
            td.n { @if index == 0 { (short(point.cpu.agent_percent)) } }
            td { @if index == 0 { (point.note()) } }
        }
    } }
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
    html! {
        section {
            h2 { "Where a request's time goes" }
            p { "Nanoseconds per request, part by part, of each variant at one load." }
            @if let Some(svg) = &plots.account { (figure(svg)) }
            div.scroll { table {
                thead { tr { th { "part" } @for variant in &variants { th.n { (variant.account_name()) } } } }
                tbody {
                    @for part in &parts { tr {
                        td { (part) }
                        @for variant in &variants { td.n { (spent(variant, part)) } }
                    } }
                    tr.total {
                        td { "together" }
                        @for variant in &variants {
                            td.n { (short(variant.account.iter().map(|(_, ns)| ns).sum())) }
                        }
                    }
                }
            } }
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
            (Table::new(2, ["what", "how it is known"]).with(rows).html())
        }
    }
}

/// A plot, with its SVG unescaped.
pub fn figure(svg: &str) -> Markup {
    html! { figure { (PreEscaped(svg)) } }
}
