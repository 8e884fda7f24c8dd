//! Every shipped scenario runs in a test, shortened, and must pass its own checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Each file of `scenarios/`, with the test that runs it and that test's file.
///
/// Native runs use this machine's kernel, beside its other processes; simulated runs use virtual time. Scenarios that
/// require that no agent is ever turned out (`enclaves`), or that search for saturations (`ladder`), need a quiet machine,
/// so they are simulated here. `cargo xtask vm test` runs scenarios that need another kernel.
const RUN_BY: &[(&str, &str, &str)] = &[
    ("agent-crash.toml", "cli/tests/scenarios.rs", "agent_crash_natively"),
    ("cores.toml", "cli/tests/scenarios.rs", "cores_simulated"),
    ("enclaves.toml", "cli/tests/scenarios.rs", "enclaves_simulated"),
    ("kernel/two-enclaves.toml", "xtask/src/vm/scenarios.rs", "two_enclaves"),
    ("ladder.toml", "cli/tests/scenarios.rs", "ladder_simulated"),
    ("memory-bakeoff.toml", "xtask/src/vm/scenarios.rs", "bake_off_compares"),
    ("mtg-fig2.toml", "cli/tests/scenarios.rs", "mtg_fig2_natively"),
    ("outstanding.toml", "cli/tests/scenarios.rs", "outstanding_simulated"),
    (
        "preempt-chaos.toml",
        "cli/tests/preempt.rs",
        "threads_of_both_kinds_are_preempted_without_failures",
    ),
    ("rocksdb-fifo.toml", "cli/tests/scenarios.rs", "rocksdb_fifo_natively"),
    ("rocksdb-shinjuku.toml", "cli/tests/scenarios.rs", "rocksdb_shinjuku_natively"),
    (
        "rocksdb-sol.toml",
        "cli/tests/rocksdb_sol.rs",
        "small_database_shrinks_and_keeps_every_value",
    ),
    ("rocksdb-sol.toml", "cli/tests/scenarios.rs", "rocksdb_sol_simulated"),
    ("rpc-rocksdb.toml", "cli/tests/rpc_rocksdb.rs", "every_placement_starts_serves_and_ends"),
    ("rpc-rocksdb.toml", "cli/tests/scenarios.rs", "rpc_rocksdb_simulated"),
    ("sim-256-cores.toml", "cli/tests/scenarios.rs", "sim_256_cores_simulated"),
    ("sim-64-cores.toml", "cli/tests/scenarios.rs", "sim_64_cores_simulated"),
    ("udp-feedback.toml", "cli/tests/scenarios.rs", "udp_feedback_natively"),
    ("udp-outstanding.toml", "cli/tests/scenarios.rs", "udp_outstanding_natively"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a folder, as paths from `scenarios/`.
fn files(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            let path = path.strip_prefix(root().join("scenarios")).unwrap();
            all.push(path.to_str().unwrap().to_owned());
        }
    }
    all
}

#[test]
fn every_scenario_is_run_by_a_test() {
    let mut there = files(&root().join("scenarios"));
    there.sort();
    let mut run: Vec<&str> = RUN_BY.iter().map(|(file, ..)| *file).collect();
    // Some files run both natively and simulated.
    run.dedup();
    assert_eq!(there, run, "scenarios/ on the left, the table above on the right");
    for (file, place, test) in RUN_BY {
        let text = fs::read_to_string(root().join(place)).unwrap();
        assert!(text.contains(&format!("fn {test}(")), "{place} has no test {test}");
        let name = file.trim_end_matches(".toml");
        let calls = ["shortened", "sweeps"].map(|call| format!("{call}(\"{name}\""));
        let names = [format!("scenarios/{file}\")"), calls[0].clone(), calls[1].clone()];
        assert!(names.iter().any(|name| text.contains(name)), "{place} does not run {file}");
    }
}

