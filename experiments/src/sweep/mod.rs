//! Sweeps: every combination of a scenario's values, run by any number of processes and machines.
//!
//! A [`Plan`] is made from a scenario file: its points, each with an id derived from everything that it depends on. A [`Shard`]
//! of them is [run](run_shard) by a [`PointRunner`], each point into a file of its own in a [`Store`], a directory that shards
//! share. Finished points are never run again, so a shard that was killed is simply started once more. [`merge()`] makes the
//! results of a complete store; they are the same to the byte however the points were divided. Nothing in a store or in the
//! results says when, where or for how long something ran.

mod merge;
mod plan;
mod shard;
mod simulated;
mod store;

pub use merge::{FILES as RESULT_FILES, Merged, Missing, merge, table};
pub use plan::Plan;
pub use shard::{Ran, Shard, run_shard};
pub use simulated::Simulator;
pub use store::Store;

use wave_workloads::point::Point;

use crate::scenario::Scenario;

/// Why a point could not be run; shown to the user.
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// Runs points, on as many threads at once as the caller chooses.
///
/// The point must be determined by the arguments and the program's version alone: run again elsewhere, it must be the same to
/// the bit.
pub trait PointRunner: Sync {
    /// Runs `scenario.variants[variant]` under `load_per_second` requests per second, for the time in `scenario.run`, with
    /// every random stream from `seed`.
    ///
    /// An invalid point says so itself ([`wave_workloads::point::GeneratorLag::valid`]).
    ///
    /// # Errors
    /// There is no point, and why: the scenario cannot be run, or requests were lost.
    fn run(
        &self,
        scenario: &Scenario,
        variant: usize,
        load_per_second: f64,
        seed: u64,
    ) -> Result<Point, RunError>;
}

#[cfg(test)]
mod tests;
