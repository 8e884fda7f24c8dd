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

#[derive(serde::Deserialize)]
struct Kinds {
    kind: Option<String>,
}

/// What kind of scenario the text says it is. What cannot be read is of none.
fn kind_of(text: &str) -> Option<String> {
    toml::from_str::<Kinds>(text).ok()?.kind
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
    Ok(match kind_of(&text).as_deref() {
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
