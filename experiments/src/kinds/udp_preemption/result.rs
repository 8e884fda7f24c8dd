//! Results: both systems' times under each load, at the client and at the front, and the ratios of these.

use std::path::{Path, PathBuf};

use serde::Serialize;
use wave_compare::{Better, Pool, median};
use wave_report::model::{Figure, SATURATION_SERVED};
use wave_report::number::{micros, short, thousands};
use wave_report::plot::curves::Curve;
use wave_report::terminal::wrapped;
use wave_report::{Report, csv};
use wave_terminal::{Failure, Table, counted};
use wave_workloads::point::ClassLatency;
use wave_workloads::udp::Outcome;

use super::Measured;
use crate::ground::rounds::{over_rounds, samples_of};
use crate::ground::udp_report::{Header, Page, drawn};
use crate::kinds::udp_preemption::UdpPreemption;

/// Names of the classes: short requests, and long ones.
const CLASSES: [&str; 2] = ["short", "long"];

/// Times of one class of requests, measured at one place: medians over rounds, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// `short` or `long`.
    pub class: &'static str,
    pub p50_ns: Figure,
    pub p99_ns: Figure,
    pub p999_ns: Figure,
}

impl Times {
    fn all(rounds: &[Measured], place: Place) -> [Times; 2] {
        [0, 1].map(|class| {
            let pools: Vec<Pool> =
                rounds.iter().filter_map(|round| pool(round, place, class)).collect();
            let times = |share: f64| {
                over_rounds(
                    &pools.iter().map(|pool| pool.quantile(&[0], share)).collect::<Vec<_>>(),
                )
            };
            let class = CLASSES[class];
            Times { class, p50_ns: times(0.5), p99_ns: times(P99), p999_ns: times(0.999) }
        })
    }
}

const P99: f64 = 0.99;

/// Where times are measured: at the client or at the front.
type Place = fn(&Outcome) -> &[ClassLatency];

/// The times of a class of requests in a round; `None` if it had none. A request without an answer takes longer than any other.
fn pool(round: &Measured, place: Place, class: usize) -> Option<Pool> {
    let Outcome { point, .. } = &round.outcome;
    let samples = samples_of(point, place(&round.outcome).get(class))?;
    Some(Pool::of_rounds([samples]))
}

/// One system under one load.
#[derive(Clone, Debug, Serialize)]
pub struct AtLoad {
    pub offered_per_second: f64,
    /// Share of the requests that were answered in time: the median over rounds.
    pub served: f64,
    /// Times at the client: from when a request was due until its reply.
    pub client: [Times; 2],
    /// Times at the front: from its receipt of a request until its reply.
    pub front: [Times; 2],
    /// The p99 of both classes with scheduling without overhead: medians over rounds.
    pub ideal_p99_ns: [f64; 2],
    /// Slices ended by the cores' own timers, warm-ups included.
    pub slices_ended: u64,
    /// What broke the system in a round, if anything did; such rounds count.
    pub broken: Vec<String>,
}

/// One of the two systems.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `with preemption` or `without preemption`.
    pub name: &'static str,
    /// Policy of its scheduler.
    pub policy: String,
    /// In ascending order of loads.
    pub loads: Vec<AtLoad>,
}

/// p99 of short requests with preemption, divided by that without in the same round.
#[derive(Clone, Debug, Serialize)]
pub struct Ratio {
    pub offered_per_second: f64,
    /// At the client.
    pub client: Figure,
    /// At the front.
    pub front: Figure,
    /// Of scheduling without overhead.
    pub ideal: f64,
    /// Whether both systems served the load.
    pub is_served: bool,
}