/// A new value of a scenario's field, named by its path; in an array of tables, in the first.
type Change<'a> = (&'a [&'a str], Value);

/// A copy of the scenario with these values. The scenario must have each of the fields.
fn shortened(name: &str, changes: &[Change<'_>]) -> (TempDir, PathBuf) {
    let text = fs::read_to_string(root().join(format!("scenarios/{name}.toml"))).unwrap();
    let mut scenario: toml::Value = toml::from_str(&text).unwrap();
    for (path, value) in changes {
        let place = path.iter().try_fold(&mut scenario, |at, key| at.get_mut(key));
        *place.unwrap_or_else(|| panic!("{name} has no {path:?}")) =
            toml::Value::try_from(value).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("short.toml");
    fs::write(&file, toml::to_string(&scenario).unwrap()).unwrap();
    (directory, file)
}

fn wave(words: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wave"));
    command.args(words).arg(file).arg("--json");
    command.current_dir(file.parent().unwrap()).stdin(Stdio::null());
    command.output().expect("wave can be run")
}

/// Runs the scenario, requires that its own checks pass, and returns its output. Natively exit code 4 is accepted where points can be
/// invalid: other processes kept the generator, or all of a system, from its CPU.
fn passes(words: &[&str], file: &Path) -> Value {
    let output = wave(words, file);
    let errors = String::from_utf8_lossy(&output.stderr);
    let may_be_invalid =
        |kind: &Value| kind == "enclaves" || kind.as_str().unwrap().starts_with("udp");
    let result: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("one object and nothing else: {error}: {errors}"));
    let is_invalid = output.status.code() == Some(4) && !words.contains(&"sim");
    let is_accepted = output.status.success() || is_invalid && may_be_invalid(&result["kind"]);
    assert!(is_accepted, "{}: {errors}", output.status);
    result
}

const RUN: &[&str] = &["run", "--quiet", "--out", "out"];
const SIM: &[&str] = &["run", "--quiet", "--host", "sim", "--out", "out"];

/// Asserts that every point of every variant has served requests.
fn serves(result: &Value, variants: usize) {
    let all = result["variants"].as_array().unwrap();
    assert_eq!(all.len(), variants, "{result}");
    for variant in all {
        let points = variant["points"].as_array().unwrap();
        assert!(!points.is_empty(), "{variant}");
        assert!(points.iter().all(|point| point["done"].as_u64().unwrap() > 0), "{variant}");
    }
}

/// Kills come faster than the recovery from any of them, so the load must last until the last recovery. If it ended earlier,
/// a stopped agent would go unnoticed.
#[test]
fn agent_crash_natively() {
    let changes: [Change<'_>; 3] = [
        (&["crash", "kills"], 6.into()),
        (&["crash", "every_ms"], 1.into()),
        (&["crash", "load_per_second"], 10_000.into()),
    ];
    let (_directory, file) = shortened("agent-crash", &changes);
    let output = wave(RUN, &file);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "must pass on a busy machine as well: {errors}");
    let result: Value = serde_json::from_slice(&output.stdout).expect("one object");
    serves(&result, 2);
    assert_eq!((&result["crashes"], &result["requests_lost"]), (&12.into(), &0.into()));
}

#[test]
fn rocksdb_fifo_natively() {
    let changes: [Change<'_>; 4] = [
        (&["run", "rounds"], 6.into()),
        (&["run", "seconds"], 0.06.into()),
        (&["run", "warmup_seconds"], 0.02.into()),
        (&["run", "loads_per_second"], vec![5_000, 10_000].into()),
    ];
    let (directory, file) = shortened("rocksdb-fifo", &changes);
    let result = passes(RUN, &file);
    let variants = result["variants"].as_array().unwrap().len();
    assert!(variants >= 4, "{result}");
    let rows = result["paired"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), variants);
    for load in rows.iter().flat_map(|row| row["loads"].as_array().unwrap()) {
        let rounds = load["p99_ns"].as_array().unwrap();
        assert!(rounds.len() == 6 && rounds.iter().all(|ns| ns.as_f64() > Some(0.0)), "{load}");
    }
    assert!(result["paired"]["claimed_share"].is_number(), "{result}");
    let conclusion = result["paired"]["conclusion"].as_str().unwrap();
    for file in ["report.html", "throughput-latency.svg"] {
        let shown = std::fs::read_to_string(directory.path().join("out/rocksdb-fifo").join(file));
        assert!(shown.unwrap().contains("on-host agent"), "{file}");
    }
    // What it says depends on the machine.
    let is_busy = conclusion.starts_with("Other processes used ");
    assert!(is_busy || conclusion.contains(" GET p99 of "), "{conclusion}");
    assert!(conclusion.ends_with('.'), "{conclusion}");
}

#[test]
fn rocksdb_shinjuku_natively() {
    let changes: [Change<'_>; 4] = [
        (&["run", "rounds"], 6.into()),
        (&["run", "seconds"], 0.08.into()),
        (&["run", "warmup_seconds"], 0.02.into()),
        (&["run", "loads_per_second"], vec![2_000, 4_000].into()),
    ];
    let (_directory, file) = shortened("rocksdb-shinjuku", &changes);
    let result = passes(RUN, &file);
    // Two of them are on the host, where few CPUs make them the same system as others.
    let variants = result["variants"].as_array().unwrap();
    assert!(variants.len() >= 7, "{result}");
    // Every variant is compared with the ideal of the same arrivals, and with the variant that the scenario names.
    assert_eq!(result["paired"]["reference"], "Shinjuku");
    for variant in variants {
        let vs_oracle = &variant["compared"]["slowdown_vs_oracle"];
        assert!(vs_oracle["value"].as_f64() > Some(0.0), "{variant}");
        assert!(vs_oracle["interval"].is_array(), "{variant}");
    }
    let ratio = &result["get_p99_ratio_fifo_over_shinjuku"];
    assert!(ratio["value"].as_f64() > Some(0.0) && ratio["interval"].is_array(), "{ratio}");
}

