//! A small version of `scenarios/rpc-rocksdb.toml`, from the command line: every placement starts, serves and ends.

#[path = "../../experiments/tests/same_keys/mod.rs"]
mod same_keys;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use same_keys::have_the_same_keys;
use serde_json::Value;
use tempfile::TempDir;

/// The shipped scenario, with one low load, short points and few keys.
fn small(directory: &Path) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/rpc-rocksdb.toml");
    let text = std::fs::read_to_string(shipped).unwrap();
    let changed = [
        ("keys", "1_000"),
        ("rounds", "6"),
        ("seconds", "0.2"),
        ("warmup_seconds", "0.1"),
        ("loads_per_second", "[200]"),
        ("compare_at", "200"),
        ("refine", "0"),
        ("threads", "8"),
    ];
    let line = |line: &str| {
        let field = line.split(" = ").next().unwrap_or_default();
        match changed.iter().find(|(name, _)| *name == field) {
            Some((name, value)) => format!("{name} = {value}\n"),
            None => format!("{line}\n"),
        }
    };
    let text: String = text.lines().map(line).collect();
    for (name, value) in changed {
        assert!(text.contains(&format!("\n{name} = {value}\n")), "{name}");
    }
    let path = directory.join("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn run(directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.arg("run").args(words).args(["--out", "out"]).current_dir(directory);
    command.stdin(Stdio::null()).output().expect("the program can be run")
}

#[test]
fn every_placement_starts_serves_and_ends() {
    let directory = TempDir::new().unwrap();
    let file = small(directory.path());
    let output = run(directory.path(), &[file.to_str().unwrap(), "--json", "--record", "logs"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let result: Value =
        serde_json::from_slice(&output.stdout).expect("one object and nothing else");
    for name in [
        "multi_queue_gain",
        "offload_vs_onhost_all",
        "throughput_vs_tonic",
        "throughput_vs_sidecar",
        "limits_us",
        "equal",
    ] {
        assert!(result.get(name).is_some(), "{name}");
    }
    let placements = result["placements"].as_array().unwrap();
    for wanted in ["offload-all", "onhost-all", "onhost-scheduler", "sidecar", "tonic"] {
        let mut of = placements.iter().filter(|placed| placed["placement"] == wanted);
        let placed = of.next().unwrap_or_else(|| panic!("no {wanted}"));
        // With few CPUs it may be the same system as another placement.
        if placed["same_system_as"].is_null() {
            let figures = &placed["compared"];
            assert_eq!(figures["offered_per_second"], 200.0, "{placed}");
            // If other processes keep an agent from its CPU, it is turned out, and may serve nothing.
            let conclusion = result["paired"]["conclusion"].as_str().unwrap();
            let is_busy = conclusion.starts_with("Other processes used ");
            assert!(figures["served"].as_f64().unwrap() > 0.0 || is_busy, "{placed}");
            for name in ["total_us_per_rpc", "host_us_per_rpc"] {
                assert!(figures[name].as_f64().unwrap() > 0.0 || is_busy, "{name}: {placed}");
            }
        }
    }
    for file in ["report.html", "points.csv", "points.jsonl"] {
        assert!(directory.path().join("out/rpc-rocksdb").join(file).is_file(), "{file}");
    }
    replays(directory.path(), "logs/offload-all-shinjuku.wavelog");
    let output = run(directory.path(), &[file.to_str().unwrap(), "--json", "--host", "sim"]);
    let mut simulated: Value = serde_json::from_slice(&output.stdout).expect("one object");
    // Only a native run has rounds.
    assert!(simulated.get("paired").is_none() && result["paired"]["rounds"] == 6);
    simulated["paired"] = Value::Null;
    // Filled only where the loads of the run tell what both variants serve.
    let may_be_empty = [
        ".multi_queue_gain_by_limit",
        ".multi_queue_gain_by_link",
        ".offload_vs_onhost_all",
        ".offload_vs_onhost_scheduler",
    ];
    have_the_same_keys(&result, &simulated, &may_be_empty);
}

#[test]
fn every_placement_that_has_a_model_is_simulated() {
    let directory = TempDir::new().unwrap();
    let file = small(directory.path());
    let words = [file.to_str().unwrap(), "--host", "sim", "--json", "--record", "logs"];
    let output = run(directory.path(), &words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(result["host"], "sim");
    let placements = result["placements"].as_array().unwrap();
    for wanted in ["offload-all", "onhost-scheduler"] {
        let of = placements.iter().filter(|placed| placed["placement"] == wanted);
        let served: Vec<&Value> = of.map(|placed| &placed["compared"]["served"]).collect();
        assert!(!served.is_empty(), "no {wanted}: {result}");
        assert!(served.iter().all(|served| **served == 1.0), "{wanted}: {result}");
    }
    for left_out in ["Sidecar", "tonic"] {
        let told =
            |fact: &Value| fact[0] == left_out && fact[1].as_str().unwrap().contains("no model");
        assert!(result["facts"].as_array().unwrap().iter().any(told), "{left_out}");
    }
    assert!(directory.path().join("out/rpc-rocksdb.sim/report.html").is_file());
    replays(directory.path(), "logs/offload-all-shinjuku-200.wavelog");
}

/// `wave replay` finds the same decisions in the log.
fn replays(directory: &Path, log: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(["replay", log, "--json"]).current_dir(directory);
    let output = command.output().expect("the program can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let tally: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert!(tally["decisions"].as_u64().unwrap() > 0, "{tally}");
}

#[test]
fn options_that_the_kind_lacks_are_refused() {
    let directory = TempDir::new().unwrap();
    let file = small(directory.path());
    let output = run(directory.path(), &[file.to_str().unwrap(), "--live"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("takes no --live"), "{errors}");
}
