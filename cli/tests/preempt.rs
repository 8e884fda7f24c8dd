//! Preemption from the command line: chaos, both kinds of threads, and what cannot be meant.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn wave(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(arguments).current_dir(directory);
    command.output().expect("the program can be run")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The scenario that ships, for a second per variant.
fn chaos(directory: &Path, change: impl FnOnce(String) -> String) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/preempt-chaos.toml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let short = text.replace("seconds = 30 ", "seconds = 1 ");
    assert_ne!(short, text);
    let path = directory.join("chaos.toml");
    std::fs::write(&path, change(short)).unwrap();
    path
}

#[test]
fn threads_of_both_kinds_are_preempted_and_see_nothing_wrong() {
    let directory = TempDir::new().unwrap();
    let file = chaos(directory.path(), |text| text);
    let arguments = ["run", file.to_str().unwrap(), "--json", "--quiet", "--out", "out"];
    let found = object(&wave(&arguments, directory.path()));
    assert_eq!(found["failures"], 0, "{found}");
    let variants = found["by_variant"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    for variant in variants {
        for what in
            ["preemptions", "gets_verified", "keys_verified_in_scans", "allocations_verified"]
        {
            assert!(variant[what].as_u64().unwrap() > 0, "{what}: {variant}");
        }
    }
}

#[test]
fn the_cores_own_timers_preempt_both_kinds() {
    let directory = TempDir::new().unwrap();
    let file =
        chaos(directory.path(), |text| text.replace("slice_us=30", "slice_us=30,timer=core"));
    let arguments = ["run", file.to_str().unwrap(), "--json", "--quiet", "--out", "out"];
    let found = object(&wave(&arguments, directory.path()));
    assert_eq!(found["failures"], 0, "{found}");
    for variant in found["variants"].as_array().unwrap() {
        let preemptions = &variant["preemptions"];
        // The agent asks only for the end of runs that a snapshot tells of, which a busy machine may bring about at any
        // time: that it asks for no others is seen in `subsystems/sched/tests/traces`.
        assert!(preemptions["sliced_by_core"].as_u64().unwrap() > 0, "{preemptions}");
        assert!(preemptions["run"]["p50_ns"].as_u64().unwrap() >= 30_000, "{preemptions}");
    }
}

#[test]
fn decisions_about_kernel_level_threads_replay() {
    let directory = TempDir::new().unwrap();
    let file = chaos(directory.path(), |text| text);
    let logs = directory.path().join("logs");
    let (file, logs) = (file.to_str().unwrap(), logs.to_str().unwrap());
    object(&wave(
        &["run", file, "--json", "--quiet", "--out", "out", "--record", logs],
        directory.path(),
    ));
    let mut replayed = 0;
    for log in std::fs::read_dir(logs).unwrap() {
        let log = log.unwrap().path();
        if log.extension().is_some_and(|extension| extension == "wavelog") {
            let found =
                object(&wave(&["replay", log.to_str().unwrap(), "--json"], directory.path()));
            let count = |what: &str| found[what].as_u64().unwrap();
            let wrong = ["different", "missing", "extra"].map(count);
            assert_eq!(wrong, [0; 3], "{found}");
            assert_eq!(count("identical"), count("decisions") + count("preemptions"), "{found}");
            assert!(count("preemptions") > 0, "{found}");
            replayed += 1;
        }
    }
    assert_eq!(replayed, 2);
}

#[test]
fn contradictory_scenarios_are_refused() {
    let directory = TempDir::new().unwrap();
    type Change = fn(String) -> String;
    let cases: [(Change, &[&str], &str); 5] = [
        (|text| text.replace("\"kernel\"", "\"fiber\""), &[], "expected `user` or `kernel`"),
        (
            |text| text.replace("seconds = 1 ", "loads_per_second = [1]\nseconds = 1 "),
            &[],
            "[run] has a load",
        ),
        (|text| text.replace("threads = 8", "threads = 0"), &[], "`chaos.threads` is 0"),
        (|text| text.replace(", operation = \"range\"", ""), &[], "operation = \"range\""),
        (|text| text, &["--host", "sim"], "run it without --host sim"),
    ];
    for (change, more, expected) in cases {
        let file = chaos(directory.path(), change);
        let mut arguments = vec!["run", file.to_str().unwrap(), "--quiet", "--out", "out"];
        arguments.extend(more);
        let output = wave(&arguments, directory.path());
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains(expected), "{expected}: {}", errors(&output));
    }
}
