//! Results: a row for each load and kind of sender.

use std::path::{Path, PathBuf};

use comfy_table::CellAlignment;
use maud::html;
use serde::Serialize;
use serde_json::Value;
use wave_lab::terminal::counted;
use wave_lab::{Failure, table};
use wave_report::model::Machine;
use wave_report::number::{micros, short, thousands};
use wave_report::plot::curves;
use wave_report::terminal::wrapped;
use wave_report::{Directory, ReportError, document, figure, folder};

use super::{Capacity, Measured, Sending};
use crate::measure::Chunks;
use crate::run::machine;
use crate::scenario::UdpFeedback;

/// Columns of the table; figures are medians over the measurements.
const HEAD: [&str; 11] = [
    "load",
    "senders",
    "in time, k/s",
    "p5",
    "p95",
    "p50, us",
    "p99, us",
    "open",
    "refused",
    "not sent",
    "measurements",
];

/// One load by one kind of sender: p5, p50 and p95 over the measurements that count; null if there are none.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Multiple of the capacity.
    pub load: f64,
    pub senders: &'static str,
    /// Replies within the limit, per second.
    pub within_limit_per_second: Value,
    pub p50_ns: Value,
    pub p99_ns: Value,
    /// Mean number of open requests at the host, from replies.
    pub open_at_host: Value,
    /// Shares of the due requests.
    pub refused: Value,
    pub held_back: Value,
    pub lost: Value,
    /// Number of measurements that count.
    pub measurements: usize,
    /// Reasons why the others were set aside.
    pub set_aside: Vec<String>,
}

