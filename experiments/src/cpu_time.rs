//! CPU time of processes in nanoseconds, by thread name.

use std::fs;

/// CPU time so far of the threads of process `pid` whose names begin with `name`. The kernel counts a run only once it ends.
pub fn cpu_ns(pid: u32, name: &str) -> Result<u64, String> {
    sum(pid, name, 0)
}

/// Time so far that these threads were ready to run and waited for a CPU.
pub fn waited_ns(pid: u32, name: &str) -> Result<u64, String> {
    sum(pid, name, 1)
}

/// Sum over the threads of one word of `/proc/PID/task/*/schedstat`.
fn sum(pid: u32, name: &str, word: usize) -> Result<u64, String> {
    let failed = |error: &dyn std::fmt::Display| format!("CPU times of process {pid}: {error}");
    let mut sum = 0;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| failed(&error))?;
    for thread in threads {
        let thread = thread.map_err(|error| failed(&error))?.path();
        let read = |file: &str| fs::read_to_string(thread.join(file));
        // A thread may end meanwhile.
        let (Ok(comm), Ok(times)) = (read("comm"), read("schedstat")) else { continue };
        if comm.starts_with(name) {
            let time = times.split_whitespace().nth(word).and_then(|word| word.parse::<u64>().ok());
            sum += time.ok_or_else(|| {
                failed(&"/proc/*/schedstat is not kept: the kernel needs CONFIG_SCHED_INFO")
            })?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_by_thread_name() {
        let thread = std::thread::Builder::new().name("bench-spins".into());
        let (spun, go_on) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let spins = thread.spawn(move || {
            let start = wave_workloads::cpu::thread_cpu_time_ns();
            while wave_workloads::cpu::thread_cpu_time_ns() < start + 10_000_000 {}
            spun.0.send(()).unwrap();
            let _ = go_on.1.recv();
        });
        spun.1.recv().unwrap();
        let me = std::process::id();
        // The kernel counts a run only once it ends: when the thread sleeps.
        while cpu_ns(me, "bench-spins").unwrap() < 10_000_000 {
            std::thread::yield_now();
        }
        assert_eq!(cpu_ns(me, "no-such-thread").unwrap(), 0);
        assert!(cpu_ns(me, "").unwrap() >= cpu_ns(me, "bench-spins").unwrap());
        drop(go_on.0);
        spins.unwrap().join().unwrap();
    }
}
