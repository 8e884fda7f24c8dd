//! Results: what was measured, on disk, in the terminal and as one object of JSON.
//!
//! [`write()`] puts a [`RunResult`] under `out/<scenario>/`, [`terminal::summary`] is the same for a terminal. This
//! module computes no result: what it shows is in the [`model`], and it knows nothing of how that came about.

mod compared;
mod histograms;
mod html;
pub mod model;
pub mod number;
pub mod plot;
mod points;
pub mod progress;
mod save;
pub mod sweep;
pub mod terminal;

pub use html::{STYLE, figure};
pub use model::RunResult;
pub use progress::Progress;
pub use save::{Directory, ReportError};

use std::path::{Path, PathBuf};

use crate::scenario::slug;

/// Writes every file of `result` under `out`, in a directory named after the scenario, and returns that directory.
///
/// Each file appears whole or not at all; files of an earlier run that have no successor in this one are removed.
///
/// # Errors
/// Says which file could not be written, or which plot could not be drawn.
pub fn write(result: &RunResult, out: &Path) -> Result<PathBuf, ReportError> {
    let directory = Directory::create(out.join(slug(&result.scenario)))?;
    let plots = plot::all(result)?;
    directory.write("points.csv", &points::csv(result)?)?;
    directory.write("points.jsonl", &points::json_lines(result)?)?;
    directory.replace("histograms", &histograms::files(result))?;
    for (name, svg) in plots.files() {
        match svg {
            Some(svg) => directory.write(name, svg.as_bytes())?,
            None => directory.remove(name)?,
        }
    }
    directory.write("report.html", html::page(result, &plots).as_bytes())?;
    Ok(directory.into_path())
}

/// The whole of `result`, histograms included, as one object. A number that is not finite becomes null.
pub fn to_json(result: &RunResult) -> serde_json::Value {
    serde_json::to_value(result)
        .expect("the model has string keys only, so it always has a JSON form")
}

#[cfg(test)]
pub mod sample;
#[cfg(test)]
mod tests;
