//! What a run leaves behind: the kernel's messages, and those of QEMU and virtiofsd.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::folder;

/// Runs whose logs are kept.
const RUNS_KEPT: usize = 20;
/// Lines of a log that are shown after a failure.
const LINES_SHOWN: usize = 25;

/// The logs of one run.
pub struct Logs {
    /// The kernel's messages.
    pub console: PathBuf,
    /// What the programs on this side said.
    pub host: PathBuf,
}

impl Logs {
    /// Begins the logs of a run; those of old runs go.
    pub fn begin(run: &str) -> std::io::Result<Self> {
        let all = folder().join("logs");
        fs::create_dir_all(&all)?;
        prune(&all);
        let logs = Self {
            console: all.join(format!("{run}.console.log")),
            host: all.join(format!("{run}.host.log")),
        };
        File::create(&logs.console)?;
        File::create(&logs.host)?;
        Ok(logs)
    }

    /// The end of both logs, with where to find them.
    pub fn ends(&self) -> String {
        [&self.console, &self.host].map(|path| end_of(path)).concat()
    }
}

fn end_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    let shown = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n  ");
    format!("\nthe end of {}:\n  {shown}", path.display())
}

fn prune(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut logs: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    logs.sort();
    // Two files a run.
    let old = logs.len().saturating_sub(2 * (RUNS_KEPT - 1));
    for (_, path) in &logs[..old] {
        let _ = fs::remove_file(path);
    }
}
