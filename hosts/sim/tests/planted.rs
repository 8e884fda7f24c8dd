//! The fuzzer catches each fault that is planted in the production code, and the same histories without
//! the fault are clean.

mod plans;

use std::path::{Path, PathBuf};

use wave_core::planted::{Planted, plant};
use wave_sim::fuzz::{Plan, run};

/// The most histories tried for each fault.
const SEEDS: u64 = 200;

/// Faults of the machine: planted in the simulator, because they are in no host's code.
const OF_HARDWARE: [Planted; 2] = [Planted::BackTooSoon, Planted::StrayKick];

/// Every Rust file below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| match path.is_dir() {
        true => sources(&path),
        false => vec![path],
    });
    below.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The files that ask whether a fault is planted, by their paths in the repository.
fn sites(fault: Planted) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["core/src", "subsystems/sched/src", "hosts/common/src", "hosts/sim/src"];
    let question = format!("is_planted(Planted::{fault:?})");
    let mut sites: Vec<_> = folders
        .iter()
        .flat_map(|folder| sources(&root.join(folder)))
        .filter(|path| std::fs::read_to_string(path).unwrap().contains(&question))
        .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
        .collect();
    sites.sort();
    sites
}

/// A fault that is planted in the simulator proves nothing about the code that users run.
#[test]
fn faults_are_planted_in_code_that_users_run() {
    for fault in Planted::ALL {
        let sites = sites(fault);
        assert!(!sites.is_empty(), "{fault:?} is planted nowhere");
        let is_modelled = sites.iter().any(|site| site.starts_with("hosts/sim/"));
        assert_eq!(is_modelled, OF_HARDWARE.contains(&fault), "{fault:?}: {sites:?}");
    }
}

/// One test plants them all, because a planted fault affects the whole process. `--nocapture` shows a line of JSON for each
/// fault.
#[test]
fn every_planted_fault_is_caught() {
    let mut report = String::new();
    let mut missed = Vec::new();
    let drawn = || (0..SEEDS).map(|seed| (format!("seed {seed}"), Plan::new(seed, &[])));
    for fault in Planted::ALL {
        // Few seeds trigger some of the faults; for these, plans that do are tried first.
        let named = match fault {
            Planted::BackTooSoon => vec![plans::cores_that_come_back_while_they_refuse()],
            Planted::RefusalsCountAsWork => plans::agents_that_decide_what_cannot_be(),
            _ => Vec::new(),
        };
        let named = named.into_iter().enumerate();
        let named = named.map(|(at, plan)| (format!("named plan {at}"), plan));
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
        let (seed, named) = match name.strip_prefix("seed ") {
            Some(seed) => (seed, "null".to_owned()),
            None => ("null", format!("{name:?}")),
        };
        report += &format!(
            "{{\"fault\":\"{fault:?}\",\"site\":{:?},\"seed\":{seed},\"named_plan\":{named},\"rule\":\"{}\"}}\n",
            sites(fault),
            violation.rule
        );
        assert_eq!(run(&plan).violation, None, "{name} without {fault:?}");
    }
    print!("{report}");
    assert!(missed.is_empty(), "not caught: {missed:?}\ncaught:\n{report}");
}
