//! The baseline: a pool of ordinary threads that Linux schedules.
//!
//! The usual design without this project: more threads than CPUs, each asleep until it is handed
//! a request and woken by a futex.
//!
//! ```text
//!             ┌────────────── idle <──────────────┐
//! submit ──> queue ── match up ──> hand over, wake ──> serve ──> queue empty?
//!             └────────────── taken by <──────────────────────────── no
//! ```
//!
//! Requests pass through one bounded queue and idle threads wait in another, both lock-free: a
//! thread that Linux preempts must not delay the generator with a lock. After an addition to either
//! queue a thread looks at both (`Shared::match_up`), so that a request and a thread that arrive at
//! the same time find each other.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use crate::generator::{Refused, Request, Server};
use wave_process::cpus;

/// A pool could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A pool without threads or without room.
    #[error("a pool needs at least one thread and room for one request")]
    Empty,
    /// The CPUs are not available to this process.
    #[error(transparent)]
    Cpu(io::Error),
    /// Linux refused to create another thread.
    #[error("thread {index} of {threads} could not be started: {error}; try fewer threads")]
    Thread { index: usize, threads: usize, error: io::Error },
}

/// Size and CPUs of a pool.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of threads that serve requests.
    pub threads: usize,
    /// The CPUs that they run on; Linux chooses among these for each thread.
    pub cpus: Vec<usize>,
    /// Maximum number of requests that wait for a thread; further requests are refused.
    pub queue_bound: usize,
}

impl Settings {
    /// 64 threads on `cpus`, and room for 65,536 requests to wait.
    pub fn new(cpus: Vec<usize>) -> Settings {
        Settings { threads: 64, cpus, queue_bound: 65_536 }
    }
}

/// Final counts of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Requests that were accepted; all were served.
    pub accepted: u64,
    /// Those of `accepted` whose handler panicked.
    pub panicked: u64,
}

/// Threads that serve requests. When dropped, it serves all accepted requests and ends its threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    accepted: u64,
}

impl Pool {
    /// Starts the threads. `handler` is called with each request and the index, below
    /// `settings.threads`, of the thread that serves it.
    pub fn start(
        settings: &Settings,
        handler: impl Fn(&Request, usize) + Send + Sync + 'static,
    ) -> Result<Pool, Error> {
        if settings.threads == 0 || settings.queue_bound == 0 {
            return Err(Error::Empty);
        }
        let mut pool = Pool {
            shared: Arc::new(Shared {
                queue: ArrayQueue::new(settings.queue_bound),
                idle: ArrayQueue::new(settings.threads),
                seats: (0..settings.threads).map(|_| PoolSeat::default()).collect(),
                stopping: AtomicBool::new(false),
            }),
            threads: Vec::with_capacity(settings.threads),
            accepted: 0,
        };
        let handler = Arc::new(handler);
        let (ready, started) = mpsc::channel();
        for index in 0..settings.threads {
            let (shared, handler) = (pool.shared.clone(), handler.clone());
            let (cpus, ready) = (settings.cpus.clone(), ready.clone());
            let thread = Builder::new().name(format!("linux-pool-{index}")).spawn(move || {
                let pinned = cpus::pin(&cpus);
                let serve = pinned.is_ok();
                // Once another thread has failed, this answer has no receiver.
                let _ = ready.send(pinned);
                drop(ready);
                if serve {
                    shared.serve(index, &*handler);
                }
            });
            // On an error here and below, `pool` is dropped, which ends the threads.
            pool.threads.push(thread.map_err(|error| Error::Thread {
                index,
                threads: settings.threads,
                error,
            })?);
        }
        drop(ready);
        for pinned in started {
            pinned.map_err(Error::Cpu)?;
        }
        Ok(pool)
    }

    /// Serves every request that was accepted, ends the threads and waits for them.
    pub fn stop(mut self) -> Stopped {
        self.finish()
    }

    /// Requests that were accepted and are not done.
    pub fn outstanding(&self) -> u64 {
        self.accepted - self.shared.count(|seat| &seat.done)
    }