impl Row {
    pub(super) fn new(load: f64, sending: Sending, measured: &[Measured]) -> Row {
        let counted: Vec<_> = measured.iter().filter(|each| each.set_aside.is_none()).collect();
        let chunks =
            |of: fn(&Measured) -> f64| percentiles(counted.iter().map(|each| of(each)).collect());
        Row {
            load,
            senders: sending.name(),
            within_limit_per_second: chunks(|each| each.within_limit_per_second),
            p50_ns: chunks(|each| each.p50_ns),
            p99_ns: chunks(|each| each.p99_ns),
            open_at_host: chunks(|each| each.open_at_host),
            refused: chunks(|each| each.refused),
            held_back: chunks(|each| each.held_back),
            lost: chunks(|each| each.lost),
            measurements: counted.len(),
            set_aside: measured.iter().filter_map(|each| each.set_aside.clone()).collect(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let cell = |value: &Value, at: &str, show: fn(f64) -> String| {
            value[at].as_f64().map_or_else(|| "-".to_owned(), show)
        };
        let us = |ns: f64| micros(ns as u64);
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        let rate = &self.within_limit_per_second;
        vec![
            self.load.to_string(),
            self.senders.to_owned(),
            cell(rate, "p50", thousands),
            cell(rate, "p5", thousands),
            cell(rate, "p95", thousands),
            cell(&self.p50_ns, "p50", us),
            cell(&self.p99_ns, "p50", us),
            cell(&self.open_at_host, "p50", short),
            cell(&self.refused, "p50", percent),
            cell(&self.held_back, "p50", percent),
            self.measurements.to_string(),
        ]
    }
}

fn percentiles(values: Vec<f64>) -> Value {
    if values.is_empty() { Value::Null } else { Chunks::new(values).json() }
}

/// The capacity: p5, p50 and p95 over the measurements that count; null if there are none.
pub(super) fn capacity(measured: &[Capacity]) -> Value {
    let counted = measured.iter().filter(|each| each.set_aside.is_none());
    percentiles(counted.map(|each| each.per_second).collect())
}

/// The result of a scenario of kind `udp-feedback`.
#[derive(Clone, Debug, Serialize)]
pub struct FeedbackResult {
    scenario: String,
    host: &'static str,
    kind: &'static str,
    description: String,
    version: &'static str,
    machine: Machine,
    seating: String,
    started: String,
    link: String,
    workers: u32,
    outstanding: u32,
    work_us: f64,
    sockets: u32,
    queue_target: u32,
    limit_us: u32,
    seed: u64,
    /// Requests per second of a closed loop.
    capacity_per_second: Value,
    /// Goodput at the highest load as a share of the capacity: medians.
    in_time_with_feedback: Option<f64>,
    in_time_without_feedback: Option<f64>,
    rows: Vec<Row>,
    /// The answer to the scenario's question, in a sentence.
    conclusion: String,
}

impl FeedbackResult {
    pub(super) fn new(
        scenario: &UdpFeedback,
        capacity_per_second: Value,
        rows: Vec<Row>,
        machine: Machine,
        seating: String,
        started: String,
    ) -> FeedbackResult {
        let in_time = |sending: Sending| {
            let row = rows.iter().rev().find(|row| row.senders == sending.name())?;
            let rate = row.within_limit_per_second["p50"].as_f64()?;
            Some(rate / capacity_per_second["p50"].as_f64()?)
        };
        let mut result = FeedbackResult {
            scenario: scenario.name.clone(),
            host: "user",
            kind: "udp-feedback",
            description: scenario.description.clone(),
            version: machine::version(),
            machine,
            seating,
            started,
            link: scenario.link.to_string(),
            workers: scenario.workers,
            outstanding: scenario.outstanding,
            work_us: scenario.work_us,
            sockets: scenario.sockets,
            queue_target: scenario.queue_target,
            limit_us: scenario.limit_us,
            seed: scenario.seed,
            in_time_with_feedback: in_time(Sending::Windows),
            in_time_without_feedback: in_time(Sending::All),
            capacity_per_second,
            rows,
            conclusion: String::new(),
        };
        result.conclusion = result.found();
        result
    }

    /// Whether every row has a measurement.
    pub fn is_measured(&self) -> bool {
        !self.capacity_per_second.is_null() && self.rows.iter().all(|row| row.measurements > 0)
    }

    pub fn text(&self) -> String {
        let mut all = table(&HEAD);
        for column in all.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        all.add_rows(self.rows.iter().map(Row::cells));
        format!("{}\n\n{all}{}\n\n{}", self.about(), self.others(), wrapped(&self.conclusion))
    }

    fn about(&self) -> String {
        let FeedbackResult { workers, sockets, queue_target, link, seating, .. } = self;
        let (work, limit) = (short(self.work_us), self.limit_us);
        let (workers, sockets) = (counted(*workers, "worker"), counted(*sockets, "socket"));
        let capacity = self.capacity_per_second["p50"].as_f64();
        let capacity = capacity.map_or_else(|| "unknown".to_owned(), thousands);
        format!(
            "{workers}, requests of {work} us, {sockets}, link {link}. Capacity by a closed loop: {capacity} k/s. \
             In time: within {limit} us of the due time. Windows aim at {queue_target} open requests. {seating}"
        )
    }

    fn found(&self) -> String {
        let share = |found: Option<f64>| found.filter(|_| self.is_measured());
        match (share(self.in_time_with_feedback), share(self.in_time_without_feedback)) {
            (Some(with), Some(without)) => format!(
                "At {} times the capacity, {with:.2} of the capacity is served in time with feedback, and {without:.2} without.",
                self.rows.last().map_or(0.0, |row| row.load)
            ),
            _ => {
                "NO RESULT: a row or the capacity has no measurement that counts; run it again on a quiet machine."
                    .to_owned()
            }
        }
    }

    fn others(&self) -> String {
        let aside: usize = self.rows.iter().map(|row| row.set_aside.len()).sum();
        let why = self.rows.iter().flat_map(|row| &row.set_aside).next();
        why.map_or_else(String::new, |why| {
            format!("\n{aside} measurements do not count; reason of the first: {why}")
        })
    }

    /// Writes the files of the result into a folder below `out`.
    pub fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let curve = |sending: Sending| {
            let rows = self.rows.iter().filter(|row| row.senders == sending.name());
            let rate = |row: &Row| row.within_limit_per_second["p50"].as_f64();
            let points = rows.filter_map(|row| Some((row.load, rate(row)? / 1e3)));
            (sending.name().to_owned(), points.collect())
        };
        let curves: Vec<curves::Curve> = Sending::BOTH.into_iter().map(curve).collect();
        let axes = ["offered load / capacity", "k replies in time/s"];
        let plot = curves::draw("Goodput under overload", axes, &curves);
        let plot = plot
            .map_err(|error| ReportError::Draw { file: "goodput.svg", why: error.to_string() })?;
        let directory = Directory::create(folder(out, &self.scenario, self.host))?;
        directory.write("goodput.svg", plot.as_bytes())?;
        directory.write("rows.csv", self.csv().as_bytes())?;
        directory.write("results.json", &serde_json::to_vec(self).map_err(Failure::cannot)?)?;
        directory.write("report.html", self.page(&plot).as_bytes())?;
        Ok(directory.into_path())
    }

    /// Medians of the measurements.
    fn csv(&self) -> String {
        let mut csv = "load,senders,within_limit_per_second,p50_ns,p99_ns,open_at_host,refused,held_back,lost,measurements\n"
            .to_owned();
        for row in &self.rows {
            let all = [
                &row.within_limit_per_second,
                &row.p50_ns,
                &row.p99_ns,
                &row.open_at_host,
                &row.refused,
                &row.held_back,
                &row.lost,
            ];
            let medians =
                all.map(|of| of["p50"].as_f64().map_or_else(String::new, |it| it.to_string()));
            let (load, senders) = (row.load, row.senders);
            csv += &format!("{load},{senders},{},{}\n", medians.join(","), row.measurements);
        }
        csv
    }

    fn page(&self, plot: &str) -> String {
        let body = html! {
            p { (self.description) }
            p { (self.about()) }
            p { strong { (self.conclusion) } }
            table {
                thead { tr { @for cell in HEAD { th { (cell) } } } }
                tbody { @for row in &self.rows { tr { @for cell in row.cells() { td { (cell) } } } } }
            }
            p { (self.others()) }
            (figure(plot))
            p { "Wave " (self.version) ", " (self.machine.model) ", Linux " (self.machine.kernel) ", " (self.started) }
        };
        document(&self.scenario, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::parse_udp_feedback;

    fn measured(per_second: f64) -> Measured {
        Measured { within_limit_per_second: per_second, ..Measured::default() }
    }

    fn result(rows: Vec<Row>) -> FeedbackResult {
        let text = include_str!("../../../../scenarios/udp-feedback.toml");
        let scenario = parse_udp_feedback(Path::new("udp-feedback.toml"), text).unwrap();
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "k".into() };
        let counted = Capacity { per_second: 1_000.0, set_aside: None };
        let aside = Capacity { per_second: 9_000.0, set_aside: Some("disturbed: x".into()) };
        let capacity = capacity(&[counted, aside]);
        FeedbackResult::new(&scenario, capacity, rows, machine, "s".into(), "t".into())
    }

    #[test]
    fn shares_use_the_highest_load_and_measurements_that_count() {
        let aside = Measured { set_aside: Some("the generator lagged".into()), ..measured(1e9) };
        let both = |load, with: &[Measured], without: &[Measured]| {
            [Row::new(load, Sending::All, without), Row::new(load, Sending::Windows, with)]
        };
        let low = both(1.0, &[measured(900.0)], &[measured(900.0)]);
        let with = [measured(800.0), aside.clone(), measured(700.0), measured(900.0)];
        let high = both(2.0, &with, &[measured(100.0)]);
        let found = result([low.clone(), high].concat());
        assert_eq!(found.in_time_with_feedback, Some(0.8));
        assert_eq!(found.in_time_without_feedback, Some(0.1));
        let conclusion = "At 2 times the capacity, 0.80 of the capacity is served in time with feedback, and 0.10 without.";
        assert!(found.is_measured() && found.text().ends_with(conclusion), "{}", found.text());
        assert_eq!(serde_json::to_value(&found).unwrap()["conclusion"], conclusion);
        assert!(found.page("").contains(conclusion));
        assert_eq!(found.csv().lines().count(), 1 + 4);

        let high = both(2.0, &[aside], &[measured(100.0)]);
        let found = result([low, high].concat());
        assert!(!found.is_measured() && found.text().contains("NO RESULT"));
        assert!(found.rows[3].p99_ns.is_null());
    }
}
