use std::vec::Vec;

use wave_rmt::check::place;
use wave_rmt::devices::TOFINO1;

use super::explore::{Settings, explore};
use super::planted::PLANTED;
use super::trace::{Packet, Script, TABLE_5_1_REGISTERS, table_5_1};
use super::*;

#[test]
fn pipelines_fit_tofino_2_and_not_tofino_1() {
    for (pipeline, stages) in [(&THESIS, 14), (&LAMINAR, 20)] {
        let placement = place(pipeline, &TOFINO2);
        assert_eq!(placement.violations, []);
        assert!(placement.stages.len() <= stages, "{}: {}", pipeline.name, placement.stages.len());
    }
    let violations = THESIS.check(&TOFINO1);
    let rules: Vec<_> = violations.iter().map(|violation| violation.rule.name()).collect();
    assert!(rules.contains(&"comparators") && rules.contains(&"input-bits"), "{rules:?}");
}

#[test]
fn registers_are_those_of_table_5_1() {
    let ours = table_5_1().run(&LAMINAR).unwrap();
    let steps = table_5_1().run(&THESIS).unwrap();
    assert_eq!(ours, steps);
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
    assert!(Script::read("1 2\nP#2\n").unwrap().run(&LAMINAR).is_err());
    assert!(Script::read("1 2\nP#1\nP#1\n").unwrap().run(&LAMINAR).is_err());
}

#[test]
fn no_order_of_packets_breaks_reassembly() {
    // Across the wrap of sequence numbers, and across the wrap of their sign.
    for first in [0, 28, 13] {
        let explored = explore(&LAMINAR, Settings { first, ..Settings::default() });
        assert_eq!(explored.counterexample, None);
        assert_eq!(explored.uncovered, [""; 0]);
        assert!(explored.states > 2_000, "{}", explored.states);
    }
}

#[test]
fn planted_faults_are_found() {
    for planted in PLANTED {
        let settings = Settings { first: planted.first, window: 6, ..Settings::default() };
        let found = explore(&planted.pipeline, settings).counterexample;
        let found = found.unwrap_or_else(|| panic!("{} was not found", planted.name));
        assert!(!found.steps.is_empty() && found.steps.len() <= 6, "{}: {found:?}", planted.name);
    }
}

#[test]
fn thesis_rule_serves_peers_that_keep_to_their_window() {
    let settings = Settings { is_hostile: false, window: 6, ..Settings::default() };
    assert_eq!(explore(&THESIS, settings).counterexample, None);
}
