//! CPUs of a bake-off: the program and the thread that pages it out share one; processes that only decide or send requests have
//! another.
//!
//! Paging out must interrupt every CPU that the program runs on, once for each page that is written. In an emulated machine an
//! interrupt takes milliseconds, more than everything else together, and longer still while its CPUs wait for real ones: the
//! tool that waits least for others would win. On one CPU no tool can move its work elsewhere.

use wave_process::cpus;

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
        let cpus = cpus::allowed().map_err(Failure::cannot)?;
        let shared = cpus.first().copied().unwrap_or(0);
        let places = Places { shared, aside: cpus.get(1).copied().unwrap_or(shared) };
        cpus::pin(&[places.shared]).map_err(Failure::cannot)?;
        Ok(places)
    }

    /// Runs `start` with this thread pinned to the second CPU, so that what it starts stays there.
    pub fn beside<T>(&self, start: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        cpus::pin(&[self.aside]).map_err(Failure::cannot)?;
        let started = start();
        cpus::pin(&[self.shared]).map_err(Failure::cannot)?;
        started
    }

    /// Pins a kernel thread to the program's CPU.
    pub fn share(&self, thread: i32) -> Result<(), Failure> {
        cpus::pin_thread(thread, &[self.shared]).map_err(Failure::cannot)
    }
}
