//! `cargo xtask release`: builds the binary archive of the workspace's version, with a list of its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::cargo::{cargo, target_folder, workspace};

pub const USAGE: &str = "usage: cargo xtask release               make target/release-archives/wave-VERSION-ARCH-linux.tar.gz of the \
                         committed tree, whose change log must have that version";

/// Files of the tree in the archive: path, description, licence. A folder stands for all files below it.
const PARTS: &[(&str, &str, &str)] = &[
    ("README.md", "what Wave is, and what to type", OURS),
    ("CHANGELOG.md", "what changed for users", OURS),
    ("CITATION.cff", "how to cite Wave and the papers that it follows", OURS),
    ("LICENSE-APACHE", "licence", "Apache-2.0"),
    ("LICENSE-MIT", "licence", "MIT"),
    ("scenarios", "scenario for wave run", OURS),
    ("docs/service", "systemd unit and its settings, for wave memory", OURS),
    ("hosts/linux/bpf/LICENSE-GPL-2.0", "licence of the BPF programs", GPL),
    ("hosts/linux/bpf", "source of the BPF programs within bin/wave", GPL),
];
const OURS: &str = "Apache-2.0 OR MIT";
const GPL: &str = "GPL-2.0-only";

pub fn main(arguments: &[String]) -> ExitCode {
    if !arguments.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    match released() {
        Ok(archive) => {
            println!("release: {}", archive.display());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("release: {why}");
            ExitCode::FAILURE
        }
    }
}

struct Part {
    place: PathBuf,
    about: &'static str,
    licence: String,
}

fn released() -> Result<PathBuf, String> {
    let metadata = said(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let version = version_of(&metadata)?;
    check_log(
        &fs::read_to_string("CHANGELOG.md").map_err(|error| format!("CHANGELOG.md: {error}"))?,
        &version,
    )?;
    let citation =
        fs::read_to_string("CITATION.cff").map_err(|error| format!("CITATION.cff: {error}"))?;
    if !citation.lines().any(|line| line == format!("version: {version}")) {
        return Err(format!("CITATION.cff has no line `version: {version}`"));
    }
    let changed = said(git().args(["status", "--porcelain"]))?;
    if let Some(first) = changed.lines().next() {
        return Err(format!("the tree has changes that are not committed, as {}", first.trim()));
    }
    let commit = said(git().args(["rev-parse", "HEAD"]))?;
    let time = said(git().args(["log", "-1", "--format=%ct"]))?;

    eprintln!("release: building wave {version}, optimized");
    let binary = crate::cargo::built("wave", &["build", "--release"])?;
    let name = format!("wave-{version}-{}-linux", std::env::consts::ARCH);
    let archives = target_folder().join("release-archives");
    let folder = archives.join(&name);
    let _ = fs::remove_dir_all(&folder);

    let mut parts = vec![Part {
        place: "bin/wave".into(),
        about: "the program; its BPF programs, which the kernel runs, are GPL-2.0-only, the rest is not",
        licence: format!("({OURS}) AND {GPL}, and the linked crates'"),
    }];
    copy(Path::new(&binary), &folder.join("bin/wave"))?;
    said(Command::new("strip").arg("--strip-debug").arg(folder.join("bin/wave")))?;
    for file in said(git().arg("ls-files"))?.lines() {
        if let Some((_, about, licence)) =
            PARTS.iter().find(|(part, ..)| Path::new(file).starts_with(part))
        {
            copy(&workspace().join(file), &folder.join(file))?;
            parts.push(Part { place: file.into(), about, licence: (*licence).into() });
        }
    }
    parts.extend(generated(&folder)?);
    let crates = linked(&metadata)?;
    for linked in &crates {
        for file in &linked.licence_files {
            let place = Path::new("licences")
                .join(linked.folder())
                .join(file.file_name().unwrap_or(OsStr::new("LICENSE")));
            copy(file, &folder.join(&place))?;
            parts.push(Part {
                place,
                about: "licence of a linked crate",
                licence: linked.licence.clone(),
            });
        }
    }
    let libraries = shared_libraries(&folder.join("bin/wave"))?;
    let head = format!(
        "Wave {version}, commit {commit}, for Linux on {}.\n\
         Its whole source is wave-{version}-source.tar.gz, beside this archive.\n",
        std::env::consts::ARCH
    );
    fs::write(folder.join("MANIFEST"), head + &manifest(&folder, &parts, &crates, &libraries)?)
        .map_err(|error| format!("MANIFEST: {error}"))?;

    let archive = archives.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    // The archive is reproducible: the same files give the same archive, whoever packs them and when.
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9n",
    ]);
    tar.arg(format!("--mtime=@{time}"))
        .arg("--directory")
        .arg(&archives)
        .arg("-cf")
        .arg(&archive)
        .arg(&name);
    said(&mut tar)?;
    let mut source = git();
    source.args(["archive", "--format=tar.gz"]).arg(format!("--prefix=wave-{version}/"));
    said(
        source
            .arg("--output")
            .arg(archives.join(format!("wave-{version}-source.tar.gz")))
            .arg("HEAD"),
    )?;
    for packed in [&name, &format!("wave-{version}-source")] {
        let file = format!("{packed}.tar.gz");
        let sum = said(Command::new("sha256sum").arg(&file).current_dir(&archives))?;
        fs::write(archives.join(format!("{file}.sha256")), sum + "\n")
            .map_err(|error| error.to_string())?;
    }
    Ok(archive)
}

