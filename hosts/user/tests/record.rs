//! Replays of recordings from agents on a real host: a policy makes the same decisions again, for an agent
//! that left by itself and for one that was killed.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{start, wait_for};
use wave_agent::{Registry, Seat, attach, record_to, run};
use wave_core::brain::Input;
use wave_core::log::{Header, LogReader, What};
use wave_core::outcome::Code;
use wave_core::replay::{Replay, Tally};
use wave_user::{Enclave, Mode};

const SOCKET: &str = "WAVE_TEST_AGENT";
const LOG: &str = "WAVE_TEST_LOG";

fn record(socket: &Path, log: &Path, policy: &str) {
    let attached = attach(socket).unwrap();
    let config = attached.layout.config;
    let header = Header { config, policy: policy.into(), about: "a test".into() };
    let recorder = record_to(log, &header).unwrap();
    let policy = Registry::shipped().make(policy, &config).unwrap();
    run(attached, policy, recorder, Seat::Shared).unwrap();
}

/// Run by the agent process that is killed; does nothing in an ordinary test run.
#[test]
fn agent_process() {
    let Some((socket, log)) = std::env::var_os(SOCKET).zip(std::env::var_os(LOG)) else { return };
    record(Path::new(&socket), Path::new(&log), "fifo");
}

/// A log's path. Dropping it removes the log.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("wave-test-{}-{name}.wavelog", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs threads that yield, wait for each other and end.
fn work(enclave: &Enclave, threads: usize) {
    let threads: Vec<_> = (0..threads)
        .map(|at| {
            let body = move || {
                (0..at % 7).for_each(|_| wave_user::yield_now());
                if at % 3 == 0 {
                    wave_user::spawn(1, wave_user::yield_now).unwrap().join().unwrap();
                }
            };
            enclave.spawn(0, body).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Replays the log. Returns the comparison and the number of runs that began in the log.
fn replay(log: &Path) -> (Tally, usize) {
    let bytes = std::fs::read(log).unwrap();
    let reader = LogReader::new(&bytes).unwrap();
    let Header { config, policy, .. } = reader.header().clone();
    let mut replay = Replay::new(&config, Registry::shipped().make(&policy, &config).unwrap());
    let mut runs = 0;
    for record in reader {
        let record = record.unwrap();
        if let What::Input(Input::Entry { entry, .. }) = &record.what {
            runs +=
                usize::from(entry.outcome.is_some_and(|outcome| outcome.code == Code::Complete));
        }
        replay.feed(&record);
    }
    (replay.finish(), runs)
}

#[test]
fn a_recorded_run_replays_identically() {
    let log = Scratch::new("whole");
    let enclave = start("record-whole", |options| options.config.cores = 2);
    let (socket, file) = (enclave.socket().to_owned(), log.0.clone());
    let agent = std::thread::spawn(move || record(&socket, &file, "fifo"));
    wait_for("the agent", || enclave.mode() == Mode::Agent);
    work(&enclave, 200);
    drop(enclave);
    agent.join().unwrap();
    let (tally, runs) = replay(&log.0);
    assert!(tally.is_identical(), "{tally:?}");
    assert!(tally.decisions >= 200 && runs >= 200, "{runs} runs, {tally:?}");
}

/// Every policy that preempts, with its number of cores. Threads of class 2 never stop by themselves, and threads of
/// other classes must not wait for them.
const PREEMPTIVE: [(&str, u16); 5] = [
    ("shinjuku:slice_us=20", 1),
    ("multi-queue:slice_us=20", 2),
    ("round-robin:quantum_us=50", 2),
    ("edf:deadline_us=100/200/1000000000", 1),
    ("vm:quantum_ms=1..1", 1),
];

#[test]
fn a_recorded_run_with_preemptions_replays_identically() {
    for (policy, cores) in PREEMPTIVE {
        let name = format!("preempted-{}", policy.split(':').next().unwrap());
        let log = Scratch::new(&name);
        let enclave = start(&name, |options| options.config.cores = cores);
        let (socket, file) = (enclave.socket().to_owned(), log.0.clone());
        let agent = std::thread::spawn(move || record(&socket, &file, policy));
        wait_for("the agent", || enclave.mode() == Mode::Agent);
        let preempted = || enclave.stats().cores.iter().map(|core| core.preempted).sum::<u64>();
        let enough = Arc::new(AtomicBool::new(false));
        let long: Vec<_> = (0..4)
            .map(|_| {
                let enough = Arc::clone(&enough);
                let body = move || {
                    while !enough.load(Ordering::SeqCst) {
                        wave_user::preempt_point();
                    }
                };
                enclave.spawn(2, body).unwrap()
            })
            .collect();
        // Under EDF only newly arriving threads preempt a run.
        wait_for("preemptions", || {
            work(&enclave, 4);
            preempted() >= 20
        });
        enough.store(true, Ordering::SeqCst);
        long.into_iter().for_each(|thread| thread.join().unwrap());
        let acknowledged = preempted();
        drop(enclave);
        agent.join().unwrap();
        let (tally, runs) = replay(&log.0);
        assert!(tally.is_identical(), "{policy}: {tally:?}");
        assert!(tally.preemptions >= acknowledged, "{policy}: {acknowledged}, {tally:?}");
        assert!(tally.decisions >= 24 && runs >= 24, "{policy}: {runs} runs, {tally:?}");
    }
}

#[test]
fn the_log_of_a_killed_agent_replays_identically() {
    let log = Scratch::new("killed");
    let enclave = start("record-killed", |options| options.config.cores = 1);
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_process", "--quiet"])
        .env(SOCKET, enclave.socket())
        .env(LOG, &log.0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the agent", || enclave.mode() == Mode::Agent);
    // Wait until the part of the log on disk holds a run: parts are written when full, or when the agent is idle.
    wait_for("runs in the log", || {
        work(&enclave, 20);
        replay(&log.0).1 > 0
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    wait_for("the fallback", || enclave.mode() == Mode::Fallback);
    work(&enclave, 20);
    drop(enclave);
    let (tally, runs) = replay(&log.0);
    assert!(tally.is_identical(), "{tally:?}");
    assert!(tally.decisions > 0 && runs > 0, "{runs} runs, {tally:?}");
}
