//! Threads keep their semantics under the host's fallback and under an agent over each link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_agent::{Exit, Registry, RunError, Seat, attach, run};
use wave_core::clock::Nanos;
use wave_core::control::Revoked;
use wave_core::layout::Config;
use wave_links::LinkSpec;
use wave_user::{Attributes, Condvar, Enclave, Mode, Mutex, Options, SpawnError, ThreadKind};

fn socket(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("wave-test-{}-{name}.sock", std::process::id()))
}

fn start(name: &str, change: impl FnOnce(&mut Options)) -> Enclave {
    let mut options = Options::new(socket(name));
    options.yields_cpu = true;
    options.config.subjects = 256;
    // On a busy machine, an agent may be without a CPU for longer than a watchdog should wait.
    options.config.patience = Nanos::from_millis(20_000);
    change(&mut options);
    Enclave::start(options).unwrap()
}

fn agent(enclave: &Enclave) -> JoinHandle<Result<Exit, RunError>> {
    let attached = attach(enclave.socket()).unwrap();
    let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
    std::thread::spawn(move || run(attached, policy, (), Seat::Shared))
}

/// Waits until `condition` holds. Fails, naming `what`, after 30 s.
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "timed out waiting for {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Exercises every operation of a thread.
fn exercise(enclave: &Enclave) {
    let mutex = Arc::new(Mutex::new(0u64));
    let condvar = Arc::new(Condvar::new());
    let workers: Vec<_> = (0..64)
        .map(|worker| {
            let (mutex, condvar) = (Arc::clone(&mutex), Arc::clone(&condvar));
            enclave
                .spawn(worker as u16, move || {
                    assert_eq!(wave_user::class(), worker as u16);
                    for round in 0..20 {
                        let mut count = mutex.lock();
                        if round % 3 == 0 {
                            // Held across a switch, so that other threads must block and be woken.
                            wave_user::yield_now();
                        }
                        *count += 1;
                        condvar.notify_all();
                        drop(count);
                        wave_user::yield_now();
                    }
                    worker
                })
                .unwrap()
        })
        .collect();
    let watcher = {
        let mutex = Arc::clone(&mutex);
        enclave
            .spawn(0, move || *condvar.wait_while(mutex.lock(), |count| *count < 64 * 20))
            .unwrap()
    };
    for (worker, handle) in workers.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), worker);
    }
    assert_eq!(watcher.join().unwrap(), 64 * 20);

    let parked = enclave
        .spawn(0, || {
            wave_user::park();
            wave_user::sleep(Duration::from_millis(2));
            let child = wave_user::spawn(0, || 7).unwrap();
            child.join().unwrap()
        })
        .unwrap();
    enclave.unpark(parked.thread());
    assert_eq!(parked.join().unwrap(), 7);

    let panics = enclave.spawn(0, || panic!("as intended")).unwrap();
    let panic = panics.join().unwrap_err();
    assert_eq!(*panic.0.downcast::<&str>().unwrap(), "as intended");
    wait_for("the end of all threads", || enclave.alive() == 0);
}

#[test]
fn threads_run_without_an_agent() {
    let enclave = start("fallback", |options| options.config.cores = 2);
    exercise(&enclave);
    assert_eq!(enclave.stats().mode, Mode::Fallback);
}

/// The threads wait for each other without yielding, so each needs a core of its own.
#[test]
fn a_burst_of_threads_without_an_agent_wakes_a_core_for_each() {
    const CORES: u16 = 4;
    let enclave = start("burst", |options| {
        options.config.cores = CORES;
        options.config.spin = Nanos(0);
    });
    for _ in 0..20 {
        let arrived = Arc::new(AtomicU64::new(0));
        // The cores fall asleep.
        std::thread::sleep(Duration::from_millis(5));
        let all = Arc::clone(&arrived);
        let meet = move || {
            all.fetch_add(1, Ordering::SeqCst);
            wait_for("the other threads", || all.load(Ordering::SeqCst) == u64::from(CORES));
        };
        let first = meet.clone();
        let burst = enclave.spawn(0, move || {
            let others = (1..CORES).map(|_| wave_user::spawn(0, meet.clone()).unwrap());
            let others: Vec<_> = others.collect();
            first();
            others
        });
        for other in burst.unwrap().join().unwrap() {
            other.join().unwrap();
        }
    }
}