/// What a system has measured: its name and policy, and for each load a measurement of each round.
pub(super) type Ran = (&'static str, String, Vec<Vec<Measured>>);

/// For each load, both classes' p99 of scheduling without overhead, for each round.
pub(super) type Ideals = Vec<Vec<[u64; 2]>>;

/// The systems' results, and their ratios at each load.
pub(super) fn rows(loads: &[f64], ran: Vec<Ran>, ideals: &[Ideals; 2]) -> (Vec<Row>, Vec<Ratio>) {
    let [with, without] = &ran[..] else { return Default::default() };
    let ratio = |at: usize| {
        let of = |place: Place| {
            let p99_ns = |round: &Measured| Some(pool(round, place, 0)?.quantile(&[0], P99));
            let ratio = |(one, other): (&Measured, &Measured)| {
                Some(Better::Higher.ratio(p99_ns(other)?, p99_ns(one)?))
            };
            let both = with.2[at].iter().zip(&without.2[at]);
            over_rounds(&both.filter_map(ratio).collect::<Vec<f64>>())
        };
        let ideal = ideals[0][at].iter().zip(&ideals[1][at]).filter(|(_, other)| other[0] > 0);
        let ideal: Vec<f64> = ideal.map(|(one, other)| one[0] as f64 / other[0] as f64).collect();
        let served = [with, without].map(|ran| served(&ran.2[at]));
        Ratio {
            offered_per_second: loads[at],
            client: of(|outcome| &outcome.point.classes),
            front: of(|outcome| &outcome.at_front),
            ideal: median(&ideal).unwrap_or(1.0),
            is_served: served.iter().all(|served| *served >= SATURATION_SERVED),
        }
    };
    let ratios = (0..loads.len()).map(ratio).collect();
    let row = |((name, policy, measured), ideals): (Ran, &Ideals)| {
        let at_load = |((rounds, ideals), load): ((&Vec<Measured>, &Vec<[u64; 2]>), &f64)| AtLoad {
            offered_per_second: *load,
            served: served(rounds),
            client: Times::all(rounds, |outcome| &outcome.point.classes),
            front: Times::all(rounds, |outcome| &outcome.at_front),
            ideal_p99_ns: [0, 1].map(|class| {
                let all: Vec<f64> = ideals.iter().map(|ideal| ideal[class] as f64).collect();
                median(&all).unwrap_or(0.0)
            }),
            slices_ended: rounds.iter().map(|round| round.slices_ended).sum(),
            broken: rounds.iter().filter_map(|round| round.broken.clone()).collect(),
        };
        let loads = measured.iter().zip(ideals).zip(loads).map(at_load).collect();
        Row { name, policy, loads }
    };
    (ran.into_iter().zip(ideals).map(row).collect(), ratios)
}

fn served(rounds: &[Measured]) -> f64 {
    let shares: Vec<f64> = rounds.iter().map(|round| round.outcome.point.served()).collect();
    median(&shares).unwrap_or(0.0)
}

/// The result of a scenario of kind `udp-preemption`.
#[derive(Clone, Debug, Serialize)]
pub struct PreemptionResult {
    #[serde(flatten)]
    header: Header,
    cores: u32,
    threads: u32,
    outstanding: u32,
    slice_us: u32,
    short_us: f64,
    long_us: f64,
    long_percent: f64,
    rounds: u32,
    seed: u64,
    /// At each load.
    short_p99_ratios: Vec<Ratio>,
    variants: Vec<Row>,
}

impl Report for PreemptionResult {
    fn text(&self) -> String {
        format!(
            "{}\n\n{}\n\n{}{}\n\n{}",
            wrapped(&self.setup()),
            self.times(),
            self.ratios(),
            self.others(),
            wrapped(&self.header.conclusion)
        )
    }

    /// Writes the files of the result into a folder below `out`.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure> {
        let curve = |row: &Row| {
            // Beyond its capacity a latency only reflects the length of the trial.
            let served = row.loads.iter().filter(|at| at.served >= SATURATION_SERVED);
            let point =
                |at: &AtLoad| (at.offered_per_second / 1e3, at.client[0].p99_ns.value / 1e3);
            (row.name.to_owned(), served.map(point).collect())
        };
        let all: Vec<Curve> = self.variants.iter().map(curve).collect();
        let axes = ["offered k requests/s", "p99 of short requests at the client, us"];
        let plot = drawn("p99.svg", "Tail of short requests", axes, &all)?;
        let csv = self.csv();
        let page = Page {
            setup: &self.setup(),
            tables: vec![self.times(), self.ratios()],
            notes: &self.others(),
        };
        let (plot, csv) = (("p99.svg", plot.as_str()), ("points.csv", &csv[..]));
        self.header.write(out, plot, csv, self, &page)
    }

    /// Whether there is a ratio.
    fn is_measured(&self) -> bool {
        self.short_p99_ratios.iter().any(|ratio| ratio.is_served)
    }

    fn json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::cannot)
    }
}

