//! Files of scenarios: reading them, refusing them with the line at fault, and a reference of their fields.
//!
//! A scenario is TOML. The kinds of scenarios, with their fields, are in `wave-experiments`; products read their own files with
//! the same parts.
#![forbid(unsafe_code)]
// Only the project's own programs use this crate, and its documentation is built with private items.
#![allow(rustdoc::private_intra_doc_links)]
#![allow(missing_docs, reason = "a part of the programs, not a library for users")]

pub mod error;
mod file;
pub mod reference;
pub mod size;
mod swap;

use std::path::Path;

pub use error::ScenarioError;
pub use file::Source;
pub use swap::SwapOn;

#[derive(serde::Deserialize)]
struct Kinds {
    kind: Option<toml::Spanned<toml::Value>>,
}

/// The kind of the scenario: one of those `known`. None if the text is not TOML.
///
/// It is checked before all else, because the other fields depend on it.
pub fn kind_of(path: &Path, text: &str, known: &[&str]) -> Result<Option<String>, ScenarioError> {
    let all = || known.iter().map(|kind| format!("`{kind}`")).collect::<Vec<_>>().join(", ");
    let Some(kind) = toml::from_str::<Kinds>(text).ok().and_then(|found| found.kind) else {
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

#[cfg(test)]
mod tests;
