//! Results: a row for each load and kind of sender.

use std::path::{Path, PathBuf};

use serde::Serialize;
use wave_report::model::Figure;
use wave_report::number::{micros, short, thousands};
use wave_report::plot::curves::Curve;
use wave_report::terminal::wrapped;
use wave_report::{Report, csv};
use wave_terminal::{Failure, Table, counted};

use super::{Measured, Sending};
use crate::ground::rounds::over_rounds;
use crate::ground::udp_report::{Header, Page, drawn};
use crate::kinds::udp_feedback::UdpFeedback;

/// Columns of the table; figures are medians over rounds.
const COLUMNS: [&str; 9] = [
    "load",
    "senders",
    "within_limit_per_second",
    "p50_ns",
    "p99_ns",
    "open_at_host",
    "refused",
    "held_back",
    "lost",
];
const HEAD: [&str; 8] =
    ["load", "senders", "in time, k/s", "p50, us", "p99, us", "open", "refused", "not sent"];

/// One load by one kind of sender.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Multiple of the capacity.
    pub load: f64,
    pub senders: &'static str,
    /// Replies within the limit, per second.
    pub within_limit_per_second: Figure,
    pub p50_ns: Figure,
    pub p99_ns: Figure,
    /// Mean number of open requests at the host, from replies.
    pub open_at_host: Figure,
    /// Shares of the due requests.
    pub refused: Figure,
    pub held_back: Figure,
    pub lost: Figure,
}

impl Row {
    pub(super) fn new(load: f64, sending: Sending, rounds: &[Measured]) -> Row {
        let of = |of: fn(&Measured) -> f64| over_rounds(&rounds.iter().map(of).collect::<Vec<_>>());
        Row {
            load,
            senders: sending.name(),
            within_limit_per_second: of(|each| each.within_limit_per_second),
            p50_ns: of(|each| each.p50_ns),
            p99_ns: of(|each| each.p99_ns),
            open_at_host: of(|each| each.open_at_host),
            refused: of(|each| each.refused),
            held_back: of(|each| each.held_back),
            lost: of(|each| each.lost),
        }
    }

    fn cells(&self) -> Vec<String> {
        let percent = |share: Figure| format!("{:.1}%", 100.0 * share.value);
        let us = |ns: Figure| micros(ns.value as u64);
        vec![
            self.load.to_string(),
            self.senders.to_owned(),
            self.within_limit_per_second.words(thousands),
            us(self.p50_ns),
            us(self.p99_ns),
            short(self.open_at_host.value),
            percent(self.refused),
            percent(self.held_back),
        ]
    }
}

/// The result of a scenario of kind `udp-feedback`.
#[derive(Clone, Debug, Serialize)]
pub struct FeedbackResult {
    #[serde(flatten)]
    header: Header,
    workers: u32,
    outstanding: u32,
    work_us: f64,
    sockets: u32,
    queue_target: u32,
    limit_us: u32,
    seed: u64,
    /// Requests per second of a closed loop.
    capacity_per_second: Figure,
    /// Goodput at the highest load as a share of the capacity: medians.
    in_time_with_feedback: f64,
    in_time_without_feedback: f64,
    rows: Vec<Row>,
}

impl Report for FeedbackResult {
    fn text(&self) -> String {
        let [setup, conclusion] =
            [&self.setup(), &self.header.conclusion].map(|text| wrapped(text));
        format!("{setup}\n\n{}\n\n{conclusion}", self.table())
    }

    /// Writes the files of the result into a folder below `out`.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let curve = |sending: Sending| {
            let rows = self.rows.iter().filter(|row| row.senders == sending.name());
            let points = rows.map(|row| (row.load, row.within_limit_per_second.value / 1e3));
            (sending.name().to_owned(), points.collect())
        };
        let curves: Vec<Curve> = Sending::BOTH.into_iter().map(curve).collect();
        let axes = ["offered load / capacity", "k replies in time/s"];
        let plot = drawn("goodput.svg", "Goodput under overload", axes, &curves)?;
        let csv = self.csv();
        let (plot, csv) = (("goodput.svg", plot.as_str()), ("rows.csv", &csv[..]));
        self.header.write(out, plot, csv, self, &self.page(&self.setup()))
    }

    /// Always: every round counts.
    fn is_measured(&self) -> bool {
        true
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }
}