impl PreemptionResult {
    pub(super) fn new(
        scenario: &UdpPreemption,
        (variants, short_p99_ratios): (Vec<Row>, Vec<Ratio>),
        mut header: Header,
    ) -> PreemptionResult {
        header.conclude(conclusion(&short_p99_ratios));
        PreemptionResult {
            header,
            cores: scenario.host.cores,
            threads: scenario.host.threads,
            outstanding: scenario.host.outstanding,
            slice_us: scenario.host.slice_us,
            short_us: scenario.workload.short_us,
            long_us: scenario.workload.long_us,
            long_percent: scenario.workload.long_percent,
            rounds: scenario.run.rounds,
            seed: scenario.run.seed,
            short_p99_ratios,
            variants,
        }
    }

    fn setup(&self) -> String {
        let PreemptionResult { cores, threads, outstanding, slice_us, header, .. } = self;
        let Header { link, seating, .. } = header;
        let [short_us, long_us, percent] =
            [self.short_us, self.long_us, self.long_percent].map(short);
        let (cores, threads) = (counted(*cores, "core"), counted(*threads, "thread"));
        let outstanding = counted(*outstanding, "request");
        format!(
            "Requests of {short_us} us, {percent}% of {long_us} us; {cores}, {threads}, up to {outstanding} \
             at hand per core, slices of {slice_us} us, link {link}. Medians of {} rounds. {seating}",
            self.rounds
        )
    }

    /// A row for each load and system: short requests, then the p99 of long ones.
    fn times(&self) -> Table {
        let us = |figure: Figure| micros(figure.value as u64);
        let mut rows = Table::new(3, TIMES);
        for at in 0..self.short_p99_ratios.len() {
            for row in &self.variants {
                let load = &row.loads[at];
                let [short, long] = &load.client;
                rows.push([
                    thousands(load.offered_per_second),
                    row.name.to_owned(),
                    format!("{:.1}%", load.served * 1e2),
                    us(short.p50_ns),
                    us(short.p99_ns),
                    us(load.front[0].p99_ns),
                    micros(load.ideal_p99_ns[0] as u64),
                    us(long.p99_ns),
                ]);
            }
        }
        rows
    }

    fn ratios(&self) -> Table {
        let row = |ratio: &Ratio| {
            vec![
                thousands(ratio.offered_per_second),
                cell(ratio.client),
                cell(ratio.front),
                format!("{:.2}", ratio.ideal),
                (if ratio.is_served { "yes" } else { "no" }).to_owned(),
            ]
        };
        Table::new(0, RATIOS).with(self.short_p99_ratios.iter().map(row))
    }

    fn others(&self) -> String {
        let broken = || self.variants.iter().flat_map(|row| &row.loads).flat_map(|at| &at.broken);
        broken().next().map_or_else(String::new, |why| {
            let count = counted(broken().count(), "trial");
            format!(
                "\n{count} broke a system, which was started again; they count. First reason: {why}"
            )
        })
    }

    fn csv(&self) -> Vec<u8> {
        let rows = self.variants.iter().flat_map(|row| {
            row.loads.iter().map(|at| {
                let p99 = at.client.iter().chain(&at.front).map(|times| times.p99_ns.value);
                let figures = [at.offered_per_second, at.served].into_iter().chain(p99);
                let figures = figures.map(|figure| figure.to_string());
                std::iter::once(row.name.to_owned()).chain(figures)
            })
        });
        csv(COLUMNS, rows)
    }
}

const COLUMNS: [&str; 7] = [
    "system",
    "offered_per_second",
    "served",
    "short_p99_ns",
    "long_p99_ns",
    "short_p99_at_front_ns",
    "long_p99_at_front_ns",
];
const TIMES: [&str; 8] = [
    "k requests/s",
    "system",
    "served",
    "short: p50",
    "p99",
    "p99 at front",
    "ideal p99",
    "long: p99",
];
const RATIOS: [&str; 5] =
    ["k requests/s", "p99 of short: with / without", "at the front", "ideal", "both serve it"];

fn cell(figure: Figure) -> String {
    figure.words(|value| format!("{value:.2}"))
}

