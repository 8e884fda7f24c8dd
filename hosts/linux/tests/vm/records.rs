//! Replays of agents' recordings of real threads: the policy makes the same decisions again.

use std::path::Path;

use wave_agent::{Registry, Seat, attach, record_to, run};
use wave_core::brain::Input;
use wave_core::log::{Header, LogReader, What};
use wave_core::outcome::Code;
use wave_core::replay::{Replay, Tally};

use crate::processes::{Agent, alone, assignment, count, finish, is_well, start, work};

/// Body of a recording agent's process; does nothing in an ordinary test run.
#[test]
fn recording_agent_process() {
    let Some((socket, what)) = assignment() else { return };
    let (policy, log) = what.split_once(' ').unwrap();
    let attached = attach(&socket).unwrap();
    let config = attached.layout.config;
    let header = Header { config, policy: policy.into(), about: "a test".into() };
    let recorder = record_to(Path::new(log), &header).unwrap();
    run(attached, Registry::shipped().make(policy, &config).unwrap(), recorder, Seat::Shared)
        .unwrap();
}

/// Replays a log as `wave replay` does; also counts the runs that began in it.
fn replay(log: &Path) -> (Tally, u64) {
    let bytes = std::fs::read(log).unwrap();
    let reader = LogReader::new(&bytes).unwrap();
    let Header { config, policy, .. } = reader.header().clone();
    let mut replay = Replay::new(&config, Registry::shipped().make(&policy, &config).unwrap());
    let mut runs = 0;
    for record in reader {
        let record = record.unwrap();
        if let What::Input(Input::Entry { entry, .. }) = &record.what {
            runs += u64::from(entry.outcome.is_some_and(|outcome| outcome.code == Code::Complete));
        }
        replay.feed(&record);
    }
    (replay.finish(), runs)
}

#[test]
fn decisions_about_real_threads_replay_identically() {
    let Some(_alone) = alone() else { return };
    for policy in ["fifo", "shinjuku:slice_us=5000"] {
        let log = std::env::temp_dir().join(format!("wave-vm-{}.wavelog", std::process::id()));
        let what = format!("{policy} {}", log.display());
        let enclave = start(|_| {});
        let agent = Agent::launch(&enclave, "records::recording_agent_process", &what);
        finish(work(6, 32));
        let stats = is_well(&enclave);
        assert_eq!(stats.lost_agents, 0, "{stats:?}");
        drop(enclave);
        agent.leaves();
        let (tally, runs) = replay(&log);
        std::fs::remove_file(&log).unwrap();
        println!("{policy}: {} records, {} decisions, {runs} runs", tally.records, tally.decisions);
        assert!(tally.is_identical(), "{policy}: {tally:?}");
        assert_eq!(runs, count(&stats, Code::Complete), "{policy}");
        assert!(tally.decisions >= runs && runs > 6 * 32, "{policy}: {runs} runs, {tally:?}");
    }
}
