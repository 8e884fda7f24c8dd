//! Tools for developers, beside cargo. `cargo xtask tidy`: checks the project's own rules.
//! `cargo xtask test`: runs every test.
//! `cargo xtask bench compare`: finds whether this tree is slower than a commit.
//! `cargo xtask figures`: writes a table of the benches' figures on this machine.
//! `cargo xtask pictures`: runs the experiments whose pictures and tables the documentation shows.
//! `cargo xtask site`: builds the documentation as a site.
//! `cargo xtask release`: builds the binary archive of a version.
//! `cargo xtask vm`: runs commands and tests in a virtual machine whose kernel has sched_ext.
//! `cargo xtask words BASE`: lists facts that comments and documents lost since a commit.

#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod conformance;
mod documents;
mod figures;
mod pictures;
mod release;
mod suite;
mod test;
mod vm;
mod words;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The most lines of a source file without its tests: a longer file is rarely about one thing.
const LINES_MAX: usize = 600;

/// The most columns of a line of C, with tab stops at multiples of eight. Rustfmt checks Rust.
const COLUMNS_MAX: usize = 120;

/// Words that mark unfinished work. Split, so that this file passes its own check.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
    concat!("#[ig", "nore"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((name, [])) if name == "tidy" => tidy(),
        Some((name, [])) if name == "test" => test::run(),
        Some((name, rest)) if name == "bench" => bench::main(rest),
        Some((name, rest)) if name == "figures" => figures::main(rest),
        Some((name, rest)) if name == "pictures" => pictures::main(rest),
        Some((name, rest)) if name == "release" => release::main(rest),
        Some((name, rest)) if name == "site" => documents::site::main(rest),
        Some((name, rest)) if name == "vm" => vm::main(rest),
        Some((name, rest)) if name == "words" => words::main(rest),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            eprintln!("{}", test::USAGE);
            eprintln!("{}", bench::USAGE);
            eprintln!("{}", figures::USAGE);
            eprintln!("{}", pictures::USAGE);
            eprintln!("{}", documents::site::USAGE);
            eprintln!("{}", release::USAGE);
            eprintln!("{}", vm::USAGE);
            eprintln!("{}", words::USAGE);
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let mut complaints: Vec<String> = Vec::new();
    match tracked_files() {
        Ok(files) => {
            complaints.extend(files.iter().flat_map(|file| self::complaints(file)));
            complaints.extend(documents::complaints(&files));
            complaints.extend(pictures::complaints());
        }
        Err(error) => complaints.push(error),
    }
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
    let mut complaints = complaints_about(path, &text);
    complaints.extend(conformance::complaints(path, &text));
    complaints
}

/// Complaints about a file with this path and text.
fn complaints_about(path: &Path, text: &str) -> Vec<String> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_c = matches!(extension, Some("c" | "h"));
    if !is_c && extension != Some("rs") {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: &str| {
        complaints.push(format!("{}:{line}: {what}", path.display()));
    };
    for (at, line) in text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            complain(at + 1, &format!("`{word}` marks unfinished work"));
        }
        if is_c && columns(line) > COLUMNS_MAX {
            complain(at + 1, &format!("{} columns; the limit is {COLUMNS_MAX}", columns(line)));
        }
    }
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name.to_string_lossy().contains("tests"));
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]").count();
    if !is_test && code > LINES_MAX {
        complain(
            code,
            &format!(
                "{code} lines without tests; the limit is {LINES_MAX}: split the file by topic"
            ),
        );
    }
    complaints
}

fn columns(line: &str) -> usize {
    line.chars().fold(0, |at, letter| if letter == '\t' { at / 8 * 8 + 8 } else { at + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints_about(name: &str, text: &str) -> Vec<String> {
        super::complaints_about(Path::new(name), text)
    }

    #[test]
    fn unfinished_work_is_found_in_rust_and_c() {
        for (name, word) in
            [("a.rs", UNFINISHED[0]), ("a.c", UNFINISHED[2]), ("a.h", UNFINISHED[4])]
        {
            let found = complaints_about(name, &format!("\n/* {word} */\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(":2:"), "{found:?}");
        }
        assert_eq!(complaints_about("a.md", UNFINISHED[0]), Vec::<String>::new());
    }

    #[test]
    fn long_files_are_found_in_rust_and_c_unless_they_are_tests() {
        let long = "x\n".repeat(LINES_MAX + 1);
        for name in ["a.rs", "a.c", "a.h"] {
            assert_eq!(complaints_about(name, &long).len(), 1, "{name}");
            assert!(complaints_about(name, &long[2..]).is_empty(), "{name}");
        }
        assert!(complaints_about("a_tests.rs", &long).is_empty());
        let tested = format!("#[cfg(test)]\n{long}");
        assert!(complaints_about("a.rs", &tested).is_empty());
    }

    #[test]
    fn long_lines_of_c_are_found_with_tabs_expanded() {
        let wide = "x".repeat(COLUMNS_MAX + 1);
        assert_eq!(complaints_about("a.h", &wide).len(), 1);
        assert!(complaints_about("a.h", &wide[1..]).is_empty());
        assert_eq!(complaints_about("a.c", &format!("x\t{}", &wide[..113])).len(), 1);
        assert!(complaints_about("a.c", &format!("x\t{}", &wide[..112])).is_empty());
        assert!(complaints_about("a.rs", &wide).is_empty());
    }
}
