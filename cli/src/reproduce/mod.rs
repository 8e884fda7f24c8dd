//! `wave reproduce`: the Wave paper's scheduling results in the simulator, beside what it prints;
//! and what it does not print.
//!
//! The work is a list of [`jobs::Job`]s, each a simulation or a search of its own, run in parallel
//! and kept in the output folder, so that an interrupted run goes on where it was.

mod beyond;
mod figures;
mod jobs;
mod page;
mod plots;
mod rows;
mod vms;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use figures::{Curve, Figure};
pub use jobs::Done;
pub use rows::{Kind, Row};

use crate::report::progress::Progress;
use crate::run::Failure;

/// What can be reproduced, and in a line what it is.
pub const IDS: [(&str, &str); 9] = [
    ("table2", "what single accesses and interrupts cost (the model's inputs, measured in it)"),
    ("table3", "a decision and a context switch, as the optimisations are added"),
    ("ladder", "saturation as the optimisations are added, 16 cores (7.2.2)"),
    ("fig4a", "FIFO: Wave with 15 and 16 cores against ghOSt on the host"),
    ("fig4b", "Shinjuku: the same, with 0.5% scans of 10 ms and slices of 30 us"),
    ("fig5a", "the conditions of the virtual machines' experiment"),
    ("fig5b", "virtual machines: what is gained without timer ticks"),
    ("upi", "the agent on another socket, its clock at 3, 2.5 and 2 GHz (7.3.3)"),
    ("beyond", "not in the paper: depth, cores, latency, slices, push and pull"),
];

/// Everything that a run of `wave reproduce` found.
#[derive(Debug, Serialize)]
pub struct Reproduction {
    /// The program's version.
    pub version: String,
    /// A row per printed figure.
    pub rows: Vec<Row>,
    /// The curves.
    pub figures: Vec<Figure>,
}

/// Reproduces the groups named, keeps everything in `out`, and writes the report there.
pub fn run(
    ids: &[&str],
    out: &Path,
    threads: usize,
    quiet: bool,
) -> Result<(Reproduction, PathBuf), Failure> {
    let version = crate::run::machine::version();
    let jobs = jobs::of(ids);
    let progress = Progress::new(jobs.len() as u64, quiet);
    let done = jobs::run_all(&jobs, &out.join("parts"), version, threads, &progress)?;
    let done: BTreeMap<&str, &Done> = done.iter().map(|(name, done)| (name.as_str(), done)).collect();
    let reproduction = Reproduction {
        version: version.to_owned(),
        rows: rows::of(ids, &done),
        figures: figures::of(ids, &done),
    };
    let report = page::save(&reproduction, out)?;
    Ok((reproduction, report))
}
