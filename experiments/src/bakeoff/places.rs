//! CPUs of a bake-off: the program and the tool that pages it out share one; processes that only decide or ask have another.
//!
//! Paging out has to tell every CPU that the program runs on, by an interrupt for each page that is written. In an emulated
//! machine that takes milliseconds, more than all else together, and as long as its CPUs have to wait for real ones: the
//! tool that waits least for others would win. On one CPU no tool can move its work elsewhere.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use wave_workloads::cpu;

use wave_lab::Failure;

/// Two CPUs; the same one where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// CPU of the program and of the tool that pages it out.
    pub shared: usize,
    /// CPU of the agent and of the client.
    pub aside: usize,
}

impl Places {
    /// Takes the first two, and puts this thread, with all that it starts, on the first.
    pub fn take() -> Result<Places, Failure> {
        let cpus = cpu::allowed_cpus().map_err(Failure::cannot)?;
        let shared = cpus.first().copied().unwrap_or(0);
        let places = Places { shared, aside: cpus.get(1).copied().unwrap_or(shared) };
        cpu::pin_current_thread(places.shared).map_err(Failure::cannot)?;
        Ok(places)
    }

    /// Starts something beside the program: what `start` starts has the other CPU.
    pub fn beside<T>(&self, start: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        cpu::pin_current_thread(self.aside).map_err(Failure::cannot)?;
        let started = start();
        cpu::pin_current_thread(self.shared).map_err(Failure::cannot)?;
        started
    }

    /// Puts a thread of the kernel's beside the program.
    pub fn share(&self, thread: i32) -> Result<(), Failure> {
        let mut set = CpuSet::new();
        set.set(self.shared);
        sched_setaffinity(Pid::from_raw(thread), &set).map_err(Failure::cannot)
    }
}
