//! Form of a scenario file: its fields and their types. [`super::check`] checks their meaning together.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path as FieldPath, Segment};
use toml::Spanned;

use wave_links::words::plain;

use super::error::{ScenarioError, line_of};
use super::model::{Home, Mapping, Operation, Threads, Transport};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawScenario {
    pub name: Spanned<String>,
    pub description: Option<String>,
    pub kind: Spanned<RawKind>,
    pub workload: Option<RawWorkload>,
    pub run: Option<Spanned<RawRun>>,
    pub host: Option<RawHost>,
    pub variant: Option<Vec<Spanned<RawVariant>>>,
    pub crash: Option<Spanned<RawCrash>>,
    pub enclaves: Option<Spanned<RawEnclaves>>,
    pub chaos: Option<Spanned<RawChaos>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKind {
    Load,
    Ladder,
    Crash,
    Enclaves,
    Chaos,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWorkload {
    pub keys: Option<Spanned<u64>>,
    pub value_bytes: Option<Spanned<u32>>,
    pub service_us: Option<Spanned<f64>>,
    pub classes: Option<Spanned<Vec<Spanned<RawClass>>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawClass {
    pub name: String,
    pub weight: Spanned<f64>,
    pub service_us: Option<Spanned<f64>>,
    pub operation: Option<Operation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawRun {
    pub seconds: Option<Spanned<f64>>,
    pub warmup_seconds: Option<Spanned<f64>>,
    pub seed: Option<u64>,
    pub loads_per_second: Option<Spanned<Vec<Spanned<f64>>>>,
    pub rounds: Option<Spanned<u32>>,
    pub refine: Option<Spanned<u32>>,
    pub search: Option<Spanned<RawSearch>>,
    pub compare: Option<Spanned<RawCompare>>,
    pub equal_cores: Option<Spanned<bool>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCompare {
    pub with: Spanned<String>,
    pub at: Option<Spanned<f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawSearch {
    pub low: Spanned<f64>,
    pub high: Spanned<f64>,
    pub probes: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawHost {
    pub cores: Option<Spanned<u32>>,
    pub max_threads: Option<Spanned<u32>>,
    pub prestage: Option<Spanned<u32>>,
    pub spin_us: Option<Spanned<u64>>,
    pub machine: Option<Spanned<String>>,
    pub threads: Option<Threads>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawVariant {
    pub name: Spanned<String>,
    pub placement: Spanned<RawPlacement>,
    pub policy: Option<Spanned<String>>,
    pub link: Option<Spanned<String>>,
    pub messages: Option<Spanned<RawQueue>>,
    pub decisions: Option<Spanned<RawQueue>>,
    pub cores: Option<Spanned<u32>>,
    pub prestage: Option<Spanned<u32>>,
    pub prefetch: Option<Spanned<bool>>,
    pub agent_ghz: Option<Spanned<f64>>,
    pub threads: Option<Spanned<Threads>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawPlacement {
    Linux,
    OnHost,
    Offload,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawQueue {
    pub transport: Option<Transport>,
    pub home: Option<Home>,
    pub host: Option<Mapping>,
    pub agent: Option<Mapping>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawCrash {
    pub kills: Option<Spanned<u32>>,
    pub every_ms: Option<Spanned<u64>>,
    pub load_per_second: Spanned<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawEnclaves {
    pub count: Option<Spanned<u32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawChaos {
    pub threads: Option<Spanned<u32>>,
}

/// Parses `text` into its fields.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ScenarioError> {
    let refuse = |error: &toml::de::Error, field: String| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        let message = error.message();
        // The message itself names an unknown field, but not the field of a bad value.
        let message = match field.as_str() {
            "" => plain(message, "a table"),
            _ if message.starts_with("unknown field") => plain(message, "a table"),
            _ => format!("`{field}`: {}", plain(message, "a table")),
        };
        ScenarioError::form(path, line, message)
    };
    let deserializer =
        toml::Deserializer::parse(text).map_err(|error| refuse(&error, String::new()))?;
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let field = field_name(error.path());
        refuse(error.inner(), field)
    })
}

/// Path of a field in the file, like `variant[1].cores`, without what [`Spanned`] adds.
fn field_name(path: &FieldPath) -> String {
    let mut name = String::new();
    for segment in path {
        match segment {
            Segment::Seq { index } => name.push_str(&format!("[{index}]")),
            Segment::Map { key } if key.starts_with("$__") => {}
            Segment::Map { key } | Segment::Enum { variant: key } => {
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(key);
            }
            Segment::Unknown => {}
        }
    }
    name
}