#[test]
fn udp_outstanding_natively() {
    let changes: [Change<'_>; 3] = [
        (&["run", "seconds"], 0.05.into()),
        (&["run", "rounds"], 2.into()),
        (&["run", "outstanding"], vec![1, 2, 4].into()),
    ];
    let (directory, file) = shortened("udp-outstanding", &changes);
    let result = passes(RUN, &file);
    let curve = result["curve"].as_array().unwrap();
    let values: Vec<_> = curve.iter().map(|row| row["outstanding"].as_u64().unwrap()).collect();
    assert_eq!(values, [1, 2, 4]);
    for row in curve {
        assert_eq!(row["rounds_per_second"].as_array().map(Vec::len), Some(2), "{row}");
        let is_all_lost = row["lost"].as_array().unwrap().len() == 2;
        assert!(is_all_lost || row["per_second"]["value"].as_f64() > Some(0.0), "{row}");
    }
    for name in ["report.html", "curve.csv", "throughput.svg", "results.json"] {
        assert!(directory.path().join("out/udp-outstanding").join(name).is_file(), "{name}");
    }
}

#[test]
fn udp_feedback_natively() {
    let changes: [Change<'_>; 4] = [
        (&["run", "seconds"], 0.3.into()),
        (&["run", "warmup_seconds"], 0.1.into()),
        (&["run", "loads"], vec![0.2, 4.0].into()),
        (&["run", "rounds"], 2.into()),
    ];
    let (directory, file) = shortened("udp-feedback", &changes);
    let result = passes(RUN, &file);
    let rows = result["rows"].as_array().unwrap();
    let senders: Vec<_> = rows.iter().map(|row| row["senders"].as_str().unwrap()).collect();
    let both = ["without feedback", "with feedback"];
    assert_eq!(senders, [both, both].concat());
    assert!(result["capacity_per_second"]["value"].as_f64() > Some(0.0), "{result}");
    // Only a sender with windows holds requests back. Under a fourfold load it must.
    let held_back = |row: usize| rows[row]["held_back"]["value"].as_f64();
    assert!(held_back(3) > held_back(2), "{rows:?}");
    for name in ["report.html", "rows.csv", "goodput.svg", "results.json"] {
        assert!(directory.path().join("out/udp-feedback").join(name).is_file(), "{name}");
    }
}

