//! Reasons why a scenario is refused.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

/// Why a scenario is refused. Each is a mistake in the file, to be corrected by its author.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// It is not TOML, or a field is unknown, missing or of the wrong type.
    #[error("{}:{line}: {message}", file.display())]
    Form {
        file: PathBuf,
        /// Line of the field in the file, from 1.
        line: usize,
        /// The field, and what is allowed there.
        message: String,
    },
    /// Every field has the right form, but their values cannot be run or make no sense.
    #[error("{}:{line}: {message}", file.display())]
    Meaning {
        file: PathBuf,
        /// Line of the fault in the file, from 1.
        line: usize,
        /// The field, and what is allowed there.
        message: String,
    },
}

/// The line, from 1, of the byte at `offset`.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Refuses a scenario that names an unreadable file of costs; gives the line that names it.
pub fn check_files(path: &Path, text: &str) -> Result<(), ScenarioError> {
    let folder = path.parent().unwrap_or(path);
    let Ok(table) = DeTable::parse(text) else { return Ok(()) };
    let mut left = vec![DeValue::Table(table.into_inner())];
    while let Some(value) = left.pop() {
        match value {
            DeValue::Array(items) => left.extend(items.into_iter().map(|item| item.into_inner())),
            DeValue::Table(fields) => {
                for (key, value) in fields {
                    let span = value.span();
                    let field = key.get_ref().to_string();
                    let value = value.into_inner();
                    if let Some(name) = value.as_str().filter(|name| names_file(&field, name)) {
                        let file = folder.join(name.strip_prefix("model:").unwrap_or(name));
                        if let Err(error) = std::fs::File::open(&file) {
                            let file = file.display();
                            let message = format!("`{field}`: {file}: cannot be read: {error}");
                            let line = line_of(text, span.start);
                            return Err(ScenarioError::meaning(path, line, message));
                        }
                    }
                    left.push(value);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes the paths of files of costs in a scenario absolute, so that it can be moved from `path`.
pub fn absolute_files(path: &Path, table: &mut toml::Table) {
    let folder = path.parent().unwrap_or(path);
    let mut left: Vec<(String, &mut toml::Value)> =
        table.iter_mut().map(|(key, value)| (key.clone(), value)).collect();
    while let Some((field, value)) = left.pop() {
        match value {
            toml::Value::String(name) if names_file(&field, name) => {
                let (model, file) = match name.strip_prefix("model:") {
                    Some(file) => ("model:", file),
                    None => ("", name.as_str()),
                };
                let file = folder.join(file);
                let file = std::path::absolute(&file).unwrap_or(file);
                *name = format!("{model}{}", file.display());
            }
            toml::Value::Array(items) => {
                left.extend(items.iter_mut().map(|item| (field.clone(), item)))
            }
            toml::Value::Table(fields) => {
                left.extend(fields.iter_mut().map(|(key, value)| (key.clone(), value)));
            }
            _ => {}
        }
    }
}

/// Whether the text at a field is the path of a file of costs.
fn names_file(field: &str, text: &str) -> bool {
    ["link", "machine"].contains(&field) && text.ends_with(".toml")
}

impl ScenarioError {
    /// The message without the place.
    pub fn message(&self) -> String {
        match self {
            Self::Read { source, .. } => source.to_string(),
            Self::Form { message, .. } | Self::Meaning { message, .. } => message.clone(),
        }
    }

    pub fn form(path: &Path, line: usize, message: String) -> Self {
        Self::Form { file: path.to_path_buf(), line, message }
    }

    pub fn meaning(path: &Path, line: usize, message: String) -> Self {
        Self::Meaning { file: path.to_path_buf(), line, message }
    }
}
