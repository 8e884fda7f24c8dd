//! Results: a row for each number of outstanding requests, and the knee.

use std::path::{Path, PathBuf};

use comfy_table::CellAlignment;
use maud::html;
use serde::Serialize;
use wave_lab::terminal::counted;
use wave_lab::{Failure, table};
use wave_report::model::Machine;
use wave_report::number::{short, thousands};
use wave_report::plot::curves;
use wave_report::terminal::wrapped;
use wave_report::{Directory, ReportError, document, figure, folder};

use super::Measured;
use crate::measure::Chunks;
use crate::run::machine;
use crate::scenario::Udp;

/// Throughput of at least this share of the best is at the knee or beyond it.
const NEAR: f64 = 0.95;

/// Throughput with one number of outstanding requests.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Maximum number of requests that a worker holds.
    pub outstanding: u32,
    /// Requests per second: p5, p50 and p95 over the measurements that count; null if there are none.
    pub per_second: serde_json::Value,
    /// Number of measurements that count.
    pub measurements: usize,
    /// Reasons why tries were set aside.
    pub set_aside: Vec<String>,
}

impl Row {
    pub(super) fn new(outstanding: u32, measured: &[Measured]) -> Row {
        let counted = measured.iter().filter(|each| each.set_aside.is_none());
        let counted = Chunks::new(counted.map(|each| each.per_second).collect());
        let measurements = counted.values().len();
        let per_second = if measurements > 0 { counted.json() } else { serde_json::Value::Null };
        let set_aside = measured.iter().filter_map(|each| each.set_aside.clone()).collect();
        Row { outstanding, per_second, measurements, set_aside }
    }

    fn at(&self, percentile: &str) -> Option<f64> {
        self.per_second[percentile].as_f64()
    }
}

/// The result of a scenario of kind `udp`.
#[derive(Clone, Debug, Serialize)]
pub struct UdpResult {
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
    work_us: f64,
    under_way: u32,
    /// A row for each number of outstanding requests.
    curve: Vec<Row>,
    /// The smallest number with throughput within 5% of the best; null if a row has no measurement.
    knee: Option<u32>,
    /// The answer to the scenario's question, in a sentence.
    conclusion: String,
}

impl UdpResult {
    pub(super) fn new(
        scenario: &Udp,
        curve: Vec<Row>,
        machine: Machine,
        seating: String,
        started: String,
    ) -> UdpResult {
        UdpResult {
            scenario: scenario.name.clone(),
            host: "user",
            kind: "udp",
            description: scenario.description.clone(),
            version: machine::version(),
            machine,
            seating,
            started,
            link: scenario.link.to_string(),
            workers: scenario.workers,
            work_us: scenario.work_us,
            under_way: scenario.sockets * scenario.under_way,
            knee: knee(&curve),
            conclusion: conclusion(&curve),
            curve,
        }
    }

    /// Whether every row has a measurement.
    pub fn is_measured(&self) -> bool {
        self.knee.is_some()
    }

    pub fn text(&self) -> String {
        let mut all =
            table(&["outstanding", "k requests/s", "p5", "p95", "of the best", "measurements"]);
        for column in all.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in &self.curve {
            all.add_row(self.cells(row));
        }
        let conclusion = wrapped(&self.conclusion);
        format!("{}\n\n{all}{}\n\n{conclusion}", self.about(), self.others())
    }

    fn about(&self) -> String {
        let UdpResult { workers, work_us, under_way, link, seating, .. } = self;
        let (work, workers) = (short(*work_us), counted(*workers, "worker"));
        format!("{workers}, requests of {work} us, {under_way} in flight, link {link}. {seating}")
    }

    fn others(&self) -> String {
        let aside: usize = self.curve.iter().map(|row| row.set_aside.len()).sum();
        let why = self.curve.iter().flat_map(|row| &row.set_aside).next();
        why.map_or_else(String::new, |why| {
            format!("\n{aside} measurements do not count; reason of the first: {why}")
        })
    }

    fn cells(&self, row: &Row) -> [String; 6] {
        let rate = |percentile| row.at(percentile).map_or_else(|| "-".to_owned(), thousands);
        let best = best(&self.curve);
        let share = row.at("p50").zip(best).map(|(rate, best)| format!("{:.2}", rate / best));
        [
            row.outstanding.to_string(),
            rate("p50"),
            rate("p5"),
            rate("p95"),
            share.unwrap_or_else(|| "-".to_owned()),
            row.measurements.to_string(),
        ]
    }

