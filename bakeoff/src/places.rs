//! CPUs of a bake-off: the program and the thread that pages it out share one; processes that only decide or send requests have
//! another.
//!
//! Paging out must interrupt every CPU that the program runs on, once for each page that is written. In an emulated machine an
//! interrupt takes milliseconds, more than everything else together, and longer still while its CPUs wait for real ones: the
//! tool that waits least for others would win. On one CPU no tool can move its work elsewhere.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use wave_workloads::cpu;

use wave_terminal::Failure;

/// Two CPUs; both the same on a machine with one.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// CPU of the program and of the thread that pages it out.
    pub shared: usize,
    /// CPU of the agent and of the client.
    pub aside: usize,
}

impl Places {
    /// Takes the first two allowed CPUs. Pins this thread, and all that it starts, to the first.
    pub fn take() -> Result<Places, Failure> {
        let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
        let shared = cpus.first().copied().unwrap_or(0);
        let places = Places { shared, aside: cpus.get(1).copied().unwrap_or(shared) };
        cpu::pin_current_thread(places.shared).map_err(Failure::cannot)?;
        Ok(places)
    }

    /// Runs `start` with this thread pinned to the second CPU, so that what it starts stays there.
    pub fn beside<T>(&self, start: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        cpu::pin_current_thread(self.aside).map_err(Failure::cannot)?;
        let started = start();
        cpu::pin_current_thread(self.shared).map_err(Failure::cannot)?;
        started
    }

    /// Pins a kernel thread to the program's CPU.
    pub fn share(&self, thread: i32) -> Result<(), Failure> {
        let mut set = CpuSet::new();
        set.set(self.shared);
        sched_setaffinity(Pid::from_raw(thread), &set).map_err(Failure::cannot)
    }
}
