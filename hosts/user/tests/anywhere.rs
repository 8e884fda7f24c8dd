//! User-level threads that are preempted anywhere, by the signal's handler: what must not be done in
//! such a region crashes, and guarded it does not. So the tests of preemption can fail.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{shipped, start, sum};
use wave_user::{Anywhere, preempt_anywhere};

const POLICY: &str = "shinjuku:slice_us=30";
const PREEMPTIONS: u64 = 1_500;
/// Most crash within some hundred.
const CRASHES_WITHIN: u64 = 100_000;
/// A heap that was torn may also end in waiting for a lock that nobody holds.
const HUNG: Duration = Duration::from_secs(10);
/// Set in the process that is to crash.
const CHILD: &str = "WAVE_TEST_UNGUARDED";

/// The C library's allocator, of which each pthread has a part of its own.
fn churn(rounds: usize) {
    let mut kept = [std::ptr::null_mut::<u8>(); 64];
    for round in 0..rounds {
        let at = round * 7 % kept.len();
        let bytes = 16 + round * 13 % 1_500;
        // SAFETY: each block is written within its size, and freed once.
        unsafe {
            if !kept[at].is_null() {
                assert_eq!(*kept[at], at as u8);
                libc::free(kept[at].cast());
            }
            kept[at] = libc::malloc(bytes).cast();
            kept[at].write_bytes(at as u8, bytes);
        }
    }
    // SAFETY: as above; what is null is left alone.
    kept.iter().for_each(|&block| unsafe { libc::free(block.cast()) });
}

/// Threads that do nothing but `round` in a region, until there were so many preemptions. Aborts where
/// none of them gets on.
fn run(name: &str, preemptions: u64, round: fn(&Anywhere<'_>)) -> u64 {
    let enclave = start(name, |options| options.config.cores = 2);
    let agent = shipped(&enclave, POLICY);
    let enough = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let spawn = |_| {
        let (enough, rounds) = (Arc::clone(&enough), Arc::clone(&rounds));
        let body = move || {
            // SAFETY: that is the question here.
            unsafe {
                preempt_anywhere(|anywhere| {
                    while !enough.load(Ordering::SeqCst) {
                        round(anywhere);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        };
        enclave.spawn(0, body).unwrap()
    };
    let handles: Vec<_> = (0..6).map(spawn).collect();
    let preempted = || sum(&enclave, |core| core.preempted);
    let (mut seen, mut since) = (0, Instant::now());
    while preempted() <= preemptions {
        std::thread::sleep(Duration::from_millis(1));
        if std::mem::replace(&mut seen, rounds.load(Ordering::SeqCst)) != seen {
            since = Instant::now();
        } else if since.elapsed() > HUNG {
            std::process::abort();
        }
    }
    enough.store(true, Ordering::SeqCst);
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert!(rounds.load(Ordering::SeqCst) > 0);
    let preempted = preempted();
    drop(enclave);
    agent.join().unwrap().unwrap();
    preempted
}

#[test]
fn arithmetic_is_preempted_anywhere_and_guarded_calls_after_they_end() {
    let spins = |_: &Anywhere<'_>| {
        let mut product = 1u64;
        for factor in 1..2_000 {
            product = std::hint::black_box(product.wrapping_mul(factor));
        }
    };
    assert!(run("anywhere-spins", PREEMPTIONS, spins) > PREEMPTIONS);
    let guarded = |anywhere: &Anywhere<'_>| anywhere.guarded(|| churn(200));
    assert!(run("anywhere-guarded", PREEMPTIONS, guarded) > PREEMPTIONS);
}

/// What crashes; a test of its own so that it can be run in a process of its own.
#[test]
fn unguarded_child() {
    if std::env::var_os(CHILD).is_some() {
        run("anywhere-unguarded", CRASHES_WITHIN, |_| churn(200));
    }
}

#[test]
fn without_its_guard_malloc_crashes() {
    let me = std::env::current_exe().unwrap();
    let child = Command::new(me).args(["--exact", "unguarded_child"]).env(CHILD, "1").output();
    let child = child.unwrap();
    assert_eq!(child.status.code(), None, "it survived, or failed otherwise: {child:?}");
}
