//! Kernel-level threads: any code may be preempted anywhere without losing anything.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{agent, shipped, start, sum, wait_for};
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message};
use wave_core::outcome::{Code, Outcome};
use wave_core::policy::{Desk, Policy, Preemption, Progress};
use wave_core::snapshot::Snapshot;
use wave_sched::policies::fifo::Fifo;
use wave_user::{Attributes, Condvar, Enclave, Mode, Mutex, SpawnError, ThreadKind};

const SHINJUKU: &str = "shinjuku:slice_us=100";
const KERNEL: Attributes = Attributes { class: 0, kind: ThreadKind::Kernel };

/// Gives every thread an arena of malloc's. The agents of these tests are threads of this process, and glibc shares arenas from 8
/// threads per CPU on: an agent would wait for the lock of a preempted thread, which waits for that agent.
fn own_arenas() {
    // SAFETY: it changes a number of glibc's, under a lock of glibc's.
    let is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, 4096) };
    assert_eq!(is_set, 1, "glibc takes the number of arenas");
}

fn start_with(name: &str, kernel_threads: u32, cores: u16) -> Enclave {
    own_arenas();
    start(name, |options| {
        options.kernel_threads = kernel_threads;
        options.config.cores = cores;
    })
}

/// Threads that take turns, as in the tests of safe points, but that pass no safe points.
fn ring(enclave: &Enclave, kinds: &[Attributes]) {
    let count = kinds.len() as u64;
    let begun = Arc::new(AtomicU64::new(0));
    let turn = Arc::new(AtomicU64::new(0));
    let spawn = |(mine, kind): (u64, &Attributes)| {
        let (begun, turn) = (Arc::clone(&begun), Arc::clone(&turn));
        let body = move || {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < count || turn.load(Ordering::SeqCst) != mine {
                // For user-level threads.
                wave_user::preempt_point();
            }
            turn.fetch_add(1, Ordering::SeqCst);
        };
        enclave.spawn(*kind, body).unwrap()
    };
    let handles: Vec<_> = (0..).zip(kinds).map(spawn).collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
}

