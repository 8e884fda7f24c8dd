//! Fields that scenarios of several kinds have.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wave_links::costs::Costs;
use wave_report::slug;
use wave_scenario::{ScenarioError, Source};

/// Maximum length of a name, because names become file names.
const NAME_MAX: usize = 100;
/// Maximum number of loads of a scenario.
const LOADS_MAX: usize = 1_000;
/// Minimum requests per second: fewer make no point.
pub const RATE_MIN: f64 = 0.001;
/// Maximum requests per second: more than any generator here makes, or any paper reports.
pub const RATE_MAX: f64 = 1e8;
/// Maximum number of requests of one point: a run with crashes remembers each.
const REQUESTS_MAX: f64 = 1e9;
/// The fewest rounds that give an interval.
const ROUNDS_MIN: u32 = 6;
/// Rounds of a native run whose scenario has no `run.rounds`.
const ROUNDS: u32 = 20;
/// The shortest warm-up of a trial and the shortest trial after it, where a point is divided among these rounds, in seconds.
const TRIAL_SECONDS: (f64, f64) = (0.015, 0.05);
/// First part of a point, which is not counted, unless the file says otherwise.
pub const WARMUP_SECONDS: f64 = 0.3;
/// Range of the clock rate of an agent's core, in GHz: from a microcontroller's to more than any processor's.
pub const GHZ_MIN: f64 = 0.1;
pub const GHZ_MAX: f64 = 10.0;

/// Names the folder of the results: lowercase letters, digits and single hyphens, 100 at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Name, String> {
        if (1..=NAME_MAX).contains(&name.len()) && slug(&name) == name {
            return Ok(Name(name));
        }
        let most = match name.len() > NAME_MAX {
            true => format!(", {NAME_MAX} at most"),
            false => String::new(),
        };
        Err(format!("\"{name}\", expected lowercase letters, digits and single hyphens{most}"))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The link between host and agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub enum Link {
    /// Coherent shared memory, not modelled.
    #[default]
    Shm,
    /// A model with costs built into the program (`wave_links::costs`).
    Builtin(String),
    /// A model with the costs in this file. Only the file says whether it is coherent.
    File(PathBuf),
}

impl TryFrom<String> for Link {
    type Error = String;

    fn try_from(text: String) -> Result<Link, String> {
        match text.strip_prefix("model:") {
            None if text == "shm" => Ok(Link::Shm),
            Some(file) if file.ends_with(".toml") => Ok(Link::File(file.into())),
            Some(name) if Costs::builtin(name).is_some() => Ok(Link::Builtin(name.to_owned())),
            _ => {
                let names = Costs::builtin_names().iter().map(|name| format!("`model:{name}`"));
                Err(format!(
                    "\"{text}\", expected one of `shm`, {}, `model:` and a path to a .toml file",
                    names.collect::<Vec<_>>().join(", ")
                ))
            }
        }
    }
}

impl From<Link> for String {
    fn from(link: Link) -> String {
        link.to_string()
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shm => f.write_str("shm"),
            Self::Builtin(name) => write!(f, "model:{name}"),
            Self::File(path) => write!(f, "model:{}", path.display()),
        }
    }
}

impl Link {
    /// The file of a modelled link's costs, if it has one.
    pub fn file(&self) -> Option<&PathBuf> {
        match self {
            Link::File(file) => Some(file),
            Link::Shm | Link::Builtin(_) => None,
        }
    }

    /// The link with the path of its file starting from the folder of the scenario `file`.
    pub fn beside(self, file: &Path) -> Link {
        match self {
            Link::File(path) => Link::File(file.parent().unwrap_or(file).join(path)),
            other => other,
        }
    }
}

/// Trials of a native run: every variant runs each load once in each round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trials {
    pub rounds: u32,
    /// First part of a trial, which is not counted.
    pub warmup_seconds: f64,
    pub measured_seconds: f64,
}

impl Trials {
    /// The trials of a scenario with these fields. With 0 rounds its point of `seconds` is divided among the usual number.
    pub fn of(rounds: u32, seconds: f64, warmup_seconds: f64) -> Trials {
        let measured_seconds = seconds - warmup_seconds;
        if rounds > 0 {
            return Trials { rounds, warmup_seconds, measured_seconds };
        }
        let (rounds, least) = (ROUNDS, TRIAL_SECONDS);
        let share = |seconds: f64, least: f64| (seconds / f64::from(rounds)).max(least);
        Trials {
            rounds,
            warmup_seconds: share(warmup_seconds, least.0),
            measured_seconds: share(measured_seconds, least.1),
        }
    }

