//! The policy under a real host: threads of two classes in an enclave, an agent over the queues.
//! The agent's inputs are recorded, and replayed without the host.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use my_policy::two_class::{TwoClass, URGENT};
use wave_agent::{Exit, RunError, Seat, attach, run};
use wave_core::brain::{Brain, Input, Recorder};
use wave_core::clock::Nanos;
use wave_core::layout::Config;
use wave_core::outcome::Code;
use wave_core::policy::Decisions;
use wave_sched::scheduler::Scheduled;
use wave_user::{Enclave, Mode, Options};

const ORDINARY: u16 = 1;

/// A recorder whose log outlives the agent.
#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<(Nanos, Input)>>>);

impl Recorder for Tape {
    fn record(&mut self, now: Nanos, input: &Input) {
        self.0.lock().unwrap().push((now, input.clone()));
    }
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("my-policy-{}-{name}.sock", std::process::id()))
}

fn start(name: &str) -> Enclave {
    let mut options = Options::new(socket(name));
    options.config.subjects = 256;
    // A test machine may be busy: cores yield their CPU, and the watchdog is patient.
    options.yields_cpu = true;
    options.config.patience = Nanos::from_millis(60_000);
    Enclave::start(options).unwrap()
}

/// An agent on a thread of this process: the same code as in a process of its own.
fn agent(enclave: &Enclave, tape: Tape) -> (Config, JoinHandle<Result<Exit, RunError>>) {
    let attached = attach(enclave.socket()).unwrap();
    let config = attached.layout.config;
    let policy = Scheduled::of(&config, TwoClass::default());
    let agent = std::thread::spawn(move || run(attached, policy, tape, Seat::Shared));
    wait_for("the agent", || enclave.mode() == Mode::Agent);
    (config, agent)
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come within 60 s");
        std::thread::yield_now();
    }
}

/// Spawns threads of both classes in turn, from a thread that holds the enclave's only core
/// meanwhile, so that all of them wait when it ends. Returns the classes in the order in which they
/// ran.
///
/// The first thread is urgent, because one decision may be made before the others are ready: a core
/// that has just got an agent reports that it is idle. The agent may already know this and have
/// answered with the spawner. It answers the report as well, with a thread that is ready by then.
fn classes_in_order(enclave: &Enclave, of_each: usize) -> Vec<u16> {
    let order = Arc::new(Mutex::new(Vec::new()));
    let spawner = {
        let order = Arc::clone(&order);
        move || {
            for _ in 0..of_each {
                for class in [URGENT, ORDINARY] {
                    let order = Arc::clone(&order);
                    let body = move || order.lock().unwrap().push(wave_user::class());
                    wave_user::spawn(class, body).unwrap();
                }
            }
        }
    };
    enclave.spawn(URGENT, spawner).unwrap().join().unwrap();
    wait_for("the end of all threads", || enclave.alive() == 0);
    let order = order.lock().unwrap();
    order.clone()
}

#[test]
fn urgent_threads_run_before_ordinary_ones() {
    let enclave = start("order");
    let (_, agent) = agent(&enclave, Tape::default());
    let order = classes_in_order(&enclave, 40);
    let expected: Vec<u16> = [[URGENT; 40], [ORDINARY; 40]].concat();
    assert_eq!(order, expected);
    let stats = enclave.stats();
    assert_eq!((stats.lost_agents, stats.faults), (0, 0));
    drop(enclave);
    assert!(agent.join().unwrap().is_ok());
}

#[test]
fn a_recorded_log_gives_the_same_decisions_again() {
    let enclave = start("replay");
    let tape = Tape::default();
    let (config, agent) = agent(&enclave, tape.clone());
    classes_in_order(&enclave, 100);
    drop(enclave);
    agent.join().unwrap().unwrap();

    let mut brain = Brain::new(&config, Scheduled::of(&config, TwoClass::default()), ());
    let mut out = Decisions::default();
    let mut made = HashSet::new();
    let mut committed = 0;
    for (now, input) in tape.0.lock().unwrap().iter() {
        // A decision that the host has committed by now must be among those of the replay so far.
        if let Input::Entry { context, entry } = input
            && let Some(outcome) = entry.outcome
        {
            assert!(made.contains(&(*context, outcome.txn.number())), "{outcome:?}");
            committed += u32::from(outcome.code == Code::Complete);
        }
        brain.replay(*now, input, &mut out);
        made.extend(out.staged.drain(..).map(|(core, decision)| (core, decision.txn.number())));
    }
    // A revoked agent leaves without reading the last outcomes.
    assert!((100..=201).contains(&committed), "{committed} of a spawner and 200 threads");
}

#[test]
fn an_agent_that_dies_loses_no_thread() {
    let enclave = start("crash");
    let (_, first) = agent(&enclave, Tape::default());
    let threads: Vec<_> = (0..100)
        .map(|at| enclave.spawn(at % 2, || (0..20).for_each(|_| wave_user::yield_now())).unwrap())
        .collect();
    enclave.kill_agent();
    wait_for("the fallback", || enclave.mode() == Mode::Fallback);
    let (_, second) = agent(&enclave, Tape::default());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(enclave);
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
}
