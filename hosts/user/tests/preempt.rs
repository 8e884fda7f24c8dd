//! Preemption at safe points: threads that never block share cores under every policy, whatever happens to
//! the agent.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{agent, shipped, start, sum, wait_for};
use wave_core::clock::Nanos;
use wave_core::message::{Decision, Message};
use wave_core::outcome::Outcome;
use wave_core::policy::{Desk, Policy, Preemption, Progress};
use wave_core::snapshot::Snapshot;
use wave_links::LinkSpec;
use wave_sched::policies::fifo::Fifo;
use wave_user::{Enclave, Mode, Mutex, preempt_point};

const SHINJUKU: &str = "shinjuku:slice_us=30";

/// Threads that take turns: each spins at safe points until the previous one has set its flag, and then sets
/// its own; the first waits until the last thread has begun. So every thread has to run before any ends,
/// and some run twice.
fn ring(enclave: &Enclave, threads: usize) {
    let begun = Arc::new(AtomicU64::new(0));
    let turn = Arc::new(AtomicU64::new(0));
    let handles: Vec<_> = (0..threads as u64)
        .map(|mine| {
            let (begun, turn) = (Arc::clone(&begun), Arc::clone(&turn));
            let body = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < threads as u64
                    || turn.load(Ordering::SeqCst) != mine
                {
                    preempt_point();
                }
                turn.fetch_add(1, Ordering::SeqCst);
            };
            enclave.spawn(0, body).unwrap()
        })
        .collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
}

#[test]
fn threads_that_never_block_share_a_core() {
    for policy in [SHINJUKU, "multi-queue:slice_us=30", "round-robin:quantum_us=100"] {
        for (link, name) in
            [(LinkSpec::Shm, "shm"), (LinkSpec::builtin("coherent").unwrap(), "model")]
        {
            let enclave = start(&format!("share-{}-{name}", &policy[..5]), |options| {
                options.link = link;
            });
            let agent = shipped(&enclave, policy);
            ring(&enclave, 8);
            let stats = enclave.stats();
            let [core] = &stats.cores[..] else { panic!("one core") };
            assert!(core.preempted > 0, "{core:?}");
            assert_eq!(core.deferrals.count(), core.preempted);
            assert!(core.deferrals.max > Nanos(0), "{core:?}");
            assert_eq!((core.fallback_switches, stats.lost_agents), (0, 0));
            drop(enclave);
            agent.join().unwrap().unwrap();
        }
    }
}

