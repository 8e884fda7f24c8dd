//! Native comparisons while other processes occupy the CPUs.

use std::process::{Child, Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const SCENARIO: &str = r#"name = "beside-neighbours"
kind = "load"

[workload]
keys = 1_000
service_us = 100

[run]
rounds = 8
seconds = 0.08
warmup_seconds = 0.02
loads_per_second = [500, 1_000]

[host]
cores = 1

[[variant]]
name = "Linux threads"
placement = "linux"

[[variant]]
name = "on-host agent"
placement = "onhost"
policy = "fifo"
"#;

/// Processes that compute until they are dropped.
struct Neighbours(Vec<Child>);

impl Neighbours {
    fn start(count: usize) -> Neighbours {
        let computes = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Neighbours((0..count).map(computes).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run(directory: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(["run", "beside.toml", "--quiet"]).args(words).current_dir(directory.path());
    command.output().expect("the program can be run")
}

#[test]
fn paired_rounds_beside_neighbours_are_a_result_with_all_turns() {
    let directory = TempDir::new().unwrap();
    std::fs::write(directory.path().join("beside.toml"), SCENARIO).unwrap();
    let neighbours = Neighbours::start(std::thread::available_parallelism().unwrap().get());
    let ran = run(&directory, &["--json"]);
    drop(neighbours);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{errors}");
    let found: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert!(found["banner"].is_null(), "{found}");
    for (row, variant) in ["Linux threads", "on-host agent"].into_iter().enumerate() {
        let (paired, points) = (&found["paired"]["rows"][row], &found["variants"][row]["points"]);
        assert_eq!(paired["name"], variant);
        for (at, load) in paired["loads"].as_array().unwrap().iter().enumerate() {
            assert_eq!(load["p99_ns"].as_array().unwrap().len(), 8, "{load}");
            let worst = load["worst_p99_ns"].as_f64().unwrap();
            assert!(load["quiet_p99_ns"].as_f64().unwrap() <= worst, "{load}");
            assert_eq!(points[at]["generator"]["valid"], true, "{points}");
        }
    }
    assert!(!found["paired"]["conclusion"].as_str().unwrap().is_empty(), "{found}");
}