/// Panics when it is dropped.
struct Fragile;

impl Drop for Fragile {
    fn drop(&mut self) {
        panic!("planted");
    }
}

#[test]
fn a_destructor_that_panics_ends_no_core() {
    let enclave = start("fragile", |options| {
        options.config.cores = 1;
        options.kernel_threads = 1;
    });
    for kind in [ThreadKind::User, ThreadKind::Kernel] {
        let attributes = || Attributes { kind, ..Attributes::from(0) };
        drop(enclave.spawn(attributes(), || {
            wave_user::yield_now();
            Fragile
        }));
        wait_for("the end of the thread", || enclave.alive() == 0);
        enclave.spawn_detached(attributes(), || std::panic::panic_any(Fragile)).unwrap();
        wait_for("the end of the detached thread", || enclave.alive() == 0);
        assert_eq!(enclave.spawn(attributes(), || 7).unwrap().join().unwrap(), 7);
    }
}

fn with_an_agent_over(name: &str, cores: u16) {
    let enclave = start(name, |options| {
        if name == "mount-evans" {
            let Config { messages, decisions, .. } = Config::pcie(cores);
            (options.config.messages, options.config.decisions) = (messages, decisions);
        }
        options.config.cores = cores;
        options.link = LinkSpec::builtin(name).unwrap();
    });
    let agent = agent(&enclave);
    wait_for("the agent", || enclave.stats().mode == Mode::Agent);
    exercise(&enclave);
    let stats = enclave.stats();
    let fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    assert_eq!((stats.lost_agents, stats.faults, fallback), (0, 0, 0));
    drop(enclave);
    assert_eq!(agent.join().unwrap().unwrap(), Exit::Revoked(Revoked::Ended));
}

#[test]
fn threads_run_with_an_agent_over_shm() {
    with_an_agent_over("shm", 2);
}

#[test]
fn threads_run_with_an_agent_over_a_coherent_link() {
    with_an_agent_over("coherent", 1);
}

#[test]
fn threads_run_with_an_agent_over_a_pcie_link() {
    with_an_agent_over("mount-evans", 2);
}

#[test]
fn agents_come_and_go_under_load_and_every_thread_runs_once() {
    let enclave = start("come-and-go", |options| options.config.cores = 2);
    let ran = Arc::new(AtomicU64::new(0));
    let mut sent = 0;
    let mut agents = Vec::new();
    for round in 0..40 {
        match round % 4 {
            0 => agents.push(agent(&enclave)),
            1 => wait_for("an agent", || enclave.stats().agents >= agents.len() as u64),
            2 => agents.push(agent(&enclave)),
            _ => enclave.kill_agent(),
        }
        for _ in 0..500 {
            let ran = Arc::clone(&ran);
            let body = move || {
                wave_user::yield_now();
                ran.fetch_add(1, Ordering::Relaxed);
            };
            match enclave.spawn_detached(0, body) {
                Ok(_) => sent += 1,
                Err(SpawnError::Full { max, .. }) => {
                    assert_eq!(max, 256);
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    wait_for("the end of all threads", || enclave.alive() == 0);
    assert_eq!(ran.load(Ordering::Relaxed), sent);
    drop(enclave);
    for agent in agents {
        agent.join().unwrap().unwrap();
    }
}

#[test]
fn a_message_queue_that_overflows_is_repaired_by_a_snapshot() {
    let enclave = start("overflow", |options| {
        options.config.messages.entries = 4;
        options.config.decisions.entries = 8;
    });
    let agent = agent(&enclave);
    wait_for("the agent", || enclave.stats().mode == Mode::Agent);
    let ran = Arc::new(AtomicU64::new(0));
    let mut sent = 0;
    while enclave.stats().overflows == 0 || sent < 2000 {
        let ran = Arc::clone(&ran);
        let body = move || {
            ran.fetch_add(1, Ordering::Relaxed);
        };
        sent += u64::from(enclave.spawn_detached(0, body).is_ok());
    }
    wait_for("the end of all threads", || enclave.alive() == 0);
    assert_eq!(ran.load(Ordering::Relaxed), sent);
    assert_eq!(enclave.stats().faults, 0);
    drop(enclave);
    agent.join().unwrap().unwrap();
}
