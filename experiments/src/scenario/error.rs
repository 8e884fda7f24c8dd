//! Why a scenario was refused.

use std::path::{Path, PathBuf};

/// Why a scenario was refused; the author of the file is to blame for each.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file could not be read.
    #[error("{}: cannot be read: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// It is no TOML, or a field is unknown, missing or of the wrong type.
    #[error("{}:{line}: {message}", file.display())]
    Form {
        file: PathBuf,
        /// Line of the field in the file, from 1.
        line: usize,
        /// Which field, and what is allowed there.
        message: String,
    },
    /// Every field has the right form, but what they say cannot be run or would not mean anything.
    #[error("{}:{line}: {message}", file.display())]
    Meaning {
        file: PathBuf,
        /// Line of the fault in the file, from 1.
        line: usize,
        /// Which field, and what is allowed there.
        message: String,
    },
}

/// The line, from 1, of the byte at `offset`.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

impl ScenarioError {
    /// What is wrong, without where.
    pub(super) fn message(&self) -> String {
        match self {
            Self::Read { source, .. } => source.to_string(),
            Self::Form { message, .. } | Self::Meaning { message, .. } => message.clone(),
        }
    }

    pub(super) fn form(path: &Path, line: usize, message: String) -> Self {
        Self::Form { file: path.to_path_buf(), line, message }
    }

    pub(super) fn meaning(path: &Path, line: usize, message: String) -> Self {
        Self::Meaning { file: path.to_path_buf(), line, message }
    }
}
