//! The plan of a sweep: points to run, and rows to show.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::axes::{Sweep, SweepAxis, parse_sweep};
use super::experiment_run::ExperimentRun;
use crate::ground::fields::Link;
use crate::kinds::requests::scenario::{Machine, Run, Scenario, Scheduler, Variant};
use crate::kinds::requests::{has_points, scenario_of};
use crate::kinds::{Host, Kinds, OwnAgent};
use wave_apps::machine::hash;
use wave_scenario::{ScenarioError, Source};
use wave_terminal::Failure;

/// Version of the files' format in a store; any other is refused.
const FORMAT: u32 = 2;

/// A sweep's scenario, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The manifest that the store keeps.
    pub manifest: Manifest,
    /// The points, in the order of [`Manifest::points`].
    pub jobs: Vec<Job>,
}

/// A store's description of its sweep. Two processes with the same file and version write the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the files' format.
    pub format: u32,
    pub scenario: String,
    pub description: String,
    /// Version of the program that runs the points.
    pub version: String,
    /// Whether points are simulated; otherwise they run on this machine.
    pub is_simulated: bool,
    pub axes: Vec<Axis>,
    /// Ids of the points, each once, in the order in which shards count them.
    pub points: Vec<String>,
    /// Every combination of values, and of variant and load if points have them, in that order.
    pub rows: Vec<Row>,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Path into the scenario file.
    pub path: String,
    /// The values at that path, in the file's order.
    pub values: Vec<Value>,
}

/// One combination of values, variant and load. Rows that differ only in values on which their variant does not depend (an
/// agent's settings without an agent, for example) share a point, which is run once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub point: String,
    /// Index of each axis' value, from 0.
    pub at: Vec<usize>,
    /// None if the point is a whole experiment.
    pub one: Option<OneVariant>,
}

/// A variant under a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneVariant {
    pub variant: String,
    /// `linux`, `onhost` or `offload`.
    pub placement: String,
    /// As in the scenario; empty without an agent.
    pub link: String,
    /// As in the scenario; empty without an agent.
    pub policy: String,
    pub workers: u32,
    /// Seed of every random stream.
    pub seed: u64,
    /// Requests per second; None if the point is a search for the saturation.
    pub load_per_second: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Hash of everything that the point depends on, in 16 hexadecimal digits.
    pub id: String,
    /// Description for progress and errors.
    pub label: String,
    pub work: Work,
}

/// The work of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// One variant, and one load or search: the point depends on nothing else.
    Point(Box<Scenario>),
    Run(ExperimentRun),
}

