//! Files that appear whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why results could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{}: cannot be written: {source}", file.display())]
    Write { file: PathBuf, source: io::Error },
    /// The path of the folder is a file.
    #[error("{}: is a file, expected a folder for results: give another one with --out", file.display())]
    NoFolder { file: PathBuf },
    /// The folder holds the results of a run on another host.
    #[error(
        "{}: holds the results of a run on host `{there}`, which a run on host `{host}` does not replace: give another \
         folder with --out",
        file.display()
    )]
    OtherHost { file: PathBuf, there: String, host: String },
    /// A row could not be written as JSON.
    #[error("points.jsonl: {0}")]
    Json(#[from] serde_json::Error),
    /// A plot could not be drawn.
    #[error("{file}: cannot be drawn: {why}")]
    Draw { file: &'static str, why: String },
}

impl From<ReportError> for wave_terminal::Failure {
    fn from(error: ReportError) -> Self {
        Self::cannot(error)
    }
}

/// Creates `folder` if needed, and checks that files can be written into it.
pub fn make_folder(folder: &Path) -> Result<(), ReportError> {
    let there = folder.ancestors().find(|path| path.exists());
    if let Some(file) = there.filter(|path| !path.is_dir()) {
        return Err(ReportError::NoFolder { file: file.to_path_buf() });
    }
    let probe = || tempfile::Builder::new().prefix(".wave-").tempfile_in(folder).map(drop);
    fs::create_dir_all(folder)
        .and_then(|()| probe())
        .map_err(|source| ReportError::Write { file: folder.to_path_buf(), source })
}

/// A directory for a result.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// Creates the directory if needed.
    pub fn create(path: PathBuf) -> Result<Self, ReportError> {
        make_folder(&path)?;
        Ok(Self(path))
    }

    pub fn into_path(self) -> PathBuf {
        self.0
    }

    /// Replaces the file `name` by one with `content`.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), ReportError> {
        self.begin(name, content).map(drop)
    }

    /// Replaces the file `name` by one that begins with `content`. Returns it, for more.
    pub fn begin(&self, name: &str, content: &[u8]) -> Result<File, ReportError> {
        let file = self.0.join(name);
        self.put(&file, content).map_err(|source| ReportError::Write { file, source })
    }

    fn put(&self, file: &Path, content: &[u8]) -> io::Result<File> {
        // Under an unpredictable name, which no other process can have taken, for example with a link.
        let mut new = tempfile::Builder::new()
            .prefix(".new-")
            .permissions(Permissions::from_mode(0o666)) // less the umask, as for any file
            .tempfile_in(&self.0)?;
        new.write_all(content)?;
        // Synced before the rename, so that the file is whole after a crash.
        new.as_file().sync_all()?;
        new.persist(file).map_err(|error| error.error)
    }

    /// Replaces the directory `name` by one with `files`.
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
            // Another user who owns the folder may have put links into the new directory.
            let written =
                File::create_new(&file).and_then(|mut to| to.write_all(content.as_bytes()));
            written.map_err(at(&file))?;
        }
        absent_is_fine(fs::remove_dir_all(&old)).map_err(at(&old))?;
        fs::rename(&new, &old).map_err(at(&old))
    }

    /// Removes the file `name` of an earlier run, if there is one.
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
