//! CPU time that unrecorded threads take from recorded ones.

use std::collections::HashMap;

use super::event::Next;

/// Integrates over time the smaller of two numbers: recorded threads that wait for a CPU, and CPUs that run unrecorded
/// threads. Only CPUs on which a recorded thread has run count: a program that may not use the other CPUs loses
/// nothing there.
#[derive(Debug, Default)]
pub struct Interference {
    cpus: HashMap<u16, Cpu>,
    /// Number of CPUs that count and run an unrecorded thread.
    taken: u64,
    waiting: u64,
    /// Time up to which the total is known.
    now_ns: u64,
    total_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    /// A recorded thread has run here.
    counts: bool,
    /// An unrecorded thread runs here.
    is_taken: bool,
}

impl Interference {
    /// Advances to `now_ns`, up to which nothing has changed.
    pub fn pass(&mut self, now_ns: u64) {
        self.total_ns = self.total_ns(now_ns);
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The total until `now_ns`, provided that nothing has changed.
    pub fn total_ns(&self, now_ns: u64) -> u64 {
        self.total_ns + now_ns.saturating_sub(self.now_ns) * self.waiting.min(self.taken)
    }

    /// A recorded thread begins to wait for a CPU.
    pub fn begin_wait(&mut self) {
        self.waiting += 1;
    }

    /// A recorded thread no longer waits for a CPU.
    pub fn end_wait(&mut self) {
        self.waiting -= 1;
    }

    /// A CPU switches to `next`, from a recorded thread or another.
    pub fn switch(&mut self, cpu: u16, from_recorded: bool, next: Next) {
        let cpu = self.cpus.entry(cpu).or_default();
        self.taken -= u64::from(cpu.counts && cpu.is_taken);
        cpu.counts |= from_recorded || matches!(next, Next::Recorded(_));
        cpu.is_taken = next == Next::Other;
        self.taken += u64::from(cpu.counts && cpu.is_taken);
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Who;
    use super::*;

    const RECORDED: Next = Next::Recorded(Who { pid: 1, born: 1 });

    #[test]
    fn unrecorded_thread_takes_its_cpu_from_a_waiting_thread() {
        let mut interference = Interference::default();
        interference.switch(0, false, RECORDED);
        interference.pass(10);
        interference.begin_wait();
        // Recorded threads that wait for each other are not disturbed.
        interference.pass(20);
        assert_eq!(interference.total_ns(30), 0);
        // Another CPU, on which no recorded thread has run.
        interference.switch(1, false, Next::Other);
        interference.pass(30);
        interference.switch(0, true, Next::Other);
        interference.pass(40);
        assert_eq!(interference.total_ns(45), 15);
        // Now recorded threads use that CPU as well. One waiting thread loses at most one CPU.
        interference.switch(1, false, RECORDED);
        interference.switch(1, true, Next::Other);
        interference.pass(50);
        assert_eq!(interference.total_ns(50), 20);
        interference.begin_wait();
        interference.pass(60);
        assert_eq!(interference.total_ns(60), 40);
        interference.switch(0, false, Next::Idle);
        interference.end_wait();
        interference.end_wait();
        assert_eq!(interference.total_ns(99), 40);
        // A clock that goes backwards adds nothing.
        interference.begin_wait();
        assert_eq!(interference.total_ns(1), 40);
    }
}