#[test]
fn every_call_of_the_runtime_is_a_safe_point() {
    type Call = fn(&Mutex<()>);
    let calls: [(&str, Call); 4] = [
        ("spawn", |_| wave_user::spawn(0, || ()).unwrap().join().unwrap()),
        ("unpark", |_| wave_user::current().unwrap().unpark()),
        ("park", |_| {
            wave_user::current().unwrap().unpark();
            wave_user::park();
        }),
        ("lock", |mutex| drop(mutex.lock())),
    ];
    for (name, call) in calls {
        let enclave = start(&format!("calls-{name}"), |_| {});
        let agent = shipped(&enclave, SHINJUKU);
        let done = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&done);
        let caller = enclave.spawn(0, move || {
            let mutex = Mutex::new(());
            while !seen.load(Ordering::SeqCst) {
                call(&mutex);
            }
        });
        let other = enclave.spawn(0, move || done.store(true, Ordering::SeqCst)).unwrap();
        other.join().unwrap();
        caller.unwrap().join().unwrap();
        drop(enclave);
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn a_preempted_thread_continues_on_any_core() {
    let enclave = start("anywhere", |options| options.config.cores = 2);
    let agent = shipped(&enclave, SHINJUKU);
    // Three threads run on two cores until each has seen both.
    let moved = Arc::new(AtomicU64::new(0));
    let handles: Vec<_> = (0..3)
        .map(|_| {
            let moved = Arc::clone(&moved);
            let body = move || {
                let first = wave_user::core_index();
                let me = wave_user::current();
                while wave_user::core_index() == first {
                    preempt_point();
                }
                moved.fetch_add(1, Ordering::SeqCst);
                while moved.load(Ordering::SeqCst) < 3 {
                    preempt_point();
                }
                assert_eq!(wave_user::current(), me);
            };
            enclave.spawn(0, body).unwrap()
        })
        .collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    drop(enclave);
    agent.join().unwrap().unwrap();
}

/// FIFO that in each step also preempts every core, naming the run `before` runs earlier than the one that
/// the agent believes to be current.
struct Eager {
    fifo: Fifo,
    before: u32,
    asked: Arc<AtomicU64>,
}

impl Policy for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }
    fn on_message(&mut self, now: Nanos, message: &Message) {
        self.fifo.on_message(now, message);
    }
    fn on_outcome(&mut self, now: Nanos, core: u16, of: &Decision, outcome: Outcome) {
        self.fifo.on_outcome(now, core, of, outcome);
    }
    fn decide(&mut self, now: Nanos, desk: &mut Desk<'_>) -> Progress {
        for core in 0..desk.cores() {
            let run = desk.run(core).wrapping_sub(self.before);
            if desk.preempt(Preemption { core, run }) {
                self.asked.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.fifo.decide(now, desk)
    }
    fn next_deadline(&self) -> Option<Nanos> {
        // Immediately, so that it preempts in every step.
        Some(Nanos(0))
    }
    fn resync(&mut self, now: Nanos, snapshot: &Snapshot) {
        self.fifo.resync(now, snapshot);
    }
}

#[test]
fn a_preemption_of_another_run_is_ignored() {
    for (before, ignored) in [(1, true), (0, false), (1_000, true)] {
        let enclave = start(&format!("late-{before}"), |_| {});
        let asked = Arc::new(AtomicU64::new(0));
        let asks = Arc::clone(&asked);
        let agent = agent(&enclave, |config| {
            Box::new(Eager { fifo: Fifo::new(config), before, asked: asks })
        });
        let until = Arc::clone(&asked);
        let thread = enclave.spawn(0, move || {
            let enough = until.load(Ordering::SeqCst) + 1_000;
            let mut left = 0u64;
            loop {
                // Read before the safe point, so that a safe point follows the last request even if the CPU was taken
                // away meanwhile.
                let asked = until.load(Ordering::SeqCst);
                left += u64::from(preempt_point());
                if asked >= enough {
                    return left;
                }
            }
        });
        let left = thread.unwrap().join().unwrap();
        assert_eq!(left == 0, ignored, "preempted {left} times");
        assert_eq!(sum(&enclave, |core| core.preempted), left);
        if ignored {
            assert_eq!(sum(&enclave, |core| core.ended_first), 0);
        }
        drop(enclave);
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn a_run_that_ends_before_its_safe_point_is_counted() {
    let enclave = start("ended-first", |_| {});
    let asked = Arc::new(AtomicU64::new(0));
    let asks = Arc::clone(&asked);
    let agent = agent(&enclave, |config| {
        Box::new(Eager { fifo: Fifo::new(config), before: 0, asked: asks })
    });
    let until = Arc::clone(&asked);
    let thread = enclave.spawn(0, move || {
        // The agent hears of the run after it began; from the third step on, its preemptions name this run.
        let enough = until.load(Ordering::SeqCst) + 1_000;
        while until.load(Ordering::SeqCst) < enough {
            std::hint::spin_loop();
        }
    });
    thread.unwrap().join().unwrap();
    wait_for("the count", || sum(&enclave, |core| core.ended_first) == 1);
    assert_eq!(sum(&enclave, |core| core.preempted), 0);
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_new_agent_reaches_a_thread_that_never_stops() {
    let enclave = start("takeover", |_| {});
    let first = shipped(&enclave, SHINJUKU);
    let begun = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicBool::new(false));
    let (begins, ends) = (Arc::clone(&begun), Arc::clone(&done));
    let endless = enclave.spawn(0, move || {
        begins.store(true, Ordering::SeqCst);
        while !ends.load(Ordering::SeqCst) {
            preempt_point();
        }
    });
    wait_for("the thread", || begun.load(Ordering::SeqCst));
    enclave.kill_agent();
    first.join().unwrap().unwrap();
    wait_for("the fallback", || enclave.mode() == Mode::Fallback);
    // The fallback preempts no run: this thread gets the core only under the next agent.
    let other = enclave.spawn(0, move || done.store(true, Ordering::SeqCst)).unwrap();
    let second = shipped(&enclave, SHINJUKU);
    other.join().unwrap();
    endless.unwrap().join().unwrap();
    drop(enclave);
    second.join().unwrap().unwrap();
}

#[test]
fn a_sleeper_wakes_beside_a_thread_that_never_stops() {
    let enclave = start("sleeper", |_| {});
    let agent = shipped(&enclave, SHINJUKU);
    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let sleeper = enclave.spawn(0, move || {
        wave_user::sleep(std::time::Duration::from_millis(5));
        done.store(true, Ordering::SeqCst);
    });
    let endless = enclave.spawn(0, move || {
        while !ends.load(Ordering::SeqCst) {
            preempt_point();
        }
    });
    sleeper.unwrap().join().unwrap();
    endless.unwrap().join().unwrap();
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn enclave_stops_although_its_thread_never_ends() {
    let enclave = start("endless", |_| {});
    let begun = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    let body = move || {
        begins.store(true, Ordering::SeqCst);
        loop {
            preempt_point();
        }
    };
    enclave.spawn_detached(0, body).unwrap();
    wait_for("the thread", || begun.load(Ordering::SeqCst));
    drop(enclave);
}

#[test]
fn unwinding_thread_is_not_preempted() {
    struct Spins(Arc<AtomicU64>);
    impl Drop for Spins {
        fn drop(&mut self) {
            let enough = self.0.load(Ordering::SeqCst) + 1_000;
            while self.0.load(Ordering::SeqCst) < enough {
                assert!(!preempt_point());
            }
        }
    }
    let enclave = start("unwinding", |_| {});
    let asked = Arc::new(AtomicU64::new(0));
    let asks = Arc::clone(&asked);
    let agent = agent(&enclave, |config| {
        Box::new(Eager { fifo: Fifo::new(config), before: 0, asked: asks })
    });
    let thread = enclave.spawn(0, move || {
        let _spins = Spins(asked);
        std::panic::resume_unwind(Box::new("as expected"));
    });
    let error = thread.unwrap().join().unwrap_err();
    assert_eq!(error.0.downcast_ref(), Some(&"as expected"));
    assert_eq!(sum(&enclave, |core| core.preempted), 0);
    drop(enclave);
    agent.join().unwrap().unwrap();
}

#[test]
fn a_safe_point_outside_of_an_enclave_does_nothing() {
    assert!(!preempt_point());
}
