//! What a user reads: errors without the names of Rust's types, and help without further programs.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn wave(program: &Path, words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(words).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

/// `memory draw` answered "expected struct Results" to the results of another kind of scenario.
#[test]
fn files_of_another_kind_are_refused_without_the_names_of_rust_types() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"wave_workload":2,"machine":"m","kernel":"6.1","cpus":1,"scope":"s","command":null,"duration_ns":1,"dropped_events":0,"unfollowed_threads":0,"repaired":0,"threads":1}"#;
    let scenario = "name = \"x\"\nkind = \"load\"\n[run]\nseconds = 0.1\nwarmup_seconds = 0.01\nloads_per_second = [1000]\n[[variant]]\nname = \"v\"\nplacement = \"offload\"\npolicy = \"fifo\"\nlink = \"model:costs.toml\"\n";
    for (file, text) in [
        ("list.json", "[1, 2]".to_owned()),
        ("other.json", r#"{"scenario": "x", "points": []}"#.to_owned()),
        ("wrong.json", r#"{"scenario": 7}"#.to_owned()),
        ("list.workload", "[1]\n".to_owned()),
        ("thread.workload", format!("{header}\n\"thread\"\n")),
        ("costs.toml", "name = \"x\"\nhost_read = 5\n".to_owned()),
        ("x.toml", scenario.to_owned()),
    ] {
        fs::write(folder.path().join(file), text).unwrap();
    }
    for (words, file) in [
        (&["memory", "draw", "list.json"][..], "list.json"),
        (&["memory", "draw", "other.json"], "other.json"),
        (&["memory", "draw", "wrong.json"], "wrong.json"),
        (&["run", "--host", "sim", "--workload", "list.workload"], "list.workload"),
        (&["run", "--host", "sim", "--workload", "thread.workload"], "thread.workload"),
        (&["run", "--host", "sim", "x.toml"], "costs.toml"),
    ] {
        let output = wave(Path::new(env!("CARGO_BIN_EXE_wave")), words, folder.path());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(file), "{words:?}: {errors}");
        for word in ["struct", "enum", "u32", "u64", "f64", "usize", "::"] {
            assert!(!errors.contains(word), "{words:?}: {errors}");
        }
    }
}

/// `make demo` builds `wave` alone.
#[test]
fn help_for_benches_needs_no_other_program() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("wave");
    fs::copy(env!("CARGO_BIN_EXE_wave"), &alone).unwrap();
    let output = wave(&alone, &["bench", "--help"], folder.path());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    for part in ["wave bench BENCH", "--package wave-bench"] {
        assert!(text.contains(part), "{text}");
    }
    let output = wave(&alone, &["bench", "queue"], folder.path());
    assert_eq!(output.status.code(), Some(3));
}
