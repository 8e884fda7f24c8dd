//! A thread that gives the kernel orders at an interval.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_terminal::Failure;

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    cpu_ns: AtomicU64,
    failed: Mutex<Option<String>>,
}

/// The thread is stopped and joined on drop.
pub struct Periodic {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Calls `step` at an interval until it fails. A step that overran is followed by the next at once.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        name: &str,
        every: Duration,
        mut step: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> Result<Periodic, Failure> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut next = Instant::now();
            while !theirs.stop.load(Ordering::SeqCst) {
                let done = step();
                let cpu = super::cpu_of(Path::new("/proc/thread-self/schedstat"));
                theirs.cpu_ns.store(cpu.as_nanos() as u64, Ordering::SeqCst);
                if let Err(why) = done {
                    *theirs.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                    return;
                }
                next += every;
                // Unparked in order to stop.
                while !theirs.stop.load(Ordering::SeqCst) && Instant::now() < next {
                    std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
                }
            }
        });
        Ok(Periodic { shared, thread: Some(thread.map_err(Failure::cannot)?) })
    }

    /// CPU time of the thread as of its last step, the kernel's work for it included.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::SeqCst))
    }

    /// # Errors
    /// Says why a step failed.
    pub fn check(&self) -> Result<(), Failure> {
        match &*self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => Err(Failure::Cannot(why.clone())),
            None => Ok(()),
        }
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn steps_repeat_until_one_fails_and_check_reports_it() {
        let (tell, told) = mpsc::channel();
        let mut left = 3;
        let step = move || {
            left -= 1;
            let _ = tell.send(left);
            if left == 0 { Err("it is over".to_owned()) } else { Ok(()) }
        };
        let periodic = Periodic::start("test", Duration::from_millis(1), step).unwrap();
        // The channel closes with the thread.
        assert_eq!(told.iter().collect::<Vec<_>>(), [2, 1, 0]);
        assert!(periodic.check().unwrap_err().to_string().contains("it is over"));
    }

    #[test]
    fn drop_interrupts_a_long_interval() {
        let (tell, told) = mpsc::channel();
        let step = move || tell.send(()).map_err(|error| error.to_string());
        let periodic = Periodic::start("test", Duration::from_secs(3_600), step).unwrap();
        told.recv().unwrap();
        periodic.check().unwrap();
        drop(periodic);
        assert!(told.recv().is_err());
    }
}
