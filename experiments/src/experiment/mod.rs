//! What `wave run` runs: experiments of several kinds. Each kind reads its file, runs on the hosts that it has, and makes a report.
//!
//! [`KINDS`] lists them. A new kind is a file beside these, with its own part of [`crate::scenario`] for its fields, and a line in
//! that list.

mod bakeoff;
mod memory;
mod requests;
mod rpc;
mod udp;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use wave_lab::Failure;

use crate::run::Journal;
use crate::run::machine::hash;
use crate::scenario::error::check_files;
use crate::scenario::{ScenarioError, kind_of};

/// What enforces decisions in an experiment.
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

/// How an experiment is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub host: Host,
    pub quiet: bool,
    /// Whether cores, queues and outcomes are shown on the terminal while it runs.
    pub live: bool,
    /// The directory for agents' logs, if there are to be logs.
    pub record: Option<&'a Path>,
}

/// An experiment, as read from its file.
pub trait Experiment {
    /// Its name: that of the folder of its results.
    fn name(&self) -> &str;

    /// Hash of the experiment and of the files that it names.
    ///
    /// # Errors
    /// A file that it names cannot be read.
    fn digest(&self) -> Result<String, Failure>;

    /// Refuses options that this kind does not have. Called before anything is written.
    ///
    /// # Errors
    /// Says what it does not have.
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

/// What an experiment found.
pub trait Report {
    fn text(&self) -> String;

    /// As one object on one line.
    ///
    /// # Errors
    /// It has no such form.
    fn json(&self) -> Result<String, Failure>;

    /// Writes its files into a folder of its own below `out`, which is returned: among them the page `report.html`.
    ///
    /// # Errors
    /// Says which file could not be written.
    fn write(&self, out: &Path) -> Result<PathBuf, Failure>;

    /// Checks that failed, in words; empty where all is well.
    fn failed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether there is a result; false if other processes disturbed the run too much.
    fn is_measured(&self) -> bool {
        true
    }
}

/// Where an experiment comes from.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    /// A user's program that is started for every agent.
    agent: Option<&'a Path>,
}

impl Source<'_> {
    /// For kinds of experiments with Wave's own agents.
    fn without_agent(&self) -> Result<(), Failure> {
        match self.agent {
            None => Ok(()),
            Some(_) => {
                let why = "--agent is for scenarios that schedule threads";
                Err(Failure::Scenario(format!("{}: {why}", self.path.display())))
            }
        }
    }
}

/// A kind of experiment: the values of `kind` that it stands for, and its parser.
struct Kind {
    names: &'static [&'static str],
    read: fn(&Source<'_>) -> Result<Box<dyn Experiment>, Failure>,
}

/// All kinds. A file that names none is read by the first, which refuses it.
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

/// Reads the experiment in `path`. With `agent`, that program is started for every agent.
///
/// # Errors
/// Says which file, which line and why; or that there is no such agent.
pub fn load(path: &Path, agent: Option<&Path>) -> Result<Box<dyn Experiment>, Failure> {
    let wrong = |error: ScenarioError| Failure::Scenario(error.to_string());
    let text = std::fs::read_to_string(path);
    let text =
        text.map_err(|source| wrong(ScenarioError::Read { file: path.to_path_buf(), source }))?;
    let name = kind_of(path, &text, &kinds()).map_err(wrong)?;
    let is_it = |kind: &&Kind| name.as_deref().is_some_and(|name| kind.names.contains(&name));
    let kind = KINDS.iter().find(is_it).unwrap_or(&KINDS[0]);
    let experiment = (kind.read)(&Source { path, text: &text, agent })?;
    check_files(path, &text).map_err(wrong)?;
    Ok(experiment)
}

/// Hash of what an experiment says and of the content of these files.
fn digest<'a>(
    experiment: &impl Serialize,
    files: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<String, Failure> {
    let mut text = serde_json::to_vec(experiment).expect("string keys only, so it has a form");
    for file in files {
        let content = std::fs::read(file).map_err(|error| {
            let file = file.display();
            Failure::Scenario(format!("{file}: cannot be read: {error}; the scenario names it"))
        })?;
        text.extend(content);
    }
    Ok(hash(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_names_of_its_own() {
        let names: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
        let distinct: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len(), "{names:?}");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let refused = load(Path::new("scenarios/none.toml"), None).err().expect("no such file");
        assert_eq!(refused.exit_code(), 2);
        assert!(refused.to_string().starts_with("scenarios/none.toml: cannot be read: "));
    }

    #[test]
    fn a_wrong_kind_is_named_and_no_other_field() {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        // Fields of other kinds come first, which that kind would not have either.
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
    fn a_file_of_costs_that_is_not_there_is_named_with_its_line() {
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
    fn a_file_without_a_kind_is_refused_with_all_kinds() {
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
    fn an_agent_of_ones_own_is_for_kinds_that_schedule_threads() {
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
