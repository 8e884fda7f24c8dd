//! Results: saturations, both systems' times under one load at the client and at the front, and the ratios of these.

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
use wave_workloads::point::{ClassLatency, Point};

use super::Measured;
use crate::measure::Chunks;
use crate::run::machine;
use crate::run::verdict::Try;
use crate::scenario::UdpPreemption;

/// Names of the classes: short requests, and long ones.
const CLASSES: [&str; 2] = ["short", "long"];

/// Times of one class of requests, measured at one place. Each is p5, p50 and p95 over the measurements that count, in
/// nanoseconds; null if there are none.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// `short` or `long`.
    pub class: &'static str,
    /// Median of each measurement.
    pub p50_ns: Value,
    /// 99th percentile of each measurement.
    pub p99_ns: Value,
    /// 99.9th percentile of each measurement.
    pub p999_ns: Value,
    /// The p99 of scheduling without overhead.
    pub ideal_p99_ns: Option<u64>,
}

impl Times {
    fn all(
        measured: &[&Measured],
        ideal: Option<[u64; 2]>,
        of: fn(&Measured) -> &[ClassLatency],
    ) -> [Times; 2] {
        [0, 1].map(|at| {
            let latencies = || measured.iter().filter_map(move |each| of(each).get(at));
            let chunks = |ns: fn(&ClassLatency) -> u64| {
                let chunks = Chunks::new(latencies().map(|each| ns(each) as f64).collect());
                if chunks.values().is_empty() { Value::Null } else { chunks.json() }
            };
            Times {
                class: CLASSES[at],
                p50_ns: chunks(|each| each.latency.p50_ns),
                p99_ns: chunks(|each| each.latency.p99_ns),
                p999_ns: chunks(|each| each.latency.p999_ns),
                ideal_p99_ns: ideal.map(|ideal| ideal[at]),
            }
        })
    }
}

/// A point of the search for a saturation.
#[derive(Clone, Debug, Serialize)]
pub struct Searched {
    /// The try that counts, as measured at the client.
    #[serde(flatten)]
    pub point: Point,
    /// The same requests as measured at the front.
    pub at_front: Vec<ClassLatency>,
    /// Reasons why other tries of the load were set aside.
    pub other_tries: Vec<String>,
}

/// One of the two systems.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `with preemption` or `without preemption`.
    pub name: &'static str,
    /// Policy of its scheduler.
    pub policy: String,
    /// The highest load that it served within the limits.
    pub saturation_per_second: Option<f64>,
    /// Why its saturation is unknown, if so.
    pub not_measurable: Option<String>,
    /// The points of the search.
    pub points: Vec<Searched>,
    /// Number of measurements that count, at the load of the comparison.
    pub measurements: usize,
    /// Reasons why tries were set aside.
    pub set_aside: Vec<String>,
    /// Reasons why tries were repeated, in order.
    pub repeated: Vec<String>,
    /// Share of the requests in those measurements whose latencies are set aside, because the machine had stalled.
    pub latencies_set_aside: Option<f64>,
    /// Slices ended by the cores' own timers in those measurements, warm-ups included.
    pub slices_ended: u64,
    /// Times at the client: from when a request was due until its reply.
    pub client: [Times; 2],
    /// Times at the front: from its receipt of a request until its reply.
    pub front: [Times; 2],
}

