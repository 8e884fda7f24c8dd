//! Benches: each a ratio against a named peer in the same run, medians of interleaved chunks.
//!
//! Two CPUs are needed and pinned: the host's side on the first allowed one, the agent's on the
//! second; [`mod@kernel`] takes all CPUs. What a chunk is, and what counts, stands with each bench.

mod agent;
mod hostile;
mod kernel;
mod payload;
mod preempt;
mod queue;
mod rpc;
mod sim;
mod sol;
mod switch;

use std::time::Instant;

use wave_workloads::cpu;

pub use agent::agent;
pub use hostile::hostile;
pub use kernel::kernel;
pub use payload::payload;
pub use preempt::{Preempted, preempt};
pub use queue::{peer, queue};
pub use rpc::{Plan as RpcPlan, host as rpc_host, rpc};
pub use sim::sim;
pub use sol::{iterations, sol};
pub use switch::switch;

/// Median and spread of chunks.
#[derive(Clone, Debug)]
struct Chunks(Vec<f64>);

impl Chunks {
    fn new(mut values: Vec<f64>) -> Chunks {
        values.sort_by(f64::total_cmp);
        Chunks(values)
    }

    fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// `{p5, p50, p95}`.
    fn json(&self) -> serde_json::Value {
        serde_json::json!({ "p5": self.at(0.05), "p50": self.median(), "p95": self.at(0.95) })
    }
}

/// The two CPUs of a bench: the host's and the agent's.
fn two_cpus() -> Result<[usize; 2], String> {
    let cpus = cpu::allowed_cpus().map_err(|error| error.to_string())?;
    match cpus[..] {
        [first, second, ..] => Ok([first, second]),
        _ => Err(format!(
            "a bench needs two CPUs, this process may use {}: see `taskset -pc $$`",
            cpus.len()
        )),
    }
}

fn pin(cpu: usize) -> Result<(), String> {
    cpu::pin_current_thread(cpu).map_err(|error| error.to_string())
}

/// Nanoseconds per operation of `count` operations.
fn ns_per(count: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    start.elapsed().as_nanos() as f64 / count as f64
}
