//! Paired rounds as tables, for the terminal and for the page.

use super::model::{Paired, PairedOrder, Point, RunResult};
use super::number::{micros, thousands};

/// A table as text: heads, which may have two lines, and rows.
#[derive(Debug)]
pub struct Table {
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// A row per variant and load: its p99 over rounds, and the latencies of all samples.
pub fn latencies(result: &RunResult, paired: &Paired) -> Table {
    let head = vec![
        "variant",
        "offered\nk/s",
        "quiet\np99 us",
        "median\np99 us",
        "all\np50 us",
        "all\np99 us",
        "all\np99.9 us",
        "worst p99 us\n(at second)",
    ];
    let mut rows = Vec::new();
    for row in &paired.rows {
        let variant = result.variants.iter().find(|variant| variant.name == row.name);
        let point =
            |load: f64| variant?.points.iter().find(|point| point.offered_per_second == load);
        let mut name = row.name.clone();
        for load in &row.loads {
            let all = |of: fn(&super::model::Latency) -> u64| {
                let latency =
                    point(load.offered_per_second).and_then(|point| of_class(point, &paired.class));
                latency.map_or_else(|| "-".to_owned(), |latency| micros(of(&latency)))
            };
            rows.push(vec![
                std::mem::take(&mut name),
                thousands(load.offered_per_second),
                micros(load.quiet_p99_ns as u64),
                micros(load.median_p99_ns as u64),
                all(|latency| latency.p50_ns),
                all(|latency| latency.p99_ns),
                all(|latency| latency.p999_ns),
                format!("{} ({:.1})", micros(load.worst_p99_ns as u64), load.worst_at_s),
            ]);
        }
    }
    Table { head, rows }
}

fn of_class(point: &Point, class: &str) -> Option<super::model::Latency> {
    point.classes.iter().find(|of| of.name == class).map(|of| of.latency)
}

/// A row per pair of neighbouring variants and load: the ratio of their p99, and the order that can be claimed.
pub fn orders(paired: &Paired) -> Table {
    let head = vec![
        "p99 of",
        "divided by that of",
        "offered k/s",
        "ratio within a round",
        "95% interval",
        "of all samples",
        "more slow samples",
        "order",
    ];
    let row = |order: &PairedOrder| {
        vec![
            order.first.clone(),
            order.second.clone(),
            thousands(order.offered_per_second),
            format!("{:.2}", order.ratio),
            format!("{:.2} to {:.2}", order.low, order.high),
            format!("{:.2}", order.pooled_ratio),
            format!(
                "{:+.2}% ({:+.2} to {:+.2})",
                order.more_slow * 1e2,
                order.more_slow_low * 1e2,
                order.more_slow_high * 1e2
            ),
            order.claimed.clone().unwrap_or_else(|| "none claimed".to_owned()),
        ]
    };
    Table { head, rows: paired.orders.iter().map(row).collect() }
}

/// How the figures are to be read, in a few lines.
pub fn notes(paired: &Paired) -> [String; 3] {
    let claimed = paired.orders.iter().filter(|order| order.claimed.is_some()).count();
    [
        format!(
            "quiet: the lower quartile of {} rounds. In each round every variant ran each load once, in random order. all: every \
             sample; none was left out.",
            paired.rounds
        ),
        format!(
            "Claimed of neighbouring variants: {claimed} of {} orders. An order is claimed where the 95% interval of the ratio within \
             a round excludes 1, and \"equal\" where it lies within 0.87 and 1.15; nothing where the slow samples (above the p99 of both) \
             speak against it.",
            paired.orders.len()
        ),
        format!(
            "The sentence compares with \"{}\", at the lowest p99 that any variant has at its highest load in quiet rounds; loads \
             between those of the run are interpolated.",
            paired.reference
        ),
    ]
}
