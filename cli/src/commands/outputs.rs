//! Checks every option that names a file to write. The options are found by their type, in the command line's definition.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::geteuid;
use wave_agent::OutputFile;

use super::{Wave, with_negative_numbers};

/// Each option that names a file to write, with a command line that also names an input, `IN`.
const WRITTEN: [(&str, &str); 9] = [
    ("agent --record", "agent --attach IN --record OUT"),
    ("agent replace --record", "agent replace --attach IN --record OUT"),
    ("link measure --out", "link measure --pci IN --offset 0 --out OUT"),
    ("memory explain --svg", "memory explain IN --svg OUT"),
    ("memory run --record", "memory run --record OUT -- IN"),
    ("record --out", "record --out OUT -- IN"),
    ("serve kv --log-writes", "serve kv --offload IN --log-writes OUT"),
    ("tcp capture --write", "tcp capture --socket IN --write OUT"),
    ("trace --output", "trace IN --output OUT"),
];

/// Other options with a path: inputs, folders, sockets and programs. Folders get files under names that Wave chooses.
const OTHERS: [&str; 37] = [
    "agent --attach",
    "agent --device",
    "agent --notes",
    "agent --notes-from",
    "agent --rpc",
    "agent --tls-cert",
    "agent --tls-key",
    "fit --out",
    "fit --root",
    "link measure --pci",
    "man DIR",
    "memory draw --out",
    "memory draw FILE",
    "memory explain LOG",
    "memory run --cgroup",
    "memory run --out",
    "merge DIR",
    "reference DIR",
    "replay LOG",
    "reproduce --check",
    "reproduce --out",
    "rmt trace --segments",
    "run --agent",
    "run --cgroup",
    "run --out",
    "run --record",
    "run --workload",
    "run SCENARIO.toml",
    "serve --offload",
    "serve --toe",
    "sweep --agent",
    "sweep --out",
    "sweep SCENARIO.toml",
    "tcp --socket",
    "tcp script PATH",
    "trace LOG",
    "validate --out",
];

/// The options of this command and its subcommands whose values have the type `T`.
fn options<T: 'static>(command: &clap::Command, path: &str, found: &mut Vec<String>) {
    for arg in command.get_arguments() {
        if arg.get_value_parser().type_id() == TypeId::of::<T>() {
            let name = arg.get_long().map(|long| format!("--{long}"));
            let value = || arg.get_value_names().map(|names| names[0].to_string());
            found.push(format!("{path}{}", name.or_else(value).unwrap_or_default()));
        }
    }
    for sub in command.get_subcommands() {
        options::<T>(sub, &format!("{path}{} ", sub.get_name()), found);
    }
}

fn all<T: 'static>() -> Vec<String> {
    let (mut command, mut found) = (Wave::command(), Vec::new());
    command.build();
    options::<T>(&command, "", &mut found);
    found.sort();
    found
}

#[test]
fn every_option_with_a_path_is_an_output_or_known_not_to_be_one() {
    assert_eq!(all::<OutputFile>(), WRITTEN.map(|(option, _)| option));
    for option in all::<PathBuf>() {
        let option = option.replace("agent replace ", "agent ");
        let (command, name) = option.rsplit_once(' ').unwrap();
        let family = command.split(' ').next().unwrap();
        let known = [option.clone(), format!("{family} {name}")];
        assert!(
            OTHERS.iter().any(|other| known.iter().any(|known| known == other)),
            "{option}: if it is written, its type is OutputFile; else it belongs in OTHERS"
        );
    }
}

/// Exit code and message of parsing a command line.
fn parsed(line: &str, input: &Path, output: &Path) -> Result<(), (i32, String)> {
    let path = |word: &str| match word {
        "IN" => input.into(),
        "OUT" => output.into(),
        word => std::ffi::OsString::from(word),
    };
    let words = std::iter::once("wave").chain(line.split(' ')).map(path);
    let matches = with_negative_numbers(Wave::command()).try_get_matches_from(words);
    let checked = matches.and_then(wave_agent::checked).map(drop);
    checked.map_err(|error| (error.exit_code(), error.to_string()))
}

/// They are refused before any work, and nothing at the path changes.
#[test]
fn every_output_refuses_what_must_not_be_overwritten_and_takes_the_rest() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let node = |name: &str, kind, device| {
        mknodat(CWD, path(name), kind, Mode::from_raw_mode(0o600), device).unwrap();
    };
    fs::create_dir(path("folder")).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::write(path("file"), "old").unwrap();
    fs::write(path("input"), "input").unwrap();
    symlink("file", path("link")).unwrap();
    symlink("input", path("link to the input")).unwrap();
    node("pipe", FileType::Fifo, 0);
    let mut refused = BTreeMap::from([
        ("folder", "is a directory"),
        ("socket", "is a socket"),
        ("input", "is an input"),
        ("link to the input", "is an input"),
    ]);
    let mut taken = vec!["file", "link", "pipe", "new"];
    if geteuid().is_root() {
        // Device 0:0 has no driver; 1:3 is /dev/null.
        node("disk", FileType::BlockDevice, 0);
        node("null", FileType::CharacterDevice, makedev(1, 3));
        refused.insert("disk", "is a block device");
        taken.push("null");
    }
    let kinds = || -> BTreeMap<PathBuf, (fs::FileType, u64)> {
        let entries = fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().path());
        let about = |path: PathBuf| {
            let found = fs::symlink_metadata(&path).unwrap();
            (path, (found.file_type(), found.len()))
        };
        entries.map(about).collect()
    };
    let before = kinds();
    for (option, line) in WRITTEN {
        for (name, why) in &refused {
            let (code, error) = parsed(line, &path("input"), &path(name)).unwrap_err();
            assert_eq!(code, 2, "{option} {name}: {error}");
            assert!(error.contains(why), "{option} {name}: {error}");
        }
        for name in &taken {
            assert_eq!(parsed(line, &path("input"), &path(name)), Ok(()), "{option} {name}");
        }
    }
    assert_eq!(kinds(), before);
}