#[test]
fn mtg_fig2_natively() {
    let changes: [Change<'_>; 5] = [
        (&["workload", "long_percent"], 20.0.into()),
        (&["run", "seconds"], 0.2.into()),
        (&["run", "warmup_seconds"], 0.05.into()),
        (&["run", "loads_per_second"], vec![1_000, 2_000].into()),
        (&["run", "rounds"], 2.into()),
    ];
    let (directory, file) = shortened("mtg-fig2", &changes);
    let result = passes(RUN, &file);
    let number = |value: &Value| value.as_f64();
    let variants = result["variants"].as_array().unwrap();
    let names: Vec<_> = variants.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["with preemption", "without preemption"]);
    let policies: Vec<_> = variants.iter().map(|row| row["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["shinjuku:slice_us=10,timer=core", "fifo"]);
    for (row, is_sliced) in variants.iter().zip([true, false]) {
        for at in row["loads"].as_array().unwrap() {
            for class in 0..2 {
                let [client, front] = [&at["client"], &at["front"]]
                    .map(|place| number(&place[class]["p99_ns"]["value"]));
                assert!(client > Some(0.0) && front > Some(0.0), "{at}");
            }
            let is_broken = !at["broken"].as_array().unwrap().is_empty();
            assert!(is_broken || (at["slices_ended"].as_u64() > Some(0)) == is_sliced, "{at}");
        }
    }
    let ratios = result["short_p99_ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 2);
    for ratio in ratios {
        assert!(number(&ratio["client"]["value"]) > Some(0.0), "{ratio}");
        assert!((0.0..=1.5).contains(&number(&ratio["ideal"]).unwrap()), "{ratio}");
    }
    for name in ["report.html", "points.csv", "p99.svg", "results.json"] {
        assert!(directory.path().join("out/mtg-fig2").join(name).is_file(), "{name}");
    }
}

#[test]
fn enclaves_simulated() {
    let changes: [Change<'_>; 3] = [
        (&["run", "seconds"], 0.03.into()),
        (&["run", "warmup_seconds"], 0.01.into()),
        (&["run", "loads_per_second"], vec![5_000, 15_000].into()),
    ];
    let (_directory, file) = shortened("enclaves", &changes);
    let result = passes(SIM, &file);
    serves(&result, 2);
    assert_eq!(result["undisturbed"], true);
}

#[test]
fn ladder_simulated() {
    let changes: [Change<'_>; 2] =
        [(&["run", "seconds"], 0.02.into()), (&["run", "warmup_seconds"], 0.004.into())];
    let (_directory, file) = shortened("ladder", &changes);
    let result = passes(SIM, &file);
    serves(&result, 6);
    let rungs = result["ladder"]["rungs"].as_array().unwrap();
    let rates: Vec<f64> =
        rungs.iter().filter_map(|rung| rung["per_second"]["value"].as_f64()).collect();
    assert!(rates.len() == 6 && rates[1..].is_sorted() && rates[5] <= rates[0], "{rates:?}");
}

/// A tenth of the database, for the three epochs after which the paper prints the remaining memory.
#[test]
fn rocksdb_sol_simulated() {
    let changes: [Change<'_>; 2] =
        [(&["workload", "keys"], 800_000.into()), (&["workload", "gets_per_second"], 4_000.into())];
    let (directory, file) = shortened("rocksdb-sol", &changes);
    let result = passes(&[SIM, &["--record", "logs"]].concat(), &file);
    assert_eq!((&result["host"], &result["get_p99_ratio"]), (&"sim".into(), &Value::Null));
    let reduction = result["resident_reduction"].as_f64().unwrap();
    // A fifth is hot.
    assert!((0.7..0.85).contains(&reduction), "{reduction}");
    assert_eq!(result["variants"][0]["swapped_after_bytes"], 0);
    let replayed = passes(&["replay"], &directory.path().join("logs/sol.wavelog"));
    assert!(replayed["decisions"].as_u64().unwrap() > 100, "{replayed}");
}

#[test]
fn rpc_rocksdb_simulated() {
    let changes: [Change<'_>; 5] = [
        (&["run", "seconds"], 0.1.into()),
        (&["run", "warmup_seconds"], 0.02.into()),
        (&["run", "loads_per_second"], vec![2_000, 4_000].into()),
        (&["run", "compare_at"], 4_000.into()),
        (&["run", "refine"], 0.into()),
    ];
    let (_directory, file) = shortened("rpc-rocksdb", &changes);
    let result = passes(SIM, &file);
    // With one core, agents on the host and beside it are the same system; the sidecar and tonic have no model.
    serves(&result, 6);
}

#[test]
fn sim_256_cores_simulated() {
    let changes: [Change<'_>; 3] = [
        (&["run", "seconds"], 0.004.into()),
        (&["run", "warmup_seconds"], 0.001.into()),
        (&["run", "loads_per_second"], vec![200_000].into()),
    ];
    let (_directory, file) = shortened("sim-256-cores", &changes);
    let result = passes(SIM, &file);
    serves(&result, 2);
    assert_eq!(result["undisturbed"], true);
}

/// Runs a sweep of two values on each axis, with points of 2 ms, and merges it.
fn sweeps(name: &str, axes: &[(&str, Value)]) {
    let mut changes: Vec<Change<'_>> =
        vec![(&["run", "seconds"], 0.002.into()), (&["run", "warmup_seconds"], 0.0005.into())];
    changes.push((&["run", "search", "probes"], 3.into()));
    let keys: Vec<[&str; 2]> = axes.iter().map(|(axis, _)| ["sweep", axis]).collect();
    let values = axes.iter().map(|(_, values)| values.clone());
    changes.extend(keys.iter().map(|key| &key[..]).zip(values));
    let (directory, file) = shortened(name, &changes);
    let swept = passes(&["sweep", "--quiet", "--out", "out"], &file);
    assert!(swept["points"].as_u64().unwrap() >= 4, "{swept}");
    assert_eq!(swept["ran"], swept["points"], "{swept}");
    passes(&["merge"], &directory.path().join("out"));
    assert!(directory.path().join("out/report.html").is_file());
}

#[test]
fn cores_simulated() {
    let axes = [
        ("host.cores", vec![4, 8].into()),
        ("host.prestage", vec![0, 2].into()),
        ("run.seed", vec![1, 2].into()),
    ];
    sweeps("cores", &axes);
}

#[test]
fn outstanding_simulated() {
    let axes = [("host.cores", vec![4, 8].into()), ("host.prestage", vec![0, 2].into())];
    sweeps("outstanding", &axes);
}

#[test]
fn sim_64_cores_simulated() {
    let axes = [("host.cores", vec![16, 64].into()), ("host.prestage", vec![0, 1].into())];
    sweeps("sim-64-cores", &axes);
}