    fn finish(&mut self) -> Stopped {
        // Ends once the handlers have finished: no further request is submitted, so each accepted request
        // is in the queue or with a thread.
        while self.outstanding() > 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        // Not earlier: a thread that stopped while another handed it a request would lose it.
        self.shared.stopping.store(true, Ordering::Release);
        for seat in &self.shared.seats {
            seat.word.fetch_or(STOP, Ordering::Release);
            futex_wake_one(&seat.word);
        }
        for thread in self.threads.drain(..) {
            // Handlers' panics were caught. Any other panic is a bug here, and was printed.
            let _ = thread.join();
        }
        Stopped { accepted: self.accepted, panicked: self.shared.count(|seat| &seat.panicked) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Server for Pool {
    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Refused> {
        self.shared.queue.push(request).map_err(|_| Refused)?;
        self.accepted += 1;
        self.shared.match_up();
        Ok(())
    }
}

/// A seat's word, empty: its thread works or sleeps.
const EMPTY: u32 = 0;
/// A bit of a seat's word: a request was handed over.
const REQUEST: u32 = 1;
/// A bit of a seat's word: the thread must end.
const STOP: u32 = 2;

struct Shared {
    /// Requests that wait for a thread.
    queue: ArrayQueue<Request>,
    /// Threads that wait for a request, or are about to. It has room for all threads.
    idle: ArrayQueue<usize>,
    seats: Box<[PoolSeat]>,
    stopping: AtomicBool,
}

/// The place where one thread waits. Aligned to two cache lines, as processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct PoolSeat {
    word: AtomicU32,
    /// Set before REQUEST is, taken before it is cleared: never contended.
    request: Mutex<Option<Request>>,
    /// Both are written by this seat's thread only.
    done: AtomicU64,
    panicked: AtomicU64,
}

impl Shared {
    /// Serves requests until the pool ends.
    fn serve(&self, index: usize, handler: &impl Fn(&Request, usize)) {
        let seat = &self.seats[index];
        while let Some(request) = self.next_request(index) {
            let outcome = catch_unwind(AssertUnwindSafe(|| handler(&request, index)));
            if outcome.is_err() {
                seat.panicked.fetch_add(1, Ordering::Relaxed);
            }
            // Release: a thread that sees the request done sees the writes of its handler.
            seat.done.fetch_add(1, Ordering::Release);
        }
    }

    /// The next request for thread `index`, from the queue or handed over; None at the end.
    fn next_request(&self, index: usize) -> Option<Request> {
        if let Some(request) = self.queue.pop() {
            return Some(request);
        }
        if self.stopping.load(Ordering::Acquire) {
            return None;
        }
        let pushed = self.idle.push(index);
        debug_assert!(pushed.is_ok(), "a thread is idle once");
        self.match_up();
        let seat = &self.seats[index];
        // Ends when a request is handed over or the pool stops; a futex may wake spuriously.
        loop {
            let word = seat.word.load(Ordering::Acquire);
            if word & REQUEST != 0 {
                let request = lock(&seat.request).take();
                seat.word.fetch_and(!REQUEST, Ordering::Relaxed);
                return request;
            }
            if word & STOP != 0 {
                return None;
            }
            futex_wait(&seat.word, EMPTY);
        }
    }

    /// Hands waiting requests to idle threads until either runs out.
    ///
    /// Called after each addition to either queue. Of two threads that add at once, the fence
    /// makes at least one see the other's addition. Each turn either hands a request over or finds
    /// that others took all entries, so the loop is bounded by the entries that wait at the time.
    #[inline]
    fn match_up(&self) {
        fence(Ordering::SeqCst);
        while !self.queue.is_empty() {
            let Some(index) = self.idle.pop() else {
                return;
            };
            match self.queue.pop() {
                Some(request) => self.hand_over(index, request),
                None => {
                    let pushed = self.idle.push(index);
                    debug_assert!(pushed.is_ok(), "a thread is idle once");
                    fence(Ordering::SeqCst);
                }
            }
        }
    }

    fn hand_over(&self, index: usize, request: Request) {
        let seat = &self.seats[index];
        *lock(&seat.request) = Some(request);
        seat.word.fetch_or(REQUEST, Ordering::Release);
        futex_wake_one(&seat.word);
    }

    fn count(&self, counter: impl Fn(&PoolSeat) -> &AtomicU64) -> u64 {
        let values = self.seats.iter().map(counter);
        values.map(|value| value.load(Ordering::Acquire)).sum()
    }
}

fn lock(request: &Mutex<Option<Request>>) -> std::sync::MutexGuard<'_, Option<Request>> {
    request.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps while `word` is `expected`, until it is woken; may return early.
fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: `word` is an aligned 32-bit integer that outlives the call; a null timeout waits
    // without limit. Every result (woken, changed, interrupted) means: look again.
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

/// Wakes the thread that sleeps on `word`, if one does.
fn futex_wake_one(word: &AtomicU32) {
    // SAFETY: `word` is an aligned 32-bit integer that outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            1,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arrivals::Class;

    fn request(id: u64) -> Request {
        Request { id, class: Class(0), intended_ns: 0, key: id }
    }

    fn settings(threads: usize, queue_bound: usize) -> Settings {
        Settings { threads, cpus: cpus::allowed().unwrap(), queue_bound }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        // Pauses let threads fall asleep, so that threads get requests both from the queue and by hand-over.
        #[test]
        fn every_accepted_request_is_served_once(
            threads in 1usize..10,
            queue_bound in 1usize..40,
            bursts in prop::collection::vec((1u64..60, any::<bool>()), 0..30),
            dropped: bool,
        ) {
            let total: u64 = bursts.iter().map(|(count, _)| count).sum();
            let served: Arc<Vec<AtomicU32>> =
                Arc::new((0..total).map(|_| AtomicU32::new(0)).collect());
            let theirs = served.clone();
            let mut pool = Pool::start(&settings(threads, queue_bound), move |request, thread| {
                assert!(thread < threads);
                theirs[request.id as usize].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            let mut accepted = vec![0; total as usize];
            let mut id = 0;
            for (count, pause) in bursts {
                for _ in 0..count {
                    accepted[id as usize] = u32::from(pool.submit(request(id)).is_ok());
                    id += 1;
                }
                while pause && pool.outstanding() > 0 {
                    std::thread::yield_now();
                }
            }
            if dropped {
                drop(pool);
            } else {
                let stopped = pool.stop();
                prop_assert_eq!(stopped.accepted, u64::from(accepted.iter().sum::<u32>()));
                prop_assert_eq!(stopped.panicked, 0);
            }
            let served: Vec<u32> = served.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            prop_assert_eq!(served, accepted);
        }
    }

    #[test]
    fn a_full_queue_refuses_and_the_rest_is_served() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let inside = gate.clone();
        let mut pool = Pool::start(&settings(2, 3), move |_, _| {
            drop(inside.lock().unwrap());
        })
        .unwrap();
        // Two are with the threads, or being handed over, and three wait.
        let accepted = (0..20).filter(|&id| pool.submit(request(id)).is_ok()).count();
        assert!((3..=5).contains(&accepted), "{accepted}");
        drop(closed);
        assert_eq!(pool.stop().accepted, accepted as u64);
    }

    #[test]
    fn a_panicking_handler_loses_only_its_request() {
        let mut pool = Pool::start(&settings(2, 100), |request, _| {
            assert!(request.id % 10 != 0, "the tenth");
        })
        .unwrap();
        for id in 0..100 {
            pool.submit(request(id)).unwrap();
        }
        let expected = Stopped { accepted: 100, panicked: 10 };
        assert_eq!(pool.stop(), expected);
    }

    #[test]
    fn threads_run_on_the_given_cpus() {
        let cpu = cpus::allowed().unwrap()[0];
        let settings = Settings { cpus: vec![cpu], ..settings(3, 10) };
        let mut pool = Pool::start(&settings, move |_, _| {
            assert_eq!(cpus::allowed().unwrap(), [cpu]);
        })
        .unwrap();
        for id in 0..10 {
            pool.submit(request(id)).unwrap();
        }
        assert_eq!(pool.stop().panicked, 0);
    }

    #[test]
    fn an_unavailable_cpu_is_an_error() {
        let settings = Settings { cpus: vec![100_000], ..settings(1, 1) };
        let error = Pool::start(&settings, |_, _| {}).err().unwrap().to_string();
        assert!(error.starts_with("CPU 100000 is not among"), "{error}");
        let empty = Pool::start(&self::settings(0, 1), |_, _| {});
        assert!(matches!(empty, Err(Error::Empty)));
    }
}
