//! Many scripts: those of files and folders.

use std::io;
use std::path::{Path, PathBuf};

use crate::{RunError, Script, mutants, run};

/// Most bytes of a script's file.
const BYTES_MAX: u64 = 1 << 20;
/// Folders within folders.
const DEPTH_MAX: usize = 16;

/// What became of one script.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub path: PathBuf,
    pub result: Result<(), RunError>,
    /// Mutants that were run: none of a script that does not pass.
    pub mutants: usize,
    /// Mutants that passed: line, and what was flipped.
    pub survivors: Vec<(usize, String)>,
}

/// The scripts of these files, and of all that end in `.pkt` in these folders, in the order of their names.
///
/// # Errors
/// A path cannot be read, or has no script.
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
/// It cannot be read, is longer than a megabyte, or no text.
pub fn text(path: &Path) -> io::Result<String> {
    if path.metadata()?.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
    }
    std::fs::read_to_string(path)
}

/// Runs the script of this file, and all its mutants if that is wanted and it passes.
pub fn outcome(path: &Path, text: &str, has_mutants: bool) -> Outcome {
    let mut outcome =
        Outcome { path: path.to_owned(), result: Ok(()), mutants: 0, survivors: Vec::new() };
    let script = match Script::read(text) {
        Ok(script) => script,
        Err(bad) => {
            outcome.result = Err(bad.into());
            return outcome;
        }
    };
    outcome.result = run(&script);
    if outcome.result.is_err() || !has_mutants {
        return outcome;
    }
    for mutant in mutants(&script) {
        outcome.mutants += 1;
        if run(&mutant.script).is_ok() {
            outcome.survivors.push((mutant.line, mutant.what));
        }
    }
    outcome
}