impl Row {
    pub(super) fn new(
        name: &'static str,
        policy: String,
        saturation: Result<Option<f64>, String>,
        points: Vec<Measured>,
        rounds: &[Measured],
        ideal: Option<[u64; 2]>,
    ) -> Row {
        let counted: Vec<&Measured> = rounds.iter().filter(|each| aside(each).is_none()).collect();
        let sum = |of: fn(&Measured) -> u64| counted.iter().map(|each| of(each)).sum::<u64>();
        let done = sum(|each| each.outcome.point.done);
        let aside_of_done = sum(|each| each.outcome.point.set_aside);
        let (saturation_per_second, not_measurable) = match saturation {
            Ok(found) => (found, None),
            Err(why) => (None, Some(why)),
        };
        let searched = |measured: Measured| Searched {
            point: measured.outcome.point,
            at_front: measured.outcome.at_front,
            other_tries: measured.other_tries,
        };
        Row {
            name,
            policy,
            saturation_per_second,
            not_measurable,
            points: points.into_iter().map(searched).collect(),
            measurements: counted.len(),
            set_aside: rounds.iter().filter_map(aside).collect(),
            repeated: rounds.iter().flat_map(|each| each.other_tries.clone()).collect(),
            latencies_set_aside: (done > 0).then(|| aside_of_done as f64 / done as f64),
            slices_ended: sum(|each| each.slices_ended),
            client: Times::all(&counted, ideal, |each| &each.outcome.point.classes),
            front: Times::all(&counted, ideal, |each| &each.outcome.at_front),
        }
    }
}

/// Why a measurement does not count, if so. Times beyond the limits of the search do not matter here.
fn aside(measured: &Measured) -> Option<String> {
    let lag = &measured.point().generator;
    let why = || lag.why_invalid.clone().unwrap_or_default();
    measured.disturbance().map(str::to_owned).or_else(|| (!lag.valid).then(why))
}

/// The result of a scenario of kind `udp-preemption`.
#[derive(Clone, Debug, Serialize)]
pub struct PreemptionResult {
    scenario: String,
    host: &'static str,
    kind: &'static str,
    description: String,
    version: &'static str,
    machine: Machine,
    seating: String,
    started: String,
    link: String,
    cores: u32,
    threads: u32,
    outstanding: u32,
    slice_us: u32,
    short_us: f64,
    long_us: f64,
    long_percent: f64,
    /// Limit on the p99 of short requests that defines saturation.
    limit_us: u32,
    seed: u64,
    /// The load of the comparison, as a share of the lower saturation.
    load: f64,
    /// That load in requests per second; null if a saturation is unknown.
    offered_per_second: Option<f64>,
    /// p99 of short requests at the client with preemption, divided by that without: medians over the measurements.
    short_p99_ratio_preempt: Option<f64>,
    /// Ratio of p99s of short requests with and without preemption, measured at the front.
    short_p99_ratio_preempt_at_front: Option<f64>,
    /// The same ratio for scheduling without overhead.
    short_p99_ratio_preempt_ideal: Option<f64>,
    variants: Vec<Row>,
    /// The answer to the scenario's question, in a sentence.
    conclusion: String,
}

impl PreemptionResult {
    pub(super) fn new(
        scenario: &UdpPreemption,
        variants: Vec<Row>,
        offered_per_second: Option<f64>,
        machine: Machine,
        seating: String,
        started: String,
    ) -> PreemptionResult {
        let median = |times: &[Times; 2]| times[0].p99_ns["p50"].as_f64();
        let ideal = |times: &[Times; 2]| times[0].ideal_p99_ns.map(|ns| ns as f64);
        let mut result = PreemptionResult {
            scenario: scenario.name.clone(),
            host: "user",
            kind: "udp-preemption",
            description: scenario.description.clone(),
            version: machine::version(),
            machine,
            seating,
            started,
            link: scenario.link.to_string(),
            cores: scenario.cores,
            threads: scenario.threads,
            outstanding: scenario.outstanding,
            slice_us: scenario.slice_us,
            short_us: scenario.short_us,
            long_us: scenario.long_us,
            long_percent: scenario.long_percent,
            limit_us: scenario.short_p99_us,
            seed: scenario.seed,
            load: scenario.load,
            offered_per_second,
            short_p99_ratio_preempt: ratio(&variants, |row| median(&row.client)),
            short_p99_ratio_preempt_at_front: ratio(&variants, |row| median(&row.front)),
            short_p99_ratio_preempt_ideal: ratio(&variants, |row| ideal(&row.client)),
            variants,
            conclusion: String::new(),
        };
        result.conclusion = result.found();
        result
    }

