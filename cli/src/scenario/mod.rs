//! The experiment file: what is compared, under which load, on which cores.
//!
//! A scenario is TOML. [`load`] reads one, refuses what it does not know (with the file, the line, the field and what
//! is allowed there), fills in [`defaults`] and checks that the whole makes sense. What it returns needs no further
//! checks by whoever runs it. This module knows nothing of how a scenario is run.

mod check;
pub mod defaults;
mod error;
mod file;
mod memory;
mod model;
mod rpc;
mod sweep;

pub use error::ScenarioError;
pub use memory::{CachedWorkload, Managed, Memory};
pub use model::{
    Agent, Chaos, Class, Compare, Crash, Enclaves, Home, Host, Kind, Link, Load, Machine, Mapping,
    Operation, Placement, Queue, Run, Scenario, Scheduler, Threads, Transport, Variant, Workload,
    slug,
};
pub use rpc::{Rpc, RpcPlacement, RpcWorkload, Stack};
pub use sweep::{Sweep, SweepAxis, parse_sweep};

use std::path::Path;

use crate::run::Failure;
use crate::run::machine::hash;

/// What a file is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Experiment {
    /// Requests, and who schedules what serves them.
    Requests(Box<Scenario>),
    /// The memory of a process.
    Memory(Box<Memory>),
    /// Where gRPC is terminated, and who schedules its calls.
    Rpc(Box<Rpc>),
}

impl Experiment {
    /// Hash of all that it says and of the files that it names.
    ///
    /// # Errors
    /// Where a file that it names cannot be read.
    pub fn digest(&self) -> Result<String, Failure> {
        let (text, files) = match self {
            Experiment::Requests(scenario) => {
                let links = scenario.variants.iter().filter_map(|variant| variant.agent());
                let machine = match &scenario.machine {
                    Machine::File(file) => Some(file),
                    Machine::Builtin(_) => None,
                };
                // As all have the same.
                let program = scenario.agents().find_map(|agent| agent.program.as_ref());
                let links = links.filter_map(|agent| agent.link.file());
                (serde_json::to_vec(scenario), links.chain(machine).chain(program).collect())
            }
            Experiment::Memory(memory) => (serde_json::to_vec(memory), Vec::new()),
            Experiment::Rpc(rpc) => {
                let links = rpc.variants.iter().filter_map(|stack| stack.link.file());
                (serde_json::to_vec(rpc), links.collect())
            }
        };
        let mut text = text.expect("string keys only, so it has a form");
        for file in files {
            let content = std::fs::read(file).map_err(|error| {
                let file = file.display();
                Failure::Scenario(format!("{file}: cannot be read: {error}; the scenario names it"))
            })?;
            text.extend(content);
        }
        Ok(hash(&text))
    }
}

/// Kinds of scenarios about requests.
const REQUEST_KINDS: [&str; 5] = ["load", "ladder", "crash", "enclaves", "chaos"];
/// The others; the last has a form of its own, `crate::bakeoff`'s.
const OTHER_KINDS: [&str; 3] = ["memory", "rpc", "memory-bakeoff"];

#[derive(serde::Deserialize)]
struct Kinds {
    kind: Option<toml::Spanned<toml::Value>>,
}

/// What kind of scenario the text says it is: one that there is. None where it is no TOML or says nothing.
///
/// It is checked before all else, as which other fields there are depends on it.
fn kind_of(path: &Path, text: &str) -> Result<Option<String>, ScenarioError> {
    let Some(kind) = toml::from_str::<Kinds>(text).ok().and_then(|found| found.kind) else {
        return Ok(None);
    };
    let mut known = REQUEST_KINDS.iter().chain(&OTHER_KINDS);
    match kind.get_ref().as_str() {
        Some(name) if known.any(|known| *known == name) => Ok(Some(name.to_owned())),
        _ => {
            let all: Vec<String> =
                REQUEST_KINDS.iter().chain(&OTHER_KINDS).map(|kind| format!("`{kind}`")).collect();
            let message =
                format!("`kind` is {}, expected one of {}", kind.get_ref(), all.join(", "));
            let line = error::line_of(text, kind.span().start);
            Err(ScenarioError::meaning(path, line, message))
        }
    }
}

/// Reads and checks the scenario in `path`.
///
/// `policies` are the names of the policies that a scheduling agent can be asked for; another name is refused.
///
/// # Errors
/// Says which file, which line and why. All of them are the author's of the file, to be answered with exit code 2.
pub fn load(path: &Path, policies: &[&str]) -> Result<Experiment, ScenarioError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ScenarioError::Read { file: path.to_path_buf(), source })?;
    Ok(match kind_of(path, &text)?.as_deref() {
        Some("memory") => Experiment::Memory(Box::new(memory::parse(path, &text)?)),
        Some("rpc") => Experiment::Rpc(Box::new(rpc::parse(path, &text)?)),
        _ => Experiment::Requests(Box::new(parse(path, &text, policies)?)),
    })
}

/// Checks the scenario in `text`; `path` is where it came from, for messages and for the files that it names.
///
/// # Errors
/// As for [`load`], except that nothing is read.
pub fn parse(path: &Path, text: &str, policies: &[&str]) -> Result<Scenario, ScenarioError> {
    let raw = file::parse(path, text)?;
    check::check(raw, check::Source { path, text, policies })
}

#[cfg(test)]
mod tests;
