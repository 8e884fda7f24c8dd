//! What else ran on this machine meanwhile: figures taken beside a busy neighbour mean little.

use std::time::Duration;

use wave_workloads::cpu::{monotonic_ns, process_cpu_time_ns};

use crate::scenario::Kind;

/// CPUs that other processes may use before a point, or a run, is called disturbed: above what
/// the kernel's own accounting, in ticks, is wrong by.
pub const DISTURBING_CPUS: f64 = 0.1;

/// Share of its time that a host core may want a CPU of its own and not have it, before a point is
/// called disturbed. A 99th percentile is about 1% of the requests, and each stall delays those
/// behind it as well.
pub const DISTURBING_STALLS: f64 = 0.002;

/// How much time a run spends at most on repeating disturbed points: less than a demonstration's
/// own time, or as long as a ladder's noise takes.
pub fn patience(kind: &Kind) -> Duration {
    Duration::from_secs(if *kind == Kind::Ladder { 60 } else { 15 })
}

/// For how long the host cores of this process have waited for their CPUs so far, while others ran
/// there; none where the system does not tell.
pub fn stalled_ns() -> Option<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let thread = thread.ok()?.path();
        // Threads come and go meanwhile; host cores do not.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        if name.starts_with("wave-core-") {
            let stat = std::fs::read_to_string(thread.join("schedstat")).ok()?;
            sum += stat.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?;
        }
    }
    Some(sum)
}

/// CPU time so far: of all processes, and of this one with the children that it has waited for.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    at_ns: u64,
    all_ns: u64,
    ours_ns: u64,
}

impl Neighbours {
    /// As of now; none where the system does not tell.
    pub fn now() -> Option<Neighbours> {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Some(Neighbours {
            at_ns: monotonic_ns(),
            all_ns: busy_ticks(&stat)? * tick_ns,
            ours_ns: process_cpu_time_ns() + children_ticks(&own)? * tick_ns,
        })
    }

    /// How many CPUs' worth of time others have used since `before`.
    pub fn cpus_since(&self, before: &Neighbours) -> f64 {
        let all = self.all_ns.saturating_sub(before.all_ns);
        let others = all.saturating_sub(self.ours_ns.saturating_sub(before.ours_ns));
        others as f64 / (self.at_ns - before.at_ns).max(1) as f64
    }
}

/// Ticks that all CPUs were busy: user, nice, system, irq, softirq and steal of `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let numbers = stat.lines().next()?.split_ascii_whitespace().skip(1);
    let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
    [0, 1, 2, 5, 6, 7].iter().map(|&at| ticks.get(at).copied()).sum()
}

/// User and system ticks of children that were waited for, in `/proc/self/stat`.
fn children_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_nobodys() {
        assert_eq!(busy_ticks("cpu  1 2 4 800 900 8 16 32 0 0\ncpu0 ..."), Some(63));
        assert_eq!(children_ticks("7 (a b) S 1 7 7 0 -1 0 0 0 0 0 42 58 3 4 20"), Some(7));
        let before = Neighbours { at_ns: 0, all_ns: 0, ours_ns: 0 };
        let after = Neighbours { at_ns: 1_000, all_ns: 1_700, ours_ns: 1_500 };
        assert_eq!(after.cpus_since(&before), 0.2);
    }
}
