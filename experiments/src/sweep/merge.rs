//! Makes results from a complete store.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};
use wave_workloads::point::{Point, SearchResult};

use super::experiment_run::figures;
use super::plan::{Axis, Manifest, OneVariant, Row};
use super::shard::Shard;
use super::store::{Measured, Store};
use wave_report::sweep as report;
use wave_terminal::Failure;
use wave_terminal::interrupt::quoted;

/// Names of the files that [`merge`] writes.
pub const FILES: [&str; 3] = ["results.json", "results.csv", "report.html"];

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Merged {
    pub scenario: String,
    /// Version of the program that ran the points.
    pub version: String,
    pub points: usize,
    /// Number of rows in the results: a point shared by several combinations is in each of their rows.
    pub rows: usize,
    /// A row per combination, for a terminal.
    #[serde(skip)]
    pub table: String,
}

/// The points that an incomplete store lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    pub scenario: String,
    pub points: usize,
    /// Ids of the missing points.
    pub missing: Vec<String>,
    /// Of these, the ones with damaged files.
    pub damaged: Vec<String>,
    /// Commands that run them, one for each incomplete shard: shard, number of points it lacks, command.
    pub commands: Vec<(String, usize, String)>,
}

/// Writes the results of the store in `root`, if it is complete.
///
/// # Errors
/// `root` is not a store, cannot be read or cannot be written.
pub fn merge(root: &Path) -> Result<Result<Merged, Missing>, Failure> {
    let (store, manifest) = Store::existing(root)?;
    let found = match read(&store, &manifest, root)? {
        Ok(found) => found,
        Err(missing) => return Ok(Err(missing)),
    };
    let figures = figures_of(&found);
    let sheet = sheet(&manifest, &found, &figures);
    let cannot = |error: wave_report::ReportError| Failure::cannot(error);
    let contents = [
        results(&manifest, &found),
        report::csv(&sheet),
        report::page(&sheet).map_err(cannot)?.into_bytes(),
    ];
    for (file, content) in FILES.iter().zip(&contents) {
        store.replace(file, content)?;
    }
    // The store is complete, so no shard is still writing.
    store.sweep_up();
    Ok(Ok(Merged {
        table: report::text(&sheet),
        points: manifest.points.len(),
        rows: manifest.rows.len(),
        scenario: manifest.scenario.clone(),
        version: manifest.version.clone(),
    }))
}

/// A row per combination of the store in `root`, for a terminal; None while points are missing.
///
/// # Errors
/// `root` is not a store, or cannot be read.
pub fn table(root: &Path) -> Result<Option<String>, Failure> {
    let (store, manifest) = Store::existing(root)?;
    let found = read(&store, &manifest, root)?;
    let text = |found| report::text(&sheet(&manifest, &found, &figures_of(&found)));
    Ok(found.ok().map(text))
}

/// All points of a store, by id, or those that it lacks.
fn read<'a>(
    store: &Store,
    manifest: &'a Manifest,
    root: &Path,
) -> Result<Result<HashMap<&'a str, Measured>, Missing>, Failure> {
    let mut found = HashMap::with_capacity(manifest.points.len());
    let (mut missing, mut damaged) = (Vec::new(), Vec::new());
    for (number, id) in manifest.points.iter().enumerate() {
        match store.read(id)? {
            Some(stored) => {
                found.insert(id.as_str(), stored.measured);
            }
            None => {
                missing.push(number);
                if store.point_file(id).exists() {
                    damaged.push(id.clone());
                }
            }
        }
    }
    if !missing.is_empty() {
        return Ok(Err(Missing {
            commands: commands(root, store, &missing),
            scenario: manifest.scenario.clone(),
            points: manifest.points.len(),
            missing: missing.iter().map(|number| manifest.points[*number].clone()).collect(),
            damaged,
        }));
    }
    Ok(Ok(found))
}

