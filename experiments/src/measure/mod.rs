//! Measurements shared by benches and experiments: CPUs, preemptions, iterations of SOL.

mod preempted;
pub mod sol;

use std::time::Instant;

use wave_workloads::cpu;

pub use preempted::{Preempted, REST};

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
