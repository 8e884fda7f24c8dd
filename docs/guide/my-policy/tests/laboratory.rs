//! The laboratory's commands know the policies of this crate.

use std::path::PathBuf;
use std::process::Command;

/// Runs `examples/lab.rs`, and returns what it printed.
fn lab(arguments: &str) -> String {
    let tests = std::env::current_exe().unwrap();
    let built: PathBuf = tests.ancestors().nth(2).unwrap().join("examples/lab");
    let output = Command::new(&built).args(arguments.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn its_policies_are_listed_with_their_settings() {
    let list = lab("policies");
    assert!(list.contains("lottery") && list.contains("the tickets of each class"), "{list}");
    assert!(list.contains("shinjuku"), "{list}");
}

#[test]
fn its_policies_are_simulated_and_fuzzed() {
    let table = lab("simulate --policy lottery:slice_us=50 --load 20000 --measure-ms 10");
    assert!(table.contains("lottery:slice_us=50") && table.contains("RANGE"), "{table}");
    let sum = lab("fuzz --policy lottery --seeds 4 --json");
    assert!(sum.contains("\"violations\":0"), "{sum}");
}
