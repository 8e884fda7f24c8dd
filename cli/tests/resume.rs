//! Interrupted runs that resume with `--resume`, from the command line.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Two variants under ten loads, long enough that the run is killed before it ends.
const SCENARIO: &str = r#"name = "small"
kind = "load"
[workload]
keys = 1_000
[run]
seconds = 0.5
warmup_seconds = 0.05
loads_per_second = [40_000, 44_000, 48_000, 52_000, 56_000, 60_000, 64_000, 68_000, 72_000, 76_000]
[[variant]]
name = "offload, shared memory"
placement = "offload"
policy = "fifo"
[[variant]]
name = "offload, PCIe-like link"
placement = "offload"
policy = "fifo"
link = "model:mount-evans"
"#;

/// The fewest points that allow an interruption in the middle: on a busy machine each is repeated for seconds.
const NATIVE: &str = r#"name = "small"
kind = "load"
[workload]
keys = 1_000
[run]
seconds = 0.2
warmup_seconds = 0.05
loads_per_second = [1_000, 2_000, 3_000]
[[variant]]
name = "offload"
placement = "offload"
policy = "fifo"
"#;

fn directory(scenario: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory for this test");
    fs::write(directory.path().join("small.toml"), scenario).expect("it can be written to");
    directory
}

fn wave(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str], directory: &Path) -> Output {
    wave(arguments, directory).output().expect("wave can be run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Starts a run and returns once it has finished a point.
fn start(arguments: &[&str], directory: &Path, journal: &str) -> Child {
    // Tests in the background of a shell ignore SIGINT, and `wave` would inherit that.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_wave")]).args(arguments);
    command.current_dir(directory).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("wave can be run");
    let has_point = || {
        let journal = fs::read_to_string(directory.join(journal)).unwrap_or_default();
        journal.matches('\n').count() > 1
    };
    while !has_point() {
        assert!(child.try_wait().expect("a child").is_none(), "the run ended before it was killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// The contents of `results.json`, without the run's start time.
fn results(folder: &Path) -> Value {
    let bytes = fs::read(folder.join("results.json")).expect("results");
    let mut results: Value = serde_json::from_slice(&bytes).expect("one object");
    results["started"].take();
    results
}

#[test]
fn killed_simulated_run_resumes_to_the_results_of_an_uninterrupted_one() {
    let directory = directory(SCENARIO);
    let directory = directory.path();
    let run = ["run", "small.toml", "--host", "sim", "--quiet"];
    let mut killed = start(&run, directory, "out/small.sim/unfinished.jsonl");
    killed.kill().expect("it can be killed");
    assert_eq!(killed.wait().expect("it ends").signal(), Some(9));
    assert!(!directory.join("out/small.sim/results.json").exists());

    let resume = ["run", "small.toml", "--host", "sim", "--resume"];
    let resumed = output(&resume, directory);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    assert!(text(&resumed.stderr).contains("resuming with"), "{}", text(&resumed.stderr));
    assert!(!directory.join("out/small.sim/unfinished.jsonl").exists());

    let whole = output(&[&run[..], &["--out", "whole"]].concat(), directory);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    let folders = ["out", "whole"].map(|out| directory.join(out).join("small.sim"));
    let [resumed, whole] = folders.each_ref().map(|folder| results(folder));
    assert_eq!(resumed, whole);
    for file in ["points.csv", "points.jsonl", "throughput-latency.svg"] {
        let [resumed, whole] =
            folders.each_ref().map(|folder| fs::read(folder.join(file)).expect("a result"));
        assert!(resumed == whole, "{file} differs");
    }
}

#[test]
fn interrupted_run_prints_the_kept_points_and_the_command_to_resume() {
    let directory = directory(SCENARIO);
    let directory = directory.path();
    let run = ["run", "small.toml", "--host", "sim", "--quiet"];
    let child = start(&run, directory, "out/small.sim/unfinished.jsonl");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    let interrupted = child.wait_with_output().expect("it ends");
    assert_eq!(interrupted.status.signal(), Some(2), "ends by SIGINT, as a shell expects");
    let said = text(&interrupted.stderr);
    assert!(said.contains("kept in out/small.sim/unfinished.jsonl ("), "{said}");
    assert!(said.contains(" of 20 steps were done). To resume:\n"), "{said}");

    // The printed command can be typed unchanged.
    let command = said.lines().last().expect("a line").trim();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(words.join(" "), "run small.toml --host sim --quiet --resume");
    let resumed = output(&words, directory);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
}

#[test]
fn finished_points_of_a_native_run_are_not_measured_again() {
    let directory = directory(NATIVE);
    let directory = directory.path();
    let journal = directory.join("out/small/unfinished.jsonl");
    let child = start(&["run", "small.toml"], directory, "out/small/unfinished.jsonl");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
    let interrupted = child.wait_with_output().expect("it ends");
    assert_eq!(interrupted.status.signal(), Some(15), "{}", text(&interrupted.stderr));
    let kept = fs::read_to_string(journal).expect("a journal");
    let points: Vec<Value> =
        kept.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!((1..3).contains(&points.len()), "{} points", points.len());

    let resumed = output(&["run", "small.toml", "--resume"], directory);
    assert!(resumed.status.success(), "{}", text(&resumed.stderr));
    let results = results(&directory.join("out/small"));
    let loads = results["paired"]["rows"][0]["loads"].as_array().expect("loads");
    assert_eq!(loads.len(), 3);
    for kept in &points {
        let kept = &kept["found"]["outcome"]["point"];
        let of_load = |load: &&Value| load["offered_per_second"] == kept["offered_per_second"];
        let load = loads.iter().find(of_load).expect("a load of the run");
        assert_eq!(load["p99_ns"].as_array().map(Vec::len), Some(20));
        // An equal p99, in nanoseconds, proves that the trial of the first round was not measured again.
        let p99_ns = kept["classes"][0]["latency"]["p99_ns"].as_f64();
        assert_eq!(load["p99_ns"][0].as_f64(), p99_ns);
    }
    let facts = results["facts"].to_string();
    assert!(facts.contains(&format!("measured before: {} point", points.len())), "{facts}");
}

#[test]
fn changed_scenario_is_not_resumed() {
    let directory = directory(SCENARIO);
    let directory = directory.path();
    let run = ["run", "small.toml", "--host", "sim", "--quiet"];
    let mut killed = start(&run, directory, "out/small.sim/unfinished.jsonl");
    killed.kill().expect("it can be killed");
    killed.wait().expect("it ends");
    fs::write(directory.join("small.toml"), SCENARIO.replace("0.5", "0.4")).expect("written");
    let refused = output(&[&run[..], &["--resume"]].concat(), directory);
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert!(said.contains("its points are of another scenario, small ("), "{said}");
    assert!(said.contains("this run's is small ("), "{said}");
}

#[test]
fn resume_without_an_interrupted_run_is_refused() {
    let directory = directory(SCENARIO);
    let run = ["run", "small.toml", "--host", "sim", "--quiet", "--resume"];
    let refused = output(&run, directory.path());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("leave --resume out"), "{}", text(&refused.stderr));
}

#[test]
fn output_path_that_is_a_file_is_refused_before_any_work() {
    let directory = directory(SCENARIO);
    let directory = directory.path();
    fs::write(directory.join("file"), "").expect("written");
    for command in [
        &["run", "small.toml", "--host", "sim", "--out", "file"][..],
        &["run", "small.toml", "--out", "file/below"],
        &["sweep", "small.toml", "--out", "file"],
        &["reproduce", "table2", "--out", "file"],
        &["validate", "--quick", "--out", "file"],
    ] {
        let refused = output(command, directory);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(3), "{command:?}: {said}");
        assert!(said.ends_with(
            "file: is a file, expected a folder for results: give another one with --out\n"
        ));
        assert_eq!(said.lines().count(), 1, "work had begun: {said}");
    }
}

#[test]
fn simulated_results_do_not_replace_native_ones() {
    let directory =
        directory(&SCENARIO.replace("40_000, 44_000, 48_000, 52_000, 56_000, 60_000, ", ""));
    let directory = directory.path();
    let native = directory.join("out/small");
    fs::create_dir_all(&native).expect("made");
    fs::write(native.join("results.json"), "{\"host\": \"user\"}").expect("written");
    let run = ["run", "small.toml", "--host", "sim", "--quiet"];
    let ran = output(&run, directory);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let kept = fs::read_to_string(native.join("results.json")).expect("still there");
    assert_eq!(kept, "{\"host\": \"user\"}");

    fs::copy(native.join("results.json"), directory.join("out/small.sim/results.json"))
        .expect("copied");
    let refused = output(&run, directory);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("holds the results of a run on host `user`"), "{said}");
}