    pub fn seconds(&self) -> f64 {
        self.warmup_seconds + self.measured_seconds
    }
}

/// Checks variants' names, which name files of results: each is distinct from every other variant's.
pub fn distinct_names<'n>(
    source: &Source<'_>,
    names: impl Iterator<Item = &'n String>,
) -> Result<(), ScenarioError> {
    let mut files: Vec<String> = Vec::new();
    for (index, name) in names.enumerate() {
        let (at, file) = (format!("variant[{index}].name"), slug(name));
        if name.len() > NAME_MAX {
            let why =
                format!("`variant.name` has {} bytes, expected {NAME_MAX} at most", name.len());
            return Err(source.refuse(&at, why));
        }
        if file.is_empty() {
            let why = format!("`variant.name` is \"{name}\", expected letters or digits of ASCII");
            return Err(source.refuse(&at, why));
        }
        if files.contains(&file) {
            let why = format!(
                "`variant.name` is \"{name}\", whose file of results would be `{file}`, as another variant's; expected another name"
            );
            return Err(source.refuse(&at, why));
        }
        files.push(file);
    }
    Ok(())
}

/// Checks that there is a first value, that there are no more than `most`, and that they ascend.
pub fn ascending<T: PartialOrd + std::fmt::Display>(
    source: &Source<'_>,
    field: &str,
    values: &[T],
    most: usize,
) -> Result<(), ScenarioError> {
    if values.is_empty() {
        return Err(source.refuse(
            field,
            format!(
                "`{field}` is {}, expected at least one value",
                if source.has(field) { "empty" } else { "missing" }
            ),
        ));
    }
    if values.len() > most {
        let why = format!("`{field}` has {} values, expected {most} at most", values.len());
        return Err(source.refuse(field, why));
    }
    match (1..values.len()).find(|&at| values[at - 1] >= values[at]) {
        Some(at) => {
            let why = format!(
                "`{field}` has {} after {}, expected ascending values",
                values[at],
                values[at - 1]
            );
            Err(source.refuse(&format!("{field}[{at}]"), why))
        }
        None => Ok(()),
    }
}

/// Checks `run.loads_per_second`, offered for `seconds` each.
pub fn loads(source: &Source<'_>, loads: &[f64], seconds: f64) -> Result<(), ScenarioError> {
    let field = "run.loads_per_second";
    ascending(source, field, loads, LOADS_MAX)?;
    few_requests(source, field, loads[loads.len() - 1], seconds)
}

/// Refuses more requests in a point of `seconds` than memory and patience allow.
pub fn few_requests(
    source: &Source<'_>,
    field: &str,
    rate: f64,
    seconds: f64,
) -> Result<(), ScenarioError> {
    let requests = rate * seconds;
    if requests <= REQUESTS_MAX {
        return Ok(());
    }
    let why = format!(
        "`{field}` is {rate}, for {seconds} s: {requests:e} requests in one point, expected {REQUESTS_MAX:e} at most"
    );
    Err(source.refuse(field, why))
}

/// Refuses too few rounds; 0 is allowed where it is the default.
pub fn rounds(source: &Source<'_>, rounds: u32, default: u32) -> Result<(), ScenarioError> {
    if rounds >= ROUNDS_MIN || rounds == default {
        return Ok(());
    }
    let or_none = if default == 0 { "0, or " } else { "" };
    let why = format!(
        "`run.rounds` is {rounds}, expected {or_none}{ROUNDS_MIN} or more: fewer rounds give no interval"
    );
    Err(source.refuse("run.rounds", why))
}

/// The warm-up of a point of `seconds`: as written, or the usual one, but no more than half of the point.
pub fn warmup(
    source: &Source<'_>,
    written: Option<f64>,
    seconds: f64,
) -> Result<f64, ScenarioError> {
    let Some(warmup) = written else { return Ok(WARMUP_SECONDS.min(seconds / 2.0)) };
    let most = seconds * 0.9;
    match (0.0..=most).contains(&warmup) {
        true => Ok(warmup),
        false => {
            let why = format!("`run.warmup_seconds` is {warmup}, expected 0 to {most}");
            Err(source.refuse("run.warmup_seconds", why))
        }
    }
}

/// Lengths of a point's warm-up and of its counted part.
pub fn times(seconds: f64, warmup_seconds: Option<f64>) -> [Duration; 2] {
    let warmup = warmup_seconds.unwrap_or_default();
    [warmup, seconds - warmup].map(Duration::from_secs_f64)
}