/// A command for each shard that lacks some of the points with the numbers in `missing`.
fn commands(root: &Path, store: &Store, missing: &[usize]) -> Vec<(String, usize, String)> {
    let marks = store.shards();
    // Shards of several counts may have been started; the finest division takes the least time.
    let (count, mark) =
        marks.last().map_or((1, "SCENARIO.toml"), |(shard, mark)| (shard.count, mark.as_str()));
    let (file, agent) = mark.split_once('\n').map_or((mark, None), |(file, own)| (file, Some(own)));
    let lacks = |index| {
        let shard = Shard { index, count };
        let points = missing.iter().filter(|number| shard.has(**number)).count();
        let mut command =
            format!("wave sweep {} --out {}", quoted(file), quoted(&root.display().to_string()));
        if let Some(agent) = agent {
            command.push_str(&format!(" --agent {}", quoted(agent)));
        }
        if count > 1 {
            command.push_str(&format!(" --shard {shard}"));
        }
        (points > 0).then(|| (shard.to_string(), points, command))
    };
    // The number of shards that lack points is at most the number of missing points.
    let mut indexes: Vec<usize> = missing.iter().map(|number| number % count).collect();
    indexes.sort_unstable();
    indexes.dedup();
    indexes.into_iter().filter_map(lacks).collect()
}

/// Figures of whole experiments, by point.
type Figures<'a> = HashMap<&'a str, Vec<(String, f64)>>;

fn figures_of<'a>(found: &HashMap<&'a str, Measured>) -> Figures<'a> {
    let figures = |(id, measured): (&&'a str, &Measured)| match measured {
        Measured::Run(result) => Some((*id, figures(result))),
        _ => None,
    };
    found.iter().filter_map(figures).collect()
}

/// The result shown in a row: a point, and the saturation if it was searched for.
fn shown(measured: &Measured) -> (Option<&Point>, Option<&SearchResult>) {
    match measured {
        Measured::Run(_) => (None, None),
        Measured::Point(point) => (Some(point), None),
        Measured::Search(search) => {
            let at = |point: &&Point| {
                Some(point.offered_per_second) == search.saturation_per_second
                    && point.generator.valid
            };
            (search.points.iter().rfind(at), Some(search))
        }
    }
}

/// All results, as one object.
#[derive(Serialize)]
struct Results<'a> {
    scenario: &'a str,
    description: &'a str,
    version: &'a str,
    is_simulated: bool,
    axes: &'a [Axis],
    rows: Vec<ResultRow<'a>>,
}

#[derive(Serialize)]
struct ResultRow<'a> {
    id: &'a str,
    /// The value of each axis, by its path.
    axes: Map<String, Value>,
    /// None if the row is a whole experiment.
    #[serde(flatten)]
    one: Option<&'a OneVariant>,
    #[serde(flatten)]
    measured: &'a Measured,
}

fn results(manifest: &Manifest, found: &HashMap<&str, Measured>) -> Vec<u8> {
    let row = |row: &'_ Row| -> Map<String, Value> {
        let axes = manifest.axes.iter().zip(&row.at);
        axes.map(|(axis, at)| (axis.path.clone(), axis.values[*at].clone())).collect()
    };
    let rows = manifest.rows.iter().map(|each| ResultRow {
        id: &each.point,
        axes: row(each),
        one: each.one.as_ref(),
        measured: &found[each.point.as_str()],
    });
    let results = Results {
        scenario: &manifest.scenario,
        description: &manifest.description,
        version: &manifest.version,
        is_simulated: manifest.is_simulated,
        axes: &manifest.axes,
        rows: rows.collect(),
    };
    let mut text = serde_json::to_vec_pretty(&results).expect("results have string keys only");
    text.push(b'\n');
    text
}

fn sheet<'a>(
    manifest: &'a Manifest,
    found: &'a HashMap<&str, Measured>,
    figures: &'a Figures<'_>,
) -> report::Sheet<'a> {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let axis = |axis: &Axis| report::Axis {
        name: axis.path.clone(),
        values: axis.values.iter().map(plain).collect(),
    };
    let row = |row: &'a Row| {
        let (point, search) = shown(&found[row.point.as_str()]);
        report::Row {
            id: &row.point,
            at: &row.at,
            one: row.one.as_ref().map(|one| report::OneVariant {
                variant: &one.variant,
                placement: &one.placement,
                link: &one.link,
                policy: &one.policy,
                workers: one.workers,
                seed: one.seed,
                load_per_second: one.load_per_second,
            }),
            search,
            point,
            figures: figures.get(row.point.as_str()).map_or(&[], Vec::as_slice),
        }
    };
    report::Sheet {
        scenario: &manifest.scenario,
        description: &manifest.description,
        version: &manifest.version,
        is_simulated: manifest.is_simulated,
        points: manifest.points.len(),
        axes: manifest.axes.iter().map(axis).collect(),
        rows: manifest.rows.iter().map(row).collect(),
    }
}