#[test]
fn threads_that_pass_no_safe_point_share_a_core() {
    for policy in [SHINJUKU, "multi-queue:slice_us=100", "round-robin:quantum_us=100"] {
        let enclave = start_with(&format!("klt-{}", &policy[..5]), 4, 1);
        let agent = shipped(&enclave, policy);
        ring(&enclave, &[KERNEL; 4]);
        let stats = enclave.stats();
        assert!(stats.cores[0].preempted > 0, "{stats:?}");
        assert_eq!(stats.cores[0].deferrals.count(), stats.cores[0].preempted);
        assert_eq!((stats.cores[0].fallback_switches, stats.lost_agents), (0, 0));
        drop(enclave);
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn core_itself_ends_slices() {
    let user = Attributes::from(0);
    for (name, kinds) in
        [("user", [user; 3]), ("kernel", [KERNEL; 3]), ("both", [user, KERNEL, user])]
    {
        for policy in ["shinjuku:slice_us=200,timer=core", "multi-queue:slice_us=200,timer=core"] {
            let enclave = start_with(&format!("klt-slice-{}-{name}", &policy[..5]), 3, 1);
            let agent = shipped(&enclave, policy);
            ring(&enclave, &kinds);
            let stats = enclave.stats();
            let [core] = &stats.cores[..] else { panic!("one core") };
            assert!(core.sliced > 0, "{core:?}");
            // Slices may end late, but never early. The agent, however, preempts a run that its first snapshot shows.
            let shortest = core.preempted_runs.within(0.0);
            assert!(core.preempted > 0 || shortest >= Nanos::from_micros(200), "{core:?}");
            drop(enclave);
            agent.join().unwrap().unwrap();
        }
    }
}

#[test]
fn threads_make_progress_with_the_shortest_slices() {
    let enclave = start_with("klt-short", 2, 1);
    let agent = shipped(&enclave, "shinjuku:slice_us=1,timer=core");
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let counts = Arc::new(counts);
    let handles = [0, 1].map(|at| {
        let counts = Arc::clone(&counts);
        let body = move || {
            while counts.iter().any(|count| count.load(Ordering::Relaxed) < 100_000) {
                counts[at].fetch_add(1, Ordering::Relaxed);
            }
        };
        enclave.spawn(KERNEL, body).unwrap()
    });
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn user_level_and_kernel_level_threads_share_cores() {
    for cores in [1, 2] {
        let enclave = start_with(&format!("klt-both-{cores}"), 4, cores);
        let agent = shipped(&enclave, SHINJUKU);
        let user = Attributes::from(0);
        ring(&enclave, &[KERNEL, user, KERNEL, KERNEL, user, user, KERNEL]);
        drop(enclave);
        agent.join().unwrap().unwrap();
    }
}

/// Allocations of all sizes, whose contents are checked at the end.
fn churn(rounds: u64, salt: u64) -> u64 {
    let mut kept: Vec<Vec<u64>> = Vec::new();
    let mut sum = 0u64;
    for round in 0..rounds {
        let size = (round.wrapping_mul(0x9e37_79b9) ^ salt) % 300 + 1;
        let value = round ^ salt;
        kept.push(vec![value; size as usize]);
        if kept.len() > 64 {
            let at = (value % 64) as usize;
            let gone = kept.swap_remove(at);
            assert!(gone.iter().all(|word| *word == gone[0]));
            sum = sum.wrapping_add(gone[0]);
        }
    }
    sum
}

#[test]
fn malloc_survives_preemption_anywhere() {
    const ROUNDS: u64 = 10_000;
    let enclave = start_with("klt-malloc", 4, 1);
    let agent = shipped(&enclave, "shinjuku:slice_us=30");
    let enough = Arc::new(AtomicBool::new(false));
    let spawn = |salt| {
        let enough = Arc::clone(&enough);
        let body = move || {
            let first = churn(ROUNDS, salt);
            while !enough.load(Ordering::SeqCst) {
                assert_eq!(churn(ROUNDS, salt), first);
            }
            first
        };
        enclave.spawn(KERNEL, body).unwrap()
    };
    let handles: Vec<_> = (0..4).map(spawn).collect();
    wait_for("preemptions", || sum(&enclave, |core| core.preempted) > 500);
    enough.store(true, Ordering::SeqCst);
    for (salt, handle) in (0..).zip(handles) {
        assert_eq!(handle.join().unwrap(), churn(ROUNDS, salt));
    }
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn kernel_level_threads_block_as_user_level_ones_do() {
    let enclave = start_with("klt-block", 8, 2);
    let agent = shipped(&enclave, SHINJUKU);
    let shared = Arc::new((Mutex::new(0u64), Condvar::new()));
    let user = Attributes::from(0);
    let spawn = |kind: Attributes| {
        let shared = Arc::clone(&shared);
        let body = move || {
            for _ in 0..500 {
                *shared.0.lock() += 1;
                wave_user::yield_now();
            }
            shared.1.notify_all();
            let inner = wave_user::spawn(kind, wave_user::current).unwrap();
            let thread = inner.thread();
            assert_eq!(inner.join().unwrap(), Some(thread));
            wave_user::sleep(Duration::from_millis(1));
            wave_user::current().unwrap().unpark();
            wave_user::park();
        };
        enclave.spawn(kind, body).unwrap()
    };
    let handles: Vec<_> = [KERNEL, user, KERNEL, user].map(spawn).into();
    let all = Arc::clone(&shared);
    let waiter =
        enclave.spawn(KERNEL, move || *all.1.wait_while(all.0.lock(), |count| *count < 2_000));
    assert_eq!(waiter.unwrap().join().unwrap(), 2_000);
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_panic_ends_only_its_thread_and_unwinds_under_preemption() {
    struct Churns;
    impl Drop for Churns {
        fn drop(&mut self) {
            churn(20_000, 1);
        }
    }
    // Enough pthreads for all: a joined thread may be preempted once more before it ends.
    let enclave = start_with("klt-panic", 40, 1);
    let agent = shipped(&enclave, "shinjuku:slice_us=30");
    for _ in 0..20 {
        let spawn = |_| {
            let body = || {
                let _churns = Churns;
                std::panic::resume_unwind(Box::new("as expected"));
            };
            enclave.spawn(KERNEL, body).unwrap()
        };
        for handle in [0, 1].map(spawn) {
            assert_eq!(handle.join().unwrap_err().0.downcast_ref(), Some(&"as expected"));
        }
    }
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn kernel_level_threads_are_limited_to_the_configured_number() {
    let enclave = start_with("klt-full", 1, 1);
    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let body = move || {
        while !ends.load(Ordering::SeqCst) {
            wave_user::yield_now();
        }
    };
    let first = enclave.spawn(KERNEL, body).unwrap();
    let error = enclave.spawn(KERNEL, || ()).unwrap_err();
    assert!(matches!(error, SpawnError::FullOfKernel { max: 1, .. }), "{error}");
    done.store(true, Ordering::SeqCst);
    first.join().unwrap();
    // The pthread is reused for one thread after another.
    for _ in 0..100 {
        wait_for("a pthread", || match enclave.spawn(KERNEL, || ()) {
            Ok(handle) => handle.join().is_ok(),
            Err(_) => false,
        });
    }
}

#[test]
fn enclave_stops_although_its_threads_never_end() {
    let enclave = start_with("klt-endless", 3, 1);
    let begun = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let begins = Arc::clone(&begun);
        let body = move || {
            begins.fetch_add(1, Ordering::SeqCst);
            loop {
                std::hint::spin_loop();
            }
        };
        enclave.spawn_detached(KERNEL, body).unwrap();
    }
    wait_for("a thread", || begun.load(Ordering::SeqCst) > 0);
    drop(enclave);
}

#[test]
fn a_new_agent_reaches_a_thread_that_never_stops() {
    let enclave = start_with("klt-takeover", 2, 1);
    let first = shipped(&enclave, SHINJUKU);
    let begun = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicBool::new(false));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&done));
    let endless = enclave.spawn(KERNEL, move || {
        begins.store(true, Ordering::SeqCst);
        while !ends.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    });
    wait_for("the thread", || begun.load(Ordering::SeqCst));
    enclave.kill_agent();
    first.join().unwrap().unwrap();
    wait_for("the fallback", || enclave.mode() == Mode::Fallback);
    let other = enclave.spawn(KERNEL, move || done.store(true, Ordering::SeqCst)).unwrap();
    let second = shipped(&enclave, SHINJUKU);
    other.join().unwrap();
    endless.unwrap().join().unwrap();
    drop(enclave);
    second.join().unwrap().unwrap();
}

/// FIFO that preempts each run once, as soon as it hears that the run has begun.
struct Hasty(Fifo, Option<Preemption>);

impl Policy for Hasty {
    fn name(&self) -> &'static str {
        "hasty"
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.0.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, of: &Decision, outcome: Outcome) {
        self.0.on_outcome(now, core, of, outcome);
        let run = outcome.run;
        self.1 = (outcome.code == Code::Complete).then_some(Preemption { core, run });
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        if let Some(preemption) = self.1.take() {
            desk.preempt(preemption);
        }
        self.0.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.0.resync(now, snapshot);
    }
}

#[test]
fn preemption_while_the_gate_opens_is_not_lost() {
    let enclave = start_with("klt-hasty", 3, 1);
    let agent = agent(&enclave, |config| Box::new(Hasty(Fifo::new(config), None)));
    // Kicks are not repeated: the first lost one leaves its thread on the core forever.
    let enough = Arc::new(AtomicBool::new(false));
    let spawn = |_| {
        let enough = Arc::clone(&enough);
        let body = move || {
            while !enough.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        };
        enclave.spawn(KERNEL, body).unwrap()
    };
    let handles = [0, 1, 2].map(spawn);
    wait_for("preemptions", || sum(&enclave, |core| core.preempted) > 1_000);
    enough.store(true, Ordering::SeqCst);
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_sleeper_wakes_beside_a_thread_that_never_stops() {
    let enclave = start_with("klt-sleeper", 2, 1);
    let agent = shipped(&enclave, SHINJUKU);
    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let sleeper = enclave.spawn(KERNEL, move || {
        for _ in 0..20 {
            wave_user::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::SeqCst);
    });
    let endless = enclave.spawn(KERNEL, move || {
        while !ends.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    });
    sleeper.unwrap().join().unwrap();
    endless.unwrap().join().unwrap();
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_signal_that_the_process_handles_itself_is_refused() {
    extern "C" fn own(_: libc::c_int) {}
    let signal = libc::SIGUSR1;
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(signal, own as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    let mut options = wave_user::Options::new(common::socket("klt-signal"));
    options.signal = signal;
    let error = Enclave::start(options).unwrap_err();
    assert!(matches!(error, wave_user::StartError::Signal { signal: 10, .. }), "{error}");
    // Another signal works.
    let enclave = start("klt-other-signal", |options| {
        options.kernel_threads = 2;
        options.signal = libc::SIGRTMIN() + 3;
    });
    let agent = shipped(&enclave, SHINJUKU);
    ring(&enclave, &[KERNEL; 2]);
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn kernel_level_threads_work_over_a_modelled_link() {
    let enclave = start("klt-model", |options| {
        options.kernel_threads = 3;
        options.link = wave_links::LinkSpec::builtin("coherent").unwrap();
    });
    let agent = shipped(&enclave, SHINJUKU);
    ring(&enclave, &[KERNEL; 3]);
    assert!(sum(&enclave, |core| core.preempted) > 0);
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn stall_report_names_the_function_that_keeps_a_core() {
    #[inline(never)]
    fn never_passes_a_safe_point(done: &AtomicBool) {
        while !done.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    }
    let enclave = start("stall", |options| options.stall_after = Nanos::from_millis(2));
    let agent = shipped(&enclave, SHINJUKU);
    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let stubborn = enclave.spawn(7, move || never_passes_a_safe_point(&ends)).unwrap();
    let other = enclave.spawn(0, || ()).unwrap();
    wait_for("the stall", || enclave.stalls().0 > 0);
    done.store(true, Ordering::SeqCst);
    stubborn.join().unwrap();
    other.join().unwrap();
    let (count, stalls) = enclave.stalls();
    let [stall] = &stalls[..] else { panic!("{count}: {stalls:?}") };
    assert_eq!((stall.core, stall.class), (0, 7));
    assert_eq!(stall.cause, wave_user::StallCause::NoSafePoint);
    assert!(stall.lasted >= Nanos::from_millis(2), "{stall}");
    assert!(stall.stack.iter().any(|frame| frame.contains("never_passes_a_safe_point")), "{stall}");
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn stall_report_names_the_preempted_holder_of_an_awaited_lock() {
    struct Lock(std::cell::UnsafeCell<libc::pthread_mutex_t>);
    // SAFETY: a pthread_mutex_t is for several threads.
    unsafe impl Sync for Lock {}
    static LOCK: Lock = Lock(std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER));
    // SAFETY: it is initialised, and never moves.
    let lock = || assert_eq!(unsafe { libc::pthread_mutex_lock(LOCK.0.get()) }, 0);
    // SAFETY: as above; the thread that unlocks it has locked it.
    let unlock = || assert_eq!(unsafe { libc::pthread_mutex_unlock(LOCK.0.get()) }, 0);
    let enclave = start("locked-out", |options| {
        options.kernel_threads = 2;
        options.stall_after = Nanos::from_millis(2);
    });
    // In a slice as long as this, the detector sees the waiter on the core.
    let agent = shipped(&enclave, "shinjuku:slice_us=200000");
    let holds = Arc::new(AtomicBool::new(false));
    let (held, reported) = (Arc::clone(&holds), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&reported);
    let holder = enclave.spawn(KERNEL, move || {
        lock();
        held.store(true, Ordering::SeqCst);
        while !ends.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        unlock();
    });
    let holder = holder.unwrap();
    wait_for("the lock", || holds.load(Ordering::SeqCst));
    let waits = enclave.spawn(KERNEL, move || {
        lock();
        unlock();
    });
    let locked_out = wave_user::StallCause::LockedOut(holder.thread());
    wait_for("the stall", || enclave.stalls().1.iter().any(|stall| stall.cause == locked_out));
    reported.store(true, Ordering::SeqCst);
    waits.unwrap().join().unwrap();
    holder.join().unwrap();
    drop(enclave);
    agent.join().unwrap().unwrap();
}
