//! Other processes' use of this machine: figures taken beside a busy neighbour mean little.

use std::fs;

use wave_workloads::cpu::{monotonic_ns, process_cpu_time_ns};

use super::journal::Journal;

/// CPUs that other processes may use before a run is called disturbed: above the error of the kernel's own accounting, which is in
/// ticks.
pub const DISTURBING_CPUS: f64 = 0.1;

/// CPU time so far, in ticks: of all processes, and of this one with the children that it has waited for. Complete: it includes
/// processes that have ended, and those outside of a container.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    at_ns: u64,
    all_ns: u64,
    ours_ns: u64,
}

impl Neighbours {
    /// Measures now, on the whole machine; None if the system does not tell.
    pub fn now() -> Option<Neighbours> {
        Neighbours::counted(|name| name == "cpu")
    }

    /// Measures now, on `cpus`, where all of this process and its children run.
    pub fn on(cpus: &[usize]) -> Option<Neighbours> {
        Neighbours::counted(|name| {
            let cpu = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
            cpu.is_some_and(|cpu| cpus.contains(&cpu))
        })
    }

    /// Measures the CPUs whose line names in `/proc/stat` satisfy `counts`.
    fn counted(counts: impl Fn(&str) -> bool) -> Option<Neighbours> {
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Some(Neighbours {
            at_ns: monotonic_ns(),
            all_ns: busy_ticks(&stat, counts)? * tick_ns,
            ours_ns: process_cpu_time_ns() + children_ticks(&own)? * tick_ns,
        })
    }

    /// A fact for the report: the `cpus` that others have used. `if_disturbed` follows if those are more than [`DISTURBING_CPUS`].
    pub fn fact(
        cpus: Option<f64>,
        journal: &Journal,
        if_disturbed: &str,
    ) -> Option<(String, String)> {
        let cpus = cpus?;
        // Points of an earlier process were not watched by this one.
        let mut how = match journal.resumed() {
            0 => "measured over the whole run".to_owned(),
            _ => "measured since the run was resumed, and not before".to_owned(),
        };
        if cpus > DISTURBING_CPUS {
            how.push_str("; ");
            how.push_str(if_disturbed);
        }
        Some((format!("other processes used {cpus:.2} CPUs"), how))
    }

    /// CPUs of the whole machine that others have used on average since `before`, which is from [`Neighbours::now`].
    pub fn since(before: Option<Neighbours>) -> Option<f64> {
        Some(Neighbours::now()?.cpus_since(&before?))
    }

    /// CPUs that others have used on average since `before`.
    pub fn cpus_since(&self, before: &Neighbours) -> f64 {
        let all = self.all_ns.saturating_sub(before.all_ns);
        let others = all.saturating_sub(self.ours_ns.saturating_sub(before.ours_ns));
        others as f64 / (self.at_ns - before.at_ns).max(1) as f64
    }
}

/// Ticks that CPUs were busy: user, nice, system, irq, softirq and steal of `/proc/stat`, in the lines that count.
fn busy_ticks(stat: &str, counts: impl Fn(&str) -> bool) -> Option<u64> {
    let lines = stat.lines().filter(|line| line.split(' ').next().is_some_and(&counts));
    let busy = |line: &str| -> Option<u64> {
        let numbers = line.split_ascii_whitespace().skip(1);
        let ticks: Vec<u64> = numbers.map_while(|number| number.parse().ok()).collect();
        [0, 1, 2, 5, 6, 7].iter().map(|&at| ticks.get(at).copied()).sum()
    };
    lines.map(busy).sum()
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
    fn idle_time_is_not_counted_as_busy() {
        let stat =
            "cpu  1 2 4 800 900 8 16 32 0 0\ncpu0 1 0 0 9 9 0 0 0\ncpu1 2 0 0 9 9 0 0 0\nintr 7";
        assert_eq!(busy_ticks(stat, |name| name == "cpu"), Some(63));
        assert_eq!(busy_ticks(stat, |name| name == "cpu1"), Some(2));
        assert_eq!(children_ticks("7 (a b) S 1 7 7 0 -1 0 0 0 0 0 42 58 3 4 20"), Some(7));
        let before = Neighbours { at_ns: 0, all_ns: 0, ours_ns: 0 };
        let after = Neighbours { at_ns: 1_000, all_ns: 1_700, ours_ns: 1_500 };
        assert_eq!(after.cpus_since(&before), 0.2);
    }
}
