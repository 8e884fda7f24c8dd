//! Sweeps: every combination of a scenario's values, run by any number of processes and machines.
//!
//! A [`Plan`] lists the points of a scenario file, each with an id derived from everything that it depends on. A [`Shard`]
//! of them is [run](run_shard) by a [`Runner`], each point into a file of its own in a [`Store`], a directory that shards
//! share. Finished points are never run again, so a shard that was killed is simply started once more. [`merge()`] makes the
//! results of a complete store. Nothing in the results of simulated points says when, where or for how long something ran:
//! they are the same to the byte however the points were divided.
//!
//! In a `load` or a `ladder`, a point is one variant under one load. In all other kinds, it is the
//! [run of an experiment](ExperimentRun).

pub(crate) mod axes;
mod experiment_run;
mod merge;
mod plan;
mod shard;
mod store;
mod this_machine;

pub use axes::put_at;
pub(crate) use axes::refuse_sweep;
pub use experiment_run::ExperimentRun;
pub use merge::{FILES as RESULT_FILES, Merged, Missing, merge, table};
pub use plan::{Plan, Work};
pub use shard::{Ran, Shard, run_shard};
pub use store::{RUNS, Store};
pub use this_machine::ThisMachine;

use serde_json::Value;
use wave_workloads::point::Point;

use crate::kinds::requests::scenario::Scenario;

/// Why a point could not be run; shown to the user.
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// Runs points, on as many threads at once as the caller chooses.
///
/// A simulated point must be determined by the arguments and the program's version alone: run again elsewhere, it must be the
/// same to the bit.
pub trait Runner: Sync {
    /// Simulates `scenario.variants[variant]` under `load_per_second` requests per second, for the time in `scenario.run`, with
    /// every random stream from `seed`.
    ///
    /// An invalid point says so itself ([`wave_workloads::point::GeneratorLag::valid`]).
    ///
    /// # Errors
    /// There is no point, and why: the scenario cannot be run, or requests were lost.
    fn point(
        &self,
        scenario: &Scenario,
        variant: usize,
        load_per_second: f64,
        seed: u64,
    ) -> Result<Point, RunError>;

    /// Runs a whole experiment, the point `id`, and returns the object that `wave run --json` prints of it.
    ///
    /// # Errors
    /// There is no result, and why: the experiment cannot be run, a check failed, or no point is a measurement.
    fn run_experiment(&self, id: &str, run: &ExperimentRun) -> Result<Value, RunError>;
}

#[cfg(test)]
mod tests;
