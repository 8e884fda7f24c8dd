//! The fuzzer finds what it is there to find: each fault planted in the production code is caught,
//! and the same histories without it are clean.

mod plans;

use wave_core::planted::{Planted, plant};
use wave_sim::fuzz::{Plan, run};

/// Histories tried for each fault, at most.
const SEEDS: u64 = 200;

/// One test, as a planted fault is the whole process's.
#[test]
fn every_planted_fault_is_caught() {
    let mut report = String::new();
    let mut missed = Vec::new();
    let drawn = || (0..SEEDS).map(|seed| (format!("seed {seed}"), Plan::new(seed, &[])));
    for fault in Planted::ALL {
        // Some need a chance that few seeds give them, and come first to histories that do.
        let named = match fault {
            Planted::BackTooSoon => vec![plans::cores_that_come_back_while_they_refuse()],
            Planted::RefusalsCountAsWork => plans::agents_that_decide_what_cannot_be(),
            _ => Vec::new(),
        };
        let named = named.into_iter().map(|plan| ("a named plan".to_owned(), plan));
        plant(Some(fault));
        let caught = named.chain(drawn()).find_map(|(name, plan)| {
            let violation = run(&plan).violation?;
            Some((name, plan, violation))
        });
        plant(None);
        let Some((name, plan, violation)) = caught else {
            missed.push(fault);
            continue;
        };
        report += &format!("{fault:?}: {name} breaks `{}`\n", violation.rule);
        assert_eq!(run(&plan).violation, None, "{name} without {fault:?}");
    }
    print!("{report}");
    assert!(missed.is_empty(), "not caught: {missed:?}\ncaught:\n{report}");
}
