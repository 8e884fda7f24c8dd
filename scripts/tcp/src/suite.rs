//! Finds and runs the scripts of files and folders.

use std::io;
use std::path::{Path, PathBuf};

use wave_tcp::datapaths::DatapathKind;

use crate::{RunError, Script, mutants, run};

/// Largest script file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Deepest nesting of folders.
const DEPTH_MAX: usize = 16;

/// The outcome of one script.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub path: PathBuf,
    pub result: Result<(), RunError>,
    /// The reason in its line `// Not over NAME: REASON`; the script was not run.
    pub left_out: Option<String>,
    /// Number of mutants run; 0 if the script itself fails.
    pub mutants: usize,
    /// Mutants that passed: the line, and the flipped expectation.
    pub survivors: Vec<(usize, String)>,
}

/// The given files, and all files of the given folders that end in `.pkt`, ordered by name.
///
/// # Errors
/// A path cannot be read, or a folder has no script.
pub fn scripts(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        collect(path, DEPTH_MAX, true, &mut found)?;
        if found.len() == before {
            let what = format!("no file in {} ends in .pkt", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        }
    }
    Ok(found)
}

fn collect(path: &Path, depth: usize, is_named: bool, found: &mut Vec<PathBuf>) -> io::Result<()> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let metadata = path.metadata().map_err(named)?;
    if metadata.is_file() {
        let is_script = path.extension().is_some_and(|extension| extension == "pkt");
        if is_script || is_named {
            found.push(path.to_owned());
        }
        return Ok(());
    }
    if !metadata.is_dir() || depth == 0 {
        return Ok(());
    }
    let entries = path.read_dir().map_err(named)?;
    let mut within =
        entries.map(|entry| Ok(entry.map_err(named)?.path())).collect::<io::Result<Vec<_>>>()?;
    within.sort();
    within.iter().try_for_each(|path| collect(path, depth - 1, false, found))
}

/// The text of a script.
///
/// # Errors
/// The file cannot be read, is longer than 1 MiB, or is not UTF-8 text.
pub fn text(path: &Path) -> io::Result<String> {
    if path.metadata()?.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the script is longer than 1 MiB"));
    }
    std::fs::read_to_string(path)
}

/// The reason in a line `// Not over NAME: REASON` that names this data path.
fn left_out(text: &str, kind: DatapathKind) -> Option<&str> {
    text.lines().find_map(|line| {
        line.strip_prefix("// Not over ")?.strip_prefix(kind.name())?.strip_prefix(": ")
    })
}

/// Runs the script of this file over a data path and, if it passes and `has_mutants` is set, all its mutants.
pub fn outcome(path: &Path, text: &str, kind: DatapathKind, has_mutants: bool) -> Outcome {
    let mut outcome = Outcome {
        path: path.to_owned(),
        result: Ok(()),
        left_out: left_out(text, kind).map(str::to_owned),
        mutants: 0,
        survivors: Vec::new(),
    };
    if outcome.left_out.is_some() {
        return outcome;
    }
    let script = match Script::read(text) {
        Ok(script) => script,
        Err(bad) => {
            outcome.result = Err(bad.into());
            return outcome;
        }
    };
    outcome.result = run(&script, kind);
    if outcome.result.is_err() || !has_mutants {
        return outcome;
    }
    for mutant in mutants(&script) {
        outcome.mutants += 1;
        if run(&mutant.script, kind).is_ok() {
            outcome.survivors.push((mutant.line, mutant.what));
        }
    }
    outcome
}
