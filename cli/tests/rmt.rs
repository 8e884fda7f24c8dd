//! `wave rmt`: verdicts, exit codes and files of segments.

#[path = "../../rmt/json/tests/packets/mod.rs"]
mod packets;

use std::path::Path;
use std::process::{Command, Output};

use rand::SeedableRng;
use rand_pcg::Pcg32;
use serde_json::Value;
use wave_rmt::examples;
use wave_rmt_json::{Arena, read};
use wave_tcp::laminar::{LAMINAR, THESIS};

fn rmt(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wave"))
        .arg("rmt")
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

fn json(line: &str) -> Value {
    let output = rmt(line);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn segments(folder: &Path, text: &str) -> String {
    let path = folder.join("segments.txt");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn pipelines_fit_tofino_2() {
    for (pipeline, stages) in [
        ("laminar", 20),
        ("laminar-thesis", 14),
        ("sketch", 20),
        ("heavy-hitters", 20),
        ("flowlet", 20),
        ("rate-limiter", 20),
    ] {
        let checked = json(&format!("check {pipeline} --json"));
        assert_eq!(checked["violations"], 0, "{checked}");
        assert!(checked["stages"].as_u64().unwrap() <= stages, "{checked}");
    }
}

#[test]
fn a_smaller_chip_is_refused_with_rule_source_and_remedy() {
    let output = rmt("check laminar --device tofino1");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let names = |line: &str| line.contains("tofino1 has") && line.contains("[comparators; bf-p4c/");
    assert!(text.lines().any(names), "{text}");
    let checked = json("check laminar --device tofino1 --json");
    let found = checked["found"].as_array().unwrap();
    assert!(found.iter().any(|violation| violation["rule"] == "comparators"), "{checked}");
    assert!(found.iter().all(|violation| !violation["hint"].as_str().unwrap().is_empty()));
}

#[test]
fn resources_stand_beside_the_thesis() {
    let resources = json("resources laminar-thesis --json");
    assert_eq!(resources["thesis"]["stateful_ALUs"], 21);
    let stages = resources["stages"].as_array().unwrap();
    let sum: u64 = stages.iter().map(|stage| stage["stateful_ALUs"].as_u64().unwrap()).sum();
    assert_eq!(resources["total"]["stateful_ALUs"], sum);
    assert!(json("resources sketch --json").get("thesis").is_none());
}

#[test]
fn table_5_1_comes_out_row_by_row() {
    for pipeline in ["laminar", "laminar-thesis"] {
        let trace = json(&format!("trace {pipeline} --table 5.1 --json"));
        assert_eq!((&trace["rows"], &trace["rows_equal"]), (&11.into(), &11.into()));
    }
}

#[test]
fn files_of_segments_are_traced_or_refused_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = segments(folder.path(), "start 10 100 # registers\n20 5\n10 10\nP#2\n");
    let trace = json(&format!("trace laminar --segments {path} --json"));
    let last = &trace["steps"][2]["registers"];
    assert_eq!((&last["rx_next"], &last["rx_avail"]), (&25.into(), &85.into()), "{trace}");
    for (text, expected) in [
        ("1 2\n3 4 5\n", "line 2: expected `SEQ LENGTH`"),
        ("1500\n", "line 1: `1500`: expected `SEQ LENGTH`"),
        ("1 4294967296\n", "line 1: `4294967296` is not a number"),
        ("P#1\n", "there is no P#1 here"),
    ] {
        let output = rmt(&format!("trace laminar --segments {}", segments(folder.path(), text)));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{error}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    }
    assert_eq!(rmt("trace laminar --segments /nonexistent").status.code(), Some(2));
    assert_eq!(rmt("trace laminar").status.code(), Some(2));
}

#[test]
fn a_planted_fault_ends_with_its_counterexample() {
    let explored = json("explore laminar --plant early-merge --json");
    assert_eq!(explored["violations"], 3, "{explored}");
    assert!(!explored["searches"][0]["steps"].as_array().unwrap().is_empty());
    assert_eq!(rmt("explore laminar --plant early-merge").status.code(), Some(1));
}

#[test]
fn exported_pipelines_are_those_that_ship_with_wave() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipeline.json");
    let examples = examples::EXAMPLES.iter().map(|(example, _)| **example);
    for pipeline in [LAMINAR, THESIS].into_iter().chain(examples) {
        let exported = rmt(&format!("export {} --to json", pipeline.name));
        let (text, arena) = (String::from_utf8(exported.stdout).unwrap(), Arena::new());
        let read = read(&text, &arena).unwrap();
        assert_eq!(read, pipeline);
        packets::behave_equally(&read, &pipeline, &mut Pcg32::seed_from_u64(1));
        std::fs::write(&path, &text).unwrap();
        let again = rmt(&format!("export {}", path.display()));
        assert_eq!(String::from_utf8(again.stdout).unwrap(), text);
        for command in ["check", "resources"] {
            let of = |pipeline: &str| rmt(&format!("{command} {pipeline} --device tofino1"));
            assert_eq!(of(&path.display().to_string()), of(pipeline.name));
        }
    }
}

#[test]
fn files_that_are_no_pipelines_are_refused_with_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.json");
    let sketch = String::from_utf8(rmt("export sketch").stdout).unwrap();
    let misspelt = sketch.replacen("{\"field\": \"source\"", "{\"field\": \"suorce\"", 1);
    for (text, expected) in [
        (
            misspelt.as_str(),
            "parser[1].extracts[3].field: no field named \"suorce\"; did you mean \"source\"?",
        ),
        ("{\"name\": 3}", "name: invalid type: integer `3`, expected a string at line 1 column 10"),
        (
            "{\"fields\": 3}",
            "fields: invalid type: integer `3`, expected a list at line 1 column 12",
        ),
        ("name = 3", "not JSON: expected ident at line 1 column 2"),
        ("", "not JSON: EOF while parsing a value at line 1 column 0"),
        (&" ".repeat(1 << 21), "longer than 1048576 bytes, the most of a pipeline in JSON"),
    ] {
        std::fs::write(&path, text).unwrap();
        for command in ["check", "resources", "export"] {
            let output = rmt(&format!("{command} {}", path.display()));
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(error, format!("wave rmt: {}: {expected}\n", path.display()));
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        }
    }
    // The first has no end.
    for path in ["/dev/zero", "/nonexistent", "missing.json"] {
        let output = rmt(&format!("check {path}"));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.starts_with(&format!("wave rmt: {path}: ")), "{error}");
        assert_eq!(output.status.code(), Some(2));
    }
    // A name that is no path.
    let error = String::from_utf8(rmt("check sketsh").stderr).unwrap();
    assert!(error.contains("a similar value exists: 'sketch'"), "{error}");
}
