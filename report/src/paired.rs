//! Paired rounds as tables, for the terminal and for the page.

use wave_workloads::recorder::Latency;

use super::model::{Paired, PairedOrder, Point, RunResult};
use super::number::{micros, thousands};
use wave_terminal::Table;

/// A row per variant, load and class: its p99 over rounds, which are those of one class, and the latencies of all samples.
pub fn latencies(result: &RunResult, paired: &Paired) -> Table {
    let mut classes = result.classes();
    classes.retain(|class| *class != paired.class);
    let mut head = vec![
        "variant",
        "offered\nk/s",
        "quiet\np99 us",
        "median\np99 us",
        "all\np50 us",
        "all\np99 us",
        "all\np99.9 us",
        "worst\np99 us",
        "at\ns",
    ];
    if !classes.is_empty() {
        head.insert(2, "class");
    }
    let mut rows = Vec::new();
    for row in &paired.rows {
        let variant = result.variants.iter().find(|variant| variant.name == row.name);
        let point =
            |load: f64| variant?.points.iter().find(|point| point.offered_per_second == load);
        let mut name = row.name.clone();
        for load in &row.loads {
            let all = |class: &str| {
                let point = point(load.offered_per_second);
                let latency = point.and_then(|point| of_class(point, class));
                let known = |of: fn(&Latency) -> u64| {
                    latency.map_or_else(|| "-".to_owned(), |latency| micros(of(&latency)))
                };
                [
                    known(|latency| latency.p50_ns),
                    known(|latency| latency.p99_ns),
                    known(|latency| latency.p999_ns),
                ]
            };
            let mut cells = vec![std::mem::take(&mut name), thousands(load.offered_per_second)];
            if !classes.is_empty() {
                cells.push(paired.class.clone());
            }
            cells.push(micros(load.quiet_p99_ns as u64));
            cells.push(micros(load.median_p99_ns as u64));
            cells.extend(all(&paired.class));
            cells.push(micros(load.worst_p99_ns as u64));
            cells.push(format!("{:.0}", load.worst_at_s));
            rows.push(cells);
            for class in &classes {
                let [none, dash] = [String::new(), "-".to_owned()];
                let mut cells = vec![none.clone(), none, (*class).to_owned()];
                cells.extend([dash.clone(), dash.clone()]);
                cells.extend(all(class));
                cells.extend([dash.clone(), dash]);
                rows.push(cells);
            }
        }
    }
    Table::new(1, head).with(rows)
}

fn of_class(point: &Point, class: &str) -> Option<Latency> {
    point.classes.iter().find(|of| of.name == class).map(|of| of.latency)
}

/// A row per pair of neighbouring variants and load: the ratio of their p99, and the order that can be claimed.
pub fn orders(paired: &Paired) -> Table {
    let head = [
        "p99 of",
        "divided by that of",
        "offered k/s",
        "ratio within a round",
        "95% interval",
        "of all samples",
        "more slow samples",
        "verdict",
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
            order.claimed.clone().unwrap_or_else(|| "none".to_owned()),
        ]
    };
    Table::new(1, head).with(paired.orders.iter().map(row))
}

/// How the figures are to be read, in a few lines.
pub fn notes(paired: &Paired) -> [String; 3] {
    let claimed = paired.orders.iter().filter(|order| order.claimed.is_some()).count();
    [
        format!(
            "quiet: the lower quartile of {} rounds. In each round every variant ran each load once, in random order. all: every \
             sample. A few rounds in which something took a CPU for milliseconds decide its p99, whichever row they hit.",
            paired.rounds
        ),
        format!(
            "Verdicts on neighbouring variants: {claimed} of {}. \"lower\" or \"higher\": the 95% interval of the ratio within a round \
             excludes 1. \"equal\": it lies within 0.87 and 1.15. None where the slow samples (above the p99 of both variants together) \
             speak against it, or other processes kept the machine busy.",
            paired.orders.len()
        ),
        format!(
            "The sentence compares with \"{}\", at a p99 of {} us in quiet rounds; loads between those of the run are interpolated.",
            paired.reference,
            micros(paired.limit_ns as u64)
        ),
    ]
}
