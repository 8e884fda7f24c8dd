//! Results: a row for each number of outstanding requests, and the knee.

use std::path::{Path, PathBuf};

use serde::Serialize;
use wave_report::model::Figure;
use wave_report::number::{short, thousands};
use wave_report::terminal::wrapped;
use wave_report::{Report, csv};
use wave_terminal::{Failure, Table, counted};

use super::Measured;
use crate::ground::rounds::over_rounds;
use crate::ground::udp_report::{Header, Page, drawn};
use crate::kinds::udp::Udp;

const HEAD: [&str; 3] = ["outstanding", "k requests/s", "of the best"];

/// Throughput of at least this share of the best is at the knee or beyond it.
const NEAR: f64 = 0.95;

/// Throughput with one number of outstanding requests.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Maximum number of requests that a worker holds.
    pub outstanding: u32,
    /// Requests per second.
    pub per_second: Figure,
    /// The same in each round, in order.
    pub rounds_per_second: Vec<f64>,
    /// Divided by the best row's in the same round: the one with the highest median.
    pub of_best: Figure,
    /// What was lost in rounds that ended early; such a round counts as 0 requests per second.
    pub lost: Vec<String>,
}

/// A row for each number of outstanding requests, from its measurements, one for each round.
pub(super) fn rows(outstanding: &[u32], measured: &[Vec<Measured>]) -> Vec<Row> {
    let rates = |rounds: &Vec<Measured>| rounds.iter().map(|round| round.per_second).collect();
    let rates: Vec<Vec<f64>> = measured.iter().map(rates).collect();
    let by_median =
        |a: &&Vec<f64>, b: &&Vec<f64>| over_rounds(a).value.total_cmp(&over_rounds(b).value);
    let best = rates.iter().max_by(by_median).cloned().unwrap_or_default();
    let row = |((&outstanding, rates), measured): ((&u32, &Vec<f64>), &Vec<Measured>)| {
        // A round in which the best row lost a datagram says nothing of the others.
        let rounds = rates.iter().zip(&best).filter(|(_, best)| **best > 0.0);
        let of_best = rounds.map(|(own, best)| own / best);
        Row {
            outstanding,
            per_second: over_rounds(rates),
            rounds_per_second: rates.clone(),
            of_best: over_rounds(&of_best.collect::<Vec<f64>>()),
            lost: measured.iter().filter_map(|round| round.lost.clone()).collect(),
        }
    };
    outstanding.iter().zip(&rates).zip(measured).map(row).collect()
}

/// The result of a scenario of kind `udp`.
#[derive(Clone, Debug, Serialize)]
pub struct UdpResult {
    #[serde(flatten)]
    header: Header,
    workers: u32,
    work_us: f64,
    under_way: u32,
    /// A row for each number of outstanding requests.
    curve: Vec<Row>,
    /// The smallest number with throughput within 5% of the best; null if every row lost datagrams in most of its rounds.
    knee: Option<u32>,
}

impl Report for UdpResult {
    fn text(&self) -> String {
        let conclusion = wrapped(&self.header.conclusion);
        let setup = wrapped(&self.setup());
        format!("{setup}\n\n{}{}\n\n{conclusion}", self.table(), self.others())
    }

    /// Writes the files of the result into a folder below `out`.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let point = |row: &Row| (f64::from(row.outstanding), row.per_second.value / 1e3);
        let points = self.curve.iter().map(point);
        let median = ("median".to_owned(), points.collect());
        let axes = ["outstanding requests per worker", "k requests/s"];
        let plot = drawn("throughput.svg", "Throughput", axes, &[median])?;
        let rows = self.curve.iter().map(|Row { outstanding, per_second, of_best, .. }| {
            let ends =
                per_second.interval.map(|(low, high)| [low, high].map(|end| end.to_string()));
            let [low, high] = ends.unwrap_or_default();
            let [rate, share] = [per_second.value, of_best.value].map(|value| value.to_string());
            [outstanding.to_string(), rate, low, high, share]
        });
        let csv = csv(["outstanding", "per_second", "low", "high", "of_best"], rows);
        let page = Page { setup: &self.setup(), tables: vec![self.table()], notes: &self.others() };
        let files = (("throughput.svg", plot.as_str()), ("curve.csv", &csv[..]));
        self.header.write(out, files.0, files.1, self, &page)
    }

    /// Whether there is a knee.
    fn is_measured(&self) -> bool {
        self.knee.is_some()
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }
}

