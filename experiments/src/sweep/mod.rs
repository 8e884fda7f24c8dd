//! Sweeps: a scenario's every combination of values, over as many processes and machines as there are.
//!
//! A [`Plan`] is what a scenario file comes to: its points, each with an id that says all that it depends on. A
//! [`Shard`] of them is [run](run_shard) by a [`PointRunner`], each point into a file of its own in a [`Store`], a
//! directory that shards share. What is there is never run again, so a shard that was killed is simply run once
//! more. [`merge()`] makes the results of a store that is complete; they are the same to the byte however the points
//! were divided. Nothing in a store or in the results tells when, where or how long something ran.

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

/// Why a point could not be run; its words go to the user.
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// What runs a point, on as many threads at once as it is asked to.
///
/// The point must follow from the arguments and the program's version alone: a point that is run again, elsewhere,
/// must come out the same to the bit.
pub trait PointRunner: Sync {
    /// Runs `scenario.variants[variant]` under `load_per_second` requests per second, for the time that
    /// `scenario.run` says, with every random stream from `seed`.
    ///
    /// A point that is not to be believed says so itself ([`wave_workloads::point::GeneratorLag::valid`]).
    ///
    /// # Errors
    /// Where there is no point, in words: the scenario asks for what cannot be run, requests were lost.
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