impl Plan {
    /// Makes the plan of the scenario file at `path`, for `version` of the program. With `agent`, its policies are those of that
    /// program.
    ///
    /// # Errors
    /// [`Failure::Scenario`], with file, line and what is allowed there.
    pub fn load(
        kinds: &Kinds,
        path: &Path,
        agent: Option<&OwnAgent>,
        version: &str,
    ) -> Result<Plan, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::Scenario(format!("{}: cannot be read: {error}", path.display()))
        })?;
        Plan::new(kinds, path, &text, agent, version)
    }

    /// Makes the plan of the file's `text`; reads the files that it names.
    pub fn new(
        kinds: &Kinds,
        path: &Path,
        text: &str,
        agent: Option<&OwnAgent>,
        version: &str,
    ) -> Result<Plan, Failure> {
        let wrong = |error: ScenarioError| Failure::Scenario(error.to_string());
        if has_points(path, text) {
            let read = |text: &str| scenario_of(&Source::new(path, text), agent);
            let sweep = parse_sweep(path, text, &read).map_err(wrong)?;
            Plan::of_points(path, text, version, &sweep)
        } else {
            let read = |text: &str| ExperimentRun::read(kinds, path, text, agent);
            let sweep = parse_sweep(path, text, &read).map_err(wrong)?;
            Plan::of_runs(path, text, version, sweep)
        }
    }

    fn of_points(
        path: &Path,
        text: &str,
        version: &str,
        sweep: &Sweep<Scenario>,
    ) -> Result<Plan, Failure> {
        let mut files = Files::default();
        let (mut jobs, mut rows, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for expansion in &sweep.expansions {
            let expanded = &expansion.scenario;
            for variant in &expanded.variants {
                for load in loads(&expanded.run) {
                    let scenario = only(expanded, variant, load);
                    let id = id(&scenario, version, &mut files)?;
                    let row = row(&id, &expansion.at, &scenario);
                    if known.insert(id.clone()) {
                        let label = label(&sweep.axes, &row);
                        jobs.push(Job { id, label, work: Work::Point(Box::new(scenario)) });
                    }
                    rows.push(row);
                }
            }
        }
        let Scenario { name, description, .. } = &sweep.expansions[0].scenario;
        let manifest = manifest(name, description, text, version, &sweep.axes);
        Plan::with(path, manifest, &sweep.axes, jobs, rows)
    }

    fn of_runs(
        path: &Path,
        text: &str,
        version: &str,
        sweep: Sweep<ExperimentRun>,
    ) -> Result<Plan, Failure> {
        let ExperimentRun { name, description, .. } = &sweep.expansions[0].scenario;
        let is_simulated = sweep.expansions.iter().all(|each| each.scenario.host == Host::Sim);
        let manifest = manifest(name, description, text, version, &sweep.axes);
        let manifest = Manifest { is_simulated, ..manifest };
        let (mut jobs, mut rows, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for expansion in sweep.expansions {
            let id = expansion.scenario.id(version);
            let row = Row { point: id.clone(), at: expansion.at, one: None };
            if known.insert(id.clone()) {
                let label = label(&sweep.axes, &row);
                jobs.push(Job { id, label, work: Work::Run(expansion.scenario) });
            }
            rows.push(row);
        }
        Plan::with(path, manifest, &sweep.axes, jobs, rows)
    }

    fn with(
        path: &Path,
        manifest: Manifest,
        axes: &[SweepAxis],
        jobs: Vec<Job>,
        rows: Vec<Row>,
    ) -> Result<Plan, Failure> {
        idle_axis(path, axes, &rows)?;
        let points = jobs.iter().map(|job| job.id.clone()).collect();
        Ok(Plan { manifest: Manifest { points, rows, ..manifest }, jobs })
    }
}

/// A manifest of simulated points, without points and rows.
fn manifest(
    scenario: &str,
    description: &str,
    text: &str,
    version: &str,
    axes: &[SweepAxis],
) -> Manifest {
    let axis = |axis: &SweepAxis| Axis {
        path: axis.path.clone(),
        values: axis.values.iter().map(json).collect(),
    };
    Manifest {
        format: FORMAT,
        scenario: scenario.to_owned(),
        description: description.to_owned(),
        version: version.to_owned(),
        is_simulated: true,
        axes: axes.iter().map(axis).collect(),
        points: Vec::new(),
        rows: Vec::new(),
        text: text.to_owned(),
    }
}

impl Manifest {
    /// Parses the manifest in `text`, if this program understands its format.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_str(text)
            .map_err(|error| wave_process::words::plain(&error.to_string(), "an object"))?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, this program's is {FORMAT}", manifest.format));
        }
        let known: HashSet<&String> = manifest.points.iter().collect();
        let fits = |row: &Row| {
            let within =
                row.at.iter().zip(&manifest.axes).all(|(at, axis)| *at < axis.values.len());
            known.contains(&row.point) && row.at.len() == manifest.axes.len() && within
        };
        if !manifest.points.iter().all(|id| is_id(id)) || !manifest.rows.iter().all(fits) {
            return Err("its rows do not fit its points and axes".to_owned());
        }
        Ok(manifest)
    }

    /// The scenario as text of TOML.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("manifests have string keys only");
        text + "\n"
    }
}

/// Whether `text` can be a point's id, and so a file's name.
fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The loads of one variant, each on its own; None for a search.
fn loads(run: &Run) -> Vec<Option<f64>> {
    match run.search {
        None => run.loads_per_second.iter().copied().map(Some).collect(),
        Some(_) => vec![None],
    }
}

/// `scenario` with only `variant`, and with only this load, if it is given.
fn only(scenario: &Scenario, variant: &Variant, load: Option<f64>) -> Scenario {
    let mut only = scenario.clone();
    only.variants = vec![variant.clone()];
    only.run.loads_per_second = load.into_iter().collect();
    only
}

