//! CPUs and clocks: affinity of threads, monotonic time, CPU time.

use std::io;
use std::mem;

/// A thread could not be pinned to its CPUs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list of CPUs is empty.
    #[error("no CPU was given to pin to")]
    NoCpu,
    /// The CPU is not among those that this process may use, because of a container's or a service's limit,
    /// or does not exist.
    #[error(
        "CPU {cpu} is not among the CPUs this process may use ({}): choose from those, or if the \
         machine has it, start the process with: systemd-run --scope -p AllowedCPUs={},{cpu} \
         <command>",
        ranges(.allowed), ranges(.allowed)
    )]
    NotAllowed { cpu: usize, allowed: Vec<usize> },
    /// The kernel refused for another reason.
    #[error("the kernel refused to {doing}: {error}")]
    Kernel { doing: &'static str, error: io::Error },
}

/// Nanoseconds on the machine's monotonic clock, the same for every thread and process on it.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time used so far by the calling thread, in nanoseconds.
pub fn thread_cpu_time_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time used so far by all threads of this process, in nanoseconds.
pub fn process_cpu_time_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The CPUs that the calling thread may run on, ascending. Before it is pinned, these are the CPUs
/// that the process was given at its start.
pub fn allowed_cpus() -> Result<Vec<usize>, Error> {
    Ok(cpus_in(&affinity()?))
}

/// Pins the calling thread to `cpu`.
pub fn pin_current_thread(cpu: usize) -> Result<(), Error> {
    pin_current_thread_to(&[cpu])
}

/// Pins the calling thread to `cpus`, on any of which it may run. They need not be among the CPUs that
/// it may run on now. On an error its CPUs do not change.
pub fn pin_current_thread_to(cpus: &[usize]) -> Result<(), Error> {
    if cpus.is_empty() {
        return Err(Error::NoCpu);
    }
    let before = affinity()?;
    // Linux ignores CPUs that may not be used, and refuses only if none remains.
    let refused = match set_of(cpus).map(|set| set_affinity(&set)) {
        None => true,
        Some(Ok(())) => {
            let allowed = cpus_in(&affinity()?);
            !cpus.iter().all(|cpu| allowed.contains(cpu))
        }
        Some(Err(error)) if error.raw_os_error() == Some(libc::EINVAL) => true,
        Some(Err(error)) => return Err(pinning(error)),
    };
    if !refused {
        return Ok(());
    }
    let allowed = widest_cpus();
    set_affinity(&before).map_err(pinning)?;
    let allowed = allowed?;
    let missing = cpus.iter().find(|cpu| !allowed.contains(cpu));
    Err(Error::NotAllowed { cpu: *missing.unwrap_or(&cpus[0]), allowed })
}

/// Gives the CPU to another thread that is ready to run on it, if there is one.
#[inline]
pub fn yield_now() {
    // SAFETY: takes nothing, and cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

/// All CPUs that the calling thread could be pinned to. Also lets it run on any of them.
fn widest_cpus() -> Result<Vec<usize>, Error> {
    let every: Vec<usize> = (0..libc::CPU_SETSIZE as usize).collect();
    let set = set_of(&every).expect("all are within the set");
    set_affinity(&set).map_err(pinning)?;
    allowed_cpus()
}

fn affinity() -> Result<libc::cpu_set_t, Error> {
    let mut set = no_cpus();
    // SAFETY: the kernel writes at most the size given into `set`; 0 is the calling thread.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if status == 0 {
        Ok(set)
    } else {
        Err(Error::Kernel {
            doing: "list the CPUs that may be used",
            error: io::Error::last_os_error(),
        })
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: `set` is a whole cpu_set_t of the size given; 0 is the calling thread.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn pinning(error: io::Error) -> Error {
    Error::Kernel { doing: "pin a thread", error }
}

fn no_cpus() -> libc::cpu_set_t {
    // SAFETY: a cpu_set_t is a bit mask; all zeros is the empty set.
    unsafe { mem::zeroed() }
}

/// The set of `cpus`; None if one is too large for a set.
fn set_of(cpus: &[usize]) -> Option<libc::cpu_set_t> {
    let mut set = no_cpus();
    for &cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies within `set`.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    Some(set)
}

fn cpus_in(set: &libc::cpu_set_t) -> Vec<usize> {
    (0..libc::CPU_SETSIZE as usize)
        // SAFETY: `cpu` is below CPU_SETSIZE, so the bit lies within `set`.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, set) })
        .collect()
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to write to. The clocks used here exist on every Linux, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Ascending numbers as Linux writes them: `0-3,8`.
fn ranges(cpus: &[usize]) -> String {
    let mut text = String::new();
    for run in cpus.chunk_by(|a, b| a + 1 == *b) {
        if !text.is_empty() {
            text.push(',');
        }
        match run {
            [one] => text.push_str(&one.to_string()),
            [first, .., last] => text.push_str(&format!("{first}-{last}")),
            [] => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_may_use_only_its_cpu() {
        let cpu = allowed_cpus().unwrap()[0];
        std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_pinned_thread_can_be_pinned_elsewhere() {
        let cpus = allowed_cpus().unwrap();
        let all = cpus.clone();
        std::thread::spawn(move || {
            for &cpu in &cpus {
                pin_current_thread(cpu).unwrap();
            }
            pin_current_thread_to(&cpus).unwrap();
            assert_eq!(allowed_cpus().unwrap(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn pinning_to_an_unavailable_cpu_changes_nothing_and_suggests_a_remedy() {
        let before = allowed_cpus().unwrap();
        // A CPU too large for a set, one that few machines have, and that one beside an available CPU.
        for cpus in [&[1_000_000][..], &[1_023], &[before[0], 1_023]] {
            let error = pin_current_thread_to(cpus).unwrap_err().to_string();
            let missing = cpus.last().unwrap();
            assert!(error.starts_with(&format!("CPU {missing} ")), "{error}");
            assert!(error.contains("AllowedCPUs="), "{error}");
            assert_eq!(allowed_cpus().unwrap(), before);
        }
        assert!(matches!(pin_current_thread_to(&[]), Err(Error::NoCpu)));
    }

    #[test]
    fn cpus_are_written_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn work_counts_as_cpu_time_of_its_thread_and_process() {
        let (thread, process) = (thread_cpu_time_ns(), process_cpu_time_ns());
        while thread_cpu_time_ns() == thread {
            std::hint::spin_loop();
        }
        assert!(process_cpu_time_ns() > process);
    }
}
