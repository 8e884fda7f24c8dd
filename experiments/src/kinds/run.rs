//! A run, from its file to its report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use wave_lab::Failure;
use wave_lab::terminal::{note, out};
use wave_report::Report;

use super::{Kinds, Wanted};
use crate::ground::Journal;
use crate::ground::journal::Identity;

/// Exit code of a run without a result.
const NOT_MEASURED: u8 = 4;

/// What a run's caller wants.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    pub wanted: Wanted<'a>,
    /// Folder for the results: each experiment has one below it.
    pub out: &'a Path,
    /// Whether points of an interrupted run are used.
    pub resume: bool,
    /// Program to start in place of every agent.
    pub agent: Option<&'a Path>,
    /// Whether the result is printed as one JSON object.
    pub json: bool,
}

/// Runs the experiment in `file`, and prints its results.
///
/// # Errors
/// It is refused, or stopped early, and why.
pub fn run(kinds: &Kinds, file: &Path, options: &Options<'_>) -> Result<ExitCode, Failure> {
    let Options { wanted, out, .. } = options;
    let experiment = kinds.load(file, options.agent)?;
    experiment.check(wanted)?;
    let (name, digest, host) = (experiment.name(), experiment.digest()?, wanted.host.name());
    let folder = wave_report::folder(out, name, host);
    wave_report::check_host(&folder, host)?;
    let journal = Journal::open(&folder, Identity::new(name, &digest, host), options.resume)?;
    let journal = Arc::new(journal);
    let kept = |failure: Failure| match journal.kept() {
        Some(kept) => failure.and(&kept),
        None => failure,
    };
    let report = experiment.run(wanted, &journal).map_err(kept)?;
    let directory = report.write(out).map_err(kept)?;
    journal.finish()?;
    show(&*report, options.json, directory)
}

/// Prints the tables and the page of a result, which is in `directory`; or with `json` the object.
///
/// # Errors
/// The result cannot be made JSON.
pub fn show(report: &dyn Report, json: bool, directory: PathBuf) -> Result<ExitCode, Failure> {
    if json {
        out!("{}", report.json()?);
    } else {
        out!("{}\nReport: {}", report.text(), directory.join("report.html").display());
    }
    let failed = report.failed();
    for check in &failed {
        note!("wave run: check failed: {check}");
    }
    Ok(match failed.is_empty() {
        false => ExitCode::from(1),
        true if !report.is_measured() => ExitCode::from(NOT_MEASURED),
        true => ExitCode::SUCCESS,
    })
}