/// The shells' completion files, at the places where distributions put them.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/wave"),
    ("zsh", "share/zsh/site-functions/_wave"),
    ("fish", "share/fish/vendor_completions.d/wave.fish"),
];
const MANUALS: &str = "share/man/man1";

/// Completions and man pages, written by the archive's own program.
fn generated(folder: &Path) -> Result<Vec<Part>, String> {
    let wave = folder.join("bin/wave");
    let part = |place: PathBuf, about| Part { place, about, licence: OURS.into() };
    let mut parts = Vec::new();
    for (shell, place) in COMPLETIONS {
        let text = said(Command::new(&wave).args(["completions", shell]))?;
        let file = folder.join(place);
        let made = file.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&file, text + "\n"))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        parts.push(part(place.into(), "completions for a shell"));
    }
    let manuals = folder.join(MANUALS);
    said(Command::new(&wave).arg("man").arg(&manuals))?;
    let pages = fs::read_dir(&manuals).map_err(|error| format!("{MANUALS}: {error}"))?;
    let mut names: Vec<_> = pages.filter_map(|page| Some(page.ok()?.file_name())).collect();
    names.sort();
    let pages =
        names.iter().map(|name| part(Path::new(MANUALS).join(name), "man page of a command"));
    parts.extend(pages);
    Ok(parts)
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(workspace());
    git
}

/// The output of a command, without the final newline.
fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program} failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(from, to));
    copied.map(|_| ()).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

fn version_of(metadata: &Value) -> Result<String, String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut wave =
        packages.filter(|package| package["name"] == "wave" && package["source"].is_null());
    let version = wave.next().and_then(|wave| wave["version"].as_str());
    Ok(version.ok_or("cargo metadata has no package wave")?.to_owned())
}

/// Checks that the change log has a dated, non-empty section for the version, and no unreleased entries.
fn check_log(log: &str, version: &str) -> Result<(), String> {
    let mut sections =
        log.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, "")));
    let entries = |text: &str| text.lines().filter(|line| line.starts_with("- ")).count();
    if sections.clone().any(|(title, text)| title == "[Unreleased]" && entries(text) > 0) {
        return Err(format!(
            "CHANGELOG.md has entries under [Unreleased]: move them to [{version}]"
        ));
    }
    let is_it = |title: &str| {
        title
            .strip_prefix(&format!("[{version}] - "))
            .is_some_and(|date| date.len() == "2026-01-01".len())
    };
    match sections.find(|(title, _)| is_it(title)) {
        None => Err(format!("CHANGELOG.md has no section `## [{version}] - DATE`")),
        Some((_, text)) if entries(text) == 0 => {
            Err(format!("the section of CHANGELOG.md for {version} is empty"))
        }
        Some(_) => Ok(()),
    }
}

/// A registry crate that is part of the program.
struct Linked {
    name: String,
    version: String,
    licence: String,
    licence_files: Vec<PathBuf>,
}

