//! Experiments of `wave run`, of several kinds. Each kind reads its file, runs on the hosts that it supports, and makes a
//! report.
//!
//! [`KINDS`] lists them. A new kind is a file in this folder, with its own part of [`wave_scenario`] for its fields, and a
//! line in that list.

mod bakeoff;
mod memory;
mod requests;
mod rpc;
mod udp;

pub(crate) use requests::scenario_of;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use wave_lab::Failure;
use wave_report::Report;

use crate::run::Journal;
use wave_apps::agent::{check_policy, policies_of};
use wave_apps::machine::hash;
use wave_scenario::error::check_files;
use wave_scenario::{ScenarioError, kind_of, refuse_sweep};

/// The side that enforces decisions in an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// Processes on this machine.
    User,
    /// A simulated machine, in virtual time.
    Sim,
}

impl Host {
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Sim => "sim",
        }
    }
}

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub host: Host,
    pub quiet: bool,
    /// Whether cores, queues and outcomes are shown on the terminal during the run.
    pub live: bool,
    /// Directory for the agents' logs; None to write no logs.
    pub record: Option<&'a Path>,
}

/// An experiment, as read from its file.
pub trait Experiment {
    /// Name of the experiment, and of the folder of its results.
    fn name(&self) -> &str;

    /// Hash of the experiment and of the files that it names.
    ///
    /// # Errors
    /// A file that it names cannot be read.
    fn digest(&self) -> Result<String, Failure>;

    /// Refuses options that this kind does not support. Called before anything is written.
    ///
    /// # Errors
    /// Names the unsupported option.
    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure>;

    /// Runs the points that are not in `journal`.
    ///
    /// # Errors
    /// Why the experiment stopped early.
    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure>;
}

/// Refuses `--live`, for kinds that have nothing to watch.
fn without_live(kind: &str, name: &str, wanted: &Wanted<'_>) -> Result<(), Failure> {
    match wanted.live {
        false => Ok(()),
        true => Err(Failure::Scenario(format!("{name}: kind = \"{kind}\" takes no --live"))),
    }
}

/// Source of an experiment.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    agent: Option<&'a OwnAgent>,
}

/// A user's program, started in place of every agent.
#[derive(Debug)]
pub struct OwnAgent {
    program: PathBuf,
    /// Names of its policies for threads.
    policies: Vec<String>,
    /// Policies that the program was asked about, and its answers.
    asked: Mutex<HashMap<String, Result<(), String>>>,
}

impl OwnAgent {
    /// Asks the program for its policies.
    ///
    /// # Errors
    /// It cannot be started, or lists none.
    pub fn new(program: &Path) -> Result<OwnAgent, Failure> {
        let policies = policies_of(program)?;
        Ok(OwnAgent { program: program.to_owned(), policies, asked: Mutex::default() })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Asks the program, once, whether it accepts a policy.
    fn check(&self, policy: &str) -> Result<(), String> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let ask = || check_policy(&self.program, policy);
        asked.entry(policy.to_owned()).or_insert_with(ask).clone()
    }
}

/// A kind of experiment: its values of `kind`, and its parser.
struct Kind {
    names: &'static [&'static str],
    /// Whether its agents may be a user's program.
    takes_agent: bool,
    read: fn(&Source<'_>) -> Result<Box<dyn Experiment>, ScenarioError>,
}

/// All kinds. The first reads files without a `kind`, and refuses them.
const KINDS: &[Kind] = &[
    requests::KIND,
    memory::KIND,
    rpc::KIND,
    udp::OUTSTANDING,
    udp::PREEMPTION,
    udp::FEEDBACK,
    bakeoff::KIND,
];

/// Every value of `kind`.
pub(crate) fn kinds() -> Vec<&'static str> {
    KINDS.iter().flat_map(|kind| kind.names).copied().collect()
}

/// Reads the experiment in `path`. With `agent`, that program is started in place of every agent.
///
/// # Errors
/// Says which file, which line and why; or that the agent does not exist.
pub fn load(path: &Path, agent: Option<&Path>) -> Result<Box<dyn Experiment>, Failure> {
    let wrong = |error: ScenarioError| Failure::Scenario(error.to_string());
    let text = std::fs::read_to_string(path);
    let text =
        text.map_err(|source| wrong(ScenarioError::Read { file: path.to_path_buf(), source }))?;
    let kind = kind(path, &text).map_err(wrong)?;
    if agent.is_some() && !kind.takes_agent {
        return Err(Failure::Scenario(format!("{}: {NO_AGENT}", path.display())));
    }
    let own = agent.map(OwnAgent::new).transpose()?;
    refuse_sweep(path, &text).map_err(wrong)?;
    let experiment = (kind.read)(&Source { path, text: &text, agent: own.as_ref() });
    let experiment = experiment.map_err(wrong)?;
    check_files(path, &text).map_err(wrong)?;
    Ok(experiment)
}