    /// Whether there is a ratio.
    pub fn is_measured(&self) -> bool {
        self.short_p99_ratio_preempt.is_some()
    }

    pub fn text(&self) -> String {
        let mut saturations = table(&["system", "policy", "saturation\nk/s"]);
        for row in &self.variants {
            saturations.add_row(saturation_cells(row));
        }
        let mut times = table(&HEAD);
        for column in times.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        times.add_rows(self.rows_of_times());
        let times = self.offered_per_second.map_or_else(String::new, |_| format!("{times}\n"));
        format!(
            "{}\n\n{saturations}\n\n{}\n{times}{}\n{}",
            self.about(),
            self.compared_at(),
            self.others().trim_start(),
            wrapped(&self.conclusion)
        )
    }

    fn about(&self) -> String {
        let PreemptionResult { cores, threads, outstanding, slice_us, link, seating, .. } = self;
        let [short_us, long_us, percent] =
            [self.short_us, self.long_us, self.long_percent].map(short);
        let (cores, threads) = (counted(*cores, "core"), counted(*threads, "thread"));
        let outstanding = counted(*outstanding, "request");
        format!(
            "Requests of {short_us} us, {percent}% of {long_us} us; {cores}, {threads}, up to {outstanding} \
             at hand per core, slices of {slice_us} us, link {link}. {seating}"
        )
    }

    fn compared_at(&self) -> String {
        let share = short(100.0 * self.load);
        match self.offered_per_second {
            Some(load) => {
                format!("At {} k/s, {share}% of the lower saturation, in us:", thousands(load))
            }
            None => "Not compared: a saturation is unknown.".to_owned(),
        }
    }

    fn rows_of_times(&self) -> Vec<Vec<String>> {
        let row = |row: &Row, place: &str, times: &Times| {
            let us = |value: &Value, at: &str| {
                value[at].as_f64().map_or_else(|| "-".to_owned(), |ns| micros(ns as u64))
            };
            let ideal = times.ideal_p99_ns.map_or_else(|| "-".to_owned(), micros);
            let Times { class, p50_ns, p99_ns, p999_ns, .. } = times;
            let mut cells = vec![row.name.to_owned(), place.to_owned(), (*class).to_owned()];
            cells.extend([
                us(p50_ns, "p50"),
                us(p99_ns, "p50"),
                us(p99_ns, "p5"),
                us(p99_ns, "p95"),
            ]);
            cells.extend([us(p999_ns, "p50"), ideal, row.measurements.to_string()]);
            cells
        };
        let places = |of: &'_ Row| [("client", of.client.clone()), ("front", of.front.clone())];
        let all = self.variants.iter().flat_map(|of| {
            let places = places(of).into_iter();
            places.flat_map(move |(place, times)| times.map(|times| row(of, place, &times)))
        });
        all.collect()
    }

    fn found(&self) -> String {
        let number =
            |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
        let [client, front, ideal] = [
            self.short_p99_ratio_preempt,
            self.short_p99_ratio_preempt_at_front,
            self.short_p99_ratio_preempt_ideal,
        ]
        .map(number);
        match self.is_measured() {
            true => format!(
                "Preemption multiplies the p99 of short requests by {client} at the client and by {front} at the front; if scheduling \
                 cost nothing, by {ideal}."
            ),
            false => "NO RESULT: a saturation is not known, or a system has no measurement that counts; run it again on a quiet \
                      machine."
                .to_owned(),
        }
    }

    fn others(&self) -> String {
        let aside: usize = self.variants.iter().map(|row| row.set_aside.len()).sum();
        let why = self.variants.iter().flat_map(|row| &row.set_aside).next();
        why.map_or_else(String::new, |why| {
            format!("\n{aside} measurements do not count; reason of the first: {why}")
        })
    }

