//! The page of a memory scenario, and its plots.

use maud::html;

use super::report::{MemoryResult, Ran, Second, Variant};
use wave_report::number::short;
use wave_report::plot::curves::{self, Curve};
use wave_report::{document, facts, figure};
use wave_terminal::Failure;

impl MemoryResult {
    /// The plots, by file name.
    pub(super) fn plots(&self) -> Result<Vec<(&'static str, String)>, Failure> {
        let curve = |name: String, ran: &Ran, of: &dyn Fn(&Second) -> f64| -> Curve {
            let points = ran.seconds.iter().map(|second| (second.memory.seconds, of(second)));
            (name, points.collect())
        };
        // Without a process there are no latencies.
        let us = |ns: Option<u64>| ns.unwrap_or(0) as f64 / 1e3;
        let (mut memory, mut gets, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for Variant { ran, .. } in &self.variants {
            let name = &ran.name;
            let mib = |second: &Second| second.memory.resident_bytes as f64 / f64::from(1 << 20);
            memory.push(curve(name.clone(), ran, &mib));
            if ran.ready.is_none() {
                continue;
            }
            gets.push(curve(format!("{name}: p50"), ran, &|second| us(second.get_p50_ns)));
            gets.push(curve(format!("{name}: p99"), ran, &|second| us(second.get_p99_ns)));
            bare.push(curve(format!("{name}: p50"), ran, &|second| us(second.raw_p50_ns)));
            bare.push(curve(format!("{name}: p99"), ran, &|second| us(second.raw_p99_ns)));
        }
        let mut plots =
            vec![("resident.svg", curves::draw("Resident set", ["seconds", "MiB"], &memory))];
        if !gets.is_empty() {
            let gets = curves::draw("GETs, from when they were due", ["seconds", "us"], &gets);
            plots.push(("gets.svg", gets));
            plots.push(("bare-gets.svg", curves::draw("GETs alone", ["seconds", "us"], &bare)));
        }
        if let Some(Variant { ran, .. }) =
            self.variants.iter().find(|variant| variant.compared.is_some())
        {
            let title = format!("{}: batches by the time between their last two scans", ran.name);
            plots.push((
                "periods.svg",
                curves::draw(&title, ["seconds", "% of the batches"], &shares(ran)),
            ));
        }
        let drawn = plots.into_iter().map(|(name, svg)| {
            svg.map(|svg| (name, svg))
                .map_err(|error| Failure::Cannot(format!("{name}: cannot be drawn: {error}")))
        });
        drawn.collect()
    }

    pub(super) fn page(&self, plots: &[(&str, String)]) -> String {
        let machine = &self.machine;
        let body = html! {
            p.lead { (self.description) }
            @if let Some(text) = self.simulated() { p { strong { (text) } } }
            @if let Some(conclusion) = &self.conclusion { p { strong { (conclusion) } } }
            dl {
                dt { "Started" } dd { (self.started) }
                dt { "Version" } dd { (self.version) ", seed " (self.seed) }
                dt { "Machine" } dd { (machine.model) ", " (machine.cpus) " CPUs, " (machine.kernel) }
                dt { "Seating" } dd { (self.seating) }
            }
            section {
                h2 { "With and without" }
                p { "Latencies are those after the warm-up, in microseconds; GETs count from when they were due." }
                (wave_report::table(&self.table()))
                @for Variant { ran, compared, .. } in &self.variants {
                    @if let Some(compared) = compared { h3 { (ran.name) } pre { (compared.text()) } }
                }
            }
            section {
                h2 { "Over time" }
                @for (_, svg) in plots { (figure(svg)) }
            }
            (facts(&self.facts))
        };
        document(&self.scenario, &body)
    }
}

/// A curve per interval between scans, in percent of the batches.
fn shares(ran: &Ran) -> Vec<Curve> {
    let times = || ran.seconds.iter().flat_map(|second| &second.memory.batches_by_interval_ms);
    let mut classes: Vec<u32> = times().map(|(ms, _)| *ms).collect();
    classes.sort_unstable();
    classes.dedup();
    let share = |second: &Second, class: u32| {
        let batches = &second.memory.batches_by_interval_ms;
        let all: u64 = batches.iter().map(|(_, count)| count).sum();
        let found = batches.iter().find(|(ms, _)| *ms == class).map_or(0, |(_, count)| *count);
        100.0 * found as f64 / all.max(1) as f64
    };
    let curve = |class: u32| {
        let name = match class {
            0 => "not scanned twice yet".to_owned(),
            ms => format!("{} s and more", short(f64::from(ms) / 1e3)),
        };
        let points = ran.seconds.iter().map(|second| (second.memory.seconds, share(second, class)));
        (name, points.collect())
    };
    classes.into_iter().map(curve).collect()
}
