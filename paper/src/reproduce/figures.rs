//! The curves: ours, and the paper's printed points.

use std::collections::BTreeMap;

use serde::Serialize;

use super::beyond;
use super::jobs::Done;
use super::mind_the_gap;
use super::placements;
use super::sol;
use super::vms;

/// One curve, or a set of points.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points of the curve: x and y.
    pub points: Vec<[f64; 2]>,
    /// Lowest and highest possible y for each point; empty if unknown.
    pub band: Vec<[f64; 2]>,
    /// Whether these are the paper's printed points: drawn as markers, not as a line.
    pub paper: bool,
}

impl Curve {
    pub(super) fn ours(name: &str, points: Vec<[f64; 2]>) -> Curve {
        Curve { name: name.to_owned(), points, band: Vec::new(), paper: false }
    }

    pub(super) fn paper(name: &str, points: Vec<[f64; 2]>) -> Curve {
        Curve { name: name.to_owned(), points, band: Vec::new(), paper: true }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Name of the figure and of its file.
    pub id: String,
    /// Group of the figure.
    pub group: String,
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// Whether x is drawn on a logarithmic axis.
    pub log_x: bool,
    /// Largest y that is drawn; None for no limit.
    pub y_max: Option<f64>,
    /// What the figure shows, in a sentence or two.
    pub text: String,
    pub curves: Vec<Curve>,
}

/// The figures of these groups.
pub fn of(ids: &[&str], done: &BTreeMap<&str, &Done>) -> Vec<Figure> {
    let mut figures = Vec::new();
    let wanted = |id: &str| ids.contains(&id);
    if wanted("fig4a") {
        // The paper prints 895k for Wave-16; the other two follow from its percentages.
        let printed =
            [("Wave-16", 895.0), ("On-Host", 895.0 / 1.046), ("Wave-15", 895.0 / 1.046 * 0.989)];
        let runs =
            [("On-Host", "fig4a-on-host"), ("Wave-15", "fig4a-wave-15"), ("Wave-16", "ladder-3")];
        let title = "Figure 4a: FIFO, 10 us GETs";
        figures.push(latency_figure("fig4a", title, &runs, &printed, done));
    }
    if wanted("fig4b") {
        let runs = [
            ("On-Host", "fig4b-on-host"),
            ("Wave-15", "fig4b-wave-15"),
            ("Wave-16", "fig4b-wave-16"),
        ];
        let title = "Figure 4b: Shinjuku, 99.5% 10 us GETs and 0.5% 10 ms scans";
        figures.push(latency_figure("fig4b", title, &runs, &[], done));
    }
    if wanted("fig5b") {
        figures.push(virtual_machines(done));
    }
    for group in ["fig6a", "fig6b"] {
        if wanted(group) {
            figures.push(placements::figure(group, done));
        }
    }
    if wanted("fig6b") {
        figures.push(placements::gain_figure(done));
    }
    if wanted("upi") {
        figures.push(upi(done));
    }
    figures.extend(mind_the_gap::figures(ids, done));
    if wanted("sol") {
        figures.extend(sol::figures(done));
    }
    if wanted("beyond") {
        figures.extend(beyond::figures(done));
    }
    figures
}

fn latency_figure(
    group: &str,
    title: &str,
    runs: &[(&str, &str)],
    printed: &[(&str, f64)],
    done: &BTreeMap<&str, &Done>,
) -> Figure {
    let mut curves = Vec::new();
    for (name, job) in runs {
        let Some(done) = done.get(job) else { continue };
        let points = done.points.iter().map(|[_, served, p99]| [served / 1e3, *p99]).collect();
        curves.push(Curve::ours(name, points));
    }
    for (name, saturation) in printed {
        let points = vec![[*saturation, 0.0]];
        curves.push(Curve::paper(&format!("{name}, saturation from the paper's figures"), points));
    }
    Figure {
        id: group.to_owned(),
        group: group.to_owned(),
        title: title.to_owned(),
        x: "served, thousand requests per second".to_owned(),
        y: "p99 of a GET, us".to_owned(),
        log_x: false,
        y_max: Some(300.0),
        text: "Saturation is the highest load of which 99% are served with a GET's p99 within \
               300 us: where a curve leaves the plot at the top."
            .to_owned(),
        curves,
    }
}

fn virtual_machines(done: &BTreeMap<&str, &Done>) -> Figure {
    let jobs = vms::ACTIVE.iter().filter_map(|active| {
        let done = done.get(format!("fig5-{active}").as_str())?;
        Some((
            f64::from(*active),
            done.value("gain")?,
            done.value("gain_low")?,
            done.value("gain_high")?,
        ))
    });
    let jobs: Vec<_> = jobs.collect();
    let ours = Curve {
        name: "Wave over On-Host, with its inputs' uncertainty".to_owned(),
        points: jobs.iter().map(|(active, gain, ..)| [*active, *gain]).collect(),
        band: jobs.iter().map(|(_, _, low, high)| [*low, *high]).collect(),
        paper: false,
    };
    let paper = Curve::paper("paper", vec![[1.0, 11.2], [31.0, 9.7], [128.0, 1.7]]);
    Figure {
        id: "fig5b".to_owned(),
        group: "fig5b".to_owned(),
        title: "Figure 5b: virtual machines without timer ticks".to_owned(),
        x: "active vCPUs of each machine".to_owned(),
        y: "more work done, %".to_owned(),
        log_x: false,
        y_max: None,
        text: "Turbo frequencies are from a table that was not fitted to this figure; the band is \
               what its uncertainty, and that of a tick's cost (5 to 15 us), make of the result."
            .to_owned(),
        curves: vec![ours, paper],
    }
}

fn upi(done: &BTreeMap<&str, &Done>) -> Figure {
    let saturation = |job: &str| done.get(job)?.value("saturation");
    let slower = |mhz: u32| {
        let (of, to) = (saturation(&format!("upi-{mhz}"))?, saturation("upi-on-host")?);
        Some([f64::from(mhz) / 1e3, 100.0 * (1.0 - of / to)])
    };
    let points = [2000, 2500, 3000].into_iter().filter_map(slower).collect();
    Figure {
        id: "upi".to_owned(),
        group: "upi".to_owned(),
        title: "The agent on another socket".to_owned(),
        x: "agent's clock, GHz".to_owned(),
        y: "saturates lower than on-host by, %".to_owned(),
        log_x: false,
        y_max: None,
        text: "Shinjuku with 0.5% scans, 15 workers each.".to_owned(),
        curves: vec![
            Curve::ours("simulated", points),
            Curve::paper("paper", vec![[2.0, 3.5], [2.5, 2.5], [3.0, 1.3]]),
        ],
    }
}
