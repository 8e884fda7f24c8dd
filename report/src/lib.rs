//! Results of runs: on disk, in the terminal and as one JSON object.
//!
//! [`write()`] puts a [`RunResult`] under `out/<scenario>/`; [`terminal::summary`] is the same for a terminal. This
//! crate computes no results: it shows the [`model`], and knows nothing about how the figures were obtained.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

mod compared;
mod conclusion;
mod csv;
mod histograms;
mod html;
mod ladder;
pub mod model;
pub mod number;
mod paired;
pub mod plot;
mod points;
mod save;
pub mod sweep;
pub mod terminal;

pub use csv::csv;
pub use html::{document, facts, figure, table};
pub use model::RunResult;
pub use save::{Directory, ReportError, make_folder};

use std::path::{Path, PathBuf};

use wave_terminal::Failure;

/// The result of an experiment.
pub trait Report {
    fn text(&self) -> String;

    /// As one object on one line.
    ///
    /// # Errors
    /// The result has no JSON form.
    fn json(&self) -> Result<String, Failure>;

    /// Writes its files, among them the page `report.html`, into a folder of its own below `out`, and returns that folder.
    ///
    /// # Errors
    /// Says which file could not be written.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure>;

    /// Checks that failed, in words; empty if all passed.
    fn failed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether there is a result: false if no point is valid, or if the figure that the scenario asks for is unknown.
    fn is_measured(&self) -> bool {
        true
    }
}

/// `name` as part of a file name: lower-case letters, digits and single hyphens; empty if it has no letter or digit.
pub fn slug(name: &str) -> String {
    let mut slug = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_alphanumeric() {
            slug.push(letter.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    slug
}

/// Folder below `out` for the results of `scenario`. Simulated and measured results have separate folders.
pub fn folder(out: &Path, scenario: &str, host: &str) -> PathBuf {
    let name = slug(scenario);
    out.join(if host == "sim" { format!("{name}.sim") } else { name })
}

/// Fails if `folder` holds the results of a run on a host other than `host`.
pub fn check_host(folder: &Path, host: &str) -> Result<(), ReportError> {
    #[derive(serde::Deserialize)]
    struct Results {
        host: String,
    }
    let file = folder.join(RESULTS);
    let there =
        std::fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Results>(&text).ok());
    match there {
        Some(there) if there.host != host => {
            Err(ReportError::OtherHost { file, there: there.host, host: host.to_owned() })
        }
        _ => Ok(()),
    }
}

/// File with the whole result as one object.
const RESULTS: &str = "results.json";

/// Writes every file of `result` into its [`folder`] below `out`, and returns the folder.
///
/// Each file appears whole or not at all. Files of an earlier run that this run does not replace are removed.
///
/// # Errors
/// Says which file could not be written, or which plot could not be drawn.
pub fn write(result: &RunResult, out: &Path) -> Result<PathBuf, ReportError> {
    let directory = folder(out, &result.scenario, &result.host);
    check_host(&directory, &result.host)?;
    let directory = Directory::create(directory)?;
    let plots = plot::all(result)?;
    directory.write("points.csv", &points::csv(result))?;
    directory.write("points.jsonl", &points::json_lines(result)?)?;
    directory.replace("histograms", &histograms::files(result))?;
    for (name, svg) in plots.files() {
        match svg {
            Some(svg) => directory.write(name, svg.as_bytes())?,
            None => directory.remove(name)?,
        }
    }
    directory.write("report.html", html::page(result, &plots).as_bytes())?;
    directory.write(RESULTS, format!("{}\n", object(result)).as_bytes())?;
    Ok(directory.into_path())
}

/// `result` without its histograms, which are in their own files.
fn without_histograms(result: &RunResult) -> RunResult {
    let mut slim = result.clone();
    for point in slim.variants.iter_mut().flat_map(|variant| &mut variant.points) {
        for class in &mut point.classes {
            class.histogram = String::new();
        }
    }
    slim
}

/// The whole of `result`, including histograms, its banner and its conclusion, as one object. Numbers that are not finite become null.
fn to_json(result: &RunResult) -> serde_json::Value {
    let mut json = serde_json::to_value(result)
        .expect("the model has string keys only, so it always has a JSON form");
    json["banner"] = result.banner().into();
    json["conclusion"] = conclusion::of(result).into();
    json
}

/// The object to print and write. Histograms stay in their own files, and fields of this kind of run only stand beside the
/// common ones.
pub fn object(result: &RunResult) -> serde_json::Value {
    let mut json = to_json(&without_histograms(result));
    if let Some(object) = json.as_object_mut() {
        let extra = object.get_mut("extra").map(serde_json::Value::take);
        object.retain(|name, _| name != "extra");
        if let Some(serde_json::Value::Object(extra)) = extra {
            object.extend(extra);
        }
    }
    json
}

#[cfg(test)]
pub mod sample;
#[cfg(test)]
mod tests;
