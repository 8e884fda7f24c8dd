//! The agent's error messages for command lines that cannot work.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use wave_links::socket::Listener;
use wave_user::Enclave;

fn agent(args: &[&str]) -> Command {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_wave-agent"));
    agent.args(args).stderr(Stdio::piped());
    agent
}

/// Standard error of an agent that ends with this exit code.
fn refusal(code: i32, args: &[&str]) -> String {
    let Output { status, stderr, .. } = agent(args).output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{args:?}: {text}");
    text
}

fn place(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn command_without_a_host_is_refused_with_the_options() {
    let text = refusal(2, &[]);
    for option in ["--attach SOCKET", "--device FOLDER"] {
        assert!(text.contains(option), "{text}");
    }
}

#[test]
fn memory_policy_is_refused_for_a_scheduler_host() {
    let folder = tempfile::tempdir().unwrap();
    let socket = place(&folder, "host");
    let options = wave_user::Options::new(Path::new(&socket)).cores(1);
    let _enclave = Enclave::start(options).unwrap();
    let text = refusal(2, &["--attach", &socket, "--policy", "sol"]);
    assert!(text.contains("this host needs one for sched"), "{text}");
    assert!(text.contains("fifo") && !text.contains("threshold"), "{text}");
}

#[test]
fn file_that_is_not_a_socket_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = place(&folder, "file");
    std::fs::write(&file, "").unwrap();
    let text = refusal(3, &["--attach", "/nowhere", "--notes-from", &file]);
    assert!(text.contains("exists and is not a socket"), "{text}");
}

#[test]
fn a_host_that_does_not_answer_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let socket = place(&folder, "host");
    // The kernel completes connections to it.
    let _silent = Listener::bind(Path::new(&socket), &[]).unwrap();
    let mut agent = agent(&["--attach", &socket]).spawn().unwrap();
    let lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let mut waits = lines.map(Result::unwrap).skip_while(|line| !line.contains("waiting for"));
    let line = waits.next();
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert!(line.is_some_and(|line| line.contains(&socket)));
}
