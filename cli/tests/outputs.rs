//! Files that commands write: a link, a pipe or a device at the path stays one.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use wave_skip::skip;

fn wave(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(words).stdin(Stdio::null());
    command
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Logs of a simulated scheduler and a simulated memory manager.
static LOGS: LazyLock<(TempDir, [PathBuf; 2])> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let logs = ["ladder", "rocksdb-sol"].map(|name| {
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios");
        let text = fs::read_to_string(format!("{shipped}/{name}.toml")).unwrap();
        let mut table: toml::Table = text.parse().unwrap();
        let (part, changes) = match name {
            "ladder" => ("run", [("seconds", 0.02.into()), ("warmup_seconds", 0.004.into())]),
            _ => ("workload", [("keys", 80_000.into()), ("gets_per_second", 400.into())]),
        };
        for (field, value) in changes {
            let value: toml::Value = value;
            table[part].as_table_mut().unwrap().insert(field.to_owned(), value);
        }
        let file = folder.path().join(format!("{name}.toml"));
        fs::write(&file, toml::to_string(&table).unwrap()).unwrap();
        let mut run = wave(&["run", "--host", "sim", "--quiet", "--record", name]);
        // It does not matter whether the run's checks hold.
        run.arg(&file).current_dir(folder.path()).output().unwrap();
        let logs = fs::read_dir(folder.path().join(name)).unwrap();
        logs.map(|entry| entry.unwrap().path()).min().unwrap()
    });
    (folder, logs)
});

/// Runs a command with each kind of output. It must write a text that contains `part`.
fn is_written(part: &str, write: impl Fn(&str)) {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let has = |bytes: &[u8]| assert!(String::from_utf8_lossy(bytes).contains(part), "{part}");

    write(&path("new"));
    has(&fs::read(path("new")).unwrap());

    fs::write(path("file"), "old").unwrap();
    fs::set_permissions(path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    write(&path("file"));
    has(&fs::read(path("file")).unwrap());
    assert_eq!(fs::metadata(path("file")).unwrap().mode() & 0o777, 0o640);

    fs::write(path("target"), "old").unwrap();
    symlink("target", path("link")).unwrap();
    write(&path("link"));
    assert!(Path::new(&path("link")).is_symlink());
    has(&fs::read(path("target")).unwrap());

    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, path("pipe"), FileType::Fifo, mode, 0).unwrap();
    let pipe = path("pipe");
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        File::open(pipe).unwrap().read_to_end(&mut all).unwrap();
        all
    });
    write(&path("pipe"));
    assert!(fs::symlink_metadata(path("pipe")).unwrap().file_type().is_fifo());
    has(&reader.join().unwrap());

    if geteuid().is_root() {
        // As /dev/null, in a folder of its own.
        mknodat(CWD, path("null"), FileType::CharacterDevice, mode, makedev(1, 3)).unwrap();
        write(&path("null"));
        assert!(fs::symlink_metadata(path("null")).unwrap().file_type().is_char_device());
    } else {
        skip("making a device node needs root");
    }
    let left = fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let unfinished: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(unfinished.is_empty(), "{unfinished:?}");
}

#[test]
fn a_trace_is_written_to_files_links_pipes_and_devices() {
    let log = LOGS.1[0].to_str().unwrap();
    is_written("traceEvents", |out| drop(succeeds(&mut wave(&["trace", log, "--output", out]))));
}

#[test]
fn a_heat_map_is_written_to_files_links_pipes_and_devices() {
    let log = LOGS.1[1].to_str().unwrap();
    is_written("<svg", |out| {
        succeeds(&mut wave(&["memory", "explain", log, "--svg", out]));
    });
}

#[test]
fn a_recording_is_written_to_files_links_pipes_and_devices() {
    let scratch = tempfile::tempdir().unwrap();
    let probe = scratch.path().join("probe");
    let mut record = wave(&["record", "--quiet", "--out", probe.to_str().unwrap(), "--", "true"]);
    let output = record.output().unwrap();
    if output.status.code() == Some(3) {
        return skip(format!("no recording here: {}", String::from_utf8_lossy(&output.stderr)));
    }
    is_written("wave_workload", |out| {
        succeeds(&mut wave(&["record", "--quiet", "--out", out, "--", "true"]));
    });
}

/// The log grows while the command runs, and is whole at its end.
#[test]
fn a_log_of_writes_is_appended_to_files_links_pipes_and_devices() {
    is_written("", |out| {
        let mut serve =
            wave(&["serve", "kv", "--on-host", "--listen", "127.0.0.1:0", "--keys", "10"]);
        serve.args(["--quiet", "--log-writes", out]).stdout(Stdio::piped());
        let mut child = serve.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("Serving"), "{line}");
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
    });
}

/// A new user did this: the log was overwritten, and the exit code was 0.
#[test]
fn a_trace_onto_its_own_log_is_refused_and_the_log_is_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    fs::copy(&LOGS.1[0], path("log")).unwrap();
    symlink("log", path("link")).unwrap();
    let before = fs::read(path("log")).unwrap();
    for out in ["log", "link"] {
        let output = wave(&["trace", &path("log"), "-o", &path(out)]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("is an input of this command"), "{errors}");
    }
    assert_eq!(fs::read(path("log")).unwrap(), before);
}

/// The old file is kept, and the message names the path.
#[test]
fn a_full_disk_ends_every_writer_with_an_error_that_names_the_file() {
    if !geteuid().is_root() {
        return skip("making a device node needs root");
    }
    let scratch = tempfile::tempdir().unwrap();
    let full = scratch.path().join("full").to_str().unwrap().to_owned();
    // As /dev/full.
    let mode = Mode::from_raw_mode(0o600);
    mknodat(CWD, &full, FileType::CharacterDevice, mode, makedev(1, 7)).unwrap();
    let (log, memory_log) = (LOGS.1[0].to_str().unwrap(), LOGS.1[1].to_str().unwrap());
    for words in [
        &["trace", log, "--output", &full][..],
        &["memory", "explain", memory_log, "--svg", &full],
        &["link", "measure", "--out", &full],
    ] {
        let output = wave(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{words:?}: {errors}");
        assert!(errors.contains(&full) && errors.contains("No space left"), "{words:?}: {errors}");
    }
    let command = ["--", "sleep", "3"];
    let mut run = wave(&["memory", "run", "--dry-run", "--quiet", "--record", &full]);
    let output = run.args(command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("the log ends early") {
        assert_eq!(output.status.code(), Some(3), "{errors}");
        assert!(errors.contains(&format!("these logs are incomplete: {full}")), "{errors}");
    } else {
        skip(format!("no memory run here: {errors}"));
    }
    assert!(fs::symlink_metadata(&full).unwrap().file_type().is_char_device());
}
