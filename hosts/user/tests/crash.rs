//! Agents in processes that are killed, stopped and continued at any moment: every thread runs
//! exactly once, the host keeps serving, and nothing outside the enclave changes.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Replay, seed, socket, start, wait_for};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;
use wave_agent::{Registry, Seat, attach, run};
use wave_core::clock::Nanos;
use wave_core::layout::{AGENT_READY, INCARNATION_LIVE, PROTOCOL_VERSION};
use wave_core::link::{Doorbell, Home, Port, Window};
use wave_user::{Attributes, Enclave, Mode, SpawnError, ThreadKind};

/// A host's patience with an agent. Long, because a busy machine may delay a good agent, too.
const WATCHFUL: Nanos = Nanos::from_millis(20);
const SOCKET: &str = "WAVE_TEST_AGENT";
const POLICY: &str = "WAVE_TEST_POLICY";

/// Run by [`process`] in a child; does nothing in an ordinary test run.
#[test]
fn agent_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let attached = attach(Path::new(&socket)).unwrap();
    let name = std::env::var(POLICY).unwrap();
    let policy = Registry::shipped().make(&name, &attached.layout.config).unwrap();
    run(attached, policy, (), Seat::Shared).unwrap();
}

/// An agent in a process of its own.
fn process(enclave: &Enclave) -> Child {
    process_with(enclave, "fifo")
}

