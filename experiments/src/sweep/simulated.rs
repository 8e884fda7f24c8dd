//! Points in the simulator.

use wave_workloads::point::Point;

use super::{PointRunner, RunError};
use crate::run::sim::Simulated;
use crate::scenario::Scenario;

/// Runs points in the simulator: each in a world of its own, whose time is virtual.
#[derive(Clone, Copy, Debug)]
pub struct Simulator;

impl PointRunner for Simulator {
    fn run(
        &self,
        scenario: &Scenario,
        variant: usize,
        load_per_second: f64,
        seed: u64,
    ) -> Result<Point, RunError> {
        let mut simulated = Simulated::new(scenario, &scenario.variants[variant])?;
        simulated.setup.seed = seed;
        Ok(simulated.run(load_per_second, None)?.measured)
    }
}
