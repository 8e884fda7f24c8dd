//! Files that appear whole or not at all.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why results could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The system refused.
    #[error("{}: cannot be written: {source}", file.display())]
    Write {
        /// The file or directory.
        file: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// A row could not be put as CSV.
    #[error("points.csv: {0}")]
    Csv(#[from] csv::Error),
    /// A row could not be put as JSON.
    #[error("points.jsonl: {0}")]
    Json(#[from] serde_json::Error),
    /// A plot could not be drawn.
    #[error("{file}: cannot be drawn: {why}")]
    Draw {
        /// The plot.
        file: &'static str,
        /// What the library answered.
        why: String,
    },
}

/// A directory of results.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Makes the directory, if need be.
    pub fn create(path: PathBuf) -> Result<Self, ReportError> {
        fs::create_dir_all(&path)
            .map_err(|source| ReportError::Write { file: path.clone(), source })?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn into_path(self) -> PathBuf {
        self.0
    }

    /// Puts `content` in place of the file `name`.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), ReportError> {
        let (new, file) = (self.0.join(format!(".{name}.new")), self.0.join(name));
        fs::write(&new, content)
            .and_then(|()| fs::rename(&new, &file))
            .map_err(|source| ReportError::Write { file, source })
    }

    /// Puts a directory with `files`, by name, in place of the directory `name`.
    pub fn replace(&self, name: &str, files: &[(String, String)]) -> Result<(), ReportError> {
        let (new, old) = (self.0.join(format!(".{name}.new")), self.0.join(name));
        let at = |file: &Path| {
            let file = file.to_path_buf();
            move |source| ReportError::Write { file, source }
        };
        absent_is_fine(fs::remove_dir_all(&new)).map_err(at(&new))?;
        fs::create_dir(&new).map_err(at(&new))?;
        for (file, content) in files {
            let file = new.join(file);
            fs::write(&file, content).map_err(at(&file))?;
        }
        absent_is_fine(fs::remove_dir_all(&old)).map_err(at(&old))?;
        fs::rename(&new, &old).map_err(at(&old))
    }

    /// Removes what an earlier run left as `name`.
    pub fn remove(&self, name: &str) -> Result<(), ReportError> {
        let file = self.0.join(name);
        absent_is_fine(fs::remove_file(&file)).map_err(|source| ReportError::Write { file, source })
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
