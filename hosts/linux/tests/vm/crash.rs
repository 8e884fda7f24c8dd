//! Agents are killed, stopped and replaced under load, many times in the life of one enclave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wave_core::clock::Nanos;
use wave_core::outcome::Code;
use wave_linux::sched::{Enclave, Stats};

use crate::processes::{
    Agent, KernelLog, agents_cpu, alone, count, finish, is_well, shell, start, wait_for, work,
};

const LOST: usize = 50;
const REPLACED: usize = 20;
const PATIENCE: Nanos = Nanos::from_millis(600);
const FORKS: usize = 150;

/// Worst lateness of a thread that sleeps on the agents' CPU.
struct Lateness {
    stop: Arc<AtomicBool>,
    worst_ns: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Lateness {
    fn watch() -> Lateness {
        let (stop, worst_ns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, worst) = (Arc::clone(&stop), Arc::clone(&worst_ns));
        let nap = Duration::from_millis(1);
        let body = move || {
            agents_cpu();
            while !ends.load(Ordering::SeqCst) {
                let began = Instant::now();
                std::thread::sleep(nap);
                let late = began.elapsed().saturating_sub(nap);
                worst.fetch_max(late.as_nanos() as u64, Ordering::SeqCst);
            }
        };
        Lateness { stop, worst_ns, thread: Some(std::thread::spawn(body)) }
    }

    fn worst(&self) -> Duration {
        Duration::from_nanos(self.worst_ns.load(Ordering::SeqCst))
    }
}

impl Drop for Lateness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn own_switches(stats: &Stats) -> u64 {
    stats.cores.iter().map(|core| core.fallback_switches).sum()
}

/// An agent that decides: the given one or a new one.
fn deciding(enclave: &Enclave, agent: Option<Agent>) -> Agent {
    let mut agent = agent.unwrap_or_else(|| Agent::start(enclave, "fifo"));
    let decided = count(&enclave.stats(), Code::Complete);
    wait_for("decisions", || {
        let stats = enclave.stats();
        if !stats.agent_decides {
            // The agent was turned out because the whole machine was too slow.
            agent = Agent::start(enclave, "fifo");
        }
        count(&stats, Code::Complete) > decided + 5
    });
    agent
}

/// Signals the agent. Returns the time until the host has chosen a thread without an agent.
fn lose(enclave: &Enclave, agent: &Agent, signal: i32) -> Duration {
    let began = Instant::now();
    agent.signal(signal);
    wait_for("the fallback", || !enclave.stats().agent_decides);
    let before = own_switches(&enclave.stats());
    wait_for("a switch of the host's own", || own_switches(&enclave.stats()) > before);
    began.elapsed()
}

#[test]
fn many_lost_agents_cost_no_thread() {
    let Some(_alone) = alone() else { return };
    let mut kernel = KernelLog::from_now();
    let enclave = start(|options| {
        options.config.patience = PATIENCE;
        options.config.subjects = 256;
    });
    let lateness = Lateness::watch();
    let turns = work(6, usize::MAX);
    let forks =
        format!("i=0; while [ $i -lt {FORKS} ]; do /bin/true & wait; i=$((i + 1)); done; echo $i");
    let forks = shell(&forks);
    let (mut killed, mut stopped) = (Duration::ZERO, Duration::ZERO);
    let mut hangs: Option<Agent> = None;
    let mut agent = None;
    for round in 0..LOST {
        let mut current = deciding(&enclave, agent.take());
        // A stopped agent continues once another has its place, and must leave.
        if let Some(old) = hangs.take() {
            old.signal(libc::SIGCONT);
            old.leaves();
        }
        if round * REPLACED % LOST < REPLACED {
            let old = current;
            current = deciding(&enclave, Some(Agent::start(&enclave, "round-robin")));
            old.leaves();
        }
        if round % 2 == 0 {
            killed = killed.max(lose(&enclave, &current, libc::SIGKILL));
        } else {
            stopped = stopped.max(lose(&enclave, &current, libc::SIGSTOP));
            hangs = Some(current);
        }
    }
    drop(hangs);
    let late = lateness.worst();
    println!(
        "{LOST} agents lost: the host's own switch came after at most {killed:?} (killed), \
         {stopped:?} (stopped); patience {:?}, a sleeping thread was late by up to {late:?}",
        Duration::from_nanos(PATIENCE.0)
    );
    finish(turns);
    assert_eq!(finish(forks), format!("{FORKS}\n"));
    let stats = is_well(&enclave);
    assert!(stats.lost_agents >= LOST as u64, "{stats:?}");
    assert!(stats.agents >= (LOST + REPLACED) as u64, "{stats:?}");
    drop(enclave);
    assert_eq!(kernel.complaints(), Vec::<String>::new());
}