    /// Writes the files of the result into a folder below `out`.
    pub fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let curve = |row: &Row| {
            let valid = row.points.iter().filter(|each| each.point.generator.valid);
            let points = valid.filter_map(|each| {
                let p99_ns = each.point.classes.first()?.latency.p99_ns;
                Some((each.point.offered_per_second / 1e3, p99_ns as f64 / 1e3))
            });
            // Beyond saturation a latency only reflects the length of the overload.
            let mut points: Vec<_> =
                points.filter(|(_, us)| *us <= 2.0 * f64::from(self.limit_us)).collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            (row.name.to_owned(), points)
        };
        let all: Vec<_> = self.variants.iter().map(curve).collect();
        let axes = ["offered k requests/s", "p99 of short requests at the client, us"];
        let plot = curves::draw("Tail of short requests", axes, &all);
        let plot =
            plot.map_err(|error| ReportError::Draw { file: "p99.svg", why: error.to_string() })?;
        let directory = Directory::create(folder(out, &self.scenario, self.host))?;
        directory.write("p99.svg", plot.as_bytes())?;
        directory.write("points.csv", self.csv().as_bytes())?;
        directory.write("results.json", &serde_json::to_vec(self).map_err(Failure::cannot)?)?;
        directory.write("report.html", self.page(&plot).as_bytes())?;
        Ok(directory.into_path())
    }

    /// The points of the searches, in the order of the measurements.
    fn csv(&self) -> String {
        let mut csv = "system,offered_per_second,achieved_per_second,served,valid,\
                       short_p99_ns,long_p99_ns,short_p99_at_front_ns,long_p99_at_front_ns\n"
            .to_owned();
        for (row, Searched { point, at_front, .. }) in
            self.variants.iter().flat_map(|row| row.points.iter().map(move |point| (row, point)))
        {
            let p99_ns = |classes: &[ClassLatency]| {
                let each = classes.iter().map(|class| class.latency.p99_ns.to_string());
                each.collect::<Vec<_>>().join(",")
            };
            csv += &format!(
                "{},{},{},{},{},{},{}\n",
                row.name,
                point.offered_per_second,
                point.achieved_per_second,
                point.served(),
                point.generator.valid,
                p99_ns(&point.classes),
                p99_ns(at_front)
            );
        }
        csv
    }

    fn page(&self, plot: &str) -> String {
        let body = html! {
            p { (self.description) }
            p { (self.about()) }
            p { strong { (self.conclusion) } }
            table {
                thead { tr { th { "system" } th { "policy" } th { "saturation, k/s" } } }
                tbody { @for row in &self.variants { tr { @for cell in saturation_cells(row) { td { (cell) } } } } }
            }
            p { (self.compared_at()) }
            table {
                thead { tr { @for cell in HEAD { th { (cell) } } } }
                tbody { @for row in self.rows_of_times() { tr { @for cell in row { td { (cell) } } } } }
            }
            p { (self.others()) }
            (figure(plot))
            p { "Wave " (self.version) ", " (self.machine.model) ", Linux " (self.machine.kernel) ", " (self.started) }
        };
        document(&self.scenario, &body)
    }
}

/// Columns of the table of times; p5 and p95 are over the measurements.
const HEAD: [&str; 10] = [
    "system",
    "seen at",
    "requests",
    "p50",
    "p99",
    "p99, p5",
    "p99, p95",
    "p99.9",
    "ideal p99",
    "measurements",
];

fn saturation_cells(row: &Row) -> [String; 3] {
    let found = match (&row.not_measurable, row.saturation_per_second) {
        (Some(why), _) => format!("unknown: {why}"),
        (None, Some(load)) => thousands(load),
        (None, None) => "served none of its loads".to_owned(),
    };
    [row.name.to_owned(), row.policy.clone(), found]
}

