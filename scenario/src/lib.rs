//! Scenario files: their fields, defaults and ranges, sweeps over them, and their reference.
//!
//! A scenario is TOML. [`parse`] and its siblings refuse unknown fields and values (with the file, the line, the field and what
//! is allowed there), fill in [`defaults`] and check that the whole makes sense. Their results need no further checks by the
//! code that runs them. This crate knows nothing of how a scenario is run; `experiment` in `wave-experiments` has the list of kinds.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

mod check;
pub mod defaults;
pub mod error;
pub mod file;
mod memory;
mod model;
pub mod reference;
mod rpc;
pub mod size;
mod swap;
mod sweep;
mod udp;
mod udp_feedback;
mod udp_preemption;

pub use check::{Bound, Source};
pub use error::ScenarioError;
pub use memory::{CachedWorkload, Managed, Memory, parse as parse_memory};
pub use model::{
    Agent, Chaos, Class, Compare, Crash, Enclaves, Home, Host, Kind, Link, Load, Machine, Mapping,
    Operation, Placement, Queue, Run, Scenario, Scheduler, Threads, Transport, Trials, Variant,
    Workload,
};
pub use rpc::{Rpc, RpcPlacement, RpcWorkload, Stack, parse as parse_rpc};
pub use swap::SwapOn;
pub use sweep::{Expansion, Sweep, SweepAxis, parse_sweep, put_at, refuse_sweep};
pub use udp::{Udp, parse as parse_udp};
pub use udp_feedback::{UdpFeedback, parse as parse_udp_feedback};
pub use udp_preemption::{UdpPreemption, parse as parse_udp_preemption};

use std::path::Path;

/// Kinds of scenarios that schedule requests.
pub const REQUEST_KINDS: &[&str] = &["load", "ladder", "crash", "enclaves", "chaos"];

/// Whether the text is a scenario whose variants and loads are points of their own in a sweep.
pub fn has_points(text: &str) -> bool {
    let kind = named_kind(text);
    kind.is_some_and(|kind| matches!(kind.get_ref().as_str(), Some("load" | "ladder")))
}

#[derive(serde::Deserialize)]
struct Kinds {
    kind: Option<toml::Spanned<toml::Value>>,
}

/// The value of `kind` in the text, even if unknown. None if the text is not TOML or has no `kind`.
fn named_kind(text: &str) -> Option<toml::Spanned<toml::Value>> {
    toml::from_str::<Kinds>(text).ok().and_then(|found| found.kind)
}

/// The kind of the scenario: one of those `known`. None if the text is not TOML.
///
/// It is checked before all else, because the other fields depend on it.
pub fn kind_of(path: &Path, text: &str, known: &[&str]) -> Result<Option<String>, ScenarioError> {
    let all = || known.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ");
    let Some(kind) = named_kind(text) else {
        let Ok(table) = toml::from_str::<toml::Table>(text) else { return Ok(None) };
        let message = match table.contains_key("enclave") {
            true => "[[enclave]] is for the real kernel: wave run --host linux FILE".to_owned(),
            false => format!("`kind` is missing, expected one of {}", all()),
        };
        return Err(ScenarioError::meaning(path, 1, message));
    };
    match kind.get_ref().as_str() {
        Some(name) if known.contains(&name) => Ok(Some(name.to_owned())),
        _ => {
            let message = format!("`kind` is {}, expected one of {}", kind.get_ref(), all());
            let line = error::line_of(text, kind.span().start);
            Err(ScenarioError::meaning(path, line, message))
        }
    }
}

/// Checks the scenario in `text`; `path` is its source, for messages and for the files that it names.
///
/// `policies` are the names of the scheduling agent's policies; any other name is refused.
///
/// # Errors
/// Says which file, which line and why. All are mistakes of the file's author, with exit code 2.
pub fn parse(path: &Path, text: &str, policies: &[&str]) -> Result<Scenario, ScenarioError> {
    let raw = file::parse(path, text)?;
    check::check(raw, check::Source::new(path, text, policies))
}

#[cfg(test)]
mod tests;
