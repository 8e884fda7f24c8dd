use std::vec::Vec;

use wave_rmt::check::place;
use wave_rmt::devices::TOFINO1;

use super::trace::{Packet, Script, TABLE_5_1_REGISTERS, table_5_1};
use super::*;

#[test]
fn thesis_pipeline_fits_tofino_2_and_not_tofino_1() {
    let placement = place(&THESIS, &TOFINO2);
    assert_eq!(placement.violations, []);
    assert!(placement.stages.len() <= 14, "{}", placement.stages.len());
    let violations = THESIS.check(&TOFINO1);
    let rules: Vec<_> = violations.iter().map(|violation| violation.rule.name()).collect();
    assert!(rules.contains(&"comparators") && rules.contains(&"input-bits"), "{rules:?}");
}

#[test]
fn registers_are_those_of_table_5_1() {
    let steps = table_5_1().run().unwrap();
    let registers: Vec<_> = steps.iter().map(|step| step.registers).collect();
    assert_eq!(registers, TABLE_5_1_REGISTERS);
    // The pseudo segments, as the table prints them.
    let pseudo = steps.iter().filter(|step| step.name.starts_with('P'));
    let pseudo: Vec<_> = pseudo.map(|step| (step.name.as_str(), step.seq, step.length)).collect();
    let printed = [
        ("P#2", 1500, 500),
        ("P#3", 1500, 1000),
        ("P#4", 1600, 900),
        ("P#5", 2000, 600),
        ("P#6", 2100, 500),
    ];
    assert_eq!(pseudo, printed);
    assert!(!steps[8].is_placed, "segment 7 cannot start a second interval");
}

#[test]
fn scripts_are_read_and_refused_by_line() {
    let read = Script::read("start 1000 10000 # registers\n1500 500\n\nP#1\n").unwrap();
    assert_eq!((read.next, read.avail), (1000, 10_000));
    assert_eq!(read.packets, [Packet::Segment(1500, 500), Packet::Pseudo(1)]);
    let error = |text: &str| Script::read(text).unwrap_err().to_string();
    assert_eq!(error("1 2\n1 x\n"), "line 2: `x` is not a number from 0 to 4294967295");
    assert_eq!(error("1 2\nstart 1 2\n"), "line 2: `start NEXT AVAIL` must be the first line");
    assert_eq!(error("P2"), "line 1: expected `P#N`, as P#2");
    assert_eq!(
        error("1 2 3"),
        "line 1: expected `SEQ LENGTH`, `P#N`, `lost P#N` or `start NEXT AVAIL`"
    );
    assert!(Script::read("1 2\nP#2\n").unwrap().run().is_err());
    assert!(Script::read("1 2\nP#1\nP#1\n").unwrap().run().is_err());
}
