//! First calls of an agent: its line about the host says that calls are accepted on every core, and calls before it get the
//! true reason.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::task::JoinSet;
use wave_rpc::status::Code;
use wave_user::rpc::{Methods, Options, Server};

use crate::client::{Answer, Client, run};
use crate::fixture::cpus;

const ECHO: &str = "/test.Test/Echo";
/// Number of fresh agents and hosts per configuration; `WAVE_FIRST_CALLS` overrides it.
const AGENTS: usize = 10;
/// Number of calls at once that are the first ones of an agent.
const CALLS: usize = 4;

/// An agent process, killed on drop.
pub struct Agent {
    pub process: Child,
    errors: BufReader<ChildStderr>,
}

impl Agent {
    pub fn start(host: &Path, connection_cores: usize) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wave-front"));
        command.args(["--listen", "127.0.0.1:0", "--share-cpu", "--rpc"]).arg(host);
        if connection_cores > 0 {
            let cpus: Vec<_> = cpus(connection_cores).iter().map(usize::to_string).collect();
            command.args(["--connection-cpus", &cpus.join(",")]);
        }
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(process.stderr.take().unwrap());
        Agent { process, errors }
    }

    /// Reads standard error up to the next line with these words, and returns what it read.
    pub fn says(&mut self, words: &str) -> String {
        let mut all = String::new();
        loop {
            let before = all.len();
            let bytes = self.errors.read_line(&mut all).unwrap();
            assert!(bytes > 0, "it ended without printing `{words}`:\n{all}");
            if all[before..].contains(words) {
                return all;
            }
        }
    }

    pub fn address(&mut self) -> SocketAddr {
        let said = self.says("gRPC at ");
        said.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Options of a host whose queues have this many entries.
fn options(socket: &Path, ring: Option<u32>) -> Options {
    let mut options = Options::new(socket).workers(2);
    options.yields_cpu = true;
    if let Some(entries) = ring {
        let config = &mut options.config;
        (config.messages.entries, config.decisions.entries) = (entries, entries);
        config.prestage = config.prestage.min((entries / 2) as u16);
    }
    options
}

/// A service whose description takes many entries of a queue.
fn methods() -> Methods {
    let echo = Methods::new().unary(ECHO, |_call, request| Ok(request.to_vec()));
    (0..16).fold(echo, |methods, number| {
        methods.unary(&format!("/test.Test/Other{number}"), |_call, _request| Ok(Vec::new()))
    })
}

async fn call(mut client: Client) -> Answer {
    client.call(ECHO, &[], &[b"x"]).await
}

/// Sends first calls to fresh agents on the line that announces their hosts.
fn first_calls_succeed(ring: Option<u32>, connection_cores: usize) {
    let asked = std::env::var("WAVE_FIRST_CALLS").ok().and_then(|text| text.parse().ok());
    for number in 0..asked.unwrap_or(AGENTS) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let _host = Server::start(options(&socket, ring), methods()).unwrap();
        let mut agent = Agent::start(&socket, connection_cores);
        let address = agent.address();
        run(async {
            let mut calls = JoinSet::new();
            let mut early = Vec::new();
            // Every other agent has connections before it has a host. To the others the first bytes come after the line.
            for _ in 0..if number % 2 == 0 { 0 } else { CALLS / 2 } {
                early.push(Client::connect(address).await);
            }
            agent.says("steers to");
            let late = CALLS - early.len();
            early.into_iter().for_each(|client| drop(calls.spawn(call(client))));
            for _ in 0..late {
                calls.spawn(async move { call(Client::connect(address).await).await });
            }
            while let Some(answer) = calls.join_next().await {
                let answer = answer.unwrap();
                assert_eq!(answer.code(), 0, "agent {number}: {}", answer.text());
            }
        });
    }
}

#[test]
fn first_calls_on_the_ready_line_succeed() {
    first_calls_succeed(None, 0);
}

#[test]
fn first_calls_on_the_ready_line_succeed_with_the_smallest_queues() {
    first_calls_succeed(Some(2), 0);
}

#[test]
fn first_calls_on_the_ready_line_succeed_with_two_connection_cores() {
    first_calls_succeed(None, 2);
}

#[test]
fn first_calls_on_the_ready_line_succeed_with_two_connection_cores_and_the_smallest_queues() {
    first_calls_succeed(Some(2), 2);
}

#[test]
fn calls_before_the_ready_line_get_the_true_reason() {
    for connection_cores in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let mut agent = Agent::start(&socket, connection_cores);
        let address = agent.address();
        run(async {
            let client = Client::connect(address).await;
            let answer = call(client.clone()).await;
            assert_eq!(answer.code(), Code::Unavailable as i32);
            assert!(answer.text().contains("no host is attached"), "{}", answer.text());
            // A worker announces itself once it is polled.
            let (_server, mut workers) =
                Server::start_polled(options(&socket, None).workers(1), methods()).unwrap();
            let said = agent.says("waiting until its workers are ready");
            assert!(!said.contains("steers to"), "{said}");
            let answer = call(client.clone()).await;
            assert_eq!(answer.code(), Code::Unavailable as i32);
            assert!(answer.text().contains("is not ready yet"), "{}", answer.text());
            let is_over = Arc::new(AtomicBool::new(false));
            let polls = std::thread::spawn({
                let is_over = Arc::clone(&is_over);
                move || {
                    while !is_over.load(SeqCst) {
                        workers[0].poll();
                        workers[0].wait();
                    }
                }
            });
            agent.says("steers to");
            is_over.store(true, SeqCst);
            polls.join().unwrap();
        });
    }
}
