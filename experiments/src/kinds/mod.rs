//! Kinds of experiments. A kind declares the fields of its file, runs on the hosts that it supports, and makes a report.
//!
//! A kind is a folder here and a line in [`KINDS`], or a crate that gives its [`Kind`] to [`Kinds::with`].

pub mod memory;
pub mod requests;
pub mod rpc;
pub mod udp;
pub mod udp_feedback;
pub mod udp_preemption;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use wave_report::Report;
use wave_terminal::{Failure, interrupt, note, out};

use crate::ground::Journal;
use crate::ground::journal::Identity;
use wave_apps::agent::{check_policy, policies_of};
use wave_apps::machine::hash;
use wave_scenario::error::check_files;
use wave_scenario::reference::Field;
use wave_scenario::{ScenarioError, Source, kind_of};

use crate::sweep::refuse_sweep;

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

/// Options of a run that its kind sees.
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

    /// Refuses options that this kind does not support; by default `--host sim`, `--live` and `--record`. Called before anything is
    /// written.
    ///
    /// # Errors
    /// Names the unsupported option.
    fn check(&self, wanted: &Wanted<'_>) -> Result<(), Failure> {
        if wanted.host == Host::User && !wanted.live && wanted.record.is_none() {
            return Ok(());
        }
        let name = self.name();
        let why = "runs on this machine only: it takes no --host sim, --live or --record";
        Err(Failure::Scenario(format!("{name}: this kind {why}")))
    }

    /// Runs the points that are not in `journal`.
    ///
    /// # Errors
    /// Why the experiment stopped early.
    fn run(&self, wanted: &Wanted<'_>, journal: &Arc<Journal>) -> Result<Box<dyn Report>, Failure>;
}

/// Refuses `--live`, for kinds that have nothing to watch.
pub fn without_live(kind: &str, name: &str, wanted: &Wanted<'_>) -> Result<(), Failure> {
    match wanted.live {
        false => Ok(()),
        true => Err(Failure::Scenario(format!("{name}: kind = \"{kind}\" takes no --live"))),
    }
}

/// Names the points that are kept if the run is interrupted.
pub fn keep_when_interrupted(journal: &Arc<Journal>) -> Result<(), Failure> {
    let say = Arc::clone(journal);
    interrupt::say(move || say.last_words())
}

/// The file of an experiment, and the program to start as its agent.
#[derive(Clone, Copy, Debug)]
pub struct Wished<'a> {
    pub source: &'a Source<'a>,
    pub agent: Option<&'a OwnAgent>,
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

/// A kind of experiment, or several with the same fields.
pub struct Kind {
    /// Values of `kind`.
    pub names: &'static [&'static str],
    /// Subject of such experiments.
    pub about: &'static str,
    /// Commands that run them.
    pub commands: &'static str,
    /// A short file for each name, for the reference.
    pub examples: &'static [&'static str],
    /// Its fields, by [`wave_scenario::reference::fields_of`] of the type that reads the file.
    pub fields: fn() -> Vec<Field>,
    /// Whether its agents may be a user's program.
    pub takes_agent: bool,
    pub read: fn(&Wished<'_>) -> Result<Box<dyn Experiment>, ScenarioError>,
}

impl Kind {
    /// Its fields, with its names as the values of `kind`.
    pub fn form(&self) -> Vec<Field> {
        let mut fields = (self.fields)();
        let names: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
        let one_of = if names.len() > 1 { "one of " } else { "" };
        for field in fields.iter_mut().filter(|field| field.path == "kind") {
            field.kind = format!("{one_of}{}", names.join(", "));
        }
        fields
    }
}

/// The kinds of this crate. The first reads text that is not TOML, to say where it is wrong.
const KINDS: [&Kind; 6] = [
    &requests::KIND,
    &memory::KIND,
    &rpc::KIND,
    &udp::KIND,
    &udp_preemption::KIND,
    &udp_feedback::KIND,
];

/// The kinds that a program knows.
pub struct Kinds(Vec<&'static Kind>);

impl Default for Kinds {
    fn default() -> Kinds {
        Kinds(KINDS.into())
    }
}

impl Kinds {
    /// Adds a kind.
    ///
    /// # Panics
    /// A known kind has one of its names.
    pub fn with(mut self, kind: &'static Kind) -> Kinds {
        let known = self.names();
        assert!(
            kind.names.iter().all(|name| !known.contains(name)),
            "{:?}: a kind's name twice",
            kind.names
        );
        self.0.push(kind);
        self
    }

    pub fn all(&self) -> &[&'static Kind] {
        &self.0
    }

    /// Every value of `kind`.
    fn names(&self) -> Vec<&'static str> {
        self.0.iter().flat_map(|kind| kind.names).copied().collect()
    }

    /// The kind of the experiment in `text`, whose file is `path`.
    fn of(&self, path: &Path, text: &str) -> Result<&'static Kind, ScenarioError> {
        let name = kind_of(path, text, &self.names())?;
        let is_it = |kind: &&&Kind| name.as_deref().is_some_and(|name| kind.names.contains(&name));
        Ok(self.0.iter().find(is_it).copied().unwrap_or(self.0[0]))
    }

    /// Reads the experiment in `path`. With `agent`, that program is started in place of every agent.
    ///
    /// # Errors
    /// Says which file, which line and why; or that the agent does not exist.
    pub fn load(&self, path: &Path, agent: Option<&Path>) -> Result<Box<dyn Experiment>, Failure> {
        let wrong = |error: ScenarioError| Failure::Scenario(error.to_string());
        let text = std::fs::read_to_string(path);
        let text =
            text.map_err(|source| wrong(ScenarioError::Read { file: path.to_path_buf(), source }))?;
        let kind = self.of(path, &text).map_err(wrong)?;
        if agent.is_some() && !kind.takes_agent {
            return Err(Failure::Scenario(format!("{}: {NO_AGENT}", path.display())));
        }
        let own = agent.map(OwnAgent::new).transpose()?;
        refuse_sweep(path, &text).map_err(wrong)?;
        let experiment = self.read(path, &text, own.as_ref()).map_err(wrong)?;
        check_files(path, &text).map_err(wrong)?;
        Ok(experiment)
    }

    /// Reads the experiment in `text`, whose file is `path`.
    ///
    /// # Errors
    /// The line at fault, and why; or that this kind takes no `agent`.
    pub fn read(
        &self,
        path: &Path,
        text: &str,
        agent: Option<&OwnAgent>,
    ) -> Result<Box<dyn Experiment>, ScenarioError> {
        let kind = self.of(path, text)?;
        if agent.is_some() && !kind.takes_agent {
            return Err(ScenarioError::meaning(path, 1, NO_AGENT.to_owned()));
        }
        (kind.read)(&Wished { source: &Source::new(path, text), agent })
    }
}

/// Refuses `--agent` for kinds whose agents do not schedule threads.
const NO_AGENT: &str = "--agent is for scenarios that schedule threads";

/// Exit code of a run without a result.
const NOT_MEASURED: u8 = 4;

/// All options of [`run()`].
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

/// Prints the tables of a result and the path of its page in `directory`; or with `json` one object.
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

/// Hash of an experiment and of the contents of these files.
pub fn digest<'a>(
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
mod tests;
