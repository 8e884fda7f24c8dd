//! Virtual CPUs: fair shares, a bound on each one's wait, quanta of milliseconds.
//!
//! Source: in the manner of Google's policy for virtual machines (Wave 7.2.4: "inspired by Tableau, prioritizes fair CPU
//! sharing among all vCPUs while imposing an upper bound on tail latency", quanta of 5 to 10 ms, preemption at a granularity of
//! 1 ms). That policy is not public; this one is our own, after that description:
//!
//! - **Fair**: the next vCPU is the one with the least virtual runtime: time on a core, divided by the weight of its class. A
//!   vCPU that slept keeps at most a quantum of arrears.
//! - **Bounded**: a vCPU that has waited for the bound is next, whatever its share, and quanta shrink to the grain while any
//!   vCPU has. A vCPU that is ahead of its share by a quantum, and has a core only because of the bound, keeps it for a grain.
//!   So the bound holds for up to `latency / grain` waiting vCPUs per core.
//! - **Quanta**: the longest while at most one vCPU waits per core, the shortest when more do, in proportion between.
//! - **Grain**: the policy looks for runs to end once per grain, and only while a vCPU waits. This replaces the host's ticks.
//! - **Sticky**: a vCPU goes to the core that it ran on last, if that core asks too, or if that core's current run may be
//!   ended.
//!
//! Nothing is prestaged ahead of need (nor in Wave 7.2.4): switches are milliseconds apart, so prestaging is not worth a choice
//! made too early.

use wave_core::clock::Nanos;
use wave_core::layout::Config;

use super::common::{
    Cause, Discipline, Heap, PerClass, Preemptive, Queues, Run, Runs, Setting, Settings, Thread,
};

/// Settings of the fair-share policy for vCPUs.
pub static SETTINGS: [Setting; 4] = [
    Setting::span(
        "quantum_ms",
        "5..10",
        1..=1000,
        "how long a vCPU runs while others wait, in milliseconds: at least and at most",
    ),
    Setting::number(
        "grain_ms",
        "1",
        1..=100,
        "how often the policy looks for runs to end, in milliseconds",
    ),
    // Below the watchdog's 20 ms: the watchdog would take a vCPU that waits that long for a forgotten one.
    Setting::number(
        "latency_ms",
        "15",
        1..=10_000,
        "the longest wait: after it a vCPU is next for any share, in milliseconds",
    ),
    Setting::per_class("weight", "1", 1..=1000, "the share of a vCPU of each class"),
];

/// The settings of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The shortest quantum while others wait.
    pub quantum_min: Nanos,
    /// The longest quantum while vCPUs wait that deserve the core more.
    pub quantum_max: Nanos,
    /// Time between two searches for runs to end. Not zero.
    pub grain: Nanos,
    /// The bound on a wait: after it a vCPU is next, whatever its share.
    pub latency: Nanos,
    /// The weight of each class's vCPUs. Not zero.
    pub weights: PerClass<u64>,
}

/// Virtual CPUs with fair shares.
pub type Vm = Preemptive<FairShares>;

impl Vm {
    /// For an enclave of this configuration.
    pub fn new(config: &Config, shares: Shares) -> Vm {
        let discipline = FairShares {
            shares,
            by_runtime: Heap::new(config.subjects),
            by_time: Queues::new(1, config.subjects),
            floor: 0,
            looked_at: None,
        };
        Preemptive::with(config, discipline)
    }

    /// The policy with settings from [`SETTINGS`].
    pub fn from_settings(config: &Config, settings: &Settings<'_>) -> Vm {
        let (quantum_min, quantum_max) = settings.span("quantum_ms");
        let shares = Shares {
            quantum_min: Nanos::from_millis(quantum_min),
            quantum_max: Nanos::from_millis(quantum_max),
            grain: Nanos::from_millis(settings.number("grain_ms")),
            latency: Nanos::from_millis(settings.number("latency_ms")),
            weights: settings.per_class("weight"),
        };
        Vm::new(config, shares)
    }
}

/// vCPUs by virtual runtime (a vCPU's mark), in nanoseconds of a vCPU of weight 1.
#[derive(Debug)]
pub struct FairShares {
    shares: Shares,
    /// The waiting vCPUs by virtual runtime, and by waiting time.
    by_runtime: Heap,
    by_time: Queues,
    /// The highest virtual runtime that a next vCPU ever had: new vCPUs start there.
    floor: u64,
    /// The last grain in which all runs were examined.
    looked_at: Option<u64>,
}

