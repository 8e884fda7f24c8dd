//! CPU time of the machine, of the bench's processes, and of all other processes.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// The CPU time spent up to an instant, by process.
#[derive(Clone, Debug)]
pub struct Snapshot {
    at: Instant,
    /// Busy time of all CPUs: without idle time, waits for a disk and time stolen by a hypervisor.
    busy_ns: u64,
    /// CPU time of each process in nanoseconds, by its number.
    processes: BTreeMap<u32, u64>,
}

/// CPU time between two snapshots, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// CPU time of the program.
    pub app: f64,
    /// CPU time of the agent; 0 if there is none.
    pub agent: f64,
    /// The machine's busy time minus that of other processes: program, agent, client, interrupts and the kernel's threads.
    pub total: f64,
    /// The scheduler's charges to program, agent, client, relay and ksoftirqd.
    pub by_tasks: f64,
    /// CPU time of processes that are not the bench's.
    pub others: f64,
}

impl Snapshot {
    /// Takes a snapshot, which reads some hundred small files.
    pub fn take() -> Result<Snapshot, String> {
        Ok(Snapshot { at: Instant::now(), busy_ns: busy_ns()?, processes: processes() })
    }

    /// The CPU time spent up to a later snapshot. `app` has the program's processes, `ours` the bench's other processes.
    pub fn until(&self, later: &Snapshot, app: &[u32], agent: Option<u32>, ours: &[u32]) -> Spent {
        let of = |pid: u32| {
            let now = later.processes.get(&pid).copied().unwrap_or(0);
            now.saturating_sub(self.processes.get(&pid).copied().unwrap_or(0)) as f64
        };
        let kernels = kernel_threads();
        let is_ours = |pid: &u32| {
            app.contains(pid) || Some(*pid) == agent || ours.contains(pid) || kernels.contains(pid)
        };
        let others =
            later.processes.keys().filter(|pid| !is_ours(pid)).map(|pid| of(*pid)).sum::<f64>();
        let by_tasks =
            later.processes.keys().filter(|pid| is_ours(pid)).map(|pid| of(*pid)).sum::<f64>();
        let busy = later.busy_ns.saturating_sub(self.busy_ns) as f64;
        let app = app.iter().map(|pid| of(*pid)).sum();
        Spent { app, agent: agent.map_or(0.0, of), total: busy - others, by_tasks, others }
    }

    pub fn seconds_until(&self, later: &Snapshot) -> f64 {
        later.at.duration_since(self.at).as_secs_f64()
    }
}

/// Busy time of all CPUs since the machine started, in nanoseconds, from the ticks in `/proc/stat`.
fn busy_ns() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
    let words = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else {
        return Err(format!(
            "/proc/stat begins with `{}`",
            text.lines().next().unwrap_or_default()
        ));
    };
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    Ok((user + nice + system + irq + softirq) * tick_ns)
}

/// CPU time of all processes: the sum over their living threads.
fn processes() -> BTreeMap<u32, u64> {
    pids().map(|pid| (pid, threads_ns(pid))).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process and its descendants, parents first.
pub fn tree(root: u32) -> Vec<u32> {
    // A process may end meanwhile.
    let parents: Vec<(u32, u64)> =
        pids().filter_map(|pid| Some((pid, status(pid, "PPid").ok()?))).collect();
    let mut tree = vec![root];
    let mut at = 0;
    while at < tree.len() {
        let parent = u64::from(tree[at]);
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    tree
}

fn threads_ns(pid: u32) -> u64 {
    // A process may end meanwhile.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    times.sum()
}

/// CPU time of a process so far.
pub fn of(pid: u32) -> u64 {
    threads_ns(pid)
}

/// The kernel's threads that process packets outside of any process (ksoftirqd).
fn kernel_threads() -> Vec<u32> {
    let is_soft = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    pids().filter(is_soft).collect()
}

/// A number from `/proc/PID/status`: in kB, or a count.
pub fn status(pid: u32, key: &str) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("{path} has no {key}"))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn own_cpu_time_is_not_counted_as_foreign() {
        let before = Snapshot::take().unwrap();
        let start = Instant::now();
        while start.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        // The scheduler accounts a run when it ends.
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = Snapshot::take().unwrap();
        let spent = before.until(&after, &[std::process::id()], None, &[]);
        // However busy the machine, this process has had some CPU time, and no more than 64 CPUs have.
        assert!(spent.app > 0.0 && spent.app <= before.seconds_until(&after) * 1e9 * 64.0);
        assert_eq!(spent.agent, 0.0);
        assert!(spent.by_tasks >= spent.app, "{spent:?}");
        assert!(status(std::process::id(), "VmRSS").unwrap() > 0);
    }

    #[test]
    fn process_tree_contains_descendants() {
        let mut shell = Command::new("sh");
        // A background process of a shell reads /dev/null, unless its input is redirected.
        shell
            .args(["-c", "exec 3<&0; cat <&3 & echo started; wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut started = [0; 8];
        shell.stdout.as_mut().unwrap().read_exact(&mut started).unwrap();
        let ours = tree(std::process::id());
        let of_shell = tree(shell.id());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!((of_shell.len(), of_shell[0]), (2, shell.id()), "{of_shell:?}");
        assert!(of_shell.iter().all(|pid| ours.contains(pid)), "{ours:?}");
    }
}
