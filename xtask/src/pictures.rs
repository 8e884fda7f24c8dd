//! `cargo xtask pictures`: runs the experiments whose pictures and tables the documentation shows, and puts them in. `cargo xtask tidy`
//! finds those that are older than the code of their experiment, by a hash of its sources beside them.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::cargo;

pub const USAGE: &str = "usage: cargo xtask pictures [NAME...]      rerun these pictures' experiments (all) on this machine, which should \
                         do nothing else, and update the documentation";

/// Part of the conclusion of a run on a machine that was busy.
const NOT_QUIET: &str = "says nothing about a quiet machine";

/// The document with the experiments' tables.
const DOCUMENT: &str = "docs/figures.md";
const OUT: &str = "target/pictures";

/// A picture of the documentation: `docs/images/NAME.svg`.
struct Picture {
    name: &'static str,
    /// Arguments of `wave` that draw it, besides the folder for the results.
    run: &'static [&'static str],
    /// The plot's file among the results.
    plot: &'static str,
    /// Whether the run's output is in [`DOCUMENT`] as well.
    has_table: bool,
    /// The experiment's files and folders: what it runs, how it measures and judges, and how it draws. Not the product that it measures.
    sources: &'static [&'static str],
}

const PICTURES: &[Picture] = &[
    Picture {
        name: "rocksdb-fifo",
        run: &["run", "scenarios/rocksdb-fifo.toml"],
        plot: "throughput-latency.svg",
        has_table: true,
        sources: &[
            "scenarios/rocksdb-fifo.toml",
            "compare/src",
            "experiments/src/ground/rounds",
            "experiments/src/ground/session.rs",
            "experiments/src/ground/point.rs",
            "experiments/src/ground/seating.rs",
            "report/src/paired.rs",
            "report/src/plot/rounds.rs",
            "workloads/src/generator.rs",
            "workloads/src/recorder.rs",
            "workloads/src/linux_threads.rs",
        ],
    },
    Picture {
        name: "ladder",
        run: &["run", "scenarios/ladder.toml"],
        plot: "ladder.svg",
        has_table: true,
        sources: &[
            "scenarios/ladder.toml",
            "compare/src",
            "experiments/src/ground/rounds",
            "experiments/src/kinds/requests/ladder.rs",
            "experiments/src/ground/session.rs",
            "experiments/src/ground/point.rs",
            "experiments/src/ground/seating.rs",
            "report/src/ladder.rs",
            "report/src/plot/bars.rs",
            "workloads/src/generator.rs",
            "workloads/src/recorder.rs",
        ],
    },
];