    /// Writes the files of the result into a folder below `out`.
    pub fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let points = self
            .curve
            .iter()
            .filter_map(|row| Some((f64::from(row.outstanding), row.at("p50")? / 1e3)));
        let median = ("median".to_owned(), points.collect());
        let axes = ["outstanding requests per worker", "k requests/s"];
        let plot = curves::draw("Throughput", axes, &[median]);
        let plot = plot.map_err(|error| ReportError::Draw {
            file: "throughput.svg",
            why: error.to_string(),
        })?;
        let mut csv = "outstanding,p5,p50,p95,measurements\n".to_owned();
        for row in &self.curve {
            let rates = ["p5", "p50", "p95"]
                .map(|at| row.at(at).map_or_else(String::new, |rate| rate.to_string()));
            csv += &format!("{},{},{}\n", row.outstanding, rates.join(","), row.measurements);
        }
        let directory = Directory::create(folder(out, &self.scenario, self.host))?;
        directory.write("throughput.svg", plot.as_bytes())?;
        directory.write("curve.csv", csv.as_bytes())?;
        directory.write("results.json", &serde_json::to_vec(self).map_err(Failure::cannot)?)?;
        directory.write("report.html", self.page(&plot).as_bytes())?;
        Ok(directory.into_path())
    }

    fn page(&self, plot: &str) -> String {
        let head = ["outstanding", "k requests/s", "p5", "p95", "of the best", "measurements"];
        let body = html! {
            p { (self.description) }
            p { (self.about()) }
            p { strong { (self.conclusion) } }
            table {
                thead { tr { @for cell in head { th { (cell) } } } }
                tbody { @for row in &self.curve { tr { @for cell in self.cells(row) { td { (cell) } } } } }
            }
            p { (self.others()) }
            (figure(plot))
            p { "Wave " (self.version) ", " (self.machine.model) ", Linux " (self.machine.kernel) ", " (self.started) }
        };
        document(&self.scenario, &body)
    }
}

fn best(rows: &[Row]) -> Option<f64> {
    rows.iter().filter_map(|row| row.at("p50")).reduce(f64::max)
}

fn knee(rows: &[Row]) -> Option<u32> {
    let medians: Option<Vec<f64>> = rows.iter().map(|row| row.at("p50")).collect();
    let best = best(rows)?;
    let near = rows.iter().zip(medians?).find(|(_, rate)| *rate >= NEAR * best);
    near.map(|(row, _)| row.outstanding)
}

/// The knee in words, and whether the numbers tried bound it.
fn conclusion(rows: &[Row]) -> String {
    let at = |outstanding: u32| rows.iter().find(|row| row.outstanding == outstanding);
    let Some((knee, row)) = knee(rows).and_then(|knee| Some((knee, at(knee)?))) else {
        return "NO RESULT: a row has no measurement that counts; run it again on a quiet machine."
            .to_owned();
    };
    let rate = |row: &Row| row.at("p50").map_or_else(|| "-".to_owned(), thousands);
    let best = rows.iter().find(|row| row.at("p50") == best(rows)).unwrap_or(row);
    let last = match rows.last() {
        Some(last) if last.outstanding == best.outstanding => {
            ", the most tried, so that more may be better still"
        }
        _ => "",
    };
    format!(
        "{} per worker, the least within 5% of the best, serve {} k/s; the best is {} k/s, with {}{last}.",
        counted(knee, "outstanding request"),
        rate(row),
        rate(best),
        best.outstanding
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outstanding: u32, rates: &[f64]) -> Row {
        let all: Vec<Measured> =
            rates.iter().map(|&per_second| Measured { per_second, set_aside: None }).collect();
        Row::new(outstanding, &all)
    }

    #[test]
    fn knee_is_the_smallest_number_near_the_best() {
        let mut rows =
            vec![row(1, &[50.0, 60.0, 55.0]), row(2, &[94.0]), row(3, &[96.0]), row(4, &[100.0])];
        assert_eq!(knee(&rows), Some(3));
        assert_eq!(
            conclusion(&rows),
            "3 outstanding requests per worker, the least within 5% of the best, serve 0.1 k/s; the best is 0.1 k/s, with 4, the \
             most tried, so that more may be better still."
        );
        let disturbed = Measured { per_second: 1e9, set_aside: Some("disturbed: x".into()) };
        rows[0] = Row::new(1, &[disturbed]);
        assert_eq!((knee(&rows), rows[0].measurements), (None, 0));
        assert!(conclusion(&rows).starts_with("NO RESULT"));
        assert_eq!(best(&rows), Some(100.0), "a measurement that does not count is not the best");
    }
}
