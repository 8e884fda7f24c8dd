//! A small RocksDB under SOL, from the command line, and cleanup after the run is killed.

#[path = "../../experiments/tests/same_keys/mod.rs"]
mod same_keys;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use same_keys::have_the_same_keys;
use serde_json::Value;
use tempfile::TempDir;
use wave_linux::memory::{AccessBits, Swap, SwapError};
use wave_skip::{skip, turn};

/// Time limit for other processes on this machine to give up their swap.
const PATIENCE: Duration = Duration::from_secs(120);

/// The shipped scenario, with a database of 50 MiB, epochs of two seconds, and a load that every machine can serve.
fn small(directory: &Path, seconds: u32) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/rocksdb-sol.toml");
    let mut text = std::fs::read_to_string(shipped).unwrap();
    for (from, to) in [
        ("keys = 8_000_000", "keys = 200_000".to_owned()),
        ("\"3GiB\"", "\"128MiB\"".to_owned()),
        ("\"4GiB\"", "\"256MiB\"".to_owned()),
        ("gets_per_second = 40_000", "gets_per_second = 2_000".to_owned()),
        ("service_us = 10", "service_us = 100".to_owned()),
        ("hot_keys = 0.2", "hot_keys = 0.05".to_owned()),
        ("\nseconds = 165", format!("\nseconds = {seconds}")),
        ("warmup_seconds = 120", "warmup_seconds = 5".to_owned()),
        ("shortest_ms=600", "shortest_ms=125,horizon_ms=500".to_owned()),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, &to, 1);
    }
    let path = directory.join("small.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn wave(directory: &Path, file: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.arg("run").arg(file).args(["--json", "--out", "out"]).current_dir(directory);
    command.env("TMPDIR", directory).stdin(Stdio::null());
    command
}

/// Whether this machine permits swap and reading access bits. Reports the reason if not.
fn is_possible() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("only root can set up swap and read access bits");
        return false;
    }
    if let Err(error) = AccessBits::open() {
        skip(error);
        return false;
    }
    let start = Instant::now();
    loop {
        match Swap::set_up(1 << 20) {
            Ok(swap) => return swap.take_down().is_ok(),
            // Another process on this machine has swap.
            Err(SwapError::Taken) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            // Root in a container.
            Err(error @ SwapError::NotPermitted) => {
                skip(error);
                return false;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn swaps() -> String {
    std::fs::read_to_string("/proc/swaps").unwrap_or_default()
}

#[test]
fn small_database_shrinks_and_keeps_every_value() {
    let _turn = turn("swap");
    if !is_possible() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let file = small(directory.path(), 8);
    let output = wave(directory.path(), &file).output().expect("the program can be run");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("{name}: {errors}"));
    for name in ["get_p50_ratio", "get_p99_ratio", "raw_get_p50_ratio", "daemon_core_share"] {
        assert!(number(name) > 0.0, "{name}");
    }
    assert!(number("refaults_in_all") >= number("refaults"));
    let [without, with] = [&found["variants"][0], &found["variants"][1]];
    assert_eq!([&without["wrong"], &with["wrong"]], [0, 0]);
    let bytes = |of: &Value, name: &str| of[name].as_u64().unwrap();
    for variant in [without, with] {
        assert!(bytes(variant, "resident_before_bytes") > 50 << 20);
        assert!(variant["get"]["count"].as_u64().unwrap() > 0);
        assert!(variant["map"]["count"].as_u64().unwrap() > 0);
    }
    assert!(bytes(without, "resident_after_bytes") > 50 << 20);
    assert_eq!(bytes(without, "swapped_after_bytes"), 0);
    // Nineteen of twenty keys are almost never requested.
    assert!(number("resident_reduction") > 0.3, "{}", number("resident_reduction"));
    assert!(bytes(with, "swapped_after_bytes") > 20 << 20);
    assert!(directory.path().join("out/rocksdb-sol/report.html").exists());
    let mut simulated = wave(directory.path(), &file);
    let output = simulated.args(["--host", "sim"]).output().expect("the program can be run");
    let simulated: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&found["host"], &simulated["host"]), (&"user".into(), &"sim".into()));
    have_the_same_keys(&found, &simulated, &[]);
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Waits until `is_so` returns true. Returns false if it does not within `patience`.
fn wait(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < patience {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Starts a run, and waits for its agent and its database. Returns the run, its processes and its swap.
fn started(directory: &Path, file: &Path) -> (Child, Vec<u32>, String) {
    let before = swaps();
    let mut child = wave(directory, file).stdout(Stdio::null()).spawn().unwrap();
    // Three processes once the second variant runs: sentinel, database and agent.
    let pid = child.id();
    wait(PATIENCE, || children(pid).len() == 3 || child.try_wait().unwrap().is_some());
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    let after = swaps();
    let ours = after.lines().find(|line| !before.contains(*line)).unwrap_or_default();
    let ours = ours.split_ascii_whitespace().next().unwrap_or_default().to_owned();
    (child, children(pid), ours)
}

#[test]
fn killed_run_leaves_no_swap_process_or_database() {
    let _turn = turn("swap");
    if !is_possible() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let file = small(directory.path(), 6);
    let (mut child, children, swap) = started(directory.path(), &file);
    assert_eq!(children.len(), 3);
    assert!(swap.starts_with('/'), "{swap}");
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = |pid: &u32| !Path::new(&format!("/proc/{pid}")).exists();
    assert!(wait(Duration::from_secs(30), || children.iter().all(gone)), "{children:?}");
    assert!(!swaps().contains(&swap), "{}", swaps());
    let names =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains("rocksdb")).collect();
    assert!(left.is_empty(), "the database is removed with its process: {left:?}");
}