/// Reads the experiment in `text`, whose file is `path`.
///
/// # Errors
/// The line at fault, and why; or that this kind takes no `agent`.
pub(crate) fn read(
    path: &Path,
    text: &str,
    agent: Option<&OwnAgent>,
) -> Result<Box<dyn Experiment>, ScenarioError> {
    let kind = kind(path, text)?;
    if agent.is_some() && !kind.takes_agent {
        return Err(ScenarioError::meaning(path, 1, NO_AGENT.to_owned()));
    }
    (kind.read)(&Source { path, text, agent })
}

/// Refuses `--agent` for kinds whose agents do not schedule threads.
const NO_AGENT: &str = "--agent is for scenarios that schedule threads";

fn kind(path: &Path, text: &str) -> Result<&'static Kind, ScenarioError> {
    let name = kind_of(path, text, &kinds())?;
    let is_it = |kind: &&Kind| name.as_deref().is_some_and(|name| kind.names.contains(&name));
    Ok(KINDS.iter().find(is_it).unwrap_or(&KINDS[0]))
}

/// Hash of an experiment and of the contents of these files.
fn digest<'a>(
    experiment: &impl Serialize,
    files: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<String, Failure> {
    let mut text = serde_json::to_vec(experiment).expect("experiments have string keys only");
    for file in files {
        let content = std::fs::read(file).map_err(|error| {
            let file = file.display();
            Failure::Scenario(format!("{file}: cannot be read: {error}; named by the scenario"))
        })?;
        text.extend(content);
    }
    Ok(hash(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_unique() {
        let names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len(), "{names:?}");
    }

    #[test]
    fn shipped_experiments_are_accepted_and_named_after_their_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut count = 0;
        for file in files.filter(|file| file.extension().is_some_and(|end| end == "toml")) {
            let text = std::fs::read_to_string(&file).unwrap();
            // Scenarios that schedule requests may have a [sweep]: a test of wave-scenario reads those.
            if kind(&file, &text).unwrap().takes_agent {
                continue;
            }
            let experiment = load(&file, None).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(Some(experiment.name()), file.file_stem().and_then(|stem| stem.to_str()));
            count += 1;
        }
        assert!(count >= 6, "only {count} experiments");
    }

    #[test]
    fn missing_scenario_file_is_named() {
        let refused = load(Path::new("scenarios/none.toml"), None).err().expect("no such file");
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.to_string().starts_with("scenarios/none.toml: cannot be read: "));
    }

    #[test]
    fn wrong_kind_is_reported_before_unknown_fields() {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        // Fields of other kinds come first, which this kind would not have either.
        for kind in ["\"lod\"", "3", "\"Memory\""] {
            let text = format!("steer = 1\n\nkind = {kind}\n[memory]\nswap = \"1GiB\"\n");
            std::fs::write(file.path(), &text).unwrap();
            let at =
                format!("{}:3: `kind` is {kind}, expected one of `load`, ", file.path().display());
            let refused = load(file.path(), None).err().expect("no such kind").to_string();
            assert!(refused.starts_with(&at), "{refused}");
            assert!(
                refused.contains(
                    "`memory`, `rpc`, `udp`, `udp-preemption`, `udp-feedback`, `memory-bakeoff`"
                ),
                "{refused}"
            );
        }
    }

    #[test]
    fn missing_cost_file_is_reported_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.toml");
        let text = "name = \"x\"\nkind = \"udp\"\n[run]\noutstanding = [1]\n[host]\nlink = \"model:mine.toml\"\n";
        std::fs::write(&file, text).unwrap();
        let refused = load(&file, None).err().expect("no such file").to_string();
        let mine = folder.path().join("mine.toml");
        let expected =
            format!("{}:6: `link`: {}: cannot be read: ", file.display(), mine.display());
        assert!(refused.starts_with(&expected), "{refused}");
    }

    #[test]
    fn missing_kind_is_refused_with_a_list_of_all_kinds() {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let refusal = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            load(file.path(), None).err().expect("no kind").to_string()
        };
        let at = format!("{}:1: ", file.path().display());
        let refused = refusal("name = \"x\"\n[run]\n");
        assert!(refused.starts_with(&format!("{at}`kind` is missing, expected one of `load`, ")));
        assert!(kinds().iter().all(|kind| refused.contains(&format!("`{kind}`"))), "{refused}");
        assert!(refusal("[[enclave]]\nname = \"a\"\n").ends_with("wave run --host linux FILE"));
    }

    #[test]
    fn custom_agent_is_refused_by_kinds_that_do_not_schedule_threads() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        for file in [
            "rocksdb-sol.toml",
            "rpc-rocksdb.toml",
            "udp-outstanding.toml",
            "mtg-fig2.toml",
            "udp-feedback.toml",
            "memory-bakeoff.toml",
        ] {
            let refusal = load(&folder.join(file), Some(Path::new("x"))).err().expect(file);
            let expected = "--agent is for scenarios that schedule threads";
            assert!(refusal.to_string().ends_with(expected), "{refusal}");
        }
    }
}