fn conclusion(ratios: &[Ratio]) -> String {
    let Some(highest) = ratios.iter().rfind(|ratio| ratio.is_served) else {
        return "NO RESULT: none of the loads is served by both systems; offer less.".to_owned();
    };
    let at = thousands(highest.offered_per_second);
    let Figure { value, interval } = highest.client;
    let client = interval.map_or_else(
        || format!("{value:.2}"),
        |(low, high)| format!("{value:.2} (95% interval {low:.2} to {high:.2})"),
    );
    let (front, ideal) = (highest.front.value, highest.ideal);
    let at = format!("At {at} k/s, the highest load that both serve,");
    match interval.is_some_and(|(low, high)| low <= 1.0 && high >= 1.0) {
        true => format!(
            "{at} this run cannot tell whether preemption lowers the p99 of short requests: its ratio is {client} at the client and \
             {front:.2} at the front; if scheduling cost nothing, {ideal:.2}."
        ),
        false => format!(
            "{at} preemption multiplies the p99 of short requests by {client} at the client and by {front:.2} at the front; if \
             scheduling cost nothing, by {ideal:.2}."
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wave_workloads::point::Point;
    use wave_workloads::recorder::{Latency, encode, histogram};

    use super::*;
    use crate::ground::{Journal, failed_point};
    use wave_scenario::Source;

    /// A class of 100 requests, each with this time.
    fn classes(ns: u64) -> Vec<ClassLatency> {
        let of = |name: &str, ns: u64| {
            let mut times = histogram();
            times.record_n(ns, 100).unwrap();
            let latency = Latency::of(&times);
            ClassLatency { name: name.to_owned(), latency, histogram: encode(&times) }
        };
        vec![of("5us", ns), of("100us", 10 * ns)]
    }

    /// A measurement with this time of short requests at the client, and half of it at the front; `done` of 100 were answered.
    fn measured(ns: u64, done: u64) -> Measured {
        let point = Point {
            achieved_per_second: done as f64,
            sent: 100,
            done,
            classes: classes(ns),
            ..failed_point(100.0)
        };
        let at_front = classes(ns / 2);
        let outcome = Outcome { point, ends: Default::default(), open_at_host: 0.0, at_front };
        Measured { outcome, slices_ended: 7, broken: None }
    }

    fn result(done: u64) -> PreemptionResult {
        let text = include_str!("../../../../scenarios/mtg-fig2.toml");
        let scenario =
            super::super::scenario::read(&Source::new(Path::new("mtg-fig2.toml"), text)).unwrap();
        // The machine was twice as slow in the second round.
        let rounds = |p99_ns: u64, done| vec![measured(p99_ns, done), measured(2 * p99_ns, done)];
        let with = vec![rounds(20_000, 100), rounds(30_000, 50)];
        let without = vec![rounds(80_000, done), rounds(60_000, 50)];
        let ran = vec![("with", "a".to_owned(), with), ("without", "b".to_owned(), without)];
        let ideals = [1, 4].map(|ns| vec![vec![[ns, 9], [ns, 9]]; 2]);
        let rows = rows(&[100.0, 200.0], ran, &ideals);
        let named = (&*scenario.name, scenario.description.as_str());
        let ran = (&Journal::none(), None);
        let header =
            Header::new("udp-preemption", named, &scenario.host.link, "s".into(), &[0, 1], ran);
        PreemptionResult::new(&scenario, rows, header.unwrap())
    }

    #[test]
    fn ratio_is_that_within_a_round_at_the_highest_load_that_both_serve() {
        let found = result(100);
        let [low, high] = &found.short_p99_ratios[..] else { panic!("two loads") };
        let is_near = |value: f64| (value - 0.25).abs() < 0.001;
        assert!(is_near(low.client.value) && is_near(low.front.value) && low.ideal == 0.25);
        // Half of the requests were not answered, with both.
        assert!(low.is_served && !high.is_served && high.client.value == 1.0);
        assert_eq!(found.variants[0].loads[0].slices_ended, 14);
        assert!(found.is_measured() && found.header.conclusion.contains("by 0.25 at the client"));
        assert_eq!(String::from_utf8(found.csv()).unwrap().lines().count(), 1 + 4);

        // A round in which requests are lost is no quick one.
        let found = result(50);
        assert!(found.short_p99_ratios[0].client.value < 0.001);
        assert!(!found.is_measured() && found.text().contains("NO RESULT"));
    }
}
