//! User-level threads that are preempted anywhere, by the signal handler. Code that must not run in such a
//! region crashes, and does not when guarded: this shows that the tests of preemption can fail.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::{shipped, start, sum};
use wave_user::{Anywhere, preempt_anywhere};
use wave_workloads::rocksdb::{Database, is_value_of};

const POLICY: &str = "shinjuku:slice_us=30";
const PREEMPTIONS: u64 = 1_500;
/// Preemptions within which unguarded code must crash. Most runs crash within some hundred.
const CRASHES_WITHIN: u64 = 100_000;
/// Time without progress that counts as a crash: a corrupted heap may also cause a wait for a lock that no thread holds.
const HUNG_SECONDS: u32 = 5;
/// Set in the child process that must crash.
const CHILD: &str = "WAVE_TEST_UNGUARDED";

/// Exercises the C library's allocator, which keeps a separate arena for each pthread.
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
    // SAFETY: as above; freeing a null pointer does nothing.
    kept.iter().for_each(|&block| unsafe { libc::free(block.cast()) });
}

/// Runs `round` repeatedly in a region on several threads, until `preemptions` have happened. In the child
/// process, an alarm ends the process if the threads make no progress, or this thread does not.
fn run(name: &str, preemptions: u64, round: fn(&Anywhere<'_>)) -> u64 {
    let enclave = start(name, |options| options.config.cores = 2);
    let agent = shipped(&enclave, POLICY);
    let enough = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let spawn = |_| {
        let (enough, rounds) = (Arc::clone(&enough), Arc::clone(&rounds));
        let body = move || {
            // SAFETY: each test tells whether `round` is safe here.
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
    let is_child = std::env::var_os(CHILD).is_some();
    let mut seen = u64::MAX;
    while preempted() <= preemptions {
        let before = std::mem::replace(&mut seen, rounds.load(Ordering::SeqCst));
        if is_child && before != seen {
            // SAFETY: the call takes a number only.
            unsafe { libc::alarm(HUNG_SECONDS) };
        }
        std::thread::sleep(Duration::from_millis(1));
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
    database();
    let guarded = |anywhere: &Anywhere<'_>| anywhere.guarded(|| gets(database()));
    assert!(run("anywhere-guarded-rocksdb", PREEMPTIONS, guarded) > PREEMPTIONS);
}

/// RocksDB's GETs, which use data of the pthread until they return.
fn gets(database: &Database) {
    for key in 0..50 {
        let found = database.get(key * 19, |value| assert!(is_value_of(key * 19, value)));
        assert!(matches!(found, Ok(true)));
    }
}

fn database() -> &'static Database {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    DATABASE.get_or_init(|| {
        let mut database = Database::open(None).unwrap();
        database.fill(1_000, 64, |_, _| {}).unwrap();
        database
    })
}

/// The crashing code, as a separate test so that it can run in a child process.
#[test]
fn unguarded_child() {
    match std::env::var(CHILD).as_deref() {
        Ok("malloc") => _ = run("anywhere-malloc", CRASHES_WITHIN, |_| churn(200)),
        Ok("RocksDB") => {
            database();
            run("anywhere-rocksdb", CRASHES_WITHIN, |_| gets(database()));
        }
        _ => {}
    }
}

#[test]
fn unguarded_malloc_and_rocksdb_crash() {
    for what in ["malloc", "RocksDB"] {
        let me = std::env::current_exe().unwrap();
        let child = Command::new(me).args(["--exact", "unguarded_child"]).env(CHILD, what).output();
        let child = child.unwrap();
        // A signal ended it: it neither succeeded nor failed as a test.
        assert_eq!(
            child.status.code(),
            None,
            "unguarded {what} did not crash by a signal: {child:?}"
        );
    }
}