/// Hash of everything that the point depends on: its configuration with the seed, and the program's version.
///
/// A cost file, of the link or the machine, and the agent's program count by their contents: their paths differ between machines.
fn id(scenario: &Scenario, version: &str, files: &mut Files) -> Result<String, Failure> {
    let mut canonical = scenario.clone();
    canonical.description.clear();
    if let Machine::File(path) = &canonical.machine {
        canonical.machine = Machine::File(files.digest(path)?.into());
    }
    for variant in &mut canonical.variants {
        let Scheduler::Agent(agent) = &mut variant.scheduler else { continue };
        if let Link::File(path) = &agent.link {
            agent.link = Link::File(files.digest(path)?.into());
        }
        if let Some(program) = &agent.program {
            agent.program = Some(files.digest(program)?.into());
        }
    }
    #[derive(Serialize)]
    struct Identity<'a> {
        configuration: &'a Scenario,
        version: &'a str,
    }
    // Fields in declaration order, numbers in their shortest form: the same on every machine.
    let identity = Identity { configuration: &canonical, version };
    let text = serde_json::to_vec(&identity).expect("configurations have string keys only");
    Ok(hash(&text))
}

/// Digests of files, each read once.
#[derive(Debug, Default)]
struct Files(HashMap<PathBuf, String>);

impl Files {
    fn digest(&mut self, path: &Path) -> Result<String, Failure> {
        if let Some(digest) = self.0.get(path) {
            return Ok(digest.clone());
        }
        let bytes = std::fs::read(path).map_err(|error| {
            let file = path.display();
            Failure::Scenario(format!("{file}: cannot be read: {error}; named by the scenario"))
        })?;
        let digest = format!("sha256 {}", hash(&bytes));
        self.0.insert(path.to_path_buf(), digest.clone());
        Ok(digest)
    }
}

fn row(id: &str, at: &[usize], scenario: &Scenario) -> Row {
    let variant = &scenario.variants[0];
    let agent = variant.agent();
    let link = |link: &Link| match link {
        // Without the directory, which differs between machines.
        Link::File(path) => {
            format!("model:{}", path.file_name().unwrap_or_default().to_string_lossy())
        }
        other => other.to_string(),
    };
    Row {
        point: id.to_owned(),
        at: at.to_vec(),
        one: Some(OneVariant {
            variant: variant.name.clone(),
            placement: variant.placement().to_owned(),
            link: agent.map_or_else(String::new, |agent| link(&agent.link)),
            policy: agent.map_or_else(String::new, |agent| agent.policy.clone()),
            workers: variant.host.cores,
            seed: scenario.run.seed,
            load_per_second: scenario.run.loads_per_second.first().copied(),
        }),
    }
}

/// A label such as `host.cores = 16, offload: 50.0 k/s`.
fn label(axes: &[SweepAxis], row: &Row) -> String {
    let values = axes.iter().zip(&row.at);
    let values = values.map(|(axis, at)| format!("{} = {}", axis.path, axis.values[*at]));
    let one = row.one.as_ref().map(|one| match one.load_per_second {
        Some(load) => format!("{}: {:.1} k/s", one.variant, load / 1e3),
        None => format!("{}: saturation", one.variant),
    });
    let label: Vec<String> = values.chain(one).collect();
    if label.is_empty() { "the whole file".to_owned() } else { label.join(", ") }
}

/// Refuses an axis whose values make no difference: it is misspelt, or every variant overrides it.
fn idle_axis(path: &Path, axes: &[SweepAxis], rows: &[Row]) -> Result<(), Failure> {
    let variant = |row: &'_ Row| row.one.as_ref().map_or("", |one| one.variant.as_str()).to_owned();
    for (index, axis) in axes.iter().enumerate().filter(|(_, axis)| axis.values.len() > 1) {
        let mut seen: HashMap<(Vec<usize>, String, usize), &str> = HashMap::new();
        let (mut number, mut last) = (0, None);
        let differs = rows.iter().any(|row| {
            // Index among the loads of its variant: the loads themselves may be what varies.
            let here = Some((&row.at, variant(row)));
            number = if last == here { number + 1 } else { 0 };
            last = here;
            let mut others = row.at.clone();
            others[index] = 0;
            let first = seen.entry((others, variant(row), number)).or_insert(&row.point);
            *first != row.point
        });
        if !differs {
            let message = format!(
                "{}:{}: [sweep] \"{}\" makes no difference to any variant, expected a field that no \
                 variant overrides",
                path.display(),
                axis.line,
                axis.path
            );
            return Err(Failure::Scenario(message));
        }
    }
    Ok(())
}

fn json(value: &toml::Value) -> Value {
    serde_json::to_value(value).unwrap_or_else(|_| Value::String(value.to_string()))
}
