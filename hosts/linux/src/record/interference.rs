//! CPU time that threads which are not recorded take from recorded ones.

use std::collections::HashMap;

use super::event::Next;

/// Adds up, over time, the smaller of two numbers: recorded threads that wait for a CPU, and CPUs that run threads which
/// are not recorded. Only CPUs on which a recorded thread has run count: a program that may not use the others loses
/// nothing there.
#[derive(Debug, Default)]
pub struct Interference {
    cpus: HashMap<u16, Cpu>,
    /// CPUs that count and run a thread that is not recorded.
    taken: u64,
    waiting: u64,
    /// Up to when it is added up.
    now_ns: u64,
    total_ns: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    /// A recorded thread has run here.
    counts: bool,
    /// A thread that is not recorded runs here.
    is_taken: bool,
}

impl Interference {
    /// Nothing has changed until `now_ns`.
    pub fn pass(&mut self, now_ns: u64) {
        self.total_ns = self.total_ns(now_ns);
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// The total until `now_ns`, if nothing has changed.
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
    fn a_cpu_that_another_has_while_a_thread_waits_is_taken_from_it() {
        let mut interference = Interference::default();
        interference.switch(0, false, RECORDED);
        interference.pass(10);
        interference.begin_wait();
        // Recorded threads that wait for each other are not disturbed.
        interference.pass(20);
        assert_eq!(interference.total_ns(30), 0);
        // Another CPU, on which none of them has run.
        interference.switch(1, false, Next::Other);
        interference.pass(30);
        interference.switch(0, true, Next::Other);
        interference.pass(40);
        assert_eq!(interference.total_ns(45), 15);
        // Now they use that one as well; one thread waits for one CPU only.
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
        // A clock that goes back adds nothing.
        interference.begin_wait();
        assert_eq!(interference.total_ns(1), 40);
    }
}