impl FairShares {
    fn weighed(&self, thread: &Thread, ran: Nanos) -> u64 {
        ran.0 / self.shares.weights.of(thread.class)
    }

    /// The next vCPU, and whether it is next because it has waited for the bound.
    fn first(&self, now: Nanos, threads: &[Thread]) -> Option<(u32, bool)> {
        let oldest = self.by_time.first(0)?;
        if now.since(threads[oldest as usize].since) >= self.shares.latency {
            return Some((oldest, true));
        }
        self.by_runtime.first().map(|(_, id)| (id, false))
    }

    /// The quantum for the current number of waiting vCPUs and `cores` cores.
    fn quantum(&self, cores: usize) -> Nanos {
        let waiting = self.by_runtime.len().max(cores) as u64;
        let shared = u128::from(self.shares.quantum_max.0) * cores as u128 / u128::from(waiting);
        Nanos(shared as u64).max(self.shares.quantum_min)
    }
}

impl Discipline for FairShares {
    const PRESTAGES: bool = false;
    const STICKY: bool = true;

    fn name(&self) -> &'static str {
        "vm"
    }

    fn waiting(&self) -> usize {
        self.by_runtime.len()
    }

    fn enter(&mut self, _now: Nanos, id: u32, thread: &mut Thread, cause: Cause) {
        let floor = match cause {
            Cause::Woken => self.floor.saturating_sub(self.shares.quantum_min.0),
            Cause::Found | Cause::Runs => self.floor,
            Cause::Yielded | Cause::Preempted => 0,
            // Charge a grain: the core asks again at once.
            Cause::Refused => thread.mark.saturating_add(self.weighed(thread, self.shares.grain)),
        };
        thread.mark = thread.mark.max(floor);
        self.by_runtime.push(id, thread.mark);
        self.by_time.push(0, id);
    }

    fn leave(&mut self, id: u32) {
        self.by_runtime.remove(id);
        self.by_time.remove(id);
    }

    fn take(&mut self, now: Nanos, _core: u16, threads: &[Thread]) -> Option<u32> {
        let (id, is_overdue) = self.first(now, threads)?;
        if !is_overdue {
            self.floor = self.floor.max(threads[id as usize].mark);
        }
        self.leave(id);
        Some(id)
    }

    fn clear(&mut self) {
        self.by_runtime.clear();
        self.by_time.clear();
        self.floor = 0;
        self.looked_at = None;
    }

    fn charge(&mut self, _id: u32, thread: &mut Thread, ran: Nanos) {
        thread.mark = thread.mark.saturating_add(self.weighed(thread, ran));
    }

    fn rank(&self, now: Nanos, _thread: &Thread) -> u64 {
        now.0
    }

    fn victim(&mut self, now: Nanos, runs: &Runs, threads: &[Thread]) -> Option<u16> {
        let grain = now.0 / self.shares.grain.0;
        if self.looked_at == Some(grain) {
            return None;
        }
        let (next, is_overdue) = self.first(now, threads)?;
        let next = &threads[next as usize];
        let quantum = self.quantum(runs.cores());
        // The virtual runtime of each running vCPU by now.
        let runtime = |run: &Run| {
            let thread = &threads[run.thread as usize];
            thread.mark.saturating_add(self.weighed(thread, now.since(run.start)))
        };
        let may_end = |run: &Run| {
            // A vCPU that was far ahead when it began has its core only because it waited for the bound.
            let lead = threads[run.thread as usize].mark.saturating_sub(next.mark);
            let is_lent = lead >= self.shares.quantum_min.0;
            let least = if is_overdue || is_lent { self.shares.grain } else { quantum };
            now.since(run.start) >= least && (is_overdue || runtime(run) > next.mark)
        };
        if runs.get(next.core).as_ref().is_some_and(may_end) {
            return Some(next.core);
        }
        let victims = runs.iter().filter(|(_, run)| may_end(run));
        let victim = victims.max_by_key(|(core, run)| (runtime(run), *core)).map(|(core, _)| core);
        if victim.is_none() {
            self.looked_at = Some(grain);
        }
        victim
    }

    fn next_victim(&self, now: Nanos, runs: &Runs) -> Option<Nanos> {
        runs.first()?;
        Some(Nanos(
            (now.0 / self.shares.grain.0).saturating_add(1).saturating_mul(self.shares.grain.0),
        ))
    }
}