impl Linked {
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// The crates that are linked into the program, with the features of its build. Crates that only run during the build are not
/// included.
fn linked(metadata: &Value) -> Result<Vec<Linked>, String> {
    let mut tree = cargo();
    tree.args([
        "tree",
        "--locked",
        "--package",
        "wave",
        "--edges",
        "normal,no-proc-macro",
        "--prefix",
        "none",
    ]);
    let tree = said(tree.args(["--format", "{p}", "--no-dedupe"]))?;
    // NAME vVERSION, and (PATH) for our own crates.
    let names: BTreeSet<(&str, &str)> =
        tree.lines().filter(|line| !line.contains(" (/")).filter_map(two_words).collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let by_name: BTreeMap<(&str, &str), &Value> = packages
        .iter()
        .filter_map(|package| {
            Some(((package["name"].as_str()?, package["version"].as_str()?), package))
        })
        .collect();
    names
        .into_iter()
        .map(|(name, version)| {
            let package = by_name
                .get(&(name, version))
                .ok_or_else(|| format!("cargo metadata has no {name} {version}"))?;
            let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
            let licence = package["license"]
                .as_str()
                .map_or_else(|| "see its licence file".to_owned(), str::to_owned);
            let licence_files = licence_files(manifest.parent().unwrap_or(Path::new(".")))?;
            Ok(Linked { name: name.into(), version: version.into(), licence, licence_files })
        })
        .collect()
}

fn two_words(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// Files at the top of a crate whose names mark them as its licence.
fn licence_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_licence = |path: &PathBuf| {
        let name =
            path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        path.is_file()
            && ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"]
                .iter()
                .any(|start| name.starts_with(start))
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_licence).collect();
    files.sort();
    Ok(files)
}

/// Shared libraries that the program needs, by name.
fn shared_libraries(program: &Path) -> Result<Vec<String>, String> {
    let dynamic = said(Command::new("readelf").arg("--dynamic").arg("--wide").arg(program))?;
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    Ok(needed
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect())
}

fn manifest(
    folder: &Path,
    parts: &[Part],
    crates: &[Linked],
    libraries: &[String],
) -> Result<String, String> {
    let mut text = format!(
        "It needs these shared libraries of the system: {}; for scenarios with RocksDB, librocksdb as well.\n\nFiles: SHA-256, place, licence, what it is\n\n",
        libraries.join(", ")
    );
    for Part { place, about, licence } in parts {
        let sum = said(Command::new("sha256sum").arg("--").arg(folder.join(place)))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        let _ = writeln!(text, "{sum}  {}  [{licence}]  {about}", place.display());
    }
    let _ = write!(
        text,
        "\nCrates that bin/wave is linked of: name, version, licence, its licence files in licences/\n\n"
    );
    for linked in crates {
        let files: Vec<_> =
            linked.licence_files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        let files =
            if files.is_empty() { "its package has none".to_owned() } else { files.join(", ") };
        let _ = writeln!(text, "{} {}  [{}]  {files}", linked.name, linked.version, linked.licence);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_needs_a_dated_section_with_entries() {
        let log = |sections: &str| check_log(&format!("# Changelog\n\n{sections}"), "1.2.0");
        assert_eq!(
            log("## [Unreleased]\n\n## [1.2.0] - 2026-01-31\n\n- A\n\n## [1.1.0]\n"),
            Ok(())
        );
        for (sections, expected) in [
            ("## [1.1.0]\n- A", "CHANGELOG.md has no section `## [1.2.0] - DATE`"),
            ("## [1.2.0]\n- A", "CHANGELOG.md has no section `## [1.2.0] - DATE`"),
            (
                "## [1.2.0] - 2026-01-31\n## [1.1.0]\n- A",
                "the section of CHANGELOG.md for 1.2.0 is empty",
            ),
            (
                "## [Unreleased]\n- B\n\n## [1.2.0] - 2026-01-31\n- A",
                "CHANGELOG.md has entries under [Unreleased]: move them to [1.2.0]",
            ),
        ] {
            assert_eq!(log(sections), Err(expected.to_owned()), "{sections}");
        }
    }

    #[test]
    fn lines_of_cargo_tree_are_read() {
        assert_eq!(two_words("h2 v0.4.1"), Some(("h2", "0.4.1")));
        assert_eq!(two_words("h2 v0.4.1 (*)"), Some(("h2", "0.4.1")));
        assert_eq!(two_words(""), None);
    }
}