fn process_with(enclave: &Enclave, policy: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_process", "--quiet"])
        .env(SOCKET, enclave.socket())
        .env(POLICY, policy)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: no memory is involved; the child has not been waited for, so its id is its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Threads that count their runs: each must run exactly once.
struct Work {
    ran: Arc<Vec<AtomicU64>>,
    sent: usize,
    /// Number of safe points that each thread passes.
    points: u32,
    /// Kind of every second thread; the others are user-level threads.
    kind: ThreadKind,
}

impl Work {
    fn new(count: usize) -> Work {
        let ran = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        Work { ran, sent: 0, points: 0, kind: ThreadKind::User }
    }

    /// Starts `count` more threads, as fast as the enclave accepts them.
    fn send(&mut self, enclave: &Enclave, count: usize) {
        for _ in 0..count {
            loop {
                let (ran, index, points) = (Arc::clone(&self.ran), self.sent, self.points);
                let kind = if index % 2 == 0 { self.kind } else { ThreadKind::User };
                let body = move || {
                    for point in 0..points {
                        // Code in which a kernel-level thread is preempted. User-level threads avoid its locks.
                        if kind == ThreadKind::Kernel {
                            std::hint::black_box(vec![point; 1 + index % 7]);
                        }
                        wave_user::preempt_point();
                    }
                    wave_user::yield_now();
                    ran[index].fetch_add(1, Ordering::Relaxed);
                };
                match enclave.spawn_detached(Attributes { class: 0, kind }, body) {
                    Ok(_) => break,
                    Err(SpawnError::Full { .. } | SpawnError::FullOfKernel { .. }) => {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            self.sent += 1;
        }
    }

    fn finish(&self, enclave: &Enclave) {
        wait_for("the end of all threads", || enclave.alive() == 0);
        for (index, ran) in self.ran[..self.sent].iter().enumerate() {
            assert_eq!(ran.load(Ordering::Relaxed), 1, "number of runs of thread {index}");
        }
    }
}

#[test]
fn an_agent_that_is_killed_at_any_moment_loses_no_thread() {
    let seed = seed(1);
    let _replay = Replay(seed, "crash an_agent_that_is_killed");
    let mut rng = Pcg32::seed_from_u64(seed);
    let enclave = start("killed", |options| options.config.cores = 2);
    let mut work = Work::new(100_000);
    for round in 1..=8 {
        let mut agent = process(&enclave);
        if round % 2 == 0 {
            // Half of the agents are killed at work, the others at any point: perhaps while they attach.
            wait_for("the agent", || enclave.stats().mode == Mode::Agent);
        }
        work.send(&enclave, rng.random_range(0..3000));
        agent.kill().unwrap();
        assert_eq!(agent.wait().unwrap().signal(), Some(libc::SIGKILL));
        work.send(&enclave, rng.random_range(0..1000));
        wait_for("the end of the agent", || enclave.stats().mode == Mode::Fallback);
    }
    work.finish(&enclave);
    let stats = enclave.stats();
    assert!(stats.agents >= 4, "{stats:?}");
    assert_eq!((stats.lost_agents, stats.faults), (stats.agents, 0));
}

#[test]
fn an_agent_that_is_killed_while_it_preempts_loses_no_thread() {
    let seed = seed(1);
    let _replay = Replay(seed, "crash an_agent_that_is_killed_while_it_preempts");
    let mut rng = Pcg32::seed_from_u64(seed);
    let enclave = start("preempting", |options| {
        options.config.cores = 2;
        options.kernel_threads = 16;
    });
    let preempted = || enclave.stats().cores.iter().map(|core| core.preempted).sum::<u64>();
    let mut work = Work::new(200_000);
    // Long enough to be preempted several times.
    work.points = 50_000;
    for round in 0..12 {
        work.kind = [ThreadKind::User, ThreadKind::Kernel][round % 2];
        let mut agent = process_with(&enclave, "shinjuku:slice_us=5");
        wait_for("the agent", || enclave.stats().mode == Mode::Agent);
        // The agent is killed between two of its preemptions, or in the middle of one.
        let enough = preempted() + rng.random_range(1..200);
        while preempted() < enough {
            work.send(&enclave, 64);
        }
        agent.kill().unwrap();
        assert_eq!(agent.wait().unwrap().signal(), Some(libc::SIGKILL));
        wait_for("the end of the agent", || enclave.stats().mode == Mode::Fallback);
    }
    work.finish(&enclave);
    let stats = enclave.stats();
    assert_eq!((stats.agents, stats.lost_agents, stats.faults), (12, 12, 0));
}

#[test]
fn a_stopped_agent_that_continues_after_its_replacement_changes_nothing() {
    let seed = seed(1);
    let _replay = Replay(seed, "crash a_stopped_agent");
    let mut rng = Pcg32::seed_from_u64(seed);
    let enclave = start("stopped", |options| {
        options.config.cores = 2;
        options.config.patience = WATCHFUL;
    });
    let mut work = Work::new(100_000);
    let mut old = process(&enclave);
    wait_for("the first agent", || enclave.stats().agents == 1);
    for round in 2..=6 {
        work.send(&enclave, rng.random_range(0..2000));
        signal(&old, libc::SIGSTOP);
        work.send(&enclave, rng.random_range(0..200));
        let new = process(&enclave);
        wait_for("the replacement", || enclave.stats().agents == round);
        work.send(&enclave, rng.random_range(0..200));
        signal(&old, libc::SIGCONT);
        work.send(&enclave, rng.random_range(0..2000));
        // The agent finds its window revoked and leaves.
        assert!(old.wait().unwrap().success());
        old = new;
    }
    work.finish(&enclave);
    assert_eq!(enclave.stats().faults, 0);
    drop(enclave);
    assert!(old.wait().unwrap().success());
}

/// Attaches, and then writes random words all over its window until the host revokes it.
fn scribble(socket: &Path, rng: &mut Pcg32) {
    let Ok(attached) = attach(socket) else { return };
    let layout = &attached.layout;
    let nic = attached.port.window(Home::Nic);
    nic.store(layout.agent, 0, AGENT_READY | u64::from(PROTOCOL_VERSION));
    nic.publish();
    attached.host_bells.iter().for_each(Doorbell::ring);
    while nic.load(layout.incarnation, 0) == INCARNATION_LIVE {
        let (home, lines) = match rng.random() {
            true => (Home::Nic, layout.nic_lines),
            false => (Home::Host, layout.host_lines),
        };
        let line = rng.random_range(0..lines);
        if home == Home::Nic && (line == layout.incarnation || line == layout.agent) {
            continue;
        }
        attached.port.window(home).store(line, rng.random_range(0..8), rng.random());
        // Also write entries that the host will read: some are valid decisions, most are not.
        let ring = match rng.random_range(0..4) {
            0 => layout.control.ring,
            _ => layout.decisions[0].ring,
        };
        let line = ring.first + rng.random_range(0..ring.entries);
        nic.store(line, 0, 1 << 32 | rng.random_range(0..256));
        nic.store(line, 1, rng.random_range(0..4));
        let kind = if rng.random() { 1 } else { rng.random_range(0..0x1_0000) };
        let words = if rng.random_range(0..256) == 0 { rng.random_range(0..=255) } else { 3 };
        nic.store(line, 7, 1 << 32 | kind << 16 | words);
        if rng.random_range(0..64) == 0 {
            attached.host_bells[rng.random_range(0..attached.host_bells.len())].ring();
        }
    }
}

#[test]
fn a_hostile_agent_wastes_only_its_own_enclaves_time() {
    let seed = seed(1);
    let _replay = Replay(seed, "crash a_hostile_agent");
    let (hostile, good) =
        (start("hostile", |options| options.config.patience = WATCHFUL), start("good", |_| {}));
    let attached = attach(good.socket()).unwrap();
    let policy = Registry::shipped().make("fifo", &attached.layout.config).unwrap();
    let agent = std::thread::spawn(move || run(attached, policy, (), Seat::Shared));
    wait_for("the good agent", || good.stats().mode == Mode::Agent);
    let attacker = std::thread::spawn(move || {
        let mut rng = Pcg32::seed_from_u64(seed);
        for _ in 0..30 {
            scribble(&socket("hostile"), &mut rng);
        }
    });
    let (mut theirs, mut ours) = (Work::new(50_000), Work::new(50_000));
    while !attacker.is_finished() && ours.sent < 45_000 {
        theirs.send(&hostile, 100);
        ours.send(&good, 100);
    }
    attacker.join().unwrap();
    wait_for("the end of the attack", || hostile.stats().mode == Mode::Fallback);
    theirs.send(&hostile, 100);
    ours.send(&good, 100);
    theirs.finish(&hostile);
    ours.finish(&good);
    let (bad, stats) = (hostile.stats(), good.stats());
    assert!(bad.faults > 0 && bad.lost_agents == bad.agents, "{bad:?}");
    assert_eq!((stats.agents, stats.lost_agents, stats.faults, stats.barks), (1, 0, 0, 0));
    let fallback: u64 = stats.cores.iter().map(|core| core.fallback_switches).sum();
    assert_eq!(fallback, 0, "the fallback decided for the good agent's enclave");
    drop(good);
    agent.join().unwrap().unwrap();
}
