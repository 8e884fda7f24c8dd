//! Error messages of an agent with a front for command lines that cannot work.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use wave_links::socket::Listener;
use wave_user::rpc::{Methods, Options, Server};

fn agent(args: &[&str]) -> Command {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_wave-front"));
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
fn missing_host_or_conflicting_options_are_refused_with_the_options() {
    let text = refusal(2, &[]);
    for option in ["--attach SOCKET", "--device FOLDER", "--rpc SOCKET --listen ADDRESS:PORT"] {
        assert!(text.contains(option), "{text}");
    }
    let text = refusal(2, &["--attach", "/nowhere", "--notes", "/nowhere-else"]);
    assert!(text.contains("--notes-from SOCKET"), "{text}");
    let text = refusal(2, &["--rpc", "/nowhere", "--listen", "localhost:50051"]);
    assert!(text.contains("127.0.0.1:50051"), "{text}");
}

#[test]
fn taken_listen_address_is_reported_with_a_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = refusal(3, &["--rpc", "/nowhere", "--listen", &address]);
    assert!(text.contains(&address) && text.contains("name another address"), "{text}");
}

#[test]
fn steering_settings_that_do_not_fit_the_host_end_the_front() {
    let folder = tempfile::tempdir().unwrap();
    let socket = place(&folder, "host");
    let methods = Methods::new().unary("/a.B/C", |_call, request| Ok(request.to_vec()));
    let _server = Server::start(Options::new(&socket).workers(2), methods).unwrap();
    let front = ["--rpc", &socket, "--listen", "127.0.0.1:0", "--steer"];
    let with = |steer| [&front[..], &[steer]].concat();
    let text = refusal(2, &with("darc:reserve=3"));
    assert!(text.contains("`reserve` is 3, but there are only 2 workers"), "{text}");
    let text = refusal(2, &with("jbsq:k=0"));
    assert!(text.contains("1 to 1024"), "{text}");
}

#[test]
fn file_that_is_not_a_socket_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = place(&folder, "file");
    std::fs::write(&file, "").unwrap();
    let text = refusal(3, &["--rpc", &file, "--listen", "127.0.0.1:0"]);
    assert!(text.contains("exists and is not a socket"), "{text}");
}

#[test]
fn a_host_that_does_not_answer_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let socket = place(&folder, "host");
    // The kernel completes connections to it.
    let _silent = Listener::bind(Path::new(&socket), &[]).unwrap();
    for args in [
        &["--rpc", &socket, "--listen", "127.0.0.1:0"][..],
        &["--rpc", &place(&folder, "none"), "--listen", "127.0.0.1:0", "--attach", &socket],
    ] {
        let mut agent = agent(args).spawn().unwrap();
        let lines = BufReader::new(agent.stderr.take().unwrap()).lines();
        let mut waits = lines.map(Result::unwrap).skip_while(|line| !line.contains("waiting for"));
        let line = waits.next();
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert!(line.is_some_and(|line| line.contains(&socket)), "{args:?}");
    }
}
