//! The logs of a run: the kernel's messages, and those of QEMU and virtiofsd.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::folder;

/// Runs whose logs are kept.
const RUNS_KEPT: usize = 20;
/// Lines of a log shown after a failure.
const LINES_SHOWN: usize = 25;

/// The first lines of the kernel's crash reports.
const SIGNS_OF_A_CRASH: &[&str] =
    &["Kernel panic", "BUG:", "Oops:", "lockup - CPU", "detected stalls"];

pub struct Logs {
    pub console: PathBuf,
    /// Messages of the programs on this side.
    pub host: PathBuf,
}

impl Logs {
    /// Begins the logs of a run, and removes the oldest logs.
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

    /// The most informative lines, and the paths of the full logs. Once the command has started,
    /// the programs on this side have done their part, and their messages are noise.
    pub fn telling(&self, started: bool) -> String {
        let host = if started { String::new() } else { end_of(&self.host) };
        end_of(&self.console) + &host
    }
}

fn end_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let shown = telling_lines(&text);
    if shown.is_empty() {
        return String::new();
    }
    format!("\nfrom {}:\n  {}", path.display(), shown.join("\n  "))
}

/// The lines from the kernel's first report of a problem; without one, the last lines.
fn telling_lines(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.len().saturating_sub(LINES_SHOWN);
    let is_wrong = |line: &&str| SIGNS_OF_A_CRASH.iter().any(|sign| line.contains(sign));
    let first = lines.iter().position(is_wrong).unwrap_or(last).min(last);
    lines.into_iter().skip(first).take(LINES_SHOWN).collect()
}

fn prune(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut logs: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    logs.sort();
    // Two files per run.
    let old = logs.len().saturating_sub(2 * (RUNS_KEPT - 1));
    for (_, path) in &logs[..old] {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn shows_a_crash_from_its_beginning() {
        let mut text = String::from("booting\nKernel panic - not syncing\n");
        text.extend((0..100).map(|line| format!("frame {line}\n")));
        let shown = telling_lines(&text);
        assert_eq!((shown[0], shown.len()), ("Kernel panic - not syncing", LINES_SHOWN));
    }

    #[test]
    fn shows_the_end_if_nothing_crashed() {
        let text: String = (0..100).map(|line| format!("line {line}\n\n")).collect();
        assert_eq!(telling_lines(&text).last(), Some(&"line 99"));
        assert_eq!(telling_lines("one\n"), ["one"]);
        assert!(telling_lines("").is_empty());
    }
}
