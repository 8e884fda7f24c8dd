//! Monotonic time, CPU time, and yields.

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

/// Gives the CPU to another thread that is ready to run on it, if there is one.
#[inline]
pub fn yield_now() {
    // SAFETY: takes nothing, and cannot fail on Linux.
    unsafe { libc::sched_yield() };
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec to write to. The clocks used here exist on every Linux, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_as_cpu_time_of_its_thread_and_process() {
        let (thread, process) = (thread_cpu_time_ns(), process_cpu_time_ns());
        while thread_cpu_time_ns() == thread {
            std::hint::spin_loop();
        }
        assert!(process_cpu_time_ns() > process);
    }
}
