//! Measurements shared by benches and experiments: CPUs, preemptions, iterations of SOL.

mod preempted;
pub mod sol;

use std::time::Instant;

use wave_process::cpus;

pub use preempted::{Preempted, REST};

/// Pins the calling thread to `cpu`.
pub fn pin(cpu: usize) -> Result<(), String> {
    cpus::pin(&[cpu]).map_err(|error| error.to_string())
}

/// Runs `body`, which does `count` operations; returns nanoseconds per operation.
pub fn ns_per(count: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / count as f64
}
