//! Measurements shared by benches and experiments: chunks, CPUs, preemptions, iterations of SOL.

mod preempted;
pub mod sol;

use std::time::Instant;

use wave_workloads::cpu;

pub use preempted::{Preempted, REST};

/// Median and spread of chunks.
#[derive(Clone, Debug)]
pub struct Chunks(Vec<f64>);

impl Chunks {
    /// Takes values in any order.
    pub fn new(mut values: Vec<f64>) -> Chunks {
        values.sort_by(f64::total_cmp);
        Chunks(values)
    }

    /// The values, in rising order.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The quantile at `share`, 0 to 1.
    pub fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The median; NaN without values.
    pub fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// The spread as JSON: `{p5, p50, p95}`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({ "p5": self.at(0.05), "p50": self.median(), "p95": self.at(0.95) })
    }
}

/// The two CPUs of a bench: the host's and the agent's.
pub fn two_cpus() -> Result<[usize; 2], String> {
    let cpus = cpu::allowed_cpus().map_err(|error| error.to_string())?;
    match cpus[..] {
        [first, second, ..] => Ok([first, second]),
        _ => Err(format!(
            "a bench needs two CPUs, but this process may use only {}: see `taskset -pc $$`",
            cpus.len()
        )),
    }
}

/// Pins the calling thread to `cpu`.
pub fn pin(cpu: usize) -> Result<(), String> {
    cpu::pin_current_thread(cpu).map_err(|error| error.to_string())
}

/// Runs `body`, which does `count` operations; returns nanoseconds per operation.
pub fn ns_per(count: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / count as f64
}
