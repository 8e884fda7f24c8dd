//! The subsystem under a real host: agents attach, die and are replaced. An agent's inputs are recorded, replayed and traced.

mod host;

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use host::Host;
use my_subsystem::SUBSYSTEM;
use wave_agent::Registry;
use wave_core::control::Revoked;
use wave_core::subsystem::Subsystem;

/// An agent's process, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn agent(host: &Host, policy: &str, log: Option<&Path>) -> Agent {
    let mut command = Command::new(env!("CARGO_BIN_EXE_my-subsystem"));
    command.args(["--quiet", "--share-cpu", "--policy", policy, "--attach"]).arg(host.socket());
    if let Some(log) = log {
        command.arg("--record").arg(log);
    }
    Agent(command.stderr(Stdio::inherit()).spawn().unwrap())
}

/// Steps the host until the condition holds.
fn until(host: &mut Host, what: &str, condition: impl Fn(&Host) -> bool) {
    let begin = Instant::now();
    while !condition(host) {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what} did not come within 120 s");
        host.step();
    }
}

fn lab(words: &[&str]) -> ExitCode {
    wave_lab::run_from(&Registry::shipped().with_subsystem(&SUBSYSTEM), words)
}

#[test]
fn agents_are_replaced_and_a_log_is_replayed_and_traced_in_the_subsystems_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new(folder.path());
    until(&mut host, "the host's own choice", |host| host.served[1] >= 100);

    let mut first = agent(&host, "arrival", None);
    until(&mut host, "the first agent", |host| host.served[0] >= 500);
    first.0.kill().unwrap();
    until(&mut host, "the loss of the first agent", |host| !host.has_agent());
    let own = host.served[1];
    until(&mut host, "the host's own choice again", |host| host.served[1] >= own + 100);

    let log = folder.path().join("nearest.wavelog");
    let mut second = agent(&host, "nearest:patience_us=300", Some(&log));
    let before = host.served[0];
    until(&mut host, "the second agent", |host| host.served[0] >= before + 500);
    host.detach(Revoked::Ended);
    assert!(second.0.wait().unwrap().success());

    let log = log.to_str().unwrap();
    assert_eq!(lab(&["replay", log]), ExitCode::SUCCESS);
    assert_eq!(lab(&["replay", log, "--policy", "arrival"]), ExitCode::SUCCESS);
    let trace = folder.path().join("trace.json");
    assert_eq!(lab(&["trace", log, "--output", trace.to_str().unwrap()]), ExitCode::SUCCESS);
    let trace = std::fs::read_to_string(trace).unwrap();
    for word in ["ARRIVED", "DONE", "SERVE", "request "] {
        assert!(trace.contains(word), "{word} is not in the trace");
    }
    assert!(!trace.contains("\"thread "), "the trace must speak of requests, not threads");
}

#[test]
fn an_agent_without_the_subsystem_refuses_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut host = Host::new(folder.path());
    let socket = host.socket();
    let stranger = std::thread::spawn(move || wave_agent::attach(&socket).map(drop));
    while !stranger.is_finished() {
        host.step();
    }
    stranger.join().unwrap().unwrap();
    let mut config = wave_core::layout::Config::coherent(1);
    config.subsystem = SUBSYSTEM.id;
    let refused = Registry::shipped().make("fifo", &config).map(drop).unwrap_err();
    assert!(refused.contains("subsystem 32775, which this agent does not know"), "{refused}");
}

#[test]
fn the_subsystem_is_listed_simulated_and_fuzzed_by_name() {
    assert_eq!(lab(&["policies"]), ExitCode::SUCCESS);
    let simulate =
        ["simulate", "--subsystem", "disk", "--policy", "arrival", "--policy", "nearest"];
    let loads = ["--load", "100000,300000", "--measure-ms", "20"];
    assert_eq!(lab(&[&simulate[..], &loads].concat()), ExitCode::SUCCESS);
    assert_eq!(lab(&["fuzz", "--subsystem", "disk", "--seeds", "4"]), ExitCode::SUCCESS);
    assert_eq!(
        lab(&["fuzz", "--subsystem", "disk", "--policy", "nearest", "--seeds", "2"]),
        ExitCode::SUCCESS
    );
    assert_eq!(lab(&["fuzz", "--subsystem", "memory"]), ExitCode::from(2));
    static WITHOUT_POLICIES: Subsystem = Subsystem { policies: &[], make: None, ..SUBSYSTEM };
    let registry = Registry::shipped().with_subsystem(&WITHOUT_POLICIES);
    assert_eq!(wave_lab::run_from(&registry, ["fuzz", "--subsystem", "disk"]), ExitCode::from(2));
    assert_eq!(
        lab(&["simulate", "--subsystem", "disk", "--policy", "fifo", "--load", "1"]),
        ExitCode::from(2)
    );
}
