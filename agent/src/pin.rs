//! Pinning a thread to a CPU.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Restricts the calling thread, and the threads that it starts from now on, to this CPU.
pub fn pin(cpu: usize) -> Result<(), String> {
    let refused = |why: &dyn std::fmt::Display| {
        format!("cannot run on CPU {cpu}: {why}; `taskset -pc $$` shows which CPUs may be used")
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(&format_args!("CPU numbers are below {}", CpuSet::MAX_CPU)));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| refused(&error))
}