/// The value of `of` for the system with preemption, divided by that for the one without.
fn ratio(rows: &[Row], of: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
    let [with, without] = rows else { return None };
    of(without).filter(|without| *without > 0.0).and_then(|without| Some(of(with)? / without))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wave_workloads::point::GeneratorLag;
    use wave_workloads::recorder::Latency;
    use wave_workloads::udp::Outcome;

    use super::*;
    use crate::scenario::parse_udp_preemption;

    fn classes(p99_ns: u64) -> Vec<ClassLatency> {
        let of = |name: &str, p99_ns| ClassLatency {
            name: name.to_owned(),
            latency: Latency { count: 1, p99_ns, ..Latency::default() },
            histogram: String::new(),
        };
        vec![of("5us", p99_ns), of("100us", 10 * p99_ns)]
    }

    /// A measurement with this p99 of short requests at the client, and half of it at the front.
    fn measured(p99_ns: u64) -> Measured {
        let generator = GeneratorLag {
            lag_p50_ns: 0,
            lag_p99_ns: 0,
            lag_max_ns: 0,
            valid: true,
            why_invalid: None,
        };
        let point = Point {
            offered_per_second: 1_000.0,
            achieved_per_second: 1_000.0,
            sent: 100,
            done: 100,
            set_aside: 25,
            refused: 0,
            duration_s: 0.1,
            classes: classes(p99_ns),
            generator,
        };
        let outcome = Outcome {
            point,
            ends: Default::default(),
            open_at_host: 0.0,
            at_front: classes(p99_ns / 2),
        };
        Measured {
            outcome,
            slices_ended: 7,
            disturbed: None,
            other_tries: Vec::new(),
            broken: None,
        }
    }

    fn row(saturation: Result<Option<f64>, String>, rounds: &[Measured], ideal: u64) -> Row {
        let points = vec![measured(1_000)];
        Row::new("x", "fifo".to_owned(), saturation, points, rounds, Some([ideal, ideal]))
    }

    fn result(rows: Vec<Row>) -> PreemptionResult {
        let text = include_str!("../../../../scenarios/mtg-fig2.toml");
        let scenario = parse_udp_preemption(Path::new("mtg-fig2.toml"), text).unwrap();
        let machine = Machine { cpus: 2, model: "m".into(), kernel: "k".into() };
        PreemptionResult::new(&scenario, rows, Some(800.0), machine, "s".into(), "t".into())
    }

    #[test]
    fn ratios_are_of_medians_over_measurements_that_count() {
        let disturbed = Measured { disturbed: Some("disturbed: x".into()), ..measured(1) };
        let mut late = measured(1);
        late.invalidate("the generator lagged");
        let with = [measured(20_000), measured(30_000), disturbed, measured(90_000), late];
        let without = [measured(60_000), measured(120_000), measured(120_000)];
        let rows = vec![row(Ok(Some(1e3)), &with, 10), row(Ok(Some(2e3)), &without, 40)];
        assert_eq!((rows[0].measurements, rows[0].slices_ended), (3, 21));
        assert_eq!(rows[0].set_aside, ["disturbed: x", "the generator lagged"]);
        assert_eq!(rows[0].latencies_set_aside, Some(0.25));
        let found = result(rows);
        assert_eq!(found.short_p99_ratio_preempt, Some(0.25));
        assert_eq!(found.short_p99_ratio_preempt_at_front, Some(0.25));
        assert_eq!(found.short_p99_ratio_preempt_ideal, Some(0.25));
        assert!(found.is_measured() && found.text().contains("by 0.250 at the client"));
        assert_eq!(found.csv().lines().count(), 1 + 2);
    }

    #[test]
    fn no_result_without_measurements_of_both_systems() {
        let unknown = Err("at least 1 k/s".to_owned());
        for rows in [
            vec![row(Ok(Some(1e3)), &[measured(1)], 1), row(Ok(Some(1e3)), &[], 1)],
            vec![row(unknown.clone(), &[], 1), row(unknown, &[], 1)],
        ] {
            let found = result(rows);
            assert!(!found.is_measured() && found.text().contains("NO RESULT"));
            let json = serde_json::to_value(&found).unwrap();
            assert!(json["short_p99_ratio_preempt"].is_null(), "{json}");
            assert!(json["variants"][1]["client"][0]["p99_ns"].is_null(), "{json}");
        }
    }
}