impl UdpResult {
    pub(super) fn new(scenario: &Udp, curve: Vec<Row>, mut header: Header) -> UdpResult {
        header.conclude(conclusion(&curve));
        UdpResult {
            header,
            workers: scenario.host.workers,
            work_us: scenario.workload.work_us,
            under_way: scenario.workload.sockets * scenario.workload.under_way,
            knee: knee(&curve),
            curve,
        }
    }

    fn setup(&self) -> String {
        let UdpResult { workers, work_us, under_way, header, .. } = self;
        let Header { link, seating, .. } = header;
        let (work, workers) = (short(*work_us), counted(*workers, "worker"));
        format!("{workers}, requests of {work} us, {under_way} in flight, link {link}. {seating}")
    }

    fn others(&self) -> String {
        let lost: usize = self.curve.iter().map(|row| row.lost.len()).sum();
        let why = self.curve.iter().flat_map(|row| &row.lost).next();
        why.map_or_else(String::new, |why| {
            let lost = counted(lost, "measurement");
            format!("\n{lost} ended early and counted as 0; first reason: {why}")
        })
    }

    fn table(&self) -> Table {
        let cells = |row: &Row| {
            vec![
                row.outstanding.to_string(),
                row.per_second.words(thousands),
                row.of_best.words(|value| format!("{value:.2}")),
            ]
        };
        Table::new(0, HEAD).with(self.curve.iter().map(cells))
    }
}

fn best(rows: &[Row]) -> Option<&Row> {
    let answered = rows.iter().filter(|row| row.per_second.value > 0.0);
    answered.max_by(|a, b| a.per_second.value.total_cmp(&b.per_second.value))
}

fn knee(rows: &[Row]) -> Option<u32> {
    best(rows)?;
    rows.iter().find(|row| row.of_best.value >= NEAR).map(|row| row.outstanding)
}

/// The knee in words, and whether the numbers tried bound it.
fn conclusion(rows: &[Row]) -> String {
    let at = |outstanding: u32| rows.iter().find(|row| row.outstanding == outstanding);
    let found = knee(rows).and_then(|knee| Some((knee, at(knee)?, best(rows)?)));
    let Some((knee, row, best)) = found else {
        return "NO RESULT: every row lost datagrams in most of its rounds.".to_owned();
    };
    let last = match rows.last() {
        Some(last) if last.outstanding == best.outstanding => {
            ", the most tried, so that more may be better still"
        }
        _ => "",
    };
    format!(
        "{} per worker, the least within 5% of the best, serve {} k/s; the best is {} k/s, with {}{last}.",
        counted(knee, "outstanding request"),
        thousands(row.per_second.value),
        thousands(best.per_second.value),
        best.outstanding
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rates: &[f64]) -> Vec<Measured> {
        rates.iter().map(|&per_second| Measured { per_second, lost: None }).collect()
    }

    #[test]
    fn knee_is_the_smallest_number_near_the_best() {
        // The machine is half as fast in the second round, which ratios within a round do not show.
        let mut all: Vec<Vec<Measured>> =
            [50.0, 94.0, 96.0, 100.0].map(|rate| measured(&[rate, rate / 2.0, rate])).into();
        let rows = |all: &[Vec<Measured>]| rows(&[1, 2, 3, 4], all);
        let found = rows(&all);
        assert_eq!((knee(&found), found[0].of_best.value), (Some(3), 0.5));
        assert_eq!(
            conclusion(&found),
            "3 outstanding requests per worker, the least within 5% of the best, serve 0.1 k/s; the best is 0.1 k/s, with 4, the \
             most tried, so that more may be better still."
        );
        all[3][0] = Measured { per_second: 0.0, lost: Some("a datagram".into()) };
        let found = rows(&all);
        assert_eq!((found[3].per_second.value, found[3].lost.len()), (50.0, 1));
        assert_eq!(knee(&rows(&[measured(&[0.0]), measured(&[0.0])])), None);
    }
}
