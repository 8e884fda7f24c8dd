//! Counts the instructions of one thread of another process, by the processor's counters.
//!
//! The thread is found by its name once it runs. Its instructions before that, in the millisecond between two looks, are not
//! counted.

use std::path::Path;
use std::{fs, io};

use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};

/// The reason why this machine has no counters; `None` if it has.
pub fn unavailable() -> Option<String> {
    let own = open(0, Hardware::INSTRUCTIONS).err()?;
    Some(format!("no counter of instructions can be opened (perf_event_open: {own})"))
}

/// Counts the user-mode instructions of a process's thread with this name, from now on. `None` while it has no such thread.
pub fn instructions(process: u32, thread: &str) -> io::Result<Option<Counter>> {
    thread_named(process, thread).map(|id| open(id, Hardware::INSTRUCTIONS)).transpose()
}

fn open(thread: i32, event: impl Event) -> io::Result<Counter> {
    let mut builder = Builder::new(event);
    let mut counter = builder.observe_pid(thread).exclude_kernel(true).exclude_hv(true).build()?;
    counter.enable()?;
    Ok(counter)
}

fn thread_named(process: u32, name: &str) -> Option<i32> {
    let threads = fs::read_dir(Path::new("/proc").join(process.to_string()).join("task")).ok()?;
    let found = threads.flatten().find(|thread| {
        let comm = fs::read_to_string(thread.path().join("comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    });
    found?.file_name().to_str()?.parse().ok()
}

#[cfg(test)]
mod unit_tests {
    use std::hint::black_box;
    use std::sync::mpsc;

    use perf_event::events::Software;

    use super::*;

    #[test]
    fn a_thread_is_found_by_its_name() {
        let (ends, end) = mpsc::channel::<()>();
        let body = move || {
            let _ = end.recv();
        };
        let thread =
            std::thread::Builder::new().name("wave-named-here".into()).spawn(body).unwrap();
        let process = std::process::id();
        // A thread sets its name only once it runs.
        while thread_named(process, "wave-named-here").is_none() {
            std::thread::yield_now();
        }
        assert_eq!(thread_named(process, "wave-named"), None);
        drop(ends);
        thread.join().unwrap();
    }

    /// A software clock of the kernel replaces the processor's counter, which a virtual machine may lack.
    #[test]
    fn a_counter_is_read_after_its_thread_ended() {
        let (tells, told) = mpsc::channel();
        let (goes, go) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tells.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let _ = go.recv();
            (0..1_000_000_u64).for_each(|number| {
                let _ = black_box(number);
            });
        });
        let counter = open(told.recv().unwrap(), Software::TASK_CLOCK);
        goes.send(()).unwrap();
        thread.join().unwrap();
        match counter {
            Ok(mut counter) => assert!(counter.read().unwrap() > 0),
            Err(error) => wave_skip::skip(format!("perf_event_open: {error}")),
        }
    }
}
