//! What a developer runs beside cargo. `cargo xtask tidy`: the project's own rules, as a check.
//! `cargo xtask bench compare`: whether this tree is slower than a commit.
//! `cargo xtask vm`: commands and tests in a virtual machine whose kernel has sched_ext.

#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod vm;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// A file of code without its tests should be about one thing; beyond this it hardly is.
const LINES_MAX: usize = 600;

/// Words that mark unfinished work. Split, so that this file passes its own check.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((name, [])) if name == "tidy" => tidy(),
        Some((name, rest)) if name == "bench" => bench::main(rest),
        Some((name, rest)) if name == "vm" => vm::main(rest),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            eprintln!("{}", bench::USAGE);
            eprintln!("{}", vm::USAGE);
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let complaints: Vec<String> = match tracked_files() {
        Ok(files) => files.iter().flat_map(|file| complaints(file)).collect(),
        Err(error) => vec![error],
    };
    for complaint in &complaints {
        eprintln!("tidy: {complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: no complaints");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tracked_files() -> Result<Vec<PathBuf>, String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("git ls-files: {error}"))?;
    let list = String::from_utf8_lossy(&output.stdout);
    Ok(list.lines().map(PathBuf::from).filter(|path| path.is_file()).collect())
}

fn complaints(path: &Path) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(path) else { return Vec::new() };
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: &str| {
        complaints.push(format!("{}:{line}: {what}", path.display()));
    };
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    for (at, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| is_rust && line.contains(**word)) {
            complain(at + 1, &format!("`{word}` marks unfinished work"));
        }
    }
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
    if is_rust && !is_test && code > LINES_MAX {
        complain(code, &format!("{code} lines without tests: what two things is this file about?"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_unfinished_work() {
        let path = std::env::temp_dir().join(format!("wave-tidy-{}.rs", std::process::id()));
        std::fs::write(&path, format!("fn f() {{ {}) }}\n", UNFINISHED[0])).unwrap();
        let found = complaints(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(":1:"), "{found:?}");
    }
}
