//! The fuzzer finds what it is there to find: each fault planted in the production code is caught,
//! and the same histories without it are clean.

use wave_core::planted::{Planted, plant};
use wave_sim::fuzz::{Plan, run};

/// Histories tried for each fault, at most.
const SEEDS: u64 = 120;

/// One test, as a planted fault is the whole process's.
#[test]
fn every_planted_fault_is_caught() {
    let mut report = String::new();
    let mut missed = Vec::new();
    for fault in Planted::ALL {
        let caught = (0..SEEDS).find_map(|seed| {
            plant(Some(fault));
            // An assertion of the code's own catches it, too.
            let report = std::panic::catch_unwind(|| run(&Plan::new(seed, &[])));
            plant(None);
            let rule = match report {
                Ok(report) => report.violation?.rule,
                Err(_) => "assertion",
            };
            Some((seed, rule))
        });
        match caught {
            Some((seed, rule)) => {
                report += &format!("{fault:?}: seed {seed} breaks `{rule}`\n");
                let clean = run(&Plan::new(seed, &[])).violation;
                assert_eq!(clean, None, "seed {seed} without {fault:?}");
            }
            None => missed.push(fault),
        }
    }
    print!("{report}");
    assert!(missed.is_empty(), "not caught: {missed:?}\ncaught:\n{report}");
}
