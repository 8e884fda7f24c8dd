//! `wave record`, then `wave run` of the recording, from the command line.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use wave_linux::record::{RecordError, Recorder, Scope};

fn wave(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command.output().expect("wave can be run")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that `output` is one JSON object and nothing else, and returns it.
fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// Two threads that need a millisecond each, the second woken by the first in the middle of it.
const WORKLOAD: &str = r#"{"wave_workload":1,"machine":"m","kernel":"6.1","cpus":1,"scope":"s","command":null,"duration_ns":3000000,"dropped_events":7,"unfollowed_threads":0,"repaired":2,"threads":2}
{"pid":10,"process":10,"name":"first","end":"exited","ended_ns":1001000,"runs":[[0,1000,1000000,0]]}
{"pid":11,"process":10,"name":"second","end":"blocked","ended_ns":2001000,"runs":[[501000,500000,1000000,1,0,500000]]}
"#;

#[test]
fn a_command_is_recorded_and_run_under_three_policies() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo to standard error; for i in 1 2 3; do sleep 0.02; done";
    let arguments = ["record", "--json", "--out", "x.workload", "--", "sh", "-c", script];
    match Recorder::start(Scope::Children) {
        Ok(recorder) => drop(recorder),
        Err(error @ (RecordError::NotPermitted | RecordError::NoTypes)) => {
            assert_eq!(wave(&arguments, directory.path()).status.code(), Some(3));
            assert!(!directory.path().join("x.workload").exists());
            return wave_skip::skip(error);
        }
        Err(error) => panic!("{error}"),
    }
    let output = wave(&arguments, directory.path());
    let summary = object(&output);
    assert!(errors(&output).contains("to standard error"));
    assert_eq!(summary["ended"], "the command ended");
    assert!(summary["recorded"]["interference_ns"].is_u64(), "{summary}");
    let threads = summary["recorded"]["threads"].as_u64().unwrap();
    assert!(threads >= 4, "a shell and three sleeps: {summary}");

    let arguments = ["run", "--host", "sim", "--workload", "x.workload", "--json"];
    let result = object(&wave(&arguments, directory.path()));
    let schedules = result["schedules"].as_array().unwrap();
    let outside = &result["woken_from_outside"];
    assert!(outside["runs"].as_u64() >= Some(3), "the timers of three sleeps: {outside}");
    assert!(outside["blocked_ns"].as_u64() >= Some(3 * 20_000_000), "{outside}");
    let names: Vec<_> = schedules.iter().map(|row| row["scheduled_by"].as_str().unwrap()).collect();
    assert_eq!(names, ["recorded (Linux)", "fifo", "shinjuku", "vm"]);
    for row in schedules {
        assert_eq!(row["cpu_ns"], summary["cpu_ns"], "the recorded CPU time is used exactly");
        assert_eq!(row["threads"].as_array().unwrap().len() as u64, threads);
        assert_eq!(row["wait"]["count"], summary["wait"]["count"]);
    }
    let again = object(&wave(&arguments, directory.path()));
    assert_eq!(result, again);
    let written = std::fs::read(directory.path().join("out/x.sim/result.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), result);
}

#[test]
fn table_has_rows_for_linux_and_each_policy_and_names_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("two.workload"), WORKLOAD).unwrap();
    let arguments = [
        "run",
        "--host",
        "sim",
        "--workload",
        "two.workload",
        "--policy",
        "fifo",
        "--policy",
        "shinjuku:slice_us=100",
        "--cores",
        "2",
        "--quiet",
    ];
    let output = wave(&arguments, directory.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", errors(&output));
    assert!(output.stderr.is_empty(), "{}", errors(&output));
    for words in ["recorded (Linux)", " fifo ", "shinjuku:slice_us=100", "7 events"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.ends_with("Report: out/two.sim/report.html\n"), "{text}");
    let page = std::fs::read_to_string(directory.path().join("out/two.sim/report.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 2, "{page}");
    let conclusion = text.split("\n\n").last().unwrap().replace('\n', " ");
    assert!(conclusion.starts_with("In simulation, \""), "{text}");
    assert!(page.contains("ends the workload first of 2 policies,"), "{page}");
    assert!(text.contains("Interference: not known, as the file is of version 1"), "{text}");
}

#[test]
fn report_shows_the_share_of_interference_in_a_recording() {
    let directory = tempfile::tempdir().unwrap();
    // The first thread is woken once more, half a millisecond after it blocked. Other threads used 1.2 of 4 ms.
    let text = WORKLOAD
        .replace("\"wave_workload\":1", "\"wave_workload\":2")
        .replace("\"repaired\":2", "\"repaired\":2,\"interference_ns\":1200000")
        .replace("\"ended_ns\":1001000", "\"ended_ns\":4000000")
        .replace("[0,1000,1000000,0]", "[0,1000,1000000,0],[1501000,0,100000,0,500000]");
    std::fs::write(directory.path().join("one.workload"), text).unwrap();
    let arguments = ["run", "--host", "sim", "--workload", "one.workload", "--policy", "fifo"];
    let output = wave(&arguments, directory.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", errors(&output));
    // The text has the first notes, and the page has all of them.
    let page = std::fs::read_to_string(directory.path().join("out/one.sim/report.html")).unwrap();
    assert!(text.contains("The report has 2 more notes."), "{text}");
    for words in [
        "not recorded used 1.20 ms of CPU time",
        "30.0% of the CPUs' time",
        "1 of 3 runs were woken by something that was not recorded",
        "after 0.50 ms in all",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn contradictory_arguments_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("good"), WORKLOAD).unwrap();
    std::fs::write(directory.path().join("bad"), "{}\n").unwrap();
    let refused = |arguments: &[&str], words: &str| {
        let output = wave(arguments, directory.path());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).contains(words), "{}", errors(&output));
        assert!(output.stdout.is_empty());
    };
    refused(&["run", "--workload", "good"], "--host sim");
    refused(&["run", "--host", "sim", "--workload", "bad"], "not a recorded workload");
    refused(&["run", "--host", "sim", "--workload", "none"], "none: No such file");
    for (written, instead, words) in [
        ("\"cpus\":1", "\"cpus\":0", "line 1: recorded on 0 CPUs; expected 1 to 8192"),
        ("\"cpus\":1", "\"cpus\":1000000000", "line 1: recorded on 1000000000 CPUs"),
        ("1,0,500000]", "1,1,500000]", "line 3: run 0 is woken by its own thread"),
        ("1000000,0]]", "1000000,0,1,500000]]", "line 2: run 0 waits for itself"),
    ] {
        assert!(WORKLOAD.contains(written), "{written}");
        let text = WORKLOAD.replacen(written, instead, 1);
        std::fs::write(directory.path().join("bad"), text).unwrap();
        refused(&["run", "--host", "sim", "--workload", "bad"], words);
    }
    refused(&["run", "--host", "sim", "--workload", "good", "--policy", "cfs"], "no policy `cfs`");
    refused(&["record", "--out", "x"], "--all");
    // Where BPF is not permitted, that error comes first.
    for arguments in [
        &["record", "--out", "x", "--", "/no/such/command"][..],
        &["record", "--out", "x", "--pid", "1999999999"],
    ] {
        let output = wave(arguments, directory.path());
        assert!(matches!(output.status.code(), Some(2 | 3)), "{}", errors(&output));
        assert!(errors(&output).starts_with("wave record: "), "{}", errors(&output));
    }
    let output = wave(&["record", "--all", "--out", "no/such/place"], directory.path());
    assert_eq!(output.status.code(), Some(3));
    assert!(errors(&output).contains("no/such/place: cannot be written"));
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "no other files remain: {left:?}");
}
