//! A policy that keeps an account of what runs survives takeovers and kills of its agent: agents in processes of their own, under
//! a real host.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wave_core::clock::Nanos;
use wave_user::{Enclave, Mode, Options};

const TAKEOVERS: u64 = 20;
const CORES: u16 = 2;
/// Threads of each class.
const THREADS: u16 = 8;
/// Number of threads of each class that must end under an agent before the next one takes over.
const ENDS: u64 = 100;

#[derive(Default)]
struct Work {
    ended: [AtomicU64; 2],
    stop: AtomicBool,
}

/// A thread that yields, then leaves its work to a new one.
fn serve(class: u16, work: Arc<Work>) {
    (0..5).for_each(|_| wave_user::yield_now());
    work.ended[usize::from(class)].fetch_add(1, Relaxed);
    if !work.stop.load(Relaxed) {
        wave_user::spawn(class, move || serve(class, work)).unwrap();
    }
}

/// An agent of this crate's binary, killed on drop.
struct Agent(Child);

impl Agent {
    fn start(enclave: &Enclave) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_my-policy"));
        command.args(["--policy", "exclusive", "--share-cpu", "--quiet", "--attach"]);
        Agent(command.arg(enclave.socket()).stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have left already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come within 60 s");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn no_takeover_and_no_kill_stalls_a_policy_with_an_account() {
    let path =
        std::env::temp_dir().join(format!("my-policy-{}-takeovers.sock", std::process::id()));
    let mut options = Options::new(path);
    options.config =
        wave_core::layout::Config { subjects: 256, ..wave_core::layout::Config::coherent(CORES) };
    options.yields_cpu = true;
    // Exclusive threads wait beside an idle core by design.
    options.config.patience = Nanos::from_millis(60_000);
    let enclave = Enclave::start(options).unwrap();
    let work = Arc::new(Work::default());
    for at in 0..2 * THREADS {
        let work = Arc::clone(&work);
        enclave.spawn_detached(at % 2, move || serve(at % 2, work)).unwrap();
    }
    let ended = |class: u16| work.ended[usize::from(class)].load(Relaxed);
    let mut agent = Agent::start(&enclave);
    wait_for("the first agent", || enclave.mode() == Mode::Agent);
    for takeover in 1..=TAKEOVERS {
        let before = [ended(0), ended(1)];
        wait_for(&format!("progress after takeover {takeover}"), || {
            (0..2).all(|class| ended(class) >= before[usize::from(class)] + ENDS)
        });
        assert_eq!(enclave.mode(), Mode::Agent, "the agent's decisions are those that count");
        if takeover % 2 == 0 {
            agent.0.kill().unwrap();
        }
        let next = Agent::start(&enclave);
        wait_for("the next agent", || {
            enclave.stats().agents == takeover + 1 && enclave.mode() == Mode::Agent
        });
        agent = next;
    }
    work.stop.store(true, Relaxed);
    wait_for("the end of all threads", || enclave.alive() == 0);
    let stats = enclave.stats();
    assert_eq!((stats.agents, stats.faults, stats.barks), (TAKEOVERS + 1, 0, 0));
}