impl FeedbackResult {
    pub(super) fn new(
        scenario: &UdpFeedback,
        capacity_per_second: Figure,
        rows: Vec<Row>,
        header: Header,
    ) -> FeedbackResult {
        let in_time = |sending: Sending| {
            let row = rows.iter().rev().find(|row| row.senders == sending.name());
            row.map_or(0.0, |row| row.within_limit_per_second.value / capacity_per_second.value)
        };
        let mut result = FeedbackResult {
            header,
            workers: scenario.host.workers,
            outstanding: scenario.host.outstanding,
            work_us: scenario.workload.work_us,
            sockets: scenario.workload.sockets,
            queue_target: scenario.run.queue_target,
            limit_us: scenario.run.limit_us,
            seed: scenario.run.seed,
            in_time_with_feedback: in_time(Sending::Windows),
            in_time_without_feedback: in_time(Sending::All),
            capacity_per_second,
            rows,
        };
        result.header.conclude(result.found());
        result
    }

    fn table(&self) -> Table {
        Table::new(2, HEAD).with(self.rows.iter().map(Row::cells))
    }

    fn setup(&self) -> String {
        let FeedbackResult { workers, sockets, queue_target, header, .. } = self;
        let Header { link, seating, .. } = header;
        let (work, limit) = (short(self.work_us), self.limit_us);
        let (workers, sockets) = (counted(*workers, "worker"), counted(*sockets, "socket"));
        let capacity = thousands(self.capacity_per_second.value);
        format!(
            "{workers}, requests of {work} us, {sockets}, link {link}. Capacity by a closed loop: {capacity} k/s. \
             In time: within {limit} us of the due time. Windows aim at {queue_target} open requests. {seating}"
        )
    }

    fn found(&self) -> String {
        format!(
            "At {} times the capacity, {:.2} of the capacity is served in time with feedback, and {:.2} without.",
            self.rows.last().map_or(0.0, |row| row.load),
            self.in_time_with_feedback,
            self.in_time_without_feedback
        )
    }

    fn page<'a>(&self, setup: &'a str) -> Page<'a> {
        Page { setup, tables: vec![self.table()], notes: "" }
    }

    /// Medians over rounds.
    fn csv(&self) -> Vec<u8> {
        let row = |row: &Row| {
            let medians = [
                row.within_limit_per_second,
                row.p50_ns,
                row.p99_ns,
                row.open_at_host,
                row.refused,
                row.held_back,
                row.lost,
            ];
            let medians = medians.map(|figure| figure.value.to_string());
            [row.load.to_string(), row.senders.to_owned()].into_iter().chain(medians)
        };
        csv(COLUMNS, self.rows.iter().map(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Journal;
    use wave_scenario::Source;

    fn measured(per_second: f64) -> Measured {
        Measured { within_limit_per_second: per_second, ..Measured::default() }
    }

    #[test]
    fn shares_use_the_highest_load_and_medians() {
        let both = |load, with: &[Measured], without: &[Measured]| {
            [Row::new(load, Sending::All, without), Row::new(load, Sending::Windows, with)]
        };
        let low = both(1.0, &[measured(900.0)], &[measured(900.0)]);
        let with = [measured(800.0), measured(0.0), measured(900.0)];
        let high = both(2.0, &with, &[measured(100.0)]);
        let text = include_str!("../../../../scenarios/udp-feedback.toml");
        let scenario =
            super::super::scenario::read(&Source::new(Path::new("udp-feedback.toml"), text))
                .unwrap();
        let result = |busy| {
            let named = (&*scenario.name, scenario.description.as_str());
            let ran = (&Journal::none(), None);
            let header =
                Header::new("udp-feedback", named, &scenario.host.link, "s".into(), &[0, 1], ran);
            let mut header = header.unwrap();
            header.busy = busy;
            let (capacity, rows) = (over_rounds(&[1_000.0]), [low.clone(), high.clone()].concat());
            FeedbackResult::new(&scenario, capacity, rows, header)
        };
        let found = result(None);
        assert_eq!((found.in_time_with_feedback, found.in_time_without_feedback), (0.8, 0.1));
        let conclusion = "At 2 times the capacity, 0.80 of the capacity is served in time with feedback, and 0.10 without.";
        assert!(found.text().ends_with(conclusion), "{}", found.text());
        assert_eq!(serde_json::to_value(&found).unwrap()["conclusion"], conclusion);
        assert!(found.header.page(&found.page("setup"), "").contains(conclusion));
        assert_eq!(String::from_utf8(found.csv()).unwrap().lines().count(), 1 + 4);
        assert_eq!(result(Some("busy".into())).header.conclusion, "busy");
    }
}
