//! `wave reproduce`: the Wave paper's results on scheduling and memory in the simulator, beside the printed ones; the figures
//! of Mind the Gap; and results beyond both papers.
//!
//! The work is a list of [`jobs::Job`]s, each an independent simulation or search. They run in parallel, and their results are
//! kept in the output folder, so that an interrupted run resumes.

mod beyond;
mod figures;
pub mod group;
mod jobs;
mod mind_the_gap;
mod page;
pub(crate) mod placements;
mod plots;
mod rows;
#[cfg(test)]
mod scenarios;
mod scheduling;
mod snapshot;
pub(crate) mod sol;
mod vms;
pub mod words;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use serde::Serialize;

pub use figures::Figure;
pub use rows::{Kind, Row};
pub use snapshot::Snapshot;

use wave_report::make_folder;
use wave_terminal::{Failure, Progress, interrupt};

/// The results of a run of `wave reproduce`.
#[derive(Debug, Serialize)]
pub struct Reproduction {
    pub version: String,
    /// Number of seeds, from 1 upwards. Rows with random arrivals are medians over them.
    pub seeds: u64,
    pub parts: usize,
    /// Parts taken from an earlier run of the same build.
    pub resumed: Vec<String>,
    /// A row per printed figure.
    pub rows: Vec<Row>,
    pub figures: Vec<Figure>,
}

/// Reproduces the named groups, rows with random arrivals under `seeds` seeds. Keeps all results in `out`, and writes the
/// report there.
pub fn run(
    ids: &[&str],
    seeds: u64,
    out: &Path,
    threads: usize,
    quiet: bool,
) -> Result<(Reproduction, PathBuf), Failure> {
    let version = wave_apps::machine::version();
    make_folder(&out.join("parts"))?;
    let jobs = jobs::of(ids, &wave_sim::paper::Model::builtin(), seeds);
    let progress = Progress::new(jobs.len() as u64, quiet);
    let (ended, of, parts) = (progress.ended(), jobs.len(), out.join("parts"));
    interrupt::say(move || {
        let (ended, parts) = (ended.load(Ordering::Relaxed), parts.display());
        format!(
            "wave reproduce: interrupted: {ended} of {of} parts are done and kept in {parts}. To resume:\n  {}\n",
            interrupt::same_command()
        )
    })?;
    let found =
        jobs::run_all(&jobs, &out.join("parts"), &wave_apps::machine::build(), threads, &progress)?;
    let by_seed = jobs::by_seed(&found, seeds);
    let reproduction = Reproduction {
        version: version.to_owned(),
        seeds,
        parts: found.len(),
        resumed: jobs::resumed(&found),
        rows: rows::of(ids, &by_seed),
        figures: figures::of(ids, &by_seed[0]),
    };
    let report = page::save(&reproduction, out)?;
    Ok((reproduction, report))
}

#[cfg(test)]
mod tests {
    use super::figures::Curve;
    use super::*;

    /// A row whose printed figure is 1000.
    pub fn row(group: &str, unit: &str, ours: Option<f64>) -> Row {
        let diff = ours.map(|ours| ours - 1000.0);
        Row {
            id: format!("{group}-sample"),
            group: group.to_owned(),
            text: "a sample".to_owned(),
            unit: unit.to_owned(),
            paper: 1000.0,
            paper_range: [1000.0; 2],
            ours,
            by_seed: Vec::new(),
            rel_diff: diff.filter(|_| unit != "%").map(|diff| diff / 1000.0),
            diff,
            kind: Kind::Predicted,
            interval: None,
            width: None,
            inside: None,
            is_missed: false,
            place: "Table 0".to_owned(),
            why: None,
        }
    }

    pub fn curves(id: &str, curves: Vec<Curve>) -> Figure {
        Figure {
            id: id.to_owned(),
            group: id.to_owned(),
            title: format!("{id}: a sample"),
            x: "x".to_owned(),
            y: "y".to_owned(),
            log_x: false,
            y_max: None,
            text: "What it shows.".to_owned(),
            curves,
        }
    }
}
