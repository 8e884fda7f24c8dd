//! Preemption from the command line: chaos, both kinds of threads, and contradictory scenarios.

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

/// The shipped chaos scenario, with one second per variant.
fn chaos(directory: &Path, change: impl FnOnce(String) -> String) -> PathBuf {
    chaos_for(1, directory, change)
}

fn chaos_for(seconds: u32, directory: &Path, change: impl FnOnce(String) -> String) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/preempt-chaos.toml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let short = text.replace("seconds = 30 ", &format!("seconds = {seconds} "));
    assert_ne!(short, text);
    let path = directory.join("chaos.toml");
    std::fs::write(&path, change(short)).unwrap();
    path
}

/// Seconds per variant in which something is preempted on a busy machine, too.
const LONGER: u32 = 5;

#[test]
fn threads_of_both_kinds_are_preempted_without_failures() {
    let directory = TempDir::new().unwrap();
    let file = chaos_for(LONGER, directory.path(), |text| text);
    let arguments = ["run", file.to_str().unwrap(), "--json", "--quiet", "--out", "out"];
    let found = object(&wave(&arguments, directory.path()));
    assert_eq!(found["failures"], 0, "{found}");
    let variants = found["by_variant"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    let counts = ["preemptions", "gets_verified", "keys_verified_in_scans", "allocations_verified"];
    for (variant, what) in variants.iter().flat_map(|variant| counts.map(|what| (variant, what))) {
        assert!(variant[what].as_u64().unwrap() > 0, "{what}: {variant}");
    }
}

#[test]
fn core_timers_preempt_threads_of_both_kinds() {
    let directory = TempDir::new().unwrap();
    let with_timers = |text: String| text.replace("slice_us=30", "slice_us=30,timer=core");
    let file = chaos_for(LONGER, directory.path(), with_timers);
    let arguments = ["run", file.to_str().unwrap(), "--json", "--quiet", "--out", "out"];
    let found = object(&wave(&arguments, directory.path()));
    assert_eq!(found["failures"], 0, "{found}");
    let variants = found["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2);
    for variant in variants {
        let preemptions = &variant["preemptions"];
        // The agent asks only for the end of runs that it knows from a snapshot, and a busy machine may cause snapshots at any
        // time. `subsystems/sched/tests/traces` checks that it asks for no others.
        assert!(preemptions["sliced_by_core"].as_u64().unwrap() > 0, "{preemptions}");
        assert!(preemptions["run"]["p50_ns"].as_u64().unwrap() >= 30_000, "{preemptions}");
    }
}

#[test]
fn decisions_about_kernel_level_threads_replay() {
    let directory = TempDir::new().unwrap();
    let file = chaos_for(LONGER, directory.path(), |text| text);
    let logs = directory.path().join("logs");
    let (file, logs) = (file.to_str().unwrap(), logs.to_str().unwrap());
    let arguments = ["run", file, "--json", "--quiet", "--out", "out", "--record", logs];
    object(&wave(&arguments, directory.path()));
    let files = std::fs::read_dir(logs).unwrap().map(|log| log.unwrap().path());
    let is_log = |file: &PathBuf| file.extension().is_some_and(|end| end == "wavelog");
    let preemptions = files.filter(is_log).map(|log| {
        let found = object(&wave(&["replay", log.to_str().unwrap(), "--json"], directory.path()));
        let count = |what: &str| found[what].as_u64().unwrap();
        let wrong = ["different", "missing", "extra"].map(count);
        assert_eq!(wrong, [0; 3], "{found}");
        assert_eq!(count("identical"), count("decisions") + count("preemptions"), "{found}");
        count("preemptions")
    });
    // A log for each of two variants, and for each agent that came after one that the host had turned out.
    let preemptions: Vec<u64> = preemptions.collect();
    assert!(preemptions.iter().filter(|count| **count > 0).count() >= 2, "{preemptions:?}");
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
