//! After warm-up, spawning, yielding, parking and deciding allocate nothing. The test has its own process
//! because it installs a counting allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use common::{start, wait_for};
use wave_agent::{Registry, Seat, attach, run};
use wave_user::{Enclave, Mode};

struct Counting;

thread_local! {
    /// Whether this thread must not allocate.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

static ARMED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if ARMED.load(Ordering::Relaxed) && WATCHED.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the system allocator; counting touches only a static and a thread-local
// that needs neither initialisation nor destruction.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CORES: usize = 2;

/// Marks the pthread of every host core: a thread stays on each core until all are marked.
fn watch_cores(enclave: &Enclave) {
    static MARKED: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..CORES {
        let mark = || {
            if !WATCHED.replace(true) {
                MARKED.fetch_add(1, Ordering::SeqCst);
            }
            while MARKED.load(Ordering::SeqCst) < CORES {
                std::thread::yield_now();
            }
        };
        enclave.spawn_detached(0, mark).unwrap();
    }
    wait_for("a mark on every core", || MARKED.load(Ordering::SeqCst) == CORES);
}

/// Threads that yield, park until another wakes them, and end.
fn load(enclave: &Enclave, done: &Arc<AtomicU64>, count: u64) {
    let before = done.load(Ordering::Relaxed);
    for index in 0..count {
        while enclave.alive() > 128 {
            std::thread::yield_now();
        }
        let ended = Arc::clone(done);
        let parks = index % 4 == 0;
        let thread = enclave.spawn_detached(0, move || {
            wave_user::yield_now();
            if parks {
                wave_user::park();
            }
            ended.fetch_add(1, Ordering::Relaxed);
        });
        let thread = thread.unwrap();
        if parks {
            // Half of the threads are woken from outside, half by another thread.
            match index % 8 {
                0 => enclave.unpark(thread),
                _ => drop(enclave.spawn_detached(0, move || thread.unpark()).unwrap()),
            }
        }
    }
    wait_for("the end of all threads", || done.load(Ordering::Relaxed) == before + count);
    wait_for("the end of all wakers", || enclave.alive() == 0);
}

#[test]
fn the_data_path_allocates_nothing() {
    let enclave = start("no-alloc", |options| options.config.cores = CORES as u16);
    let attached = attach(enclave.socket()).unwrap();
    let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
    let agent = std::thread::spawn(move || {
        WATCHED.set(true);
        run(attached, policy, (), Seat::Shared)
    });
    wait_for("the agent", || enclave.stats().mode == Mode::Agent);
    watch_cores(&enclave);
    let done = Arc::new(AtomicU64::new(0));
    load(&enclave, &done, 5_000);
    WATCHED.set(true);

    // Check that the counter works: on this thread, and on a core.
    ARMED.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(1)));
    let boxes = || drop(std::hint::black_box(Box::new(1)));
    enclave.spawn_detached(0, boxes).unwrap();
    wait_for("an allocation", || enclave.alive() == 0);
    assert_eq!(ALLOCATIONS.swap(0, Ordering::SeqCst), 2);

    load(&enclave, &done, 20_000);
    ARMED.store(false, Ordering::SeqCst);
    let stats = enclave.stats();
    assert_eq!(
        (stats.mode, stats.lost_agents),
        (Mode::Agent, 0),
        "the agent must decide throughout"
    );
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0);
    drop(enclave);
    agent.join().unwrap().unwrap();
}
