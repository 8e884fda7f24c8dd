//! Threads that sleep, are woken one after another, and each run once, briefly.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;

/// How long the threads get at a time to run and to fall asleep again.
const PAUSE: Duration = Duration::from_millis(5);

struct Shared {
    start: Instant,
    /// Bumped to let a thread run once.
    turns: Vec<AtomicU32>,
    /// Number of threads that have run in this round, and when each did.
    ran: AtomicUsize,
    at_ns: Vec<AtomicU64>,
    stop: AtomicBool,
}

pub struct Round {
    /// Time of all wake-ups, made by a thread outside the ring.
    pub wakeups_ns: u64,
    /// Time from the first thread's run to the last one's: one switch fewer than there are threads, each from a
    /// thread that goes to sleep to a runnable one. No thread is woken meanwhile.
    pub switches_ns: u64,
}

/// The sleeping threads. They end when this is dropped.
pub struct Ring {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Ring {
    /// Starts `count` threads, each of which enters its scheduling class by `join`.
    pub fn start(count: usize, join: fn() -> io::Result<()>) -> Result<Ring, Error> {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            turns: (0..count).map(|_| AtomicU32::new(0)).collect(),
            ran: AtomicUsize::new(0),
            at_ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
            stop: AtomicBool::new(false),
        });
        let (sender, joined) = channel();
        let mut ring = Ring { shared, threads: Vec::new() };
        for me in 0..count {
            let (shared, sender) = (Arc::clone(&ring.shared), sender.clone());
            let body = move || {
                let result = join();
                let ok = result.is_ok();
                let _ = sender.send(result);
                if ok {
                    shared.take_turns(me);
                }
            };
            ring.threads.push(std::thread::Builder::new().spawn(body)?);
        }
        for _ in 0..count {
            joined.recv()??;
        }
        // Let the last threads fall asleep.
        std::thread::sleep(PAUSE);
        Ok(ring)
    }

    /// Wakes every thread, then lets them run. Calls `decide` before and after, while no thread runs.
    pub fn round(&self, mut decide: impl FnMut() -> Result<(), Error>) -> Result<Round, Error> {
        let Shared { turns, ran, at_ns, .. } = &*self.shared;
        ran.store(0, Ordering::SeqCst);
        let start = Instant::now();
        for turn in turns {
            turn.fetch_add(1, Ordering::SeqCst);
            wake(turn);
        }
        let wakeups_ns = start.elapsed().as_nanos() as u64;
        decide()?;
        while ran.load(Ordering::SeqCst) < turns.len() {
            std::thread::sleep(PAUSE);
            decide()?;
        }
        let at = |order: usize| at_ns[order].load(Ordering::SeqCst);
        Ok(Round { wakeups_ns, switches_ns: at(turns.len() - 1) - at(0) })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for turn in &self.shared.turns {
            turn.fetch_add(1, Ordering::SeqCst);
            wake(turn);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn take_turns(&self, me: usize) {
        let turn = &self.turns[me];
        for seen in 0.. {
            while turn.load(Ordering::SeqCst) == seen {
                wait(turn, seen);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let order = self.ran.fetch_add(1, Ordering::SeqCst);
            let now_ns = self.start.elapsed().as_nanos() as u64;
            self.at_ns[order % self.at_ns.len()].store(now_ns, Ordering::SeqCst);
        }
    }
}

fn wait(word: &AtomicU32, expected: u32) {
    // SAFETY: the word is alive for the duration of the call; there is no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            std::ptr::null::<libc::timespec>(),
        );
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word is alive for the duration of the call.
    unsafe {
        let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), flags, 1);
    }
}