pub fn main(names: &[String]) -> ExitCode {
    let is_meant =
        |picture: &&Picture| names.is_empty() || names.iter().any(|name| name == picture.name);
    if let Some(unknown) = names.iter().find(|name| !PICTURES.iter().any(|one| one.name == **name))
    {
        let known: Vec<&str> = PICTURES.iter().map(|picture| picture.name).collect();
        eprintln!(
            "pictures: unknown picture {unknown}; expected one of {}\n{USAGE}",
            known.join(", ")
        );
        return ExitCode::from(2);
    }
    let wave = match cargo::built("wave", &["build", "--profile", "demo"]) {
        Ok(wave) => wave,
        Err(error) => {
            eprintln!("pictures: {error}");
            return ExitCode::FAILURE;
        }
    };
    for picture in PICTURES.iter().filter(is_meant) {
        if let Err(error) = picture.make(&wave) {
            eprintln!("pictures: {}: {error}", picture.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The pictures and tables that are older than the code of their experiment, or state no age.
pub fn complaints() -> Vec<String> {
    let complaint = |path: &str, picture: &Picture| {
        let name = picture.name;
        let ought = match picture.hash() {
            Ok(hash) => hash,
            Err(error) => return Some(format!("{path}: {error}")),
        };
        let text = fs::read_to_string(path).unwrap_or_default();
        let begin = format!("<!-- {name}: ");
        let stated = text.lines().find_map(|line| line.trim().strip_prefix(&begin));
        let is = stated.and_then(|line| line.split("sources ").nth(1)?.split([' ', ';']).next());
        (is != Some(&ought)).then(|| {
            format!("{path}: {name} is older than the code of its experiment; run `cargo xtask pictures {name}` on a quiet machine")
        })
    };
    let unknown = fs::read_dir("docs/images").into_iter().flatten().filter_map(|entry| {
        let path = format!("docs/images/{}", entry.ok()?.file_name().to_string_lossy());
        let is_known = PICTURES.iter().any(|picture| picture.path() == path);
        (!is_known).then(|| format!("{path}: no experiment of `cargo xtask pictures` makes it"))
    });
    let images = PICTURES.iter().filter_map(|picture| complaint(&picture.path(), picture));
    let tables = PICTURES.iter().filter(|picture| picture.has_table);
    let tables = tables.filter_map(|picture| complaint(DOCUMENT, picture));
    unknown.chain(images).chain(tables).collect()
}

impl Picture {
    fn path(&self) -> String {
        format!("docs/images/{}.svg", self.name)
    }

    /// A hash of the sources, as they are in the working tree.
    fn hash(&self) -> Result<String, String> {
        let listed = git(&[&["ls-files", "--"], self.sources].concat(), "")?;
        if listed.is_empty() {
            return Err("none of its sources exist".to_owned());
        }
        let hashes = git(&["hash-object", "--stdin-paths"], &listed)?;
        let both: String = listed
            .lines()
            .zip(hashes.lines())
            .map(|(path, hash)| format!("{hash} {path}\n"))
            .collect();
        Ok(git(&["hash-object", "--stdin"], &both)?.chars().take(12).collect())
    }

    /// Runs the experiment, and puts its picture and table into the documentation.
    fn make(&self, wave: &str) -> Result<(), String> {
        let out = format!("{OUT}/{}", self.name);
        println!("pictures: {}: wave {}", self.name, self.run.join(" "));
        let mut command = Command::new(wave);
        command.args(self.run).args(["--out", &out]).stderr(Stdio::inherit());
        let ran = command.output().map_err(|error| format!("{wave}: {error}"))?;
        if !ran.status.success() {
            return Err(format!("wave ended with {}", ran.status));
        }
        let said = String::from_utf8_lossy(&ran.stdout);
        let folder = newest(Path::new(&out))?;
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let result: Value =
            serde_json::from_str(&read("results.json")?).map_err(|error| error.to_string())?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let conclusion = text(&result["conclusion"]);
        if conclusion.contains(NOT_QUIET) {
            return Err(conclusion);
        }
        let machine = &result["machine"];
        let stated = format!(
            "<!-- {}: wave {}; version {}; {}; {} CPUs, {}, Linux {}; sources {} -->",
            self.name,
            self.run.join(" "),
            text(&result["version"]),
            text(&result["started"]),
            machine["cpus"],
            text(&machine["model"]),
            text(&machine["kernel"]),
            self.hash()?
        );
        let svg = read(self.plot)?;
        write(&self.path(), &format!("{stated}\n{}\n", svg.trim_end()))?;
        if self.has_table {
            let document =
                fs::read_to_string(DOCUMENT).map_err(|error| format!("{DOCUMENT}: {error}"))?;
            write(DOCUMENT, &with_table(&document, self.name, &stated, &said)?)?;
        }
        Ok(())
    }
}

/// The document with another statement and output of an experiment: the first block of text after its statement.
fn with_table(document: &str, name: &str, stated: &str, said: &str) -> Result<String, String> {
    let missing = || {
        format!(
            "{DOCUMENT} has no line that begins with `<!-- {name}: `, followed by a block of text"
        )
    };
    let (before, rest) = document.split_once(&format!("<!-- {name}: ")).ok_or_else(missing)?;
    let (between, rest) = rest.split_once("```text\n").ok_or_else(missing)?;
    let between = between.split_once('\n').ok_or_else(missing)?.1;
    // An empty block has no line.
    let after = match rest.strip_prefix("```") {
        Some(after) => after,
        None => rest.split_once("\n```").ok_or_else(missing)?.1,
    };
    let said: Vec<&str> = said.trim_matches('\n').lines().map(str::trim_end).collect();
    Ok(format!("{before}{stated}\n{between}```text\n{}\n```{after}", said.join("\n")))
}

/// The folder that was written last.
fn newest(out: &Path) -> Result<std::path::PathBuf, String> {
    let entries = fs::read_dir(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let folders =
        entries.filter_map(Result::ok).filter(|entry| entry.path().join("results.json").exists());
    let newest = folders.max_by_key(|entry| entry.metadata().and_then(|meta| meta.modified()).ok());
    newest.map(|entry| entry.path()).ok_or_else(|| format!("{} has no results", out.display()))
}

fn write(path: &str, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{path}: {error}"))
}

fn git(arguments: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(cargo::workspace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut git = command.spawn().map_err(|error| format!("git: {error}"))?;
    let mut stdin = git.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).map_err(|error| format!("git: {error}"))?;
    drop(stdin);
    let output = git.wait_with_output().map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("git {} failed", arguments.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_replaced_with_its_statement() {
        let document =
            "# Figures\n\n<!-- a: old -->\nWords.\n\n```text\nold\n```\n\n```text\nother\n```\n";
        let made = with_table(document, "a", "<!-- a: new -->", "\n1  \n 2\n\n").unwrap();
        let expected =
            document.replace("<!-- a: old -->", "<!-- a: new -->").replace("old\n", "1\n 2\n");
        assert_eq!(made, expected);
        let empty = document.replace("old\n", "");
        assert_eq!(with_table(&empty, "a", "<!-- a: new -->", "1\n 2\n").unwrap(), expected);
        assert!(with_table(document, "b", "", "").is_err());
    }

    #[test]
    fn hash_depends_on_every_source() {
        let of = |sources| Picture { sources, ..PICTURES[0] }.hash();
        let [one, both] = [of(&["Makefile"]), of(&["Makefile", "README.md"])].map(Result::unwrap);
        assert_eq!(one.len(), 12);
        assert_ne!(one, both);
        assert!(of(&["there/is/none"]).is_err());
        // Each source of each picture is there.
        for source in PICTURES.iter().flat_map(|picture| picture.sources) {
            assert!(cargo::workspace().join(source).exists(), "{source}");
        }
    }
}
